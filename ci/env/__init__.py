"""The virtual environments that the tooling makes."""

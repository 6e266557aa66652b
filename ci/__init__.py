"""The tooling that carries the patch series: pin, compose, build, test, refresh."""

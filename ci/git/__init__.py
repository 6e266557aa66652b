"""The one wrapper around git, and what is read from and written to its object stores."""

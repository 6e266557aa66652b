"""A topic made ready to be sent upstream."""

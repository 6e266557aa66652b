"""What the tests run on, in which order, and how their results are judged."""

"""The patch series as data: read, checked, composed, exported and written."""

"""Wheels that say which series they are, and the proof."""

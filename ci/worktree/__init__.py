"""The checkout of the composed series that people edit, and their edits on the way back."""

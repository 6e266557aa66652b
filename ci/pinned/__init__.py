"""The pinned vLLM: which files stand for it, and how they are had and verified."""

"""The pinned vLLM: the files that stand for it, fetched and verified."""

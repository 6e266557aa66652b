"""The series on another vLLM: where each hunk goes, and what is left to solve."""

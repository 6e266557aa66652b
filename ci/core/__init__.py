"""What every room stands on: errors, paths, files, locks; knows nothing of vLLM."""

#!/usr/bin/env bash
# Runs every check of this folder. Findings go to $OUT, or to ./device-results.
set -eu
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"

#!/usr/bin/env bash
# Prints the first Python that can make the development environment: 3.10 or newer, with venv.
# PYTHON, where set, is the only one tried.
set -euo pipefail

has_version='import sys; sys.exit(sys.version_info < (3, 10))'
has_venv='import ensurepip, venv'

for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
    "$candidate" -c "$has_version" 2>/dev/null || continue
    if ! "$candidate" -c "$has_venv" 2>/dev/null; then
        echo "missing: the venv module of $candidate: install it, e.g. 'apt install python3-venv'" >&2
        exit 1
    fi
    echo "$candidate"
    exit 0
done
echo "missing: Python 3.10 or newer: install it, or name one with 'make PYTHON=/path/to/python3 ...'" >&2
exit 1

#!/usr/bin/env bash
# The measurements of docs/benchmarks.md. Peers run where GRIDGRAPH="BIN GRID", GRAFSOFT="BIN PREFIX", BLAZE="BIN PREFIX" and
# GAPBS="BIN FILE" say that they are: see bench/graphs.py for what these mean.
set -euo pipefail
cd "$(dirname "$0")/.."

peers=()
# shellcheck disable=SC2206  # two words each, by definition
{
    if [ -n "${GRIDGRAPH:-}" ]; then peers+=(--gridgraph $GRIDGRAPH); fi
    if [ -n "${GRAFSOFT:-}" ]; then peers+=(--grafsoft $GRAFSOFT); fi
    if [ -n "${BLAZE:-}" ]; then peers+=(--blaze $BLAZE); fi
    if [ -n "${GAPBS:-}" ]; then peers+=(--gapbs $GAPBS); fi
}
exec python3 bench/graphs.py "${peers[@]}" "$@"

#!/usr/bin/env bash
# The measurements of docs/benchmarks.md. Peers run where GRIDGRAPH="BIN GRID" and GRAFSOFT="BIN PREFIX" say that they are:
# see bench/graphs.py for what these mean.
set -euo pipefail
cd "$(dirname "$0")/.."

peers=()
# shellcheck disable=SC2206  # two words each, by definition
{
    if [ -n "${GRIDGRAPH:-}" ]; then peers+=(--gridgraph $GRIDGRAPH); fi
    if [ -n "${GRAFSOFT:-}" ]; then peers+=(--grafsoft $GRAFSOFT); fi
}
exec python3 bench/graphs.py "${peers[@]}" "$@"

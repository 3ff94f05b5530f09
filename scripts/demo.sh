#!/usr/bin/env bash
# A graph that is eight times as large as the memory it is worked on with: made, written to a file, imported, ranked
# and searched in 32 MiB, and checked against plain computations in memory.
#
#   scripts/demo.sh [SCALE] [MEMORY]        22 and 32MiB by default; SCALE 22 has 4 million vertices and 65 million edges
set -euo pipefail
cd "$(dirname "$0")/.."

scale=${1:-22}
memory=${2:-32MiB}
# Built with what is shown here alone, and apart: `make build` and `make install` build all of it.
inshore=${CARGO_TARGET_DIR:-target}/demo/release/inshore
# Beside the build and not in /tmp, which lies in memory on many machines.
work=$(mktemp -d "${CARGO_TARGET_DIR:-target}/demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
export INSHORE_STORE=$work/store

step() {
    echo
    echo "\$ inshore $*"
    "$inshore" "$@"
}

echo "A Graph500 Kronecker graph of scale $scale, in $memory of memory (scratch in $work)"
step graph generate kronecker --scale "$scale" --edge-factor 16 --seed 1 --name made --memory "$memory"
step graph export made -o "$work/edges.bin" --memory "$memory"
step graph rm made
step graph import "$work/edges.bin" --name kron --memory "$memory"
rm "$work/edges.bin"
step graph info kron
step graph pagerank kron --iterations 10 --memory "$memory" --top 10 -o "$work/ranks.parquet"
# The vertex of the highest rank has many neighbours: a good place to start from.
source=$("$inshore" graph pagerank kron --iterations 1 --memory "$memory" --top 1 --quiet | awk 'NR == 2 { print $1 }')
step graph bfs kron --source "$source" --memory "$memory" -o "$work/tree.parquet"
echo
echo "Checking both answers against plain computations in memory (these need room for the whole graph):"
step graph check kron "$work/ranks.parquet" --iterations 10
step graph check kron "$work/tree.parquet" --source "$source"
cat <<TEXT

That was one feature of six, graphs. \`make install\` builds all of them (25 minutes on two cores) and puts \`inshore\` into cargo's
bin folder: sorting, grouping and counting of files larger than memory, search, SQL, kernels in WebAssembly, and nodes that do all of
it where the data lies. docs/guide.md has a page for each.
TEXT

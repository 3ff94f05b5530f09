#!/usr/bin/env bash
# The commands of rank-a-web-graph.md. The tests run them with scale=12.
set -euo pipefail

scale=${scale:-22}
export INSHORE_STORE=$PWD/store
inshore graph generate kronecker --scale "$scale" --edge-factor 16 --seed 1 --name made --quiet
inshore graph export made -o links.csv --quiet
inshore graph rm made --quiet

inshore graph import links.csv --name web --memory 64MiB

inshore graph pagerank web --memory 64MiB --iterations 10 --top 5 -o ranks.parquet

inshore graph pagerank web --memory 16MiB --iterations 10 -o again.parquet --explain
cmp ranks.parquet again.parquet

inshore graph check web ranks.parquet --iterations 10

hub=$(inshore sql "SELECT vertex FROM 'ranks.parquet' ORDER BY rank DESC LIMIT 1" --quiet | tail -n 1)
inshore graph bfs web --source "$hub" --memory 64MiB -o tree.parquet
inshore sql "SELECT level, count(*) AS vertices FROM 'tree.parquet' GROUP BY level ORDER BY level" --memory 64MiB

inshore graph components web --memory 64MiB --top 3

#!/usr/bin/env bash
# The commands of search-logs.md. The tests run them with lines=50000 and ports of their own.
set -euo pipefail

lines=${lines:-2000000}
port=${port:-4711}
for node in 0 1 2 3; do
    inshore node serve --store "node-$node" --listen "127.0.0.1:$((port + node))" --memory 1GiB 2>"node-$node.log" &
done
trap 'kill $(jobs -p)' EXIT
nodes=localhost:$port,localhost:$((port + 1)),localhost:$((port + 2)),localhost:$((port + 3))
until inshore node status --node "$nodes" >status.txt 2>&1; do sleep 0.2; done
cat status.txt

awk -v lines="$lines" 'BEGIN {
    for (i = 0; i < lines; i++)
        printf "2026-11-%02d %02d:%02d host%d %s request %d took %d ms\n", i % 28 + 1, i % 24, i % 60, i % 97,
            i % 1000 == 0 ? "ERROR" : "INFO", i, i * 7919 % 5000
}' >web.log
inshore store put web.log --node "$nodes" --copies 2 --piece 1MiB
inshore store ls --node "$nodes"

inshore search -c ERROR store:web.log --node "$nodes"
inshore search 'ERROR .* took 4[0-9]{3} ms' store:web.log --node "$nodes" -m 3

inshore count words store:web.log --split --top 3 --node "$nodes"

kill %2
inshore search -c ERROR store:web.log --node "$nodes"
inshore search -c ERROR web.log

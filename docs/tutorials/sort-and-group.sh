#!/usr/bin/env bash
# The commands of sort-and-group.md. The tests run them with rows=100000 pause=0.3.
set -euo pipefail

rows=${rows:-20000000}
pause=${pause:-3}
export INSHORE_STORE=$PWD/store
inshore sql "SELECT value AS id, value * 7919 % 1000003 AS customer, (value * value + 31 * value) % 9973 / 100.0 AS price
    FROM generate_series(1, $rows)" -o sales.csv --memory 64MiB
ls -lh sales.csv

inshore sort sales.csv --key price:desc,id -o by-price.parquet --memory 32MiB --explain

inshore reduce sales.csv --by customer --count --mean price --max price -o customers.parquet --memory 32MiB

inshore sql "SELECT customer, count(*) AS n, round(sum(price), 2) AS spent FROM 'sales.csv'
    GROUP BY customer ORDER BY spent DESC, customer LIMIT 3" --memory 32MiB

timeout --signal INT "$pause" inshore sort sales.csv --key customer,id -o by-customer.csv --memory 32MiB --resume || true
inshore store jobs
inshore sort sales.csv --key customer,id -o by-customer.csv --memory 32MiB --resume
head -n 3 by-customer.csv

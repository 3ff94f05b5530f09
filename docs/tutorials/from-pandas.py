"""The code of from-pandas.md. The tests run it with ROWS=20000."""

import os

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import inshore

rows = int(os.environ.get("ROWS", "5_000_000"))
random = np.random.default_rng(seed=1)
shops, prices = random.integers(0, rows // 10, rows), random.integers(1, 10_000, rows)
sales = pd.DataFrame({"id": np.arange(rows), "shop": shops, "price": prices})
sales.to_parquet("sales.parquet")

# GROUP BY in pandas, Polars, DuckDB and Inshore
by_pandas = sales.groupby("shop")["price"].agg(["sum", "count"]).reset_index()
totals = [pl.col("price").sum().alias("sum"), pl.len()]
by_polars = pl.scan_parquet("sales.parquet").group_by("shop").agg(totals).collect().sort("shop")
query = "SELECT shop, sum(price) AS total, count(*) AS n FROM 'sales.parquet' GROUP BY shop ORDER BY shop"
by_duckdb = duckdb.sql(query).df()
by_inshore = pa.table(inshore.sql(query, memory="32MiB")).to_pandas()
assert by_inshore["total"].tolist() == by_pandas["sum"].tolist() == by_polars["sum"].to_list()
assert by_inshore["n"].tolist() == by_duckdb["n"].tolist()

# A frame of pandas as a table of the query, and the answer as a frame of Polars
expensive = sales[sales["price"] > sales["price"].mean()]
query = "SELECT shop, count(*) AS n FROM expensive GROUP BY shop ORDER BY n DESC, shop LIMIT 5"
top = pl.DataFrame(inshore.sql(query, memory="32MiB"))
assert top["n"][0] == expensive["shop"].value_counts().max()

# An answer that may be larger than memory goes to a file
store = inshore.Store("store")
store.sort("sales.parquet", by=[("price", "descending"), "id"], memory="32MiB").write("sorted.parquet")
in_order = sales.sort_values(["price", "id"], ascending=[False, True])
assert pl.read_parquet("sorted.parquet")["id"].to_list() == in_order["id"].tolist()

# PageRank, as networkx.pagerank computes it
edges = pa.table({"source": shops, "target": sales["id"] % (rows // 10)})
graph = store.import_edges(edges, name="shops", memory="32MiB")
ranks = pa.table(graph.pagerank(memory="32MiB")).to_pandas()
assert round(ranks["rank"].sum(), 6) == 1
print(ranks.nlargest(3, "rank"))

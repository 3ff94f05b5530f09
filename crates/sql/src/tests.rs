//! Compares the results of queries with DataFusion's own results in unlimited memory. Each query runs in memory, with
//! hash tables limited to a few bytes, and with sorted runs of a few rows.

use std::{
    collections::VecDeque,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use arrow::{
    array::{
        ArrayRef, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
        UInt8Array, UInt32Array, UInt64Array,
    },
    datatypes::{DataType, Field, Schema},
    record_batch::RecordBatch,
    util::display::{ArrayFormatter, FormatOptions},
};
use datafusion::{
    datasource::MemTable,
    prelude::{SessionConfig, SessionContext},
};
use inshore_store::{Budget, Cancel, Job, Store};
use inshore_tables::{FilePart, Input, PartBytes, TableWriter};
use proptest::prelude::*;
use serde_json::json;

use crate::{
    Error, Feed, Fragment, FragmentRows, FragmentScan, OperatorStats, Query, RemoteExecutor, StageRows,
    TableMetadata, Tables, operators::Limits, run_fragment, run_stage, scan::Files, smallest_memory_bytes,
};

mod names;
mod nullif;
mod orders;
mod subqueries;
mod types;

fn job(threads: usize) -> (tempfile::TempDir, Job) {
    job_within(64 << 20, threads)
}

fn job_within(memory_bytes: u64, threads: usize) -> (tempfile::TempDir, Job) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("store")).unwrap();
    let job = store.job(Budget::new(memory_bytes, threads), Cancel::default()).unwrap();
    (folder, job)
}

/// Formats rows as text. Numbers are rounded, since floating-point sums depend on the order of their terms.
fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("null");
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        for row in 0..batch.num_rows() {
            let value = |column: &ArrayFormatter<'_>| {
                let text = column.value(row).to_string();
                match text.parse::<f64>() {
                    Ok(number) if text.contains(['.', 'e']) => format!("{number:.3}"),
                    _ => text,
                }
            };
            lines.push(columns.iter().map(value).collect::<Vec<_>>().join(" "));
        }
    }
    lines
}

type Table = (&'static str, Vec<RecordBatch>);

/// Returns DataFusion's result of a query, with unlimited memory.
fn expected(text: &str, tables: &[Table]) -> Result<Vec<String>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
        for (name, batches) in tables {
            let table = MemTable::try_new(batches[0].schema(), vec![batches.clone()]).unwrap();
            context.register_table(*name, Arc::new(table)).unwrap();
        }
        let frame = context.sql(text).await.map_err(|error| error.to_string())?;
        frame.collect().await.map(|batches| lines(&batches)).map_err(|error| error.to_string())
    })
}

fn found(
    text: &str,
    tables: &[Table],
    threads: usize,
    limits: Limits,
) -> Result<(Vec<String>, Vec<OperatorStats>), Error> {
    found_within(64 << 20, text, tables, threads, limits)
}

fn found_within(
    memory_bytes: u64,
    text: &str,
    tables: &[Table],
    threads: usize,
    limits: Limits,
) -> Result<(Vec<String>, Vec<OperatorStats>), Error> {
    let (_folder, job) = job_within(memory_bytes, threads);
    let mut all = Tables::default();
    for (name, batches) in tables {
        all = all.with_batches(name, batches[0].schema(), batches.clone());
    }
    let mut query = Query::start_within(&job, text, all, limits)?;
    let mut batches = Vec::new();
    while let Some(batch) = query.next_batch()? {
        batches.push(batch);
    }
    let ran = query.report().operators;
    drop(query);
    assert_eq!(job.budget().reserved_bytes(), 0, "memory is given back after {text}");
    Ok((lines(&batches), ran))
}

const SMALL: Limits = Limits { table_bytes: Some(1), arena_bytes: None };
const RUNS: Limits = Limits { table_bytes: Some(1), arena_bytes: Some(64 << 10) };

/// Returns whether the query has an ORDER BY outside of all parentheses.
fn is_ordered(text: &str) -> bool {
    let depth = |before: &str| before.matches('(').count() - before.matches(')').count();
    text.match_indices("ORDER BY").any(|(place, _)| depth(&text[..place]) == 0)
}

/// Compares a query's result with DataFusion's result. If the query has no ORDER BY, both results are sorted first.
fn check(text: &str, tables: &[Table]) {
    let mut expected = expected(text, tables).unwrap();
    let is_ordered = is_ordered(text);
    if !is_ordered {
        expected.sort();
    }
    for (threads, limits) in [(2, Limits::default()), (1, SMALL), (2, SMALL), (1, RUNS), (2, RUNS)] {
        let (mut lines, _) = found(text, tables, threads, limits)
            .unwrap_or_else(|error| panic!("{text} with {threads} threads and {limits:?}: {error}"));
        if !is_ordered {
            lines.sort();
        }
        if lines != expected {
            let beyond = |some: &[String], others: &[String]| -> Vec<String> {
                some.iter().filter(|line| !others.contains(line)).take(5).cloned().collect()
            };
            panic!(
                "{text} with {threads} threads and {limits:?}: {} rows for {}; not expected: {:?}; missing: {:?}",
                lines.len(),
                expected.len(),
                beyond(&lines, &expected),
                beyond(&expected, &lines),
            );
        }
    }
}

/// Creates two tables with nulls, equal keys, texts that are prefixes of each other, and negative and positive
/// numbers.
fn tables(rows: &[(Option<i64>, u8, i32)], others: &[(Option<i64>, u8)]) -> Vec<Table> {
    let text = |&number: &u8| {
        (number % 11 != 0).then(|| "ab".repeat(number as usize % 5) + &(number % 7).to_string())
    };
    let left: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>())),
        ("s", Arc::new(rows.iter().map(|row| text(&row.1)).collect::<StringArray>())),
        ("v", Arc::new(rows.iter().map(|row| (row.2 % 13 != 0).then_some(row.2)).collect::<Int32Array>())),
        ("f", Arc::new(rows.iter().map(|row| Some(f64::from(row.2) / 8.0)).collect::<Float64Array>())),
        (
            "g",
            Arc::new(
                rows.iter().map(|row| (row.1 % 3 > 0).then(|| f64::from(row.2))).collect::<Float64Array>(),
            ),
        ),
        ("d", Arc::new(rows.iter().map(|row| Some(row.2 % 40)).collect::<Date32Array>())),
        (
            "m",
            Arc::new(
                rows.iter()
                    .map(|row| Some(i128::from(row.2)))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
        ),
    ];
    let right: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(others.iter().map(|row| row.0).collect::<Int64Array>())),
        ("w", Arc::new(others.iter().map(|row| text(&row.1)).collect::<StringArray>())),
    ];
    let batches = |columns: Vec<(&str, ArrayRef)>| {
        let all = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        );
        let all = all.unwrap();
        let pieces =
            (0..all.num_rows()).step_by(700).map(|start| all.slice(start, 700.min(all.num_rows() - start)));
        let mut pieces: Vec<RecordBatch> = pieces.collect();
        if pieces.is_empty() {
            pieces.push(all);
        }
        pieces
    };
    vec![("t", batches(left)), ("u", batches(right))]
}

const QUERIES: [&str; 51] = [
    "SELECT k, count(*), count(v), sum(v), min(s), max(s), avg(f), sum(m), avg(m), min(d) FROM t GROUP BY k",
    "SELECT k, sum(v), min(v), max(f) FROM t GROUP BY k",
    "SELECT k, avg(f), count(v) FROM t GROUP BY k",
    "SELECT k, avg(g), count(g) FROM t GROUP BY k",
    "SELECT s, k, avg(g), min(g) FROM t GROUP BY s, k",
    "SELECT k, avg(f) FILTER (WHERE v > 1000) FROM t GROUP BY k",
    "SELECT k, sum(v) AS n, count(*) FROM (SELECT k, v FROM t UNION ALL SELECT k, length(w) AS v FROM u) GROUP BY k",
    "SELECT k, sum(v), min(g) FROM (SELECT u.k, v, g FROM u LEFT JOIN t ON t.k = u.k AND t.v > 3) GROUP BY k",
    "SELECT d, min(f), sum(v) FILTER (WHERE v > 9) AS n, count(*) FROM t GROUP BY d HAVING min(f) < 3.0",
    "SELECT v, count(*), sum(k) FROM t GROUP BY v",
    "SELECT DISTINCT k FROM t",
    "SELECT s, k, sum(v), max(f) FROM t GROUP BY s, k",
    "SELECT s, count(DISTINCT k), count(DISTINCT v) FROM t GROUP BY s",
    "SELECT s, count(DISTINCT k), sum(v) FROM t GROUP BY s ORDER BY s",
    "SELECT k, stddev(f), var_pop(f), corr(f, v) FROM t GROUP BY k",
    "SELECT k, median(v), approx_distinct(s) FROM t GROUP BY k",
    "SELECT k, bit_and(v), bool_or(v > 3), sum(v) FILTER (WHERE v > 0), count(*) FILTER (WHERE s IS NULL) FROM t GROUP BY k",
    "SELECT k, s, sum(v), grouping(k) FROM t GROUP BY ROLLUP (k, s)",
    "SELECT k, s, d, count(*) FROM t GROUP BY GROUPING SETS ((k), (s, d), ())",
    "SELECT k % 3, d, count(*) AS n FROM t GROUP BY k % 3, d HAVING count(*) > 1",
    "SELECT sum(v), count(*) FROM t",
    "SELECT f, count(*) FROM t GROUP BY f",
    "SELECT DISTINCT s FROM t",
    "SELECT DISTINCT k, v, m FROM t",
    "SELECT count(DISTINCT s) FROM t",
    "SELECT k, first_value(v ORDER BY v, f) FROM t GROUP BY k",
    "SELECT k, s, v, f FROM t ORDER BY k, s, v, f",
    "SELECT k, s, v, f FROM t ORDER BY s DESC NULLS LAST, k NULLS FIRST, v DESC, f",
    "SELECT v + 1 AS w, m FROM t ORDER BY v + 1, abs(k) DESC, m, d",
    "SELECT k, v, f FROM t ORDER BY v, k, f LIMIT 30000",
    "SELECT k, v, f FROM t ORDER BY v, k, f LIMIT 7 OFFSET 3",
    "SELECT t.k, t.v, u.w FROM t JOIN u ON t.k = u.k",
    "SELECT t.k, t.v, u.w FROM t JOIN u ON t.k = u.k AND t.s = u.w",
    "SELECT t.k, t.s, u.w FROM t LEFT JOIN u ON t.k = u.k AND t.s < u.w",
    "SELECT t.k, t.s, u.w FROM t RIGHT JOIN u ON t.k = u.k AND t.s < u.w",
    "SELECT t.k, t.s, u.w FROM t FULL JOIN u ON t.k = u.k AND t.s < u.w",
    "SELECT t.k, t.s FROM t FULL JOIN u ON t.s = u.w",
    "SELECT k, v FROM t WHERE k IN (SELECT k FROM u WHERE w IS NOT NULL)",
    "SELECT k, v FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.w > t.s)",
    "SELECT k, v FROM t WHERE k NOT IN (SELECT k FROM u WHERE k IS NOT NULL)",
    "SELECT k, v FROM t WHERE k NOT IN (SELECT k FROM u)",
    "SELECT k, v FROM t WHERE k NOT IN (SELECT k FROM u WHERE length(w) > 100)",
    "SELECT k, v FROM t WHERE v = 3 OR EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "SELECT u.k, count(*), sum(v) FROM t JOIN u ON t.k = u.k GROUP BY u.k ORDER BY u.k",
    "SELECT k, w FROM u WHERE (SELECT count(*) FROM t WHERE t.k = u.k) > 2",
    "SELECT a.k, b.v FROM t a JOIN t b ON a.k = b.v AND a.s IS NOT DISTINCT FROM b.s",
    "SELECT k, v, rank() OVER (PARTITION BY s ORDER BY v, f), sum(v) OVER (PARTITION BY k) FROM t",
    "SELECT k FROM t UNION SELECT k FROM u",
    "SELECT k FROM t INTERSECT SELECT k FROM u",
    "SELECT value, count(k) AS n FROM generate_series(-5, 20) LEFT JOIN t ON k = value GROUP BY value ORDER BY value",
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT n.i, count(*) FROM n LEFT JOIN t ON t.k = n.i GROUP BY n.i",
];

fn some_rows(count: usize) -> Vec<(Option<i64>, u8, i32)> {
    let number = |row: usize| (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let key = |row: usize| (!row.is_multiple_of(17)).then(|| (number(row) % 300) as i64 - 20);
    (0..count).map(|row| (key(row), number(row * 3) as u8, (number(row * 7) % 2000) as i32 - 700)).collect()
}

#[test]
fn queries_answer_as_datafusion_does() {
    let rows = some_rows(6_000);
    let others: Vec<(Option<i64>, u8)> = some_rows(400).iter().map(|row| (row.0, row.1)).collect();
    let tables = tables(&rows, &others);
    for text in QUERIES {
        check(text, &tables);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn queries_over_random_rows_answer_as_datafusion_does(
        rows in prop::collection::vec((prop::option::of(-4i64..9), any::<u8>(), any::<i16>()), 0..300),
        others in prop::collection::vec((prop::option::of(-4i64..9), any::<u8>()), 0..40),
        query in 0..QUERIES.len(),
    ) {
        let rows: Vec<_> = rows.iter().map(|row| (row.0, row.1, i32::from(row.2))).collect();
        check(QUERIES[query], &tables(&rows, &others));
    }
}

#[test]
fn operators_report_the_ways_they_ran() {
    let tables = tables(&some_rows(6_000), &[(Some(1), 3)]);
    let ways = |text: &str, limits: Limits| -> Vec<Vec<&'static str>> {
        found(text, &tables, 2, limits).unwrap().1.into_iter().map(|ran| ran.ways).collect()
    };
    let group = "SELECT k, sum(v) FROM t GROUP BY k";
    assert_eq!(ways(group, Limits::default()), [["in memory"]]);
    assert_eq!(ways(group, RUNS), [["sort-reduce of numbers"]]);
    assert_eq!(ways("SELECT s, sum(v) FROM t GROUP BY s", RUNS), [["sort-reduce"]]);
    let order = "SELECT k FROM t ORDER BY k, v";
    assert_eq!(ways(order, Limits::default()), [["in memory"]]);
    assert_eq!(ways(order, RUNS), [["sort-reduce"]]);
    let join = "SELECT count(*) FROM t a JOIN t b ON a.k = b.k AND a.v = b.v";
    assert!(ways(join, Limits::default()).contains(&vec!["hash join"]));
    assert!(ways(join, RUNS).contains(&vec!["sort-merge join"]));
}

#[test]
fn a_sum_that_overflows_is_an_error() {
    let big = |count: usize, value: i64| {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("k", Arc::new(Int64Array::from_iter_values((0..count as i64).map(|row| row % 3)))),
            ("v", Arc::new(Int64Array::from(vec![value; count]))),
        ];
        vec![("t", vec![RecordBatch::try_from_iter(columns).unwrap()])]
    };
    for text in [
        "SELECT sum(v) FROM t",
        "SELECT k, sum(v) FROM t GROUP BY k",
        "SELECT sum(DISTINCT v + k), count(DISTINCT k) FROM t",
        "SELECT v, sum(DISTINCT v + k), count(DISTINCT k) FROM t GROUP BY v",
        "SELECT sum(v + 1), sum(v + 2) FROM t",
        "SELECT sum(v) OVER (ORDER BY k ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM t",
    ] {
        for limits in [Limits::default(), SMALL, RUNS] {
            let tables = big(900, i64::MAX / 2);
            let error = found(text, &tables, 2, limits).unwrap_err().to_string();
            assert!(error.contains("does not fit 64 bits"), "{text}: {error}");
            let (lines, _) = found(text, &big(900, i64::MAX / 1000), 2, limits).unwrap();
            assert!(!lines.is_empty());
        }
    }
    let (lines, _) =
        found("SELECT sum(cast(v AS decimal(38, 0))) FROM t", &big(4, i64::MAX), 2, RUNS).unwrap();
    assert_eq!(lines, ["36893488147419103228"]);
}

/// DataFusion's own results depend on the order of rows, or are wrong.
#[test]
fn min_and_max_of_fractions_do_not_depend_on_the_order_of_rows() {
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    let rows: Vec<(i64, f64)> =
        vec![(1, 1.0), (1, nan), (2, nan), (2, 1.0), (3, nan), (4, infinite), (5, -infinite), (6, 0.0)];
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)))),
        ("f", Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.1)))),
    ];
    let tables = vec![("t", vec![RecordBatch::try_from_iter(columns).unwrap()])];
    let expected = ["1 1.000 NaN", "2 1.000 NaN", "3 NaN NaN", "4 inf inf", "5 -inf -inf", "6 0.000 0.000"];
    for limits in [Limits::default(), SMALL, RUNS] {
        for threads in [1, 2] {
            let text = "SELECT k, min(f), max(f) FROM t GROUP BY k ORDER BY k";
            assert_eq!(found(text, &tables, threads, limits).unwrap().0, expected);
        }
    }
}

/// The statistics of the file show that each row of numbers fits 64 bits.
#[test]
fn rows_of_numbers_are_sorted_as_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 30_000i64;
    let mixed = |row: i64| (row + 1).wrapping_mul(0x1e37_79b9_7f4a_7c15).rotate_left(21);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new((0..rows).map(|row| Some(mixed(row) % 5_000)).collect::<Int64Array>())),
        (
            "v",
            Arc::new(
                (0..rows)
                    .map(|row| (row % 11 > 0).then_some((mixed(row * 3) % 90) as i32))
                    .collect::<Int32Array>(),
            ),
        ),
        ("d", Arc::new((0..rows).map(|row| Some((mixed(row * 7) % 400) as i32)).collect::<Date32Array>())),
        ("f", Arc::new((0..rows).map(|row| Some(mixed(row) as f64 / 3.0)).collect::<Float64Array>())),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = folder.path().join("t.parquet");
    write_parquet(&path, &batch);
    let in_memory = vec![("t", vec![batch])];
    for (text, is_numbers) in [
        ("SELECT k, v, d FROM t ORDER BY k, v, d", true),
        ("SELECT v, k FROM t ORDER BY k DESC, v DESC NULLS LAST", true),
        ("SELECT d, v FROM t WHERE k > 7 ORDER BY v NULLS FIRST, d DESC LIMIT 21000", true),
        ("SELECT f FROM t ORDER BY f DESC", true),
        ("SELECT d FROM (SELECT d, k FROM t WHERE v < 40) ORDER BY d", true),
        (
            "SELECT count(*), min(d) < max(d) FROM (SELECT d FROM (SELECT d FROM t LIMIT 20500) ORDER BY d LIMIT 25000)",
            true,
        ),
        ("SELECT k FROM (SELECT k FROM t WHERE d < 0) ORDER BY k", true),
        ("SELECT k, f FROM t ORDER BY f, k", false),
        ("SELECT k, v FROM t ORDER BY k + 1, v", false),
    ] {
        let expected = expected(text, &in_memory).unwrap();
        for (threads, limits) in [(1, Limits::default()), (1, SMALL), (2, SMALL), (1, RUNS), (3, RUNS)] {
            let (_store, job) = job(threads);
            let tables = Tables::default().with_files("t", std::slice::from_ref(&path));
            let mut query = Query::start_within(&job, text, tables, limits).unwrap();
            let found = query.by_ref().collect::<Result<Vec<_>, _>>();
            let found = lines(&found.unwrap_or_else(|error| panic!("{text}: {error}")));
            assert!(found == expected, "{text} with {threads} threads and {limits:?}");
            let ran = query.report().operators;
            assert_eq!(ran.len(), 1, "{text}: {ran:?}");
            if limits.arena_bytes.is_some() && !expected.is_empty() {
                let way = if is_numbers { "sort-reduce of numbers" } else { "sort-reduce" };
                assert_eq!(ran[0].ways, [way], "{text}");
            }
            drop(query);
            assert_eq!(job.budget().reserved_bytes(), 0);
        }
    }
}

fn write_parquet(path: &std::path::Path, batch: &RecordBatch) {
    let budget = Budget::new(64 << 20, 1);
    let mut writer = inshore_tables::TableWriter::create(path, batch.schema(), &budget).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
}

/// The statistics of the file contain many bounds. The queries compute values beyond some of these bounds.
#[test]
fn statistics_of_files_choose_the_sort_and_never_change_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 40_000i64;
    let decimals = |values: &mut dyn Iterator<Item = Option<i128>>| -> ArrayRef {
        Arc::new(values.collect::<Decimal128Array>().with_precision_and_scale(20, 2).unwrap())
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("s", Arc::new(StringArray::from_iter_values((0..rows).map(|row| row.to_string())))),
        ("v", Arc::new((0..rows).map(|row| (row % 7 > 0).then_some(row)).collect::<Int64Array>())),
        ("m", decimals(&mut (0..rows).map(|row| (row % 5 > 0).then_some(i128::from(row) - 300)))),
        // Sums of column w need more than 64 bits.
        ("w", decimals(&mut (0..rows).map(|row| Some(i128::from(row) << 44)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = folder.path().join("t.parquet");
    write_parquet(&path, &batch);
    let in_memory = vec![("t", vec![batch])];
    for text in [
        "SELECT k, sum(v) AS v, count(*) AS n FROM t GROUP BY k",
        "SELECT k, count(*) AS n FROM t WHERE k / 10 <= 1000 GROUP BY k",
        "SELECT k, min(v) AS v FROM t WHERE k / 2 = 5 GROUP BY k",
        "SELECT k, count(*) AS n, sum(v) AS v FROM (SELECT CAST(s AS BIGINT) AS k, v FROM t) GROUP BY k",
        "SELECT v, sum(m) AS a, min(m) AS b, max(m) AS c FROM t GROUP BY v",
        "SELECT v, avg(m) AS a FROM t WHERE k % 3 = 0 GROUP BY v",
        "SELECT v, sum(w) AS a, avg(w) AS b FROM t GROUP BY v",
        "SELECT v, min(w) AS a, sum(m * 2) AS b FROM t GROUP BY v",
        "SELECT -k AS k, sum(v) AS v FROM t WHERE v IS NULL OR k < 300 GROUP BY -k",
        "SELECT k, sum(v) AS v FROM (SELECT k, v FROM t UNION ALL SELECT k + 100000, v FROM t) GROUP BY k",
    ] {
        let mut expected = expected(text, &in_memory).unwrap();
        expected.sort();
        for (threads, limits) in [(2, Limits::default()), (1, SMALL), (2, SMALL), (2, RUNS)] {
            let (_store, job) = job(threads);
            let tables = Tables::default().with_files("t", std::slice::from_ref(&path));
            let mut query = Query::start_within(&job, text, tables, limits).unwrap();
            let mut found = lines(
                &query
                    .by_ref()
                    .collect::<Result<Vec<_>, _>>()
                    .unwrap_or_else(|error| panic!("{text}: {error}")),
            );
            found.sort();
            assert!(found == expected, "{text} with {threads} threads and {limits:?}");
            if limits.table_bytes.is_some() {
                // Sums of column w need more than 64 bits, and computed values may need more.
                let way = if text.contains("sum(w)") || text.contains("m * 2") {
                    "sort-reduce"
                } else {
                    "sort-reduce of numbers"
                };
                // There is no operator if the planner knows that the result is empty.
                if let Some(ran) = query.report().operators.first() {
                    assert_eq!(ran.ways, [way], "{text}");
                }
            }
        }
    }
}

#[test]
fn statements_other_than_queries_are_refused() {
    let tables = tables(&some_rows(10), &[]);
    for text in [
        "DROP TABLE t",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO t VALUES (1)",
        "SET a = 1",
        "COPY t TO 'x.csv'",
    ] {
        let Err(Error::Query(error)) = found(text, &tables, 1, Limits::default()) else {
            panic!("{text} is refused")
        };
        assert!(!error.is_empty());
    }
    let error = found("SELECT nothing FROM t", &tables, 1, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("nothing"), "{error}");
    let error = found("SELECT 1 FROM missing", &tables, 1, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("there is no table called missing (there are t, u)"), "{error}");
    let error = found("SELECT FROM WHERE", &tables, 1, Limits::default()).unwrap_err().to_string();
    assert!(error.contains("FROM") || error.contains("WHERE"), "{error}");
}

/// Creates a query with forty WITH clauses. Each clause applies `step` to the previous clause, and the last clause is
/// named z.
fn chain(first: &str, step: &str) -> String {
    chain_of(40, first, step)
}

fn chain_of(links: usize, first: &str, step: &str) -> String {
    let each = (1..links)
        .map(|number| format!(", x{number} AS ({})", step.replace("before", &format!("x{}", number - 1))));
    format!("WITH x0 AS ({first}){}, z AS (SELECT * FROM x{})", each.collect::<String>(), links - 1)
}

/// Returns the error message of a refused query. The refusal must be quick, with little and with much memory.
fn refused(text: &str, tables: &[Table]) -> String {
    let mut said = String::new();
    for memory_bytes in [smallest_memory_bytes(), 64 << 20] {
        let begun = Instant::now();
        let error = found_within(memory_bytes, text, tables, 2, Limits::default());
        let shown: String = text.chars().take(200).collect();
        said = error.map(|(lines, _)| lines.len()).expect_err(&shown).to_string();
        assert!(begun.elapsed() < SOON, "{shown} took {:?} until {said}", begun.elapsed());
    }
    said
}

/// The time limit for a refusal. A refusal takes one or two seconds, or longer on a busy machine. A query of this
/// kind would take hours if it were accepted.
const SOON: Duration = Duration::from_secs(900);

/// These query texts are short, but their plans are large.
#[test]
fn queries_that_would_take_long_to_plan_are_refused() {
    let tables = tables(&some_rows(50), &[]);
    let terms = |count: usize, between: &str| vec!["v"; count].join(between);
    let many: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let many = many.join(", ");
    let expression = "nests more than 1000 expressions";
    let withs = (1..40).map(|number| {
        let before = number - 1;
        format!("É{number} AS (SELECT * FROM \"É{before}\" UNION ALL SELECT * FROM \"É{before}\")")
    });
    let capital = format!("WITH É0 AS (SELECT k FROM t), {}", withs.collect::<Vec<_>>().join(", "));
    let (deep, ends) = ("List(".repeat(9000), ")".repeat(9000));
    for (text, expected) in [
        (format!("SELECT {} FROM t", terms(1002, " + ")), expression),
        (format!("SELECT count(*) FROM t WHERE {} > 5", terms(5000, " + ")), expression),
        (format!("SELECT {} FROM t", terms(100_000, " || ")), expression),
        (format!("SELECT count(*) FROM t WHERE v = {}", terms(2000, " OR v = ")), expression),
        (
            format!(
                "WITH x AS (SELECT v FROM t WHERE v IN ({many})) SELECT 1 FROM {}",
                vec!["x"; 50].join(", ")
            ),
            "more than 200000 expressions",
        ),
        (format!("{capital} SELECT * FROM \"É39\""), "more than 10000 nodes"),
        (
            "EXPLAIN SELECT count(*) FROM t GROUP BY CUBE(k+1,k+2,k+3,k+4,k+5,k+6,k+7,k+8,k+9,k+10)"
                .to_string(),
            "groups by 1024 sets",
        ),
        (
            "SELECT count(*) FROM t GROUP BY CUBE(k, v, s, f), CUBE(k+1, k+2, k+3, k+4, k+5)".to_string(),
            "sets of columns",
        ),
        (
            format!(
                "SELECT count(*) FROM {}",
                (0..200).map(|name| format!("t AS t{name}")).collect::<Vec<_>>().join(", ")
            ),
            "199 joins",
        ),
        (
            "SELECT arrow_cast([NULL], 'List(FixedSizeList(2000000000, Int64))')".to_string(),
            "each element of a type",
        ),
        ("SELECT CAST([NULL] AS BIGINT[2000000000][])".to_string(), "each element of a type"),
        ("SELECT CAST(array_repeat(NULL, 1000000) AS BIGINT[8000][])".to_string(), "each element of a type"),
        (format!("SELECT count(arrow_cast(v, '{deep}Int64{ends}')) FROM t"), "more than 64 levels"),
    ] {
        let said = refused(&text, &tables);
        assert!(said.contains(expected), "{text:.200}: {said:.500}");
    }
}

/// Large queries that stay below the limits of planning return their results.
#[test]
fn queries_that_take_a_while_to_plan_are_answered() {
    let tables = tables(&some_rows(50), &[]);
    let many: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let many = many.join(", ");
    let found = |text: &str| found(text, &tables, 2, Limits::default()).unwrap().0;
    for text in [
        &format!("SELECT sum({}) FROM t", vec!["v"; 300].join(" + ")),
        &format!("SELECT count(*) FROM t WHERE v IN ({many})"),
        "SELECT k, v, s, count(*) FROM t GROUP BY CUBE(k, v, s)",
        &format!("SELECT max({}) FROM t", vec!["s"; 300].join(" || '|' || ")),
    ] {
        assert!(!found(text).is_empty());
    }
}

#[test]
fn joins_of_everything_with_everything_are_stopped_between_batches() {
    let tables = tables(&some_rows(9_000), &[]);
    for text in [
        "SELECT sum(a.v + b.v + c.v) FROM t a, t b, t c",
        "SELECT sum(a.v + b.v + c.v) FROM t a JOIN t b ON a.v < b.v + 3000 JOIN t c ON b.v < c.v + 3000",
    ] {
        let (_folder, job) = job(2);
        let all = Tables::default().with_batches("t", tables[0].1[0].schema(), tables[0].1.clone());
        let cancel = job.cancel().clone();
        let stopped = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            cancel.cancel();
        });
        let begun = Instant::now();
        let ran = Query::start(&job, text, all).and_then(|query| query.collect::<crate::Result<Vec<_>>>());
        assert!(ran.unwrap_err().is_cancelled(), "{text}");
        assert!(begun.elapsed() < SOON, "{text}: {:?}", begun.elapsed());
        stopped.join().unwrap();
    }
}

#[test]
fn functions_answer_as_datafusion_does() {
    let tables = tables(&some_rows(6_000), &[]);
    for text in [
        "SELECT repeat('=', 40), lpad('x', 10, '0'), rpad('x', 3), repeat('x', 100000)",
        "SELECT repeat(s, 3), lpad(s, 10, '0'), rpad(s, 10), lpad(s, abs(k), 'é'), repeat(s, NULL), repeat(s, -k) FROM t",
        "SELECT s || '-' || s, s || k, concat(s, k, s), concat_ws('-', s, s, k), s || NULL, NULL || 'x', 'a' || 'b' FROM t",
        "SELECT arrow_cast(s, 'Dictionary(Int32, Utf8)') || s, arrow_cast(s, 'Utf8View') || s, concat(arrow_cast(s, 'LargeUtf8'), s) FROM t",
        "SELECT encode(s, 'hex') || 'x', encode(s, 'base64'), overlay(s PLACING 'xy' FROM 2), strpos(s, 'b'), strpos(s, s) FROM t",
        "SELECT replace(s, 'a', 'xyz'), replace(repeat(s, 300), 'zz', repeat('y', 100)) = repeat(s, 300) FROM t",
        "SELECT regexp_replace(repeat(s, 100), '[b0]z', repeat('c', 300), 'g') = repeat(s, 100), regexp_replace(s, '(a)(b)', '$2\\1') FROM t",
        "SELECT regexp_match(s, '(a)(b)'), string_to_array(s, 'b'), array_to_string(string_to_array(s, 'b'), ', ', 'none') FROM t",
        "SELECT range(5), range(v % 7), generate_series(k, k + 3), range(k, k + 9, 4), range(3, 0, -1) FROM t",
        "SELECT range(d, d + 40, INTERVAL '1 month'), generate_series(TIMESTAMP '2000-01-01', TIMESTAMP '2000-01-02', INTERVAL '6 hours') FROM t",
        "SELECT array_repeat(s, 3), array_repeat([k, 1], 2), array_resize([k, 1], 4, 0), array_resize([s], 2) FROM t",
        "SELECT [k, v] || [1], [k] || v, array_append([k], 2), array_prepend(1, [k]), array_union([k], [1, 2]), MAP {'a': k}, {'a': k, 'b': s}, struct(k), named_struct('a', s)['a'] FROM t",
        "SELECT arrays_zip([k], [s, s]), array_replace_all([s, 'a'], 'a', 'xyz'), to_char(d, '%Y-%m-%d %H'), to_char(d, s) IS NULL FROM t",
        "SELECT levenshtein(s, 'abab'), levenshtein(s, s), btrim(s, 'ab'), ltrim(s, '2a'), trim(s), array_has_all([k, 1], [1]) FROM t",
        "SELECT s || s AS x, count(*) FROM t GROUP BY s || s HAVING s || s > 'a' ORDER BY s || s",
        "SELECT count(*) FROM t WHERE s || 'x' LIKE '%2x' AND repeat(s, 2) LIKE s || '%'",
        "SELECT count(*) FROM t WHERE abs(k) < 9 AND replace(s, 'zz', repeat('y', 50000)) = s AND contains(s, repeat('y', 50000))",
        "SELECT arrow_cast([k, v], 'FixedSizeList(2, Int64)'), CAST(NULL AS INT[3]) FROM t",
        "SELECT s LIKE s, s NOT LIKE '%' || s || '_', s ILIKE upper(s), s NOT ILIKE NULL, s SIMILAR TO s || 'b*', s NOT SIMILAR TO lower(s) FROM t",
        "SELECT s ~ s, s ~* upper(s), s !~ (s || '$'), s !~* concat('^', s), s ~ '[ab]+', s LIKE '%b', s ~ NULL, NULL LIKE s FROM t",
        "SELECT regexp_like(s, s), regexp_like(s, '(a|b){600}', 'i'), regexp_count(s, concat('a', s)), regexp_instr(s, 'b'), regexp_replace(s, s, 'x') FROM t",
        "SELECT arrow_cast(s, 'Dictionary(Int32, Utf8)') LIKE s || '%', arrow_cast(s, 'Utf8View') ~ s, arrow_cast(s, 'LargeUtf8') LIKE s, regexp_match(s, s) FROM t",
        "SELECT k, s ~ concat('\\pL{', coalesce(abs(k) % 3, 1), '}'), regexp_count(s, concat('\\w{', coalesce(abs(v) % 3, 1), '}')) FROM t",
        "SELECT count(*) FROM t WHERE s ~ '(a|b){3000}' OR s LIKE s || '%' OR s SIMILAR TO '(a|b){3000}'",
    ] {
        let mut expected = expected(text, &tables).unwrap();
        expected.sort();
        for memory_bytes in [smallest_memory_bytes(), 64 << 20] {
            let mut found = found_within(memory_bytes, text, &tables, 2, Limits::default())
                .unwrap_or_else(|error| panic!("{text} in {memory_bytes} bytes: {error}"));
            found.0.sort();
            assert!(found.0 == expected, "{text} in {memory_bytes} bytes");
        }
    }
}

#[test]
fn columns_of_functions_have_the_names_of_datafusion() {
    let tables = tables(&some_rows(10), &[]);
    let text = "SELECT s || 'x' || k, repeat(s, 2), concat(s, 'x'), [k, 1], list_repeat(k, 2), length(s || s) > 1, s LIKE s, s NOT ILIKE s, s ~ s, s !~* s, s SIMILAR TO s FROM t";
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let expected = runtime.block_on(async {
        let context = SessionContext::new();
        let table = MemTable::try_new(tables[0].1[0].schema(), vec![tables[0].1.clone()]).unwrap();
        context.register_table("t", Arc::new(table)).unwrap();
        let frame = context.sql(text).await.unwrap();
        frame.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>()
    });
    let (_folder, job) = job(1);
    let all = Tables::default().with_batches("t", tables[0].1[0].schema(), tables[0].1.clone());
    let query = Query::start(&job, text, all).unwrap();
    let found: Vec<_> = query.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(found, expected);
}

/// DataFusion interprets a negative length as an unsigned number, and reserves that many bytes.
#[test]
fn padding_to_a_negative_length_gives_an_empty_text() {
    let tables = tables(&some_rows(50), &[]);
    let text = "SELECT count(*) FROM t WHERE lpad(s, -1 - abs(k), 'é') = '' AND rpad(s, -1 - abs(k)) = ''";
    let expected = expected("SELECT count(*) FROM t WHERE s IS NOT NULL AND k IS NOT NULL", &tables).unwrap();
    assert_eq!(found(text, &tables, 2, Limits::default()).unwrap().0, expected);
}

/// The test fails if DataFusion removes a function name, since the correction for that name would then have no
/// effect.
#[test]
fn corrected_functions_exist_in_datafusion() {
    let state = SessionContext::new().state();
    let corrected = |name: &&String| crate::rules::scalar_functions::Correction::of(name).is_some();
    let found: Vec<&String> = state.scalar_functions().keys().filter(corrected).collect();
    assert_eq!(found.len(), 11, "{found:?}");
}

#[test]
fn doubling_withs_are_refused_at_once_and_many_unions_are_not() {
    let tables = tables(&some_rows(50), &[]);
    let doubling = chain("SELECT k, v FROM t", "SELECT * FROM before UNION ALL SELECT * FROM before");
    let joining = chain("SELECT k FROM t", "SELECT a.k FROM before a JOIN before b ON a.k = b.k");
    let shouted = doubling.replace("x7", "X7").replace("x8", "\"x8\"");
    for text in [
        format!("{doubling} SELECT * FROM z"),
        format!("{doubling} SELECT count(*) FROM z"),
        format!("{doubling} SELECT (SELECT count(*) FROM z WHERE z.k = t.k) FROM t"),
        format!("{doubling} SELECT k FROM t WHERE k IN (SELECT k FROM z)"),
        format!("EXPLAIN {doubling} SELECT * FROM z"),
        format!("SELECT * FROM ({doubling} SELECT * FROM z)"),
        format!("{shouted} SELECT * FROM z"),
        format!("{joining} SELECT * FROM z"),
    ] {
        let said = refused(&text, &tables);
        assert!(said.contains("a plan of more than 10000 nodes"), "{text}: {said}");
    }
    let unions = vec!["SELECT k, v FROM t"; 100].join(" UNION ALL ");
    let text = format!("SELECT count(*), count(DISTINCT k) FROM ({unions})");
    assert_eq!(found(&text, &tables, 2, Limits::default()).unwrap().0, expected(&text, &tables).unwrap());
    let few = chain_of(7, "SELECT k, v FROM t", "SELECT * FROM before UNION ALL SELECT * FROM before");
    let text = format!("{few} SELECT count(*) FROM z");
    assert_eq!(found(&text, &tables, 2, Limits::default()).unwrap().0, [(50 << 6).to_string()]);
}

/// A filter that is pushed below an expression contains a copy of the expression, so the filter grows.
#[test]
fn expressions_that_double_while_planning_are_refused() {
    let tables = tables(&some_rows(50), &[]);
    let doubling = chain("SELECT v AS x, k AS y FROM t", "SELECT x + x AS x, y FROM before");
    for text in [
        format!("{doubling} SELECT * FROM z WHERE x > 1"),
        format!("{doubling} SELECT count(*) FROM z JOIN t ON x = k AND x > 2"),
        format!("{doubling} SELECT k FROM t WHERE EXISTS (SELECT 1 FROM z WHERE x > 1 AND z.y = t.k)"),
        format!("{doubling} SELECT x, count(*) FROM z GROUP BY x HAVING x > 1"),
    ] {
        let said = refused(&text, &tables);
        assert!(said.contains("parts with the columns that it is computed from"), "{text}: {said}");
    }
    for doubled in
        ["named_struct('a', x, 'b', x)", "struct(x, x)", "(x, x)", "{'a': x, 'b': x}", "arrays_zip([x], [x])"]
    {
        let types = chain("SELECT k AS x FROM t", &format!("SELECT {doubled} AS x FROM before"));
        let said = refused(&format!("{types} SELECT * FROM z"), &tables);
        assert!(said.contains("a type of"), "{doubled}: {said}");
    }
}

#[test]
fn a_type_whose_values_are_too_large_is_refused() {
    let tables = tables(&some_rows(9_000), &[]);
    for text in [
        "SELECT CAST(NULL AS INT[2000000000])",
        "SELECT arrow_cast([k], 'FixedSizeList(2000000000, Int64)') FROM t",
        "SELECT cardinality(arrow_cast([k], 'FixedSizeList(2000000000, Int64)')) FROM t",
        "SELECT count(*) FROM t WHERE CAST([k] AS BIGINT[2000000000]) IS NULL",
    ] {
        let said = refused(text, &tables);
        assert!(said.contains("each value of a type"), "{text}: {said}");
    }
}

#[test]
fn a_digest_of_percentiles_has_a_largest_capacity() {
    let tables = tables(&some_rows(50), &[]);
    for text in [
        "SELECT approx_percentile_cont(f, 0.5, 4000000000000) FROM t",
        "SELECT approx_percentile_cont(f, 0.5, 65537) FROM t",
        "SELECT approx_percentile_cont(0.5, 2000000 * 2000000) WITHIN GROUP (ORDER BY f) FROM t",
        "SELECT approx_percentile_cont_with_weight(f, k, 0.5, 4000000000000) FROM t",
        "SELECT approx_percentile_cont(f, 0.5, 4000000000000) OVER (PARTITION BY k) FROM t",
        "SELECT count(*) FROM t WHERE f > (SELECT approx_percentile_cont(f, 0.5, 4000000000000) FROM t)",
    ] {
        let said = refused(text, &tables);
        assert!(said.contains("centroids from 1 to 65536"), "{text}: {said}");
    }
    let found = |text| found(text, &tables, 2, Limits::default()).unwrap().0;
    let median = found("SELECT round(approx_percentile_cont(f, 0.5)) FROM t");
    assert_eq!(found("SELECT round(approx_percentile_cont(f, 0.5, 200)) FROM t"), median);
    assert_eq!(
        found("SELECT round(approx_percentile_cont(0.5, 200) WITHIN GROUP (ORDER BY f)) FROM t"),
        median
    );
}

/// A [`RemoteExecutor`] for tests. It simulates machines with files, and runs a fragment on one machine after the
/// other.
#[derive(Debug)]
struct Pretended {
    /// The files of each simulated machine, for each table.
    tables: Vec<(&'static str, Vec<Vec<Input>>)>,
    /// The number of fragments that will be interrupted after some of their rows.
    losses: AtomicUsize,
    fragments: AtomicUsize,
    /// The bytes of the needed ranges, summed over the machines that have only these ranges.
    needed_bytes: Arc<AtomicUsize>,
    /// A function that changes the rows between machine and client.
    changed: Option<Change>,
}

type Change = fn(RecordBatch) -> RecordBatch;

impl Pretended {
    fn machines(&self, name: &str) -> Option<&Vec<Vec<Input>>> {
        self.tables.iter().find(|(known, _)| *known == name).map(|(_, machines)| machines)
    }
}

impl RemoteExecutor for Pretended {
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> crate::Result<Option<TableMetadata>> {
        let Some(machines) = self.machines(name) else { return Ok(None) };
        let files = Files::open(job, machines.concat(), as_text)?;
        Ok(Some(TableMetadata {
            schema: files.schema.clone(),
            rows: files.rows(),
            unseen: Vec::new(),
            path: name.to_string(),
        }))
    }

    fn answer_bytes(&self) -> u64 {
        1 << 20
    }

    fn run(&self, _: &Job, fragment: Fragment) -> crate::Result<Box<dyn FragmentRows>> {
        self.fragments.fetch_add(1, Ordering::Relaxed);
        // The fragment is converted to JSON and back, as for a transfer to a node.
        let text = serde_json::to_string(&fragment).unwrap();
        let fragment: Fragment = serde_json::from_str(&text).unwrap();
        let mut batches = Vec::new();
        for (number, inputs) in self.machines(fragment.path()).unwrap().iter().enumerate() {
            let (_folder, job) = job(1 + number % 3);
            let (tell, told) = mpsc::channel();
            // Machines with odd numbers have only the needed bytes of their files.
            let feed =
                if number % 2 == 0 { feed(inputs) } else { needed_of(inputs, told, &self.needed_bytes) };
            let needed = move |needed| drop(tell.send(needed));
            run_fragment(&job, &fragment, feed, needed, |batch| {
                let is_list = |field: &Arc<Field>| matches!(field.data_type(), DataType::Dictionary(..));
                assert!(!batch.schema().fields().iter().any(is_list), "a dictionary would travel");
                batches.push(self.changed.map_or(batch.clone(), |change| change(batch)));
                Ok(())
            })?;
            assert_eq!(job.budget().reserved_bytes(), 0);
        }
        let lost = self.losses.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if lost.is_ok() {
            batches.truncate(1);
        }
        Ok(Box::new(PretendedRows { batches: batches.into(), is_lost: lost.is_ok() }))
    }
}

fn feed(inputs: &[Input]) -> Feed {
    let inputs = inputs.to_vec();
    Feed::new(inputs.into_iter().map(Ok), None)
}

/// Creates a feed of inputs that contain only the footer and the needed ranges of Parquet files.
fn needed_of(inputs: &[Input], told: mpsc::Receiver<FragmentScan>, all: &Arc<AtomicUsize>) -> Feed {
    let (inputs, all, mut needed) = (inputs.to_vec(), all.clone(), None);
    let inputs = inputs.into_iter().map(move |input| {
        let needed = needed.get_or_insert_with(|| told.recv().unwrap());
        let Some(path) = input.path().filter(|_| input.extension() == "parquet") else { return Ok(input) };
        let bytes = std::fs::read(path).unwrap();
        let len = bytes.len();
        let footer_len = u32::from_le_bytes(bytes[len - 8..len - 4].try_into().unwrap()) as usize + 8;
        let part = |range: Range<usize>| {
            let bytes = PartBytes::Memory(bytes[range.clone()].into());
            FilePart { at: range.start as u64, bytes }
        };
        let ranges = needed.ranges(&input, &(0..len as u64)).unwrap();
        let ranges = ranges.into_iter().map(|range| range.start as usize..range.end as usize);
        let mut ranges: Vec<Range<usize>> = ranges.collect();
        all.fetch_add(ranges.iter().map(Range::len).sum(), Ordering::Relaxed);
        ranges.push(len - footer_len..len);
        let parts = ranges.into_iter().map(part).collect();
        Ok(Input::of_parts(input.name(), "parquet", len as u64, parts))
    });
    Feed::new(inputs, None)
}

struct PretendedRows {
    batches: VecDeque<RecordBatch>,
    is_lost: bool,
}

impl FragmentRows for PretendedRows {
    fn next_within(&mut self, _: Duration) -> crate::Result<Option<Option<RecordBatch>>> {
        match self.batches.pop_front() {
            None if self.is_lost => Err(Error::Interrupted("a machine was lost".to_string())),
            batch => Ok(Some(batch)),
        }
    }
}

/// Writes the rows of `batch` to files, and divides the files among `machines` machines. A machine may have no file.
fn spread(folder: &Path, name: &str, batch: &RecordBatch, machines: usize, ending: &str) -> Vec<Vec<Input>> {
    let budget = Budget::new(64 << 20, 1);
    let each = batch.num_rows().div_ceil(2 * machines).max(1);
    let mut spread = vec![Vec::new(); machines];
    for (number, start) in (0..batch.num_rows()).step_by(each).enumerate() {
        let path = folder.join(format!("{name}-{number}.{ending}"));
        let mut writer = TableWriter::create(&path, batch.schema(), &budget).unwrap();
        writer.write(&batch.slice(start, each.min(batch.num_rows() - start))).unwrap();
        writer.finish().unwrap();
        spread[number % machines].push(Input::new(path));
    }
    spread.into_iter().filter(|files| !files.is_empty()).collect()
}

#[test]
fn queries_over_remote_tables_answer_as_over_local_ones() {
    let rows = 3_000i64;
    let town = StringArray::from_iter(
        (0..rows).map(|row| (row % 11 != 3).then(|| ["Ulm", "Kiel", "Jena"][row as usize % 3])),
    );
    let amount = Int64Array::from_iter_values((0..rows).map(|row| row * 37 % 501));
    let price = Decimal128Array::from_iter_values((0..rows).map(|row| i128::from(row * 13 % 997)));
    let price = price.with_precision_and_scale(12, 2).unwrap();
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("town", Arc::new(town), true),
        ("amount", Arc::new(amount), false),
        ("price", Arc::new(price), false),
    ];
    let sales = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let names = StringArray::from(vec!["Ulm", "Kiel", "Jena", "Bonn"]);
    let people = Int64Array::from(vec![126, 247, 111, 330]);
    let columns: [(&str, ArrayRef); 2] = [("name", Arc::new(names)), ("people", Arc::new(people))];
    let towns = RecordBatch::try_from_iter(columns).unwrap();
    let tables = [("sales", vec![sales.clone()]), ("towns", vec![towns.clone()])];
    let queries = [
        "SELECT town, count(*), sum(amount), avg(price), avg(amount), min(price), max(amount), count(DISTINCT amount) FROM sales GROUP BY town ORDER BY town",
        "SELECT count(*), sum(price), stddev(amount) > 1, median(amount) FROM sales WHERE price > 3.5",
        "SELECT count(*) FROM sales",
        "SELECT amount % 7 AS a, town, sum(price) FROM sales WHERE amount > 20 GROUP BY ROLLUP(amount % 7, town) ORDER BY 1, 2, 3",
        "SELECT DISTINCT amount FROM sales ORDER BY amount LIMIT 9",
        "SELECT amount, price FROM sales WHERE town = 'Ulm' ORDER BY price DESC, amount LIMIT 5",
        "SELECT name, sum(amount) FROM sales JOIN towns ON name = town WHERE people > 111 GROUP BY name ORDER BY name",
        "SELECT name FROM towns WHERE NOT EXISTS (SELECT 1 FROM sales WHERE town = name) ORDER BY name",
        "SELECT town, amount FROM sales WHERE amount > (SELECT avg(people) FROM towns) ORDER BY amount, town LIMIT 4",
        "SELECT sum(amount) FROM sales WHERE 1 = 0",
        "SELECT town, sum(amount) OVER (PARTITION BY town ORDER BY amount, price) FROM sales WHERE amount < 4 ORDER BY 1, 2",
        "SELECT arrow_cast(town, 'Dictionary(Int32, Utf8)') AS t, sum(amount) FROM sales GROUP BY 1 ORDER BY 1",
        "SELECT arrow_cast(town, 'Dictionary(Int32, Utf8)') AS t, amount FROM sales WHERE amount < 30 ORDER BY 2, 1",
        "SELECT named_struct('t', arrow_cast(town, 'Dictionary(Int32, Utf8)')) AS s, amount FROM sales ORDER BY 2 LIMIT 1",
        "EXPLAIN ANALYZE SELECT town, sum(amount) FROM sales GROUP BY town",
    ];
    let folder = tempfile::tempdir().unwrap();
    for (machines, ending, threads) in [(1, "parquet", 1), (3, "parquet", 2), (4, "csv", 3)] {
        let spread =
            |name: &str, batch| spread(folder.path(), &format!("{name}-{machines}"), batch, machines, ending);
        let pretended = Arc::new(Pretended {
            tables: vec![("far/sales", spread("sales", &sales)), ("far/towns", spread("towns", &towns))],
            losses: AtomicUsize::new(0),
            fragments: AtomicUsize::new(0),
            needed_bytes: Arc::default(),
            changed: None,
        });
        for query in queries.into_iter().filter(|query| ending != "csv" || !query.contains("price")) {
            let near = query.starts_with("EXPLAIN");
            let mut expected = if near { Vec::new() } else { expected(query, &tables).unwrap() };
            for losses in [0, 2] {
                pretended.losses.store(losses, Ordering::Relaxed);
                let (_folder, job) = job(threads);
                let all = Tables::default()
                    .with_files("sales", &["far/sales".into()])
                    .with_files("towns", &["far/towns".into()])
                    .with_elsewhere(pretended.clone());
                let mut answer = Query::start(&job, query, all).unwrap();
                let mut batches = Vec::new();
                while let Some(batch) = answer.next_batch().unwrap_or_else(|error| panic!("{query}: {error}"))
                {
                    batches.push(batch);
                }
                let mut found = lines(&batches);
                if near {
                    assert!(found.join(" ").contains("NearData: AggregateExec: mode=Partial"), "{found:?}");
                    continue;
                }
                if !is_ordered(query) {
                    found.sort();
                    expected.sort();
                }
                assert_eq!(found, expected, "{query} on {machines} machines after {losses} losses");
            }
        }
        assert!(pretended.fragments.load(Ordering::Relaxed) > 20);
    }
}

/// The next request may need the memory of the query.
#[test]
fn a_query_over_remote_tables_has_no_memory_once_it_has_ended() {
    let amount = Int64Array::from_iter_values(0..100);
    let columns: [(&str, ArrayRef); 1] = [("amount", Arc::new(amount))];
    let sales = RecordBatch::try_from_iter(columns).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pretended = Arc::new(Pretended {
        tables: vec![("far/sales", spread(folder.path(), "sales", &sales, 2, "parquet"))],
        losses: AtomicUsize::new(0),
        fragments: AtomicUsize::new(0),
        needed_bytes: Arc::default(),
        changed: None,
    });
    let (_folder, job) = job(2);
    for _ in 0..100 {
        let tables =
            Tables::default().with_files("sales", &["far/sales".into()]).with_elsewhere(pretended.clone());
        let mut query = Query::start(&job, "SELECT amount FROM sales WHERE amount > 20", tables).unwrap();
        let mut rows = 0;
        while let Some(batch) = query.next_batch().unwrap() {
            rows += batch.num_rows();
        }
        drop(query);
        assert_eq!((rows, job.budget().reserved_bytes()), (79, 0));
    }
}

#[test]
fn a_fragment_needs_its_columns_and_row_groups_alone() {
    let rows = 40_000i64;
    let noise =
        |row: i64| format!("{:x}", (row as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    let columns: [(&str, ArrayRef); 3] = [
        ("k", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("noise", Arc::new(StringArray::from_iter_values((0..rows).map(noise)))),
        ("v", Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row % 100)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // The four files are in ascending order of k. The second machine has the second and the last file.
    let machines = spread(folder.path(), "t", &batch, 2, "parquet");
    let size = std::fs::metadata(machines[1][0].path().unwrap()).unwrap().len() as usize;
    let pretended = Arc::new(Pretended {
        tables: vec![("far/t", machines)],
        losses: AtomicUsize::new(0),
        fragments: AtomicUsize::new(0),
        needed_bytes: Arc::default(),
        changed: None,
    });
    for (query, expected, least, most) in [
        ("SELECT sum(v) FROM t WHERE k < 15000", "742500", 1, size / 2),
        ("SELECT sum(v) FROM t WHERE k < 100", "4950", 0, 0),
        ("SELECT count(noise) FROM t WHERE k >= 30000", "10000", size / 2, size),
    ] {
        pretended.needed_bytes.store(0, Ordering::Relaxed);
        let (_folder, job) = job(2);
        let all = Tables::default().with_files("t", &["far/t".into()]).with_elsewhere(pretended.clone());
        let answer = Query::start(&job, query, all).unwrap();
        let batches = answer.collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(lines(&batches), [expected], "{query}");
        let needed = pretended.needed_bytes.load(Ordering::Relaxed);
        assert!((least..=most).contains(&needed), "{query}: {needed} of {size}");
    }
}

#[test]
fn a_fragment_of_another_plan_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let amounts: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("amount", amounts)]).unwrap();
    let inputs = spread(folder.path(), "t", &batch, 1, "parquet").concat();
    let known = |name: &str| {
        let schema = Schema::new(vec![Field::new(name, DataType::Int64, true)]);
        TableMetadata { schema: Arc::new(schema), rows: None, unseen: Vec::new(), path: String::new() }
    };
    let fragment = |sql: &str, plan: &str, number: u64| -> Fragment {
        let planning = json!({ "partitions": 2, "memory_bytes": 64 << 20, "is_bold": true,
            "with_exchanges": false });
        let fragment = json!({ "table": "t", "stages": [], "sql": sql, "tables": { "t": known("amount") }, "planning": planning,
            "number": number, "plan": plan, "values": [] });
        serde_json::from_value(fragment).unwrap()
    };
    let (_folder, job) = job(1);
    let refused = |fragment: Fragment| {
        run_fragment(&job, &fragment, feed(&inputs), |_| {}, |_| Ok(())).unwrap_err().to_string()
    };
    let another = "plans the query differently";
    assert!(refused(fragment("SELECT sum(amount) FROM t", "AggregateExec", 0)).contains(another));
    assert!(refused(fragment("SELECT sum(amount) FROM t", "", 7)).contains(another));
    let of_stage = |stage: usize, ranges: u32| {
        let (fragment, none) =
            (fragment("SELECT sum(amount) FROM t", "", 0), StageRows::Exchanges(Vec::new()));
        run_stage(&job, &fragment, (stage, ranges), (none, Vec::new()), |_, _| Ok(()))
            .unwrap_err()
            .to_string()
    };
    assert!(of_stage(0, 1).contains(another));
    assert!(of_stage(0, 0).contains("an exchange has 1 to"));
    assert!(refused(fragment("DROP TABLE t", "", 0)).contains("only queries"));
    assert!(refused(fragment("COPY t TO '/tmp/x'", "", 0)).contains("only queries"));
    assert!(refused(fragment("nonsense", "", 0)).contains("Expected"));
    assert!(refused(fragment("SELECT * FROM '/etc/passwd'", "", 0)).contains("not found"));
    // A plan that would take forever to optimize is refused before the plans are compared.
    let begun = Instant::now();
    let doubling = chain("SELECT amount FROM t", "SELECT * FROM before UNION ALL SELECT * FROM before");
    assert!(
        refused(fragment(&format!("{doubling} SELECT * FROM z"), "", 0)).contains("more than 10000 nodes")
    );
    let doubling = chain("SELECT amount AS x FROM t", "SELECT x + x AS x FROM before");
    let said = refused(fragment(&format!("{doubling} SELECT * FROM z WHERE x > 1"), "", 0));
    assert!(said.contains("parts with the columns that it is computed from"), "{said}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// DataFusion does not check all aggregate states that a node sends.
#[test]
fn an_invalid_partial_aggregate_of_a_node_fails_the_query_alone() {
    /// Replaces the columns of a batch whose names end with `ending`.
    fn with(batch: &RecordBatch, ending: &str, column: impl Fn(&ArrayRef) -> ArrayRef) -> RecordBatch {
        let place = batch.schema().fields().iter().position(|field| field.name().ends_with(ending)).unwrap();
        let mut columns = batch.columns().to_vec();
        columns[place] = column(&columns[place]);
        RecordBatch::try_new(batch.schema(), columns).unwrap()
    }
    let folder = tempfile::tempdir().unwrap();
    let numbers: ArrayRef = Arc::new(Float64Array::from_iter_values((0..9_000).map(f64::from)));
    let batch = RecordBatch::try_from_iter([("f", numbers)]).unwrap();
    let greatest_first = |batch: RecordBatch| {
        with(&batch, "[max]", |column| Arc::new(Float64Array::from(vec![-1.0; column.len()])))
    };
    let large = |batch: RecordBatch| {
        with(&batch, "[max_size]", |column| Arc::new(UInt64Array::from(vec![1 << 40; column.len()])))
    };
    let changes: [(Option<Change>, Option<&str>); 3] = [
        (None, None),
        (Some(greatest_first), Some("DataFusion met a state that it does not expect")),
        (Some(large), Some("a digest of more than 65536 centroids")),
    ];
    for (changed, expected) in changes {
        let pretended = Arc::new(Pretended {
            tables: vec![("far/t", spread(folder.path(), "t", &batch, 2, "parquet"))],
            losses: AtomicUsize::new(0),
            fragments: AtomicUsize::new(0),
            needed_bytes: Arc::default(),
            changed,
        });
        let (_folder, job) = job(2);
        let all = Tables::default().with_files("t", &["far/t".into()]).with_elsewhere(pretended.clone());
        let ran = Query::start(&job, "SELECT approx_percentile_cont(f, 0.5) FROM t", all)
            .and_then(|query| query.collect::<crate::Result<Vec<RecordBatch>>>());
        assert!(pretended.fragments.load(Ordering::Relaxed) > 0);
        match expected {
            None => assert_eq!(ran.unwrap()[0].num_rows(), 1),
            Some(expected) => {
                let said = ran.unwrap_err().to_string();
                assert!(said.contains(expected), "{said}");
            }
        }
    }
}

#[test]
fn every_nan_is_one_value_and_zero_has_no_sign() {
    let values: ArrayRef = Arc::new(Float64Array::from(vec![-f64::NAN, 0.0, f64::NAN, -0.0, 1.0]));
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1, 1, 1, 1, 1]));
    let halves = arrow::compute::cast(&values, &DataType::Float32).unwrap();
    let batch = RecordBatch::try_from_iter([("v", values), ("k", keys), ("h", halves)]).unwrap();
    let tables = [("t", vec![batch])];
    for (text, expected) in [
        ("SELECT v, count(*) AS n FROM t GROUP BY v", &["0.000 2", "1.000 1", "NaN 2"][..]),
        ("SELECT h, count(*) AS n FROM t GROUP BY h", &["0.000 2", "1.000 1", "NaN 2"]),
        ("SELECT v, k, count(*) FROM t GROUP BY v, k", &["0.000 1 2", "1.000 1 1", "NaN 1 2"]),
        ("SELECT v * 2 AS w, sum(k) FROM t GROUP BY w", &["0.000 2", "2.000 1", "NaN 2"]),
        ("SELECT DISTINCT v FROM t", &["0.000", "1.000", "NaN"]),
        ("SELECT v FROM t UNION SELECT v FROM t", &["0.000", "1.000", "NaN"]),
        ("SELECT count(DISTINCT v) FROM t", &["3"]),
        ("SELECT k, count(DISTINCT v), count(DISTINCT h), max(v) FROM t GROUP BY k", &["1 3 3 NaN"]),
        ("SELECT v, count(*) FROM t GROUP BY ROLLUP (v)", &["0.000 2", "1.000 1", "NaN 2", "null 5"]),
        ("SELECT t.v FROM t GROUP BY t.v HAVING count(*) > 1", &["0.000", "NaN"]),
        ("SELECT count(*) FROM t a JOIN t b ON a.v = b.v", &["9"]),
        ("SELECT count(*) FROM t a LEFT JOIN (SELECT v FROM t WHERE v < 0.5) b USING (v)", &["7"]),
        ("SELECT count(*) FROM t WHERE v IN (SELECT v FROM t WHERE k = 1)", &["5"]),
        ("SELECT v FROM t INTERSECT SELECT v FROM t", &["0.000", "1.000", "NaN"]),
        ("SELECT count(*) FROM t a FULL JOIN t b ON a.h = b.h AND a.k = b.k", &["9"]),
    ] {
        for (threads, limits) in [(2, Limits::default()), (1, SMALL), (2, RUNS)] {
            let (mut lines, _) = found(text, &tables, threads, limits)
                .unwrap_or_else(|error| panic!("{text} with {threads} threads and {limits:?}: {error}"));
            lines.sort();
            assert_eq!(lines, expected, "{text} with {threads} threads and {limits:?}");
        }
    }
    // A value outside of groups and joins is returned unchanged.
    let (lines, _) =
        found("SELECT v FROM t WHERE k = 1 ORDER BY v, 1 / v LIMIT 2", &tables, 1, Limits::default())
            .unwrap();
    assert_eq!(lines, ["-0.000", "0.000"]);
}

/// The queries read the values from memory and from files. The statistics of the files contain 0.0 and -0.0, but no
/// NaN.
#[test]
fn comparisons_take_every_nan_for_one_value_and_zero_without_its_sign() {
    let nan = f64::NAN;
    let rows: [&[f64]; 5] = [&[-0.0, -0.0], &[0.0, 0.0], &[-1.0, -0.0], &[0.0, 1.0], &[1.0, nan, -nan]];
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..rows.len()).map(|n| folder.path().join(format!("{n}.parquet"))).collect();
    let mut batches = Vec::new();
    for (path, values) in paths.iter().zip(rows) {
        let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let halves = arrow::compute::cast(&values, &DataType::Float32).unwrap();
        let ones: ArrayRef = Arc::new(Int64Array::from(vec![1; values.len()]));
        let columns = [("v", values), ("h", halves), ("k", ones)];
        batches.push(RecordBatch::try_from_iter(columns).unwrap());
        write_parquet(path, batches.last().unwrap());
    }
    let in_memory = [("t", batches)];
    let in_files = |text: &str| {
        let (_store, job) = job(2);
        let query = Query::start(&job, text, Tables::default().with_files("t", &paths)).unwrap();
        lines(&query.collect::<Result<Vec<_>, _>>().unwrap())
    };
    let nan = "(CAST('NaN' AS DOUBLE))";
    for (condition, expected) in [
        ("v = 0.0", 6),
        ("v = -0.0", 6),
        ("0 = v", 6),
        ("h = 0.0", 6),
        ("v = 0.0 AND v = -0.0", 6),
        ("v IN (0.0)", 6),
        ("v IN (-0.0, 3, 4, 5, 6)", 6),
        ("h IN (-0.0, 1.0)", 8),
        ("v NOT IN (-0.0)", 5),
        ("v <> 0.0", 5),
        ("v < 0.0", 1),
        ("v <= -0.0", 7),
        ("v > -0.0", 4),
        ("v >= 0.0", 10),
        ("NOT v < 0.0", 10),
        ("v BETWEEN 0.0 AND 0.5", 6),
        ("v BETWEEN -0.5 AND -0.0", 6),
        ("v IS NOT DISTINCT FROM -0.0", 6),
        ("CASE v WHEN 0.0 THEN true ELSE false END", 6),
        ("NULLIF(v, 0.0) IS NULL", 6),
        ("v = h", 11),
        ("v = (SELECT max(v) FROM t WHERE v < 0.5)", 6),
        ("v = ANY (SELECT v FROM t WHERE v = -0.0)", 6),
        ("v IN (SELECT h FROM t WHERE v <= 0)", 7),
        ("v NOT IN (SELECT h FROM t WHERE v <= 0)", 4),
        ("v > 5", 2),
        ("-v > 5", 2),
        ("v < 5", 9),
        ("v = NAN", 2),
        ("v IN (NAN, 7)", 2),
        ("v < NAN", 9),
        ("v >= NAN", 2),
        ("0.0 = -0.0", 11),
    ] {
        let text = format!("SELECT count(*) FROM t WHERE {}", condition.replace("NAN", nan));
        let expected = [expected.to_string()];
        assert_eq!(found(&text, &in_memory, 2, Limits::default()).unwrap().0, expected, "{text}");
        assert_eq!(in_files(&text), expected, "{text}, in files");
    }
    for (text, expected) in [
        ("SELECT count(*) FROM t a JOIN t b ON a.v < b.v", 6 * 4 + 10 + 4),
        ("SELECT count(*) FROM t a, t b WHERE a.v = b.h", 36 + 1 + 4 + 4),
        ("SELECT sum(k) FROM t GROUP BY v HAVING v = -0.0", 6),
        ("SELECT sum(CASE WHEN v >= 0.0 THEN k END) FROM t", 10),
    ] {
        assert_eq!(
            found(text, &in_memory, 2, Limits::default()).unwrap().0,
            [expected.to_string()],
            "{text}"
        );
        assert_eq!(in_files(text), [expected.to_string()], "{text}, in files");
    }
    // Scans still skip row groups by their statistics.
    let (_store, job) = job(1);
    let files = || Tables::default().with_files("t", &paths);
    for (condition, pruned) in [("v < -0.5", "v@0 < -0.5"), ("v IN (-7.0, -0.0)", "v@0 IN (SET) ([-7, 0])")] {
        let text = format!("EXPLAIN SELECT k FROM t WHERE {condition}");
        let plan =
            lines(&Query::start(&job, &text, files()).unwrap().collect::<Result<Vec<_>, _>>().unwrap());
        assert!(plan.join(" ").contains(&format!("row groups where {pruned}")), "{plan:?}");
    }
}

#[test]
fn a_sum_of_decimals_beyond_38_digits_is_an_error_in_sql() {
    let most = 10i128.pow(38) - 1;
    let decimals = |values: Vec<i128>| -> Vec<RecordBatch> {
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![1; values.len()]));
        let values = Decimal128Array::from(values).with_precision_and_scale(38, 0).unwrap();
        vec![RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef), ("k", keys)]).unwrap()]
    };
    for text in [
        "SELECT sum(v) FROM t",
        "SELECT sum(v) FROM t GROUP BY k",
        "SELECT sum(DISTINCT v) FROM t",
        "SELECT sum(DISTINCT v) FROM t GROUP BY k",
        // DataFusion does not rewrite these queries to groups.
        "SELECT s FROM (SELECT sum(DISTINCT v) AS s, array_agg(k) AS l FROM t) WHERE cardinality(l) > 0",
        "SELECT s FROM (SELECT sum(DISTINCT v) AS s, array_agg(k) AS l FROM t GROUP BY k) WHERE cardinality(l) > 0",
        "SELECT DISTINCT sum(v) OVER () FROM t",
        "SELECT max(s) FROM (SELECT sum(v) OVER (ORDER BY -v, k ROWS BETWEEN 2 PRECEDING AND 0 FOLLOWING) AS s FROM t)",
        "SELECT DISTINCT sum(DISTINCT v) OVER () FROM t",
    ] {
        let windows = text.contains("max(s)");
        for limits in [Limits::default(), SMALL] {
            for values in [vec![most, 1], vec![most, most - 1, most - 2], vec![-most, 1 - most]] {
                let error = found(text, &[("t", decimals(values))], 1, limits).unwrap_err().to_string();
                assert!(error.contains("a sum does not fit 38 digits"), "{text}: {error}");
            }
            let (lines, _) = found(text, &[("t", decimals(vec![most, -1, -5]))], 1, limits)
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(lines, [if windows { most } else { most - 6 }.to_string()], "{text}");
        }
    }
    let all = |text: &str| found(text, &[("t", decimals(vec![most / 9; 40]))], 1, Limits::default());
    for (cast, digits) in [
        ("arrow_cast(v / 1e32, 'Decimal32(9, 3)')", 9),
        ("arrow_cast(v / 2e19, 'Decimal64(18, 0)')", 18),
        ("CAST(v AS DECIMAL(76, 38))", 76),
    ] {
        for text in ["sum(ARG)", "max(s) FROM (SELECT sum(ARG) OVER (ORDER BY k) AS s FROM t)"] {
            let text = format!(
                "SELECT {}{}",
                text.replace("ARG", cast),
                if text.contains("FROM") { "" } else { " FROM t" }
            );
            let error = all(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("a sum does not fit {digits} digits")), "{text}: {error}");
        }
    }
    for text in [
        "SELECT avg(CAST(v AS DECIMAL(76, 38))) FROM t",
        "SELECT avg(CAST(v AS DECIMAL(64, 0))) OVER () FROM t",
    ] {
        let error = all(text).unwrap_err().to_string();
        assert!(error.contains("is refused: cast its argument to DOUBLE"), "{text}: {error}");
    }
    assert_eq!(
        all("SELECT avg(CAST(v AS DECIMAL(63, 0))) || 'x' FROM t").unwrap().0,
        [format!("{}.0000x", most / 9)]
    );
}

/// The results are compared with results that the test computes with integers.
#[test]
fn sums_and_means_of_different_decimals_are_exact() {
    let values: Vec<(i64, i128)> = (0..3_000i64)
        .map(|row| (row % 3, i128::from(row * row % 271 - 100) * 10i128.pow((row % 5 * 7) as u32) - 50))
        .collect();
    let kind = |values: Decimal128Array| values.with_precision_and_scale(34, 2).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(Int64Array::from_iter_values(values.iter().map(|row| row.0)))),
        ("m", Arc::new(kind(Decimal128Array::from_iter_values(values.iter().map(|row| row.1))))),
    ];
    let tables = [("t", vec![RecordBatch::try_from_iter(columns).unwrap()])];
    let exactly = |of: &dyn Fn(i64) -> bool| {
        let mut different: Vec<i128> = values.iter().filter(|row| of(row.0)).map(|row| row.1).collect();
        different.sort_unstable();
        different.dedup();
        let (sum, count) = (different.iter().sum::<i128>(), different.len() as i128);
        // The type of a mean has four more decimal places, and further digits are truncated.
        let (whole, rest) = (sum / count, sum % count * 10_000 / count);
        let mean = whole * 10_000 + rest;
        let text = |number: i128, scale: u32| {
            let (sign, number) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
            let unit = 10u128.pow(scale);
            format!("{sign}{}.{:0width$}", number / unit, number % unit, width = scale as usize)
        };
        format!("{} {} {count}x", text(sum, 2), text(mean, 6))
    };
    let shown = "s || ' ' || a || ' ' || c || 'x'";
    let functions = "sum(DISTINCT m) AS s, avg(DISTINCT m) AS a, count(DISTINCT m) AS c";
    let all = [exactly(&|_| true)];
    let mut groups = [0, 1, 2].map(|key| exactly(&|of| of == key));
    groups.sort();
    for (text, expected) in [
        (format!("SELECT {shown} FROM (SELECT {functions} FROM t)"), &all[..]),
        (format!("SELECT {shown} FROM (SELECT {functions}, min(k) FROM t)"), &all),
        (
            format!(
                "SELECT {shown} FROM (SELECT {functions}, array_agg(k) AS l FROM t) WHERE cardinality(l) > 0"
            ),
            &all,
        ),
        (format!("SELECT {shown} FROM (SELECT k, {functions} FROM t GROUP BY k)"), &groups),
        (
            format!("SELECT {shown} FROM (SELECT k, {functions}, count(DISTINCT k) FROM t GROUP BY k)"),
            &groups,
        ),
        (
            format!(
                "SELECT {shown} FROM (SELECT k, {functions}, array_agg(k) AS l FROM t GROUP BY k) WHERE cardinality(l) > 0"
            ),
            &groups,
        ),
        (
            format!(
                "SELECT DISTINCT {shown} FROM (SELECT sum(DISTINCT m) OVER w AS s, avg(DISTINCT m) OVER w AS a, \
                 count(DISTINCT m) OVER w AS c FROM t WINDOW w AS (PARTITION BY k))"
            ),
            &groups,
        ),
    ] {
        for (threads, limits) in [(1, Limits::default()), (2, Limits::default()), (2, SMALL), (1, RUNS)] {
            // The list of a group is a row of more than 16 KiB, which is too long for a sort with this limit.
            if text.contains("array_agg") && limits.arena_bytes.is_some() {
                continue;
            }
            let (mut lines, _) = found(&text, &tables, threads, limits)
                .unwrap_or_else(|error| panic!("{text} with {threads} threads and {limits:?}: {error}"));
            lines.sort();
            assert_eq!(lines, expected, "{text} with {threads} threads and {limits:?}");
        }
    }
}

#[test]
fn numbers_in_a_query_are_compared_with_decimals_digit_by_digit() {
    let prices = Decimal128Array::from_iter_values((0..10_000).map(|cents| 43_286_316 - 5000 + cents))
        .with_precision_and_scale(10, 2)
        .unwrap();
    let ids = Decimal128Array::from_iter_values((0..10_000).map(|row| (1 << 64) + row))
        .with_precision_and_scale(20, 0)
        .unwrap();
    let wholes = Int64Array::from_iter_values((0..10_000).map(|row| i64::MAX - row));
    let fractions = Float64Array::from_iter_values((0..10_000).map(|row| f64::from(row) / 10.0));
    let columns: [(&str, ArrayRef); 4] =
        [("p", Arc::new(prices)), ("id", Arc::new(ids)), ("i", Arc::new(wholes)), ("f", Arc::new(fractions))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let tables = [("t", vec![batch])];
    let one = |text: &str| {
        let (rows, _) = found(text, &tables, 2, Limits::default()).unwrap();
        assert_eq!(rows.len(), 1, "{text}");
        rows[0].clone()
    };
    for cents in 0..100 {
        let text = format!("SELECT count(*) FROM t WHERE p = 432863.{cents:02}");
        assert_eq!(one(&text), "1", "{text}");
    }
    for (condition, rows) in [
        ("p IN (432863.16, 1.5)", 1),
        ("p NOT IN (432863.16)", 9999),
        ("p BETWEEN 432863.15 AND 432863.17", 3),
        ("p BETWEEN 432863.10 + 0.05 AND 432863.16", 2),
        ("p <= 432813.16", 1),
        ("432863.16 <> p", 9999),
        ("p IS NOT DISTINCT FROM 432863.16", 1),
        ("CASE p WHEN 432863.16 THEN true END", 1),
        ("-p = -432863.16", 1),
        ("p = 432863.160", 1),
        ("p = 432863.161", 0),
        ("p > 1e3", 10_000),
        ("id = 18446744073709551617", 1),
        ("id > 18446744073709551617", 9998),
        ("i = 9223372036854775807", 1),
        ("i = 9223372036854775808", 0),
        ("i >= 9223372036854775806.5", 1),
        ("f = 0.3", 1),
        ("f IN (0.1, 0.7)", 2),
        ("f < 1.05", 11),
        ("f < 123456789012345678901234567890123456789012345678901234567890.0", 10_000),
        ("0.1 + 0.2 = 0.3", 10_000),
        (
            "CAST(12345678901234567890123456789012345678 AS decimal(38, 0)) = 12345678901234567890123456789012345678",
            10_000,
        ),
    ] {
        assert_eq!(
            one(&format!("SELECT count(*) FROM t WHERE {condition}")),
            rows.to_string(),
            "{condition}"
        );
    }
    let having = "SELECT min(p) FROM t GROUP BY p HAVING max(p) = 432863.16";
    assert_eq!(one(having), one("SELECT CAST(432863.16 AS decimal(10, 2))"));
}

#[test]
fn a_whole_number_that_does_not_fit_is_an_error() {
    let columns: [(&str, ArrayRef); 4] = [
        ("l", Arc::new(Int64Array::from(vec![1 << 62, 3]))),
        ("i", Arc::new(Int32Array::from(vec![100_000, 3]))),
        ("u", Arc::new(UInt32Array::from(vec![1, 3]))),
        ("b", Arc::new(UInt8Array::from(vec![200, 3]))),
    ];
    let tables = [("t", vec![RecordBatch::try_from_iter(columns).unwrap()])];
    for (text, kind) in [
        ("l * 4", "Int64"),
        ("l + l", "Int64"),
        ("-2 - l * 2", "Int64"),
        ("sum(i * i)", "Int32"),
        ("u - CAST(2 AS integer unsigned)", "UInt32"),
        ("b + b", "UInt8"),
        ("9223372036854775807 + 1", "Int64"),
        ("count(*) FILTER (WHERE l + l > 0)", "Int64"),
    ] {
        let error = refused(&format!("SELECT {text} AS x FROM t"), &tables);
        assert!(error.contains(&format!("is too large for {kind}")), "{text}: {error}");
    }
    let nines = "CAST('99999999999999999999999999999999999999' AS decimal(38, 0))";
    for text in [
        format!("{nines} + 1"),
        format!("-{nines} - i"),
        format!("{nines} / 3 * i"),
        format!("sum({nines} + i)"),
    ] {
        let error = refused(&format!("SELECT {text} AS x FROM t"), &tables);
        assert!(error.contains("38 digits") || error.contains("verflow"), "{text}: {error}");
    }
    for (text, rows) in [
        ("SELECT l + i - u * b FROM t WHERE l = 3", &["-3"][..]),
        ("SELECT sum(CAST(l AS decimal(38, 0)) * 4) FROM t", &["18446744073709551628"]),
        (
            "SELECT CAST('99999999999999999999999999999999999999' AS decimal(38, 0)) - i FROM t WHERE i = 3",
            &["99999999999999999999999999999999999996"],
        ),
        ("SELECT i + 1 AS n, count(*) FROM t GROUP BY i + 1 ORDER BY i + 1", &["4 1", "100001 1"]),
        ("SELECT CASE WHEN l > 10 THEN 0 ELSE l * l END FROM t ORDER BY 1", &["0", "9"]),
        ("SELECT i FROM t WHERE i * 2 IN (SELECT u * 2 FROM t)", &["3"]),
    ] {
        assert_eq!(found(text, &tables, 2, Limits::default()).unwrap().0, rows, "{text}");
    }
}

/// Returns the result of a query on files of a folder.
fn asked(folder: &Path, text: &str) -> Result<Vec<String>, Error> {
    let (_store, job) = job(2);
    let text = text.replace("FOLDER", folder.to_str().unwrap());
    let mut query = Query::start(&job, &text, Tables::default())?;
    let mut batches = Vec::new();
    while let Some(batch) = query.next_batch()? {
        assert_eq!(batch.schema(), *query.schema());
        batches.push(batch);
    }
    Ok(lines(&batches))
}

#[test]
fn a_query_is_begun_again_where_later_rows_contradict_what_the_first_ones_suggest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("late.jsonl"), "{\"c\":7}\n".repeat(1000) + "{\"c\":3.5}\n").unwrap();
    let rows: String = (0..30_000).map(|row| format!("{row},{}\n", row % 2)).collect();
    std::fs::write(path.join("late.csv"), format!("a,b\n{rows}18446744073709551615,x\n")).unwrap();
    let ask = |text: &str| asked(path, text);
    let counts = "SELECT c, count(*) AS n FROM 'FOLDER/late.jsonl' GROUP BY c ORDER BY c";
    assert_eq!(ask(counts).unwrap(), ["3.500 1", "7.000 1000"]);
    assert_eq!(ask("SELECT max(a) FROM 'FOLDER/late.csv'").unwrap(), ["18446744073709551615"]);
    assert_eq!(ask("SELECT max(b) FROM 'FOLDER/late.csv'").unwrap(), ["x"]);
    // After rows were returned, the query cannot restart by itself.
    let error = ask("SELECT a FROM 'FOLDER/late.csv'").unwrap_err().to_string();
    assert!(error.contains("late.csv:30002") && error.contains("--text a"), "{error}");
    std::fs::write(path.join("x1.csv"), "a,b\n1,2\n").unwrap();
    std::fs::write(path.join("x2.csv"), "a,b\n1.5,2\n").unwrap();
    assert_eq!(ask("SELECT sum(a) FROM 'FOLDER/x*.csv'").unwrap(), ["2.500"]);
}

#[test]
fn a_caller_that_can_take_rows_back_begins_again_with_fitting_columns() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..30_000).map(|row| format!("{row}\n")).collect();
    let path = folder.path().join("late.csv");
    std::fs::write(&path, format!("a\n{rows}0.5\n")).unwrap();
    let (_store, job) = job(1);
    let mut query =
        Query::start(&job, "SELECT a FROM t", Tables::default().with_files("t", &[path])).unwrap();
    assert_eq!(query.schema().field(0).data_type(), &DataType::Int64);
    while !query
        .next_batch()
        .is_err_and(|error| matches!(error, Error::Table(error) if error.is_contradiction()))
    {}
    assert!(query.begin_exactly().unwrap());
    assert_eq!(query.schema().field(0).data_type(), &DataType::Float64);
    let mut rows = 0;
    while let Some(batch) = query.next_batch().unwrap() {
        rows += batch.num_rows();
    }
    assert_eq!(rows, 30_001);
    assert!(!query.begin_exactly().unwrap(), "there is no more to know");
}

#[test]
fn a_late_member_fails_no_query_that_does_not_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = "{\"c\":7}\n".repeat(1000) + "{\"c\":7,\"note\":\"rare\"}\n";
    std::fs::write(folder.path().join("late.jsonl"), text).unwrap();
    let ask = |text: &str| asked(folder.path(), text).unwrap();
    assert_eq!(ask("SELECT count(*) FROM 'FOLDER/late.jsonl'"), ["1001"]);
    assert_eq!(ask("SELECT c FROM 'FOLDER/late.jsonl'").len(), 1001);
    // A wildcard returns all columns.
    assert_eq!(ask("SELECT * FROM 'FOLDER/late.jsonl'")[1000], "7 rare");
}

#[test]
fn a_late_member_is_found_wherever_a_query_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let early: String = (0..1200).map(|row| format!("{{\"c\":{}}}\n", row % 7)).collect();
    let late = "{\"c\":7,\"note\":\"b\",\"n\":5}\n{\"note\":\"a\",\"c\":8}\n";
    std::fs::write(folder.path().join("late.jsonl"), early + late).unwrap();
    std::fs::write(folder.path().join("t.csv"), "c\n7\n").unwrap();
    for (text, expected) in [
        ("SELECT c FROM 'FOLDER/late.jsonl' ORDER BY note LIMIT 2", &["8", "7"][..]),
        ("SELECT c FROM 'FOLDER/late.jsonl' ORDER BY n + 1 NULLS LAST, c DESC LIMIT 2", &["7", "8"]),
        ("SELECT note FROM 'FOLDER/late.jsonl' WHERE c > 6", &["b", "a"]),
        ("SELECT c FROM 'FOLDER/late.jsonl' WHERE note < 'c' AND n > 0", &["7"]),
        (
            "SELECT note, count(*) FROM 'FOLDER/late.jsonl' GROUP BY note ORDER BY 1",
            &["a 1", "b 1", "null 1200"],
        ),
        ("SELECT c FROM 'FOLDER/late.jsonl' GROUP BY c HAVING max(n) > 3", &["7"]),
        (
            "SELECT c FROM (SELECT c, row_number() OVER (ORDER BY n NULLS LAST) AS r FROM 'FOLDER/late.jsonl') WHERE r = 1",
            &["7"],
        ),
        ("SELECT count(*) FROM 'FOLDER/late.jsonl' a JOIN 'FOLDER/late.jsonl' b USING (n)", &["1"]),
        ("SELECT l.n FROM 'FOLDER/t.csv' t JOIN 'FOLDER/late.jsonl' l ON t.c = l.c", &["5"]),
    ] {
        assert_eq!(asked(folder.path(), text).unwrap(), expected, "{text}");
    }
    // A name that occurs in no row is an error. The names in CSV files are known from the first line.
    for table in ["late.jsonl", "t.csv"] {
        let error =
            asked(folder.path(), &format!("SELECT c FROM 'FOLDER/{table}' ORDER BY nothing")).unwrap_err();
        assert!(
            matches!(&error, Error::NoColumn(what) if what.contains("No field named nothing")),
            "{error}"
        );
        assert_eq!(error.to_string().contains("note"), table == "late.jsonl", "{error}");
    }
}

#[test]
fn requests_to_report_a_bug_are_cut_off_messages() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["SELECT FROM WHERE", "SELECT 'a", "SELECT sum(arrow_cast('a', 'Utf8'))"] {
        let error = asked(folder.path(), text).unwrap_err().to_string();
        for phrase in ["ParserError", "TokenizerError", "bug in DataFusion"] {
            assert!(!error.contains(phrase), "{text}: {error}");
        }
    }
}

/// DataFusion 55.2 alone returns a wrong result for each of these queries.
#[test]
fn wrong_answers_of_datafusion_are_corrected() {
    let tables = tables(&some_rows(3), &[]);
    let found = |text: &str| found(text, &tables, 2, Limits::default()).unwrap().0;
    let t = "(VALUES (1),(2),(3),(4),(NULL)) t(x)";
    let u = "(VALUES (2)) u(b)";
    let n = "(VALUES (2), (NULL)) n(y)";
    for (text, expected) in [
        (format!("SELECT x FROM {t} WHERE NOT (x IN (1,2,NULL) AND x NOT IN (1,3))"), &["1", "3"][..]),
        (format!("SELECT x FROM {t} WHERE (x IN (1,NULL)) IS NULL AND x > 2"), &["3", "4"]),
        (format!("SELECT x FROM {t} WHERE x NOT IN (1,CAST(NULL AS INT))"), &[]),
        (format!("SELECT x IN (NULL) IS NULL FROM {t} WHERE x = 1"), &["true"]),
        (
            format!("SELECT x FROM {t} WHERE EXISTS (SELECT count(*) FROM {u} WHERE x = b)"),
            &["1", "2", "3", "4", "null"],
        ),
        (format!("SELECT x FROM {t} WHERE NOT EXISTS (SELECT sum(b) FROM {u} WHERE x = b)"), &[]),
        (format!("SELECT x FROM {t} WHERE EXISTS (SELECT b FROM {u} WHERE x = b)"), &["2"]),
        (
            format!("SELECT x FROM {t} WHERE 0 IN (SELECT count(*) FROM {u} WHERE x = b)"),
            &["1", "3", "4", "null"],
        ),
        (format!("SELECT x FROM {t} WHERE x NOT IN (SELECT b FROM {u})"), &["1", "3", "4"]),
        (format!("SELECT x FROM {t} WHERE (x IN (SELECT y FROM {n})) IS NULL"), &["1", "3", "4", "null"]),
        (format!("SELECT x FROM {t} WHERE (x IN (SELECT y FROM {n})) IS NOT TRUE"), &["1", "3", "4", "null"]),
        (format!("SELECT x FROM {t} WHERE (x NOT IN (SELECT y FROM {n})) IS NULL"), &["1", "3", "4", "null"]),
        (format!("SELECT x FROM {t} WHERE x NOT IN (SELECT y FROM {n}) OR x = 4"), &["4"]),
        (format!("SELECT x FROM {t} WHERE NOT (x IN (SELECT y FROM {n}) OR x = 4)"), &[]),
        (format!("SELECT x FROM {t} WHERE x IN (SELECT y FROM {n}) OR x = 4"), &["2", "4"]),
        (format!("SELECT x FROM {t} WHERE NOT (x NOT IN (SELECT y FROM {n}))"), &["2"]),
        (format!("SELECT x FROM {t} WHERE (x IN (SELECT b FROM {u})) IS NULL"), &["null"]),
        (format!("SELECT x FROM {t} WHERE (x IN (SELECT b FROM {u} WHERE false)) IS NULL"), &[]),
        (
            format!("WITH t AS (SELECT * FROM {t}) SELECT x FROM t WHERE x > ANY (SELECT x FROM t)"),
            &["2", "3", "4"],
        ),
        (
            format!(
                "WITH t AS (SELECT * FROM {t}) SELECT x FROM t WHERE x >= ALL (SELECT x FROM t WHERE x > 0)"
            ),
            &["4"],
        ),
        (format!("SELECT x FROM {t} WHERE x < ANY (SELECT x FROM {t})"), &["1", "2", "3"]),
        ("SELECT count(*) FROM (FROM t)".to_string(), &["3"]),
        ("SELECT count(*) FROM (FROM t UNION ALL FROM t)".to_string(), &["6"]),
    ] {
        let mut lines = found(&text);
        lines.sort();
        assert_eq!(lines, expected, "{text}");
    }
    let columns = |text: &str| found(text)[0].split(' ').count();
    assert_eq!(columns("FROM t LIMIT 1"), columns("SELECT * FROM t LIMIT 1"));
}

#[test]
fn wrong_answers_that_cannot_be_corrected_are_refused() {
    for (text, expected) in [
        ("SELECT 1 WHERE 3 NOT IN (SELECT y FROM (VALUES (NULL)) b(y))", "NOT IN of a constant"),
        (
            "SELECT a FROM (VALUES (1, 1)) o(a, g) WHERE a NOT IN (SELECT b FROM (VALUES (1, 2)) i(b, h) WHERE h = g)",
            "names columns from outside",
        ),
        (
            "SELECT a FROM (VALUES (1, 1)) o(a, g) WHERE (a IN (SELECT b FROM (VALUES (NULL::int, 1)) i(b, h) WHERE h = g)) IS NULL",
            "names columns from outside",
        ),
        ("SELECT 1 EXCEPT ALL SELECT 1", "EXCEPT ALL is refused"),
        ("SELECT 2 UNION SELECT 1 INTERSECT ALL SELECT 1", "INTERSECT ALL is refused"),
        ("SELECT * FROM (SELECT 1 EXCEPT ALL SELECT 1)", "EXCEPT ALL is refused"),
    ] {
        let said = refused(text, &[]);
        assert!(said.contains(expected) && said.contains("DataFusion 55.2"), "{text}: {said}");
    }
}

/// In the time zone of Goose Bay, clocks were set back by an hour at 00:01, so truncated times are not in order.
#[test]
fn truncated_times_with_a_zone_are_sorted() {
    let times: Vec<String> = (0..40).map(|step| format!("({}::bigint)", 562_125_660 + step * 300)).collect();
    let times = format!(
        "SELECT arrow_cast(column1, 'Timestamp(Second, Some(\"America/Goose_Bay\"))') AS ts FROM (VALUES {}) ORDER BY ts LIMIT 30",
        times.join(", ")
    );
    for (unit, threads) in [("hour", 1), ("hour", 2), ("day", 2)] {
        let text = format!(
            "SELECT arrow_cast(date_trunc('{unit}', ts), 'Int64') AS t FROM ({times}) ORDER BY date_trunc('{unit}', ts)"
        );
        let (lines, _) = found(&text, &[], threads, Limits::default()).unwrap();
        let found: Vec<i64> = lines.iter().map(|line| line.parse().unwrap()).collect();
        assert!(found.len() == 30 && found.is_sorted(), "{text}: {found:?}");
    }
}

#[test]
fn distinct_values_of_several_columns_are_counted_in_any_memory() {
    let rows = some_rows(6_000);
    let tables = tables(&rows, &[(Some(1), 3)]);
    for text in [
        "SELECT count(DISTINCT k), count(DISTINCT v) FROM t",
        "SELECT count(*), count(DISTINCT k), count(DISTINCT s || 'x'), sum(v), min(s), max(d), count(g), sum(f) FROM t",
        "SELECT count(DISTINCT v), count(*) AS n FROM t HAVING count(*) > 3",
        "SELECT count(DISTINCT k) AS a, count(*), count(DISTINCT v) FROM t WHERE k > 1000",
        "SELECT s, count(DISTINCT k), count(DISTINCT v), count(*) FROM t WHERE k > 1000 GROUP BY s",
        "SELECT k % 3, s, sum(DISTINCT v), avg(DISTINCT k), count(DISTINCT v) FROM t GROUP BY k % 3, s",
        "SELECT k, count(DISTINCT k), count(DISTINCT v), count(DISTINCT v) + 1 FROM t GROUP BY k",
        "SELECT count(DISTINCT v) FILTER (WHERE k > 9), count(DISTINCT v) FILTER (WHERE k > 99), count(*) FILTER (WHERE k > 7) FROM t",
        "SELECT s FROM t GROUP BY s HAVING count(DISTINCT k) > 20 AND count(DISTINCT v) > 20 ORDER BY count(DISTINCT v), s",
        "SELECT count(DISTINCT k), avg(f), count(DISTINCT v) FROM t",
        "SELECT count(DISTINCT m), count(DISTINCT f), sum(m) FROM t",
        "SELECT (SELECT count(DISTINCT k) + count(DISTINCT v) FROM t), count(DISTINCT w) FROM u",
        "SELECT count(DISTINCT a), count(DISTINCT b) FROM (SELECT k AS a, k AS b FROM t UNION ALL SELECT k, v FROM t)",
    ] {
        check(text, &tables);
    }
    // The 600,000 distinct values of each column need more than the whole memory.
    let text = "SELECT count(DISTINCT value), count(DISTINCT value || 'x'), count(*) FROM generate_series(1, 600000)";
    let (lines, ran) = found_within(smallest_memory_bytes(), text, &[], 2, Limits::default()).unwrap();
    assert_eq!(lines, ["600000 600000 600000"]);
    assert!(ran.iter().any(|ran| ran.runs > 0), "{ran:?}");
}

/// Runs queries whose threads wait for each other and write to flash. The variable INSHORE_SPILLING sets the number
/// of repetitions of each query.
#[test]
fn queries_that_spill_end() {
    let rounds: usize = std::env::var("INSHORE_SPILLING").map_or(2, |rounds| rounds.parse().unwrap());
    let series = |rows: usize| {
        format!(
            "(SELECT value AS a, CAST(value * 7919 % {rows} AS VARCHAR) || '<42 x>' AS t FROM generate_series(1, {rows}))"
        )
    };
    let (x, y) = (series(120_000), series(60_000));
    for (text, expected) in [
        (
            format!("SELECT count(*), sum(n) FROM (SELECT t, count(*) AS n FROM {x} GROUP BY t)"),
            "120000 120000",
        ),
        (format!("SELECT count(*), min(t) FROM (SELECT DISTINCT t, a % 3 FROM {x})"), "120000 0<42 x>"),
        (format!("SELECT count(*), max(x.t) FROM {x} x JOIN {y} y ON x.t = y.t"), "60000 9<42 x>"),
        (
            format!(
                "SELECT count(*), count(z.t) FROM {x} x FULL JOIN {y} y ON x.t = y.t LEFT JOIN {y} z ON y.a = z.a"
            ),
            "120000 60000",
        ),
        (
            format!(
                "SELECT count(*), max(r) FROM (SELECT t, row_number() OVER (PARTITION BY a % 1000 ORDER BY t) AS r FROM {x})"
            ),
            "120000 120",
        ),
        (
            format!("SELECT count(*), max(t) FROM (SELECT * FROM {x} ORDER BY t, a LIMIT 100000)"),
            "100000 81<42 x>",
        ),
    ] {
        for round in 0..rounds {
            let threads = [16, 3, 2, 8, 5, 12, 4, 1, 6, 10, 14, 7, 9, 11, 13, 15][round % 16];
            let memory_bytes = if round % 2 == 0 { 24 << 20 } else { 64 << 20 };
            let (lines, _) = found_within(memory_bytes, &text, &[], threads, Limits::default())
                .unwrap_or_else(|error| {
                    panic!("{text} with {threads} threads in {memory_bytes} bytes: {error}")
                });
            assert!(lines.len() == 1 && lines[0].starts_with(expected), "{text}: {lines:?}");
        }
    }
}

/// The results do not depend on the order in which threads run.
#[test]
fn few_rows_and_wide_rows_are_answered_in_the_least_memory_with_many_threads() {
    let tables = tables(&some_rows(3), &[(Some(1), 3), (Some(2), 5), (None, 7)]);
    // Each column of a batch has the maximum size that a function may create within 24 MiB of memory.
    let column = |name: &str| format!("repeat(CAST(value AS VARCHAR), 50) AS {name}");
    let columns = ["a", "b", "c", "d"].map(column).join(", ");
    let wide = format!(
        "SELECT sum(length(a) + length(b) + length(c) + length(d)), count(*) FROM (SELECT value, {columns} FROM \
         generate_series(1, 60000) ORDER BY a, value LIMIT 50000)"
    );
    for threads in [1, 2, 4, 8, 16] {
        for memory_bytes in [24 << 20, 64 << 20] {
            let found = |text: &str| {
                found_within(memory_bytes, text, &tables, threads, Limits::default())
                    .unwrap_or_else(|error| {
                        panic!("{text} with {threads} threads in {memory_bytes} bytes: {error}")
                    })
                    .0
            };
            for _ in 0..4 {
                found(
                    "(SELECT k FROM t EXCEPT SELECT k FROM u) UNION ALL (SELECT k FROM u EXCEPT SELECT k FROM t)",
                );
                found(
                    "SELECT a.k, b.k, c.k, d.k FROM t a FULL JOIN u b ON a.k = b.k FULL JOIN t c ON b.k = c.k FULL JOIN u d ON c.k = d.k",
                );
                let lines = found(
                    "WITH RECURSIVE n AS (SELECT 1 AS i, 1 AS c UNION ALL SELECT i + 1, CAST(count(*) AS INT) FROM n WHERE i < 30 GROUP BY i) \
                     SELECT i, c FROM n ORDER BY i",
                );
                assert_eq!(lines.len(), 30);
            }
            if threads % 4 == 0 {
                assert_eq!(found(&wide), ["48889800 50000"]);
            }
        }
    }
}

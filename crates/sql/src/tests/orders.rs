//! Tests of ORDER BY on floating-point numbers.

use super::*;

/// Creates a table of zeros and NaNs of both signs, with a second key in no order.
fn fractions() -> Vec<Table> {
    let values = [0.0, -0.0, 0.0, -f64::NAN, 1.0, f64::NAN, -1.0, -f64::NAN];
    let batch = RecordBatch::try_from_iter([
        ("x", Arc::new(Float64Array::from(values.to_vec())) as ArrayRef),
        ("k", Arc::new(Int64Array::from(vec![3, 2, 1, 9, 0, 8, 0, 7])) as ArrayRef),
    ]);
    vec![("t", vec![batch.unwrap()])]
}

#[test]
fn orders_take_zeros_of_both_signs_for_one_value_and_every_nan_for_the_greatest() {
    let tables = fractions();
    let up = ["0", "1", "2", "3", "0", "7", "8", "9"];
    let down = ["7", "8", "9", "0", "1", "2", "3", "0"];
    for (text, rows) in [
        ("SELECT k FROM t ORDER BY x, k", up),
        ("SELECT k FROM t ORDER BY x DESC, k", down),
        ("SELECT k FROM t ORDER BY x, k LIMIT 8", up),
        ("SELECT k FROM (SELECT x AS y, k FROM t) ORDER BY y, k", up),
        ("SELECT k FROM t ORDER BY CAST(x AS FLOAT) + 0, k", up),
        ("SELECT unnest(array_agg(k ORDER BY x, k)) FROM t", up),
        ("SELECT unnest(array_agg(DISTINCT k ORDER BY k)) FROM t", ["0", "1", "2", "3", "7", "8", "9", ""]),
        (
            "SELECT r FROM (SELECT rank() OVER (ORDER BY x) AS r, x, k FROM t) ORDER BY x, k",
            ["1", "2", "2", "2", "5", "6", "6", "6"],
        ),
        (
            "SELECT r FROM (SELECT row_number() OVER (PARTITION BY x ORDER BY k) AS r, x, k FROM t) ORDER BY x, k",
            ["1", "1", "2", "3", "1", "1", "2", "3"],
        ),
    ] {
        for (threads, limits) in [(2, Limits::default()), (1, RUNS)] {
            let (found, _) =
                found(text, &tables, threads, limits).unwrap_or_else(|error| panic!("{text}: {error}"));
            let rows: Vec<&str> = rows.iter().copied().filter(|row| !row.is_empty()).collect();
            assert_eq!(found, rows, "{text}");
        }
    }
    // Many rows of one floating-point column are sorted as integers.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let values =
        (0..30_000).map(|row| [0.5, -f64::NAN, f64::NAN, -0.0, 7.0][row % 5]).collect::<Float64Array>();
    write_parquet(&path, &RecordBatch::try_from_iter([("x", Arc::new(values) as ArrayRef)]).unwrap());
    for (order, first, last) in [("x", "-0.000", "NaN"), ("x DESC", "NaN", "-0.000")] {
        let (_store, job) = job(2);
        let tables = Tables::default().with_files("t", std::slice::from_ref(&path));
        let text = format!("SELECT x FROM t ORDER BY {order}");
        let mut query = Query::start_within(&job, &text, tables, RUNS).unwrap();
        let found = lines(&query.by_ref().collect::<Result<Vec<_>, _>>().unwrap());
        assert_eq!(query.report().operators[0].ways, ["sort-reduce of numbers"]);
        assert_eq!(
            (&*found[0], &*found[29_999], found[6_000] == found[0]),
            (first, last, first == "NaN"),
            "{order}"
        );
    }
    // The values in the result have the same bits as in the input.
    let (found, _) =
        found("SELECT 1 / x FROM t WHERE x = 0 ORDER BY x, k", &tables, 1, Limits::default()).unwrap();
    assert_eq!(found, ["inf", "-inf", "inf"]);
    let found = super::found("SELECT DISTINCT ON (x) k FROM t ORDER BY x, k", &tables, 1, Limits::default())
        .unwrap()
        .0;
    assert_eq!(found, ["0", "1", "0", "7"]);
    let median = "SELECT approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY x) FROM t WHERE x <= 1";
    assert_eq!(super::found(median, &tables, 1, Limits::default()).unwrap().0, ["0.000"]);
}

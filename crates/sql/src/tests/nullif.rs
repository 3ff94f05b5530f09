//! Tests of the result type of NULLIF.

use super::*;

#[test]
fn nullif_has_the_type_of_its_first_argument() {
    let tables = tables(&some_rows(1), &[]);
    for (call, expected) in [
        ("NULLIF(arrow_cast(1, 'Int32'), 2)", "1 Int32"),
        ("NULLIF(arrow_cast(1, 'Int8'), 2.5)", "1 Int8"),
        ("NULLIF(arrow_cast(1, 'Int8'), 1.0)", "null Int8"),
        ("NULLIF(1, 2.5e0)", "1 Int64"),
        ("NULLIF(1.5e0, 2)", "1.500 Float64"),
        ("NULLIF('1', 1)", "null Utf8"),
        ("NULLIF(NULL, 1)", "null Int64"),
        ("NULLIF(CAST('2020-01-01' AS DATE), '2020-01-01')", "null Date32"),
        ("NULLIF(CAST(432863.16 AS DECIMAL(15, 2)), 432863.16)", "null Decimal128(15, 2)"),
        ("NULLIF(CAST('-0' AS DOUBLE), 0)", "null Float64"),
        ("NULLIF(CAST('NaN' AS DOUBLE), -CAST('NaN' AS DOUBLE))", "null Float64"),
    ] {
        let found = |text: String| found(&text, &tables, 1, Limits::default()).map(|(lines, _)| lines);
        let lines = found(format!("SELECT {call}, arrow_typeof({call})"));
        assert_eq!(lines.unwrap_or_else(|error| panic!("{call}: {error}")), [expected], "{call}");
    }
    let (lines, _) = found("SELECT count(*), count(NULLIF(v, k + 0.5e0)), count(NULLIF(v, v)) FROM t WHERE v IS NOT NULL AND k IS NOT NULL", &tables, 2, Limits::default()).unwrap();
    let counts: Vec<&str> = lines[0].split(' ').collect();
    assert!(counts[0] == counts[1] && counts[2] == "0", "{lines:?}");
    let nested = (0..40).fold("v".to_string(), |inner, number| format!("NULLIF({inner}, {number}.5)"));
    let begun = Instant::now();
    found(&format!("SELECT {nested} FROM t"), &tables, 1, Limits::default()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    let error = refused("SELECT NULLIF(DATE '2020-01-01', make_array(1))", &tables);
    assert!(error.contains("NULLIF cannot compare Date32 with List("), "{error}");
}

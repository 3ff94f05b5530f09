//! Tests of columns with the same name, in results and in files.

use arrow::{
    array::{ArrayRef, Int64Array},
    datatypes::{DataType, Field, Schema},
};

use super::*;

/// Returns the column names and the rows of a query's result.
fn answer(text: &str) -> Result<(Vec<String>, Vec<String>), Error> {
    let numbers = |values: [i64; 2]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
    let t = RecordBatch::try_from_iter([("a", numbers([3, 1])), ("b", numbers([2, 5]))]).unwrap();
    let (_folder, job) = job(2);
    let tables = Tables::default().with_batches("t", t.schema(), vec![t.clone()]).with_batches(
        "u",
        t.schema(),
        vec![t.clone()],
    );
    let mut query = Query::start(&job, text, tables)?;
    let mut batches = Vec::new();
    while let Some(batch) = query.next_batch()? {
        assert_eq!(batch.schema_ref(), query.schema(), "{text}");
        batches.push(batch);
    }
    let names = query.schema().fields().iter().map(|field| field.name().clone()).collect();
    Ok((names, lines(&batches)))
}

#[test]
fn columns_of_one_name_get_numbers() {
    for (text, names, first) in [
        ("SELECT a, a FROM t ORDER BY 1", vec!["a", "a_1"], "1 1"),
        ("SELECT a, A, (a), t.a FROM t ORDER BY a", vec!["a", "a_1", "a_2", "a_3"], "1 1 1 1"),
        ("SELECT a, b AS a FROM t ORDER BY b", vec!["a", "a_1"], "3 2"),
        ("SELECT a, a, b AS a_1 FROM t ORDER BY b", vec!["a", "a_2", "a_1"], "3 3 2"),
        ("SELECT count(*), COUNT(*) FROM t", vec!["count(*)", "count(*)_1"], "2 2"),
        ("SELECT sum(a) AS s, sum(a), sum( A ) FROM t", vec!["s", "sum(t.a)", "sum(a)_1"], "4 4 4"),
        ("SELECT 'x' AS a, 'X' AS a", vec!["a", "a_1"], "x X"),
        ("SELECT t.a, u.a FROM t JOIN u ON t.a = u.a ORDER BY 1", vec!["a", "a_1"], "1 1"),
        ("SELECT * FROM t JOIN u ON t.a = u.a ORDER BY 1", vec!["a", "b", "a_1", "b_1"], "1 5 1 5"),
        ("SELECT *, a FROM t ORDER BY b", vec!["a", "b", "a_1"], "3 2 3"),
        ("SELECT a_1 FROM (SELECT a, a FROM t) ORDER BY 1", vec!["a_1"], "1"),
        ("SELECT a, a FROM t UNION ALL SELECT b, b FROM u ORDER BY 1", vec!["a", "a_1"], "1 1"),
        ("SELECT a, a, count(*) FROM t GROUP BY a ORDER BY a", vec!["a", "a_1", "count(*)"], "1 1 1"),
        ("SELECT DISTINCT a, a FROM t ORDER BY a", vec!["a", "a_1"], "1 1"),
    ] {
        let (found, rows) = answer(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (found, rows[0].as_str()),
            (names.iter().map(|name| name.to_string()).collect(), first),
            "{text}"
        );
    }
    let error = answer("SELECT a FROM (SELECT t.a, u.a FROM t, u)").unwrap_err().to_string();
    assert!(error.contains("Ambiguous"), "{error}");
    let error = answer("SELECT *, a + 1 AS a FROM t").unwrap_err().to_string();
    assert!(error.contains("two columns are called a") && error.contains("AS"), "{error}");
}

#[test]
fn a_file_with_two_columns_of_one_name_is_refused_and_csv_of_names_gets_numbers() {
    let (folder, job) = job(1);
    let ask = |text: &str, tables: Tables| {
        let mut query = Query::start(&job, text, tables)?;
        query.next_batch().map(|batch| lines(&[batch.unwrap()]))
    };
    let field = |name| Field::new(name, DataType::Int64, true);
    let schema = Arc::new(Schema::new(vec![field("a"), field("b"), field("a")]));
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let batch = RecordBatch::try_new(schema.clone(), vec![column; 3]).unwrap();
    let path = folder.path().join("t.arrow");
    let mut writer =
        arrow::ipc::writer::FileWriter::try_new(std::fs::File::create(&path).unwrap(), &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let error = ask("SELECT b FROM t", Tables::default().with_files("t", &[path])).unwrap_err().to_string();
    assert!(
        error.ends_with("t.arrow: 2 columns are called 'a', expected one; the columns are a, b, a"),
        "{error}"
    );

    let path = folder.path().join("t.csv");
    std::fs::write(&path, "a,a,b\n1,2,3\n").unwrap();
    let tables = Tables::default().with_files("t", &[path]);
    let error = ask("SELECT * FROM t", tables.clone()).unwrap_err().to_string();
    assert!(error.contains("t.csv:1") && error.contains("--header yes"), "{error}");
    let tables = tables.with_header(inshore_tables::Header::Present);
    assert_eq!(ask("SELECT b, a_1, a FROM t", tables).unwrap(), ["3 2 1"]);
}

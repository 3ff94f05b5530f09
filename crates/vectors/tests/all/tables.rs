//! Tests of tables with vectors: their import, and their columns in answers.

use std::{fs::File, path::PathBuf, sync::Arc};

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float64Array, Int64Array, LargeListArray, ListArray, RecordBatch,
    StringArray, UInt8Array, UInt64Array, cast::AsArray, types::Float32Type, types::UInt64Type,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field};
use inshore_store::Job;
use inshore_tables::Input;
use inshore_vectors::{
    AnswerColumns, Element, Error, Imported, ImportedFrom, Search, TableColumns, Vectors, describe_lists,
    import_table, search,
};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

use crate::support::{Made, Random, Setup, brute_force};

pub const MEMORY: (u64, usize) = (32 << 20, 2);

/// Returns a column of lists that all have the same length.
pub fn lists(values: ArrayRef, dimensions: usize) -> ArrayRef {
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    let rows = values.len() / dimensions;
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(vec![dimensions; rows]), values, None))
}

fn fixed(values: ArrayRef, dimensions: usize) -> ArrayRef {
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    Arc::new(FixedSizeListArray::new(item, dimensions as i32, values, None))
}

pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

/// Writes a table to a file with several row groups or batches.
pub fn write(setup: &Setup, name: &str, table: &RecordBatch) -> PathBuf {
    let path = setup.folder.path().join(name);
    let file = File::create(&path).unwrap();
    let parts =
        (0..table.num_rows()).step_by(700).map(|row| table.slice(row, 700.min(table.num_rows() - row)));
    if name.ends_with(".arrow") {
        let mut writer = FileWriter::try_new(file, &table.schema()).unwrap();
        parts.for_each(|part| writer.write(&part).unwrap());
        writer.finish().unwrap();
    } else {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1500)).build();
        let mut writer = ArrowWriter::try_new(file, table.schema(), Some(properties)).unwrap();
        parts.for_each(|part| writer.write(&part).unwrap());
        writer.close().unwrap();
    }
    path
}

pub fn import(
    setup: &Setup,
    name: &str,
    path: &PathBuf,
    (column, id): (Option<&str>, Option<&str>),
) -> Result<Imported, Error> {
    let job = setup.job(MEMORY.0, MEMORY.1);
    let columns = TableColumns { vectors: column.map(String::from), id: id.map(String::from) };
    let imported = import_table(&setup.store, &job, name, &Input::new(path), &columns);
    assert_eq!(job.budget().reserved_bytes(), 0);
    imported
}

fn refused(setup: &Setup, table: &RecordBatch, options: (Option<&str>, Option<&str>)) -> String {
    let mut messages = Vec::new();
    for name in ["bad.parquet", "bad.arrow"] {
        let path = write(setup, name, table);
        let error = import(setup, "bad", &path, options).unwrap_err().to_string();
        assert!(setup.store.dataset("bad").is_err(), "{error}");
        messages.push(error.split_once(": ").expect("the file first").1.to_string());
    }
    assert_eq!(messages[0], messages[1]);
    messages.remove(0)
}

/// Returns a table of documents, one for each 8 of `values`. Some titles are null, and some are long.
pub fn documents(random: &mut Random, values: ArrayRef) -> RecordBatch {
    let rows = values.len() / 8;
    let title =
        |row: usize| (!row.is_multiple_of(7)).then(|| format!("title {row} {}", "x".repeat(row % 50)));
    batch(vec![
        ("title", Arc::new((0..rows).map(title).collect::<StringArray>())),
        ("embedding", lists(values, 8)),
        ("year", Arc::new(Int64Array::from_iter_values((0..rows).map(|_| 2000 + random.below(30) as i64)))),
        (
            "doc",
            Arc::new(
                (0..rows).map(|row| Some(format!("doc-{}", row * 7919 % 3001))).collect::<StringArray>(),
            ),
        ),
    ])
}

/// Searches a dataset, and returns the answer with the columns `select`.
fn answer(setup: &Setup, name: &str, queries: &Made, select: &[&str], job: &Job) -> RecordBatch {
    answer_to(setup, name, (queries, &Search::default()), select, job)
}

/// Searches a dataset with the options of a search, and returns the answer with the columns `select`.
pub fn answer_to(
    setup: &Setup,
    name: &str,
    (queries, options): (&Made, &Search),
    select: &[&str],
    job: &Job,
) -> RecordBatch {
    let vectors = Vectors::open(&setup.store, name).unwrap();
    let select: Vec<String> = select.iter().map(|name| (*name).to_string()).collect();
    let mut columns = AnswerColumns::open(job, &vectors, &select).unwrap().expect("columns");
    let mut batches = Vec::new();
    let mut keep = |batch| {
        batches.push(batch);
        Ok(())
    };
    let file = setup.file("q", queries);
    search(job, &vectors, &file, options, &mut |batch| columns.add(batch, &mut keep)).unwrap();
    columns.finish(&mut keep).unwrap();
    let schema = columns.schema().clone();
    drop(columns);
    assert_eq!(job.budget().reserved_bytes(), 0);
    arrow_select::concat::concat_batches(&schema, &batches).unwrap()
}

#[test]
fn a_table_is_imported_with_its_columns_and_ids() {
    let setup = Setup::new();
    let mut random = Random(1);
    let made = Made::new(inshore_vectors::Element::F32, 8, 3000, || random.normal());
    let values: ArrayRef =
        Arc::new(arrow_array::Float32Array::from_iter_values(made.values.iter().map(|&x| x as f32)));
    let table = documents(&mut random, values);
    let queries = Made { values: made.values[..40 * 8].to_vec(), ..made.clone() };
    let expected = brute_force(&made, &queries, &Search::default());
    for (number, name) in ["docs.parquet", "docs.arrow"].into_iter().enumerate() {
        let path = write(&setup, name, &table);
        let dataset = format!("docs{number}");
        let imported = import(&setup, &dataset, &path, (None, Some("doc"))).unwrap();
        assert_eq!((imported.info.vectors, imported.info.dimensions), (3000, 8));
        assert_eq!(
            (imported.columns, imported.rounded),
            (vec!["title".into(), "year".into(), "doc".into()], 0)
        );
        for memory in [12 << 20, 64 << 20] {
            let job = setup.job(memory, 2);
            let answered = answer(&setup, &dataset, &queries, &["year", "title"], &job);
            let names: Vec<_> = answered.schema().fields().iter().map(|field| field.name().clone()).collect();
            assert_eq!(names, ["query", "rank", "id", "distance", "year", "title"]);
            let rows: Vec<u64> = expected.iter().map(|row| row.2).collect();
            let places = UInt64Array::from(rows);
            for (answered, stored) in [(2, "doc"), (4, "year"), (5, "title")]
                .map(|(at, name)| (answered.column(at).clone(), table.column_by_name(name).unwrap()))
            {
                assert_eq!(&answered, &arrow_select::take::take(stored, &places, None).unwrap());
            }
            assert_eq!(answered.column(3).as_primitive::<Float32Type>().len(), 400);
            assert_eq!(answered.column(0).as_primitive::<UInt64Type>().value(399), 39);
        }
    }
}

#[test]
fn lists_of_all_types_become_vectors() {
    let setup = Setup::new();
    let bytes: ArrayRef = Arc::new(UInt8Array::from_iter_values((0..4000).map(|value| value as u8)));
    let doubles: ArrayRef =
        Arc::new(Float64Array::from_iter_values((0..4000).map(|value| f64::from(value) / 7.0)));
    let large = {
        let item = Arc::new(Field::new("item", DataType::UInt8, true));
        LargeListArray::new(item, OffsetBuffer::from_lengths(vec![4; 1000]), bytes.clone(), None)
    };
    for (number, (column, element, rounded)) in [
        (fixed(bytes.clone(), 4), "u8", 0),
        (Arc::new(large), "u8", 0),
        (lists(doubles, 4), "f32", 3428),
        (lists(Arc::new(arrow_array::Int8Array::from(vec![-3; 4000])), 4), "i8", 0),
        (fixed(Arc::new(arrow_array::Int32Array::from(vec![70_000; 4000])), 4), "f32", 0),
    ]
    .into_iter()
    .enumerate()
    {
        for ending in ["parquet", "arrow"] {
            let path = write(&setup, &format!("t{number}.{ending}"), &batch(vec![("v", column.clone())]));
            let name = format!("{ending}{number}");
            let imported = import(&setup, &name, &path, (Some("v"), None)).unwrap();
            assert_eq!((imported.info.vectors, imported.info.dimensions), (1000, 4));
            assert_eq!((imported.info.element.to_string().as_str(), imported.rounded), (element, rounded));
        }
    }
}

#[test]
fn bad_tables_are_refused_by_row_and_column() {
    let setup = Setup::new();
    let floats = |values: Vec<Option<f32>>| Arc::new(arrow_array::Float32Array::from(values)) as ArrayRef;
    let item = || Arc::new(Field::new("item", DataType::Float32, true));
    let good = floats(vec![Some(1.0); 20]);

    // One list has another length than the first one.
    let ragged = ListArray::new(item(), OffsetBuffer::from_lengths([4, 4, 3, 4, 5]), good.clone(), None);
    let message = refused(&setup, &batch(vec![("v", Arc::new(ragged))]), (None, None));
    assert_eq!(message, "row 2, column 'v': found 3 dimensions, expected 4, as in row 0");

    // A list is null, or a list contains a null, a NaN or an infinity.
    let nulls = Some(NullBuffer::from(vec![true, true, true, false, true]));
    let null = ListArray::new(item(), OffsetBuffer::from_lengths([4, 4, 4, 4, 4]), good.clone(), nulls);
    let message = refused(&setup, &batch(vec![("v", Arc::new(null))]), (None, None));
    assert_eq!(message, "row 3, column 'v': found null, expected a list of numbers");
    for (value, found) in [(None, "null"), (Some(f32::NAN), "NaN"), (Some(f32::INFINITY), "inf")] {
        let mut values = vec![Some(1.0); 20];
        values[9] = value;
        let message = refused(&setup, &batch(vec![("v", lists(floats(values), 4))]), (None, None));
        assert!(message.starts_with(&format!("row 2, column 'v': found {found}, expected")), "{message}");
        assert!(message.ends_with("in dimension 1"), "{message}");
    }

    // Some columns do not exist, some are not lists, and without a name the column of vectors is ambiguous.
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![5, 6, 7, 6, 5]));
    let two = batch(vec![("a", lists(good.clone(), 4)), ("b", lists(good.clone(), 4)), ("n", ids.clone())]);
    let message = refused(&setup, &two, (None, None));
    assert!(message.contains("several columns of lists: a, b"), "{message}");
    let message = refused(&setup, &two, (Some("n"), None));
    assert_eq!(message, "column 'n': found Int64, expected lists of f32, f64, f16, u8, i8 or i32");
    let message = refused(&setup, &two, (Some("c"), None));
    assert!(message.contains("'c'") && message.contains("a, b, n"), "{message}");
    let message = refused(&setup, &batch(vec![("n", ids.clone())]), (None, None));
    assert_eq!(message, "the columns: found n, expected a column of lists of numbers");
    let message =
        refused(&setup, &batch(vec![("v", lists(good.clone(), 4)), ("_row", ids.clone())]), (None, None));
    assert!(message.contains("one called _row"), "{message}");

    // Some ids occur twice, some are null, and some columns cannot be ids.
    let one = batch(vec![("v", lists(good.clone(), 4)), ("n", ids)]);
    let message = refused(&setup, &one, (None, Some("n")));
    assert_eq!(message, "rows 0 and 4, column 'n': found \"5\" twice, expected ids that occur once");
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("b"), None, Some("c"), Some("d")]));
    let message =
        refused(&setup, &batch(vec![("v", lists(good.clone(), 4)), ("n", texts)]), (None, Some("n")));
    assert!(message.contains("row 2, column 'n'") && message.contains("null"), "{message}");
    let message = refused(&setup, &two, (Some("a"), Some("b")));
    assert!(message.starts_with("column 'b': found") && message.contains("integers or text"), "{message}");
}

#[test]
fn other_lists_are_left_out_and_named() {
    let setup = Setup::new();
    let values: ArrayRef = Arc::new(UInt8Array::from(vec![1; 40]));
    let table = batch(vec![("a", lists(values.clone(), 4)), ("b", lists(values, 4))]);
    let path = write(&setup, "t.parquet", &table);
    let imported = import(&setup, "v", &path, (Some("b"), None)).unwrap();
    assert_eq!((imported.left_out, imported.columns), (vec!["a".to_string()], Vec::new()));
}

#[test]
fn columns_of_an_answer_are_refused_by_name() {
    let setup = Setup::new();
    let mut random = Random(1);
    let values: ArrayRef = Arc::new(UInt8Array::from(vec![1; 80]));
    let path = write(&setup, "t.parquet", &documents(&mut random, values));
    import(&setup, "v", &path, (None, None)).unwrap();
    let job = setup.job(MEMORY.0, MEMORY.1);
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let open = |select: &[&str]| {
        let select: Vec<String> = select.iter().map(|name| (*name).to_string()).collect();
        AnswerColumns::open(&job, &vectors, &select)
    };
    assert!(open(&[]).unwrap().is_none());
    let error = open(&["titel"]).err().unwrap().to_string();
    assert!(error.contains("titel") && error.contains("title, year, doc, _row"), "{error}");
    let error = open(&["year", "year"]).err().unwrap().to_string();
    assert!(error.contains("select is year: expected each column once"), "{error}");
    // Vectors that were imported from a file have no columns.
    setup.import("w", &Made::new(inshore_vectors::Element::U8, 4, 10, || 1.0));
    let vectors = Vectors::open(&setup.store, "w").unwrap();
    let error = AnswerColumns::open(&job, &vectors, &["year".to_string()]).err().unwrap().to_string();
    assert!(error.contains("w: columns: found none"), "{error}");
}

#[test]
fn rows_with_long_values_are_answered_in_parts_or_refused() {
    let setup = Setup::new();
    let made = Made::new(inshore_vectors::Element::U8, 4, 60, {
        let mut random = Random(3);
        move || random.below(200) as f64
    });
    let bytes: ArrayRef = Arc::new(UInt8Array::from_iter_values(made.values.iter().map(|&x| x as u8)));
    // There are 60 texts of 60 kB, and each is in several rows of the answer. The 200 rows take 12 MB.
    let texts: ArrayRef = Arc::new((0..60).map(|row| Some(format!("{row:060000}"))).collect::<StringArray>());
    let path = write(&setup, "t.parquet", &batch(vec![("v", lists(bytes.clone(), 4)), ("text", texts)]));
    import(&setup, "v", &path, (None, None)).unwrap();
    let queries = Made { values: made.values[..20 * 4].to_vec(), ..made.clone() };
    let job = setup.job(24 << 20, 1);
    let answered = answer(&setup, "v", &queries, &["text"], &job);
    let rows = brute_force(&made, &queries, &Search::default());
    let texts = answered.column(4).as_string::<i32>();
    assert!(rows.iter().enumerate().all(|(at, row)| texts.value(at) == format!("{:060000}", row.2)));
    assert!(job.budget().reserved_bytes_max() <= 24 << 20);
}

#[test]
fn a_description_names_the_columns_and_the_input() {
    let setup = Setup::new();
    let table = documents(&mut Random(9), Arc::new(UInt8Array::from_iter_values(0..240)));
    let path = write(&setup, "docs.parquet", &table);
    import(&setup, "docs", &path, (None, Some("doc"))).unwrap();
    let job = setup.job(MEMORY.0, MEMORY.1);
    let described = describe_lists(&setup.store, &job, "docs").unwrap();
    assert_eq!(described.imported_from, Some(ImportedFrom::Table));
    let text = described.to_string();
    assert!(text.contains("\n  imported from    a table\n"), "{text}");
    assert!(text.contains("\n  columns          title, year, doc, _row; doc has the ids\n"), "{text}");
    import(&setup, "others", &path, (None, None)).unwrap();
    let text = describe_lists(&setup.store, &job, "others").unwrap().to_string();
    assert!(text.contains("\n  columns          title, year, doc, _row\n"), "{text}");
    setup.import("v", &Made { element: Element::U8, dimensions: 1, values: vec![1.0] });
    let described = describe_lists(&setup.store, &job, "v").unwrap();
    assert_eq!((described.imported_from, described.columns.len()), (Some(ImportedFrom::Vectors), 0));
    assert_eq!(job.budget().reserved_bytes(), 0);
}

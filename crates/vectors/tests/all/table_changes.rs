//! Tests of changes to datasets of tables. Vectors and columns must change together, and answers must equal those of a
//! fresh import of the rows that are left.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use arrow_array::{
    ArrayRef, Date64Array, Decimal128Array, DurationMillisecondArray, Float32Array, Float64Array, Int64Array,
    RecordBatch, StringArray, TimestampSecondArray, UInt8Array,
    cast::AsArray,
    types::{Float32Type, Int64Type, UInt64Type},
};
use arrow_schema::{Field, Schema};
use arrow_select::concat::{concat, concat_batches};
use inshore_store::{Budget, Cancel, Device, History, Memory, Recording, Store, WriteFate, after_crash};
use inshore_tables::{Input, TableReader};
use inshore_vectors::{
    Changed, Element, Error, Result, Search, Vectors, add_table, columns_input, compact_vectors,
    remove_values, remove_vectors, upsert_table,
};

use crate::{
    support::{Made, Random, Setup},
    tables::{MEMORY, answer_to, batch, documents, import, lists, write},
};

/// The budgets and threads of changes and searches.
const BUDGETS: [(u64, usize); 3] = [(24 << 20, 1), (24 << 20, 4), (100 << 20, 2)];

fn add(setup: &Setup, name: &str, path: &PathBuf, memory: (u64, usize)) -> Result<Changed> {
    let job = setup.job(memory.0, memory.1);
    let changed = add_table(&setup.store, &job, name, &Input::new(path), None);
    assert_eq!(job.budget().reserved_bytes(), 0);
    assert!(job.budget().reserved_bytes_max() <= memory.0);
    changed
}

fn upsert(
    setup: &Setup,
    name: &str,
    path: &PathBuf,
    (ids, memory): (Option<&[u64]>, (u64, usize)),
) -> Result<Changed> {
    let job = setup.job(memory.0, memory.1);
    let changed = upsert_table(&setup.store, &job, name, &Input::new(path), (None, ids));
    assert_eq!(job.budget().reserved_bytes(), 0);
    assert!(job.budget().reserved_bytes_max() <= memory.0);
    changed
}

fn compact(setup: &Setup, name: &str, memory: (u64, usize)) -> u64 {
    let job = setup.job(memory.0, memory.1);
    let compacted = compact_vectors(&setup.store, &job, name).unwrap();
    assert_eq!(job.budget().reserved_bytes(), 0);
    assert!(job.budget().reserved_bytes_max() <= memory.0);
    compacted.freed
}

/// A table of 3,000 documents, and queries.
fn made() -> (RecordBatch, Made) {
    let mut random = Random(19);
    let made = Made::new(Element::U8, 8, 3000, || random.below(200) as f64);
    let bytes: ArrayRef = Arc::new(UInt8Array::from_iter_values(made.values.iter().map(|&x| x as u8)));
    let queries = Made { values: made.values[8 * 400..8 * 900].to_vec(), ..made };
    (documents(&mut random, bytes), queries)
}

/// Returns the rows `rows` of a table with the ids `ids`.
fn with_ids(rows: &RecordBatch, ids: ArrayRef) -> RecordBatch {
    let mut columns = rows.columns().to_vec();
    columns[rows.schema().index_of("doc").unwrap()] = ids;
    RecordBatch::try_new(rows.schema(), columns).unwrap()
}

fn joined(parts: &[RecordBatch]) -> RecordBatch {
    concat_batches(&parts[0].schema(), parts).unwrap()
}

/// Checks that the columns of two datasets have the same answers, in all budgets.
fn assert_same(setup: &Setup, names: [&str; 2], queries: &Made, select: &[&str]) {
    let search = Search { k: 20, ..Search::default() };
    let mut first = None;
    for (memory, threads) in BUDGETS {
        for name in names {
            let job = setup.job(memory, threads);
            let answer = answer_to(setup, name, (queries, &search), select, &job);
            assert!(job.budget().reserved_bytes_max() <= memory);
            assert_eq!(first.get_or_insert(answer.clone()), &answer, "{name} {memory} {threads}");
        }
    }
}

/// Checks that the rows of the columns have their numbers, and returns how many there are.
fn numbered_rows(setup: &Setup, name: &str) -> u64 {
    let job = setup.job(MEMORY.0, MEMORY.1);
    let vectors = Vectors::open(&setup.store, name).unwrap();
    let input = columns_input(&job, &vectors).unwrap();
    let mut reader = TableReader::open_stored(&input, None, &[], 1000, job.budget(), (0, 1)).unwrap();
    let mut row = 0;
    while let Some(batch) = reader.next_batch().unwrap() {
        for &number in batch.column_by_name("_row").unwrap().as_primitive::<UInt64Type>().values() {
            assert_eq!(number, row);
            row += 1;
        }
    }
    assert_eq!(row, vectors.info().vectors);
    row
}

#[test]
fn a_table_that_is_added_in_parts_answers_as_the_whole_table() {
    let (setup, (table, queries)) = (Setup::new(), made());
    for id in [None, Some("doc")] {
        let (whole, parts) = (format!("whole{}", id.is_some()), format!("parts{}", id.is_some()));
        import(&setup, &whole, &write(&setup, "whole.parquet", &table), (None, id)).unwrap();
        import(&setup, &parts, &write(&setup, "first.parquet", &table.slice(0, 900)), (None, id)).unwrap();
        for (number, (name, start, rows)) in
            [("a.arrow", 900, 1), ("b.parquet", 901, 1600), ("c.arrow", 2501, 499)].into_iter().enumerate()
        {
            // The columns of the added table are in another order.
            let part = table.slice(start, rows).project(&[3, 1, 0, 2]).unwrap();
            let changed = add(&setup, &parts, &write(&setup, name, &part), BUDGETS[number]).unwrap();
            let first_id = id.is_none().then_some(start as u64);
            assert_eq!((changed.added, changed.first_id), (rows as u64, first_id));
        }
        assert_same(&setup, [&whole, &parts], &queries, &["year", "title", "doc", "_row"]);
        assert_eq!(numbered_rows(&setup, &parts), 3000);
        assert_eq!(compact(&setup, &parts, MEMORY), 0);
    }
}

#[test]
fn rows_are_replaced_by_the_column_of_ids() {
    let (setup, (table, queries)) = (Setup::new(), made());
    let doc = table.column_by_name("doc").unwrap();
    let ids = concat(&[&doc.slice(500, 300), &doc.slice(1000, 200)]).unwrap();
    let new = with_ids(&table.slice(1500, 500), ids);
    let left = joined(&[table.slice(0, 500), table.slice(800, 200), new.clone()]);
    import(&setup, "left", &write(&setup, "left.parquet", &left), (None, Some("doc"))).unwrap();
    let [base, new] = [("base.parquet", table.slice(0, 1000)), ("new.arrow", new)]
        .map(|part| write(&setup, part.0, &part.1));
    for (number, memory) in BUDGETS.into_iter().enumerate() {
        let name = format!("docs{number}");
        import(&setup, &name, &base, (None, Some("doc"))).unwrap();
        let changed = upsert(&setup, &name, &new, (None, memory)).unwrap();
        assert_eq!((changed.replaced, changed.added, changed.first_id), (300, 200, None));
        assert_same(&setup, ["left", &name], &queries, &["year", "title", "doc"]);
        assert_eq!(numbered_rows(&setup, &name), 1500);
        // The same rows once more have the same answers, and the ids of rows that were replaced stay unique.
        assert_eq!(upsert(&setup, &name, &new, (None, memory)).unwrap().replaced, 500);
        assert_same(&setup, ["left", &name], &queries, &["year", "title", "doc"]);
        assert_eq!(compact(&setup, &name, memory), 800);
        assert_same(&setup, ["left", &name], &queries, &["year", "title", "doc", "_row"]);
        assert_eq!(numbered_rows(&setup, &name), 1200);
        // The rows that a compaction moved are replaced, too.
        assert_eq!(upsert(&setup, &name, &new, (None, memory)).unwrap().replaced, 500);
        assert_same(&setup, ["left", &name], &queries, &["year", "title", "doc"]);
    }
}

#[test]
fn rows_are_removed_by_the_column_of_ids_and_their_ids_are_free_again() {
    let (setup, (table, queries)) = (Setup::new(), made());
    let whole = table.slice(0, 1000);
    import(&setup, "docs", &write(&setup, "docs.parquet", &whole), (None, Some("doc"))).unwrap();
    let doc = whole.column_by_name("doc").unwrap().as_string::<i32>();
    let gone: Vec<String> = (600..700).map(|row| doc.value(row).to_string()).collect();
    let remove = |name: &str, values: &[String]| {
        let job = setup.job(24 << 20, 1);
        let changed = remove_values(&setup.store, &job, name, values);
        assert_eq!(job.budget().reserved_bytes(), 0);
        changed.map(|changed| (changed.taken, changed.absent))
    };
    assert_eq!(remove("docs", &gone).unwrap(), (100, 0));
    assert_eq!(remove("docs", &gone[3..]).unwrap(), (0, 97));
    let left = joined(&[table.slice(0, 600), table.slice(700, 300)]);
    import(&setup, "left", &write(&setup, "left.parquet", &left), (None, Some("doc"))).unwrap();
    let select = ["year", "title", "doc"];
    assert_same(&setup, ["left", "docs"], &queries, &select);
    let refused = |name: &str, values: &[&str], expected: &str| {
        let values: Vec<String> = values.iter().map(|value| (*value).to_string()).collect();
        let error = remove(name, &values).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused("docs", &["doc-0", "none"], "ids is \"none\": expected values of the column 'doc' of docs");
    refused("docs", &["a", "a"], "ids is \"a\" twice");
    refused("docs", &[], "ids is none");
    let job = setup.job(24 << 20, 1);
    let error = remove_vectors(&setup.store, &job, "docs", &[1]).unwrap_err().to_string();
    assert!(error.contains("docs: ids: found the values of a column"), "{error}");
    // Ids of removed vectors are added again, before and after a compaction.
    let again = |rows| write(&setup, "again.parquet", &table.slice(rows, 50));
    assert_eq!(add(&setup, "docs", &again(600), MEMORY).unwrap().added, 50);
    assert_eq!(remove("docs", &gone[..60]).unwrap(), (50, 10));
    assert_eq!(compact(&setup, "docs", MEMORY), 150);
    refused("docs", &[&gone[0]], "expected values of the column");
    assert_same(&setup, ["left", "docs"], &queries, &select);
    for name in ["left", "docs"] {
        assert_eq!(upsert(&setup, name, &again(650), (None, MEMORY)).unwrap().added, 50);
    }
    assert_same(&setup, ["left", "docs"], &queries, &select);
    // Ids that are whole numbers are compared as text.
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..10).map(|row| row - 5)));
    let some = batch(vec![("v", lists(Arc::new(UInt8Array::from(vec![1; 20])), 2)), ("n", numbers)]);
    import(&setup, "numbers", &write(&setup, "n.parquet", &some), (None, Some("n"))).unwrap();
    assert_eq!(remove("numbers", &["-5", "0", "4"].map(String::from)).unwrap(), (3, 0));
    refused("numbers", &["5"], "ids is \"5\"");
    setup.import("plain", &Made::new(Element::U8, 8, 10, || 1.0));
    refused("plain", &["1"], "plain: column of ids: found none");
}

#[test]
fn rows_are_replaced_and_removed_by_their_numbers() {
    let (setup, (table, queries)) = (Setup::new(), made());
    let new = table.slice(1500, 500);
    let left = joined(&[table.slice(0, 500), new.slice(0, 300), table.slice(800, 200), new.slice(300, 200)]);
    import(&setup, "left", &write(&setup, "left.parquet", &left), (None, None)).unwrap();
    import(&setup, "docs", &write(&setup, "base.parquet", &table.slice(0, 1000)), (None, None)).unwrap();
    let ids: Vec<u64> = (500..800).chain(1000..1200).collect();
    let path = write(&setup, "new.parquet", &new);
    let changed = upsert(&setup, "docs", &path, (Some(&ids), MEMORY)).unwrap();
    assert_eq!((changed.replaced, changed.added, changed.info.next_id), (300, 200, 1200));
    let select = ["year", "title", "doc"];
    assert_same(&setup, ["left", "docs"], &queries, &select);
    let gone: Vec<u64> = (0..1200).filter(|id| id % 7 == 3).collect();
    for name in ["left", "docs"] {
        let job = setup.job(MEMORY.0, MEMORY.1);
        remove_vectors(&setup.store, &job, name, &gone).unwrap();
    }
    assert_same(&setup, ["left", "docs"], &queries, &select);
    assert_eq!(compact(&setup, "docs", BUDGETS[0]), 300 + gone.len() as u64);
    assert_same(&setup, ["left", "docs"], &queries, &select);
    assert_eq!(numbered_rows(&setup, "docs"), 1200 - gone.len() as u64);
    // The datasets grow by the same rows after one of them was compacted. The new ids must be equal.
    for name in ["left", "docs"] {
        let path = write(&setup, "more.parquet", &table.slice(2000, 700));
        assert_eq!(add(&setup, name, &path, MEMORY).unwrap().first_id, Some(1200));
    }
    assert_same(&setup, ["left", "docs"], &queries, &select);
    let refused = |ids: Option<&[u64]>, expected: &str| {
        let before = Vectors::open(&setup.store, "docs").unwrap().info().clone();
        let error = upsert(&setup, "docs", &path, (ids, MEMORY)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(Vectors::open(&setup.store, "docs").unwrap().info(), &before);
    };
    refused(None, "ids is none: expected the id of each row of the table");
    refused(Some(&ids[1..]), "ids is 499 ids: expected one for each of the 500 rows");
    refused(Some(&[1, 1]), "ids is 1 twice");
}

#[test]
fn columns_of_all_types_are_added() {
    let setup = Setup::new();
    let rows = |start: i64| {
        let text = |row: i64| (row % 3 > 0).then(|| format!("{row}"));
        let numbers = || start..start + 50;
        batch(vec![
            ("v", lists(Arc::new(Float32Array::from_iter_values((0..100).map(|x| x as f32))), 2)),
            ("date", Arc::new(Date64Array::from_iter_values(numbers().map(|row| row * 86_400_000)))),
            ("time", Arc::new(TimestampSecondArray::from_iter_values(numbers()))),
            (
                "price",
                Arc::new(
                    Decimal128Array::from_iter_values(numbers().map(i128::from))
                        .with_precision_and_scale(20, 2)
                        .unwrap(),
                ),
            ),
            ("text", Arc::new(numbers().map(text).collect::<StringArray>())),
            ("null", arrow_array::new_null_array(&arrow_schema::DataType::Null, 50)),
        ])
    };
    let lasting = |table: &RecordBatch, start: i64| {
        let column: ArrayRef = Arc::new(DurationMillisecondArray::from_iter_values(start..start + 50));
        let field = Arc::new(Field::new("lasts", column.data_type().clone(), true));
        let fields: Vec<_> = table.schema().fields().iter().cloned().chain([field]).collect();
        let columns = table.columns().iter().cloned().chain([column]).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    };
    let queries = Made::new(Element::F32, 2, 1, || 3.0);
    for is_lasting in [false, true] {
        let part = |start: i64| if is_lasting { lasting(&rows(start), start) } else { rows(start) };
        let (whole, parts) = (format!("whole{is_lasting}"), format!("parts{is_lasting}"));
        let path = |name: &str, table: &RecordBatch| write(&setup, &format!("{name}.arrow"), table);
        import(&setup, &whole, &path("whole", &joined(&[part(0), part(50)])), (None, None)).unwrap();
        import(&setup, &parts, &path("part", &part(0)), (None, None)).unwrap();
        add(&setup, &parts, &path("part", &part(50)), MEMORY).unwrap();
        let columns = ["date", "time", "price", "text", "null", "lasts"];
        assert_same(&setup, [&whole, &parts], &queries, &columns[..5 + usize::from(is_lasting)]);
    }
}

#[test]
fn a_table_with_other_columns_or_ids_is_refused_by_name_and_changes_nothing() {
    let (setup, mut random) = (Setup::new(), Random(23));
    let bytes = |count: usize| -> ArrayRef { Arc::new(UInt8Array::from(vec![7; 8 * count])) };
    let table = documents(&mut random, bytes(500));
    import(&setup, "docs", &write(&setup, "docs.parquet", &table), (None, Some("doc"))).unwrap();
    let before = Vectors::open(&setup.store, "docs").unwrap().info().clone();
    let unchanged = || assert_eq!(Vectors::open(&setup.store, "docs").unwrap().info(), &before);
    let refused_by_upsert = |table: &RecordBatch, expected: &str| {
        let path = write(&setup, "bad.parquet", table);
        let error = upsert(&setup, "docs", &path, (None, MEMORY)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        unchanged();
    };
    let refused = |table: &RecordBatch, expected: &str| {
        let error =
            add(&setup, "docs", &write(&setup, "bad.parquet", table), MEMORY).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        unchanged();
        refused_by_upsert(table, expected);
    };
    let years: ArrayRef = Arc::new(Int64Array::from(vec![2000, 2001]));
    let texts = |some: [&str; 2]| -> ArrayRef { Arc::new(StringArray::from(some.to_vec())) };
    let made = |year: (&'static str, ArrayRef), ids: [&str; 2]| {
        batch(vec![("v", lists(bytes(2), 8)), ("title", texts(["a", "b"])), ("doc", texts(ids)), year])
    };
    let good = made(("year", years.clone()), ["x", "y"]);
    let with_more = |name: &'static str| {
        let names = ["v", "title", "doc", "year"];
        let columns = names.map(|name| (name, good.column_by_name(name).unwrap().clone()));
        batch(columns.into_iter().chain([(name, years.clone())]).collect())
    };
    refused(
        &made(("yeer", years.clone()), ["x", "y"]),
        "column 'year': found no such column, or a nested one, expected Int64, as in docs",
    );
    refused(
        &made(("year", texts(["1", "2"])), ["x", "y"]),
        "column 'year': found Utf8, expected Int64, as in docs",
    );
    refused(
        &with_more("pages"),
        "column 'pages': found a column that docs does not have, expected only its columns: title, year, doc",
    );
    refused(&good.project(&[0, 1, 3]).unwrap(), "doc");
    refused(&made(("year", years.clone()), ["x", "x"]), "rows 0 and 1, column 'doc': found \"x\" twice");
    let nulls: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None]));
    refused(&with_ids(&good, nulls), "row 1, column 'doc'");
    // The dataset has one of the ids, and the table has this id twice.
    refused_by_upsert(&made(("year", years.clone()), ["doc-0", "doc-0"]), "rows 0 and 1, column 'doc'");
    let error = add(
        &setup,
        "docs",
        &write(&setup, "known.parquet", &made(("year", years.clone()), ["x", "doc-0"])),
        MEMORY,
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("row 1, column 'doc': found \"doc-0\", expected an id that no vector of docs has"),
        "{error}"
    );
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0; 16]));
    let mut columns = good.columns().to_vec();
    columns[0] = lists(floats, 8);
    let names = ["v", "title", "doc", "year"];
    let other = batch(names.into_iter().zip(columns).collect());
    refused(&other, "row 0, column 'v': found 8 f32, expected 8 u8, as the vectors of docs");
    let good = write(&setup, "good.parquet", &good);
    let error = upsert(&setup, "docs", &good, (Some(&[1, 2]), MEMORY)).unwrap_err().to_string();
    assert!(
        error.contains("ids is given: expected none: the column 'doc' of the table has the ids"),
        "{error}"
    );
    // The first change has too little memory, and the second one belongs to a job that is cancelled.
    let error = add(&setup, "docs", &good, (2 << 20, 1)).unwrap_err();
    assert!(matches!(error, Error::Store(inshore_store::Error::BudgetTooSmall { .. })), "{error}");
    let cancel = Cancel::default();
    let job = setup.store.job(Budget::new(MEMORY.0, 1), cancel.clone()).unwrap();
    cancel.cancel();
    let error = add_table(&setup.store, &job, "docs", &Input::new(&good), None).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    unchanged();
    assert_eq!(add(&setup, "docs", &good, MEMORY).unwrap().added, 2);
    // Vectors of a file have no columns.
    setup.import("plain", &Made::new(Element::U8, 8, 10, || 1.0));
    let error = add(&setup, "plain", &good, MEMORY).unwrap_err().to_string();
    assert!(error.contains("plain: columns: found none"), "{error}");
}

#[test]
fn jobs_that_add_tables_at_the_same_time_lose_nothing() {
    let (setup, (table, _)) = (Setup::new(), made());
    import(&setup, "docs", &write(&setup, "first.parquet", &table.slice(0, 100)), (None, None)).unwrap();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let path = write(&setup, &format!("{number}.parquet"), &table.slice(100 + 50 * number, 50));
            let folder = setup.folder.path();
            scope.spawn(move || {
                // A second store object stands for another process.
                let store = Store::open(folder.join("store")).unwrap();
                let job = store.job(Budget::new(24 << 20, 1), Cancel::default()).unwrap();
                let input = Input::new(&path);
                loop {
                    match add_table(&store, &job, "docs", &input, None) {
                        Ok(changed) => break assert_eq!(changed.added, 50),
                        Err(Error::Store(inshore_store::Error::Changed { .. })) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(numbered_rows(&setup, "docs"), 300);
    let zero = Made::new(Element::U8, 8, 1, || 0.0);
    let search = Search { k: 300, ..Search::default() };
    let job = setup.job(MEMORY.0, 1);
    // The columns of each vector are those of its row in the table.
    import(&setup, "whole", &write(&setup, "whole.parquet", &table.slice(0, 300)), (None, Some("doc")))
        .unwrap();
    let of = |name: &str| {
        let answer = answer_to(&setup, name, (&zero, &search), &["year", "doc"], &job);
        let (distances, years) = (answer.column(3).as_primitive::<Float32Type>(), answer.column(4));
        let (years, docs) = (years.as_primitive::<Int64Type>(), answer.column(5).as_string::<i32>());
        let row = |row| (docs.value(row).to_string(), years.value(row), distances.value(row).to_bits());
        (0..answer.num_rows()).map(row).collect::<BTreeSet<_>>()
    };
    assert_eq!((of("docs").len(), of("docs")), (300, of("whole")));
}

/// Returns the columns of all vectors, in the order of their ids.
fn content(setup: &Setup) -> Option<RecordBatch> {
    match Vectors::open(&setup.store, "docs") {
        Err(Error::Store(inshore_store::Error::NotFound { .. })) => return None,
        opened => drop(opened.unwrap()),
    }
    let zero = Made::new(Element::U8, 8, 1, || 0.0);
    let search = Search { k: 1 << 20, ..Search::default() };
    let job = setup.job(MEMORY.0, 1);
    Some(answer_to(setup, "docs", (&zero, &search), &["year", "title"], &job))
}

#[test]
fn every_crash_leaves_vectors_and_columns_of_one_state() {
    const EXTENTS: u32 = 300;
    let history = History::default();
    let device: Arc<dyn Device> = Arc::new(Recording::new(Arc::new(Memory::new(EXTENTS)), 0, &history));
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_on(folder.path(), vec![device]).unwrap();
    let setup = Setup { folder, store };
    let len = || history.lock().unwrap().len();
    let (table, _) = made();
    let doc = table.column_by_name("doc").unwrap();
    let file = |rows: RecordBatch| write(&setup, "rows.parquet", &rows);
    // Each state has the length of the history before and after the change that led to it.
    let mut states = vec![(0, len(), None)];
    for step in 0..7 {
        let before = len();
        match step {
            0 => drop(import(&setup, "docs", &file(table.slice(0, 50)), (None, Some("doc"))).unwrap()),
            1 | 4 => {
                let path = file(table.slice(50 + 30 * step, 30));
                assert_eq!(add(&setup, "docs", &path, MEMORY).unwrap().added, 30);
            }
            2 | 5 => {
                let rows = with_ids(&table.slice(500 * step, 9), doc.slice(45, 9));
                assert_eq!(
                    upsert(&setup, "docs", &file(rows), (None, MEMORY)).unwrap().replaced,
                    [5, 9][step / 4]
                );
            }
            _ => assert_eq!(compact(&setup, "docs", MEMORY), [5, 9][step / 4]),
        }
        let after = len();
        states.push((before, after, content(&setup)));
    }
    let history = history.lock().unwrap().clone();
    let blank = [Memory::new(EXTENTS)];
    for end in 0..=history.len() {
        for fate in [WriteFate::Kept, WriteFate::Lost] {
            let left = after_crash(&history[..end], &blank, |_| fate);
            let left = left.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open_on(folder.path(), left).unwrap();
            let setup = Setup { folder, store };
            let last = states.iter().rposition(|(_, after, _)| *after <= end).unwrap_or(0);
            let found = content(&setup);
            let mut possible = states[last..].iter().filter(|(before, ..)| *before <= end);
            assert!(possible.any(|state| state.2 == found), "crash after {end}, {fate:?}: {found:?}");
            if let (Some(found), 0) = (found, end % 7) {
                // The recovered dataset accepts further changes.
                let path = write(&setup, "more.parquet", &table.slice(2900, 2));
                assert_eq!(add(&setup, "docs", &path, MEMORY).unwrap().added, 2);
                assert_eq!(content(&setup).unwrap().num_rows(), found.num_rows() + 2);
                numbered_rows(&setup, "docs");
            }
        }
    }
    assert!(history.len() > 50, "{} operations", history.len());
}

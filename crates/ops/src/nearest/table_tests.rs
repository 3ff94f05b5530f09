//! Tests of vectors on nodes that were imported from a table: predicates, ids, and columns in answers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    FixedSizeListArray, Float64Array, Int32Array, Int64Array, LargeStringArray, ListArray, RecordBatch,
    StringArray, TimestampMicrosecondArray, UInt8Array,
    types::{Float32Type, Int32Type},
};
use arrow_schema::{DataType, Field};
use arrow_select::concat::concat_batches;
use inshore_nodes::{RunOptions, stream_from_nodes};
use inshore_store::{Budget, Cancel, Execution, Job};
use inshore_tables::Input;
use inshore_vectors::{
    AnswerColumns, Approximate, Element, Index, Metric, RowSet, Search, TableColumns, VectorFile, Vectors,
    import_table, search,
};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};

use super::{
    ColumnsOfAnswer, IndexOnNodes, KIND, SearchForm, SearchedOnNodes, SelectedOnNodes, describe_on_nodes,
    import_table_on_nodes, remove_on_nodes, search_lists_on_nodes, search_on_nodes, select_on_nodes,
    tests::{Cluster, Row, build, clustered, local, numbers, on_nodes, options_of, rows_of},
};
use crate::error::Result;

/// The number of rows of [`table`].
const ROWS: usize = 6000;

fn years() -> Vec<i32> {
    numbers(30, 21).take(ROWS).map(|year| 2000 + year as i32).collect()
}

/// Writes columns as a table.
fn write(cluster: &Cluster, columns: Vec<(&str, ArrayRef)>) -> PathBuf {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = cluster.path("table.parquet");
    let mut writer = ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

/// Returns vectors of 8 bytes as a column of lists.
fn lists(bytes: Vec<u8>) -> ArrayRef {
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    Arc::new(FixedSizeListArray::new(item, 8, Arc::new(UInt8Array::from(bytes)), None))
}

/// Writes the vectors of [`clustered`] as a table. The column `year` has the values of [`years`], and `name` is `item `
/// and the row number, or null for each seventh row. The column `key` descends from 6,000 to 1.
fn table(cluster: &Cluster) -> (PathBuf, VectorFile) {
    let (file, queries) = clustered(cluster, Element::U8);
    let names = (0..ROWS).map(|row| (row % 7 != 0).then(|| format!("item {row}")));
    let keys = (0..ROWS as i64).map(|row| ROWS as i64 - row);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("year", Arc::new(Int32Array::from(years()))),
        ("embedding", lists(fs::read(file.path()).unwrap()[8..].to_vec())),
        ("name", Arc::new(StringArray::from_iter(names))),
        ("key", Arc::new(Int64Array::from_iter_values(keys))),
    ];
    (write(cluster, columns), queries)
}

fn job_of(cluster: &Cluster, memory_bytes: u64) -> Job {
    cluster.store().job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap()
}

fn job(cluster: &Cluster) -> Job {
    job_of(cluster, 64 << 20)
}

fn load(cluster: &Cluster, path: &Path, copies: u8, piece_bytes: u64) -> Result<()> {
    load_with_ids(cluster, path, None, (copies, piece_bytes))
}

fn load_with_ids(
    cluster: &Cluster,
    path: &Path,
    id: Option<&str>,
    (copies, piece_bytes): (u8, u64),
) -> Result<()> {
    let (job, input) = (job_of(cluster, 32 << 20), Input::new(path));
    let columns = TableColumns { vectors: None, id: id.map(str::to_string) };
    let placed = (copies, Some(piece_bytes));
    let imported = import_table_on_nodes(&cluster.on, &job, "points", (&input, &columns), placed);
    assert_eq!(job.budget().reserved_bytes(), 0);
    imported.map(drop)
}

/// Checks that all memory of a job was freed.
fn check_memory(job: &Job) {
    assert_eq!(job.budget().reserved_bytes(), 0);
}

/// Imports a table into the local store.
fn import_here(job: &Job, path: &Path, id: Option<&str>) -> Vectors {
    let columns = TableColumns { vectors: None, id: id.map(str::to_string) };
    import_table(&job.store(), job, "points", &Input::new(path), &columns).unwrap();
    Vectors::open(&job.store(), "points").unwrap()
}

/// Returns the answer of a search among the vectors for which `predicate` is true, and its statistics.
fn filtered(
    cluster: &Cluster,
    predicate: &str,
    queries: &VectorFile,
    options: &Search,
    approximate: Option<&Approximate>,
) -> Result<(Vec<Row>, SearchedOnNodes)> {
    // The client has the smallest memory that the guide names.
    let (job, vectors) = (job_of(cluster, 24 << 20), cluster.find());
    let execution = Execution::Stored(job.clone());
    let selection = SelectedOnNodes::new(job.budget(), select_on_nodes(&vectors, &job, predicate)?)?;
    let form = SearchForm { selection: Some(&selection), asks_nodes: false };
    let mut rows = Vec::new();
    let mut each = |batch: RecordBatch| {
        rows.extend(rows_of(&batch));
        Ok(())
    };
    let found = match approximate {
        None => search_on_nodes(&vectors, &execution, queries, (options, &form), &mut each),
        Some(approximate) => {
            let index = IndexOnNodes::find(&vectors, &execution)?.expect("an index");
            let how = (options, &form, approximate);
            search_lists_on_nodes(&vectors, &index, &execution, queries, how, &mut each)
        }
    };
    drop(selection);
    check_memory(&job);
    found.map(|(searched, _)| (rows, searched))
}

/// Returns the answer of a search in the local store, with ids and the columns `selected`.
fn with_columns_here(
    job: &Job,
    vectors: &Vectors,
    queries: &VectorFile,
    options: &Search,
    selected: &[String],
) -> RecordBatch {
    let mut columns = AnswerColumns::open(job, vectors, selected).unwrap().expect("columns");
    let (schema, mut batches) = (columns.schema().clone(), Vec::new());
    let mut keep = |batch| {
        batches.push(batch);
        Ok(())
    };
    search(job, vectors, queries, options, &mut |batch| columns.add(batch, &mut keep)).unwrap();
    columns.finish(&mut keep).unwrap();
    concat_batches(&schema, &batches).unwrap()
}

/// Returns the answer of a search on nodes, with ids and the columns `selected`.
fn with_columns(
    cluster: &Cluster,
    memory_bytes: u64,
    queries: &VectorFile,
    options: &Search,
    selected: &[String],
) -> Result<RecordBatch> {
    let (job, vectors) = (job_of(cluster, memory_bytes), cluster.find());
    let mut columns = ColumnsOfAnswer::open(&vectors, &job, selected)?;
    let (schema, mut batches) = (columns.schema().clone(), Vec::new());
    let mut keep = |batch| {
        batches.push(batch);
        Ok(())
    };
    let (execution, form) =
        (Execution::Stored(job.clone()), SearchForm { selection: None, asks_nodes: true });
    search_on_nodes(&vectors, &execution, queries, (options, &form), &mut |batch| {
        columns.add(batch, &mut keep).map_err(|error| inshore_vectors::Error::Rows(error.into()))
    })?;
    columns.finish(&mut keep)?;
    drop(columns);
    check_memory(&job);
    Ok(concat_batches(&schema, &batches).unwrap())
}

#[test]
fn answers_among_selected_vectors_equal_those_of_one_store_on_any_number_of_nodes() {
    let mut first: Option<Vec<Vec<Row>>> = None;
    for (nodes, copies, piece_bytes) in [(1, 1, 1 << 20), (2, 1, 10_000), (3, 2, 5_000)] {
        let cluster = Cluster::new(nodes);
        let (path, queries) = table(&cluster);
        load(&cluster, &path, copies, piece_bytes).unwrap();
        let here = job(&cluster);
        let vectors = import_here(&here, &path, None);
        let near = options_of(Metric::L2, 10);
        let all_rows = on_nodes(&cluster.find(), 64 << 20, &queries, &near).unwrap().0;
        assert!(all_rows == local(&here, &vectors, &queries, &near));
        let years = years();
        let is_named = |row: usize| !row.is_multiple_of(7);
        type Selects<'a> = Box<dyn Fn(usize) -> bool + 'a>;
        let cases: [(&str, Selects<'_>); 6] = [
            ("year < 2010", Box::new(|row| years[row] < 2010)),
            (
                "points.year = 2003 AND name IS NOT NULL -- a comment",
                Box::new(|row| years[row] == 2003 && is_named(row)),
            ),
            ("name IN ('item 5', 'item 4321')", Box::new(|row| row == 5 || row == 4321)),
            ("_row % 2 = 1 OR name = 'item 2'", Box::new(|row| row % 2 == 1 || row == 2)),
            ("year = (SELECT max(year) FROM points)", Box::new(|row| years[row] == 2029)),
            ("year > 3000", Box::new(|_| false)),
        ];
        build(&cluster, &Index { lists: Some(60), seed: 5, ..Index::default() }).unwrap();
        let mut found = Vec::new();
        for (predicate, selects) in &cases {
            let mut selected = RowSet::empty(here.budget(), ROWS as u64).unwrap();
            (0..ROWS).filter(|&row| selects(row)).for_each(|row| selected.insert(row as u64));
            let count = selected.count();
            let options = Search { selection: Some(Arc::new(selected)), ..near.clone() };
            let expected = local(&here, &vectors, &queries, &options);
            let (rows, searched) = filtered(&cluster, predicate, &queries, &near, None).unwrap();
            assert!(rows == expected, "{predicate} on {nodes} nodes");
            assert_eq!((searched.selected, searched.is_sparse), (Some(count), count < 60), "{predicate}");
            // The radius leaves fewer neighbours than k.
            let within = Search { radius: Some(40.0), ..near.clone() };
            let expected_within = local(&here, &vectors, &queries, &Search { radius: Some(40.0), ..options });
            let (rows, _) = filtered(&cluster, predicate, &queries, &within, None).unwrap();
            assert!(rows == expected_within, "{predicate} within a radius on {nodes} nodes");
            // All lists together have all selected vectors, so the answer is exact.
            let all = Approximate { recall: 0.9, probes: Some(60), strategy: None };
            for (options, expected) in [(&near, &expected), (&within, &expected_within)] {
                let (rows, _) = filtered(&cluster, predicate, &queries, options, Some(&all)).unwrap();
                assert!(rows == *expected, "{predicate} on {nodes} nodes, by all lists");
            }
            // A query whose lists have too few selected vectors is compared with all, so it has k neighbours.
            let one = Approximate { probes: Some(1), ..all };
            let (rows, searched) = filtered(&cluster, predicate, &queries, &near, Some(&one)).unwrap();
            assert_eq!(rows.len(), expected.len(), "{predicate}");
            if (1..150).contains(&count) {
                assert!(searched.exhaustive > Some(0), "{predicate}: {searched:?}");
            }
            let by_recall = Approximate { probes: None, ..all };
            let (approximate, searched) =
                filtered(&cluster, predicate, &queries, &near, Some(&by_recall)).unwrap();
            let is_found = |row: &&Row| approximate.iter().any(|other| (other.0, other.2) == (row.0, row.2));
            let recall = expected.iter().filter(is_found).count() as f64 / expected.len().max(1) as f64;
            assert!(expected.is_empty() || recall > 0.85, "{predicate}: {recall}");
            // A part of the vectors needs more lists.
            let table = describe_on_nodes(&cluster.on, "points").unwrap().index.unwrap().recall;
            let probed = searched.approximate.unwrap();
            let among_all = table.probes_for(0.9, probed.lists);
            assert!(probed.probes > among_all || probed.probes == probed.lists, "{predicate}: {probed:?}");
            found.extend([rows, approximate]);
        }
        match &first {
            None => first = Some(found),
            Some(first) => assert!(*first == found, "{nodes} nodes"),
        }
    }
}

#[test]
fn ids_and_columns_of_answers_equal_those_of_one_store() {
    for (id, nodes) in [(None, 3), (Some("key"), 2), (Some("key"), 1)] {
        let cluster = Cluster::new(nodes);
        let (path, queries) = table(&cluster);
        load_with_ids(&cluster, &path, id, (1, 5_000)).unwrap();
        let here = job(&cluster);
        let vectors = import_here(&here, &path, id);
        // The answer has several times the rows of one query for columns.
        let near = options_of(Metric::L2, 200);
        let selected = ["name", "_row", "year", "key"].map(str::to_string);
        for selected in [&selected[..], &[][..]].iter().filter(|names| id.is_some() || !names.is_empty()) {
            let expected = with_columns_here(&here, &vectors, &queries, &near, selected);
            assert!(expected.num_rows() > 2 * 4096);
            for memory_bytes in [24 << 20, 256 << 20] {
                let found = with_columns(&cluster, memory_bytes, &queries, &near, selected).unwrap();
                assert!(found == expected, "ids {id:?} on {nodes} nodes, columns {selected:?}");
            }
        }
        let selected = ["title".to_string()];
        let error = with_columns(&cluster, 64 << 20, &queries, &near, &selected).unwrap_err().to_string();
        assert!(error.contains("no column 'title'; the columns are year, name, key, _row"), "{error}");
        for (predicate, expected) in [("title = 3", "title"), ("year >", "not valid SQL"), ("year", "")] {
            let error = filtered(&cluster, predicate, &queries, &near, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[test]
fn columns_of_all_types_arrive_as_they_were_imported() {
    let cluster = Cluster::new(2);
    let (file, queries) = clustered(&cluster, Element::U8);
    let rows = 500;
    let some = |row: usize| (row % 5 != 2).then_some(row);
    let values = || (0..rows).map(some);
    let words = StringArray::from_iter(values().map(|row| row.map(|row| format!("w{}", row % 9))));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("vectors", lists(fs::read(file.path()).unwrap()[8..][..rows * 8].to_vec())),
        ("truth", Arc::new(BooleanArray::from_iter(values().map(|row| row.map(|row| row % 3 == 0))))),
        ("float", Arc::new(Float64Array::from_iter(values().map(|row| row.map(|row| row as f64 / 3.0))))),
        ("day", Arc::new(Date32Array::from_iter(values().map(|row| row.map(|row| row as i32))))),
        (
            "time",
            Arc::new(
                TimestampMicrosecondArray::from_iter(values().map(|row| row.map(|row| row as i64)))
                    .with_timezone("UTC"),
            ),
        ),
        (
            "money",
            Arc::new(
                Decimal128Array::from_iter(values().map(|row| row.map(|row| row as i128 * 7)))
                    .with_precision_and_scale(12, 2)
                    .unwrap(),
            ),
        ),
        ("bytes", Arc::new(BinaryArray::from_iter(values().map(|row| row.map(|row| [row as u8, 255]))))),
        (
            "large",
            Arc::new(LargeStringArray::from_iter(values().map(|row| row.map(|row| format!("large {row}"))))),
        ),
        ("word", Arc::new(words.iter().collect::<DictionaryArray<Int32Type>>())),
        (
            "Two Words \"quoted\"",
            Arc::new(Int32Array::from_iter(values().map(|row| row.map(|row| row as i32)))),
        ),
    ];
    let selected: Vec<String> = columns[1..].iter().map(|(name, _)| name.to_string()).collect();
    let path = write(&cluster, columns);
    load(&cluster, &path, 1, 1_000).unwrap();
    let here = job(&cluster);
    let vectors = import_here(&here, &path, None);
    let near = options_of(Metric::L2, 30);
    let expected = with_columns_here(&here, &vectors, &queries, &near, &selected);
    let found = with_columns(&cluster, 64 << 20, &queries, &near, &selected).unwrap();
    for (found, expected) in found.schema().fields().iter().zip(expected.schema().fields()) {
        assert_eq!(found, expected);
    }
    assert!(found == expected);
    for (predicate, count) in [
        (
            "word = 'w3' AND truth",
            (0..rows).filter_map(some).filter(|row| row % 9 == 3 && row % 3 == 0).count(),
        ),
        ("\"Two Words \"\"quoted\"\"\" < 20", (0..20).filter_map(some).count()),
        ("large LIKE 'large 1%' AND day < DATE '1970-01-15'", 4),
    ] {
        let (_, searched) = filtered(&cluster, predicate, &queries, &near, None).unwrap();
        assert_eq!(searched.selected, Some(count as u64), "{predicate}");
    }
}

#[test]
fn values_that_do_not_fit_into_the_memory_come_in_parts_or_are_refused_by_row() {
    let cluster = Cluster::new(2);
    let (file, queries) = clustered(&cluster, Element::U8);
    let bytes = fs::read(file.path()).unwrap()[8..][..40 * 8].to_vec();
    let load_texts = |text: &dyn Fn(usize) -> String| {
        let texts = StringArray::from_iter_values((0..40).map(text));
        let path = write(&cluster, vec![("vectors", lists(bytes.clone())), ("text", Arc::new(texts))]);
        load(&cluster, &path, 1, 100).unwrap();
        path
    };
    let selected = ["text".to_string()];
    // The values of one query have at most 1 MiB, a quarter of an eighth of the budget.
    let path = load_texts(&|row| format!("{row} ").repeat(20_000));
    let here = job(&cluster);
    let vectors = import_here(&here, &path, None);
    let near = options_of(Metric::L2, 5);
    let expected = with_columns_here(&here, &vectors, &queries, &near, &selected);
    let texts = expected.column(4).get_array_memory_size();
    assert!(texts > 8 << 20, "{texts} bytes");
    assert!(with_columns(&cluster, 32 << 20, &queries, &near, &selected).unwrap() == expected);
    remove_on_nodes(&cluster.on, "points").unwrap();
    load_texts(&|row| "x".repeat(if row == 7 { 2 << 20 } else { 10 }));
    let near = options_of(Metric::L2, 40);
    let error = with_columns(&cluster, 32 << 20, &queries, &near, &selected).unwrap_err().to_string();
    assert!(error.contains("in row 7, expected less, or more --memory"), "{error}");
}

#[test]
fn columns_are_removed_with_their_vectors_and_others_are_refused() {
    let cluster = Cluster::new(2);
    let (path, queries) = table(&cluster);
    let near = options_of(Metric::L2, 3);
    load(&cluster, &path, 1, 5_000).unwrap();
    assert_eq!(cluster.names(), ["points", "points.columns.parquet"]);
    let error = load(&cluster, &path, 1, 5_000).unwrap_err().to_string();
    assert!(error.contains("store:points: the nodes have a dataset of this name"), "{error}");
    assert!(filtered(&cluster, "year < 2010", &queries, &near, None).is_ok());
    // The columns of other vectors are refused. Columns without vectors are those of an interrupted import.
    cluster.on.nodes.remove("points.columns.parquet").unwrap();
    let refused = |expected: &str| {
        let error = filtered(&cluster, "year < 2010", &queries, &near, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let selected = ["year".to_string()];
        let error = with_columns(&cluster, 64 << 20, &queries, &near, &selected).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused("its columns, store:points.columns.parquet, are missing or were replaced");
    remove_on_nodes(&cluster.on, "points").unwrap();
    load(&cluster, &path, 1, 5_000).unwrap();
    cluster.on.nodes.remove("points").unwrap();
    load(&cluster, &path, 2, 7_000).unwrap();
    assert!(filtered(&cluster, "year < 2010", &queries, &near, None).is_ok());
    remove_on_nodes(&cluster.on, "points").unwrap();
    assert!(cluster.names().is_empty(), "{:?}", cluster.names());
    // Vectors of a file have no columns, and remain if a table is imported under their name.
    let (file, _) = clustered(&cluster, Element::U8);
    cluster.load(&file, 1, 5_000).unwrap();
    refused("columns: found none, expected vectors that were imported from Parquet or Arrow");
    let error = load(&cluster, &path, 1, 5_000).unwrap_err().to_string();
    assert!(error.contains("store:points: the nodes have a dataset of this name"), "{error}");
    assert_eq!(cluster.names(), ["points"]);
}

#[test]
fn a_malformed_table_is_named_and_leaves_nothing_on_the_nodes() {
    let cluster = Cluster::new(2);
    let keys =
        |twice: i64| Int64Array::from_iter_values((0..300).map(|row| if row == 250 { twice } else { row }));
    let columns = |vectors: ArrayRef, twice: i64| -> Vec<(&str, ArrayRef)> {
        vec![("key", Arc::new(keys(twice))), ("vectors", vectors)]
    };
    let bytes = |count: usize| numbers(200, 3).take(count * 8).map(|byte| byte as u8).collect::<Vec<u8>>();
    let path = write(&cluster, columns(lists(bytes(300)), 17));
    let error = load_with_ids(&cluster, &path, Some("key"), (1, 500)).unwrap_err().to_string();
    assert!(error.contains("rows 17 and 250, column 'key': found \"17\" twice"), "{error}");
    let error = load_with_ids(&cluster, &path, Some("name"), (1, 500)).unwrap_err().to_string();
    assert!(error.contains("name"), "{error}");
    let value = |row: i32| Some([Some(if row == 290 { f32::NAN } else { row as f32 })]);
    let floats = ListArray::from_iter_primitive::<Float32Type, _, _>((0..300).map(value));
    let path = write(&cluster, columns(Arc::new(floats), 1000));
    let error = load(&cluster, &path, 1, 500).unwrap_err().to_string();
    assert!(error.contains("row 290, column 'vectors': found NaN"), "{error}");
    assert!(cluster.names().is_empty(), "{:?}", cluster.names());
    let path = write(&cluster, columns(lists(bytes(300)), 1000));
    load_with_ids(&cluster, &path, Some("key"), (2, 500)).unwrap();
}

#[test]
fn a_lost_node_is_replaced_by_copies_or_named_in_searches_with_columns() {
    let mut cluster = Cluster::new(3);
    let (path, queries) = table(&cluster);
    load_with_ids(&cluster, &path, Some("key"), (2, 5_000)).unwrap();
    build(&cluster, &Index { lists: Some(60), seed: 5, ..Index::default() }).unwrap();
    let near = options_of(Metric::L2, 10);
    let approximate = Approximate { recall: 0.9, probes: None, strategy: None };
    let selected = ["name".to_string()];
    let find = |cluster: &Cluster| -> Result<_> {
        Ok((
            filtered(cluster, "year < 2010", &queries, &near, None)?.0,
            filtered(cluster, "year < 2010", &queries, &near, Some(&approximate))?.0,
            with_columns(cluster, 64 << 20, &queries, &near, &selected)?,
        ))
    };
    let expected = find(&cluster).unwrap();
    cluster.stop(1);
    assert!(find(&cluster).unwrap() == expected);
    let lost: Vec<String> = cluster.on.nodes.addresses().map(str::to_string).collect();
    cluster.stop(2);
    // A selection or columns without the rows of a lost node would be wrong, so partial answers do not change this.
    for partial in [false, true] {
        cluster.on.options.partial = partial;
        let by_predicate = filtered(&cluster, "year < 2010", &queries, &near, None).map(drop);
        let by_columns = with_columns(&cluster, 64 << 20, &queries, &near, &selected).map(drop);
        for error in [by_predicate.unwrap_err().to_string(), by_columns.unwrap_err().to_string()] {
            assert!(lost[1..].iter().any(|node| error.contains(node)), "{error}");
        }
    }
}

#[test]
fn a_hostile_selection_is_refused_or_selects_nothing_and_the_node_goes_on() {
    let cluster = Cluster::new(1);
    let (path, queries) = table(&cluster);
    load(&cluster, &path, 1, 5_000).unwrap();
    build(&cluster, &Index { lists: Some(60), seed: 5, ..Index::default() }).unwrap();
    let vectors = cluster.find();
    let index = IndexOnNodes::find(&vectors, &Execution::Stored(job(&cluster))).unwrap().expect("an index");
    let ask = |is_in_lists: bool, selection: Value| {
        let mut arguments =
            json!({ "layout": vectors.layout, "queries": "AAAAAAAAAAA=", "k": 3, "metric": "l2" });
        arguments["selection"] = selection;
        let (kind, file) = match is_in_lists {
            false => (KIND, &vectors.file),
            true => {
                arguments["lists"] = json!("AAAAAAEAAAA=");
                arguments["counts"] = json!("AgAAAA==");
                arguments["lists_count"] = json!(index.index.info.lists);
                arguments["first_ids"] = json!(vec![u64::MAX >> 1; index.lists.pieces.len()]);
                ("nearest lists", &index.lists)
            }
        };
        let execution = Execution::Stored(job(&cluster));
        let files = std::slice::from_ref(file);
        let run = RunOptions::default();
        let streams = stream_from_nodes(&cluster.on.nodes, &execution, (kind, false), arguments, files, &run);
        let rows = streams.and_then(|mut streams| {
            let mut rows = 0;
            while let Some(batch) = streams.next(0)? {
                rows += batch.num_rows();
            }
            Ok(rows)
        });
        rows.map_err(|error| error.to_string())
    };
    for is_in_lists in [false, true] {
        for (selection, expected) in [
            (json!("?"), "Invalid"),
            (json!("AAA"), "Invalid"),
            (json!(7), "expected a string"),
            (json!(["AAAA"]), "expected a string"),
            (json!("A".repeat(15 << 20)), "a set of vectors"),
        ] {
            let error = ask(is_in_lists, selection).unwrap_err();
            let expected =
                if is_in_lists && expected == "a set of vectors" { "queries and" } else { expected };
            assert!(error.contains(expected), "{error}: expected {expected}");
        }
        // Vectors that a bitmap does not have are not selected, and bits of vectors that do not exist are ignored.
        assert_eq!(ask(is_in_lists, json!("")), Ok(0));
        let all = ask(is_in_lists, json!("/".repeat(4000)));
        assert_eq!(all, Ok(if is_in_lists { 0 } else { 3 }));
    }
    let near = options_of(Metric::L2, 3);
    assert!(!filtered(&cluster, "year < 2010", &queries, &near, None).unwrap().0.is_empty());
}

use std::{fs, path::PathBuf};

use arrow_array::{ArrayRef, Float64Array, ListArray, StringArray, StructArray, UInt32Array, UInt64Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{Input, TableReader};

fn table(rows: usize) -> RecordBatch {
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        random >> 33
    };
    let ids: Vec<u64> = (0..rows as u64).map(|row| 3 * row + next() % 3).collect();
    let depths: Vec<u32> = (0..rows).map(|_| (next() % 20) as u32).collect();
    let ranks: Vec<f64> = (0..rows).map(|_| 1.0 / (1 + next()) as f64).collect();
    let names: Vec<String> = (0..rows).map(|_| format!("name, \"{}\"", next() % 1000)).collect();
    let columns: [(&str, ArrayRef); 4] = [
        ("vertex", Arc::new(UInt64Array::from(ids))),
        ("depth", Arc::new(UInt32Array::from(depths))),
        ("rank", Arc::new(Float64Array::from(ranks))),
        ("name", Arc::new(StringArray::from(names))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn not_null(batch: &RecordBatch) -> RecordBatch {
    let field = |field: &Arc<Field>| Field::clone(field).with_nullable(false);
    let schema = Schema::new(batch.schema().fields().iter().map(field).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), batch.columns().to_vec()).unwrap()
}

fn folder_and(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

fn write(path: &Path, batches: &[RecordBatch], budget: &Budget) -> u64 {
    let mut writer = TableWriter::create(path, batches[0].schema(), budget).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap()
}

fn read(path: &Path, like: &RecordBatch, batch_rows: usize, budget: &Budget) -> RecordBatch {
    let schema = like.schema();
    let columns: Vec<(&str, DataType)> =
        schema.fields().iter().map(|field| (field.name().as_str(), field.data_type().clone())).collect();
    let mut reader = TableReader::open(&Input::new(path), &columns, batch_rows, budget).unwrap();
    let mut batches = Vec::new();
    let mut rows = 0;
    while let Some(batch) = reader.next_batch().unwrap() {
        assert!(batch.num_rows() > 0 && batch.num_rows() <= batch_rows);
        assert_eq!(reader.place(), rows);
        rows += batch.num_rows() as u64;
        batches.push(batch);
    }
    concat_batches(reader.schema(), &batches).unwrap()
}

fn entries(folder: &TempDir) -> usize {
    fs::read_dir(folder.path()).unwrap().count()
}

#[test]
fn every_format_gives_back_the_rows_that_were_written() {
    let budget = Budget::new(8 << 20, 1);
    for name in ["t.parquet", "t.arrow", "t.csv", "T.CSV"] {
        for rows in [0, 1, BATCH_ROWS, BATCH_ROWS + 1, 100_000] {
            let (_folder, path) = folder_and(name);
            let whole = table(rows);
            assert_eq!(write(&path, std::slice::from_ref(&whole), &budget), rows as u64);
            for batch_rows in [1000, 1 << 20] {
                assert!(read(&path, &whole, batch_rows, &budget) == not_null(&whole), "{name}, {rows} rows");
            }
            assert_eq!(budget.reserved_bytes(), 0);
        }
    }
}

#[test]
fn a_table_of_several_row_groups_comes_back_whole_under_a_tiny_and_a_large_budget() {
    let whole = table(ROW_GROUP_ROWS + 70_000);
    let mut files = Vec::new();
    for (megabytes, threads) in [(8, 1), (1024, 1), (8, 4), (32, 2), (64, 3), (1024, 9)] {
        let budget = Budget::new(megabytes << 20, threads);
        let (_folder, path) = folder_and("t.parquet");
        write(&path, std::slice::from_ref(&whole), &budget);
        assert!(read(&path, &whole, 50_000, &budget) == not_null(&whole));
        files.push(fs::read(&path).unwrap());
        assert_eq!(budget.reserved_bytes(), 0);
    }
    let same = files.iter().all(|file| *file == files[0]);
    assert!(same, "the bytes depend on the budget or on threads");
}

#[test]
fn nested_columns_are_encoded_side_by_side() {
    let rows = ROW_GROUP_ROWS / 8;
    let flat = table(rows);
    let pair: ArrayRef = Arc::new(StructArray::from(vec![
        (Arc::new(Field::new("a", DataType::UInt64, false)), flat.column(0).clone()),
        (Arc::new(Field::new("b", DataType::Utf8, false)), flat.column(3).clone()),
    ]));
    let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(1, rows));
    let item = Arc::new(Field::new("item", DataType::UInt32, false));
    let list: ArrayRef = Arc::new(ListArray::new(item, offsets, flat.column(1).clone(), None));
    let columns = [("pair", pair), ("rank", flat.column(2).clone()), ("list", list)];
    let whole = RecordBatch::try_from_iter(columns).unwrap();
    let [one, two] = [1, 2].map(|threads| {
        let (_folder, path) = folder_and("t.parquet");
        write(&path, std::slice::from_ref(&whole), &Budget::new(64 << 20, threads));
        fs::read(&path).unwrap()
    });
    assert!(one == two);
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(two)).unwrap().build().unwrap();
    let read: Vec<_> = reader.map(|batch| batch.unwrap()).collect();
    assert!(concat_batches(read[0].schema_ref(), &read).unwrap().columns() == whole.columns());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn the_bytes_do_not_depend_on_how_rows_are_batched(
        cuts in proptest::collection::vec(0usize..60_000, 0..6),
        name in prop::sample::select(vec!["t.parquet", "t.arrow", "t.csv"]),
        megabytes in 8u64..100,
        threads in 1usize..4,
    ) {
        let whole = table(60_000);
        let mut cuts = [cuts, vec![0, 60_000]].concat();
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| whole.slice(cut[0], cut[1] - cut[0])).collect();
        let (_folder, path) = folder_and(name);
        write(&path, &[whole], &Budget::new(8 << 20, 1));
        let expected = fs::read(&path).unwrap();
        write(&path, &pieces, &Budget::new(megabytes << 20, threads));
        prop_assert!(fs::read(&path).unwrap() == expected);
    }
}

#[test]
fn a_writer_dropped_before_finish_leaves_the_old_file_and_nothing_else() {
    for name in ["t.parquet", "t.arrow", "t.csv"] {
        let (folder, path) = folder_and(name);
        fs::write(&path, "old").unwrap();
        let batch = table(50_000);
        let mut writer = TableWriter::create(&path, batch.schema(), &Budget::new(8 << 20, 1)).unwrap();
        writer.write(&batch).unwrap();
        // On a file system with unnamed files, a kill at this point leaves nothing either.
        assert!(entries(&folder) <= 2);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(writer);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(&folder), 1);
    }
}

#[test]
fn finishing_replaces_the_old_file_keeps_its_mode_and_follows_links() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (folder, path) = folder_and("t.csv");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.path().join("link.csv");
    symlink(&path, &link).unwrap();
    write(&link, &[table(10)], &Budget::new(8 << 20, 1));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&path).unwrap().starts_with("vertex,depth,rank,name\n"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(entries(&folder), 2);
}

#[test]
fn a_full_disk_is_an_error_of_the_file() {
    let batch = table(200_000);
    for kind in [Kind::Csv, Kind::Ipc, Kind::Parquet] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let target = NewFile::of_file("out", full);
        let result = TableWriter::to_target(target, kind, &batch.schema(), &Budget::new(8 << 20, 1))
            .and_then(|mut writer| writer.write(&batch).and_then(|()| writer.finish()));
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Store(inshore_store::Error::Io { .. })), "{error}");
        assert!(error.to_string().starts_with("out: cannot write it: No space left"), "{error}");
    }
}

#[test]
fn endings_and_folders_are_checked_before_the_work() {
    let (folder, path) = folder_and("t.txt");
    let error = TableWriter::check_path(&path).unwrap_err().to_string();
    assert!(error.contains("\"txt\"") && error.contains(".parquet, .arrow or .csv"), "{error}");
    assert!(TableWriter::check_path(&folder.path().join("none/t.csv")).is_err());
    for good in ["-", "t.csv", "T.Parquet"] {
        TableWriter::check_path(Path::new(good)).unwrap();
    }
    let device = folder.path().join("null.csv");
    std::os::unix::fs::symlink("/dev/null", &device).unwrap();
    // A character device is written in place, and stays a device.
    TableWriter::check_path(&device).unwrap();
    TableWriter::create(&device, table(1).schema(), &Budget::new(8 << 20, 1)).unwrap().finish().unwrap();
    assert!(std::fs::symlink_metadata(&device).unwrap().is_symlink());
    let inner = tempfile::Builder::new().suffix(".csv").tempdir().unwrap();
    let made = TableWriter::create(inner.path(), table(1).schema(), &Budget::new(8 << 20, 1));
    let is_refused = |error| matches!(error, Some(Error::Store(inshore_store::Error::BadOutput { .. })));
    assert!(is_refused(made.err()) && is_refused(TableWriter::check_path(inner.path()).err()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the link is there");
}

#[test]
fn a_batch_with_other_columns_is_refused() {
    let (_folder, path) = folder_and("t.parquet");
    let mut writer = TableWriter::create(&path, table(1).schema(), &Budget::new(8 << 20, 1)).unwrap();
    let error = writer.write(&table(1).project(&[1, 0, 2, 3]).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Store(inshore_store::Error::BadOutput { .. })), "{error}");
}

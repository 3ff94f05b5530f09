//! Columns of lists of numbers.

use std::{fs, sync::Arc};

use ::parquet::arrow::ArrowWriter;
use arrow_array::{Array, ArrayRef, Float32Array, ListArray, RecordBatch, cast::AsArray, types::Float32Type};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::writer::FileWriter;
use tempfile::TempDir;

use super::*;

const SMALL: u64 = 8 << 20;

fn table(lengths: Vec<usize>, value: impl Fn(usize) -> f32) -> RecordBatch {
    let values = Float32Array::from_iter_values((0..lengths.iter().sum()).map(value));
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let lists = ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(values), None);
    RecordBatch::try_from_iter([("v", Arc::new(lists) as ArrayRef)]).unwrap()
}

fn written(name: &str, table: &RecordBatch) -> (TempDir, Input) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let file = fs::File::create(&path).unwrap();
    if name.ends_with(".arrow") {
        let mut writer = FileWriter::try_new(file, &table.schema()).unwrap();
        for start in (0..table.num_rows()).step_by(1000) {
            writer.write(&table.slice(start, 1000.min(table.num_rows() - start))).unwrap();
        }
        writer.finish().unwrap();
    } else {
        let mut writer = ArrowWriter::try_new(file, table.schema(), None).unwrap();
        writer.write(table).unwrap();
        writer.close().unwrap();
    }
    (folder, Input::new(path))
}

fn open(input: &Input, budget: &Budget) -> Result<TableReader> {
    TableReader::open_lists(input, &["v".to_string()], 4096, budget)
}

#[test]
fn lists_are_read_in_batches_that_fit_the_budget() {
    let table = table(vec![64; 10_000], |place| place as f32);
    for name in ["t.parquet", "t.arrow"] {
        let (_folder, input) = written(name, &table);
        // A page of 1 MiB has 262,144 numbers, which take 3 MiB with their levels.
        let budget = Budget::new(2 * SMALL, 1);
        let mut reader = open(&input, &budget).unwrap();
        let mut next = 0;
        while let Some(batch) = reader.next_batch().unwrap() {
            assert!(batch.num_rows() <= 2730, "{} rows of 64 numbers", batch.num_rows());
            for list in batch.column(0).as_list::<i32>().iter() {
                let list = list.unwrap();
                let numbers = list.as_primitive::<Float32Type>().values();
                assert!(numbers.iter().enumerate().all(|(place, x)| *x == (next * 64 + place) as f32));
                next += 1;
            }
        }
        assert_eq!(next, 10_000);
        drop(reader);
        assert_eq!(budget.reserved_bytes(), 0);
        // A reader of flat columns refuses the lists.
        let refused = TableReader::open_stored(&input, None, &[], 4096, &budget, (0, 1));
        assert!(refused.err().unwrap().to_string().contains("column 'v' holds objects or arrays"));
    }
}

#[test]
fn a_list_beyond_a_quarter_of_the_budget_is_refused_however_few_bytes_it_takes() {
    // Equal numbers take a few bytes in the file.
    let table = table(vec![4, 2_000_000], |_| 1.0);
    let (folder, input) = written("t.parquet", &table);
    assert!(fs::metadata(folder.path().join("t.parquet")).unwrap().len() < 10_000);
    let budget = Budget::new(SMALL, 1);
    let read = open(&input, &budget).and_then(|mut reader| {
        while reader.next_batch()?.is_some() {}
        Ok(())
    });
    let error = read.unwrap_err();
    assert!(matches!(error, Error::TooLarge { what: "the lists of a Parquet page", .. }), "{error}");
    // In a larger budget, the list is read.
    let mut reader = open(&input, &Budget::new(256 << 20, 1)).unwrap();
    let mut numbers = 0;
    while let Some(batch) = reader.next_batch().unwrap() {
        numbers += batch.column(0).as_list::<i32>().values().len();
    }
    assert!(numbers >= 2_000_004);
}

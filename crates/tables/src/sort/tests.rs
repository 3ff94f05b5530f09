//! Compares sorts of files in a small budget with those of the standard library.

use std::{fs, io::Write, path::PathBuf};

use arrow_array::{RecordBatch, cast::AsArray, types::Int64Type};
use inshore_sortreduce::rows::FixedRows;
use inshore_store::{Budget, Cancel, Job, Store};
use tempfile::TempDir;

use super::*;
use crate::{Error, Input, TableReader};

struct TestFolder {
    folder: TempDir,
}

impl TestFolder {
    fn new() -> TestFolder {
        TestFolder { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Input {
        fs::write(self.path(name), bytes).unwrap();
        Input::new(self.path(name))
    }

    fn job(&self, memory_bytes: u64) -> Job {
        let store = Store::open(self.path("store")).unwrap();
        store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap()
    }

    fn read(&self, name: &str) -> RecordBatch {
        let input = Input::new(self.path(name));
        let budget = Budget::new(64 << 20, 1);
        let mut reader = TableReader::open_stored(&input, None, &[], 1 << 20, &budget, (0, 1)).unwrap();
        reader.next_batch().unwrap().unwrap()
    }
}

fn lines() -> Vec<String> {
    let mut state = 7u64;
    let line = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        format!("{:x}{}", state >> 50, "x".repeat((state >> 40) as usize % 90))
    };
    (0..300_000).map(line).collect()
}

#[test]
fn lines_of_all_inputs_are_sorted_together_in_little_memory() {
    let place = TestFolder::new();
    let lines = lines();
    let (first, second) = lines.split_at(100_000);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all((second.join("\n") + "\n").as_bytes()).unwrap();
    // The last line of the first file has no line end.
    let inputs = [
        place.write("a.txt", first.join("\n").as_bytes()),
        place.write("b.txt.gz", &packed.finish().unwrap()),
        place.write("empty.txt", b""),
    ];
    for (descending, unique) in [(false, false), (true, false), (false, true)] {
        let mut expected = lines.clone();
        expected.sort();
        if descending {
            expected.reverse();
        }
        if unique {
            expected.dedup();
        }
        let job = place.job(8 << 20);
        let output = place.path("out.txt");
        let summary =
            sort_lines(&job, &inputs, &output, SortOptions { descending, unique, resume: false }).unwrap();
        assert_eq!(fs::read_to_string(&output).unwrap(), expected.join("\n") + "\n");
        assert!(summary.stats.runs > 3 && summary.rows == expected.len() as u64, "{summary:?}");
        assert_eq!(job.budget().reserved_bytes(), 0);
    }
}

#[test]
fn records_are_sorted_and_a_part_of_one_is_refused() {
    let place = TestFolder::new();
    let bytes: Vec<u8> = (0..2_000_000u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    let inputs = [place.write("a.bin", &bytes), place.write("b.bin", &bytes[..999_980])];
    let shape = FixedRows::new(20, 3..9);
    let mut expected: Vec<&[u8]> = bytes.chunks(20).chain(bytes[..999_980].chunks(20)).collect();
    expected.sort_by_key(|record| &record[3..9]);
    let output = place.path("out.bin");
    let job = place.job(6 << 20);
    let summary = sort_records(&job, &inputs, &output, shape, SortOptions::default()).unwrap();
    assert!(fs::read(&output).unwrap() == expected.concat());
    assert_eq!(summary.bytes, 2_999_980);
    let cut = [place.write("cut.bin", &bytes[..41])];
    let error = sort_records(&job, &cut, &output, shape, SortOptions::default()).unwrap_err().to_string();
    assert!(
        error.contains(
            "cut.bin: the size of 41 bytes is not a multiple of the record size 20: 1 bytes remain"
        ),
        "{error}"
    );
}

#[test]
fn a_line_that_is_too_long_is_refused_with_its_file_and_leaves_no_output() {
    let place = TestFolder::new();
    let inputs = [place.write("long.txt", &[b'x'; 3_000_000])];
    let output = place.path("out.txt");
    let error = sort_lines(&place.job(8 << 20), &inputs, &output, SortOptions::default()).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("long.txt: a line of"), "{error}");
    assert!(!output.exists());
}

#[test]
fn tables_are_sorted_by_columns_with_nulls_last_and_stay_stable() {
    let place = TestFolder::new();
    let mut csv = "name,number,rest\n".to_string();
    let mut expected = Vec::new();
    for i in 0..60_000i64 {
        let number = (i * 7919) % 1000;
        let (name, shown) =
            (format!("n{}", i % 7), if number == 0 { String::new() } else { number.to_string() });
        csv += &format!("{name},{shown},{i}\n");
        expected.push((name, if number == 0 { None } else { Some(number) }, i));
    }
    let inputs = [place.write("t.csv", csv.as_bytes())];
    let keys = [
        SortKey { column: "number".into(), descending: true },
        SortKey { column: "name".into(), descending: false },
    ];
    expected.sort_by_key(|(name, number, _)| (number.is_none(), number.map(|number| -number), name.clone()));
    for memory_bytes in [8 << 20, 128 << 20] {
        let output = place.path("out.parquet");
        let options = SortOptions::default();
        let summary = sort_table(&place.job(memory_bytes), &inputs, &output, &keys, &[], options).unwrap();
        assert_eq!(summary.stats.runs > 0, memory_bytes == 8 << 20, "{summary:?}");
        let mut found = Vec::new();
        let input = Input::new(&output);
        let budget = Budget::new(64 << 20, 1);
        for part in 0..3 {
            let mut reader = TableReader::open_stored(&input, None, &[], 1000, &budget, (part, 3)).unwrap();
            while let Some(batch) = reader.next_batch().unwrap() {
                let names = batch.column(0).as_string::<i32>();
                let (numbers, rest) = (
                    batch.column(1).as_primitive::<Int64Type>(),
                    batch.column(2).as_primitive::<Int64Type>(),
                );
                found.extend((0..batch.num_rows()).map(|row| {
                    (names.value(row).to_string(), numbers.iter().nth(row).unwrap(), rest.value(row))
                }));
            }
        }
        assert!(found == expected);
    }
    let wrong = [SortKey { column: "nome".into(), descending: false }];
    let output = place.path("none.csv");
    let error = sort_table(&place.job(64 << 20), &inputs, &output, &wrong, &[], SortOptions::default());
    assert!(error.unwrap_err().to_string().contains("'nome'"));
    assert!(!output.exists());
}

#[test]
fn csv_that_looks_like_numbers_can_be_text() {
    let place = TestFolder::new();
    let inputs = [place.write("t.csv", b"a\n10\n9\n010\n")];
    let keys = [SortKey { column: "a".into(), descending: false }];
    let output = place.path("out.csv");
    let sort = |text: &[String]| {
        sort_table(&place.job(64 << 20), &inputs, &output, &keys, text, SortOptions::default()).unwrap();
        fs::read_to_string(&output).unwrap()
    };
    assert_eq!(sort(&[]), "a\n9\n10\n010\n");
    assert_eq!(sort(&["a".to_string()]), "a\n010\n10\n9\n");
    assert_eq!(place.read("out.csv").num_rows(), 3);
}

#[test]
fn inputs_that_come_in_any_order_are_sorted_as_if_they_came_in_that_of_their_numbers() {
    let place = TestFolder::new();
    // There are few keys, in the second byte. The other bytes identify the record.
    let part = |part: u32| -> Vec<u8> {
        let record = |i: u32| [9, (i * 7 % 5) as u8].into_iter().chain((part << 16 | i).to_be_bytes());
        (0..2000).flat_map(record).collect()
    };
    let csv = |part: u32| {
        let row = |i: u32| format!("{},{}\n", part << 16 | i, i * 7 % 5);
        "row,key\n".to_string() + &(0..2000).map(row).collect::<String>()
    };
    let input = |number: u32, ending: &str| {
        let name = format!("{number}.{ending}");
        let bytes = if ending == "csv" { csv(number).into_bytes() } else { part(number) };
        Ok(place.write(&name, &bytes).numbered(number))
    };
    for (descending, unique) in [(false, false), (true, false), (false, true), (true, true)] {
        let options = SortOptions { descending, unique, resume: false };
        let records = |order: [u32; 3], in_any_order: bool| {
            let inputs = Inputs::asked(order.map(|number| input(number, "bin")).into_iter(), None);
            let inputs = if in_any_order { inputs.in_any_order() } else { inputs };
            let (job, mut all) = (place.job(8 << 20), Vec::new());
            sorted_records(&job, inputs, (6, 1..2), options, 4096, &mut |block| {
                all.extend_from_slice(block);
                Ok(())
            })
            .unwrap();
            all
        };
        let rows = |order: [u32; 3], in_any_order: bool| {
            let inputs = Inputs::asked(order.map(|number| input(number, "csv")).into_iter(), None);
            let inputs = if in_any_order { inputs.in_any_order() } else { inputs };
            let (job, mut all) = (place.job(64 << 20), Vec::new());
            let key = SortKey { column: "key".to_string(), descending: false };
            sorted_table(&job, inputs, (&[key], false), options, 4096, &mut |batch| {
                all.push(batch);
                Ok(())
            })
            .unwrap();
            arrow_select::concat::concat_batches(&all[0].schema(), &all).unwrap()
        };
        match unique {
            false => {
                assert_eq!(records([1, 2, 0], true), records([0, 1, 2], false), "{options:?}");
                assert_eq!(rows([2, 0, 1], true), rows([0, 1, 2], false), "{options:?}");
            }
            // With `unique`, a sort in any order keeps the first record of each key from each input. The first of these
            // records is the record that the sort in the order of the numbers keeps.
            true => {
                let (all, first) = (records([1, 2, 0], true), records([0, 1, 2], false));
                assert_eq!((all.len(), first.len()), (15 * 10, 5 * 10));
                assert!(all.chunks(30).zip(first.chunks(10)).all(|(all, first)| &all[..10] == first));
                let (all, first) = (rows([2, 0, 1], true), rows([0, 1, 2], false));
                assert_eq!((all.num_rows(), first.num_rows()), (15, 5));
                assert!((0..5).all(|row| all.slice(row * 3, 1) == first.slice(row, 1)));
            }
        }
    }
}

fn key(column: &str) -> SortKey {
    SortKey { column: column.to_string(), descending: false }
}

#[test]
fn values_of_csv_keep_their_digits_where_the_result_is_csv_too() {
    let place = TestFolder::new();
    let rows = ["10,01234,+4912345,1.50,1e3,\"a,\"\"b\"", "9.0,00501,+49999,2.00,007,", "+8,1,2,3,4,x"];
    let text = |rows: &[&str]| format!("k,zip,phone,price,code,note\n{}\n", rows.join("\n"));
    let input = [place.write("in.csv", text(&rows).as_bytes())];
    let tabs = [place.write("in.tsv", "k\tzip\n2\t01\n1\t02\n".as_bytes())];
    let output = place.path("out.csv");
    let job = place.job(16 << 20);
    for (keys, order) in [
        ([key("k"), key("zip")], [2, 1, 0]),
        ([key("zip"), key("k")], [2, 1, 0]),
        ([key("phone"), key("k")], [2, 1, 0]),
    ] {
        sort_table(&job, &input, &output, &keys, &[], SortOptions::default()).unwrap();
        assert_eq!(fs::read_to_string(&output).unwrap(), text(&order.map(|row| rows[row])), "{keys:?}");
    }
    sort_table(&job, &tabs, &output, &[key("k")], &[], SortOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(&output).unwrap(), "k,zip\n1,02\n2,01\n");
    let lines = [place.write("in.jsonl", b"{\"k\":2,\"p\":1.50}\n{\"k\":1.0,\"p\":\"007\"}\n")];
    sort_table(&job, &lines, &output, &[key("k")], &[], SortOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(&output).unwrap(), "k,p\n1.0,007\n2,1.50\n");
}

#[test]
fn keys_whose_guessed_type_later_rows_contradict_are_sorted_by_the_right_type() {
    let place = TestFolder::new();
    let mut rows: Vec<String> = (0..20_000).map(|row| format!("{},x", (row * 7919) % 20_000)).collect();
    rows.push("0.5,y".to_string());
    let input = [place.write("in.csv", format!("k,v\n{}\n", rows.join("\n")).as_bytes())];
    for name in ["out.csv", "out.parquet"] {
        let output = place.path(name);
        sort_table(&place.job(16 << 20), &input, &output, &[key("k")], &[], SortOptions::default()).unwrap();
        let batch = place.read(name);
        assert_eq!(arrow_cast::display::array_value_to_string(batch.column(1), 1).unwrap(), "y", "{name}");
        assert_eq!(batch.column(0).data_type(), &arrow_schema::DataType::Float64);
    }
}

#[test]
fn a_key_that_first_comes_in_late_rows_of_json_is_found_or_refused_by_name() {
    let place = TestFolder::new();
    let text = format!("{}{{\"a\":2,\"k\":7}}\n{{\"a\":3,\"k\":5}}\n", "{\"a\":1}\n".repeat(2000));
    let inputs = [place.write("late.jsonl", text.as_bytes())];
    for output in ["o.parquet", "o.csv"] {
        let path = place.path(output);
        sort_table(&place.job(16 << 20), &inputs, &path, &[key("k")], &[], SortOptions::default()).unwrap();
        let sorted = place.read(output);
        let column = sorted.column_by_name("a").unwrap().as_primitive::<Int64Type>();
        assert_eq!((sorted.num_rows().min(1000), &column.values()[..3]), (1000, &[3, 2, 1][..]), "{output}");
        let refused =
            sort_table(&place.job(16 << 20), &inputs, &path, &[key("kk")], &[], SortOptions::default());
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("late.jsonl: no column 'kk'") && error.contains("the columns are a, k"),
            "{error}"
        );
    }
}

#[test]
fn of_equal_fractions_the_first_stays_with_its_bits() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, types::Float64Type};

    let place = TestFolder::new();
    let values = [-f64::NAN, 1.0, -0.0, 0.0, f64::NAN, 1.0, 0.0];
    let batch = RecordBatch::try_from_iter([
        ("v", Arc::new(Float64Array::from(values.to_vec())) as ArrayRef),
        ("row", Arc::new(arrow_array::Int64Array::from_iter_values(0..7))),
    ]);
    let path = place.path("in.parquet");
    let batch = batch.unwrap();
    let mut writer = crate::TableWriter::create(&path, batch.schema(), &Budget::new(16 << 20, 1)).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let sorted = |unique| {
        let options = SortOptions { unique, ..SortOptions::default() };
        let output = place.path("out.parquet");
        let input = [Input::new(&path)];
        sort_table(&place.job(16 << 20), &input, &output, &[key("v")], &[], options).unwrap();
        let batch = place.read("out.parquet");
        let bits = batch.column(0).as_primitive::<Float64Type>().values().iter().map(|v| v.to_bits());
        (bits.collect::<Vec<_>>(), batch.column(1).as_primitive::<Int64Type>().values().to_vec())
    };
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(sorted(true), (bits(&[-0.0, 1.0, -f64::NAN]), vec![2, 1, 0]));
    let (all, rows) = sorted(false);
    assert_eq!(all, bits(&[-f64::NAN, -0.0, 0.0, 0.0, 1.0, 1.0, f64::NAN]));
    assert_eq!(rows, [0, 2, 3, 6, 1, 5, 4]);
}

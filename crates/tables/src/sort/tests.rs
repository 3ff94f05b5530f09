//! Files sorted in a small budget against the standard library.

use std::{fs, io::Write, path::PathBuf};

use arrow_array::{RecordBatch, cast::AsArray, types::Int64Type};
use inshore_sortreduce::rows::FixedRows;
use inshore_store::{Budget, Cancel, Job, Store};
use tempfile::TempDir;

use super::*;
use crate::{Error, Input, TableReader};

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
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
    let place = Place::new();
    let lines = lines();
    let (first, second) = lines.split_at(100_000);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all((second.join("\n") + "\n").as_bytes()).unwrap();
    // The last line of the first has no end.
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
    let place = Place::new();
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
    assert!(error.contains("cut.bin: 41 bytes are no whole number of records of 20: 1 are left"), "{error}");
}

#[test]
fn a_line_too_long_is_told_with_its_file_and_nothing_is_made() {
    let place = Place::new();
    let inputs = [place.write("long.txt", &[b'x'; 3_000_000])];
    let output = place.path("out.txt");
    let error = sort_lines(&place.job(8 << 20), &inputs, &output, SortOptions::default()).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("long.txt: a line of"), "{error}");
    assert!(!output.exists());
}

#[test]
fn tables_are_sorted_by_columns_with_nulls_last_and_stay_stable() {
    let place = Place::new();
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
    let place = Place::new();
    let inputs = [place.write("t.csv", b"a\n10\n9\n010\n")];
    let keys = [SortKey { column: "a".into(), descending: false }];
    let output = place.path("out.csv");
    let sort = |text: &[String]| {
        sort_table(&place.job(64 << 20), &inputs, &output, &keys, text, SortOptions::default()).unwrap();
        fs::read_to_string(&output).unwrap()
    };
    assert_eq!(sort(&[]), "a\n9\n10\n10\n");
    assert_eq!(sort(&["a".to_string()]), "a\n010\n10\n9\n");
    assert_eq!(place.read("out.csv").num_rows(), 3);
}

#[test]
fn inputs_that_come_in_any_order_are_sorted_as_if_they_came_in_that_of_their_numbers() {
    let place = Place::new();
    // Few keys, in the second byte, and what says which record it is.
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
            sorted_table(&job, inputs, &[key], options, 4096, &mut |batch| {
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
            // The first record of each key in each input, of which the first is that of all.
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

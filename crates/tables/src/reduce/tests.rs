//! Compares both methods of grouping with a `BTreeMap`, under large and small budgets.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use arrow_array::{
    ArrayRef, Date32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use arrow_select::concat::concat_batches;
use inshore_store::{Budget, Cancel, Store};

use super::*;

struct TestFolder {
    folder: tempfile::TempDir,
}

impl TestFolder {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn reduce(
        &self,
        inputs: &[Input],
        options: &ReduceOptions,
        memory_bytes: u64,
    ) -> Result<(ReduceSummary, RecordBatch)> {
        let store = Store::open(self.path("store")).unwrap();
        let job = store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap();
        let output = self.path("out.parquet");
        let summary = reduce(&job, inputs, &output, options)?;
        let budget = Budget::new(64 << 20, 1);
        let mut reader = TableReader::open_stored(&Input::new(&output), None, &[], 8192, &budget, (0, 1))?;
        let mut batches = Vec::new();
        while let Some(batch) = reader.next_batch()? {
            batches.push(batch);
        }
        let all = concat_batches(reader.schema(), &batches).unwrap();
        Ok((summary, all))
    }
}

/// Makes a table. If `with_nulls` is true, the column q has nulls.
fn table(place: &TestFolder, rows: i64, with_nulls: bool) -> Input {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(UInt64Array::from_iter_values((0..rows).map(|i| (i * 7919 % 40_000) as u64)))),
        ("i", Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i % 100 - 50)))),
        ("n", Arc::new(Int32Array::from_iter_values((0..rows).map(|i| (i * 31 % 5000 - 2500) as i32)))),
        ("f", Arc::new(Float64Array::from_iter_values((0..rows).map(|i| (i % 77) as f64 - 38.5)))),
        ("d", Arc::new(Date32Array::from_iter_values((0..rows).map(|i| (i % 300) as i32 - 150)))),
        ("s", Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("s{}", i * 13 % 3000))))),
        (
            "q",
            Arc::new(Int32Array::from_iter(
                (0..rows).map(|i| (!with_nulls || i % 5 != 0).then_some((i % 9) as i32)),
            )),
        ),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = place.path("in.parquet");
    let mut writer = TableWriter::create(&path, batch.schema(), &Budget::new(64 << 20, 1)).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    Input::new(path)
}

fn options(by: &[&str], aggregates: Vec<Aggregate>, general: bool) -> ReduceOptions {
    ReduceOptions {
        by: by.iter().map(|by| by.to_string()).collect(),
        aggregates,
        as_text: Vec::new(),
        general,
        resume: false,
    }
}

const ROWS: i64 = 400_000;

#[test]
fn both_ways_give_the_same_in_any_memory() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let inputs = [table(&place, ROWS, false)];
    let sums = || vec![Aggregate::sum("i"), Aggregate::count(), Aggregate::min("f"), Aggregate::max("n")];
    for (by, aggregates) in [
        ("k", sums()),
        ("n", sums()),
        ("d", sums()),
        ("i", vec![]),
        ("k", vec![Aggregate::count_of("s")]),
        ("n", vec![Aggregate::mean("f"), Aggregate::sum("k"), Aggregate::max("f")]),
    ] {
        let run = |general, memory| {
            place.reduce(&inputs, &options(&[by], aggregates.clone(), general), memory).unwrap()
        };
        let (fast, expected) = run(false, 256 << 20);
        assert_eq!((fast.way, fast.rows_in), ("numbers", ROWS as u64));
        for (general, memory) in [(false, 8 << 20), (true, 8 << 20), (true, 256 << 20)] {
            let (summary, found) = run(general, memory);
            assert_eq!(summary.way, if general { "rows" } else { "numbers" });
            assert_eq!(found, expected, "by {by}, {general} {memory}");
        }
    }
}

/// Makes a table with one column of keys and a column v.
fn keyed(place: &TestFolder, keys: ArrayRef) -> Input {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..keys.len() as i64).map(|i| i % 7)));
    let batch = RecordBatch::try_from_iter([("key", keys), ("v", values)]).unwrap();
    let path = place.path("keyed.parquet");
    let mut writer = TableWriter::create(&path, batch.schema(), &Budget::new(64 << 20, 1)).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    Input::new(path)
}

/// Groups a table by both methods, and checks that the results are equal.
fn check_both_ways(place: &TestFolder, input: Input) {
    let run = |general| {
        let options = options(&["key"], vec![Aggregate::sum("v"), Aggregate::count()], general);
        place.reduce(std::slice::from_ref(&input), &options, 32 << 20).unwrap()
    };
    let ((fast, found), (_, expected)) = (run(false), run(true));
    assert_eq!(fast.way, "numbers");
    assert_eq!(found, expected);
}

#[test]
fn keys_of_any_range_come_back_as_they_were() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let mixed = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let wide = |first: i64, range: u64| -> ArrayRef {
        let value = |i| first.wrapping_add((mixed(i) % range) as i64);
        Arc::new(Int64Array::from_iter_values((0..30_000).map(value)))
    };
    let unsigned = |first: u64, range: u64| -> ArrayRef {
        let value = |i| first.wrapping_add(mixed(i) % range);
        Arc::new(UInt64Array::from_iter_values((0..30_000).map(value)))
    };
    let ends: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, i64::MIN, 0, -1, i64::MAX]));
    let narrow_ends: ArrayRef = Arc::new(Int32Array::from(vec![i32::MAX, i32::MIN, 0, -1, i32::MAX]));
    let unsigned_ends: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1 << 63]));
    for keys in [
        wide(-5_000, 10_000),
        wide(1 << 60, 20_000),
        wide(i64::MIN, 3000),
        wide(-7, u32::MAX as u64 + 100),
        unsigned(u64::MAX - 999, 1000),
        unsigned(1 << 63, 50_000_000_000),
        wide(42, 1),
        ends,
        narrow_ends,
        unsigned_ends,
        Arc::new(Int64Array::from(Vec::<i64>::new())),
    ] {
        check_both_ways(&place, keyed(&place, keys));
    }
}

/// Replaces the largest value in a file's statistics by `told`.
fn tell(path: &std::path::Path, largest: i64, told: i64) {
    let mut bytes = std::fs::read(path).unwrap();
    let end = bytes.len() - 8;
    let footer = end - u32::from_le_bytes(bytes[end..end + 4].try_into().unwrap()) as usize;
    let mut changed = 0;
    for place in footer..end - 8 {
        if bytes[place..place + 8] == largest.to_le_bytes() {
            bytes[place..place + 8].copy_from_slice(&told.to_le_bytes());
            changed += 1;
        }
    }
    assert!(changed > 0, "the footer has statistics");
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn wrong_statistics_cost_time_and_never_the_answer() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let (largest, told) = (0x1234_5678_9abci64, 70_000i64);
    let mut keys: Vec<i64> = (0..50_000).collect();
    keys.push(largest);
    let input = keyed(&place, Arc::new(Int64Array::from(keys)));
    tell(input.path().unwrap(), largest, told);
    let reader = TableReader::open_stored(&input, None, &[], 8192, &Budget::new(8 << 20, 1), (0, 1)).unwrap();
    assert_eq!(reader.ranges_of(&["key", "v"]).unwrap(), [Some((0, told as i128)), Some((0, 6))]);
    check_both_ways(&place, input);
    // A value may lie outside of the statistics too.
    let values: Vec<i64> = (0..50_000).map(|i| if i == 49_000 { largest } else { i % 1000 }).collect();
    let input = valued(&place, Arc::new(Int64Array::from(values)));
    tell(input.path().unwrap(), largest, 1000);
    let (summary, _) =
        place.reduce(std::slice::from_ref(&input), &options(&["key"], sums_of_v(), false), 32 << 20).unwrap();
    assert_eq!((summary.way, &*summary.strategy), ("numbers", "merge"));
    check_both_ways(&place, input);
}

fn sums_of_v() -> Vec<Aggregate> {
    vec![Aggregate::sum("v"), Aggregate::count()]
}

/// Makes a table of these values, with keys spread over a range of millions.
fn valued(place: &TestFolder, values: ArrayRef) -> Input {
    let key = |i: u64| ((i * i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % 5_000_000;
    let keys: ArrayRef = Arc::new(UInt64Array::from_iter_values((0..values.len() as u64).map(key)));
    let batch = RecordBatch::try_from_iter([("key", keys), ("v", values)]).unwrap();
    let path = place.path("valued.parquet");
    let mut writer = TableWriter::create(&path, batch.schema(), &Budget::new(64 << 20, 1)).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    Input::new(path)
}

#[test]
fn values_of_few_bits_go_to_bins_beside_their_keys_and_come_back_as_they_were() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let mixed = |i: i64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15u64 as i64);
    let signed = |first: i64, range: i64| -> ArrayRef {
        let value = move |i| first + mixed(i).rem_euclid(range);
        Arc::new(Int64Array::from_iter_values((0..1_500_000).map(value)))
    };
    let unsigned = |first: u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values((0..1_500_000).map(|i| first + mixed(i) as u64 % 100)))
    };
    for (values, strategy) in [
        (signed(-100, 200), "partition"),
        (signed(42, 1), "partition"),
        // The sum of a few of these values already needs all 64 bits.
        (signed(i64::MAX - 999, 1000), "overflow"),
        (signed(i64::MIN / 2_000_000, 16), "partition"),
        (unsigned(7), "partition"),
        // The values have more bits than fit into a word together with a key.
        (signed(0, 1 << 40), "merge"),
    ] {
        let input = valued(&place, values);
        let run = |aggregates: Vec<Aggregate>, general| {
            place.reduce(std::slice::from_ref(&input), &options(&["key"], aggregates, general), 24 << 20)
        };
        if strategy == "overflow" {
            assert!(run(sums_of_v(), false).unwrap_err().to_string().contains("64 bits"), "{strategy}");
            continue;
        }
        let least = || vec![Aggregate::min("v"), Aggregate::max("v")];
        for aggregates in [sums_of_v, least, || vec![Aggregate::sum("v")], || vec![]] {
            let ((fast, found), (_, expected)) =
                (run(aggregates(), false).unwrap(), run(aggregates(), true).unwrap());
            assert_eq!(fast.way, "numbers");
            assert!(fast.strategy == strategy || aggregates().is_empty(), "{fast:?}");
            assert_eq!(found, expected, "{fast:?}");
        }
    }
}

#[test]
fn sums_of_groups_are_those_of_a_map() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let inputs = [table(&place, ROWS, false)];
    let mut expected = BTreeMap::new();
    for i in 0..ROWS {
        let entry = expected.entry((i * 7919 % 40_000) as u64).or_insert((0i64, 0u64, i64::MAX, i64::MIN));
        let value = i % 100 - 50;
        *entry = (entry.0 + value, entry.1 + 1, entry.2.min(value), entry.3.max(value));
    }
    let aggregates = vec![Aggregate::sum("i"), Aggregate::count(), Aggregate::min("i"), Aggregate::max("i")];
    let (summary, found) = place.reduce(&inputs, &options(&["k"], aggregates, false), 8 << 20).unwrap();
    assert!(summary.groups == expected.len() as u64, "{summary:?}");
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(expected.keys().copied())),
        Arc::new(Int64Array::from_iter_values(expected.values().map(|value| value.0))),
        Arc::new(UInt64Array::from_iter_values(expected.values().map(|value| value.1))),
        Arc::new(Int64Array::from_iter_values(expected.values().map(|value| value.2))),
        Arc::new(Int64Array::from_iter_values(expected.values().map(|value| value.3))),
    ];
    assert_eq!(found.columns(), &columns[..]);
}

#[test]
fn nulls_restart_the_fast_way_as_the_general_one() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let inputs = [table(&place, 10_000, true)];
    let (summary, found) = place
        .reduce(&inputs, &options(&["q"], vec![Aggregate::count(), Aggregate::first("s")], false), 64 << 20)
        .unwrap();
    assert_eq!((summary.way, found.num_rows()), ("rows", 10));
    // Nulls come last.
    assert!(found.column(0).is_null(9) && !found.column(0).is_null(8));
    let aggregates = vec![Aggregate::count_of("q"), Aggregate::sum("q"), Aggregate::mean("q")];
    let (summary, found) = place.reduce(&inputs, &options(&[], aggregates, false), 64 << 20).unwrap();
    assert_eq!((summary.rows_in, found.num_rows()), (10_000, 1));
    let sum: i64 = (0..10_000i64).filter(|i| i % 5 != 0).map(|i| i % 9).sum();
    let columns: [ArrayRef; 3] = [
        Arc::new(UInt64Array::from(vec![8000])),
        Arc::new(Int64Array::from(vec![sum])),
        Arc::new(Float64Array::from(vec![sum as f64 / 8000.0])),
    ];
    assert_eq!(found.columns(), columns);
}

#[test]
fn first_and_last_go_by_the_order_of_the_input() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    fs::write(place.path("a.csv"), "k,v\n2,x\n1,a\n1,\n").unwrap();
    fs::write(place.path("b.csv"), "k,v\n1,b\n1,c\n2,\n").unwrap();
    let inputs = ["a.csv", "b.csv"].map(|name| Input::new(place.path(name)));
    let aggregates =
        vec![Aggregate::first("v"), Aggregate::last("v"), Aggregate::min("v"), Aggregate::count_of("v")];
    let (_, found) = place.reduce(&inputs, &options(&["k"], aggregates, false), 64 << 20).unwrap();
    let text = |values: [&str; 2]| Arc::new(StringArray::from_iter_values(values)) as ArrayRef;
    let columns: [ArrayRef; 5] = [
        Arc::new(Int64Array::from(vec![1, 2])),
        text(["a", "x"]),
        text(["c", "x"]),
        text(["a", "x"]),
        Arc::new(UInt64Array::from(vec![3, 1])),
    ];
    assert_eq!(found.columns(), columns);
}

#[test]
fn aggregates_without_an_answer_are_errors() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    fs::write(place.path("a.csv"), format!("k,v,s\n1,{},x\n1,{},y\n", i64::MAX, 1)).unwrap();
    let inputs = [Input::new(place.path("a.csv"))];
    let error = |by: &[&str], aggregate: Aggregate, general| {
        place.reduce(&inputs, &options(by, vec![aggregate], general), 64 << 20).unwrap_err().to_string()
    };
    for general in [false, true] {
        assert!(error(&["k"], Aggregate::sum("v"), general).contains("a sum (sum_v) does not fit 64 bits"));
        assert!(
            error(&["k"], Aggregate::sum("s"), general)
                .contains("column 's' has type Utf8, which has no sum")
        );
        assert!(error(&["x"], Aggregate::count(), general).contains("'x'"));
    }
    assert!(!place.path("out.parquet").exists());
}

/// Makes a file with a floating-point column `v` and a column `k` that has the same key in every row.
fn fractions(place: &TestFolder, values: &[f64]) -> Input {
    let path = place.path("v.parquet");
    let column: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
    let key: ArrayRef = Arc::new(Int64Array::from(vec![7; values.len()]));
    let batch = RecordBatch::try_from_iter([("v", column), ("k", key)]).unwrap();
    let mut writer = TableWriter::create(&path, batch.schema(), &Budget::new(64 << 20, 1)).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    Input::new(path)
}

#[test]
fn every_nan_is_one_group_and_zero_has_no_sign() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let input =
        [fractions(&place, &[-f64::NAN, 0.0, f64::NAN, -0.0, 1.0, f64::from_bits(0x7ff8_0000_0000_0001)])];
    let counted = options(&["v"], vec![Aggregate::count()], false);
    let (_, found) = place.reduce(&input, &counted, 16 << 20).unwrap();
    let values = Float64Array::from(vec![0.0, 1.0, f64::NAN]);
    assert_eq!(found.column(0).as_ref(), &values as &dyn arrow_array::Array);
    assert_eq!(found.column(1).as_ref(), &UInt64Array::from(vec![2, 1, 3]) as &dyn arrow_array::Array);
}

#[test]
fn both_ways_take_nan_for_the_greatest() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let input = [fractions(&place, &[-f64::NAN, 0.0, 2.0])];
    for general in [false, true] {
        let asked = options(&["k"], vec![Aggregate::min("v"), Aggregate::max("v")], general);
        let (_, found) = place.reduce(&input, &asked, 16 << 20).unwrap();
        let value =
            |column: usize| arrow_cast::display::array_value_to_string(found.column(column), 0).unwrap();
        assert_eq!((value(1), value(2)), ("0.0".to_string(), "NaN".to_string()), "general: {general}");
    }
}

#[test]
fn columns_of_csv_that_later_rows_contradict_are_read_again() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let path = place.path("late.csv");
    let rows: String = (0..5000).map(|row| format!("{},{}\n", row % 3, row)).collect();
    fs::write(&path, format!("k,v\n{rows}0.5,18446744073709551615\n")).unwrap();
    let asked = options(&["k"], vec![Aggregate::max("v"), Aggregate::count()], false);
    let (summary, found) = place.reduce(&[Input::new(&path)], &asked, 16 << 20).unwrap();
    assert_eq!((summary.groups, summary.rows_in), (4, 5001));
    let value = |column: usize, row: usize| {
        arrow_cast::display::array_value_to_string(found.column(column), row).unwrap()
    };
    assert_eq!((value(0, 1), value(1, 1)), ("0.5".to_string(), u64::MAX.to_string()));
    // The values of the two files suggest different types.
    let other = place.path("other.csv");
    fs::write(&other, "k,v\n1.25,2\n").unwrap();
    let (summary, _) = place.reduce(&[Input::new(&other), Input::new(&path)], &asked, 16 << 20).unwrap();
    assert_eq!((summary.groups, summary.rows_in), (5, 5002));
}

#[test]
fn a_group_that_first_comes_in_late_rows_of_json_is_found_or_refused_by_name() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let path = place.path("late.jsonl");
    fs::write(&path, format!("{}{{\"a\":2,\"k\":7}}\n", "{\"a\":1}\n".repeat(2000))).unwrap();
    for (by, value) in [("k", "a"), ("a", "k")] {
        let asked = options(&[by], vec![Aggregate::max(value)], false);
        let (summary, _) = place.reduce(&[Input::new(&path)], &asked, 16 << 20).unwrap();
        assert_eq!((summary.groups, summary.rows_in), (2, 2001));
    }
    let refused =
        place.reduce(&[Input::new(&path)], &options(&["b"], vec![Aggregate::count()], false), 16 << 20);
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("late.jsonl: no column 'b'") && error.contains("a, k"), "{error}");
}

#[test]
fn too_many_groups_for_a_budget_are_refused_with_one_that_is_enough() {
    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let path = place.path("many.parquet");
    let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::UInt64, false)]));
    let mut writer = TableWriter::create(&path, schema.clone(), &Budget::new(64 << 20, 1)).unwrap();
    const ROWS: u64 = 4_000_000;
    for start in (0..ROWS).step_by(1 << 16) {
        let keys = (start..ROWS.min(start + (1 << 16))).map(|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let column: ArrayRef = Arc::new(UInt64Array::from_iter_values(keys));
        writer.write(&RecordBatch::try_new(schema.clone(), vec![column]).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    // With four words in each record, the sorted runs have 160 MB.
    let all = vec![Aggregate::count(), Aggregate::sum("k"), Aggregate::min("k"), Aggregate::max("k")];
    let asked = options(&["k"], all, false);
    let job = |memory_bytes| {
        let store = Store::open(place.path("store")).unwrap();
        store.job(Budget::new(memory_bytes, 1), Cancel::default()).unwrap()
    };
    let input = [Input::new(&path)];
    let error = reduce(&job(1 << 20), &input, &place.path("o.parquet"), &asked).unwrap_err();
    let Error::SortReduce(inshore_sortreduce::Error::TooManyRuns { enough: Some(enough), memory, .. }) =
        error
    else {
        panic!("{error}")
    };
    assert!(memory == 1 << 20 && (2 << 20..=4 << 20).contains(&enough), "{enough}");
    assert!(error.to_string().contains("MiB are enough"), "{error}");
    let summary = reduce(&job(enough), &input, &place.path("o.parquet"), &asked).unwrap();
    assert_eq!((summary.groups, summary.way), (ROWS, "numbers"));
}

#[test]
fn a_sum_of_decimals_beyond_38_digits_is_an_error() {
    use arrow_array::Decimal128Array;

    let place = TestFolder { folder: tempfile::tempdir().unwrap() };
    let path = place.path("d.parquet");
    let most = 10i128.pow(38) - 1;
    for (values, fits) in [(vec![most, 1], false), (vec![most; 3], false), (vec![most - 1, 1], true)] {
        let column = Decimal128Array::from(values).with_precision_and_scale(38, 0).unwrap();
        let batch = RecordBatch::try_from_iter([("v", Arc::new(column) as ArrayRef)]).unwrap();
        let mut writer = TableWriter::create(&path, batch.schema(), &Budget::new(64 << 20, 1)).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let asked = options(&[], vec![Aggregate::sum("v")], false);
        let found = place.reduce(&[Input::new(&path)], &asked, 16 << 20);
        match found {
            Ok(_) => assert!(fits),
            Err(error) => assert!(!fits && error.to_string().contains("does not fit"), "{error}"),
        }
    }
}

//! Compares sorts of rows with the standard library's sort, both with much memory and with the minimum memory.

use inshore_store::{Budget, Cancel, Job, Store};
use proptest::prelude::*;

use super::*;
use crate::Result;

const MIB: u64 = 1 << 20;

struct TestJob {
    job: Job,
    _folder: tempfile::TempDir,
}

fn job(memory_bytes: u64) -> TestJob {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    TestJob { job: store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap(), _folder: folder }
}

/// Sorts `input`, which is passed to the sort in pieces of `piece_bytes` bytes.
fn sorted<S: RowShape, O: RowOperation>(
    input: &[u8],
    piece_bytes: usize,
    shape: S,
    operation: O,
    config: &RowConfig,
) -> Result<(Vec<u8>, RowStats)> {
    let (out, stats, _) = sorted_in_parts(input, piece_bytes, shape, operation, config, 1)?;
    Ok((out, stats))
}

/// Sorts `input`, and reads the result in up to `parts_max` parts, from the last to the first. Returns the result,
/// the counters and the number of parts.
fn sorted_in_parts<S: RowShape, O: RowOperation>(
    input: &[u8],
    piece_bytes: usize,
    shape: S,
    operation: O,
    config: &RowConfig,
    parts_max: usize,
) -> Result<(Vec<u8>, RowStats, usize)> {
    let test = job(config.memory_bytes);
    let mut sort = RowSort::new(&test.job, shape, operation, config)?;
    let mut sink = sort.sink();
    for piece in input.chunks(piece_bytes.max(1)) {
        sink.write(piece)?;
    }
    assert!(sink.finish()?.is_empty());
    let mut parts = sort.finish_in_parts(parts_max)?;
    let (count, mut stats) = (parts.len(), parts[0].rows.stats());
    let mut out = vec![0; parts[count - 1].start as usize];
    let mut end = None;
    for part in parts.iter_mut().rev() {
        let bytes = read(&mut part.rows)?;
        let start = part.start as usize;
        assert_eq!(start + bytes.len(), end.unwrap_or(start + bytes.len()), "parts join");
        match end {
            None => out.extend_from_slice(&bytes),
            Some(end) => out[start..end].copy_from_slice(&bytes),
        }
        end = Some(start);
    }
    assert_eq!(end, Some(0));
    stats.rows_out = parts.iter().map(|part| part.rows.stats().rows_out).sum();
    drop(parts);
    let budget = test.job.budget();
    assert_eq!(budget.reserved_bytes(), 0);
    assert!(budget.reserved_bytes_max() <= config.memory_bytes, "{}", budget.reserved_bytes_max());
    Ok((out, stats, count))
}

fn read<S: RowShape, O: RowOperation>(sorted: &mut SortedRows<S, O>) -> Result<Vec<u8>> {
    let (mut out, mut block) = (Vec::new(), vec![0; 1000]);
    loop {
        let filled = sorted.fill(&mut block)?;
        out.extend_from_slice(&block[..filled]);
        if filled < block.len() {
            return Ok(out);
        }
    }
}

fn configs() -> Vec<RowConfig> {
    let mut all = Vec::new();
    for descending in [false, true] {
        for (memory_bytes, threads, arena_bytes) in [
            (64 * MIB, 2, None),
            (smallest_row_memory_bytes(1), 1, None),
            (smallest_row_memory_bytes(3), 3, Some(16 << 10)),
        ] {
            let name = "test";
            all.push(RowConfig {
                memory_bytes,
                threads,
                descending,
                arena_bytes,
                name,
                ..Default::default()
            });
        }
    }
    all
}

/// Returns the rows of `input` in the order of the standard library's sort.
fn model<S: RowShape>(input: &[u8], shape: &S, descending: bool) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    let mut rest = input;
    while let Some(len) = shape.row_len(rest) {
        rows.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    assert!(rest.is_empty());
    rows.sort_by(|a, b| {
        let order = shape.key(a).cmp(shape.key(b));
        if descending { order.reverse() } else { order }
    });
    rows
}

fn check<S: RowShape>(input: &[u8], shape: &S, piece_bytes: usize) {
    for config in configs() {
        let what = format!("{} bytes, {config:?}", input.len());
        let mut expected = model(input, shape, config.descending);
        let (got, stats) = sorted(input, piece_bytes, shape.clone(), KeepAll, &config).unwrap();
        assert!(got == expected.concat(), "{what}");
        assert_eq!((stats.rows_in, stats.rows_out), (expected.len() as u64, expected.len() as u64), "{what}");
        if config.arena_bytes.is_some() && input.len() > 200_000 {
            assert!(stats.runs > 5, "{what}: {stats:?}");
        }
        expected.dedup_by(|next, first| shape.key(next) == shape.key(first));
        let (got, _) = sorted(input, piece_bytes, shape.clone(), KeepFirst, &config).unwrap();
        assert!(got == expected.concat(), "{what}, first of each");
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[test]
fn records_are_sorted_by_some_of_their_bytes_and_keep_their_order_otherwise() {
    let mut random = Random(1);
    for (row_bytes, key) in [(100, 0..10), (100, 90..100), (7, 2..5), (16, 0..16), (5, 1..1), (1, 0..1)] {
        for below in [2, 256] {
            let bytes = 400_000 / row_bytes * row_bytes;
            let input: Vec<u8> = (0..bytes).map(|_| (random.next() % below) as u8).collect();
            check(&input, &FixedRows::new(row_bytes, key.clone()), 30_011);
        }
    }
}

/// Checks that the result has the same bytes with different numbers of parts, from memory and from runs.
fn check_parts<S: RowShape>(input: &[u8], shape: &S, parts_min: usize) {
    for (arena_bytes, descending) in [(None, false), (Some(512 << 10), false), (Some(512 << 10), true)] {
        let config =
            RowConfig { memory_bytes: 16 * MIB, descending, arena_bytes, name: "test", ..Default::default() };
        let expected = model(input, shape, descending).concat();
        for parts in [2, 4] {
            let (got, stats, count) =
                sorted_in_parts(input, 30_011, shape.clone(), KeepAll, &config, parts).unwrap();
            assert_eq!(stats.runs > 6, arena_bytes.is_some(), "{stats:?}");
            assert!(got == expected, "{parts} parts, {config:?}");
            assert!((parts_min.min(parts)..=parts).contains(&count), "{count} of {parts} parts, {config:?}");
            assert_eq!(stats.rows_in, stats.rows_out);
        }
    }
}

#[test]
fn a_merge_is_cut_into_parts_between_any_keys() {
    let mut random = Random(8);
    // The inputs have distinct keys, few keys, one key, and ascending keys.
    let records = |mut word: Box<dyn FnMut(u64) -> u64>| -> Vec<u8> {
        (0..250_000u64).flat_map(|i| [word(i).to_be_bytes(), i.to_be_bytes()].concat()).collect()
    };
    let shape = FixedRows::new(16, 0..8);
    check_parts(&records(Box::new(move |_| random.next())), &shape, 4);
    check_parts(&records(Box::new(|i| i)), &shape, 4);
    check_parts(&records(Box::new(|i| i * 7 % 3)), &shape, 2);
    check_parts(&records(Box::new(|_| 5)), &shape, 1);
    let mut random = Random(9);
    let mut lines = Vec::new();
    while lines.len() < 4_000_000 {
        // Some rows are longer than a block.
        let long = if random.next().is_multiple_of(10_000) { 90_000 } else { 0 };
        lines.extend_from_slice(
            format!("{:x}{:y<50}{}\n", random.next() >> 44, "", "y".repeat(long)).as_bytes(),
        );
    }
    check_parts(&lines, &Lines, 2);
}

#[test]
fn rows_that_are_combined_or_framed_come_in_one_part() {
    let mut rows = Vec::new();
    (0..150_000u64).for_each(|i| frame(&(i * 7919 % 10_007).to_be_bytes(), &i.to_be_bytes(), &mut rows));
    let shape = FramedRows { row_bytes_hint: 24 };
    let arena_bytes = Some(512 << 10);
    let config = RowConfig { memory_bytes: 16 * MIB, arena_bytes, name: "test", ..Default::default() };
    let (got, stats, count) = sorted_in_parts(&rows, 5000, shape, KeepAll, &config, 4).unwrap();
    assert!(got == model(&rows, &shape, false).concat() && stats.runs > 6);
    assert_eq!(count, 1);
    let (_, _, count) = sorted_in_parts(&rows, 5000, shape, KeepFirst, &config, 4).unwrap();
    assert_eq!(count, 1);
}

#[test]
fn lines_of_many_lengths_with_common_beginnings_are_sorted() {
    let mut random = Random(2);
    let beginnings = ["", "a", "https://www.example.org/a/long/path/", "https://www.example.org/another/"];
    let mut input = Vec::new();
    while input.len() < 300_000 {
        input.extend_from_slice(beginnings[random.next() as usize % 4].as_bytes());
        let len = random.next() % 40;
        input.extend((0..len).map(|_| b"\0ab\xff"[random.next() as usize % 4]));
        input.push(b'\n');
    }
    check(&input, &Lines, 1 << 20);
    // One input has only empty lines, and another repeats one line.
    check(&b"\n".repeat(100_000), &Lines, 999);
    check(&b"the same line\n".repeat(20_000), &Lines, 999);
    check(b"", &Lines, 1);
    check(b"one\n", &Lines, 1);
}

#[test]
fn framed_rows_are_sorted_by_their_keys_alone() {
    let mut random = Random(3);
    let mut input = Vec::new();
    for number in 0..9_000u32 {
        let key: Vec<u8> = (0..random.next() % 20).map(|_| (random.next() % 3) as u8).collect();
        frame(&key, &number.to_le_bytes()[..(random.next() % 5) as usize], &mut input);
    }
    check(&input, &FramedRows { row_bytes_hint: 24 }, 4097);
}

/// A row operation that adds the numbers after the keys.
#[derive(Clone)]
struct Add;

impl RowOperation for Add {
    const COMBINES: bool = true;
    fn combine(&self, first: &mut Vec<u8>, next: &[u8]) {
        let shape = FramedRows { row_bytes_hint: 0 };
        let value = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let sum = value(shape.rest(first)) + value(shape.rest(next));
        shape.rest_mut(first).copy_from_slice(&sum.to_le_bytes());
    }
}

#[test]
fn rows_are_combined_at_every_level() {
    let mut random = Random(4);
    let (mut input, mut expected) = (Vec::new(), std::collections::BTreeMap::new());
    for _ in 0..20_000 {
        let key = format!("key {}", random.next() % 3_000).into_bytes();
        let value = random.next() % 1_000_000;
        frame(&key, &value.to_le_bytes(), &mut input);
        *expected.entry(key).or_insert(0) += value;
    }
    let shape = FramedRows { row_bytes_hint: 24 };
    for config in configs() {
        let (got, stats) = sorted(&input, 8192, shape, Add, &config).unwrap();
        let mut wanted = Vec::new();
        let append = |(key, value): (&Vec<u8>, &u64)| frame(key, &value.to_le_bytes(), &mut wanted);
        if config.descending {
            expected.iter().rev().for_each(append);
        } else {
            expected.iter().for_each(append);
        }
        assert!(got == wanted, "{config:?}");
        assert_eq!((stats.rows_in, stats.rows_out), (20_000, expected.len() as u64));
    }
}

#[test]
fn runs_beyond_the_fan_in_are_merged_in_passes() {
    let mut random = Random(5);
    let memory_bytes = smallest_row_memory_bytes(1);
    let config = RowConfig {
        memory_bytes,
        threads: 1,
        arena_bytes: Some(16 << 10),
        name: "test",
        ..RowConfig::default()
    };
    let input: Vec<u8> = (0..3_000_000 / 10 * 10).map(|_| random.next() as u8).collect();
    let shape = FixedRows::new(10, 0..4);
    let (got, stats) = sorted(&input, 1 << 20, shape, KeepAll, &config).unwrap();
    assert!(stats.runs > stats.fan_in as u64 && stats.merge_passes > 1, "{stats:?}");
    assert!(got == model(&input, &shape, false).concat());
}

#[test]
fn runs_with_narrow_and_wide_blocks_are_merged_together() {
    let mut random = Random(9);
    let shape = FixedRows::new(100, 0..8);
    let config = RowConfig {
        memory_bytes: smallest_row_memory_bytes(1),
        threads: 1,
        arena_bytes: Some(12 << 10),
        name: "test",
        ..RowConfig::default()
    };
    let plan = super::plan::RowPlan::new(&config, &shape).unwrap();
    let mut input = vec![0; 310_000 * 100];
    input.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next().to_le_bytes()));
    let (got, stats) = sorted(&input, 1 << 20, shape, KeepAll, &config).unwrap();
    let narrow_runs = plan.blocks_max() / 2 / 2;
    assert!(stats.runs > narrow_runs, "{stats:?}");
    assert!(plan.run_block_bytes(2 * narrow_runs) > plan.run_block_bytes(0));
    assert!(got == model(&input, &shape, false).concat());
}

#[test]
fn a_sort_whose_checksums_outgrow_their_share_goes_on_with_an_arena_less() {
    const ROW_BYTES: usize = 8192;
    let shape = FixedRows::new(ROW_BYTES, 0..8);
    let config = RowConfig {
        memory_bytes: smallest_row_memory_bytes(1),
        threads: 1,
        name: "test",
        ..RowConfig::default()
    };
    let plan = super::plan::RowPlan::new(&config, &shape).unwrap();
    let test = job(config.memory_bytes);
    let mut sort = RowSort::new(&test.job, shape, KeepAll, &config).unwrap();
    let mut random = Random(12);
    let (mut row, mut rows, mut sum, mut blocks) = (vec![7; ROW_BYTES], 0u64, 0u64, 0u64);
    // The loop counts the blocks of the runs, since each full arena is written as a run.
    while blocks <= plan.blocks_max() + 100 {
        for _ in 0..plan.arena_bytes / ROW_BYTES {
            let key = random.next();
            row[..8].copy_from_slice(&key.to_be_bytes());
            sort.write(&row).unwrap();
            (rows, sum) = (rows + 1, sum.wrapping_add(key));
        }
        blocks += (plan.arena_bytes / plan.run_block_bytes(blocks)) as u64;
    }
    let mut sorted = sort.finish().unwrap();
    let (mut found, mut found_sum, mut last, mut block) = (0, 0u64, 0, vec![0; 16 * ROW_BYTES]);
    loop {
        let filled = sorted.fill(&mut block).unwrap();
        for row in block[..filled].chunks_exact(ROW_BYTES) {
            let key = u64::from_be_bytes(row[..8].try_into().unwrap());
            assert!(key >= last && row[8..].iter().all(|&byte| byte == 7));
            (found, found_sum, last) = (found + 1, found_sum.wrapping_add(key), key);
        }
        if filled < block.len() {
            break;
        }
    }
    assert_eq!((found, found_sum), (rows, sum));
}

#[test]
fn a_row_that_does_not_fit_and_bytes_that_are_no_row_are_errors() {
    let config = RowConfig { memory_bytes: smallest_row_memory_bytes(1), threads: 1, ..RowConfig::default() };
    let mut input = b"short\n".to_vec();
    input.extend(vec![b'x'; 2_000_000]);
    let test = job(config.memory_bytes);
    let mut sort = RowSort::new(&test.job, Lines, KeepAll, &config).unwrap();
    let error = sort.sink().write(&input).unwrap_err().to_string();
    assert!(error.contains("a row is longer than the"), "{error}");
    drop(sort);
    let mut sort = RowSort::new(&test.job, FixedRows::new(10, 0..2), KeepAll, &config).unwrap();
    let mut sink = sort.sink();
    sink.write(&[1; 25]).unwrap();
    assert_eq!(sink.finish().unwrap(), [1; 5]);
    let mut out = [0; 100];
    assert_eq!(sort.finish().unwrap().fill(&mut out).unwrap(), 20);
    let too_small = RowConfig { memory_bytes: config.memory_bytes - 1, ..config };
    assert!(RowSort::new(&test.job, Lines, KeepAll, &too_small).is_err());
}

#[test]
fn a_stopped_sort_ends_with_its_workers() {
    let test = job(64 * MIB);
    let config = RowConfig { memory_bytes: 8 * MIB, ..RowConfig::default() };
    let mut sort = RowSort::new(&test.job, Lines, KeepAll, &config).unwrap();
    let mut sink = sort.sink();
    sink.write(&b"line\n".repeat(1_000_000)).unwrap();
    test.job.cancel().cancel();
    assert!(sink.write(&b"line\n".repeat(3_000_000)).is_err());
    drop(sort);
    assert_eq!(test.job.budget().reserved_bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn any_lines_are_sorted(
        lines in proptest::collection::vec(proptest::collection::vec(prop_oneof![0u8..3, 97u8..99, 254u8..], 0..12), 0..600),
    ) {
        let mut input = Vec::new();
        for line in lines {
            input.extend(line.into_iter().filter(|&byte| byte != b'\n'));
            input.push(b'\n');
        }
        check(&input, &Lines, 100);
    }
}

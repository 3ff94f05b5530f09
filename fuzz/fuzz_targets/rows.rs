//! Sorts lines and records in arenas so small that several are spilled, against the standard library's stable
//! sort.
//!
//! The input: a byte of options, a byte for the length of records, a byte for the number of repetitions of
//! the rest, and the rest.
#![no_main]

use std::sync::Arc;

use inshore_sortreduce::rows::{
    FixedRows, KeepAll, KeepFirst, Lines, RowConfig, RowOperation, RowShape, RowSort,
    smallest_row_memory_bytes,
};
use inshore_store::{Budget, Memory, Store};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static STORE: (tempfile::TempDir, Store) = {
        let home = tempfile::tempdir().expect("a folder");
        let store = Store::open_on(home.path(), vec![Arc::new(Memory::new(256))]).expect("a store");
        (home, store)
    };
}

fn sorted<S: RowShape>(
    shape: S,
    operation: impl RowOperation,
    descending: bool,
    input: &[u8],
    piece: usize,
) -> Vec<u8> {
    let memory_bytes = smallest_row_memory_bytes(1);
    let config = RowConfig {
        memory_bytes,
        threads: 1,
        descending,
        arena_bytes: Some(16 << 10),
        keep: None,
        name: "fuzz",
    };
    STORE.with(|(_, store)| {
        let job = store.job(Budget::new(memory_bytes, 1), Default::default()).expect("a job");
        let mut sort = RowSort::new(&job, shape, operation, &config).expect("it fits");
        let mut sink = sort.sink();
        input.chunks(piece).for_each(|piece| sink.write(piece).expect("rows of at most a few kilobytes"));
        assert!(sink.finish().expect("room").is_empty());
        let mut sorted = sort.finish().expect("room");
        let (mut out, mut block) = (Vec::new(), vec![0; 5000]);
        loop {
            let filled = sorted.fill(&mut block).expect("it was written");
            out.extend_from_slice(&block[..filled]);
            if filled < block.len() {
                return out;
            }
        }
    })
}

fn check<S: RowShape>(shape: S, how: u8, input: &[u8]) {
    let descending = how & 2 == 2;
    let (mut rows, mut rest) = (Vec::new(), input);
    while let Some(len) = shape.row_len(rest) {
        let (row, others) = rest.split_at(len);
        rows.push(row);
        rest = others;
    }
    rows.sort_by(|a, b| {
        let order = shape.key(a).cmp(shape.key(b));
        if descending { order.reverse() } else { order }
    });
    let piece = 1 + (how >> 3) as usize * 97;
    if how & 4 == 4 {
        rows.dedup_by(|next, first| shape.key(next) == shape.key(first));
        assert!(sorted(shape, KeepFirst, descending, input, piece) == rows.concat());
    } else {
        assert!(sorted(shape, KeepAll, descending, input, piece) == rows.concat());
    }
}

fuzz_target!(|bytes: &[u8]| {
    let [how, size, repeat, rest @ ..] = bytes else { return };
    // Each row has at most a sixty-fourth of the memory.
    let mut input = rest[..rest.len().min(1000)].repeat(1 + *repeat as usize % 64);
    if how & 1 == 0 {
        if !input.is_empty() {
            // A line feed ends the last line; others keep the repeated line short enough.
            input.iter_mut().skip(999).step_by(1000).for_each(|byte| *byte = b'\n');
            input.push(b'\n');
        }
        check(Lines, *how, &input);
    } else {
        let size = 1 + *size as usize % 64;
        input.truncate(input.len() / size * size);
        let start = *repeat as usize % size;
        check(FixedRows::new(size, start..size), *how, &input);
    }
});

//! Entry points for the fuzz target in `fuzz/`: messages that nodes and clients receive from each other. No input may
//! cause a panic, and every parsed message survives a round trip through its serialized form.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Once},
};

use arrow_array::{ArrayRef, BinaryArray, RecordBatch, UInt8Array, UInt64Array};
use arrow_ipc::{reader::RecordBatchDecoder, root_as_message};
use inshore_kernel::{part_rows, part_schema};
use serde::{Serialize, de::DeserializeOwned};

use crate::protocol::{self, lengths::check_lengths};

fn again<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_string(&message).expect("plain data");
    let read: T = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(serde_json::to_string(&read).expect("plain data"), text);
    Some(message)
}

/// Parses a JSON message; the first byte selects the type.
fn message(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 9 {
        0 => drop(again::<protocol::TaskRequest>(bytes)),
        1 => drop(again::<protocol::LoadStep>(bytes)),
        2 => {
            let map = again::<protocol::FileMap>(bytes);
            // The sum of the lengths in a valid map does not overflow.
            if let Some(map) = map.filter(protocol::FileMap::is_sound) {
                let _ = map.pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            }
        }
        3 => drop(again::<protocol::DatasetReplica>(bytes)),
        4 => drop(again::<Vec<protocol::DatasetKey>>(bytes)),
        5 => drop(again::<protocol::TaskDone>(bytes)),
        6 => drop(again::<protocol::LoadAnswer>(bytes)),
        7 => drop(again::<protocol::Status>(bytes).map(|status| status.without_others("me"))),
        _ => drop(again::<protocol::RemoveRequest>(bytes)),
    }
}

/// Decodes a message that consists of a batch's header and body. A batch that passes the length check is decoded in
/// little memory.
fn batch(bytes: &[u8]) {
    let Some((length, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let header = usize::from(u16::from_le_bytes(*length)).min(bytes.len());
    // The layout is the same as in a received message: the header is aligned for its numbers.
    let (header, body) = (bytes[..header].to_vec(), &bytes[header..]);
    if check_lengths(&header, body).is_err() {
        return;
    }
    let message = root_as_message(&header).expect("it was looked at");
    let Some(columns) = message.header_as_record_batch() else { return };
    let (body, none, version) = (body.into(), Default::default(), message.version());
    let decoder = RecordBatchDecoder::try_new(&body, columns, part_schema(), &none, &version);
    let read = || decoder.and_then(RecordBatchDecoder::read_record_batch);
    if let Some(Ok(batch)) = unless_it_panics(read) {
        drop(part_rows(&batch));
    }
}

thread_local! {
    static MAY_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may panic on invalid batches without reporting the panic to the fuzzer. The Arrow library
/// asserts some properties of a batch, and the client catches the panics of these assertions.
fn unless_it_panics<T>(work: impl FnOnce() -> T) -> Option<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !MAY_PANIC.get() {
                loud(info);
            }
        }));
    });
    MAY_PANIC.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    MAY_PANIC.set(false);
    done.ok()
}

/// Decodes an input of the fuzz target `node_messages`: the first byte selects JSON or an answer in Arrow's format.
pub fn input(bytes: &[u8]) {
    match bytes.first() {
        Some(0..128) => message(bytes),
        Some(_) => answers(&bytes[1..]),
        None => {}
    }
}

/// Decodes a task's answers: first `bytes` as a message, and then a batch whose columns are generated from
/// `bytes`.
fn answers(bytes: &[u8]) {
    batch(bytes);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
    let number = || Arc::new(UInt64Array::from(words.clone())) as ArrayRef;
    let whats = UInt8Array::from_iter_values(words.iter().map(|&word| word as u8));
    let parts =
        BinaryArray::from_iter_values(words.iter().map(|&word| &bytes[..word as usize % bytes.len()]));
    let columns: Vec<ArrayRef> = vec![number(), number(), number(), Arc::new(whats), Arc::new(parts)];
    let batch = RecordBatch::try_new(part_schema(), columns).expect("columns of one length");
    if let Some(rows) = part_rows(&batch) {
        assert_eq!(rows.len(), words.len());
    }
}

#[cfg(test)]
mod tests {
    use super::input;
    use proptest::{
        collection::vec,
        prelude::{Strategy, any},
        sample::Index,
        test_runner::{Config, TestRunner},
    };
    use std::{fs, path::Path};

    /// The number of random inputs. `make fuzz-long` runs a coverage-guided fuzzer instead, with this crate
    /// instrumented.
    const INPUTS: u32 = 200_000;

    /// A change of an input: a range of bytes is filled with one byte, deleted, repeated, or replaced by a range of
    /// another seed.
    #[derive(Clone, Debug)]
    enum Mutation {
        Fill(Index, usize, u8),
        Delete(Index, usize),
        Double(Index, usize),
        Copy(Index, usize, Index, Index),
    }

    fn mutations() -> impl Strategy<Value = Mutation> {
        let (at, length) = (any::<Index>, || 0..9usize);
        proptest::prop_oneof![
            (at(), length(), any::<u8>()).prop_map(|(at, length, byte)| Mutation::Fill(at, length, byte)),
            (at(), length()).prop_map(|(at, length)| Mutation::Delete(at, length)),
            (at(), length()).prop_map(|(at, length)| Mutation::Double(at, length)),
            (at(), length(), at(), at())
                .prop_map(|(at, length, seed, from)| Mutation::Copy(at, length, seed, from)),
        ]
    }

    /// Returns the range of at most `length` bytes that begins at an index.
    fn range(bytes: &[u8], at: &Index, length: usize) -> std::ops::Range<usize> {
        let start = at.index(bytes.len() + 1);
        start..(start + length).min(bytes.len())
    }

    fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation, seeds: &[Vec<u8>]) {
        match mutation {
            Mutation::Fill(at, length, byte) => {
                let range = range(bytes, at, *length);
                bytes[range].fill(*byte);
            }
            Mutation::Delete(at, length) => drop(bytes.drain(range(bytes, at, *length))),
            Mutation::Double(at, length) => {
                let range = range(bytes, at, *length);
                let doubled = bytes[range.clone()].to_vec();
                bytes.splice(range.start..range.start, doubled);
            }
            Mutation::Copy(at, length, seed, from) => {
                let seed = &seeds[seed.index(seeds.len())];
                let copied = seed[range(seed, from, 4 * length)].to_vec();
                bytes.splice(range(bytes, at, *length), copied);
            }
        }
    }

    #[test]
    fn mutated_messages_never_panic() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/node_messages");
        let Ok(entries) = fs::read_dir(&folder) else {
            eprintln!("skipped: {} is absent", folder.display());
            return;
        };
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let seeds: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(seeds.len() > 10);
        seeds.iter().for_each(|seed| input(seed));
        let mut runner =
            TestRunner::new(Config { cases: INPUTS, failure_persistence: None, ..Config::default() });
        let run = runner.run(&(any::<Index>(), vec(mutations(), 1..5)), |(seed, changes)| {
            let mut bytes = seeds[seed.index(seeds.len())].clone();
            changes.iter().for_each(|change| mutate(&mut bytes, change, &seeds));
            input(&bytes);
            Ok(())
        });
        run.unwrap();
    }
}

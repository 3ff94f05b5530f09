//! What nodes and clients read from each other, for the target in `fuzz/`: whatever the bytes are, nothing panics, and what is
//! understood is said again in the same words.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Once},
};

use arrow_array::{ArrayRef, BinaryArray, RecordBatch, UInt8Array, UInt64Array};
use arrow_ipc::{reader::RecordBatchDecoder, root_as_message};
use serde::{Serialize, de::DeserializeOwned};

use crate::{lengths::check_lengths, part_rows, part_schema, protocol};

fn again<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_string(&message).expect("plain data");
    let read: T = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(serde_json::to_string(&read).expect("plain data"), text);
    Some(message)
}

/// A message of JSON, of any kind; the first byte says of which.
pub fn message(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 9 {
        0 => drop(again::<protocol::TaskRequest>(bytes)),
        1 => drop(again::<protocol::LoadStep>(bytes)),
        2 => {
            let map = again::<protocol::Map>(bytes);
            // What is sound can be added up.
            if let Some(map) = map.filter(protocol::Map::is_sound) {
                let _ = map.pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            }
        }
        3 => drop(again::<protocol::Held>(bytes)),
        4 => drop(again::<protocol::DatasetKey>(bytes)),
        5 => drop(again::<protocol::TaskDone>(bytes)),
        6 => drop(again::<protocol::LoadAnswer>(bytes)),
        7 => drop(again::<protocol::Status>(bytes).map(|status| status.without_others("me"))),
        _ => drop(again::<protocol::Removal>(bytes)),
    }
}

/// A message with a batch, its header before its body: what is let through is unpacked in little memory.
fn batch(bytes: &[u8]) {
    let Some((length, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let header = usize::from(u16::from_le_bytes(*length)).min(bytes.len());
    // As the wire has them: the header where its numbers are aligned.
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

/// The library asserts some of what a batch claims; whoever reads answers of nodes catches that. The fuzzer must not hear of it.
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

/// Answers of a task: a message, or the columns of one made of the bytes.
pub fn answers(bytes: &[u8]) {
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

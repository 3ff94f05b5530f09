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
pub fn message(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 9 {
        0 => drop(again::<protocol::TaskRequest>(bytes)),
        1 => drop(again::<protocol::LoadStep>(bytes)),
        2 => {
            let map = again::<protocol::Map>(bytes);
            // The sum of a sound map's lengths does not overflow.
            if let Some(map) = map.filter(protocol::Map::is_sound) {
                let _ = map.pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            }
        }
        3 => drop(again::<protocol::Held>(bytes)),
        4 => drop(again::<Vec<protocol::DatasetKey>>(bytes)),
        5 => drop(again::<protocol::TaskDone>(bytes)),
        6 => drop(again::<protocol::LoadAnswer>(bytes)),
        7 => drop(again::<protocol::Status>(bytes).map(|status| status.without_others("me"))),
        _ => drop(again::<protocol::Removal>(bytes)),
    }
}

/// Decodes a message with a batch, its header before its body. A batch that passes the length check is decoded in
/// little memory.
fn batch(bytes: &[u8]) {
    let Some((length, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let header = usize::from(u16::from_le_bytes(*length)).min(bytes.len());
    // The same layout as on the wire: the header is aligned for its numbers.
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

/// Runs code that may panic on invalid batches without reporting the panic to the fuzzer. The Arrow library asserts
/// some claims of a batch; the client catches these panics.
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

/// Decodes a task's answers: `bytes` as a message, and a batch whose columns are made of `bytes`.
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

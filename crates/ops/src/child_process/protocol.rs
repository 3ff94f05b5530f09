//! This module defines the messages between a node and the child process of a task. The documentation of the
//! module `child_process` describes the layout of the messages.

use std::time::Duration;

use inshore_nodes::protocol::PieceRequest;
use inshore_store::ProcessCounts;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The maximal length of a summary or an error message, in bytes.
pub(super) const WORDS_BYTES_MAX: usize = 4 << 10;
/// The interval at which the node checks for cancellation, and at which the child process reports its counters.
pub(super) const TICK: Duration = Duration::from_millis(50);

pub(super) const COUNTS: u8 = 0;
pub(super) const NEXT: u8 = 1;
pub(super) const ROWS: u8 = 2;
pub(super) const DONE: u8 = 3;
pub(super) const FAILED: u8 = 4;
pub(super) const BEGUN: u8 = 5;
/// A request for the next block of a stream, with the number of the stream (u32).
pub(super) const READ: u8 = 6;
/// The task failed, and would fail in the same way each time.
pub(super) const FAILED_FINALLY: u8 = 7;
/// The two kinds of messages from the node: a batch was taken, and the reply to a request for a source or a block.
pub(super) const TAKEN: u8 = 2;
pub(super) const PIECE: u8 = 3;
/// The maximum length of the reply to a request, in bytes.
pub(super) const PIECE_BYTES_MAX: u64 = 256 << 10;
/// The first byte of a block of a stream: bytes follow, or the text of an error follows.
pub(super) const BLOCK: u8 = 0;
pub(super) const BLOCK_FAILED: u8 = 1;

#[derive(Serialize, Deserialize)]
pub(super) struct TaskOrder {
    pub(super) kind: String,
    /// The paths of the store's folders, one for each device, as raw bytes.
    pub(super) store: Vec<Vec<u8>>,
    pub(super) memory_bytes: u64,
    /// True if the memory of this message is a part of `memory_bytes`.
    pub(super) is_within: bool,
    pub(super) threads: usize,
    pub(super) batch_bytes_max: u64,
    pub(super) arguments: Value,
    /// The expected number of bytes of all shards.
    pub(super) bytes: u64,
    pub(super) count_max: usize,
}

/// The next source, `None` after the last source, or the reason why a source cannot be read.
pub(super) type NextPiece = Result<Option<NextSource>, String>;

/// A source of the task.
#[derive(Serialize, Deserialize)]
pub(super) enum NextSource {
    /// A shard of the store, which the process opens itself.
    Shard(PieceRequest),
    /// Bytes that the node sends in blocks.
    Stream(SentSource),
}

/// A source whose bytes the node sends.
#[derive(Serialize, Deserialize)]
pub(super) struct SentSource {
    /// The number of the stream, counted from 0 in the order of the sources that are sent.
    pub(super) stream: u32,
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) whole: u64,
    pub(super) offset: u64,
    pub(super) lines: u64,
    /// True if the task may read the source at any position. The process then stores it first.
    pub(super) is_stored: bool,
}

/// The header of a message to the node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessageHeader {
    pub(super) kind: u8,
    pub(super) length: u64,
    pub(super) counts: ProcessCounts,
}

pub(super) const HEADER_BYTES: usize = 1 + 5 * 8;

impl MessageHeader {
    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let ProcessCounts { bytes_read, bytes_written, repairs, cpu_us } = self.counts;
        let mut bytes = [self.kind; HEADER_BYTES];
        let numbers = [self.length, bytes_read, bytes_written, repairs, cpu_us];
        for (place, number) in bytes[1..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> MessageHeader {
        let number =
            |place: usize| u64::from_le_bytes(bytes[1 + 8 * place..][..8].try_into().expect("8 bytes"));
        let (bytes_read, bytes_written, repairs, cpu_us) = (number(1), number(2), number(3), number(4));
        let counts = ProcessCounts { bytes_read, bytes_written, repairs, cpu_us };
        MessageHeader { kind: bytes[0], length: number(0), counts }
    }

    /// Returns the maximal length of a message of this kind, in bytes.
    pub(super) fn length_max(kind: u8, batch_bytes_max: u64) -> u64 {
        match kind {
            ROWS | DONE | FAILED | FAILED_FINALLY | BEGUN => batch_bytes_max,
            READ => size_of::<u32>() as u64,
            _ => 0,
        }
    }
}

/// Truncates a message to [`WORDS_BYTES_MAX`], since a value in an error message may have millions of characters.
pub(super) fn shortened(words: &str) -> String {
    match words.len() > WORDS_BYTES_MAX {
        true => format!("{} ...", &words[..words.floor_char_boundary(WORDS_BYTES_MAX)]),
        false => words.to_string(),
    }
}

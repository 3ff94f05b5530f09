//! The list of a stage's outputs, which the driver sends to the nodes that merge them.
//!
//! A merge reads one range of each output of a stage, so its node needs to know all of them. A node keeps the list of each
//! stage, and each attempt that the driver sends to it brings what has changed since the attempt before:
//!
//! ```text
//!   changes of the stage:   0 ......... 400 .. 420 ............ 1000      the scheduler's versions
//!   attempts of one node:   [0, 400)    [400, 420)  [420, 1000)           each change is sent to a node once
//! ```
//!
//! For m outputs and n nodes, the driver sends m × n entries. A list in each of r merges would be m × r entries.
//!
//! An attempt that was cancelled or lost may not have brought its part. The driver then begins at version 0 again, and a
//! node that gets a part without the one before it says so instead of merging.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use serde::{Deserialize, Serialize};

/// The size of an encoded entry: partition, token and node as u32, and the checksum as u64, in little endian.
const ENTRY_BYTES: usize = 20;

/// An output that a merge reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Producer {
    pub token: u32,
    pub node: u32,
    pub checksum: u64,
}

/// A part of the list of a stage's outputs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListPart {
    pub stage: u32,
    /// The number of the stage's partitions.
    pub partitions: u32,
    /// The version that the part continues, and the version that the list has with it.
    pub from: u64,
    pub to: u64,
    /// The present outputs of the partitions that changed, encoded and in base 64: as a list of numbers they would take
    /// ten times the memory on both sides.
    outputs: String,
}

impl ListPart {
    pub fn new(
        (stage, partitions): (u32, u32),
        (from, to): (usize, usize),
        outputs: impl Iterator<Item = (u32, Producer)>,
    ) -> ListPart {
        let mut bytes = Vec::new();
        for (partition, Producer { token, node, checksum }) in outputs {
            [partition, token, node].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend(checksum.to_le_bytes());
        }
        let outputs = BASE64.encode(bytes);
        ListPart { stage, partitions, from: from as u64, to: to as u64, outputs }
    }

    /// Returns the size of the entries in the request, in bytes.
    pub fn bytes(&self) -> u64 {
        self.outputs.len() as u64
    }

    /// Returns the entries: partitions with their outputs. Returns `None` if they are invalid.
    pub fn outputs(&self) -> Option<Vec<(u32, Producer)>> {
        let bytes = BASE64.decode(&self.outputs).ok()?;
        let (entries, []) = bytes.as_chunks::<ENTRY_BYTES>() else { return None };
        let entry = |entry: &[u8; ENTRY_BYTES]| {
            let number = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
            let checksum = u64::from_le_bytes(entry[12..].try_into().expect("8 bytes"));
            (number(0), Producer { token: number(4), node: number(8), checksum })
        };
        Some(entries.iter().map(entry).collect())
    }
}

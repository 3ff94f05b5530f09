//! Compresses files in a task on the node that stores the files, so that only compressed bytes are sent over the
//! network.
//!
//! Each block that a node reads is compressed to one or a few pieces of the format. The concatenated pieces are a file
//! of the format. The result has about the size of the result of [`super::compress`], but different bytes. The blocks
//! of the result are as large as the node's reads. A read has 2 MiB, or less if there is little memory. A result in lz4
//! has a frame for each block.

use inshore_kernel::{Block, Border, Failure, Kernel, Parts, Portable, Reply, Task, TaskHandler};
use inshore_store::{Budget, Context, Reservation};
use serde_json::{Value, json};

use super::{Format, Packer};
use crate::{Error, Result};

/// A block that a node reads has at most this number of bytes.
const BLOCK_BYTES: u64 = 2 << 20;

/// The handler of the task that compresses on a node. The task's memory determines the number of threads.
#[derive(Debug)]
pub struct Packs;

impl TaskHandler for Packs {
    fn kind(&self) -> &'static str {
        Pack::KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let pack = Pack::of_arguments(&task.arguments)?;
        let (memory_bytes, threads) = (task.job.budget().memory_bytes(), task.job.budget().threads());
        // Half of the task's memory is for reading. The workers get a quarter of the task's memory.
        let room = memory_bytes / 4 / pack.worker_bytes();
        let budget = Budget::new(memory_bytes, (room as usize).clamp(1, threads));
        Parts::<Pack>::default().work(Task { job: task.job.within(budget), ..task }, reply)
    }
}

/// The kernel that compresses blocks of a file to pieces of a format.
#[derive(Clone, Copy, Debug)]
pub struct Pack {
    format: Format,
    level: u32,
    /// The size of a block in bytes, for sources other than datasets. The value is `None` if the reader chooses the
    /// size.
    block_bytes: Option<usize>,
}

impl Pack {
    /// Creates the kernel for `format`. Without a `level`, the kernel uses the format's default level.
    ///
    /// # Errors
    /// Returns [`Error::BadLevel`] if the format does not have the level.
    pub fn new(format: Format, level: Option<u32>) -> Result<Pack> {
        Ok(Pack { format, level: format.checked_level(level)?, block_bytes: None })
    }

    /// Returns the memory of a worker in bytes. A worker needs memory for the compressor's state and for a compressed
    /// block.
    fn worker_bytes(self) -> u64 {
        self.format.state_bytes(self.level) + 2 * BLOCK_BYTES
    }

    /// Compresses an empty input. The result is a complete file, which a program can decompress.
    ///
    /// # Errors
    /// Returns [`Error::Damaged`] if the compressor fails.
    pub fn of_nothing(self) -> Result<Vec<u8>> {
        let packer = Packer::new(self.format);
        Ok([packer.head(), self.format.pack(&[], self.level)?, packer.tail()].concat())
    }

    /// Compresses `bytes` to pieces of the format.
    fn pieces(self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut packed = Vec::new();
        for bytes in bytes.chunks(self.format.block_bytes(self.level)) {
            let mut packer = Packer::new(self.format);
            packer.saw(bytes);
            packed.extend(packer.head());
            packed.extend(self.format.pack(bytes, self.level)?);
            packed.extend(packer.tail());
        }
        Ok(packed)
    }
}

impl Kernel for Pack {
    type Error = Error;
    type Worker = Reservation;
    type Part = Vec<u8>;

    fn border(&self) -> Border {
        Border::Byte
    }

    fn cached_block_bytes(&self) -> usize {
        self.block_bytes.unwrap_or(256 << 10)
    }

    fn worker(&self, job: &Context) -> Result<Reservation> {
        Ok(job.budget().reserve(self.worker_bytes(), "a compressor")?)
    }

    fn block(&self, _: &mut Reservation, block: &Block<'_>) -> Result<Vec<u8>> {
        self.pieces(block.bytes)
    }

    fn part_bytes(&self, part: &Vec<u8>) -> u64 {
        part.capacity() as u64
    }
}

impl Portable for Pack {
    const KIND: &'static str = "compress";
    const CAN_HELP: bool = true;

    fn arguments(&self) -> Value {
        json!({ "format": self.format.to_string(), "level": self.level })
    }

    fn of_arguments(arguments: &Value) -> Result<Pack> {
        let format = arguments["format"].as_str().and_then(|format| format.parse().ok());
        let level = arguments["level"].as_u64().and_then(|level| u32::try_from(level).ok());
        match (format, level) {
            (Some(format), Some(level)) => Pack::new(format, Some(level)),
            _ => {
                let what = format!("expected a format and a level, got {arguments}");
                Err(Error::Damaged { name: "request to compress".to_string(), what })
            }
        }
    }

    /// The blocks are about as large as the blocks that a node with enough memory reads. The compression ratio on the
    /// client is thus about equal to the ratio on a node.
    fn for_client(arguments: &Value) -> Result<Pack> {
        let pack = Pack::of_arguments(arguments)?;
        Ok(Pack { block_bytes: Some(BLOCK_BYTES as usize), ..pack })
    }

    fn encode(part: &Vec<u8>, out: &mut Vec<u8>) {
        out.extend_from_slice(part);
    }

    fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}

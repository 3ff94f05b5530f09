//! Keeps the memory of a call of a [`crate::Searcher`] for the next call. The memory consists of the buffers of a pass,
//! or of the workers of a search in an index. Reuse avoids the allocation of fresh memory, which takes as long as a
//! query.

use std::any::Any;

use inshore_store::{Buffer, taken_bytes};

/// The memory that is kept. It stays reserved in the budget of the calls.
#[derive(Default)]
pub(crate) enum Kept {
    #[default]
    Nothing,
    /// Read buffers of equal length.
    Blocks(Vec<Buffer>),
    /// A `Vec` of workers for some element type, and the number of bytes that these workers have reserved.
    Workers(Box<dyn Any + Send>, u64),
}

impl Kept {
    /// Returns the number of bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        match self {
            Kept::Nothing => 0,
            Kept::Blocks(blocks) => taken_bytes(blocks.iter().map(|block| block.len()).sum()) as u64,
            Kept::Workers(_, bytes) => *bytes,
        }
    }

    /// Takes `count` buffers of `len` bytes each. Returns `None` if the kept buffers have another number or length. In
    /// both cases nothing is kept afterwards.
    pub fn take_blocks(&mut self, count: usize, len: usize) -> Option<Vec<Buffer>> {
        match std::mem::take(self) {
            Kept::Blocks(blocks) if blocks.len() == count && blocks[0].len() == len => Some(blocks),
            _ => None,
        }
    }

    /// Takes the kept workers. The result is empty if no workers of the type `W` are kept. In all cases nothing is kept
    /// afterwards.
    pub fn take_workers<W: 'static>(&mut self) -> Vec<W> {
        match std::mem::take(self) {
            Kept::Workers(workers, _) => workers.downcast::<Vec<W>>().map_or_else(|_| Vec::new(), |all| *all),
            _ => Vec::new(),
        }
    }
}

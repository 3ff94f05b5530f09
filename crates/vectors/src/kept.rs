//! Memory that a call of a [`crate::Searcher`] leaves for the next one, since fresh memory costs as much as a query: the
//! buffers of a pass, or the threads' memory of a search in an index.

use std::any::Any;

use inshore_store::{Buffer, taken_bytes};

/// The memory that is kept, which stays reserved in the budget of the calls.
#[derive(Default)]
pub(crate) enum Kept {
    #[default]
    Nothing,
    /// Read buffers of equal length.
    Blocks(Vec<Buffer>),
    /// A `Vec` of workers of some element type, and the bytes that they have reserved.
    Workers(Box<dyn Any + Send>, u64),
}

impl Kept {
    /// Returns the bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        match self {
            Kept::Nothing => 0,
            Kept::Blocks(blocks) => taken_bytes(blocks.iter().map(|block| block.len()).sum()) as u64,
            Kept::Workers(_, bytes) => *bytes,
        }
    }

    /// Takes `count` buffers of `len` bytes each; `None` if others are kept. All that is kept is gone then.
    pub fn take_blocks(&mut self, count: usize, len: usize) -> Option<Vec<Buffer>> {
        match std::mem::take(self) {
            Kept::Blocks(blocks) if blocks.len() == count && blocks[0].len() == len => Some(blocks),
            _ => None,
        }
    }

    /// Takes the workers; none if other memory is kept. All that is kept is gone then.
    pub fn take_workers<W: 'static>(&mut self) -> Vec<W> {
        match std::mem::take(self) {
            Kept::Workers(workers, _) => workers.downcast::<Vec<W>>().map_or_else(|_| Vec::new(), |all| *all),
            _ => Vec::new(),
        }
    }
}

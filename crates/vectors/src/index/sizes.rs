//! The sizes of the lists of an index, with the vectors that layers added to them.

use inshore_store::{FileReader, Job};
use serde::Serialize;
use zerocopy::{FromBytes, little_endian::U64};

use super::{
    build::{SPLIT_TIMES, planned_list_vectors},
    dataset::VectorIndex,
};
use crate::Result;

/// The sizes of the lists of an index. The sizes include the vectors in layers, and vectors that were removed after
/// their list or layer was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListSizes {
    /// The planned number of vectors of a list.
    pub planned: u64,
    /// The number of vectors in the largest list.
    pub largest: u64,
    /// The number of lists with more than twice the planned number of vectors. A compaction splits lists that have
    /// grown so far.
    pub oversized: u64,
}

/// The size of a read buffer in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Returns the sizes of the lists of an index.
///
/// The function reads the directories of the lists and of the layers. It takes 128 KiB of memory for each of them.
///
/// # Errors
/// - Returns [`crate::Error::BadDataset`] if a directory of a layer does not exist or is too short.
/// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too little
///   free memory.
pub fn list_sizes(job: &Job, index: &VectorIndex) -> Result<ListSizes> {
    let mut files = vec![index.files.firsts.clone()];
    for layer in &index.layers {
        files.push(layer.firsts_file(index.info())?);
    }
    let readers = files.iter().map(|file| FileReader::new(job, file, 0..file.len(), BUFFER_BYTES));
    let mut readers = readers.collect::<inshore_store::Result<Vec<_>>>()?;
    let planned = planned_list_vectors(index.info());
    let mut sizes = ListSizes { planned, largest: 0, oversized: 0 };
    // The number of vectors before a list in all directories. The directories have the same length, so their pieces
    // have the same lists.
    let (mut places, mut before): (Vec<u64>, Option<u64>) = (Vec::new(), None);
    loop {
        places.clear();
        for reader in &mut readers {
            let Some(piece) = reader.next_piece()? else { return Ok(sizes) };
            let firsts = <[U64]>::ref_from_bytes(piece).expect("whole numbers");
            places.resize(firsts.len(), 0);
            places.iter_mut().zip(firsts).for_each(|(sum, first)| *sum = sum.saturating_add(first.get()));
        }
        for &place in &places {
            // The first number is the beginning of list 0.
            let count = place.saturating_sub(before.unwrap_or(place));
            sizes.largest = sizes.largest.max(count);
            sizes.oversized += u64::from(count > SPLIT_TIMES * planned);
            before = Some(place);
        }
    }
}

//! Looks up single entries of the file of the user's ids: the vertex number of an id, or the id of a vertex number. Ids
//! are in ascending order.

use inshore_store::{Buffer, CheckedFile, Job};

use crate::Result;

/// The ids file has one checksum per block of this size. The file is read sequentially, except for lookups of single
/// ids.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;
const BLOCK_IDS: u64 = BLOCK_BYTES as u64 / 8;

/// Finds the vertex number of `id` in the ascending ids of `file`: a binary search finds the block, and another one
/// finds the id in it.
pub(crate) fn search(job: &Job, file: &CheckedFile, id: u64) -> Result<Option<u32>> {
    let mut buffer = Buffer::zeroed(job.budget(), BLOCK_BYTES, "a lookup of a vertex id")?;
    let (mut low, mut high) = (0, file.len().div_ceil(BLOCK_BYTES as u64));
    while low < high {
        let middle = (low + high) / 2;
        let start = middle * BLOCK_BYTES as u64;
        let range = start..(start + BLOCK_BYTES as u64).min(file.len());
        let (read, place) = file.submit_read(job, range, buffer)?.wait()?;
        let ids = &read.typed::<u64>()[place.start / 8..place.end / 8];
        match (ids[0] <= id, id <= ids[ids.len() - 1]) {
            (true, true) => {
                let place = ids.binary_search(&id).ok();
                return Ok(place.map(|place| (middle * BLOCK_IDS + place as u64) as u32));
            }
            (true, false) => low = middle + 1,
            (false, _) => high = middle,
        }
        buffer = read;
    }
    Ok(None)
}

/// Returns the id of vertex `number`.
pub(crate) fn get(job: &Job, file: &CheckedFile, number: u32) -> Result<u64> {
    let buffer = Buffer::zeroed(job.budget(), BLOCK_BYTES, "a lookup of a vertex id")?;
    let start = number as u64 * 8;
    let (buffer, place) = file.submit_read(job, start..start + 8, buffer)?.wait()?;
    Ok(buffer.typed::<u64>()[place.start / 8])
}

//! Draws vectors at random, and reads them from the dataset with random reads.

use std::sync::Mutex;

use inshore_store::Job;

use crate::{
    Result, Vectors,
    index::Ranges,
    random::{below, mixed},
};

/// The purpose of a sample. Samples for different purposes are independent.
#[derive(Clone, Copy)]
pub(super) enum Drawn {
    /// The sample adapts the hash functions to the data.
    Sample = 11,
    /// The sample consists of the queries on which recall is measured.
    HeldOut = 12,
}

/// Draws at most `count` different row numbers below `rows`. The result is ascending. A number that is drawn twice
/// occurs once, so the result may be shorter than `count`.
pub(super) fn drawn(seed: u64, drawn: Drawn, count: u64, rows: u64) -> Vec<u64> {
    let seed = mixed(seed ^ mixed(drawn as u64));
    let mut numbers: Vec<u64> = (0..count).map(|number| below(mixed(seed ^ mixed(number)), rows)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Reads the rows with the numbers `numbers`. Returns their bytes in the order of `numbers`.
///
/// # Errors
/// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
/// memory, or the job was cancelled.
pub(super) fn read_rows(job: &Job, vectors: &Vectors, numbers: &[u64]) -> Result<Vec<u8>> {
    let row_bytes = vectors.info().row_bytes();
    let file = &vectors.file;
    let bytes = Mutex::new(vec![0; numbers.len() * row_bytes]);
    let range = |number: u64| {
        let row = *numbers.get(number as usize)?;
        Some(row * row_bytes as u64..(row + 1) * row_bytes as u64)
    };
    let buffer_bytes = (row_bytes + 2 * file.block_bytes()).next_multiple_of(file.block_bytes());
    Ranges { job, file, threads: 1, buffer_bytes, range }.each(
        || (),
        |(), number, row| {
            let mut bytes = bytes.lock().expect("no panic under this lock");
            bytes[number as usize * row_bytes..][..row_bytes].copy_from_slice(row);
            job.progress().add(1);
            Ok(())
        },
    )?;
    Ok(bytes.into_inner().expect("no panic under this lock"))
}

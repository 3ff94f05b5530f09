//! Reads small files of elements as a whole.

use inshore_store::{CheckedFile, FileReader, Job};
use zerocopy::{FromBytes, Immutable};

use crate::Result;

/// The buffer of small files.
const BUFFER_BYTES: usize = 64 << 10;
/// The memory of the buffers of [`read_elements`].
pub(crate) const READ_ELEMENTS_BYTES: u64 = 2 * BUFFER_BYTES as u64;

/// Reads a whole file of elements.
///
/// # Errors
/// I/O and damage; too little memory for a buffer.
pub(crate) fn read_elements<E: FromBytes + Immutable + Copy>(
    job: &Job,
    file: &CheckedFile,
    mut each: impl FnMut(&[E]),
) -> Result<()> {
    let mut reader = FileReader::new(job, file, 0..file.len(), BUFFER_BYTES.max(file.block_bytes()))?;
    while let Some(piece) = reader.next_piece()? {
        each(<[E]>::ref_from_bytes(piece).expect("whole elements at aligned places"));
    }
    Ok(())
}

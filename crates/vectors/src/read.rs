//! Reads a small file of elements from start to end.

use inshore_store::{CheckedFile, FileReader, Job};
use zerocopy::{FromBytes, Immutable};

use crate::Result;

/// The size of the read buffer in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// The memory of the buffers of [`read_elements`] in bytes.
pub(crate) const READ_ELEMENTS_BYTES: u64 = 2 * BUFFER_BYTES as u64;

/// Reads a whole file, and passes its elements to `each`, piece by piece.
///
/// # Errors
/// - Returns [`crate::Error::Store`] if the budget has too little free memory for a buffer.
/// - Returns [`crate::Error::Store`] if an I/O operation fails or stored bytes are damaged.
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

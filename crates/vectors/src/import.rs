//! The import of a file of vectors as a dataset, in one pass.
//!
//! ```text
//!   file ─► rows, checked and as stored elements ─┬─► `vectors`
//!                                                 └─► sum of each dimension ─► `center`
//! ```
//!
//! The cost is one read of the file and one write of the dataset. Memory: four buffers of 1 MiB to read, two of 1 MiB
//! to write, 0.5 MiB of rows, and 8 bytes for each dimension.

use inshore_store::{Job, Store};
use serde::Serialize;

use crate::{
    Result, VectorFile, VectorsInfo,
    dataset::{CENTER, KIND, VECTORS},
    element::{Element, floats},
};

/// The size of a check block. A search reads whole vectors, about 1 MiB at once. The first and the last check block of
/// a read are moved as a whole, which adds at most two check blocks.
pub(crate) const CHECK_BYTES: usize = 16 << 10;
pub(crate) const BUFFER_BYTES: usize = 1 << 20;
pub(crate) const BUFFERS: usize = 2;

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Imported {
    /// The new dataset.
    #[serde(flatten)]
    pub info: VectorsInfo,
    /// The number of elements that were rounded, from f64 to f32.
    pub rounded: u64,
}

/// Imports `file` as the dataset `name`. A job that ends before the commit leaves nothing.
///
/// # Errors
/// [`crate::Error::BadFile`] for a malformed vector or a value that is not finite; names that exist; I/O; too little
/// memory; cancellation.
pub fn import(store: &Store, job: &Job, name: &str, file: &VectorFile) -> Result<Imported> {
    let (dimensions, element) = (file.dimensions(), file.element());
    let buffers = (BUFFERS * BUFFER_BYTES + 2 * CHECK_BYTES + (64 << 10)) as u64;
    let work = file.rows_bytes(true) - inshore_store::FILE_SOURCE_BYTES + dimensions as u64 * (8 + 4);
    job.budget()
        .need(buffers + inshore_store::FILE_SOURCE_BYTES + work, || "importing vectors".to_string())?;
    let _work = job.budget().reserve(work, "vectors that are imported")?;
    let mut builder = store.create_dataset(job, name, KIND)?;
    // Vectors can be added.
    builder.unsealed();
    let mut writer = builder.file_with_buffers(VECTORS, CHECK_BYTES, BUFFER_BYTES, BUFFERS)?;
    let mut rows = file.rows(job, 0, true)?;
    let mut sums = vec![0.0f64; dimensions];
    let mut decoded = Vec::with_capacity(dimensions);
    job.start_phase("importing", "vectors", file.count());
    loop {
        let bytes = rows.next(u64::MAX)?;
        if bytes.is_empty() {
            break;
        }
        writer.write(bytes)?;
        let row_bytes = element.row_bytes(dimensions);
        let mut add = |row: &[f32]| sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        match element {
            Element::F32 => floats(bytes).chunks_exact(dimensions).for_each(add),
            Element::F16 | Element::Bf16 => {
                for row in bytes.chunks_exact(row_bytes) {
                    decoded.clear();
                    element.decode(row, &mut decoded);
                    add(&decoded);
                }
            }
            Element::U8 | Element::I8 | Element::Bits => {}
        }
        job.progress().add((bytes.len() / row_bytes) as u64);
    }
    builder.add(writer)?;
    if element.is_float() {
        let mut writer = builder.file(CENTER, CHECK_BYTES, CHECK_BYTES)?;
        for sum in &sums {
            writer.write(&((sum / file.count() as f64) as f32).to_le_bytes())?;
        }
        builder.add(writer)?;
    }
    let info = VectorsInfo::new(name, file.count(), dimensions, element, builder.bytes());
    builder.commit(&info.to_attributes())?;
    Ok(Imported { info, rounded: rows.rounded() })
}

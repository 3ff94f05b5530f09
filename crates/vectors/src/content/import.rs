//! The import of content as a dataset of vectors, in one pass.
//!
//! ```text
//!   ContentRows ─► rows ─┬─► `vectors`
//!                        └─► sum of each dimension ─► `center`      f32 only
//!   vocabulary ────────────► `content`
//! ```

use inshore_store::{Job, Store};
use serde::Serialize;

use super::{CONTENT, ContentRows, stored::write_content};
use crate::{
    Element, Error, Result, VectorsInfo,
    dataset::{CENTER, KIND, VECTORS},
    import::{BUFFER_BYTES, BUFFERS, CHECK_BYTES},
};

/// The result of an import of content.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportedContent {
    /// The new dataset.
    #[serde(flatten)]
    pub info: VectorsInfo,
    /// The number of malformed items that were left out.
    pub skipped: u64,
    /// The error of the first of them.
    pub first_skipped: Option<String>,
}

/// Imports vectors that are computed from content as the dataset `name`, and keeps what queries need: the vocabulary of
/// documents. A job that ends before the commit leaves nothing.
///
/// Memory: that of the rows, and [`super::CONSUMER_BYTES`].
///
/// # Errors
/// [`Error::BadFile`] for malformed content, and if all items were left out; names that exist; I/O; too little memory;
/// cancellation.
pub fn import_content(
    store: &Store,
    job: &Job,
    name: &str,
    content: &mut dyn ContentRows,
) -> Result<ImportedContent> {
    let (element, dimensions) = (content.element(), content.dimensions());
    let mut builder = store.create_dataset(job, name, KIND)?;
    // Vectors can be added.
    builder.unsealed();
    let mut writer = builder.file_with_buffers(VECTORS, CHECK_BYTES, BUFFER_BYTES, BUFFERS)?;
    let mut sums = vec![0.0f64; if element == Element::F32 { dimensions } else { 0 }];
    let mut vectors = 0;
    let (unit, total) = content.total();
    job.start_phase("computing vectors", unit, total);
    while let Some(batch) = content.next()? {
        writer.write(batch.rows)?;
        let floats = if element == Element::F32 { batch.rows } else { &[] };
        for row in floats.chunks_exact(4 * dimensions) {
            for (sum, value) in sums.iter_mut().zip(row.as_chunks::<4>().0) {
                *sum += f64::from(f32::from_le_bytes(*value));
            }
        }
        vectors += (batch.rows.len() / element.row_bytes(dimensions)) as u64;
    }
    let (skipped, first_skipped) = content.skipped();
    if vectors == 0 {
        let found =
            first_skipped.map_or("none".to_string(), |first| format!("{skipped} malformed ({first})"));
        let (file, expected) = (name.to_string(), "at least one".to_string());
        return Err(Error::BadFile { file, place: unit.to_string(), found, expected });
    }
    builder.add(writer)?;
    if !sums.is_empty() {
        let mut writer = builder.file(CENTER, CHECK_BYTES, CHECK_BYTES)?;
        for sum in &sums {
            writer.write(&((sum / vectors as f64) as f32).to_le_bytes())?;
        }
        builder.add(writer)?;
    }
    let mut writer = builder.file(CONTENT, CHECK_BYTES, CHECK_BYTES)?;
    write_content(&mut writer, content.vocabulary())?;
    builder.add(writer)?;
    let info = VectorsInfo::new(name, vectors, dimensions, element, builder.bytes());
    builder.commit(&info.to_attributes())?;
    Ok(ImportedContent { info, skipped, first_skipped })
}

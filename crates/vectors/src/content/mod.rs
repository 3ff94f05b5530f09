//! Vectors that are computed from images and documents.
//!
//! ```text
//!   files ─► Images: decode, scale, histogram ───────┬─► import_content ─► dataset with the file `content`
//!   texts ─► a source of the caller: word counts ────┴─► content_queries ─► a scratch file of queries
//! ```
//!
//! A [`ContentRows`] computes vectors in batches, on all threads. The dataset also stores the [`Content`]. It contains
//! the settings that are needed to compute the vectors of queries in the same way.
//!
//! Content search is described in chapter 6 of the 2018 thesis and in section 7.1 of the 2016 article (see
//! docs/from-the-papers.md). The papers compute histograms during each search, and therefore read 48 KiB for each
//! image. This module computes the histograms once, during the import, so that a search reads 1 KiB for each image.

mod decode;
mod each;
mod files;
mod histogram;
mod images;
mod import;
mod jpeg;
mod png;
mod queries;
mod scale;
mod stored;
mod vocabulary;

pub(crate) use self::import::Paths;
pub use self::{
    each::each_row,
    files::{Files, list_files},
    images::Images,
    import::{CONSUMER_BYTES, ImportedContent, import_content},
    queries::content_queries,
    stored::Content,
    vocabulary::Vocabulary,
};
use crate::{Element, Result};

/// A batch of vectors. The vectors follow the vectors of the previous batch.
pub struct RowBatch<'a> {
    /// The elements of the vectors. The slice is aligned for its element type.
    pub rows: &'a [u8],
    /// The path of the file of each vector. The slice is empty if all vectors come from one file.
    pub paths: &'a [String],
}

/// A source of vectors that are computed from content.
pub trait ContentRows {
    /// Returns the vocabulary that the dataset stores, or `None` for images.
    fn vocabulary(&self) -> Option<&Vocabulary>;
    /// Returns the element type of the vectors.
    fn element(&self) -> Element;
    /// Returns the number of dimensions of a vector.
    fn dimensions(&self) -> usize;
    /// Returns what an item is called in progress messages, and the number of all items. The number is 0 if it is not
    /// known.
    fn total(&self) -> (&'static str, u64);
    /// Computes the next vectors. Returns `None` after the last vector.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadFile`] if content is malformed.
    /// - Returns [`crate::Error::Content`] if the source fails in another way.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails or the job was cancelled.
    fn next(&mut self) -> Result<Option<RowBatch<'_>>>;
    /// Returns the number of malformed items that were skipped, and the error of the first one.
    fn skipped(&self) -> (u64, Option<String>) {
        (0, None)
    }
}

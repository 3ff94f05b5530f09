//! Vectors that are computed from images and documents.
//!
//! ```text
//!   files ─► Images: decode, scale, histogram ───────┬─► import_content ─► dataset with the file `content`
//!   texts ─► a source of the caller: word counts ────┴─► content_queries ─► a scratch file of queries
//! ```
//!
//! A [`ContentRows`] computes vectors in batches, on all threads. The dataset keeps what queries need to be computed in
//! the same way: [`Content`].
//!
//! Papers: content search, 2018 thesis chapter 6; 2016 article 7.1. The papers compute histograms while they scan
//! images of 48 KiB. Here they are computed once, so that a search reads 1 KiB an image.

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

/// Vectors of some items, which follow those of the batch before.
pub struct RowBatch<'a> {
    /// The elements of the vectors, at an aligned place.
    pub rows: &'a [u8],
    /// The path of the file of each vector; empty if all vectors are of one file.
    pub paths: &'a [String],
}

/// A source of vectors that are computed from content.
pub trait ContentRows {
    /// Returns the words that the dataset keeps; `None` for images.
    fn vocabulary(&self) -> Option<&Vocabulary>;
    /// Returns the type of the elements.
    fn element(&self) -> Element;
    /// Returns the number of dimensions.
    fn dimensions(&self) -> usize;
    /// Returns the unit and the number of items, 0 if it is not known.
    fn total(&self) -> (&'static str, u64);
    /// Computes the next vectors; `None` after the last.
    ///
    /// # Errors
    /// [`crate::Error::BadFile`] for malformed content; [`crate::Error::Content`]; I/O; cancellation.
    fn next(&mut self) -> Result<Option<RowBatch<'_>>>;
    /// Returns the number of malformed items that were left out, and the error of the first.
    fn skipped(&self) -> (u64, Option<String>) {
        (0, None)
    }
}

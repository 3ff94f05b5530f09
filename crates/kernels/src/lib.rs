//! Streaming kernels: what is done with the blocks of files and datasets, one file for each.
//!
//! - [`Search`]: lines that match patterns.
//! - [`count_words`]: words and how often they occur.
//! - [`compress()`], [`decompress`]: gzip, bzip2, zstd and lz4 with all cores.
//! - [`Checksum`]: checksums of files.
//! - [`identify`]: which language a text is in, by [`Profiles`].
//!
//! Each is an [`inshore_neardata::Kernel`], which runs over any sources with [`inshore_neardata::run`]. What the blocks of a
//! source give is handed over in order, or kept by the workers and merged at the end.
#![warn(missing_docs)]

mod checksum;
mod compress;
mod error;
mod language;
mod search;
mod texts;
mod words;

pub use checksum::Checksum;
pub use compress::{Format, PackSummary, compress, decompress, smallest_pack_memory_bytes};
pub use error::{Error, Result};
pub use language::{
    Classifier, GRAM_BYTES, Identified, LANGUAGES_MAX, Profiles, Reader, Scores, Unit, Verdict, identify,
};
pub use search::{Found, FoundLine, PatternOptions, Search, Wanted};
pub use texts::{TextOptions, text_source};
#[cfg(feature = "nodes")]
pub use words::{CountsWords, count_words_on_nodes};
pub use words::{WordOptions, WordSummary, count_words, smallest_word_memory_bytes, word_schema};

//! Streaming kernels: what is done with the blocks of files and datasets, one file for each.
//!
//! - [`Search`]: lines that match patterns.
//! - [`count_words`]: words and how often they occur.
//! - [`compress()`], [`decompress`]: gzip, bzip2, zstd and lz4 with all cores.
//! - [`Checksum`]: checksums of files.
//! - [`identify`]: which language a text is in, by [`Profiles`].
//!
//! What they read is named by [`walk`] (folders, with the rules of .gitignore), [`text_sources`] (files and datasets).
//!
//! Each is an [`inshore_neardata::Kernel`], which runs over any sources with [`inshore_neardata::run`]. What the blocks of a
//! source give is handed over in order, or kept by the workers and merged at the end.
#![warn(missing_docs)]

mod checksum;
mod compress;
mod error;
#[cfg(all(test, feature = "nodes"))]
mod helping_tests;
mod language;
mod ordered;
mod search;
mod texts;
mod walk;
mod words;

pub use checksum::{Checksum, checksum_files, listed_checksums};
pub use compress::{
    FileOptions, Format, PackSummary, compress, compress_file, decompress, decompress_file,
    smallest_pack_memory_bytes,
};
#[cfg(feature = "nodes")]
pub use compress::{Pack, Packs, compress_on_nodes};
pub use error::{Error, Result};
pub use language::{
    Classifier, GRAM_BYTES, Identified, LANGUAGES_MAX, LanguagePlace, LanguageSummary, LanguageTable,
    Profiles, Reader, Scores, Unit, Verdict, identify, identify_column,
};
#[cfg(feature = "nodes")]
pub use language::{CountsGrams, LanguageOfText, identify_on_nodes};
pub use search::{
    Found, FoundLine, Matching, PatternOptions, PatternSize, Search, SearchColumns, SearchItem,
    SearchSummary, SearchTable, SearchTableOptions, Wanted, matcher_across_lines,
};
#[cfg(feature = "nodes")]
pub use texts::refuse_compressed;
pub use texts::{
    TextOptions, dataset_name, stored_sources, table_inputs, text_reader, text_source, text_sources,
};
pub use walk::{Candidate, WalkOptions, file_types, walk};
#[cfg(feature = "nodes")]
pub use words::{CountsWords, count_words_on_nodes};
pub use words::{WordOptions, WordSummary, count_words, smallest_word_memory_bytes, word_schema};

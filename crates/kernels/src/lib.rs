//! This crate holds the streaming kernels: the work that is done with the blocks of files and datasets. Each kernel
//! has a module.
//!
//! - [`Search`] finds lines that match patterns.
//! - [`count_words`] counts how often each word occurs.
//! - [`compress()`] and [`decompress`] handle gzip, bzip2, zstd and lz4 with all cores.
//! - [`Checksum`] computes checksums of files.
//! - [`identify`] tells which language a text is in, by [`Profiles`].
//!
//! [`walk`] lists input files (below folders, with the rules of .gitignore), and [`text_sources`] opens files and
//! datasets.
//!
//! Each kernel is an [`inshore_kernel::Kernel`], which runs over any sources with [`inshore_kernel::run`].
//! Results of blocks are either handed over in order, or kept by the workers and merged at the end.
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

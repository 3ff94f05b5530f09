//! This crate holds the streaming kernels, which process the blocks of files and datasets. Each kernel has a module.
//!
//! - [`Search`] finds lines that match patterns.
//! - [`count_words`] counts how often each word occurs.
//! - [`compress()`] and [`decompress`] handle gzip, bzip2, zstd and lz4 with all cores.
//! - [`Checksum`] computes checksums of files.
//! - [`identify`] identifies the language of a text with [`Profiles`].
//!
//! [`walk`] lists the files below folders, and applies the rules of .gitignore. [`text_sources`] opens files and
//! datasets.
//!
//! Each kernel is an [`inshore_kernel::Kernel`], which runs over any sources with [`inshore_kernel::run`]. A kernel
//! either returns a result for each block, in order, or accumulates results in the workers and merges the workers'
//! results at the end.
#![warn(missing_docs)]

mod checksum;
mod compress;
mod error;
mod language;
mod ordered;
mod search;
mod texts;
mod walk;
mod words;

pub use checksum::{Checksum, checksum_files, listed_checksums};
pub use compress::{
    FileOptions, Format, Pack, PackSummary, Packs, compress, compress_file, decompress, decompress_file,
    smallest_pack_memory_bytes,
};
pub use error::{Error, Result};
pub use language::{
    COUNTED_GRAM_BYTES, Classification, Classifier, CountsGrams, GRAM_BYTES, LANGUAGES_MAX, LanguageOfText,
    LanguagePlace, LanguageResult, LanguageSummary, LanguageTable, Profiles, Reader, Scores, TextUnit,
    identify, identify_column,
};
pub use search::{
    BlockMatches, FoundLine, MultilineMatcher, PatternOptions, PatternSize, Search, SearchColumns,
    SearchItem, SearchOutput, SearchRows, SearchSummary, SearchTable, SearchTableOptions,
    matcher_across_lines,
};
pub use texts::{
    TextOptions, dataset_name, stored_sources, table_inputs, text_reader, text_source, text_sources,
};
pub use walk::{WalkOptions, WalkedFile, file_types, walk};
pub use words::{
    CountsWords, Tally, WordOptions, WordSummary, count_words, each_word, smallest_word_memory_bytes,
    word_schema,
};

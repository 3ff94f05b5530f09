//! `inshore count words`, `inshore language`, `inshore compress`, `inshore decompress` and `inshore checksum`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use inshore::kernels::{self, Format};

use super::TOP_MAX;

/// Count how often each word occurs in texts
///
/// Words are the words of Unicode (UAX #29) that have a letter or digit. With --split, a word is any text between white
/// space. The table has the columns word and count, in the order of the words' bytes; without -o the most frequent
/// words are shown. Counts are exact for any number of different words: words that do not fit in --memory are kept in
/// the store until the job ends. Input in gzip, bzip2, zstd and lz4 is decompressed; store:NAME names a dataset of the
/// store.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore count words books/*.txt --top 20
  inshore count words crawl.txt.gz --ignore-case --min-count 2 -o words.parquet --memory 256MiB
  inshore count words store:logs --split -o - | head")]
pub struct CountWords {
    /// Texts to read together; - is standard input
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show the most frequent words [default: 20, without -o]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TOP_MAX))]
    pub top: Option<u64>,
    /// Split at white space only
    #[arg(long)]
    pub split: bool,
    /// Ignore case: count words in lower case
    #[arg(short, long)]
    pub ignore_case: bool,
    /// Write and show only words with at least this count
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub min_count: u64,
}

#[derive(Subcommand)]
pub enum LanguageCommand {
    Train(Train),
    Identify(Identify),
}

/// Learn languages from samples of text
///
/// For each label, the sequences of 4 bytes that are most frequent in its samples are kept in a dataset of the store.
/// 50 KB of text per language suffice; samples of about the same size and kind are best. There can be up to 64 labels.
/// Samples in gzip, bzip2, zstd and lz4 are decompressed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore language train cs.txt.gz da.txt.gz de.txt.gz --name europe
  inshore language train rust=main.rs rust=lib.rs python=setup.py --name code --grams 2000")]
pub struct Train {
    /// Samples: FILE, whose name up to the first dot is the label, or LABEL=FILE. A label may have several samples
    #[arg(value_name = "[LABEL=]FILE", required = true)]
    pub samples: Vec<String>,
    /// Name of the set of profiles in the store
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Largest number of byte sequences per profile; the most frequent sequences of the samples are kept
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub grams: u32,
}

/// Identify the language of texts
///
/// Writes one row for each file, for each line that is not empty (--lines), or for each row of a table (--column), in
/// order. A row has the language and a confidence from 0 to 1, which depends on the distance to the second-best
/// language. A text that contains no sequence of any profile has no language. Input in gzip, bzip2, zstd and lz4 is
/// decompressed; store:NAME names a dataset of the store.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore language identify --profiles europe mails/*.txt
  inshore language identify --profiles europe --lines subtitles.txt.gz -o languages.parquet
  inshore language identify --profiles europe --column body articles.parquet -o languages.parquet")]
pub struct Identify {
    /// Texts, or with --column tables; - is standard input
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Name of the trained set of profiles
    #[arg(long, value_name = "NAME")]
    pub profiles: String,
    /// Identify the language of each line
    #[arg(long, conflicts_with = "column")]
    pub lines: bool,
    /// Identify the language of each row of this column of text
    #[arg(long, value_name = "COLUMN")]
    pub column: Option<String>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
}

/// Compress files with all cores: zstd, gzip, bzip2 or lz4
///
/// Every program that supports the format can read the result. The same file gives the same bytes, for any memory and
/// number of threads. Input files stay unless --rm is given, and existing outputs are replaced only with --force. The
/// result has the permissions and the modification time of its input file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore compress access.log
  inshore compress --format gzip --level 9 *.csv --rm
  tar c photos | inshore compress - -o photos.tar.zst")]
pub struct Compress {
    #[command(flatten)]
    pub packed: Packed,
    /// zstd, gzip, bzip2 or lz4 [default: by the extension of -o, else zstd]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Compression level: zstd 1 to 19 (default 3), gzip 1 to 12 (6), bzip2 1 to 9 (9), lz4 1
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
}

/// Decompress files with all cores: zstd, gzip, bzip2 and lz4, recognized by their first bytes
///
/// Files that were compressed by this program or pbzip2, or that have several frames or members, are decompressed by
/// all cores; other files by one core. Damaged and truncated files are errors, and no output is written for them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore decompress access.log.zst
  inshore decompress *.csv.gz --rm
  inshore decompress dump.sql.bz2 -o - | head")]
pub struct Decompress {
    #[command(flatten)]
    pub packed: Packed,
}

/// The inputs and the output of compression and decompression.
#[derive(Args)]
pub struct Packed {
    /// Files; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The file to write; - is standard output [default: FILE with another extension]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace existing files
    #[arg(short, long)]
    pub force: bool,
    /// Remove each file once its result is durable
    #[arg(long = "rm")]
    pub remove: bool,
}

/// Compute or check checksums of files
///
/// Prints checksums in the format of sha256sum and similar programs. With --check, reads checksums in this format.
/// Files are read in parallel. The exit code is 1 if a checked file differs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore checksum *.parquet > sums.txt
  inshore checksum --check sums.txt
  inshore checksum --algorithm blake3 backup.tar
  inshore checksum store:web.log --node a.lan,b.lan")]
pub struct Checksum {
    /// Files; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "check")]
    pub inputs: Vec<PathBuf>,
    /// sha256, blake3, md5, xxh64 or crc32
    #[arg(long, value_name = "NAME", default_value = "sha256")]
    pub algorithm: kernels::Checksum,
    /// Read checksums and names from this file, and compare
    #[arg(long, value_name = "FILE", conflicts_with = "inputs")]
    pub check: Option<PathBuf>,
}

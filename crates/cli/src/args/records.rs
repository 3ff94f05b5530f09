//! `inshore sort`, `inshore reduce`, `inshore count kmers` and `inshore count values`.

use std::path::PathBuf;

use clap::Args;
use inshore::tables::{KMER_MAX, SortKey};

use super::Header;

/// Sort lines, records or tables larger than memory
///
/// Lines are sorted by their bytes, as LC_ALL=C sort does. Records of a fixed number of bytes (--record) are sorted by
/// some of their bytes, and tables (.parquet, .csv, .tsv, .arrow) by columns (--key). Equal rows keep the order of the
/// input. If the input does not fit in --memory, sorted runs are written to the store, and removed at the end of the
/// job. The runs need as much space as the input; the command checks the free space first. The output appears complete
/// or not at all. Input in gzip, zstd, bzip2 and lz4 is decompressed.
///
/// With --node, each node sorts its shards of datasets (store:NAME) in the memory of its task, with runs in its own
/// store. This machine merges the sorted rows as they arrive, and the result has the same bytes as the result of a
/// local sort. Files of records must have been loaded with store put --record.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore sort access-*.log.gz --unique -o sorted.log --memory 256MiB
  inshore sort sales.parquet --key region,price:desc -o sorted.parquet
  inshore sort records.bin --record 100 --key-bytes 0..10 -o sorted.bin --memory 1GiB --resume
  inshore sort store:sales.parquet --key price:desc -o sorted.parquet --node a.lan,b.lan")]
pub struct Sort {
    /// Files to sort together; - is standard input
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The file to write; - is standard output. For tables the file extension selects the format: .parquet, .arrow or .csv
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Columns to sort tables by; :desc sorts in descending order. Nulls come last
    #[arg(short, long, value_name = "COLUMN[:desc]", value_delimiter = ',')]
    pub key: Vec<Key>,
    /// Columns of CSV that are text even if they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', requires = "key")]
    pub text: Vec<String>,
    /// Treat the first line of CSV as column names (yes) or as a row (no); without this option, a first line that may
    /// be a row is an error
    #[arg(long, value_name = "yes|no", hide_possible_values = true, requires = "key")]
    pub header: Option<Header>,
    /// Sort records of this number of bytes instead of lines
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=65536), conflicts_with = "key")]
    pub record: Option<u64>,
    /// Range of bytes to sort records by, counted from 0 and without byte B [default: all bytes]
    #[arg(long, value_name = "A..B", requires = "record")]
    pub key_bytes: Option<KeyBytes>,
    /// Sort in descending order; columns with :desc are then sorted in ascending order
    #[arg(short, long)]
    pub reverse: bool,
    /// Keep only the first of equal lines, or of records and rows with equal keys
    #[arg(short, long)]
    pub unique: bool,
    /// Keep finished runs if the sort is interrupted, and resume with the runs of an earlier interrupted sort (store
    /// jobs lists them)
    #[arg(long)]
    pub resume: bool,
}

/// A column by which tables are sorted, and its direction.
#[derive(Clone, Debug)]
pub struct Key(pub SortKey);

impl std::str::FromStr for Key {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (column, descending) = match text.rsplit_once(':') {
            Some((column, "desc")) => (column, true),
            Some((column, "asc")) => (column, false),
            _ => (text, false),
        };
        if column.is_empty() {
            return Err("expected the name of a column".to_string());
        }
        Ok(Key(SortKey { column: column.to_string(), descending }))
    }
}

/// A range of bytes in a record, by which records are sorted.
#[derive(Clone, Copy, Debug)]
pub struct KeyBytes {
    /// The first byte of the range, counted from 0.
    pub start: u64,
    /// The byte after the last byte of the range.
    pub end: u64,
}

impl std::str::FromStr for KeyBytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let range =
            text.split_once("..").and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
        match range {
            Some((start, end)) if start < end => Ok(KeyBytes { start, end }),
            _ => Err("expected a range of bytes such as 0..10".to_string()),
        }
    }
}

/// Group the rows of tables by columns and aggregate each group
///
/// GROUP BY for tables larger than memory: reads Parquet, CSV, TSV and Arrow, and writes one row per group, in the
/// order of the grouped columns. Aggregates skip nulls; nulls in --by columns form a group of their own. Without --by
/// all rows form one group. A sum of integers that needs more than 64 bits is an error.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore reduce sales.parquet --by shop --sum price --count -o shops.parquet
  inshore reduce log-*.csv --by user,day --count --min time --max time -o days.csv --memory 256MiB
  inshore reduce sales.parquet --mean price --max price -o -")]
pub struct Reduce {
    /// Tables to read together; - is CSV from standard input
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Columns to group by
    #[arg(short, long, value_name = "COLUMN", value_delimiter = ',')]
    pub by: Vec<String>,
    /// Count the rows of each group; with columns, count the values of these columns that are not null
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub count: Vec<String>,
    /// Sum of a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub sum: Vec<String>,
    /// Mean of a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub mean: Vec<String>,
    /// Smallest value of a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub min: Vec<String>,
    /// Greatest value of a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub max: Vec<String>,
    /// First value of a column, in the order of the input
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub first: Vec<String>,
    /// Last value of a column, in the order of the input
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub last: Vec<String>,
    /// Columns of CSV that are text even if they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub text: Vec<String>,
    /// Treat the first line of CSV as column names (yes) or as a row (no); without this option, a first line that may
    /// be a row is an error
    #[arg(long, value_name = "yes|no", hide_possible_values = true)]
    pub header: Option<Header>,
    /// Keep finished runs if the job is interrupted, and resume with the runs of an earlier interrupted job (store jobs
    /// lists them)
    #[arg(long)]
    pub resume: bool,
}

/// Count the k-mers of FASTA and FASTQ files
///
/// A k-mer is a sequence of k consecutive bases. Unless --forward is given, a k-mer and its reverse complement are
/// counted together, under the smaller of the two. Letters that are not bases end a sequence. The table has the columns
/// kmer and count. With --node, each node counts its own shards. These files must not be compressed, and FASTQ files
/// must have been loaded under a name that ends with .fastq or .fq.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore count kmers reads.fq.gz -k 25 -o kmers.parquet --memory 512MiB
  inshore count kmers store:reads.fq -k 25 -o kmers.parquet --node a.lan,b.lan
  inshore count kmers genome.fa -k 31 --min-count 2 --codes -o kmers.parquet
  inshore count kmers genome.fa -k 21 --histogram spectrum.csv -o kmers.parquet")]
pub struct Kmers {
    /// Files of sequences; - is standard input. gzip, zstd, bzip2 and lz4 are decompressed
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Bases in a k-mer
    #[arg(short, value_name = "K", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=KMER_MAX as i64))]
    pub k: u32,
    /// Count a k-mer and its reverse complement separately
    #[arg(long)]
    pub forward: bool,
    /// Write only k-mers with at least this count
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub min_count: u32,
    /// Write k-mers as numbers with two bits for each base (A 0, C 1, G 2, T 3) instead of text; k may be at most 32
    #[arg(long)]
    pub codes: bool,
    /// Also write a histogram as CSV: for each count, the number of k-mers with this count (columns count and kmers)
    #[arg(long, value_name = "FILE")]
    pub histogram: Option<PathBuf>,
    /// Keep finished runs if the count is interrupted, and resume with the runs of an earlier interrupted count (store
    /// jobs lists them)
    #[arg(long)]
    pub resume: bool,
}

/// Count how often each value of a column occurs
///
/// The same as reduce --by COLUMN --count. The table has the columns COLUMN and count, in the order of the values.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore count values log.csv --column user -o users.parquet
  inshore count values sales-*.parquet --column shop,day -o - | head")]
pub struct Values {
    /// Tables to read together; - is CSV from standard input
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The column; if several are given, each combination of their values is counted
    #[arg(short, long, value_name = "COLUMN", value_delimiter = ',', required = true)]
    pub column: Vec<String>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Columns of CSV that are text even if they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub text: Vec<String>,
    /// Treat the first line of CSV as column names (yes) or as a row (no); without this option, a first line that may
    /// be a row is an error
    #[arg(long, value_name = "yes|no", hide_possible_values = true)]
    pub header: Option<Header>,
    /// Keep finished runs if the count is interrupted, and resume with the runs of an earlier interrupted count (store
    /// jobs lists them)
    #[arg(long)]
    pub resume: bool,
}

//! The words of the command line, as clap reads them: `inshore NOUN VERB`, and the options that go everywhere.
//!
//! A flat table. Defaults that the library has are taken from the library, so that there is one place for each.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use inshore::{
    graph::{self, BetweennessOptions, CommunitiesOptions, EdgeFormat, PageRankOptions},
    kernels::{self, Format},
    sortreduce,
    store::parse_bytes,
    tables::{KMER_MAX, SortKey},
};

use crate::{
    kernel_words::KernelCommand, node_words::NodeCommand, search::words::Search, store_words::StoreCommand,
};

/// The most rows that `--top` shows: they are held in memory, in the part that no budget counts.
const TOP_MAX: u64 = 100_000;

/// Analytics on flash: data several times larger than memory, in exactly the memory that was given.
///
/// Graphs are imported into a store, a folder on a drive, and stay there. Each job gets a budget of memory
/// (--memory) and keeps it, however large the graph is; what does not fit streams from the drive.
#[derive(Parser)]
#[command(name = "inshore", version, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  inshore graph import web.txt.gz --name web
  inshore graph pagerank web --memory 64MiB --top 20 -o ranks.parquet
  inshore sort access.log -o sorted.log --memory 1GiB
  inshore search 'timeout after [0-9]+ ms' logs/

Exit codes: 0 done, 1 a \"no\" (search, graph check), 2 an error, 130 stopped by a signal.")]
pub struct Words {
    #[command(flatten)]
    pub everywhere: Everywhere,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that go with every command.
#[derive(Args, Clone)]
#[command(next_help_heading = "Everywhere")]
pub struct Everywhere {
    /// Memory that the job may use, such as 64MiB [default: a quarter of the machine's or cgroup's]
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Worker threads [default: one for each core that this process may use]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Folder of the store, made on first use [default: $INSHORE_STORE, else one in the user's data directory]. Of a
    /// store on several drives any of its folders, or DIR:DIR:... where they were moved apart
    #[arg(long, global = true, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print counters and facts as one JSON value, and nothing else, on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no progress, no costs and no notices on standard error
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Tell on standard error how it is going to be done (graph jobs, reduce), and after the run how it was done and where the
    /// time went
    #[arg(long, global = true)]
    pub explain: bool,
    /// Do it on these nodes, where the data lies (search, count, sql, reduce, sort, language identify, compress, kernel,
    /// store put|get|ls|rm, node run|status|traverse): HOST or HOST:PORT of each
    #[arg(long, global = true, value_name = "HOST,...", value_delimiter = ',', help_heading = "Nodes")]
    pub node: Vec<String>,
    /// The file of this client's credentials, or of this node's for `node serve` (see `inshore node credentials`)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Nodes")]
    pub credentials: Option<PathBuf>,
    /// With --node: answer without what lost nodes have, and say what is missing; else that is an error
    #[arg(long, global = true, help_heading = "Nodes")]
    pub partial: bool,
    /// With --node: give up after so many seconds
    #[arg(long, global = true, value_name = "SECONDS", help_heading = "Nodes", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub deadline: Option<u64>,
    /// With --node: memory of the task on each node [default: as the node is set up]
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Nodes")]
    pub node_memory: Option<u64>,
    /// With --node: a node that says nothing for so many seconds, not even that it is alive, is lost
    #[arg(long, global = true, value_name = "SECONDS", default_value = "10", help_heading = "Nodes", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub silence: u64,
    /// With --node: what a node got no further with for so many seconds is asked of others that have it
    #[arg(long, global = true, value_name = "SECONDS", default_value = "30", help_heading = "Nodes", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub stall: u64,
    /// With --node: leave all of the work to the nodes. Else this machine's cores do a part of search, language identify, compress, count,
    /// sort, reduce and sql where that is measured to be faster, although more bytes have to come here then
    #[arg(long, global = true, help_heading = "Nodes")]
    pub only_nodes: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Graphs larger than memory: import them, ask them, give them back
    ///
    /// A graph is imported once, from an edge list of any of the usual formats, and asked as often as you like.
    /// Vertex ids are any numbers of 64 bits; results carry the same ids.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore graph import web.txt.gz --name web
  inshore graph bfs web --source 42 -o tree.parquet
  inshore graph ls"
    )]
    Graph {
        #[command(subcommand)]
        command: GraphCommand,
    },
    /// What the store holds: datasets as files
    ///
    /// A dataset is a sequence of bytes with a name, checked whenever it is read; a graph is one of several files.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore store mount /mnt/data
  inshore store mount --help"
    )]
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Machines that do the work where their data lies
    ///
    /// Any machine with drives becomes a node: `inshore node serve` there, and --node NAME,... with search, count words and
    /// store here. The command travels, the data stays, the answer comes back.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore node serve --store /mnt/nvme/inshore
  inshore node status --node a.lan,b.lan,c.lan --credentials client-laptop.json
  inshore search ERROR store:web.log --node a.lan,b.lan,c.lan --credentials client-laptop.json"
    )]
    Node {
        #[command(subcommand)]
        command: NodeCommand,
    },
    Search(Search),
    /// Kernels of your own, in WebAssembly: begin one, build it, run it where the data lies
    ///
    /// A kernel is a module that is given lines and says what came of them: in Rust, C or any language that compiles to
    /// WebAssembly. It runs contained, with all threads, here or on nodes. docs/kernels-wasm.md tells what it exports.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore kernel new errors
  inshore kernel build errors
  inshore kernel run errors/errors.wasm --args timeout app.log"
    )]
    Kernel {
        #[command(subcommand)]
        command: KernelCommand,
    },
    /// Which language texts are in: learn languages from samples, and tell them
    ///
    /// A set of profiles is made of labelled samples once and stays in the store.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore language train cs.txt.gz da.txt.gz en=english.txt --name europe
  inshore language identify --profiles europe mails/*.txt"
    )]
    Language {
        #[command(subcommand)]
        command: LanguageCommand,
    },
    Sort(Sort),
    Reduce(Reduce),
    Sql(Sql),
    Compress(Compress),
    Decompress(Decompress),
    Checksum(Checksum),
    /// Count what occurs how often: words of texts, k-mers of sequences, values of a column
    ///
    /// The result is a table with one row for each of them and its count, in order.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore count words books/*.txt --top 20
  inshore count kmers reads.fq.gz -k 25 -o kmers.parquet
  inshore count values log.csv --column user -o users.parquet"
    )]
    Count {
        #[command(subcommand)]
        command: CountCommand,
    },
    /// Print the completions of a shell
    ///
    /// The script goes to standard output. Your shell's manual says where it wants it.
    #[command(after_help = "\
Examples:
  inshore completions bash > ~/.local/share/bash-completion/completions/inshore
  inshore completions zsh > ~/.zfunc/_inshore
  inshore completions fish > ~/.config/fish/completions/inshore.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages
    ///
    /// With --out, one page for each command into a folder; without, the first page to standard output.
    #[command(after_help = "\
Examples:
  inshore man | man -l -
  inshore man --out ~/.local/share/man/man1")]
    Man {
        /// Folder for the pages of all commands, made if it is not there
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Sort lines, records or tables larger than memory
///
/// Lines are sorted by their bytes, as LC_ALL=C sort does; records of a fixed number of bytes (--record) by some of
/// their bytes; tables (.parquet, .csv, .tsv, .arrow) by columns (--key). What is equal keeps the order of the input.
/// Where the input does not fit --memory, sorted runs lie in the store for a while, as large as the input; whether there
/// is room is looked at before. The output appears whole or not at all. gzip and zstd are unpacked.
///
/// With --node, each node sorts its pieces of datasets (store:NAME) in the memory of its task, with runs in its own store,
/// and the sorted rows are merged here as they come: the same bytes as from a sort here. Records have to be loaded with
/// store put --record.
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
    /// The file to write; - is standard output. For tables its ending chooses the format: .parquet, .arrow or .csv
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Columns that tables are sorted by; the greatest first where :desc follows. Nulls come last
    #[arg(short, long, value_name = "COLUMN[:desc]", value_delimiter = ',')]
    pub key: Vec<Key>,
    /// Columns of CSV that are text even where they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', requires = "key")]
    pub text: Vec<String>,
    /// Sort records of so many bytes instead of lines
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=65536), conflicts_with = "key")]
    pub record: Option<u64>,
    /// The bytes that records are sorted by: from the first, counted from 0, to before the second [default: all]
    #[arg(long, value_name = "A..B", requires = "record")]
    pub key_bytes: Option<KeyBytes>,
    /// The greatest first, and the smallest where a key says :desc
    #[arg(short, long)]
    pub reverse: bool,
    /// Of lines that are equal, or records and rows with equal keys, keep the first only
    #[arg(short, long)]
    pub unique: bool,
    /// Keep finished runs if this is interrupted, and go on with those that it kept when it was (store jobs lists them)
    #[arg(long)]
    pub resume: bool,
}

/// A column to sort by.
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

#[derive(Subcommand)]
pub enum CountCommand {
    Kmers(Kmers),
    Values(Values),
    Words(CountWords),
}

/// Count the k-mers of FASTA and FASTQ files
///
/// A k-mer is a stretch of k bases. It and its reverse complement count as one, the smaller of both, unless --forward
/// is given; letters that are no bases break a sequence. The table has the columns kmer and count. With --node, each node
/// counts what it has, of files that are not compressed; FASTQ has to be loaded under a name that ends with .fastq or .fq.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore count kmers reads.fq.gz -k 25 -o kmers.parquet --memory 512MiB
  inshore count kmers store:reads.fq -k 25 -o kmers.parquet --node a.lan,b.lan
  inshore count kmers genome.fa -k 31 --min-count 2 --codes -o kmers.parquet
  inshore count kmers genome.fa -k 21 --histogram spectrum.csv -o kmers.parquet")]
pub struct Kmers {
    /// Files of sequences; - is standard input. gzip and zstd are unpacked
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Bases in a k-mer
    #[arg(short, value_name = "K", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=KMER_MAX as i64))]
    pub k: u32,
    /// Count a k-mer and its reverse complement apart
    #[arg(long)]
    pub forward: bool,
    /// Write those only that occur so often
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub min_count: u32,
    /// Write numbers with two bits for each base (A 0, C 1, G 2, T 3) instead of text; k up to 32
    #[arg(long)]
    pub codes: bool,
    /// Also write how many k-mers occur once, twice, ...: CSV with the columns count and kmers
    #[arg(long, value_name = "FILE")]
    pub histogram: Option<PathBuf>,
    /// Keep finished runs if this is interrupted, and go on with those that it kept when it was (store jobs lists them)
    #[arg(long)]
    pub resume: bool,
}

/// Count how often each value of a column occurs
///
/// The same as reduce --by COLUMN --count: the table has the column and count, in the order of the values.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore count values log.csv --column user -o users.parquet
  inshore count values sales-*.parquet --column shop,day -o - | head")]
pub struct Values {
    /// Tables to read together; - is CSV from standard input
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The column, or several whose values count together
    #[arg(short, long, value_name = "COLUMN", value_delimiter = ',', required = true)]
    pub column: Vec<String>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Columns of CSV that are text even where they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub text: Vec<String>,
    /// Keep finished runs if this is interrupted, and go on with those that it kept when it was (store jobs lists them)
    #[arg(long)]
    pub resume: bool,
}

/// Count how often each word occurs in texts
///
/// Words are those of Unicode (UAX #29) that have a letter or digit, or with --split whatever stands between white space.
/// The table has the columns word and count, in the order of the words' bytes; without -o the most frequent words are
/// shown. However many different words there are, the counts are exact: what does not fit --memory lies in the store for
/// a while. gzip, bzip2, zstd and lz4 are unpacked; store:NAME names a dataset of the store.
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
    /// Take whatever stands between white space for a word
    #[arg(long)]
    pub split: bool,
    /// Count words that differ in case only as one, in lower case
    #[arg(short, long)]
    pub ignore_case: bool,
    /// Write and show those only that occur so often
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
/// For each label the byte sequences of length 4 that are most frequent in its samples are kept, as a dataset of the
/// store. 50 KB of text for each language suffice; samples of about the same size and kind are best. Up to 64 labels.
/// gzip, bzip2, zstd and lz4 are unpacked.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore language train cs.txt.gz da.txt.gz de.txt.gz --name europe
  inshore language train rust=main.rs rust=lib.rs python=setup.py --name code --grams 2000")]
pub struct Train {
    /// Samples: a file whose name up to the first dot is the label, or LABEL=FILE. A label may have several
    #[arg(value_name = "[LABEL=]FILE", required = true)]
    pub samples: Vec<String>,
    /// Name of the set of profiles in the store
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Byte sequences that each profile has at most. More of them need more text
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub grams: u32,
}

/// Tell which language texts are in
///
/// One row for each file, for each line that is not empty (--lines), or for each row of a table (--column), in order: the
/// language and how sure it is, from 0 to 1, by how far the next language is behind. A text of which no profile has
/// anything has no language. gzip, bzip2, zstd and lz4 are unpacked; store:NAME names a dataset of the store.
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
    /// The set of profiles, as it was trained
    #[arg(long, value_name = "NAME")]
    pub profiles: String,
    /// Tell the language of each line
    #[arg(long, conflicts_with = "column")]
    pub lines: bool,
    /// Tell the language of each row of this column of text
    #[arg(long, value_name = "COLUMN")]
    pub column: Option<String>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
}

/// Group the rows of tables by columns and compute something of each group
///
/// GROUP BY for tables larger than memory: Parquet, CSV, TSV and Arrow in, one row for each group out, in the order of
/// the columns that they are grouped by. Nulls are passed over by aggregates and are a group of their own in --by.
/// Without --by all rows are one group. A sum of whole numbers that needs more than 64 bits is an error.
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
    /// Columns whose values make a group
    #[arg(short, long, value_name = "COLUMN", value_delimiter = ',')]
    pub by: Vec<String>,
    /// Count the rows of each group; with columns, their values that are not null
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub count: Vec<String>,
    /// Add up a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub sum: Vec<String>,
    /// The mean of a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub mean: Vec<String>,
    /// The smallest value of a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub min: Vec<String>,
    /// The greatest value of a column
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub max: Vec<String>,
    /// The first value of a column, in the order of the input
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub first: Vec<String>,
    /// The last value of a column, in the order of the input
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub last: Vec<String>,
    /// Columns of CSV that are text even where they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub text: Vec<String>,
    /// Keep finished runs if this is interrupted, and go on with those that it kept when it was (store jobs lists them)
    #[arg(long)]
    pub resume: bool,
}

/// Answer a question in SQL about tables larger than memory
///
/// Tables are Parquet, CSV, TSV, JSON lines or Arrow: name them in quotes (FROM 'sales/*.parquet'), or give them names with
/// --table and --tables. The SQL is that of DataFusion, which is close to PostgreSQL's. Grouping, sorting and joining
/// go on with sort-reduce where memory is short; EXPLAIN shows the plan, EXPLAIN ANALYZE and --explain show what was done.
/// Without -o the first rows are shown on a terminal, and CSV is written elsewhere.
///
/// With --node a table called store:NAME lies on nodes: filters, and the first half of grouping, run there, and only their
/// results travel. Other tables, and the rest of the query, are here.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore sql \"SELECT shop, sum(price) FROM 'sales.parquet' GROUP BY shop ORDER BY 2 DESC LIMIT 10\"
  inshore sql --table log='logs/*.csv.gz' \"SELECT count(DISTINCT user) FROM log\" --memory 256MiB
  inshore sql --tables tpch/ --file q1.sql -o q1.parquet
  inshore --node a,b,c sql \"SELECT shop, sum(price) FROM 'store:sales.parquet' GROUP BY shop\"
  inshore sql \"EXPLAIN ANALYZE SELECT * FROM 'sales.parquet' ORDER BY price\"")]
pub struct Sql {
    /// The query; - reads it from standard input
    #[arg(value_name = "QUERY", required_unless_present = "file")]
    pub query: Option<String>,
    /// Read the query from a file
    #[arg(long, value_name = "FILE", conflicts_with = "query")]
    pub file: Option<PathBuf>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Call a file, a folder or files with * a table
    #[arg(long, value_name = "NAME=PATH")]
    pub table: Vec<NamedTable>,
    /// Every table in a folder, by its name without the ending
    #[arg(long, value_name = "DIR")]
    pub tables: Vec<PathBuf>,
    /// Columns of CSV and JSON lines that are text even where they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub text: Vec<String>,
}

/// Compress files with all cores: zstd, gzip, bzip2 or lz4
///
/// Every program that knows the format reads the result. The same file gives the same bytes, whatever the memory and the
/// number of threads. Files are kept, and a file that is there already is not replaced, unless asked for; the result has
/// the permissions and the time of its file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore compress access.log
  inshore compress --format gzip --level 9 *.csv --rm
  tar c photos | inshore compress - -o photos.tar.zst")]
pub struct Compress {
    #[command(flatten)]
    pub packed: Packed,
    /// zstd, gzip, bzip2 or lz4 [default: as the ending of -o says, else zstd]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// How hard to try: zstd 1 to 19 (habit: 3), gzip 1 to 12 (6), bzip2 1 to 9 (9), lz4 1
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
}

/// Decompress files with all cores: zstd, gzip, bzip2 and lz4, known by their first bytes
///
/// What was compressed here, by pbzip2, or in several frames or members is decompressed by all cores; what is one piece by
/// one. Damage and truncation are errors, and leave nothing behind.
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

/// What is compressed or decompressed, and where to.
#[derive(Args)]
pub struct Packed {
    /// Files; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The file to write instead of FILE with another ending; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace files that are there already
    #[arg(short, long)]
    pub force: bool,
    /// Remove each file once what it became is on the drive
    #[arg(long = "rm")]
    pub remove: bool,
}

/// Compute or check checksums of files
///
/// Prints what sha256sum and its kin print, and reads it with --check; files are read side by side. Exits with 1 where a
/// checked file differs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore checksum *.parquet > sums.txt
  inshore checksum --check sums.txt
  inshore checksum --algorithm blake3 backup.tar")]
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

/// A name and what it stands for.
#[derive(Clone, Debug)]
pub struct NamedTable {
    pub name: String,
    pub path: PathBuf,
}

impl std::str::FromStr for NamedTable {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(NamedTable { name: name.to_string(), path: PathBuf::from(path) })
            }
            _ => Err("expected NAME=PATH such as sales=sales.parquet".to_string()),
        }
    }
}

/// A range of bytes in a record.
#[derive(Clone, Copy, Debug)]
pub struct KeyBytes {
    /// The first.
    pub start: usize,
    /// Behind the last.
    pub end: usize,
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

#[derive(Subcommand)]
pub enum GraphCommand {
    Import(Import),
    /// Make a graph out of nothing
    ///
    /// For measurements and demonstrations. The same arguments give the same graph on every machine.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore graph generate kronecker --scale 20 --name kron20
  inshore graph generate kronecker --scale 24 --edge-factor 16 --seed 1 --name kron24 --memory 64MiB"
    )]
    Generate {
        #[command(subcommand)]
        generator: Generator,
    },
    /// List the graphs of the store
    ///
    /// One line for each graph: its name, vertices, edges, kind and size on flash. With --json, an array.
    #[command(after_help = "\
Examples:
  inshore graph ls
  inshore graph ls --store /mnt/nvme/inshore
  inshore graph ls --json | jq '.[].name'")]
    Ls,
    /// Tell what is known of a graph
    ///
    /// Vertices, edges, degrees, size on flash and the smallest budget with which every job on it works. Reads
    /// no edges.
    #[command(after_help = "\
Examples:
  inshore graph info web
  inshore graph info web --json | jq .summary.vertices")]
    Info {
        /// Name of the graph
        #[arg(value_name = "NAME")]
        graph: String,
    },
    /// Remove graphs from the store
    ///
    /// Jobs that have one of them open go on undisturbed. Names that are not there are errors; the others are
    /// removed all the same.
    #[command(after_help = "\
Examples:
  inshore graph rm web
  inshore graph rm kron20 kron24")]
    Rm {
        /// Names of the graphs
        #[arg(value_name = "NAME", required = true)]
        graphs: Vec<String>,
    },
    /// Write a graph's edges to a file
    ///
    /// One row for each edge, with columns source, target and (in a weighted graph) weight, in the order of the
    /// sources. The file's ending chooses the format: .parquet, .arrow, .csv, or .bin for raw pairs of
    /// little-endian u32, without weights; - is CSV on standard output. An edge of an undirected graph is one row,
    /// from its smaller id (import it with --undirected). Vertices without edges are in no row.
    #[command(after_help = "\
Examples:
  inshore graph export web -o edges.parquet
  inshore graph export web -o edges.csv --memory 64MiB")]
    Export {
        /// Name of the graph
        #[arg(value_name = "NAME")]
        graph: String,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    Pagerank(Pagerank),
    Bfs(Bfs),
    Sssp(Sssp),
    Components(Components),
    Communities(Communities),
    Clustering(Clustering),
    Betweenness(Betweenness),
    Check(Check),
}

/// Import an edge list from files or standard input
///
/// Reads SNAP text (two ids in a line, tabs, spaces or commas, comments with #), CSV, Parquet, Arrow, Matrix
/// Market, LDBC .v and .e, and raw pairs of little-endian u32; gzip and zstd are unpacked on the way. Duplicate
/// edges merge; self-loops stay unless --drop-loops. The import works within --memory and either makes the whole
/// graph or leaves the store as it was.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph import web.txt.gz --name web
  inshore graph import part-*.csv --name calls --source-column caller --target-column callee
  inshore graph import g.v g.e --name g --undirected
  zcat edges.gz | inshore graph import - --name piped --memory 64MiB")]
pub struct Import {
    /// Files of edges; - is standard input. LDBC graphs are given as g.v g.e
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Name of the new graph
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Format of the inputs [default: by the file's ending, else text]
    #[arg(long, value_name = "FORMAT", value_parser = edge_format())]
    pub format: Option<EdgeFormat>,
    /// Take every edge in both directions
    #[arg(long)]
    pub undirected: bool,
    /// Leave out edges from a vertex to itself
    #[arg(long)]
    pub drop_loops: bool,
    /// Keep weights: a third column of text, or the weight column; of duplicate edges the smallest stays
    #[arg(long)]
    pub weighted: bool,
    /// Keep in-edges too, so that no job has to make them; costs the same space again
    #[arg(long)]
    pub reverse: bool,
    /// Column of the edges' sources (CSV, Parquet, Arrow) [default: one called source, src or from, else the
    /// first]
    #[arg(long, value_name = "COLUMN")]
    pub source_column: Option<String>,
    /// Column of the edges' targets (CSV, Parquet, Arrow) [default: one called target, dst or to, else the
    /// second]
    #[arg(long, value_name = "COLUMN")]
    pub target_column: Option<String>,
    /// Column of the edges' weights (CSV, Parquet, Arrow); implies --weighted, which takes one called weight
    #[arg(long, value_name = "COLUMN")]
    pub weight_column: Option<String>,
}

#[derive(Subcommand)]
pub enum Generator {
    Kronecker(Kronecker),
}

/// Make a Graph500 Kronecker graph
///
/// A directed graph of 2^scale vertices with a few very large degrees and many small ones. Duplicate edges merge,
/// so that it has somewhat fewer than edge-factor edges for each vertex.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph generate kronecker --scale 16 --name small
  inshore graph generate kronecker --scale 24 --edge-factor 16 --seed 1 --name kron24 --memory 64MiB")]
pub struct Kronecker {
    /// The graph has 2^scale vertices
    #[arg(long, value_name = "N")]
    pub scale: u32,
    /// Edges drawn for each vertex
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub edge_factor: u64,
    /// Beginning of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Name of the new graph
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Keep in-edges too
    #[arg(long)]
    pub reverse: bool,
}

/// What every algorithm is asked for.
#[derive(Args)]
pub struct Asked {
    /// Name of the graph
    #[arg(value_name = "NAME")]
    pub graph: String,
    /// Write all rows to a file; .parquet, .arrow or .csv chooses the format, - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the first N rows of the result, best first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TOP_MAX))]
    pub top: Option<u64>,
    /// Force how updates are combined [default: dense where it fits the budget]
    #[arg(long, value_name = "STRATEGY")]
    pub strategy: Option<Strategy>,
    /// Force what lies in memory [default: as much as the budget holds]
    #[arg(long, value_name = "REGIME", conflicts_with = "strategy")]
    pub regime: Option<Regime>,
}

/// What algorithms that go superstep by superstep are asked for.
#[derive(Args)]
pub struct Resumed {
    /// Keep the state of all vertices now and then, and go on with what it kept when it was interrupted (store jobs lists it)
    #[arg(long)]
    pub resume: bool,
    /// With --resume: keep it about this often, between two supersteps (betweenness: two sources)
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, requires = "resume", value_parser = seconds)]
    pub checkpoint_every: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=1e9).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0 or more".to_string())
}

/// Rank vertices by the links that point to them
///
/// PageRank as LDBC defines it: ranks sum to 1, and what vertices without out-edges hold is spread evenly. The
/// result has columns vertex and rank.
///
/// With --vertex-tolerance V ranks converge vertex by vertex: a vertex sends by how much its rank changed, and only while that is
/// more than V of it. Late supersteps walk along few edges, and it ends when no vertex has more to send. Then all ranks together
/// differ from converged ones by at most 2 V damping / (1 - damping); how much it may be at most in this job is told.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph pagerank web --memory 64MiB --top 20
  inshore graph pagerank web --iterations 30 --tolerance 1e-9 -o ranks.parquet
  inshore graph pagerank web --vertex-tolerance 1e-4 --memory 64MiB -o ranks.parquet --resume
  inshore graph pagerank web -o - | sort -t, -k2 -gr | head")]
pub struct Pagerank {
    #[command(flatten)]
    pub asked: Asked,
    #[command(flatten)]
    pub resumed: Resumed,
    #[command(flatten)]
    pub how: PagerankHow,
    /// Stop earlier, once all ranks together change by at most this much
    #[arg(long, value_name = "T", default_value_t = PageRankOptions::default().tolerance, conflicts_with = "vertex_tolerance")]
    pub tolerance: f64,
}

/// The numbers that ranks depend on.
#[derive(Args)]
pub struct PagerankHow {
    /// Iterations (PageRank, communities) [default: 10; with --vertex-tolerance as many as it takes]
    #[arg(long, value_name = "N")]
    pub iterations: Option<u32>,
    /// Send only by how much ranks changed, and while that is more than this share of a vertex's rank (PageRank)
    #[arg(long, value_name = "V")]
    pub vertex_tolerance: Option<f64>,
    /// Chance of going on along a link (PageRank)
    #[arg(long, value_name = "D", default_value_t = PageRankOptions::default().damping)]
    pub damping: f64,
}

impl PagerankHow {
    /// The options that are asked for, with defaults for the rest.
    pub fn options(&self) -> PageRankOptions {
        let usual = self.vertex_tolerance.map_or_else(PageRankOptions::default, PageRankOptions::converging);
        let iterations = self.iterations.unwrap_or(usual.iterations);
        PageRankOptions { iterations, damping: self.damping, ..usual }
    }
}

/// Search breadth first from a vertex
///
/// The result has columns vertex, parent and level. The source is its own parent at level 0; of the possible
/// parents it is the smallest, so that the tree is the same at every budget; unreached vertices have null.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph bfs web --source 42
  inshore graph bfs web --source 42 --memory 64MiB -o tree.parquet
  inshore graph bfs web --source 42 --top 10")]
pub struct Bfs {
    #[command(flatten)]
    pub asked: Asked,
    #[command(flatten)]
    pub resumed: Resumed,
    /// Vertex to begin from
    #[arg(long, value_name = "ID")]
    pub source: u64,
}

/// Find shortest paths from a vertex, by weights
///
/// The result has columns vertex and distance: the least sum of weights on a path from the source, null where there is
/// none. The graph must have weights (import --weighted), none below zero. --top prints the nearest vertices.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph sssp roads --source 42 --top 10
  inshore graph sssp roads --source 42 --memory 64MiB -o distances.parquet")]
pub struct Sssp {
    #[command(flatten)]
    pub asked: Asked,
    #[command(flatten)]
    pub resumed: Resumed,
    /// Vertex to begin from
    #[arg(long, value_name = "ID")]
    pub source: u64,
}

/// Find communities by label propagation
///
/// As LDBC defines it: every vertex begins with its own id as label and takes, in each iteration, the label that most of
/// its neighbours have, the smallest of several; directions do not count, but whom edges join both ways counts twice.
/// The result has columns vertex and community. --top prints the largest communities and how many vertices they have.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph communities web --top 10
  inshore graph communities web --iterations 20 --memory 64MiB -o communities.parquet")]
pub struct Communities {
    #[command(flatten)]
    pub asked: Asked,
    #[command(flatten)]
    pub resumed: Resumed,
    /// Iterations at most; it ends before where no label changes
    #[arg(long, value_name = "N", default_value_t = CommunitiesOptions::default().iterations)]
    pub iterations: u32,
}

/// Tell how closely each vertex's neighbours are connected
///
/// Local clustering coefficients: of the pairs of a vertex's neighbours, the share that an edge joins. Directions do not
/// count for who is a neighbour; between two neighbours each direction counts half. The result has columns vertex and
/// coefficient, 0 where there are fewer than two neighbours; the summary tells the number of triangles.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph clustering web
  inshore graph clustering web --memory 64MiB --top 20 -o clustering.parquet")]
pub struct Clustering {
    #[command(flatten)]
    pub asked: Asked,
}

/// Find the connected components
///
/// Weakly connected: directions do not count. The result has columns vertex and component, where a component is
/// called by the smallest id in it. --top prints the largest components and how many vertices they have.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph components web
  inshore graph components web --memory 64MiB --top 10 -o components.parquet")]
pub struct Components {
    #[command(flatten)]
    pub asked: Asked,
    #[command(flatten)]
    pub resumed: Resumed,
}

/// Find the vertices that shortest paths pass through
///
/// Betweenness centrality by Brandes' algorithm over sampled sources, without weights and not scaled. The result
/// has columns vertex and centrality.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph betweenness web --top 20
  inshore graph betweenness web --sources 16 --seed 7 --memory 128MiB -o centrality.parquet")]
pub struct Betweenness {
    #[command(flatten)]
    pub asked: Asked,
    #[command(flatten)]
    pub resumed: Resumed,
    #[command(flatten)]
    pub sample: Sample,
}

/// Which sources betweenness is summed over.
#[derive(Args)]
pub struct Sample {
    /// Sources to sample (betweenness)
    #[arg(long, value_name = "N", default_value_t = BetweennessOptions::default().sources)]
    pub sources: u64,
    /// Beginning of the random numbers that sample them (betweenness)
    #[arg(long, value_name = "N", default_value_t = BetweennessOptions::default().seed)]
    pub seed: u64,
}

/// Check a result against an independent, plain computation
///
/// Takes a file that one of the algorithms wrote; its columns say which. Give the same options as the job had (after
/// --tolerance, the iterations that it told). Ranks of a job with --vertex-tolerance are compared with converged ones. Exit code 1
/// means that the result is wrong.
/// The check loads the whole graph into memory and keeps no budget.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph check web ranks.parquet --iterations 10
  inshore graph check web ranks.parquet --vertex-tolerance 1e-4
  inshore graph check web tree.parquet --source 42
  inshore graph check web centrality.csv --sources 16 --seed 7")]
pub struct Check {
    /// Name of the graph
    #[arg(value_name = "NAME")]
    pub graph: String,
    /// The result: .parquet, .arrow or .csv
    #[arg(value_name = "FILE")]
    pub answer: PathBuf,
    #[command(flatten)]
    pub how: PagerankHow,
    /// Vertex that the search began from (BFS, shortest paths) [default: the first one at level or distance 0]
    #[arg(long, value_name = "ID")]
    pub source: Option<u64>,
    #[command(flatten)]
    pub sample: Sample,
}

/// What of a graph lies in memory.
#[derive(Clone, Copy, ValueEnum)]
pub enum Regime {
    /// What is known of vertices, their updates, and (shortest paths, betweenness) edges
    Memory,
    /// What is known of vertices and their updates (communities and clustering: where it fits)
    SemiExternal,
    /// Neither: states lie on flash, updates are combined a part at a time
    External,
}

impl Command {
    /// Whether it can be done on nodes.
    pub fn knows_nodes(&self) -> bool {
        use StoreCommand::{Get, Ls, Put, Rm};
        match self {
            Command::Search(_)
            | Command::Sql(_)
            | Command::Compress(_)
            | Command::Reduce(_)
            | Command::Sort(_)
            | Command::Count { .. } => true,
            Command::Language { command } => matches!(command, LanguageCommand::Identify(_)),
            Command::Node { command } => {
                matches!(command, NodeCommand::Status | NodeCommand::Run(_) | NodeCommand::Traverse(_))
            }
            Command::Store { command } => matches!(command, Ls | Put(_) | Get(_) | Rm { .. }),
            Command::Kernel { command } => {
                !matches!(command, KernelCommand::New(_) | KernelCommand::Build(_))
            }
            _ => false,
        }
    }
}

impl From<Regime> for graph::Regime {
    fn from(regime: Regime) -> Self {
        match regime {
            Regime::Memory => graph::Regime::Memory,
            Regime::SemiExternal => graph::Regime::SemiExternal,
            Regime::External => graph::Regime::External,
        }
    }
}

/// How updates are combined in each superstep.
#[derive(Clone, Copy, ValueEnum)]
pub enum Strategy {
    /// In an array with a place for every vertex
    Dense,
    /// By sorting and merging
    Merge,
}

impl From<Strategy> for sortreduce::Strategy {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Dense => sortreduce::Strategy::Dense,
            Strategy::Merge => sortreduce::Strategy::Merge,
        }
    }
}

/// Reads a format by the library's own names, and lets help and completions list them.
fn edge_format() -> impl clap::builder::TypedValueParser<Value = EdgeFormat> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    let all = [
        EdgeFormat::Text,
        EdgeFormat::Csv,
        EdgeFormat::Parquet,
        EdgeFormat::Arrow,
        EdgeFormat::MatrixMarket,
        EdgeFormat::Ldbc,
        EdgeFormat::Binary,
    ];
    PossibleValuesParser::new(all.map(|format| format.to_string())).try_map(|name| name.parse::<EdgeFormat>())
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    fn leaves(command: &Command, path: String, visit: &mut impl FnMut(&str, &Command)) {
        visit(&path, command);
        for sub in command.get_subcommands() {
            leaves(sub, format!("{path} {}", sub.get_name()), visit);
        }
    }

    #[test]
    fn the_table_is_sound() {
        super::Words::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_paragraph_and_examples_of_itself() {
        leaves(&super::Words::command(), "inshore".into(), &mut |path, command| {
            assert!(command.get_long_about().is_some(), "{path}: no description");
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.lines().filter(|line| line.starts_with("  ") && line.contains(path)).count();
            assert!((2..=4).contains(&examples), "{path}: {examples} examples");
        });
    }

    /// The words of a line, cut at spaces outside of quotes.
    fn shell_words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for letter in line.chars() {
            match (letter, quote) {
                ('"' | '\'', None) => quote = Some(letter),
                (_, Some(open)) if open == letter => quote = None,
                (' ', None) => words.push(String::new()),
                _ => words.last_mut().expect("never empty").push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_example_is_understood() {
        leaves(&super::Words::command(), "inshore".into(), &mut |_, command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.starts_with("  ")) {
                let from_here = &line[line.find("inshore").unwrap()..];
                let until_there = from_here.split(['|', '>', '&']).next().unwrap();
                let words = shell_words(until_there);
                match super::Words::command().try_get_matches_from(words) {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp, "{line}: {error}")
                    }
                }
            }
        });
    }
}

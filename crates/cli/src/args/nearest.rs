//! `inshore nearest`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use inshore::vectors;

use super::store::parse_piece;

#[derive(Subcommand)]
pub enum NearestCommand {
    Import(NearestImport),
    Add(NearestAdd),
    Upsert(NearestUpsert),
    Remove(NearestRemove),
    /// Free the space of removed vectors, and merge the layers of the index
    ///
    /// The vectors are written again without those that were removed, and the lists of the index with those that were added. Ids
    /// stay. Lists with more than twice the planned number of vectors are split. Vectors and index change at once: a
    /// command that is killed changes nothing, and searches that run go on.
    #[command(after_help = "\
Examples:
  inshore nearest compact sift
  inshore nearest compact sift --memory 512MiB")]
    Compact {
        /// Name of the vectors
        #[arg(value_name = "NAME")]
        dataset: String,
    },
    Index(NearestIndex),
    Query(NearestQuery),
    Join(NearestJoin),
    Graph(NearestGraph),
    Dedup(NearestDedup),
    Recall(NearestRecall),
    /// List the vectors of the store, or with --node of nodes
    ///
    /// Prints one line for each dataset of vectors: its name, vectors, dimensions, type of elements, size on flash, and the metric
    /// of its index. With --json, prints an array.
    #[command(after_help = "\
Examples:
  inshore nearest ls
  inshore nearest ls --json | jq '.[].name'
  inshore nearest ls --node a.lan,b.lan")]
    Ls,
    /// Show the properties of vectors and of their index
    ///
    /// Shows the type of elements, the dimensions, the number of vectors and the size on flash. For an index, also
    /// shows the metric, the number of lists, the size, and a table of recall with the date of its measurement. The
    /// build of the index measures recall, and `nearest recall` measures it again. The command reads no vectors.
    #[command(after_help = "\
Examples:
  inshore nearest info sift
  inshore nearest info sift --json | jq .summary.index.lists
  inshore nearest info sift --node a.lan,b.lan")]
    Info {
        /// Name of the vectors
        #[arg(value_name = "NAME")]
        dataset: String,
    },
    /// Remove vectors with their index from the store, or with --node from nodes
    ///
    /// A running search can still read vectors that are removed. An unknown name is an error, but the other vectors are
    /// removed. If a node does not answer, the others remove their parts, and the error names the node. Once the node
    /// answers again, the same command removes its parts.
    #[command(after_help = "\
Examples:
  inshore nearest rm sift
  inshore nearest rm sift texts
  inshore nearest rm sift --index
  inshore nearest rm sift --node a.lan,b.lan")]
    Rm {
        /// Names of the vectors
        #[arg(value_name = "NAME", required = true)]
        datasets: Vec<String>,
        /// Remove only the index
        #[arg(long)]
        index: bool,
    },
}

/// Import vectors from a file, or compute them from images or texts
///
/// The file extension selects the format: .fvecs, .bvecs, .ivecs (TEXMEX); .fbin, .u8bin, .i8bin (big-ann-benchmarks);
/// .hbin (f16) and .b1bin (packed bits), which have the header of .fbin; .npy, an array in C order with one row for
/// each vector, of f32, f64, f16, bfloat16 (<V2), u8, i8 or i32. Elements are stored unchanged, except that f64 is
/// rounded to f32, and i32 must be exact in f32. The id of a vector is its number in the file, counted from 0. NaN,
/// infinities, vectors of different lengths and truncated files are errors, which name the place in the file.
///
/// One column of a table (.parquet, .arrow) has the vectors, as lists of numbers. The other columns are kept: with
/// --where, `nearest query` selects vectors by them, and --select adds them to the answer. With --id, the answer has the
/// values of a column as ids.
///
/// With --images, each PNG or JPEG file becomes the joint histogram of its colours and edges: 256 f32, the shares of the pixels of
/// the image scaled to 128 x 128. With --documents, each file (or with --lines, each line) becomes the counts of the words of a
/// vocabulary: 8,000 u8, which stay at 255; the vocabulary is the most frequent words of all documents. Files below folders come in
/// the order of paths. `nearest query` computes queries in the same way.
///
/// With --node, the vectors of a file or a table are divided into shards, which the nodes hold with their columns.
/// `nearest query --node` then finds neighbours on the nodes: each node answers with its nearest vectors. Nodes have
/// neither images nor documents.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest import sift.fvecs --name sift
  inshore nearest import docs.parquet --name docs --column embedding --id doc_id
  inshore nearest import photos/ --images --skip-errors --name photos
  inshore nearest import docs.parquet --name docs --id doc_id --node a.lan,b.lan,c.lan")]
pub struct NearestImport {
    /// The file of vectors; with --images or --documents, files and folders
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Name of the new dataset
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Read each byte of the file as eight dimensions of one bit
    #[arg(long)]
    pub bits: bool,
    /// Column of a table that has the vectors; may be left out if the table has one column of lists
    #[arg(long, value_name = "COLUMN")]
    pub column: Option<String>,
    /// Column of a table whose values, integers or texts that occur once, are the ids of the vectors
    #[arg(long, value_name = "COLUMN")]
    pub id: Option<String>,
    /// With --node: number of nodes that hold each shard [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    #[arg(conflicts_with_all = ["images", "documents"])]
    pub copies: Option<u8>,
    /// With --node: approximate size of a shard, at least 64KiB [default: by the size of the vectors]
    #[arg(long, value_name = "SIZE", value_parser = parse_piece, conflicts_with_all = ["images", "documents"])]
    pub piece: Option<u64>,
    /// Compute a histogram of each PNG or JPEG file
    #[arg(long, conflicts_with_all = ["bits", "documents"])]
    pub images: bool,
    /// Leave malformed images out, and count them
    #[arg(long, requires = "images")]
    pub skip_errors: bool,
    /// Count the words of each text
    #[arg(long, conflicts_with = "bits")]
    pub documents: bool,
    /// Each line of the file is a document
    #[arg(long, requires = "documents")]
    pub lines: bool,
    /// Words of the vocabulary, at most [default: 8000]
    #[arg(long, value_name = "N", requires = "documents", value_parser = clap::value_parser!(u64).range(1..=vectors::DIMENSIONS_MAX as u64))]
    pub words: Option<u64>,
}

/// Add vectors to a dataset
///
/// The input is a file of vectors; or for vectors of a table (`nearest import --column`) a table with the same columns; or for
/// images and documents files and folders of these. The vectors have the dimensions and the type of elements of the dataset, and get
/// the ids that follow the largest id that was used, unless a column has the ids.
/// After the command has ended, the vectors survive a power loss; a command that is killed changes nothing. Searches that run go on
/// without them. Many vectors at once are cheaper than many commands: each one writes up to 2 MiB again for each file that grows.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest add sift more.fvecs
  inshore nearest add docs more.parquet --column embedding
  inshore nearest add photos more/ beach.jpg
  inshore nearest add fingerprints more.npy --bits")]
pub struct NearestAdd {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// The file of vectors or the table, in any format of `nearest import`; or images or documents
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Take each byte of the file as eight dimensions of one bit
    #[arg(long)]
    pub bits: bool,
    /// Column of the table that has the vectors [default: the only column of lists of numbers]
    #[arg(long, value_name = "COLUMN", conflicts_with = "bits")]
    pub column: Option<String>,
    /// Each line of the file is a document
    #[arg(long, conflicts_with_all = ["bits", "column"])]
    pub lines: bool,
}

/// Replace vectors by their ids, or add them
///
/// Each vector of the file replaces the one with its id, or is added if there is none. All of them change at once: a search sees the
/// old vectors or the new ones. Vectors of a table are replaced by a table with the same columns. If a column has their ids
/// (`nearest import --id`), --ids is left out.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest upsert sift changed.fvecs --ids changed.txt
  inshore nearest upsert sift two.npy --ids 17,1000042
  inshore nearest upsert docs changed.parquet")]
pub struct NearestUpsert {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// The file of vectors or the table, in any format of `nearest import`
    #[arg(value_name = "FILE")]
    pub input: PathBuf,
    /// The id of each vector: a text file of numbers, or numbers with commas between them [default: the column of ids]
    #[arg(long, value_name = "FILE|IDS", value_parser = ids)]
    pub ids: Option<Ids>,
    /// Take each byte of the file as eight dimensions of one bit
    #[arg(long)]
    pub bits: bool,
    /// Column of the table that has the vectors [default: the only column of lists of numbers]
    #[arg(long, value_name = "COLUMN", conflicts_with = "bits")]
    pub column: Option<String>,
}

/// Remove vectors by their ids
///
/// The ids are not used again, unless `nearest upsert` puts vectors there. Searches that run go on with the vectors. An id whose
/// vector was removed before is counted and is no error; an id that no vector has had is one. `nearest rm` removes whole datasets.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest remove sift --ids 3,17,20
  inshore nearest remove sift --ids old.txt")]
pub struct NearestRemove {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// The ids: a text file of numbers, or numbers with commas between them. If a column has the ids, each line of the file is
    /// one
    #[arg(long, value_name = "FILE|IDS", value_parser = ids)]
    pub ids: Ids,
}

/// `--ids`.
#[derive(Clone, Debug, PartialEq)]
pub enum Ids {
    List(Vec<u64>),
    File(PathBuf),
}

/// Parses `--ids`: digits and commas are a list, anything else is the path of a file.
fn ids(text: &str) -> Result<Ids, String> {
    if !text.starts_with(|c: char| c.is_ascii_digit())
        || text.contains(|c: char| !c.is_ascii_digit() && c != ',')
    {
        return Ok(Ids::File(text.into()));
    }
    let id = |word: &str| word.parse().map_err(|_| format!("found {word:?}, expected the id of a vector"));
    Ok(Ids::List(text.split(',').map(id).collect::<Result<_, _>>()?))
}

/// Build an index for approximate answers
///
/// The index consists of inverted lists: each list has the vectors near one centroid, so that a query reads only a few
/// lists (`nearest query --recall`). The index is the dataset NAME.index, which holds a copy of all vectors. The build
/// reads the vectors three times and sorts them by list, within --memory; --explain prints the plan of the build. A
/// build that is interrupted changes nothing. The lists depend only on the vectors, the metric, the number of lists and
/// the seed. The build also measures the recall for several numbers of probed lists, on vectors of the dataset, and
/// stores this table. `nearest recall` measures recall on your queries.
///
/// With --node, nodes write lists of the vectors that they hold (`nearest import --node`): the centroids are trained
/// here on a sample of at most 8 MiB, and copied to each node. The lists that a query probes do not depend on the
/// number of nodes.
///
/// With --copies the index has a second file of larger lists, which also hold copies of vectors near their borders. Single
/// queries read this file, and need about a quarter of the lists for the same recall. The cost is flash, and a longer
/// build.
///
/// With --codes the index has a second file with a code of each vector, of 1, 2 or 4 bits for each dimension (RaBitQ).
/// Single queries estimate distances from codes, and read and measure only the vectors that may be near enough. This
/// pays for vectors of many dimensions, most of all if the codes fit in the memory of a query. Lists then have more
/// vectors.
///
/// With --lsh the index consists of hash tables of locality-sensitive functions, whose buckets hold the numbers of
/// vectors: bits of the vectors for hamming, random hyperplanes for cosine, projections for l2. A query reads the
/// buckets of its own codes and of near codes (multi-probe), and measures the vectors in these. The tables take little
/// flash and any type of elements. For small vectors inverted lists need fewer reads. Vectors that are added later are
/// in no table, and each query is compared with them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest index sift --memory 512MiB --copies 4 --resume
  inshore nearest index texts --metric cosine --codes 1
  inshore nearest index pages --lsh --metric hamming --tables 12 --bits 16
  inshore nearest index sift --node a.lan,b.lan,c.lan")]
pub struct NearestIndex {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// Distance between vectors, in all searches of the index
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = Metric::L2)]
    pub metric: Metric,
    /// Number of lists [default: the number for lists of 16 KiB or 32 vectors on average, whichever is larger]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "lsh")]
    pub lists: Option<u64>,
    /// Seed that determines the samples, and the functions of hash tables
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Write lists with copies for single queries, of up to N times the size of an average list, so that they take up to
    /// about N times the bytes of the vectors [default: no copies]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(2..=vectors::COPIES_MAX),
        conflicts_with = "lsh"
    )]
    pub copies: Option<u64>,
    /// Write codes for single queries, of this number of bits for each dimension: 1, 2 or 4 [default: no codes]
    #[arg(
        long,
        value_name = "BITS",
        value_parser = parse_code_bits,
        conflicts_with_all = ["copies", "lsh"]
    )]
    pub codes: Option<u32>,
    /// Keep the centroids and finished runs if the build is interrupted, and resume from those of an earlier interrupted
    /// build of the same vectors with the same options (store jobs lists them)
    #[arg(long, conflicts_with = "lsh")]
    pub resume: bool,
    /// Build hash tables in the place of inverted lists: locality-sensitive hashing, for l2, cosine and hamming
    #[arg(long)]
    pub lsh: bool,
    #[command(flatten)]
    pub tables: HashTableOptions,
}

/// The options of hash tables.
#[derive(Args)]
pub struct HashTableOptions {
    /// Number of hash tables [default: 8]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=vectors::TABLES_MAX),
        requires = "lsh"
    )]
    pub tables: Option<u64>,
    /// Number of hash functions of a table, each of about one bit [default: the number for buckets of 32 vectors on
    /// average]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=vectors::BITS_OF_CODE_MAX),
        requires = "lsh"
    )]
    pub bits: Option<u64>,
    /// Number of buckets of a table [default: 2 to the power of --bits, at most 2^24]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=vectors::BUCKETS_MAX),
        requires = "lsh"
    )]
    pub buckets: Option<u64>,
    /// Width of the cells of projections, for l2 [default: twice the standard deviation of the projections]
    #[arg(long, value_name = "W", requires = "lsh")]
    pub width: Option<f64>,
}

/// Measure the recall of an index on your queries
///
/// Finds the exact neighbours of a sample of the queries. For several numbers of probed lists, measures the share of
/// these neighbours that an approximate answer contains. The new table of recall replaces the table of the index, and
/// `nearest query --recall` then uses the new table.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest recall sift queries.fvecs
  inshore nearest recall texts queries.npy --sample 1000 -k 100
  inshore nearest recall sift queries.fvecs --node a.lan,b.lan")]
pub struct NearestRecall {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// The file of queries, in any format of `nearest import`; images, texts or folders of them, if the vectors were computed of such
    #[arg(value_name = "QUERIES", required = true)]
    pub queries: Vec<PathBuf>,
    /// Each line of the file is a query (vectors of documents)
    #[arg(long)]
    pub lines: bool,
    /// Number of queries in the sample, taken at equal intervals from the file
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub sample: u64,
    /// Number of neighbours of each query
    #[arg(short, value_name = "K", allow_negative_numbers = true, default_value_t = vectors::Search::default().k, value_parser = clap::value_parser!(u64).range(1..))]
    pub k: u64,
}

/// Find the nearest vectors of each query
///
/// Without --recall and --probes the answer is exact: it equals the answer of brute force with distances in f64 (for
/// bytes, in integers). Ties go to the smaller id. The answer does not depend on memory or threads. One pass over the
/// vectors answers as many queries as fit in memory together with their neighbours; --explain shows the number of
/// passes. The result has columns query (from 0), rank (from 1), id and distance. The distance depends on --metric. For
/// l2 it is the Euclidean distance, and for ip the inner product, with the largest first. For cosine it is 1 - cosine;
/// the cosine of a zero vector with any vector is 0. For hamming it is the number of different bits or bytes. For
/// jaccard it is 1 - (bits set in both) / (bits set in at least one). Vectors of bits support only hamming and jaccard;
/// vectors of bytes also support hamming. If the vectors are bits, a query file of bytes is read as packed bits.
///
/// With --recall, and an index of the vectors (`nearest index`), the answer is approximate: distances are exact, but
/// some neighbours may be missing. The search probes as many lists or buckets as reached this recall, and the standard
/// error of the measurement more, when recall was measured (`nearest recall`).
///
/// If the vectors were imported from a table, --where selects the vectors that may be answers, and --select adds columns
/// to the answer. A query has k neighbours if k vectors are selected. If fewer than 1 % of the vectors are selected, the
/// answer is exact.
///
/// With --node, nodes search their shards of vectors (`nearest import --node`), and the exact answer equals that of a
/// local search bit for bit. They also evaluate --where and read the columns of --select. --explain shows the reads,
/// distances and bytes of each node.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest query sift queries.fvecs -k 100 -o hits.parquet --memory 256MiB
  inshore nearest query sift queries.fvecs -k 10 --recall 0.95
  inshore nearest query docs queries.npy -k 10 --where \"year > 2020 AND lang = 'en'\" --select title,url
  inshore nearest query sift queries.fvecs -k 10 --node a.lan,b.lan,c.lan --explain")]
pub struct NearestQuery {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// The file of queries, in any format of `nearest import`; images, texts or folders of them, if the vectors were computed of such
    #[arg(value_name = "QUERIES", required = true)]
    pub queries: Vec<PathBuf>,
    /// Each line of the file is a query (vectors of documents)
    #[arg(long)]
    pub lines: bool,
    /// Largest number of neighbours of each query
    #[arg(short, value_name = "K", allow_negative_numbers = true, default_value_t = vectors::Search::default().k, value_parser = clap::value_parser!(u64).range(1..))]
    pub k: u64,
    /// Distance between vectors
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = Metric::L2)]
    pub metric: Metric,
    /// Only neighbours up to this distance (for ip: with at least this inner product)
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub radius: Option<f64>,
    /// Answer from the index with at least this recall (above 0, at most 1); without an index the answer is exact
    #[arg(long, value_name = "R", conflicts_with = "probes")]
    pub recall: Option<f64>,
    /// Answer from the index, and probe this number of lists, or of buckets of hash tables
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub probes: Option<u64>,
    /// Answer exactly (the default without --recall and --probes)
    #[arg(long, conflicts_with_all = ["recall", "probes", "strategy"])]
    pub exact: bool,
    /// Order in which lists of the index are read: single reads the lists of one query after the other, batch reads
    /// each list once for all queries [default: the strategy with the lower estimated cost]
    #[arg(long, value_name = "STRATEGY", value_enum)]
    pub strategy: Option<Strategy>,
    /// Only vectors whose columns satisfy this SQL expression
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub predicate: Option<String>,
    /// Columns of the vectors that the answer has besides its own
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub select: Vec<String>,
    /// Write all rows to a file; .parquet, .arrow or .csv chooses the format, - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Find the nearest vectors of B for each vector of A
///
/// A and B are datasets of the store. The answer is that of `nearest query` with the vectors of A as queries: exact without --recall,
/// and the same for every memory and number of threads. Vectors of A that fit the memory are one block, and each block is one pass
/// over B, or one batch of reads of its index; --explain shows the passes. The result has columns query (the id in A), rank (from 1), id (in
/// B) and distance. A and B have the same dimensions; elements may differ if B's elements hold the values of A exactly.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest join new.products products -k 5 -o matches.parquet --memory 256MiB
  inshore nearest join captions images --metric cosine --recall 0.95 -o pairs.parquet")]
pub struct NearestJoin {
    /// Name of the vectors that are the queries
    #[arg(value_name = "A")]
    pub queries: String,
    /// Name of the vectors in which neighbours are found
    #[arg(value_name = "B")]
    pub dataset: String,
    #[command(flatten)]
    pub neighbours: Neighbours,
}

/// Find the nearest other vectors of each vector
///
/// The result is the k-nearest-neighbour graph: columns query (the id of a vector), rank (from 1), id and distance. A vector is no
/// neighbour of itself, but vectors that are equal to it are. Otherwise the command is `nearest join` of the vectors with themselves.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest graph sift -k 10 -o graph.parquet --memory 256MiB
  inshore nearest graph texts -k 20 --metric cosine --recall 0.95 -o graph.parquet")]
pub struct NearestGraph {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    #[command(flatten)]
    pub neighbours: Neighbours,
}

/// Find near-duplicates: all pairs of vectors within a distance, or groups of them
///
/// The result has columns id, duplicate and distance: one row for each pair within the distance, with id < duplicate, in the order of
/// both. No number of neighbours limits the pairs of a vector; they are sorted on flash. With --groups the columns are id and group:
/// one row for each vector that has a near-duplicate, where the group is the smallest id of all vectors that pairs connect. To keep one
/// vector of each group, drop the vectors whose id is not their group.
///
/// The answer is exact without --recall and --probes, and the same for every memory and number of threads. With them, a pair is found if
/// one of its vectors lies in a list that the other one probes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest dedup texts --cosine 0.97 -o pairs.parquet --memory 256MiB
  inshore nearest dedup texts --cosine 0.97 --groups -o groups.parquet
  inshore nearest dedup fingerprints --metric hamming --radius 3 -o pairs.csv
  inshore nearest dedup sift --radius 120 --recall 0.95 -o pairs.parquet")]
#[command(group = ArgGroup::new("distance").args(["cosine", "radius"]).required(true))]
pub struct NearestDedup {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// Pairs whose cosine is at least this: short for --metric cosine --radius (1 - S)
    #[arg(long, value_name = "S", allow_negative_numbers = true, conflicts_with = "metric")]
    pub cosine: Option<f64>,
    /// Pairs up to this distance (for ip: from this inner product on)
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub radius: Option<f64>,
    /// Distance between vectors [default: l2]
    #[arg(long, value_name = "METRIC", value_enum)]
    pub metric: Option<Metric>,
    /// Return the groups of near-duplicates in the place of pairs
    #[arg(long)]
    pub groups: bool,
    #[command(flatten)]
    pub index: IndexUse,
    /// Write all rows to a file; .parquet, .arrow or .csv chooses the format, - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What `nearest join` and `nearest graph` find for each vector.
#[derive(Args)]
pub struct Neighbours {
    /// Neighbours of each vector, at most
    #[arg(short, value_name = "K", allow_negative_numbers = true, default_value_t = vectors::Search::default().k, value_parser = clap::value_parser!(u64).range(1..))]
    pub k: u64,
    /// Distance between vectors
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = Metric::L2)]
    pub metric: Metric,
    /// Only neighbours up to this distance (for ip: from this inner product on)
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub radius: Option<f64>,
    #[command(flatten)]
    pub index: IndexUse,
    /// How lists of the index are read: single, those of one query after the other; batch, each list once for all queries [default:
    /// the cheaper one]
    #[arg(long, value_name = "STRATEGY", value_enum)]
    pub strategy: Option<Strategy>,
    /// Write all rows to a file; .parquet, .arrow or .csv chooses the format, - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Whether an index answers.
#[derive(Args)]
pub struct IndexUse {
    /// Answer from the index, with this recall or more: above 0, and at most 1; exactly, if there is no index
    #[arg(long, value_name = "R", conflicts_with = "probes")]
    pub recall: Option<f64>,
    /// Answer from the index, and probe this number of lists, or buckets of hash tables, for each vector
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub probes: Option<u64>,
    /// Answer exactly, which is what happens without --recall and --probes
    #[arg(long, conflicts_with_all = ["recall", "probes"])]
    pub exact: bool,
}

/// `--metric`.
#[derive(Clone, Copy, ValueEnum)]
pub enum Metric {
    /// Euclidean distance
    L2,
    /// Inner product, the largest first
    Ip,
    /// 1 - cosine of the angle
    Cosine,
    /// Number of bits that differ (vectors of bytes: number of bytes)
    Hamming,
    /// 1 - (bits set in both) / (bits set in at least one)
    Jaccard,
}

/// `--strategy`.
#[derive(Clone, Copy, ValueEnum)]
pub enum Strategy {
    /// Read the lists of one query after the other
    Single,
    /// Read each list once, for all queries that probe the list
    Batch,
}

impl From<Strategy> for vectors::Strategy {
    fn from(strategy: Strategy) -> vectors::Strategy {
        match strategy {
            Strategy::Single => vectors::Strategy::Single,
            Strategy::Batch => vectors::Strategy::Batch,
        }
    }
}

impl From<Metric> for vectors::Metric {
    fn from(metric: Metric) -> vectors::Metric {
        match metric {
            Metric::L2 => vectors::Metric::L2,
            Metric::Ip => vectors::Metric::Ip,
            Metric::Cosine => vectors::Metric::Cosine,
            Metric::Hamming => vectors::Metric::Hamming,
            Metric::Jaccard => vectors::Metric::Jaccard,
        }
    }
}

fn parse_code_bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok().filter(|bits| vectors::CODE_BITS.contains(bits));
    bits.ok_or_else(|| "expected 1, 2 or 4 bits for each dimension".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_a_list_or_a_file() {
        assert_eq!(ids("3,17"), Ok(Ids::List(vec![3, 17])));
        assert_eq!(ids("5"), Ok(Ids::List(vec![5])));
        for path in ["ids.txt", "./17", "17.txt", ",3"] {
            assert_eq!(ids(path), Ok(Ids::File(path.into())));
        }
        assert_eq!(ids("3,"), Err("found \"\", expected the id of a vector".to_string()));
        assert!(ids("18446744073709551616").is_err());
    }
}

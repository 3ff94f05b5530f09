//! `inshore nearest`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use inshore::vectors;

#[derive(Subcommand)]
pub enum NearestCommand {
    Import(NearestImport),
    Query(NearestQuery),
}

/// Import vectors from a file
///
/// The file extension selects the format: .fvecs, .bvecs, .ivecs (TEXMEX); .fbin, .u8bin, .i8bin (big-ann-benchmarks); .npy, an
/// array of vectors and dimensions in C order, of f32, f64, u8, i8 or i32. Bytes stay bytes. f64 is rounded to f32, and i32 must
/// fit f32 exactly. A vector's id is its number in the file, from 0. NaN and infinities, vectors of different lengths and truncated
/// files are refused with their place.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest import sift.fvecs --name sift
  inshore nearest import embeddings.npy --name texts --memory 64MiB")]
pub struct NearestImport {
    /// The file of vectors
    #[arg(value_name = "FILE")]
    pub input: PathBuf,
    /// Name of the new dataset
    #[arg(long, value_name = "NAME")]
    pub name: String,
}

/// Find the nearest vectors of each query
///
/// The answer is exact: it equals brute force in f64 (for bytes: in integers), ties go to the smaller id, and it does not depend on
/// memory and threads. One pass over the vectors answers all queries that fit the memory with their neighbours; --explain shows the
/// passes. The result has columns query (from 0), rank (from 1), id and distance: the Euclidean distance (not its square), the
/// inner product (falling), or 1 - cosine, where a zero vector has the cosine 0 with any vector.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore nearest query sift queries.fvecs -k 100 -o hits.parquet --memory 256MiB
  inshore nearest query texts queries.npy -k 10 --metric cosine
  inshore nearest query sift queries.fvecs -k 1000 --radius 250 -o near.csv")]
pub struct NearestQuery {
    /// Name of the vectors
    #[arg(value_name = "NAME")]
    pub dataset: String,
    /// The file of queries, in any format of `nearest import`
    #[arg(value_name = "QUERIES")]
    pub queries: PathBuf,
    /// Neighbours of each query, at most
    #[arg(short, value_name = "K", default_value_t = vectors::Search::default().k, value_parser = clap::value_parser!(u64).range(1..))]
    pub k: u64,
    /// Distance between vectors
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = Metric::L2)]
    pub metric: Metric,
    /// Only neighbours up to this distance (for ip: from this inner product on)
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub radius: Option<f64>,
    /// Write all rows to a file; .parquet, .arrow or .csv chooses the format, - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
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
}

impl From<Metric> for vectors::Metric {
    fn from(metric: Metric) -> vectors::Metric {
        match metric {
            Metric::L2 => vectors::Metric::L2,
            Metric::Ip => vectors::Metric::Ip,
            Metric::Cosine => vectors::Metric::Cosine,
        }
    }
}

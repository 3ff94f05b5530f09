//! `inshore graph`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use inshore::{
    graph::{self, BetweennessOptions, CommunitiesOptions, EdgeFormat, PageRankOptions, Tuning},
    sortreduce,
};

use super::TOP_MAX;

#[derive(Subcommand)]
pub enum GraphCommand {
    Import(Import),
    /// Generate a synthetic graph
    ///
    /// Generated graphs serve for measurements and demonstrations. The same arguments give the same graph on every
    /// machine.
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
    /// Prints one line for each graph: its name, vertices, edges, kind and size on flash. With --json, prints an array.
    #[command(after_help = "\
Examples:
  inshore graph ls
  inshore graph ls --store /mnt/nvme/inshore
  inshore graph ls --json | jq '.[].name'")]
    Ls,
    /// Show the properties of a graph
    ///
    /// Shows the numbers of vertices and edges, the degrees, the size on flash, and the smallest memory budget that
    /// suffices for every job on the graph. The command reads no edges.
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
    /// A running job can still read a graph that is removed. An unknown name is an error, but the other graphs are
    /// removed.
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
    /// Writes one row for each edge, with columns source, target and (in a weighted graph) weight, in the order of the
    /// sources. The file extension selects the format: .parquet, .arrow, .csv, or .bin for raw pairs of little-endian
    /// u32 without weights; - is CSV on standard output. An edge of an undirected graph is one row, and the smaller id
    /// is the source; to import the file again, pass --undirected. Vertices without edges have no row.
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
/// Reads SNAP text, CSV, Parquet, Arrow, Matrix Market, LDBC .v and .e, and raw pairs of little-endian u32. SNAP text
/// has two ids per line, separated by tabs, spaces or commas, and comments after #. Files in gzip, zstd, bzip2 and lz4
/// are decompressed. Duplicate edges merge, and self-loops stay unless --drop-loops is given. The import works within
/// --memory. It either creates the whole graph, or leaves the store unchanged.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph import web.txt.gz --name web
  inshore graph import part-*.csv --name calls --source-column caller --target-column callee
  inshore graph import g.v g.e --name g --undirected
  zcat edges.gz | inshore graph import - --name piped --memory 64MiB")]
pub struct Import {
    /// Files of edges; - is standard input. Name both files of an LDBC graph: g.v g.e
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Name of the new graph
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Format of the inputs [default: by the file extension, else text]
    #[arg(long, value_name = "FORMAT", value_parser = edge_format())]
    pub format: Option<EdgeFormat>,
    /// Use every edge in both directions
    #[arg(long)]
    pub undirected: bool,
    /// Leave out edges from a vertex to itself
    #[arg(long)]
    pub drop_loops: bool,
    /// Keep weights: the third column of a text file, or the column named weight of a table. Duplicate edges keep the
    /// smallest weight
    #[arg(long)]
    pub weighted: bool,
    /// Keep in-edges too, so that no job has to compute them. The graph then takes twice the space
    #[arg(long)]
    pub reverse: bool,
    /// Column of the edges' sources (CSV, Parquet, Arrow) [default: source, src or from, else the first column]
    #[arg(long, value_name = "COLUMN")]
    pub source_column: Option<String>,
    /// Column of the edges' targets (CSV, Parquet, Arrow) [default: target, dst or to, else the second column]
    #[arg(long, value_name = "COLUMN")]
    pub target_column: Option<String>,
    /// Column of the edges' weights (CSV, Parquet, Arrow); implies --weighted [default with --weighted: weight]
    #[arg(long, value_name = "COLUMN")]
    pub weight_column: Option<String>,
}

#[derive(Subcommand)]
pub enum Generator {
    Kronecker(Kronecker),
}

/// Make a Graph500 Kronecker graph
///
/// The graph is directed and has 2^scale vertices. A few vertices have very large degrees, and most vertices have small
/// degrees. Duplicate edges merge, so that the graph has somewhat fewer than edge-factor edges per vertex.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph generate kronecker --scale 16 --name small
  inshore graph generate kronecker --scale 24 --edge-factor 16 --seed 1 --name kron24 --memory 64MiB")]
pub struct Kronecker {
    /// The graph has 2^scale vertices
    #[arg(long, value_name = "N")]
    pub scale: u32,
    /// Number of edges drawn for each vertex
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub edge_factor: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Name of the new graph
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Keep in-edges too, so that no job has to compute them
    #[arg(long)]
    pub reverse: bool,
}

/// Arguments that all algorithms share.
#[derive(Args)]
pub struct AlgorithmArgs {
    /// Name of the graph
    #[arg(value_name = "NAME")]
    pub graph: String,
    /// Write all rows to a file; .parquet, .arrow or .csv chooses the format, - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the first N rows of the result, best first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=TOP_MAX))]
    pub top: Option<u64>,
    /// Force the strategy that combines updates [default: dense if it fits in the budget]
    #[arg(long, value_name = "STRATEGY")]
    pub strategy: Option<Strategy>,
    /// Force the place of vertex state and updates [default: as much in memory as the budget holds]
    #[arg(long, value_name = "REGIME", conflicts_with = "strategy")]
    pub regime: Option<Regime>,
}

impl AlgorithmArgs {
    /// Returns the tuning that the options force.
    pub fn tuning(&self) -> Tuning {
        let (strategy, regime) = (self.strategy.map(Into::into), self.regime.map(Into::into));
        Tuning { strategy, regime, ..Tuning::default() }
    }
}

/// Arguments of algorithms that can resume.
#[derive(Args)]
pub struct ResumeArgs {
    /// Save checkpoints, and resume from the checkpoint of an interrupted run (store jobs lists them)
    #[arg(long)]
    pub resume: bool,
    /// With --resume: seconds between two checkpoints, approximately
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, requires = "resume", value_parser = seconds)]
    pub checkpoint_every: f64,
}

impl ResumeArgs {
    /// Returns the interval between checkpoints.
    pub fn interval(&self) -> Option<Duration> {
        self.resume.then(|| Duration::from_secs_f64(self.checkpoint_every))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=1e9).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0 or more".to_string())
}

/// Rank vertices by the links that point to them
///
/// Computes PageRank as LDBC defines it: ranks sum to 1, and the ranks of vertices without out-edges are spread evenly
/// over all vertices. The result has columns vertex and rank.
///
/// With --vertex-tolerance V ranks converge vertex by vertex: a vertex sends only the change of its rank, and only
/// while the change is more than V times the rank. Late supersteps read few edges, and the job ends when no vertex has
/// more to send. The absolute differences between the ranks and the converged ranks then sum to at most 2 V damping /
/// (1 - damping). The summary of the job has this bound.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph pagerank web --memory 64MiB --top 20
  inshore graph pagerank web --iterations 30 --tolerance 1e-9 -o ranks.parquet
  inshore graph pagerank web --vertex-tolerance 1e-4 --memory 64MiB -o ranks.parquet --resume
  inshore graph pagerank web -o - | sort -t, -k2 -gr | head")]
pub struct Pagerank {
    #[command(flatten)]
    pub asked: AlgorithmArgs,
    #[command(flatten)]
    pub resumed: ResumeArgs,
    #[command(flatten)]
    pub how: PagerankArgs,
    /// Stop early, once the changes of all ranks in an iteration sum to at most T
    #[arg(long, value_name = "T", default_value_t = PageRankOptions::default().tolerance, conflicts_with = "vertex_tolerance")]
    pub tolerance: f64,
}

/// Options of PageRank.
#[derive(Args)]
pub struct PagerankArgs {
    /// Number of iterations (PageRank, communities) [default: 10; with --vertex-tolerance until ranks converge]
    #[arg(long, value_name = "N")]
    pub iterations: Option<u32>,
    /// Send only changes of ranks, and only while a change is more than this share of a vertex's rank (PageRank)
    #[arg(long, value_name = "V")]
    pub vertex_tolerance: Option<f64>,
    /// Probability of following a link (PageRank)
    #[arg(long, value_name = "D", default_value_t = PageRankOptions::default().damping)]
    pub damping: f64,
}

impl PagerankArgs {
    /// Returns the options of the library; options without an argument have their defaults.
    pub fn options(&self) -> PageRankOptions {
        let PagerankArgs { iterations, vertex_tolerance, damping } = *self;
        PageRankOptions { iterations, vertex_tolerance, damping, ..PageRankOptions::default() }
    }
}

/// Search breadth first from a vertex
///
/// The result has columns vertex, parent and level. The source is its own parent, at level 0. If a vertex has several
/// possible parents, the smallest is its parent, so that the tree is the same at every budget. Unreached vertices have
/// null as parent and level.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph bfs web --source 42
  inshore graph bfs web --source 42 --memory 64MiB -o tree.parquet
  inshore graph bfs web --source 42 --top 10")]
pub struct Bfs {
    #[command(flatten)]
    pub asked: AlgorithmArgs,
    #[command(flatten)]
    pub resumed: ResumeArgs,
    /// Vertex to start from
    #[arg(long, value_name = "ID")]
    pub source: u64,
}

/// Find shortest paths from a vertex, by weights
///
/// The result has columns vertex and distance: the least sum of weights on a path from the source, or null for
/// unreached vertices. The graph must have weights (import --weighted), and none of them may be negative. --top prints
/// the nearest vertices.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph sssp roads --source 42 --top 10
  inshore graph sssp roads --source 42 --memory 64MiB -o distances.parquet")]
pub struct Sssp {
    #[command(flatten)]
    pub asked: AlgorithmArgs,
    #[command(flatten)]
    pub resumed: ResumeArgs,
    /// Vertex to start from
    #[arg(long, value_name = "ID")]
    pub source: u64,
}

/// Find communities by label propagation
///
/// Finds communities as LDBC defines them: every vertex begins with its own id as label. In each iteration every vertex
/// takes the most frequent label among its neighbours, or the smallest of equally frequent labels. The direction of
/// edges does not matter, but a neighbour with edges in both directions counts twice. The result has columns vertex and
/// community. --top prints the largest communities and their sizes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph communities web --top 10
  inshore graph communities web --iterations 20 --memory 64MiB -o communities.parquet")]
pub struct Communities {
    #[command(flatten)]
    pub asked: AlgorithmArgs,
    #[command(flatten)]
    pub resumed: ResumeArgs,
    /// Largest number of iterations; the job ends earlier if no label changes
    #[arg(long, value_name = "N", default_value_t = CommunitiesOptions::default().iterations)]
    pub iterations: u32,
}

/// Compute the clustering coefficient of each vertex
///
/// Computes local clustering coefficients: the share of pairs of a vertex's neighbours that an edge joins. The
/// neighbours of a vertex are the other ends of its in-edges and out-edges. Between two neighbours, an edge in one
/// direction counts half. The result has columns vertex and coefficient; a vertex with fewer than two neighbours has 0.
/// The summary has the number of triangles.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph clustering web
  inshore graph clustering web --memory 64MiB --top 20 -o clustering.parquet")]
pub struct Clustering {
    #[command(flatten)]
    pub asked: AlgorithmArgs,
}

/// Find the connected components
///
/// Finds weakly connected components: the direction of edges does not matter. The result has columns vertex and
/// component; a component is named by the smallest vertex id in the component. --top prints the largest components and
/// their sizes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph components web
  inshore graph components web --memory 64MiB --top 10 -o components.parquet")]
pub struct Components {
    #[command(flatten)]
    pub asked: AlgorithmArgs,
    #[command(flatten)]
    pub resumed: ResumeArgs,
}

/// Compute betweenness centrality: the vertices on many shortest paths
///
/// Computes betweenness centrality by Brandes' algorithm from sampled sources. Weights are ignored, and values are not
/// scaled. The result has columns vertex and centrality.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore graph betweenness web --top 20
  inshore graph betweenness web --sources 16 --seed 7 --memory 128MiB -o centrality.parquet")]
pub struct Betweenness {
    #[command(flatten)]
    pub asked: AlgorithmArgs,
    #[command(flatten)]
    pub resumed: ResumeArgs,
    #[command(flatten)]
    pub sample: SampleArgs,
}

/// Selects the sample of sources for betweenness.
#[derive(Args)]
pub struct SampleArgs {
    /// Number of sources to sample (betweenness)
    #[arg(long, value_name = "N", default_value_t = BetweennessOptions::default().sources)]
    pub sources: u64,
    /// Seed of the random numbers that sample the sources (betweenness)
    #[arg(long, value_name = "N", default_value_t = BetweennessOptions::default().seed)]
    pub seed: u64,
}

/// Check a result against an independent, plain computation
///
/// Reads a result file of one of the algorithms, which the column names identify. Pass the options of the job. If the
/// job had --tolerance, pass --iterations with the number of iterations that the job reported. Ranks of a job with
/// --vertex-tolerance are compared with converged ranks. Exit code 1 means that the result is wrong. The check loads
/// the whole graph into memory, even if the graph exceeds --memory.
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
    pub how: PagerankArgs,
    /// Source of the search (BFS, shortest paths) [default: the first vertex at level or distance 0]
    #[arg(long, value_name = "ID")]
    pub source: Option<u64>,
    #[command(flatten)]
    pub sample: SampleArgs,
}

/// Selects the parts of a graph that are in memory during a job.
#[derive(Clone, Copy, ValueEnum)]
pub enum Regime {
    /// Vertex state and updates, and for shortest paths and betweenness also edges
    Memory,
    /// Vertex state and updates (for communities and clustering, only if they fit)
    SemiExternal,
    /// No part of the graph has to be in memory: state is on flash, and updates are combined one part at a time
    External,
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

/// The strategy that combines updates in each superstep.
#[derive(Clone, Copy, ValueEnum)]
pub enum Strategy {
    /// In an array with one element for each vertex
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

/// Parses an edge format by the names that the library defines. Help texts and shell completions list these names.
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

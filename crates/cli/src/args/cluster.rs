//! `inshore cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
#[cfg(feature = "graph")]
use inshore::graph::PageRankOptions;

#[cfg(feature = "sql")]
use super::Sql;
use super::{KeyBytes, Reduce};

#[derive(Subcommand)]
pub enum ClusterCommand {
    Sort(SortOnCluster),
    /// Group the rows of a table by columns and aggregate each group, with an exchange between the nodes
    ///
    /// Each node aggregates the rows of its pieces, and the nodes exchange the partial groups: each group is completed on
    /// one node. The completed groups come here and are written in the order of their columns.
    #[command(after_help = "\
Examples:
  inshore cluster reduce store:sales.csv --by town --sum price -o towns.csv --node a.lan,b.lan
  inshore cluster reduce store:visits.parquet --by page --count -o pages.parquet --node a.lan,b.lan,c.lan")]
    Reduce(Reduce),
    /// Query tables larger than the memory of all nodes in SQL, with exchanges of rows between the nodes
    ///
    /// The nodes run joins, GROUP BY and windows with PARTITION BY: rows with equal keys meet on one node, which continues
    /// on its drive where its memory is short. The rows of the result come here, and this machine sorts them (ORDER BY)
    /// and runs what needs all rows at once, such as a cross join. Tables on nodes are called store:NAME. All other
    /// tables are read by this machine.
    #[cfg(feature = "sql")]
    #[command(after_help = "\
Examples:
  inshore cluster sql \"SELECT shop, sum(price) FROM 'store:sales.csv' GROUP BY shop\" --node a.lan,b.lan
  inshore cluster sql --file q5.sql -o q5.parquet --explain --node a.lan,b.lan,c.lan")]
    Sql(Sql),
    /// Show the nodes of a cluster: version, slots, memory, free space, and whether they run stages
    ///
    /// A node runs stages if its program can exchange rows with other nodes and the node is not ending. The exit code is
    /// 1 if a node does not answer or does not run stages. `inshore node status` shows the load of the nodes.
    #[command(after_help = "\
Examples:
  inshore cluster status --node a.lan,b.lan,c.lan --credentials client-laptop.json
  inshore cluster status --node a.lan,b.lan --json | jq '.[] | [.node, .runs_stages]'")]
    Status,
    #[cfg(feature = "graph")]
    Pagerank(PagerankOnCluster),
    #[cfg(feature = "graph")]
    Bfs(BfsOnCluster),
    #[cfg(feature = "graph")]
    Components(ComponentsOnCluster),
    #[cfg(feature = "graph")]
    Sssp(SsspOnCluster),
}

/// Sort lines or records of datasets, with an exchange of rows between the nodes
///
/// Each node sorts its pieces and divides the rows into ranges of keys. Each range is merged on one node, from all nodes.
/// The result has the same bytes as the result of a local sort. With -o store:NAME it is a dataset whose pieces stay on
/// the nodes that merged them; otherwise it is a file of this machine.
///
/// A node that is lost costs the work that only it had: its pieces are sorted again on nodes with replicas, and without
/// a replica the command fails and names the lost data. If this machine is lost, the nodes end the job and delete its
/// scratch files within 20 seconds. Each node gives the job half of its memory, or --node-memory.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore cluster sort store:web.log -o store:sorted.log --node a.lan,b.lan,c.lan
  inshore cluster sort store:web.log --unique -o unique.log --node a.lan,b.lan,c.lan
  inshore cluster sort store:teragen --record 100 --key-bytes 0..10 -o store:sorted --node a.lan,b.lan")]
pub struct SortOnCluster {
    /// Datasets to sort together: store:NAME
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The dataset (store:NAME) or file to write; - is standard output
    #[arg(short, long, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Sort records of this number of bytes instead of lines
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub record: Option<u64>,
    /// Range of bytes to sort records by, counted from 0 and without byte B [default: all bytes]
    #[arg(long, value_name = "A..B", requires = "record")]
    pub key_bytes: Option<KeyBytes>,
    /// Sort in descending order
    #[arg(short, long)]
    pub reverse: bool,
    /// Keep only the first of equal lines, or of records with equal keys
    #[arg(short, long)]
    pub unique: bool,
}

/// Rank the vertices of a graph whose edges are datasets, with an exchange of messages between the nodes
///
/// The input is a list of edges as text: two vertex ids on each line, as for graph import. Each node keeps a part of the
/// vertices with their edges, and sends the others one sum for each vertex in each iteration. The ranks are those of
/// graph import and graph pagerank, in the same order. With -o store:NAME they are lines of CSV in a dataset whose pieces
/// stay on the nodes; otherwise they are a file of this machine: .parquet, .arrow or .csv.
///
/// The edges of a part must fit in the memory that each node gives the job: half of its memory, or --node-memory.
#[cfg(feature = "graph")]
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore cluster pagerank store:links.txt -o ranks.parquet --node a.lan,b.lan,c.lan
  inshore cluster pagerank store:links.txt --iterations 30 --tolerance 1e-9 -o ranks.csv --node a.lan,b.lan
  inshore cluster pagerank store:links.txt -o store:ranks.csv --node a.lan,b.lan,c.lan")]
pub struct PagerankOnCluster {
    #[command(flatten)]
    pub files: EdgesOnCluster,
    /// Number of iterations, at most 100
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub iterations: u32,
    /// Probability of following a link
    #[arg(long, value_name = "D", default_value_t = PageRankOptions::default().damping)]
    pub damping: f64,
    /// Stop early, once the changes of all ranks in an iteration sum to at most T
    #[arg(long, value_name = "T", default_value_t = PageRankOptions::default().tolerance)]
    pub tolerance: f64,
}

/// The edges and the rows of a graph algorithm on a cluster.
#[cfg(feature = "graph")]
#[derive(Args)]
pub struct EdgesOnCluster {
    /// Dataset of edges: store:NAME
    #[arg(value_name = "EDGES")]
    pub edges: PathBuf,
    /// The dataset (store:NAME) or file to write; - is CSV on standard output
    #[arg(short, long, value_name = "OUTPUT")]
    pub output: PathBuf,
}

/// Search breadth first from a vertex of a graph whose edges are datasets, with an exchange of messages between the nodes
///
/// The input is a list of edges as text, as for cluster pagerank. The result has columns vertex, parent and level, with the
/// rows of graph import and graph bfs. A vertex with several possible parents has the smallest one, and an unreached vertex has null. Each node
/// keeps a part of the vertices with their edges, and sends the others at most one message for each vertex.
///
/// The search ends after the last level, and fails after 500 supersteps. The edges of a part must fit in the memory that
/// each node gives the job: half of its memory, or --node-memory.
#[cfg(feature = "graph")]
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore cluster bfs store:links.txt --source 42 -o tree.parquet --node a.lan,b.lan,c.lan
  inshore cluster bfs store:links.txt --source 42 -o store:tree.csv --node a.lan,b.lan,c.lan")]
pub struct BfsOnCluster {
    #[command(flatten)]
    pub files: EdgesOnCluster,
    /// Vertex to start from
    #[arg(long, value_name = "ID")]
    pub source: u64,
}

/// Find the connected components of a graph whose edges are datasets, with an exchange of messages between the nodes
///
/// The input is a list of edges as text, as for cluster pagerank; their direction does not matter. The result has columns
/// vertex and component (the smallest id in the component), with the rows of graph import and graph components.
///
/// The smallest id passes from neighbour to neighbour, one edge in each superstep. A graph with a path of more than 500
/// edges from the smallest id of a component fails: import such a graph, for example one of roads, on one machine. The
/// edges of a part must fit in the memory that each node gives the job: half of its memory, or --node-memory.
#[cfg(feature = "graph")]
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore cluster components store:links.txt -o components.parquet --node a.lan,b.lan,c.lan
  inshore cluster components store:links.txt -o store:components.csv --node a.lan,b.lan,c.lan")]
pub struct ComponentsOnCluster {
    #[command(flatten)]
    pub files: EdgesOnCluster,
}

/// Find shortest paths from a vertex of a graph whose edges are datasets, with an exchange of messages between the nodes
///
/// The input is a list of edges as text: two vertex ids and a weight on each line, as for graph import --weighted. No path
/// may reach a negative weight. The result has columns vertex and distance, with the rows of graph sssp: the least sum of
/// weights on a path from the source, and null for unreached vertices.
///
/// Each superstep extends paths by one edge, and the search fails after 500 supersteps. The edges of a part must fit in the
/// memory that each node gives the job: half of its memory, or --node-memory.
#[cfg(feature = "graph")]
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore cluster sssp store:roads.txt --source 42 -o distances.parquet --node a.lan,b.lan,c.lan
  inshore cluster sssp store:roads.txt --source 42 -o store:distances.csv --node a.lan,b.lan,c.lan")]
pub struct SsspOnCluster {
    #[command(flatten)]
    pub files: EdgesOnCluster,
    /// Vertex to start from
    #[arg(long, value_name = "ID")]
    pub source: u64,
}

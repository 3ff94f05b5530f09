//! `inshore cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::KeyBytes;

#[derive(Subcommand)]
pub enum ClusterCommand {
    Sort(SortOnCluster),
    /// Show the nodes of a cluster: version, slots, memory, free space, and whether they run stages
    ///
    /// A node runs stages if its program can exchange rows with other nodes and the node is not ending. The exit code is
    /// 1 if a node does not answer or does not run stages. `inshore node status` shows the load of the nodes.
    #[command(after_help = "\
Examples:
  inshore cluster status --node a.lan,b.lan,c.lan --credentials client-laptop.json
  inshore cluster status --node a.lan,b.lan --json | jq '.[] | [.node, .runs_stages]'")]
    Status,
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

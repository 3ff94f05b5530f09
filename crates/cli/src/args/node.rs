//! `inshore node`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use inshore::{nodes::Right, store::parse_bytes};

#[derive(Subcommand)]
pub enum NodeCommand {
    Serve(Serve),
    Run(RunCommand),
    Credentials(Credentials),
    Traverse(Traverse),
    /// Show the state of nodes
    ///
    /// Shows for each node that --node names: its name, running and queued tasks, memory, load, temperature (if the
    /// machine has a sensor) and free space. Also shows the bytes read and the bytes sent in answers since the start of
    /// the node, and the date on which its credentials expire. The exit code is 1 if a node does not answer.
    #[command(after_help = "\
Examples:
  inshore node status --node a.lan,b.lan,c.lan --credentials client-laptop.json
  inshore node status --node localhost --json | jq '.[].status.running'")]
    Status,
}

/// Serve the store of this machine, and run tasks of clients on it
///
/// The command runs until it is stopped. Clients name the node with --node. Tasks of clients run on this machine, near
/// the data, and only answers are sent back. Without --credentials the node serves only clients on this machine. After
/// SIGTERM or Ctrl-C the node takes no more tasks, gives running tasks --drain seconds, and ends. A second signal ends
/// the node at once, also without loss of data.
///
/// All tasks together use at most --memory. The node takes queued tasks of different clients in turn. If the queue
/// (--queue) is full, the node refuses a task with a request to retry.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore node serve --store /mnt/nvme/inshore
  inshore node serve --listen 0.0.0.0:4710 --credentials node-a.json --memory 8GiB
  inshore node serve --listen 127.0.0.1:4711 --slots 4 --queue 16 --page 127.0.0.1:4780
  inshore node serve --allow grep --allow awk --allow report=/opt/report/bin/report")]
pub struct Serve {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4710")]
    pub listen: SocketAddr,
    /// Name of the node in messages [default: the machine's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Memory of a task that does not request an amount [default: two fifths of --memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub task_memory: Option<u64>,
    /// Maximum number of running tasks
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub slots: u16,
    /// Maximum number of queued tasks, of which one client may have half
    #[arg(long, value_name = "N", default_value = "64")]
    pub queue: u16,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Maximum number of open connections from one address
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections_per_address: u16,
    /// Close a connection after this number of seconds without a request with a valid token
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub first_request: u64,
    /// Deadline of every task, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub task_deadline: u64,
    /// Let clients with the right run-commands run this program in a sandbox. Give NAME=/PATH, or the NAME of a program
    /// in /usr/bin. Repeatable
    #[arg(long, value_name = "PROGRAM")]
    pub allow: Vec<String>,
    /// Run commands only if the machine supports every kind of containment that Inshore can use, including limits on
    /// memory and network
    #[arg(long)]
    pub strict: bool,
    /// Format of the log on standard error. The log has each put, removal and task with its client and result, and each
    /// refusal with its reason
    #[arg(long, value_enum, default_value = "text")]
    pub log: Log,
    /// Seconds for running tasks to finish when the node is stopped
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub drain: u64,
    #[command(flatten)]
    pub page: PageArgs,
}

/// Format of a node's log.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Log {
    /// A line for each event
    Text,
    /// A JSON object for each event
    Json,
    /// No log
    None,
}

/// Run a command near the data
///
/// Runs a program that the operator of each node allows (`inshore node serve --allow`). The program runs on every node
/// that has a part of --input, and this part is its standard input. Without --input the program runs on all nodes that
/// --node names. The output is sent back, node by node. The program can read only its input and the files of installed
/// programs. It runs as an unprivileged user, without network, within the memory of a task. At --deadline all of its
/// processes are killed. The exit code is 1 unless the program ended with exit code 0 on every node.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore node run --node a.lan,b.lan --input store:web.log grep -c ERROR
  inshore node run --node localhost --input store:web.log -- awk '{ n += $10 } END { print n }'")]
pub struct RunCommand {
    /// Standard input of the program: store:NAME, or store:NAME/FILE
    #[arg(long, value_name = "DATASET")]
    pub input: Vec<PathBuf>,
    /// The program, by the name that the operators of the nodes gave it
    #[arg(value_name = "PROGRAM")]
    pub program: String,
    /// Arguments of the program
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<String>,
}

/// Follow pointers from page to page, on the nodes
///
/// A file on nodes consists of pages of equal size, numbered from 0. Each page has a pointer to the next page: 8 bytes,
/// little endian, with the number of the next page. The value 2^64 - 1 (all bits set) marks the last page. From each
/// --start page at most --steps pointers are followed, and all chains are followed concurrently. A node follows a chain
/// through its own pages, and then passes the chain to the node that has the next page. Only the end of a chain is sent
/// back: the last page, the number of steps, the number of moves between nodes, and a digest of all visited pages. Put
/// the file into the store with `store put --record 8192 --block 8KiB`, so that shards have complete pages and each
/// page is read at once. A pointer to a missing page is an error that names the page with the pointer.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore node traverse store:lists --node a.lan,b.lan,c.lan --steps 100000
  inshore node traverse store:lists --node a.lan,b.lan --start 0,512,1024 --page 4KiB --at 8 --json
  inshore node traverse store:lists --node a.lan,b.lan --by client --keep 1GiB --explain")]
pub struct Traverse {
    /// The file: store:NAME, or store:NAME/FILE
    #[arg(value_name = "DATASET")]
    pub file: String,
    /// Pages to start from
    #[arg(long, value_name = "PAGE,...", value_delimiter = ',', default_value = "0")]
    pub start: Vec<u64>,
    /// Largest number of pointers to follow in each chain
    #[arg(long, value_name = "N", default_value = "1000")]
    pub steps: u64,
    /// Size of a page
    #[arg(long, value_name = "SIZE", default_value = "8KiB", value_parser = parse_bytes)]
    pub page: u64,
    /// Offset of the pointer in each page, in bytes
    #[arg(long, value_name = "BYTE", default_value = "0")]
    pub at: u64,
    /// The machines that follow the pointers
    #[arg(long, value_enum, default_value = "nodes")]
    pub by: TraversalSideArg,
    /// With --by client: memory for a cache of pages
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub keep: Option<u64>,
}

/// Selects the machines that follow pointers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraversalSideArg {
    /// The nodes, which pass chains to each other
    Nodes,
    /// The nodes; each node returns the chain to the client, which passes the chain to the next node
    Turns,
    /// The client, to which every page is sent
    Client,
}

/// Create credentials for nodes and clients
///
/// The first call creates an authority in the folder: the keys that sign the certificates of nodes and the tokens of
/// clients. Keep authority.json in a safe place. Copy node-NAME.json to the node NAME and client-NAME.json to the
/// client NAME, where --credentials names the file. Only the owner can read these files. No file is overwritten: to
/// renew credentials, remove the file and run the command again. --json also prints the claims of a client's token: its
/// id (jti), name (sub), rights and times. In the last 14 days before credentials expire, node status, the log of the
/// node and the commands of the client print a warning.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore node credentials keys --for-node a --address a.lan,10.0.0.1
  inshore node credentials keys --for-client laptop --rights read,run,write --days 30
  inshore node credentials keys --for-client ops --rights read,administer")]
pub struct Credentials {
    /// Folder of the authority, created if missing
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Create credentials for the node of this name
    #[arg(long, value_name = "NAME", requires = "address", conflicts_with = "for_client")]
    pub for_node: Option<String>,
    /// Host names and addresses under which clients reach the node
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub address: Vec<String>,
    /// Create credentials for the client of this name
    #[arg(long, value_name = "NAME")]
    pub for_client: Option<String>,
    /// Rights of the client: read, run, write, run-wasm, run-commands, administer (and relay, which only nodes need)
    #[arg(long, value_name = "RIGHT,...", value_delimiter = ',', default_value = "read,run")]
    pub rights: Vec<Right>,
    /// Days until the credentials expire
    #[arg(long, value_name = "N", default_value = "365", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// The options of a node's status page.
#[derive(Args)]
pub struct PageArgs {
    /// Serve a web page with the state of this node, and its counters for Prometheus under /metrics. On a local address
    /// (127.0.0.1:4780) the page uses HTTP, and all users of this machine can read it. On other addresses the page uses
    /// HTTPS with the node's certificate, and a client's token with the right to read is the password
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Page")]
    pub page: Option<SocketAddr>,
    /// Other nodes to show on the page: HOST or HOST:PORT of each
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "page", help_heading = "Page")]
    pub peers: Vec<String>,
    /// Credentials of a client for requests to the --peers; the right to read is enough
    #[arg(long, value_name = "FILE", requires = "peers", help_heading = "Page")]
    pub peer_credentials: Option<PathBuf>,
}

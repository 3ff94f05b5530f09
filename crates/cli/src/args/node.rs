//! `inshore node`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use inshore::{neardata::nodes::Right, store::parse_bytes};

#[derive(Subcommand)]
pub enum NodeCommand {
    Serve(Serve),
    Run(RunCommand),
    Credentials(Credentials),
    Traverse(Traverse),
    /// Tell how nodes are
    ///
    /// For each node that --node names: what it does, how many tasks run and wait, its memory, load, temperature where the
    /// machine has a sensor, free space, what it has read and answered since it began, and when its credentials end. The exit
    /// code is 1 if one does not answer.
    #[command(after_help = "\
Examples:
  inshore node status --node a.lan,b.lan,c.lan --credentials client-laptop.json
  inshore node status --node localhost --json | jq '.[].status.running'")]
    Status,
}

/// Serve the store of this machine, and do the work of clients on it
///
/// Runs until it is stopped. Clients name it with --node; what they ask is done here, near the data, and only answers
/// travel. Without --credentials it serves this machine alone. SIGTERM and Ctrl-C: it takes no more tasks, gives those that
/// run --drain seconds, and ends; a second signal ends it at once, which loses nothing either.
///
/// All tasks together keep to --memory; those that have to wait are served in turn, a client at a time, and the client of one more
/// than --queue is told to come again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore node serve --store /mnt/nvme/inshore
  inshore node serve --listen 0.0.0.0:4710 --credentials node-a.json --memory 8GiB
  inshore node serve --listen 127.0.0.1:4711 --slots 4 --queue 16 --page 127.0.0.1:4780
  inshore node serve --allow grep --allow awk --allow report=/opt/report/bin/report")]
pub struct Serve {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4710")]
    pub listen: SocketAddr,
    /// What the node is called in messages [default: the machine's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Memory of a task that does not ask for some [default: two fifths of --memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub task_memory: Option<u64>,
    /// Tasks that run at once
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub slots: u16,
    /// Tasks that may wait, of one client half of them at most
    #[arg(long, value_name = "N", default_value = "64")]
    pub queue: u16,
    /// Connections at once
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Connections at once from one address
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections_per_address: u16,
    /// A connection over which no request with a good token came in so many seconds is closed
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub first_request: u64,
    /// No task runs longer than so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub task_deadline: u64,
    /// Let clients with the right run-commands run this program, contained: NAME=/PATH, or the NAME of one in /usr/bin. Can be
    /// given several times
    #[arg(long, value_name = "PROGRAM")]
    pub allow: Vec<String>,
    /// Run commands only where the machine contains them in all ways that Inshore knows, memory and network too
    #[arg(long)]
    pub strict: bool,
    /// What it logs on standard error: each put, removal and task, with who asked and what came of it, and each refusal with its reason
    #[arg(long, value_enum, default_value = "text")]
    pub log: Log,
    /// Seconds that running tasks have when the node is stopped
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub drain: u64,
    #[command(flatten)]
    pub page: PageArgs,
}

/// How a node logs.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Log {
    /// A line for each event
    Text,
    /// A JSON object for each event
    Json,
    /// Nothing
    None,
}

/// Run a command where the data lies
///
/// A program that the operator of each node allows (`inshore node serve --allow`) runs there, on every node that has some of
/// the --input, which is its standard input; without --input on all nodes that --node names. What it writes comes back, node
/// by node. It sees no file but its input and the system's programs, has no network, an unprivileged user, the memory
/// of a task, and ends with all that it has started at --deadline. The exit code is 1 if one of them did not end with 0.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore node run --node a.lan,b.lan --input store:web.log grep -c ERROR
  inshore node run --node localhost --input store:web.log -- awk '{ n += $10 } END { print n }'")]
pub struct RunCommand {
    /// What becomes its standard input: store:NAME, or store:NAME/FILE
    #[arg(long, value_name = "DATASET")]
    pub input: Vec<PathBuf>,
    /// The program, as the operators of the nodes call it
    #[arg(value_name = "PROGRAM")]
    pub program: String,
    /// Its arguments
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<String>,
}

/// Follow pointers from page to page, on the nodes
///
/// A file on nodes is taken as pages of one size, numbered from 0, of which each names the next one: 8 bytes of it, little
/// endian, are its number; all ones (2^64 - 1) say that it is the last. From each --start as many as --steps pointers are followed, all chains at
/// once. A node follows a chain while the pages are its own and hands it to the node that has the next one; only where it ends comes
/// back: the page, how many steps and changes of node there were, and a digest of all pages on the way. Put the file with
/// `store put --record 8192 --block 8KiB`, so that pieces are whole pages and a read is one page. A page that names one
/// that is not there is an error that names it.
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
    /// The pages to begin with
    #[arg(long, value_name = "PAGE,...", value_delimiter = ',', default_value = "0")]
    pub start: Vec<u64>,
    /// Pointers of each chain that are followed, at most
    #[arg(long, value_name = "N", default_value = "1000")]
    pub steps: u64,
    /// Size of a page
    #[arg(long, value_name = "SIZE", default_value = "8KiB", value_parser = parse_bytes)]
    pub page: u64,
    /// The byte of each page at which the number of the next one begins
    #[arg(long, value_name = "BYTE", default_value = "0")]
    pub at: u64,
    /// Who follows the pointers
    #[arg(long, value_enum, default_value = "nodes")]
    pub by: FollowedBy,
    /// With --by client: memory for pages that are kept here
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub keep: Option<u64>,
}

/// Who follows pointers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FollowedBy {
    /// The nodes, which hand chains to each other
    Nodes,
    /// The nodes, but the client hands chains from one to the next
    Turns,
    /// The client: every page comes here
    Client,
}

/// Make credentials for nodes and clients
///
/// The first call makes an authority in the folder: the keys that sign the certificates of nodes and the tokens of
/// clients. authority.json stays with you. node-NAME.json goes to that node, client-NAME.json to that client, for
/// --credentials; each is readable by its owner alone. Nothing is ever overwritten: to renew, remove the file and call again.
/// --json tells the claims of a client's token too: its id (jti), name (sub), rights and times. In the last 14 days before
/// credentials end, node status, the log of the node and the commands of the client warn of it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore node credentials keys --for-node a --address a.lan,10.0.0.1
  inshore node credentials keys --for-client laptop --rights read,run,write --days 30
  inshore node credentials keys --for-client ops --rights read,administer")]
pub struct Credentials {
    /// The folder of the authority, made if it is not there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Make credentials for the node of this name
    #[arg(long, value_name = "NAME", requires = "address", conflicts_with = "for_client")]
    pub for_node: Option<String>,
    /// The names and numbers under which clients reach the node
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub address: Vec<String>,
    /// Make credentials for the client of this name
    #[arg(long, value_name = "NAME")]
    pub for_client: Option<String>,
    /// What the client may do: read, run, write, run-wasm, run-commands, administer (and relay, which nodes may)
    #[arg(long, value_name = "RIGHT,...", value_delimiter = ',', default_value = "read,run")]
    pub rights: Vec<Right>,
    /// How long the credentials hold
    #[arg(long, value_name = "N", default_value = "365", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// What a node shows of itself.
#[derive(Args)]
pub struct PageArgs {
    /// Serve a page that shows what this node does, with its counters for Prometheus under /metrics. On this machine alone
    /// (127.0.0.1:4780) everybody here sees it; elsewhere it is HTTPS with the node's certificate, and a token with the right to
    /// read is the password
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Page")]
    pub page: Option<SocketAddr>,
    /// Other nodes that the page shows too: HOST or HOST:PORT of each
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "page", help_heading = "Page")]
    pub peers: Vec<String>,
    /// The credentials of a client, with which the page asks the --peers how they are; the right to read is enough
    #[arg(long, value_name = "FILE", requires = "peers", help_heading = "Page")]
    pub peer_credentials: Option<PathBuf>,
}

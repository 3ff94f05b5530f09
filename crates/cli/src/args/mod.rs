//! The arguments of the command line, for clap: `inshore NOUN VERB`, and the global options.
//!
//! Each feature has a file with plain structs for its arguments. Default values are read from the library, so that each
//! default is written in one place only.

#[cfg(feature = "nodes")]
mod cluster;
#[cfg(feature = "graph")]
mod graph;
#[cfg(any(feature = "records", feature = "sql"))]
mod header;
#[cfg(feature = "wasm")]
mod kernel;
#[cfg(feature = "vectors")]
mod nearest;
#[cfg(feature = "nodes")]
mod node;
#[cfg(feature = "records")]
mod records;
#[cfg(feature = "text")]
mod search;
#[cfg(feature = "sql")]
mod sql;
mod store;
#[cfg(feature = "text")]
mod text;

#[cfg(feature = "nodes")]
pub use cluster::*;
#[cfg(feature = "graph")]
pub use graph::*;
#[cfg(any(feature = "records", feature = "sql"))]
pub use header::Header;
#[cfg(feature = "wasm")]
pub use kernel::*;
#[cfg(feature = "vectors")]
pub use nearest::*;
#[cfg(feature = "nodes")]
pub use node::*;
#[cfg(feature = "records")]
pub use records::*;
#[cfg(feature = "text")]
pub use search::*;
#[cfg(feature = "sql")]
pub use sql::*;
pub use store::*;
#[cfg(feature = "text")]
pub use text::*;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use inshore::{
    FEATURES,
    store::{Deadline, parse_bytes},
};

/// The largest number of rows for `--top`. The number is limited, since these rows are held in memory outside of the
/// budget.
#[cfg(any(feature = "graph", feature = "text"))]
const TOP_MAX: u64 = 100_000;

/// Analytics on flash: data several times larger than memory, within a memory budget that you set.
///
/// Graphs are imported into a store, a folder on a drive, and stay there. Each job gets a memory budget (--memory). The
/// process takes at most this budget plus 64 MiB, however large the graph is. Data that does not fit streams from the
/// drive.
#[derive(Parser)]
#[command(name = "inshore", version, long_version = long_version(), arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  inshore graph import web.txt.gz --name web
  inshore graph pagerank web --memory 64MiB --top 20 -o ranks.parquet
  inshore sort access.log -o sorted.log --memory 1GiB
  inshore search 'timeout after [0-9]+ ms' logs/

Exit codes: 0 done, 1 a \"no\" (search, graph check), 2 an error, 130 stopped by a signal.")]
pub struct Cli {
    #[command(flatten)]
    pub everywhere: GlobalOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the version, the commit and the features of this build.
fn long_version() -> String {
    let has = |wanted: bool| {
        let names = FEATURES.iter().filter(move |(_, has)| *has == wanted).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(" ")
    };
    let mut text =
        format!("{} ({})\nfeatures: {}", env!("CARGO_PKG_VERSION"), env!("INSHORE_COMMIT"), has(true));
    if !has(false).is_empty() {
        text += &format!("\nwithout: {}", has(false));
    }
    text
}

/// Parses a deadline, which is a number of seconds after the start of the command. clap calls this function at the
/// start of the command, so the deadline is computed from the present time.
fn parse_deadline(text: &str) -> Result<Deadline, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=31_536_000.0).contains(seconds));
    let deadline = seconds.and_then(|seconds| Deadline::after(Duration::from_secs_f64(seconds)));
    deadline.ok_or_else(|| "expected seconds from 0.1 to 31536000".into())
}

/// The options that every command has.
#[derive(Args, Clone)]
#[command(next_help_heading = "Global options")]
pub struct GlobalOptions {
    /// Memory that the job may use, such as 64MiB [default: a quarter of the memory of the machine or cgroup]
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Worker threads [default: one for each core that this process may use]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Folder of the store, created on first use [default: $INSHORE_STORE, else a folder in the user's data directory].
    /// For a store on several drives, pass any of its folders; if the folders were moved to different places, pass all
    /// of them as DIR:DIR:...
    #[arg(long, global = true, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print counters and results as one JSON value, and nothing else, on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no progress, no costs and no notices on standard error
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Print the plan on standard error (graph jobs, reduce), and after the run the methods used and the time of each phase
    #[arg(long, global = true)]
    pub explain: bool,
    /// Stop the command after this number of seconds, with exit code 2
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_deadline)]
    pub deadline: Option<Deadline>,
    /// Run on these nodes, near the data (search, count, sql, reduce, sort, language identify, compress, kernel, store
    /// put|get|ls|rm, node run|status|traverse): HOST or HOST:PORT of each
    #[arg(long, global = true, value_name = "HOST,...", value_delimiter = ',', help_heading = "Nodes")]
    pub node: Vec<String>,
    /// File with the credentials of this client (for `node serve`, of this node); see `inshore node credentials`
    #[arg(long, global = true, value_name = "FILE", help_heading = "Nodes")]
    pub credentials: Option<PathBuf>,
    /// With --node: answer without the data of lost nodes, and report the missing data; otherwise a lost node whose
    /// data has no replica is an error
    #[arg(long, global = true, help_heading = "Nodes")]
    pub partial: bool,
    /// With --node: memory of the task on each node [default: the node's setting]
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Nodes")]
    pub node_memory: Option<u64>,
    /// With --node: seconds of silence, without even a heartbeat, after which a node counts as lost
    #[arg(long, global = true, value_name = "SECONDS", default_value = "10", help_heading = "Nodes", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub silence: u64,
    /// With --node: seconds without progress on a shard after which the shard is requested from other replicas
    #[arg(long, global = true, value_name = "SECONDS", default_value = "30", help_heading = "Nodes", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub stall: u64,
    /// With --node: leave all of the work to the nodes. Otherwise the cores of this machine do a part of the work, if a
    /// measurement shows that this is faster, although more bytes then cross the network (search, language identify,
    /// compress, count, sort, reduce, sql)
    #[arg(long, global = true, help_heading = "Nodes")]
    pub only_nodes: bool,
    /// True if the nodes are a cluster: the command is `inshore cluster`.
    #[arg(skip)]
    pub is_cluster: bool,
}

#[derive(Subcommand)]
pub enum Command {
    #[cfg(feature = "graph")]
    /// Graphs larger than memory: import, analyse, export
    ///
    /// A graph is imported once, from an edge list of any of the usual formats, and analysed as often as you like.
    /// Vertex ids are any 64-bit numbers; results have the same ids.
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
    /// Datasets of the store, as files
    ///
    /// A dataset has a name and one or several files: a dataset of `store put` has one file, and a graph has several.
    /// Checksums are verified at every read.
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
    #[cfg(feature = "nodes")]
    /// Nodes: machines that process their own data
    ///
    /// Any machine with drives can become a node: run `inshore node serve` on that machine. Then pass --node NAME,...
    /// to search, count words and store on your own machine. The command is sent to the data, and only the answer comes
    /// back.
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
    #[cfg(feature = "nodes")]
    /// Clusters: nodes that exchange rows with each other
    ///
    /// With --node alone, each node works near its data, and this machine brings the rows together. On a cluster, the
    /// nodes bring them together: each node divides its rows at keys, and sends each part to the node that merges it. No
    /// row passes through this machine unless the output is a file of this machine.
    ///
    /// Commands that need no exchange of rows have no form of their own here: `inshore search ERROR store:web.log --node
    /// a.lan,b.lan,c.lan` runs on the nodes of a cluster as on other nodes, and so do count, language, compress, kernel,
    /// nearest and store.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore cluster status --node a.lan,b.lan,c.lan
  inshore cluster sort store:web.log -o store:sorted.log --node a.lan,b.lan,c.lan
  inshore cluster sort store:teragen --record 100 --key-bytes 0..10 -o store:sorted --node a.lan,b.lan"
    )]
    Cluster {
        #[command(subcommand)]
        command: ClusterCommand,
    },
    #[cfg(feature = "text")]
    Search(Search),
    #[cfg(feature = "wasm")]
    /// Kernels of your own, in WebAssembly: create, build, and run them near the data
    ///
    /// A kernel is a module that processes lines and returns a result. It is written in Rust, C or any language that
    /// compiles to WebAssembly. Kernels run in a sandbox, on all threads, on this machine or on nodes.
    /// docs/kernels-wasm.md describes its exports.
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
    #[cfg(feature = "text")]
    /// Language of texts: train profiles from samples, and identify languages
    ///
    /// A set of profiles is trained once from labelled samples and stays in the store.
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
    #[cfg(feature = "records")]
    Sort(Sort),
    #[cfg(feature = "records")]
    Reduce(Reduce),
    #[cfg(feature = "sql")]
    Sql(Sql),
    #[cfg(feature = "text")]
    Compress(Compress),
    #[cfg(feature = "text")]
    Decompress(Decompress),
    #[cfg(feature = "text")]
    Checksum(Checksum),
    #[cfg(any(feature = "records", feature = "text"))]
    /// Count occurrences: words of texts, k-mers of sequences, values of a column
    ///
    /// The result is a table with one row for each distinct value and its count, in order.
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
    #[cfg(feature = "vectors")]
    /// Nearest neighbours: import vectors, and find the nearest vectors of each query in a batch
    ///
    /// Vectors are imported once. An exact search compares all queries with all vectors, within the memory that you
    /// set.
    #[command(
        arg_required_else_help = true,
        after_help = "\
Examples:
  inshore nearest import sift.fvecs --name sift
  inshore nearest query sift queries.fvecs -k 100 -o hits.parquet --memory 256MiB"
    )]
    Nearest {
        #[command(subcommand)]
        command: NearestCommand,
    },
    /// Print shell completions
    ///
    /// The script goes to standard output. The manual of your shell says where to put it.
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
    /// With --out, writes one page for each command into a folder. Otherwise writes the first page to standard output.
    #[command(after_help = "\
Examples:
  inshore man | man -l -
  inshore man --out ~/.local/share/man/man1")]
    Man {
        /// Folder for the pages of all commands, created if missing
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

#[cfg(any(feature = "records", feature = "text"))]
#[derive(Subcommand)]
pub enum CountCommand {
    #[cfg(feature = "records")]
    Kmers(Kmers),
    #[cfg(feature = "records")]
    Values(Values),
    #[cfg(feature = "text")]
    Words(CountWords),
}

#[cfg(feature = "nodes")]
impl Command {
    /// Tells whether the command can run on nodes.
    pub fn knows_nodes(&self) -> bool {
        use StoreCommand::{Get, Ls, Put, Repair, Rm};
        match self {
            Command::Search(_)
            | Command::Compress(_)
            | Command::Decompress(_)
            | Command::Checksum(_)
            | Command::Language { .. }
            | Command::Reduce(_)
            | Command::Sort(_)
            | Command::Count { .. }
            | Command::Cluster { .. } => true,
            #[cfg(feature = "sql")]
            Command::Sql(_) => true,
            Command::Node { command } => {
                matches!(command, NodeCommand::Status | NodeCommand::Run(_) | NodeCommand::Traverse(_))
            }
            Command::Store { command } => matches!(command, Ls | Put(_) | Get(_) | Repair(_) | Rm { .. }),
            #[cfg(feature = "wasm")]
            Command::Kernel { command } => {
                !matches!(command, KernelCommand::New(_) | KernelCommand::Build(_))
            }
            #[cfg(feature = "vectors")]
            Command::Nearest { command } => {
                use NearestCommand::{Import, Index, Info, Ls, Query, Recall, Rm};
                matches!(command, Import(_) | Index(_) | Query(_) | Recall(_) | Ls | Info { .. } | Rm { .. })
            }
            _ => false,
        }
    }

    /// Tells whether the command groups rows of tables. Nodes group rows by SQL queries, which need the feature `sql`.
    #[cfg(all(feature = "nodes", not(feature = "sql")))]
    pub fn groups(&self) -> bool {
        matches!(self, Command::Reduce(_) | Command::Count { command: CountCommand::Values(_) })
    }
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
        super::Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_paragraph_and_examples_of_itself() {
        leaves(&super::Cli::command(), "inshore".into(), &mut |path, command| {
            assert!(command.get_long_about().is_some(), "{path}: no description");
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.lines().filter(|line| line.starts_with("  ") && line.contains(path)).count();
            assert!((2..=4).contains(&examples), "{path}: {examples} examples");
        });
    }

    /// Every argument that names a file must be listed in `tests/power/files.txt`, together with the use of the file
    /// (read, written, or in a store). `tests/power.rs` has a test for each listed file that is written.
    #[cfg(feature = "full")]
    #[test]
    fn every_argument_that_names_a_file_is_listed() {
        use std::{any::TypeId, collections::BTreeSet, path::PathBuf};
        let is_path =
            |argument: &&clap::Arg| argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let mut found = BTreeSet::new();
        leaves(&super::Cli::command(), String::new(), &mut |path, command| {
            let place = if path.is_empty() { "(everywhere)" } else { path.trim_start() };
            for argument in command.get_arguments().filter(is_path) {
                let name =
                    argument.get_long().map_or(argument.get_id().to_string(), |long| format!("--{long}"));
                found.insert(format!("{place} {name}"));
            }
        });
        let listed = include_str!("../../tests/power/files.txt").lines();
        let listed = listed.map(|line| line.split_once(' ').unwrap().1.trim().to_string());
        assert_eq!(found, listed.collect());
    }

    /// Splits a line into arguments at spaces outside of quotes.
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
        leaves(&super::Cli::command(), "inshore".into(), &mut |_, command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.starts_with("  ")) {
                let from_here = &line[line.find("inshore").unwrap()..];
                let until_there = from_here.split(['|', '>', '&']).next().unwrap();
                let words = shell_words(until_there);
                match super::Cli::command().try_get_matches_from(words) {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp, "{line}: {error}")
                    }
                }
            }
        });
    }
}

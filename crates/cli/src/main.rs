//! The `inshore` command.
//!
//! The function `run` is the table of contents: each arm of its `match` is one command, and calls one function of
//! [`verbs`]. [`args`] has the arguments, which [`parse`] reads. A [`job::session::Session`] is the state that all
//! commands share (store, budget, stop flag). A [`report::outcome::Outcome`] is the result of a job, for a person or as
//! JSON.
//!
//! ```text
//!   args ─► Session ─► Run (a job and its progress bar) ─► Outcome ─► standard output, standard error, exit code
//! ```
//!
//! `inshore sql` runs in a child process with a memory limit, and the parent waits for the child: see [`job::worker`].
//!
//! Exit codes: 0 is success, 1 is the answer "no", 2 is an error, and 130 is a stop by a signal.

mod args;
mod job;
mod parse;
mod report;
mod verbs;

use std::process::ExitCode;

use args::{Cli, Command, GlobalOptions, StoreCommand};
#[cfg(feature = "sql")]
use job::worker;
use job::{session::Session, signals};
use parse::absent;
use report::failure;
use verbs::*;

/// This allocator enforces the memory limit of `inshore sql`. It counts each allocation of 256 KiB or more before the
/// memory is used.
#[cfg(feature = "sql")]
#[global_allocator]
static ALLOCATOR: inshore::sandbox::LimitedAllocator = inshore::sandbox::LimitedAllocator;

fn main() -> ExitCode {
    // If a node started this program as a child, this call runs the child's task and does not return.
    inshore::child_main_if_asked();
    signals::exit_at_abort();
    quiet_caught_panics();
    let done = absent::parse().and_then(|cli| {
        #[cfg(feature = "sql")]
        if let Some(code) = worker::wait_if_contained(&cli)? {
            return Ok(code);
        }
        run_to_deadline(cli).map(|is_yes| if is_yes { ExitCode::SUCCESS } else { ExitCode::from(1) })
    });
    done.unwrap_or_else(|error| failure::tell(&error))
}

/// Suppresses the messages of panics in file decoders and in the SQL library. These panics are caught and become errors
/// of this program. If RUST_BACKTRACE is set and not 0, the messages are shown. If a panic means that the system
/// refused to start a thread, the process ends with an error. Other threads might otherwise wait for this thread for
/// ever.
fn quiet_caught_panics() {
    let tell = std::panic::take_hook();
    let is_shown = std::env::var_os("RUST_BACKTRACE").is_some_and(|asked| asked != "0");
    std::panic::set_hook(Box::new(move |panic| {
        failure::end_without_threads(panic.payload_as_str().unwrap_or_default());
        let thread = std::thread::current();
        let is_caught = inshore::tables::is_decoding() || matches!(thread.name(), Some("query" | "planner"));
        if is_shown || !is_caught {
            tell(panic);
        }
    }));
}

/// Runs one command. If the deadline stopped it, the error names the deadline.
fn run_to_deadline(cli: Cli) -> anyhow::Result<bool> {
    let deadline = cli.everywhere.deadline;
    run(cli).map_err(|error| failure::at_deadline(error, deadline))
}

/// Runs one command. The result `false` means that the answer is "no" (exit code 1), which is not an error.
fn run(cli: Cli) -> anyhow::Result<bool> {
    let Cli { everywhere: options, command } = cli;
    #[cfg(feature = "nodes")]
    if !command.knows_nodes() {
        node::refuse(&options)?;
    }
    #[cfg(all(feature = "nodes", not(feature = "sql")))]
    if node::are_named(&options) && command.groups() {
        return Err(absent::lacks("grouping on nodes", "sql"));
    }
    #[cfg(not(feature = "nodes"))]
    if !options.node.is_empty() {
        return Err(absent::lacks("--node", "nodes"));
    }
    match command {
        #[cfg(feature = "graph")]
        Command::Graph { command } => graph(options, command),
        Command::Store { command } => store(options, command),
        #[cfg(feature = "nodes")]
        Command::Node { command } => node(options, command),
        #[cfg(feature = "nodes")]
        Command::Cluster { command } => cluster::cluster(options, command),
        #[cfg(feature = "wasm")]
        Command::Kernel { command } => kernel(options, command).map(|()| true),
        #[cfg(feature = "text")]
        Command::Language { command } => language(options, command).map(|()| true),
        #[cfg(feature = "text")]
        Command::Search(search) => search::search(options, &search),
        #[cfg(feature = "text")]
        Command::Compress(compress) => pack::compress(options, &compress).map(|()| true),
        #[cfg(feature = "text")]
        Command::Decompress(decompress) => pack::decompress(options, &decompress).map(|()| true),
        #[cfg(feature = "text")]
        Command::Checksum(checksum) => pack::checksum(options, &checksum),
        #[cfg(feature = "records")]
        Command::Sort(sort) => sort::sort(options, &sort).map(|()| true),
        #[cfg(feature = "records")]
        Command::Reduce(reduce) => sort::reduce(options, &reduce).map(|()| true),
        #[cfg(feature = "sql")]
        Command::Sql(sql) => sql::sql(options, &sql).map(|()| true),
        #[cfg(any(feature = "records", feature = "text"))]
        Command::Count { command } => count(options, command).map(|()| true),
        #[cfg(feature = "vectors")]
        Command::Nearest { command } => nearest::nearest(options, &command).map(|()| true),
        Command::Completions { shell } => manual::completions(shell).map(|()| true),
        Command::Man { out } => manual::man(out.as_deref()).map(|()| true),
    }
}

#[cfg(feature = "nodes")]
fn node(options: GlobalOptions, command: args::NodeCommand) -> anyhow::Result<bool> {
    match command {
        args::NodeCommand::Serve(serve) => node::serve(&options, &serve)?,
        args::NodeCommand::Credentials(made) => node::credentials(&options, &made)?,
        args::NodeCommand::Run(run) => return node::run::run(options, &run),
        args::NodeCommand::Traverse(traverse) => node::traverse::traverse(options, &traverse)?,
        args::NodeCommand::Status => return node::status(&options),
    }
    Ok(true)
}

#[cfg(feature = "wasm")]
fn kernel(options: GlobalOptions, command: args::KernelCommand) -> anyhow::Result<()> {
    match command {
        args::KernelCommand::New(new) => kernel::new::new(&options, &new),
        args::KernelCommand::Build(build) => kernel::new::build(&options, &build),
        args::KernelCommand::Push(push) => kernel::push(options, &push),
        args::KernelCommand::Run(run) => kernel::run(options, &run),
        args::KernelCommand::Ls => kernel::ls(options),
        args::KernelCommand::Rm { names } => store::rm(inshore_ops::verbs::RemoveKernels {}, options, &names),
    }
}

#[cfg(feature = "text")]
fn language(options: GlobalOptions, command: args::LanguageCommand) -> anyhow::Result<()> {
    match command {
        args::LanguageCommand::Train(train) => language::train(options, &train),
        args::LanguageCommand::Identify(identify) => language::identify(options, &identify),
    }
}

#[cfg(any(feature = "records", feature = "text"))]
fn count(options: GlobalOptions, command: args::CountCommand) -> anyhow::Result<()> {
    match command {
        #[cfg(feature = "records")]
        args::CountCommand::Kmers(kmers) => count::records::kmers(options, &kmers),
        #[cfg(feature = "records")]
        args::CountCommand::Values(values) => count::records::values(options, &values),
        #[cfg(feature = "text")]
        args::CountCommand::Words(words) => count::words::words(options, &words),
    }
}

fn store(options: GlobalOptions, command: StoreCommand) -> anyhow::Result<bool> {
    match command {
        StoreCommand::Ls => store::ls(options)?,
        StoreCommand::Put(words) => store::put(options, &words)?,
        StoreCommand::Get(words) => store::get(options, &words)?,
        StoreCommand::Rm { names } => store::rm(inshore_ops::verbs::RemoveDatasets {}, options, &names)?,
        #[cfg(feature = "nodes")]
        StoreCommand::Repair(words) => node::repair(&options, &words)?,
        StoreCommand::Init(words) => store::init(&words, options.json, options.quiet)?,
        StoreCommand::Bench(words) => store::bench::bench(options, &words)?,
        StoreCommand::Rejoin(words) => store::rejoin(&options, &words)?,
        command => return in_store(&Session::open_existing(options)?, command),
    }
    Ok(true)
}

/// Runs a command on an existing store.
fn in_store(session: &Session, command: StoreCommand) -> anyhow::Result<bool> {
    match command {
        StoreCommand::Stat { name } => store::stat(session, &name)?,
        StoreCommand::Seal { names } => store::seal(session, &names)?,
        StoreCommand::Jobs { remove } => store::jobs(session, &remove)?,
        StoreCommand::Verify(words) => return store::verify(session, &words.names, false),
        StoreCommand::Scrub(words) => return store::verify(session, &words.names, true),
        StoreCommand::Df => store::df(session)?,
        StoreCommand::Compact(words) => store::compact(session, &words)?,
        StoreCommand::AddDevice(words) => store::add_device(session, &words)?,
        StoreCommand::RemoveDevice(words) => store::remove_device(session, &words)?,
        StoreCommand::Locate(words) => store::locate(session, &words)?,
        StoreCommand::Mount(words) => store::mount::mount(session, &words)?,
        _ => unreachable!("done by `store`"),
    }
    Ok(true)
}

#[cfg(feature = "graph")]
fn graph(options: GlobalOptions, command: args::GraphCommand) -> anyhow::Result<bool> {
    match command {
        args::GraphCommand::Import(words) => graph::import(options, &words)?,
        args::GraphCommand::Generate { generator: args::Generator::Kronecker(words) } => {
            graph::generate_kronecker(options, &words)?
        }
        args::GraphCommand::Export { graph, output } => graph::export(options, &graph, &output)?,
        args::GraphCommand::Pagerank(words) => graph::algorithms::pagerank(options, &words)?,
        args::GraphCommand::Bfs(words) => graph::algorithms::bfs(options, &words)?,
        args::GraphCommand::Sssp(words) => graph::algorithms::sssp(options, &words)?,
        args::GraphCommand::Communities(words) => graph::algorithms::communities(options, &words)?,
        args::GraphCommand::Clustering(words) => graph::algorithms::clustering(options, &words)?,
        args::GraphCommand::Components(words) => graph::algorithms::components(options, &words)?,
        args::GraphCommand::Betweenness(words) => graph::algorithms::betweenness(options, &words)?,
        args::GraphCommand::Ls => graph::ls(options)?,
        args::GraphCommand::Info { graph } => graph::info(options, &graph)?,
        args::GraphCommand::Rm { graphs } => {
            store::rm(inshore_ops::verbs::RemoveGraphs {}, options, &graphs)?
        }
        args::GraphCommand::Check(words) => return graph::check(options, &words),
    }
    Ok(true)
}

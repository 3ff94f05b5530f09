//! The `inshore` command.
//!
//! `main` is the table of contents: each arm of its `match` is one command, in one function. [`args`] reads the arguments; a
//! [`session::Session`] is shared state of all commands (store, budget, stop flag); an [`outcome::Outcome`] is the result of a
//! job, for a person or as JSON.
//!
//! ```text
//!   args ─► Session ─► Run (a job and its progress bar) ─► Outcome ─► standard output, standard error, exit code
//! ```
//!
//! A query runs in a child process with a memory limit, and the command waits for it: see [`worker`].
//!
//! Exit codes: 0 done, 1 a "no", 2 an error, 130 stopped by a signal.

mod absent;
mod advice;
#[cfg(feature = "graph")]
mod answers;
mod args;
mod bench;
#[cfg(feature = "nodes")]
mod commands;
#[cfg(feature = "records")]
mod counting;
#[cfg(feature = "text")]
mod counting_words;
mod failure;
mod figure;
#[cfg(feature = "graph")]
mod graphs;
#[cfg(feature = "wasm")]
mod kernel;
#[cfg(feature = "wasm")]
mod kernel_new;
#[cfg(feature = "text")]
mod language;
mod manual;
mod mount;
#[cfg(feature = "vectors")]
mod nearest;
#[cfg(feature = "nodes")]
mod node_page;
#[cfg(feature = "nodes")]
mod nodes;
mod operations;
mod outcome;
#[cfg(feature = "text")]
mod packing;
mod progress;
#[cfg(feature = "text")]
mod search;
mod session;
mod signals;
#[cfg(feature = "graph")]
mod sizes;
#[cfg(feature = "records")]
mod sorting;
#[cfg(feature = "sql")]
mod sql;
mod stores;
mod table;
mod terminal;
#[cfg_attr(not(feature = "graph"), expect(dead_code, reason = "only graphs show their best rows"))]
mod top;
#[cfg(feature = "nodes")]
mod traversing;
#[cfg(feature = "sql")]
mod worker;

use std::process::ExitCode;

use args::{Cli, Command, Everywhere, StoreCommand};
use session::Session;

/// Enforces the memory limit of queries, which is exact for large allocations.
#[cfg(feature = "sql")]
#[global_allocator]
static ALLOCATOR: inshore::sandbox::LimitedAllocator = inshore::sandbox::LimitedAllocator;

fn main() -> ExitCode {
    // A node may have started this program as a child, to contain a command or for a task.
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

/// Suppresses panics of file decoders and of the SQL library on the terminal: they are caught, and become errors of this program.
/// RUST_BACKTRACE shows them nevertheless. A thread that the system refuses to start is an error, too: the panic ends the
/// process, since other threads may wait for that one for ever.
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

/// Runs one command, and names the deadline if the command was stopped at it.
fn run_to_deadline(cli: Cli) -> anyhow::Result<bool> {
    let deadline = cli.everywhere.deadline;
    run(cli).map_err(|error| failure::at_deadline(error, deadline))
}

/// Runs one command. `false` is a "no", which is not an error.
fn run(cli: Cli) -> anyhow::Result<bool> {
    let Cli { everywhere: options, command } = cli;
    #[cfg(feature = "nodes")]
    if !command.knows_nodes() {
        nodes::refuse(&options)?;
    }
    #[cfg(all(feature = "nodes", not(feature = "sql")))]
    if nodes::are_named(&options) && command.groups() {
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
        #[cfg(feature = "wasm")]
        Command::Kernel { command } => kernel(options, command).map(|()| true),
        #[cfg(feature = "text")]
        Command::Language { command } => language(options, command).map(|()| true),
        #[cfg(feature = "text")]
        Command::Search(search) => search::search(options, &search),
        #[cfg(feature = "text")]
        Command::Compress(compress) => packing::compress(options, &compress).map(|()| true),
        #[cfg(feature = "text")]
        Command::Decompress(decompress) => packing::decompress(options, &decompress).map(|()| true),
        #[cfg(feature = "text")]
        Command::Checksum(checksum) => packing::checksum(options, &checksum),
        #[cfg(feature = "records")]
        Command::Sort(sort) => sorting::sort(options, &sort).map(|()| true),
        #[cfg(feature = "records")]
        Command::Reduce(reduce) => sorting::reduce(options, &reduce).map(|()| true),
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
fn node(options: Everywhere, command: args::NodeCommand) -> anyhow::Result<bool> {
    match command {
        args::NodeCommand::Serve(serve) => nodes::serve(&options, &serve)?,
        args::NodeCommand::Credentials(made) => nodes::credentials(&options, &made)?,
        args::NodeCommand::Run(run) => return commands::run(options, &run),
        args::NodeCommand::Traverse(traverse) => traversing::traverse(&options, &traverse)?,
        args::NodeCommand::Status => return nodes::status(&options),
    }
    Ok(true)
}

#[cfg(feature = "wasm")]
fn kernel(options: Everywhere, command: args::KernelCommand) -> anyhow::Result<()> {
    match command {
        args::KernelCommand::New(new) => kernel_new::new(&options, &new),
        args::KernelCommand::Build(build) => kernel_new::build(&options, &build),
        args::KernelCommand::Push(push) => kernel::push(options, &push),
        args::KernelCommand::Run(run) => kernel::run(options, &run),
        args::KernelCommand::Ls => kernel::ls(options),
        args::KernelCommand::Rm { names } => kernel::rm(options, &names),
    }
}

#[cfg(feature = "text")]
fn language(options: Everywhere, command: args::LanguageCommand) -> anyhow::Result<()> {
    match command {
        args::LanguageCommand::Train(train) => language::train(options, &train),
        args::LanguageCommand::Identify(identify) => language::identify(options, &identify),
    }
}

#[cfg(any(feature = "records", feature = "text"))]
fn count(options: Everywhere, command: args::CountCommand) -> anyhow::Result<()> {
    match command {
        #[cfg(feature = "records")]
        args::CountCommand::Kmers(kmers) => counting::kmers(options, &kmers),
        #[cfg(feature = "records")]
        args::CountCommand::Values(values) => counting::values(options, &values),
        #[cfg(feature = "text")]
        args::CountCommand::Words(words) => counting_words::words(options, &words),
    }
}

fn store(options: Everywhere, command: StoreCommand) -> anyhow::Result<bool> {
    match command {
        StoreCommand::Ls => stores::ls(options)?,
        StoreCommand::Put(words) => stores::put(options, &words)?,
        StoreCommand::Get(words) => stores::get(options, &words)?,
        StoreCommand::Rm { names } => stores::rm("store rm", options, &names)?,
        #[cfg(feature = "nodes")]
        StoreCommand::Repair(words) => nodes::repair(&options, &words)?,
        StoreCommand::Init(words) => stores::init(&words, options.json, options.quiet)?,
        StoreCommand::Bench(words) => bench::bench(options, &words)?,
        StoreCommand::Rejoin(words) => stores::rejoin(&options, &words)?,
        command => return in_store(&Session::open_existing(options)?, command),
    }
    Ok(true)
}

/// Runs a command that works on a store that is there.
fn in_store(session: &Session, command: StoreCommand) -> anyhow::Result<bool> {
    match command {
        StoreCommand::Stat { name } => stores::stat(session, &name)?,
        StoreCommand::Seal { names } => stores::seal(session, &names)?,
        StoreCommand::Jobs { remove } => stores::jobs(session, &remove)?,
        StoreCommand::Verify(words) => return stores::verify(session, &words.names, false),
        StoreCommand::Scrub(words) => return stores::verify(session, &words.names, true),
        StoreCommand::Df => stores::df(session)?,
        StoreCommand::Compact(words) => stores::compact(session, &words)?,
        StoreCommand::AddDevice(words) => stores::add_device(session, &words)?,
        StoreCommand::RemoveDevice(words) => stores::remove_device(session, &words)?,
        StoreCommand::Locate(words) => stores::locate(session, &words)?,
        StoreCommand::Mount(words) => mount::mount(session, &words)?,
        _ => unreachable!("done by `store`"),
    }
    Ok(true)
}

#[cfg(feature = "graph")]
fn graph(options: Everywhere, command: args::GraphCommand) -> anyhow::Result<bool> {
    let session = match command {
        args::GraphCommand::Import(_) | args::GraphCommand::Generate { .. } => Session::open(options)?,
        _ => Session::open_existing(options)?,
    };
    let session = &session;
    match command {
        args::GraphCommand::Import(words) => graphs::import(session, &words)?,
        args::GraphCommand::Generate { generator: args::Generator::Kronecker(words) } => {
            graphs::generate_kronecker(session, &words)?
        }
        args::GraphCommand::Ls => graphs::ls(session)?,
        args::GraphCommand::Info { graph } => graphs::info(session, &graph)?,
        args::GraphCommand::Rm { graphs } => graphs::rm(session, &graphs)?,
        args::GraphCommand::Export { graph, output } => graphs::export(session, &graph, &output)?,
        args::GraphCommand::Pagerank(words) => answers::pagerank(session, &words)?,
        args::GraphCommand::Bfs(words) => answers::bfs(session, &words)?,
        args::GraphCommand::Sssp(words) => answers::sssp(session, &words)?,
        args::GraphCommand::Communities(words) => answers::communities(session, &words)?,
        args::GraphCommand::Clustering(words) => answers::clustering(session, &words)?,
        args::GraphCommand::Components(words) => answers::components(session, &words)?,
        args::GraphCommand::Betweenness(words) => answers::betweenness(session, &words)?,
        args::GraphCommand::Check(words) => return graphs::check(session, &words),
    }
    Ok(true)
}

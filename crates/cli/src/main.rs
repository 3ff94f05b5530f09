//! The `inshore` command.
//!
//! `main` is the table of contents: each arm of its `match` is one command, in one function. The words are read
//! by [`words`]; a [`session::Session`] is what all commands have in common (store, budget, stop flag); a
//! [`outcome::Outcome`] is what a job has to say at its end, to a person or as JSON.
//!
//! ```text
//!   words ─► Session ─► Run (a job and its progress bar) ─► Outcome ─► standard output, standard error, exit code
//! ```
//!
//! Exit codes: 0 done, 1 a "no", 2 an error, 130 stopped by a signal.

mod answers;
mod bench;
mod counting;
mod failure;
mod figure;
mod graphs;
mod kernel;
mod kernel_new;
mod kernel_words;
mod language;
mod manual;
mod mount;
mod node_page;
mod node_words;
mod nodes;
mod outcome;
mod packing;
mod progress;
mod search;
mod session;
mod signals;
mod sizes;
mod sorting;
mod sql;
mod store_words;
mod stores;
mod table;
mod top;
mod traversing;
mod words;

use std::process::ExitCode;

use clap::Parser;

use kernel_words::KernelCommand;
use node_words::NodeCommand;
use session::Session;
use store_words::StoreCommand;
use words::{Command, CountCommand, Everywhere, Generator, GraphCommand, LanguageCommand, Words};

fn main() -> ExitCode {
    // Where a node has started this program once more, to contain a command or for a task of its own.
    inshore::child_main_if_asked();
    match run(Words::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => failure::tell(&error),
    }
}

/// Runs one command. `false` is a "no", which is not an error.
fn run(words: Words) -> anyhow::Result<bool> {
    if !words.command.knows_nodes() {
        nodes::refuse(&words.everywhere)?;
    }
    match words.command {
        Command::Graph { command } => graph(words.everywhere, command),
        Command::Store { command } => store(words.everywhere, command),
        Command::Node { command } => match command {
            NodeCommand::Serve(serve) => nodes::serve(&words.everywhere, &serve).map(|()| true),
            NodeCommand::Credentials(made) => nodes::credentials(&words.everywhere, &made).map(|()| true),
            NodeCommand::Run(run) => nodes::run_command(&words.everywhere, &run),
            NodeCommand::Traverse(words_of) => {
                traversing::traverse(&words.everywhere, &words_of).map(|()| true)
            }
            NodeCommand::Status => nodes::status(&words.everywhere),
        },
        Command::Kernel { command } => match command {
            KernelCommand::New(new) => kernel_new::new(&words.everywhere, &new).map(|()| true),
            KernelCommand::Build(build) => kernel_new::build(&words.everywhere, &build).map(|()| true),
            KernelCommand::Push(push) => kernel::push(&words.everywhere, &push).map(|()| true),
            KernelCommand::Run(run) => kernel::run(&words.everywhere, &run).map(|()| true),
            KernelCommand::Ls => kernel::ls(&words.everywhere).map(|()| true),
            KernelCommand::Rm { names } => kernel::rm(&words.everywhere, &names).map(|()| true),
        },
        Command::Language { command } => {
            match command {
                LanguageCommand::Train(train) => language::train(&Session::open(words.everywhere)?, &train)?,
                LanguageCommand::Identify(identify) => {
                    language::tell(&Session::open_existing(words.everywhere)?, &identify)?
                }
            }
            Ok(true)
        }
        Command::Search(search) => search::search(words.everywhere, &search),
        Command::Compress(compress) if nodes::are_named(&words.everywhere) => {
            packing::compress_on_nodes(&words.everywhere, &compress).map(|()| true)
        }
        Command::Compress(compress) => packing::compress(&words.everywhere, &compress).map(|()| true),
        Command::Decompress(decompress) => packing::decompress(&words.everywhere, &decompress).map(|()| true),
        Command::Checksum(checksum) => packing::checksum(&words.everywhere, &checksum),
        Command::Sort(sort) if nodes::are_named(&words.everywhere) => {
            sorting::sort_on_nodes(words.everywhere, &sort).map(|()| true)
        }
        Command::Sort(sort) => sorting::sort(&Session::open(words.everywhere)?, &sort).map(|()| true),
        Command::Reduce(reduce) if nodes::are_named(&words.everywhere) => {
            sorting::reduce_on_nodes(&Session::open(words.everywhere)?, &reduce).map(|()| true)
        }
        Command::Reduce(reduce) => sorting::reduce(&Session::open(words.everywhere)?, &reduce).map(|()| true),
        Command::Sql(sql) => sql::sql(&Session::open(words.everywhere)?, &sql).map(|()| true),
        Command::Count { command: CountCommand::Words(count) } if nodes::are_named(&words.everywhere) => {
            counting::words_on_nodes(words.everywhere, &count).map(|()| true)
        }
        Command::Count { command: CountCommand::Kmers(kmers) } if nodes::are_named(&words.everywhere) => {
            counting::kmers_on_nodes(words.everywhere, &kmers).map(|()| true)
        }
        Command::Count { command: CountCommand::Values(values) } if nodes::are_named(&words.everywhere) => {
            counting::values_on_nodes(&Session::open(words.everywhere)?, &values).map(|()| true)
        }
        Command::Count { command } => {
            let session = Session::open(words.everywhere)?;
            match command {
                CountCommand::Kmers(kmers) => counting::kmers(&session, &kmers)?,
                CountCommand::Values(values) => counting::values(&session, &values)?,
                CountCommand::Words(words) => counting::words(&session, &words)?,
            }
            Ok(true)
        }
        Command::Completions { shell } => manual::completions(shell).map(|()| true),
        Command::Man { out } => manual::man(out.as_deref()).map(|()| true),
    }
}

fn store(options: Everywhere, command: StoreCommand) -> anyhow::Result<bool> {
    if let StoreCommand::Init(words) = command {
        return stores::init(&words, options.json, options.quiet).map(|()| true);
    }
    if let StoreCommand::Bench(words) = command {
        return bench::bench(options, &words).map(|()| true);
    }
    if let StoreCommand::Rejoin(words) = command {
        return stores::rejoin(&options, &words).map(|()| true);
    }
    if nodes::are_named(&options) {
        match command {
            StoreCommand::Ls => nodes::ls(&options)?,
            StoreCommand::Put(words) => nodes::put(&options, &words, &stores::name_of(&words)?)?,
            StoreCommand::Get(words) => nodes::get(&options, &words)?,
            StoreCommand::Rm { names } => nodes::rm(&options, &names)?,
            _ => unreachable!("refused above"),
        }
        return Ok(true);
    }
    // Only what puts something into a store makes one.
    let session = match command {
        StoreCommand::Put(_) => Session::open(options)?,
        _ => Session::open_existing(options)?,
    };
    let session = &session;
    match command {
        StoreCommand::Init(_) | StoreCommand::Bench(_) | StoreCommand::Rejoin(_) => {
            unreachable!("done above")
        }
        StoreCommand::Ls => stores::ls(session)?,
        StoreCommand::Stat { name } => stores::stat(session, &name)?,
        StoreCommand::Put(words) => stores::put(session, &words)?,
        StoreCommand::Get(words) => stores::get(session, &words)?,
        StoreCommand::Seal { names } => stores::seal(session, &names)?,
        StoreCommand::Rm { names } => stores::rm(session, &names)?,
        StoreCommand::Jobs { remove } => stores::jobs(session, &remove)?,
        StoreCommand::Verify(words) => return stores::verify(session, &words.names, false),
        StoreCommand::Scrub(words) => return stores::verify(session, &words.names, true),
        StoreCommand::Df => stores::df(session)?,
        StoreCommand::Compact(words) => stores::compact(session, &words)?,
        StoreCommand::AddDevice(words) => stores::add_device(session, &words)?,
        StoreCommand::RemoveDevice(words) => stores::remove_device(session, &words)?,
        StoreCommand::Locate(words) => stores::locate(session, &words)?,
        StoreCommand::Mount(words) => mount::mount(session, &words)?,
    }
    Ok(true)
}

fn graph(options: Everywhere, command: GraphCommand) -> anyhow::Result<bool> {
    let session = match command {
        GraphCommand::Import(_) | GraphCommand::Generate { .. } => Session::open(options)?,
        _ => Session::open_existing(options)?,
    };
    let session = &session;
    match command {
        GraphCommand::Import(words) => graphs::import(session, &words)?,
        GraphCommand::Generate { generator: Generator::Kronecker(words) } => {
            graphs::generate_kronecker(session, &words)?
        }
        GraphCommand::Ls => graphs::ls(session)?,
        GraphCommand::Info { graph } => graphs::info(session, &graph)?,
        GraphCommand::Rm { graphs } => graphs::rm(session, &graphs)?,
        GraphCommand::Export { graph, output } => graphs::export(session, &graph, &output)?,
        GraphCommand::Pagerank(words) => answers::pagerank(session, &words)?,
        GraphCommand::Bfs(words) => answers::bfs(session, &words)?,
        GraphCommand::Sssp(words) => answers::sssp(session, &words)?,
        GraphCommand::Communities(words) => answers::communities(session, &words)?,
        GraphCommand::Clustering(words) => answers::clustering(session, &words)?,
        GraphCommand::Components(words) => answers::components(session, &words)?,
        GraphCommand::Betweenness(words) => answers::betweenness(session, &words)?,
        GraphCommand::Check(words) => return graphs::check(session, &words),
    }
    Ok(true)
}

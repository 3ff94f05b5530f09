//! Manages graphs: import, generate, ls, info, rm, export, and check.

pub mod algorithms;
mod sizes;

use std::{io::BufWriter, path::Path};

use anyhow::{Result, bail};
use inshore::{
    graph::{self, Graph, GraphInfo, ImportOptions, Kronecker, check::CheckOptions},
    store::{Store, format_bytes},
    tables::Input,
};
use inshore_ops::{
    Beside, Operation, Request,
    verbs::{ExportGraph, GenerateGraph, ImportGraph},
};
use serde_json::json;

use crate::{
    args::{self, GlobalOptions},
    job::{
        operations::{self, StoreAccess},
        session::{Session, check_stdout_is_free},
    },
    report::{
        outcome::{Outcome, print_json, print_line, say},
        table::{self, Align},
        terminal,
    },
};

pub fn import(options: GlobalOptions, arguments: &args::Import) -> Result<()> {
    let asked = ImportOptions {
        undirected: arguments.undirected,
        drop_loops: arguments.drop_loops,
        weighted: arguments.weighted,
        reverse: arguments.reverse,
        format: arguments.format,
        source_column: arguments.source_column.clone(),
        target_column: arguments.target_column.clone(),
        weight_column: arguments.weight_column.clone(),
    };
    let operation = ImportGraph { name: arguments.name.clone(), options: asked };
    make(options, &Request::new(operation, &arguments.inputs))
}

pub fn generate_kronecker(options: GlobalOptions, arguments: &args::Kronecker) -> Result<()> {
    let args::Kronecker { scale, edge_factor, seed, ref name, reverse } = *arguments;
    let kronecker = Kronecker { scale, edge_factor, seed };
    let operation = GenerateGraph { name: name.clone(), kronecker, reverse };
    make(options, &Request::new(operation, [""; 0]))
}

fn make<O: Operation<Answer = GraphInfo>>(options: GlobalOptions, request: &Request<O>) -> Result<()> {
    operations::run(options, request)?.tell(|report, done| {
        let sentence = sentence(&done.answer);
        Outcome::new(O::NAME, report, done, sentence)
    })
}

fn sentence(info: &GraphInfo) -> String {
    let (vertices, edges, bytes) = (info.vertices, info.edges, format_bytes(info.bytes));
    format!("{}: {vertices} vertices and {edges} edges, {}, {bytes} on flash", info.name, kind(info))
}

/// Describes the kind of a graph in words.
fn kind(info: &GraphInfo) -> String {
    let mut kind = if info.directed { "directed" } else { "undirected" }.to_string();
    if info.weighted {
        kind.push_str(", weighted");
    }
    if info.reverse {
        kind.push_str(", with in-edges");
    }
    kind
}

pub fn ls(session: &Session) -> Result<()> {
    let graphs = graph::list(session.store()?)?;
    if session.options.json {
        return Ok(print_json(&graphs)?);
    }
    if graphs.is_empty() {
        if !session.options.quiet {
            say(&format!("no graphs in {}", session.store()?.path().display()));
        }
        return Ok(());
    }
    let header = [
        ("name", Align::Left),
        ("vertices", Align::Right),
        ("edges", Align::Right),
        ("kind", Align::Left),
        ("on flash", Align::Right),
    ];
    let rows = graphs.iter().map(|info| {
        let (vertices, edges) = (info.vertices.to_string(), info.edges.to_string());
        vec![info.name.clone(), vertices, edges, kind(info), format_bytes(info.bytes)]
    });
    let rows: Vec<_> = rows.collect();
    let mut out = BufWriter::new(terminal::stdout());
    table::print(&mut out, &header, &rows)?;
    Ok(std::io::Write::flush(&mut out)?)
}

pub fn info(session: &Session, name: &str) -> Result<()> {
    let graph = Graph::open(session.store()?, name)?;
    let info = graph.info();
    if session.options.json {
        return Ok(print_json(&json!({ "command": "graph info", "summary": info }))?);
    }
    Ok(print_line(&info.to_string())?)
}

/// Removes each graph; reports those that could not be removed and fails at the end if there were any.
pub fn rm(session: &Session, names: &[String]) -> Result<()> {
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    for name in names {
        match remove(session.store()?, name) {
            Ok(()) => removed.push(name),
            Err(error) => failures.push(error.to_string()),
        }
    }
    if session.options.json {
        print_json(&json!({ "command": "graph rm", "summary": { "removed": removed } }))?;
    }
    if !failures.is_empty() {
        bail!(failures.join("\ninshore: "));
    }
    Ok(())
}

fn remove(store: &Store, name: &str) -> Result<(), graph::Error> {
    match Graph::open(store, name) {
        // Datasets of other kinds are refused; a damaged graph is removed.
        Err(error @ graph::Error::BadGraph { what: "kind", .. }) => Err(error),
        _ => Ok(store.remove(name)?),
    }
}

pub fn export(options: GlobalOptions, name: &str, output: &Path) -> Result<()> {
    check_stdout_is_free(&options, output)?;
    let request = Request::new(ExportGraph {}, [name]).to(output);
    operations::run_on(options, StoreAccess::Existing, &request, Beside::default())?.tell(|report, done| {
        let sentence = format!("{} edges of {name} written to {}", done.answer.edges, output.display());
        Outcome { sentence_aside: true, ..Outcome::new("graph export", report, done, sentence) }
    })
}

/// Returns whether the answer is right.
pub fn check(session: &Session, arguments: &args::Check) -> Result<bool> {
    let graph = Graph::open(session.store()?, &arguments.graph)?;
    let ranks = arguments.how.options();
    let options = CheckOptions {
        iterations: ranks.iterations_max(),
        damping: ranks.damping,
        vertex_tolerance: ranks.vertex_tolerance,
        source: arguments.source,
        sources: arguments.sample.sources,
        seed: arguments.sample.seed,
    };
    let mut run = session.start()?;
    let verdict = graph::check::check(&graph, &run.job, &Input::new(&arguments.answer), &options)?;
    let summary = json!({ "good": verdict.good, "facts": verdict.facts });
    let sentence = verdict.facts.join("\n");
    Outcome::new("graph check", run.finish(), summary, sentence).tell(&session.options)?;
    Ok(verdict.good)
}

//! Manages graphs: import, generate, ls, info, rm, export, and check.

pub mod algorithms;
mod sizes;

use std::{io::BufWriter, path::Path};

use anyhow::{Result, bail};
use inshore::{
    graph::{self, Graph, GraphInfo, ImportOptions, check::CheckOptions},
    store::{Store, format_bytes},
    tables::Input,
};
use serde_json::json;

use crate::{
    args,
    job::session::Session,
    report::{
        outcome::{Outcome, print_json, print_line, say},
        table::{self, Align},
        terminal,
    },
};

pub fn import(session: &Session, arguments: &args::Import) -> Result<()> {
    let inputs: Vec<Input> = arguments.inputs.iter().map(Input::new).collect();
    let options = ImportOptions {
        undirected: arguments.undirected,
        drop_loops: arguments.drop_loops,
        weighted: arguments.weighted || arguments.weight_column.is_some(),
        reverse: arguments.reverse,
        format: arguments.format,
        source_column: arguments.source_column.clone(),
        target_column: arguments.target_column.clone(),
        weight_column: arguments.weight_column.clone(),
    };
    let mut run = session.start_on(&arguments.inputs)?;
    let info = graph::import(session.store()?, &run.job, &arguments.name, &inputs, &options)?;
    made(session, Outcome::new("graph import", run.finish(), &info, sentence(&info)))
}

pub fn generate_kronecker(session: &Session, arguments: &args::Kronecker) -> Result<()> {
    let kronecker =
        graph::Kronecker { scale: arguments.scale, edge_factor: arguments.edge_factor, seed: arguments.seed };
    let mut run = session.start()?;
    let info = graph::generate(session.store()?, &run.job, &arguments.name, &kronecker, arguments.reverse)?;
    made(session, Outcome::new("graph generate", run.finish(), &info, sentence(&info)))
}

fn made(session: &Session, outcome: Outcome<&GraphInfo>) -> Result<()> {
    Ok(outcome.tell(&session.options)?)
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

pub fn export(session: &Session, name: &str, output: &Path) -> Result<()> {
    session.check_stdout_is_free(output)?;
    let graph = Graph::open(session.store()?, name)?;
    let mut run = session.start()?;
    let edges = graph::export(&graph, &run.job, output)?;
    let sentence = format!("{edges} edges of {name} written to {}", output.display());
    let summary = json!({ "edges": edges });
    let outcome = Outcome::new("graph export", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, ..outcome }.tell(&session.options)?)
}

/// Returns whether the answer is right.
pub fn check(session: &Session, arguments: &args::Check) -> Result<bool> {
    let graph = Graph::open(session.store()?, &arguments.graph)?;
    let ranks = arguments.how.options();
    let options = CheckOptions {
        iterations: ranks.iterations,
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

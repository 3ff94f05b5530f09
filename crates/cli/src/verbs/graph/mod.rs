//! Commands on graphs: import, generate, ls, info, export and check. The module `store` has the function for `rm`.

pub mod algorithms;
mod sizes;

use std::path::Path;

use anyhow::Result;
use inshore::{
    graph::{GraphInfo, ImportOptions, Kronecker, check::CheckOptions},
    store::format_bytes,
};
use inshore_ops::{
    Attachments, Operation, Request,
    verbs::{CheckGraph, DescribeGraph, ExportGraph, GenerateGraph, ImportGraph, ListGraphs},
};
use serde_json::json;

use crate::{
    args::{self, GlobalOptions},
    job::{
        operations::{self, FinishedOperation, StoreAccess},
        session::{check_stdout_is_free, store_path},
    },
    report::{
        outcome::{Outcome, print_json, print_line, say},
        table::{self, Align},
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

/// Runs a request on an existing store. The caller prints the answer.
fn asked<O: Operation>(options: GlobalOptions, request: &Request<O>) -> Result<FinishedOperation<O::Answer>> {
    operations::run_on(options, StoreAccess::Existing, request, Attachments::default())
}

pub fn ls(options: GlobalOptions) -> Result<()> {
    let FinishedOperation { done, options, .. } = asked(options, &Request::new(ListGraphs {}, [""; 0]))?;
    let graphs = done.answer.graphs;
    if options.json {
        return Ok(print_json(&graphs)?);
    }
    if graphs.is_empty() {
        if !options.quiet {
            say(&format!("no graphs in {}", store_path(&options)?.display()));
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
    table::print_stdout(&header, &rows.collect::<Vec<_>>())
}

pub fn info(options: GlobalOptions, name: &str) -> Result<()> {
    let FinishedOperation { done, options, .. } = asked(options, &Request::new(DescribeGraph {}, [name]))?;
    if options.json {
        return Ok(print_json(&json!({ "command": "graph info", "summary": done.answer }))?);
    }
    Ok(print_line(&done.answer.to_string())?)
}

pub fn export(options: GlobalOptions, name: &str, output: &Path) -> Result<()> {
    check_stdout_is_free(&options, output)?;
    let request = Request::new(ExportGraph {}, [name]).to(output);
    asked(options, &request)?.tell(|report, done| {
        let sentence = format!("{} edges of {name} written to {}", done.answer.edges, output.display());
        Outcome { sentence_aside: true, ..Outcome::new("graph export", report, done, sentence) }
    })
}

/// Checks an answer, and returns whether it is right.
pub fn check(options: GlobalOptions, arguments: &args::Check) -> Result<bool> {
    let ranks = arguments.how.options();
    let repeated = CheckOptions {
        iterations: ranks.iterations_max(),
        damping: ranks.damping,
        vertex_tolerance: ranks.vertex_tolerance,
        source: arguments.source,
        sources: arguments.sample.sources,
        seed: arguments.sample.seed,
    };
    let operation = CheckGraph { graph: arguments.graph.clone(), options: repeated };
    let ran = asked(options, &Request::new(operation, [&arguments.answer]))?;
    let is_right = ran.done.answer.good;
    ran.tell(|report, done| {
        let sentence = done.answer.facts.join("\n");
        Outcome::new("graph check", report, done, sentence)
    })?;
    Ok(is_right)
}

//! `inshore node traverse`: follows pointers through files on nodes.

use anyhow::{Result, bail};
use inshore::{
    nodes::{ChainResult, NodeVisits, TraversalSide, Traversed},
    ops::{
        Request,
        verbs::{self, TraverseAnswer},
    },
    store::format_bytes,
};
use serde_json::json;

use crate::{
    args::{GlobalOptions, TraversalSideArg, Traverse},
    job::operations,
    report::{
        outcome::{Outcome, say},
        table::{self, Align},
    },
};

impl From<TraversalSideArg> for TraversalSide {
    fn from(by: TraversalSideArg) -> TraversalSide {
        match by {
            TraversalSideArg::Nodes => TraversalSide::Nodes,
            TraversalSideArg::Turns => TraversalSide::Turns,
            TraversalSideArg::Client => TraversalSide::Client,
        }
    }
}

pub fn traverse(options: GlobalOptions, arguments: &Traverse) -> Result<()> {
    let by = TraversalSide::from(arguments.by);
    if arguments.keep.is_some() && by != TraversalSide::Client {
        bail!("--keep needs --by client: otherwise no pages are sent here");
    }
    if options.partial {
        bail!("--partial does not work with node traverse: a chain ends where a page is missing");
    }
    let operation = verbs::Traverse {
        starts: arguments.start.clone(),
        steps: arguments.steps,
        page_bytes: arguments.page,
        at: arguments.at,
        by,
        keep_bytes: arguments.keep.unwrap_or(0),
    };
    let ran = operations::run(options, &Request::new(operation, [&arguments.file]))?;
    let TraverseAnswer { traversed, steps, .. } = &ran.done.answer;
    let rate = *steps as f64 / traversed.seconds.max(1e-9);
    let sentence = format!("{steps} steps in {:.2} s, {rate:.0} a second", traversed.seconds);
    let how = costs(traversed);
    for node in traversed.nodes.iter().filter(|_| !ran.options.quiet) {
        if let Some(why) = &node.lost {
            say(&format!("note: node {why}; copies on other nodes were read"));
        }
    }
    if !ran.options.json {
        print(&traversed.chains)?;
    }
    ran.tell(|report, done| {
        let outcome = Outcome::new("node traverse", report, json!(done), sentence);
        Outcome { sentence_aside: true, how, ..outcome }
    })
}

fn print(chains: &[ChainResult]) -> Result<()> {
    let header = [
        ("start", Align::Right),
        ("page", Align::Right),
        ("steps", Align::Right),
        ("hops", Align::Right),
        ("digest", Align::Left),
        ("", Align::Left),
    ];
    let row = |chain: &ChainResult| {
        let walked = chain.walked;
        let numbers = [chain.start, walked.page, walked.steps, walked.hops];
        let mut row: Vec<String> = numbers.iter().map(u64::to_string).collect();
        row.push(format!("{:016x}", walked.digest));
        row.push(if chain.ended { "its last page".to_string() } else { String::new() });
        row
    };
    let rows: Vec<Vec<String>> = chains.iter().map(row).collect();
    table::print_stdout(&header, &rows)
}

/// Formats the work of nodes, for `--explain`.
fn costs(done: &Traversed) -> Vec<(&'static str, String)> {
    let told = |node: &NodeVisits| {
        let visited = node.visited;
        let each = |seconds: f64| seconds * 1e6 / visited.reads.max(1) as f64;
        let what = match &node.lost {
            Some(why) => format!("lost: {why}"),
            None => format!(
                "{}: {} pages, {} read from the drive; {:.0} of {:.0} µs per page reading; {} visits",
                node.node,
                visited.reads,
                format_bytes(node.bytes_read),
                each(visited.storage_seconds),
                each(visited.inside_seconds),
                visited.visits
            ),
        };
        ("node", what)
    };
    done.nodes.iter().map(told).collect()
}

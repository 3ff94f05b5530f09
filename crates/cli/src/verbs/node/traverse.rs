//! `inshore node traverse`: follows pointers through files on nodes.

use std::path::PathBuf;

use anyhow::{Result, bail};
use inshore::{
    nodes::{By, Chain, NodeVisits, Pointers, TraverseOptions, Traversed},
    ops::wholes,
    store::format_bytes,
};
use serde_json::json;

use crate::{
    args::{Everywhere, FollowedBy, Traverse},
    job::session::plain_run,
    report::{
        outcome::{Outcome, say},
        table::{self, Align},
        terminal,
    },
    verbs::node::connect,
};

impl From<FollowedBy> for By {
    fn from(by: FollowedBy) -> By {
        match by {
            FollowedBy::Nodes => By::Nodes,
            FollowedBy::Turns => By::Turns,
            FollowedBy::Client => By::Client,
        }
    }
}

pub fn traverse(options: &Everywhere, arguments: &Traverse) -> Result<()> {
    let by = By::from(arguments.by);
    if arguments.keep.is_some() && by != By::Client {
        bail!("--keep needs --by client: otherwise no pages are sent here");
    }
    if options.partial {
        bail!("--partial does not work with node traverse: a chain ends where a page is missing");
    }
    let nodes = connect(options)?;
    let mut run = plain_run(options)?;
    let wholes = wholes(&nodes, &[PathBuf::from(&arguments.file)])?;
    let [whole] = &wholes[..] else {
        let titles: Vec<&str> = wholes.iter().map(|whole| whole.title.as_str()).collect();
        bail!("{} has several files: {}; give store:NAME/FILE", arguments.file, titles.join(", "));
    };
    let asked = TraverseOptions {
        pointers: Pointers { page_bytes: arguments.page, at: arguments.at },
        steps: arguments.steps,
        by,
        keep_bytes: arguments.keep.unwrap_or(0),
        node_memory_bytes: options.node_memory,
    };
    let done = nodes.traverse(&run.job, whole, &arguments.start, &asked)?;
    let steps: u64 = done.chains.iter().map(|chain| chain.walked.steps).sum();
    let rate = steps as f64 / done.seconds.max(1e-9);
    let sentence = format!("{steps} steps in {:.2} s, {rate:.0} a second", done.seconds);
    let mut summary = json!(done);
    summary["name"] = json!(whole.title);
    summary["by"] = json!(by);
    summary["steps"] = json!(steps);
    summary["bytes_moved"] = json!(nodes.bytes_in() + nodes.bytes_out());
    let how = costs(&done);
    for node in done.nodes.iter().filter(|_| !options.quiet) {
        if let Some(why) = &node.lost {
            say(&format!("note: node {why}; copies on other nodes were read"));
        }
    }
    if !options.json {
        print(&done.chains)?;
    }
    let outcome = Outcome::new("node traverse", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(options)?)
}

fn print(chains: &[Chain]) -> Result<()> {
    let header = [
        ("start", Align::Right),
        ("page", Align::Right),
        ("steps", Align::Right),
        ("hops", Align::Right),
        ("digest", Align::Left),
        ("", Align::Left),
    ];
    let row = |chain: &Chain| {
        let walked = chain.walked;
        let numbers = [chain.start, walked.page, walked.steps, walked.hops];
        let mut row: Vec<String> = numbers.iter().map(u64::to_string).collect();
        row.push(format!("{:016x}", walked.digest));
        row.push(if chain.ended { "its last page".to_string() } else { String::new() });
        row
    };
    let rows: Vec<Vec<String>> = chains.iter().map(row).collect();
    Ok(table::print(&mut terminal::stdout(), &header, &rows)?)
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

//! `inshore node status` and `inshore cluster status`: a table of the nodes.

use anyhow::Result;
use inshore::{
    can_run_stages,
    nodes::{NodeStatus, protocol::Status, time_text},
    store::format_bytes,
};
use serde_json::{Value, json};

use super::client::{connect, warn};
use crate::{
    args::GlobalOptions,
    report::{
        outcome::{print_json, say},
        table::{self, Align},
    },
};

/// A column of the table after the address of the node: its name, its alignment, and its value for a node.
type Column = (&'static str, Align, fn(&Status) -> String);

/// The columns of `node status`.
const OF_NODES: &[Column] = &[
    ("name", Align::Left, name),
    ("running", Align::Right, running),
    ("waiting", Align::Right, |status| format!("{}/{}", status.waiting, status.queue)),
    ("memory used", Align::Right, |status| format_bytes(status.memory_used_bytes)),
    ("of", Align::Right, |status| format_bytes(status.memory_bytes)),
    ("load", Align::Right, |status| format!("{:.1}", status.load)),
    ("cores", Align::Right, |status| status.cores.to_string()),
    ("°C", Align::Right, |status| or_none(status.celsius.map(|celsius| format!("{celsius:.0}")))),
    ("free", Align::Right, |status| format_bytes(status.free_bytes)),
    ("read", Align::Right, |status| format_bytes(status.bytes_read)),
    ("answered", Align::Right, |status| format_bytes(status.bytes_answered)),
    ("credentials end", Align::Right, |status| {
        or_none(status.expires.map(|expires| time_text(expires.first())[..10].to_string()))
    }),
];

/// The columns of `cluster status`: the resources of a node that a job in stages needs.
const OF_A_CLUSTER: &[Column] = &[
    ("name", Align::Left, name),
    ("version", Align::Left, |status| status.program.clone()),
    ("running", Align::Right, running),
    ("memory used", Align::Right, |status| format_bytes(status.memory_used_bytes)),
    ("of", Align::Right, |status| format_bytes(status.memory_bytes)),
    ("free", Align::Right, |status| format_bytes(status.free_bytes)),
    ("runs stages", Align::Left, |status| if can_run_stages(status) { "yes" } else { "no" }.to_string()),
];

fn name(status: &Status) -> String {
    format!("{}{}", status.name, if status.draining { " (ends)" } else { "" })
}

/// Returns the number of running tasks and the number of slots.
fn running(status: &Status) -> String {
    format!("{}/{}", status.running.len(), status.slots)
}

fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_string())
}

/// Prints the status of the nodes. Returns whether all nodes answer and, for a cluster, can run stages.
pub fn status(options: &GlobalOptions) -> Result<bool> {
    let found = connect(options)?.status();
    let is_usable = |status: &Status| !options.is_cluster || can_run_stages(status);
    let are_usable = found.iter().all(|node| node.status.as_ref().is_ok_and(is_usable));
    if options.json {
        print_json(&found.iter().map(|node| value(options, node)).collect::<Vec<_>>())?;
        return Ok(are_usable);
    }
    let columns = if options.is_cluster { OF_A_CLUSTER } else { OF_NODES };
    let header: Vec<(&str, Align)> = [("node", Align::Left)]
        .into_iter()
        .chain(columns.iter().map(|column| (column.0, column.1)))
        .collect();
    let mut rows = Vec::new();
    for node in &found {
        match &node.status {
            Ok(status) => {
                let values = columns.iter().map(|(_, _, value)| value(status));
                rows.push([node.address.clone()].into_iter().chain(values).collect::<Vec<String>>());
            }
            Err(error) => say(&format!("inshore: {error}")),
        }
    }
    if !rows.is_empty() {
        table::print_stdout(&header, &rows)?;
    }
    for node in &found {
        let expires = node.status.as_ref().ok().and_then(|status| status.expires);
        let warnings = expires.map_or(Vec::new(), |expires| expires.warnings(&node.address));
        warnings.iter().for_each(|warning| warn(options, warning));
    }
    Ok(are_usable)
}

/// Returns the status of a node in JSON.
fn value(options: &GlobalOptions, node: &NodeStatus) -> Value {
    match &node.status {
        Ok(status) if options.is_cluster => {
            json!({ "node": node.address, "status": status, "runs_stages": can_run_stages(status) })
        }
        Ok(status) => json!({ "node": node.address, "status": status }),
        Err(error) => json!({ "node": node.address, "error": error.to_string() }),
    }
}

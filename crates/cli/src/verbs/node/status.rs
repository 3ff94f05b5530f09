//! `inshore node status`: a table of the nodes.

use anyhow::Result;
use inshore::{
    nodes::{NodeStatus, time_text},
    store::format_bytes,
};
use serde_json::json;

use super::client::{connect, warn};
use crate::{
    args::GlobalOptions,
    report::{
        outcome::{print_json, say},
        table::{self, Align},
    },
};

pub fn status(options: &GlobalOptions) -> Result<bool> {
    let found = connect(options)?.status();
    let all_answer = found.iter().all(|node| node.status.is_ok());
    if options.json {
        let value = |node: &NodeStatus| match &node.status {
            Ok(status) => json!({ "node": node.address, "status": status }),
            Err(error) => json!({ "node": node.address, "error": error.to_string() }),
        };
        print_json(&found.iter().map(value).collect::<Vec<_>>())?;
        return Ok(all_answer);
    }
    let header = [
        ("node", Align::Left),
        ("name", Align::Left),
        ("running", Align::Right),
        ("waiting", Align::Right),
        ("memory used", Align::Right),
        ("of", Align::Right),
        ("load", Align::Right),
        ("cores", Align::Right),
        ("°C", Align::Right),
        ("free", Align::Right),
        ("read", Align::Right),
        ("answered", Align::Right),
        ("credentials end", Align::Right),
    ];
    let mut rows = Vec::new();
    for node in &found {
        match &node.status {
            Ok(status) => rows.push(vec![
                node.address.clone(),
                format!("{}{}", status.name, if status.draining { " (ends)" } else { "" }),
                format!("{}/{}", status.running.len(), status.slots),
                format!("{}/{}", status.waiting, status.queue),
                format_bytes(status.memory_used_bytes),
                format_bytes(status.memory_bytes),
                format!("{:.1}", status.load),
                status.cores.to_string(),
                status.celsius.map_or("-".to_string(), |celsius| format!("{celsius:.0}")),
                format_bytes(status.free_bytes),
                format_bytes(status.bytes_read),
                format_bytes(status.bytes_answered),
                status
                    .expires
                    .map_or("-".to_string(), |expires| time_text(expires.first())[..10].to_string()),
            ]),
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
    Ok(all_answer)
}

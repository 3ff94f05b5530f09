//! `inshore store repair --node`: removes outdated generations.

use anyhow::{Result, bail};
use inshore::nodes::GenerationRepair;
use serde_json::json;

use super::client::connect;
use crate::{
    args::{GlobalOptions, Repair},
    report::outcome::{print_json, print_line},
};

/// Removes outdated generations, and reports them.
pub fn repair(options: &GlobalOptions, words: &Repair) -> Result<()> {
    if words.keep.is_some() && words.names.len() != 1 {
        bail!("--keep is the id of one dataset: give its name");
    }
    let repaired = connect(options)?.repair(&words.names, words.keep)?;
    if options.json {
        return Ok(print_json(&json!({ "command": "store repair", "dropped": repaired }))?);
    }
    if options.quiet {
        return Ok(());
    }
    if repaired.is_empty() {
        print_line("there are no outdated generations")?;
    }
    for GenerationRepair { name, id, put, nodes, absent } in &repaired {
        let dropped = match &nodes[..] {
            [] => "the record of its removal".to_string(),
            nodes => format!("shards on {}", nodes.join(", ")),
        };
        let rest = match &absent[..] {
            [] => String::new(),
            absent => {
                format!("; {} may still have data: repair again once these nodes are back", absent.join(", "))
            }
        };
        print_line(&format!("{name}: removed generation {id} (put {put}): {dropped}{rest}"))?;
    }
    Ok(())
}

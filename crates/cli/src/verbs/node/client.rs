//! The effect of `--node` on commands: creates the client of the nodes, and reports the work of the nodes.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, bail};
use inshore::{
    nodes::{ClientConfig, ClientCredentials, GatherReport, HereCost, Nodes, RunOptions, read_credentials},
    ops::{JobReport, NodeReport, StageReport},
    store::format_bytes,
};

use crate::{args::GlobalOptions, report::outcome::say};

/// Returns whether the command runs on nodes.
pub fn are_named(options: &GlobalOptions) -> bool {
    !options.node.is_empty()
}

/// Returns an error if `--node` was given. Commands that cannot run on nodes call this function.
pub fn refuse(options: &GlobalOptions) -> Result<()> {
    if are_named(options) {
        bail!(
            "this command does not run on nodes: --node works with search, count, sql, reduce, sort, language, \
             compress, decompress, checksum, nearest import, index, query, recall, ls, info and rm, kernel push, run, ls and rm, \
             store put, get, ls, rm and repair, node run, status and traverse"
        );
    }
    Ok(())
}

/// Creates the client of the nodes that `--node` names.
pub fn connect(options: &GlobalOptions) -> Result<Nodes> {
    if options.node.is_empty() {
        bail!("no nodes are given: use --node HOST,HOST:PORT,...");
    }
    let (silence, deadline) = (Duration::from_secs(options.silence), options.deadline);
    let credentials: Option<ClientCredentials> =
        options.credentials.as_deref().map(read_credentials).transpose()?;
    let warnings = credentials.as_ref().map(ClientCredentials::warnings).transpose()?;
    warnings.into_iter().flatten().for_each(|warning| warn(options, &warning));
    let config = ClientConfig::new(options.node.clone(), credentials);
    Ok(Nodes::new(ClientConfig { silence, deadline, ..config })?)
}

pub(super) fn warn(options: &GlobalOptions, warning: &str) {
    if !options.quiet {
        say(&format!("warning: {warning}"));
    }
}

/// Returns the options of requests to nodes.
pub fn run_options(options: &GlobalOptions) -> RunOptions {
    let habits = RunOptions::default();
    RunOptions {
        partial: options.partial,
        node_memory_bytes: options.node_memory,
        stall: Duration::from_secs(options.stall),
        help_from: habits.help_from.filter(|_| !options.only_nodes),
        ..habits
    }
}

/// Prints a note for each lost node and for each range of data that was not read. The command has succeeded
/// nevertheless, since replicas had the data or `--partial` was given.
pub fn tell_missing(options: &GlobalOptions, nodes: &Nodes, gathered: &GatherReport) {
    if options.quiet {
        return;
    }
    let left = gathered.nodes.iter().filter_map(|cost| {
        let why = cost.lost.as_ref()?;
        let why = why.strip_prefix(&cost.node).and_then(|why| why.strip_prefix(": ")).unwrap_or(why);
        Some((cost.node.clone(), why.to_string()))
    });
    let instead = if gathered.missing.is_empty() { "; copies on other nodes were read" } else { "" };
    for (node, why) in left.chain(nodes.lost()).collect::<BTreeMap<String, String>>() {
        say(&format!("note: node {node} was lost: {why}{instead}"));
    }
    for missing in &gathered.missing {
        let end = missing.offset + missing.bytes;
        say(&format!(
            "note: {}: bytes {} to {end} were not read: {}",
            missing.title, missing.offset, missing.why
        ));
    }
}

/// Describes the work of nodes, for `--explain`.
pub fn costs(gathered: &GatherReport) -> Vec<(&'static str, String)> {
    let costs = gathered.nodes.iter().map(|node| {
        let lost = node.lost.as_ref().map_or(String::new(), |why| format!(", lost: {why}"));
        let text = format!(
            "{}: {} read there, {} sent here, {:.1} s, {:.1} s of CPU{lost}",
            node.node,
            format_bytes(node.bytes_read),
            format_bytes(node.bytes_moved),
            node.seconds,
            node.cpu_seconds
        );
        ("node", text)
    });
    costs.chain(gathered.here.iter().map(|here| ("this machine", local_work(here)))).collect()
}

/// Describes the stages of a job on a cluster, for `--explain`.
pub fn stages(job: &JobReport) -> Vec<(&'static str, String)> {
    let stage = |stage: &StageReport| {
        let text = format!(
            "{}: {} partitions, {} written, done after {:.1} s, {:.1} s in all attempts",
            stage.name,
            stage.partitions,
            format_bytes(stage.bytes),
            stage.seconds,
            stage.attempt_seconds
        );
        ("stage", text)
    };
    let attempts = &job.attempts;
    let link = |node: &NodeReport| {
        let (sent, received) = (format_bytes(node.sent), format_bytes(node.received));
        ("node", format!("{}: {} attempts, {sent} sent, {received} received", node.node, node.attempts))
    };
    let of_attempts = format!(
        "{} started, {} finished, {} failed, {} lost with their node, {} second attempts",
        attempts.started, attempts.finished, attempts.failed, attempts.lost, attempts.second
    );
    job.stages
        .iter()
        .map(stage)
        .chain(job.nodes.iter().map(link))
        .chain([("attempts", of_attempts), ("trace", job.trace.clone())])
        .collect()
}

/// Describes the part of the work that this machine did, and the reason why this part was not larger.
fn local_work(here: &HereCost) -> String {
    let HereCost { pieces, bytes, nodes_bytes_per_second: nodes, why, .. } = here;
    let speed = |bytes: f64| format!("{}/s", format_bytes(bytes as u64));
    let speeds = here
        .bytes_per_second
        .map_or(String::new(), |here| format!(" ({} here, {} for all nodes)", speed(here), speed(*nodes)));
    let did = match pieces {
        0 => "processed no pieces".to_string(),
        pieces => format!("processed {pieces} pieces, with {} sent here", format_bytes(*bytes)),
    };
    format!("{did}: {why}{speeds}")
}

//! Commands on nodes: serving, credentials, and the effect of `--node` on other commands.

mod page;
pub mod run;
pub mod traverse;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use inshore::{
    commands::{Commands, check_program, command_limits},
    nodes::{
        Agent, AgentConfig, Authority, ClientConfig, ClientCredentials, GatherReport, GenerationRepair,
        HereCost, NodeStatus, Nodes, RunOptions, read_credentials, time_text, write_credentials,
    },
    sandbox::{Policy, Protections},
    store::{format_bytes, make_folder},
    works,
};
use serde_json::json;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    args::{Credentials, GlobalOptions, Log, Repair, Serve},
    job::session::{Session, budget},
    report::{
        failure,
        outcome::{print_json, print_line, say},
        table::{self, Align},
        terminal,
    },
};

/// Returns whether the command runs on nodes.
pub fn are_named(options: &GlobalOptions) -> bool {
    !options.node.is_empty()
}

/// Refuses `--node` for a command that does not run on nodes.
pub fn refuse(options: &GlobalOptions) -> Result<()> {
    if are_named(options) {
        bail!(
            "this command does not run on nodes: --node works with search, count, sql, reduce, sort, language, \
             compress, decompress, checksum, kernel push, run, ls and rm, store put, get, ls, rm and repair, node run, status and traverse"
        );
    }
    Ok(())
}

pub fn serve(options: &GlobalOptions, words: &Serve) -> Result<()> {
    failure::SERVES.store(true, Ordering::Relaxed);
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    let credentials = options.credentials.as_deref().map(read_credentials).transpose()?;
    log(words.log);
    let session = Session::open_unheard(options.clone())?;
    let budget = budget(options);
    let name = words.name.clone().or_else(host_name).unwrap_or_else(|| "node".to_string());
    let habits = AgentConfig::new(name, budget.memory_bytes(), budget.threads());
    let config = AgentConfig {
        task_memory_bytes: words.task_memory.unwrap_or(habits.task_memory_bytes).min(budget.memory_bytes()),
        slots: words.slots.into(),
        queue: words.queue.into(),
        connections: words.connections.into(),
        connections_per_address: words.connections_per_address.into(),
        first_request: Duration::from_secs(words.first_request),
        deadline: Duration::from_secs(words.task_deadline),
        drain: Duration::from_secs(words.drain),
        credentials,
        ..habits
    };
    let whom = if config.credentials.is_some() { "clients with a token" } else { "this machine alone" };
    let told = format!(
        "{} serves {whom} with {} for tasks, {} of them at once",
        config.name,
        format_bytes(config.memory_bytes),
        config.slots
    );
    let mut works = works();
    if !words.allow.is_empty() {
        let mut policy = Policy::default();
        if words.strict {
            policy.required = Protections::ALL;
        }
        let programs = words.allow.iter().map(|allowed| program(allowed)).collect::<Result<_>>()?;
        works = works.with(Commands::new(programs, policy, command_limits(words.task_deadline)));
    }
    let serving = Agent::new(session.into_store()?, works, config).serve(words.listen)?;
    let page = page::serve(serving.agent(), &words.page)?;
    if options.json {
        let page = page.as_ref().map(|page| page.address());
        print_json(&json!({ "command": "node serve", "address": serving.address(), "page": page }))?;
    } else if !options.quiet {
        print_line(&format!("{told}, on {}", serving.address()))?;
        if let Some(page) = &page {
            let scheme = if page.address().ip().is_loopback() { "http" } else { "https" };
            print_line(&format!("status page: {scheme}://{}/", page.address()))?;
        }
    }
    io::stdout().flush()?;
    signals.forever().next();
    std::thread::spawn(move || {
        signals.forever().next();
        process::exit(failure::STOPPED.into());
    });
    if !options.quiet {
        say(&format!("stopping: running tasks have {} s (a second signal stops at once)", words.drain));
    }
    Ok(serving.stop()?)
}

/// Begins to log the actions of the node.
fn log(how: Log) {
    let lines = tracing_subscriber::fmt().with_writer(terminal::stderr).with_target(false).with_ansi(false);
    match how {
        Log::Text => lines.init(),
        Log::Json => lines.json().flatten_event(true).init(),
        Log::None => {}
    }
}

/// Parses the name and path of an allowed program.
fn program(allowed: &str) -> Result<(String, PathBuf)> {
    let (name, path) = match allowed.split_once('=') {
        Some((name, path)) => (name, PathBuf::from(path)),
        None => (allowed, Path::new("/usr/bin").join(allowed)),
    };
    check_program(&path).map_err(anyhow::Error::msg).with_context(|| format!("--allow {allowed}"))?;
    Ok((checked_name(name)?.to_string(), path))
}

fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}

pub fn credentials(options: &GlobalOptions, words: &Credentials) -> Result<()> {
    let lifetime = Duration::from_secs(u64::from(words.days) * 86_400);
    let path = words.folder.join("authority.json");
    let (mut made, mut token) = (Vec::new(), None);
    if !path.exists() {
        make_folder(&words.folder).with_context(|| words.folder.display().to_string())?;
        write_credentials(&path, &Authority::create()?)?;
        made.push(path.clone());
    }
    let authority: Authority = read_credentials(&path)?;
    if let Some(name) = &words.for_node {
        let path = words.folder.join(format!("node-{}.json", checked_name(name)?));
        write_credentials(&path, &authority.node(name, &words.address, lifetime)?)?;
        made.push(path);
    }
    if let Some(name) = &words.for_client {
        let path = words.folder.join(format!("client-{}.json", checked_name(name)?));
        let credentials = authority.client(name, &words.rights, lifetime)?;
        write_credentials(&path, &credentials)?;
        token = Some(credentials.claims()?);
        made.push(path);
    }
    if options.json {
        return Ok(print_json(&json!({ "command": "node credentials", "files": made, "token": token }))?);
    }
    if made.is_empty() && !options.quiet {
        say("the authority exists already: --for-node and --for-client create credentials");
    }
    made.iter().try_for_each(|path| print_line(&path.display().to_string()))?;
    Ok(())
}

/// Checks a name that becomes a part of a file name.
fn checked_name(name: &str) -> Result<&str> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_good) {
        bail!("bad name '{name}': expected letters, digits, '-', '_' and '.', not beginning with '.'");
    }
    Ok(name)
}

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

fn warn(options: &GlobalOptions, warning: &str) {
    if !options.quiet {
        say(&format!("warning: {warning}"));
    }
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

/// Reports lost nodes, and data that was not read, if replicas or a partial answer made up for them.
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
    let told = gathered.nodes.iter().map(|node| {
        let lost = node.lost.as_ref().map_or(String::new(), |why| format!(", lost: {why}"));
        let told = format!(
            "{}: {} read there, {} sent here, {:.1} s, {:.1} s of CPU{lost}",
            node.node,
            format_bytes(node.bytes_read),
            format_bytes(node.bytes_moved),
            node.seconds,
            node.cpu_seconds
        );
        ("node", told)
    });
    told.chain(gathered.here.iter().map(|here| ("this machine", done_here(here)))).collect()
}

/// Describes the part of the work that this machine did, and the reason why the part was not larger.
fn done_here(here: &HereCost) -> String {
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

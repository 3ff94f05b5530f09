//! Commands on nodes: serving, credentials, and what `--node` makes of other commands.

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
    neardata::nodes::{
        Agent, AgentConfig, Authority, ClientConfig, ClientCredentials, Gathered, HereCost, NodeStatus,
        Nodes, Repaired, RunOptions, read_credentials, time_text, write_credentials,
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
    args::{Credentials, Everywhere, Log, Repair, Serve},
    job::session::{Session, budget},
    report::{
        failure,
        outcome::{print_json, print_line, say},
        table::{self, Align},
        terminal,
    },
};

/// Whether the command is meant for nodes.
pub fn are_named(options: &Everywhere) -> bool {
    !options.node.is_empty()
}

/// Refuses `--node` where a command knows nothing of nodes.
pub fn refuse(options: &Everywhere) -> Result<()> {
    if are_named(options) {
        bail!(
            "this command does not work on nodes: --node goes with search, count, sql, reduce, sort, language, \
             compress, decompress, checksum, kernel push, run, ls and rm, store put, get, ls, rm and repair, node run, status and traverse"
        );
    }
    Ok(())
}

pub fn serve(options: &Everywhere, words: &Serve) -> Result<()> {
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
    let whom = if config.credentials.is_some() { "who has a token" } else { "this machine alone" };
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
            print_line(&format!("its page: {scheme}://{}/", page.address()))?;
        }
    }
    io::stdout().flush()?;
    signals.forever().next();
    std::thread::spawn(move || {
        signals.forever().next();
        process::exit(failure::STOPPED.into());
    });
    if !options.quiet {
        say(&format!("stopping: running tasks have {} s (again: at once)", words.drain));
    }
    Ok(serving.stop()?)
}

/// Begins to log what the node does.
fn log(how: Log) {
    let lines = tracing_subscriber::fmt().with_writer(terminal::stderr).with_target(false).with_ansi(false);
    match how {
        Log::Text => lines.init(),
        Log::Json => lines.json().flatten_event(true).init(),
        Log::None => {}
    }
}

/// The name and path of a program that is allowed.
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

pub fn credentials(options: &Everywhere, words: &Credentials) -> Result<()> {
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
        say("there is an authority already: --for-node and --for-client make credentials with it");
    }
    made.iter().try_for_each(|path| print_line(&path.display().to_string()))?;
    Ok(())
}

/// A name that becomes a part of a file's.
fn checked_name(name: &str) -> Result<&str> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_good) {
        bail!("'{name}' is no name: letters, digits, '-', '_' and '.', and no '.' at its start");
    }
    Ok(name)
}

pub fn status(options: &Everywhere) -> Result<bool> {
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
        table::print(&mut terminal::stdout(), &header, &rows)?;
    }
    for node in &found {
        let expires = node.status.as_ref().ok().and_then(|status| status.expires);
        let warnings = expires.map_or(Vec::new(), |expires| expires.warnings(&node.address));
        warnings.iter().for_each(|warning| warn(options, warning));
    }
    Ok(all_answer)
}

fn warn(options: &Everywhere, warning: &str) {
    if !options.quiet {
        say(&format!("warning: {warning}"));
    }
}

/// Makes ready to speak with the nodes that were named.
pub fn connect(options: &Everywhere) -> Result<Nodes> {
    if options.node.is_empty() {
        bail!("no nodes are named: --node HOST,HOST:PORT,...");
    }
    let (silence, deadline) = (Duration::from_secs(options.silence), options.deadline);
    let credentials: Option<ClientCredentials> =
        options.credentials.as_deref().map(read_credentials).transpose()?;
    let warnings = credentials.as_ref().map(ClientCredentials::warnings).transpose()?;
    warnings.into_iter().flatten().for_each(|warning| warn(options, &warning));
    let config = ClientConfig::new(options.node.clone(), credentials);
    Ok(Nodes::new(ClientConfig { silence, deadline, ..config })?)
}

/// How nodes are asked, as the options say.
pub fn run_options(options: &Everywhere) -> RunOptions {
    let habits = RunOptions::default();
    RunOptions {
        partial: options.partial,
        node_memory_bytes: options.node_memory,
        stall: Duration::from_secs(options.stall),
        help_from: habits.help_from.filter(|_| !options.only_nodes),
        ..habits
    }
}

/// Says which nodes were lost, and what was not read, where copies or a partial answer did.
pub fn tell_missing(options: &Everywhere, nodes: &Nodes, gathered: &Gathered) {
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

/// What nodes did, for `--explain`.
pub fn costs(gathered: &Gathered) -> Vec<(&'static str, String)> {
    let told = gathered.nodes.iter().map(|node| {
        let lost = node.lost.as_ref().map_or(String::new(), |why| format!(", lost: {why}"));
        let told = format!(
            "{}: read {} there, {} came here, {:.1} s, {:.1} s of CPU{lost}",
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

/// What this machine did itself, and why no more.
fn done_here(here: &HereCost) -> String {
    let HereCost { pieces, bytes, nodes_bytes_per_second: nodes, why, .. } = here;
    let speed = |bytes: f64| format!("{}/s", format_bytes(bytes as u64));
    let speeds = here.bytes_per_second.map_or(String::new(), |here| {
        format!(" ({} here, {} for all nodes before)", speed(here), speed(*nodes))
    });
    let did = match pieces {
        0 => "did nothing itself".to_string(),
        pieces => format!("did {pieces} pieces itself, {}, which came here for it", format_bytes(*bytes)),
    };
    format!("{did}: {why}{speeds}")
}

/// Drops what is outdated, and says what that was.
pub fn repair(options: &Everywhere, words: &Repair) -> Result<()> {
    if words.keep.is_some() && words.names.len() != 1 {
        bail!("--keep is the id of one dataset: name one");
    }
    let repaired = connect(options)?.repair(&words.names, words.keep)?;
    if options.json {
        return Ok(print_json(&json!({ "command": "store repair", "dropped": repaired }))?);
    }
    if options.quiet {
        return Ok(());
    }
    if repaired.is_empty() {
        print_line("nothing is outdated")?;
    }
    for Repaired { name, id, put, nodes, absent } in &repaired {
        let dropped = match &nodes[..] {
            [] => "a mark of its removal".to_string(),
            nodes => format!("shards on {}", nodes.join(", ")),
        };
        let rest = match &absent[..] {
            [] => String::new(),
            absent => format!("; {} may have some still: repair again when they are back", absent.join(", ")),
        };
        print_line(&format!("{name}: dropped {id} (put {put}): {dropped}{rest}"))?;
    }
    Ok(())
}

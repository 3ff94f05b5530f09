//! `inshore node serve`: serves a store until a signal stops the node.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Context, Result};
use inshore::{
    commands::{Commands, check_program, command_limits},
    nodes::{Agent, AgentConfig, read_credentials},
    sandbox::{Policy, Protections},
    store::format_bytes,
    with_stages, works,
};
use serde_json::json;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{credentials::checked_name, page};
use crate::{
    args::{GlobalOptions, Log, Serve},
    job::session::{Session, budget},
    report::{
        failure,
        outcome::{print_json, print_line, say},
        terminal,
    },
};

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
    let mut works = with_stages(works(), config.credentials.clone());
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

/// Starts the log of the node in the requested format.
fn log(how: Log) {
    let lines = tracing_subscriber::fmt().with_writer(terminal::stderr).with_target(false).with_ansi(false);
    match how {
        Log::Text => lines.init(),
        Log::Json => lines.json().flatten_event(true).init(),
        Log::None => {}
    }
}

/// Parses a value of `--allow` into the name and the path of a program.
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

//! `inshore node run`: runs a program that the operators of nodes allow, on the nodes that have the data.

use std::io::Write;

use anyhow::{Result, bail};
use inshore::{
    ops::{
        Attachments, Request,
        verbs::{self, NodeResponse},
    },
    store::format_bytes,
};
use serde_json::json;

use crate::{
    args::{GlobalOptions, RunCommand},
    job::operations::{self, StoreAccess},
    report::{
        outcome::{Outcome, say},
        terminal,
    },
};

/// Runs a command on nodes. Returns whether all processes ended with exit code 0.
pub fn run(options: GlobalOptions, words: &RunCommand) -> Result<bool> {
    if words.program.starts_with("store:") {
        bail!("{} is not a program: pass the input of a command with --input {0}", words.program);
    }
    let operation = verbs::RunCommand { program: words.program.clone(), args: words.args.clone() };
    let request = Request::new(operation, &words.input);
    let mut out = terminal::stdout();
    // With `--json`, the output of the programs is a part of the JSON value.
    let bytes: Option<&mut (dyn Write + Send)> = if options.json { None } else { Some(&mut out) };
    let attachments = Attachments { bytes, ..Attachments::default() };
    let ran = operations::run_on(options, StoreAccess::Existing, &request, attachments)?;
    let responses = &ran.done.answer.responses;
    let is_good = |told: &NodeResponse| told.response.code == Some(0) && told.response.ended.is_none();
    let all_good = responses.iter().all(is_good);
    if !ran.options.json {
        let errors = |told: &NodeResponse| -> Vec<String> {
            let lines = told.response.errors.trim_end().lines();
            lines.map(|line| format!("{}: {line}", told.node)).collect()
        };
        responses.iter().flat_map(errors).for_each(|line| say(&line));
    }
    if !ran.options.json && !ran.options.quiet {
        for NodeResponse { node, response, .. } in responses.iter().filter(|told| !is_good(told)) {
            let how = match (&response.ended, response.code, response.signal) {
                (Some(why), ..) => format!("it was stopped: {why}"),
                (None, Some(code), _) => format!("it ended with {code}"),
                (None, None, signal) => format!("signal {} ended it", signal.unwrap_or(0)),
            };
            say(&format!("{node}: {}: {how}", words.program));
        }
    }
    ran.tell(|report, done| {
        let responses = &done.answer.responses;
        let how = |NodeResponse { node, response, .. }: &NodeResponse| {
            let (seconds, cpu_seconds) = (response.seconds, response.cpu_seconds);
            let (memory, protections) = (format_bytes(response.memory_bytes_max), &response.protections);
            let told = format!(
                "{node}: {seconds:.2} s, {cpu_seconds:.2} s of CPU, {memory} of memory; contained by {protections}"
            );
            ("command", told)
        };
        let how = responses.iter().map(how).collect();
        let sentence = format!("{} on {} nodes", words.program, responses.len());
        Outcome { sentence_aside: true, how, ..Outcome::new("node run", report, json!(done), sentence) }
    })?;
    Ok(all_good)
}

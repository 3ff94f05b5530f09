//! `inshore kernel`: manages WebAssembly modules in the store and on nodes, and runs them over files.
//!
//! The module `new` has the commands `new` and `build`.

pub mod new;

use std::{io::BufWriter, iter};

use anyhow::{Result, bail};
use inshore::{
    ops::{
        Attachments, Request,
        verbs::{self, KernelsAnswer, ListKernels, ListedKernel, PushAnswer, PushKernel},
    },
    sandbox::WasmResult,
    store::format_bytes,
    tables::NewFile,
};
use serde_json::json;

use crate::{
    args::{GlobalOptions, Push, RunKernel},
    job::operations::{self, FinishedOperation, StoreAccess},
    report::{
        outcome::{Outcome, counted, print_json, say},
        table::{self, Align},
        terminal,
    },
};

/// Describes the kind of a module's result.
pub fn told(result: WasmResult) -> &'static str {
    match result {
        WasmResult::InOrder => "results in order",
        WasmResult::State => "one result of merged states",
    }
}

pub fn push(options: GlobalOptions, words: &Push) -> Result<()> {
    let operation = PushKernel { name: words.name.clone() };
    operations::run(options, &Request::new(operation, [&words.module]))?.tell(|report, done| {
        let PushAnswer { name, bytes, result, nodes, .. } = &done.answer;
        let on = match nodes {
            0 => String::new(),
            nodes => format!(" on {}", counted(*nodes as u64, "node")),
        };
        let sentence = format!("{name}: a kernel of {}{on}, with {}", format_bytes(*bytes), told(*result));
        Outcome::new("kernel push", report, json!(done), sentence)
    })
}

pub fn ls(options: GlobalOptions) -> Result<()> {
    let request = Request::new(ListKernels {}, [""; 0]);
    let FinishedOperation { done, options, .. } =
        operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?;
    let KernelsAnswer { kernels, notes } = done.answer;
    let on =
        |kernel: &ListedKernel| kernel.nodes.as_ref().map_or("here".to_string(), |nodes| nodes.join(" "));
    if options.json {
        let value =
            |kernel: &ListedKernel| json!({ "name": kernel.name, "bytes": kernel.bytes, "on": on(kernel) });
        print_json(&kernels.iter().map(value).collect::<Vec<_>>())?;
    } else if !kernels.is_empty() {
        let header = [("name", Align::Left), ("size", Align::Right), ("on", Align::Left)];
        let row = |kernel: &ListedKernel| vec![kernel.name.clone(), format_bytes(kernel.bytes), on(kernel)];
        table::print_stdout(&header, &kernels.iter().map(row).collect::<Vec<_>>())?;
    } else if !options.quiet {
        say("there are no kernels: `inshore kernel push` stores one");
    }
    notes.iter().for_each(|note| say(&format!("note: {note}")));
    Ok(())
}

pub fn run(options: GlobalOptions, words: &RunKernel) -> Result<()> {
    if options.json && words.output.is_none() {
        bail!("--json and the result both use standard output: pass --output FILE");
    }
    let operation = verbs::RunKernel { kernel: words.kernel.clone(), args: words.args.clone() };
    let request = Request { output: words.output.clone(), ..Request::new(operation, &words.paths) };
    let mut out = BufWriter::with_capacity(1 << 16, terminal::stdout());
    let attachments = Attachments { bytes: Some(&mut out), ..Attachments::default() };
    let mut ran = operations::run_on(options, StoreAccess::Existing, &request, attachments)?;
    if let Some(path) = &words.counters {
        let counters = json!({ "command": "kernel run", "report": ran.report, "summary": ran.done });
        NewFile::write_whole(path, format!("{counters}\n").as_bytes())?;
    }
    // Without `--output` only the kernel's result is printed.
    ran.options.quiet |= words.output.is_none();
    ran.tell(|report, done| {
        let module = &done.answer.module;
        let kernel = format!(
            "{} instances, {:.2} s of CPU, {} of memory each at most; contained by {}",
            module.instances,
            module.cpu_seconds,
            format_bytes(module.memory_bytes_max),
            module.protections
        );
        let log = module.log.lines().map(|line| ("log", line.to_string()));
        let how = iter::once(("kernel", kernel)).chain(log).collect();
        let sentence = format!("{}: {}", words.kernel, format_bytes(module.output_bytes));
        Outcome { sentence_aside: true, how, ..Outcome::new("kernel run", report, json!(done), sentence) }
    })
}

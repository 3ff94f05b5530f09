//! `inshore kernel`: modules of WebAssembly in the store and on nodes, and run over files.
//!
//! `new` and `build` are in `kernel_new`.

use std::{
    fs,
    io::{BufWriter, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};
use inshore::{
    kernels::text_sources,
    sandbox::WasmResult,
    store::{self, DatasetSummary, Execution, Report, format_bytes},
    tables::NewFile,
    wasm::{self, ENDING, MODULE_BYTES_MAX, Module, WasmKernel, WasmSummary, dataset_of, run_wasm},
};
use serde_json::{Value, json};

use crate::{
    args::{Everywhere, Push, RunKernel},
    outcome::{Outcome, print_json, say},
    session::{Session, plain_context},
    stores,
    table::{self, Align},
    terminal,
};
#[cfg(feature = "nodes")]
use crate::{kernel_on_nodes, nodes::are_named};

/// The module in a file, called after it.
pub fn read_module(path: &Path) -> Result<Module> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let file = fs::File::open(path).with_context(|| format!("{shown}: cannot read this module"))?;
    file.take(MODULE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{shown}: cannot read this module"))?;
    let name = path.file_stem().and_then(|name| name.to_str());
    Ok(Module::new(name.with_context(|| format!("{shown}: this name is no text"))?, bytes)?)
}

/// What kind of result a module has, in words.
pub fn told(result: WasmResult) -> &'static str {
    match result {
        WasmResult::InOrder => "results in order",
        WasmResult::State => "one result of merged states",
    }
}

pub fn push(options: &Everywhere, words: &Push) -> Result<()> {
    let mut module = read_module(&words.module)?;
    if let Some(name) = &words.name {
        module.name.clone_from(name);
    }
    let result = WasmKernel::new(module.clone(), "").check()?;
    let (name, bytes) = (module.name.clone(), module.bytes.len() as u64);
    let here = || {
        let session = Session::open(options.clone())?;
        let mut run = session.start()?;
        module.put(session.store()?, &run.job)?;
        anyhow::Ok((run.finish(), String::new()))
    };
    #[cfg(feature = "nodes")]
    let (report, on) = match are_named(options) {
        true => kernel_on_nodes::put(options, words, &module)?,
        false => here()?,
    };
    #[cfg(not(feature = "nodes"))]
    let (report, on) = here()?;
    let sentence = format!("{name}: a kernel of {}{on}, with {}", format_bytes(bytes), told(result));
    let summary = json!({ "name": name, "bytes": bytes, "sha256": module.sha256() });
    Ok(Outcome::new("kernel push", report, summary, sentence).tell(options)?)
}

pub fn ls(options: &Everywhere) -> Result<()> {
    #[cfg(feature = "nodes")]
    if are_named(options) {
        return list(options, kernel_on_nodes::found(options)?);
    }
    let session = Session::open_existing(options.clone())?;
    let module = |summary: DatasetSummary| {
        Some((summary.name.strip_suffix(ENDING)?.to_string(), summary.bytes, "here".to_string()))
    };
    list(options, session.store()?.list()?.into_iter().filter_map(module).collect())
}

/// Prints names of kernels, their bytes, and where they are.
fn list(options: &Everywhere, found: Vec<(String, u64, String)>) -> Result<()> {
    if options.json {
        let value =
            |(name, bytes, on): &(String, u64, String)| json!({ "name": name, "bytes": bytes, "on": on });
        return Ok(print_json(&found.iter().map(value).collect::<Vec<_>>())?);
    }
    if found.is_empty() {
        if !options.quiet {
            say("no kernels: `inshore kernel push` puts one there");
        }
        return Ok(());
    }
    let header = [("name", Align::Left), ("size", Align::Right), ("on", Align::Left)];
    let row =
        |(name, bytes, on): &(String, u64, String)| vec![name.clone(), format_bytes(*bytes), on.clone()];
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    Ok(table::print(&mut terminal::stdout(), &header, &rows)?)
}

pub fn rm(options: &Everywhere, names: &[String]) -> Result<()> {
    let datasets: Vec<String> = names.iter().map(|name| dataset_of(name)).collect();
    stores::rm("kernel rm", options.clone(), &datasets)
}

pub fn run(options: &Everywhere, words: &RunKernel) -> Result<()> {
    if options.json && words.output.is_none() {
        bail!("--json wants standard output, where the result goes: name a file for it with --output");
    }
    #[cfg(feature = "nodes")]
    if are_named(options) {
        return kernel_on_nodes::run(options, words);
    }
    let is_file = words.kernel.ends_with(ENDING);
    let needs_store =
        !is_file || words.paths.iter().any(|path| inshore::kernels::dataset_name(path).is_some());
    let (session, started);
    let job = match needs_store {
        false => Execution::Plain(plain_context(options)?),
        true => {
            let quiet = Everywhere { quiet: true, ..options.clone() };
            session = Session::open_existing(quiet)?;
            started = session.start()?;
            Execution::Stored(started.job.clone())
        }
    };
    let module = match job.job().filter(|_| !is_file) {
        Some(job) => Module::stored(job, &words.kernel)?,
        None => read_module(Path::new(&words.kernel))?,
    };
    let kernel = WasmKernel::new(module, &words.args);
    let sources = text_sources(job.job(), &words.paths)?;
    let summary = write(words, |out| run_wasm(&job, &kernel, sources.into_iter(), out))?;
    tell(options, words, job.report(), &summary, |summary| (summary, Vec::new()))
}

/// Has a result written where the words say, whole or not at all where that is a file.
pub fn write(
    words: &RunKernel,
    work: impl FnOnce(wasm::Output<'_>) -> std::result::Result<WasmSummary, wasm::Error>,
) -> Result<WasmSummary> {
    let file = words.output.as_deref().map(NewFile::create).transpose()?;
    let mut out: Box<dyn Write + Send + '_> = match &file {
        Some(file) => Box::new(BufWriter::with_capacity(1 << 16, file.writer()?)),
        None => Box::new(BufWriter::with_capacity(1 << 16, terminal::stdout())),
    };
    let done = work(&mut |bytes: &[u8]| out.write_all(bytes));
    let summary = done.map_err(|error| match error {
        // Their kinds tell how the command ends.
        wasm::Error::Write(error) => anyhow::Error::from(error),
        error if error.is_cancelled() => store::Error::Cancelled.into(),
        error => error.into(),
    })?;
    out.flush()?;
    drop(out);
    if let Some(file) = file {
        file.publish()?;
    }
    Ok(summary)
}

/// Says what it cost, where someone asked.
pub fn tell(
    options: &Everywhere,
    words: &RunKernel,
    report: Report,
    summary: &WasmSummary,
    complete: impl FnOnce(Value) -> (Value, Vec<(&'static str, String)>),
) -> Result<()> {
    let (value, costs) = complete(json!({ "kernel": words.kernel, "module": summary }));
    if let Some(path) = &words.counters {
        let counters: Value = json!({ "command": "kernel run", "report": report, "summary": value });
        NewFile::write_whole(path, format!("{counters}\n").as_bytes())?;
    }
    let mut how = vec![(
        "kernel",
        format!(
            "{} instances, {:.2} s of CPU, {} of memory each at most; contained by {}",
            summary.instances,
            summary.cpu_seconds,
            format_bytes(summary.memory_bytes_max),
            summary.protections
        ),
    )];
    how.extend(costs);
    how.extend(summary.log.lines().map(|line| ("log", line.to_string())));
    let sentence = format!("{}: {}", words.kernel, format_bytes(summary.output_bytes));
    let outcome =
        Outcome { sentence_aside: true, how, ..Outcome::new("kernel run", report, value, sentence) };
    // The result alone, unless more is asked for.
    let options = &Everywhere { quiet: options.quiet || words.output.is_none(), ..options.clone() };
    Ok(outcome.tell(options)?)
}

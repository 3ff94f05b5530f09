//! `inshore kernel` with `--node`.

use std::path::Path;

use anyhow::{Result, bail};
use inshore::{
    neardata::{
        Contents, Error as ReadError, Event, Next,
        nodes::{Gathered, LoadOptions, Nodes, RunOptions, run_on_nodes},
    },
    ops::wholes,
    store::{Context, Report},
    wasm::{ENDING, MODULE_BYTES_MAX, Module, WasmKernel, dataset_of, run_wasm_on_nodes},
};

use crate::{
    args::{Everywhere, Push, RunKernel},
    kernel::{read_module, tell, write},
    nodes::{connect, costs, run_options, tell_missing, with_nodes},
    outcome::say,
    session::{plain_context, plain_run},
};

/// Puts all of a module on each node, and says on how many.
pub fn put(options: &Everywhere, words: &Push, module: &Module) -> Result<(Report, String)> {
    let nodes = connect(options)?;
    let mut run = plain_run(options)?;
    let (count, bytes) = (nodes.addresses().count(), module.bytes.len() as u64);
    let load = LoadOptions { copies: count, piece_bytes: Some(bytes + 2), ..LoadOptions::default() };
    let called = words.module.display().to_string();
    nodes.put(&run.job, &dataset_of(&module.name), (&called, Some(bytes)), &module.bytes[..], &load)?;
    Ok((run.finish(), if count == 1 { " on 1 node".to_string() } else { format!(" on {count} nodes") }))
}

/// Returns the names of kernels on nodes, their bytes, and the nodes that have them.
pub fn found(options: &Everywhere) -> Result<Vec<(String, u64, String)>> {
    let nodes = connect(options)?;
    let catalog = nodes.catalog()?;
    let wholes = catalog.wholes()?;
    let found = wholes.iter().filter_map(|whole| {
        let name = whole.dataset.strip_suffix(ENDING)?;
        Some((name.to_string(), whole.bytes(), whole.nodes(&nodes).join(" ")))
    });
    let found = found.collect();
    catalog.lost().iter().for_each(|(_, why)| say(&format!("note: {why}")));
    Ok(found)
}

/// Runs a kernel where the data lies.
pub fn run(options: &Everywhere, words: &RunKernel) -> Result<()> {
    let nodes = connect(options)?;
    let job = plain_context(options)?;
    let module = match words.kernel.ends_with(ENDING) {
        true => read_module(Path::new(&words.kernel))?,
        false => pushed_module(&nodes, &job, &words.kernel)?,
    };
    let kernel = WasmKernel::new(module, &words.args);
    let wholes = wholes(&nodes, &words.paths)?;
    let asked = run_options(options);
    let mut gathered = Gathered::default();
    let summary = write(words, |out| {
        let (summary, all) = run_wasm_on_nodes(&nodes, &job, &kernel, &wholes, &asked, out)?;
        gathered = all;
        Ok(summary)
    })?;
    tell_missing(options, &nodes, &gathered);
    tell(options, words, job.report(), &summary, |summary| {
        (with_nodes(summary, &nodes, &gathered), costs(&gathered))
    })
}

/// The module that was pushed to nodes under this name: this machine checks the module that runs there.
fn pushed_module(nodes: &Nodes, job: &Context, name: &str) -> Result<Module> {
    let wholes = nodes.catalog()?.named(&dataset_of(name))?;
    let [whole] = &wholes[..] else {
        bail!(
            "{name}: these nodes have different kernels of this name: push it anew, or run the file itself"
        );
    };
    if whole.bytes() > MODULE_BYTES_MAX {
        bail!("{name}: the dataset of this name is too large for a module");
    }
    let mut bytes = Vec::new();
    run_on_nodes(nodes, job, &Contents, &wholes, &RunOptions::default(), |event: Event<'_, Contents>| {
        if let Some(part) = event.part {
            bytes.extend(part?);
        }
        Ok::<_, ReadError>(Next::Go)
    })?;
    Ok(Module { is_pushed: true, ..Module::new(name, bytes)? })
}

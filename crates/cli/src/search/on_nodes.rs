//! `inshore search --node`: datasets are searched where they lie.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, bail};
use inshore::{
    kernels::Search as Kernel,
    neardata::{Event, nodes::run_on_nodes},
    ops::wholes,
    tables::NewFile,
};
use serde_json::json;

use super::{
    Printer, Whose, is_quiet, kernel, matcher_across_lines, pattern_words, patterns, print, style, unwrapped,
    write_counters, writer,
};
use crate::{
    args::{Everywhere, Search},
    failure::AlreadyTold,
    nodes,
    outcome::say,
    session::plain_context,
};

/// Searches datasets where they lie, and prints what a local search prints.
pub fn search(options: &Everywhere, words: &Search) -> Result<bool> {
    if words.files || words.type_list || words.search_zip {
        bail!(
            "--files, --type-list and --search-zip do not go with --node: datasets are searched as they are"
        );
    }
    let (first, paths) = pattern_words(words);
    let job = plain_context(options)?;
    let patterns = patterns(words, first, job.budget())?;
    if matcher_across_lines(words, &patterns, job.budget())?.is_some() {
        bail!("a match across lines (-U) is not looked for on nodes, which have pieces of files");
    }
    if words.max_count == Some(0) {
        // As it is here: nothing is looked at, and nothing is found.
        return Ok(false);
    }
    if paths.is_empty() {
        bail!("which datasets? name them: store:NAME (`inshore store ls --node ...` lists them)");
    }
    let nodes = nodes::connect(options)?;
    let wholes = wholes(&nodes, &paths)?;
    let failed = AtomicBool::new(false);
    let several = paths
        .len()
        .max(usize::from(wholes.len() > 1 && wholes[0].dataset != wholes[wholes.len() - 1].dataset) * 2);
    let style = style(options, words, several, &[]);
    let kernel = kernel(words, patterns, &style, job.budget())?;
    let titles: Vec<Whose> =
        wholes.iter().map(|whole| Whose { path: PathBuf::from(&whole.title), is_named: true }).collect();
    let file = words.output.as_deref().map(NewFile::create).transpose()?;
    let out = writer(file.as_ref())?;
    let mut printer = Printer::new(style, out);
    let asked = nodes::run_options(options);
    let searched = run_on_nodes(&nodes, &job, &kernel, &wholes, &asked, |event: Event<'_, Kernel>| {
        let whose = &titles[event.source];
        print(&mut printer, whose, event, &failed)
    });
    let has_match = printer.has_match();
    let finished = printer.finish();
    let gathered = match searched {
        Ok(gathered) => gathered,
        Err(error) => return Err(unwrapped(error)),
    };
    finished?;
    drop(printer);
    if let Some(file) = file {
        file.publish()?;
    }
    nodes::tell_missing(options, &nodes, &gathered);
    if options.explain {
        nodes::costs(&gathered).iter().for_each(|(name, told)| say(&format!("{name:<12} {told}")));
    }
    write_counters(
        words,
        job.report(),
        nodes::with_nodes(json!({ "matched": has_match }), &nodes, &gathered),
    )?;
    if failed.load(Ordering::Relaxed) && !(has_match && is_quiet(options, words)) {
        bail!(AlreadyTold);
    }
    Ok(has_match)
}

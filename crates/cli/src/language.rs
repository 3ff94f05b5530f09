//! `inshore language`.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Result, bail};
use inshore::{
    kernels::{
        self, Classifier, Identified, LanguageOfText, LanguagePlace, LanguageSummary, LanguageTable,
        Profiles, Unit, identify, identify_column, identify_on_nodes, table_inputs, text_sources,
    },
    neardata::{Source, nodes::Gathered},
    tables::{Input, TableWriter},
};
use serde_json::json;

use crate::{
    failure::AlreadyTold,
    nodes,
    outcome::{Outcome, say},
    session::Session,
    words::{Identify, Train},
};

pub fn train(session: &Session, words: &Train) -> Result<()> {
    let mut samples: Vec<(String, Vec<Source>)> = Vec::new();
    let mut run = session.start()?;
    for sample in &words.samples {
        let (label, path) = labelled(sample)?;
        samples.push((label, text_sources(&run.job, std::slice::from_ref(&path))?));
    }
    if session.store.list()?.iter().any(|known| known.name == words.name) {
        // Said before the work and not after it.
        run.job.store().create_dataset(&run.job, &words.name, "language")?;
    }
    let profiles = Profiles::train(&run.job, samples, words.grams as usize)?;
    profiles.save(&session.store, &run.job, &words.name)?;
    let labels: Vec<&str> = profiles.labels().collect();
    let sentence = format!("{}: {} languages, {}", words.name, labels.len(), labels.join(" "));
    let grams = labels.iter().map(|label| (label.to_string(), json!(profiles.grams(label))));
    let summary = json!({ "name": words.name, "grams": grams.collect::<serde_json::Map<_, _>>() });
    Ok(Outcome::new("language train", run.finish(), summary, sentence).tell(&session.options)?)
}

/// `LABEL=FILE`, or a file whose name up to the first dot is the label.
fn labelled(sample: &str) -> Result<(String, PathBuf)> {
    if let Some((label, path)) = sample.split_once('=').filter(|(label, _)| !label.contains('/')) {
        return Ok((label.to_string(), PathBuf::from(path)));
    }
    let path = PathBuf::from(sample);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.split('.').next().filter(|label| !label.is_empty()) {
        Some(label) => Ok((label.to_string(), path)),
        None => bail!("{sample}: expected LABEL=FILE, or a file with a name"),
    }
}

pub fn tell(session: &Session, words: &Identify) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    TableWriter::check_path(&words.output)?;
    let mut run = session.start()?;
    let job = &run.job;
    let profiles = Profiles::load(&session.store, job, &words.profiles)?;
    let _filters = job.budget().reserve(Classifier::BYTES, "filters of languages")?;
    let classifier = Classifier::new(&profiles);
    let bytes: Option<u64> = words.inputs.iter().map(|path| Input::new(path).compressed_bytes()).sum();
    job.start_phase("reading", "bytes", bytes.unwrap_or(0));
    let near = match nodes::are_named(&session.options) {
        true if words.column.is_some() => {
            bail!("--column does not go with --node: texts are told as a whole or, with --lines, by lines");
        }
        true => {
            let nodes = nodes::connect(&session.options)?;
            let wholes = nodes::wholes(&nodes, &words.inputs)?;
            Some((nodes, wholes))
        }
        false => None,
    };
    let place = match (&words.column, words.lines) {
        (Some(_), _) => LanguagePlace::Row,
        (None, true) => LanguagePlace::Line,
        (None, false) => LanguagePlace::Whole,
    };
    let mut table = LanguageTable::create(job, &words.output, &classifier, place)?;
    let failures = AtomicU64::new(0);
    let unit = if words.lines { Unit::Line } else { Unit::Source };
    let failed = |error: kernels::Error| {
        failures.fetch_add(1, Ordering::Relaxed);
        say(&format!("inshore: {error}"));
        Ok(())
    };
    let mut gathered = Gathered::default();
    match (&words.column, &near) {
        (None, Some((nodes, wholes))) => {
            let kernel = LanguageOfText::new(&profiles, unit);
            let write = |found: Identified<'_>| table.add_found(&found);
            let asked = nodes::run_options(&session.options);
            gathered = identify_on_nodes(nodes, job, &kernel, wholes, &asked, write, failed)?;
        }
        (Some(column), _) => {
            for input in table_inputs(job, &words.inputs)? {
                identify_column(job, &classifier, &input, column, |row, verdict| {
                    table.add(input.name(), Some(row), verdict)
                })?;
            }
        }
        (None, None) => {
            let sources = text_sources(job, &words.inputs)?;
            let write = |found: Identified<'_>| table.add_found(&found);
            identify(job, &classifier, sources.into_iter(), unit, write, failed)?;
        }
    }
    let LanguageSummary { texts, unknown } = table.finish()?;
    let what = match place {
        LanguagePlace::Row => "rows",
        LanguagePlace::Line => "lines",
        LanguagePlace::Whole => "texts",
    };
    let sentence =
        format!("{texts} {what}, {unknown} of them in none of {} languages", classifier.labels().len());
    let mut summary =
        json!({ "texts": texts, "unknown": unknown, "failed": failures.load(Ordering::Relaxed) });
    if let Some((nodes, _)) = &near {
        nodes::tell_missing(&session.options, &gathered);
        summary = nodes::with_nodes(summary, nodes, &gathered);
    }
    let outcome = Outcome::new("language identify", run.finish(), summary, sentence);
    let how = nodes::costs(&gathered);
    Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?;
    if failures.load(Ordering::Relaxed) > 0 {
        bail!(AlreadyTold);
    }
    Ok(())
}

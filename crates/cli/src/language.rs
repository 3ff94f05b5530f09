//! `inshore language`.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Result, bail};
#[cfg(feature = "nodes")]
use inshore::kernels::{LanguageOfText, identify_on_nodes};
use inshore::{
    kernels::{
        self, Classifier, Identified, LanguagePlace, LanguageSummary, LanguageTable, Profiles, Unit,
        identify, identify_column, table_inputs, text_sources,
    },
    neardata::Source,
    store::Job,
    tables::{Input, TableWriter},
};
use serde_json::{Value, json};

#[cfg(feature = "nodes")]
use crate::nodes;

use crate::{
    args::{Identify, Train},
    failure::AlreadyTold,
    outcome::{Outcome, say},
    session::Session,
};

pub fn train(session: &Session, words: &Train) -> Result<()> {
    let named = words.samples.iter().map(|sample| labelled(sample)).collect::<Result<Vec<_>>>()?;
    let mut samples: Vec<(String, Vec<Source>)> = Vec::new();
    let mut run = session.start_on(named.iter().map(|(_, path)| path))?;
    for (label, path) in named {
        samples.push((label, text_sources(Some(&run.job), std::slice::from_ref(&path))?));
    }
    if session.store()?.list()?.iter().any(|known| known.name == words.name) {
        // Said before the work and not after it.
        run.job.store().create_dataset(&run.job, &words.name, "language")?;
    }
    let profiles = Profiles::train(&run.job, samples, words.grams as usize)?;
    profiles.save(session.store()?, &run.job, &words.name)?;
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
    identify_by(session, words, |asked, table| {
        match &words.column {
            Some(column) => {
                for input in table_inputs(Some(asked.job), &words.inputs)? {
                    identify_column(asked.job, asked.classifier, &input, column, |row, verdict| {
                        table.add(input.name(), Some(row), verdict)
                    })?;
                }
            }
            None => {
                let sources = text_sources(Some(asked.job), &words.inputs)?.into_iter();
                let write = |found: Identified<'_>| table.add_found(&found);
                identify(asked.job, asked.classifier, sources, asked.unit, write, asked.failed)?;
            }
        }
        Ok(|summary| (summary, Vec::new()))
    })
}

/// Tells languages of datasets on nodes.
#[cfg(feature = "nodes")]
pub fn tell_on_nodes(session: &Session, words: &Identify) -> Result<()> {
    if words.column.is_some() {
        bail!("--column does not go with --node: texts are told as a whole or, with --lines, by lines");
    }
    let nodes = &nodes::connect(&session.options)?;
    let wholes = nodes::wholes(nodes, &words.inputs)?;
    identify_by(session, words, |asked, table| {
        let kernel = LanguageOfText::new(asked.profiles, asked.unit);
        let write = |found: Identified<'_>| table.add_found(&found);
        let options = nodes::run_options(&session.options);
        let gathered = identify_on_nodes(nodes, asked.job, &kernel, &wholes, &options, write, asked.failed)?;
        Ok(move |summary| {
            nodes::tell_missing(&session.options, nodes, &gathered);
            (nodes::with_nodes(summary, nodes, &gathered), nodes::costs(&gathered))
        })
    })
}

/// How languages are told, wherever that is done.
struct Asked<'a> {
    job: &'a Job,
    #[cfg_attr(not(feature = "nodes"), expect(dead_code, reason = "only nodes are sent profiles"))]
    profiles: &'a Profiles,
    classifier: &'a Classifier,
    unit: Unit,
    /// Prints the error of a text; the others go on.
    failed: &'a (dyn Fn(kernels::Error) -> kernels::Result<()> + Sync),
}

/// Tells languages by `work`, which fills the table and returns what completes the summary.
fn identify_by<T>(
    session: &Session,
    words: &Identify,
    work: impl FnOnce(&Asked<'_>, &mut LanguageTable<'_>) -> Result<T>,
) -> Result<()>
where
    T: FnOnce(Value) -> (Value, Vec<(&'static str, String)>),
{
    session.check_stdout_is_free(&words.output)?;
    TableWriter::check_path(&words.output)?;
    let mut run = session.start()?;
    let job = &run.job;
    let profiles = &Profiles::load(session.store()?, job, &words.profiles)?;
    let _filters = job.budget().reserve(Classifier::BYTES, "filters of languages")?;
    let classifier = &Classifier::new(profiles);
    let bytes: Option<u64> = words.inputs.iter().map(|path| Input::new(path).compressed_bytes()).sum();
    job.start_phase("reading", "bytes", bytes.unwrap_or(0));
    let place = match (&words.column, words.lines) {
        (Some(_), _) => LanguagePlace::Row,
        (None, true) => LanguagePlace::Line,
        (None, false) => LanguagePlace::Whole,
    };
    let mut table = LanguageTable::create(job, &words.output, classifier, place)?;
    let failures = AtomicU64::new(0);
    let failed = &|error: kernels::Error| {
        failures.fetch_add(1, Ordering::Relaxed);
        say(&format!("inshore: {error}"));
        Ok(())
    };
    let unit = if words.lines { Unit::Line } else { Unit::Source };
    let complete = work(&Asked { job, profiles, classifier, unit, failed }, &mut table)?;
    let LanguageSummary { texts, unknown } = table.finish()?;
    let what = match place {
        LanguagePlace::Row => "rows",
        LanguagePlace::Line => "lines",
        LanguagePlace::Whole => "texts",
    };
    let sentence =
        format!("{texts} {what}, {unknown} of them in none of {} languages", classifier.labels().len());
    let failures = failures.load(Ordering::Relaxed);
    let (summary, how) = complete(json!({ "texts": texts, "unknown": unknown, "failed": failures }));
    let outcome = Outcome::new("language identify", run.finish(), summary, sentence);
    Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?;
    if failures > 0 {
        bail!(AlreadyTold);
    }
    Ok(())
}

//! `inshore language`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use inshore::{
    kernels::{LanguagePlace, Profiles, text_sources},
    neardata::Source,
    ops::{
        Beside, Request,
        verbs::{IdentifyLanguage, LanguageAnswer},
    },
};
use serde_json::json;

use crate::{
    args::{Everywhere, Identify, Train},
    operations::{self, Opens},
    outcome::Outcome,
    session::{Session, check_stdout_is_free},
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

pub fn identify(options: Everywhere, words: &Identify) -> Result<()> {
    check_stdout_is_free(&options, &words.output)?;
    let Identify { profiles, lines, column, .. } = words;
    let operation = IdentifyLanguage { profiles: profiles.clone(), lines: *lines, column: column.clone() };
    let what = match operation.place() {
        LanguagePlace::Row => "rows",
        LanguagePlace::Line => "lines",
        LanguagePlace::Whole => "texts",
    };
    let request = Request::new(operation, &words.inputs).to(&words.output);
    operations::run_on(options, Opens::Existing, &request, Beside::default())?.tell(|report, done| {
        let LanguageAnswer { summary, languages, .. } = done.answer;
        let (texts, unknown) = (summary.texts, summary.unknown);
        let sentence = format!("{texts} {what}, {unknown} of them in none of {languages} languages");
        Outcome { sentence_aside: true, ..Outcome::new("language identify", report, json!(done), sentence) }
    })
}

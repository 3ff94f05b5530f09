//! `inshore language`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use inshore::{
    kernels::LanguagePlace,
    ops::{
        Attachments, Request,
        verbs::{IdentifyLanguage, LanguageAnswer, TrainAnswer, TrainLanguage},
    },
};
use serde_json::json;

use crate::{
    args::{GlobalOptions, Identify, Train},
    job::{
        operations::{self, StoreAccess},
        session::check_stdout_is_free,
    },
    report::outcome::Outcome,
};

pub fn train(options: GlobalOptions, words: &Train) -> Result<()> {
    let named = words.samples.iter().map(|sample| labelled(sample)).collect::<Result<Vec<_>>>()?;
    let (labels, paths): (Vec<String>, Vec<PathBuf>) = named.into_iter().unzip();
    let operation = TrainLanguage { name: words.name.clone(), labels, grams: words.grams as usize };
    operations::run(options, &Request::new(operation, paths))?.tell(|report, done| {
        let TrainAnswer { name, grams } = &done.answer;
        let labels: Vec<&str> = grams.keys().map(String::as_str).collect();
        let sentence = format!("{name}: {} languages, {}", labels.len(), labels.join(" "));
        Outcome::new("language train", report, json!(done), sentence)
    })
}

/// Parses `LABEL=FILE` or `FILE`. In the second form, the label is the file's name up to the first dot.
fn labelled(sample: &str) -> Result<(String, PathBuf)> {
    if let Some((label, path)) = sample.split_once('=').filter(|(label, _)| !label.contains('/')) {
        return Ok((label.to_string(), PathBuf::from(path)));
    }
    let path = PathBuf::from(sample);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.strip_prefix("store:").unwrap_or(name);
    match name.split('.').next().filter(|label| !label.is_empty()) {
        Some(label) => Ok((label.to_string(), path)),
        None => bail!("{sample}: expected LABEL=FILE, or a file with a name"),
    }
}

pub fn identify(options: GlobalOptions, words: &Identify) -> Result<()> {
    check_stdout_is_free(&options, &words.output)?;
    let Identify { profiles, lines, column, .. } = words;
    let operation = IdentifyLanguage { profiles: profiles.clone(), lines: *lines, column: column.clone() };
    let what = match operation.place() {
        LanguagePlace::Row => "rows",
        LanguagePlace::Line => "lines",
        LanguagePlace::Whole => "texts",
    };
    let request = Request::new(operation, &words.inputs).to(&words.output);
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let LanguageAnswer { summary, languages, .. } = done.answer;
            let (texts, unknown) = (summary.texts, summary.unknown);
            let sentence =
                format!("{texts} {what} identified among {languages} languages, {unknown} without a match");
            Outcome {
                sentence_aside: true,
                ..Outcome::new("language identify", report, json!(done), sentence)
            }
        },
    )
}

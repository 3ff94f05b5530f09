//! `inshore count words`.

use std::{
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Result, bail};
use inshore::{
    kernels::{WordOptions, WordSummary, count_words, text_sources, word_schema},
    store::{Report, format_bytes},
    tables::{Input, TableWriter},
};
use serde_json::{Value, json};

use crate::{
    args::{CountWords, Everywhere},
    outcome::{Outcome, place},
    session::Session,
    table::{self, Align},
    terminal,
};

pub fn words(session: &Session, words: &CountWords) -> Result<()> {
    let options = word_options(&session.options, words)?;
    let mut run = session.start_on(&words.inputs)?;
    let job = &run.job;
    let bytes: Option<u64> = words.inputs.iter().map(|path| Input::new(path).compressed_bytes()).sum();
    job.start_phase("counting", "bytes", bytes.unwrap_or(0));
    let mut writer = match &words.output {
        Some(path) => Some(TableWriter::create(path, word_schema(), job.budget())?),
        None => None,
    };
    let inputs = text_sources(Some(job), &words.inputs)?;
    let summary = count_words(job, inputs.into_iter(), &options, |batch| {
        writer.as_mut().map_or(Ok(()), |writer| writer.write(&batch).map_err(Into::into))
    })?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    tell_words(&session.options, words, run.finish(), summary, |summary| json!(summary), Vec::new())
}

/// What is counted and given, and whether that can be.
pub fn word_options(options: &Everywhere, words: &CountWords) -> Result<WordOptions> {
    if let Some(path) = &words.output {
        if path == Path::new("-") && words.top.is_some() {
            bail!("-o - and --top both want standard output: give one of them");
        }
        if path == Path::new("-") && options.json {
            bail!("-o - and --json both want standard output: give -o FILE");
        }
        TableWriter::check_path(path)?;
    }
    let top = words.top.or(words.output.is_none().then_some(20)).unwrap_or(0) as usize;
    let CountWords { split, ignore_case, min_count, .. } = *words;
    Ok(WordOptions { split, ignore_case, min_count, top, table_bytes: None })
}

pub fn tell_words(
    options: &Everywhere,
    words: &CountWords,
    report: Report,
    summary: WordSummary,
    told: impl FnOnce(&WordSummary) -> Value,
    costs: Vec<(&'static str, String)>,
) -> Result<()> {
    if !summary.top.is_empty() && !options.json {
        let rows = summary.top.iter().map(|(word, count)| vec![word.clone(), count.to_string()]);
        let header = [("word", Align::Left), ("count", Align::Right)];
        let mut out = BufWriter::new(terminal::stdout());
        table::print(&mut out, &header, &rows.collect::<Vec<_>>())?;
        out.flush()?;
    }
    let place = words
        .output
        .as_deref()
        .map_or(String::new(), |path| format!(", {} written{}", summary.written, place(path)));
    let sentence = format!("{} words, {} different{place}", summary.words, summary.distinct);
    let mut how = vec![
        ("tables full", summary.spills.to_string()),
        ("runs", format!("{}, {}", summary.runs, format_bytes(summary.bytes_spilled))),
    ];
    how.extend(costs);
    let outcome = Outcome::new("count words", report, told(&summary), sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(options)?)
}

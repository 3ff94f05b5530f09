//! `inshore count`.

use std::{fmt::Write, path::Path};

use anyhow::{Context, Result};
use inshore::{
    store::format_bytes,
    tables::{self, Aggregate, Input, KmerOptions, KmerSummary, ReduceOptions},
};

use crate::{
    outcome::Outcome,
    session::Session,
    sorting::{estimates, kept},
    words::{Kmers, Values},
};

pub fn kmers(session: &Session, words: &Kmers) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs: Vec<Input> = words.inputs.iter().map(Input::new).collect();
    let Kmers { k, min_count, codes, .. } = *words;
    let options = KmerOptions { k, canonical: !words.forward, min_count, codes, resume: words.resume };
    let mut run = session.start()?;
    let summary = tables::count_kmers(&run.job, &inputs, &words.output, &options);
    let summary = summary.inspect_err(|_| run.tell_kept(session))?;
    if let Some(path) = &words.histogram {
        std::fs::write(path, spectrum(&summary))
            .with_context(|| format!("{}: cannot write it", path.display()))?;
    }
    let KmerSummary { kmers, distinct, written, sequences, .. } = summary;
    let place = place(&words.output);
    let sentence =
        format!("{kmers} {k}-mers of {sequences} sequences, {distinct} different, {written} written{place}");
    let sentence = sentence + &kept(summary.kmers_kept, &format!("{k}-mers"));
    let mut how = vec![("runs", format!("{}, {}", summary.runs, format_bytes(summary.bytes_spilled)))];
    how.extend(summary.choice.as_ref().map(estimates).unwrap_or_default());
    let outcome = Outcome::new("count kmers", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?)
}

fn place(output: &Path) -> String {
    if output == Path::new("-") { String::new() } else { format!(" to {}", output.display()) }
}

fn spectrum(summary: &KmerSummary) -> String {
    let mut text = "count,kmers\n".to_string();
    for (number, kmers) in summary.histogram.iter().enumerate() {
        let _ = writeln!(text, "{},{kmers}", number + 1);
    }
    text
}

pub fn values(session: &Session, words: &Values) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs: Vec<Input> = words.inputs.iter().map(Input::new).collect();
    let (by, as_text) = (words.column.clone(), words.text.clone());
    let (aggregates, resume) = (vec![Aggregate::count()], words.resume);
    let options = ReduceOptions { by, aggregates, as_text, general: false, resume };
    let mut run = session.start()?;
    let summary = tables::reduce(&run.job, &inputs, &words.output, &options);
    let summary = summary.inspect_err(|_| run.tell_kept(session))?;
    let place = place(&words.output);
    let sentence = format!("{} different values in {} rows written{place}", summary.groups, summary.rows_in);
    let sentence = sentence + &kept(summary.rows_kept, "rows");
    let outcome = Outcome::new("count values", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, ..outcome }.tell(&session.options)?)
}

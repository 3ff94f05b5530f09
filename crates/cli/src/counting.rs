//! `inshore count kmers` and `inshore count values`.

use std::fmt::Write as _;

use anyhow::Result;
use inshore::{
    store::{Report, format_bytes},
    tables::{self, Aggregate, Input, KmerOptions, KmerSummary, NewFile, ReduceOptions, TableWriter},
};

use serde_json::{Value, json};

use crate::{
    args::{Everywhere, Header, Kmers, Values},
    outcome::{Outcome, counted, place},
    session::Session,
    sorting::{estimates, kept},
};

pub fn kmers(session: &Session, words: &Kmers) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs: Vec<Input> = words.inputs.iter().map(Input::new).collect();
    let options = kmer_options(words);
    options.check()?;
    TableWriter::check_path(&words.output)?;
    let mut run = session.start_on(&words.inputs)?;
    let summary = tables::count_kmers(&run.job, &inputs, &words.output, &options);
    let summary = summary.inspect_err(|_| run.tell_kept(session))?;
    let how = summary.choice.as_ref().map(estimates).unwrap_or_default();
    tell_kmers(&session.options, words, run.finish(), summary, |summary| json!(summary), how)
}

pub fn kmer_options(words: &Kmers) -> KmerOptions {
    let Kmers { k, min_count, codes, resume, .. } = *words;
    KmerOptions { k, canonical: !words.forward, min_count, codes, resume }
}

pub fn tell_kmers(
    options: &Everywhere,
    words: &Kmers,
    report: Report,
    summary: KmerSummary,
    told: impl FnOnce(&KmerSummary) -> Value,
    costs: Vec<(&'static str, String)>,
) -> Result<()> {
    if let Some(path) = &words.histogram {
        NewFile::write_whole(path, spectrum(&summary).as_bytes())?;
    }
    let (k, place) = (words.k, place(&words.output));
    let KmerSummary { kmers, distinct, written, sequences, .. } = summary;
    let sequences = counted(sequences, "sequence");
    let sentence = format!("{kmers} {k}-mers of {sequences}, {distinct} different, {written} written{place}");
    let sentence = sentence + &kept(summary.kmers_kept, &format!("{k}-mers"));
    let mut how = vec![("runs", format!("{}, {}", summary.runs, format_bytes(summary.bytes_spilled)))];
    how.extend(costs);
    let outcome = Outcome::new("count kmers", report, told(&summary), sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(options)?)
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
    let inputs = Header::inputs(words.header, &words.inputs);
    let (by, as_text) = (words.column.clone(), words.text.clone());
    let (aggregates, resume) = (vec![Aggregate::count()], words.resume);
    let options = ReduceOptions { by, aggregates, as_text, general: false, resume };
    TableWriter::check_path(&words.output)?;
    let mut run = session.start_on(&words.inputs)?;
    let summary = tables::reduce(&run.job, &inputs, &words.output, &options);
    let summary = summary.inspect_err(|_| run.tell_kept(session))?;
    let place = place(&words.output);
    let sentence = format!(
        "{} in {} written{place}",
        counted(summary.groups, "different value"),
        counted(summary.rows_in, "row")
    );
    let sentence = sentence + &kept(summary.rows_kept, "rows");
    let outcome = Outcome::new("count values", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, ..outcome }.tell(&session.options)?)
}

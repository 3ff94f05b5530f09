//! `inshore count`.

use std::{
    fmt::Write as _,
    io::{self, BufWriter, Write as _},
    path::Path,
};

use anyhow::{Context, Result, bail};
use inshore::{
    kernels::{WordOptions, WordSummary, count_words, count_words_on_nodes, text_sources, word_schema},
    kmers::count_kmers_on_nodes,
    store::{Report, format_bytes},
    tables::{self, Aggregate, Input, KmerOptions, KmerSummary, ReduceOptions, TableWriter},
};

use serde_json::{Value, json};

use crate::{
    nodes,
    outcome::Outcome,
    session::{self, Session, check_stdout_is_free},
    sorting::{estimates, group_on_nodes, kept},
    table::{self, Align},
    words::{CountWords, Everywhere, Kmers, Values},
};

pub fn kmers(session: &Session, words: &Kmers) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs: Vec<Input> = words.inputs.iter().map(Input::new).collect();
    let mut run = session.start()?;
    let summary = tables::count_kmers(&run.job, &inputs, &words.output, &kmer_options(words));
    let summary = summary.inspect_err(|_| run.tell_kept(session))?;
    let how = summary.choice.as_ref().map(estimates).unwrap_or_default();
    tell_kmers(&session.options, words, run.finish(), summary, |summary| json!(summary), how)
}

/// The same on nodes.
pub fn kmers_on_nodes(options: Everywhere, words: &Kmers) -> Result<()> {
    if words.resume {
        bail!("--resume does not go with --node");
    }
    check_stdout_is_free(&options, &words.output)?;
    let nodes = nodes::connect(&options)?;
    let wholes = nodes::wholes(&nodes, &words.inputs)?;
    let asked = nodes::run_options(&options);
    let (mut run, options) = session::run_beside_nodes(options, &asked)?;
    let counted =
        count_kmers_on_nodes(&nodes, &run.job, &wholes, &words.output, &kmer_options(words), &asked);
    let (summary, gathered) = counted?;
    nodes::tell_missing(&options, &gathered);
    let told = |summary: &KmerSummary| nodes::with_nodes(json!(summary), &nodes, &gathered);
    tell_kmers(&options, words, run.finish(), summary, told, nodes::costs(&gathered))
}

fn kmer_options(words: &Kmers) -> KmerOptions {
    let Kmers { k, min_count, codes, resume, .. } = *words;
    KmerOptions { k, canonical: !words.forward, min_count, codes, resume }
}

fn tell_kmers(
    options: &Everywhere,
    words: &Kmers,
    report: Report,
    summary: KmerSummary,
    told: impl FnOnce(&KmerSummary) -> Value,
    costs: Vec<(&'static str, String)>,
) -> Result<()> {
    if let Some(path) = &words.histogram {
        std::fs::write(path, spectrum(&summary))
            .with_context(|| format!("{}: cannot write it", path.display()))?;
    }
    let (k, place) = (words.k, place(&words.output));
    let KmerSummary { kmers, distinct, written, sequences, .. } = summary;
    let sentence =
        format!("{kmers} {k}-mers of {sequences} sequences, {distinct} different, {written} written{place}");
    let sentence = sentence + &kept(summary.kmers_kept, &format!("{k}-mers"));
    let mut how = vec![("runs", format!("{}, {}", summary.runs, format_bytes(summary.bytes_spilled)))];
    how.extend(costs);
    let outcome = Outcome::new("count kmers", report, told(&summary), sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(options)?)
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

/// The same on nodes.
pub fn values_on_nodes(session: &Session, words: &Values) -> Result<()> {
    if words.resume {
        bail!("--resume does not go with --node");
    }
    let count = ["arrow_cast(count(*), 'UInt64') AS \"count\"".to_string()];
    let (inputs, by) = ((&words.inputs[..], &words.text[..]), (&words.column[..], &count[..]));
    group_on_nodes(session, "count values", inputs, by, &words.output)
}

pub fn words(session: &Session, words: &CountWords) -> Result<()> {
    let options = word_options(&session.options, words)?;
    let mut run = session.start()?;
    let job = &run.job;
    let bytes: Option<u64> = words.inputs.iter().map(|path| Input::new(path).compressed_bytes()).sum();
    job.start_phase("counting", "bytes", bytes.unwrap_or(0));
    let mut writer = match &words.output {
        Some(path) => Some(TableWriter::create(path, word_schema(), job.budget())?),
        None => None,
    };
    let inputs = text_sources(job, &words.inputs)?;
    let summary = count_words(job, inputs.into_iter(), &options, |batch| {
        writer.as_mut().map_or(Ok(()), |writer| writer.write(&batch).map_err(Into::into))
    })?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    tell_words(&session.options, words, run.finish(), summary, |summary| json!(summary), Vec::new())
}

/// The same on nodes.
pub fn words_on_nodes(options: Everywhere, words: &CountWords) -> Result<()> {
    let counted = word_options(&options, words)?;
    let nodes = nodes::connect(&options)?;
    let wholes = nodes::wholes(&nodes, &words.inputs)?;
    let asked = nodes::run_options(&options);
    let (mut run, options) = session::run_beside_nodes(options, &asked)?;
    run.job.start_phase("counting", "words", 0);
    let mut writer = match &words.output {
        Some(path) => Some(TableWriter::create(path, word_schema(), run.job.budget())?),
        None => None,
    };
    let (summary, gathered) = count_words_on_nodes(&nodes, &run.job, &wholes, &counted, &asked, |batch| {
        run.job.progress().add(batch.num_rows() as u64);
        writer.as_mut().map_or(Ok(()), |writer| writer.write(&batch).map_err(Into::into))
    })?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    nodes::tell_missing(&options, &gathered);
    let costs = nodes::costs(&gathered);
    let told = |summary: &WordSummary| nodes::with_nodes(json!(summary), &nodes, &gathered);
    tell_words(&options, words, run.finish(), summary, told, costs)
}

/// What is counted and given, and whether that can be.
fn word_options(options: &Everywhere, words: &CountWords) -> Result<WordOptions> {
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

fn tell_words(
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
        let mut out = BufWriter::new(io::stdout().lock());
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

//! `inshore sort` and `inshore reduce`.

use std::{ops::Range, path::Path};

use anyhow::{Result, bail};
use inshore::{
    sortreduce::{Choice, Estimate, rows::FixedRows},
    store::format_bytes,
    tables::{
        self, Aggregate, Input, NewFile, ReduceOptions, ReduceSummary, SortKey, SortOptions, SortSummary,
        TableWriter, sort_lines, sort_records, sort_table,
    },
};

use crate::{
    args::{Header, KeyBytes, Reduce, Sort},
    outcome::{Outcome, counted},
    session::Session,
};

pub fn sort(session: &Session, words: &Sort) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs = Header::inputs(words.header, &words.inputs);
    let options = SortOptions { descending: words.reverse, unique: words.unique, resume: words.resume };
    let record = words.record.map(|bytes| record(bytes, words.key_bytes)).transpose()?;
    let shape = record.map(|(bytes, key)| FixedRows::new(bytes, key));
    let keys: Vec<SortKey> = words.key.iter().map(|key| key.0.clone()).collect();
    if keys.is_empty()
        && shape.is_none()
        && let Some(table) = inputs.iter().find(|input| is_binary_table(input))
    {
        bail!("{}: a table is sorted by its columns: name them with --key", table.name());
    }
    NewFile::check(&words.output)?;
    let mut run = session.start_on(&words.inputs)?;
    let (job, output) = (&run.job, &words.output);
    let (sorted, what) = match shape {
        Some(shape) => (sort_records(job, &inputs, output, shape, options), "records"),
        None if keys.is_empty() => (sort_lines(job, &inputs, output, options), "lines"),
        None => (sort_table(job, &inputs, output, &keys, &words.text, options), "rows"),
    };
    let summary = sorted.inspect_err(|_| run.tell_kept(session))?;
    let sentence = sentence(&summary, what, &words.output);
    let outcome = Outcome::new("sort", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how: how(&summary), ..outcome }.tell(&session.options)?)
}

/// Whether lines of it mean nothing.
fn is_binary_table(input: &Input) -> bool {
    matches!(&*input.extension(), "parquet" | "arrow")
}

/// The bytes of a record, and which of them are the key.
pub fn record(record_bytes: u64, key: Option<KeyBytes>) -> Result<(usize, Range<usize>)> {
    let bytes = usize::try_from(record_bytes)?;
    let KeyBytes { start, end } = key.unwrap_or(KeyBytes { start: 0, end: bytes });
    if end > bytes {
        bail!("--key-bytes {start}..{end} reaches beyond the {bytes} bytes of a record");
    }
    Ok((bytes, start..end))
}

pub fn sentence(summary: &SortSummary, what: &str, output: &Path) -> String {
    let (rows, bytes) = (counted(summary.rows, what.trim_end_matches('s')), format_bytes(summary.bytes));
    let sentence = match output == Path::new("-") {
        true => rows,
        false => format!("{rows}, {bytes}, written to {}", output.display()),
    };
    sentence + &kept(summary.stats.rows_kept, what)
}

/// How much an interrupted job had done.
pub fn kept(count: u64, what: &str) -> String {
    if count > 0 { format!("; {count} {what} were sorted before") } else { String::new() }
}

pub fn how(summary: &SortSummary) -> Vec<(&'static str, String)> {
    let stats = &summary.stats;
    if stats.runs == 0 {
        return vec![("sorted in", "memory".to_string())];
    }
    let expected = summary.scratch_bytes_expected.map(|bytes| format!(" ({} foreseen)", format_bytes(bytes)));
    vec![
        ("sorted in", format!("{} runs, merged {} at a time at most", stats.runs, stats.fan_in)),
        ("scratch", format_bytes(stats.bytes_spilled) + &expected.unwrap_or_default()),
        ("merge passes", stats.merge_passes.to_string()),
    ]
}

pub fn reduce(session: &Session, words: &Reduce) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs = Header::inputs(words.header, &words.inputs);
    let options = ReduceOptions {
        by: words.by.clone(),
        aggregates: aggregates(words),
        as_text: words.text.clone(),
        general: false,
        resume: words.resume,
    };
    if options.by.is_empty() && options.aggregates.is_empty() {
        bail!(
            "nothing is asked for: name columns with --by, or what to compute (--count, --sum COLUMN, ...)"
        );
    }
    TableWriter::check_path(&words.output)?;
    let mut run = session.start_on(&words.inputs)?;
    let summary = tables::reduce(&run.job, &inputs, &words.output, &options);
    let summary = summary.inspect_err(|_| run.tell_kept(session))?;
    let groups = format!("{} of {}", counted(summary.groups, "group"), counted(summary.rows_in, "row"));
    let sentence = match words.output == Path::new("-") {
        true => groups,
        false => format!("{groups} written to {}", words.output.display()),
    };
    let sentence = sentence + &kept(summary.rows_kept, "rows");
    let how = how_reduced(&summary);
    let outcome = Outcome::new("reduce", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?)
}

/// In the order in which the help names them.
fn aggregates(words: &Reduce) -> Vec<Aggregate> {
    let count = words.count.iter().map(|column| match &**column {
        "" => Aggregate::count(),
        column => Aggregate::count_of(column),
    });
    let all = |columns: &[String], make: fn(String) -> Aggregate| {
        columns.iter().cloned().map(make).collect::<Vec<_>>()
    };
    count
        .chain(all(&words.sum, Aggregate::sum))
        .chain(all(&words.mean, Aggregate::mean))
        .chain(all(&words.min, Aggregate::min))
        .chain(all(&words.max, Aggregate::max))
        .chain(all(&words.first, Aggregate::first))
        .chain(all(&words.last, Aggregate::last))
        .collect()
}

fn how_reduced(summary: &ReduceSummary) -> Vec<(&'static str, String)> {
    vec![
        ("grouped as", summary.way.to_string()),
        ("strategy", summary.strategy.clone()),
        ("runs", format!("{}, {}", summary.runs, format_bytes(summary.bytes_spilled))),
    ]
    .into_iter()
    .chain(summary.choice.as_ref().map(estimates).unwrap_or_default())
    .collect()
}

/// What each strategy was estimated to cost, for `--explain`.
pub fn estimates(choice: &Choice) -> Vec<(&'static str, String)> {
    let line = |estimate: &Estimate| {
        let Estimate { strategy, seconds, cpu_seconds, drive_seconds, .. } = estimate;
        format!("{strategy}: {seconds:.2} s (cores {cpu_seconds:.2} s, drive {drive_seconds:.2} s)")
    };
    let drive = if choice.is_drive_measured { "measured" } else { "assumed" };
    let first = ("chosen for", format!("{} records of {} keys, drive {drive}", choice.records, choice.keys));
    let all = choice.estimates.iter().map(|estimate| ("estimate", line(estimate)));
    std::iter::once(first).chain(all).collect()
}

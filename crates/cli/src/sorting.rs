//! `inshore sort` and `inshore reduce`.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use inshore::{
    sorting::{self, SortBy},
    sortreduce::{Choice, Estimate, rows::FixedRows},
    sql::{Query, Tables},
    store::format_bytes,
    tables::{
        self, Aggregate, Input, ReduceOptions, ReduceSummary, SortKey, SortOptions, SortSummary, TableWriter,
        sort_lines, sort_records, sort_table,
    },
};
use serde_json::json;

use crate::{
    nodes,
    outcome::Outcome,
    session::{self, Session, check_stdout_is_free},
    sql::Near,
    words::{Everywhere, KeyBytes, Reduce, Sort},
};

pub fn sort(session: &Session, words: &Sort) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs: Vec<Input> = words.inputs.iter().map(Input::new).collect();
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
    let mut run = session.start()?;
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

/// The same on nodes. What this machine sorts of it is kept in its store.
pub fn sort_on_nodes(options: Everywhere, words: &Sort) -> Result<()> {
    if words.resume {
        bail!("--resume does not go with --node: nodes keep no runs");
    }
    check_stdout_is_free(&options, &words.output)?;
    let keys: Vec<SortKey> = words.key.iter().map(|key| key.0.clone()).collect();
    let (by, what) = match words.record {
        Some(bytes) => {
            let (bytes, key) = record(bytes, words.key_bytes)?;
            (SortBy::Records(bytes, key), "records")
        }
        None if keys.is_empty() => (SortBy::Lines, "lines"),
        None => (SortBy::Columns { keys, as_text: words.text.clone() }, "rows"),
    };
    let nodes = nodes::connect(&options)?;
    let wholes = nodes::wholes(&nodes, &words.inputs)?;
    if matches!(by, SortBy::Lines)
        && let Some(table) = wholes.iter().find(|whole| sorting::is_binary_table(whole))
    {
        bail!("{}: a table is sorted by its columns: name them with --key", table.title);
    }
    let asked = nodes::run_options(&options);
    let (mut run, options) = session::run_beside_nodes(options, &asked)?;
    let how_to = SortOptions { descending: words.reverse, unique: words.unique, resume: false };
    let sorted = sorting::sort_on_nodes(&nodes, &run.job, wholes, &by, how_to, &words.output, &asked);
    let (summary, gathered) = sorted?;
    nodes::tell_missing(&options, &gathered);
    let mut how = how(&summary);
    how.extend(nodes::costs(&gathered));
    let sentence = sentence(&summary, what, &words.output);
    let told = nodes::with_nodes(json!(summary), &nodes, &gathered);
    let outcome = Outcome::new("sort", run.finish(), told, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&options)?)
}

/// Whether lines of it mean nothing.
fn is_binary_table(input: &Input) -> bool {
    matches!(&*input.extension(), "parquet" | "arrow")
}

/// The bytes of a record, and which of them are the key.
fn record(record_bytes: u64, key: Option<KeyBytes>) -> Result<(usize, Range<usize>)> {
    let bytes = usize::try_from(record_bytes)?;
    let KeyBytes { start, end } = key.unwrap_or(KeyBytes { start: 0, end: bytes });
    if end > bytes {
        bail!("--key-bytes {start}..{end} reaches beyond the {bytes} bytes of a record");
    }
    Ok((bytes, start..end))
}

fn sentence(summary: &SortSummary, what: &str, output: &Path) -> String {
    let (rows, bytes) = (summary.rows, format_bytes(summary.bytes));
    let sentence = match output == Path::new("-") {
        true => format!("{rows} {what}"),
        false => format!("{rows} {what}, {bytes}, written to {}", output.display()),
    };
    sentence + &kept(summary.stats.rows_kept, what)
}

/// How much an interrupted job had done.
pub fn kept(count: u64, what: &str) -> String {
    if count > 0 { format!("; {count} {what} were sorted before") } else { String::new() }
}

fn how(summary: &SortSummary) -> Vec<(&'static str, String)> {
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
    let inputs: Vec<Input> = words.inputs.iter().map(Input::new).collect();
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
    let mut run = session.start()?;
    let summary = tables::reduce(&run.job, &inputs, &words.output, &options);
    let summary = summary.inspect_err(|_| run.tell_kept(session))?;
    let sentence = match words.output == Path::new("-") {
        true => format!("{} groups of {} rows", summary.groups, summary.rows_in),
        false => {
            let (groups, rows) = (summary.groups, summary.rows_in);
            format!("{groups} groups of {rows} rows written to {}", words.output.display())
        }
    };
    let sentence = sentence + &kept(summary.rows_kept, "rows");
    let how = how_reduced(&summary);
    let outcome = Outcome::new("reduce", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?)
}

/// The same on nodes: the first half of grouping runs where the rows lie.
pub fn reduce_on_nodes(session: &Session, words: &Reduce) -> Result<()> {
    if words.resume || !words.first.is_empty() || !words.last.is_empty() {
        bail!("--first, --last and --resume do not go with --node: nodes answer in no order");
    }
    let mut columns = Vec::new();
    let named = |function: &str, column: &str| name(&format!("{function}_{column}"));
    columns.extend(words.count.iter().map(|column| match &**column {
        "" => "arrow_cast(count(*), 'UInt64') AS \"count\"".to_string(),
        column => format!("arrow_cast(count({}), 'UInt64') AS {}", name(column), named("count", column)),
    }));
    columns
        .extend(words.sum.iter().map(|column| format!("sum({}) AS {}", name(column), named("sum", column))));
    columns.extend(
        words
            .mean
            .iter()
            .map(|column| format!("avg(CAST({} AS DOUBLE)) AS {}", name(column), named("mean", column))),
    );
    columns
        .extend(words.min.iter().map(|column| format!("min({}) AS {}", name(column), named("min", column))));
    columns
        .extend(words.max.iter().map(|column| format!("max({}) AS {}", name(column), named("max", column))));
    if words.by.is_empty() && columns.is_empty() {
        bail!(
            "nothing is asked for: name columns with --by, or what to compute (--count, --sum COLUMN, ...)"
        );
    }
    group_on_nodes(session, "reduce", (&words.inputs, &words.text), (&words.by, &columns), &words.output)
}

/// Groups the rows of a table on nodes by columns, and writes these and more `columns` of SQL, in the order of groups.
pub fn group_on_nodes(
    session: &Session,
    command: &'static str,
    (inputs, text): (&[PathBuf], &[String]),
    (by, columns): (&[String], &[String]),
    output: &Path,
) -> Result<()> {
    session.check_stdout_is_free(output)?;
    TableWriter::check_path(output)?;
    let [input] = inputs else { bail!("one table is grouped on nodes: name one dataset, store:NAME") };
    let by: Vec<String> = by.iter().map(|column| name(column)).collect();
    let all = by.iter().chain(columns).cloned().collect::<Vec<_>>().join(", ");
    let mut query = format!("SELECT {all} FROM rows");
    if !by.is_empty() {
        let order = by.iter().map(|column| format!("{column} ASC NULLS LAST")).collect::<Vec<_>>();
        query += &format!(" GROUP BY {} ORDER BY {}", by.join(", "), order.join(", "));
    }
    let near = Near::connect(session)?;
    let tables = Tables::default().with_text(text).with_files("rows", std::slice::from_ref(input));
    let mut run = session.start()?;
    let mut query = Query::start(&run.job, &query, tables.with_elsewhere(near.tables.clone()))?;
    let mut writer = TableWriter::create(output, query.schema().clone(), run.job.budget())?;
    while let Some(batch) = query.next_batch()? {
        writer.write(&batch)?;
    }
    writer.finish()?;
    let report = query.report();
    drop(query);
    let sentence = match output == Path::new("-") {
        true => format!("{} groups", report.rows),
        false => format!("{} groups written to {}", report.rows, output.display()),
    };
    let summary = json!({ "groups": report.rows, "operators": report.operators });
    let (how, summary) = near.told(session, summary);
    let outcome = Outcome::new(command, run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?)
}

/// The name of a column in SQL.
fn name(column: &str) -> String {
    format!("\"{}\"", column.replace('"', "\"\""))
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

//! `inshore sort` and `inshore reduce`.

use std::path::Path;

use anyhow::Result;
use inshore::{
    ops::{
        Request,
        verbs::{self, Aggregate, By, Function, ReduceAnswer},
    },
    sortreduce::{Choice, Estimate},
    store::format_bytes,
    tables::{ReduceSummary, SortSummary},
};

use crate::{
    args::{GlobalOptions, Header, Reduce, Sort},
    job::{operations, session::check_stdout_is_free},
    report::outcome::{Outcome, counted, written},
};

pub fn sort(options: GlobalOptions, arguments: &Sort) -> Result<()> {
    sort_as("sort", options, arguments)
}

/// Sorts on the target that the options select. `command` is the name of the command in the report.
pub fn sort_as(command: &'static str, options: GlobalOptions, arguments: &Sort) -> Result<()> {
    check_stdout_is_free(&options, &arguments.output)?;
    let by = match arguments.record {
        Some(bytes) => By::Records { bytes, key: arguments.key_bytes.map(|key| (key.start, key.end)) },
        None if arguments.key.is_empty() => By::Lines,
        None => By::Columns {
            keys: arguments.key.iter().map(|key| key.0.clone()).collect(),
            text: arguments.text.clone(),
            header: Header::has_names(arguments.header),
        },
    };
    let what = by.unit();
    let operation =
        verbs::Sort { by, descending: arguments.reverse, unique: arguments.unique, resume: arguments.resume };
    let request = Request::new(operation, &arguments.inputs).to(&arguments.output);
    operations::run(options, &request)?.tell(|report, done| {
        let sentence = sentence(&done.answer, what, &arguments.output);
        let how = how(&done.answer);
        Outcome { sentence_aside: true, how, ..Outcome::new(command, report, done, sentence) }
    })
}

fn sentence(summary: &SortSummary, what: &str, output: &Path) -> String {
    let (rows, bytes) = (counted(summary.rows, what.trim_end_matches('s')), format_bytes(summary.bytes));
    let sentence = match output == Path::new("-") {
        true => rows,
        false => format!("{rows}, {bytes}, written to {}", output.display()),
    };
    sentence + &kept(summary.stats.rows_kept, what)
}

/// Formats the number of rows that an earlier, interrupted job had already sorted.
pub fn kept(count: u64, what: &str) -> String {
    if count > 0 { format!("; {count} {what} were sorted by an interrupted run") } else { String::new() }
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

pub fn reduce(options: GlobalOptions, arguments: &Reduce) -> Result<()> {
    check_stdout_is_free(&options, &arguments.output)?;
    let operation = verbs::Reduce {
        by: arguments.by.clone(),
        aggregates: aggregates(arguments),
        text: arguments.text.clone(),
        header: Header::has_names(arguments.header),
        resume: arguments.resume,
    };
    let request = Request::new(operation, &arguments.inputs).to(&arguments.output);
    operations::run(options, &request)?.tell(|report, done| {
        let groups = counted(done.answer.groups(), "group");
        let summary = match &done.answer {
            ReduceAnswer::Here(summary) => Some(summary),
            #[cfg(all(feature = "nodes", feature = "sql"))]
            ReduceAnswer::Nodes { .. } => None,
        };
        let of_rows =
            summary.map_or(String::new(), |summary| format!(" of {}", counted(summary.rows_in, "row")));
        let place = written(&arguments.output);
        let kept = summary.map_or(String::new(), |summary| kept(summary.rows_kept, "rows"));
        let how = summary.map_or(Vec::new(), how_reduced);
        let outcome = Outcome::new("reduce", report, done, groups + &of_rows + &place + &kept);
        Outcome { sentence_aside: true, how, ..outcome }
    })
}

/// Returns the aggregates, in the order of the options in the help text.
fn aggregates(arguments: &Reduce) -> Vec<Aggregate> {
    let count = arguments.count.iter().map(|column| match &**column {
        "" => Aggregate::count(),
        column => Aggregate::of(Function::Count, column),
    });
    let all = |columns: &[String], function| {
        columns.iter().map(|column| Aggregate::of(function, column)).collect::<Vec<_>>()
    };
    count
        .chain(all(&arguments.sum, Function::Sum))
        .chain(all(&arguments.mean, Function::Mean))
        .chain(all(&arguments.min, Function::Min))
        .chain(all(&arguments.max, Function::Max))
        .chain(all(&arguments.first, Function::First))
        .chain(all(&arguments.last, Function::Last))
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

/// Formats the estimated cost of each strategy, for `--explain`.
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

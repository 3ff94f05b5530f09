//! `inshore count kmers` and `inshore count values`.

use std::fmt::Write as _;

use anyhow::Result;
use inshore::{
    ops::{
        Request,
        verbs::{self, ReduceAnswer},
    },
    store::format_bytes,
    tables::{KmerSummary, NewFile},
};
use serde_json::json;

use crate::{
    args::{GlobalOptions, Header, Kmers, Values},
    job::{operations, session::check_stdout_is_free},
    report::outcome::{Outcome, counted, place},
    verbs::sort::{estimates, kept},
};

pub fn kmers(options: GlobalOptions, arguments: &Kmers) -> Result<()> {
    check_stdout_is_free(&options, &arguments.output)?;
    let Kmers { k, min_count, codes, resume, .. } = *arguments;
    let operation = verbs::CountKmers { k, canonical: !arguments.forward, min_count, codes, resume };
    let request = Request::new(operation, &arguments.inputs).to(&arguments.output);
    let ran = operations::run(options, &request)?;
    if let Some(path) = &arguments.histogram {
        NewFile::write_whole(path, spectrum(&ran.done.answer).as_bytes())?;
    }
    ran.tell(|report, done| {
        let KmerSummary { kmers, distinct, written, sequences, kmers_kept, runs, bytes_spilled, .. } =
            done.answer;
        let (sequences, place) = (counted(sequences, "sequence"), place(&arguments.output));
        let sentence =
            format!("{kmers} {k}-mers of {sequences}, {distinct} different, {written} written{place}");
        let sentence = sentence + &kept(kmers_kept, &format!("{k}-mers"));
        let mut how = vec![("runs", format!("{runs}, {}", format_bytes(bytes_spilled)))];
        how.extend(done.answer.choice.as_ref().map(estimates).unwrap_or_default());
        Outcome { sentence_aside: true, how, ..Outcome::new("count kmers", report, json!(done), sentence) }
    })
}

fn spectrum(summary: &KmerSummary) -> String {
    let mut text = "count,kmers\n".to_string();
    for (number, kmers) in summary.histogram.iter().enumerate() {
        let _ = writeln!(text, "{},{kmers}", number + 1);
    }
    text
}

pub fn values(options: GlobalOptions, arguments: &Values) -> Result<()> {
    check_stdout_is_free(&options, &arguments.output)?;
    let operation = verbs::CountValues {
        columns: arguments.column.clone(),
        text: arguments.text.clone(),
        header: Header::has_names(arguments.header),
        resume: arguments.resume,
    };
    let request = Request::new(operation, &arguments.inputs).to(&arguments.output);
    operations::run(options, &request)?.tell(|report, done| {
        let sentence = match &done.answer {
            ReduceAnswer::Here(summary) => {
                let (values, rows) = (summary.groups, counted(summary.rows_in, "row"));
                let (values, place) = (counted(values, "different value"), place(&arguments.output));
                format!("{values} in {rows} written{place}") + &kept(summary.rows_kept, "rows")
            }
            #[cfg(all(feature = "nodes", feature = "sql"))]
            ReduceAnswer::Nodes { groups, .. } => {
                counted(*groups, "group") + &crate::report::outcome::written(&arguments.output)
            }
        };
        Outcome { sentence_aside: true, ..Outcome::new("count values", report, done, sentence) }
    })
}

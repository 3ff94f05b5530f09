//! `inshore sort`.

use std::path::Path;

use anyhow::{Result, bail};
use inshore::{
    sortreduce::rows::FixedRows,
    store::format_bytes,
    tables::{Input, SortOptions, SortSummary, sort_lines, sort_records},
};

use crate::{
    outcome::Outcome,
    session::Session,
    words::{KeyBytes, Sort},
};

pub fn sort(session: &Session, words: &Sort) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    let inputs: Vec<Input> = words.inputs.iter().map(Input::new).collect();
    let options = SortOptions { descending: words.reverse, unique: words.unique };
    let shape = words.record.map(|bytes| shape(bytes, words.key_bytes)).transpose()?;
    let mut run = session.start()?;
    let (summary, what) = match shape {
        Some(shape) => (sort_records(&run.job, &inputs, &words.output, shape, options)?, "records"),
        None => (sort_lines(&run.job, &inputs, &words.output, options)?, "lines"),
    };
    let sentence = sentence(&summary, what, &words.output);
    let outcome = Outcome::new("sort", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how: how(&summary), ..outcome }.tell(&session.options)?)
}

fn shape(record_bytes: u64, key: Option<KeyBytes>) -> Result<FixedRows> {
    let bytes = usize::try_from(record_bytes)?;
    let KeyBytes { start, end } = key.unwrap_or(KeyBytes { start: 0, end: bytes });
    if end > bytes {
        bail!("--key-bytes {start}..{end} reaches beyond the {bytes} bytes of a record");
    }
    Ok(FixedRows::new(bytes, start..end))
}

fn sentence(summary: &SortSummary, what: &str, output: &Path) -> String {
    let (rows, bytes) = (summary.rows, format_bytes(summary.bytes));
    format!("{rows} {what}, {bytes}, written to {}", output.display())
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

//! `inshore count words`.

use std::path::Path;

use anyhow::{Result, bail};
use inshore::{
    kernels::WordSummary,
    ops::{Request, verbs},
    store::format_bytes,
};
use serde_json::json;

use crate::{
    args::{CountWords, GlobalOptions},
    job::{operations, session::check_stdout_is_free},
    report::{
        outcome::{Outcome, place},
        table::{self, Align},
    },
};

pub fn words(options: GlobalOptions, words: &CountWords) -> Result<()> {
    let output = words.output.as_deref();
    if output == Some(Path::new("-")) && words.top.is_some() {
        bail!("-o - and --top both use standard output: give one of them");
    }
    output.map_or(Ok(()), |output| check_stdout_is_free(&options, output))?;
    let top = words.top.or(output.is_none().then_some(20)).unwrap_or(0) as usize;
    let CountWords { split, ignore_case, min_count, .. } = *words;
    let operation = verbs::CountWords { split, ignore_case, min_count, top };
    let request = Request { output: words.output.clone(), ..Request::new(operation, &words.inputs) };
    let ran = operations::run(options, &request)?;
    let shown = &ran.done.answer.top;
    if !shown.is_empty() && !ran.options.json {
        let rows = shown.iter().map(|(word, count)| vec![word.clone(), count.to_string()]);
        let header = [("word", Align::Left), ("count", Align::Right)];
        table::print_stdout(&header, &rows.collect::<Vec<_>>())?;
    }
    ran.tell(|report, done| {
        let WordSummary { words, distinct, written, spills, runs, bytes_spilled, .. } = done.answer;
        let place = output.map_or(String::new(), |path| format!(", {written} written{}", place(path)));
        let sentence = format!("{words} words, {distinct} different{place}");
        let how = vec![
            ("tables full", spills.to_string()),
            ("runs", format!("{runs}, {}", format_bytes(bytes_spilled))),
        ];
        Outcome { sentence_aside: true, how, ..Outcome::new("count words", report, json!(done), sentence) }
    })
}

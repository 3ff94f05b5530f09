//! `inshore sql`.

use std::{
    io::{self, IsTerminal, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use arrow_array::{RecordBatch, cast::AsArray};
use arrow_cast::pretty::pretty_format_batches;
use inshore::{
    sql::{Query, Tables},
    tables::TableWriter,
};
use serde_json::json;

use crate::{
    args::{Header, Sql},
    outcome::{Outcome, counted},
    session::Session,
    terminal,
};
#[cfg(feature = "nodes")]
use crate::{near::Near, nodes};

/// Rows that are shown to a person.
const SHOWN_ROWS: usize = 40;

pub fn sql(session: &Session, words: &Sql) -> Result<()> {
    let output = words.output.clone().unwrap_or_else(|| PathBuf::from("-"));
    let is_shown = words.output.is_none() && io::stdout().is_terminal() && !session.options.json;
    if words.output.is_some() || !session.options.json {
        session.check_stdout_is_free(&output)?;
    }
    TableWriter::check_path(&output)?;
    let text = question(words)?;
    let mut tables = Tables::default().with_text(&words.text).with_header(Header::of(words.header));
    for folder in &words.tables {
        tables = tables.with_folder(folder)?;
    }
    for table in &words.table {
        tables = tables.with_files(&table.name, std::slice::from_ref(&table.path));
    }
    #[cfg(feature = "nodes")]
    let near =
        nodes::are_named(&session.options).then(|| Near::connect(session, words.header)).transpose()?;
    #[cfg(feature = "nodes")]
    if let Some(near) = &near {
        tables = tables.with_elsewhere(near.tables.clone());
    }
    let mut run = session.start()?;
    let mut query = Query::start(&run.job, &text, tables)?;
    let is_plan = query.schema().fields().iter().map(|field| field.name().as_str()).eq(["plan_type", "plan"]);
    let mut shown = None;
    if is_plan && words.output.is_none() {
        shown = Some(plans(&mut query)?);
    } else if is_shown {
        shown = Some(match head(&mut query) {
            Err(error) if is_contradiction(&error) && query.begin_exactly()? => head(&mut query)?,
            shown => shown?,
        });
    } else if words.output.is_none() && session.options.json {
        while query.next_batch()?.is_some() {}
    } else {
        write(&run, &mut query, &output)?;
    }
    let report = query.report();
    drop(query);
    let rows = counted(report.rows, "row");
    let sentence = match output == Path::new("-") {
        true => rows,
        false => format!("{rows} written to {}", output.display()),
    };
    let operators = report.operators.iter();
    let how: Vec<_> = operators.map(|ran| ("operator", format!("{}: {ran}", ran.operator))).collect();
    let summary = json!(report);
    #[cfg(feature = "nodes")]
    let (mut how, mut summary) = (how, summary);
    #[cfg(feature = "nodes")]
    if let Some(near) = &near {
        let told = near.told(session, summary);
        how.extend(told.0);
        summary = told.1;
    }
    let outcome = Outcome::new("sql", run.finish(), summary, sentence);
    if let Some(shown) = shown {
        terminal::stdout().write_all(shown.as_bytes())?;
    }
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?)
}

/// The text of the query: given, from a file, or from standard input.
fn question(words: &Sql) -> Result<String> {
    match (&words.query, &words.file) {
        (_, Some(file)) => {
            std::fs::read_to_string(file).with_context(|| format!("{}: cannot read it", file.display()))
        }
        (Some(query), None) if query == "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("standard input: cannot read the query")?;
            Ok(text)
        }
        (Some(query), None) => Ok(query.clone()),
        (None, None) => anyhow::bail!("no query is given: inshore sql \"SELECT ...\", or --file"),
    }
}

/// Writes all rows; a file from its beginning where a row shows that columns of a table were guessed wrong.
fn write(run: &crate::session::Run, query: &mut Query, output: &Path) -> Result<()> {
    match write_rows(run, query, output) {
        Err(error) if is_contradiction(&error) && output != Path::new("-") && query.begin_exactly()? => {
            write_rows(run, query, output)
        }
        written => written,
    }
}

fn is_contradiction(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(inshore::sql::Error::Table(error)) if error.is_contradiction())
}

fn write_rows(run: &crate::session::Run, query: &mut Query, output: &Path) -> Result<()> {
    let mut writer = TableWriter::create(output, query.schema().clone(), run.job.budget())?;
    while let Some(batch) = query.next_batch()? {
        writer.write(&batch)?;
    }
    writer.finish()?;
    Ok(())
}

/// The first rows as a table for people; the others are counted.
fn head(query: &mut Query) -> Result<String> {
    let (mut first, mut held) = (Vec::new(), 0);
    let empty = RecordBatch::new_empty(query.schema().clone());
    while let Some(batch) = query.next_batch()? {
        let rows = batch.num_rows().min(SHOWN_ROWS - held);
        if rows > 0 {
            held += rows;
            first.push(batch.slice(0, rows));
        }
    }
    if first.is_empty() {
        first.push(empty);
    }
    let mut text = format!("{}\n", pretty_format_batches(&first)?);
    let all = query.report().rows;
    if all > held as u64 {
        text.push_str(&format!("the first {held} of {all} rows; -o FILE writes all of them\n"));
    }
    Ok(text)
}

/// What EXPLAIN says, without a frame.
fn plans(query: &mut Query) -> Result<String> {
    let mut text = String::new();
    while let Some(batch) = query.next_batch()? {
        let (kinds, plans) = (batch.column(0).as_string::<i32>(), batch.column(1).as_string::<i32>());
        for (kind, plan) in kinds.iter().zip(plans).filter_map(|(kind, plan)| kind.zip(plan)) {
            text.push_str(&format!("{kind}\n{}\n\n", plan.trim_end()));
        }
    }
    Ok(text.trim_end().to_string() + "\n")
}

//! `inshore sql`.

use std::{
    io::{self, IsTerminal, Read, Write},
    path::Path,
};

use anyhow::{Context as _, Result};
use arrow_array::{RecordBatch, cast::AsArray};
use arrow_cast::pretty::pretty_format_batches;
use arrow_schema::SchemaRef;
use inshore::{
    ops::{
        self, Beside, Request, Rows,
        verbs::{self, NamedTable},
    },
    store::Execution,
    tables::TableWriter,
};
use serde_json::json;

use crate::{
    args::{GlobalOptions, Header, Sql},
    job::{
        operations::{self, StoreAccess},
        session::check_stdout_is_free,
    },
    report::{
        outcome::{Outcome, counted, written},
        terminal,
    },
};

/// The number of rows that are printed on a terminal.
const SHOWN_ROWS: usize = 40;

pub fn sql(options: GlobalOptions, words: &Sql) -> Result<()> {
    let is_terminal = io::stdout().is_terminal();
    if let Some(output) = &words.output {
        check_stdout_is_free(&options, output)?;
    }
    let operation = verbs::Sql {
        query: question(words)?,
        text: words.text.clone(),
        header: Header::has_names(words.header),
        folders: words.tables.clone(),
        tables: words
            .table
            .iter()
            .map(|table| NamedTable { name: table.name.clone(), path: table.path.clone() })
            .collect(),
    };
    let request = Request { operation, inputs: Vec::new(), output: words.output.clone() };
    let mut answer = match (options.json, is_terminal) {
        (true, _) => RowDisplay::Nothing,
        (false, true) => RowDisplay::Head { first: Vec::new(), held: 0 },
        (false, false) => RowDisplay::Csv(None),
    };
    let ran = operations::run_on(
        options,
        StoreAccess::OrMakes,
        &request,
        Beside { rows: Some(&mut answer), ..Beside::default() },
    )?;
    if let Some(shown) = answer.text(ran.done.answer.rows)? {
        terminal::stdout().write_all(shown.as_bytes())?;
    }
    ran.tell(|report, done| {
        let place = words.output.as_deref().map_or(String::new(), written);
        let sentence = counted(done.answer.rows, "row") + &place;
        let operators = done.answer.operators.iter();
        let how = operators.map(|ran| ("operator", format!("{}: {ran}", ran.operator))).collect();
        Outcome { sentence_aside: true, how, ..Outcome::new("sql", report, json!(done), sentence) }
    })
}

/// The use of rows without an output file.
enum RowDisplay {
    /// They are counted.
    Nothing,
    /// A person sees the first ones.
    Head { first: Vec<RecordBatch>, held: usize },
    /// They are CSV on standard output.
    Csv(Option<Box<TableWriter>>),
    /// They are the plans of EXPLAIN, without a frame.
    Plans(String),
}

impl Rows for RowDisplay {
    fn begin(&mut self, schema: &SchemaRef, job: &Execution) -> ops::Result<()> {
        if schema.fields().iter().map(|field| field.name().as_str()).eq(["plan_type", "plan"]) {
            *self = RowDisplay::Plans(String::new());
        }
        match self {
            RowDisplay::Head { first, held } => {
                (*first, *held) = (vec![RecordBatch::new_empty(schema.clone())], 0)
            }
            RowDisplay::Csv(writer) => {
                *writer = Some(Box::new(TableWriter::create(Path::new("-"), schema.clone(), job.budget())?));
            }
            RowDisplay::Nothing | RowDisplay::Plans(_) => {}
        }
        Ok(())
    }

    fn batch(&mut self, batch: RecordBatch) -> ops::Result<()> {
        match self {
            RowDisplay::Nothing => {}
            RowDisplay::Head { first, held } => {
                let rows = batch.num_rows().min(SHOWN_ROWS - *held);
                if rows > 0 {
                    *held += rows;
                    first.push(batch.slice(0, rows));
                }
            }
            RowDisplay::Csv(writer) => writer.as_mut().expect("it has begun").write(&batch)?,
            RowDisplay::Plans(text) => {
                let (kinds, plans) = (batch.column(0).as_string::<i32>(), batch.column(1).as_string::<i32>());
                for (kind, plan) in kinds.iter().zip(plans).filter_map(|(kind, plan)| kind.zip(plan)) {
                    text.push_str(&format!("{kind}\n{}\n\n", plan.trim_end()));
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> ops::Result<()> {
        if let RowDisplay::Csv(writer) = self
            && let Some(writer) = writer.take()
        {
            writer.finish()?;
        }
        Ok(())
    }

    fn can_begin_anew(&self) -> bool {
        matches!(self, RowDisplay::Head { .. })
    }
}

impl RowDisplay {
    /// Returns the text that is printed at the end of all rows.
    fn text(self, rows: u64) -> Result<Option<String>> {
        Ok(match self {
            RowDisplay::Nothing | RowDisplay::Csv(_) => None,
            RowDisplay::Plans(text) => Some(text.trim_end().to_string() + "\n"),
            RowDisplay::Head { first, held } => {
                let mut text = format!("{}\n", pretty_format_batches(&first)?);
                if rows > held as u64 {
                    text += &format!("the first {held} of {rows} rows; -o FILE writes all of them\n");
                }
                Some(text)
            }
        })
    }
}

/// Returns the text of the query: given, from a file, or from standard input.
fn question(words: &Sql) -> Result<String> {
    match (&words.query, &words.file) {
        (_, Some(file)) => std::fs::read_to_string(file)
            .with_context(|| format!("{}: cannot read the query", file.display())),
        (Some(query), None) if query == "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("standard input: cannot read the query")?;
            Ok(text)
        }
        (Some(query), None) => Ok(query.clone()),
        (None, None) => anyhow::bail!("no query is given: inshore sql \"SELECT ...\", or --file"),
    }
}

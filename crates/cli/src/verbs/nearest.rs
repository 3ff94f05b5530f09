//! `inshore nearest`.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
};

use anyhow::Result;
use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Float32Type, UInt32Type, UInt64Type},
};
use arrow_schema::SchemaRef;
use inshore::{
    ops::{
        self, Beside, Request, Rows,
        verbs::{ImportVectors, SearchVectors},
    },
    store::Execution,
    tables::TableWriter,
};

use crate::{
    args::{Everywhere, NearestCommand, NearestImport, NearestQuery},
    job::{
        operations::{self, Opens},
        session::check_stdout_is_free,
    },
    report::{
        outcome::{Outcome, counted, written},
        table::{self, Align},
        terminal,
    },
};

/// Rows that are shown to a person.
const SHOWN_ROWS: usize = 40;

pub fn nearest(options: Everywhere, command: &NearestCommand) -> Result<()> {
    match command {
        NearestCommand::Import(arguments) => import(options, arguments),
        NearestCommand::Query(arguments) => query(options, arguments),
    }
}

fn import(options: Everywhere, arguments: &NearestImport) -> Result<()> {
    let request = Request::new(ImportVectors { name: arguments.name.clone() }, [&arguments.input]);
    operations::run(options, &request)?.tell(|report, done| {
        let (sentence, rounded) = (done.answer.info.to_string(), done.answer.rounded);
        let notice =
            (rounded > 0).then(|| format!("{} rounded from f64 to f32", counted(rounded, "element")));
        Outcome { notice, ..Outcome::new("nearest import", report, done, sentence) }
    })
}

fn query(options: Everywhere, arguments: &NearestQuery) -> Result<()> {
    if let Some(output) = &arguments.output {
        check_stdout_is_free(&options, output)?;
    }
    let operation = SearchVectors {
        dataset: arguments.dataset.clone(),
        k: arguments.k,
        metric: arguments.metric.into(),
        radius: arguments.radius,
    };
    let request =
        Request { operation, inputs: vec![arguments.queries.clone()], output: arguments.output.clone() };
    let mut shown = match (options.json, io::stdout().is_terminal()) {
        (true, _) => Shown::Nothing,
        (false, true) => Shown::Head(Vec::new()),
        (false, false) => Shown::Csv(None),
    };
    let beside = Beside { rows: Some(&mut shown), ..Beside::default() };
    let ran = operations::run_on(options, Opens::Existing, &request, beside)?;
    if arguments.output.is_none() {
        shown.print(ran.done.answer.rows)?;
    }
    ran.tell(|report, done| {
        let found = &done.answer;
        let place = arguments.output.as_deref().map_or(String::new(), written);
        let vectors = found.vectors;
        let queries =
            if found.queries == 1 { "1 query".into() } else { format!("{} queries", found.queries) };
        let passes = match found.plan.passes {
            1 => String::new(),
            passes => format!(", in {passes} passes (more --memory needs fewer)"),
        };
        let (rows, dimensions, element) = (found.rows, found.dimensions, found.element);
        let sentence = format!(
            "{} of {queries} among {vectors} vectors of {dimensions} {element}{passes}{place}",
            counted(rows, "neighbour")
        );
        let pairs = found.queries as f64 * vectors as f64;
        let share = 100.0 * found.measured as f64 / pairs;
        let how = vec![("measured", format!("{} of {pairs:.0} pairs ({share:.3} %)", found.measured))];
        Outcome { sentence_aside: true, how, ..Outcome::new("nearest query", report, done, sentence) }
    })
}

/// The use of rows that go to no file.
enum Shown {
    /// They are counted.
    Nothing,
    /// A person sees the first ones.
    Head(Vec<Vec<String>>),
    /// They are CSV on standard output.
    Csv(Option<Box<TableWriter>>),
}

impl Rows for Shown {
    fn begin(&mut self, schema: &SchemaRef, job: &Execution) -> ops::Result<()> {
        if let Shown::Csv(writer) = self {
            *writer = Some(Box::new(TableWriter::create(Path::new("-"), schema.clone(), job.budget())?));
        }
        Ok(())
    }

    fn batch(&mut self, batch: RecordBatch) -> ops::Result<()> {
        match self {
            Shown::Nothing => {}
            Shown::Head(rows) => {
                let column = |number: usize| batch.column(number).as_ref() as &dyn Array;
                for row in 0..batch.num_rows().min(SHOWN_ROWS - rows.len()) {
                    rows.push(vec![
                        column(0).as_primitive::<UInt64Type>().value(row).to_string(),
                        column(1).as_primitive::<UInt32Type>().value(row).to_string(),
                        column(2).as_primitive::<UInt64Type>().value(row).to_string(),
                        column(3).as_primitive::<Float32Type>().value(row).to_string(),
                    ]);
                }
            }
            Shown::Csv(writer) => writer.as_mut().expect("it has begun").write(&batch)?,
        }
        Ok(())
    }

    fn end(&mut self) -> ops::Result<()> {
        if let Shown::Csv(writer) = self
            && let Some(writer) = writer.take()
        {
            writer.finish()?;
        }
        Ok(())
    }
}

impl Shown {
    /// Prints the rows that a person sees.
    fn print(self, rows: u64) -> Result<()> {
        let Shown::Head(first) = self else { return Ok(()) };
        let header = ["query", "rank", "id", "distance"].map(|name| (name, Align::Right));
        let mut out = terminal::stdout();
        table::print(&mut out, &header, &first)?;
        if rows > first.len() as u64 {
            writeln!(out, "the first {} of {rows} rows; -o FILE writes all of them", first.len())?;
        }
        Ok(())
    }
}

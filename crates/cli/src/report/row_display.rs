//! Displays the rows of an answer without an output file. A terminal shows the first rows as a table; a file or pipe
//! gets all rows as CSV.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
};

use anyhow::Result;
use arrow_array::{RecordBatch, cast::AsArray};
use arrow_cast::pretty::pretty_format_batches;
use arrow_schema::SchemaRef;
use inshore::{store::Execution, tables::TableWriter};
use inshore_ops::{self as ops, RowReceiver};

use crate::{args::GlobalOptions, report::terminal};

/// The number of rows that are printed on a terminal.
const SHOWN_ROWS: usize = 40;

/// Selects what happens to the rows if there is no output file.
pub enum RowDisplay {
    /// The rows are only counted.
    Nothing,
    /// The first rows are shown to a person as a table.
    Head { first: Vec<RecordBatch>, held: usize },
    /// The rows are written as CSV to standard output.
    Csv(Option<Box<TableWriter>>),
    /// The rows are the plans of EXPLAIN, which are shown without a frame.
    Plans(String),
}

impl RowReceiver for RowDisplay {
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
    /// Selects the display for a command without an output file, by its options and by the kind of standard output
    /// (terminal, file or pipe).
    pub fn new(options: &GlobalOptions) -> RowDisplay {
        match (options.json, io::stdout().is_terminal()) {
            (true, _) => RowDisplay::Nothing,
            (false, true) => RowDisplay::Head { first: Vec::new(), held: 0 },
            (false, false) => RowDisplay::Csv(None),
        }
    }

    /// Prints the table of the first rows, or the plans. `rows` is the number of all rows. Prints nothing if the answer
    /// did not [begin](RowReceiver::begin).
    pub fn print(self, rows: u64) -> Result<()> {
        let text = match self {
            RowDisplay::Nothing | RowDisplay::Csv(_) => return Ok(()),
            RowDisplay::Plans(text) => text.trim_end().to_string() + "\n",
            RowDisplay::Head { first, .. } if first.is_empty() => return Ok(()),
            RowDisplay::Head { first, held } => {
                let mut text = format!("{}\n", pretty_format_batches(&first)?);
                if rows > held as u64 {
                    text += &format!("the first {held} of {rows} rows; -o FILE writes all of them\n");
                }
                text
            }
        };
        Ok(terminal::stdout().write_all(text.as_bytes())?)
    }
}

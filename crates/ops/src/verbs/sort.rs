//! The operation `sort`.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use inshore_sortreduce::rows::FixedRows;
use inshore_store::Execution;
use inshore_tables::{
    Header, Input, NewFile, SortKey, SortOptions, SortSummary, sort_lines, sort_records, sort_table,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{
        Attachments, NormalForm, Operation, RequestContext, ResolvedInputs, StoreUse, check_resume,
        table_input,
    },
    target::Response,
    target_kind::TargetKind,
};
#[cfg(feature = "nodes")]
use crate::{operation::helping_on, sorting, target::Target};

/// Sorts lines, records or the rows of tables. The data may be larger than memory: see [`sort_lines`],
/// [`sort_records`] and [`sort_table`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sort {
    /// The kind of the rows, and the sort key.
    pub by: By,
    /// Sorts in descending order; equal rows keep the order of the input.
    pub descending: bool,
    /// Writes only the first of several rows with equal keys.
    pub unique: bool,
    /// If true, finished sorted runs remain in the store after an interruption, and a later sort with the same
    /// options resumes the interrupted one.
    pub resume: bool,
}

/// The kind of the rows, and the sort key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum By {
    /// Sorts lines by their bytes.
    #[default]
    Lines,
    /// Sorts records of a fixed length.
    Records {
        /// The length of a record in bytes.
        bytes: u64,
        /// The start and end of the key within a record, in bytes; by default the whole record.
        #[serde(default)]
        key: Option<(u64, u64)>,
    },
    /// Sorts rows of tables.
    Columns {
        /// The columns to sort by, most significant first.
        keys: Vec<SortKey>,
        /// The CSV columns that are read as text, even if their values look like numbers.
        #[serde(default)]
        text: Vec<String>,
        /// True if the first line of CSV holds the names of columns. By default, a first line that could also be a
        /// row is an error.
        #[serde(default)]
        header: Option<bool>,
    },
}

impl By {
    /// Returns the name of the kind of rows, for messages.
    pub fn unit(&self) -> &'static str {
        match self {
            By::Lines => "lines",
            By::Records { .. } => "records",
            By::Columns { .. } => "rows",
        }
    }
}

/// Checks and returns the length of a record and the range of its key.
fn record(bytes: u64, key: Option<(u64, u64)>) -> Result<(usize, Range<usize>)> {
    if bytes == 0 {
        let what = "by.records.bytes: expected 1 at least, got 0".to_string();
        return Err(Error::Request { operation: Sort::NAME, what });
    }
    let (start, end) = key.unwrap_or((0, bytes));
    let fits = |number: u64| usize::try_from(number).ok();
    match (fits(bytes), fits(start), fits(end)) {
        (Some(bytes), Some(start), Some(end)) if end <= bytes && start <= end => Ok((bytes, start..end)),
        _ => Err(Error::KeyBeyondRecord { start, end, bytes }),
    }
}

/// Refuses binary tables, which have no lines.
fn check_lines<'a>(mut files: impl Iterator<Item = (&'a str, bool)>) -> Result<()> {
    match files.find(|(_, is_table)| *is_table) {
        Some((name, _)) => Err(Error::TableAsLines { name: name.to_string() }),
        None => Ok(()),
    }
}

impl Sort {
    fn options(&self) -> SortOptions {
        SortOptions { descending: self.descending, unique: self.unique, resume: self.resume }
    }
}

impl Operation for Sort {
    const NAME: &'static str = "sort";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Spills;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = SortSummary;

    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        check_resume(Self::NAME, self.resume, place)?;
        if place == TargetKind::Cluster && matches!(self.by, By::Columns { .. }) {
            let (operation, option) = (Self::NAME, "key");
            let why = "a cluster sorts lines and records: sort tables with --node, or on one machine";
            return Err(Error::UnsupportedOption { operation, option, place, why });
        }
        match self.by {
            By::Records { bytes, key } => record(bytes, key).map(drop),
            By::Lines | By::Columns { .. } => Ok(()),
        }
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        let (output, sources) = (context.output()?, context.sources()?);
        let is_by_line = self.by == By::Lines;
        match &sources {
            ResolvedInputs::Here => {
                let inputs: Vec<Input> = context.inputs.iter().map(Input::new).collect();
                if is_by_line {
                    let is_table = |input: &Input| matches!(&*input.extension(), "parquet" | "arrow");
                    check_lines(inputs.iter().map(|input| (input.name(), is_table(input))))?;
                }
                NewFile::check(output)?;
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(_, wholes) => {
                if is_by_line {
                    check_lines(wholes.iter().map(|whole| (&*whole.title, sorting::is_binary_table(whole))))?;
                }
                if !matches!(context.target, Target::Cluster(_)) || sorting::dataset_name(output).is_none() {
                    NewFile::check(output)?;
                }
            }
        }
        Ok(sources)
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<SortSummary>> {
        let (output, options) = (context.output()?, self.options());
        match sources {
            ResolvedInputs::Here => {
                let job = context.stored(job)?;
                let inputs = |header: Option<bool>| -> Vec<Input> {
                    let header = Header::from(header);
                    context.inputs.iter().map(|path| table_input(job, path).with_header(header)).collect()
                };
                let sorted = match &self.by {
                    By::Lines => sort_lines(job, &inputs(None), output, options),
                    By::Records { bytes, key } => {
                        let (bytes, key) = record(*bytes, *key)?;
                        sort_records(job, &inputs(None), output, FixedRows::new(bytes, key), options)
                    }
                    By::Columns { keys, text, header } => {
                        sort_table(job, &inputs(*header), output, keys, text, options)
                    }
                };
                Ok(Response::local(sorted?))
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                let by = match &self.by {
                    By::Lines => sorting::SortBy::Lines,
                    By::Records { bytes, key } => {
                        let (bytes, key) = record(*bytes, *key)?;
                        sorting::SortBy::Records(bytes, key)
                    }
                    By::Columns { keys, text, header } => sorting::SortBy::Columns {
                        keys: keys.clone(),
                        as_text: text.clone(),
                        header: (*header).into(),
                    },
                };
                if let Target::Cluster(_) = context.target {
                    let (summary, report) =
                        sorting::sort_on_cluster(&on, job, &wholes, &by, options, output)?;
                    return Ok(Response::in_stages(summary, vec![report]));
                }
                let how = helping_on(&on, job);
                let sorted = sorting::sort_on_nodes(&on.nodes, job, wholes, &by, options, output, &how);
                let (summary, gathered) = sorted?;
                Ok(Response::on_nodes(summary, &on, gathered))
            }
        }
    }
}

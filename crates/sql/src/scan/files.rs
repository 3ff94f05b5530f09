//! The files of a table, and the description of their columns and statistics for the planner.

use std::{collections::HashSet, sync::Arc};

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Statistics;
use inshore_store::Job;
use inshore_tables::{Input, TableReader};

use super::{
    feed::Feed,
    statistics::{ColumnFacts, row_statistics},
};
use crate::{BATCH_ROWS, Error};

/// The files of one table. All files have the same columns.
#[derive(Debug)]
pub(crate) struct Files {
    pub job: Job,
    pub inputs: Vec<Input>,
    /// The source of files if the scan belongs to a fragment. `inputs` is then empty.
    pub feed: Option<Arc<Feed>>,
    pub schema: SchemaRef,
    pub as_text: Vec<String>,
    /// The total row count, if each file records its own row count.
    rows: Option<u64>,
    /// True if the files have row groups, so that many threads can read one file.
    pub has_groups: bool,
    /// True if the query needs all columns of JSON Lines files, including members that are missing in the first rows.
    pub has_whole_rows: bool,
    /// True if the planner gets only row counts as statistics. Remote tables have no other statistics, and client and
    /// node must make the same plan.
    pub has_only_row_counts: bool,
}

impl Files {
    pub fn open(job: &Job, inputs: Vec<Input>, as_text: &[String]) -> crate::Result<Files> {
        let mut files = Files {
            job: job.clone(),
            inputs,
            feed: None,
            schema: Arc::new(Schema::empty()),
            as_text: as_text.to_vec(),
            rows: Some(0),
            has_groups: true,
            has_whole_rows: false,
            has_only_row_counts: false,
        };
        let mut first: Option<SchemaRef> = None;
        for input in &files.inputs {
            let described = TableReader::describe(input, as_text, job.budget())?;
            let schema = &described.schema;
            check_names(input, schema)?;
            match &first {
                None => first = Some(schema.clone()),
                Some(first) if first == schema => {}
                Some(first) if is_guess(input, first, schema) => {
                    let what = inshore_tables::Error::Contradiction {
                        place: input.name().to_string(),
                        expected: format!("the columns {}, as in the first file", list(first)),
                        found: list(schema),
                    };
                    return Err(what.into());
                }
                Some(first) => {
                    let (name, found, expected) = (input.name(), list(schema), list(first));
                    let text = format!(
                        "{name}: its columns differ from those of the first file: expected {expected}, got {found}"
                    );
                    return Err(Error::Query(text));
                }
            }
            files.rows = files.rows.zip(described.rows).map(|(all, rows)| all + rows);
            files.has_groups &= described.row_groups.is_some();
        }
        files.schema = first.ok_or_else(|| Error::Query("no file is given".to_string()))?;
        Ok(files)
    }

    /// Describes the files of `feed`, which have the columns of `schema`.
    pub fn fed(job: &Job, schema: &SchemaRef, feed: Feed) -> Files {
        Files {
            job: job.clone(),
            inputs: Vec::new(),
            feed: Some(Arc::new(feed)),
            schema: schema.clone(),
            as_text: Vec::new(),
            rows: None,
            has_groups: false,
            has_whole_rows: false,
            has_only_row_counts: true,
        }
    }

    /// Returns the total bytes of all files whose size is known.
    pub fn bytes(&self) -> u64 {
        let known = self.inputs.iter().filter_map(|input| input.compressed_bytes()).sum();
        self.feed.as_ref().map_or(known, |feed| feed.bytes().unwrap_or(0))
    }

    /// Returns the file at index `number`, or the next file of the feed if there is a feed.
    pub fn file(&self, number: usize) -> crate::Result<Option<Input>> {
        match &self.feed {
            Some(feed) => Ok(feed.next().transpose()?),
            None => Ok(self.inputs.get(number).cloned()),
        }
    }

    /// Opens a file to read the columns in `columns`.
    pub fn reader(&self, input: &Input, columns: &[String]) -> crate::Result<TableReader> {
        let budget = self.job.budget();
        let input = input.clone().with_whole_rows(self.has_whole_rows);
        Ok(TableReader::open_stored(&input, Some(columns), &self.as_text, BATCH_ROWS, budget, (0, 1))?)
    }

    pub fn statistics(&self, columns: &[String]) -> crate::Result<Statistics> {
        let schema =
            self.schema.project(&self.places(columns)).map_err(|error| Error::Query(error.to_string()))?;
        let mut statistics = row_statistics(&schema, self.rows);
        if columns.is_empty() || self.rows.is_none() || self.has_only_row_counts {
            return Ok(statistics);
        }
        let mut known: Vec<ColumnFacts> = Vec::new();
        for (number, input) in self.inputs.iter().enumerate() {
            let values = self.reader(input, columns)?.group_values(columns)?;
            let found = values.iter().map(|values| values.as_ref().map(ColumnFacts::of).unwrap_or_default());
            match number {
                0 => known = found.collect(),
                _ => known = known.into_iter().zip(found).map(|(all, one)| all.and(one)).collect(),
            }
        }
        statistics.column_statistics = known.into_iter().map(ColumnFacts::estimates).collect();
        Ok(statistics)
    }

    /// Returns the total row count, if each file records its own row count.
    pub fn rows(&self) -> Option<u64> {
        self.rows
    }

    /// Returns a copy of this description for another scan.
    pub fn again(&self) -> Files {
        Files {
            inputs: self.inputs.clone(),
            feed: self.feed.clone(),
            job: self.job.clone(),
            schema: self.schema.clone(),
            as_text: self.as_text.clone(),
            ..*self
        }
    }

    fn places(&self, columns: &[String]) -> Vec<usize> {
        columns.iter().filter_map(|name| self.schema.index_of(name).ok()).collect()
    }
}

/// Refuses a file that has two columns of the same name, since no query could refer to the second column.
fn check_names(input: &Input, schema: &Schema) -> crate::Result<()> {
    let columns: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let mut seen = HashSet::new();
    let Some(column) = columns.iter().find(|name| !seen.insert(name.as_str())) else { return Ok(()) };
    let found = columns.iter().filter(|name| *name == column).count();
    let (file, column) = (input.name().to_string(), column.clone());
    Err(inshore_tables::Error::NoColumn { file, column, found, columns }.into())
}

/// Lists columns with their types for error messages.
fn list(schema: &Schema) -> String {
    let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    fields.collect::<Vec<_>>().join(", ")
}

/// Returns whether a text file has the same column names as the first file, so that only inferred types differ.
fn is_guess(input: &Input, first: &Schema, found: &Schema) -> bool {
    let names =
        |schema: &Schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    input.is_text() && names(first) == names(found)
}

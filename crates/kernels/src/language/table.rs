//! This module writes languages as a table, with columns for the source, the position in the source, the language and
//! the confidence.

use std::{path::Path, sync::Arc};

use arrow_array::{
    ArrayRef, RecordBatch,
    builder::{Float64Builder, StringBuilder, UInt64Builder},
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::Context;
use inshore_tables::TableWriter;
use serde::Serialize;

use super::{Classification, Classifier, LanguageResult};
use crate::Result;

/// The number of rows of each batch that is written.
const BATCH_ROWS: usize = 4096;

/// States what a text is: a source, a line or a row. This also determines the name of the column for the positions of
/// texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanguagePlace {
    /// A complete source is a text.
    Whole,
    /// A line is a text, identified by the line number, from 1.
    Line,
    /// A row of a table is a text, identified by the row number, from 0.
    Row,
}

impl LanguagePlace {
    fn column(self) -> Option<&'static str> {
        match self {
            LanguagePlace::Whole => None,
            LanguagePlace::Line => Some("line"),
            LanguagePlace::Row => Some("row"),
        }
    }
}

/// Counts the texts in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LanguageSummary {
    /// The number of texts.
    pub texts: u64,
    /// The number of texts that share no n-gram with any profile.
    pub unknown: u64,
}

/// Writes a table of languages. The columns are the source, the number of the line or row (not for complete sources),
/// the language and the confidence. If no language was found, the last two columns are null.
pub struct LanguageTable<'a> {
    labels: &'a [String],
    schema: SchemaRef,
    writer: TableWriter,
    names: StringBuilder,
    places: Option<UInt64Builder>,
    languages: StringBuilder,
    confidences: Float64Builder,
    waiting: usize,
    summary: LanguageSummary,
}

impl<'a> LanguageTable<'a> {
    /// Begins a table at `output`.
    ///
    /// # Errors
    /// Returns the errors of [`TableWriter::create`].
    pub fn create(
        job: &Context,
        output: &Path,
        classifier: &'a Classifier,
        place: LanguagePlace,
    ) -> Result<LanguageTable<'a>> {
        let mut fields = vec![Field::new("source", DataType::Utf8, false)];
        fields.extend(place.column().map(|place| Field::new(place, DataType::UInt64, false)));
        fields.push(Field::new("language", DataType::Utf8, true));
        fields.push(Field::new("confidence", DataType::Float64, true));
        let schema = Arc::new(Schema::new(fields));
        Ok(LanguageTable {
            labels: classifier.labels(),
            writer: TableWriter::create(output, schema.clone(), job.budget())?,
            schema,
            names: StringBuilder::new(),
            places: place.column().map(|_| UInt64Builder::new()),
            languages: StringBuilder::new(),
            confidences: Float64Builder::new(),
            waiting: 0,
            summary: LanguageSummary::default(),
        })
    }

    /// Adds a result of [`identify`](super::identify).
    ///
    /// # Errors
    /// Returns [`Error::Table`](crate::Error::Table) if the table cannot be written.
    pub fn add_found(&mut self, found: &LanguageResult<'_>) -> Result<()> {
        self.add(found.name, found.line, found.verdict)
    }

    /// Adds the language of a text. If the table has a column for positions, a `place` of `None` becomes 0.
    ///
    /// # Errors
    /// Returns [`Error::Table`](crate::Error::Table) if the table cannot be written.
    pub fn add(&mut self, name: &str, place: Option<u64>, verdict: Option<Classification>) -> Result<()> {
        self.names.append_value(name);
        if let Some(places) = &mut self.places {
            places.append_value(place.unwrap_or(0));
        }
        self.languages.append_option(verdict.map(|verdict| &self.labels[verdict.language]));
        self.confidences.append_option(verdict.map(|verdict| verdict.confidence));
        self.summary.texts += 1;
        self.summary.unknown += u64::from(verdict.is_none());
        self.waiting += 1;
        if self.waiting == BATCH_ROWS { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.names.finish())];
        if let Some(places) = &mut self.places {
            columns.push(Arc::new(places.finish()));
        }
        columns.push(Arc::new(self.languages.finish()));
        columns.push(Arc::new(self.confidences.finish()));
        self.waiting = 0;
        let batch = RecordBatch::try_new(self.schema.clone(), columns).expect("columns of one length");
        Ok(self.writer.write(&batch)?)
    }

    /// Completes the table, makes its file visible, and returns the counts.
    ///
    /// # Errors
    /// Returns [`Error::Table`](crate::Error::Table) if the table cannot be written.
    pub fn finish(mut self) -> Result<LanguageSummary> {
        self.write()?;
        self.writer.finish()?;
        Ok(self.summary)
    }
}

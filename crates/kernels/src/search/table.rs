//! This module turns the results of a search into rows.
//!
//! ```text
//!   lines     path, line_number, offset, line [, spans]     a row for each line that matches
//!   counts    path, count                                   a row for each file that has some
//! ```
//!
//! Rows are collected in batches of about 1 MiB. The batches are passed to a consumer in the order of sources and
//! lines. A slow consumer slows down the search. The consumer's return value can end the search.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::{
    ArrayRef, ListArray, RecordBatch, StructArray, UInt32Array, UInt64Array,
    builder::{BinaryBuilder, StringBuilder},
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use inshore_kernel::{Event, Next, Source};
use inshore_store::{Budget, Context, Reservation};
use serde::{Deserialize, Serialize};

use super::{BlockMatches, FoundLine, PatternOptions, Search, SearchOutput};
use crate::{Error, Result, WalkedFile};

/// The target size of a batch, in bytes. With a small budget, batches are smaller.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_BYTES_MIN: u64 = 64 << 10;
/// The time after which the collected rows are passed on, even if the batch is small.
const PATIENCE: Duration = Duration::from_millis(100);

/// The kind of rows that a search returns. The kind determines the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchColumns {
    /// A row for each matching line.
    #[default]
    Lines,
    /// A row for each matching line, with the positions of the matches.
    LinesWithSpans,
    /// A row for each file, with the number of matching lines.
    LineCounts,
    /// A row for each file, with the number of matches.
    MatchCounts,
}

/// The options for turning results of a search into rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SearchTableOptions {
    /// The columns of the rows.
    pub columns: SearchColumns,
    /// The largest number of matching lines of each file that are returned or counted.
    pub max_count: u64,
    /// Also returns rows for files without a match, if matches or lines are counted.
    pub include_zero: bool,
    /// If true, lines are raw bytes, and positions are in bytes. If false, lines are text with U+FFFD for bytes that
    /// are not UTF-8, and positions are in characters.
    pub as_bytes: bool,
    /// Searches binary files as text. If false, a search for lines ends before the line with the first NUL byte of a
    /// file. A file with a NUL byte among its first 64 KiB then has no rows. If lines or matches are counted, a binary
    /// file has no row, unless the user named the file.
    pub text: bool,
}

impl Default for SearchTableOptions {
    /// Returns options for all matching lines, as text, of files that are text.
    fn default() -> Self {
        let columns = SearchColumns::default();
        SearchTableOptions { columns, max_count: u64::MAX, include_zero: false, as_bytes: false, text: false }
    }
}

/// A search of files whose results are rows.
#[derive(Debug)]
pub struct SearchTable {
    kernel: Search,
    options: SearchTableOptions,
    crlf: bool,
    schema: SchemaRef,
}

/// An item of a search's result.
#[derive(Debug)]
pub enum SearchItem {
    /// One or more rows.
    Rows(RecordBatch),
    /// The error of a file that could not be read completely.
    Failed(Error),
}

/// Counts of the files of a search and of the lines that were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SearchSummary {
    /// The number of all files, including files that could not be read and files that turned out to be binary.
    pub files: u64,
    /// The number of files with a match.
    pub files_matched: u64,
    /// The number of lines that matched.
    pub lines: u64,
    /// The number of files whose search ended because they turned out to be binary.
    pub binary: u64,
    /// The number of files that could not be read.
    pub failed: u64,
}

impl SearchTable {
    /// Makes a search for lines that match one of `patterns`.
    ///
    /// # Errors
    /// Returns the errors of [`Search::new`].
    pub fn new(
        patterns: &[impl AsRef<str>],
        how: &PatternOptions,
        options: SearchTableOptions,
        budget: &Budget,
    ) -> Result<SearchTable> {
        let lines = |spans| SearchOutput::Lines { numbered: true, spans, before: 0, after: 0 };
        let wanted = match options.columns {
            SearchColumns::Lines => lines(false),
            SearchColumns::LinesWithSpans => lines(true),
            SearchColumns::MatchCounts if !how.invert => match options.max_count {
                u64::MAX => SearchOutput::MatchCount,
                _ => SearchOutput::Lines { numbered: false, spans: true, before: 0, after: 0 },
            },
            SearchColumns::LineCounts | SearchColumns::MatchCounts => SearchOutput::LineCount,
        };
        let kernel = Search::new(patterns, how, wanted, !options.text, budget)?;
        Ok(SearchTable { kernel, options, crlf: how.crlf, schema: schema(options) })
    }

    /// Returns the search kernel. [`SearchRows`] turns the results of the kernel into rows.
    pub fn kernel(&self) -> &Search {
        &self.kernel
    }

    /// Returns the columns of the rows as a schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Searches `files`, and passes rows to `each` in the order of files. A row contains the path of its file as in
    /// `files`.
    ///
    /// The function needs the memory of [`Search::run`] and of four batches. The size of a batch is a sixty-fourth of
    /// the budget, but at least 64 KiB and at most 1 MiB. `each` may keep one batch until the next call. A line that is
    /// longer than a batch takes more memory.
    ///
    /// # Errors
    /// - Returns the errors of `each`.
    /// - Returns [`Error::Store`] if the job was stopped or has too little memory.
    ///
    /// If a file cannot be read, the function passes a [`SearchItem::Failed`] to `each` and continues with the next
    /// file.
    pub fn run(
        &self,
        job: &Context,
        files: impl Iterator<Item = (WalkedFile, Source)> + Send,
        each: impl FnMut(SearchItem) -> Result<Next> + Send,
    ) -> Result<SearchSummary> {
        let mut rows = SearchRows::new(self, job, each)?;
        self.kernel.run(job, files, |whose, event| rows.take(whose, event))?;
        rows.finish()
    }
}

fn schema(options: SearchTableOptions) -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::UInt64, false);
    let mut fields = vec![Field::new("path", DataType::Utf8, false)];
    match options.columns {
        SearchColumns::LineCounts | SearchColumns::MatchCounts => fields.push(number("count")),
        SearchColumns::Lines | SearchColumns::LinesWithSpans => {
            let line = if options.as_bytes { DataType::Binary } else { DataType::Utf8 };
            fields.extend([number("line_number"), number("offset"), Field::new("line", line, false)]);
        }
    }
    if options.columns == SearchColumns::LinesWithSpans {
        fields.push(Field::new("spans", DataType::List(span_field()), false));
    }
    Arc::new(Schema::new(fields))
}

fn span_field() -> Arc<Field> {
    Arc::new(Field::new_list_field(DataType::Struct(span_fields()), false))
}

fn span_fields() -> Fields {
    Fields::from(["start", "end"].map(|name| Field::new(name, DataType::UInt32, false)).to_vec())
}

/// Turns the results of a search into rows, and passes batches of rows to the consumer.
pub struct SearchRows<'a, E> {
    table: &'a SearchTable,
    each: E,
    summary: SearchSummary,
    source: SourceCounts,
    is_stopped: bool,
    memory: Reservation,
    batch_bytes: u64,
    begun: Option<Instant>,
    bytes: u64,
    paths: StringBuilder,
    numbers: Vec<u64>,
    offsets: Vec<u64>,
    texts: StringBuilder,
    raw: BinaryBuilder,
    /// For each row, the position in `spans` at which the spans of the row end. The first element is 0.
    span_ends: Vec<i32>,
    spans: (Vec<u32>, Vec<u32>),
}

/// The counts for the current source.
#[derive(Default)]
struct SourceCounts {
    lines: u64,
    matches: u64,
    /// True if the search of the source ended early. The counts are then incomplete.
    is_left: bool,
}

impl<'a, E: FnMut(SearchItem) -> Result<Next>> SearchRows<'a, E> {
    /// Prepares for rows of `table`, which are passed to `each`. [`SearchTable::run`] describes the memory.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if the budget has too little free memory for four batches.
    pub fn new(table: &'a SearchTable, job: &Context, each: E) -> Result<SearchRows<'a, E>> {
        let batch_bytes = (job.budget().memory_bytes() / 64).clamp(BATCH_BYTES_MIN, BATCH_BYTES);
        let memory = job.budget().reserve(4 * batch_bytes, "rows of results")?;
        Ok(SearchRows {
            table,
            each,
            summary: SearchSummary::default(),
            source: SourceCounts::default(),
            is_stopped: false,
            memory,
            batch_bytes,
            begun: None,
            bytes: 0,
            paths: StringBuilder::new(),
            numbers: Vec::new(),
            offsets: Vec::new(),
            texts: StringBuilder::new(),
            raw: BinaryBuilder::new(),
            span_ends: vec![0],
            spans: (Vec::new(), Vec::new()),
        })
    }

    /// Handles an event. An event has the results of a block, or reports the end of a source.
    ///
    /// # Errors
    /// - Returns the errors of `each`.
    /// - Returns [`Error::Store`] if the job was stopped or has too little memory.
    pub fn take(&mut self, whose: &WalkedFile, event: Event<'_, Search>) -> Result<Next> {
        let next = match event.part {
            Some(Ok(found)) => self.found(whose, &found),
            Some(Err(error)) => self.failed(whose, error),
            None => self.end(whose),
        }?;
        Ok(if self.is_stopped { Next::Stop } else { next })
    }

    /// Passes the last rows to the consumer, and returns the summary.
    ///
    /// # Errors
    /// Returns the errors of `each`.
    pub fn finish(mut self) -> Result<SearchSummary> {
        self.flush()?;
        Ok(self.summary)
    }

    fn is_counting(&self) -> bool {
        matches!(self.table.options.columns, SearchColumns::LineCounts | SearchColumns::MatchCounts)
    }

    fn found(&mut self, whose: &WalkedFile, found: &BlockMatches) -> Result<Next> {
        let max_count = self.table.options.max_count;
        if found.nul.is_some() && self.is_counting() && !whose.is_named {
            self.source.is_left = true;
            self.summary.binary += 1;
            return Ok(Next::SkipSource);
        }
        if found.lines.is_empty() {
            self.source.lines += found.line_count;
            self.source.matches += found.match_count.max(found.line_count);
        }
        let (mut text, mut spans) = (&found.text[..], &found.spans[..]);
        for line in &found.lines {
            let (line_text, line_spans);
            (line_text, text) = text.split_at(line.bytes as usize);
            (line_spans, spans) = spans.split_at(line.spans as usize);
            if self.source.lines < max_count {
                self.source.lines += 1;
                self.source.matches += line_spans.len() as u64;
                if !self.is_counting() {
                    self.line(whose, line, line_text, line_spans)?;
                }
            }
        }
        if self.begun.is_some_and(|begun| begun.elapsed() > PATIENCE) {
            self.flush()?;
        }
        if self.source.lines >= max_count {
            self.source.lines = max_count;
            return Ok(Next::SkipSource);
        }
        // A search for lines ends at the first NUL byte of a file.
        if found.nul.is_some() && !self.is_counting() {
            self.summary.binary += 1;
            return Ok(Next::SkipSource);
        }
        Ok(Next::Go)
    }

    fn line(
        &mut self,
        whose: &WalkedFile,
        line: &FoundLine,
        text: &[u8],
        spans: &[(u32, u32)],
    ) -> Result<()> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let text = if self.table.crlf { text.strip_suffix(b"\r").unwrap_or(text) } else { text };
        let bytes = text.len() as u64;
        if bytes > self.batch_bytes {
            self.memory.resize(4 * (self.batch_bytes + bytes))?;
        }
        let path = whose.path.to_string_lossy();
        self.begin(&path, 32 + bytes + 8 * spans.len() as u64);
        self.numbers.push(line.number);
        self.offsets.push(line.offset);
        if self.table.options.as_bytes {
            self.raw.append_value(text);
            self.add_spans(spans.iter().copied());
        } else {
            let shown = String::from_utf8_lossy(text);
            self.texts.append_value(&shown);
            match shown {
                Cow::Borrowed(shown) if shown.is_ascii() => self.add_spans(spans.iter().copied()),
                _ => self.add_spans(characters(text, spans)),
            }
        }
        if self.bytes >= self.batch_bytes { self.flush() } else { Ok(()) }
    }

    fn add_spans(&mut self, spans: impl Iterator<Item = (u32, u32)>) {
        if self.table.options.columns == SearchColumns::LinesWithSpans {
            for (start, end) in spans {
                self.spans.0.push(start);
                self.spans.1.push(end);
            }
            self.span_ends.push(self.spans.0.len() as i32);
        }
    }

    /// Begins a row for the file `path`. `bytes` is the size of the row's other values.
    fn begin(&mut self, path: &str, bytes: u64) {
        self.paths.append_value(path);
        self.bytes += path.len() as u64 + bytes;
        self.begun.get_or_insert_with(Instant::now);
    }

    fn end(&mut self, whose: &WalkedFile) -> Result<Next> {
        let SourceCounts { lines, matches, is_left } = std::mem::take(&mut self.source);
        self.summary.files += 1;
        if !is_left {
            self.summary.lines += lines;
            self.summary.files_matched += u64::from(lines > 0);
        }
        if self.is_counting() && !is_left && (lines > 0 || self.table.options.include_zero) {
            self.begin(&whose.path.to_string_lossy(), 16);
            let is_lines = self.table.options.columns == SearchColumns::LineCounts;
            self.numbers.push(if is_lines { lines } else { matches });
            if self.bytes >= self.batch_bytes {
                self.flush()?;
            }
        }
        Ok(Next::Go)
    }

    fn failed(&mut self, whose: &WalkedFile, error: Error) -> Result<Next> {
        if error.is_cancelled() {
            return Err(error);
        }
        let is_wanted = self.table.options.text || self.is_counting() && whose.is_named;
        if !is_wanted && error.is_binary_line() {
            self.source.is_left = self.is_counting();
            self.summary.binary += 1;
            return Ok(Next::SkipSource);
        }
        self.source.is_left = true;
        self.summary.failed += 1;
        self.flush()?;
        self.give(SearchItem::Failed(error))?;
        Ok(Next::SkipSource)
    }

    fn give(&mut self, item: SearchItem) -> Result<()> {
        if !self.is_stopped {
            self.is_stopped = (self.each)(item)? == Next::Stop;
        }
        Ok(())
    }

    /// Passes the collected rows to the consumer.
    fn flush(&mut self) -> Result<()> {
        if self.begun.take().is_none() {
            return Ok(());
        }
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.paths.finish())];
        let numbers = |numbers: &mut Vec<u64>| Arc::new(UInt64Array::from(std::mem::take(numbers)));
        columns.push(numbers(&mut self.numbers));
        if !self.is_counting() {
            columns.push(numbers(&mut self.offsets));
            columns.push(match self.table.options.as_bytes {
                true => Arc::new(self.raw.finish()),
                false => Arc::new(self.texts.finish()),
            });
        }
        if self.table.options.columns == SearchColumns::LinesWithSpans {
            let (starts, ends) = std::mem::take(&mut self.spans);
            let both: Vec<ArrayRef> =
                vec![Arc::new(UInt32Array::from(starts)), Arc::new(UInt32Array::from(ends))];
            let spans = StructArray::new(span_fields(), both, None);
            let row_ends = OffsetBuffer::new(std::mem::replace(&mut self.span_ends, vec![0]).into());
            columns.push(Arc::new(ListArray::new(span_field(), row_ends, Arc::new(spans), None)));
        }
        let is_long = self.memory.bytes() > 4 * self.batch_bytes;
        self.bytes = 0;
        let batch = RecordBatch::try_new(self.table.schema.clone(), columns).expect("columns of one length");
        self.give(SearchItem::Rows(batch))?;
        if is_long {
            self.memory.resize(4 * self.batch_bytes)?;
        }
        Ok(())
    }
}

/// Converts positions in bytes to positions in characters of the decoded text.
fn characters(text: &[u8], spans: &[(u32, u32)]) -> impl Iterator<Item = (u32, u32)> {
    let (mut bytes, mut passed) = (0, 0);
    let mut place = move |to: u32| {
        // A node may have sent a line whose spans include the line end, which `text` does not contain.
        let to = (to as usize).min(text.len());
        let piece = &text[bytes..to];
        bytes = to;
        passed += piece
            .utf8_chunks()
            .map(|chunk| chunk.valid().chars().count() as u32 + u32::from(!chunk.invalid().is_empty()))
            .sum::<u32>();
        passed
    };
    spans.iter().map(move |&(start, end)| (place(start), place(end)))
}

#[cfg(test)]
mod tests;

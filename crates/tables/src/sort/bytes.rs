//! Sorting lines and records: rows that are copied as they are.

use std::{fmt::Debug, path::Path};

use inshore_sortreduce::rows::{
    FixedRows, KeepAll, KeepFirst, Lines, RowConfig, RowOperation, RowShape, RowSink, RowSort, RowStats,
    smallest_row_memory_bytes,
};
use inshore_store::{FileSink, Job};
use serde::Serialize;

use super::{check_space, sort_memory};
use crate::{Error, Input, NewFile, Result, pieces::for_each_piece_from, resume};

/// How rows are sorted.
#[derive(Clone, Copy, Debug, Default)]
pub struct SortOptions {
    /// The greatest first; equal rows keep the order of the input.
    pub descending: bool,
    /// Of rows with equal keys only the first stays.
    pub unique: bool,
    /// Finished runs outlive an interruption, and those of an interrupted sort like this are gone on with
    /// ([`inshore_store::Store::kept`]).
    pub resume: bool,
}

/// What a sort did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SortSummary {
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Bytes of scratch that were foreseen before the work began; absent where the size of the input is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_bytes_expected: Option<u64>,
    /// How it went.
    #[serde(flatten)]
    pub stats: RowStats,
}

/// Bytes of the budget beside the sort: what a file is read with, and later written.
const FILE_BYTES: u64 = (4 << 20) + (256 << 10);

/// Sorts the lines of all inputs together, by their bytes, as `LC_ALL=C sort` does, and writes them to `output` (`-`:
/// standard output). A last line without an end gets one. gzip and zstd are unpacked.
///
/// Moves the bytes four times (in, run, run, out), or twice where they fit the budget.
///
/// # Errors
/// [`Error::TooLarge`] for a line that does not fit the budget; [`Error::NoRoom`] before the work begins;
/// [`Error::Io`], [`Error::Damaged`], [`Error::Store`].
pub fn sort_lines(job: &Job, inputs: &[Input], output: &Path, options: SortOptions) -> Result<SortSummary> {
    sort(job, inputs, output, options, Lines, "a line", |input, sink| {
        let mut last = b'\n';
        pieces(job, input, true, sink, |piece, sink| {
            last = piece[piece.len() - 1];
            sink.write(piece)
        })?;
        if last == b'\n' { Ok(()) } else { sink.write(b"\n") }
    })
}

/// Sorts records of a fixed number of bytes by some of their bytes; records with equal keys keep the order of the input.
/// Files whose names end in `.gz` or `.zst` are unpacked.
///
/// # Errors
/// As [`sort_lines`]; [`Error::Damaged`] for a file that is no whole number of records.
pub fn sort_records(
    job: &Job,
    inputs: &[Input],
    output: &Path,
    shape: FixedRows,
    options: SortOptions,
) -> Result<SortSummary> {
    let row_bytes = shape.row_bytes_hint() as u64;
    let check = |input: &Input, bytes: u64| match bytes % row_bytes {
        0 => Ok(()),
        rest => {
            let what =
                format!("{bytes} bytes are no whole number of records of {row_bytes}: {rest} are left");
            Err(Error::damaged(input.name(), what))
        }
    };
    for input in inputs.iter().filter(|input| !is_packed_by_name(input)) {
        input.compressed_bytes().map_or(Ok(()), |bytes| check(input, bytes))?;
    }
    sort(job, inputs, output, options, shape, "a record", |input, sink| {
        let before = sink.bytes();
        pieces(job, input, is_packed_by_name(input), sink, |piece, sink| sink.write(piece))?;
        check(input, sink.bytes() - before)
    })
}

/// Calls `take` with the bytes of an input that the sink has not passed over.
fn pieces(
    job: &Job,
    input: &Input,
    may_unpack: bool,
    sink: &mut dyn TakesRows,
    mut take: impl FnMut(&[u8], &mut dyn TakesRows) -> Result<()>,
) -> Result<()> {
    let start = sink.to_pass_over();
    let sink = std::cell::RefCell::new(sink);
    let begin = |position| sink.borrow_mut().pass_over(position);
    for_each_piece_from(job, input, may_unpack, start, begin, |piece| take(piece, *sink.borrow_mut()))
}

fn is_packed_by_name(input: &Input) -> bool {
    let ending = input.path().and_then(Path::extension).unwrap_or_default();
    ["gz", "zst", "zstd"].iter().any(|packed| ending.eq_ignore_ascii_case(packed))
}

/// A sink of rows of any kind.
trait TakesRows {
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
    fn bytes(&self) -> u64;
    fn to_pass_over(&self) -> u64;
    fn pass_over(&mut self, bytes: u64);
}

impl<S: RowShape, O: RowOperation> TakesRows for RowSink<'_, S, O> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(RowSink::write(self, bytes)?)
    }
    fn bytes(&self) -> u64 {
        RowSink::bytes(self)
    }
    fn to_pass_over(&self) -> u64 {
        RowSink::to_pass_over(self)
    }
    fn pass_over(&mut self, bytes: u64) {
        RowSink::pass_over(self, bytes);
    }
}

fn sort<S: RowShape + Debug>(
    job: &Job,
    inputs: &[Input],
    output: &Path,
    options: SortOptions,
    shape: S,
    what: &'static str,
    read: impl Fn(&Input, &mut dyn TakesRows) -> Result<()>,
) -> Result<SortSummary> {
    let run = Sorting { job, inputs, output, options, what };
    if options.unique { run.go(shape, KeepFirst, read) } else { run.go(shape, KeepAll, read) }
}

struct Sorting<'a> {
    job: &'a Job,
    inputs: &'a [Input],
    output: &'a Path,
    options: SortOptions,
    what: &'static str,
}

impl Sorting<'_> {
    fn go<S: RowShape + Debug, O: RowOperation>(
        &self,
        shape: S,
        operation: O,
        read: impl Fn(&Input, &mut dyn TakesRows) -> Result<()>,
    ) -> Result<SortSummary> {
        let is_stdout = self.output == Path::new("-");
        let target = if is_stdout { NewFile::stdout()? } else { NewFile::create(self.output)? };
        let sizes: Option<u64> = self.inputs.iter().map(Input::compressed_bytes).sum();
        let budget = self.job.budget();
        let question = (self.options.descending, self.options.unique, &shape);
        let keep = resume::keep(self.options.resume, self.job, "sort", question, self.inputs)?;
        let smallest = smallest_row_memory_bytes(budget.threads());
        let memory_bytes = sort_memory(budget, "sorting", FILE_BYTES, (1, 1), smallest)?;
        let config = RowConfig {
            memory_bytes,
            threads: budget.threads(),
            descending: self.options.descending,
            arena_bytes: None,
            keep: keep.clone(),
            name: "sort",
        };
        let scratch = sizes.map(|bytes| if bytes > memory_bytes / 4 * 3 { bytes } else { 0 });
        if let (Some(bytes), Some(scratch)) = (sizes, scratch) {
            let scratch = scratch.saturating_sub(resume::bytes_kept(keep.as_ref())?);
            check_space(self.job, scratch, (!is_stdout).then_some(self.output), bytes)?;
        }
        self.job.start_phase("sorting", "bytes", sizes.unwrap_or(0));
        let mut sort = RowSort::new(self.job, shape, operation, &config)?;
        let mut sink = sort.sink();
        for input in self.inputs {
            let input = input.clone().stopped_by(self.job.cancel());
            read(&input, &mut sink).map_err(|error| self.name_row(error, input.name()))?;
        }
        let bytes_in = sink.bytes();
        let left = sink.finish()?;
        debug_assert!(left.is_empty(), "every input ends with a whole row");
        let first = self.inputs.first().map_or("", Input::name);
        let mut sorted = sort.finish().map_err(|error| self.name_row(error.into(), first))?;
        self.job.start_phase("merging", "bytes", bytes_in);
        let file = target.file()?;
        let mut out = match is_stdout {
            true => FileSink::stream(self.job, file, "standard output")?,
            false => {
                let hint = (!O::COMBINES).then_some(bytes_in);
                FileSink::new(self.job, file, &self.output.display().to_string(), hint)?
            }
        };
        loop {
            let space = out.space();
            let (room, filled) = (space.len(), sorted.fill(space)?);
            out.advance(filled)?;
            self.job.progress().add(filled as u64);
            if filled < room {
                break;
            }
        }
        let bytes = out.finish()?;
        let stats = RowStats { bytes_in, ..sorted.stats() };
        drop(sorted);
        target.publish()?;
        resume::finish(keep)?;
        Ok(SortSummary { rows: stats.rows_out, bytes, scratch_bytes_expected: scratch, stats })
    }

    /// A row that is too long is told with the input's name.
    fn name_row(&self, error: Error, input: &str) -> Error {
        use inshore_sortreduce::Error::RowTooLong;
        let place = if self.inputs.len() == 1 { input.to_string() } else { format!("{input} or before it") };
        match error {
            Error::SortReduce(RowTooLong { bytes, limit, .. }) => {
                Error::TooLarge { place, what: self.what, bytes: bytes.unwrap_or(limit + 1), limit }
            }
            other => other,
        }
    }
}

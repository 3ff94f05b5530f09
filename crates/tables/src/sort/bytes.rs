//! Sorts lines and records, whose bytes are copied unchanged.

use std::{
    fmt::Debug,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ScopedJoinHandle},
};

use inshore_sortreduce::rows::{
    FixedRows, KeepAll, KeepFirst, Lines, RowConfig, RowOperation, RowShape, RowSink, RowSort, RowStats,
    SortedPart, SortedRows, smallest_row_memory_bytes,
};
use inshore_store::{FileEdges, FileSink, Job};
use serde::Serialize;

use super::{Inputs, check_rows, check_space, sort_memory};
use crate::{
    Error, Input, NewFile, Result,
    pieces::{for_each_piece_as_is, for_each_piece_from},
    resume,
    unpack::Compression,
};

/// The options of a sort.
#[derive(Clone, Copy, Debug, Default)]
pub struct SortOptions {
    /// Puts the greatest row first. Equal rows keep the order of the input.
    pub descending: bool,
    /// Keeps only the first row of all rows with equal keys.
    pub unique: bool,
    /// Keeps finished sorted runs if the sort is interrupted. Resumes an interrupted sort that had the same options
    /// ([`inshore_store::Store::kept`]).
    pub resume: bool,
}

/// The counters that a sort returns.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SortSummary {
    /// The number of rows written.
    pub rows: u64,
    /// The number of bytes written.
    pub bytes: u64,
    /// The number of bytes of scratch space that the sort is expected to need, computed before the sort begins. The
    /// value is `None` if the size of the input is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_bytes_expected: Option<u64>,
    /// The counters of the sort of rows.
    #[serde(flatten)]
    pub stats: RowStats,
}

/// The memory, in bytes, that the sort leaves free for reading a file, and later for writing a file.
const FILE_BYTES: u64 = (4 << 20) + (256 << 10);

/// Sorts the lines of all inputs together, by their bytes, as `LC_ALL=C sort` does. Writes the sorted lines to `output`
/// (`-` is standard output). If the last line of an input has no line feed, one is added. gzip, zstd, bzip2 and lz4 are
/// decompressed.
///
/// All bytes are moved four times. They are read from the input, written to runs, read from runs, and written to the
/// output. If the lines fit the budget, the bytes are moved only twice.
///
/// # Errors
/// - Returns [`Error::TooLarge`] if a line does not fit the budget.
/// - Returns [`Error::NoRoom`] before the work begins if a disk has too little free space.
/// - Returns [`Error::Io`] if a file cannot be read or written.
/// - Returns [`Error::Damaged`] if compressed data is damaged.
/// - Returns [`Error::Store`] if the budget is too small, the scratch space cannot be written or read, or the job was
///   cancelled.
pub fn sort_lines(job: &Job, inputs: &[Input], output: &Path, options: SortOptions) -> Result<SortSummary> {
    let (inputs, target) = (Inputs::files(inputs), RowTarget::file(output)?);
    sort(job, inputs, target, options, Lines, LINE, |input, sink| read_lines(job, input, sink))
}

/// Sorts as [`sort_lines`] does, and passes the lines to `each` in blocks of complete lines. A block has about
/// `block_bytes` bytes. It exceeds this size by at most one line.
///
/// # Errors
/// Returns the errors of [`sort_lines`] and of `each`.
pub fn sorted_lines(
    job: &Job,
    inputs: Inputs<'_>,
    options: SortOptions,
    block_bytes: usize,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<SortSummary> {
    let target = RowTarget::Blocks(block_bytes, each);
    sort(job, inputs, target, options, Lines, LINE, |input, sink| read_lines(job, input, sink))
}

const LINE: &str = "a line";
const RECORD: &str = "a record";

fn read_lines(job: &Job, input: &Input, sink: &mut dyn RowConsumer) -> Result<()> {
    let mut last = b'\n';
    pieces(job, input, true, sink, |piece, sink| {
        last = piece[piece.len() - 1];
        sink.write(piece)
    })?;
    if last == b'\n' { Ok(()) } else { sink.write(b"\n") }
}

/// Sorts records of a fixed number of bytes by some of their bytes. Records with equal keys keep the order of the
/// input. Files with extensions of compressed files (`.gz`, `.zst`) are decompressed.
///
/// # Errors
/// - Returns the errors of [`sort_lines`].
/// - Returns [`Error::Damaged`] if the length of a file is not a multiple of the length of a record.
pub fn sort_records(
    job: &Job,
    inputs: &[Input],
    output: &Path,
    shape: FixedRows,
    options: SortOptions,
) -> Result<SortSummary> {
    let row_bytes = shape.row_bytes_hint() as u64;
    let is_packed = |input: &Input| input.path().is_some_and(is_packed_by_name);
    for input in inputs.iter().filter(|input| !is_packed(input)) {
        input.compressed_bytes().map_or(Ok(()), |bytes| check_records(input, bytes, row_bytes))?;
    }
    let (inputs, target) = (Inputs::files(inputs), RowTarget::file(output)?);
    sort(job, inputs, target, options, shape, RECORD, |input, sink| {
        let before = sink.bytes();
        pieces(job, input, is_packed(input), sink, |piece, sink| sink.write(piece))?;
        check_records(input, sink.bytes() - before, row_bytes)
    })
}

/// Sorts records of `record_bytes` bytes by the bytes in `key`, as [`sort_records`] does, and passes them to `each` in
/// blocks of complete records. A block exceeds `block_bytes` by at most one record. Each record is followed by the
/// [number](Input::numbered) of its input in 4 bytes, big endian. If these records are later merged with records that
/// another machine sorted, this number determines the order of records with equal keys.
///
/// # Panics
/// Panics if the key is not inside the record, or if the record has no bytes.
///
/// # Errors
/// Returns the errors of [`sort_records`] and of `each`.
pub fn sorted_records(
    job: &Job,
    inputs: Inputs<'_>,
    (record_bytes, key): (usize, std::ops::Range<usize>),
    options: SortOptions,
    block_bytes: usize,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<SortSummary> {
    assert!(key.end <= record_bytes, "key {key:?} of {record_bytes}");
    if inputs.in_any_order {
        return sorted_by_number(job, inputs, (record_bytes, key), options, block_bytes, each);
    }
    let shape = FixedRows::new(record_bytes + NUMBER_BYTES, key);
    let target = RowTarget::Blocks(block_bytes, each);
    sort(job, inputs, target, options, shape, RECORD, |input, sink| {
        let number = input.number().to_be_bytes();
        let mut read = 0;
        pieces(job, input, false, sink, |mut piece, sink| {
            while !piece.is_empty() {
                let missing = record_bytes - (read % record_bytes as u64) as usize;
                let (part, rest) = piece.split_at(missing.min(piece.len()));
                sink.write(part)?;
                if part.len() == missing {
                    sink.write(&number)?;
                }
                read += part.len() as u64;
                piece = rest;
            }
            Ok(())
        })?;
        check_records(input, read, record_bytes as u64)
    })
}

/// Sorts inputs that arrive in any order. The key and the number of the input are put in front of each record. Records
/// are sorted by the key and then by the number.
fn sorted_by_number(
    job: &Job,
    inputs: Inputs<'_>,
    (record_bytes, key): (usize, std::ops::Range<usize>),
    options: SortOptions,
    block_bytes: usize,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<SortSummary> {
    let before = key.len() + NUMBER_BYTES;
    let shape = FixedRows::new(before + record_bytes, 0..before);
    // For equal keys, the input with the smallest number comes first, for ascending and for descending keys.
    let turned = |number: u32| if options.descending { !number } else { number };
    let mut found = Vec::new();
    let mut give = |block: &[u8]| {
        found.clear();
        for row in block.chunks_exact(before + record_bytes) {
            let (before, record) = row.split_at(before);
            let number = before.last_chunk().expect("it stands behind the key");
            found.extend_from_slice(record);
            found.extend_from_slice(&turned(u32::from_be_bytes(*number)).to_be_bytes());
        }
        each(&found)
    };
    let target = RowTarget::Blocks(block_bytes, &mut give);
    sort(job, inputs, target, options, shape, RECORD, |input, sink| {
        let number = turned(input.number()).to_be_bytes();
        let (mut record, mut read) = (Vec::with_capacity(record_bytes), 0);
        pieces(job, input, false, sink, |mut piece, sink| {
            read += piece.len() as u64;
            while !piece.is_empty() {
                let (part, rest) = piece.split_at((record_bytes - record.len()).min(piece.len()));
                record.extend_from_slice(part);
                piece = rest;
                if record.len() == record_bytes {
                    sink.write(&record[key.clone()])?;
                    sink.write(&number)?;
                    sink.write(&record)?;
                    record.clear();
                }
            }
            Ok(())
        })?;
        check_records(input, read, record_bytes as u64)
    })
}

/// The size in bytes of the input number after a record.
const NUMBER_BYTES: usize = size_of::<u32>();

fn check_records(input: &Input, bytes: u64, record_bytes: u64) -> Result<()> {
    match bytes % record_bytes {
        0 => Ok(()),
        rest => {
            let what = format!(
                "the size of {bytes} bytes is not a multiple of the record size {record_bytes}: {rest} bytes remain"
            );
            Err(Error::damaged(input.name(), what))
        }
    }
}

/// Calls `take` with the bytes of an input, without the bytes that an interrupted sort has already sorted.
fn pieces(
    job: &Job,
    input: &Input,
    may_unpack: bool,
    sink: &mut dyn RowConsumer,
    mut take: impl FnMut(&[u8], &mut dyn RowConsumer) -> Result<()>,
) -> Result<()> {
    if input.is_as_it_lies() {
        return for_each_piece_as_is(job, input, |piece| take(piece, &mut *sink));
    }
    let start = sink.to_pass_over();
    let sink = std::cell::RefCell::new(sink);
    let begin = |position| sink.borrow_mut().pass_over(position);
    for_each_piece_from(job, input, may_unpack, start, begin, |piece| take(piece, *sink.borrow_mut()))
}

/// Returns true if a file of records at `path` is decompressed. Only the extension determines this, since a record may
/// begin with any bytes.
pub fn is_packed_by_name(path: &Path) -> bool {
    path.extension().and_then(|ending| ending.to_str()).is_some_and(Compression::is_ending)
}

/// A sink of rows of any shape.
trait RowConsumer {
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
    fn bytes(&self) -> u64;
    fn to_pass_over(&self) -> u64;
    fn pass_over(&mut self, bytes: u64);
}

impl<S: RowShape, O: RowOperation> RowConsumer for RowSink<'_, S, O> {
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

/// The destination of sorted rows.
enum RowTarget<'a> {
    /// A file, or standard output.
    File(&'a Path, NewFile),
    /// Blocks of complete rows. Each block has about this number of bytes. It exceeds this size by at most one row.
    Blocks(usize, &'a mut dyn FnMut(&[u8]) -> Result<()>),
}

impl<'a> RowTarget<'a> {
    fn file(path: &'a Path) -> Result<RowTarget<'a>> {
        let new = if path == Path::new("-") { NewFile::stdout()? } else { NewFile::create(path)? };
        Ok(RowTarget::File(path, new))
    }

    /// Returns the path whose file system must have space for the result.
    fn path(&self) -> Option<&Path> {
        match self {
            RowTarget::File(path, _) => Some(*path).filter(|path| !NewFile::is_in_place(path)),
            RowTarget::Blocks(..) => None,
        }
    }

    /// Returns the maximum number of parts into which the sorted rows are divided. Only a regular file can receive
    /// several parts at the same time.
    fn parts_max(&self, threads: usize) -> usize {
        if self.path().is_some() { threads } else { 1 }
    }
}

fn sort<S: RowShape + Debug>(
    job: &Job,
    inputs: Inputs<'_>,
    target: RowTarget<'_>,
    options: SortOptions,
    shape: S,
    what: &'static str,
    read: impl Fn(&Input, &mut dyn RowConsumer) -> Result<()>,
) -> Result<SortSummary> {
    let run = Sorting { job, inputs, target, options, what };
    if options.unique { run.go(shape, KeepFirst, read) } else { run.go(shape, KeepAll, read) }
}

struct Sorting<'a, 't> {
    job: &'a Job,
    inputs: Inputs<'a>,
    target: RowTarget<'t>,
    options: SortOptions,
    what: &'static str,
}

impl Sorting<'_, '_> {
    fn go<S: RowShape + Debug, O: RowOperation>(
        mut self,
        shape: S,
        operation: O,
        read: impl Fn(&Input, &mut dyn RowConsumer) -> Result<()>,
    ) -> Result<SortSummary> {
        let (sizes, files) = (self.inputs.bytes(), self.inputs.files);
        let budget = self.job.budget();
        let question = (self.options.descending, self.options.unique, &shape);
        let keep = resume::keep(self.options.resume, self.job, "sort", question, files)?;
        let smallest = smallest_row_memory_bytes(budget.threads());
        let memory_bytes = sort_memory(budget, "sorting", FILE_BYTES, (1, 1), smallest)?;
        if let Some(bytes) = sizes.filter(|_| !O::COMBINES) {
            check_rows(budget, memory_bytes, (1, 1), bytes)?;
        }
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
            check_space(self.job, scratch, self.target.path(), bytes)?;
        }
        self.job.start_phase("sorting", "bytes", sizes.unwrap_or(0));
        let mut sort = RowSort::new(self.job, shape, operation, &config)?;
        let mut sink = sort.sink();
        let (what, is_one) = (self.what, files.len() == 1);
        for input in &mut self.inputs {
            let input = input?.stopped_by(self.job.cancel());
            read(&input, &mut sink).map_err(|error| name_row(what, error, (input.name(), is_one)))?;
        }
        let bytes_in = sink.bytes();
        let left = sink.finish()?;
        debug_assert!(left.is_empty(), "every input ends with a whole row");
        let parts = self.target.parts_max(budget.threads());
        let first = (self.inputs.name(), is_one);
        let mut parts = sort.finish_in_parts(parts).map_err(|error| name_row(what, error.into(), first))?;
        self.job.start_phase("merging", "bytes", bytes_in);
        let (bytes, new) = match self.target {
            RowTarget::File(path, new) => {
                let bytes = match &mut parts[..] {
                    [SortedPart { rows, .. }] => {
                        write(self.job, path, &new, rows, (!O::COMBINES).then_some(bytes_in))?
                    }
                    parts => write_parts(self.job, path, &new, parts, bytes_in)?,
                };
                (bytes, Some(new))
            }
            RowTarget::Blocks(block_bytes, each) => {
                (give(self.job, block_bytes, &mut parts[0].rows, each)?, None)
            }
        };
        let rows_out = parts.iter().map(|part| part.rows.stats().rows_out).sum();
        let stats = RowStats { bytes_in, rows_out, ..parts[0].rows.stats() };
        drop(parts);
        new.map_or(Ok(()), NewFile::publish)?;
        resume::finish(keep)?;
        Ok(SortSummary { rows: stats.rows_out, bytes, scratch_bytes_expected: scratch, stats })
    }
}

/// Adds the input's name to the error about a row that is too long. If `is_only` is false, the row may be in an earlier
/// input, and the message states this.
fn name_row(what: &'static str, error: Error, (input, is_only): (&str, bool)) -> Error {
    use inshore_sortreduce::Error::RowTooLong;
    let place = if is_only { input.to_string() } else { format!("{input} or before it") };
    match error {
        Error::SortReduce(RowTooLong { bytes, limit, .. }) => {
            Error::TooLarge { place, what, bytes: bytes.unwrap_or(limit + 1), limit, enough: None }
        }
        other => other,
    }
}

/// Writes rows to a file that is not published yet. `hint` is the expected length of the file, if known. Returns the
/// number of bytes written.
fn write<S: RowShape, O: RowOperation>(
    job: &Job,
    path: &Path,
    new: &NewFile,
    sorted: &mut SortedRows<S, O>,
    hint: Option<u64>,
) -> Result<u64> {
    let file = new.file()?;
    let mut out = match NewFile::is_in_place(path) {
        true => FileSink::stream(job, file, new.name())?,
        false => FileSink::new(job, file, new.name(), hint)?,
    };
    while fill(job, sorted, &mut out)? {}
    Ok(out.finish()?)
}

/// Writes the parts of the sorted rows to a file that is not published yet. One thread writes each part, and all
/// threads write at the same time. The file will have `bytes` bytes, as many as the input.
fn write_parts<S: RowShape, O: RowOperation>(
    job: &Job,
    path: &Path,
    new: &NewFile,
    parts: &mut [SortedPart<S, O>],
    bytes: u64,
) -> Result<u64> {
    let (file, name) = (new.file()?, path.display().to_string());
    let starts: Vec<u64> = parts.iter().map(|part| part.start).collect();
    let sinks = FileSink::in_parts(job, new.file()?, &name, bytes, &starts)?;
    let has_failed = AtomicBool::new(false);
    let write_part = |part: &mut SortedPart<S, O>, mut out: FileSink| -> Result<FileEdges> {
        // After an error in one part, the other parts stop.
        loop {
            if has_failed.load(Ordering::Relaxed) || !fill(job, &mut part.rows, &mut out)? {
                return Ok(out.finish_part()?);
            }
        }
    };
    let edges = thread::scope(|scope| {
        let start = |(part, sink)| {
            let (write_part, has_failed) = (&write_part, &has_failed);
            scope.spawn(move || {
                let written = write_part(part, sink);
                has_failed.fetch_or(written.is_err(), Ordering::Relaxed);
                written
            })
        };
        let writing: Vec<_> = parts.iter_mut().zip(sinks).map(start).collect();
        let join = |thread: ScopedJoinHandle<'_, Result<FileEdges>>| thread.join().expect("no panic");
        writing.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    FileEdges::write(edges, &file, &name, bytes)?;
    Ok(bytes)
}

/// Writes sorted rows until the buffer is full. Returns true if more rows may follow.
fn fill<S: RowShape, O: RowOperation>(
    job: &Job,
    sorted: &mut SortedRows<S, O>,
    out: &mut FileSink,
) -> Result<bool> {
    let space = out.space();
    let (room, filled) = (space.len(), sorted.fill(space)?);
    out.advance(filled)?;
    job.progress().add(filled as u64);
    Ok(filled == room)
}

/// Passes all rows to `each` in blocks. Returns the number of bytes.
fn give<S: RowShape, O: RowOperation>(
    job: &Job,
    block_bytes: usize,
    sorted: &mut SortedRows<S, O>,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<u64> {
    let (mut block, mut bytes) = (Vec::with_capacity(block_bytes), 0);
    loop {
        block.clear();
        sorted.append(&mut block, block_bytes)?;
        if block.is_empty() {
            return Ok(bytes);
        }
        each(&block)?;
        bytes += block.len() as u64;
        job.progress().add(block.len() as u64);
    }
}

//! This module sorts lines and records in stages on a cluster: no row passes through the client.
//!
//! ```text
//!   map:    pieces of a node ─► sort ─► ranges at splitters           a file on the node's scratch
//!   merge:  range r of each map output ─► merge by keys ─► piece r    a file on the node's scratch
//! ```
//!
//! Splitters divide the keys of a sample: for each range about [`SAMPLES_PER_RANGE`] parts of [`SAMPLE_BYTES`] bytes,
//! evenly spread over the input. A splitter is the shortest prefix that divides two neighbouring keys of the sample, as in
//! the inner nodes of a B-tree, so the request of a job stays small if keys are long. Rows with equal keys are in one
//! range, so `unique` needs to look at one range only. The result equals that of a local sort byte for byte, for the
//! reasons in the parent module.
//!
//! Memory: a map attempt sorts any number of bytes in its slot, with runs on scratch. A merge attempt holds a batch of
//! each map output, so pieces are grouped into as many map partitions as fit. A range is about a quarter of a slot, so
//! that its fetched bytes stay in memory.

use std::{cmp::Ordering, ops::Range, path::Path, thread};

use arrow_array::RecordBatch;
use inshore_kernel::{Failure, Reply};
use inshore_nodes::{DistributedFile, OrderedRow, read_from_nodes};
use inshore_stages::{
    FinishedJob, InputPartition, JobReport, JobStage, MapInputs, MergeInputs, Options, OutputWriter,
    READER_BYTES, StageTask, StageWork, StagesJob,
};
use inshore_store::{Context, FileSink, format_bytes};
use inshore_tables::{Input, Inputs, NewFile, SortOptions, SortSummary};
use serde::{Deserialize, Serialize};

use super::{
    Arguments, BATCH_BYTES, Error, Result, SortBy, What,
    bytes::{ByteRows, RowHow, Shape},
    check_lines, check_records,
    merge::merge_rows,
    node::{bytes_of, sort_pieces},
};
use crate::{files::Asker, job_memory::JobMemory, target::OnNodes};

/// The number of parts of the input that are read for each range.
const SAMPLES_PER_RANGE: u64 = 4;
/// The largest number of these parts.
const SAMPLES_MAX: u64 = 1024;
/// The largest number of these reads that are in flight at the same time.
const SAMPLE_READS_MAX: usize = 8;
/// The memory of such a read in bytes, besides the answers of nodes.
const SAMPLE_READ_BYTES: u64 = 1 << 20;
/// The size of each of these parts, in bytes.
const SAMPLE_BYTES: u64 = 8 << 10;
/// The size at which a batch of the exchange ends, in bytes. The last row may exceed this size.
const EXCHANGE_BATCH_BYTES: usize = 64 << 10;
/// The longest row in bytes. A merge may hold a row of each map output.
const STAGE_ROW_BYTES_MAX: usize = 256 << 10;
/// The smallest memory of a slot of a sort in bytes.
const SLOT_BYTES: u64 = 8 * READER_BYTES;
/// The limit of all splitters together in bytes. If they are longer, every second one is left out.
const SPLITTERS_BYTES_MAX: usize = 1 << 20;

/// The arguments of a sort in stages.
#[derive(Serialize, Deserialize)]
struct StageArguments {
    sort: Arguments,
    /// The bounds of the ranges, in the order of the sort, each as hexadecimal digits. Nodes account for each element of
    /// an array of numbers, so the bytes themselves would exceed the memory for requests.
    splitters: Vec<String>,
}

impl StageArguments {
    fn splitters(&self) -> std::result::Result<Vec<Vec<u8>>, Failure> {
        let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes = |text: &String| text.as_bytes().chunks(2).map(digits).collect::<Option<Vec<u8>>>();
        let splitters = self.splitters.iter().map(bytes).collect::<Option<_>>();
        splitters.ok_or_else(|| "invalid request: splitters are hexadecimal".into())
    }

    fn shape(&self) -> std::result::Result<Shape, Failure> {
        match &self.sort.what {
            What::Lines => Ok(Shape::Lines),
            What::Records(bytes, key) if key.start <= key.end && key.end <= *bytes => {
                Ok(Shape::records(*bytes, key))
            }
            What::Records(..) | What::Table { .. } => Err("invalid request: unknown rows".into()),
        }
    }
}

/// The code of a sort on the nodes of a cluster.
#[derive(Debug)]
pub struct StageSort;

impl StageWork for StageSort {
    fn kind(&self) -> &'static str {
        "sort"
    }

    fn map(
        &self,
        task: &StageTask<'_>,
        MapInputs { sources, .. }: MapInputs,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        let job = task.job;
        let arguments: StageArguments = serde_json::from_value(task.arguments.clone())?;
        let how = row_how(arguments.shape()?, &arguments.sort);
        let bytes = sources.bytes();
        let pieces: Vec<Input> =
            sources.map(|source| bytes_of(job, &source?)).collect::<std::result::Result<_, Failure>>()?;
        let mut ranges = Ranges { output, how, splitters: &arguments.splitters()?, next: 0 };
        let inputs = Inputs::asked(pieces.into_iter().map(Ok), Some(bytes));
        sort_pieces(job, "the input", arguments.sort, inputs, &mut ranges).map(drop).map_err(of_store)
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        let arguments: StageArguments = serde_json::from_value(task.arguments.clone())?;
        let inputs = inputs.open_ranges(task.job)?;
        let how = row_how(arguments.shape()?, &arguments.sort);
        let (mut written, mut last) = (Vec::with_capacity(2 * EXCHANGE_BATCH_BYTES), None::<Vec<u8>>);
        merge_rows::<ByteRows>(inputs, &how, |rows, run| {
            for row in run {
                let row = rows.row(row);
                if arguments.sort.unique {
                    let key = how.shape.key(row);
                    if last.as_deref() == Some(key) {
                        continue;
                    }
                    let last = last.get_or_insert_default();
                    last.clear();
                    last.extend_from_slice(key);
                }
                written.extend_from_slice(how.shape.written(row));
            }
            if written.len() >= EXCHANGE_BATCH_BYTES {
                output.bytes(&written)?;
                written.clear();
            }
            Ok(())
        })?;
        if !written.is_empty() {
            output.bytes(&written)?;
        }
        Ok(())
    }
}

/// Unwraps an error of the store, by which a node sees that its disk is full.
fn of_store(failure: Failure) -> Failure {
    match failure.downcast::<inshore_tables::Error>() {
        Ok(error) => match *error {
            inshore_tables::Error::Store(error) => error.into(),
            error => error.into(),
        },
        Err(failure) => failure,
    }
}

fn row_how(shape: Shape, sort: &Arguments) -> RowHow {
    RowHow { shape, descending: sort.descending, bytes_max: BATCH_BYTES + STAGE_ROW_BYTES_MAX }
}

/// Compares two keys in the order of the sort.
fn compare(descending: bool, one: &[u8], other: &[u8]) -> Ordering {
    if descending { other.cmp(one) } else { one.cmp(other) }
}

/// Receives sorted rows, and divides them at the splitters.
struct Ranges<'a> {
    output: &'a mut OutputWriter,
    how: RowHow,
    splitters: &'a [Vec<u8>],
    /// The range of the last row.
    next: usize,
}

impl Ranges<'_> {
    /// Returns the first row from `start` on whose key does not come before the splitter that ends the current range.
    fn end(&self, rows: &ByteRows, start: usize) -> usize {
        let Some(splitter) = self.splitters.get(self.next) else { return rows.rows() };
        let (mut first, mut beyond) = (start, rows.rows());
        while first < beyond {
            let middle = first + (beyond - first) / 2;
            let key = self.how.shape.key(rows.row(middle));
            match compare(self.how.descending, key, splitter) {
                Ordering::Less => first = middle + 1,
                _ => beyond = middle,
            }
        }
        first
    }

    fn write(
        &mut self,
        batch: &RecordBatch,
        rows: &ByteRows,
        run: Range<usize>,
    ) -> std::result::Result<(), Failure> {
        let mut start = run.start;
        while start < run.end {
            let mut end = start + 1;
            while end < run.end && rows.run(&(start..end)).len() < EXCHANGE_BATCH_BYTES {
                end += 1;
            }
            // A slice of a batch is written with its own bytes only.
            self.output.batch(self.next as u32, &batch.slice(start, end - start))?;
            start = end;
        }
        Ok(())
    }
}

impl Reply for Ranges<'_> {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        let rows = ByteRows::of_batch(&batch, &self.how).ok_or("invalid rows, or rows out of order")?;
        let mut start = 0;
        while start < rows.rows() {
            let end = self.end(&rows, start);
            self.write(&batch, &rows, start..end)?;
            start = end;
            if start < rows.rows() {
                self.output.close(self.next as u32)?;
                self.next += 1;
            }
        }
        Ok(())
    }
}

/// Returns the name of the dataset that an output names: `store:NAME`.
pub fn dataset_name(output: &Path) -> Option<&str> {
    output.to_str()?.strip_prefix("store:")
}

/// Sorts lines or records on a cluster, and writes the rows to a file of this machine, or to a dataset (`store:NAME`)
/// whose pieces stay on the nodes that computed them. The result equals that of [`inshore_tables::sort_lines`] or
/// [`inshore_tables::sort_records`].
///
/// # Errors
/// - Returns [`Error::Unfit`] for tables, and for the reasons of [`super::sort_on_nodes`].
/// - Returns [`Error::Stages`] if the job fails.
/// - Returns [`Error::Nodes`] if a node cannot be reached.
/// - Returns [`Error::Table`] if the output cannot be written.
pub fn sort_on_cluster(
    on: &OnNodes,
    context: &Context,
    wholes: &[DistributedFile],
    by: &SortBy,
    options: SortOptions,
    output: &Path,
) -> Result<(SortSummary, JobReport)> {
    let asker = &Asker { nodes: &on.nodes, options: &on.options, context };
    let (what, shape, record_bytes) = match by {
        SortBy::Lines => {
            wholes.iter().try_for_each(|whole| check_lines(asker, whole)).map_err(without_partial)?;
            (What::Lines, Shape::Lines, None)
        }
        SortBy::Records(bytes, key) => {
            wholes.iter().try_for_each(|whole| check_records(whole, *bytes))?;
            (What::Records(*bytes, key.clone()), Shape::records(*bytes, key), Some(*bytes as u64))
        }
        SortBy::Columns { .. } => {
            let what = "a cluster sorts lines and records: sort tables on nodes (--node), or on one machine";
            return Err(Error::unfit("a sort on a cluster", what));
        }
    };
    let SortOptions { descending, unique, .. } = options;
    let sort = Arguments { what, descending, unique, row_bytes_max: STAGE_ROW_BYTES_MAX };
    let how = row_how(shape, &sort);
    if let Some(name) = dataset_name(output) {
        inshore_stages::check_name(asker.nodes, asker.context, name)?;
    }
    let finished = {
        let size = Size::of(asker, wholes)?;
        let inputs = InputPartition::of_files(wholes, size.partition_bytes);
        let mut inputs = inputs.map_err(|why| Error::unfit("a sort on a cluster", why))?;
        if inputs.is_empty() {
            inputs.push(InputPartition::empty(0..asker.nodes.addresses().count()));
        }
        size.check(inputs.len() as u64)?;
        let splitters = splitters(asker, wholes, &how, size.ranges)?;
        let ranges = splitters.len() as u32 + 1;
        asker.context.progress().tell(|| size.explained(inputs.len() as u64, ranges));
        let digits = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let arguments = StageArguments { sort, splitters: splitters.iter().map(digits).collect() };
        let job = StagesJob {
            kind: StageSort.kind(),
            arguments: serde_json::to_value(&arguments).expect("plain data"),
            stages: JobStage::map_and_merge(inputs, ranges),
            slots: size.memory.slots,
            slot_bytes: size.memory.slot_bytes,
            options: Options::default(),
        };
        inshore_stages::run(asker.nodes, asker.context, &job)?
    };
    if !unique {
        let bytes: u64 = wholes.iter().map(DistributedFile::bytes).sum();
        // A sort adds a line feed to a last line without one.
        let ends = if record_bytes.is_none() { wholes.len() as u64 } else { 0 };
        super::check_all(wholes, "bytes", finished.bytes(), bytes..=bytes + ends)?;
    }
    let rows = match record_bytes {
        Some(bytes) => finished.bytes() / bytes,
        None => finished.lines(),
    };
    write(&finished, asker.context, output, record_bytes)?;
    let mut summary = SortSummary {
        rows,
        bytes: finished.bytes(),
        scratch_bytes_expected: None,
        stats: Default::default(),
    };
    summary.stats.rows_out = rows;
    Ok((summary, finished.report().clone()))
}

fn write(finished: &FinishedJob, context: &Context, output: &Path, record_bytes: Option<u64>) -> Result<()> {
    context.start_phase("writing", "bytes", finished.bytes());
    if let Some(name) = dataset_name(output) {
        return Ok(finished.publish(context, name, record_bytes)?);
    }
    let target = if output == Path::new("-") { NewFile::stdout()? } else { NewFile::create(output)? };
    let file = target.file()?;
    let mut out = match NewFile::is_in_place(output) {
        true => FileSink::stream(context, file, target.name())?,
        false => FileSink::new(context, file, &output.display().to_string(), Some(finished.bytes()))?,
    };
    finished.read(context, &mut |bytes| Ok(out.write(bytes)?))?;
    out.finish()?;
    target.publish()?;
    Ok(())
}

/// The sizes of a sort in stages.
#[derive(Debug)]
struct Size {
    memory: JobMemory,
    /// The number of bytes of the input.
    bytes: u64,
    /// The number of bytes from which on a map partition gets no more pieces.
    partition_bytes: u64,
    ranges: u64,
}

impl Size {
    fn of(asker: &Asker<'_>, wholes: &[DistributedFile]) -> Result<Size> {
        let memory = JobMemory::of(asker.nodes, asker.options, SLOT_BYTES)?;
        let bytes: u64 = wholes.iter().map(DistributedFile::bytes).sum();
        let size = Size { memory, bytes, partition_bytes: bytes, ranges: 1 };
        size.check(2)?;
        // Half of a slot holds a batch of each map output.
        let partitions = memory.partitions().min(memory.slot_bytes / 2 / READER_BYTES);
        let partition_bytes = bytes.div_ceil(partitions).max(1);
        Ok(Size { partition_bytes, ranges: memory.ranges(bytes), ..size })
    }

    /// Checks that a slot suffices to merge the outputs of `inputs` map partitions. Pieces on different nodes are in
    /// different partitions, so there may be more of them than planned. A quarter of the slot stays for other buffers.
    fn check(&self, inputs: u64) -> Result<()> {
        let needed = (inputs * READER_BYTES).div_ceil(3).saturating_mul(4).max(4 * READER_BYTES);
        if needed <= self.memory.slot_bytes {
            return Ok(());
        }
        let what = format!(
            "a node gives the job {}, and {} is enough: set --node-memory, or the --memory of the nodes",
            format_bytes(self.memory.memory_bytes),
            format_bytes(inshore_stages::memory_bytes(needed, self.memory.slots))
        );
        Err(Error::unfit("a sort on a cluster", what))
    }

    fn explained(&self, partitions: u64, ranges: u32) -> String {
        format!(
            "stages: map {partitions} partitions of about {}, merge {ranges} ranges; {} nodes with {} slots of {} each",
            format_bytes(self.bytes / partitions.max(1)),
            self.memory.nodes,
            self.memory.slots,
            format_bytes(self.memory.slot_bytes)
        )
    }
}

/// Returns at most `ranges - 1` splitters that divide a sample of the rows into parts of equal size.
fn splitters(
    asker: &Asker<'_>,
    wholes: &[DistributedFile],
    how: &RowHow,
    ranges: u64,
) -> Result<Vec<Vec<u8>>> {
    let bytes: u64 = wholes.iter().map(DistributedFile::bytes).sum();
    let samples = (SAMPLES_PER_RANGE * ranges).min(SAMPLES_MAX);
    // The parts that are read, and the keys.
    let budget = asker.context.budget();
    let _memory = budget.reserve(2 * SAMPLE_BYTES * samples, "a sample of the rows")?;
    let read_bytes = SAMPLE_READ_BYTES + asker.nodes.answer_bytes();
    let threads = ((budget.free_bytes() / read_bytes) as usize).clamp(1, SAMPLE_READS_MAX);
    // A read alone may take all memory. Several reads take equal parts, since each takes what is free.
    let part = |_| match threads {
        1 => Ok(asker.context.clone()),
        _ => budget.part(read_bytes, 1, "a read of a sample").map(|part| asker.context.within(part)),
    };
    let contexts = (0..threads).map(part).collect::<std::result::Result<Vec<Context>, _>>()?;
    let step = (bytes / samples).max(SAMPLE_BYTES);
    let steps = |whole: &DistributedFile| (0..whole.bytes()).step_by(step as usize);
    let places: Vec<(&DistributedFile, u64)> =
        wholes.iter().flat_map(|whole| steps(whole).map(move |at| (whole, at))).collect();
    let read = |first: usize| {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let asker = Asker { context: &contexts[first], ..*asker };
        for &(whole, at) in places.iter().skip(first).step_by(threads) {
            asker.context.check_cancelled()?;
            sample(&asker, whole, how, at, &mut keys)?;
        }
        Ok::<_, Error>(keys)
    };
    let all: Vec<Result<Vec<Vec<u8>>>> = thread::scope(|scope| {
        let reads: Vec<_> = (0..threads).map(|first| scope.spawn(move || read(first))).collect();
        reads.into_iter().map(|read| read.join().expect("no panic in a read")).collect()
    });
    let mut keys: Vec<Vec<u8>> = all.into_iter().collect::<Result<Vec<_>>>()?.concat();
    keys.sort_unstable();
    let mut splitters = dividing_prefixes(&keys, ranges);
    while splitters.iter().map(Vec::len).sum::<usize>() > SPLITTERS_BYTES_MAX {
        let mut number = 0;
        splitters.retain(|_| {
            number += 1;
            number % 2 == 0
        });
    }
    if how.descending {
        splitters.reverse();
    }
    Ok(splitters)
}

/// Returns the shortest prefixes that divide sorted keys at their quantiles, in ascending order. A prefix is greater than
/// the greatest key before the quantile that differs, and not greater than the key at the quantile.
fn dividing_prefixes(keys: &[Vec<u8>], ranges: u64) -> Vec<Vec<u8>> {
    let mut prefixes: Vec<Vec<u8>> = Vec::new();
    for range in 1..ranges {
        let Some(key) = keys.get((keys.len() as u64 * range / ranges) as usize) else { continue };
        let before = keys.partition_point(|other| other < key).checked_sub(1).map(|before| &keys[before]);
        // All keys of the sample before the quantile are equal, so nothing is to be divided there.
        let Some(before) = before else { continue };
        let equal = key.iter().zip(before).take_while(|(one, other)| one == other).count();
        let prefix = &key[..(equal + 1).min(key.len())];
        if prefixes.last().is_none_or(|last| **last < *prefix) {
            prefixes.push(prefix.to_vec());
        }
    }
    prefixes
}

/// Removes the advice to pass --partial from an error, since a sort on a cluster refuses this option.
fn without_partial(error: Error) -> Error {
    match error {
        Error::Nodes(inshore_nodes::Error::Missing { what }) => Error::unfit("a sort on a cluster", what),
        error => error,
    }
}

/// Adds the keys of the complete rows near a position of a file.
fn sample(
    asker: &Asker<'_>,
    whole: &DistributedFile,
    how: &RowHow,
    at: u64,
    keys: &mut Vec<Vec<u8>>,
) -> Result<()> {
    let record = how.shape.record_bytes() as u64;
    let start = at - at.checked_rem(record).unwrap_or(0);
    let end = (start + SAMPLE_BYTES.max(record)).min(whole.bytes());
    let read = read_from_nodes(asker.nodes, asker.context, whole, start..end, asker.options);
    let read = read.map_err(|error| without_partial(error.into()))?;
    if record > 0 {
        keys.extend(read.chunks_exact(record as usize).map(|row| how.shape.key(row).to_vec()));
        return Ok(());
    }
    // The first line may be incomplete, unless the part begins the file, and so may the last one.
    let skipped = if start == 0 { 0 } else { memchr::memchr(b'\n', &read).map_or(read.len(), |at| at + 1) };
    let lines = read[skipped..].split_inclusive(|&byte| byte == b'\n');
    keys.extend(lines.filter(|line| line.ends_with(b"\n")).map(|line| how.shape.key(line).to_vec()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(keys: &[&str], ranges: u64) -> Vec<String> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let found = dividing_prefixes(&keys, ranges);
        found.into_iter().map(|prefix| String::from_utf8(prefix).unwrap()).collect()
    }

    #[test]
    fn splitters_are_the_shortest_prefixes_that_divide_the_sample() {
        assert_eq!(prefixes(&["apple", "apricot", "banana", "bandana"], 2), ["b"]);
        assert_eq!(prefixes(&["apple", "apricot", "banana", "bandana"], 4), ["apr", "b", "band"]);
        assert_eq!(prefixes(&["a", "aa", "aaa"], 3), ["aa", "aaa"]);
        assert_eq!(prefixes(&["a", "b", "b", "b", "b", "c"], 6), ["b", "c"]);
        assert_eq!(prefixes(&["same", "same", "same"], 8), [""; 0]);
        assert_eq!(prefixes(&["", "a"], 2), ["a"]);
        assert_eq!(prefixes(&[], 8), [""; 0]);
    }

    #[test]
    fn splitters_survive_their_message() {
        let with = |splitters: &[&str]| {
            let sort = Arguments { what: What::Lines, descending: false, unique: false, row_bytes_max: 1 };
            let splitters = splitters.iter().map(ToString::to_string).collect();
            StageArguments { sort, splitters }.splitters()
        };
        assert_eq!(with(&["00ff10", "", "7a"]).unwrap(), [vec![0, 255, 16], vec![], vec![0x7a]]);
        for bad in ["0g", "xx", "ü"] {
            assert!(with(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_error_of_the_store_is_found_behind_an_error_of_a_sort() {
        let error = || inshore_store::Error::Cancelled;
        let failure: Failure = inshore_tables::Error::Store(error()).into();
        assert!(of_store(failure).downcast_ref::<inshore_store::Error>().is_some());
        assert!(of_store(error().into()).downcast_ref::<inshore_store::Error>().is_some());
    }
}

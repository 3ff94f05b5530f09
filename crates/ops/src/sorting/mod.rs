//! This module sorts files on the nodes that store them. Each node sorts its shards (parts of the files) in the
//! memory of its task, with scratch space in its store, and returns its rows in order. The client merges the rows
//! as they arrive, and writes the result.
//!
//! ```text
//!   node A:  shards 0, 3 ─► sort ─► rows in order ─┐
//!   node B:  shards 1, 4 ─► sort ─► rows in order ─┼─► Merged ─► a new file
//!   node C:  shards 2, 5 ─► sort ─► rows in order ─┘
//! ```
//!
//! The result equals a local sort of the same files byte for byte, including the order of rows with equal keys.
//! Each record and each row of a table is sent with the number of its shard. The number increases with the
//! position in the input, and the merge breaks ties by this number. Lines need no number, since equal lines are
//! identical. The number also makes it possible to replace a node that is lost in the middle of its answer. All
//! rows of a shard with equal keys come in one answer, and always in the same order. The merge therefore skips as
//! many rows of the new answer as it has taken from the lost answer.
//!
//! Rows of tables are sent as columns, not in the byte encoding that the sort uses. The client can check columns
//! on arrival, but a decoder could fail on invalid bytes. The client then encodes only the keys, to compare the
//! rows.
//!
//! While the nodes sort, the client's network and cores would be idle. The client therefore fetches and sorts
//! shards that no node has begun to sort. Its rows are merged like one more answer (`helping.rs`).
//!
//! Cost: each row is sent over the network once, unless `unique` removes the row on its node. The drive of a node
//! reads its shards once. If the shards exceed the task's memory, the drive also writes and reads sorted runs. If
//! the shards that the client sorts exceed its memory, the client's drive writes and reads sorted runs, too. In
//! addition, the client has one batch of each node in memory.

mod bytes;
mod helping;
mod merge;
mod node;
mod stages;
mod table;
#[cfg(test)]
mod tests;

use std::{
    ops::{Range, RangeInclusive},
    path::Path,
    thread,
};

use inshore_nodes::{
    DistributedFile, Error as NodesError, GatherReport, HelpOptions, Nodes, RunOptions, Streams,
    stream_with_help,
};
use inshore_store::{Context, Reservation, format_bytes};
use inshore_tables::{
    Compression, Error as TableError, Header, SortKey, SortOptions, SortSummary, TableLayout, TableMetadata,
    TableWriter, check_output_space, is_packed_by_name, row_groups,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::{
    bytes::{RowHow, Shape},
    table::TableHow,
};
pub use self::{
    node::Sorts,
    stages::{StageSort, dataset_name, sort_on_cluster},
};
pub use crate::files::Error;
use crate::files::{Asker, FileText, Files, check_plain, ending_of};

/// The result type of a sort on nodes.
pub type Result<T> = std::result::Result<T, Error>;

const KIND: &str = "sort";
/// The size in bytes at which a batch ends. The last row may exceed this size.
const BATCH_BYTES: usize = 256 << 10;
/// The number of copies of a batch in memory before it is sent: the sorted rows, the columns, and the messages in
/// the queue.
const COPIES: u64 = 4;
/// The maximum size of a row in bytes, regardless of memory. A message has at most 64 MiB.
const ROW_BYTES_MAX: usize = 16 << 20;
/// The maximum length of a record in bytes.
const RECORD_BYTES_MAX: usize = 1 << 16;

/// The kind of rows to sort, and the sort key.
#[derive(Clone, Debug)]
pub enum SortBy {
    /// Sorts lines by their bytes.
    Lines,
    /// Sorts records of this length in bytes. The key is this range of bytes in a record.
    Records(usize, Range<usize>),
    /// Sorts rows of tables by columns.
    Columns {
        /// The columns to sort by, the most significant column first.
        keys: Vec<SortKey>,
        /// The CSV columns that are read as text, even if their values look like numbers.
        as_text: Vec<String>,
        /// Says whether the first line of CSV files holds the names of columns.
        header: Header,
    },
}

/// The arguments of a request to sort.
#[derive(Serialize, Deserialize)]
struct Arguments {
    what: What,
    descending: bool,
    unique: bool,
    /// The longest row that the client accepts, in bytes.
    row_bytes_max: usize,
}

#[derive(Clone, Serialize, Deserialize)]
enum What {
    Lines,
    Records(usize, Range<usize>),
    Table {
        keys: Vec<SortKey>,
        known: TableMetadata,
        /// The files of the table. Each shard in the request refers to its file by the index in this list.
        files: Vec<FileText>,
        /// True if text columns pass through the sort in the form in which they were written: see
        /// [`TableLayout::carried`].
        #[serde(default)]
        is_carried: bool,
    },
}

/// Sorts files on nodes and writes the result to `output` (`-`: standard output). The result equals that of
/// [`inshore_tables::sort_lines`], [`inshore_tables::sort_records`] or [`inshore_tables::sort_table`] for
/// local files.
///
/// Memory of the client: one batch for each node, and the memory of the writer. In addition, up to a quarter of
/// the free budget is reserved for rows that are longer than a batch.
///
/// # Errors
/// - Returns [`Error::Unfit`] if nodes cannot sort a file: a compressed file, a file whose shards do not end with
///   records, or tables with different columns.
/// - Returns [`Error::Unfit`] if [`SortOptions::resume`] is set.
/// - Returns [`Error::Table`] for the same reasons as a local sort. Too little space for the result is reported before
///   the nodes begin.
/// - Returns [`Error::Nodes`] if [`inshore_nodes::run_on_nodes`] fails.
///
/// If a node is lost in the middle of its answer and no other node has its shards, the result is an [`Error::Nodes`]
/// even if partial answers are allowed. After an error there is no file at `output`.
pub fn sort_on_nodes(
    nodes: &Nodes,
    job: &Context,
    wholes: Vec<DistributedFile>,
    by: &SortBy,
    options: SortOptions,
    output: &Path,
    run: &RunOptions,
) -> Result<(SortSummary, GatherReport)> {
    if options.resume {
        return Err(Error::unfit(
            "a sort on nodes",
            "a sort on nodes does not keep runs, so it cannot resume",
        ));
    }
    let asker = Asker { nodes, options: run, context: job };
    let bytes: u64 = wholes.iter().map(DistributedFile::bytes).sum();
    if output != Path::new("-") {
        check_output_space(output, bytes)?;
    }
    let memory = LongRows::reserve(nodes, job)?;
    let sorting = Sorting { asker: &asker, options, output, row_bytes_max: memory.row_bytes };
    match by {
        SortBy::Lines => {
            wholes.iter().try_for_each(|whole| check_lines(&asker, whole))?;
            let how = sorting.how(Shape::Lines);
            sorting.bytes(What::Lines, true, how, &wholes)
        }
        SortBy::Records(record_bytes, key) => {
            wholes.iter().try_for_each(|whole| check_records(whole, *record_bytes))?;
            let how = sorting.how(Shape::records(*record_bytes, key));
            sorting.bytes(What::Records(*record_bytes, key.clone()), false, how, &wholes)
        }
        SortBy::Columns { keys, as_text, header } => {
            TableWriter::check_path(output)?;
            let title = wholes.first().map_or("store", |whole| &whole.title).to_string();
            let files = asker.files(&title, wholes, as_text, *header)?;
            files.texts.iter().try_for_each(|text| check_groups(job, text))?;
            let Files { wholes, texts, known } = files;
            let is_carried = TableWriter::writes_csv(output) && !texts.iter().any(FileText::is_parquet);
            let layout = match is_carried {
                true => TableLayout::carried(&title, &known, keys, options)?,
                false => TableLayout::plain(&title, &known.schema, keys, options)?,
            };
            let (shown, rows) = (layout.shown(), known.rows);
            let how = TableHow::new(&title, layout, options.unique, memory.row_bytes)?;
            let what = What::Table { keys: keys.clone(), known, files: texts, is_carried };
            sorting.table(what, how, &shown, rows, &wholes)
        }
    }
}

/// The client's side of a sort on nodes: the options, the output, and the limit of row sizes.
struct Sorting<'a> {
    asker: &'a Asker<'a>,
    options: SortOptions,
    output: &'a Path,
    row_bytes_max: usize,
}

impl Sorting<'_> {
    fn how(&self, shape: Shape) -> RowHow {
        RowHow { shape, descending: self.options.descending, bytes_max: BATCH_BYTES + self.row_bytes_max }
    }

    /// Starts the sort on nodes, and passes the answers to `merge`. If this is faster, the client also sorts some
    /// shards itself.
    fn with_streams<T>(
        &self,
        what: What,
        by_line: bool,
        wholes: &[DistributedFile],
        merge: impl FnOnce(Streams) -> Result<T>,
    ) -> Result<T> {
        let Asker { nodes, context, options } = *self.asker;
        let SortOptions { descending, unique, .. } = self.options;
        let arguments = Arguments { what, descending, unique, row_bytes_max: self.row_bytes_max };
        let told = serde_json::to_value(&arguments).expect("plain data");
        thread::scope(|scope| {
            let with = HelpOptions::default();
            let asked = stream_with_help(nodes, context, (KIND, by_line), told, wholes, options, with);
            let (streams, help) = asked?;
            if let Some(help) = help {
                scope.spawn(|| {
                    help.work(context, options.help_on.as_ref(), |job, pieces, reply| {
                        helping::sort_here(job, pieces, arguments, wholes, reply)
                    });
                });
            }
            merge(streams)
        })
    }
}

/// The reserved memory for rows that are longer than a batch.
struct LongRows {
    row_bytes: usize,
    _memory: Reservation,
}

impl LongRows {
    /// Reserves up to a quarter of the free budget. Divided by the number of rows in transit, this gives the
    /// maximum size of a row.
    fn reserve(nodes: &Nodes, job: &Context) -> Result<LongRows> {
        let on_their_way = COPIES * nodes.addresses().count() as u64;
        let row_bytes = job.budget().free_bytes() / 4 / on_their_way;
        let row_bytes = (row_bytes as usize).clamp(BATCH_BYTES, ROW_BYTES_MAX);
        let longer = (row_bytes - BATCH_BYTES) as u64;
        let memory = job.budget().reserve(on_their_way * longer, "buffers of long rows")?;
        Ok(LongRows { row_bytes, _memory: memory })
    }
}

/// Refuses a compressed file, which a local sort of lines would decompress, and a file that is divided at row
/// groups.
fn check_lines(asker: &Asker<'_>, whole: &DistributedFile) -> Result<()> {
    const HEAD_BYTES: u64 = Compression::HEAD_BYTES as u64;
    if whole.is_grouped {
        return Err(NodesError::RowGroups { name: whole.title.clone() }.into());
    }
    let head = match asker.read(whole, 0..HEAD_BYTES.min(whole.bytes())) {
        // The answer reports the lost shards at the end.
        Err(NodesError::Missing { .. }) if asker.options.partial => return Ok(()),
        head => head?,
    };
    check_plain(&whole.title, &head)
}

/// Refuses a file if its shards do not end with records of this length.
fn check_records(whole: &DistributedFile, record_bytes: usize) -> Result<()> {
    let (name, record) = (&whole.title, record_bytes as u64);
    if record == 0 {
        return Err(Error::unfit(name, "records have a byte at least"));
    }
    let is_packed = |name: &str| is_packed_by_name(Path::new(name));
    if is_packed(&whole.dataset) || whole.file.as_deref().is_some_and(is_packed) {
        let what = "its name says that it is compressed, so no node can read its piece: load it decompressed";
        return Err(Error::unfit(name, what));
    }
    let is_cut = whole.record_bytes.is_some_and(|bytes| bytes % record == 0);
    if whole.is_grouped || whole.pieces.len() > 1 && !is_cut {
        let what = format!(
            "its pieces do not end with records of {record} bytes: load it again with store put --record {record}"
        );
        return Err(Error::unfit(name, what));
    }
    match whole.bytes() % record {
        0 => Ok(()),
        rest => {
            let bytes = whole.bytes();
            let what = format!(
                "the size of {bytes} bytes is not a multiple of the record size {record}: {rest} bytes remain"
            );
            Err(TableError::Damaged { file: name.clone(), what }.into())
        }
    }
}

/// Refuses a Parquet file whose row groups are not stored in the order of its rows.
fn check_groups(job: &Context, text: &FileText) -> Result<()> {
    let along = text.along().map_err(|error| Error::unfit(text.name(), error.to_string()))?;
    let Some(footer) = along.filter(|_| text.is_parquet()) else { return Ok(()) };
    let groups = row_groups(&text.input(vec![footer]), job.budget())?;
    match groups.is_sorted_by_key(|group| group.start) {
        true => Ok(()),
        false => Err(Error::unfit(text.name(), "its row groups are not stored in the order of its rows")),
    }
}

/// Checks that the nodes returned the expected number of bytes or rows.
fn check_all(
    wholes: &[DistributedFile],
    what: &str,
    found: u64,
    expected: RangeInclusive<u64>,
) -> Result<()> {
    if expected.contains(&found) {
        return Ok(());
    }
    let name = wholes.first().map_or("store", |whole| &whole.title).to_string();
    let what = format!("received {found} {what}, expected {}", expected.start());
    Err(NodesError::Incomplete { name, what }.into())
}

/// Returns true for binary tables, which have no lines: Parquet or Arrow by the file name.
pub fn is_binary_table(whole: &DistributedFile) -> bool {
    matches!(&*ending_of(whole), "parquet" | "arrow")
}

/// Adds up the summaries that the nodes returned at the end of their tasks.
fn told<'a>(summaries: impl Iterator<Item = &'a Value>) -> SortSummary {
    let mut all = SortSummary { rows: 0, bytes: 0, scratch_bytes_expected: None, stats: Default::default() };
    for told in summaries {
        let number = |name: &str| told[name].as_u64().unwrap_or(0);
        let add = |sum: &mut u64, name: &str| *sum = sum.saturating_add(number(name));
        add(&mut all.stats.rows_in, "rows_in");
        add(&mut all.stats.bytes_in, "bytes_in");
        add(&mut all.stats.runs, "runs");
        add(&mut all.stats.bytes_spilled, "bytes_spilled");
        let expected = number("scratch_bytes_expected");
        all.scratch_bytes_expected = Some(all.scratch_bytes_expected.unwrap_or(0).saturating_add(expected));
        all.stats.fan_in = all.stats.fan_in.max(usize::try_from(number("fan_in")).unwrap_or(0));
        let passes = u32::try_from(number("merge_passes")).unwrap_or(0);
        all.stats.merge_passes = all.stats.merge_passes.max(passes);
    }
    all
}

/// Returns the error for a row that is too long to be sent.
fn too_long(name: &str, bytes: usize, limit: usize) -> TableError {
    let (bytes, limit) = (format_bytes(bytes as u64), format_bytes(limit as u64));
    let what = format!(
        "a row of {bytes} exceeds the limit of {limit} that the client accepts from a node: raise --memory of the client, or use store get and a local sort"
    );
    TableError::Unsupported { file: name.to_string(), what }
}

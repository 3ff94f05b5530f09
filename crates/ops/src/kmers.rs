//! This module counts k-mers on the nodes that store the sequences. A file of sequences is divided into shards.
//!
//! ```text
//!   node A:  shards 0, 3 ── count ── ends of shards, blocks of k-mers in order ──┐
//!   node B:  shards 1, 4 ── count ── ends of shards, blocks of k-mers in order ──┼─► merged, added up ─► table
//!   client:                                     k-mers across borders of shards ──┘
//! ```
//!
//! Each node counts the k-mers of its shards within its own memory budget, and writes its sorted runs to its own
//! store. A shard of FASTQ ends with a record. A shard of FASTA ends with a line, possibly within a sequence. A
//! node therefore reports the first and last letters of each shard (the shard's ends). The client counts the
//! k-mers across the borders of shards from these letters. A node first sends the ends of its shards, and then the
//! k-mers in the order of their codes. The client merges all answers as they arrive. The table, the counts and the
//! histogram equal those of a local count of the whole file.
//!
//! If nodes are slow, the client fetches shards that no node has begun to count, and counts their k-mers like one
//! more node.
//!
//! If a node is lost, other nodes count its shards again. The client skips their answers up to the last k-mer that
//! it has used from the lost answer.
//!
//! Cost: each node sends each of its distinct k-mers once, with the count. For k = 25, this takes 3 to 4 bytes for
//! each k-mer (`packed.rs`). For comparison, a base of a read takes one byte in FASTA and two bytes in FASTQ.

mod borders;
mod packed;
mod sums;

use std::{cell::RefCell, cmp::Ordering, iter, ops::Range, path::Path, sync::Arc, thread};

use arrow_array::{
    Array, ArrayRef, BinaryArray, RecordBatch, UInt8Array, UInt32Array, UInt64Array,
    cast::AsArray,
    types::{UInt8Type, UInt32Type, UInt64Type},
};
use inshore_kernel::{Failure, Reply, Task, TaskHandler, TaskSource};
use inshore_nodes::{
    DistributedFile, Error as NodesError, GatherReport, HelpOptions, HelpPieces, Merged, Nodes, OrderedRow,
    RunOptions, Streams, stream_with_help,
};
use inshore_store::{Context, Job};
use inshore_tables::{
    self as tables, FilePart, Input, KMER_BLOCK_ROWS, KmerAnswer, KmerList, KmerOptions, KmerPiece,
    KmerPieces, KmerSummary, KmerWriter, PieceEnds, PieceStart, TableWriter, count_kmer_pieces,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::{
    borders::KmerBorders,
    packed::{KMER_BLOCK_BYTES, PackedCode, pack_kmers, unpack_kmers},
    sums::KmerSums,
};
pub use crate::files::Error;
use crate::files::{Asker, check_plain, of_nodes, piece_of};

const KIND: &str = "count-kmers";
/// The two kinds of batches: the first and last letters of shards as JSON, or a block of k-mers.
const ENDS: u8 = 0;
const KMERS: u8 = 1;
/// The number of shards whose first and last letters go into one batch. Each shard takes about 250 bytes.
const ENDS_ROWS: usize = 512;
/// The number of copies of a batch in memory before it is sent: the packed block, the column, and the messages in
/// the queue.
const COPIES: u64 = 4;
/// The memory in bytes of an unpacked block, plus twice as much for adding the counts of this block to those of
/// other blocks.
const ROWS_BYTES: u64 = 3 * (KMER_BLOCK_ROWS * (size_of::<u128>() + size_of::<u32>())) as u64;
/// The number of bytes that one read takes to detect the format of a file: of the first read, and the maximum for
/// later reads.
const HEAD_BYTES: u64 = 4 << 10;
const HEAD_BYTES_MAX: u64 = 1 << 20;
/// The number of lines of a FASTQ record.
const FASTQ_LINES: u64 = 4;

/// The arguments of a request to count k-mers.
#[derive(Serialize, Deserialize)]
struct Arguments {
    k: u32,
    canonical: bool,
    /// The files. Each shard in the request refers to its file by the index in this list.
    files: Vec<FileOfSequences>,
}

/// The properties of a file that a node needs to count the file's k-mers.
#[derive(Serialize, Deserialize)]
struct FileOfSequences {
    name: String,
    is_fastq: bool,
    /// The offset of the first byte after leading empty lines.
    begin: u64,
}

/// The first and last letters of a shard, with the position of the shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PlacedEnds {
    whole: u64,
    offset: u64,
    bytes: u64,
    ends: PieceEnds,
}

impl PlacedEnds {
    fn place(&self) -> (u64, u64) {
        (self.whole, self.offset)
    }
}

/// The task handler that counts k-mers on a node.
#[derive(Debug)]
pub struct CountsKmers;

impl TaskHandler for CountsKmers {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let arguments: Arguments = serde_json::from_value(arguments)?;
        let (bytes, count_max) = (sources.bytes(), sources.count_max());
        let piece = |source: Result<TaskSource, Failure>| {
            let source = source?;
            let (part, bytes) = (piece_of(&job, &source.source)?, source.source.part_bytes());
            let (whole, offset) = (source.whole, part.at);
            let of_parts = |name: &str| Input::of_parts(name, "", bytes, vec![FilePart { at: 0, ..part }]);
            arguments.piece((whole, offset, bytes), of_parts)
        };
        let unfit = |failure: Failure| {
            let (file, what) = ("a piece".to_string(), failure.to_string());
            tables::Error::Unsupported { file, what }
        };
        let pieces = sources.map(|source| piece(source).map_err(unfit));
        answer(&job, &arguments, pieces, (Some(bytes), count_max), (reply, false))
    }
}

/// The position of a shard: the number of its file, the offset of its first byte, and its length in bytes.
type Place = (u64, u64, u64);

impl Arguments {
    /// Returns a shard to count. The function `open` returns the input for the shard's name. If k-mers may cross
    /// the borders of the shard, its position is returned too.
    fn piece(
        &self,
        (whole, offset, bytes): Place,
        open: impl FnOnce(&str) -> Input,
    ) -> Result<(KmerPiece, Option<Place>), Failure> {
        let of = usize::try_from(whole).ok().and_then(|whole| self.files.get(whole));
        let FileOfSequences { name, is_fastq, begin } = of.ok_or("the request does not describe the file")?;
        let name = if offset == 0 { name.clone() } else { format!("{name}, from byte {offset}") };
        let begins = match is_fastq {
            _ if offset <= *begin => PieceStart::File,
            true => PieceStart::FastqRecord,
            false => PieceStart::FastaLine,
        };
        let place = (!is_fastq).then_some((whole, offset, bytes));
        Ok((KmerPiece { input: open(&name), begins }, place))
    }
}

/// Counts the k-mers of shards, and sends the first and last letters of the shards and the k-mers to `reply`.
/// `bytes` and `count_max` are passed to [`KmerPieces::asked`]. The k-mers are packed, unless the client counts
/// the shards itself and k is at most 32.
fn answer(
    job: &Job,
    arguments: &Arguments,
    pieces: impl Iterator<Item = tables::Result<(KmerPiece, Option<Place>)>>,
    (bytes, count_max): (Option<u64>, usize),
    (reply, is_here): (&mut dyn Reply, bool),
) -> Result<Value, Failure> {
    let _memory = job.budget().reserve(COPIES * KMER_BLOCK_BYTES as u64, "buffered answers")?;
    let options = KmerOptions { k: arguments.k, canonical: arguments.canonical, ..KmerOptions::default() };
    let places = RefCell::new(Vec::new());
    let pieces = pieces.map(|piece| {
        let (piece, place) = piece?;
        places.borrow_mut().push(place);
        Ok(piece)
    });
    let mut failed = None;
    let pieces = KmerPieces::asked(pieces, bytes, count_max);
    let counted = count_kmer_pieces(job, pieces, &options, |answer| {
        let answered = match answer {
            KmerAnswer::Ends(ends) => {
                let placed = |(place, ends): (Option<Place>, PieceEnds)| {
                    let (whole, offset, bytes) = place?;
                    Some(PlacedEnds { whole, offset, bytes, ends })
                };
                let mut ends: Vec<PlacedEnds> =
                    places.take().into_iter().zip(ends).filter_map(placed).collect();
                ends.sort_by_key(PlacedEnds::place);
                ends.chunks(ENDS_ROWS).try_for_each(|some| {
                    reply.batch(batch(ENDS, &serde_json::to_vec(some).expect("plain data")))
                })
            }
            KmerAnswer::Short((codes, counts)) if is_here => reply.batch(plain(codes, counts)),
            KmerAnswer::Short((codes, counts)) => reply.batch(batch(KMERS, &pack_kmers(codes, counts))),
            KmerAnswer::Long((codes, counts)) => reply.batch(batch(KMERS, &pack_kmers(codes, counts))),
        };
        answered.map_err(|failure| {
            failed = Some(failure);
            tables::Error::Store(inshore_store::Error::Cancelled)
        })
    });
    match (failed, counted) {
        (Some(failure), _) => Err(failure),
        (None, counted) => Ok(serde_json::to_value(counted?)?),
    }
}

/// Counts, on the client, the k-mers of shards that no node has begun to count.
fn count_here(
    job: &Job,
    arguments: &Arguments,
    pieces: HelpPieces,
    count_max: usize,
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let pieces = pieces.map(|piece| {
        let piece = piece.map_err(|error| of_nodes("pieces from nodes", error))?;
        let (name, place) = (piece.title.clone(), (piece.whole, piece.offset, piece.bytes));
        let made = arguments.piece(place, |name| Input::stream(name, "", piece));
        made.map_err(|failure| tables::Error::Unsupported { file: name, what: failure.to_string() })
    });
    answer(job, arguments, pieces, (None, count_max), (reply, true))
}

/// Returns a batch of one row, with the kind of the batch and its bytes.
fn batch(what: u8, bytes: &[u8]) -> RecordBatch {
    let what: ArrayRef = Arc::new(UInt8Array::from(vec![what]));
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![bytes]));
    RecordBatch::try_from_iter([("what", what), ("bytes", bytes)]).expect("columns of one length")
}

/// Returns an unpacked batch of k-mers, for an answer that is not sent over the network.
fn plain(codes: &[u64], counts: &[u32]) -> RecordBatch {
    let codes: ArrayRef = Arc::new(UInt64Array::from(codes.to_vec()));
    let counts: ArrayRef = Arc::new(UInt32Array::from(counts.to_vec()));
    RecordBatch::try_from_iter([("codes", codes), ("counts", counts)]).expect("columns of one length")
}

/// The contents of a batch: the first and last letters of shards in the order of the shards' positions, or k-mers
/// in the order of their codes.
enum Counted<C> {
    Ends(Vec<PlacedEnds>),
    Kmers(Vec<C>, Vec<u32>),
}

impl<C: PackedCode> OrderedRow for Counted<C> {
    /// The number of bases of a k-mer.
    type How = u32;
    const ADDS_UP: bool = true;

    fn of_batch(batch: &RecordBatch, &k: &u32) -> Option<Self> {
        if let Some(codes) = batch.columns().first()?.as_primitive_opt::<UInt64Type>() {
            let counts = batch.columns().get(1)?.as_primitive_opt::<UInt32Type>()?;
            let has_nulls = codes.null_count() + counts.null_count() > 0;
            let (codes, counts) = (codes.values(), counts.values());
            if has_nulls || codes.len() > KMER_BLOCK_ROWS {
                return None;
            }
            let is_good = codes.is_sorted_by(|code, next| code < next)
                && codes.last().is_none_or(|last| u128::from(*last) >> (2 * k) == 0)
                && !counts.contains(&0);
            let codes = codes.iter().map(|&code| C::of_wide(code.into())).collect::<Option<Vec<_>>>();
            return Some(Counted::Kmers(codes.filter(|_| is_good)?, counts.to_vec()));
        }
        let what = batch.columns().first()?.as_primitive_opt::<UInt8Type>()?;
        let bytes = batch.columns().get(1)?.as_binary_opt::<i32>()?;
        if batch.num_rows() != 1 || what.null_count() + bytes.null_count() > 0 {
            return None;
        }
        let bytes = bytes.value(0);
        match what.value(0) {
            _ if bytes.len() > KMER_BLOCK_BYTES => None,
            ENDS => {
                let ends: Vec<PlacedEnds> = serde_json::from_slice(bytes).ok()?;
                let is_ordered = ends.is_sorted_by(|ends, next| ends.place() < next.place());
                is_ordered.then_some(Counted::Ends(ends))
            }
            KMERS => {
                let (mut codes, mut counts): (Vec<C>, Vec<u32>) = Default::default();
                unpack_kmers(bytes, &mut codes, &mut counts)?;
                let has_k_bases = codes.last().is_none_or(|last| last.wide() >> (2 * k) == 0);
                has_k_bases.then_some(Counted::Kmers(codes, counts))
            }
            _ => None,
        }
    }

    fn rows(&self) -> usize {
        match self {
            Counted::Ends(ends) => ends.len(),
            Counted::Kmers(codes, _) => codes.len(),
        }
    }

    fn compare(&self, row: usize, other: &Self, other_row: usize) -> Ordering {
        match (self, other) {
            (Counted::Ends(ends), Counted::Ends(others)) => ends[row].place().cmp(&others[other_row].place()),
            (Counted::Ends(_), Counted::Kmers(..)) => Ordering::Less,
            (Counted::Kmers(..), Counted::Ends(_)) => Ordering::Greater,
            (Counted::Kmers(codes, _), Counted::Kmers(others, _)) => codes[row].cmp(&others[other_row]),
        }
    }

    fn alone(&self, row: usize) -> Self {
        match self {
            Counted::Ends(ends) => Counted::Ends(vec![ends[row].clone()]),
            Counted::Kmers(codes, counts) => Counted::Kmers(vec![codes[row]], vec![counts[row]]),
        }
    }
}

/// Counts the k-mers of files on nodes, and writes the same table as a local [`inshore_tables::count_kmers`]
/// of the same files.
///
/// Memory of the client: 2 MiB for each node, the answers in transit, the memory of the table writer, and 16 bytes
/// for each k-mer across a border of FASTA shards. If the client counts shards itself, it also reserves half of
/// the free budget.
///
/// # Errors
/// Returns the errors of [`inshore_tables::count_kmers`] and [`inshore_nodes::run_on_nodes`]. Compressed files are
/// refused, since nodes do not decompress. FASTQ files are refused if their shards do not end with records. If a node
/// is lost in the middle of its answer and no other node has its shards, the result is an error even if partial answers
/// are allowed.
pub fn count_kmers_on_nodes(
    nodes: &Nodes,
    job: &Context,
    wholes: &[DistributedFile],
    output: &Path,
    options: &KmerOptions,
    run: &RunOptions,
) -> Result<(KmerSummary, GatherReport), Error> {
    options.check()?;
    TableWriter::check_path(output)?;
    let asker = Asker { nodes, options: run, context: job };
    let files = wholes.iter().map(|whole| look_at(&asker, whole));
    let files = files.collect::<Result<Vec<_>, Error>>()?;
    let arguments = Arguments { k: options.k, canonical: options.canonical, files };
    let told = serde_json::to_value(&arguments).expect("plain data");
    // A node that repeats the task of a lost node sends two answers at the same time.
    let held = 2 * nodes.addresses().count() as u64 * ROWS_BYTES;
    let _memory = job.budget().reserve(held, "k-mers of nodes")?;
    job.start_phase("counting", "k-mers", 0);
    let with = HelpOptions::default();
    thread::scope(|scope| {
        let (streams, help) = stream_with_help(nodes, job, (KIND, true), told, wholes, run, with)?;
        if let Some(help) = help {
            let count_max = wholes.iter().map(|whole| whole.pieces.len()).sum();
            let arguments = &arguments;
            scope.spawn(move || {
                let count = |job: &Job, pieces, reply: &mut dyn Reply| {
                    count_here(job, arguments, pieces, count_max, reply)
                };
                help.work(job, run.help_on.as_ref(), count);
            });
        }
        match options.k {
            ..=32 => merge::<u64>(job, streams, output, options),
            _ => merge::<u128>(job, streams, output, options),
        }
    })
}

/// Merges the counts of all nodes, and writes the table.
fn merge<C: PackedCode>(
    job: &Context,
    streams: Streams,
    output: &Path,
    options: &KmerOptions,
) -> Result<(KmerSummary, GatherReport), Error> {
    let mut merged = Merged::<Counted<C>>::new(streams, options.k)?;
    let mut borders = KmerBorders::new(options, job.budget())?;
    let mut behind = None;
    // The first and last letters of all shards come before the first k-mer.
    while let Some(Counted::Ends(_)) = merged.first()? {
        let Some((Counted::Ends(ends), rows)) = merged.next()? else { continue };
        for PlacedEnds { whole, offset, bytes, ends } in &ends[rows] {
            borders.piece(ends, behind == Some((*whole, *offset)))?;
            behind = Some((*whole, offset.saturating_add(*bytes)));
        }
    }
    let mut writer = KmerWriter::create(job, output, options);
    let mut sums = KmerSums::default();
    let (mut codes, mut counts): (Vec<C>, Vec<u32>) = Default::default();
    loop {
        let of_nodes = merged.next_together()?;
        let lists = of_nodes.iter().map(list).collect::<Result<Vec<_>, _>>()?;
        let last = lists.iter().filter_map(|(codes, _)| codes.last()).max();
        codes.clear();
        counts.clear();
        borders.up_to(last.map_or(u128::MAX, |last| last.wide()), &mut codes, &mut counts);
        let lists: Vec<KmerList<'_, C>> =
            lists.into_iter().chain(iter::once((&codes[..], &counts[..]))).collect();
        let (codes, counts) = sums.of(&lists);
        writer.add(codes, counts)?;
        if of_nodes.is_empty() {
            break;
        }
    }
    let counted = KmerSummary {
        sequences: merged.told("sequences"),
        bases: merged.told("bases"),
        kmers: borders.kmers().saturating_add(merged.told("kmers")),
        runs: merged.told("runs"),
        bytes_spilled: merged.told("bytes_spilled"),
        ..KmerSummary::default()
    };
    Ok((writer.finish(counted)?, merged.finish()))
}

/// Returns the codes and counts of a range of rows.
///
/// # Errors
/// Returns [`tables::Error::Damaged`] if the rows are the first and last letters of shards, and not k-mers.
fn list<'a, C>((counted, rows): &(&'a Counted<C>, Range<usize>)) -> tables::Result<KmerList<'a, C>> {
    match counted {
        Counted::Kmers(codes, counts) => Ok((&codes[rows.clone()], &counts[rows.clone()])),
        Counted::Ends(_) => {
            let what = "protocol error: a node sent ends of pieces after its k-mers".to_string();
            Err(tables::Error::Damaged { file: "k-mers of nodes".to_string(), what })
        }
    }
}

/// Detects the format of a file by its first letter. Returns an error for a file whose k-mers nodes cannot count.
fn look_at(asker: &Asker<'_>, whole: &DistributedFile) -> Result<FileOfSequences, Error> {
    let (name, partial) = (whole.title.clone(), asker.options.partial);
    if whole.is_grouped {
        return Err(NodesError::RowGroups { name }.into());
    }
    if let Some(record_bytes) = whole.record_bytes {
        return Err(NodesError::NoLines { name, record_bytes }.into());
    }
    let is = |is_fastq: bool, begin: u64| Ok(FileOfSequences { name: name.clone(), is_fastq, begin });
    let ends_with_records = whole.record_lines == Some(FASTQ_LINES);
    let (mut at, mut step, mut lines) = (0, HEAD_BYTES, 0);
    while at < whole.bytes() {
        let end = whole.bytes().min(at + step);
        let head = match asker.read(whole, at..end) {
            Ok(head) => head,
            // If the first shard is missing, the file's metadata still shows the format: only shards of FASTQ end
            // with records of four lines.
            Err(NodesError::Missing { .. }) if partial && ends_with_records => return is(true, 0),
            Err(NodesError::Missing { what }) if partial => {
                let what = format!("the first shard, which tells FASTA from FASTQ, was not read: {what}");
                return Err(NodesError::Incomplete { name, what }.into());
            }
            Err(error) => return Err(error.into()),
        };
        if at == 0 {
            check_plain(&name, &head)?;
        }
        // A byte order mark is skipped in the same way as empty lines.
        let mark = if at == 0 && head.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        let blank = mark + head[mark..].iter().take_while(|letter| b"\r\n".contains(letter)).count();
        lines += head[..blank].iter().filter(|&&letter| letter == b'\n').count() as u64;
        let begin = at + blank as u64;
        match &head[blank..] {
            [] => (at, step) = (end, (4 * step).min(HEAD_BYTES_MAX)),
            [b'>', ..] => return is(false, begin),
            [b'@', ..] if ends_with_records || whole.pieces.len() == 1 => return is(true, begin),
            [b'@', ..] => {
                return Err(Error::unfit(
                    &name,
                    "its pieces end with lines, not with records of FASTQ: load it again with store put, under a name that ends with .fastq",
                ));
            }
            found => {
                let line = found.split(|&letter| letter == b'\n').next().unwrap_or_default();
                let expected = "'>' of FASTA or '@' of FASTQ";
                return Err(tables::Error::bad_line(&name, lines + 1, expected, line).into());
            }
        }
    }
    is(false, at)
}

#[cfg(test)]
mod tests;

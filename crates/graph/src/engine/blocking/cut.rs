//! Partitions edges into columns. A column has the edges to one range of destinations.
//!
//! Each worker walks over a part of the vertices in order, and appends each edge to the buffer of the edge's column. A
//! packed frame holds 256 edges, and frames fill a chunk. A full chunk stays in memory while there is space, and is
//! appended to the worker's file otherwise.

use std::{ops::Range, sync::Mutex};

use inshore_sortreduce::FRAME_RECORDS;
use inshore_store::{Buffer, CheckedFile, FileWriter, Job, Reservation, taken_bytes};

use super::{DestinationBlocks, Packing, senders::Senders};
use crate::{
    Result,
    csr::{self, Csr, IndexCursor, RANGE_UNIT, RowReader},
    engine::estimates::BlockingPlan,
};

const FRAME_BYTES: usize = FRAME_RECORDS * 8;
/// Memory for chunks is allocated in units of this size: one huge page.
const HELD_PIECE_BYTES: usize = 2 << 20;

/// A chunk: consecutive edges of a column, packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedChunk {
    pub place: ChunkLocation,
    pub edges: u32,
}

/// The location of a chunk, in memory or in a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChunkLocation {
    Held { number: u32 },
    Flash { number: u32 },
}

/// Returns the memory for partitioning edges into `columns` columns, without the chunks that stay in memory.
pub(super) fn memory_bytes(plan: &BlockingPlan, columns: usize) -> u64 {
    let reading = (csr::CURSOR_BYTES + csr::UNPACKER_BYTES) as usize;
    let rows = reading + taken_bytes(plan.windows * csr::WINDOW_BYTES);
    let gathered = taken_bytes(columns * plan.chunk_bytes) + taken_bytes(columns * FRAME_BYTES);
    let written = 2 * write_bytes(plan) + open_bytes(columns) as usize;
    let held = if plan.state_in_memory { HELD_PIECE_BYTES } else { 0 };
    (plan.workers * (rows + gathered + written) + held) as u64
}

fn write_bytes(plan: &BlockingPlan) -> usize {
    plan.windows * plan.chunk_bytes
}

/// Partitions the edges of all rows. Each worker partitions the rows of a part of the vertices.
pub(super) fn cut(job: &Job, plan: BlockingPlan, rows: Csr, senders: Senders) -> Result<DestinationBlocks> {
    job.start_phase("partitioning edges by destination", "edges", rows.entries);
    let vertices = rows.vertices;
    let columns = vertices.div_ceil(plan.width) as usize;
    let bits = u64::BITS - (plan.width - 1).leading_zeros();
    let room = Mutex::new(ChunkSpace {
        job: job.clone(),
        chunk_bytes: plan.chunk_bytes,
        left: plan.held_bytes,
        spare: Vec::new(),
        is_stopped: false,
    });
    let mut cutters = Vec::with_capacity(plan.workers);
    for range in parts(job, &rows, plan.workers)? {
        cutters.push((Partitioner::new(job, plan, columns, bits, &room)?, range));
    }
    let work = |mut cutter: Partitioner, range: Range<u64>| -> Result<PartitionOutput> {
        let first_sender = if range.start < vertices { senders.before(range.start) } else { senders.count() };
        let cut = cutter.walk(&rows, range, first_sender).and_then(|()| cutter.finish(first_sender));
        if cut.is_err() {
            room.lock().expect("no panic under this lock").is_stopped = true;
        }
        cut
    };
    let cuts = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            cutters.into_iter().map(|(cutter, range)| scope.spawn(move || work(cutter, range))).collect();
        let ends: Vec<_> =
            threads.into_iter().map(|thread| thread.join().expect("a cutter does not panic")).collect();
        ends.into_iter().collect::<Result<Vec<_>>>()
    })?;
    Ok(DestinationBlocks { plan, rows, senders, bits, cuts })
}

/// Divides all vertices into a part for each worker, with about equal numbers of edges.
fn parts(job: &Job, rows: &Csr, workers: usize) -> Result<Vec<Range<u64>>> {
    let (vertices, entries) = (rows.vertices, rows.entries);
    let mut index = IndexCursor::new(job, rows)?;
    let mut before = |vertex: u64| -> Result<u64> { Ok(index.find(vertex as u32)?.0) };
    let mut ends = vec![0];
    for part in 1..workers as u64 {
        let wanted = entries / workers as u64 * part;
        let (mut low, mut high) = (ends[part as usize - 1] / RANGE_UNIT, vertices.div_ceil(RANGE_UNIT));
        while low < high {
            let middle = low.midpoint(high);
            if before(middle * RANGE_UNIT)? < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        ends.push((low * RANGE_UNIT).min(vertices));
    }
    ends.push(vertices);
    Ok(ends.windows(2).map(|ends| ends[0]..ends[1]).collect())
}

/// The space for chunks that stay in memory, shared by all workers.
struct ChunkSpace {
    job: Job,
    chunk_bytes: usize,
    left: u64,
    spare: Vec<Buffer>,
    /// Tells whether a worker failed.
    is_stopped: bool,
}

impl ChunkSpace {
    /// Takes an empty chunk from the space; returns `None` if no space is left.
    fn take(&mut self) -> Result<Option<Buffer>> {
        if self.spare.is_empty() && self.left >= HELD_PIECE_BYTES as u64 {
            self.left -= HELD_PIECE_BYTES as u64;
            let piece = Buffer::zeroed(self.job.budget(), HELD_PIECE_BYTES, "edges in memory")?;
            self.spare = piece.split(self.chunk_bytes);
        }
        Ok(self.spare.pop())
    }
}

/// The output of one worker: the edges of the worker's part of all vertices.
pub(super) struct PartitionOutput {
    /// The number of senders in all earlier parts, which is also the number of this part's first sender.
    pub first_sender: u64,
    /// The chunks of each column, in order.
    pub chunks: Vec<Vec<PackedChunk>>,
    pub held: Vec<Buffer>,
    /// The worker's file. The value is `None` if all chunks are in memory.
    pub file: Option<CheckedFile>,
    _lists: Reservation,
}

/// Returns the memory that lists take for each chunk: the chunk's location, and its buffer or its checksum. The
/// capacity of a list may be twice its length.
pub(super) fn listed_bytes(plan: &BlockingPlan) -> u64 {
    let other = if plan.state_in_memory { size_of::<Buffer>() } else { size_of::<u32>() };
    2 * (size_of::<PackedChunk>() + other) as u64
}

fn open_bytes(columns: usize) -> u64 {
    (columns * (size_of::<OpenBlock>() + size_of::<Vec<PackedChunk>>())) as u64
}

/// The chunk of a column that is being filled.
struct OpenBlock {
    /// The number of keys of the column's incomplete frame.
    keys: usize,
    chunk: Buffer,
    filled: usize,
    edges: u32,
    chunks: Vec<PackedChunk>,
}

struct Partitioner<'a> {
    job: &'a Job,
    plan: BlockingPlan,
    bits: u32,
    packing: Packing,
    /// For each column, the keys of the column's incomplete frame.
    keys: Buffer,
    open: Vec<OpenBlock>,
    room: &'a Mutex<ChunkSpace>,
    held: Vec<Buffer>,
    file: Option<FileWriter>,
    written: u32,
    lists: Reservation,
    listed: u64,
    /// Tells whether another worker failed.
    is_stopped: bool,
}

impl<'a> Partitioner<'a> {
    fn new(
        job: &'a Job,
        plan: BlockingPlan,
        columns: usize,
        bits: u32,
        room: &'a Mutex<ChunkSpace>,
    ) -> Result<Partitioner<'a>> {
        let keys = Buffer::zeroed(job.budget(), columns * FRAME_BYTES, "partitioned edges")?;
        let chunks =
            Buffer::zeroed(job.budget(), columns * plan.chunk_bytes, "buffers of the edge partition")?;
        let open = |chunk| OpenBlock { keys: 0, chunk, filled: 0, edges: 0, chunks: Vec::new() };
        Ok(Partitioner {
            job,
            plan,
            bits,
            packing: Packing::new().expect("words are packed"),
            keys,
            open: chunks.split(plan.chunk_bytes).into_iter().map(open).collect(),
            room,
            held: Vec::new(),
            file: None,
            written: 0,
            lists: job.budget().reserve(open_bytes(columns), "columns")?,
            listed: 0,
            is_stopped: false,
        })
    }

    /// Partitions the rows of a range of vertices. `sender` is the number of the range's first vertex with edges.
    fn walk(&mut self, rows: &Csr, range: Range<u64>, mut sender: u64) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let job = self.job;
        let mut rows = RowReader::deep(job, rows, range.clone(), self.plan.windows)?;
        for vertex in range {
            if self.is_stopped {
                return Ok(());
            }
            let degree = rows.start(vertex as u32)?;
            if degree == 0 {
                continue;
            }
            while let Some(part) = rows.part()? {
                self.put_all(sender, part.row)?;
            }
            job.progress().add(degree.into());
            sender += 1;
        }
        Ok(())
    }

    #[inline]
    fn put_all(&mut self, sender: u64, row: &[u32]) -> Result<()> {
        let width = self.plan.width as u32;
        for &to in row {
            let column = (to / width) as usize;
            let key = sender << self.bits | u64::from(to % width);
            let open = &mut self.open[column];
            self.keys.typed_mut::<u64>()[column * FRAME_RECORDS + open.keys] = key;
            open.keys += 1;
            if open.keys == FRAME_RECORDS {
                self.pack(column)?;
            }
        }
        Ok(())
    }

    /// Packs a column's keys into its chunk.
    #[inline(never)]
    fn pack(&mut self, column: usize) -> Result<()> {
        loop {
            let open = &mut self.open[column];
            let keys = &self.keys.typed::<u64>()[column * FRAME_RECORDS..][..open.keys];
            let values = &[(); FRAME_RECORDS][..open.keys];
            if let Some(bytes) = self.packing.pack(keys, values, &mut open.chunk[open.filled..]) {
                open.filled += bytes;
                open.edges += open.keys as u32;
                open.keys = 0;
                return Ok(());
            }
            self.close(column)?;
        }
    }

    /// Moves a column's chunk to fresh memory or to the worker's file, and begins an empty chunk.
    fn close(&mut self, column: usize) -> Result<()> {
        let mut room = self.room.lock().expect("no panic under this lock");
        self.is_stopped = room.is_stopped;
        let fresh = room.take()?;
        drop(room);
        let open = &mut self.open[column];
        let place = match fresh {
            Some(mut fresh) => {
                // The chunk is copied to fresh memory, so that the buffer can be reused.
                fresh[..open.filled].copy_from_slice(&open.chunk[..open.filled]);
                self.held.push(fresh);
                ChunkLocation::Held { number: (self.held.len() - 1) as u32 }
            }
            None => {
                if self.file.is_none() {
                    let (block_bytes, buffer_bytes) = (self.plan.chunk_bytes, write_bytes(&self.plan));
                    let writer = FileWriter::create(self.job, "columns", block_bytes, buffer_bytes)?;
                    self.file = Some(writer);
                }
                self.file.as_mut().expect("made above").write(&open.chunk)?;
                self.written += 1;
                ChunkLocation::Flash { number: self.written - 1 }
            }
        };
        self.listed += 1;
        self.lists.resize(open_bytes(self.open.len()) + self.listed * listed_bytes(&self.plan))?;
        let open = &mut self.open[column];
        open.chunks.push(PackedChunk { place, edges: open.edges });
        (open.filled, open.edges) = (0, 0);
        Ok(())
    }

    fn finish(mut self, first_sender: u64) -> Result<PartitionOutput> {
        for column in 0..self.open.len() {
            if self.open[column].keys > 0 {
                self.pack(column)?;
            }
            if self.open[column].edges > 0 {
                self.close(column)?;
            }
        }
        let file = self.file.map(FileWriter::finish).transpose()?;
        self.lists.resize(
            (self.open.len() * size_of::<Vec<PackedChunk>>()) as u64 + self.listed * listed_bytes(&self.plan),
        )?;
        let chunks = self.open.into_iter().map(|open| open.chunks).collect();
        Ok(PartitionOutput { first_sender, chunks, held: self.held, file, _lists: self.lists })
    }
}

//! Lanes: each parsing thread has outputs of its own (a lane), so that the bitmap of ids is the only data that threads
//! share.

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{bounded, unbounded};

use inshore_sortreduce::{Config, Sink, SortReduce};
use inshore_store::{Job, Reservation};
use inshore_tables::{LINE_BYTES_MAX, ahead_bytes};

use super::{
    ImportOptions,
    idset::{IdInserter, IdSet},
    log::{EdgeLog, EdgeLogWriter, WRITE_BYTES, lanes},
};
use crate::{
    Result,
    csr::{EdgeOperation, edge_key, writer_bytes},
};

/// The number of edges that are added at once, so that the memory they need can be prefetched.
const STEP: usize = 4 << 10;
/// With a smaller budget all edges go through logs. A sort during parsing would share the memory with all other
/// buffers. It could then merge only few sorted runs, which would limit the number of edges.
const SORTING_BUDGET_BYTES: u64 = 32 << 20;
/// The bytes of memory that are left free for small allocations that are not reserved.
const SLACK_BYTES: u64 = 512 << 10;

/// The lane of one thread: its input to the sort of edges, its log of edges, and its view of the set of ids.
pub(super) struct Lane<'a, E: EdgeOperation> {
    ids: IdInserter<'a>,
    /// The input of the sort. The value is `None` if all edges go to the log.
    sink: Option<Sink<E>>,
    log: EdgeLogWriter,
    undirected: bool,
    drop_loops: bool,
    /// Edges between 32-bit ids that are not added yet.
    keys: Vec<u64>,
    values: Vec<E::Value>,
}

impl<E: EdgeOperation> Lane<'_, E> {
    /// Adds an edge and its vertices.
    #[inline]
    pub fn edge(&mut self, source: u64, destination: u64, weight: f64) -> Result<()> {
        if self.drop_loops && source == destination {
            return self.vertex(source);
        }
        if (source | destination) >> 32 != 0 || self.sink.is_none() {
            return self.log_edge(source, destination, weight);
        }
        self.keys.push(edge_key(source as u32, destination as u32));
        self.values.push(E::value(weight));
        if self.keys.len() >= STEP { self.flush() } else { Ok(()) }
    }

    /// Adds edges, given as pairs of little-endian 32-bit ids.
    pub fn pairs(&mut self, bytes: &[u8]) -> Result<()> {
        let (pairs, _) = bytes.as_chunks::<8>();
        if self.sink.is_none() {
            let ids = pairs.iter().map(|pair| u64::from_le_bytes(*pair));
            return ids
                .map(|pair| (pair & u64::from(u32::MAX), pair >> 32))
                .try_for_each(|(from, to)| self.edge(from, to, 1.0));
        }
        for pairs in pairs.chunks(STEP) {
            self.flush()?;
            // The first id of a pair becomes the high half of the key.
            self.keys.extend(pairs.iter().map(|pair| u64::from_le_bytes(*pair).rotate_left(32)));
            if self.drop_loops {
                for loops in self.keys.extract_if(.., |key| *key >> 32 == *key & u64::from(u32::MAX)) {
                    self.ids.insert(loops >> 32)?;
                }
            }
            self.values.resize(self.keys.len(), E::value(1.0));
        }
        Ok(())
    }

    /// Adds a vertex that may have no edges.
    pub fn vertex(&mut self, id: u64) -> Result<()> {
        self.ids.insert(id).map(drop)
    }

    fn log_edge(&mut self, source: u64, destination: u64, weight: f64) -> Result<()> {
        self.ids.insert(source)?;
        self.ids.insert(destination)?;
        self.log.push(source, destination, weight)
    }

    /// Adds the buffered edges. The order of ids is the order of vertex numbers, so edges between low ids can be sorted
    /// before these ids have numbers.
    fn flush(&mut self) -> Result<()> {
        if !self.ids.insert_low(&self.keys) {
            self.log_high()?;
        }
        let Some(sink) = &mut self.sink else { return Ok(()) };
        sink.push_many(&self.keys, |place| self.values[place])?;
        if self.undirected {
            let turned = self.keys.iter().map(|key| key.rotate_left(32));
            for ((key, turned), &value) in self.keys.iter().zip(turned).zip(&self.values) {
                // The reverse of a self-loop is the self-loop itself, and is not added twice.
                if turned != *key {
                    sink.push(turned, value)?;
                }
            }
        }
        self.keys.clear();
        self.values.clear();
        Ok(())
    }

    /// Adds the ids of all buffered edges, and moves edges with an id that is not low from the buffer to the log.
    fn log_high(&mut self) -> Result<()> {
        let mut kept = 0;
        for place in 0..self.keys.len() {
            let (key, value) = (self.keys[place], self.values[place]);
            let (source, destination) = (key >> 32, key & u64::from(u32::MAX));
            let (from_low, to_low) = (self.ids.insert(source)?, self.ids.insert(destination)?);
            if from_low && to_low {
                (self.keys[kept], self.values[kept]) = (key, value);
                kept += 1;
            } else {
                self.log.push(source, destination, E::weight(value))?;
            }
        }
        self.keys.truncate(kept);
        self.values.truncate(kept);
        Ok(())
    }

    /// Ends the input of this lane. Returns the log of the lane, and whether all ids of the lane were low.
    fn finish(mut self) -> Result<(EdgeLogWriter, bool)> {
        self.flush()?;
        self.sink.map_or(Ok(()), Sink::finish)?;
        Ok((self.log, self.ids.finish()?))
    }
}

/// The lanes of all threads.
pub(super) struct Lanes<'a, E: EdgeOperation> {
    pub lanes: Vec<Lane<'a, E>>,
    sorter: Option<SortReduce<E>>,
    _buffers: Reservation,
    /// The size of a block of lines in bytes. A thread parses one block at a time, and a line can be at most this long.
    pub block_bytes: usize,
}

/// The edges of all lanes after the end of the input.
pub(super) enum Edges<E: EdgeOperation> {
    /// Edges sorted by id. All ids are low.
    Sorted(SortReduce<E>),
    /// Edges in the order of input. Their ids must get numbers before the edges can be sorted.
    Logged(Vec<EdgeLog>),
}

impl<'a, E: EdgeOperation> Lanes<'a, E> {
    /// Creates lanes. Blocks of lines get an eighth of the memory, and the sort of edges gets the rest.
    pub fn new(job: &Job, set: &'a IdSet, undirected: bool, options: &ImportOptions) -> Result<Lanes<'a, E>> {
        let count = lanes(job);
        let buffers_bytes = STEP * (size_of::<u64>() + size_of::<E::Value>());
        let buffers = job.budget().reserve((count * buffers_bytes) as u64, "edges to be sorted")?;
        let free = job.budget().free_bytes();
        // Each lane has a block that it parses and a block that waits, and the reader fills another block.
        let block_bytes = (free as usize / 8 / (2 * count + 1)).clamp(64 << 10, LINE_BYTES_MAX as usize);
        let logs = count as u64 * WRITE_BYTES;
        let numbering = set.sealing_bytes() + writer_bytes(job);
        let blocks = blocks_bytes(block_bytes, count) + ahead_bytes(job.budget());
        let taken = blocks + logs + numbering + SLACK_BYTES;
        let config = Config {
            memory_bytes: free.saturating_sub(taken),
            sinks: count,
            name: "edges",
            ..Config::default()
        };
        let sorter = match job.budget().memory_bytes() < SORTING_BUDGET_BYTES {
            true => None,
            false => Some(SortReduce::new(job, E::default(), &config)?),
        };
        let mut lanes = Vec::with_capacity(count);
        for _ in 0..count {
            lanes.push(Lane {
                ids: set.inserter(),
                sink: sorter.as_ref().map(SortReduce::sink).transpose()?,
                log: EdgeLogWriter::new(job, E::WEIGHTED)?,
                undirected,
                drop_loops: options.drop_loops,
                keys: Vec::with_capacity(STEP),
                values: Vec::with_capacity(STEP),
            });
        }
        Ok(Lanes { lanes, sorter, _buffers: buffers, block_bytes })
    }

    /// Reads blocks in this thread and passes each block to the thread of a lane. `read` makes the next block; it gets
    /// a used block, if there is one, to reuse the block's memory. `work` adds the edges of a block to its lane. A
    /// block may be as large as [`Lanes::block_bytes`].
    ///
    /// # Errors
    /// Returns the error of `work`, which stops the reading. If `work` succeeds, returns the error of `read`.
    pub fn each_block<B: Send>(
        &mut self,
        job: &Job,
        mut read: impl FnMut(Option<B>) -> Result<Option<B>>,
        work: impl Fn(&mut Lane<E>, B) -> Result<B> + Sync,
    ) -> Result<()> {
        let count = self.lanes.len();
        let _memory = job.budget().reserve(blocks_bytes(self.block_bytes, count), "blocks of edges")?;
        let (full, blocks) = bounded::<B>(count);
        let (empty, recycled) = unbounded::<B>();
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut workers = Vec::with_capacity(count);
            for lane in &mut self.lanes {
                let (blocks, empty, work, failed) = (blocks.clone(), empty.clone(), &work, &failed);
                workers.push(scope.spawn(move || -> Result<()> {
                    for block in blocks {
                        let block =
                            work(lane, block).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                        if failed.load(Ordering::Relaxed) {
                            break;
                        }
                        // The send fails if the reader has ended, which is no error.
                        let _ = empty.send(block);
                    }
                    Ok(())
                }));
            }
            drop((blocks, empty));
            let mut reading = || -> Result<()> {
                while let Some(block) = read(recycled.try_recv().ok())? {
                    job.check_cancelled()?;
                    if failed.load(Ordering::Relaxed) || full.send(block).is_err() {
                        break;
                    }
                }
                Ok(())
            };
            let read = reading();
            drop(full);
            let worked: Vec<Result<()>> =
                workers.into_iter().map(|worker| worker.join().expect("a lane does not panic")).collect();
            // A failed lane stops the reading. The lane's error is returned in preference to the reader's error, since
            // the user wants to know of a wrong line. If several lanes failed, the error of any of them is returned.
            worked.into_iter().collect::<Result<()>>()?;
            read
        })
    }

    /// Ends the input of all lanes, and returns their edges.
    pub fn finish(self, job: &Job) -> Result<Edges<E>> {
        let undirected = self.lanes[0].undirected;
        // Lanes sort their last edges in parallel.
        let finished: Vec<_> = std::thread::scope(|scope| {
            let lanes: Vec<_> = self.lanes.into_iter().map(|lane| scope.spawn(|| lane.finish())).collect();
            lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect()
        });
        let mut logs = Vec::with_capacity(finished.len());
        let mut all_low = true;
        for lane in finished {
            let (log, is_low) = lane?;
            all_low &= is_low;
            logs.push(log);
        }
        let sorter = match self.sorter {
            Some(sorter) if all_low => return Ok(Edges::Sorted(sorter)),
            sorter => sorter,
        };
        // At least one id is not low. All edges must then be sorted together, by the vertex numbers of their ids, so
        // the sorted edges go to the logs too.
        job.start_phase("merging edges", "edges", 0);
        let mut sorted = sorter.map(SortReduce::finish).transpose()?;
        let mut lane = 0;
        while let Some(sorted) = &mut sorted
            && let Some(block) = sorted.next_block()?
        {
            job.progress().add(block.keys.len() as u64);
            lane = (lane + 1) % logs.len();
            for (&key, &value) in block.keys.iter().zip(block.values) {
                let (source, destination) = (key >> 32, key & u64::from(u32::MAX));
                if !undirected || source <= destination {
                    logs[lane].push(source, destination, E::weight(value))?;
                }
            }
        }
        Ok(Edges::Logged(logs.into_iter().map(EdgeLogWriter::finish).collect::<Result<_>>()?))
    }
}

/// Returns the memory of all blocks, and of the line that is cut off at the end of a block.
fn blocks_bytes(block_bytes: usize, lanes: usize) -> u64 {
    (block_bytes * (2 * lanes + 2)) as u64
}

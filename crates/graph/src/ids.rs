//! Streams the user's ids of vertices, and translates vertex numbers to ids.

use inshore_sortreduce::{Config, Operation, SortReduce, Sorted};
use inshore_store::{Buffer, CheckedFile, FileReader, Job};

use crate::{Graph, Result, idfile::BLOCK_BYTES};

/// A stream of the ids of vertices 0, 1, 2, ...
pub(crate) enum IdStream {
    Dense(u64),
    File { reader: FileReader, piece: Vec<u64>, used: usize },
}

/// The bytes of memory that one [`IdStream`] takes.
pub(crate) const STREAM_BYTES: u64 = 3 * BLOCK_BYTES as u64;

impl IdStream {
    pub fn new(job: &Job, graph: &Graph) -> Result<IdStream> {
        Ok(match graph.ids() {
            None => IdStream::Dense(0),
            Some(file) => {
                let reader = FileReader::new(job, file, 0..file.len(), BLOCK_BYTES)?;
                IdStream::File { reader, piece: Vec::new(), used: 0 }
            }
        })
    }

    /// Returns the next `count` ids, which must exist.
    pub fn take(&mut self, count: usize) -> Result<Vec<u64>> {
        let mut ids = Vec::with_capacity(count);
        match self {
            IdStream::Dense(next) => {
                ids.extend(*next..*next + count as u64);
                *next += count as u64;
            }
            IdStream::File { reader, piece, used } => {
                while ids.len() < count {
                    if *used == piece.len() {
                        let bytes = reader.next_piece()?.expect("an id for each vertex");
                        piece.clear();
                        piece.extend(
                            bytes.chunks_exact(8).map(|id| u64::from_le_bytes(id.try_into().expect("8"))),
                        );
                        *used = 0;
                    }
                    let part = (count - ids.len()).min(piece.len() - *used);
                    ids.extend_from_slice(&piece[*used..*used + part]);
                    *used += part;
                }
            }
        }
        Ok(ids)
    }
}

/// Translates vertex numbers that belong to vertices (parents, labels, ends of edges) to ids. Lookups must be in the
/// order of the vertices to which the numbers belong.
pub(crate) enum Translation {
    /// Each vertex number is its own id.
    Dense,
    /// All ids are in memory.
    Memory(Buffer),
    /// A stream of pairs `(vertex, number)`, each with the id of the number. The stream is in the order of vertices,
    /// and is the result of two sorts on flash.
    Sorted { stream: Box<Sorted<SingleValue>>, keys: Vec<u64>, values: Vec<u64>, used: usize },
}

/// Sorts records with a value, if each key occurs once.
#[derive(Clone)]
pub(crate) struct SingleValue;

impl Operation for SingleValue {
    type Key = u64;
    type Value = u64;
    fn combine(&self, a: u64, _: u64) -> u64 {
        a
    }
}

/// Sorts pairs of two numbers. The key consists of both numbers.
#[derive(Clone)]
struct PairSort;

impl Operation for PairSort {
    type Key = u64;
    type Value = ();
    fn combine(&self, _: (), _: ()) {}
}

impl Translation {
    /// Prepares to translate. `pairs` passes every `(vertex, number)` that will be looked up to its callback, in any
    /// order. `pairs` is called only if the ids do not fit in half of the free budget. The pairs are then sorted by
    /// number, joined with the ids, and sorted by vertex. Each of these two sorts has as many records as there are
    /// pairs.
    pub fn new(
        graph: &Graph,
        job: &Job,
        pairs: impl FnOnce(&mut dyn FnMut(u32, u32) -> Result<()>) -> Result<()>,
    ) -> Result<Translation> {
        let Some(file) = graph.ids() else { return Ok(Translation::Dense) };
        // The buffer is rounded up to whole huge pages of 2 MiB.
        if file.len() + (2 << 20) <= job.budget().free_bytes() / 2 {
            return Ok(Translation::Memory(read_all(job, file)?));
        }
        job.start_phase("translating ids", "vertices", graph.vertices());
        let memory_bytes = (job.budget().free_bytes().saturating_sub(STREAM_BYTES + 128 * 1024)) / 2;
        let by_number = Config { memory_bytes, sinks: 1, name: "by-number", ..Config::default() };
        let sorter = SortReduce::new(job, PairSort, &by_number)?;
        let mut sink = sorter.sink()?;
        pairs(&mut |vertex, number| Ok(sink.push((number as u64) << 32 | vertex as u64, ())?))?;
        sink.finish()?;
        let mut sorted = sorter.finish()?;
        let by_vertex = Config { name: "by-vertex", ..by_number };
        let sorter = SortReduce::new(job, SingleValue, &by_vertex)?;
        let mut sink = sorter.sink()?;
        let mut ids = IdStream::new(job, graph)?;
        let (mut taken, mut id) = (0u64, 0);
        while let Some(block) = sorted.next_block()? {
            for &key in block.keys {
                let number = key >> 32;
                while taken <= number {
                    // The loop also takes the ids between two numbers that occur. This is slow only if few numbers
                    // occur, and then there are few pairs to translate.
                    id = ids.take(1)?[0];
                    taken += 1;
                }
                sink.push(key << 32 | number, id)?;
            }
            job.progress().add(block.keys.len() as u64);
        }
        drop((sorted, ids));
        sink.finish()?;
        let stream = Box::new(sorter.finish()?);
        Ok(Translation::Sorted { stream, keys: Vec::new(), values: Vec::new(), used: 0 })
    }

    /// Returns the id of `number`, which belongs to `vertex`. `pairs` must have passed this pair before. Calls must
    /// pass pairs in ascending order, and may repeat the last pair.
    pub fn id(&mut self, vertex: u32, number: u32) -> Result<u64> {
        match self {
            Translation::Dense => Ok(number as u64),
            Translation::Memory(ids) => Ok(ids.typed::<u64>()[number as usize]),
            Translation::Sorted { stream, keys, values, used } => {
                let key = (vertex as u64) << 32 | number as u64;
                while keys.get(*used).is_none_or(|&known| known < key) {
                    *used += 1;
                    if *used >= keys.len() {
                        let block = stream.next_block()?.expect("every pair that is asked for was given");
                        keys.clear();
                        keys.extend_from_slice(block.keys);
                        values.clear();
                        values.extend_from_slice(block.values);
                        *used = 0;
                    }
                }
                assert_eq!(keys[*used], key, "pairs are asked for in order");
                Ok(values[*used])
            }
        }
    }
}

fn read_all(job: &Job, file: &CheckedFile) -> Result<Buffer> {
    let mut ids = Buffer::zeroed(job.budget(), file.len() as usize, "the ids of all vertices")?;
    let mut reader = FileReader::new(job, file, 0..file.len(), BLOCK_BYTES)?;
    let mut at = 0;
    while let Some(piece) = reader.next_piece()? {
        ids[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    Ok(ids)
}

//! Reads whole rows in order, by one thread or by several.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_store::{FileReader, Job};

use super::{
    Csr, PAGE_VERTICES, WINDOW_BYTES, WINDOW_PAGES,
    cursor::{CURSOR_BYTES, Degrees, IndexCursor},
    packed::{UNPACKER_BYTES, Unpacker},
    typed,
};
use crate::{Error, Result};

/// The bytes of memory that a scan without weights takes.
pub(crate) const SCAN_BYTES: u64 = CURSOR_BYTES + 2 * WINDOW_BYTES as u64 + UNPACKER_BYTES;

/// Returns the number of parallel scans that a budget allows: one per thread, as long as they fit in a quarter of the
/// free memory.
pub(crate) fn scan_threads(job: &Job) -> usize {
    let fit = (job.budget().free_bytes() / 4 / SCAN_BYTES) as usize;
    job.budget().threads().min(fit).max(1)
}

/// Reads rows of a range of vertices, one vertex after the other.
pub(crate) struct RowReader {
    csr: Csr,
    degrees: Degrees,
    edges: FileReader,
    unpacker: Unpacker,
    weights: Option<FileReader>,
    /// The entries of the range that were not returned yet, and the number of those that belong to the current vertex.
    entries: Range<u64>,
    left: u32,
    /// The number of weights in the current buffer that were returned.
    used: usize,
}

impl RowReader {
    pub fn new(job: &Job, csr: &Csr, vertices: Range<u64>) -> Result<RowReader> {
        Self::deep(job, csr, vertices, 2)
    }

    /// Creates a reader with several buffers for edges (and for weights). While one buffer is in use, all other buffers
    /// can have a read in flight.
    pub fn deep(job: &Job, csr: &Csr, vertices: Range<u64>, buffers: usize) -> Result<RowReader> {
        let mut cursor = IndexCursor::new(job, csr)?;
        let (mut entries, mut blocks) = (0..0, 0..0);
        if !vertices.is_empty() {
            let (last, degree) = cursor.find((vertices.end - 1) as u32)?;
            let (first, _) = cursor.find(vertices.start as u32)?;
            entries = first..last + degree as u64;
            if vertices.end == csr.vertices && entries.end != csr.entries {
                let found = format!("{} edges", entries.end);
                return Err(csr.bad_index(found, csr.entries.to_string()));
            }
            if !entries.is_empty() {
                let span = cursor.span(entries.clone(), u64::from(u32::MAX))?;
                blocks = span.bytes();
            }
        }
        let edges = FileReader::deep(job, &csr.edges, blocks, WINDOW_BYTES, buffers)?;
        let weights = match &csr.weights {
            Some(file) => {
                let range = entries.start * 8..entries.end * 8;
                Some(FileReader::deep(job, file, range, WINDOW_BYTES, buffers)?)
            }
            None => None,
        };
        let (csr, degrees, unpacker) = (csr.clone(), Degrees::after(cursor), Unpacker::new());
        Ok(RowReader { csr, degrees, edges, unpacker, weights, entries, left: 0, used: 0 })
    }

    /// Moves to `vertex`, the next vertex of the range, and returns the length of its row. The previous row must have
    /// been read to its end.
    pub fn start(&mut self, vertex: u32) -> Result<u32> {
        debug_assert_eq!(self.left, 0, "the row before was read whole");
        self.left = self.degrees.of(vertex)?;
        Ok(self.left)
    }

    fn too_long(&self) -> Error {
        self.csr.bad_index(
            format!("{} edges after the end of the range", self.left),
            "no further edges in this range".to_string(),
        )
    }

    /// Returns the next part of the current row, with its weights if the graph has weights. Returns `None` at the end
    /// of the row.
    pub fn part(&mut self) -> Result<Option<RowPart<'_>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let start = self.entries.start;
        if self.entries.is_empty() || !self.unpacker.entries().contains(&start) {
            self.unpack()?;
        }
        let mut len = u64::from(self.left).min(self.unpacker.entries().end.min(self.entries.end) - start);
        let mut of_weights = 0..0;
        if let Some(weights) = &mut self.weights {
            if self.used * 8 == weights.piece().len() {
                weights.next_piece()?.expect("a weight for each edge");
                self.used = 0;
            }
            len = len.min((weights.piece().len() / 8 - self.used) as u64);
            of_weights = self.used..self.used + len as usize;
            self.used = of_weights.end;
        }
        self.entries.start += len;
        self.left -= len as u32;
        let row = self.unpacker.get(start..start + len);
        let weights = self.weights.as_ref().map(|weights| &typed::<f64>(weights.piece())[of_weights]);
        Ok(Some(RowPart { row, weights }))
    }

    fn unpack(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Err(self.too_long());
        }
        while !self.unpacker.unpack(&self.csr, self.edges.piece(), self.entries.clone())? {
            if self.edges.next_piece()?.is_none() {
                return Err(self.too_long());
            }
            self.unpacker.restart();
        }
        Ok(())
    }
}

/// A part of a row.
pub(crate) struct RowPart<'a> {
    pub row: &'a [u32],
    /// The weights of `row`, one for each destination, if the graph has weights.
    pub weights: Option<&'a [f64]>,
}

/// Calls `each(source, destinations, weights)` with the rows of `vertices`, in order. A long row is passed in several
/// parts; vertices without edges are skipped.
pub(crate) fn scan(
    job: &Job,
    csr: &Csr,
    vertices: Range<u64>,
    mut each: impl FnMut(u32, &[u32], Option<&[f64]>) -> Result<()>,
) -> Result<()> {
    let mut rows = RowReader::new(job, csr, vertices.clone())?;
    for vertex in vertices {
        rows.start(vertex as u32)?;
        while let Some(part) = rows.part()? {
            each(vertex as u32, part.row, part.weights)?;
        }
    }
    Ok(())
}

/// Scans all vertices with one thread for each of `states`. The order of rows is not defined.
pub(crate) fn scan_parallel<S: Send>(
    job: &Job,
    csr: &Csr,
    states: Vec<S>,
    each: impl Fn(&mut S, u32, &[u32], Option<&[f64]>) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let work = |state: &mut S, vertices: Range<u64>| {
        scan(job, csr, vertices, |source, row, weights| each(state, source, row, weights))
    };
    parallel_ranges(csr.vertices, states, work)
}

/// Ranges of [`parallel_ranges`] begin at multiples of this number of vertices: the vertices of the index pages that
/// are read at once.
pub(crate) const RANGE_UNIT: u64 = WINDOW_PAGES * PAGE_VERTICES;

/// Returns the number of vertices per range of [`parallel_ranges`], a multiple of [`RANGE_UNIT`]. There are about 16
/// ranges per thread, so that a few long rows do not keep a single thread busy while the others wait.
pub(crate) fn range_vertices(vertices: u64, threads: usize) -> u64 {
    (vertices / (16 * threads as u64)).max(1).next_multiple_of(RANGE_UNIT)
}

/// Calls `work` as [`parallel_ranges`] does. Each call also gets the part of `values` for its range; `values` has an
/// element per vertex.
pub(crate) fn parallel_parts<T: Send, S: Send>(
    values: &mut [T],
    states: Vec<S>,
    work: impl Fn(&mut S, Range<u64>, &mut [T]) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let vertices = values.len() as u64;
    let step = range_vertices(vertices, states.len()) as usize;
    let parts: Vec<_> = values.chunks_mut(step).map(|part| Mutex::new(Some(part))).collect();
    parallel_ranges(vertices, states, |state, range| {
        let part = parts[range.start as usize / step].lock().expect("no panic under this lock").take();
        work(state, range, part.expect("each range comes once"))
    })
}

/// Calls `work` for all ranges of [`range_vertices`], with one thread for each of `states`. The order of ranges is not
/// defined, but those of one thread ascend.
pub(crate) fn parallel_ranges<S: Send>(
    vertices: u64,
    states: Vec<S>,
    work: impl Fn(&mut S, Range<u64>) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let next = AtomicU64::new(0);
    let step = range_vertices(vertices, states.len());
    let work = |mut state: S| -> Result<S> {
        loop {
            let start = next.fetch_add(step, Ordering::Relaxed);
            if start >= vertices {
                return Ok(state);
            }
            work(&mut state, start..(start + step).min(vertices))?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = states.into_iter().map(|state| scope.spawn(|| work(state))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a scan does not panic")).collect()
    })
}

//! Cached rows: if a pull finds no active vertex in a row, the row stays in memory for the next supersteps.
//!
//! After the superstep that reaches most vertices, vertices that still wait have few edges each. In a Kronecker graph
//! of scale 25, the first pull reads all 529 million edges, and about 8 million of these edges belong to vertices that
//! still wait. The rows of these vertices stay unpacked in memory, and later pulls scan the rows without a read from
//! flash.

use std::sync::{Arc, Mutex};

use inshore_store::{Budget, Buffer};

use crate::Result;

/// The number of 32-bit words before a row. One word is the row's vertex, and the other is the row's length together
/// with [`IS_WHOLE`].
const HEAD_WORDS: usize = 2;
/// A flag of a row that has all edges of its vertex.
const IS_WHOLE: u32 = 1 << 31;
/// Rows are cached only if they can have at least as many bytes of memory as the number of the graph's edges divided by
/// this number.
const TRIED_SHARE: u64 = 16;
/// Size of a buffer, which holds some thousands of rows.
const PIECE_BYTES: usize = 256 << 10;
const PIECE_WORDS: usize = PIECE_BYTES / 4;
/// The size of all buffers together is rounded up to whole huge pages of this size.
const ROUNDED_BYTES: u64 = 2 << 20;

/// Cached rows in several buffers of memory. Any worker may scan any of the buffers.
pub(crate) struct CachedRows(Vec<RowPiece>);

/// A buffer with some of the rows.
struct RowPiece {
    buffer: Buffer,
    used: usize,
}

/// Empty buffers for all workers of a superstep.
#[derive(Clone)]
pub(super) struct CacheSpace(Arc<Mutex<Vec<Buffer>>>);

/// The rows that one worker caches.
pub(super) struct CachedRowsWriter {
    room: CacheSpace,
    pieces: Vec<RowPiece>,
    /// Tells whether no empty buffer was left for a row.
    is_full: bool,
}

/// Returns the part of `free_bytes` that cached rows of a graph with this number of edges may take: enough for a
/// quarter of the edges at most. Returns `None` if that part is too small to be of use.
pub(super) fn room_bytes(free_bytes: u64, edges: u64) -> Option<u64> {
    let wanted = edges.max(2 * ROUNDED_BYTES).min(free_bytes.saturating_sub(ROUNDED_BYTES));
    let bytes = wanted / PIECE_BYTES as u64 * PIECE_BYTES as u64;
    (bytes > 0 && bytes >= edges / TRIED_SHARE).then_some(bytes)
}

impl CacheSpace {
    /// Allocates this number of bytes, divided into buffers of [`PIECE_BYTES`].
    pub fn new(budget: &Budget, bytes: u64) -> Result<CacheSpace> {
        let all = Buffer::zeroed(budget, bytes as usize, "cached rows")?;
        // Workers take buffers from the end of this list, so the first buffer in memory is last.
        let pieces = all.split(PIECE_BYTES).into_iter().rev().collect();
        Ok(CacheSpace(Arc::new(Mutex::new(pieces))))
    }

    /// Creates the writer of one worker.
    pub fn writer(&self) -> CachedRowsWriter {
        CachedRowsWriter { room: self.clone(), pieces: Vec::new(), is_full: false }
    }
}

impl CachedRowsWriter {
    /// Caches a row for the next superstep.
    #[inline]
    pub fn push(&mut self, vertex: u32, row: &[u32], is_whole: bool) {
        let words = HEAD_WORDS + row.len();
        match self.pieces.last_mut().filter(|piece| piece.used + words <= PIECE_WORDS) {
            Some(piece) => piece.push(vertex, row, is_whole),
            None => self.push_more(vertex, row, is_whole),
        }
    }

    #[cold]
    fn push_more(&mut self, vertex: u32, row: &[u32], is_whole: bool) {
        // A long row is split into several rows.
        let is_whole = is_whole && row.len() <= PIECE_WORDS - HEAD_WORDS;
        for part in row.chunks(PIECE_WORDS - HEAD_WORDS) {
            let Some(buffer) = self.room.0.lock().expect("no panic under this lock").pop() else {
                self.is_full = true;
                return;
            };
            let mut piece = RowPiece { buffer, used: 0 };
            piece.push(vertex, part, is_whole);
            self.pieces.push(piece);
        }
    }
}

impl CachedRows {
    /// Collects the rows of all workers after a superstep that scanned all rows; returns `None` if a worker's rows did
    /// not fit.
    pub(super) fn of(workers: impl IntoIterator<Item = CachedRowsWriter>) -> Option<CachedRows> {
        let mut pieces = Vec::new();
        for writer in workers {
            if writer.is_full {
                return None;
            }
            pieces.extend(writer.pieces);
        }
        Some(CachedRows(pieces))
    }

    /// Estimates the number of cached edges. The result is a little too large, since it counts two words before each
    /// row.
    pub fn edges(&self) -> u64 {
        self.0.iter().map(|piece| piece.used as u64).sum()
    }

    /// Calls `look` with each row, its vertex, and a flag that is set if the row has all edges of the vertex. Keeps the
    /// rows for which `look` returns true. Each of the sinks belongs to one worker.
    pub(super) fn retain<K: Send>(
        &mut self,
        sinks: &mut [K],
        look: impl Fn(&mut K, u32, &[u32], bool) -> bool + Sync,
    ) {
        let pieces = Mutex::new(self.0.iter_mut());
        let work = |sink: &mut K| {
            loop {
                let next = pieces.lock().expect("no panic under this lock").next();
                let Some(piece) = next else { return };
                piece.retain(|vertex, row, is_whole| look(sink, vertex, row, is_whole));
            }
        };
        std::thread::scope(|scope| {
            let (first, others) = sinks.split_first_mut().expect("at least one worker");
            others.iter_mut().for_each(|sink| _ = scope.spawn(|| work(sink)));
            work(first);
        });
    }
}

impl RowPiece {
    fn push(&mut self, vertex: u32, row: &[u32], is_whole: bool) {
        let words = &mut self.buffer.typed_mut::<u32>()[self.used..][..HEAD_WORDS + row.len()];
        words[0] = vertex;
        words[1] = row.len() as u32 | if is_whole { IS_WHOLE } else { 0 };
        words[HEAD_WORDS..].copy_from_slice(row);
        self.used += words.len();
    }

    fn retain(&mut self, mut look: impl FnMut(u32, &[u32], bool) -> bool) {
        let words = &mut self.buffer.typed_mut::<u32>()[..self.used];
        let (mut at, mut kept) = (0, 0);
        while at < words.len() {
            let (vertex, length) = (words[at], words[at + 1]);
            let row = at + HEAD_WORDS..at + HEAD_WORDS + (length & !IS_WHOLE) as usize;
            if look(vertex, &words[row.clone()], length & IS_WHOLE != 0) {
                if kept < at {
                    words.copy_within(at..row.end, kept);
                }
                kept += HEAD_WORDS + row.len();
            }
            at = row.end;
        }
        self.used = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(cached: &mut CachedRows) -> Vec<(u32, Vec<u32>, bool)> {
        let mut sinks = [Vec::new(), Vec::new()];
        cached.retain(&mut sinks, |rows, vertex, row, is_whole| {
            rows.push((vertex, row.to_vec(), is_whole));
            true
        });
        let mut all = sinks.concat();
        all.sort();
        all
    }

    #[test]
    fn rows_come_back_as_they_were_cached_and_long_ones_in_parts() {
        let budget = Budget::new(64 << 20, 2);
        let room = CacheSpace::new(&budget, room_bytes(budget.free_bytes(), 1 << 20).unwrap()).unwrap();
        let long: Vec<u32> = (0..PIECE_WORDS as u32 + 10).collect();
        let mut workers = [room.writer(), room.writer()];
        for vertex in 0..10_000u32 {
            let row: Vec<u32> = (vertex..vertex + 1 + vertex % 90).collect();
            workers[vertex as usize % 2].push(vertex, &row, vertex % 3 == 0);
        }
        workers[0].push(10_000, &long, true);
        let mut cached = CachedRows::of(workers).unwrap();
        let rows = rows_of(&mut cached);
        assert_eq!(rows.len(), 10_002);
        for (vertex, row, is_whole) in &rows[..10_000] {
            assert_eq!(*row, (*vertex..vertex + 1 + vertex % 90).collect::<Vec<_>>());
            assert_eq!(*is_whole, vertex % 3 == 0);
        }
        let parts: Vec<u32> = rows[10_000..].iter().flat_map(|(_, row, _)| row.clone()).collect();
        assert!(parts == long && rows[10_000..].iter().all(|(vertex, _, whole)| *vertex == 10_000 && !whole));

        cached.retain(&mut [(), ()], |(), vertex, _, _| vertex % 7 == 3);
        let kept: Vec<u32> = rows_of(&mut cached).iter().map(|(vertex, ..)| *vertex).collect();
        assert_eq!(kept, (0..10_000).filter(|vertex| vertex % 7 == 3).collect::<Vec<_>>());
    }

    #[test]
    fn rows_that_do_not_fit_are_not_cached_in_part() {
        let budget = Budget::new(64 << 20, 1);
        let room = CacheSpace::new(&budget, room_bytes(budget.free_bytes(), 1).unwrap()).unwrap();
        let (mut first, second) = (room.writer(), room.writer());
        for vertex in 0..2_000 {
            first.push(vertex, &[7; 1000], true);
        }
        assert!(CachedRows::of([first, second]).is_none());
        assert_eq!(room_bytes(3 << 20, 1 << 40), None);
    }
}

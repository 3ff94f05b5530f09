//! Finds triangles: joins the rows in memory with a stream of all rows.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use inshore_sortreduce::{Config, Sink, SortReduce, Sorted, Strategy, smallest_memory_bytes};
use inshore_store::{Buffer, Job, format_bytes, largest_buffer, taken_bytes};

use super::{SumOfEdges, edges_of, vertex_of};
use crate::{
    Result, Tuning,
    csr::{self, Csr, RowReader, parallel_ranges},
    engine::memory_bytes,
};

/// Finds triangles in oriented rows.
pub(super) struct Triangles<'a> {
    pub job: &'a Job,
    pub oriented: &'a Csr,
    /// The number of entries of the longest row.
    pub row_max: usize,
    pub tuning: &'a Tuning,
    pub seen: AtomicU64,
}

impl Triangles<'_> {
    /// Returns, for each vertex of a triangle, the number of directed edges between the vertex's neighbours. Also
    /// returns the number of passes over the edges, and the name of the sort-reduce strategy that computed the sums.
    pub fn find(&self) -> Result<(Sorted<SumOfEdges>, u32, &'static str)> {
        let vertices = self.oriented.vertices;
        let free = self.job.budget().free_bytes();
        let each = csr::SCAN_BYTES + taken_bytes(self.row_max * 4) as u64;
        // The array of sums gets at most a third of the free memory. The rest is for rows in memory.
        let record_bytes = size_of::<u32>() + size_of::<u64>();
        let threads = csr::scan_threads(self.job);
        let fits = |threads: usize| {
            free / 3 >= smallest_memory_bytes(threads, record_bytes).max(threads as u64 * each)
        };
        let threads = (1..=threads).rev().find(|&threads| fits(threads)).unwrap_or(1);
        let array_bytes = 2 * memory_bytes::<u64>(vertices) + (32 << 20);
        let smallest = smallest_memory_bytes(threads, record_bytes);
        let memory_bytes = array_bytes.max(smallest).min(free / 3);
        let block_bytes = free.saturating_sub(memory_bytes + threads as u64 * each);
        let config = Config {
            key_range: Some(vertices),
            memory_bytes,
            sinks: threads,
            strategy: self.tuning.strategy.filter(|&strategy| strategy != Strategy::Dense),
            chunk_bytes: self.tuning.chunk_bytes,
            name: "triangles",
            ..Config::default()
        };
        let sorter = SortReduce::new(self.job, SumOfEdges, &config)?;
        let mut workers = Vec::with_capacity(threads);
        for _ in 0..threads {
            let row = Buffer::zeroed(self.job.budget(), self.row_max * 4, "a row of a graph")?;
            workers.push((sorter.sink()?, row));
        }
        let mut held = RowsInMemory::new(self.job, block_bytes)?;
        self.job.progress().tell(|| {
            let bytes = format_bytes(block_bytes.min(4 * self.oriented.entries));
            format!("edges are loaded into memory, {bytes} at a time, and joined with one pass over the graph each")
        });
        let mut passes = 0;
        while held.load_next(self.job, self.oriented)? {
            passes += 1;
            self.job.start_phase(format!("pass {passes}"), "edges", self.oriented.entries);
            workers = parallel_ranges(vertices, workers, |(sink, row), range| {
                let row = row.typed_mut::<u32>();
                let mut rows = RowReader::new(self.job, self.oriented, range.clone())?;
                let (mut edges, mut seen) = (0, 0);
                for vertex in range {
                    let mut length = 0;
                    rows.start(vertex as u32)?;
                    while let Some(part) = rows.part()? {
                        row[length..length + part.row.len()].copy_from_slice(part.row);
                        length += part.row.len();
                    }
                    edges += length as u64;
                    if length > 1 {
                        seen += held.meet(vertex as u32, &row[..length], sink)?;
                    }
                }
                self.seen.fetch_add(seen, Ordering::Relaxed);
                self.job.progress().add(edges);
                Ok(())
            })?;
        }
        for (sink, _) in workers {
            sink.finish()?;
        }
        drop(held);
        let strategy = match sorter.strategy() {
            Strategy::Dense => "dense",
            Strategy::Partition => "partition",
            Strategy::Merge | Strategy::HashFirst => "merge",
        };
        Ok((sorter.finish()?, passes, strategy))
    }
}

/// Consecutive rows in memory. Entries fill the buffer from its front, and the offsets of rows fill it from its end.
struct RowsInMemory {
    words: Buffer,
    vertices: Range<u64>,
}

impl RowsInMemory {
    fn new(job: &Job, bytes: u64) -> Result<RowsInMemory> {
        // Offsets of rows are 32-bit numbers, so the size of the buffer is limited.
        let bytes = largest_buffer(bytes.min(8 << 30) as usize);
        Ok(RowsInMemory { words: Buffer::zeroed(job.budget(), bytes, "rows of a graph")?, vertices: 0..0 })
    }

    /// Loads as many of the next rows as fit. Returns false if no row is left.
    fn load_next(&mut self, job: &Job, oriented: &Csr) -> Result<bool> {
        let start = self.vertices.end;
        let words = self.words.typed_mut::<u32>();
        let (mut entries, mut end) = (0, start);
        if start == oriented.vertices {
            return Ok(false);
        }
        let mut rows = RowReader::new(job, oriented, start..oriented.vertices)?;
        let last = words.len() - 1;
        words[last] = 0;
        while end < oriented.vertices {
            let degree = rows.start(end as u32)? as usize;
            let begins = (end + 1 - start) as usize;
            if entries + degree + begins + 1 > words.len() {
                break;
            }
            while let Some(part) = rows.part()? {
                words[entries..entries + part.row.len()].copy_from_slice(part.row);
                entries += part.row.len();
            }
            words[last - begins] = entries as u32;
            end += 1;
        }
        if end == start {
            let what = "a row of the graph in memory".to_string();
            let given = job.budget().memory_bytes();
            // Rows in memory get at least a third of the budget, so each missing byte requires three more bytes of
            // budget.
            let missing = (u64::from(rows.start(end as u32)?) + 2) * 4 - words.len() as u64 * 4;
            let smallest = given + 3 * missing;
            return Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into());
        }
        self.vertices = start..end;
        Ok(true)
    }

    fn row(&self, vertex: u32) -> &[u32] {
        let words = self.words.typed::<u32>();
        let number = (vertex as u64 - self.vertices.start) as usize;
        let begin = |number: usize| words[words.len() - 1 - number] as usize;
        &words[begin(number)..begin(number + 1)]
    }

    /// Finds the triangles that have two edges in `row`, the row of `vertex`, and the third edge in a row in memory.
    /// Returns the number of these triangles.
    fn meet(&self, vertex: u32, row: &[u32], sink: &mut Sink<SumOfEdges>) -> Result<u64> {
        let begin = row.partition_point(|&to| u64::from(vertex_of(to)) < self.vertices.start);
        let end = row.partition_point(|&to| u64::from(vertex_of(to)) < self.vertices.end);
        let (mut sum, mut seen) = (0, 0);
        for &second in &row[begin..end] {
            let mut second_sum = 0;
            for_common(row, self.row(vertex_of(second)), |from_first, from_second| {
                sum += edges_of(from_second);
                second_sum += edges_of(from_first);
                seen += 1;
                Ok(sink.push(vertex_of(from_first), edges_of(second))?)
            })?;
            if second_sum > 0 {
                sink.push(vertex_of(second), second_sum)?;
            }
        }
        if sum > 0 {
            sink.push(vertex, sum)?;
        }
        Ok(seen)
    }
}

/// If one row is more than this many times as long as the other, binary search replaces the merge of both rows.
const SEARCHED: usize = 32;

/// Calls `each` with the two entries of every vertex that is in both rows.
fn for_common(a: &[u32], b: &[u32], mut each: impl FnMut(u32, u32) -> Result<()>) -> Result<()> {
    if a.len() > SEARCHED * b.len() {
        return for_common_searched(b, a, |from_b, from_a| each(from_a, from_b));
    }
    if b.len() > SEARCHED * a.len() {
        return for_common_searched(a, b, each);
    }
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (vertex_of(a[i]), vertex_of(b[j]));
        if x == y {
            each(a[i], b[j])?;
        }
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    Ok(())
}

fn for_common_searched(
    short: &[u32],
    long: &[u32],
    mut each: impl FnMut(u32, u32) -> Result<()>,
) -> Result<()> {
    let mut left = long;
    for &wanted in short {
        left = &left[left.partition_point(|&entry| vertex_of(entry) < vertex_of(wanted))..];
        match left.first() {
            Some(&entry) if vertex_of(entry) == vertex_of(wanted) => each(wanted, entry)?,
            Some(_) => {}
            None => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::entry, *};

    #[test]
    fn common_entries_of_rows_are_those_of_sets() {
        let evens: Vec<u32> = (0..1000).map(|vertex| entry(2 * vertex, vertex % 3 == 0)).collect();
        let few: Vec<u32> = [0, 3, 6, 1998, 1999, 5000].map(|vertex| entry(vertex, true)).to_vec();
        let all: Vec<u32> = (0..3000).map(|vertex| entry(vertex, false)).collect();
        for (a, b) in [(&evens, &few), (&few, &evens), (&evens, &all), (&all, &evens), (&few, &few)] {
            let mut found = Vec::new();
            for_common(a, b, |from_a, from_b| {
                found.push((from_a, from_b));
                Ok(())
            })
            .unwrap();
            let twin = |&from_a: &u32| {
                let from_b = b.iter().find(|&&from_b| vertex_of(from_b) == vertex_of(from_a));
                from_b.map(|&from_b| (from_a, from_b))
            };
            assert_eq!(found, a.iter().filter_map(twin).collect::<Vec<_>>());
        }
    }
}

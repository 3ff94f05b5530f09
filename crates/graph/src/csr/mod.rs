//! Compressed sparse rows on flash: lookups (`cursor.rs`), scans (`scan.rs`) and writing (`write.rs`). Layout:
//! `docs/format.md`, "Graph".
//!
//! ```text
//!   index page (4 KiB):  u64 entry   number of the first edge of the page's first vertex
//!                        u32 block   number of the block with that edge, or of an earlier block
//!                        u32 degree  x 1021
//!
//!   index ──► number of an edge ──► blocks: first frames ──► block of packed edges
//! ```
//!
//! A degree per vertex and an edge number per page take 4 bytes per vertex. An array of edge numbers would take 8. The
//! number of a vertex's first edge is the page's edge number plus the degrees of the page's earlier vertices. This sum
//! takes at most 1020 additions in cache, and one addition if vertices are looked up in order. Edges are packed in
//! blocks (`packed.rs`). A separate file holds the number of each block's first frame in 4 bytes, and thereby maps an
//! edge to its block (`blocks.rs`). A part of this file is in memory.

mod blocks;
mod cursor;
mod packed;
mod scan;
mod write;

use inshore_sortreduce::{Config, Operation, SortReduce, Sorted};
use inshore_store::{CheckedFile, FileWriter, Job};

pub(crate) use self::cursor::{CURSOR_BYTES, Degrees, IndexCursor, Span};
pub(crate) use self::packed::{UNPACKER_BYTES, Unpacker};
pub(crate) use self::scan::{
    RANGE_UNIT, RowReader, SCAN_BYTES, parallel_parts, parallel_ranges, range_vertices, scan, scan_parallel,
    scan_threads,
};
pub(crate) use self::write::{
    CsrFiles, CsrStats, CsrWriter, IdentityNumbering, Numbering, STEP, StagedRows, write_rows, writer_bytes,
};
use crate::{Error, Result};

/// The number of vertices in an index page.
pub(crate) const PAGE_VERTICES: u64 = 1021;
const PAGE_BYTES: u64 = 4096;
/// The number of bytes before the degrees of a page.
const PAGE_HEADER_BYTES: usize = 12;
/// Index and edge files have one checksum per block of this size. Blocks are small, since supersteps with few active
/// vertices read blocks at random.
pub(crate) const BLOCK_BYTES: usize = 16 << 10;
/// The number of bytes that a scan reads at once, and the most that a cursor reads at once.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;
const BLOCK_PAGES: u64 = BLOCK_BYTES as u64 / PAGE_BYTES;
const WINDOW_PAGES: u64 = WINDOW_BYTES as u64 / PAGE_BYTES;

/// Returns the memory of the checksums of the files of `csr`: 4 bytes per block.
pub(crate) fn checksum_bytes(csr: &Csr) -> u64 {
    checksum_bytes_max(csr.vertices, csr.entries, false)
}

/// Returns an upper bound on the memory of the checksums, before this number of vertices and entries is written.
fn checksum_bytes_max(vertices: u64, entries: u64, weighted: bool) -> u64 {
    let edges = packed::blocks_bytes_max(entries) + if weighted { entries * 8 } else { 0 };
    // The file of blocks has one checksum per 4096 blocks of edges.
    4 * ((edges + index_bytes(vertices)).div_ceil(BLOCK_BYTES as u64) + edges.div_ceil(64 << 20))
}

/// Returns the bytes of the index of `vertices` vertices.
pub(crate) fn index_bytes(vertices: u64) -> u64 {
    vertices.div_ceil(PAGE_VERTICES) * PAGE_BYTES
}

/// The edges of a graph in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Csr {
    pub vertices: u64,
    pub entries: u64,
    /// Upper limit of the values of entries: the number of vertices, except in rows that an algorithm wrote for its own
    /// use.
    pub entry_range: u64,
    pub index: CheckedFile,
    pub edges: CheckedFile,
    /// The file with the number of the first frame of each block of edges.
    pub blocks: CheckedFile,
    pub weights: Option<CheckedFile>,
}

impl Csr {
    fn files(&self) -> impl Iterator<Item = &CheckedFile> {
        [Some(&self.index), Some(&self.edges), Some(&self.blocks), self.weights.as_ref()]
            .into_iter()
            .flatten()
    }

    fn bad_index(&self, found: String, expected: String) -> Error {
        Error::BadGraph { name: self.index.name().to_string(), what: "degrees", found, expected }
    }

    /// Returns an error if a target is beyond the last vertex. Checksums prove that bytes are unchanged, but not that
    /// the bytes belong to a graph.
    pub fn check_targets(&self, targets: &[u32]) -> Result<()> {
        let max = targets.iter().copied().max().unwrap_or(0);
        if u64::from(max) < self.entry_range {
            return Ok(());
        }
        Err(Error::BadGraph {
            name: self.edges.name().to_string(),
            what: "target of an edge",
            found: format!("vertex number {max}"),
            expected: format!("vertex numbers below {}", self.entry_range),
        })
    }

    /// Creates the error for an edge that is not in the block that the index gives for it.
    pub fn misplaced(&self, first: u64) -> Error {
        self.bad_index(
            format!("edge {first} after the end of its block"),
            "each edge in the block that the index names".to_string(),
        )
    }

    /// Returns the memory that [`Self::hold`] takes, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.files().map(|file| CheckedFile::held_bytes(file.len())).sum()
    }

    /// Reads all files into memory. The returned rows read from this memory.
    pub fn hold(&self, job: &Job) -> Result<Csr> {
        let bytes = self.files().map(CheckedFile::len).sum();
        job.start_phase("reading edges into memory", "bytes", bytes);
        let hold = |file: &CheckedFile| file.hold(job, |bytes| job.progress().add(bytes));
        let (index, edges, blocks) = (hold(&self.index)?, hold(&self.edges)?, hold(&self.blocks)?);
        let weights = self.weights.as_ref().map(hold).transpose()?;
        Ok(Csr { index, edges, blocks, weights, ..self.clone() })
    }

    /// Returns the same rows without weights, for readers that need no weights.
    pub fn unweighted(&self) -> Csr {
        Csr { weights: None, ..self.clone() }
    }
}

/// Defines how edges are sorted. The key consists of source and destination, and the value is a weight or nothing.
/// Duplicate edges are merged into one edge with the smallest weight, so the result does not depend on the order of the
/// input.
pub(crate) trait EdgeOperation: Operation<Key = u64> + Default {
    const WEIGHTED: bool;
    fn value(weight: f64) -> Self::Value;
    fn weight(value: Self::Value) -> f64;
}

#[derive(Clone, Default)]
pub(crate) struct Unweighted;

impl Operation for Unweighted {
    type Key = u64;
    type Value = ();
    fn combine(&self, _: (), _: ()) {}
}

impl EdgeOperation for Unweighted {
    const WEIGHTED: bool = false;
    fn value(_: f64) {}
    fn weight(_: ()) -> f64 {
        1.0
    }
}

#[derive(Clone, Default)]
pub(crate) struct SmallestWeight;

impl Operation for SmallestWeight {
    type Key = u64;
    type Value = f64;
    fn combine(&self, a: f64, b: f64) -> f64 {
        a.min(b)
    }
}

impl EdgeOperation for SmallestWeight {
    const WEIGHTED: bool = true;
    fn value(weight: f64) -> f64 {
        weight
    }
    fn weight(value: f64) -> f64 {
        value
    }
}

/// Returns the key of an edge: the source in the high half, the destination in the low half.
pub(crate) fn edge_key(source: u32, destination: u32) -> u64 {
    (source as u64) << 32 | destination as u64
}

/// Sorts the edges of `csr` by their destination.
pub(crate) fn transposed<E: EdgeOperation>(job: &Job, csr: &Csr) -> Result<Sorted<E>> {
    job.start_phase("transposing edges", "edges", csr.entries);
    let threads = scan_threads(job);
    let scans = threads as u64 * SCAN_BYTES * if E::WEIGHTED { 2 } else { 1 };
    let writing = writer_bytes(job) + checksum_bytes(csr);
    let memory_bytes = job.budget().free_bytes().saturating_sub(scans + writing + 64 * 1024);
    let config = Config { memory_bytes, sinks: threads, name: "transpose", ..Config::default() };
    let sorter = SortReduce::new(job, E::default(), &config)?;
    let mut sinks = Vec::with_capacity(threads);
    for _ in 0..threads {
        sinks.push(sorter.sink()?);
    }
    let sinks = parallel_ranges(csr.vertices, sinks, |sink, range| {
        let mut rows = RowReader::new(job, csr, range.clone())?;
        for vertex in range {
            let source = vertex as u32;
            rows.start(source)?;
            while let Some(part) = rows.part()? {
                for (place, &destination) in part.row.iter().enumerate() {
                    let weight = part.weights.map_or(1.0, |weights| weights[place]);
                    sink.push(edge_key(destination, source), E::value(weight))?;
                }
                job.progress().add(part.row.len() as u64);
            }
        }
        Ok(())
    })?;
    for sink in sinks {
        sink.finish()?;
    }
    job.start_phase("writing in-edges", "edges", csr.entries);
    Ok(sorter.finish()?)
}

/// Transposes the edges, without weights, into the job's scratch.
pub(crate) fn transpose_to_scratch(job: &Job, csr: &Csr) -> Result<Csr> {
    let csr = &csr.unweighted();
    let sorted = transposed::<Unweighted>(job, csr)?;
    let create = |name: &str, block_bytes, buffer_bytes| {
        Ok(FileWriter::create(job, &format!("in.{name}"), block_bytes, buffer_bytes)?)
    };
    let writer = CsrWriter::new(job, create, csr.vertices, false, false)?;
    let files = write_rows(job, sorted, writer, &IdentityNumbering)?;
    let (index, edges, blocks) = (files.index.finish()?, files.edges.finish()?, files.blocks.finish()?);
    let entries = files.stats.entries;
    Ok(Csr { entries, index, edges, blocks, ..csr.clone() })
}

fn typed<T: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout>(bytes: &[u8]) -> &[T] {
    <[T] as zerocopy::FromBytes>::ref_from_bytes(bytes).expect("pieces are aligned and hold whole entries")
}

#[cfg(test)]
mod tests {
    use inshore_store::FileReader;

    use super::*;
    use crate::testing::test_job;

    /// Writes rows to scratch. Each index page is given as its first entry and its degrees.
    fn csr(job: &Job, vertices: u64, pages: &[(u64, Vec<u32>)], edges: &[u32]) -> Csr {
        let write = |name: &str, bytes: &[u8]| {
            let mut file = FileWriter::create(job, name, BLOCK_BYTES, BLOCK_BYTES).unwrap();
            file.write(bytes).unwrap();
            file.finish().unwrap()
        };
        let mut index = Vec::new();
        for (first, degrees) in pages {
            index.extend(first.to_le_bytes());
            index.extend([0; 4]);
            let padded = degrees.iter().copied().chain(std::iter::repeat(0)).take(PAGE_VERTICES as usize);
            index.extend(padded.flat_map(u32::to_le_bytes));
        }
        let (mut packed, mut blocks) = (Vec::new(), Vec::new());
        let mut packer = packed::Packer::new();
        let mut put = |first: u64, block: &[u8]| {
            blocks.extend((first as u32).to_le_bytes());
            packed.extend_from_slice(block);
            Ok(())
        };
        packer.push(edges, &mut put).unwrap();
        packer.finish(&mut put).unwrap();
        let entries = edges.len() as u64;
        let (index, edges) = (write("index", &index), write("edges", &packed));
        Csr {
            vertices,
            entries,
            entry_range: vertices,
            index,
            edges,
            blocks: write("blocks", &blocks),
            weights: None,
        }
    }

    /// Copies `csr` and replaces the numbers of first frames.
    fn with_blocks(job: &Job, csr: &Csr, first_frames: &[u32]) -> Csr {
        let mut file = FileWriter::create(job, "other blocks", BLOCK_BYTES, BLOCK_BYTES).unwrap();
        first_frames.iter().for_each(|frame| file.write(&frame.to_le_bytes()).unwrap());
        Csr { blocks: file.finish().unwrap(), ..csr.clone() }
    }

    #[test]
    fn blocks_are_found_from_any_edge_and_corrupt_first_frames_are_refused() {
        let (_folder, job) = test_job(8 << 20);
        let (degrees, edges): (Vec<u32>, Vec<u32>) =
            (vec![50_000, 1], (0..50_001).map(|at| at * 7919 % 50_021).collect());
        let good = Csr { entry_range: 50_021, ..csr(&job, 2, &[(0, degrees)], &edges) };
        let [scanned, _] = read(&job, &good);
        assert!(scanned.unwrap().iter().map(|&key| key as u32).eq(edges.iter().copied()));
        let count = good.blocks.len() / 4;
        assert!(count > 5, "{count} blocks");
        let mut cursor = IndexCursor::new(&job, &good).unwrap();
        cursor.find(0).unwrap();
        for start in [0, 127, 128, 20_000, 49_999, 50_000] {
            for blocks_max in [1, 2, 100] {
                let span = cursor.span(start..50_001, blocks_max).unwrap();
                assert!(span.entries.start == start && span.entries.end > start);
                assert!(span.blocks.end - span.blocks.start <= blocks_max);
                assert!(blocks_max < 100 || (span.entries.end, span.blocks.end) == (50_001, count));
                // The first block of the span holds the first edge.
                let mut bytes = FileReader::new(&job, &good.edges, span.bytes(), BLOCK_BYTES).unwrap();
                let first = bytes.next_piece().unwrap().unwrap();
                let mut unpacker = Unpacker::new();
                assert!(unpacker.unpack(&good, first, span.entries.clone()).unwrap());
                assert_eq!(unpacker.get(start..start + 1), &edges[start as usize..=start as usize]);
            }
        }
        let lies = [
            ("all at the beginning", vec![0; count as usize]),
            ("nothing at the beginning", vec![1; count as usize]),
            ("descending", (0..count as u32).rev().collect()),
            ("a block behind all edges", (0..count as u32).map(|at| at * 1000).collect()),
        ];
        for (lie, first_frames) in lies {
            let [scanned, _] = read(&job, &with_blocks(&job, &good, &first_frames));
            assert!(scanned.is_err(), "{lie}");
        }
    }

    /// Reads all rows by a cursor and by a scan, and returns the rows or the error of each.
    fn read(job: &Job, csr: &Csr) -> [std::result::Result<Vec<u64>, String>; 2] {
        let all = 0..csr.vertices;
        let mut scanned = Vec::new();
        let scan = scan(job, csr, all.clone(), |vertex, row, _| {
            scanned.extend(row.iter().map(|&to| edge_key(vertex, to)));
            Ok(())
        });
        let mut found = Vec::new();
        let find = IndexCursor::new(job, csr).and_then(|mut cursor| {
            all.clone().try_for_each(|vertex| {
                found.push(cursor.find(vertex as u32)?.0);
                Ok(())
            })
        });
        let told = |result: Result<()>, found| result.map(|()| found).map_err(|error| error.to_string());
        [told(scan, scanned), told(find, found)]
    }

    #[test]
    fn rows_are_read_whole_in_both_ways() {
        let (_folder, job) = test_job(8 << 20);
        let mut first = vec![0; PAGE_VERTICES as usize];
        (first[0], first[1020]) = (2, 1);
        let good = csr(&job, 1023, &[(0, first), (3, vec![1, 0])], &[5, 9, 1, 7]);
        let [scan, find] = read(&job, &good);
        let edges = [(0, 5), (0, 9), (1020, 1), (1021, 7)].map(|(from, to)| edge_key(from, to));
        assert_eq!(scan.unwrap(), edges);
        let found = find.unwrap();
        assert_eq!((found[0], found[1], found[1020], found[1021], found[1022]), (0, 2, 2, 3, 4));
    }

    #[test]
    fn a_corrupt_index_and_edges_to_missing_vertices_are_refused() {
        let (_folder, job) = test_job(8 << 20);
        let mut page = vec![0; PAGE_VERTICES as usize];
        page[3] = 2;
        let cases = [
            ("more edges than there are", csr(&job, 2, &[(0, vec![1, 5])], &[0, 1, 1])),
            ("fewer edges than there are", csr(&job, 2, &[(0, vec![1, 1])], &[0, 1, 1])),
            ("a page too late", csr(&job, 1024, &[(0, page.clone()), (3, vec![1, 0])], &[1, 2, 3, 4])),
            ("a page too early", csr(&job, 1024, &[(0, page), (1, vec![1, 1])], &[1, 2, 3])),
            ("an edge to nowhere", csr(&job, 2, &[(0, vec![1, 1])], &[0, 2])),
        ];
        for (case, csr) in cases {
            let [scan, _] = read(&job, &csr);
            let told = scan.expect_err(case);
            assert!(told.contains("expected"), "{case}: {told}");
        }
    }
}

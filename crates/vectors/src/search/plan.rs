//! The plan of a search determines how many queries one pass over the vectors answers, and how the vectors are read.

use inshore_store::format_bytes;
use serde::Serialize;

use crate::{
    Metric,
    dataset::CHECK_BYTES,
    element::Element,
    search::BATCH_ROWS,
    subblock::{HITS_MAX, subblock_rows},
    tiles::{Hit, Instructions, LANES_MAX},
    topk::TopK,
};

/// The largest size of a read. With this size, two reads in flight for each of two threads keep a drive busy.
const BLOCK_BYTES_MAX: usize = 1 << 20;
const BLOCK_BYTES_MIN: usize = 64 << 10;
/// The number of buffers of each thread. The thread searches the block in one buffer while the next block is read into
/// the other buffer.
const BUFFERS: usize = 2;
/// The number of buffers of each thread if few vectors are selected. The reads are then small, so more of them must be
/// in flight.
const SPARSE_BUFFERS: usize = 16;
/// If less than this fraction of the dataset is selected, the selected vectors count as few.
const SPARSE: f64 = 0.125;
/// The largest number of queries in a pass for which the rows are compared with one query after the other. With more
/// queries, tiles are faster.
const FEW: u64 = 4;
/// The memory, in bytes, that a query takes in addition to its elements and its neighbours.
const QUERY_BYTES: u64 = 64;

/// The estimates from which a plan is computed.
#[derive(Clone, Copy, Debug)]
pub struct Estimates {
    /// The number of vectors in the dataset.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the dataset.
    pub element: Element,
    /// The metric of the search.
    pub metric: Metric,
    /// The number of vectors that may be answers. The value is `None` if all vectors may.
    pub selected: Option<u64>,
    /// The number of queries.
    pub queries: u64,
    /// The number of neighbours of each query.
    pub k: u64,
    /// The size of the free memory in bytes.
    pub memory_bytes: u64,
    /// The number of worker threads that the budget allows.
    pub threads: usize,
    /// The memory in bytes that the reader of the query file needs.
    pub reader_bytes: u64,
}

/// The way in which rows are compared with queries. The answer does not depend on the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// Compares rows with many queries at a time, as a blocked matrix multiplication.
    Tiles,
    /// Compares rows with one query after the other, by sums over the dimensions of each row. The bandwidth of the
    /// memory limits the speed.
    Rows,
    /// Compares rows with one query after the other, by counts over the dimensions of each row. Hamming and Jaccard use
    /// counts.
    Counts,
}

/// The plan of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The number of passes over the vectors.
    pub passes: u64,
    /// The number of queries that a pass answers. The last pass may answer fewer.
    pub queries_per_pass: u64,
    /// The number of vectors in a block. A block is the unit of one read.
    pub block_rows: usize,
    /// The size of a read buffer in bytes.
    pub block_bytes: usize,
    /// The number of read buffers of each thread.
    pub buffers: usize,
    /// The number of vectors in a subblock, the part of a block that fits the cache.
    pub subblock_rows: usize,
    /// The number of worker threads.
    pub threads: usize,
    /// The memory of each query in bytes. A query takes memory for its elements, its packed elements, and its
    /// neighbours.
    pub query_bytes: u64,
    /// The memory in bytes that does not depend on the number of queries.
    pub fixed_bytes: u64,
    /// The number of bytes that a pass reads. If only some vectors are selected, the number is an upper estimate, which
    /// assumes that these vectors are spread evenly.
    pub pass_bytes: u64,
    /// The number of vectors that may be answers. The value is `None` if all vectors may.
    pub selected: Option<u64>,
    /// The instruction set of the filter.
    pub instructions: Instructions,
    /// The way in which vectors are compared with queries.
    pub kernel: Kernel,
}

impl Plan {
    /// Creates a plan. If the memory is too small for one query, [`Plan::smallest_bytes`] of the plan is larger than
    /// the memory.
    pub fn new(estimates: &Estimates) -> Plan {
        let Estimates { vectors, dimensions, element, queries, memory_bytes, reader_bytes, .. } = *estimates;
        let row_bytes = element.row_bytes(dimensions);
        // In tiles, integers have 16 bits and the number of dimensions is even. Elements of f16 and bf16 become f32.
        let lane_bytes = match element {
            Element::F32 | Element::F16 | Element::Bf16 => 4 * dimensions,
            Element::U8 | Element::I8 => 2 * dimensions.next_multiple_of(2),
            Element::Bits => row_bytes,
        };
        let subblock_rows = subblock_rows(lane_bytes);
        let widened = if lane_bytes == row_bytes { 0 } else { subblock_rows * lane_bytes };
        let hits = HITS_MAX * size_of::<Hit>();
        let numbers = if estimates.selected.is_some() { subblock_rows * size_of::<u32>() } else { 0 };
        let thread_bytes = widened + subblock_rows * 8 + hits + numbers;
        let k = estimates.k.min(estimates.selected.unwrap_or(vectors)).max(1);
        let is_sparse = estimates.selected.is_some_and(|rows| (rows as f64) < SPARSE * vectors as f64);
        let buffers = if is_sparse { SPARSE_BUFFERS } else { BUFFERS };
        let padding = LANES_MAX as u64 * lane_bytes as u64;
        let output = 2 * BATCH_ROWS as u64 * 24;
        let others = dimensions as u64 * 4 + padding + output + reader_bytes;
        let memory_of = |threads: usize, block_bytes: usize| {
            let buffers = inshore_store::taken_bytes(threads * buffers * block_bytes);
            (buffers + threads * thread_bytes) as u64
        };
        let query_bytes =
            (element.queried().row_bytes(dimensions) + lane_bytes) as u64 + QUERY_BYTES + TopK::bytes(k);
        // All buffers together take at most a quarter of the memory, so that most of it is left for queries.
        let fits = |threads: usize, block_bytes: usize| {
            let buffers = memory_of(threads, buffer_bytes(block_bytes, row_bytes));
            buffers <= memory_bytes / 4 && others + buffers + query_bytes <= memory_bytes
        };
        let mut threads = estimates.threads.max(1);
        while threads > 1 && !fits(threads, BLOCK_BYTES_MIN) {
            threads -= 1;
        }
        let mut block_bytes = if is_sparse { BLOCK_BYTES_MIN } else { BLOCK_BYTES_MAX };
        while block_bytes > BLOCK_BYTES_MIN && !fits(threads, block_bytes) {
            block_bytes /= 2;
        }
        let block_rows = rows_of(block_bytes, row_bytes);
        let block_bytes = buffer_bytes(block_bytes, row_bytes);
        let fixed_bytes = others + memory_of(threads, block_bytes);
        let fitting = memory_bytes.saturating_sub(fixed_bytes) / query_bytes;
        let queries_per_pass = match fitting >= queries {
            true => queries,
            // The queries of a pass fill whole panels.
            false if fitting > LANES_MAX as u64 => fitting / LANES_MAX as u64 * LANES_MAX as u64,
            false => fitting.max(1),
        };
        Plan {
            passes: queries.div_ceil(queries_per_pass.max(1)),
            queries_per_pass,
            block_rows,
            block_bytes,
            buffers,
            subblock_rows,
            threads: threads.min(vectors.div_ceil(block_rows as u64) as usize),
            query_bytes,
            fixed_bytes,
            pass_bytes: pass_bytes(estimates, row_bytes as u64, block_rows as u64),
            selected: estimates.selected,
            instructions: Instructions::best(),
            kernel: match estimates.metric {
                Metric::Hamming | Metric::Jaccard => Kernel::Counts,
                _ if queries_per_pass <= FEW => Kernel::Rows,
                _ => Kernel::Tiles,
            },
        }
    }

    /// Returns the plan for vectors that are in memory. A read of such vectors copies them into a buffer. Each thread has
    /// one buffer, of the size of a subblock, so the search finds the copy in the second-level cache, and each vector
    /// comes from memory only once.
    pub(crate) fn in_memory(self, row_bytes: usize) -> Plan {
        let block_rows = self.block_rows.min(self.subblock_rows);
        let block_bytes = self.block_bytes.min(buffer_bytes(
            (block_rows * row_bytes + 2 * CHECK_BYTES).next_multiple_of(CHECK_BYTES),
            row_bytes,
        ));
        let bytes_of = |buffers: usize| inshore_store::taken_bytes(self.threads * buffers) as u64;
        let saved = bytes_of(self.buffers * self.block_bytes) - bytes_of(block_bytes);
        Plan { block_rows, block_bytes, buffers: 1, fixed_bytes: self.fixed_bytes - saved, ..self }
    }

    /// Returns the memory, in bytes, with which the search can answer one query at a time.
    pub fn smallest_bytes(&self) -> u64 {
        self.fixed_bytes + self.query_bytes
    }
}

/// Estimates the bytes that a pass reads. A block without selected vectors is not read. In any other block, the bytes
/// before the first and after the last selected vector are not read.
fn pass_bytes(estimates: &Estimates, row_bytes: u64, block_rows: u64) -> u64 {
    let all = estimates.vectors * row_bytes;
    let Some(selected) = estimates.selected else { return all };
    let share = selected as f64 / estimates.vectors as f64;
    let touched = 1.0 - (1.0 - share).powf(block_rows as f64);
    ((all as f64 * touched) as u64).min(selected.saturating_mul(row_bytes + CHECK_BYTES as u64))
}

/// Returns how many complete rows fit into a block of `block_bytes` bytes. The result is at least 1.
fn rows_of(block_bytes: usize, row_bytes: usize) -> usize {
    // A read consists of whole checksum blocks. If rows do not end at the boundaries of these blocks, a read has up to
    // two checksum blocks in addition to the rows.
    let usable =
        if CHECK_BYTES.is_multiple_of(row_bytes) { block_bytes } else { block_bytes - 2 * CHECK_BYTES };
    (usable / row_bytes).max(1)
}

/// Returns the size, in bytes, of the buffer for a block of `block_bytes` bytes. The buffer can hold at least one row.
fn buffer_bytes(block_bytes: usize, row_bytes: usize) -> usize {
    block_bytes.max((row_bytes + 2 * CHECK_BYTES).next_multiple_of(CHECK_BYTES))
}

impl std::fmt::Display for Plan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plan { passes, queries_per_pass, threads, instructions, kernel, .. } = self;
        let how = match kernel {
            Kernel::Tiles => "all queries at once",
            Kernel::Rows | Kernel::Counts => "query by query",
        };
        let workers = if *threads == 1 { "1 thread".to_string() } else { format!("{threads} threads") };
        let among = match self.selected {
            Some(selected) => format!(" for {selected} selected vectors"),
            None => String::new(),
        };
        let passed = if *passes == 1 { "1 pass".to_string() } else { format!("{passes} passes") };
        write!(
            out,
            "{passed} over {}{among}, each for up to {queries_per_pass} queries of {}; blocks of {} vectors, \
             {workers}, {how}, {instructions}",
            format_bytes(self.pass_bytes),
            format_bytes(self.query_bytes),
            self.block_rows,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_from_estimates() {
        let base = Estimates {
            vectors: 1_000_000,
            dimensions: 128,
            element: Element::F32,
            metric: Metric::L2,
            selected: None,
            queries: 10_000,
            k: 100,
            memory_bytes: 64 << 20,
            threads: 2,
            reader_bytes: 1 << 20,
        };
        // The memory is 10,000 queries x (128 x 4 x 2 + 100 x 16) bytes, which is 27 MB, in one pass.
        let plan = Plan::new(&base);
        assert_eq!((plan.passes, plan.queries_per_pass, plan.block_rows), (1, 10_000, 2048));
        assert_eq!((plan.block_bytes, plan.threads, plan.kernel), (1 << 20, 2, Kernel::Tiles));
        assert_eq!(Plan::new(&Estimates { queries: 5, ..base }).kernel, Kernel::Tiles);
        assert_eq!(Plan::new(&Estimates { queries: 4, ..base }).kernel, Kernel::Rows);
        let counted = Plan::new(&Estimates { metric: Metric::Hamming, element: Element::Bits, ..base });
        assert_eq!((counted.kernel, counted.block_rows), (Kernel::Counts, 65_536));
        // In 16 MiB the plan has three passes of whole panels.
        let plan = Plan::new(&Estimates { memory_bytes: 16 << 20, ..base });
        assert_eq!(plan.queries_per_pass % 32, 0);
        assert!((2..6).contains(&plan.passes), "{plan}");
        assert!(plan.fixed_bytes + plan.queries_per_pass * plan.query_bytes <= 16 << 20);
        // The size of a row does not divide the size of a checksum block.
        let plan = Plan::new(&Estimates { dimensions: 100, ..base });
        assert!(plan.block_rows * 400 + 2 * CHECK_BYTES <= plan.block_bytes);
        // One row is larger than the smallest block.
        let plan = Plan::new(&Estimates { dimensions: 32 << 10, memory_bytes: 8 << 20, ..base });
        assert!(plan.block_bytes >= (128 << 10) + 2 * CHECK_BYTES && plan.block_rows >= 1);
        // The plan has no heap entries beyond the number of vectors, and no thread without a block.
        let plan = Plan::new(&Estimates { vectors: 5, k: 1 << 40, ..base });
        assert_eq!((plan.passes, plan.threads), (1, 1));
        // If few vectors are selected, the plan has small blocks and many reads in flight.
        let plan = Plan::new(&Estimates { selected: Some(500), ..base });
        assert_eq!((plan.block_bytes, plan.buffers), (64 << 10, SPARSE_BUFFERS));
        assert!(plan.pass_bytes < 500 * (17 << 10), "{plan}");
        let plan = Plan::new(&Estimates { selected: Some(500_000), ..base });
        assert_eq!((plan.block_bytes, plan.buffers, plan.pass_bytes), (1 << 20, BUFFERS, 512_000_000));
        // If the memory is too small, the plan reports the memory that it needs.
        let plan = Plan::new(&Estimates { memory_bytes: 1 << 16, ..base });
        assert!(plan.smallest_bytes() > 1 << 16);
    }
}

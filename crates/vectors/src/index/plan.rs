//! The plan of an approximate search determines how lists are read, and how many queries one round answers.
//!
//! Both strategies probe the same lists and give the same answer, unless the index has lists with copies. *Single* reads the lists of one query after the other, many
//! reads in flight. *Batch* reads each wanted list once for all its queries, in the order of the file. The batch moves
//! fewer bytes as soon as queries share lists, and compares more queries with a vector at once.

use inshore_store::{DriveProfile, format_bytes};
use serde::{Deserialize, Serialize};

/// How lists are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Reads the lists of one query after the other.
    Single,
    /// Reads each list once, for all queries that probe it.
    Batch,
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Strategy::Single => "single",
            Strategy::Batch => "batch",
        })
    }
}

/// The number of reads in flight of each thread in the single strategy.
pub(crate) const DEPTH: usize = 16;
/// The size of a read in the batch strategy.
pub(crate) const SPAN_BYTES: u64 = 1 << 20;
/// The reads of a query that follow each other are one read of at most so many bytes.
pub(crate) const JOINED_BYTES: u64 = 128 << 10;
/// The number of queries of a batch whose lists are found together.
pub(crate) const FOUND_AT_ONCE: u64 = 256;
/// The assumed rates of a drive without a measurement: random reads per second, and bytes per second.
const READS_PER_SECOND: f64 = 20_000.0;
const BYTES_PER_SECOND: f64 = 2e9;
/// Seconds of one multiplication in a tile that is full: measured with AVX2, 128 dimensions.
const MULTIPLICATION_SECONDS: f64 = 0.04e-9;
/// The cost of a random read with three reads in flight for each thread, relative to the cost with sixteen.
const FEWER_IN_FLIGHT: f64 = 1.5;
/// The number of queries of a full tile.
const TILE_QUERIES: f64 = 8.0;

/// The facts from which a plan follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimates {
    pub queries: u64,
    pub probes: u64,
    pub lists: u64,
    pub list_bytes: f64,
    pub list_vectors: f64,
    /// The lists that a query probes with the single strategy, their bytes and vectors, if these differ.
    pub copies: Option<Copied>,
    pub dimensions: usize,
    pub memory_bytes: u64,
    pub threads: usize,
    /// The memory that depends neither on the strategy nor on the number of queries.
    pub fixed_bytes: u64,
    /// The memory of the lower centroids.
    pub lower_bytes: u64,
    /// The memory of the checksums of the lists that the single strategy reads.
    pub checks_bytes: u64,
    /// Whether the lower centroids, and the checksums, are in memory, if an earlier search has loaded the lists.
    pub held: Option<(bool, bool)>,
    /// The memory of a thread with each strategy.
    pub single_thread_bytes: u64,
    pub batch_thread_bytes: u64,
    /// The memory of a query, and the additional memory of a query in the batch strategy.
    pub query_bytes: u64,
    pub batch_query_bytes: u64,
    /// The memory of the batch strategy in addition to that of threads and queries.
    pub batch_bytes: u64,
    pub forced: Option<Strategy>,
}

/// What a query reads with the single strategy, if the index has lists with copies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub probes: u64,
    pub list_bytes: f64,
    pub list_vectors: f64,
}

/// The plan of an approximate search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StrategyPlan {
    /// The strategy.
    pub strategy: Strategy,
    /// The estimated time of the single strategy in seconds. The next field is that of the batch strategy.
    pub single_seconds: f64,
    /// See `single_seconds`.
    pub batch_seconds: f64,
    /// The number of queries that are answered together in a round. The last round may have fewer.
    pub queries_at_once: u64,
    /// The number of rounds. Each round reads its lists again.
    pub rounds: u64,
    /// The number of worker threads.
    pub threads: usize,
    /// True if the centroids of all lists stay in memory.
    pub holds_centroids: bool,
    /// True if the checksums of all lists stay in memory, with the single strategy. Otherwise the read of a list may wait for
    /// that of its checksums.
    pub holds_checks: bool,
    /// The smallest memory in bytes with which the search works.
    pub smallest_bytes: u64,
}

impl StrategyPlan {
    pub(crate) fn new(estimates: &Estimates, drive: Option<&DriveProfile>) -> StrategyPlan {
        let (single_seconds, batch_seconds) = seconds(estimates, drive);
        // With copies the answer depends on the strategy, so neither threads nor drive may decide.
        let (single, batch) = match estimates.copies {
            Some(_) => seconds(&Estimates { threads: 1, ..*estimates }, None),
            None => (single_seconds, batch_seconds),
        };
        let cheaper = if single <= batch { Strategy::Single } else { Strategy::Batch };
        let strategy = estimates.forced.unwrap_or(cheaper);
        let (thread_bytes, query_bytes, others) = match strategy {
            Strategy::Single => (estimates.single_thread_bytes, estimates.query_bytes, 0),
            Strategy::Batch => (
                estimates.batch_thread_bytes,
                estimates.query_bytes + estimates.batch_query_bytes,
                estimates.batch_bytes,
            ),
        };
        let memory = estimates.memory_bytes;
        let fixed = |threads: usize| estimates.fixed_bytes + others + threads as u64 * thread_bytes;
        let smallest_bytes = fixed(1) + query_bytes;
        let mut threads = estimates.threads.max(1);
        while threads > 1 && fixed(threads) + query_bytes > memory {
            threads -= 1;
        }
        let free = memory.saturating_sub(fixed(threads));
        let fits_half = |bytes: u64, free: u64| bytes <= free / 2;
        let holds_centroids =
            estimates.held.map_or_else(|| fits_half(estimates.lower_bytes, free), |held| held.0);
        let free = if holds_centroids { free - estimates.lower_bytes } else { free };
        let fits_checks = || strategy == Strategy::Single && fits_half(estimates.checks_bytes, free);
        let holds_checks = estimates.held.map_or_else(fits_checks, |held| held.1);
        let free = if holds_checks { free - estimates.checks_bytes } else { free };
        let queries_at_once = (free / query_bytes).clamp(1, estimates.queries.max(1));
        StrategyPlan {
            strategy,
            single_seconds,
            batch_seconds,
            queries_at_once,
            rounds: estimates.queries.div_ceil(queries_at_once),
            threads,
            holds_centroids,
            holds_checks,
            smallest_bytes,
        }
    }
}

/// Returns the bytes of a buffer for lists of one query that follow each other.
pub(crate) fn joined_bytes(list_bytes_max: u64) -> usize {
    (list_bytes_max.max(JOINED_BYTES) as usize + (8 << 10)).next_multiple_of(4 << 10)
}

/// Returns the bytes of a buffer for a span of lists.
pub(crate) fn span_bytes(list_bytes_max: u64) -> usize {
    (list_bytes_max.max(SPAN_BYTES) as usize + (8 << 10)).next_multiple_of(4 << 10)
}

/// Estimates the seconds of both strategies.
fn seconds(estimates: &Estimates, drive: Option<&DriveProfile>) -> (f64, f64) {
    let Estimates { lists, list_bytes, list_vectors, .. } = *estimates;
    let (queries, probes) = (estimates.queries as f64, estimates.probes.min(lists) as f64);
    let share = probes / lists as f64;
    // The number of lists that at least one query probes.
    let touched = lists as f64 * (1.0 - (1.0 - share).powf(queries));
    let random = |bytes: f64, list_bytes: f64| match drive {
        Some(drive) => drive.read_seconds(bytes as u64, list_bytes as u64, false),
        None => (bytes / list_bytes.max(1.0) / READS_PER_SECOND).max(bytes / BYTES_PER_SECOND),
    };
    let sequential = |bytes: f64| match drive {
        Some(drive) => drive.read_seconds(bytes as u64, SPAN_BYTES, true),
        None => bytes / BYTES_PER_SECOND,
    };
    // The cost of a tile does not depend on the number of its queries, up to the number of its lanes.
    let multiply = |pairs: f64, list_vectors: f64, at_once: f64| {
        // Few queries are compared one after the other.
        let tiles = ((at_once / TILE_QUERIES).ceil() * TILE_QUERIES / at_once).min(2.0);
        pairs * list_vectors * estimates.dimensions as f64 * MULTIPLICATION_SECONDS * tiles
            / estimates.threads as f64
    };
    let pairs = queries * probes;
    let at_once = (pairs / touched.max(1.0)).max(1.0);
    let own = Copied { probes: estimates.probes.min(lists), list_bytes, list_vectors };
    let read = estimates.copies.unwrap_or(own);
    let single_pairs = queries * read.probes as f64;
    let single = random(single_pairs * read.list_bytes, read.list_bytes).max(multiply(
        single_pairs,
        read.list_vectors,
        1.0,
    ));
    // Lists that lie apart are read with fewer reads in flight than the single strategy has; dense ones with what is between.
    let apart = FEWER_IN_FLIGHT * random(touched * list_bytes, list_bytes);
    let batch = apart.min(sequential(lists as f64 * list_bytes)) + multiply(pairs, list_vectors, at_once);
    (single, batch)
}

impl std::fmt::Display for StrategyPlan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StrategyPlan { strategy, single_seconds, batch_seconds, queries_at_once, threads, .. } = self;
        let centroids = if self.holds_centroids { "in memory" } else { "on flash" };
        write!(
            out,
            "{strategy} (single {single_seconds:.3} s, batch {batch_seconds:.3} s), {queries_at_once} queries at once, \
             centroids {centroids}, {threads} threads; the smallest memory is {}",
            format_bytes(self.smallest_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_queries_are_a_batch_and_few_are_not() {
        let base = Estimates {
            queries: 1,
            probes: 64,
            lists: 10_000,
            list_bytes: 16e3,
            list_vectors: 124.0,
            copies: None,
            dimensions: 128,
            memory_bytes: 64 << 20,
            threads: 2,
            fixed_bytes: 1 << 20,
            lower_bytes: 5 << 20,
            checks_bytes: 1 << 20,
            held: None,
            single_thread_bytes: 2 << 20,
            batch_thread_bytes: 4 << 20,
            query_bytes: 1000,
            batch_query_bytes: 500,
            batch_bytes: 1 << 20,
            forced: None,
        };
        let plan = StrategyPlan::new(&base, None);
        assert_eq!((plan.strategy, plan.queries_at_once, plan.holds_centroids), (Strategy::Single, 1, true));
        assert!(plan.holds_checks);
        let many = Estimates { queries: 10_000, ..base };
        let plan = StrategyPlan::new(&many, None);
        assert_eq!((plan.strategy, plan.rounds), (Strategy::Batch, 1));
        assert!(plan.batch_seconds * 3.0 < plan.single_seconds, "{plan}");
        let plan = StrategyPlan::new(&Estimates { forced: Some(Strategy::Single), ..many }, None);
        assert_eq!(plan.strategy, Strategy::Single);
        // Little memory: one thread, centroids on flash, rounds; less than that is told.
        let plan = StrategyPlan::new(&Estimates { memory_bytes: 7 << 20, ..many }, None);
        assert_eq!((plan.threads, plan.holds_centroids), (1, false));
        assert!(plan.rounds > 1 && plan.smallest_bytes <= 7 << 20, "{plan}");
        let plan = StrategyPlan::new(&Estimates { memory_bytes: 1 << 20, ..many }, None);
        assert!(plan.smallest_bytes > 1 << 20 && plan.queries_at_once == 1);
    }
}

//! The plan of an approximate search determines how lists are read, and how many queries are answered together in one
//! round.
//!
//! Both strategies probe the same lists and give the same answer, unless the index has lists with copies or codes. *Single*
//! reads the lists of one query after the other, with many reads in flight. *Batch* reads each probed list once, for
//! all queries that probe it, in the order of the file. If several queries probe the same list, the batch strategy
//! reads fewer bytes. It also compares more queries with a vector at a time.

use inshore_store::{CheckedFile, DriveProfile, format_bytes};
use serde::{Deserialize, Serialize};

/// The way in which an approximate search reads lists.
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

/// The number of reads that each thread has in flight in the single strategy.
pub(crate) const DEPTH: usize = 16;
/// The size of a read in the batch strategy.
pub(crate) const SPAN_BYTES: u64 = 1 << 20;
/// In the single strategy, adjacent lists of a query are read together, in one read of at most this many bytes.
pub(crate) const JOINED_BYTES: u64 = 128 << 10;
/// The number of queries whose lists are found together in the batch strategy.
pub(crate) const FOUND_AT_ONCE: u64 = 256;
/// The rates that are assumed for a drive that was not measured. The first rate is in random reads per second, and the
/// second one in bytes per second.
const READS_PER_SECOND: f64 = 20_000.0;
const BYTES_PER_SECOND: f64 = 2e9;
/// The time of one multiplication in a full tile, in seconds. It was measured with AVX2 and 128 dimensions.
const MULTIPLICATION_SECONDS: f64 = 0.04e-9;
/// With three reads in flight for each thread, random reads take this many times as long as with sixteen reads in
/// flight.
const FEWER_IN_FLIGHT: f64 = 1.5;
/// The size of a read of one vector.
const MEASURED_BYTES: f64 = 8192.0;
/// The number of queries that fill a tile.
const TILE_QUERIES: f64 = 8.0;

/// The estimates from which the plan is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimates {
    pub queries: u64,
    pub probes: u64,
    pub lists: u64,
    pub list_bytes: f64,
    pub list_vectors: f64,
    /// The reads of a query with the single strategy. The value is `None` if both strategies read the same lists.
    pub single: Option<ReadBySingle>,
    /// The codes, if the single strategy reads codes.
    pub codes: Option<CodesInPlan>,
    pub dimensions: usize,
    pub memory_bytes: u64,
    pub threads: usize,
    /// The memory, in bytes, that depends neither on the strategy nor on the number of queries.
    pub fixed_bytes: u64,
    /// The memory of the centroids of all lists, if they stay in memory.
    pub lower_bytes: u64,
    /// The memory of the block checksums of the file that the single strategy reads.
    pub checks_bytes: u64,
    /// The structures that an earlier search has left in memory. The value is `None` if no search has loaded the lists.
    pub held: Option<Held>,
    /// The memory of a thread with each strategy.
    pub single_thread_bytes: u64,
    pub batch_thread_bytes: u64,
    /// The memory of one query, in bytes. The next field is the additional memory of one query in the batch strategy.
    pub query_bytes: u64,
    pub batch_query_bytes: u64,
    /// The memory, in bytes, of the batch strategy, without the memory that depends on the number of threads or
    /// queries.
    pub batch_bytes: u64,
    pub forced: Option<Strategy>,
}

/// The reads of a query with the single strategy, if the index has lists with copies or codes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBySingle {
    pub probes: u64,
    pub list_bytes: f64,
    /// The number of vectors of a list. A code counts as a part of a vector.
    pub list_vectors: f64,
    /// The number of vectors that are read one by one.
    pub measured: f64,
}

/// The sizes of codes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodesInPlan {
    pub file_bytes: u64,
    /// The memory for codes that does not depend on where they are.
    pub fixed_bytes: u64,
    /// The number of bytes of codes that a query reads.
    pub query_bytes: u64,
    /// True if the codes stay in memory for later searches.
    pub stays: bool,
}

impl CodesInPlan {
    /// Returns true if the single strategy reads all codes into memory. The condition is that they take at most
    /// seven eighths of the memory `free`, and that the queries would read more bytes of codes, or that the codes stay
    /// in memory for later searches.
    fn are_held(&self, queries: u64, free: u64) -> bool {
        let pays = self.stays || queries.saturating_mul(self.query_bytes) > self.file_bytes;
        pays && CheckedFile::held_bytes(self.file_bytes) <= free - free / 8
    }
}

/// The parts of an index that are in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// True if the centroids of lists are in memory.
    pub centroids: bool,
    /// True if the checksums of lists are in memory.
    pub checks: bool,
    /// True if the codes are in memory. `None` if no search has used the codes.
    pub codes: Option<bool>,
}

/// The plan of an approximate search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StrategyPlan {
    /// The strategy.
    pub strategy: Strategy,
    /// The estimated time of the single strategy in seconds.
    pub single_seconds: f64,
    /// The estimated time of the batch strategy in seconds.
    pub batch_seconds: f64,
    /// The number of queries that one round answers. The last round may have fewer.
    pub queries_at_once: u64,
    /// The number of rounds. A list that queries of several rounds probe is read in each of these rounds.
    pub rounds: u64,
    /// The number of worker threads.
    pub threads: usize,
    /// True if the centroids of all lists stay in memory.
    pub holds_centroids: bool,
    /// True if the single strategy keeps the block checksums of the lists in memory. Otherwise the read of a list may
    /// have to wait for the read of its checksums.
    pub holds_checks: bool,
    /// True if the codes stay in memory, false if they stay on flash. `None` if the search reads no codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds_codes: Option<bool>,
    /// The smallest memory budget, in bytes, with which the search works.
    pub smallest_bytes: u64,
}

impl StrategyPlan {
    pub(crate) fn new(estimates: &Estimates, drive: Option<&DriveProfile>) -> StrategyPlan {
        let (single_seconds, batch_seconds) = seconds(estimates, drive);
        // If the index has copies or codes, the answer depends on the strategy. The number of threads and the drive must
        // not change an answer, so the choice ignores them.
        let (single, batch) = match estimates.single {
            Some(_) => seconds(&Estimates { threads: 1, ..*estimates }, None),
            None => (single_seconds, batch_seconds),
        };
        let cheaper = if single <= batch { Strategy::Single } else { Strategy::Batch };
        let strategy = estimates.forced.unwrap_or(cheaper);
        let (thread_bytes, query_bytes, others) = match strategy {
            Strategy::Single => (
                estimates.single_thread_bytes,
                estimates.query_bytes,
                estimates.codes.map_or(0, |codes| codes.fixed_bytes),
            ),
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
            estimates.held.map_or_else(|| fits_half(estimates.lower_bytes, free), |held| held.centroids);
        let free = if holds_centroids { free - estimates.lower_bytes } else { free };
        let fits_checks = || strategy == Strategy::Single && fits_half(estimates.checks_bytes, free);
        let holds_checks = estimates.held.map_or_else(fits_checks, |held| held.checks);
        let free = if holds_checks { free - estimates.checks_bytes } else { free };
        let codes = estimates.codes.filter(|_| strategy == Strategy::Single);
        let opened = estimates.held.and_then(|held| held.codes);
        let holds_codes = codes.map(|codes| {
            opened.unwrap_or_else(|| codes.are_held(estimates.queries, free.saturating_sub(query_bytes)))
        });
        let free = match codes {
            Some(codes) if holds_codes == Some(true) && opened.is_none() => {
                free - CheckedFile::held_bytes(codes.file_bytes)
            }
            _ => free,
        };
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
            holds_codes,
            smallest_bytes,
        }
    }
}

/// Returns the size, in bytes, of a buffer for adjacent lists of one query.
pub(crate) fn joined_bytes(list_bytes_max: u64) -> usize {
    (list_bytes_max.max(JOINED_BYTES) as usize + (8 << 10)).next_multiple_of(4 << 10)
}

/// Returns the size, in bytes, of a buffer for a span. A span is a sequence of lists that the batch strategy reads at
/// once.
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
    // The cost of a tile depends on the number of its lanes, not on the number of queries in them.
    let multiply = |pairs: f64, list_vectors: f64, at_once: f64| {
        // With few queries, the comparer takes one query after the other instead of a tile, so the factor is at most 2.
        let tiles = ((at_once / TILE_QUERIES).ceil() * TILE_QUERIES / at_once).min(2.0);
        pairs * list_vectors * estimates.dimensions as f64 * MULTIPLICATION_SECONDS * tiles
            / estimates.threads as f64
    };
    let pairs = queries * probes;
    let at_once = (pairs / touched.max(1.0)).max(1.0);
    let own = ReadBySingle { probes: estimates.probes.min(lists), list_bytes, list_vectors, measured: 0.0 };
    let read = estimates.single.unwrap_or(own);
    let single_pairs = queries * read.probes as f64;
    let measured = random(queries * read.measured * MEASURED_BYTES, MEASURED_BYTES);
    let single = measured
        + random(single_pairs * read.list_bytes, read.list_bytes).max(multiply(
            single_pairs,
            read.list_vectors,
            1.0,
        ));
    // The batch strategy has two ways to read. It can read only the probed lists, with fewer reads in flight than the
    // single strategy. If most lists are probed, it can also read the whole file sequentially.
    let apart = FEWER_IN_FLIGHT * random(touched * list_bytes, list_bytes);
    let batch = apart.min(sequential(lists as f64 * list_bytes)) + multiply(pairs, list_vectors, at_once);
    (single, batch)
}

impl std::fmt::Display for StrategyPlan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StrategyPlan { strategy, single_seconds, batch_seconds, queries_at_once, threads, .. } = self;
        let place = |is_held: bool| if is_held { "in memory" } else { "on flash" };
        let centroids = place(self.holds_centroids);
        let codes = self.holds_codes.map_or(String::new(), |is_held| format!(", codes {}", place(is_held)));
        write!(
            out,
            "{strategy} (single {single_seconds:.3} s, batch {batch_seconds:.3} s), {queries_at_once} queries at once, \
             centroids {centroids}{codes}, {threads} threads; the smallest memory is {}",
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
            single: None,
            codes: None,
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
        // With little memory, the plan has one thread, centroids on flash, and several rounds. If the memory is too
        // small, the plan still has the smallest memory that the search needs.
        let plan = StrategyPlan::new(&Estimates { memory_bytes: 7 << 20, ..many }, None);
        assert_eq!((plan.threads, plan.holds_centroids), (1, false));
        assert!(plan.rounds > 1 && plan.smallest_bytes <= 7 << 20, "{plan}");
        let plan = StrategyPlan::new(&Estimates { memory_bytes: 1 << 20, ..many }, None);
        assert!(plan.smallest_bytes > 1 << 20 && plan.queries_at_once == 1);
    }
}

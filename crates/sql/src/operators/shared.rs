//! The state that all operators of a query share, and the counters of each operator.

use std::{
    fmt::{self, Display, Formatter},
    sync::{Arc, Mutex, OnceLock, Weak},
};

use inshore_sortreduce::{Stats, rows::RowStats};
use inshore_store::{Job, format_bytes};
use serde::Serialize;

use crate::{memory::Memory, remote::RemoteTables, spills::Spills};

/// The counters of one operator of a query, summed over all partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OperatorStats {
    /// The operator's name, such as "GROUP BY town" or "ORDER BY town".
    pub operator: String,
    /// The distinct algorithms that the partitions used, such as "in memory", "sort-reduce", "sort-reduce of
    /// numbers", "hash join" and "sort-merge join".
    pub ways: Vec<&'static str>,
    /// The number of input rows. A join counts the rows that it read from both sides.
    pub rows_in: u64,
    /// The number of rows that were sorted.
    pub rows_sorted: u64,
    /// The number of sorted runs that were written to flash.
    pub runs: u64,
    /// The total bytes of the sorted runs that were written to flash.
    pub bytes_spilled: u64,
}

impl Display for OperatorStats {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        let ways = if self.ways.is_empty() { "not run".to_string() } else { self.ways.join(" and ") };
        write!(text, "{ways}, {} rows", self.rows_in)?;
        if self.runs > 0 {
            write!(text, ", {} runs of {}", self.runs, format_bytes(self.bytes_spilled))?;
        }
        Ok(())
    }
}

/// The counters of an operator. All partitions of the operator update them.
#[derive(Debug)]
pub(crate) struct Counters(Mutex<OperatorStats>);

impl Counters {
    pub fn add_way(&self, way: &'static str, rows_in: u64) {
        let mut ran = self.0.lock().expect("no panic under this lock");
        if !ran.ways.contains(&way) {
            ran.ways.push(way);
        }
        ran.rows_in += rows_in;
    }

    pub fn add_row_sort(&self, stats: &RowStats) {
        self.add_sort(stats.rows_in, stats.runs, stats.bytes_spilled);
    }

    pub fn add_sort_reduce(&self, stats: &Stats) {
        self.add_sort(stats.records_in, stats.runs, stats.bytes_spilled);
    }

    fn add_sort(&self, rows: u64, runs: u64, bytes_spilled: u64) {
        let mut ran = self.0.lock().expect("no panic under this lock");
        ran.rows_sorted += rows;
        ran.runs += runs;
        ran.bytes_spilled += bytes_spilled;
    }

    pub fn ran(&self) -> OperatorStats {
        self.0.lock().expect("no panic under this lock").clone()
    }
}

/// Limits on the memory of operators, in addition to the budget. Tests set low limits, so that a few rows are enough
/// to write sorted runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// The maximum bytes of a hash table of groups, or of a collected join side.
    pub table_bytes: Option<u64>,
    /// The maximum bytes of rows that one in-memory sort sorts.
    pub arena_bytes: Option<usize>,
}

/// The state that all operators of a query share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub job: Job,
    pub memory: Arc<Memory>,
    pub spills: Arc<Spills>,
    pub limits: Limits,
    /// The state that the query's fragments share, as long as any fragment runs on remote machines.
    pub remote: Arc<OnceLock<Weak<RemoteTables>>>,
    all: Arc<Mutex<Vec<Arc<Counters>>>>,
}

impl Shared {
    pub fn new(job: &Job, memory: Arc<Memory>, limits: Limits) -> Shared {
        let spills = Arc::new(Spills::of(job));
        Shared { job: job.clone(), memory, spills, limits, remote: Arc::default(), all: Arc::default() }
    }

    pub fn counters(&self, operator: String) -> Arc<Counters> {
        let counters = Arc::new(Counters(Mutex::new(OperatorStats { operator, ..OperatorStats::default() })));
        self.all.lock().expect("no panic under this lock").push(counters.clone());
        counters
    }

    /// Removes the counters of an operator that was planned but will not run.
    pub fn remove_counters(&self, counters: &Arc<Counters>) {
        self.all.lock().expect("no panic under this lock").retain(|other| !Arc::ptr_eq(other, counters));
    }

    /// Returns the counters of every planned operator, in plan order from the scans upwards.
    pub fn ran(&self) -> Vec<OperatorStats> {
        let all = self.all.lock().expect("no panic under this lock");
        all.iter().map(|counters| counters.ran()).collect()
    }
}

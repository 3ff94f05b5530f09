//! A report summarizes a job at its end.

use serde::Serialize;

/// `Report` holds the counters of a finished job, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Time from the start of the job.
    pub seconds: f64,
    /// CPU time of the whole process, user and system, and of other processes that worked on behalf of the job.
    pub cpu_seconds: f64,
    /// The budget in bytes.
    pub memory_budget_bytes: u64,
    /// The largest number of bytes of the budget that were reserved at one moment.
    pub memory_reserved_bytes_max: u64,
    /// The largest resident size of this process since it started.
    pub memory_resident_bytes_max: u64,
    /// Worker threads.
    pub threads: usize,
    /// Bytes read from devices.
    pub bytes_read: u64,
    /// Bytes written to devices.
    pub bytes_written: u64,
    /// Damaged blocks that were restored from redundancy.
    pub repairs: u64,
    /// True if all I/O went past the page cache.
    pub direct_io: bool,
    /// The mechanism of the I/O on files: "io_uring", "threads", or "none" without any I/O.
    pub io: &'static str,
    /// The time that the drives alone would take; `None` if they were not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_floor: Option<DriveFloor>,
    /// The time of each phase, in order. Times of phases with the same name are summed.
    pub phases: Vec<PhaseReport>,
    /// Records in and out of each level of sort-reduce.
    pub levels: Vec<LevelReport>,
}

/// `DriveFloor` is the time that the drives need to move the bytes of a job at the best measured rates. On a drive that
/// does one thing at a time, a job takes at least the sum of both times. Many drives read and write at once: there a
/// job takes at least the larger of both times.
#[derive(Clone, Debug, Serialize)]
pub struct DriveFloor {
    /// Seconds for the bytes read.
    pub read_seconds: f64,
    /// Seconds for the bytes written.
    pub write_seconds: f64,
}

/// `PhaseReport` is the time of one phase.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// The phase.
    pub phase: String,
    /// Seconds spent in it.
    pub seconds: f64,
}

/// `LevelReport` holds the counts of one level of sort-reduce.
#[derive(Clone, Debug, Serialize)]
pub struct LevelReport {
    /// The level: 0 forms runs, n is the n-th merge.
    pub level: u32,
    /// Records that entered.
    pub records_in: u64,
    /// Records that left.
    pub records_out: u64,
}

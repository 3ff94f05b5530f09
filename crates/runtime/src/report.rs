//! A report summarizes a job at its end.

use serde::Serialize;

/// `Report` holds the counters of a finished job, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seconds since the start of the job.
    pub seconds: f64,
    /// The CPU time, user and system, of the complete process and of other processes that worked on behalf of the job.
    pub cpu_seconds: f64,
    /// The budget in bytes.
    pub memory_budget_bytes: u64,
    /// The largest number of bytes of the budget that were reserved at one moment.
    pub memory_reserved_bytes_max: u64,
    /// The largest resident size of this process since it started.
    pub memory_resident_bytes_max: u64,
    /// The number of worker threads.
    pub threads: usize,
    /// The number of bytes read from devices.
    pub bytes_read: u64,
    /// The number of bytes written to devices.
    pub bytes_written: u64,
    /// The number of damaged blocks that were restored from redundancy.
    pub repairs: u64,
    /// True if all I/O bypassed the page cache.
    pub direct_io: bool,
    /// The mechanism of the I/O on files: "io_uring", "threads", or "none" if there was no I/O.
    pub io: &'static str,
    /// The minimum time that the drives need. The value is `None` if their rates were not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_floor: Option<DriveFloor>,
    /// The time of each phase, in order. Times of phases with the same name are summed.
    pub phases: Vec<PhaseReport>,
    /// The number of records that entered and left each level of sort-reduce.
    pub levels: Vec<LevelReport>,
}

/// `DriveFloor` is the time that the drives need to transfer the bytes of a job at the best measured rates. On a drive
/// that either reads or writes, a job takes at least the sum of both times. On a drive that reads and writes at once,
/// as many do, a job takes at least the larger of both times.
#[derive(Clone, Debug, Serialize)]
pub struct DriveFloor {
    /// The seconds for the bytes read.
    pub read_seconds: f64,
    /// The seconds for the bytes written.
    pub write_seconds: f64,
}

/// `PhaseReport` is the time of one phase.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// The name of the phase.
    pub phase: String,
    /// The seconds spent in the phase.
    pub seconds: f64,
}

/// `LevelReport` holds the counts of one level of sort-reduce.
#[derive(Clone, Debug, Serialize)]
pub struct LevelReport {
    /// The number of the level: level 0 forms sorted runs, and level n is the n-th merge.
    pub level: u32,
    /// The number of records that entered the level.
    pub records_in: u64,
    /// The number of records that left the level.
    pub records_out: u64,
}

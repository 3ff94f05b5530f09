//! The report of a job at its end.

use serde::Serialize;

/// Counters of a finished job, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Time from the start of the job.
    pub seconds: f64,
    /// CPU time of the whole process, user and system, and of other processes that worked on behalf of the job.
    pub cpu_seconds: f64,
    /// The budget in bytes.
    pub memory_budget_bytes: u64,
    /// The most that was reserved of it at one moment.
    pub memory_reserved_bytes_max: u64,
    /// The most memory that was resident in this process since it started.
    pub memory_resident_bytes_max: u64,
    /// Worker threads.
    pub threads: usize,
    /// Bytes read from devices.
    pub bytes_read: u64,
    /// Bytes written to devices.
    pub bytes_written: u64,
    /// Pieces that were damaged and came from a second copy.
    pub repairs: u64,
    /// Whether all I/O went past the page cache.
    pub direct_io: bool,
    /// How files were read and written: "io_uring", "threads", or "none" where nothing was.
    pub io: &'static str,
    /// The time that the drives alone would take; only where they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_floor: Option<DriveFloor>,
    /// Time for each phase, in order; phases of the same name are added up.
    pub phases: Vec<PhaseReport>,
    /// Records in and out of each level of sort-reduce.
    pub levels: Vec<LevelReport>,
}

/// How long the drives would take to move what a job moved, at the best rates that were measured. Their sum
/// is what a drive takes that does one thing at a time; many can read and write at once, and then the larger counts.
#[derive(Clone, Debug, Serialize)]
pub struct DriveFloor {
    /// For the bytes read.
    pub read_seconds: f64,
    /// For the bytes written.
    pub write_seconds: f64,
}

/// The time that one phase took.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// The phase.
    pub phase: String,
    /// Seconds spent in it.
    pub seconds: f64,
}

/// The counts of one level of sort-reduce.
#[derive(Clone, Debug, Serialize)]
pub struct LevelReport {
    /// 0 where runs are formed, n for the n-th merge.
    pub level: u32,
    /// Records that entered.
    pub records_in: u64,
    /// Records that left.
    pub records_out: u64,
}

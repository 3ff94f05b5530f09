//! Counters count the bytes, records and CPU time of a job and of its process.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{LevelReport, PhaseReport};

/// `Counters` counts the bytes, records, repairs and CPU time of a job so far. All threads of the job add to
/// the same counters.
#[derive(Debug, Default)]
pub struct Counters {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    repairs: AtomicU64,
    other_cpu_us: AtomicU64,
    levels: Mutex<BTreeMap<u32, (u64, u64)>>,
    phases: Mutex<Vec<PhaseReport>>,
}

/// `ProcessCounts` holds the counts of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Bytes read from devices.
    pub bytes_read: u64,
    /// Bytes written to devices.
    pub bytes_written: u64,
    /// Damaged blocks that were restored from redundancy.
    pub repairs: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
}

impl Counters {
    /// Returns the number of bytes read from devices.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes written to devices.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }

    /// Returns the number of damaged blocks that were restored from redundancy so far.
    pub fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }

    /// Adds the counts of a job that ran on behalf of this one. The other job's phases are not added, since they ran at
    /// the same time as the phases of this job.
    pub fn add(&self, other: &Counters) {
        self.add_of_process(ProcessCounts {
            bytes_read: other.bytes_read(),
            bytes_written: other.bytes_written(),
            repairs: other.repairs(),
            cpu_us: other.other_cpu_us.load(Ordering::Relaxed),
        });
        let levels = other.levels.lock().expect("no panic under this lock").clone();
        levels.into_iter().for_each(|(level, (records_in, records_out))| {
            self.add_level(level, records_in, records_out);
        });
    }

    /// Adds the counts of another process that worked on behalf of this job.
    pub fn add_of_process(&self, other: ProcessCounts) {
        self.add_read(other.bytes_read);
        self.add_written(other.bytes_written);
        self.repairs.fetch_add(other.repairs, Ordering::Relaxed);
        self.other_cpu_us.fetch_add(other.cpu_us, Ordering::Relaxed);
    }

    /// Counts bytes that were read from devices without [`Context::submit`](crate::Context::submit).
    pub fn add_read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were written to devices without [`Context::submit`](crate::Context::submit).
    pub fn add_written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts one damaged block that was restored from redundancy.
    pub fn add_repair(&self) {
        self.repairs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts records that entered and left a level of sort-reduce. Level 0 forms sorted runs (or updates a
    /// dense array), and level n is the n-th merge.
    pub fn add_level(&self, level: u32, records_in: u64, records_out: u64) {
        let mut levels = self.levels.lock().expect("no panic under this lock");
        let sums = levels.entry(level).or_default();
        sums.0 += records_in;
        sums.1 += records_out;
    }

    /// Adds the time of a phase that has ended. Times of phases with the same name are summed.
    pub(crate) fn add_phase(&self, phase: String, seconds: f64) {
        let mut phases = self.phases.lock().expect("no panic under this lock");
        match phases.iter_mut().find(|known| known.phase == phase) {
            Some(known) => known.seconds += seconds,
            None => phases.push(PhaseReport { phase, seconds }),
        }
    }

    pub(crate) fn other_cpu_seconds(&self) -> f64 {
        self.other_cpu_us.load(Ordering::Relaxed) as f64 / 1e6
    }

    pub(crate) fn phases(&self) -> Vec<PhaseReport> {
        self.phases.lock().expect("no panic under this lock").clone()
    }

    pub(crate) fn levels(&self) -> Vec<LevelReport> {
        let levels = self.levels.lock().expect("no panic under this lock");
        let report = |(&level, &(records_in, records_out))| LevelReport { level, records_in, records_out };
        levels.iter().map(report).collect()
    }
}

/// Returns the highest resident size of this process (VmHWM), or 0 if /proc/self/status cannot be read.
pub(crate) fn resident_bytes_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns the user and system time of this process: fields 14 and 15 of /proc/self/stat, in ticks.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses, which may contain any characters.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

//! One run of one command: its budget, scratch folder, counters, progress and stop flag.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use serde::Serialize;

use crate::{
    Budget, Buffer, Deadline, Device, DriveProfile, EXTENT_BYTES, Error, Io, Result, Scratch, Store,
    extents::Extents,
    io::{Direction, Part, Pending},
    lease::Lease,
    shared::Shared,
};

/// One run of one command. Clones share it; dropping the last one removes the scratch folder.
#[derive(Clone, Debug)]
pub struct Job {
    inner: Arc<Inner>,
    /// All of the job's, or the part that some of its work was given.
    budget: Budget,
}

#[derive(Debug)]
struct Inner {
    // Dropped in this order: the I/O threads end before the scratch folder goes.
    io: Io,
    home: Option<Home>,
    budget: Budget,
    cancel: Cancel,
    counters: Counters,
    progress: Progress,
    started: Instant,
    names: AtomicU64,
}

/// Where a job has its place in a store.
#[derive(Debug)]
struct Home {
    lease: Arc<Lease>,
    scratch: Arc<Scratch>,
    shared: Arc<Shared>,
}

/// A flag that asks a job to stop; clones share it. A job that sees it set ends with [`Error::Cancelled`].
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    asked: Arc<AtomicBool>,
    deadline: Option<Deadline>,
}

impl Cancel {
    /// A flag that is set by itself at the deadline.
    pub fn at(deadline: Option<Deadline>) -> Cancel {
        Cancel { deadline, ..Cancel::default() }
    }

    /// Asks to stop.
    pub fn cancel(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether someone asked to stop, or the deadline is over.
    pub fn is_cancelled(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| deadline.is_over())
    }

    /// When the flag is set by itself.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }
}

/// What a job did so far. Plain numbers, added to by the whole job.
#[derive(Debug, Default)]
pub struct Counters {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    repairs: AtomicU64,
    other_cpu_us: AtomicU64,
    levels: Mutex<BTreeMap<u32, (u64, u64)>>,
    phases: Mutex<Vec<PhaseReport>>,
}

/// What a process did, as far as it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Bytes read from devices.
    pub bytes_read: u64,
    /// Bytes written to devices.
    pub bytes_written: u64,
    /// Pieces that were damaged and came from a second copy.
    pub repairs: u64,
    /// Time of the processor, in microseconds.
    pub cpu_us: u64,
}

impl Counters {
    /// Bytes read from devices.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes written to devices.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }

    /// Pieces so far that were damaged and came from a second copy.
    pub fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }

    /// Adds what a job did on behalf of this one. Its phases are not added: they went on beside this one's.
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

    /// Adds what another process did on behalf of this job.
    pub fn add_of_process(&self, other: ProcessCounts) {
        self.add_read(other.bytes_read);
        self.add_written(other.bytes_written);
        self.repairs.fetch_add(other.repairs, Ordering::Relaxed);
        self.other_cpu_us.fetch_add(other.cpu_us, Ordering::Relaxed);
    }

    pub(crate) fn add_read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_repair(&self) {
        self.repairs.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds records that entered and left a level of sort-reduce: level 0 forms runs (or updates a dense
    /// array), level n is the n-th merge.
    pub fn add_level(&self, level: u32, records_in: u64, records_out: u64) {
        let mut levels = self.levels.lock().expect("no panic under this lock");
        let sums = levels.entry(level).or_default();
        sums.0 += records_in;
        sums.1 += records_out;
    }
}

/// How far a job is; read by whoever draws it.
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<(String, &'static str, Option<Instant>)>,
    done: AtomicU64,
    total: AtomicU64,
    /// None while nobody listens.
    told: Mutex<Option<Told>>,
}

/// What a job told of how it goes about its work, as far as it was not taken.
#[derive(Debug, Default)]
struct Told {
    waiting: Vec<String>,
    last: String,
}

/// What was told and is not taken, at most; later things are left out.
const TOLD_MAX: usize = 100;

/// A moment of a job's [`Progress`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressState {
    /// What the job is doing ("parsing", "superstep 3"); empty before the first phase.
    pub phase: String,
    /// What is counted ("bytes", "edges").
    pub unit: &'static str,
    /// Units done in this phase.
    pub done: u64,
    /// Units in this phase; 0 where nobody knows.
    pub total: u64,
}

impl Progress {
    /// Adds to the units done in the current phase.
    pub fn add(&self, units: u64) {
        self.done.fetch_add(units, Ordering::Relaxed);
    }

    /// Tells how the job goes about what comes now, for somebody who [listens](Self::listen).
    pub fn tell(&self, plan: impl FnOnce() -> String) {
        let mut told = self.told.lock().expect("no panic under this lock");
        let Some(told) = told.as_mut().filter(|told| told.waiting.len() < TOLD_MAX) else { return };
        let plan = plan();
        if plan != told.last {
            told.waiting.push(plan.clone());
            told.last = plan;
        }
    }

    /// From now on what is told waits to be [taken](Self::take_told).
    pub fn listen(&self) {
        self.told.lock().expect("no panic under this lock").get_or_insert_default();
    }

    /// What was told since it was taken last, each thing once where it was told several times in a row.
    pub fn take_told(&self) -> Vec<String> {
        let mut told = self.told.lock().expect("no panic under this lock");
        told.as_mut().map(|told| std::mem::take(&mut told.waiting)).unwrap_or_default()
    }

    /// Where the job is now.
    pub fn state(&self) -> ProgressState {
        let state = self.state.lock().expect("no panic under this lock");
        ProgressState {
            phase: state.0.clone(),
            unit: state.1,
            done: self.done.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
        }
    }
}

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
    /// What the drives alone would take; only where they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_floor: Option<DriveFloor>,
    /// Time for each phase, in order; phases of the same name are added up.
    pub phases: Vec<PhaseReport>,
    /// Records in and out of each level of sort-reduce.
    pub levels: Vec<LevelReport>,
}

/// How long the drives would take to move what a job moved, at the best rates that [`crate::measure`] found. Their sum
/// is what a drive takes that does one thing at a time; many can read and write at once, and then the larger counts.
#[derive(Clone, Debug, Serialize)]
pub struct DriveFloor {
    /// For the bytes read.
    pub read_seconds: f64,
    /// For the bytes written.
    pub write_seconds: f64,
}

impl DriveFloor {
    fn of(profile: &DriveProfile, counters: &Counters) -> DriveFloor {
        let best = EXTENT_BYTES as u64;
        DriveFloor {
            read_seconds: profile.read_seconds(counters.bytes_read(), best, true),
            write_seconds: profile.write_seconds(counters.bytes_written(), best, true),
        }
    }
}

/// The time that one phase took.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// The phase.
    pub phase: String,
    /// Seconds spent in it.
    pub seconds: f64,
}

/// What one level of sort-reduce did.
#[derive(Clone, Debug, Serialize)]
pub struct LevelReport {
    /// 0 where runs are formed, n for the n-th merge.
    pub level: u32,
    /// Records that entered.
    pub records_in: u64,
    /// Records that left.
    pub records_out: u64,
}

impl Job {
    pub(crate) fn new(shared: Arc<Shared>, scratch: Scratch, budget: Budget, cancel: Cancel) -> Result<Job> {
        let scratch = Arc::new(scratch);
        let lease = Arc::new(Lease::new(shared.clone(), scratch.clone()));
        Ok(Job::with(Some(Home { lease, scratch, shared }), budget, cancel))
    }

    /// A job that only reads files of the file system. Whatever of a store it is asked for (datasets, scratch files, the
    /// store itself) is a panic: it has none.
    pub fn without_store(budget: Budget, cancel: Cancel) -> Job {
        Job::with(None, budget, cancel)
    }

    fn with(home: Option<Home>, budget: Budget, cancel: Cancel) -> Job {
        let inner = Arc::new(Inner {
            io: Io::new(),
            home,
            budget: budget.clone(),
            cancel,
            counters: Counters::default(),
            progress: Progress::default(),
            started: Instant::now(),
            names: AtomicU64::new(0),
        });
        Job { inner, budget }
    }

    /// The same job, for work that may use `budget` alone: a [`Budget::part`] of the job's.
    pub fn within(&self, budget: Budget) -> Job {
        Job { inner: self.inner.clone(), budget }
    }

    fn home(&self) -> &Home {
        self.inner.home.as_ref().expect("a job that was started on a store")
    }

    /// The memory and threads of this job.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// What it did so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// What this process did so far: for another one, which [adds](Counters::add_of_process) it to a job of its own.
    pub fn counts(&self) -> ProcessCounts {
        let counters = self.counters();
        ProcessCounts {
            bytes_read: counters.bytes_read(),
            bytes_written: counters.bytes_written(),
            repairs: counters.repairs(),
            cpu_us: (cpu_seconds() * 1e6) as u64,
        }
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        &self.inner.progress
    }

    /// A device of the store.
    pub(crate) fn device(&self, number: u16) -> Result<Arc<dyn Device>> {
        self.shared().device(number)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.home().shared
    }

    /// Whether it was started on a store.
    pub fn has_store(&self) -> bool {
        self.inner.home.is_some()
    }

    /// The store that it works on.
    pub fn store(&self) -> Store {
        Store(self.shared().clone())
    }

    /// How it reads and writes, as [`Report::io`] says.
    pub(crate) fn io_name(&self) -> &'static str {
        self.inner.io.name()
    }

    pub(crate) fn scratch(&self) -> &Arc<Scratch> {
        &self.home().scratch
    }

    /// The extents that it has taken.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.home().lease
    }

    /// How many extents its scratch files take, and datasets that it writes and did not commit.
    pub fn extents_in_use(&self) -> u64 {
        self.lease().in_use()
    }

    /// The path of a plain scratch file called `name`, for what only works on a file system. It goes with the job.
    pub fn scratch_path(&self, name: &str) -> PathBuf {
        self.scratch().path().join(name)
    }

    /// A name that no other scratch file of this job has, beginning with `prefix`.
    pub fn scratch_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.inner.names.fetch_add(1, Ordering::Relaxed))
    }

    /// The stop flag.
    pub fn cancel(&self) -> &Cancel {
        &self.inner.cancel
    }

    /// To be called every few milliseconds of work.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once someone asked to stop, or the deadline is over.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.inner.cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Starts a phase of `total` units (0 where nobody knows); the phase before ends.
    pub fn start_phase(&self, phase: impl Into<String>, unit: &'static str, total: u64) {
        let progress = &self.inner.progress;
        let mut state = progress.state.lock().expect("no panic under this lock");
        let before = std::mem::replace(&mut *state, (phase.into(), unit, Some(Instant::now())));
        progress.done.store(0, Ordering::Relaxed);
        progress.total.store(total, Ordering::Relaxed);
        drop(state);
        if let (phase, _, Some(started)) = before {
            let seconds = started.elapsed().as_secs_f64();
            let mut phases = self.inner.counters.phases.lock().expect("no panic under this lock");
            match phases.iter_mut().find(|known| known.phase == phase) {
                Some(known) => known.seconds += seconds,
                None => phases.push(PhaseReport { phase, seconds }),
            }
        }
    }

    /// Ends the last phase and gives the counters.
    pub fn report(&self) -> Report {
        self.start_phase("", "", 0);
        self.inner.progress.state.lock().expect("no panic under this lock").2 = None;
        let (counters, home) = (&self.inner.counters, self.inner.home.as_ref());
        let profile = home.and_then(|home| Store(home.shared.clone()).drive_profile());
        let levels = counters.levels.lock().expect("no panic under this lock");
        Report {
            seconds: self.inner.started.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() + counters.other_cpu_us.load(Ordering::Relaxed) as f64 / 1e6,
            memory_budget_bytes: self.inner.budget.memory_bytes(),
            memory_reserved_bytes_max: self.inner.budget.reserved_bytes_max(),
            memory_resident_bytes_max: resident_bytes_max(),
            threads: self.inner.budget.threads(),
            bytes_read: counters.bytes_read(),
            bytes_written: counters.bytes_written(),
            repairs: counters.repairs(),
            direct_io: home.is_some_and(|home| home.shared.is_direct()),
            io: self.inner.io.name(),
            drive_floor: profile.map(|profile| DriveFloor::of(&profile, counters)),
            phases: counters.phases.lock().expect("no panic under this lock").clone(),
            levels: levels
                .iter()
                .map(|(&level, &(records_in, records_out))| LevelReport { level, records_in, records_out })
                .collect(),
        }
    }

    /// The same for bytes that are not the store's, and not counted.
    pub(crate) fn submit_elsewhere(&self, direction: Direction, parts: Vec<Part>, buffer: Buffer) -> Pending {
        self.inner.io.submit(direction, parts, buffer, None)
    }

    pub(crate) fn submit(
        &self,
        direction: Direction,
        parts: Vec<Part>,
        buffer: Buffer,
        extents: Option<Arc<Extents>>,
    ) -> Pending {
        let counter = match direction {
            Direction::Read => &self.inner.counters.bytes_read,
            Direction::Write => &self.inner.counters.bytes_written,
        };
        let len: usize = parts.iter().map(|part| part.range.len()).sum();
        counter.fetch_add(len as u64, Ordering::Relaxed);
        self.inner.io.submit(direction, parts, buffer, extents)
    }
}

/// The highest resident size of this process (VmHWM), or 0 where the system does not tell.
fn resident_bytes_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// User and system time of this process: fields 14 and 15 of /proc/self/stat, in ticks.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses and may hold anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
pub(crate) fn test_job(memory_bytes: u64, faults: &[crate::Fault]) -> (tempfile::TempDir, Job) {
    let folder = tempfile::tempdir().unwrap();
    let device = crate::Faulty::new(Arc::new(crate::Memory::new(256)), &[]);
    let store = crate::Store::open_on(folder.path(), vec![Arc::new(device.clone())]).unwrap();
    let job = store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap();
    // The first extents are taken now, so that faults hit what the test does.
    job.lease().give_back(job.lease().take(&[]).unwrap());
    device.set(faults);
    (folder, job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_waits_for_who_listens_and_says_nothing_twice() {
        let (_folder, job) = test_job(1 << 20, &[]);
        let progress = job.progress();
        progress.tell(|| unreachable!("nobody listens"));
        progress.listen();
        for plan in ["a", "a", "b", "a"] {
            progress.tell(|| plan.to_string());
        }
        assert_eq!(progress.take_told(), ["a", "b", "a"]);
        progress.tell(|| "a".to_string());
        assert!(progress.take_told().is_empty());
        // Nobody takes them: there is an end.
        (0..2 * TOLD_MAX).for_each(|number| progress.tell(|| number.to_string()));
        assert_eq!(progress.take_told().len(), TOLD_MAX);
    }

    #[test]
    fn phases_of_one_name_are_added_up_in_order() {
        let (_folder, job) = test_job(1 << 20, &[]);
        for phase in ["edges", "apply", "edges"] {
            job.start_phase(phase, "units", 10);
            job.progress().add(3);
            assert_eq!(job.progress().state().done, 3);
        }
        let names: Vec<_> = job.report().phases.into_iter().map(|phase| phase.phase).collect();
        assert_eq!(names, ["edges", "apply"]);
    }

    #[test]
    fn a_report_knows_this_process() {
        let (_folder, job) = test_job(1 << 20, &[]);
        let report = job.report();
        assert!(report.memory_resident_bytes_max > 1 << 20);
        assert!(report.cpu_seconds >= 0.0 && report.cpu_seconds < 1e6);
    }
}

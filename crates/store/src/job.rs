//! A job is one execution of a command on a store.

use std::{
    ops::Deref,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_runtime::{Context, Direction, DriveFloor, Part, Pending};

use crate::{
    Budget, Buffer, Cancel, Counters, Device, DriveProfile, EXTENT_BYTES, Report, Result, Scratch, Store,
    shared::Shared, space::extents::Extents, space::lease::Lease,
};

/// `Job` is a [`Context`] with extents and scratch files in a store. A job dereferences to its context. Clones share
/// the job. When the last clone is dropped, the scratch folder is removed.
#[derive(Clone, Debug)]
pub struct Job {
    // The fields are dropped in this order, so that requests in flight end before the scratch folder is removed.
    context: Context,
    home: Arc<JobStore>,
}

impl Store {
    /// Starts a job. The call first frees the resources of jobs whose processes have died.
    ///
    /// # Errors
    /// Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    pub fn job(&self, budget: Budget, cancel: Cancel) -> Result<Job> {
        let scratch = self.0.join()?;
        Ok(Job::new(self.0.clone(), scratch, budget, cancel))
    }
}

/// `JobStore` contains the resources of a job in a store: its extents, its scratch folder, and the store.
#[derive(Debug)]
struct JobStore {
    lease: Arc<Lease>,
    scratch: Arc<Scratch>,
    shared: Arc<Shared>,
    names: AtomicU64,
}

impl Deref for Job {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl AsRef<Context> for Job {
    fn as_ref(&self) -> &Context {
        &self.context
    }
}

impl Job {
    pub(crate) fn new(shared: Arc<Shared>, scratch: Scratch, budget: Budget, cancel: Cancel) -> Job {
        let scratch = Arc::new(scratch);
        let lease = Arc::new(Lease::new(shared.clone(), scratch.clone()));
        let home = JobStore { lease, scratch, shared, names: AtomicU64::new(0) };
        Job { context: Context::new(budget, cancel), home: Arc::new(home) }
    }

    /// Returns a handle of the same job with a smaller memory budget. `budget` is a [`Budget::part`] of the job's
    /// budget.
    pub fn within(&self, budget: Budget) -> Job {
        Job { context: self.context.within(budget), home: self.home.clone() }
    }

    /// Returns a handle of the same job that stops at the flag `cancel` alone: the handle of one of several calls that
    /// share the job.
    pub fn with_cancel(&self, cancel: Cancel) -> Job {
        Job { context: self.context.with_cancel(cancel), home: self.home.clone() }
    }

    /// Returns a device of the store.
    pub(crate) fn device(&self, number: u16) -> Result<Arc<dyn Device>> {
        self.shared().device(number)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.home.shared
    }

    /// Returns the store of the job.
    pub fn store(&self) -> Store {
        Store(self.shared().clone())
    }

    pub(crate) fn scratch(&self) -> &Arc<Scratch> {
        &self.home.scratch
    }

    /// Returns the lease of the job: the extents that the job has taken.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.home.lease
    }

    /// Returns the number of extents in the job's scratch files and in datasets that are not committed.
    pub fn extents_in_use(&self) -> u64 {
        self.lease().in_use()
    }

    /// Returns the path of a scratch file called `name` in the file system, for code that needs a plain file. The file
    /// is removed at the end of the job.
    pub fn scratch_path(&self, name: &str) -> PathBuf {
        self.scratch().path().join(name)
    }

    /// Returns a name that begins with `prefix` and is unique among the scratch files of the job.
    pub fn scratch_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.home.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends the last phase, and returns the counters and the time that the drives of the store need at least.
    pub fn report(&self) -> Report {
        let drive_floor = self.store().drive_profile().map(|profile| drive_floor(&profile, self.counters()));
        Report { direct_io: self.shared().is_direct(), drive_floor, ..self.context.report() }
    }

    /// Starts the transfers `parts` of `buffer`, and counts their bytes. `extents` are not released before the
    /// transfers have ended.
    pub(crate) fn submit(
        &self,
        direction: Direction,
        parts: Vec<Part>,
        buffer: Buffer,
        extents: Option<Arc<Extents>>,
    ) -> Pending {
        self.context.submit(direction, parts, buffer, extents.map(|extents| extents as _))
    }
}

/// `Execution` is an execution of a command with or without a store.
#[derive(Clone, Debug)]
pub enum Execution {
    /// The command reads and writes only plain files.
    Plain(Context),
    /// The command is a job on a store.
    Stored(Job),
}

impl Deref for Execution {
    type Target = Context;

    fn deref(&self) -> &Context {
        match self {
            Execution::Plain(context) => context,
            Execution::Stored(job) => job,
        }
    }
}

impl AsRef<Context> for Execution {
    fn as_ref(&self) -> &Context {
        self
    }
}

impl Execution {
    /// Returns the job, if the execution has a store.
    pub fn job(&self) -> Option<&Job> {
        match self {
            Execution::Plain(_) => None,
            Execution::Stored(job) => Some(job),
        }
    }

    /// Ends the last phase and returns the counters.
    pub fn report(&self) -> Report {
        match self {
            Execution::Plain(context) => context.report(),
            Execution::Stored(job) => job.report(),
        }
    }
}

/// Returns the time that the drives need at least for the counted bytes, at their best measured rates.
fn drive_floor(profile: &DriveProfile, counters: &Counters) -> DriveFloor {
    let best = EXTENT_BYTES as u64;
    DriveFloor {
        read_seconds: profile.read_seconds(counters.bytes_read(), best, true),
        write_seconds: profile.write_seconds(counters.bytes_written(), best, true),
    }
}

#[cfg(test)]
pub(crate) fn test_job(memory_bytes: u64, faults: &[crate::Fault]) -> (tempfile::TempDir, Job) {
    let folder = tempfile::tempdir().unwrap();
    let device = crate::Faulty::new(Arc::new(crate::Memory::new(256)), &[]);
    let store = crate::Store::open_on(folder.path(), vec![Arc::new(device.clone())]).unwrap();
    let job = store.job(Budget::new(memory_bytes, 2), Cancel::default()).unwrap();
    // The job takes its first extents before the faults are set, so that the faults hit only the I/O of the test.
    job.lease().release(job.lease().take(&[]).unwrap());
    device.set(faults);
    (folder, job)
}

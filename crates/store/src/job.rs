//! One run of one command on a store.

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

/// One run of one command on a store: a [`Context`], which it can be used as, and its place in the store. Clones share it;
/// dropping the last one removes the scratch folder.
#[derive(Clone, Debug)]
pub struct Job {
    // Dropped in this order: what is on its way ends before the scratch folder goes.
    context: Context,
    home: Arc<Home>,
}

/// Where a job has its place in a store.
#[derive(Debug)]
struct Home {
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
        let home = Home { lease, scratch, shared, names: AtomicU64::new(0) };
        Job { context: Context::new(budget, cancel), home: Arc::new(home) }
    }

    /// The same job, for work that may use `budget` alone: a [`Budget::part`] of the job's.
    pub fn within(&self, budget: Budget) -> Job {
        Job { context: self.context.within(budget), home: self.home.clone() }
    }

    /// A device of the store.
    pub(crate) fn device(&self, number: u16) -> Result<Arc<dyn Device>> {
        self.shared().device(number)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.home.shared
    }

    /// The store that it works on.
    pub fn store(&self) -> Store {
        Store(self.shared().clone())
    }

    pub(crate) fn scratch(&self) -> &Arc<Scratch> {
        &self.home.scratch
    }

    /// The extents that it has taken.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.home.lease
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
        format!("{prefix}-{}", self.home.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends the last phase and gives the counters, with what the drives of the store alone would take.
    pub fn report(&self) -> Report {
        let drive_floor = self.store().drive_profile().map(|profile| drive_floor(&profile, self.counters()));
        Report { direct_io: self.shared().is_direct(), drive_floor, ..self.context.report() }
    }

    /// Starts to move the bytes of `parts` from or to `buffer`, and counts them. `extents` live until that is done.
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

/// A run that has a store, or needs none: for whoever starts both.
#[derive(Clone, Debug)]
pub enum Execution {
    /// It reads and writes plain files alone.
    Plain(Context),
    /// It was started on a store.
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
    /// The job on a store, if it is one.
    pub fn job(&self) -> Option<&Job> {
        match self {
            Execution::Plain(_) => None,
            Execution::Stored(job) => Some(job),
        }
    }

    /// Ends the last phase and gives the counters.
    pub fn report(&self) -> Report {
        match self {
            Execution::Plain(context) => context.report(),
            Execution::Stored(job) => job.report(),
        }
    }
}

/// The time that the drives alone would take for the bytes counted, at their best rates.
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
    // The first extents are taken now, so that faults hit what the test does.
    job.lease().give_back(job.lease().take(&[]).unwrap());
    device.set(faults);
    (folder, job)
}

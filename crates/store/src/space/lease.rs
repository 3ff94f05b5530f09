//! A lease contains the extents that a job has taken for its scratch files and for the datasets that it writes.
//!
//! To take extents from the store, a job needs the lock of the store. A lease therefore takes runs of adjacent extents,
//! whose length grows from 2 to 64. Most calls of [`Lease::take`] then need no lock of the store. Extents are spread
//! over the devices in proportion to their capacities. The job reuses the extents that its scratch files return. When
//! the job ends or is killed, all its extents that belong to no dataset are free again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
};

use crate::{
    ExtentAddress, Result,
    log::catalog::Run,
    shared::{LeaseLimits, Shared},
    space::scratch::Scratch,
};

/// The largest number of extents that are taken from the store at once, which is 128 MiB.
const RUN_EXTENTS_MAX: u32 = 64;

/// `Lease` manages the extents of a job.
#[derive(Debug)]
pub(crate) struct Lease {
    shared: Arc<Shared>,
    scratch: Arc<Scratch>,
    pools: Mutex<BTreeMap<u16, Pool>>,
    terms: Mutex<LeaseLimits>,
    /// The used fraction of each device at the time when the job took its first extent.
    filled: OnceLock<BTreeMap<u16, f64>>,
}

/// `Pool` contains the extents of a lease on one device.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<u32>,
    /// The number of extents that files of the job use.
    used: u64,
    /// The number of extents in the run that was taken last.
    last_run: u32,
    /// All runs that were taken from the store.
    taken: Vec<Run>,
    /// True if the device had no free extent when the lease last tried to take a run.
    full: bool,
}

impl Lease {
    pub fn new(shared: Arc<Shared>, scratch: Arc<Scratch>) -> Lease {
        Lease { shared, scratch, pools: Mutex::default(), terms: Mutex::default(), filled: OnceLock::new() }
    }

    /// Sets the limits for taking further extents.
    pub fn set_terms(&self, terms: LeaseLimits) {
        *self.terms.lock().expect("no panic under this lock") = terms;
    }

    /// Takes an extent on the device with the smallest share of this job's extents, relative to its capacity. Devices
    /// in `avoid` are excluded. If several devices have the same share, the emptiest of them is chosen, so that many
    /// small datasets are also spread over the devices.
    ///
    /// # Errors
    /// Returns [`crate::Error::NoSpace`] if all devices that are not excluded are full.
    pub fn take(&self, avoid: &[u16]) -> Result<ExtentAddress> {
        let mut pools = self.pools.lock().expect("no panic under this lock");
        let devices = self.shared.open_devices();
        let filled = self.filled.get_or_init(|| self.shared.filled());
        let terms = self.terms.lock().expect("no panic under this lock").clone();
        loop {
            let share = |number: u16, extents: u32| {
                let used = pools.get(&number).map_or(0, |pool| pool.used);
                (used as f64 + 1.0) / extents.max(1) as f64
            };
            let open = devices.iter().filter(|(number, _)| {
                !avoid.contains(number) && !pools.get(number).is_some_and(|pool| pool.full)
            });
            let best = open
                .map(|&(number, extents)| {
                    let filled = filled.get(&number).copied().unwrap_or(0.0);
                    (share(number, extents), filled, number)
                })
                .min_by(|a, b| a.partial_cmp(b).expect("shares are numbers"));
            let Some((_, _, device)) = best else { return Err(self.shared.no_space()) };
            let pool = pools.entry(device).or_default();
            if pool.free.is_empty() {
                let wanted = (pool.last_run * 2).clamp(2, RUN_EXTENTS_MAX);
                match self.shared.take_extents(&self.scratch, device, wanted, &terms)? {
                    Some(run) => {
                        pool.last_run = run.count;
                        pool.taken.push(run);
                        // The last extent in the list is used first. The list is in descending order, so extents are
                        // used in ascending order.
                        pool.free.extend((run.start.extent..run.start.extent + run.count).rev());
                    }
                    None => {
                        pool.full = true;
                        continue;
                    }
                }
            }
            pool.used += 1;
            return Ok(ExtentAddress { device, extent: pool.free.pop().expect("not empty") });
        }
    }

    /// Returns an extent to the lease after its content is no longer needed.
    pub fn release(&self, place: ExtentAddress) {
        let mut pools = self.pools.lock().expect("no panic under this lock");
        let pool = pools.get_mut(&place.device).expect("was taken here");
        pool.used -= 1;
        pool.full = false;
        pool.free.push(place.extent);
    }
}

impl Lease {
    /// Returns the number of extents that files of the job use.
    pub fn in_use(&self) -> u64 {
        self.pools.lock().expect("no panic under this lock").values().map(|pool| pool.used).sum()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let pools = std::mem::take(&mut *self.pools.lock().expect("no panic under this lock"));
        let taken: Vec<Run> = pools.into_values().flat_map(|pool| pool.taken).collect();
        self.shared.end_lease(&taken);
    }
}

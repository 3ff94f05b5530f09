//! This module finishes interrupted changes, renews the log, and lists the damage of superblocks and the log.

use super::*;
use crate::log::{Placement, superblock_slots};

impl Shared {
    /// Finishes a commit whose process died before the commit had reached all copies of the log and all superblocks. An
    /// unfinished commit is not damage, since it was not acknowledged. The call also finishes the interrupted addition
    /// of a device, and places the log on more devices if this is necessary.
    pub fn finish_commit(&self) -> Result<()> {
        let urgency = {
            let current = self.current()?;
            let (superblock, devices) = (&current.log.superblock, self.devices());
            let is_whole = !current.log.is_uneven() && !current.is_stale;
            let mut next = superblock.clone();
            current.drop_unfinished(&devices, &current.catalog, &mut next)?;
            // If the addition of a device was interrupted, the device is leaving and one of its two superblock slots is
            // missing.
            let is_half_added = |entry: &DeviceEntry| {
                let device = devices.get(&entry.number).filter(|_| entry.is_leaving);
                device.is_some_and(|device| superblock_slots(device.as_ref()).iter().any(Option::is_none))
            };
            let is_unfinished = !is_whole && !self.registry.has_announced(current.log.last())
                || next.devices != superblock.devices
                || superblock.devices.iter().any(is_half_added);
            let placement = Placement::of(&current.catalog, superblock, &devices);
            let is_badly_placed = spread(&superblock.log) < placement.spread();
            match is_unfinished {
                true => Urgency::Needed,
                false if is_badly_placed && is_whole && current.log.is_fit(&devices) => Urgency::BetterPlace,
                false => return Ok(()),
            }
        };
        self.renew_log(urgency)
    }

    /// Begins a new log. This writes all copies of the log and all superblocks again.
    pub fn renew_log(&self, urgency: Urgency) -> Result<()> {
        let change = self.change()?;
        let superblock = change.log.superblock.clone();
        change.commit_new_log(superblock, urgency)
    }

    /// Lists the damage of the superblocks and the log of a store that can still be read.
    pub fn check_log(&self) -> Result<Vec<String>> {
        let current = self.current()?;
        let (superblock, devices) = (&current.log.superblock, self.devices());
        let placement = Placement::of(&current.catalog, superblock, &devices);
        let is_lost = |entry: &DeviceEntry| {
            let has_lost = |device: &dyn Device| match read_superblock(device) {
                Ok(found) => found.is_none() && check_is_blank(device).is_err(),
                Err(error) => matches!(error, Error::LostSuperblock { .. }),
            };
            let is_there = |device: &dyn Device| path_of(device) == entry.path && has_lost(device);
            (self.opener)(entry, &superblock.devices, &is_there).is_some()
        };
        Ok(current.log.check(&devices, placement, is_lost))
    }
}

impl LockedState<'_> {
    /// Removes devices from a superblock if their addition or removal was interrupted. These are the devices that are
    /// leaving and missing, and contain no extents in use.
    pub fn drop_unfinished(&self, devices: &Devices, catalog: &Catalog, next: &mut Superblock) -> Result<()> {
        let is_gone = |entry: &DeviceEntry| entry.is_leaving && !devices.contains_key(&entry.number);
        if next.devices.iter().any(is_gone) {
            let busy = self.busy(next, catalog)?;
            let holds = |number: u16| busy.iter().any(|run| run.start.device == number);
            next.devices.retain(|entry| !is_gone(entry) || holds(entry.number));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Budget, Fault, Faulty, Memory, Store, log::Log};

    /// If a process is killed during a commit, `verify` finishes the commit and reports no damage.
    #[test]
    fn verify_finishes_an_interrupted_commit() {
        let home = tempfile::tempdir().unwrap();
        let device = Faulty::new(Arc::new(Memory::new(64)), &[]);
        let open = || Store::open_on(home.path(), vec![Arc::new(device.clone())]).unwrap();
        let job_of = |store: &Store| store.job(Budget::new(16 << 20, 1), Default::default()).unwrap();
        let create = |name: &str| {
            let store = open();
            let job = job_of(&store);
            store.create_dataset(&job, name, "test").unwrap().commit(&[])
        };
        create("first").unwrap();
        for write in 0..2 {
            device.set(&[Fault::FailWrite(write)]);
            let name = format!("second-{write}");
            assert!(create(&name).is_err());
            device.set(&[]);
            let store = open();
            let count = store.list().unwrap().len();
            let findings = store.verify(&job_of(&store), &[], false).unwrap();
            assert_eq!(findings.damage, []);
            // After the verification, all copies of the log contain the commit.
            let superblock = open().0.snapshot().unwrap().0;
            for copy in &superblock.log {
                let superblock = Superblock { log: vec![copy.clone()], ..superblock.clone() };
                let (_, catalog) = Log::read(&open().0.devices(), superblock).unwrap();
                assert_eq!(catalog.datasets.len(), count);
            }
        }
        assert_eq!(open().list().unwrap().len(), 2);
    }
}

//! This module changes the set of devices of a store: it adds devices, takes diverged devices back, and removes
//! devices.

use super::{discovery::note_places, *};
use crate::{log::erase_superblock, random::random_uuid};

impl Shared {
    /// Adds a device with the next free number. If an earlier attempt to add the device was interrupted, the device
    /// keeps its number.
    pub fn add_device(&self, device: Arc<dyn Device>, limit_bytes: Option<u64>) -> Result<u16> {
        let mut change = self.change()?;
        let mut next = change.log.superblock.clone();
        let path = path_of(device.as_ref());
        let bad = |what: String| Err(Error::BadDevice { path: path.clone(), what });
        // `missing` is the number of a missing device that is recorded with this folder. Either an earlier attempt to
        // add this device failed before the device got a superblock, or its superblock is lost.
        let is_missing =
            |entry: &&DeviceEntry| entry.path == path && !change.devices.contains_key(&entry.number);
        let missing = next.devices.iter().find(is_missing).map(|entry| entry.number);
        let found = match read_superblock(device.as_ref()) {
            Ok(None) if missing.is_none() => check_is_blank(device.as_ref()).map(|()| None),
            // A device of this store whose superblock is lost gets a new superblock.
            Err(Error::LostSuperblock { .. }) if missing.is_some() => Ok(None),
            found => found,
        };
        let known = match found {
            Ok(Some((number, other))) if other.store == next.store => {
                let entry = next.devices.iter().find(|entry| entry.number == number);
                match entry.filter(|entry| Some(entry.uuid) == other.uuid_of(number)) {
                    // An earlier attempt to add the device failed after the store had recorded the device, or the
                    // removal of the device was not finished.
                    Some(entry) if entry.is_leaving => Some(number),
                    Some(_) => return bad(format!("it is device {number} of this store already")),
                    None => {
                        return bad(format!(
                            "it was device {number} of this store and was removed: empty it first"
                        ));
                    }
                }
            }
            Ok(Some(_)) => return bad("it holds a store already".to_string()),
            Ok(None) => missing,
            Err(Error::LostSuperblock { .. }) => {
                return bad("it has remains of a device of another store: empty it first".to_string());
            }
            Err(error) => return Err(error),
        };
        for entry in next.devices.iter().filter(|entry| Some(entry.number) != known) {
            let there = change.devices.get(&entry.number).and_then(|device| device.folder());
            let (number, place) = (entry.number, there.unwrap_or(&entry.path));
            if let Some(folder) = device.folder()
                && (folder.starts_with(place) || place.starts_with(folder))
            {
                let place = place.display();
                return bad(format!(
                    "it overlaps with {place}, device {number} of this store: one folder lies in the other"
                ));
            }
        }
        let prepared = device.prepare(SUPERBLOCK_EXTENT..SUPERBLOCK_EXTENT + 1);
        prepared.map_err(|error| Error::io("allocate space for the superblock", &path, error))?;
        let last = next.devices.iter().map(|entry| entry.number).max().unwrap_or(0);
        let Some(number) = known.or(last.checked_add(1)) else {
            return bad("the store has had as many devices as it can have".to_string());
        };
        if known.is_none() {
            // The device is marked as leaving until all devices, including the new device, have a superblock with its
            // entry: see `drop_unfinished`.
            let (uuid, path) = (random_uuid(), path.clone());
            next.devices.push(DeviceEntry { number, uuid, path, limit_bytes, is_leaving: true });
        }
        next.branch(&change.devices);
        change.devices.insert(number, device);
        note_places(&mut next, &change.devices);
        // The first write records the new device as leaving. Two more writes record in both slots of every superblock
        // that the device is no longer leaving.
        for is_leaving in [true, false, false] {
            let entries = next.devices.iter_mut().filter(|entry| entry.number == number);
            entries.for_each(|entry| entry.is_leaving &= is_leaving);
            change.write_superblock(&mut next)?;
        }
        self.registry.meet_on(folders(&change.devices));
        // The device now belongs to the store and has a superblock, so copies of the log can be placed on it.
        let change = change.commit_superblock(next).change();
        let superblock = change.log.superblock.clone();
        // A device that belonged to the store before may have lost its copy of the log.
        let urgency = if known.is_some() { Urgency::Needed } else { Urgency::BetterPlace };
        change.commit_new_log(superblock, urgency)?;
        Ok(number)
    }

    /// Takes a diverged device back into the store. Commits that only this device has are lost. These commits may have
    /// overwritten extents of the store. Such extents are reported and repaired like other damaged extents.
    pub fn rejoin(&self, device: Arc<dyn Device>) -> Result<u16> {
        self.registry
            .meet_on(folders(&self.devices()).into_iter().chain(device.folder().map(Path::to_path_buf)));
        let mut change = self.change()?;
        let path = path_of(device.as_ref());
        let bad = |what: &str| Err(Error::BadDevice { path: path.clone(), what: what.to_string() });
        let superblock = &change.log.superblock;
        let Some((number, own)) = read_superblock(device.as_ref())? else { return bad("it holds no store") };
        if own.store != superblock.store || own.uuid_of(number) != superblock.uuid_of(number) {
            return bad("it is not a device of this store");
        }
        if superblock.descends_from(&own) {
            return bad("it has not diverged: the store has all its commits");
        }
        let superblock = Superblock { sequence: superblock.sequence.max(own.sequence), ..superblock.clone() };
        change.devices.insert(number, device);
        change.commit_new_log(superblock, Urgency::Needed)?;
        Ok(number)
    }

    /// Sets or clears the mark that a device is leaving (is being removed and gets no new data).
    pub fn set_leaving(&self, number: u16, is_leaving: bool) -> Result<()> {
        let change = self.change()?;
        let mut next = change.log.superblock.clone();
        let entry = next.devices.iter_mut().find(|entry| entry.number == number);
        entry.ok_or(Error::NoDevice { number })?.is_leaving = is_leaving;
        // A new log is begun, so that no extent of the log stays on the device.
        change.commit_new_log(next, Urgency::Needed)
    }

    /// Removes a device that contains no data any more. If a process or dataset still needs the device, the device is
    /// not removed, and the result describes this process or dataset.
    ///
    /// # Errors
    /// - Returns an I/O error if an I/O operation fails.
    /// - Returns [`Error::BadDevice`] if the device was removed but some files could not be deleted from its folder.
    pub fn forget_device(&self, number: u16, own: &Scratch) -> Result<Option<String>> {
        self.free_dead()?;
        let mut change = self.change()?;
        let on_it = |runs: &[Run]| runs.iter().any(|run| run.start.device == number);
        if change.catalog.datasets.values().any(|record| on_it(&record.runs)) {
            return Ok(Some("a dataset that was written during the move".to_string()));
        }
        let owners = change.lock.owners()?;
        let others = owners.iter().filter(|owner| owner.path.file_name() != own.path().file_name());
        let is_home = change.devices.keys().next() == Some(&number);
        for owner in others {
            let reads = owner.pin.is_some_and(|pin| pin < change.catalog.commit);
            if is_home || reads || on_it(&owner.lease) {
                return Ok(Some(format!("process {}", owner.process)));
            }
        }
        let mut next = change.log.superblock.clone();
        next.devices.retain(|entry| entry.number != number);
        assert!(next.places().all(|place| place.device != number), "the log was moved before");
        let gone = change.devices.remove(&number);
        next.branch(&change.devices);
        note_places(&mut next, &change.devices);
        // The superblock is written twice, so that no slot of any device still has an entry for the removed device.
        for _ in 0..2 {
            change.write_superblock(&mut next)?;
        }
        let erased = gone.as_ref().map_or(Ok(()), |device| {
            erase_superblock(device.as_ref())?;
            device.clear().map_err(|error| Error::io("erase the device", path_of(device.as_ref()), error))
        });
        let folder = gone.as_ref().and_then(|gone| gone.folder());
        if let Some(folder) = folder.filter(|_| is_home) {
            crate::device::profile::forget(folder);
        }
        // The scratch folder is removed while the lock is held. A process that waits for the lock then notices that the
        // folder was removed.
        let removed = folder.map_or(Ok(()), |folder| self.registry.remove(folder));
        change.commit_superblock(next);
        erased.and(removed).map(|()| None).map_err(|error| {
            let path = gone.as_ref().map_or_else(|| self.home.clone(), |gone| path_of(gone.as_ref()));
            let what = format!(
                "device {number} was removed from the store, which no longer needs its data, but not all of the data \
                 could be deleted ({error}): delete the files segment-* and the folder scratch in it"
            );
            Error::BadDevice { path, what }
        })
    }
}

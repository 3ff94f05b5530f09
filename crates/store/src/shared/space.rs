//! This module allocates extents to jobs. It discards extents on the devices after no dataset, job or reader needs
//! them.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{PAGE_BYTES, log::io_error};

/// If a file system has less free space than this number of bytes, extents are allocated on it when a job takes them.
/// Later writes to these extents then cannot fail for lack of space.
const NEAR_FULL_BYTES: u64 = 8 << 30;

/// `LeaseLimits` restrict which extents a job may take.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseLimits {
    /// Extents that the job must not take.
    pub closed: Vec<Run>,
    /// True if the job may also take the last extents of a device, which are reserved for operations that free space.
    pub with_reserve: bool,
}

impl Shared {
    /// Returns all extents that are in use, as runs.
    pub fn busy_extents(&self) -> Result<Vec<Run>> {
        let mut locked = self.locked()?;
        locked.refresh()?;
        locked.busy(&locked.log.superblock, &locked.catalog)
    }

    /// Discards all unused space, including the headers of segments without data. The call makes one system call per
    /// segment, and one per gap in a segment.
    ///
    /// # Errors
    /// Returns an I/O error if some unused space could not be discarded. After an error, the other unused space was
    /// still discarded. If the last commit may not be durable, nothing is discarded.
    pub fn discard_unused(&self) -> Result<()> {
        self.finish_commit()?;
        let mut locked = self.locked()?;
        locked.refresh()?;
        if !locked.is_settled() {
            return Ok(());
        }
        let busy = locked.busy(&locked.log.superblock, &locked.catalog)?;
        let segments_of = |run: &Run| {
            let last = (run.start.extent + run.count - 1) / SEGMENT_EXTENTS;
            let device = run.start.device;
            (run.start.extent / SEGMENT_EXTENTS..=last).map(move |segment| (device, segment))
        };
        let used: BTreeSet<(u16, u32)> = busy.iter().flat_map(segments_of).collect();
        let mut all = Vec::new();
        for (number, device) in self.devices() {
            for segment in 0..device.extents().div_ceil(SEGMENT_EXTENTS) {
                // The headers of a segment stay if the segment contains used extents. The headers of segment 0 and the
                // superblock always stay.
                let kept = match segment {
                    0 => SUPERBLOCK_EXTENT + 1,
                    _ => u32::from(used.contains(&(number, segment))),
                };
                let start = segment * SEGMENT_EXTENTS;
                let end = start.saturating_add(SEGMENT_EXTENTS).min(device.extents());
                let count = end.saturating_sub(start + kept);
                all.push(Run { start: ExtentAddress { device: number, extent: start + kept }, count });
            }
        }
        all.retain(|run| run.count > 0);
        self.discard(&Run::without(&all, &busy))
    }

    /// Returns the devices that take new data, with their capacities in extents. The share of data that a device gets
    /// is proportional to its capacity.
    pub fn open_devices(&self) -> Vec<(u16, u32)> {
        let state = self.state();
        let devices = self.devices.read().expect("no panic under this lock");
        let open = devices.iter().filter(|(number, _)| state.log.superblock.takes_data(**number));
        open.map(|(&number, device)| (number, device.extents())).collect()
    }

    /// Returns the folders of the devices that are present.
    pub fn folders(&self) -> Vec<PathBuf> {
        folders(&self.devices.read().expect("no panic under this lock"))
    }

    /// Returns the number of missing devices.
    pub fn missing_devices(&self) -> usize {
        let state = self.state();
        let devices = self.devices.read().expect("no panic under this lock");
        let entries = state.log.superblock.devices.iter();
        entries.filter(|entry| !devices.contains_key(&entry.number)).count()
    }

    /// Returns for each device the fraction of its capacity that datasets take.
    pub fn filled(&self) -> BTreeMap<u16, f64> {
        let state = self.state();
        let devices = self.devices.read().expect("no panic under this lock");
        let part = |(&number, device): (&u16, &Arc<dyn Device>)| {
            let runs = state.catalog.datasets.values().flat_map(|record| &record.runs);
            let taken: u64 = runs.filter(|run| run.start.device == number).map(|run| run.count as u64).sum();
            (number, taken as f64 / device.extents().max(1) as f64)
        };
        devices.iter().map(part).collect()
    }

    /// Takes up to `wanted` adjacent extents of a device, and records them in `scratch`. The result is `None` if the
    /// device has no free extents except the reserved ones.
    pub fn take_extents(
        &self,
        scratch: &Scratch,
        number: u16,
        wanted: u32,
        terms: &LeaseLimits,
    ) -> Result<Option<Run>> {
        let mut locked = self.locked()?;
        locked.lock.join_also(scratch)?;
        locked.catch_up()?;
        let mut busy = locked.busy(&locked.log.superblock, &locked.catalog)?;
        // The device may have been removed from the store in the meantime.
        let Ok(device) = self.device(number) else { return Ok(None) };
        let extents = device.extents();
        let reserve = if terms.with_reserve { 0 } else { reserve(extents) };
        // An extent that a running job committed is in the lease of the job and in a dataset, and must be counted once.
        let on_it = Run::merged(&busy).into_iter().filter(|run| run.start.device == number);
        let taken: u64 = on_it.map(|run| run.count as u64).sum();
        let not_for_data = extents.div_ceil(SEGMENT_EXTENTS) as u64 + 1;
        let left = (extents as u64).saturating_sub(taken + not_for_data + reserve);
        let free = device.free_bytes().map_err(io_error("query the free space", device.as_ref()))?;
        let free = free.unwrap_or(u64::MAX);
        let left = left.min((free / EXTENT_BYTES as u64).saturating_sub(reserve));
        busy.extend_from_slice(&terms.closed);
        let wanted = wanted.min(left.min(u32::MAX as u64) as u32);
        let gap = first_gap(&busy, number, extents, wanted).filter(|_| wanted > 0);
        let Some(run) = gap else { return Ok(None) };
        scratch.add_lease(run)?;
        if free < NEAR_FULL_BYTES {
            let headers = header_of(run.start.extent).0;
            let prepared = device
                .prepare(headers..headers + 1)
                .and_then(|()| device.prepare(run.start.extent..run.start.extent + run.count));
            match prepared {
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(None),
                prepared => prepared.map_err(io_error("allocate space", device.as_ref()))?,
            }
        }
        Ok(Some(run))
    }

    /// Creates the scratch folder of a new job. On a read-only or full file system, the job has no folder. The call
    /// first frees the space of dead jobs. It also frees the space of removed datasets that no process could free at
    /// their removal, since a reader still used them or the process died.
    pub fn join(&self) -> Result<Scratch> {
        let mut locked = match self.locked() {
            // The job can still read the store. Its first write fails with this error.
            Err(Error::Io { source, .. }) if is_read_only(&source) => {
                return Ok(self.registry.without_folder(""));
            }
            locked => locked?,
        };
        locked.free_dead()?;
        match locked.lock.join("") {
            Err(error) if is_full(&error) => Ok(self.registry.without_folder("")),
            joined => joined,
        }
    }

    /// Frees the extents of dead jobs. Otherwise the next job frees them at its start.
    pub fn free_dead(&self) -> Result<()> {
        self.locked()?.free_dead()
    }

    /// Discards the extents that a job had taken, except those that belong to datasets.
    pub fn end_lease(&self, taken: &[Run]) {
        if taken.is_empty() {
            return;
        }
        // An error is ignored. Extents that cannot be discarded are also free after the scratch folder of the job was
        // removed.
        if let Ok(mut locked) = self.locked()
            && locked.refresh().is_ok()
            && let Ok(kept) = locked.kept()
        {
            let _ = self.discard(&Run::without(taken, &kept));
        }
    }

    /// Discards all of `runs` that can be discarded, and returns the first error.
    fn discard(&self, runs: &[Run]) -> Result<()> {
        let mut done = Ok(());
        for run in runs {
            let Ok(device) = self.device(run.start.device) else { continue };
            let discarded = device.discard(run.start.extent..run.start.extent + run.count);
            let error = |error| Error::io("free space", path_of(device.as_ref()), error);
            done = done.and(discarded.map_err(error));
        }
        done
    }
}

impl LockedState<'_> {
    /// Lists all extents that are in use or may still be read, and must not be taken.
    pub fn busy(&self, superblock: &Superblock, catalog: &Catalog) -> Result<Vec<Run>> {
        let mut busy = catalog.taken(self.lock.pinned(catalog.commit)?);
        busy.extend(self.lock.leases()?);
        busy.extend(superblock.places().map(|start| Run { start, count: 1 }));
        Ok(busy)
    }

    /// Frees the extents of dead jobs, discards the extents that commits freed, and removes the folders of dead jobs.
    pub fn free_dead(&mut self) -> Result<()> {
        let dead = self.lock.dead()?;
        self.catch_up()?;
        if !dead.lease.is_empty() {
            let mut busy = self.kept()?;
            busy.extend(&dead.leases_of_living);
            // A failed discard only wastes space of the file system. The extents are still free.
            let _ = self.shared.discard(&Run::without(&dead.lease, &busy));
        }
        if self.is_settled() {
            self.discard_freed()?;
        }
        dead.remove()
    }

    /// Lists the extents of datasets, of the log and of the spare log, and the freed extents that may still be read. If
    /// the last commit may not be durable, the list contains all freed extents.
    fn kept(&self) -> Result<Vec<Run>> {
        let pinned = if self.is_settled() { self.lock.pinned(self.catalog.commit)? } else { 0 };
        let mut kept = self.catalog.taken(pinned);
        kept.extend(self.log.superblock.places().map(|start| Run { start, count: 1 }));
        Ok(kept)
    }

    /// Discards the space of freed extents that no process reads any more. The last commit must be known to be durable.
    ///
    /// # Errors
    /// Returns an I/O error if the pins of readers cannot be read. Nothing is then discarded.
    pub fn discard_freed(&mut self) -> Result<()> {
        let (commit, freed) = (self.catalog.commit, &self.catalog.freed);
        if freed.iter().all(|(commit, _)| *commit <= self.discarded) {
            self.state.discarded = commit;
            return Ok(());
        }
        // Another process may have discarded these extents and announced this. An announced number that is higher than
        // the last commit comes from a diverged drive and is ignored.
        let announced = Some(self.shared.registry.discarded()).filter(|&announced| announced <= commit);
        let discarded = self.discarded.max(announced.unwrap_or(0));
        let pinned = self.lock.pinned(commit)?;
        let freed = freed.iter().filter(|(commit, _)| (discarded + 1..=pinned).contains(commit));
        let freed: Vec<Run> = freed.map(|(_, run)| *run).collect();
        if !freed.is_empty() {
            let busy = self.busy(&self.log.superblock, &self.catalog)?;
            // A failed discard only wastes space of the file system. Jobs can take the extents again, and the next
            // process or a compaction discards them.
            if self.shared.discard(&Run::without(&Run::merged(&freed), &busy)).is_ok() {
                self.shared.registry.announce_discarded(pinned);
            }
        }
        self.state.discarded = discarded.max(pinned);
        Ok(())
    }
}

/// Returns the number of reserved extents of a device. A full store needs these extents to delete datasets, to move
/// data and to begin a new log.
pub(crate) fn reserve(extents: u32) -> u64 {
    (extents as u64 / 64).clamp(4, 64)
}

/// Returns the first adjacent extents of a device that are not in `busy`: at most `wanted` extents, all in one segment.
pub(super) fn first_gap(busy: &[Run], device: u16, extents: u32, wanted: u32) -> Option<Run> {
    let mut busy: Vec<(u32, u32)> = busy
        .iter()
        .filter(|run| run.start.device == device)
        .map(|run| (run.start.extent, run.start.extent + run.count))
        .collect();
    busy.sort_unstable();
    let mut next = 0;
    for (start, end) in busy.into_iter().chain([(extents, extents)]) {
        while next < start.min(extents) {
            // The first extent of each segment contains headers. The second extent of the first segment contains the
            // superblock.
            if next % SEGMENT_EXTENTS == 0 || next == SUPERBLOCK_EXTENT {
                next += 1;
                continue;
            }
            let segment_end = (next / SEGMENT_EXTENTS + 1).saturating_mul(SEGMENT_EXTENTS);
            let end = start.min(extents).min(segment_end).min(next.saturating_add(wanted));
            return Some(Run { start: ExtentAddress { device, extent: next }, count: end - next });
        }
        next = next.max(end);
    }
    None
}

/// The length of an extent's header in bytes.
pub(crate) const HEADER_BYTES: usize = PAGE_BYTES;

/// Returns the address of an extent's header: the number of the first extent of the segment, and the offset in this
/// extent.
pub(crate) fn header_of(extent: u32) -> (u32, usize) {
    (extent / SEGMENT_EXTENTS * SEGMENT_EXTENTS, (extent % SEGMENT_EXTENTS) as usize * HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Budget, Fault, Faulty, Memory, Store};

    /// A commit may be on flash without being announced. A process that read the log before this commit must not take
    /// the extents of the commit.
    #[test]
    fn extents_of_a_durable_commit_without_announcement_are_not_taken() {
        let home = tempfile::tempdir().unwrap();
        let device = Faulty::new(Arc::new(Memory::new(64)), &[]);
        let open = || Store::open_on(home.path(), vec![Arc::new(device.clone())]).unwrap();
        let job_of = |store: &Store| store.job(Budget::new(8 << 20, 1), Default::default()).unwrap();
        let write = |builder: &mut crate::DatasetBuilder, byte: u8| {
            let mut writer = builder.file("bytes", 4096, 4096 * 64).unwrap();
            writer.write(&vec![byte; 3 * EXTENT_BYTES]).unwrap();
            builder.add(writer).unwrap();
        };
        let [first, second] = [open(), open()];
        let (job, other) = (job_of(&first), job_of(&second));
        let mut builder = first.create_dataset(&job, "first", "test").unwrap();
        let mut late = second.create_dataset(&other, "late", "test").unwrap();
        write(&mut builder, 1);
        // The first copy of the log contains the complete record, and the write of the second copy fails. Then the job
        // and its store end, including the lease of the job.
        device.set(&[Fault::FailWrite(1)]);
        assert!(builder.commit(&[]).is_err());
        device.set(&[Fault::FailFromRead(0)]);
        drop((job, first));
        device.set(&[]);
        write(&mut late, 2);
        late.commit(&[]).unwrap();
        let (store, mut bytes) = (open(), Vec::new());
        let file = store.dataset("first").unwrap().file("bytes").unwrap();
        let mut reader = crate::FileReader::new(&other, &file, 0..file.len(), 1 << 20).unwrap();
        while let Some(piece) = reader.next_piece().unwrap() {
            bytes.extend_from_slice(piece);
        }
        assert!(bytes == vec![1; 3 * EXTENT_BYTES]);
    }

    proptest! {
        #[test]
        fn a_gap_is_free_in_one_segment_and_the_first(
            taken in prop::collection::btree_set(0u32..300, 0..300), wanted in 1u32..70
        ) {
            let runs = Run::collect(taken.iter().map(|&extent| ExtentAddress { device: 0, extent }).collect());
            let is_free = |extent: u32| {
                !taken.contains(&extent) && !extent.is_multiple_of(SEGMENT_EXTENTS) && extent != 1
            };
            match first_gap(&runs, 0, 300, wanted) {
                None => prop_assert!(!(0..300).any(is_free)),
                Some(run) => {
                    let (start, end) = (run.start.extent, run.start.extent + run.count);
                    prop_assert!(run.count > 0 && run.count <= wanted && end <= 300);
                    prop_assert!((start..end).all(is_free));
                    prop_assert!(!(0..start).any(is_free));
                    prop_assert_eq!(start / SEGMENT_EXTENTS, (end - 1) / SEGMENT_EXTENTS);
                    prop_assert!(run.count == wanted || end == 300 || !is_free(end));
                }
            }
        }
    }
}

//! Relocation moves extents: out of segments that are nearly empty, from a device that is removed, or to a new device.
//!
//! The first step chooses the extents to move from the catalog, without I/O on data. The second step is the same for
//! all three cases. It moves extents in batches: each batch is copied and made durable, and one commit then updates the
//! record of its dataset. Readers continue with the old extents, and a crash loses no data. At any time, at most one
//! batch takes space twice.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

use crate::{
    Buffer, Dataset, DatasetRecord, Device, Directory, EXTENT_BYTES, Error, ExtentAddress, ExtentRef, Job,
    Result, SEGMENT_EXTENTS, Store,
    dataset::{builder::publish, layout::Identity, writer::ListWriter},
    device::sync_names,
    log::catalog::Run,
    redundancy::whole::{ExtentFile, FileExtent},
    shared::LeaseLimits,
    space::{extents::Extents, lease::Lease},
};

/// The largest number of extents that are moved before one commit changes the record of their dataset.
const BATCH: usize = 64;
/// The largest batch, in extents, for files with a separate list of references. Each change writes the complete list
/// again, so the batch is larger.
const BATCH_LISTED: usize = 1024;
/// The largest number of references to extents that one call reads.
const REFERENCES: u64 = 4096;
/// The largest used fraction of a segment that compaction empties. To empty a fuller segment, more data is moved and
/// less space is gained.
const SPARSE: f64 = 0.75;
/// The interval at which a removal checks whether readers still use the device.
const PATIENCE: Duration = Duration::from_millis(200);

/// `RelocationReport` counts the moved extents of a relocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocationReport {
    /// The number of moved extents of 2 MiB.
    pub extents: u64,
}

/// `Choice` contains the extents that are moved, and the extents to which they must not be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Choice {
    /// The extents that are moved.
    unwanted: Vec<Run>,
    /// The extents that the moved data must not take.
    closed: Vec<Run>,
    /// True if an extent for which there is no other space is not moved, without an error.
    is_optional: bool,
}

impl Choice {
    fn is_unwanted(&self, place: ExtentAddress) -> bool {
        contains(&self.unwanted, place)
    }
}

fn contains(runs: &[Run], place: ExtentAddress) -> bool {
    runs.iter().any(|run| {
        run.start.device == place.device
            && (run.start.extent..run.start.extent + run.count).contains(&place.extent)
    })
}

fn segment_run(device: u16, segment: u32, extents: u32) -> Run {
    let start = segment * SEGMENT_EXTENTS;
    // If the device has become smaller, the segment may be completely beyond its end.
    Run {
        start: ExtentAddress { device, extent: start },
        count: SEGMENT_EXTENTS.min(extents.saturating_sub(start)),
    }
}

/// Chooses the segments of a device that compaction empties: the emptiest first, as long as other segments have room.
/// `movable` contains the extents of datasets. `fixed` contains the extents that cannot be moved (superblock, log,
/// leases of running jobs).
fn choose_segments(device: u16, extents: u32, movable: &[Run], fixed: &[Run]) -> Choice {
    let count = |runs: &[Run]| {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for place in runs.iter().filter(|run| run.start.device == device).flat_map(|run| run.places()) {
            *counts.entry(place.extent / SEGMENT_EXTENTS).or_default() += 1;
        }
        counts
    };
    let (live, stays) = (count(movable), count(fixed));
    // The first extent of each segment contains headers. The second extent of the first segment contains the
    // superblock.
    let room_of = |segment: u32| {
        let there = SEGMENT_EXTENTS.min(extents.saturating_sub(segment * SEGMENT_EXTENTS));
        there.saturating_sub(1 + u32::from(segment == 0))
    };
    let used: BTreeSet<u32> = live.keys().chain(stays.keys()).copied().chain([0]).collect();
    let taken =
        |segment: &u32| live.get(segment).copied().unwrap_or(0) + stays.get(segment).copied().unwrap_or(0);
    let mut room: u64 =
        used.iter().map(|&segment| room_of(segment).saturating_sub(taken(&segment)) as u64).sum();
    let mut candidates: Vec<(u32, u32)> = live
        .iter()
        .filter(|(segment, _)| **segment > 0 && !stays.contains_key(segment))
        .map(|(&segment, &live)| (live, segment))
        .collect();
    // Among segments with the same number of extents, the last segment of the device comes first.
    candidates.sort_unstable_by_key(|&(live, segment)| (live, std::cmp::Reverse(segment)));
    let mut choice = Choice::default();
    for (live, segment) in candidates {
        let own_room = room_of(segment).saturating_sub(live) as u64;
        // If this segment is chosen, its extents need room in other segments. Its free extents are also no longer room
        // for the extents of segments that were chosen before.
        let Some(left) = room.checked_sub(own_room + live as u64) else { break };
        if live as f64 > SPARSE * room_of(segment) as f64 {
            break;
        }
        room = left;
        choice.unwanted.push(segment_run(device, segment, extents));
    }
    choice.is_optional = true;
    choice.closed = choice.unwanted.clone();
    // Unused segments are also closed to moved extents. Otherwise a move would only empty one segment and fill another.
    let first_unused = used.last().map_or(1, |last| last + 1);
    for segment in 0..first_unused {
        if !used.contains(&segment) {
            choice.closed.push(segment_run(device, segment, extents));
        }
    }
    if first_unused as u64 * (SEGMENT_EXTENTS as u64) < extents as u64 {
        let extent = first_unused * SEGMENT_EXTENTS;
        choice.closed.push(Run { start: ExtentAddress { device, extent }, count: extents - extent });
    }
    choice
}

/// Chooses the extents to move so that all devices are filled to the same fraction.
fn choose_balance(devices: &[(u16, u32)], movable: &[Run]) -> Choice {
    let on = |device: u16| movable.iter().filter(move |run| run.start.device == device);
    let used = |device: u16| on(device).map(|run| run.count as u64).sum::<u64>();
    let capacity: u64 = devices.iter().map(|&(_, extents)| extents as u64).sum();
    let all: u64 = devices.iter().map(|&(device, _)| used(device)).sum();
    let mut choice = Choice { is_optional: true, ..Choice::default() };
    for &(device, extents) in devices {
        let share = (all as f64 * extents as f64 / capacity.max(1) as f64).ceil() as u64;
        let mut excess = used(device).saturating_sub(share);
        if excess > 0 {
            choice.closed.push(Run { start: ExtentAddress { device, extent: 0 }, count: extents });
        }
        for run in on(device) {
            let count = excess.min(run.count as u64) as u32;
            if count > 0 {
                choice.unwanted.push(Run { start: run.start, count });
            }
            excess -= count as u64;
        }
    }
    choice
}

impl Store {
    /// Empties sparse segments by moving their extents into gaps of other segments, and frees the space of empty
    /// segments on the file system. With `balance`, the call first moves data between devices until all devices are
    /// filled to the same fraction. This is useful after a device was added.
    ///
    /// The call reads and writes the moved data once, and needs one buffer of 2 MiB.
    ///
    /// # Errors
    /// - Returns [`Error::NoSpace`] if all devices are full.
    /// - Returns [`Error::DamagedExtent`] if an extent that must be moved is damaged and cannot be restored.
    /// - Returns [`Error::Stopped`] if the job was cancelled.
    ///
    /// Extents that were moved before the error stay moved.
    pub fn compact(&self, job: &Job, balance: bool) -> Result<RelocationReport> {
        let left = || "extents that were moved stay moved, and no data is lost".to_string();
        self.compact_all(job, balance).map_err(|error| error.leaves(left))
    }

    fn compact_all(&self, job: &Job, balance: bool) -> Result<RelocationReport> {
        let mut moved = RelocationReport::default();
        if balance {
            let (_, catalog) = self.0.snapshot()?;
            let movable = data_runs(&catalog);
            moved.extents += self.move_away(job, &choose_balance(&self.0.open_devices(), &movable))?;
        }
        let (_, catalog) = self.0.snapshot()?;
        let movable = data_runs(&catalog);
        let fixed = Run::without(&self.0.busy_extents()?, &movable);
        let mut all = Choice { is_optional: true, ..Choice::default() };
        for (device, extents) in self.0.open_devices() {
            let choice = choose_segments(device, extents, &movable, &fixed);
            all.unwanted.extend(choice.unwanted);
            all.closed.extend(choice.closed);
        }
        moved.extents += self.move_away(job, &all)?;
        self.0.discard_unused()?;
        Ok(moved)
    }

    /// Adds a device and returns its number. The device gets a share of new data in proportion to its capacity.
    /// Existing data is not moved ([`Store::compact`] with `balance` moves it).
    ///
    /// After an error or a kill, the store has the device or does not have it. In both cases, another call finishes the
    /// addition.
    ///
    /// # Errors
    /// - Returns [`Error::BadDevice`] if the folder cannot become a device of the store.
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn add_device(&self, device: Arc<dyn Device>, limit_bytes: Option<u64>) -> Result<u16> {
        if let Some(folder) = device.folder() {
            crate::store::check_lies_apart(folder, &[])?;
            // The names of the folder are synced before the store records the device. Every process that finds the
            // device in the superblock can then rely on its folder.
            sync_names(folder).map_err(|error| Error::io("sync the folder of", folder, error))?;
        }
        self.0.add_device(device, limit_bytes)
    }

    /// Adds a folder as a device. The folder is created if necessary. It must be empty, except for files of an earlier
    /// call that failed.
    ///
    /// # Errors
    /// Returns the errors of [`Store::add_device`].
    pub fn add_folder(&self, path: &Path, limit_bytes: Option<u64>) -> Result<u16> {
        let fail = |error| Error::io("make a device of", path, error);
        fs::create_dir_all(path).map_err(fail)?;
        let path = path.canonicalize().map_err(fail)?;
        let is_known = self.device_paths()?.into_values().any(|known| known == path);
        let list = |error| Error::io("list", &path, error);
        for entry in fs::read_dir(&path).map_err(list)? {
            let name = entry.map_err(list)?.file_name();
            if !is_known && name != "lost+found" && name != "segment-00000000" {
                return Err(Error::BadDevice { path: path.clone(), what: "it is not empty".to_string() });
            }
        }
        let device =
            Directory::open(&path, limit_bytes).map_err(|error| Error::io("open device", &path, error))?;
        self.add_device(Arc::new(device), limit_bytes)
    }

    /// Removes a device: moves all its data to other devices, waits until no process uses the device, and removes the
    /// device from the store. A missing device can also be removed, if redundancy restores its data. After an
    /// interruption, the device gets no new data, and another call continues the removal. While the call waits, it
    /// calls `waiting` with a description of the process or dataset that still needs the device.
    ///
    /// # Errors
    /// - Returns [`Error::BadDevice`] if too few devices would be left, or if the device was removed but some files
    ///   could not be deleted from its folder.
    /// - Returns [`Error::NoSpace`] if the other devices have too little space.
    /// - Returns [`Error::DamagedExtent`] if an extent is damaged and cannot be restored.
    /// - Returns [`Error::Stopped`] if the job was cancelled.
    pub fn remove_device(
        &self,
        job: &Job,
        number: u16,
        mut waiting: impl FnMut(&str),
    ) -> Result<RelocationReport> {
        let (superblock, catalog) = self.0.snapshot()?;
        let entry = superblock.devices.iter().find(|entry| entry.number == number);
        let entry = entry.ok_or(Error::NoDevice { number })?;
        let bad = |what: String| Err(Error::BadDevice { path: entry.path.clone(), what });
        let others = superblock.devices.iter().filter(|entry| entry.number != number && !entry.is_leaving);
        let others = others.filter(|entry| self.0.device(entry.number).is_ok()).count();
        if others == 0 {
            return bad("it is the last device of the store".to_string());
        }
        for record in catalog.datasets.values() {
            if record.redundancy.devices() > others {
                return bad(format!(
                    "dataset {:?} needs {} devices for its {}, and {others} would remain",
                    record.name,
                    record.redundancy.devices(),
                    record.redundancy
                ));
            }
        }
        if self.0.device(number).is_err() {
            let runs_on = |record: &&Arc<DatasetRecord>| {
                let is_alone = record.redundancy == crate::Redundancy::Copies(1);
                is_alone && record.runs.iter().any(|run| run.start.device == number)
            };
            let lost: Vec<&str> =
                catalog.datasets.values().filter(runs_on).map(|record| record.name.as_str()).collect();
            if !lost.is_empty() {
                return bad(format!(
                    "device {number} is missing, and its data of {} has neither copies nor parity: put the device back, \
                     or remove {} first",
                    lost.join(", "),
                    if lost.len() == 1 { "this dataset" } else { "these datasets" }
                ));
            }
        }
        self.0.set_leaving(number, true)?;
        let left = || {
            format!(
                "the removal of device {number} is not complete: no new data goes to the device, and extents that were moved stay \
                 moved. The same command resumes the removal; --keep cancels it"
            )
        };
        self.empty_and_forget(job, number, &mut waiting).map_err(|error| error.leaves(left))
    }

    fn empty_and_forget(
        &self,
        job: &Job,
        number: u16,
        waiting: &mut impl FnMut(&str),
    ) -> Result<RelocationReport> {
        let everything = Run { start: ExtentAddress { device: number, extent: 0 }, count: u32::MAX };
        let choice = Choice { unwanted: vec![everything], closed: vec![everything], is_optional: false };
        let mut moved = RelocationReport::default();
        loop {
            moved.extents += self.move_away(job, &choice)?;
            match self.0.forget_device(number, job.scratch())? {
                None => return Ok(moved),
                Some(who) => {
                    waiting(&who);
                    job.check_cancelled()?;
                    std::thread::sleep(PATIENCE);
                }
            }
        }
    }

    /// Cancels the removal of a device, so that the device gets new data again.
    ///
    /// # Errors
    /// - Returns [`Error::NoDevice`] if a device is missing.
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn keep_device(&self, number: u16) -> Result<()> {
        self.0.set_leaving(number, false)
    }

    /// Moves the chosen extents, dataset by dataset, and returns their number.
    fn move_away(&self, job: &Job, choice: &Choice) -> Result<u64> {
        if choice.unwanted.is_empty() {
            return Ok(0);
        }
        // The move has a lease of its own. Extents in the job's lease may be at addresses that are closed to moved
        // data.
        let lease = Arc::new(Lease::new(job.shared().clone(), job.scratch().clone()));
        lease.set_terms(LeaseLimits { closed: choice.closed.clone(), with_reserve: true });
        let catalog = self.0.catalog()?;
        let concerned: Vec<&Arc<DatasetRecord>> = catalog
            .datasets
            .values()
            .filter(|record| {
                record.runs.iter().flat_map(|run| run.places()).any(|place| choice.is_unwanted(place))
            })
            .collect();
        let count = |record: &Arc<DatasetRecord>| {
            record.runs.iter().flat_map(|run| run.places()).filter(|&place| choice.is_unwanted(place)).count()
        };
        let total = concerned.iter().map(|record| count(record)).sum::<usize>();
        job.start_phase("moving", "extents", total as u64);
        let mut moved = 0;
        for record in concerned {
            let stays = RefCell::default();
            let mover = Mover { store: self, job, lease: &lease, choice, stays };
            moved += mover.move_dataset(&record.name)?;
        }
        Ok(moved)
    }
}

/// Returns the extents of all datasets.
fn data_runs(catalog: &crate::Catalog) -> Vec<Run> {
    catalog.datasets.values().flat_map(|record| record.runs.iter().copied()).collect()
}

struct Mover<'a> {
    store: &'a Store,
    job: &'a Job,
    lease: &'a Arc<Lease>,
    choice: &'a Choice,
    /// The number of the file and the position of each extent that is not moved, because there is no other space for
    /// it.
    stays: RefCell<HashSet<(usize, u64)>>,
}

/// `ReservedExtents` contains the extents that were taken for a batch. When the object is dropped, extents that no
/// dataset owns return to the lease.
struct ReservedExtents<'a> {
    lease: &'a Lease,
    places: Vec<ExtentAddress>,
}

impl Drop for ReservedExtents<'_> {
    fn drop(&mut self) {
        self.places.iter().for_each(|&place| self.lease.release(place));
    }
}

impl Mover<'_> {
    fn move_dataset(&self, name: &str) -> Result<u64> {
        let mut moved = 0;
        loop {
            let dataset = match self.store.dataset(name) {
                Err(Error::NotFound { .. }) => return Ok(moved),
                dataset => dataset?,
            };
            match self.move_batch(&dataset) {
                Ok(0) => return Ok(moved),
                Ok(count) => moved += count,
                // Another job changed the dataset, so the batch is repeated with the new record.
                Err(Error::Changed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves one batch of extents of one file, and returns the number of moved extents.
    fn move_batch(&self, dataset: &Dataset) -> Result<u64> {
        for number in 0..dataset.files.len() {
            let file = &dataset.files[number];
            let batch = if file.list().is_some() { BATCH_LISTED } else { BATCH };
            let unwanted = self.unwanted(number, file, batch)?;
            let list = file.list().map(|list| list.references_at(self.job, 0, list.layout().positions()));
            let list = list.transpose()?.unwrap_or_default();
            let moves_list = list.iter().any(|reference| self.choice.is_unwanted(reference.place));
            if unwanted.is_empty() && !moves_list {
                continue;
            }
            match self.move_extents(dataset, number, &unwanted, &list)? {
                0 => {}
                moved => return Ok(moved),
            }
        }
        Ok(0)
    }

    /// Returns the first `at_most` positions of a file whose extents were chosen and can be moved.
    fn unwanted(&self, number: usize, file: &crate::CheckedFile, at_most: usize) -> Result<Vec<u64>> {
        let stays = self.stays.borrow();
        let (mut found, mut position) = (Vec::new(), 0);
        while position < file.layout().positions() && found.len() < at_most {
            let count = REFERENCES.min(file.layout().positions() - position);
            let references = file.references_at(self.job, position, count)?;
            let unwanted = (position..).zip(&references).filter(|(position, reference)| {
                self.choice.is_unwanted(reference.place) && !stays.contains(&(number, *position))
            });
            found.extend(unwanted.map(|(position, _)| position));
            position += count;
        }
        found.truncate(at_most);
        Ok(found)
    }

    fn move_extents(
        &self,
        dataset: &Dataset,
        number: usize,
        positions: &[u64],
        list: &[ExtentRef],
    ) -> Result<u64> {
        let (job, file) = (self.job, &dataset.files[number]);
        let mut buffer = Buffer::zeroed(job.budget(), EXTENT_BYTES, "an extent to move")?;
        let mut taken = ReservedExtents { lease: self.lease, places: Vec::new() };
        let mut replaced: HashMap<u64, ExtentRef> = HashMap::new();
        let mut left: Vec<ExtentAddress> = Vec::new();
        for &position in positions {
            job.check_cancelled()?;
            let whole = FileExtent { job, file, position };
            whole.fetch(&mut buffer)?;
            let siblings = whole.siblings()?;
            let avoid: Vec<u16> = siblings
                .iter()
                .map(|(sibling, place)| {
                    replaced.get(sibling).map_or(place.device, |moved| moved.place.device)
                })
                .collect();
            let place = match self.lease.take(&avoid) {
                Err(Error::NoSpace { .. }) if self.choice.is_optional => {
                    self.stays.borrow_mut().insert((number, position));
                    continue;
                }
                place => place?,
            };
            taken.places.push(place);
            left.push(whole.reference()?.place);
            replaced.insert(position, whole.write_to(place, &buffer)?);
            job.progress().add(1);
        }
        if replaced.is_empty() && list.is_empty() {
            return Ok(0);
        }
        let mut record = (*dataset.record).clone();
        let (redundancy, count) = (record.redundancy, file.layout().positions());
        let identity = Identity { dataset: record.id, file: number as u32, level: 0 };
        let name = record.files[number].name.clone();
        let lists = ListWriter { job, lease: self.lease, name: &name, identity };
        let refs = (0..count).step_by(REFERENCES as usize).flat_map(|first| {
            let some = file.references_at(job, first, REFERENCES.min(count - first));
            let some = some.map_or_else(|error| vec![Err(error)], |some| some.into_iter().map(Ok).collect());
            (first..).zip(some)
        });
        let refs = refs.map(|(position, old)| replaced.get(&position).map_or(old, |&new| Ok(new)));
        let written: Option<Arc<Extents>> = lists.write(&mut record.files[number], redundancy, refs)?;
        left.extend(list.iter().map(|reference| reference.place));
        let mut places = taken.places.clone();
        places.extend(written.iter().flat_map(|extents| extents.places()));
        record.runs = Run::without(&record.runs, &Run::collect(left));
        record.runs.extend(Run::collect(places.clone()));
        let base = Some(dataset.record.clone());
        publish(self.store, job, Arc::new(record), base, &places, || {
            taken.places.clear();
            written.iter().for_each(|extents| extents.keep());
        })?;
        Ok((replaced.len() + list.len()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(device: u16, extents: impl IntoIterator<Item = u32>) -> Vec<Run> {
        Run::collect(extents.into_iter().map(|extent| ExtentAddress { device, extent }).collect())
    }

    #[test]
    fn the_emptiest_segments_are_chosen_while_the_others_have_room() {
        // Segment 0 contains the log and 50 extents of data. Segment 1 is full, segment 2 has 10 extents of data,
        // segment 3 has 100, segment 4 is empty, and segment 5 has 30.
        let fixed = runs(0, 2..6);
        let movable: Vec<u32> =
            (6..56).chain(129..256).chain(257..267).chain(385..485).chain(641..671).collect();
        let choice = choose_segments(0, 1000, &runs(0, movable), &fixed);
        let segments: Vec<u32> = choice.unwanted.iter().map(|run| run.start.extent / 128).collect();
        assert_eq!(segments, [2, 5]);
        let closed = |extent| contains(&choice.closed, ExtentAddress { device: 0, extent });
        assert!(closed(300) && closed(520) && closed(650) && closed(900) && !closed(60) && !closed(490));
    }

    #[test]
    fn extents_beyond_the_end_of_a_device_are_chosen_without_harm() {
        // Extent 500 is beyond the end of the device, as if the file system had been larger before.
        let choice = choose_segments(0, 300, &runs(0, [5, 500]), &runs(0, [2, 3]));
        assert!(choice.unwanted.iter().all(|run| run.start.extent >= 300 || run.count > 0));
        assert!(choose_segments(0, 0, &runs(0, [5]), &[]).closed.iter().all(|run| run.count == 0));
    }

    proptest! {
        #[test]
        fn chosen_extents_fit_into_the_open_segments(
            movable in prop::collection::btree_set(2u32..700, 0..600),
            fixed in prop::collection::btree_set(2u32..700, 0..20),
        ) {
            let is_header = |extent: &u32| extent.is_multiple_of(SEGMENT_EXTENTS);
            let movable: Vec<u32> = movable.iter().copied().filter(|e| !is_header(e) && !fixed.contains(e)).collect();
            let fixed: Vec<u32> = fixed.iter().copied().filter(|e| !is_header(e)).collect();
            let choice = choose_segments(0, 700, &runs(0, movable.clone()), &runs(0, fixed.clone()));
            let at = |extent: u32| ExtentAddress { device: 0, extent };
            let must_move = movable.iter().filter(|&&extent| choice.is_unwanted(at(extent))).count();
            let room = (2..700).filter(|extent| {
                !is_header(extent) && !contains(&choice.closed, at(*extent))
                    && !movable.contains(extent) && !fixed.contains(extent)
            });
            prop_assert!(must_move <= room.count());
            prop_assert!(fixed.iter().all(|&extent| !choice.is_unwanted(at(extent))));
        }

        #[test]
        fn balancing_moves_extents_from_the_fuller_devices(used in prop::collection::vec(0u32..500, 2..5)) {
            let devices: Vec<(u16, u32)> = (0..).zip(&used).map(|(device, _)| (device, 1000)).collect();
            let movable: Vec<Run> = (0..).zip(&used).filter(|(_, used)| **used > 0)
                .map(|(device, &count)| Run { start: ExtentAddress { device, extent: 2 }, count }).collect();
            let choice = choose_balance(&devices, &movable);
            let share = (used.iter().sum::<u32>() as f64 / used.len() as f64).ceil() as u32;
            for (device, &used) in (0..).zip(&used) {
                let moved: u32 = choice.unwanted.iter().filter(|run| run.start.device == device)
                    .map(|run| run.count).sum();
                prop_assert_eq!(moved, used.saturating_sub(share));
            }
        }
    }
}

//! The heart of a store that is open: its devices, its log as far as it was read, and the lock under which both
//! change.
//!
//! Order of locks: the state's mutex, then the registry's lock on disk, then the readers' mutex.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, RwLock},
};

use crate::{
    Catalog, Device, Edit, Error, PAGE_BYTES, Place, Result, SEGMENT_EXTENTS,
    catalog::Run,
    log::{Devices, Log, LogPlaces, Superblock, read_superblock},
    scratch::{Guard, Registry, Scratch, is_read_only},
};

/// Makes a device of what the superblock says of it.
pub(crate) type Opener = Box<dyn Fn(&crate::DeviceEntry) -> Result<Arc<dyn Device>> + Send + Sync>;

pub(crate) struct Shared {
    home: PathBuf,
    registry: Registry,
    devices: RwLock<Devices>,
    opener: Opener,
    state: Mutex<State>,
    readers: Mutex<Readers>,
}

#[derive(Debug)]
struct State {
    log: Log,
    catalog: Arc<Catalog>,
    /// An append failed: what is on flash can be known by reading it only, and nothing may be appended to it.
    doubtful: bool,
    /// The extents that commits up to this one freed were given back to the devices, as far as they could.
    discarded: u64,
}

/// The commits that are read by this process.
#[derive(Debug, Default)]
struct Readers {
    scratch: Option<Scratch>,
    commits: BTreeMap<u64, usize>,
}

/// Keeps the extents of a commit from being used again.
#[derive(Debug)]
pub(crate) struct Pin {
    shared: Arc<Shared>,
    commit: u64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Shared({})", self.home.display())
    }
}

impl Shared {
    /// Opens the store on `devices`, or makes one on them if none of them has a superblock; `home` is the folder of
    /// the registry.
    pub fn open(home: &Path, devices: Vec<Arc<dyn Device>>, opener: Opener) -> Result<Arc<Shared>> {
        let registry = Registry::open(home)?;
        let guard = registry.share()?;
        let found = gather(&devices, &opener)?;
        drop(guard);
        let (mut known, superblock) = match found {
            Some(found) => found,
            None => {
                let _guard = registry.lock()?;
                // Another process may have been faster.
                match gather(&devices, &opener)? {
                    Some(found) => found,
                    None => crate::log::init(&devices)?,
                }
            }
        };
        let guard = registry.share()?;
        let (log, catalog) = read_all(&mut known, superblock, &opener)?;
        drop(guard);
        let state = State { log, discarded: catalog.commit, catalog: Arc::new(catalog), doubtful: false };
        Ok(Arc::new(Shared {
            home: home.to_path_buf(),
            registry,
            devices: RwLock::new(known),
            opener,
            state: Mutex::new(state),
            readers: Mutex::default(),
        }))
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The devices by number.
    pub fn devices(&self) -> Devices {
        self.devices.read().expect("no panic under this lock").clone()
    }

    pub fn device(&self, number: u16) -> Result<Arc<dyn Device>> {
        let devices = self.devices.read().expect("no panic under this lock");
        devices.get(&number).cloned().ok_or(Error::NoDevice { number })
    }

    pub fn is_direct(&self) -> bool {
        self.devices.read().expect("no panic under this lock").values().all(|device| device.is_direct())
    }

    pub fn no_space(&self) -> Error {
        Error::NoSpace { store: self.home.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Makes the state that of the devices. To be called under the registry's lock.
    fn refresh(&self, state: &mut State) -> Result<()> {
        let devices = self.devices();
        let mut newest = None;
        for device in devices.values() {
            if let Some((_, superblock)) = read_superblock(device.as_ref())?
                && newest.as_ref().is_none_or(|newest: &Superblock| newest.sequence < superblock.sequence)
            {
                newest = Some(superblock);
            }
        }
        let newest = newest.ok_or_else(|| Error::NotAStore { path: self.home.clone() })?;
        if newest.sequence == state.log.superblock.sequence && !state.doubtful {
            let mut catalog = (*state.catalog).clone();
            if state.log.follow(&devices, &mut catalog)? > 0 {
                state.catalog = Arc::new(catalog);
            }
            return Ok(());
        }
        let mut devices = devices;
        let (log, catalog) = read_all(&mut devices, newest, &self.opener)?;
        *self.devices.write().expect("no panic under this lock") = devices;
        (state.log, state.catalog) = (log, Arc::new(catalog));
        Ok(())
    }

    /// The catalog after the last commit of any process.
    pub fn catalog(&self) -> Result<Arc<Catalog>> {
        let mut state = self.state();
        let _guard = self.registry.share()?;
        self.refresh(&mut state)?;
        Ok(state.catalog.clone())
    }

    /// The same, kept readable until the pin is dropped.
    pub fn pinned_catalog(self: &Arc<Self>) -> Result<(Arc<Catalog>, Arc<Pin>)> {
        let mut state = self.state();
        let (guard, can_pin) = match self.registry.lock() {
            // Nobody can remove anything from a store that is mounted read-only.
            Err(Error::Io { source, .. }) if is_read_only(&source) => (self.registry.share()?, false),
            guard => (guard?, true),
        };
        self.refresh(&mut state)?;
        let commit = state.catalog.commit;
        let mut readers = self.readers.lock().expect("no panic under this lock");
        if can_pin && readers.scratch.is_none() {
            readers.scratch = Some(guard.join("reader-")?);
        }
        *readers.commits.entry(commit).or_default() += 1;
        let pin = Pin { shared: self.clone(), commit };
        let written = readers.write();
        // Dropping the pin takes this lock.
        drop(readers);
        written?;
        Ok((state.catalog.clone(), Arc::new(pin)))
    }

    /// Makes a change: `make` gives the edits, once it has looked at the catalog that they will change. When this
    /// returns, they survive a power loss.
    ///
    /// # Errors
    /// Those of `make`, and then nothing was changed; I/O, and then the change was made or not, and the next call
    /// of any function finds out.
    pub fn commit(&self, make: impl FnOnce(&Catalog) -> Result<Vec<Edit>>) -> Result<()> {
        let mut state = self.state();
        let guard = self.registry.lock()?;
        self.refresh(&mut state)?;
        let edits = make(&state.catalog)?;
        if edits.is_empty() {
            return Ok(());
        }
        let commit = state.catalog.commit + 1;
        let devices = self.devices();
        // What was appended to a log that failed may lie behind a record that is not whole.
        let is_free = !state.doubtful;
        state.doubtful = true;
        let appended = is_free && state.log.append(&devices, commit, &edits)?.is_some();
        let mut catalog = (*state.catalog).clone();
        catalog.apply(commit, &edits);
        if !appended {
            state.log = self.checkpoint(&guard, &state.log.superblock, &catalog)?;
        }
        state.catalog = Arc::new(catalog);
        state.doubtful = false;
        self.discard_freed(&guard, &mut state)
    }

    /// Writes the catalog to where the spare log is, and makes that the log.
    fn checkpoint(&self, guard: &Guard, superblock: &Superblock, catalog: &Catalog) -> Result<Log> {
        let pinned = guard.oldest_pin()?.unwrap_or(catalog.commit);
        let devices = self.devices();
        let mut next = superblock.clone();
        next.sequence += 1;
        next.generation += 1;
        let wanted = Log::wanted_bytes(catalog, pinned);
        if wanted > crate::log::capacity(&superblock.spare) {
            let extents = (2 * wanted).div_ceil(crate::EXTENT_BYTES);
            next.log = self.log_places(guard, superblock, catalog, extents)?;
            let taken: Vec<Place> = next.log.iter().flatten().copied().collect();
            let mut again = superblock.clone();
            again.log.push(taken);
            next.spare = self.log_places(guard, &again, catalog, extents)?;
        } else {
            std::mem::swap(&mut next.log, &mut next.spare);
        }
        Log::begin(&devices, next, catalog, pinned)
    }

    /// Room for a log of `extents` extents a copy: on two devices where there are two.
    fn log_places(
        &self,
        guard: &Guard,
        superblock: &Superblock,
        catalog: &Catalog,
        extents: usize,
    ) -> Result<LogPlaces> {
        let devices = self.devices();
        let mut busy = self.busy(guard, superblock, catalog)?;
        let mut log = LogPlaces::new();
        for copy in 0..2 {
            let number = *devices.keys().nth(copy % devices.len()).expect("a store has a device");
            let mut places = Vec::new();
            while places.len() < extents {
                let wanted = (extents - places.len()) as u32;
                let device = &devices[&number];
                let run =
                    first_gap(&busy, number, device.extents(), wanted).ok_or_else(|| self.no_space())?;
                busy.push(run);
                for place in run.places() {
                    device
                        .prepare(place.extent)
                        .map_err(|error| Error::io("take space for the log", device.name(), error))?;
                    places.push(place);
                }
            }
            log.push(places);
        }
        Ok(log)
    }

    /// Everything on the devices that must not be taken.
    fn busy(&self, guard: &Guard, superblock: &Superblock, catalog: &Catalog) -> Result<Vec<Run>> {
        let mut busy = catalog.taken(guard.oldest_pin()?.unwrap_or(catalog.commit));
        busy.extend(guard.leases()?);
        busy.extend(superblock.places().map(|start| Run { start, count: 1 }));
        Ok(busy)
    }

    /// Starts to use extents of a device: at most `wanted` that follow each other, written down as taken in
    /// `scratch`. `None` where it is full.
    pub fn take_extents(&self, scratch: &Scratch, device: u16, wanted: u32) -> Result<Option<Run>> {
        let mut state = self.state();
        let guard = self.registry.lock()?;
        self.refresh(&mut state)?;
        let busy = self.busy(&guard, &state.log.superblock, &state.catalog)?;
        let Some(run) = first_gap(&busy, device, self.device(device)?.extents(), wanted) else {
            return Ok(None);
        };
        scratch.add_lease(run)?;
        Ok(Some(run))
    }

    /// A folder for a new job. What dead jobs had taken is given back.
    pub fn join(&self) -> Result<Scratch> {
        let mut state = self.state();
        let guard = self.registry.lock()?;
        let dead = guard.remove_dead()?;
        if !dead.is_empty() {
            self.refresh(&mut state)?;
            let busy = self.busy(&guard, &state.log.superblock, &state.catalog)?;
            self.discard(&Run::without(&dead, &busy));
        }
        guard.join("")
    }

    /// Gives back what a job had taken and no dataset took over.
    pub fn end_lease(&self, taken: &[Run]) {
        if taken.is_empty() {
            return;
        }
        let mut state = self.state();
        // What cannot be given back now can be taken again all the same, once the job's folder is gone.
        if let Ok(_guard) = self.registry.lock()
            && self.refresh(&mut state).is_ok()
        {
            self.discard(&Run::without(taken, &state.catalog.taken(0)));
        }
    }

    /// Gives the space of freed extents back that nobody reads any more.
    fn discard_freed(&self, guard: &Guard, state: &mut State) -> Result<()> {
        let pinned = guard.oldest_pin()?.unwrap_or(state.catalog.commit);
        let freed = state.catalog.freed.iter();
        let freed: Vec<Run> = freed
            .filter(|(commit, _)| (state.discarded + 1..=pinned).contains(commit))
            .map(|(_, run)| *run)
            .collect();
        if !freed.is_empty() {
            let busy = self.busy(guard, &state.log.superblock, &state.catalog)?;
            self.discard(&Run::without(&freed, &busy));
        }
        state.discarded = state.discarded.max(pinned);
        Ok(())
    }

    fn discard(&self, runs: &[Run]) {
        for run in runs {
            if let Ok(device) = self.device(run.start.device) {
                // It only saves space: what is not given back is taken again later.
                let _ = device.discard(run.start.extent..run.start.extent + run.count);
            }
        }
    }
}

impl Readers {
    fn write(&self) -> Result<()> {
        let oldest = self.commits.keys().next().copied();
        self.scratch.as_ref().map_or(Ok(()), |scratch| scratch.pin(oldest))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut readers = self.shared.readers.lock().expect("no panic under this lock");
        if let Some(count) = readers.commits.get_mut(&self.commit) {
            *count -= 1;
            if *count == 0 {
                readers.commits.remove(&self.commit);
                if readers.commits.is_empty() {
                    readers.scratch = None;
                } else {
                    // A pin that stays keeps space busy until this process ends, and nothing worse.
                    let _ = readers.write();
                }
            }
        }
    }
}

/// The devices by the numbers that their superblocks say, with those that these name, and the newest of them. `None`
/// where there is no store: none was ever made, or its making was not finished (see [`read_superblock`]).
fn gather(devices: &[Arc<dyn Device>], opener: &Opener) -> Result<Option<(Devices, Superblock)>> {
    let mut known = Devices::new();
    let mut newest: Option<Superblock> = None;
    for device in devices {
        let Some((number, superblock)) = read_superblock(device.as_ref())? else { continue };
        if let Some(other) = &newest
            && other.store != superblock.store
        {
            return Err(Error::BadFormat {
                path: PathBuf::from(device.name()),
                what: "store",
                found: "a device of another store".to_string(),
                expected: "devices of one".to_string(),
            });
        }
        known.insert(number, device.clone());
        if newest.as_ref().is_none_or(|newest| newest.sequence < superblock.sequence) {
            newest = Some(superblock);
        }
    }
    let Some(superblock) = newest else { return Ok(None) };
    let superblock = open_others(&mut known, superblock, opener)?;
    if superblock.sequence > 1 {
        return Ok(Some((known, superblock)));
    }
    // The first superblock was written, and on no device that is here the second: if all are here, none has it.
    match superblock.devices.iter().find(|entry| !known.contains_key(&entry.number)) {
        Some(missing) if devices.len() < superblock.devices.len() => {
            Err(Error::NoDevice { number: missing.number })
        }
        _ => Ok(None),
    }
}

/// Opens the devices that the superblock names and nobody has opened yet; gives the newest superblock of all.
fn open_others(devices: &mut Devices, mut superblock: Superblock, opener: &Opener) -> Result<Superblock> {
    loop {
        let mut newer = None;
        for entry in &superblock.devices {
            if devices.contains_key(&entry.number) {
                continue;
            }
            // A device that is not there is an error for whoever needs it.
            if let Ok(device) = opener(entry)
                && let Some((number, found)) = read_superblock(device.as_ref())?
                && (number, found.store) == (entry.number, superblock.store)
            {
                devices.insert(number, device);
                if found.sequence > superblock.sequence {
                    newer = Some(found);
                }
            }
        }
        match newer {
            Some(newer) => superblock = newer,
            None => return Ok(superblock),
        }
    }
}

/// Opens what is not open yet and reads the log.
fn read_all(devices: &mut Devices, superblock: Superblock, opener: &Opener) -> Result<(Log, Catalog)> {
    let superblock = open_others(devices, superblock, opener)?;
    Log::read(devices, superblock)
}

/// The first extents of a device that are not in `busy`: up to `wanted`, all in one segment.
fn first_gap(busy: &[Run], device: u16, extents: u32, wanted: u32) -> Option<Run> {
    let mut busy: Vec<(u32, u32)> = busy
        .iter()
        .filter(|run| run.start.device == device)
        .map(|run| (run.start.extent, run.start.extent + run.count))
        .collect();
    busy.sort_unstable();
    let mut busy = busy.into_iter().peekable();
    let mut next = 0;
    while next < extents {
        // The first extent of a segment holds the headers of the others, and the second of the first the superblock.
        if next % SEGMENT_EXTENTS == 0 || next == crate::log::SUPERBLOCK_EXTENT {
            next += 1;
            continue;
        }
        while busy.next_if(|&(_, end)| end <= next).is_some() {}
        if let Some(&(start, end)) = busy.peek()
            && start <= next
        {
            next = end;
            continue;
        }
        let limit = busy.peek().map_or(extents, |&(start, _)| start);
        let segment_end = (next / SEGMENT_EXTENTS + 1).saturating_mul(SEGMENT_EXTENTS);
        let end = limit.min(segment_end).min(extents).min(next.saturating_add(wanted));
        return Some(Run { start: Place { device, extent: next }, count: end - next });
    }
    None
}

/// Bytes of an extent's header.
pub(crate) const HEADER_BYTES: usize = PAGE_BYTES;

/// Where the header of an extent lies: in the first extent of its segment.
pub(crate) fn header_of(extent: u32) -> (u32, usize) {
    (extent / SEGMENT_EXTENTS * SEGMENT_EXTENTS, (extent % SEGMENT_EXTENTS) as usize * HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_gap_is_free_in_one_segment_and_the_first(
            taken in prop::collection::btree_set(0u32..300, 0..300), wanted in 1u32..70
        ) {
            let runs = Run::collect(taken.iter().map(|&extent| Place { device: 0, extent }).collect());
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

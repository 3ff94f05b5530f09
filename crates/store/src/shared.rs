//! The heart of a store that is open: its devices, its log as far as it was read, and the lock under which both
//! change.
//!
//! Order of locks: the state's mutex, then the registry's lock on disk, then the readers' mutex.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, RwLock},
};

use crate::{
    Catalog, Device, DeviceEntry, EXTENT_BYTES, Edit, Error, PAGE_BYTES, Place, Result, SEGMENT_EXTENTS,
    catalog::Run,
    device::path_of,
    log::{
        Aim, Devices, Log, LogPlaces, SUPERBLOCK_EXTENT, Superblock, erase_superblock, is_used,
        read_superblock, spread, superblock_slots, write_superblock,
    },
    scratch::{Guard, Owner, Registry, Scratch, identity, is_full, is_read_only, tells_of_a_store},
};

/// Below so much free space on a file system, space is taken for extents as soon as a job takes them: then what a job
/// was given it can write, and being full is told at one place.
const NEAR_FULL_BYTES: u64 = 8 << 30;

/// Finds a device that the superblock names, given all that it names, and what tells whether a device is the one.
pub(crate) type Opener = Box<
    dyn Fn(&DeviceEntry, &[DeviceEntry], &dyn Fn(&dyn Device) -> bool) -> Option<Arc<dyn Device>>
        + Send
        + Sync,
>;

pub(crate) struct Shared {
    home: PathBuf,
    registry: Registry,
    devices: RwLock<Devices>,
    opener: Opener,
    state: Mutex<State>,
    readers: Mutex<Readers>,
    queue: Mutex<Queue>,
}

/// How a store is made where there is none.
pub(crate) struct NewStore {
    /// The most bytes that it may take on each device.
    pub limit_bytes: Option<u64>,
}

/// Looks at the catalog and says how it is to be changed.
type Make = Box<dyn FnOnce(&Catalog) -> Result<Vec<Edit>> + Send>;

/// Changes that wait for their commit. Who has the state's lock commits those of all who wait for it: one record of the
/// log, and one sync, for all of them.
#[derive(Default)]
struct Queue {
    waiting: Vec<(u64, Make)>,
    done: BTreeMap<u64, std::result::Result<(), Failed>>,
    tickets: u64,
}

/// A commit that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub error: Error,
    /// Nobody knows whether the change was made: only reading the log again can tell.
    pub is_in_doubt: bool,
}

impl Failed {
    fn certain(error: Error) -> Failed {
        Failed { error, is_in_doubt: false }
    }
}

/// What a job may take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// Extents that it must not take.
    pub closed: Vec<Run>,
    /// What is held back for whoever makes room may be taken too.
    pub with_reserve: bool,
}

/// Why a new log is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// To the old one nothing can be appended.
    Needed,
    /// It does not lie on as many devices as it could. Nothing is written unless the new one does.
    ToLieBetter,
}

#[derive(Debug)]
struct State {
    log: Log,
    catalog: Arc<Catalog>,
    /// An append failed: what is on flash can be known by reading it only, and nothing may be appended to it.
    doubtful: bool,
    /// The superblock of a device that is there is not the newest: it was away, or a crash came between.
    is_stale: bool,
    /// The extents that commits up to this one freed were given back to the devices by this process, as far as they
    /// could. At first none: the process that freed them may have died, or ended while another one read them.
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
    /// Opens the store on `devices`; where none of them has a superblock, makes one on them as `make` says. `home` is the
    /// folder of the registry.
    pub fn open(
        home: &Path,
        devices: Vec<Arc<dyn Device>>,
        opener: Opener,
        make: Option<NewStore>,
    ) -> Result<Arc<Shared>> {
        let registry = Registry::open(home)?;
        registry.meet_on(devices.iter().filter_map(|device| device.folder()).map(Path::to_path_buf));
        let guard = registry.share()?;
        let found = gather(&devices, &opener)?;
        if found.is_none() {
            check_is_new(home, &devices)?;
        }
        drop(guard);
        let (mut known, _) = match found {
            Some(found) => found,
            None => {
                let Some(NewStore { limit_bytes }) = make else {
                    return Err(Error::NoStore { path: home.to_path_buf() });
                };
                let _guard = registry.lock()?;
                // Another process may have been faster.
                match gather(&devices, &opener)? {
                    Some(found) => found,
                    None => {
                        check_is_new(home, &devices)?;
                        crate::log::init(&devices, limit_bytes)?
                    }
                }
            }
        };
        registry.meet_on(folders(&known));
        let guard = registry.share()?;
        // Somebody may have begun a new log since.
        let newest = newest(&mut known)?.ok_or_else(|| Error::NotAStore { path: home.to_path_buf() })?;
        let newest = open_others(&mut known, newest, &opener)?;
        let is_stale = newest.is_stale;
        let (log, catalog) = Log::read(&known, newest.superblock)?;
        log.check_reaches(registry.latest_record(folders(&known).into_iter().chain(newest.unreadable)))?;
        drop(guard);
        registry.meet_on(folders(&known));
        let state = State { log, catalog: Arc::new(catalog), doubtful: false, is_stale, discarded: 0 };
        Ok(Arc::new(Shared {
            home: home.to_path_buf(),
            registry,
            devices: RwLock::new(known),
            opener,
            state: Mutex::new(state),
            readers: Mutex::default(),
            queue: Mutex::default(),
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

    /// Waits for the registry's lock. Where a folder is gone, it may be that of a device that was taken out of the store.
    fn lock(&self, state: &mut State) -> Result<Guard<'_>> {
        for _ in 0..3 {
            match self.registry.lock() {
                Err(Error::BadDevice { .. }) => {
                    let _guard = self.registry.share()?;
                    self.read_what_is_new(state)?;
                }
                guard => return guard,
            }
        }
        self.registry.lock()
    }

    /// Makes the state that of the devices. To be called under the registry's lock.
    fn refresh(&self, state: &mut State) -> Result<()> {
        self.read_what_is_new(state)?;
        let last = state.log.last();
        // Of a commit that was not finished nobody is told: the next one finishes it too. Nor of one that may not be
        // durable: its process may have died before it synced the log.
        if self.registry.last_record() != Some(last)
            && !state.log.is_uneven()
            && !state.is_stale
            && self.sync_log(state).is_ok()
        {
            self.registry.tell_last_record(last);
        }
        Ok(())
    }

    /// The same where it is known already.
    fn catch_up(&self, state: &mut State) -> Result<()> {
        match state.doubtful || self.registry.last_record() != Some(state.log.last()) {
            true => self.refresh(state),
            false => Ok(()),
        }
    }

    /// Makes superblocks and log durable as they were read.
    fn sync_log(&self, state: &State) -> Result<()> {
        for (number, device) in self.devices() {
            let log = state.log.superblock.log.iter().flatten().filter(|place| place.device == number);
            let written = log.map(|place| place.extent).chain([SUPERBLOCK_EXTENT]);
            written.for_each(|extent| device.note_written(extent));
            device.sync().map_err(|error| Error::io("sync log", path_of(device.as_ref()), error))?;
        }
        Ok(())
    }

    fn read_what_is_new(&self, state: &mut State) -> Result<()> {
        let mut devices = self.devices();
        let known = devices.len();
        let newest = newest(&mut devices)?.ok_or_else(|| Error::NotAStore { path: self.home.clone() })?;
        // One that was away may be back.
        let newest = open_others(&mut devices, newest, &self.opener)?;
        state.is_stale = newest.is_stale;
        let latest = self.registry.latest_record(folders(&devices).into_iter().chain(newest.unreadable));
        let is_known = devices.len() == known;
        if newest.superblock.sequence == state.log.superblock.sequence && is_known && !state.doubtful {
            let mut catalog = (*state.catalog).clone();
            if state.log.follow(&devices, &mut catalog, self.registry.last_record())? > 0 {
                state.catalog = Arc::new(catalog);
            }
            return state.log.check_reaches(latest);
        }
        let (log, catalog) = Log::read(&devices, newest.superblock)?;
        log.check_reaches(latest)?;
        self.registry.meet_on(folders(&devices));
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
        let (guard, can_pin) = match self.lock(&mut state) {
            // Nobody can remove anything from a store that is mounted read-only.
            Err(Error::Io { source, .. }) if is_read_only(&source) => (self.registry.share()?, false),
            // A drive was moved away. What is on the others can be read on, and nobody removes it meanwhile.
            Err(Error::BadDevice { .. }) => (self.registry.share()?, true),
            guard => (guard?, true),
        };
        self.refresh(&mut state)?;
        let commit = state.catalog.commit;
        let mut readers = self.readers.lock().expect("no panic under this lock");
        if can_pin && readers.scratch.is_none() {
            readers.scratch = match guard.join("reader-") {
                // On a full drive it is read without a pin: what is written over meanwhile is an error for who reads it.
                Err(error) if is_full(&error) => None,
                joined => Some(joined?),
            };
        } else if can_pin && let Some(scratch) = &readers.scratch {
            guard.join_also(scratch)?;
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
    /// returns, they survive a power loss. Changes of several threads that come at once share one record of the log.
    ///
    /// # Errors
    /// Those of `make`, and then nothing was changed; I/O, and then the change was made or not, and the next call
    /// of any function finds out.
    pub fn commit(
        &self,
        make: impl FnOnce(&Catalog) -> Result<Vec<Edit>> + Send + 'static,
    ) -> std::result::Result<(), Failed> {
        let queue = || self.queue.lock().expect("no panic under this lock");
        let ticket = {
            let mut queue = queue();
            queue.tickets += 1;
            let ticket = queue.tickets;
            queue.waiting.push((ticket, Box::new(make)));
            ticket
        };
        let mut state = self.state();
        if let Some(result) = queue().done.remove(&ticket) {
            return result;
        }
        let waiting = std::mem::take(&mut queue().waiting);
        let mut results = self.commit_all(&mut state, waiting);
        let own = results.remove(&ticket).expect("it was waiting");
        queue().done.extend(results);
        own
    }

    fn commit_all(
        &self,
        state: &mut State,
        waiting: Vec<(u64, Make)>,
    ) -> BTreeMap<u64, std::result::Result<(), Failed>> {
        let fail = |tickets: &[u64], error: Error, is_in_doubt: bool| {
            let failed = |&ticket: &u64| (ticket, Err(Failed { error: error.again(), is_in_doubt }));
            tickets.iter().map(failed).collect::<BTreeMap<_, _>>()
        };
        let tickets: Vec<u64> = waiting.iter().map(|(ticket, _)| *ticket).collect();
        let guard = match self.lock(state).and_then(|guard| self.refresh(state).map(|()| guard)) {
            Ok(guard) => guard,
            Err(error) => return fail(&tickets, error, false),
        };
        let mut catalog = (*state.catalog).clone();
        let commit = catalog.commit + 1;
        let (mut results, mut edits, mut accepted) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (ticket, make) in waiting {
            match make(&catalog) {
                Ok(made) => {
                    catalog.apply(if made.is_empty() { catalog.commit } else { commit }, &made);
                    edits.extend(made);
                    accepted.push(ticket);
                }
                Err(error) => {
                    results.insert(ticket, Err(Failed::certain(error)));
                }
            }
        }
        match self.append(&guard, state, catalog, &edits) {
            Ok(()) => results.extend(accepted.iter().map(|&ticket| (ticket, Ok(())))),
            Err(failed) => results.extend(fail(&accepted, failed.error, failed.is_in_doubt)),
        }
        results
    }

    /// Makes `catalog`, which is that of the state with `edits`, the truth.
    fn append(
        &self,
        guard: &Guard,
        state: &mut State,
        catalog: Catalog,
        edits: &[Edit],
    ) -> std::result::Result<(), Failed> {
        if edits.is_empty() {
            return Ok(());
        }
        let in_doubt = |error| Failed { error, is_in_doubt: true };
        let devices = self.devices();
        // What was appended to a log that failed may lie behind a record that is not whole.
        let is_free = !state.doubtful && !state.is_stale && state.log.is_fit(&devices);
        self.begin_change(guard, state).map_err(Failed::certain)?;
        let lies_well =
            spread(&state.log.superblock.log) >= self.aim(&state.log.superblock, &catalog).spread();
        let mut is_done = false;
        if is_free && !lies_well {
            // A log that lies better is worth a superblock, but no error: there may be no room for it.
            let urgency = Urgency::ToLieBetter;
            let log = self.checkpoint(guard, state, &state.log.superblock, &catalog, urgency, |_| {});
            if let Some(log) = log.map_err(in_doubt)? {
                (state.log, is_done) = (log, true);
            }
        }
        if is_free && !is_done {
            is_done = state.log.append(&devices, catalog.commit, edits).map_err(in_doubt)?.is_some();
        }
        if !is_done {
            let superblock = &state.log.superblock;
            let log = self.checkpoint(guard, state, superblock, &catalog, Urgency::Needed, |_| {});
            state.log = log.map_err(in_doubt)?.expect("it was needed");
        }
        state.is_stale = false;
        self.registry.tell_last_record(state.log.last());
        state.catalog = Arc::new(catalog);
        state.doubtful = false;
        // The commit is made, whatever becomes of the space: what fails here the next job does.
        let _ = self.discard_freed(guard, state);
        Ok(())
    }

    /// To be called before log or superblock are written: if this process dies or fails from here on, it and all others
    /// read them before they take extents.
    fn begin_change(&self, guard: &Guard, state: &mut State) -> Result<()> {
        if self.is_settled(state) {
            // A new log forgets the extents that were given back, and keeps those that cannot be given back now.
            let _ = self.discard_freed(guard, state);
        }
        state.doubtful = true;
        self.registry.tell_nothing()
    }

    /// Whether the last commit that was read is known to be durable, so that what it freed can be given back.
    fn is_settled(&self, state: &State) -> bool {
        !state.doubtful && self.registry.has_told(state.log.last())
    }

    /// How the log is to lie, on the devices that are there and that `superblock` gives new data.
    fn aim(&self, superblock: &Superblock, catalog: &Catalog) -> Aim {
        let devices = self.devices.read().expect("no panic under this lock");
        Aim::of(catalog, devices.keys().filter(|number| superblock.takes_data(**number)).count())
    }

    /// Writes the catalog to where the spare log is, or to a place that is better, and makes that the log, with a
    /// superblock that `change` changed. `None`: it was to lie better, and there is no room for that.
    fn checkpoint(
        &self,
        guard: &Guard,
        state: &State,
        superblock: &Superblock,
        catalog: &Catalog,
        urgency: Urgency,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<Option<Log>> {
        // Freed extents are remembered until nobody reads them and their space was given back.
        let pinned = guard.pinned(catalog.commit)?.min(state.discarded);
        let devices = self.devices();
        let mut next = superblock.clone();
        next.branch(&devices);
        change(&mut next);
        self.drop_unfinished(guard, catalog, &mut next)?;
        note_places(&mut next, &devices);
        next.sequence += 1;
        next.generation += 1;
        let aim = self.aim(&next, catalog);
        let needed = Log::needed_bytes(catalog, pinned);
        let stays = |place: &Place| next.takes_data(place.device) && devices.contains_key(&place.device);
        let spare_stays = superblock.spare.iter().flatten().all(stays);
        let room = crate::log::capacity(&superblock.spare);
        let log_stays = superblock.log.iter().flatten().all(|place| next.takes_data(place.device));
        let lies_well = spread(&superblock.spare) >= aim.spread();
        let to_spare = |mut next: Superblock| {
            std::mem::swap(&mut next.log, &mut next.spare);
            Log::begin(&devices, next, catalog, pinned).map(Some)
        };
        // A new log has room for as much again as it begins with.
        if spare_stays && log_stays && lies_well && 2 * needed <= room {
            return to_spare(next);
        }
        let extents = (4 * needed).div_ceil(EXTENT_BYTES).max(superblock.log[0].len());
        let take = |aim: Aim, spread: usize| {
            let log = self.log_places(guard, &next, superblock, &[], catalog, extents, aim, spread)?;
            let taken: Vec<Place> = log.iter().flatten().copied().collect();
            let spare = self.log_places(guard, &next, superblock, &taken, catalog, extents, aim, spread)?;
            Ok((log, spare))
        };
        let mut taken = take(aim, aim.spread());
        if urgency == Urgency::Needed && taken.as_ref().is_err_and(Error::is_no_space) {
            // Better on fewer devices than nowhere.
            taken = take(aim, 1);
        }
        match taken {
            Ok((log, spare)) => {
                (next.log, next.spare) = (log, spare);
                Log::begin(&devices, next, catalog, pinned).map(Some)
            }
            Err(error) if !error.is_no_space() => Err(error),
            Err(_) if urgency == Urgency::ToLieBetter => Ok(None),
            // A full store can still be told what to delete.
            Err(_) if spare_stays && log_stays && needed <= room => to_spare(next),
            Err(error) => Err(error),
        }
    }

    /// Finishes a commit whose process died before all copies of the log, or all superblocks, had it. Until then that is
    /// no damage: nobody was told of it. Neither is a device whose adding failed, or a log that was about to lie on it.
    pub fn finish_commit(&self) -> Result<()> {
        let (is_unfinished, lies_badly) = {
            let mut state = self.state();
            let guard = self.registry.share()?;
            self.refresh(&mut state)?;
            let (superblock, devices) = (&state.log.superblock, self.devices());
            let is_whole = !state.log.is_uneven() && !state.is_stale;
            let mut next = superblock.clone();
            self.drop_unfinished(&guard, &state.catalog, &mut next)?;
            // One that was about to be added has one superblock of two.
            let is_half_added = |entry: &DeviceEntry| {
                let device = devices.get(&entry.number).filter(|_| entry.is_leaving);
                device.is_some_and(|device| superblock_slots(device.as_ref()).iter().any(Option::is_none))
            };
            let is_unfinished = !is_whole && !self.registry.has_told(state.log.last())
                || next.devices != superblock.devices
                || superblock.devices.iter().any(is_half_added);
            let lies_badly = spread(&superblock.log) < self.aim(superblock, &state.catalog).spread();
            (is_unfinished, lies_badly && is_whole && state.log.is_fit(&devices))
        };
        match (is_unfinished, lies_badly) {
            (true, _) => self.renew(Urgency::Needed),
            (false, true) => self.renew(Urgency::ToLieBetter),
            (false, false) => Ok(()),
        }
    }

    /// Takes devices out of a superblock whose adding, or whose removal, failed or was killed: they are leaving, hold
    /// nothing, and are not there.
    fn drop_unfinished(&self, guard: &Guard, catalog: &Catalog, next: &mut Superblock) -> Result<()> {
        let devices = self.devices();
        let is_gone = |entry: &DeviceEntry| entry.is_leaving && !devices.contains_key(&entry.number);
        if next.devices.iter().any(is_gone) {
            let busy = self.busy(guard, next, catalog)?;
            let holds = |number: u16| busy.iter().any(|run| run.start.device == number);
            next.devices.retain(|entry| !is_gone(entry) || holds(entry.number));
        }
        Ok(())
    }

    /// Begins a new log, so that both its copies and the superblocks are fresh.
    pub fn renew_log(&self) -> Result<()> {
        self.renew(Urgency::Needed)
    }

    fn renew(&self, urgency: Urgency) -> Result<()> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        self.begin_change(&guard, &mut state)?;
        let log = self.checkpoint(&guard, &state, &state.log.superblock, &state.catalog, urgency, |_| {})?;
        // Where there is no better one, nothing was written, and the next who reads the log tells of it.
        if let Some(log) = log {
            (state.log, state.is_stale) = (log, false);
            self.registry.tell_last_record(state.log.last());
        }
        state.doubtful = false;
        Ok(())
    }

    /// Adds a device, under the next free number or, if it is one whose adding was not finished, its own.
    pub fn add_device(&self, device: Arc<dyn Device>, limit_bytes: Option<u64>) -> Result<u16> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        let mut next = state.log.superblock.clone();
        let path = path_of(device.as_ref());
        let bad = |what: String| Err(Error::BadDevice { path: path.clone(), what });
        let mut devices = self.devices();
        // Its adding failed before it had a superblock, or its superblock is lost.
        let is_missing = |entry: &&DeviceEntry| entry.path == path && !devices.contains_key(&entry.number);
        let missing = next.devices.iter().find(is_missing).map(|entry| entry.number);
        let found = match read_superblock(device.as_ref()) {
            Ok(None) if missing.is_none() => check_is_blank(device.as_ref()).map(|()| None),
            // One of this store's devices that lost its superblock gets it back.
            Err(Error::LostSuperblock { .. }) if missing.is_some() => Ok(None),
            found => found,
        };
        let known = match found {
            Ok(Some((number, other))) if other.store == next.store => {
                let is_it = |entry: &&DeviceEntry| {
                    (entry.number, Some(entry.uuid)) == (number, other.uuid_of(number))
                };
                match next.devices.iter().find(is_it) {
                    // Its adding failed when the store knew it already, or its removal was not finished.
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
                return bad("it has what is left of a device of another store: empty it first".to_string());
            }
            Err(error) => return Err(error),
        };
        for entry in next.devices.iter().filter(|entry| Some(entry.number) != known) {
            let place =
                self.device(entry.number).ok().and_then(|device| Some(device.folder()?.to_path_buf()));
            let place = place.unwrap_or_else(|| entry.path.clone());
            if let Some(folder) = device.folder()
                && (folder.starts_with(&place) || place.starts_with(folder))
            {
                return bad(format!(
                    "{} is device {} of this store: one lies in the other",
                    place.display(),
                    entry.number
                ));
            }
        }
        device
            .prepare(SUPERBLOCK_EXTENT..SUPERBLOCK_EXTENT + 1)
            .map_err(|error| Error::io("take space for a superblock", &path, error))?;
        let number = match known {
            Some(number) => number,
            None => {
                let Some(number) =
                    next.devices.iter().map(|entry| entry.number).max().unwrap_or(0).checked_add(1)
                else {
                    return bad("the store has had as many devices as it can have".to_string());
                };
                let uuid = crate::log::random_uuid();
                next.devices.push(DeviceEntry {
                    number,
                    uuid,
                    path: path.clone(),
                    limit_bytes,
                    // As long as the others know it and it may not have a superblock of its own: see `drop_unfinished`.
                    is_leaving: true,
                });
                number
            }
        };
        next.branch(&devices);
        devices.insert(number, device);
        note_places(&mut next, &devices);
        // Once to be known, and then twice: both slots of all superblocks say that it belongs to the store.
        for is_leaving in [true, false, false] {
            let entries = next.devices.iter_mut().filter(|entry| entry.number == number);
            entries.for_each(|entry| entry.is_leaving &= is_leaving);
            next.sequence += 1;
            self.begin_change(&guard, &mut state)?;
            write_superblock(&devices, &next)?;
        }
        *self.devices.write().expect("no panic under this lock") = devices;
        state.log.superblock = next;
        self.registry.meet_on(folders(&self.devices()));
        self.registry.tell_last_record(state.log.last());
        (state.doubtful, state.is_stale) = (false, false);
        // The device belongs to the store now, with a superblock of its own; the log may lie on it from here on.
        let aim = self.aim(&state.log.superblock, &state.catalog);
        if known.is_some() || spread(&state.log.superblock.log) < aim.spread() {
            // One that was known may have lost a copy of the log that it had.
            let urgency = if known.is_some() { Urgency::Needed } else { Urgency::ToLieBetter };
            self.begin_change(&guard, &mut state)?;
            let log =
                self.checkpoint(&guard, &state, &state.log.superblock, &state.catalog, urgency, |_| {})?;
            if let Some(log) = log {
                state.log = log;
            }
            self.registry.tell_last_record(state.log.last());
            state.doubtful = false;
        }
        Ok(number)
    }

    /// Takes a device back that went its own way while it was away: what was committed there only is given up. Extents
    /// that were written over there are damaged now, and told and mended like all that is damaged.
    pub fn rejoin(&self, device: Arc<dyn Device>) -> Result<u16> {
        self.registry
            .meet_on(folders(&self.devices()).into_iter().chain(device.folder().map(Path::to_path_buf)));
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        let path = path_of(device.as_ref());
        let bad = |what: &str| Err(Error::BadDevice { path: path.clone(), what: what.to_string() });
        let superblock = &state.log.superblock;
        let Some((number, own)) = read_superblock(device.as_ref())? else {
            return bad("it holds no store");
        };
        if own.store != superblock.store || own.uuid_of(number) != superblock.uuid_of(number) {
            return bad("it is no device of this store");
        }
        let mut devices = self.devices();
        if superblock.descends_from(&own) {
            return bad("it did not go its own way: the store has all that it has");
        }
        let superblock = Superblock { sequence: superblock.sequence.max(own.sequence), ..superblock.clone() };
        devices.insert(number, device);
        *self.devices.write().expect("no panic under this lock") = devices;
        self.begin_change(&guard, &mut state)?;
        let log = self.checkpoint(&guard, &state, &superblock, &state.catalog, Urgency::Needed, |_| {})?;
        state.log = log.expect("it was needed");
        self.registry.tell_last_record(state.log.last());
        (state.doubtful, state.is_stale) = (false, false);
        Ok(number)
    }

    /// Says that a device is about to be removed, or that it stays after all.
    pub fn set_leaving(&self, number: u16, is_leaving: bool) -> Result<()> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        let is_known = state.log.superblock.devices.iter().any(|entry| entry.number == number);
        if !is_known {
            return Err(Error::NoDevice { number });
        }
        self.begin_change(&guard, &mut state)?;
        // With a new log, so that no part of it stays on the device.
        let change = |next: &mut Superblock| {
            let entries = next.devices.iter_mut().filter(|entry| entry.number == number);
            entries.for_each(|entry| entry.is_leaving = is_leaving);
        };
        let superblock = &state.log.superblock;
        let log = self.checkpoint(&guard, &state, superblock, &state.catalog, Urgency::Needed, change)?;
        state.log = log.expect("it was needed");
        self.registry.tell_last_record(state.log.last());
        state.doubtful = false;
        Ok(())
    }

    /// Takes a device out that holds nothing any more. `Some`: who or what still needs it.
    ///
    /// # Errors
    /// I/O; [`Error::BadDevice`] where the device was taken out and something of it stays in its folder.
    pub fn forget_device(&self, number: u16, own: &Scratch) -> Result<Option<String>> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.bury(&guard, &mut state)?;
        self.refresh(&mut state)?;
        let on_it = |runs: &[Run]| runs.iter().any(|run| run.start.device == number);
        let datasets: Vec<Run> =
            state.catalog.datasets.values().flat_map(|record| record.runs.iter().copied()).collect();
        if on_it(&datasets) {
            return Ok(Some("a dataset that was written meanwhile".to_string()));
        }
        let owners = guard.owners()?;
        let others = owners.iter().filter(|owner| owner.path.file_name() != own.path().file_name());
        let is_home = self.devices().keys().next() == Some(&number);
        for owner in others {
            let reads = owner.pin.is_some_and(|pin| pin < state.catalog.commit);
            if is_home || reads || on_it(&owner.lease) {
                return Ok(Some(format!("process {}", owner.process)));
            }
        }
        let mut next = state.log.superblock.clone();
        next.devices.retain(|entry| entry.number != number);
        assert!(next.places().all(|place| place.device != number), "the log was moved before");
        let mut devices = self.devices();
        let gone = devices.remove(&number);
        next.branch(&devices);
        note_places(&mut next, &devices);
        self.begin_change(&guard, &mut state)?;
        // Twice: no slot of any superblock knows it any more.
        for _ in 0..2 {
            next.sequence += 1;
            write_superblock(&devices, &next)?;
        }
        *self.devices.write().expect("no panic under this lock") = devices;
        state.log.superblock = next;
        let erased = gone.as_ref().map_or(Ok(()), |device| {
            let clear =
                || device.clear().map_err(|error| Error::io("give up", path_of(device.as_ref()), error));
            erase_superblock(device.as_ref()).and_then(|()| clear())
        });
        let folder = gone.as_ref().and_then(|gone| gone.folder());
        if let Some(folder) = folder.filter(|_| is_home) {
            crate::profile::forget(folder);
        }
        // Under the lock: who waits for it finds that the folder is gone.
        let removed = folder.map_or(Ok(()), |folder| self.registry.remove(folder));
        self.registry.tell_last_record(state.log.last());
        state.doubtful = false;
        drop(guard);
        match erased.and(removed) {
            Ok(()) => Ok(None),
            Err(error) => {
                let path = gone.as_ref().map_or_else(|| self.home.clone(), |gone| path_of(gone.as_ref()));
                let what = format!(
                    "device {number} was removed from the store, which needs nothing there any more, but not all of \
                     it could be deleted ({error}): delete the files segment-* and the folder scratch in it"
                );
                Err(Error::BadDevice { path, what })
            }
        }
    }

    /// The superblock and the catalog after the last commit of any process.
    pub fn state_of_things(&self) -> Result<(Superblock, Arc<Catalog>)> {
        let mut state = self.state();
        let _guard = self.registry.share()?;
        self.refresh(&mut state)?;
        Ok((state.log.superblock.clone(), state.catalog.clone()))
    }

    /// What is wrong with superblocks and log although the store can be read.
    pub fn check_log(&self) -> Result<Vec<String>> {
        let mut state = self.state();
        let _guard = self.registry.share()?;
        self.refresh(&mut state)?;
        let superblock = &state.log.superblock;
        let aim = self.aim(superblock, &state.catalog);
        let is_lost = |entry: &DeviceEntry| {
            let has_lost = |device: &dyn Device| match read_superblock(device) {
                Ok(found) => found.is_none() && check_is_blank(device).is_err(),
                Err(error) => matches!(error, Error::LostSuperblock { .. }),
            };
            let is_there = |device: &dyn Device| path_of(device) == entry.path && has_lost(device);
            (self.opener)(entry, &superblock.devices, &is_there).is_some()
        };
        Ok(state.log.check(&self.devices(), aim, is_lost))
    }

    /// Everybody who is at work.
    pub fn owners(&self) -> Result<Vec<Owner>> {
        self.registry.share()?.owners()
    }

    /// Writes down that an owner keeps its work under `name`, unless another living one does: then gives its process.
    pub fn claim(&self, scratch: &Scratch, name: &str) -> Result<Option<u32>> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        let owners = guard.owners()?;
        if let Some(owner) = owners.iter().find(|owner| owner.keeps.as_deref() == Some(name)) {
            return Ok(Some(owner.process));
        }
        scratch.keep(name)?;
        Ok(None)
    }

    /// Extents that nobody may take, as runs.
    pub fn busy_extents(&self) -> Result<Vec<Run>> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        self.busy(&guard, &state.log.superblock, &state.catalog)
    }

    /// Gives all space back that nobody uses, whoever left it: that of the headers too, in segments in which nothing
    /// lies. Costs a system call for each segment, and for each gap in one.
    ///
    /// # Errors
    /// I/O, once all that can be given back was. Nothing is given back where the last commit may not be durable.
    pub fn discard_unused(&self) -> Result<()> {
        self.finish_commit()?;
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        if !self.is_settled(&state) {
            return Ok(());
        }
        let busy = self.busy(&guard, &state.log.superblock, &state.catalog)?;
        let used: BTreeSet<(u16, u32)> = busy
            .iter()
            .flat_map(|run| {
                let last = (run.start.extent + run.count - 1) / SEGMENT_EXTENTS;
                (run.start.extent / SEGMENT_EXTENTS..=last).map(|segment| (run.start.device, segment))
            })
            .collect();
        let segments = self.devices().into_iter().flat_map(|(number, device)| {
            let extents = device.extents();
            (0..extents.div_ceil(SEGMENT_EXTENTS)).map(move |segment| {
                let start = segment * SEGMENT_EXTENTS;
                Run {
                    start: Place { device: number, extent: start },
                    count: SEGMENT_EXTENTS.min(extents - start),
                }
            })
        });
        let all: Vec<Run> = segments
            .filter_map(|Run { start: Place { device, extent }, count }| {
                // The headers, where any are used, and the superblock.
                let kept = match extent {
                    0 => SUPERBLOCK_EXTENT + 1,
                    extent => u32::from(used.contains(&(device, extent / SEGMENT_EXTENTS))),
                };
                let count = count.checked_sub(kept).filter(|&count| count > 0)?;
                Some(Run { start: Place { device, extent: extent + kept }, count })
            })
            .collect();
        self.discard(&Run::without(&all, &busy))
    }

    /// Room for a log of `extents` extents a copy, on the devices of `next` that stay: each copy on a device of its own,
    /// as long as there are any with room.
    ///
    /// # Errors
    /// No space, where the copies would lie on fewer than `spread` devices.
    #[allow(clippy::too_many_arguments)]
    fn log_places(
        &self,
        guard: &Guard,
        next: &Superblock,
        superblock: &Superblock,
        taken: &[Place],
        catalog: &Catalog,
        extents: usize,
        aim: Aim,
        spread: usize,
    ) -> Result<LogPlaces> {
        let mut devices = self.devices();
        devices.retain(|&number, _| next.takes_data(number));
        let mut busy = self.busy(guard, superblock, catalog)?;
        busy.extend(taken.iter().map(|&start| Run { start, count: 1 }));
        let mut log = LogPlaces::new();
        for (&number, device) in &devices {
            if log.len() < aim.copies {
                log.extend(places_on(device, number, extents, &mut busy)?);
            }
        }
        let lies_on = log.len();
        for (&number, device) in &devices {
            while log.len() < 2 {
                let Some(places) = places_on(device, number, extents, &mut busy)? else { break };
                log.push(places);
            }
        }
        if lies_on < spread || log.len() < 2 {
            return Err(self.no_space());
        }
        for place in log.iter().flatten() {
            let device = &devices[&place.device];
            device
                .prepare(place.extent..place.extent + 1)
                .map_err(|error| Error::io("take space for the log", device.name(), error))?;
        }
        Ok(log)
    }

    /// Everything on the devices that must not be taken.
    fn busy(&self, guard: &Guard, superblock: &Superblock, catalog: &Catalog) -> Result<Vec<Run>> {
        let mut busy = catalog.taken(guard.pinned(catalog.commit)?);
        busy.extend(guard.leases()?);
        busy.extend(superblock.places().map(|start| Run { start, count: 1 }));
        Ok(busy)
    }

    /// The devices that take new data, with how much each can take: by this data is shared out.
    pub fn open_devices(&self) -> Vec<(u16, u32)> {
        let state = self.state();
        let devices = self.devices.read().expect("no panic under this lock");
        let takes = |number: u16| state.log.superblock.takes_data(number);
        devices
            .iter()
            .filter(|(number, _)| takes(**number))
            .map(|(&n, device)| (n, device.extents()))
            .collect()
    }

    /// The folders of the devices that are there.
    pub fn folders(&self) -> Vec<PathBuf> {
        folders(&self.devices.read().expect("no panic under this lock"))
    }

    /// How many devices the store has that are not there.
    pub fn missing_devices(&self) -> usize {
        let state = self.state();
        let devices = self.devices.read().expect("no panic under this lock");
        let entries = state.log.superblock.devices.iter();
        entries.filter(|entry| !devices.contains_key(&entry.number)).count()
    }

    /// Which part of each device datasets take.
    pub fn filled(&self) -> BTreeMap<u16, f64> {
        let state = self.state();
        let devices = self.devices.read().expect("no panic under this lock");
        let mut taken: BTreeMap<u16, u64> = devices.keys().map(|&number| (number, 0)).collect();
        for run in state.catalog.datasets.values().flat_map(|record| &record.runs) {
            taken.entry(run.start.device).and_modify(|taken| *taken += run.count as u64);
        }
        let part =
            |(number, taken): (u16, u64)| (number, taken as f64 / devices[&number].extents().max(1) as f64);
        taken.into_iter().map(part).collect()
    }

    /// Starts to use extents of a device: at most `wanted` that follow each other, written down as taken in
    /// `scratch`. `None` where it is full, but for what is held back for deleting and moving.
    pub fn take_extents(
        &self,
        scratch: &Scratch,
        number: u16,
        wanted: u32,
        terms: &Terms,
    ) -> Result<Option<Run>> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        guard.join_also(scratch)?;
        self.catch_up(&mut state)?;
        let mut busy = self.busy(&guard, &state.log.superblock, &state.catalog)?;
        // It may have been taken out of the store meanwhile.
        let Ok(device) = self.device(number) else { return Ok(None) };
        let (extents, reserve) = (device.extents(), reserve(device.extents()));
        let reserve = if terms.with_reserve { 0 } else { reserve };
        // What a job committed is in its lease and in a dataset.
        let on_it = Run::merged(&busy).into_iter().filter(|run| run.start.device == number);
        let taken: u64 = on_it.map(|run| run.count as u64).sum();
        let not_for_data = extents.div_ceil(SEGMENT_EXTENTS) as u64 + 1;
        let mut left = (extents as u64).saturating_sub(taken + not_for_data + reserve);
        let free =
            device.free_bytes().map_err(|error| Error::io("ask for free space", device.name(), error))?;
        let is_near_full = free.is_some_and(|free| free < NEAR_FULL_BYTES);
        if let Some(free) = free {
            left = left.min((free / EXTENT_BYTES as u64).saturating_sub(reserve));
        }
        busy.extend_from_slice(&terms.closed);
        let wanted = wanted.min(left.min(u32::MAX as u64) as u32);
        let gap = if wanted == 0 { None } else { first_gap(&busy, number, extents, wanted) };
        let Some(run) = gap else { return Ok(None) };
        scratch.add_lease(run)?;
        if is_near_full {
            let headers = header_of(run.start.extent).0;
            let prepared = device
                .prepare(headers..headers + 1)
                .and_then(|()| device.prepare(run.start.extent..run.start.extent + run.count));
            match prepared {
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(None),
                prepared => prepared.map_err(|error| Error::io("take space", device.name(), error))?,
            }
        }
        Ok(Some(run))
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.state().log.superblock.store
    }

    /// A folder for a new job; on a file system that is mounted read-only none. The space that dead jobs had taken is given
    /// back, and so is that of datasets that were removed while they were read, or by a process that died before it gave the space back.
    pub fn join(&self) -> Result<Scratch> {
        let mut state = self.state();
        let guard = match self.lock(&mut state) {
            // It can be read all the same, and who wants to write is told when it does.
            Err(Error::Io { source, .. }) if is_read_only(&source) => return Ok(self.registry.nowhere("")),
            guard => guard?,
        };
        self.bury(&guard, &mut state)?;
        match guard.join("") {
            Err(error) if is_full(&error) => Ok(self.registry.nowhere("")),
            joined => joined,
        }
    }

    /// Gives back what dead jobs had taken, without waiting for the next job that begins.
    pub fn bury_dead(&self) -> Result<()> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.bury(&guard, &mut state)
    }

    fn bury(&self, guard: &Guard, state: &mut State) -> Result<()> {
        let dead = guard.dead()?;
        self.catch_up(state)?;
        if !dead.lease.is_empty() {
            let mut busy = self.kept(guard, state)?;
            busy.extend(&dead.leases_of_living);
            // It only saves space, as below: what is not given back can be taken again all the same.
            let _ = self.discard(&Run::without(&dead.lease, &busy));
        }
        if self.is_settled(state) {
            self.discard_freed(guard, state)?;
        }
        dead.remove()
    }

    /// Extents of datasets, of log and spare, and those that were freed and somebody may still read; all that were freed,
    /// where the last commit may not be durable.
    fn kept(&self, guard: &Guard, state: &State) -> Result<Vec<Run>> {
        let pinned = if self.is_settled(state) { guard.pinned(state.catalog.commit)? } else { 0 };
        let mut kept = state.catalog.taken(pinned);
        kept.extend(state.log.superblock.places().map(|start| Run { start, count: 1 }));
        Ok(kept)
    }

    /// Gives back what a job had taken and no dataset took over.
    pub fn end_lease(&self, taken: &[Run]) {
        if taken.is_empty() {
            return;
        }
        let mut state = self.state();
        // What cannot be given back now can be taken again all the same, once the job's folder is gone.
        if let Ok(guard) = self.lock(&mut state)
            && self.refresh(&mut state).is_ok()
            && let Ok(kept) = self.kept(&guard, &state)
        {
            let _ = self.discard(&Run::without(taken, &kept));
        }
    }

    /// Gives the space of freed extents back that nobody reads any more. To be called when it is known that the last
    /// commit is durable.
    ///
    /// # Errors
    /// I/O, where it cannot be known who reads what: then nothing is given back.
    fn discard_freed(&self, guard: &Guard, state: &mut State) -> Result<()> {
        let (commit, freed) = (state.catalog.commit, &state.catalog.freed);
        if freed.iter().all(|(commit, _)| *commit <= state.discarded) {
            state.discarded = commit;
            return Ok(());
        }
        // Another process may have done it. Where a drive has more commits of its own, it went another way.
        let told = Some(self.registry.discarded()).filter(|&told| told <= commit);
        let discarded = state.discarded.max(told.unwrap_or(0));
        let pinned = guard.pinned(commit)?;
        let freed = freed.iter().filter(|(commit, _)| (discarded + 1..=pinned).contains(commit));
        let freed: Vec<Run> = freed.map(|(_, run)| *run).collect();
        if !freed.is_empty() {
            let busy = self.busy(guard, &state.log.superblock, &state.catalog)?;
            // It only saves space: what is not given back is taken again later, or given back by the next process or
            // by compaction.
            if self.discard(&Run::without(&Run::merged(&freed), &busy)).is_ok() {
                self.registry.tell_discarded(pinned);
            }
        }
        state.discarded = discarded.max(pinned);
        Ok(())
    }

    /// Gives back as much of `runs` as devices take, and gives the first error.
    fn discard(&self, runs: &[Run]) -> Result<()> {
        let mut done = Ok(());
        for run in runs {
            if let Ok(device) = self.device(run.start.device) {
                let discarded = device.discard(run.start.extent..run.start.extent + run.count);
                let discarded =
                    discarded.map_err(|error| Error::io("give space back", path_of(device.as_ref()), error));
                done = done.and(discarded);
            }
        }
        done
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

/// Extents of a device that are held back, so that a full store can still delete, move data and begin a new log.
pub(crate) fn reserve(extents: u32) -> u64 {
    (extents as u64 / 64).clamp(4, 64)
}

/// Extents for a copy of a log on a device, of those that are not in `busy`, to which they are added. `None` where there
/// are too few.
fn places_on(
    device: &Arc<dyn Device>,
    number: u16,
    extents: usize,
    busy: &mut Vec<Run>,
) -> Result<Option<Vec<Place>>> {
    let (mut places, begin) = (Vec::new(), busy.len());
    while places.len() < extents {
        let wanted = (extents - places.len()) as u32;
        let Some(run) = first_gap(busy, number, device.extents(), wanted) else {
            busy.truncate(begin);
            return Ok(None);
        };
        busy.push(run);
        places.extend(run.places());
    }
    Ok(Some(places))
}

/// The devices by the numbers that their superblocks say, with those that these name, and the newest of them. `None`
/// where there is no store: none was ever made, or its making was not finished (see [`read_superblock`]).
fn gather(devices: &[Arc<dyn Device>], opener: &Opener) -> Result<Option<(Devices, Superblock)>> {
    let mut known = Devices::new();
    let (mut store, mut failed, mut twice, mut uuids) = (None, None, None, BTreeMap::new());
    for device in devices {
        let (number, superblock) = match read_superblock(device.as_ref()) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            // A drive that fails is as good as one that is not there, as long as others are.
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        if *store.get_or_insert(superblock.store) != superblock.store {
            return Err(Error::BadFormat {
                path: PathBuf::from(device.name()),
                what: "store",
                found: "a device of another store".to_string(),
                expected: "devices of one".to_string(),
            });
        }
        let uuid = superblock.uuid_of(number);
        let is_known = uuids.insert(number, uuid) == Some(uuid);
        if let Some(other) = known.insert(number, device.clone())
            && is_known
            && path_of(other.as_ref()) != path_of(device.as_ref())
        {
            twice = Some(Error::BadFormat {
                path: path_of(device.as_ref()),
                what: "superblock",
                found: format!("that of device {number}, which {} has too", other.name()),
                expected: "one of its own".to_string(),
            });
        }
    }
    let Some(newest) = newest(&mut known)? else { return failed.map_or(Ok(None), Err) };
    let superblock = open_others(&mut known, newest, opener)?.superblock;
    for device in devices {
        check_is_no_copy(device, &superblock)?;
    }
    if let Some(error) = twice {
        return Err(error);
    }
    if superblock.sequence > 1 {
        return Ok(Some((known, superblock)));
    }
    for device in known.values() {
        // The second superblock was there, and is lost.
        if check_is_blank(device.as_ref()).is_err() {
            return Ok(Some((known, superblock)));
        }
    }
    // The first superblock was written, and on no device that is here the second: if all are here, none has it.
    match superblock.devices.iter().find(|entry| !known.contains_key(&entry.number)) {
        Some(missing) if devices.len() < superblock.devices.len() => {
            Err(Error::NoDevice { number: missing.number })
        }
        _ => Ok(None),
    }
}

/// Refuses to make a store where one was, of which only the superblocks are lost. `home` is where those who are at work
/// meet.
fn check_is_new(home: &Path, devices: &[Arc<dyn Device>]) -> Result<()> {
    devices.iter().try_for_each(|device| check_is_blank(device.as_ref()))?;
    if tells_of_a_store(home) {
        return Err(lost_superblock(home.to_path_buf(), "scratch/lock tells of a store"));
    }
    Ok(())
}

/// Refuses a device that has no superblock, or only the first of all, and shows that a store was there: anything but what
/// the making of a store leaves that was not finished.
pub(crate) fn check_is_blank(device: &dyn Device) -> Result<()> {
    let lost = |trace: &str| Err(lost_superblock(path_of(device), trace));
    if let Some(folder) = device.folder() {
        if tells_of_a_store(folder) {
            return lost("scratch/lock tells of a store");
        }
        let list = |error| Error::io("list", folder, error);
        for entry in std::fs::read_dir(folder).map_err(list)? {
            let name = entry.map_err(list)?.file_name().to_string_lossy().into_owned();
            if name.starts_with("segment-") && name != "segment-00000000" {
                return lost(&format!("{name} is there"));
            }
        }
    }
    if is_used(device)? { lost("there are extents, or a log, of a store") } else { Ok(()) }
}

fn lost_superblock(path: PathBuf, trace: &str) -> Error {
    Error::LostSuperblock { path, found: format!("none is there, although {trace}") }
}

/// Refuses a folder that is a copy of a device which is where the superblock says.
fn check_is_no_copy(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<()> {
    let found = read_superblock(device.as_ref()).ok().flatten();
    let (Some(folder), Some((number, own))) = (device.folder(), found) else { return Ok(()) };
    let entry = superblock.devices.iter().find(|entry| entry.number == number);
    let Some(entry) = entry.filter(|entry| Some(entry.uuid) == own.uuid_of(number)) else { return Ok(()) };
    let path = &*entry.path;
    if identity(path).is_none_or(|recorded| Some(recorded) == identity(folder)) {
        return Ok(());
    }
    // What cannot be read there is not the device.
    let there =
        crate::Directory::open(path, None).ok().and_then(|there| read_superblock(&there).ok().flatten());
    match there {
        Some((found, other)) if found == number && other.uuid_of(found) == own.uuid_of(number) => {
            Err(Error::IsACopy { copy: folder.to_path_buf(), number, path: path.to_path_buf() })
        }
        _ => Ok(()),
    }
}

/// The folders of devices.
fn folders(devices: &Devices) -> Vec<PathBuf> {
    devices.values().filter_map(|device| device.folder()).map(Path::to_path_buf).collect()
}

/// Writes down where the devices are. Where one was moved, that begins a branch: of a device and a copy of it, the one
/// that stayed and the one that was moved are told from each other.
fn note_places(superblock: &mut Superblock, devices: &Devices) {
    let mut is_moved = false;
    for entry in &mut superblock.devices {
        let place = devices.get(&entry.number).and_then(|device| device.folder());
        if let Some(place) = place
            && *place != *entry.path
            // Another name of the same folder is no other place.
            && identity(&entry.path) != identity(place)
        {
            (entry.path, is_moved) = (place.to_path_buf(), true);
        }
    }
    if is_moved {
        superblock.begin_branch();
    }
}

/// The superblock that counts of those that devices have.
struct Newest {
    superblock: Superblock,
    /// Some have an older one, or are no longer where it says.
    is_stale: bool,
    /// Folders where a device was that has no whole superblock now, as far as others were looked for.
    unreadable: Vec<PathBuf>,
}

/// What counts of what the superblocks of devices say, without devices that are none of the store any more or whose
/// superblock cannot be read; `None` where there is no superblock.
///
/// # Errors
/// [`Error::Diverged`]; I/O and damage where no superblock can be read.
fn newest(devices: &mut Devices) -> Result<Option<Newest>> {
    let mut found: BTreeMap<u16, Superblock> = BTreeMap::new();
    let mut failed = BTreeMap::new();
    for (&number, device) in devices.iter() {
        match read_superblock(device.as_ref()) {
            Ok(superblock) => found.extend(superblock.map(|(_, superblock)| (number, superblock))),
            Err(error) => drop(failed.insert(number, error)),
        }
    }
    if found.is_empty()
        && let Some((_, error)) = failed.pop_first()
    {
        return Err(error);
    }
    // A drive that fails is as good as one that is not there.
    devices.retain(|number, _| !failed.contains_key(number));
    let mut newest: Option<&Superblock> = None;
    for other in found.values() {
        let Some(known) = newest else {
            newest = Some(other);
            continue;
        };
        newest = match (known.descends_from(other), other.descends_from(known)) {
            (true, true) if known.sequence < other.sequence => Some(other),
            (true, _) => Some(known),
            (false, true) => Some(other),
            (false, false) => return Err(diverged(devices, &found, known, other)),
        };
    }
    let Some(newest) = newest else { return Ok(None) };
    devices.retain(|number, _| {
        let own = found.get(number).map(|own| own.uuid_of(*number));
        newest.uuid_of(*number).is_some_and(|uuid| own.is_none_or(|own| own == Some(uuid)))
    });
    let mut placed = newest.clone();
    note_places(&mut placed, devices);
    let is_old = |(number, own): (&u16, &Superblock)| {
        devices.contains_key(number) && (own.sequence, &own.branches) != (newest.sequence, &newest.branches)
    };
    let is_stale = placed != *newest || found.iter().any(is_old);
    // Higher than any that was seen: the next one is to be the newest in both slots of all.
    let sequence = found.values().map(|own| own.sequence).max().unwrap_or(newest.sequence);
    let superblock = Superblock { sequence, ..newest.clone() };
    Ok(Some(Newest { superblock, is_stale, unreadable: Vec::new() }))
}

/// The error that tells of two superblocks of which neither is what became of the other.
fn diverged(
    devices: &Devices,
    found: &BTreeMap<u16, Superblock>,
    one: &Superblock,
    other: &Superblock,
) -> Error {
    let side = |one: &Superblock, other: &Superblock| {
        let is_of_it = |own: &Superblock| one.descends_from(own) && !other.descends_from(own);
        let mut own: Devices = devices.clone();
        own.retain(|number, _| found.get(number).is_some_and(is_of_it));
        let names: Vec<String> =
            own.iter().map(|(number, device)| format!("device {number} ({})", device.name())).collect();
        let last = match Log::read(&own, one.clone()) {
            Ok((_, catalog)) => {
                let count = catalog.datasets.len();
                format!("commit {} with {count} dataset{}", catalog.commit, if count == 1 { "" } else { "s" })
            }
            Err(_) => "its log cannot be read".to_string(),
        };
        format!("{}, at {last},", names.join(" and "))
    };
    Error::Diverged { one: side(one, other), other: side(other, one) }
}

/// Opens the devices that the superblock names and nobody has opened yet; gives the newest superblock of all.
fn open_others(devices: &mut Devices, mut known: Newest, opener: &Opener) -> Result<Newest> {
    loop {
        let (mut is_new, unreadable) = (false, RefCell::new(Vec::new()));
        let Superblock { store, devices: entries, .. } = &known.superblock;
        for entry in entries {
            if devices.contains_key(&entry.number) {
                continue;
            }
            let is_it = |device: &dyn Device| match read_superblock(device) {
                Ok(Some((number, found))) => {
                    (number, found.store, found.uuid_of(number)) == (entry.number, *store, Some(entry.uuid))
                }
                _ => {
                    let folder = device.folder().filter(|folder| *folder == entry.path);
                    unreadable.borrow_mut().extend(folder.map(Path::to_path_buf));
                    false
                }
            };
            // A device that is not there is an error for whoever needs it.
            if let Some(device) = opener(entry, entries, &is_it) {
                devices.insert(entry.number, device);
                is_new = true;
            }
        }
        if !is_new {
            return Ok(Newest { unreadable: unreadable.into_inner(), ..known });
        }
        known = newest(devices)?.expect("they have one");
    }
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
        if next % SEGMENT_EXTENTS == 0 || next == SUPERBLOCK_EXTENT {
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
    use crate::{Budget, Fault, Faulty, Memory, Store};

    /// A commit that is on flash and that nobody was told of: its extents are not taken by who has read the log before.
    #[test]
    fn extents_of_a_commit_that_nobody_told_of_are_not_taken() {
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
        // It is whole in the first copy of the log, and then everything ends, the lease too.
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

    /// What a kill in the midst of a commit leaves is no damage.
    #[test]
    fn a_commit_that_was_not_finished_is_finished_by_who_verifies() {
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
            // It is in both copies now.
            let superblock = open().0.state_of_things().unwrap().0;
            for copy in &superblock.log {
                let superblock = Superblock { log: vec![copy.clone()], ..superblock.clone() };
                let (_, catalog) = Log::read(&open().0.devices(), superblock).unwrap();
                assert_eq!(catalog.datasets.len(), count);
            }
        }
        assert_eq!(open().list().unwrap().len(), 2);
    }

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

//! The heart of a store that is open: its devices, its log as far as it was read, and the lock under which both
//! change.
//!
//! Order of locks: the state's mutex, then the registry's lock on disk, then the readers' mutex.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, RwLock},
};

use crate::{
    Catalog, Device, DeviceEntry, EXTENT_BYTES, Edit, Error, PAGE_BYTES, Place, Result, SEGMENT_EXTENTS,
    catalog::Run,
    log::{
        Aim, Devices, Log, LogPlaces, Superblock, erase_superblock, is_used, read_superblock, spread,
        write_superblock,
    },
    scratch::{Guard, Owner, Registry, Scratch, identity, is_full, is_read_only, tells_of_a_store},
};

/// Below so much free space on a file system, space is taken for extents as soon as a job takes them: then what a job
/// was given it can write, and being full is told at one place.
const NEAR_FULL_BYTES: u64 = 8 << 30;

/// What may be the device that the superblock names, the likeliest first. Which of them it is, it says itself.
pub(crate) type Opener = Box<dyn Fn(&crate::DeviceEntry) -> Vec<Arc<dyn Device>> + Send + Sync>;

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
        let (discarded, catalog) = (catalog.commit, Arc::new(catalog));
        let state = State { log, discarded, catalog, doubtful: false, is_stale };
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
        // Of a commit that was not finished nobody is told: the next one finishes it too.
        if self.registry.last_record() != Some(last) && !state.log.is_uneven() && !state.is_stale {
            self.registry.tell_last_record(last);
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
        self.begin_change(state).map_err(Failed::certain)?;
        let lies_well =
            spread(&state.log.superblock.log) >= self.aim(&state.log.superblock, &catalog).spread();
        let mut is_done = false;
        if is_free && !lies_well {
            // A log that lies better is worth a superblock, but no error: there may be no room for it.
            let urgency = Urgency::ToLieBetter;
            let log = self.checkpoint(guard, &state.log.superblock, &catalog, urgency, |_| {});
            if let Some(log) = log.map_err(in_doubt)? {
                (state.log, is_done) = (log, true);
            }
        }
        if is_free && !is_done {
            is_done = state.log.append(&devices, catalog.commit, edits).map_err(in_doubt)?.is_some();
        }
        if !is_done {
            let superblock = &state.log.superblock;
            let log = self.checkpoint(guard, superblock, &catalog, Urgency::Needed, |_| {});
            state.log = log.map_err(in_doubt)?.expect("it was needed");
        }
        state.is_stale = false;
        self.registry.tell_last_record(state.log.last());
        state.catalog = Arc::new(catalog);
        state.doubtful = false;
        self.discard_freed(guard, state).map_err(Failed::certain)
    }

    /// To be called before log or superblock are written: if this process dies or fails from here on, it and all others
    /// read them before they take extents.
    fn begin_change(&self, state: &mut State) -> Result<()> {
        state.doubtful = true;
        self.registry.tell_nothing()
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
        superblock: &Superblock,
        catalog: &Catalog,
        urgency: Urgency,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<Option<Log>> {
        let pinned = guard.pinned(catalog.commit)?;
        let devices = self.devices();
        let mut next = superblock.clone();
        next.branch(&devices);
        change(&mut next);
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
    /// no damage: nobody was told of it.
    pub fn finish_commit(&self) -> Result<()> {
        let is_unfinished = {
            let mut state = self.state();
            let _guard = self.registry.share()?;
            self.refresh(&mut state)?;
            let is_whole = !state.log.is_uneven() && !state.is_stale;
            !is_whole && !self.registry.has_told(state.log.last())
        };
        if is_unfinished { self.renew_log() } else { Ok(()) }
    }

    /// Begins a new log, so that both its copies and the superblocks are fresh.
    pub fn renew_log(&self) -> Result<()> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        self.begin_change(&mut state)?;
        let log = self.checkpoint(&guard, &state.log.superblock, &state.catalog, Urgency::Needed, |_| {})?;
        state.log = log.expect("it was needed");
        self.registry.tell_last_record(state.log.last());
        (state.doubtful, state.is_stale) = (false, false);
        Ok(())
    }

    /// Adds a device, under the next free number or, if it is one whose adding was not finished, its own.
    pub fn add_device(&self, device: Arc<dyn Device>, limit_bytes: Option<u64>) -> Result<u16> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        let mut next = state.log.superblock.clone();
        let name = device.name();
        let known = next.devices.iter().find(|entry| entry.path == name).map(|entry| entry.number);
        let bad = |what: String| Err(Error::BadDevice { path: PathBuf::from(&name), what });
        let found = match read_superblock(device.as_ref()) {
            Ok(None) if known.is_none() => check_is_blank(device.as_ref()).map(|()| None),
            // One of this store's devices that lost its superblock gets it back.
            Err(Error::LostSuperblock { .. }) if known.is_some() => Ok(None),
            found => found,
        };
        match found {
            Ok(Some((number, other))) if other.store == next.store => {
                return bad(match next.uuid_of(number) == other.uuid_of(number) {
                    true => format!("it is device {number} of this store already"),
                    false => format!("it was device {number} of this store and was removed: empty it first"),
                });
            }
            Ok(Some(_)) => return bad("it holds a store already".to_string()),
            Ok(None) => {}
            Err(Error::LostSuperblock { .. }) => {
                return bad("it has what is left of a device of another store: empty it first".to_string());
            }
            Err(error) => return Err(error),
        }
        for entry in next.devices.iter().filter(|entry| Some(entry.number) != known) {
            let place =
                self.device(entry.number).ok().and_then(|device| Some(device.folder()?.to_path_buf()));
            let place = place.unwrap_or_else(|| PathBuf::from(&entry.path));
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
            .prepare(crate::log::SUPERBLOCK_EXTENT..crate::log::SUPERBLOCK_EXTENT + 1)
            .map_err(|error| Error::io("take space for a superblock", &name, error))?;
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
                    path: name.clone(),
                    limit_bytes,
                    is_leaving: false,
                });
                number
            }
        };
        let mut devices = self.devices();
        next.branch(&devices);
        devices.insert(number, device);
        note_places(&mut next, &devices);
        // Twice: both slots of the new device's superblock.
        for _ in 0..2 {
            next.sequence += 1;
            self.begin_change(&mut state)?;
            write_superblock(&devices, &next)?;
        }
        *self.devices.write().expect("no panic under this lock") = devices;
        state.log.superblock = next;
        self.registry.tell_last_record(state.log.last());
        (state.doubtful, state.is_stale) = (false, false);
        self.registry.meet_on(folders(&self.devices()));
        // The device belongs to the store now, with a superblock of its own; the log may lie on it from here on.
        let aim = self.aim(&state.log.superblock, &state.catalog);
        if known.is_some() || spread(&state.log.superblock.log) < aim.spread() {
            // One that was known may have lost a copy of the log that it had.
            let urgency = if known.is_some() { Urgency::Needed } else { Urgency::ToLieBetter };
            self.begin_change(&mut state)?;
            let log = self.checkpoint(&guard, &state.log.superblock, &state.catalog, urgency, |_| {})?;
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
        let name = device.name();
        let bad = |what: &str| Err(Error::BadDevice { path: PathBuf::from(&name), what: what.to_string() });
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
        self.begin_change(&mut state)?;
        let log = self.checkpoint(&guard, &superblock, &state.catalog, Urgency::Needed, |_| {})?;
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
        self.begin_change(&mut state)?;
        // With a new log, so that no part of it stays on the device.
        let change = |next: &mut Superblock| {
            let entries = next.devices.iter_mut().filter(|entry| entry.number == number);
            entries.for_each(|entry| entry.is_leaving = is_leaving);
        };
        let log = self.checkpoint(&guard, &state.log.superblock, &state.catalog, Urgency::Needed, change)?;
        state.log = log.expect("it was needed");
        self.registry.tell_last_record(state.log.last());
        state.doubtful = false;
        Ok(())
    }

    /// Takes a device out that holds nothing any more. `Some`: who or what still needs it.
    pub fn forget_device(&self, number: u16, own: &Scratch) -> Result<Option<String>> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        guard.remove_dead()?;
        self.refresh(&mut state)?;
        let on_it = |runs: &[Run]| runs.iter().any(|run| run.start.device == number);
        let datasets: Vec<Run> =
            state.catalog.datasets.values().flat_map(|record| record.runs.iter().copied()).collect();
        if on_it(&datasets) {
            return Ok(Some("a dataset that was written meanwhile".to_string()));
        }
        let owners = guard.owners()?;
        let others = owners.iter().filter(|owner| owner.path.file_name() != own.path().file_name());
        let is_home = state.log.superblock.devices.first().is_some_and(|first| first.number == number);
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
        self.begin_change(&mut state)?;
        // Twice: no slot of any superblock knows it any more.
        for _ in 0..2 {
            next.sequence += 1;
            write_superblock(&devices, &next)?;
        }
        *self.devices.write().expect("no panic under this lock") = devices;
        state.log.superblock = next;
        self.registry.tell_last_record(state.log.last());
        state.doubtful = false;
        if let Some(device) = &gone {
            erase_superblock(device.as_ref())?;
            let _ = device.discard(0..device.extents()).and_then(|()| device.clear());
        }
        if is_home {
            crate::profile::forget(&self.home);
        }
        // Under the lock: who waits for it finds that the folder is gone.
        if let Some(folder) = gone.as_ref().and_then(|gone| gone.folder()) {
            self.registry.remove(folder);
        } else if is_home {
            self.registry.remove(&self.home);
        }
        drop(guard);
        Ok(None)
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
        let aim = self.aim(&state.log.superblock, &state.catalog);
        let is_lost = |entry: &DeviceEntry| {
            let mut there = (self.opener)(entry).into_iter().filter(|device| device.name() == entry.path);
            there.any(|device| match read_superblock(device.as_ref()) {
                Ok(found) => found.is_none() && check_is_blank(device.as_ref()).is_err(),
                Err(error) => matches!(error, Error::LostSuperblock { .. }),
            })
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

    /// Gives all space of segments back in which nothing lies: that of the headers too.
    pub fn discard_empty_segments(&self) -> Result<()> {
        let mut state = self.state();
        let guard = self.lock(&mut state)?;
        self.refresh(&mut state)?;
        let busy = self.busy(&guard, &state.log.superblock, &state.catalog)?;
        for (number, device) in self.devices() {
            let on_it = busy.iter().filter(|run| run.start.device == number);
            let used: BTreeSet<u32> = on_it
                .flat_map(|run| {
                    run.start.extent / SEGMENT_EXTENTS..=(run.start.extent + run.count - 1) / SEGMENT_EXTENTS
                })
                .collect();
            // The first one holds the superblock.
            for segment in (1..device.extents().div_ceil(SEGMENT_EXTENTS)).filter(|it| !used.contains(it)) {
                let start = segment * SEGMENT_EXTENTS;
                // It only saves space.
                let _ = device.discard(start..start.saturating_add(SEGMENT_EXTENTS).min(device.extents()));
            }
        }
        Ok(())
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
        if state.doubtful || self.registry.last_record() != Some(state.log.last()) {
            self.refresh(&mut state)?;
        }
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

    /// A folder for a new job; on a file system that is mounted read-only none. What dead jobs had taken is given back.
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
        let dead = guard.remove_dead()?;
        if !dead.is_empty() {
            self.refresh(state)?;
            let busy = self.busy(guard, &state.log.superblock, &state.catalog)?;
            self.discard(&Run::without(&dead, &busy));
        }
        Ok(())
    }

    /// Gives back what a job had taken and no dataset took over.
    pub fn end_lease(&self, taken: &[Run]) {
        if taken.is_empty() {
            return;
        }
        let mut state = self.state();
        // What cannot be given back now can be taken again all the same, once the job's folder is gone.
        if let Ok(_guard) = self.lock(&mut state)
            && self.refresh(&mut state).is_ok()
        {
            self.discard(&Run::without(taken, &state.catalog.taken(0)));
        }
    }

    /// Gives the space of freed extents back that nobody reads any more.
    fn discard_freed(&self, guard: &Guard, state: &mut State) -> Result<()> {
        let pinned = guard.pinned(state.catalog.commit)?;
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
            && other.name() != device.name()
        {
            twice = Some(Error::BadFormat {
                path: PathBuf::from(device.name()),
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
        return Err(lost_superblock(home.display().to_string(), "scratch/lock tells of a store"));
    }
    Ok(())
}

/// Refuses a device that has no superblock, or only the first of all, and shows that a store was there: anything but what
/// the making of a store leaves that was not finished.
pub(crate) fn check_is_blank(device: &dyn Device) -> Result<()> {
    let lost = |trace: &str| Err(lost_superblock(device.name(), trace));
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

fn lost_superblock(device: String, trace: &str) -> Error {
    Error::LostSuperblock { path: PathBuf::from(device), found: format!("none is there, although {trace}") }
}

/// Refuses a folder that is a copy of a device which is where the superblock says.
fn check_is_no_copy(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<()> {
    let found = read_superblock(device.as_ref()).ok().flatten();
    let (Some(folder), Some((number, own))) = (device.folder(), found) else { return Ok(()) };
    let entry = superblock.devices.iter().find(|entry| entry.number == number);
    let Some(entry) = entry.filter(|entry| Some(entry.uuid) == own.uuid_of(number)) else { return Ok(()) };
    let path = Path::new(&entry.path);
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
            && place.display().to_string() != entry.path
            // Another name of the same folder is no other place.
            && identity(Path::new(&entry.path)) != identity(place)
        {
            (entry.path, is_moved) = (place.display().to_string(), true);
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
        let (mut is_new, mut unreadable) = (false, Vec::new());
        for entry in &known.superblock.devices {
            if devices.contains_key(&entry.number) {
                continue;
            }
            // A device that is not there is an error for whoever needs it.
            for device in opener(entry) {
                match read_superblock(device.as_ref()) {
                    Ok(Some((number, found))) => {
                        let is_it = (number, found.store, found.uuid_of(number))
                            == (entry.number, known.superblock.store, Some(entry.uuid));
                        if is_it {
                            devices.insert(number, device);
                            is_new = true;
                            break;
                        }
                    }
                    _ if device.name() == entry.path => {
                        unreadable.extend(device.folder().map(Path::to_path_buf));
                    }
                    _ => {}
                }
            }
        }
        if !is_new {
            return Ok(Newest { unreadable, ..known });
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

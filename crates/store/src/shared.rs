//! `Shared` is a store that is open: its devices, its log as far as it was read, and the locks under which both change.
//!
//! A `State` is read under its lock as `Locked`, and a `Change` writes superblocks and log and becomes the next state.
//!
//! The locks are taken in this order: the turn to commit, the state's mutex, the registry's lock on disk, the readers' mutex.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        mpsc::{Sender, channel},
    },
};

use crate::{
    Catalog, Device, DeviceEntry, EXTENT_BYTES, Edit, Error, PAGE_BYTES, Place, Result, SEGMENT_EXTENTS,
    catalog::Run,
    device::path_of,
    log::{
        Aim, Devices, Log, LogPlaces, SUPERBLOCK_EXTENT, Superblock, capacity, erase_superblock, io_error,
        is_used, random_uuid, read_superblock, spread, superblock_slots, write_superblock,
    },
    scratch::{Guard, Owner, Registry, Scratch, identity, is_full, is_read_only, tells_of_a_store},
};

pub(crate) struct Shared {
    pub home: PathBuf,
    registry: Registry,
    devices: RwLock<Devices>,
    opener: Opener,
    state: Mutex<State>,
    readers: Mutex<Readers>,
    queue: Queue,
}

/// `NewStore` says how a store is made where there is none.
pub(crate) struct NewStore {
    /// The most bytes that it may take on each device.
    pub limit_bytes: Option<u64>,
}

#[derive(Debug)]
struct State {
    log: Log,
    catalog: Arc<Catalog>,
    /// A change failed after its first write: the devices must be read, and nothing may be appended to the log.
    doubtful: bool,
    /// The superblock of a device that is there is not the newest: it was away, or a crash came between.
    is_stale: bool,
    /// The extents that commits up to this one freed were given back to the devices by this process, as far as they
    /// could. At first none: the process that freed them may have died, or ended while another one read them.
    discarded: u64,
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
        let found = gather(home, &devices, &opener)?;
        drop(guard);
        let mut known = match (found, make) {
            (Some(found), _) => found,
            (None, None) => return Err(Error::NoStore { path: home.to_path_buf() }),
            (None, Some(NewStore { limit_bytes })) => {
                let _guard = registry.lock()?;
                // Another process may have been faster.
                match gather(home, &devices, &opener)? {
                    Some(found) => found,
                    None => crate::log::init(&devices, limit_bytes)?.0,
                }
            }
        };
        registry.meet_on(folders(&known));
        let guard = registry.share()?;
        // Another process may have begun a new log since.
        let newest =
            newest(&mut known, &opener)?.ok_or_else(|| Error::NotAStore { path: home.to_path_buf() })?;
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
            queue: Queue::default(),
        }))
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

    /// Takes both locks, to change something.
    fn locked(&self) -> Result<Locked<'_>> {
        let mut state = self.state();
        let lock = self.lock(&mut state)?;
        Ok(Locked { shared: self, lock, state })
    }

    /// Begins a change of the state after the last commit of any process.
    fn change(&self) -> Result<Change<'_>> {
        let mut locked = self.locked()?;
        locked.refresh()?;
        if locked.is_settled() {
            // A new log forgets the extents that were given back, and keeps those that cannot be given back now.
            let _ = locked.discard_freed();
        }
        Ok(locked.change())
    }

    /// Reads the state after the last commit of any process, and keeps it so until this is dropped.
    fn current(&self) -> Result<Locked<'_>> {
        let state = self.state();
        let mut locked = Locked { shared: self, lock: self.registry.share()?, state };
        locked.refresh()?;
        Ok(locked)
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
        // A device that was away may be back.
        let newest = newest(&mut devices, &self.opener)?;
        let newest = newest.ok_or_else(|| Error::NotAStore { path: self.home.clone() })?;
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
        Ok(self.current()?.catalog.clone())
    }

    /// The superblock and the catalog after the last commit of any process.
    pub fn state_of_things(&self) -> Result<(Superblock, Arc<Catalog>)> {
        let current = self.current()?;
        Ok((current.log.superblock.clone(), current.catalog.clone()))
    }

    /// Lists the owners that are at work: jobs and readers.
    pub fn owners(&self) -> Result<Vec<Owner>> {
        self.registry.share()?.owners()
    }

    /// Records that an owner keeps its work under `name`, unless another living owner does: then gives its process.
    pub fn claim(&self, scratch: &Scratch, name: &str) -> Result<Option<u32>> {
        let locked = self.locked()?;
        let mut owners = locked.lock.owners()?.into_iter();
        if let Some(owner) = owners.find(|owner| owner.keeps.as_deref() == Some(name)) {
            return Ok(Some(owner.process));
        }
        scratch.keep(name)?;
        Ok(None)
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.state().log.superblock.store
    }
}

/// `Locked` is the state of the store under both of its locks: the mutex, which one thread of this process holds, and
/// the lock of the registry, which processes share to read and one process holds alone to write.
struct Locked<'a> {
    pub shared: &'a Shared,
    // Fields are dropped in this order: the lock that was taken last is released first.
    pub lock: Guard<'a>,
    pub state: MutexGuard<'a, State>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl<'a> Locked<'a> {
    /// Makes the state that of the devices.
    pub fn refresh(&mut self) -> Result<()> {
        let Locked { shared, state, .. } = self;
        shared.read_what_is_new(state)?;
        let last = state.log.last();
        // Others are told of a durable record only. A commit that is not in all copies or superblocks is finished by the
        // next one. The process that appended the record may have died before its sync, so this process syncs too.
        if shared.registry.last_record() != Some(last)
            && !state.log.is_uneven()
            && !state.is_stale
            && shared.sync_log(state).is_ok()
        {
            shared.registry.tell_last_record(last);
        }
        Ok(())
    }

    /// Makes the state that of the devices, unless the registry tells that it is that already.
    pub fn catch_up(&mut self) -> Result<()> {
        let is_known = !self.doubtful && self.shared.registry.last_record() == Some(self.log.last());
        if is_known { Ok(()) } else { self.refresh() }
    }

    /// Tells whether the last commit is known to be durable, so that the extents that it freed can be given back.
    pub fn is_settled(&self) -> bool {
        !self.doubtful && self.shared.registry.has_told(self.log.last())
    }

    /// Begins a change of this state.
    pub fn change(self) -> Change<'a> {
        Change { devices: self.shared.devices(), locked: self, is_begun: false }
    }
}

/// `Change` is the right to write superblocks and log, and becomes the new state of the store with [`Change::commit`].
///
/// A change that is dropped before its first write leaves nothing. If it is dropped later, because of an error, the state
/// is in doubt until the next commit: each call reads the devices again, and nothing is appended to that log.
struct Change<'a> {
    locked: Locked<'a>,
    /// The devices of the store once the change is made.
    pub devices: Devices,
    /// Something may have been written.
    pub is_begun: bool,
}

impl<'a> Deref for Change<'a> {
    type Target = Locked<'a>;

    fn deref(&self) -> &Locked<'a> {
        &self.locked
    }
}

impl<'a> Change<'a> {
    /// Must be called before each write: if this process dies or fails from here on, this process and all others read
    /// superblock and log again before they take extents.
    fn begin(&mut self) -> Result<()> {
        self.shared.registry.tell_nothing()?;
        self.locked.state.doubtful = true;
        self.is_begun = true;
        Ok(())
    }

    /// Appends a record to the log, which must have room for it.
    pub fn append(&mut self, commit: u64, edits: &[Edit]) -> Result<Log> {
        self.begin()?;
        let mut log = self.log.clone();
        log.append(&self.devices, commit, edits)?;
        Ok(log)
    }

    /// Begins a log with `catalog` as its first record, at the places that `superblock` names.
    pub fn begin_log(&mut self, superblock: Superblock, catalog: &Catalog, pinned: u64) -> Result<Log> {
        self.begin()?;
        Log::begin(&self.devices, superblock, catalog, pinned)
    }

    /// Writes a superblock to all devices, with the next sequence. The log stays, and its last record will be told to
    /// others: if that is not known to be durable, it is synced first.
    pub fn write_superblock(&mut self, superblock: &mut Superblock) -> Result<()> {
        if !self.is_begun && !self.is_settled() {
            self.shared.sync_log(&self.state)?;
        }
        self.begin()?;
        superblock.sequence += 1;
        write_superblock(&self.devices, superblock)
    }

    /// Makes a log that was written, and the catalog in it, the state of the store, and tells other processes. The locks
    /// are still held.
    pub fn commit(self, log: Log, catalog: Arc<Catalog>) -> Locked<'a> {
        let Change { mut locked, devices, .. } = self;
        *locked.shared.devices.write().expect("no panic under this lock") = devices;
        // All superblocks are the newest: a record is appended only where they were, and all else writes them.
        *locked.state = State { log, catalog, doubtful: false, is_stale: false, ..*locked.state };
        locked.shared.registry.tell_last_record(locked.log.last());
        // The change is made, whether or not space is given back. The next job gives back the rest.
        let _ = locked.discard_freed();
        locked
    }

    /// The same for a superblock that was written for the log and the catalog that are there.
    pub fn commit_superblock(self, superblock: Superblock) -> Locked<'a> {
        let (mut log, catalog) = (self.log.clone(), self.catalog.clone());
        log.superblock = superblock;
        self.commit(log, catalog)
    }
}

/// A `Make` looks at the catalog and gives the edits that change it.
type Make = Box<dyn FnOnce(&Catalog) -> Result<Vec<Edit>> + Send>;

type Committed = std::result::Result<(), Failed>;

/// `Queue` holds changes that wait for their commit, and where the results go. The thread whose turn it is commits those of
/// all threads: one record of the log, and one sync, for all of them (group commit).
#[derive(Default)]
struct Queue {
    turn: Mutex<()>,
    waiting: Mutex<Vec<(Make, Sender<Committed>)>>,
}

/// `Failed` is the error of a commit.
#[derive(Debug)]
pub(crate) struct Failed {
    pub error: Error,
    /// Whether the change was made is unknown until the log is read again.
    pub is_in_doubt: bool,
}

impl Failed {
    fn again(&self) -> Failed {
        Failed { error: self.error.again(), is_in_doubt: self.is_in_doubt }
    }
}

/// `Urgency` says why a new log is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nothing can be appended to the old log.
    Needed,
    /// The log does not lie on as many devices as it could. Nothing is written unless the new one does.
    ToLieBetter,
}

impl Shared {
    /// Makes a change: `make` gives the edits, once it has looked at the catalog that they will change. When this
    /// returns, they survive a power loss. Changes of several threads that come at once share one record of the log.
    ///
    /// # Errors
    /// Those of `make`, and then nothing was changed; I/O, and then the change was made or not, and the next call
    /// of any function finds out.
    pub fn commit(&self, make: impl FnOnce(&Catalog) -> Result<Vec<Edit>> + Send + 'static) -> Committed {
        let waiting = || self.queue.waiting.lock().expect("no panic under this lock");
        let (answer, committed) = channel();
        waiting().push((Box::new(make), answer));
        let _turn = self.queue.turn.lock().expect("no panic under this lock");
        if let Ok(committed) = committed.try_recv() {
            return committed;
        }
        let change = self.change();
        let all = std::mem::take(&mut *waiting());
        match change {
            Ok(change) => change.commit_all(all),
            Err(error) => {
                let failed = Err(Failed { error, is_in_doubt: false });
                answer_all(all.into_iter().map(|(_, answer)| answer), &failed);
            }
        }
        committed.try_recv().expect("it was waiting")
    }
}

fn answer_all(answers: impl IntoIterator<Item = Sender<Committed>>, committed: &Committed) {
    for answer in answers {
        let _ = answer.send(committed.as_ref().copied().map_err(Failed::again));
    }
}

impl Change<'_> {
    /// Commits the changes of all threads that wait: each one sees the catalog that those before it leave.
    fn commit_all(mut self, waiting: Vec<(Make, Sender<Committed>)>) {
        let mut catalog = (*self.catalog).clone();
        let commit = catalog.commit + 1;
        let (mut edits, mut accepted) = (Vec::new(), Vec::new());
        for (make, answer) in waiting {
            match make(&catalog) {
                Ok(made) => {
                    catalog.apply(if made.is_empty() { catalog.commit } else { commit }, &made);
                    edits.extend(made);
                    accepted.push(answer);
                }
                Err(error) => {
                    let _ = answer.send(Err(Failed { error, is_in_doubt: false }));
                }
            }
        }
        if edits.is_empty() {
            return answer_all(accepted, &Ok(()));
        }
        let committed = match self.write_edits(&catalog, &edits) {
            Ok(log) => {
                self.commit(log, Arc::new(catalog));
                Ok(())
            }
            Err(error) => Err(Failed { error, is_in_doubt: self.is_begun }),
        };
        answer_all(accepted, &committed);
    }

    /// Writes `edits`, which lead to `catalog`, to the log, or begins a new log where that is needed or better.
    fn write_edits(&mut self, catalog: &Catalog, edits: &[Edit]) -> Result<Log> {
        // A record that is appended to a log that failed may lie behind one that is not whole.
        let is_free = !self.doubtful && !self.is_stale && self.log.is_fit(&self.devices);
        let superblock = self.log.superblock.clone();
        // A log that lies better is worth a superblock, but no error: there may be no room for it.
        if is_free && let Some(log) = self.checkpoint(superblock.clone(), catalog, Urgency::ToLieBetter)? {
            return Ok(log);
        }
        if is_free && self.log.has_room(edits) {
            return self.append(catalog.commit, edits);
        }
        Ok(self.checkpoint(superblock, catalog, Urgency::Needed)?.expect("it was needed"))
    }

    /// Begins a new log with the catalog as it is and commits that, if it is needed or there is a better place for it.
    pub fn commit_new_log(mut self, superblock: Superblock, urgency: Urgency) -> Result<()> {
        let catalog = self.catalog.clone();
        if let Some(log) = self.checkpoint(superblock, &catalog, urgency)? {
            self.commit(log, catalog);
        }
        Ok(())
    }

    /// Writes the catalog to where the spare log is, or to a place that is better, and makes that the log of the
    /// superblock `next`. `None`: the log lies well, or there is no room for a better one, and nothing was written.
    fn checkpoint(
        &mut self,
        mut next: Superblock,
        catalog: &Catalog,
        urgency: Urgency,
    ) -> Result<Option<Log>> {
        let aim = Aim::of(catalog, &next, &self.devices);
        if urgency == Urgency::ToLieBetter && spread(&next.log) >= aim.spread() {
            return Ok(None);
        }
        // Freed extents are remembered until no process reads them and their space was given back.
        let pinned = self.lock.pinned(catalog.commit)?.min(self.discarded);
        next.branch(&self.devices);
        self.drop_unfinished(&self.devices, catalog, &mut next)?;
        note_places(&mut next, &self.devices);
        next.sequence += 1;
        next.generation += 1;
        let needed = Log::needed_bytes(catalog, pinned);
        let stays = |place: &Place| next.takes_data(place.device) && self.devices.contains_key(&place.device);
        let spare_stays = next.spare.iter().flatten().all(stays);
        let room = capacity(&next.spare);
        let log_stays = next.log.iter().flatten().all(|place| next.takes_data(place.device));
        let lies_well = spread(&next.spare) >= aim.spread();
        // A new log has room for as much again as it begins with.
        let taken = if spare_stays && log_stays && lies_well && 2 * needed <= room {
            None
        } else {
            let extents = (4 * needed).div_ceil(EXTENT_BYTES).max(next.log[0].len());
            let mut taken = self.log_and_spare(&next, catalog, extents, aim);
            if urgency == Urgency::Needed && taken.as_ref().is_err_and(Error::is_no_space) {
                // Better on fewer devices than nowhere.
                taken = self.log_and_spare(&next, catalog, extents, Aim { devices: 1, ..aim });
            }
            match taken {
                Ok(taken) => Some(taken),
                Err(error) if !error.is_no_space() => return Err(error),
                Err(_) if urgency == Urgency::ToLieBetter => return Ok(None),
                // A full store can still be told what to delete.
                Err(_) if spare_stays && log_stays && needed <= room => None,
                Err(error) => return Err(error),
            }
        };
        match taken {
            Some(taken) => (next.log, next.spare) = taken,
            None => std::mem::swap(&mut next.log, &mut next.spare),
        }
        self.begin_log(next, catalog, pinned).map(Some)
    }

    /// Room for a log and its spare, of `extents` extents a copy, on the devices that take new data: each copy on a device
    /// of its own, as long as there are any with room.
    ///
    /// # Errors
    /// No space, where the copies would lie on fewer devices than they are to.
    fn log_and_spare(
        &self,
        next: &Superblock,
        catalog: &Catalog,
        extents: usize,
        aim: Aim,
    ) -> Result<(LogPlaces, LogPlaces)> {
        let mut devices = self.devices.clone();
        devices.retain(|&number, _| next.takes_data(number));
        let mut busy = self.busy(next, catalog)?;
        let mut take = || {
            let mut log = LogPlaces::new();
            for (&number, device) in &devices {
                if log.len() < aim.copies {
                    log.extend(places_on(device.as_ref(), number, extents, &mut busy));
                }
            }
            let lies_on = log.len();
            for (&number, device) in &devices {
                while log.len() < 2 {
                    let Some(places) = places_on(device.as_ref(), number, extents, &mut busy) else { break };
                    log.push(places);
                }
            }
            if lies_on < aim.spread() || log.len() < 2 {
                return Err(self.shared.no_space());
            }
            for place in log.iter().flatten() {
                let (device, extents) = (devices[&place.device].as_ref(), place.extent..place.extent + 1);
                device.prepare(extents).map_err(io_error("take space for the log", device))?;
            }
            Ok(log)
        };
        Ok((take()?, take()?))
    }
}

/// Extents for a copy of a log on a device, of those that are not in `busy`, to which they are added. `None` where there
/// are too few.
fn places_on(device: &dyn Device, number: u16, extents: usize, busy: &mut Vec<Run>) -> Option<Vec<Place>> {
    let (mut places, begin) = (Vec::new(), busy.len());
    while places.len() < extents {
        let wanted = (extents - places.len()) as u32;
        let Some(run) = first_gap(busy, number, device.extents(), wanted) else {
            busy.truncate(begin);
            return None;
        };
        busy.push(run);
        places.extend(run.places());
    }
    Some(places)
}

impl Shared {
    /// Finishes a commit whose process died before all copies of the log, or all superblocks, had it. Such a commit is no
    /// damage, since it was not acknowledged. Neither is a device whose adding failed, or a log that was about to lie on it.
    pub fn finish_commit(&self) -> Result<()> {
        let urgency = {
            let current = self.current()?;
            let (superblock, devices) = (&current.log.superblock, self.devices());
            let is_whole = !current.log.is_uneven() && !current.is_stale;
            let mut next = superblock.clone();
            current.drop_unfinished(&devices, &current.catalog, &mut next)?;
            // One that was about to be added has one superblock of two.
            let is_half_added = |entry: &DeviceEntry| {
                let device = devices.get(&entry.number).filter(|_| entry.is_leaving);
                device.is_some_and(|device| superblock_slots(device.as_ref()).iter().any(Option::is_none))
            };
            let is_unfinished = !is_whole && !self.registry.has_told(current.log.last())
                || next.devices != superblock.devices
                || superblock.devices.iter().any(is_half_added);
            let aim = Aim::of(&current.catalog, superblock, &devices);
            let lies_badly = spread(&superblock.log) < aim.spread();
            match is_unfinished {
                true => Urgency::Needed,
                false if lies_badly && is_whole && current.log.is_fit(&devices) => Urgency::ToLieBetter,
                false => return Ok(()),
            }
        };
        self.renew_log(urgency)
    }

    /// Begins a new log, so that both its copies and the superblocks are fresh.
    pub fn renew_log(&self, urgency: Urgency) -> Result<()> {
        let change = self.change()?;
        let superblock = change.log.superblock.clone();
        change.commit_new_log(superblock, urgency)
    }

    /// Lists the damage of superblocks and log of a store that can be read.
    pub fn check_log(&self) -> Result<Vec<String>> {
        let current = self.current()?;
        let (superblock, devices) = (&current.log.superblock, self.devices());
        let aim = Aim::of(&current.catalog, superblock, &devices);
        let is_lost = |entry: &DeviceEntry| {
            let has_lost = |device: &dyn Device| match read_superblock(device) {
                Ok(found) => found.is_none() && check_is_blank(device).is_err(),
                Err(error) => matches!(error, Error::LostSuperblock { .. }),
            };
            let is_there = |device: &dyn Device| path_of(device) == entry.path && has_lost(device);
            (self.opener)(entry, &superblock.devices, &is_there).is_some()
        };
        Ok(current.log.check(&devices, aim, is_lost))
    }
}

impl Locked<'_> {
    /// Takes devices out of a superblock whose adding, or whose removal, failed or was killed: they are leaving, hold
    /// nothing, and are not there.
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

impl Shared {
    /// Adds a device, under the next free number or, if it is one whose adding was not finished, its own.
    pub fn add_device(&self, device: Arc<dyn Device>, limit_bytes: Option<u64>) -> Result<u16> {
        let mut change = self.change()?;
        let mut next = change.log.superblock.clone();
        let path = path_of(device.as_ref());
        let bad = |what: String| Err(Error::BadDevice { path: path.clone(), what });
        // Its adding failed before it had a superblock, or its superblock is lost.
        let is_missing =
            |entry: &&DeviceEntry| entry.path == path && !change.devices.contains_key(&entry.number);
        let missing = next.devices.iter().find(is_missing).map(|entry| entry.number);
        let found = match read_superblock(device.as_ref()) {
            Ok(None) if missing.is_none() => check_is_blank(device.as_ref()).map(|()| None),
            // One of this store's devices that lost its superblock gets it back.
            Err(Error::LostSuperblock { .. }) if missing.is_some() => Ok(None),
            found => found,
        };
        let known = match found {
            Ok(Some((number, other))) if other.store == next.store => {
                let entry = next.devices.iter().find(|entry| entry.number == number);
                match entry.filter(|entry| Some(entry.uuid) == other.uuid_of(number)) {
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
            let there = change.devices.get(&entry.number).and_then(|device| device.folder());
            let (number, place) = (entry.number, there.unwrap_or(&entry.path));
            if let Some(folder) = device.folder()
                && (folder.starts_with(place) || place.starts_with(folder))
            {
                let place = place.display();
                return bad(format!("{place} is device {number} of this store: one lies in the other"));
            }
        }
        let prepared = device.prepare(SUPERBLOCK_EXTENT..SUPERBLOCK_EXTENT + 1);
        prepared.map_err(|error| Error::io("take space for a superblock", &path, error))?;
        let last = next.devices.iter().map(|entry| entry.number).max().unwrap_or(0);
        let Some(number) = known.or(last.checked_add(1)) else {
            return bad("the store has had as many devices as it can have".to_string());
        };
        if known.is_none() {
            // It is leaving as long as the others know it and it may not have a superblock: see `drop_unfinished`.
            let (uuid, path) = (random_uuid(), path.clone());
            next.devices.push(DeviceEntry { number, uuid, path, limit_bytes, is_leaving: true });
        }
        next.branch(&change.devices);
        change.devices.insert(number, device);
        note_places(&mut next, &change.devices);
        // Once to be known, and then twice: both slots of all superblocks say that it belongs to the store.
        for is_leaving in [true, false, false] {
            let entries = next.devices.iter_mut().filter(|entry| entry.number == number);
            entries.for_each(|entry| entry.is_leaving &= is_leaving);
            change.write_superblock(&mut next)?;
        }
        self.registry.meet_on(folders(&change.devices));
        // The device belongs to the store now, with a superblock of its own; the log may lie on it from here on.
        let change = change.commit_superblock(next).change();
        let superblock = change.log.superblock.clone();
        // A device that was known may have lost a copy of the log that it had.
        let urgency = if known.is_some() { Urgency::Needed } else { Urgency::ToLieBetter };
        change.commit_new_log(superblock, urgency)?;
        Ok(number)
    }

    /// Takes a device back that went its own way while it was away: what was committed there only is given up. Extents
    /// that were written over there are damaged now, and told and mended like all that is damaged.
    pub fn rejoin(&self, device: Arc<dyn Device>) -> Result<u16> {
        self.registry
            .meet_on(folders(&self.devices()).into_iter().chain(device.folder().map(Path::to_path_buf)));
        let mut change = self.change()?;
        let path = path_of(device.as_ref());
        let bad = |what: &str| Err(Error::BadDevice { path: path.clone(), what: what.to_string() });
        let superblock = &change.log.superblock;
        let Some((number, own)) = read_superblock(device.as_ref())? else { return bad("it holds no store") };
        if own.store != superblock.store || own.uuid_of(number) != superblock.uuid_of(number) {
            return bad("it is no device of this store");
        }
        if superblock.descends_from(&own) {
            return bad("it did not go its own way: the store has all that it has");
        }
        let superblock = Superblock { sequence: superblock.sequence.max(own.sequence), ..superblock.clone() };
        change.devices.insert(number, device);
        change.commit_new_log(superblock, Urgency::Needed)?;
        Ok(number)
    }

    /// Says that a device is about to be removed, or that it stays after all.
    pub fn set_leaving(&self, number: u16, is_leaving: bool) -> Result<()> {
        let change = self.change()?;
        let mut next = change.log.superblock.clone();
        let entry = next.devices.iter_mut().find(|entry| entry.number == number);
        entry.ok_or(Error::NoDevice { number })?.is_leaving = is_leaving;
        // With a new log, so that no part of it stays on the device.
        change.commit_new_log(next, Urgency::Needed)
    }

    /// Takes a device out that holds nothing any more. `Some` names the process or dataset that still needs it.
    ///
    /// # Errors
    /// I/O; [`Error::BadDevice`] where the device was taken out and something of it stays in its folder.
    pub fn forget_device(&self, number: u16, own: &Scratch) -> Result<Option<String>> {
        self.bury_dead()?;
        let mut change = self.change()?;
        let on_it = |runs: &[Run]| runs.iter().any(|run| run.start.device == number);
        if change.catalog.datasets.values().any(|record| on_it(&record.runs)) {
            return Ok(Some("a dataset that was written meanwhile".to_string()));
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
        // Twice: no slot of any superblock knows it any more.
        for _ in 0..2 {
            change.write_superblock(&mut next)?;
        }
        let erased = gone.as_ref().map_or(Ok(()), |device| {
            erase_superblock(device.as_ref())?;
            device.clear().map_err(|error| Error::io("give up", path_of(device.as_ref()), error))
        });
        let folder = gone.as_ref().and_then(|gone| gone.folder());
        if let Some(folder) = folder.filter(|_| is_home) {
            crate::profile::forget(folder);
        }
        // Under the lock: a process that waits for it finds that the folder is gone.
        let removed = folder.map_or(Ok(()), |folder| self.registry.remove(folder));
        change.commit_superblock(next);
        erased.and(removed).map(|()| None).map_err(|error| {
            let path = gone.as_ref().map_or_else(|| self.home.clone(), |gone| path_of(gone.as_ref()));
            let what = format!(
                "device {number} was removed from the store, which needs nothing there any more, but not all of it \
                 could be deleted ({error}): delete the files segment-* and the folder scratch in it"
            );
            Error::BadDevice { path, what }
        })
    }
}

/// Below so much free space on a file system, space is taken for extents as soon as a job takes them: then a job can write
/// to all extents that it has, and a full file system is reported at one place.
const NEAR_FULL_BYTES: u64 = 8 << 30;

/// `Terms` limit the extents that a job may take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// Extents that it must not take.
    pub closed: Vec<Run>,
    /// The reserve, which is held back for operations that make room, may be taken too.
    pub with_reserve: bool,
}

impl Shared {
    /// Extents that nobody may take, as runs.
    pub fn busy_extents(&self) -> Result<Vec<Run>> {
        let mut locked = self.locked()?;
        locked.refresh()?;
        locked.busy(&locked.log.superblock, &locked.catalog)
    }

    /// Gives all space back that nobody uses, whoever left it: that of the headers too, in segments in which nothing
    /// lies. Costs a system call for each segment, and for each gap in one.
    ///
    /// # Errors
    /// I/O, once all that can be given back was. Nothing is given back where the last commit may not be durable.
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
                // The headers, where any are used, and the superblock.
                let kept = match segment {
                    0 => SUPERBLOCK_EXTENT + 1,
                    _ => u32::from(used.contains(&(number, segment))),
                };
                let start = segment * SEGMENT_EXTENTS;
                let end = start.saturating_add(SEGMENT_EXTENTS).min(device.extents());
                let count = end.saturating_sub(start + kept);
                all.push(Run { start: Place { device: number, extent: start + kept }, count });
            }
        }
        all.retain(|run| run.count > 0);
        self.discard(&Run::without(&all, &busy))
    }

    /// The devices that take new data, with how much each can take: by this data is shared out.
    pub fn open_devices(&self) -> Vec<(u16, u32)> {
        let state = self.state();
        let devices = self.devices.read().expect("no panic under this lock");
        let open = devices.iter().filter(|(number, _)| state.log.superblock.takes_data(**number));
        open.map(|(&number, device)| (number, device.extents())).collect()
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
        let part = |(&number, device): (&u16, &Arc<dyn Device>)| {
            let runs = state.catalog.datasets.values().flat_map(|record| &record.runs);
            let taken: u64 = runs.filter(|run| run.start.device == number).map(|run| run.count as u64).sum();
            (number, taken as f64 / device.extents().max(1) as f64)
        };
        devices.iter().map(part).collect()
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
        let mut locked = self.locked()?;
        locked.lock.join_also(scratch)?;
        locked.catch_up()?;
        let mut busy = locked.busy(&locked.log.superblock, &locked.catalog)?;
        // It may have been taken out of the store meanwhile.
        let Ok(device) = self.device(number) else { return Ok(None) };
        let extents = device.extents();
        let reserve = if terms.with_reserve { 0 } else { reserve(extents) };
        // What a job committed is in its lease and in a dataset.
        let on_it = Run::merged(&busy).into_iter().filter(|run| run.start.device == number);
        let taken: u64 = on_it.map(|run| run.count as u64).sum();
        let not_for_data = extents.div_ceil(SEGMENT_EXTENTS) as u64 + 1;
        let left = (extents as u64).saturating_sub(taken + not_for_data + reserve);
        let free = device.free_bytes().map_err(io_error("ask for free space", device.as_ref()))?;
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
                prepared => prepared.map_err(io_error("take space", device.as_ref()))?,
            }
        }
        Ok(Some(run))
    }

    /// A folder for a new job; on a file system that is mounted read-only none. The space that dead jobs had taken is given
    /// back, and so is that of datasets that were removed while they were read, or by a process that died before it gave the space back.
    pub fn join(&self) -> Result<Scratch> {
        let mut locked = match self.locked() {
            // It can be read all the same, and the first write fails with this error.
            Err(Error::Io { source, .. }) if is_read_only(&source) => return Ok(self.registry.nowhere("")),
            locked => locked?,
        };
        locked.bury()?;
        match locked.lock.join("") {
            Err(error) if is_full(&error) => Ok(self.registry.nowhere("")),
            joined => joined,
        }
    }

    /// Gives back what dead jobs had taken, without waiting for the next job that begins.
    pub fn bury_dead(&self) -> Result<()> {
        self.locked()?.bury()
    }

    /// Gives back what a job had taken and no dataset took over.
    pub fn end_lease(&self, taken: &[Run]) {
        if taken.is_empty() {
            return;
        }
        // Extents that cannot be given back now can be taken again all the same, once the job's folder is gone.
        if let Ok(mut locked) = self.locked()
            && locked.refresh().is_ok()
            && let Ok(kept) = locked.kept()
        {
            let _ = self.discard(&Run::without(taken, &kept));
        }
    }

    /// Gives back as much of `runs` as devices take, and gives the first error.
    fn discard(&self, runs: &[Run]) -> Result<()> {
        let mut done = Ok(());
        for run in runs {
            let Ok(device) = self.device(run.start.device) else { continue };
            let discarded = device.discard(run.start.extent..run.start.extent + run.count);
            let error = |error| Error::io("give space back", path_of(device.as_ref()), error);
            done = done.and(discarded.map_err(error));
        }
        done
    }
}

impl Locked<'_> {
    /// Lists all extents that must not be taken.
    pub fn busy(&self, superblock: &Superblock, catalog: &Catalog) -> Result<Vec<Run>> {
        let mut busy = catalog.taken(self.lock.pinned(catalog.commit)?);
        busy.extend(self.lock.leases()?);
        busy.extend(superblock.places().map(|start| Run { start, count: 1 }));
        Ok(busy)
    }

    /// Gives back the extents that dead jobs had taken, and those that commits freed, and removes the jobs' folders.
    pub fn bury(&mut self) -> Result<()> {
        let dead = self.lock.dead()?;
        self.catch_up()?;
        if !dead.lease.is_empty() {
            let mut busy = self.kept()?;
            busy.extend(&dead.leases_of_living);
            // It only saves space, as below: extents that are not given back can be taken again all the same.
            let _ = self.shared.discard(&Run::without(&dead.lease, &busy));
        }
        if self.is_settled() {
            self.discard_freed()?;
        }
        dead.remove()
    }

    /// Lists the extents of datasets, of log and spare, and those that were freed and may still be read; all that were
    /// freed, where the last commit may not be durable.
    fn kept(&self) -> Result<Vec<Run>> {
        let pinned = if self.is_settled() { self.lock.pinned(self.catalog.commit)? } else { 0 };
        let mut kept = self.catalog.taken(pinned);
        kept.extend(self.log.superblock.places().map(|start| Run { start, count: 1 }));
        Ok(kept)
    }

    /// Gives the space of freed extents back that no process reads any more. The last commit must be known to be durable.
    ///
    /// # Errors
    /// I/O, where it cannot be known who reads what: then nothing is given back.
    pub fn discard_freed(&mut self) -> Result<()> {
        let (commit, freed) = (self.catalog.commit, &self.catalog.freed);
        if freed.iter().all(|(commit, _)| *commit <= self.discarded) {
            self.state.discarded = commit;
            return Ok(());
        }
        // Another process may have done it. Where a drive has more commits of its own, it went another way.
        let told = Some(self.shared.registry.discarded()).filter(|&told| told <= commit);
        let discarded = self.discarded.max(told.unwrap_or(0));
        let pinned = self.lock.pinned(commit)?;
        let freed = freed.iter().filter(|(commit, _)| (discarded + 1..=pinned).contains(commit));
        let freed: Vec<Run> = freed.map(|(_, run)| *run).collect();
        if !freed.is_empty() {
            let busy = self.busy(&self.log.superblock, &self.catalog)?;
            // It only saves space: the rest is taken again later, or given back by the next process or by compaction.
            if self.shared.discard(&Run::without(&Run::merged(&freed), &busy)).is_ok() {
                self.shared.registry.tell_discarded(pinned);
            }
        }
        self.state.discarded = discarded.max(pinned);
        Ok(())
    }
}

/// Extents of a device that are held back, so that a full store can still delete, move data and begin a new log.
pub(crate) fn reserve(extents: u32) -> u64 {
    (extents as u64 / 64).clamp(4, 64)
}

/// The first extents of a device that are not in `busy`: up to `wanted`, all in one segment.
fn first_gap(busy: &[Run], device: u16, extents: u32, wanted: u32) -> Option<Run> {
    let mut busy: Vec<(u32, u32)> = busy
        .iter()
        .filter(|run| run.start.device == device)
        .map(|run| (run.start.extent, run.start.extent + run.count))
        .collect();
    busy.sort_unstable();
    let mut next = 0;
    for (start, end) in busy.into_iter().chain([(extents, extents)]) {
        while next < start.min(extents) {
            // The first extent of a segment holds the headers of the others, and the second of the first the superblock.
            if next % SEGMENT_EXTENTS == 0 || next == SUPERBLOCK_EXTENT {
                next += 1;
                continue;
            }
            let segment_end = (next / SEGMENT_EXTENTS + 1).saturating_mul(SEGMENT_EXTENTS);
            let end = start.min(extents).min(segment_end).min(next.saturating_add(wanted));
            return Some(Run { start: Place { device, extent: next }, count: end - next });
        }
        next = next.max(end);
    }
    None
}

/// Bytes of an extent's header.
pub(crate) const HEADER_BYTES: usize = PAGE_BYTES;

/// Where the header of an extent lies: in the first extent of its segment.
pub(crate) fn header_of(extent: u32) -> (u32, usize) {
    (extent / SEGMENT_EXTENTS * SEGMENT_EXTENTS, (extent % SEGMENT_EXTENTS) as usize * HEADER_BYTES)
}

/// `Readers` counts the readers of each commit in this process.
#[derive(Debug, Default)]
struct Readers {
    scratch: Option<Scratch>,
    commits: BTreeMap<u64, usize>,
}

/// `Pin` keeps the extents of a commit from being used again.
#[derive(Debug)]
pub(crate) struct Pin {
    shared: Arc<Shared>,
    commit: u64,
}

impl Shared {
    /// Reads the catalog after the last commit of any process, and keeps it readable until the pin is dropped.
    pub fn pinned_catalog(self: &Arc<Self>) -> Result<(Arc<Catalog>, Arc<Pin>)> {
        let mut state = self.state();
        let (lock, can_pin) = match self.lock(&mut state) {
            // Nothing can be removed from a store that is mounted read-only.
            Err(Error::Io { source, .. }) if is_read_only(&source) => (self.registry.share()?, false),
            // A drive was moved away. The others can be read on, and no process removes data from them meanwhile.
            Err(Error::BadDevice { .. }) => (self.registry.share()?, true),
            lock => (lock?, true),
        };
        let mut locked = Locked { shared: self, lock, state };
        locked.refresh()?;
        let commit = locked.catalog.commit;
        let mut readers = self.readers.lock().expect("no panic under this lock");
        if can_pin && readers.scratch.is_none() {
            readers.scratch = match locked.lock.join("reader-") {
                // On a full drive it is read without a pin: extents that are written over meanwhile fail their checks.
                Err(error) if is_full(&error) => None,
                joined => Some(joined?),
            };
        } else if can_pin && let Some(scratch) = &readers.scratch {
            locked.lock.join_also(scratch)?;
        }
        *readers.commits.entry(commit).or_default() += 1;
        let pin = Pin { shared: self.clone(), commit };
        let written = readers.write();
        // Dropping the pin takes this lock.
        drop(readers);
        written?;
        Ok((locked.catalog.clone(), Arc::new(pin)))
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
        let Some(count) = readers.commits.get_mut(&self.commit) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        readers.commits.remove(&self.commit);
        if readers.commits.is_empty() {
            readers.scratch = None;
        } else {
            // A pin that stays keeps space busy until this process ends, and nothing worse.
            let _ = readers.write();
        }
    }
}

/// `Opener` finds a device that the superblock names, given all that it names, and a test of whether a device is the one.
pub(crate) type Opener = Box<
    dyn Fn(&DeviceEntry, &[DeviceEntry], &dyn Fn(&dyn Device) -> bool) -> Option<Arc<dyn Device>>
        + Send
        + Sync,
>;

/// Finds the devices by the numbers that their superblocks say, with those that these name. `None` where there is no store:
/// none was ever made, or its making was not finished (see [`read_superblock`]). `home` is the folder of the registry.
fn gather(home: &Path, devices: &[Arc<dyn Device>], opener: &Opener) -> Result<Option<Devices>> {
    let mut known = Devices::new();
    let (mut store, mut failed, mut twice, mut uuids) = (None, None, None, BTreeMap::new());
    for device in devices {
        // A drive that fails is as good as one that is not there, as long as others are.
        let found = read_superblock(device.as_ref()).unwrap_or_else(|error| {
            failed = Some(error);
            None
        });
        let Some((number, superblock)) = found else { continue };
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
    let none = || check_is_new(home, devices).map(|()| None);
    let Some(Newest { superblock, .. }) = newest(&mut known, opener)? else {
        return failed.map_or_else(none, Err);
    };
    for device in devices {
        check_is_no_copy(device, &superblock)?;
    }
    if let Some(error) = twice {
        return Err(error);
    }
    // A device that is not blank had the second superblock, which is lost.
    let is_blank = |device: &Arc<dyn Device>| check_is_blank(device.as_ref()).is_ok();
    if superblock.sequence > 1 || !known.values().all(is_blank) {
        return Ok(Some(known));
    }
    // The first superblock was written, and on no device that is here the second: if all are here, none has it.
    match superblock.devices.iter().find(|entry| !known.contains_key(&entry.number)) {
        Some(missing) if devices.len() < superblock.devices.len() => {
            Err(Error::NoDevice { number: missing.number })
        }
        _ => none(),
    }
}

/// Refuses to make a store where one was, of which only the superblocks are lost.
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
    pub superblock: Superblock,
    /// Some have an older one, or are no longer where it says.
    pub is_stale: bool,
    /// Folders where a device was that has no whole superblock now, as far as others were looked for.
    pub unreadable: Vec<PathBuf>,
}

/// Finds the superblock that counts, and takes devices out that are none of the store any more or whose superblock cannot
/// be read.
fn newest_of(devices: &mut Devices) -> Result<Option<Newest>> {
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
        let known = newest.unwrap_or(other);
        newest = match (known.descends_from(other), other.descends_from(known)) {
            (true, true) if known.sequence < other.sequence => Some(other),
            (true, _) => Some(known),
            (false, true) => Some(other),
            (false, false) => return Err(diverged(devices, &found, [known, other])),
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
fn diverged(devices: &Devices, found: &BTreeMap<u16, Superblock>, [one, other]: [&Superblock; 2]) -> Error {
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

/// Finds the newest superblock of all devices, and opens those that it names and that are not open yet. `None` where there
/// is no superblock.
///
/// # Errors
/// [`Error::Diverged`]; I/O and damage where no superblock can be read.
fn newest(devices: &mut Devices, opener: &Opener) -> Result<Option<Newest>> {
    loop {
        let Some(known) = newest_of(devices)? else { return Ok(None) };
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
            // A device that is not there is an error where it is needed.
            if let Some(device) = opener(entry, entries, &is_it) {
                devices.insert(entry.number, device);
                is_new = true;
            }
        }
        if !is_new {
            return Ok(Some(Newest { unreadable: unreadable.into_inner(), ..known }));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Budget, Fault, Faulty, Memory, Store};

    struct Stores {
        home: tempfile::TempDir,
        device: Faulty,
    }

    impl Stores {
        fn new() -> Stores {
            let device = Faulty::new(Arc::new(Memory::new(64)), &[]);
            Stores { home: tempfile::tempdir().unwrap(), device }
        }

        fn open(&self) -> Store {
            Store::open_on(self.home.path(), vec![Arc::new(self.device.clone())]).unwrap()
        }
    }

    fn put(store: &Store, name: &str) -> Result<()> {
        let job = store.job(Budget::new(8 << 20, 1), Default::default()).unwrap();
        store.create_dataset(&job, name, "test").unwrap().commit(&[])
    }

    /// Writes a superblock, and then an error comes.
    fn fail_halfway(store: &Store) -> Superblock {
        let mut change = store.0.change().unwrap();
        let mut next = change.log.superblock.clone();
        change.write_superblock(&mut next).unwrap();
        next
    }

    fn generation(store: &Store) -> u64 {
        store.0.state().log.superblock.generation
    }

    #[track_caller]
    fn assert_is_certain(store: &Store) {
        let state = store.0.state();
        assert!(!state.doubtful && !state.is_stale);
        assert_eq!(store.0.registry.last_record(), Some(state.log.last()));
    }

    #[test]
    fn a_change_that_is_dropped_before_its_first_write_leaves_the_state_certain() {
        let stores = Stores::new();
        let store = stores.open();
        put(&store, "first").unwrap();
        let (begun, (_, writes, _)) = (generation(&store), stores.device.counts());
        drop(store.0.change().unwrap());
        assert_is_certain(&store);
        assert_eq!(stores.device.counts().1, writes);
        put(&store, "second").unwrap();
        assert_eq!(generation(&store), begun, "it was appended to the same log");
    }

    #[test]
    fn after_a_change_that_is_dropped_halfway_the_next_call_reads_the_devices() {
        let stores = Stores::new();
        let [first, second] = [stores.open(), stores.open()];
        put(&first, "first").unwrap();
        let written = fail_halfway(&first);
        assert!(first.0.state().doubtful);
        assert_eq!(first.0.registry.last_record(), None, "others read the log before they take extents");
        assert!(first.0.state().log.superblock.sequence < written.sequence);
        first.0.bury_dead().unwrap();
        assert_eq!(first.0.state().log.superblock, written);
        put(&second, "second").unwrap();
        assert!(first.0.state().doubtful, "reading alone does not end the doubt");
        assert_eq!(first.list().unwrap().len(), 2);
        // The commit of the other one was told, but this one reads the whole log all the same.
        let counts = |store: &Store| {
            stores.device.set(&[]);
            store.list().unwrap();
            stores.device.counts().0
        };
        assert!(counts(&first) > counts(&second));
    }

    #[test]
    fn a_commit_ends_the_doubt_with_a_new_log() {
        let stores = Stores::new();
        let store = stores.open();
        put(&store, "first").unwrap();
        fail_halfway(&store);
        let begun = generation(&store);
        for name in ["second", "third"] {
            put(&store, name).unwrap();
            assert_is_certain(&store);
            assert_eq!(generation(&store), begun + 1, "{name}");
        }
        stores.device.set(&[Fault::FailSync(0)]);
        assert!(put(&store, "lost").is_err());
        assert!(store.0.state().doubtful);
        stores.device.set(&[]);
        put(&store, "fourth").unwrap();
        assert_is_certain(&store);
        assert_eq!(generation(&store), begun + 2);
    }

    #[test]
    fn a_log_that_finds_no_better_place_leaves_the_state_certain() {
        let stores = Stores::new();
        let store = stores.open();
        put(&store, "first").unwrap();
        let begun = generation(&store);
        // There is space for a superblock, and none for a log.
        let full = Faulty::new(Arc::new(Memory::new(64)), &[Fault::NoSpaceFromPrepare(1)]);
        store.0.add_device(Arc::new(full.clone()), None).unwrap();
        assert_is_certain(&store);
        store.0.finish_commit().unwrap();
        assert_is_certain(&store);
        put(&store, "second").unwrap();
        assert_eq!(generation(&store), begun);
        full.set(&[]);
        put(&store, "third").unwrap();
        assert_is_certain(&store);
        assert_eq!(generation(&store), begun + 1);
        assert_eq!(spread(&store.0.state().log.superblock.log), 2);
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

//! `Shared` is an open store: its devices, its log up to the last record that was read, and the locks that protect
//! both.
//!
//! A `LockedState` gives access to the `State` while the locks are held. A `Change` writes superblocks and the log, and
//! its result becomes the next state.
//!
//! The locks are taken in this order: the mutex `turn` of the commit queue, the mutex of the state, the lock of the
//! registry (a file lock), the mutex of the readers.

mod change;
mod commit;
mod discovery;
mod membership;
mod pins;
mod repair;
mod space;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, RwLock},
};

use self::{
    change::{Change, LockedState},
    commit::Queue,
    discovery::{folders, gather, newest},
    pins::Readers,
};
pub(crate) use self::{
    commit::{CommitError, Urgency},
    discovery::{Opener, check_is_blank},
    pins::Pin,
    space::{HEADER_BYTES, LeaseLimits, header_of, reserve},
};
use crate::{
    Catalog, Device, DeviceEntry, EXTENT_BYTES, Edit, Error, ExtentAddress, Result, SEGMENT_EXTENTS,
    device::path_of,
    log::catalog::Run,
    log::{Devices, Log, SUPERBLOCK_EXTENT, Superblock, read_superblock, spread},
    space::scratch::{Guard, Owner, Registry, Scratch, is_full, is_read_only},
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

/// `NewStore` contains the options for the creation of a store.
pub(crate) struct NewStore {
    /// The largest number of bytes that the store may take on each device.
    pub limit_bytes: Option<u64>,
}

#[derive(Debug)]
struct State {
    log: Log,
    catalog: Arc<Catalog>,
    /// True if a change failed after its first write. The state must then be read from the devices again, and nothing
    /// may be appended to the log.
    doubtful: bool,
    /// True if a present device has an old superblock or was moved. A superblock is old if the device was missing
    /// during a commit, or if a crash interrupted the commit.
    is_stale: bool,
    /// The number of the last commit whose freed extents this process has discarded. The number is 0 at first, since
    /// the process that freed extents may have ended before it could discard them.
    discarded: u64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Shared({})", self.home.display())
    }
}

impl Shared {
    /// Opens the store on `devices`. If no device has a superblock, the store is created with the options `make`.
    /// `home` is the folder of the registry.
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
                // Another process may have created the store in the meantime.
                match gather(home, &devices, &opener)? {
                    Some(found) => found,
                    None => crate::log::init(&devices, limit_bytes)?.0,
                }
            }
        };
        registry.meet_on(folders(&known));
        let guard = registry.share()?;
        // Another process may have begun a new log in the meantime.
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

    /// Returns the devices by number.
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

    /// Waits for the exclusive lock of the registry. If a folder was moved or removed, its device may have been removed
    /// from the store. The call then reads the current devices and tries again.
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

    /// Takes the mutex of the state and the exclusive lock of the registry.
    fn locked(&self) -> Result<LockedState<'_>> {
        let mut state = self.state();
        let lock = self.lock(&mut state)?;
        Ok(LockedState { shared: self, lock, state })
    }

    /// Begins a change. The state is first updated to the last commit of any process.
    fn change(&self) -> Result<Change<'_>> {
        let mut locked = self.locked()?;
        locked.refresh()?;
        if locked.is_settled() {
            // Freed extents are discarded before the change, since a new log omits the extents that were discarded. An
            // error is ignored: extents that cannot be discarded stay recorded as freed.
            let _ = locked.discard_freed();
        }
        Ok(locked.change())
    }

    /// Reads the state after the last commit of any process. No other process can change the store as long as the
    /// caller keeps the result, which contains the locks.
    fn current(&self) -> Result<LockedState<'_>> {
        let state = self.state();
        let mut locked = LockedState { shared: self, lock: self.registry.share()?, state };
        locked.refresh()?;
        Ok(locked)
    }

    /// Makes the superblocks and the log durable, with the content that was read.
    fn sync_log(&self, state: &State) -> Result<()> {
        for (number, device) in self.devices() {
            let log = state.log.superblock.log.iter().flatten().filter(|place| place.device == number);
            let written = log.map(|place| place.extent).chain([SUPERBLOCK_EXTENT]);
            written.for_each(|extent| device.note_written(extent));
            device.sync().map_err(|error| Error::io("sync the log", path_of(device.as_ref()), error))?;
        }
        Ok(())
    }

    fn read_what_is_new(&self, state: &mut State) -> Result<()> {
        let mut devices = self.devices();
        let known = devices.len();
        // A device that was missing may be present again.
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

    /// Returns the catalog after the last commit of any process.
    pub fn catalog(&self) -> Result<Arc<Catalog>> {
        Ok(self.current()?.catalog.clone())
    }

    /// Returns the superblock and the catalog after the last commit of any process.
    pub fn snapshot(&self) -> Result<(Superblock, Arc<Catalog>)> {
        let current = self.current()?;
        Ok((current.log.superblock.clone(), current.catalog.clone()))
    }

    /// Lists the running jobs and readers of all processes.
    pub fn owners(&self) -> Result<Vec<Owner>> {
        self.registry.share()?.owners()
    }

    /// Records that the job with this scratch folder stores resumable work under `name`. If another running job uses
    /// this name, nothing is recorded, and the result is the id of its process.
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

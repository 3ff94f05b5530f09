//! A `Change` represents a change of the store in progress. This module contains the steps that begin and end every
//! change.

use std::ops::Deref;

use super::*;
use crate::log::write_superblock;

/// `LockedState` is the state of the store while this thread holds both locks. The mutex coordinates the threads of
/// this process. The lock of the registry coordinates processes: readers share this lock, and a writer holds it
/// exclusively.
pub(super) struct LockedState<'a> {
    pub shared: &'a Shared,
    // The fields are dropped in this order, so that the lock that was taken last is released first.
    pub lock: Guard<'a>,
    pub state: MutexGuard<'a, State>,
}

impl Deref for LockedState<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl<'a> LockedState<'a> {
    /// Updates the state from the devices.
    pub fn refresh(&mut self) -> Result<()> {
        let LockedState { shared, state, .. } = self;
        shared.read_what_is_new(state)?;
        let last = state.log.last();
        // Only durable records may be announced. The process that appended the last record may have died before its
        // sync, so this process syncs the log. If a copy of the log or a superblock lacks the record, the record is not
        // announced, and the next commit begins a new log.
        if shared.registry.last_record() != Some(last)
            && !state.log.is_uneven()
            && !state.is_stale
            && shared.sync_log(state).is_ok()
        {
            shared.registry.announce_last_record(last);
        }
        Ok(())
    }

    /// Updates the state from the devices, unless the announcement in the registry shows that the state is current.
    pub fn catch_up(&mut self) -> Result<()> {
        let is_known = !self.doubtful && self.shared.registry.last_record() == Some(self.log.last());
        if is_known { Ok(()) } else { self.refresh() }
    }

    /// Returns true if the last commit is known to be durable. The extents that it freed can then be discarded.
    pub fn is_settled(&self) -> bool {
        !self.doubtful && self.shared.registry.has_announced(self.log.last())
    }

    /// Begins a change of this state.
    pub fn change(self) -> Change<'a> {
        Change { devices: self.shared.devices(), was_doubtful: self.doubtful, locked: self, is_begun: false }
    }
}

/// `Change` is the right to write superblocks and the log. [`Change::commit`] makes the result of the change the new
/// state of the store.
///
/// A change that is dropped before its first write has no effect. If a change is dropped later because of an error, the
/// state is in doubt until the next commit. While the state is in doubt, each call reads the devices again, and nothing
/// is appended to the log.
pub(super) struct Change<'a> {
    locked: LockedState<'a>,
    /// The devices of the store after the change.
    pub devices: Devices,
    /// True if the change may have written to the devices.
    pub is_begun: bool,
    /// True if the state was in doubt before this change, since an earlier write failed. The log on the devices may
    /// then not be durable, even after a later sync.
    was_doubtful: bool,
}

impl<'a> Deref for Change<'a> {
    type Target = LockedState<'a>;

    fn deref(&self) -> &LockedState<'a> {
        &self.locked
    }
}

impl<'a> Change<'a> {
    /// Marks the change as begun. This must be called before each write. If this process dies or fails later, all
    /// processes read the superblock and the log again before they take extents.
    fn begin(&mut self) -> Result<()> {
        self.shared.registry.clear_last_record()?;
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

    /// Begins a new log with `catalog` as its first record, at the addresses in `superblock`.
    pub fn begin_log(&mut self, superblock: Superblock, catalog: &Catalog, pinned: u64) -> Result<Log> {
        self.begin()?;
        Log::begin(&self.devices, superblock, catalog, pinned)
    }

    /// Writes a superblock with the next sequence number to all devices. The log is not changed. If the last record of
    /// the log is not known to be durable, the log is synced first, since the end of the change announces this record.
    pub fn write_superblock(&mut self, superblock: &mut Superblock) -> Result<()> {
        if !self.is_begun && !self.is_settled() {
            self.shared.sync_log(&self.state)?;
        }
        self.begin()?;
        superblock.sequence += 1;
        write_superblock(&self.devices, superblock)
    }

    /// Makes a written log and its catalog the state of the store, and announces the last record of the log to other
    /// processes. The locks stay locked.
    pub fn commit(self, log: Log, catalog: Arc<Catalog>) -> LockedState<'a> {
        self.finish(log, catalog, false)
    }

    /// Makes a written superblock part of the state. The log and the catalog are not changed. If the log is in doubt,
    /// it stays in doubt until a new log is begun, since a later sync does not repair a failed sync.
    pub fn commit_superblock(self, superblock: Superblock) -> LockedState<'a> {
        let (mut log, catalog, doubtful) = (self.log.clone(), self.catalog.clone(), self.was_doubtful);
        log.superblock = superblock;
        self.finish(log, catalog, doubtful)
    }

    fn finish(self, log: Log, catalog: Arc<Catalog>, doubtful: bool) -> LockedState<'a> {
        let Change { mut locked, devices, .. } = self;
        *locked.shared.devices.write().expect("no panic under this lock") = devices;
        // All superblocks are current at this point. A record is appended only if they were current before, and every
        // other change writes all superblocks.
        *locked.state = State { log, catalog, doubtful, is_stale: false, ..*locked.state };
        if !doubtful {
            locked.shared.registry.announce_last_record(locked.log.last());
            // The change is complete even if the discard fails. The next job then discards the extents.
            let _ = locked.discard_freed();
        }
        locked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Fault, Faulty, Memory, Store, log::spread};

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

    /// Begins a change, writes a superblock, and drops the change without a commit, as after an error.
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
        first.0.free_dead().unwrap();
        assert_eq!(first.0.state().log.superblock, written);
        put(&second, "second").unwrap();
        assert!(first.0.state().doubtful, "reading alone does not end the doubt");
        assert_eq!(first.list().unwrap().len(), 2);
        // The commit by `second` was announced, but `first` still reads the complete log.
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
        // The new device has space for a superblock, but no space for a log.
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

    #[test]
    fn a_new_device_does_not_end_the_doubt_about_a_log_whose_sync_failed() {
        let stores = Stores::new();
        let store = stores.open();
        put(&store, "first").unwrap();
        let begun = generation(&store);
        stores.device.set(&[Fault::FailSync(0)]);
        assert!(put(&store, "lost").is_err());
        stores.device.set(&[]);
        // The new device has space for a superblock, but no space for a log.
        let full = Faulty::new(Arc::new(Memory::new(64)), &[Fault::NoSpaceFromPrepare(1)]);
        let added = store.0.add_device(Arc::new(full.clone()), None);
        assert!(store.0.state().doubtful, "{added:?}");
        assert_eq!(store.0.registry.last_record(), None);
        full.set(&[]);
        put(&store, "second").unwrap();
        assert_is_certain(&store);
        assert!(generation(&store) > begun);
    }
}

//! A pin keeps the extents of a commit readable after later commits have freed them.

use std::collections::BTreeMap;

use super::*;

/// `Readers` counts the pins of each commit in this process.
#[derive(Debug, Default)]
pub(super) struct Readers {
    scratch: Option<Scratch>,
    commits: BTreeMap<u64, usize>,
}

/// `Pin` prevents the reuse of the extents of a commit.
#[derive(Debug)]
pub(crate) struct Pin {
    shared: Arc<Shared>,
    commit: u64,
}

impl Shared {
    /// Reads the catalog after the last commit of any process. The datasets of this catalog stay readable until the pin
    /// is dropped.
    pub fn pinned_catalog(self: &Arc<Self>) -> Result<(Arc<Catalog>, Arc<Pin>)> {
        let mut state = self.state();
        let (lock, can_pin) = match self.lock(&mut state) {
            // A store on a read-only file system needs no pin, since nothing can be removed from it.
            Err(Error::Io { source, .. }) if is_read_only(&source) => (self.registry.share()?, false),
            // A drive was moved or unmounted. The other drives can still be read, since no process can remove data
            // while it cannot lock all drives.
            Err(Error::BadDevice { .. }) => (self.registry.share()?, true),
            lock => (lock?, true),
        };
        let mut locked = LockedState { shared: self, lock, state };
        locked.refresh()?;
        let commit = locked.catalog.commit;
        let mut readers = self.readers.lock().expect("no panic under this lock");
        if can_pin && readers.scratch.is_none() {
            readers.scratch = match locked.lock.join("reader-") {
                // If the drive is full, no pin can be written, and the store is read without a pin. A read of an extent
                // that was overwritten in the meantime fails with a checksum error.
                Err(error) if is_full(&error) => None,
                joined => Some(joined?),
            };
        } else if can_pin && let Some(scratch) = &readers.scratch {
            locked.lock.join_also(scratch)?;
        }
        *readers.commits.entry(commit).or_default() += 1;
        let pin = Pin { shared: self.clone(), commit };
        let written = readers.write();
        // The lock is released first, since the pin takes it when it is dropped after an error.
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
            // If the update fails, the old pin stays, and some space is not freed until this process ends.
            let _ = readers.write();
        }
    }
}

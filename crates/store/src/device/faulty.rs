//! A faulty device fails at chosen operations, for tests of the code that uses devices.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Device, PAGE_BYTES,
    device::{memory::Page, metadata_buffer},
};

/// `Fault` is one failure of a device, at the n-th operation of a kind. The device counts reads, writes, syncs,
/// allocations and discards separately, from 0. All clones of a device share the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th write and all later writes fail with "no space left on device".
    NoSpaceFromWrite(u64),
    /// The n-th write fails once with an I/O error.
    FailWrite(u64),
    /// The n-th write and all later writes fail with an I/O error.
    FailFromWrite(u64),
    /// The n-th read fails once with an I/O error.
    FailRead(u64),
    /// The n-th read and all later reads fail with an I/O error.
    FailFromRead(u64),
    /// One bit in the middle of the result of the n-th read is flipped.
    FlipRead(u64),
    /// The n-th read returns the bytes of the extent after the requested extent.
    MisdirectRead(u64),
    /// The n-th read returns, for each page, the content before the last write to this page.
    StaleRead(u64),
    /// The n-th write changes nothing on the device but reports success. Later reads return the old content.
    DropWrite(u64),
    /// The n-th write goes to the extent after the requested extent but reports success.
    MisdirectWrite(u64),
    /// Only the first half of the n-th write reaches the device, but success is reported.
    TearWrite(u64),
    /// The n-th sync fails once with an I/O error, and all writes since the last sync are lost.
    FailSync(u64),
    /// The n-th sync and all later syncs fail with an I/O error, and all writes since the last successful sync are
    /// lost.
    FailFromSync(u64),
    /// The n-th allocation of space and all later allocations fail with "no space left on device".
    NoSpaceFromPrepare(u64),
    /// The n-th discard and all later discards fail with an I/O error.
    FailFromDiscard(u64),
}

/// `RandomFaults` chooses random faults: each operation fails with a probability of 1 in `one_in`. The choice depends
/// only on the seed, and on the kind and the number of the operation.
#[derive(Clone, Copy, Debug)]
struct RandomFaults {
    seed: u64,
    one_in: u64,
}

impl RandomFaults {
    /// Returns the fault of the n-th operation of a kind, if it fails. `kinds` are the possible faults of this kind of
    /// operation.
    fn fault(self, kinds: &[fn(u64) -> Fault], n: u64) -> Option<Fault> {
        let mixed = |salt: u64| {
            // The hash function is SplitMix64.
            let mut word =
                self.seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (kinds.len() as u64) << 56 ^ salt << 48;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        };
        mixed(1).is_multiple_of(self.one_in).then(|| kinds[(mixed(2) % kinds.len() as u64) as usize](n))
    }
}

const READ_FAULTS: [fn(u64) -> Fault; 4] =
    [Fault::FailRead, Fault::FlipRead, Fault::MisdirectRead, Fault::StaleRead];
const WRITE_FAULTS: [fn(u64) -> Fault; 5] =
    [Fault::FailWrite, Fault::NoSpaceFromWrite, Fault::DropWrite, Fault::MisdirectWrite, Fault::TearWrite];
const SYNC_FAULTS: [fn(u64) -> Fault; 1] = [Fault::FailSync];

/// `EarlierPages` stores the earlier content of pages, for faults that return or restore old content.
#[derive(Debug, Default)]
struct EarlierPages {
    /// The content before the last write.
    last_write: BTreeMap<(u32, usize), Page>,
    /// The content before the first write since the last sync.
    last_sync: BTreeMap<(u32, usize), Page>,
}

/// `Faulty` wraps a device and makes chosen operations fail. Clones share the counts of operations.
#[derive(Clone, Debug)]
pub struct Faulty(Arc<FaultState>);

#[derive(Debug)]
struct FaultState {
    inner: Arc<dyn Device>,
    faults: Mutex<(Vec<Fault>, Option<RandomFaults>)>,
    before: Mutex<EarlierPages>,
    prepares: AtomicU64,
    discards: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
}

impl Faulty {
    /// Wraps `inner` with `faults`.
    pub fn new(inner: Arc<dyn Device>, faults: &[Fault]) -> Self {
        Faulty(Arc::new(FaultState {
            inner,
            faults: Mutex::new((faults.to_vec(), None)),
            before: Mutex::default(),
            prepares: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        }))
    }

    /// Replaces the faults, and resets the counts of operations to 0.
    pub fn set(&self, faults: &[Fault]) {
        self.begin(faults.to_vec(), None);
    }

    /// Sets random faults, one in `one_in` operations, and resets the counts of operations to 0. The same seed gives
    /// the same faults.
    pub fn set_chance(&self, seed: u64, one_in: u64) {
        self.begin(Vec::new(), Some(RandomFaults { seed, one_in }));
    }

    fn begin(&self, faults: Vec<Fault>, chance: Option<RandomFaults>) {
        *self.0.faults.lock().expect("no panic under this lock") = (faults, chance);
        let FaultState { reads, writes, syncs, prepares, discards, .. } = &*self.0;
        for count in [reads, writes, syncs, prepares, discards] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the numbers of reads, writes and syncs so far. A test can then repeat its work once per operation, with
    /// a fault at this operation.
    pub fn counts(&self) -> (u64, u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.0.reads), load(&self.0.writes), load(&self.0.syncs))
    }

    /// Returns the fault of the n-th operation of a kind, if it fails. The fault is one of the chosen faults that `hit`
    /// accepts, or otherwise a random fault of `kinds`.
    fn fault(&self, kinds: &[fn(u64) -> Fault], n: u64, hit: impl Fn(Fault) -> bool) -> Option<Fault> {
        let (faults, chance) = &*self.0.faults.lock().expect("no panic under this lock");
        let scripted = faults.iter().copied().find(|&fault| hit(fault));
        scripted.or_else(|| chance.as_ref()?.fault(kinds, n))
    }

    /// Returns true if a possible fault needs the earlier content of pages.
    fn remembers(&self) -> bool {
        let (faults, chance) = &*self.0.faults.lock().expect("no panic under this lock");
        let needs = |fault: &Fault| {
            matches!(fault, Fault::StaleRead(_) | Fault::FailSync(_) | Fault::FailFromSync(_))
        };
        chance.is_some() || faults.iter().any(needs)
    }

    fn remember(&self, extent: u32, offset: usize, len: usize) -> io::Result<()> {
        let mut before = self.0.before.lock().expect("no panic under this lock");
        for page in offset / PAGE_BYTES..(offset + len) / PAGE_BYTES {
            // O_DIRECT requires aligned memory.
            let mut aligned = metadata_buffer(PAGE_BYTES).map_err(io::Error::other)?;
            self.0.inner.read(extent, page * PAGE_BYTES, &mut aligned)?;
            let mut bytes = Box::new([0; PAGE_BYTES]);
            bytes.copy_from_slice(&aligned);
            before.last_sync.entry((extent, page)).or_insert_with(|| bytes.clone());
            before.last_write.insert((extent, page), bytes);
        }
        Ok(())
    }

    /// Undoes all writes since the last sync.
    fn lose_unsynced(&self) -> io::Result<()> {
        let lost = std::mem::take(&mut self.0.before.lock().expect("no panic under this lock").last_sync);
        lost.iter().try_for_each(|((extent, page), bytes)| {
            let mut aligned = metadata_buffer(PAGE_BYTES).map_err(io::Error::other)?;
            aligned.copy_from_slice(&bytes[..]);
            self.0.inner.write(*extent, page * PAGE_BYTES, &aligned)
        })
    }

    fn next(&self, extent: u32) -> u32 {
        (extent + 1) % self.0.inner.extents()
    }
}

fn no_space() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

fn io_error() -> io::Error {
    rustix::io::Errno::IO.into()
}

impl Device for Faulty {
    fn extents(&self) -> u32 {
        self.0.inner.extents()
    }

    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        let n = self.0.reads.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault(&READ_FAULTS, n, |fault| match fault {
            Fault::FailFromRead(first) => n >= first,
            Fault::FailRead(m) | Fault::FlipRead(m) | Fault::MisdirectRead(m) | Fault::StaleRead(m) => m == n,
            _ => false,
        });
        match fault {
            Some(Fault::FailRead(_) | Fault::FailFromRead(_)) => return Err(io_error()),
            Some(Fault::MisdirectRead(_)) => return self.0.inner.read(self.next(extent), offset, buffer),
            _ => self.0.inner.read(extent, offset, buffer)?,
        }
        match fault {
            Some(Fault::FlipRead(_)) => {
                let middle = buffer.len() / 2;
                buffer[middle] ^= 0x10;
            }
            Some(Fault::StaleRead(_)) => {
                let before = self.0.before.lock().expect("no panic under this lock");
                for (page, part) in buffer.chunks_mut(PAGE_BYTES).enumerate() {
                    if let Some(old) = before.last_write.get(&(extent, offset / PAGE_BYTES + page)) {
                        part.copy_from_slice(&old[..part.len()]);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        let n = self.0.writes.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault(&WRITE_FAULTS, n, |fault| match fault {
            Fault::NoSpaceFromWrite(first) | Fault::FailFromWrite(first) => n >= first,
            Fault::FailWrite(m) | Fault::DropWrite(m) | Fault::TearWrite(m) | Fault::MisdirectWrite(m) => {
                m == n
            }
            _ => false,
        });
        let (extent, buffer) = match fault {
            Some(Fault::NoSpaceFromWrite(_)) => return Err(no_space()),
            Some(Fault::FailWrite(_) | Fault::FailFromWrite(_)) => return Err(io_error()),
            Some(Fault::DropWrite(_)) => return Ok(()),
            Some(Fault::TearWrite(_)) => (extent, &buffer[..buffer.len() / 2 / PAGE_BYTES * PAGE_BYTES]),
            Some(Fault::MisdirectWrite(_)) => (self.next(extent), buffer),
            _ => (extent, buffer),
        };
        if self.remembers() {
            self.remember(extent, offset, buffer.len())?;
        }
        self.0.inner.write(extent, offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        let n = self.0.syncs.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault(&SYNC_FAULTS, n, |fault| match fault {
            Fault::FailFromSync(first) => n >= first,
            Fault::FailSync(m) => m == n,
            _ => false,
        });
        if fault.is_some() {
            self.lose_unsynced()?;
            return Err(io_error());
        }
        self.0.inner.sync()?;
        self.0.before.lock().expect("no panic under this lock").last_sync.clear();
        Ok(())
    }

    fn prepare(&self, extents: Range<u32>) -> io::Result<()> {
        let n = self.0.prepares.fetch_add(1, Ordering::Relaxed);
        let faults = self.0.faults.lock().expect("no panic under this lock").0.clone();
        if faults.iter().any(|fault| matches!(fault, Fault::NoSpaceFromPrepare(first) if n >= *first)) {
            return Err(no_space());
        }
        self.0.inner.prepare(extents)
    }

    fn discard(&self, extents: Range<u32>) -> io::Result<()> {
        let n = self.0.discards.fetch_add(1, Ordering::Relaxed);
        let faults = self.0.faults.lock().expect("no panic under this lock").0.clone();
        if faults.iter().any(|fault| matches!(fault, Fault::FailFromDiscard(first) if n >= *first)) {
            return Err(io_error());
        }
        self.0.inner.discard(extents)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        self.0.inner.free_bytes()
    }

    fn is_direct(&self) -> bool {
        self.0.inner.is_direct()
    }

    fn name(&self) -> String {
        self.0.inner.name()
    }
}

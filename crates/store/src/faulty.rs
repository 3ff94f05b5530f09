//! A device that fails on cue, for tests of everything above it.

use std::{
    io,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{Device, PAGE_BYTES};

/// What goes wrong. Reads, writes and syncs are counted from 0, each for itself, over all clones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th write and all after it fail: no space left on device.
    NoSpaceFromWrite(u64),
    /// The n-th write fails once with an I/O error.
    FailWrite(u64),
    /// The n-th write and all after it fail with an I/O error.
    FailFromWrite(u64),
    /// The n-th read fails once with an I/O error.
    FailRead(u64),
    /// The n-th read and all after it fail with an I/O error.
    FailFromRead(u64),
    /// One bit in the middle of what the n-th read returns is flipped.
    FlipRead(u64),
    /// The n-th read gives the bytes of the extent after the right one.
    MisdirectRead(u64),
    /// The n-th write changes nothing on the device, and says that it did: later reads are stale.
    DropWrite(u64),
    /// The n-th write goes to the extent after the right one, and says that it did not.
    MisdirectWrite(u64),
    /// Only the first half of the n-th write reaches the device, and it says that all did.
    TearWrite(u64),
    /// The n-th sync fails once with an I/O error.
    FailSync(u64),
    /// The n-th sync and all after it fail with an I/O error.
    FailFromSync(u64),
}

/// Wraps a device and makes it fail on cue. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Faulty(Arc<State>);

#[derive(Debug)]
struct State {
    inner: Arc<dyn Device>,
    faults: Mutex<Vec<Fault>>,
    reads: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
}

impl Faulty {
    /// `inner` with `faults`.
    pub fn new(inner: Arc<dyn Device>, faults: &[Fault]) -> Self {
        Faulty(Arc::new(State {
            inner,
            faults: Mutex::new(faults.to_vec()),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        }))
    }

    /// Begins to count from 0 again, with these faults.
    pub fn set(&self, faults: &[Fault]) {
        *self.0.faults.lock().expect("no panic under this lock") = faults.to_vec();
        for count in [&self.0.reads, &self.0.writes, &self.0.syncs] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Reads, writes and syncs so far: what a test loops over to hit every one of them.
    pub fn counts(&self) -> (u64, u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.0.reads), load(&self.0.writes), load(&self.0.syncs))
    }

    fn has(&self, hit: impl Fn(Fault) -> bool) -> bool {
        self.0.faults.lock().expect("no panic under this lock").iter().any(|&fault| hit(fault))
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
        if self.has(|fault| {
            fault == Fault::FailRead(n) || matches!(fault, Fault::FailFromRead(first) if n >= first)
        }) {
            return Err(io_error());
        }
        let extent =
            if self.has(|fault| fault == Fault::MisdirectRead(n)) { self.next(extent) } else { extent };
        self.0.inner.read(extent, offset, buffer)?;
        if self.has(|fault| fault == Fault::FlipRead(n)) {
            let middle = buffer.len() / 2;
            buffer[middle] ^= 0x10;
        }
        Ok(())
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        let n = self.0.writes.fetch_add(1, Ordering::Relaxed);
        if self.has(|fault| matches!(fault, Fault::NoSpaceFromWrite(first) if n >= first)) {
            return Err(no_space());
        }
        if self.has(|fault| {
            fault == Fault::FailWrite(n) || matches!(fault, Fault::FailFromWrite(first) if n >= first)
        }) {
            return Err(io_error());
        }
        if self.has(|fault| fault == Fault::DropWrite(n)) {
            return Ok(());
        }
        if self.has(|fault| fault == Fault::TearWrite(n)) {
            return self.0.inner.write(extent, offset, &buffer[..buffer.len() / 2 / PAGE_BYTES * PAGE_BYTES]);
        }
        let extent =
            if self.has(|fault| fault == Fault::MisdirectWrite(n)) { self.next(extent) } else { extent };
        self.0.inner.write(extent, offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        let n = self.0.syncs.fetch_add(1, Ordering::Relaxed);
        if self.has(|fault| {
            fault == Fault::FailSync(n) || matches!(fault, Fault::FailFromSync(first) if n >= first)
        }) {
            return Err(io_error());
        }
        self.0.inner.sync()
    }

    fn prepare(&self, extents: Range<u32>) -> io::Result<()> {
        self.0.inner.prepare(extents)
    }

    fn discard(&self, extents: Range<u32>) -> io::Result<()> {
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

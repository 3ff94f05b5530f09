//! A device that fails on cue, for tests of everything above it.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{Device, DeviceFile};

/// What goes wrong, counted over all files of the device from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th write and all after it fail: no space left on device.
    NoSpaceFromWrite(u64),
    /// The n-th write fails once with an I/O error.
    FailWrite(u64),
    /// The n-th read fails once with an I/O error.
    FailRead(u64),
    /// One bit in the middle of what the n-th read returns is flipped.
    FlipRead(u64),
    /// The n-th write changes nothing on the device, and says that it did.
    DropWrite(u64),
    /// Only the first half of the n-th write reaches the device, and it says that all did.
    TearWrite(u64),
    /// The n-th sync fails once with an I/O error.
    FailSync(u64),
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

    /// Reads, writes and syncs so far: what a test loops over to hit every one of them.
    pub fn counts(&self) -> (u64, u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.0.reads), load(&self.0.writes), load(&self.0.syncs))
    }
}

impl State {
    fn has(&self, hit: impl Fn(Fault) -> bool) -> bool {
        self.faults.lock().expect("no panic under this lock").iter().any(|&fault| hit(fault))
    }
}

impl Device for Faulty {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(Arc::new(FaultyFile { inner: self.0.inner.create(path)?, state: self.0.clone() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(Arc::new(FaultyFile { inner: self.0.inner.open(path)?, state: self.0.clone() }))
    }

    fn is_direct(&self) -> bool {
        self.0.inner.is_direct()
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn DeviceFile>,
    state: Arc<State>,
}

fn no_space() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

fn io_error() -> io::Error {
    rustix::io::Errno::IO.into()
}

impl DeviceFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let n = self.state.reads.fetch_add(1, Ordering::Relaxed);
        if self.state.has(|fault| fault == Fault::FailRead(n)) {
            return Err(io_error());
        }
        self.inner.read_at(buffer, offset)?;
        if self.state.has(|fault| fault == Fault::FlipRead(n)) {
            let middle = buffer.len() / 2;
            buffer[middle] ^= 0x10;
        }
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let n = self.state.writes.fetch_add(1, Ordering::Relaxed);
        if self.state.has(|fault| matches!(fault, Fault::NoSpaceFromWrite(first) if n >= first)) {
            return Err(no_space());
        }
        if self.state.has(|fault| fault == Fault::FailWrite(n)) {
            return Err(io_error());
        }
        if self.state.has(|fault| fault == Fault::DropWrite(n)) {
            return Ok(());
        }
        if self.state.has(|fault| fault == Fault::TearWrite(n)) {
            return self.inner.write_at(&buffer[..buffer.len() / 2 / 4096 * 4096], offset);
        }
        self.inner.write_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let n = self.state.syncs.fetch_add(1, Ordering::Relaxed);
        if self.state.has(|fault| fault == Fault::FailSync(n)) {
            return Err(io_error());
        }
        self.inner.sync()
    }
}

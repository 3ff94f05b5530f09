//! A device that writes down what is done to it, so that every crash that could have happened can be played.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex},
};

use crate::{Device, Memory, PAGE_BYTES};

/// One thing that was done to a device.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Bytes were written at an offset of an extent.
    Write(u32, usize, Arc<[u8]>),
    /// Extents were discarded.
    Discard(Range<u32>),
    /// Everything before is durable from here on.
    Sync,
}

/// What was done to several devices, in one order: the number of the device, and what was done.
pub type History = Arc<Mutex<Vec<(u16, Operation)>>>;

/// Wraps a device and appends what is done to it to a [`History`].
#[derive(Debug)]
pub struct Recording {
    inner: Arc<dyn Device>,
    number: u16,
    history: History,
}

impl Recording {
    /// `inner`, as device `number` in `history`.
    pub fn new(inner: Arc<dyn Device>, number: u16, history: &History) -> Self {
        Recording { inner, number, history: history.clone() }
    }

    fn note(&self, operation: Operation) {
        self.history.lock().expect("no panic under this lock").push((self.number, operation));
    }
}

impl Device for Recording {
    fn extents(&self) -> u32 {
        self.inner.extents()
    }

    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read(extent, offset, buffer)
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        self.inner.write(extent, offset, buffer)?;
        self.note(Operation::Write(extent, offset, buffer.into()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()?;
        self.note(Operation::Sync);
        Ok(())
    }

    fn prepare(&self, extents: Range<u32>) -> io::Result<()> {
        self.inner.prepare(extents)
    }

    fn discard(&self, extents: Range<u32>) -> io::Result<()> {
        self.inner.discard(extents.clone())?;
        self.note(Operation::Discard(extents));
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        self.inner.free_bytes()
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// What a crash does with a write that no sync had made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It reached the device.
    Kept,
    /// It never did.
    Lost,
    /// Only the sectors of 512 bytes before this one did.
    TornAfter(usize),
    /// Only the sectors of 512 bytes from this one on did.
    TornBefore(usize),
}

const SECTOR_BYTES: usize = 512;

/// The devices after a crash: `history` up to its end, where `fate` decides about each write (by its place in
/// `history`) that was not durable. Writes that a sync followed are kept. Later writes land on earlier ones whatever
/// happened to those, so that fates alone already give every order of the pages.
pub fn after_crash(
    history: &[(u16, Operation)],
    devices: &[Memory],
    mut fate: impl FnMut(usize) -> Fate,
) -> Vec<Memory> {
    let devices: Vec<Memory> = devices.iter().map(Memory::copy).collect();
    let last_sync = |device: u16| {
        history
            .iter()
            .rposition(|(number, operation)| *number == device && matches!(operation, Operation::Sync))
    };
    let durable: Vec<Option<usize>> = (0..devices.len() as u16).map(last_sync).collect();
    for (place, (number, operation)) in history.iter().enumerate() {
        let device = &devices[*number as usize];
        let is_durable = durable[*number as usize].is_some_and(|sync| place < sync);
        match operation {
            Operation::Sync => {}
            Operation::Discard(extents) if is_durable || fate(place) == Fate::Kept => {
                device.discard(extents.clone()).expect("memory");
            }
            Operation::Discard(_) => {}
            Operation::Write(extent, offset, bytes) => {
                let sectors = match if is_durable { Fate::Kept } else { fate(place) } {
                    Fate::Kept => 0..bytes.len() / SECTOR_BYTES,
                    Fate::Lost => 0..0,
                    Fate::TornAfter(sector) => 0..sector.min(bytes.len() / SECTOR_BYTES),
                    Fate::TornBefore(sector) => {
                        sector.min(bytes.len() / SECTOR_BYTES)..bytes.len() / SECTOR_BYTES
                    }
                };
                for sector in sectors {
                    let at = offset + sector * SECTOR_BYTES;
                    let part = &bytes[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES];
                    device.change_page(*extent, at / PAGE_BYTES, |page| {
                        page[at % PAGE_BYTES..][..SECTOR_BYTES].copy_from_slice(part);
                    });
                }
            }
        }
    }
    devices
}

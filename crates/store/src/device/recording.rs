//! A recording device records its operations. A test can then construct the state of the device after a crash at any
//! operation.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex},
};

use crate::{Device, Memory, PAGE_BYTES};

/// `Operation` is one operation on a device.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A write of bytes at an offset of an extent.
    Write(u32, usize, Arc<[u8]>),
    /// A discard of extents.
    Discard(Range<u32>),
    /// A sync, after which all earlier operations are durable.
    Sync,
}

/// `History` contains the operations on several devices in the order in which they ended. Each operation has the number
/// of its device.
pub type History = Arc<Mutex<Vec<(u16, Operation)>>>;

/// `Recording` wraps a device and appends the operations on the device to a [`History`].
#[derive(Debug)]
pub struct Recording {
    inner: Arc<dyn Device>,
    number: u16,
    history: History,
}

impl Recording {
    /// Wraps `inner`, as device `number` in `history`.
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

/// `WriteFate` is the effect of a crash on an operation that was not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFate {
    /// The write reached the device.
    Kept,
    /// The write is lost.
    Lost,
    /// Only the sectors of 512 bytes before the sector of this number reached the device.
    TornAfter(usize),
    /// Only the sector of this number and the later sectors of 512 bytes reached the device.
    TornBefore(usize),
}

const SECTOR_BYTES: usize = 512;

/// Returns the devices after a crash at the end of `history`. Operations before the last sync of a device are durable.
/// For every other operation, `fate` decides, given the index of the operation in `history`. Operations are applied in
/// their order. A drive may write pages in another order, but the possible fates already cover the results of all
/// orders.
pub fn after_crash(
    history: &[(u16, Operation)],
    devices: &[Memory],
    mut fate: impl FnMut(usize) -> WriteFate,
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
            Operation::Discard(extents) if is_durable || fate(place) == WriteFate::Kept => {
                device.discard(extents.clone()).expect("memory");
            }
            Operation::Discard(_) => {}
            Operation::Write(extent, offset, bytes) => {
                let sectors = match if is_durable { WriteFate::Kept } else { fate(place) } {
                    WriteFate::Kept => 0..bytes.len() / SECTOR_BYTES,
                    WriteFate::Lost => 0..0,
                    WriteFate::TornAfter(sector) => 0..sector.min(bytes.len() / SECTOR_BYTES),
                    WriteFate::TornBefore(sector) => {
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

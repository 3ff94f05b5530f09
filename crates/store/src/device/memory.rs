//! A memory device stores its extents in memory. Tests use it to simulate crashes and damage, since a test can change
//! any page.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{Device, EXTENT_BYTES, PAGE_BYTES};

/// `Page` contains the bytes of a page.
pub(crate) type Page = Box<[u8; PAGE_BYTES]>;

/// `Memory` is a device that stores its extents in memory. Bytes that were never written are zeros.
#[derive(Debug)]
pub struct Memory {
    number: u64,
    extents: u32,
    pages: Mutex<BTreeMap<(u32, usize), Page>>,
}

/// Returns a number for the name of a new device. The number is unique in the process.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Memory {
    /// Creates a device of `extents` extents. Only written pages take memory.
    pub fn new(extents: u32) -> Self {
        Memory { number: next_number(), extents, pages: Mutex::default() }
    }

    /// Calls `change` with the bytes of a page. The function can inspect, damage or partly overwrite the page.
    pub fn change_page(&self, extent: u32, page: usize, change: impl FnOnce(&mut [u8; PAGE_BYTES])) {
        let mut pages = self.pages.lock().expect("no panic under this lock");
        change(pages.entry((extent, page)).or_insert_with(|| Box::new([0; PAGE_BYTES])));
    }

    /// Returns the written pages, each as the number of its extent and its number in the extent.
    pub fn written(&self) -> Vec<(u32, usize)> {
        self.pages.lock().expect("no panic under this lock").keys().copied().collect()
    }

    /// Returns an independent copy of the device.
    pub fn copy(&self) -> Self {
        let pages = self.pages.lock().expect("no panic under this lock").clone();
        Memory { number: next_number(), extents: self.extents, pages: Mutex::new(pages) }
    }
}

impl Device for Memory {
    fn extents(&self) -> u32 {
        self.extents
    }

    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        let pages = self.pages.lock().expect("no panic under this lock");
        for (place, part) in buffer.chunks_mut(PAGE_BYTES).enumerate() {
            match pages.get(&(extent, offset / PAGE_BYTES + place)) {
                Some(page) => part.copy_from_slice(&page[..part.len()]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        // A write outside the device is an error, as on a drive. A panic would end a test in which a damaged store
        // contains an invalid address.
        if extent >= self.extents || offset + buffer.len() > EXTENT_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "write outside the device"));
        }
        for (place, part) in buffer.chunks(PAGE_BYTES).enumerate() {
            self.change_page(extent, offset / PAGE_BYTES + place, |page| {
                page[..part.len()].copy_from_slice(part)
            });
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn prepare(&self, _extents: Range<u32>) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, extents: Range<u32>) -> io::Result<()> {
        let mut pages = self.pages.lock().expect("no panic under this lock");
        let gone: Vec<_> = pages.range((extents.start, 0)..(extents.end, 0)).map(|(&key, _)| key).collect();
        gone.iter().for_each(|key| drop(pages.remove(key)));
        Ok(())
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        format!("memory {}", self.number)
    }
}

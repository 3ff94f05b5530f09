//! The headers of extents hold the checksums of blocks; an open file caches the headers that were read.

use std::{
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use inshore_runtime::Direction;

use super::{CheckedFile, ExtentOwner};
use crate::{
    Error, ExtentAddress, ExtentRef, Job, PAGE_BYTES, Reservation, Result,
    device::{metadata_buffer, part},
    log::header::Header,
    redundancy::whole::{FileExtent, extent_buffer},
    shared::{HEADER_BYTES, header_of},
};

/// The number of headers that an open file of a dataset caches without [`CheckedFile::remember_headers`]. A header has
/// at most 2 KiB of checksums, and 0.5 KiB with blocks of 16 KiB.
pub(super) const CACHED_HEADERS: usize = 64;
/// Bytes of a cached header beside its checksums.
pub(super) const CACHED_HEADER_BYTES: usize = 96;
/// The number of headers that are read at once while extents are read in order. The headers lie side by side, and a
/// small read waits as long as the large ones before it: one read per header made scans slower by a third.
const HEADERS_AHEAD: u64 = 32;
/// The number of headers that are read at once while extents are read at random, which takes as long as one header.
const HEADERS_AROUND: u64 = 4;

/// `DatasetMap` holds the places and the expected content of the extents of a dataset's file.
#[derive(Debug)]
pub(super) struct DatasetMap {
    pub(super) refs: Refs,
    pub(super) headers: Mutex<Headers>,
    /// The owner of the extents, which prevents their reuse.
    pub(super) _kept: ExtentOwner,
}

/// The number of an extent, the place of its first copy, and the checksums of its blocks.
type CachedHeader = (u64, ExtentAddress, Arc<[u32]>);

/// `Headers` caches headers that were read. Extent e is in slot e modulo the number of slots, if it is cached.
#[derive(Debug)]
pub(super) struct Headers {
    pub(super) slots: Vec<Option<CachedHeader>>,
    /// The numbers of the extents of the last batch that was read.
    last: Range<u64>,
    /// The memory for more slots than [`CACHED_HEADERS`].
    pub(super) _reservation: Option<Reservation>,
}

impl Default for Headers {
    fn default() -> Self {
        Headers { slots: vec![None; CACHED_HEADERS], last: 0..0, _reservation: None }
    }
}

impl Headers {
    fn get(&self, extent: u64) -> Option<(ExtentAddress, Arc<[u32]>)> {
        let (known, place, sums) = self.slots[extent as usize % self.slots.len()].as_ref()?;
        (*known == extent).then(|| (*place, sums.clone()))
    }

    fn put(&mut self, extent: u64, place: ExtentAddress, sums: Arc<[u32]>) {
        let slot = extent as usize % self.slots.len();
        self.slots[slot] = Some((extent, place, sums));
    }

    /// Returns the number of headers to read for `extent`, which is not cached: many if the extent follows the last
    /// batch.
    fn batch(&mut self, extent: u64) -> u64 {
        let follows = (self.last.start..=self.last.end + HEADERS_AROUND).contains(&extent);
        let count = if follows { HEADERS_AHEAD } else { HEADERS_AROUND };
        self.last = extent..extent + count;
        count
    }
}

#[derive(Debug)]
pub(super) enum Refs {
    Here(Vec<ExtentRef>),
    /// The references are in a separate file.
    Listed(CheckedFile),
}

impl DatasetMap {
    /// Returns the place of the first copy of an extent and the checksums of its blocks, from its header.
    pub(super) fn look_up(
        &self,
        job: &Job,
        file: &CheckedFile,
        extent: u64,
    ) -> Result<(ExtentAddress, Arc<[u32]>)> {
        let count = {
            let mut headers = self.headers.lock().expect("no panic under this lock");
            if let Some(found) = headers.get(extent) {
                return Ok(found);
            }
            headers.batch(extent).min(file.0.layout.extents() - extent)
        };
        let mut found = None;
        for copy in 0..file.0.layout.redundancy.copies() {
            match self.read_headers(job, file, extent, count, copy) {
                Ok(read) => {
                    let sums = read[0].2.clone();
                    let place = file.references(job, extent, 1, 0)?[0].place;
                    let mut headers = self.headers.lock().expect("no panic under this lock");
                    headers.put(extent, place, sums.clone());
                    for (extent, place, sums) in read.into_iter().filter(|_| copy == 0) {
                        headers.put(extent, place, sums);
                    }
                    return Ok((place, sums));
                }
                Err(error) => found = found.or(Some(error)),
            }
        }
        self.make_header(job, file, extent)?.ok_or_else(|| found.expect("at least one copy"))
    }

    /// Makes the header of an extent again from its bytes, which may be restored from its group, and writes the header.
    /// The result is `None` if the bytes are lost.
    fn make_header(
        &self,
        job: &Job,
        file: &CheckedFile,
        extent: u64,
    ) -> Result<Option<(ExtentAddress, Arc<[u32]>)>> {
        let whole = FileExtent { job, file, position: extent };
        let mut buffer = extent_buffer()?;
        if whole.fetch(&mut buffer).is_err() {
            return Ok(None);
        }
        let _ = whole.rewrite(&buffer);
        job.counters().add_repair();
        let shape = file.0.layout.shape(extent);
        let stored = (shape.used as usize).next_multiple_of(PAGE_BYTES);
        let sums: Arc<[u32]> =
            buffer[..stored].chunks(file.0.layout.block_bytes).map(crc32fast::hash).collect();
        let place = whole.reference()?.place;
        let mut headers = self.headers.lock().expect("no panic under this lock");
        headers.put(extent, place, sums.clone());
        Ok(Some((place, sums)))
    }

    /// Reads the checksums of `extent`, and in the same request those of the extents among the `count` next ones whose
    /// headers lie close behind. If a file is spread over drives, these extents are not neighbours in the file.
    fn read_headers(
        &self,
        job: &Job,
        file: &CheckedFile,
        extent: u64,
        count: u64,
        copy: usize,
    ) -> Result<Vec<CachedHeader>> {
        let references = file.references(job, extent, count, copy)?;
        let first = references[0].place;
        let (header_extent, offset) = header_of(first.extent);
        let close = |(extent, reference): (u64, &ExtentRef)| {
            let place = reference.place;
            let behind = place.extent.checked_sub(first.extent)? as usize;
            let is_close = place.device == first.device
                && header_of(place.extent).0 == header_extent
                && behind < HEADERS_AHEAD as usize;
            is_close.then_some((extent, *reference, behind * HEADER_BYTES))
        };
        let wanted: Vec<(u64, ExtentRef, usize)> = (extent..).zip(&references).filter_map(close).collect();
        let len = wanted.iter().map(|(.., at)| at + HEADER_BYTES).max().expect("at least its own");
        let device = job.device(first.device)?;
        let part = part(device.clone(), header_extent, offset, 0..len);
        let (pages, result) = job.submit(Direction::Read, vec![part], metadata_buffer(len)?, None).wait();
        result.map_err(|error| {
            Error::io("read the header of an extent", PathBuf::from(device.name()), error)
        })?;
        let mut all = Vec::with_capacity(wanted.len());
        for (extent, reference, at) in wanted {
            match self.decode_header(file, extent, reference, &pages[at..at + HEADER_BYTES]) {
                Ok(sums) => all.push((extent, reference.place, sums)),
                // A damaged header of another extent becomes an error when that extent is read.
                Err(error) if all.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(all)
    }

    fn decode_header(
        &self,
        file: &CheckedFile,
        extent: u64,
        reference: ExtentRef,
        page: &[u8],
    ) -> Result<Arc<[u32]>> {
        let sum = crc32fast::hash(page);
        if sum != reference.header_sum {
            let what = format!("checksum is {sum:08x}, expected {:08x}", reference.header_sum);
            return Err(file.damaged_header(extent, &what));
        }
        let header = Header::decode(page).ok_or_else(|| file.damaged_header(extent, "its magic is wrong"))?;
        let identity = file.0.layout.identity;
        let expected = (reference.place, identity.dataset, identity.file, identity.level, extent);
        if (header.place, header.dataset, header.file, header.level, header.index) != expected {
            return Err(file.damaged_header(extent, "it is the header of another extent"));
        }
        Ok(header.sums.into())
    }
}

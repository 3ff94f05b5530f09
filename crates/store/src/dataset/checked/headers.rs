//! The header of an extent contains the checksums of the extent's blocks. An open file caches the headers that were
//! read.

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

/// The number of headers that an open file of a dataset caches without a call of [`CheckedFile::remember_headers`]. The
/// checksums of a header take at most 2 KiB, or 0.5 KiB if blocks have 16 KiB.
pub(super) const CACHED_HEADERS: usize = 64;
/// The memory of a cached header in bytes, without its checksums.
pub(super) const CACHED_HEADER_BYTES: usize = 96;
/// The number of headers that one request reads while extents are read in order. The headers are adjacent on the
/// device. Separate reads of the headers would make scans slower by a third, since a small read waits for the large
/// reads before it.
const HEADERS_AHEAD: u64 = 32;
/// The number of headers that one request reads while extents are read at random. Such a request takes as long as a
/// request for one header.
const HEADERS_AROUND: u64 = 4;

/// `DatasetMap` finds the addresses of the extents of a dataset's file, and the checksums of their blocks.
#[derive(Debug)]
pub(super) struct DatasetMap {
    pub(super) refs: Refs,
    pub(super) headers: Mutex<Headers>,
    /// The owner of the extents, which prevents their reuse.
    pub(super) _kept: ExtentOwner,
}

/// The number of an extent, the address of its first copy, and the checksums of its blocks.
type CachedHeader = (u64, ExtentAddress, Arc<[u32]>);

/// `Headers` caches headers that were read. If the header of extent e is cached, its slot is e modulo the number of
/// slots.
#[derive(Debug)]
pub(super) struct Headers {
    pub(super) slots: Vec<Option<CachedHeader>>,
    /// The numbers of the extents whose headers the last request read.
    last: Range<u64>,
    /// The reservation for the memory of the slots, if there are more than [`CACHED_HEADERS`].
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

    /// Returns the number of headers to read at once, beginning with the header of `extent`. The number is large if the
    /// extent follows the extents of the last request.
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
    /// The references are in a separate file (a list of extents).
    Listed(CheckedFile),
}

impl DatasetMap {
    /// Returns the address of the first copy of an extent, and the checksums of its blocks, which its header contains.
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

    /// Computes the lost header of an extent from the bytes of the extent, and writes the header. If the bytes are
    /// damaged, they are restored from parity or from a copy. The result is `None` if the bytes cannot be restored.
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

    /// Reads the checksums of `extent`. The same request also reads the headers shortly after it on the device that
    /// belong to the next `count` extents of the file. If a file is spread over several drives, adjacent headers do not
    /// belong to adjacent extents of the file.
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

//! A checked file has a checksum for each of its blocks, which every read verifies.
//!
//! A file is a list of extents. Extents consist of blocks of 4 KiB to 2 MiB (checksum blocks). The last block is padded
//! with zeros to a multiple of 4 KiB. The checksum of a block is stored with the references that lead to the block, and
//! never next to the block. A read therefore also detects a block that was read from the wrong address, or an older
//! version of the block:
//!
//! ```text
//!   scratch    checksums stay in memory (4 bytes for each block, counted in the budget)
//!   dataset    log record ── reference to an extent ── header of the extent ── block
//!                           (CRC-32 of the header)    (CRC-32 of each block)
//! ```

mod headers;
mod pending;
#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use inshore_runtime::Direction;

pub use self::pending::PendingRead;
use self::{
    headers::{CACHED_HEADER_BYTES, CACHED_HEADERS, DatasetMap, Headers, Refs},
    pending::{Source, check},
};
use crate::{
    Buffer, Device, EXTENT_BYTES, Error, ExtentAddress, ExtentRef, FileRecord, Job, PAGE_BYTES, Redundancy,
    Reservation, Result,
    dataset::layout::{Identity, Layout},
    device::{MissingDevice, metadata_buffer, part},
    log::catalog::REF_BYTES,
    redundancy::whole::{ExtentFile, FileExtent, extent_buffer},
    shared::Pin,
    space::extents::{Extents, pieces},
};

/// The size in bytes of the checksum blocks of lists of references.
pub(crate) const LIST_BLOCK_BYTES: usize = PAGE_BYTES;

/// `CheckedFile` is a finished file that any thread may read. Clones share the open file.
#[derive(Clone, Debug)]
pub struct CheckedFile(Arc<Inner>, Option<Arc<FileInMemory>>);

/// `FileInMemory` stores the bytes of a file in memory, in pieces of [`HELD_PIECE_BYTES`].
#[derive(Debug)]
struct FileInMemory(Vec<Buffer>);

/// The size in bytes of a piece of a file in memory, which is the size of a huge page.
const HELD_PIECE_BYTES: usize = 2 << 20;
/// The number of pieces that one allocation contains. Larger allocations need fewer memory mappings, whose number per
/// process is limited.
const HELD_PIECES: usize = 32;
/// The number of pieces whose reads are in flight at the same time.
const HELD_AHEAD: usize = 4;

#[derive(Debug)]
struct Inner {
    layout: Layout,
    map: Map,
}

#[derive(Debug)]
enum Map {
    Scratch { extents: Arc<Extents>, sums: Vec<u32>, _reservation: Reservation },
    Dataset(Box<DatasetMap>),
}

/// `ExtentOwner` prevents the reuse of the extents of an open file. After the commit of the dataset, the owner is the
/// pin of the reader. Before the commit, the owners are the `Extents` of the writer.
#[derive(Clone, Debug)]
pub(crate) enum ExtentOwner {
    Pin(#[allow(dead_code)] Arc<Pin>),
    Extents(#[allow(dead_code)] Vec<Arc<Extents>>),
}

impl CheckedFile {
    /// Opens the file of a dataset that `record` describes. Error messages call the file `name`.
    pub(crate) fn of_record(
        name: String,
        record: &FileRecord,
        identity: Identity,
        redundancy: Redundancy,
        kept: ExtentOwner,
    ) -> Self {
        let refs = if record.level == 0 {
            Refs::Here(record.refs.clone())
        } else {
            let len = redundancy.refs(record.extents()) * REF_BYTES as u64;
            let list = FileRecord {
                name: String::new(),
                len,
                level: 0,
                block_bytes: LIST_BLOCK_BYTES as u32,
                refs: record.refs.clone(),
            };
            let identity = Identity { level: 1, ..identity };
            let name = format!("{name} (list of extents)");
            let copies = Redundancy::Copies(redundancy.list_copies() as u8);
            Refs::Listed(Self::of_record(name, &list, identity, copies, kept.clone()))
        };
        let map = DatasetMap { refs, headers: Mutex::default(), _kept: kept };
        let (len, block_bytes) = (record.len, record.block_bytes as usize);
        let layout = Layout { name, len, block_bytes, identity, redundancy };
        CheckedFile(Arc::new(Inner { layout, map: Map::Dataset(Box::new(map)) }), None)
    }

    pub(crate) fn of_scratch(
        name: String,
        len: u64,
        block_bytes: usize,
        extents: Arc<Extents>,
        sums: Vec<u32>,
        reservation: Reservation,
    ) -> Self {
        let map = Map::Scratch { extents, sums, _reservation: reservation };
        // Extents of a scratch file have no headers, so the identity is never used.
        let (identity, redundancy) = (Identity::default(), Redundancy::Copies(1));
        let layout = Layout { name, len, block_bytes, identity, redundancy };
        CheckedFile(Arc::new(Inner { layout, map }), None)
    }

    fn map(&self) -> &DatasetMap {
        match &self.0.map {
            Map::Dataset(map) => map,
            Map::Scratch { .. } => unreachable!("asked of files of datasets only"),
        }
    }

    /// Returns the file that contains the references to extents, if the references are not in the record itself.
    pub(crate) fn list(&self) -> Option<&CheckedFile> {
        match &self.map().refs {
            Refs::Here(_) => None,
            Refs::Listed(list) => Some(list),
        }
    }

    /// Returns the memory that [`Self::remember_headers`] takes if it caches all headers.
    pub fn headers_bytes(&self) -> u64 {
        match self.0.layout.extents() as usize {
            // Reads of a file in memory need no headers.
            _ if self.1.is_some() => 0,
            ..=CACHED_HEADERS => 0,
            extents => (extents * self.header_bytes()) as u64,
        }
    }

    /// Returns the memory of a cached header.
    fn header_bytes(&self) -> usize {
        EXTENT_BYTES / self.0.layout.block_bytes * 4 + CACHED_HEADER_BYTES
    }

    /// Gives back the memory of [`Self::remember_headers`]. Later reads cache a few headers again.
    pub fn forget_headers(&self) {
        if let Map::Dataset(map) = &self.0.map {
            *map.headers.lock().expect("no panic under this lock") = Headers::default();
        }
    }

    /// Reads the headers of all extents into a cache, so that each later random read needs only one request. The call
    /// reads one page per extent. The cache takes 4 bytes per checksum block and 96 bytes per extent from the budget.
    /// If the budget is too small, only as many headers as fit are cached.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if a read fails.
    /// - Returns [`Error::Damaged`] if a checksum does not match.
    pub fn remember_headers(&self, job: &Job) -> Result<()> {
        let (Map::Dataset(map), None) = (&self.0.map, &self.1) else { return Ok(()) };
        let each = self.header_bytes();
        let budget = job.budget();
        let free = budget.memory_bytes().saturating_sub(budget.reserved_bytes()) as usize;
        let count = (self.0.layout.extents() as usize).min(free / each);
        if count > CACHED_HEADERS {
            let reservation = budget.reserve((count * each) as u64, "headers of extents")?;
            let mut headers = map.headers.lock().expect("no panic under this lock");
            headers.slots = vec![None; count];
            headers._reservation = Some(reservation);
        }
        (0..count as u64).try_for_each(|extent| map.look_up(job, self, extent).map(drop))
    }

    /// Returns the memory that [`Self::hold`] takes for a file of `len` bytes.
    pub fn held_bytes(len: u64) -> u64 {
        let pieces = len.div_ceil(HELD_PIECE_BYTES as u64);
        let list = pieces * size_of::<Buffer>() as u64;
        list + pieces * HELD_PIECE_BYTES as u64
    }

    /// Reads and verifies the complete file, and returns the file with its bytes in memory. A later read then only
    /// copies bytes. `each` is called with the length of each piece that was read.
    ///
    /// # Errors
    /// - Returns [`Error::OverBudget`] if the budget has too little free memory.
    /// - Returns [`Error::Io`] if a read fails.
    /// - Returns [`Error::Damaged`] if a checksum does not match.
    /// - Returns [`Error::Cancelled`] if the job was cancelled.
    pub fn hold(&self, job: &Job, mut each: impl FnMut(u64)) -> Result<CheckedFile> {
        let count = self.0.layout.len.div_ceil(HELD_PIECE_BYTES as u64) as usize;
        let (mut spare, mut pieces) = (Vec::new(), Vec::with_capacity(count));
        let mut in_flight = std::collections::VecDeque::with_capacity(HELD_AHEAD);
        for number in 0..count + HELD_AHEAD {
            job.check_cancelled()?;
            if number >= HELD_AHEAD.min(count)
                && let Some(pending) = in_flight.pop_front()
            {
                let pending: PendingRead = pending;
                let (buffer, range) = pending.wait()?;
                each(range.len() as u64);
                pieces.push(buffer);
            }
            if number < count {
                if spare.is_empty() {
                    let made = HELD_PIECES.min(count - number);
                    let buffers = Buffer::zeroed(job.budget(), made * HELD_PIECE_BYTES, "a file in memory")?;
                    spare = buffers.split(HELD_PIECE_BYTES);
                }
                let start = (number * HELD_PIECE_BYTES) as u64;
                let end = (start + HELD_PIECE_BYTES as u64).min(self.0.layout.len);
                let buffer = spare.pop().expect("made above");
                in_flight.push_back(self.submit_read(job, start..end, buffer)?);
            }
        }
        assert!(in_flight.is_empty() && pieces.len() == count, "all pieces came");
        Ok(CheckedFile(self.0.clone(), Some(Arc::new(FileInMemory(pieces)))))
    }

    /// Returns true if the bytes of the file are in memory (see [`Self::hold`]).
    pub fn is_held(&self) -> bool {
        self.1.is_some()
    }

    /// Returns the bytes of a range, without a copy. Returns `None` if the file is not in memory, or if the range lies in
    /// two pieces of that memory.
    ///
    /// # Panics
    /// Panics if the range ends after the file.
    pub fn held(&self, range: &Range<u64>) -> Option<&[u8]> {
        assert!(range.start <= range.end && range.end <= self.0.layout.len, "bytes {range:?}");
        let held = self.1.as_ref()?;
        let piece = range.start / HELD_PIECE_BYTES as u64;
        let offset = (range.start % HELD_PIECE_BYTES as u64) as usize;
        held.0.get(piece as usize)?.get(offset..offset + (range.end - range.start) as usize)
    }

    /// Returns the name of the file in error messages: the name of a scratch file, or `dataset/file`.
    pub fn name(&self) -> &str {
        &self.0.layout.name
    }

    /// Returns the number of bytes of data.
    pub fn len(&self) -> u64 {
        self.0.layout.len
    }

    /// Returns true if there is no data.
    pub fn is_empty(&self) -> bool {
        self.0.layout.len == 0
    }

    /// Returns the size of a checksum block in bytes. Reads of complete, aligned blocks transfer no additional bytes.
    pub fn block_bytes(&self) -> usize {
        self.0.layout.block_bytes
    }

    /// Returns the length of the buffer that a read of `range` needs: the total size of the blocks that the range
    /// touches.
    pub fn read_bytes(&self, range: &Range<u64>) -> usize {
        let touched = self.touched(range);
        (touched.end - touched.start) as usize
    }

    /// Returns the byte range of the file that a read of `range` transfers.
    fn touched(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.0.layout.block_bytes as u64;
        let end =
            range.end.next_multiple_of(block).min(self.0.layout.len.next_multiple_of(PAGE_BYTES as u64));
        range.start / block * block..end
    }

    /// Starts to read the blocks that `range` touches into `buffer`.
    ///
    /// # Panics
    /// Panics if the range is empty or ends after the file, or if the buffer is smaller than [`Self::read_bytes`].
    pub fn submit_read(&self, job: &Job, range: Range<u64>, buffer: Buffer) -> Result<PendingRead> {
        assert!(
            range.start < range.end && range.end <= self.0.layout.len,
            "read of {range:?} of {}",
            self.0.layout.len
        );
        let touched = self.touched(&range);
        let len = (touched.end - touched.start) as usize;
        assert!(buffer.len() >= len, "buffer of {} bytes for {len}", buffer.len());
        let start = (range.start - touched.start) as usize;
        let wanted = start..start + (range.end - range.start) as usize;
        if let Some(held) = &self.1 {
            let mut buffer = buffer;
            held.copy(touched.start, &mut buffer[..len]);
            let source = Source::Held(buffer);
            return Ok(PendingRead {
                source,
                job: job.clone(),
                file: self.clone(),
                touched,
                expected: Vec::new(),
                wanted,
            });
        }
        let (mut parts, mut expected) = (Vec::new(), Vec::new());
        for (extent, offset, range) in pieces(touched.clone()) {
            let blocks = offset / self.0.layout.block_bytes
                ..(offset + range.len()).div_ceil(self.0.layout.block_bytes);
            let place = self.look_up(job, extent, blocks, &mut expected)?;
            let device = self.device(job, place)?;
            parts.push(part(device, place.extent, offset, range));
        }
        let extents = match &self.0.map {
            Map::Scratch { extents, .. } => Some(extents.clone()),
            Map::Dataset(_) => None,
        };
        Ok(PendingRead {
            source: Source::Device(job.submit(Direction::Read, parts, buffer, extents)),
            job: job.clone(),
            file: self.clone(),
            touched,
            expected,
            wanted,
        })
    }

    /// Returns the device of an extent. If the device is missing and the file has redundancy, a placeholder is returned
    /// whose reads fail.
    fn device(&self, job: &Job, place: ExtentAddress) -> Result<Arc<dyn Device>> {
        match job.device(place.device) {
            Err(Error::NoDevice { number }) if self.0.layout.redundancy.devices() > 1 => {
                Ok(Arc::new(MissingDevice(number)))
            }
            device => device,
        }
    }

    /// Returns the address of a copy of an extent.
    pub(crate) fn place_of(&self, job: &Job, extent: u64, copy: usize) -> Result<ExtentAddress> {
        match &self.0.map {
            Map::Scratch { extents, .. } => Ok(extents.take(extent)?[copy]),
            Map::Dataset(_) => Ok(self.references(job, extent, 1, copy)?[0].place),
        }
    }

    /// Returns the address of the first copy of an extent, and adds the recorded checksums of its `blocks` to
    /// `expected`.
    fn look_up(
        &self,
        job: &Job,
        extent: u64,
        blocks: Range<usize>,
        expected: &mut Vec<u32>,
    ) -> Result<ExtentAddress> {
        match &self.0.map {
            Map::Scratch { sums, extents, .. } => {
                let first = extent as usize * (EXTENT_BYTES / self.0.layout.block_bytes);
                expected.extend_from_slice(&sums[first + blocks.start..first + blocks.end]);
                Ok(extents.take(extent)?[0])
            }
            Map::Dataset(map) => {
                let (place, sums) = map.look_up(job, self, extent)?;
                let missing = || self.damaged_header(extent, "too few checksums");
                expected.extend_from_slice(sums.get(blocks).ok_or_else(missing)?);
                Ok(place)
            }
        }
    }

    /// Returns `count` references to a copy of the file's extents, beginning at `extent`.
    fn references(&self, job: &Job, extent: u64, count: u64, copy: usize) -> Result<Vec<ExtentRef>> {
        self.references_at(job, copy as u64 * self.0.layout.extents() + extent, count)
    }

    fn damaged_header(&self, extent: u64, what: &str) -> Error {
        Error::DamagedHeader {
            file: self.0.layout.name.clone(),
            offset: extent * EXTENT_BYTES as u64,
            what: what.to_string(),
        }
    }

    /// Restores damaged or unreadable bytes of an extent, from another copy or from parity. The restored bytes are
    /// verified, and written over the damaged data.
    fn repair(
        &self,
        job: &Job,
        (extent, offset): (u64, usize),
        bytes: &mut Buffer,
        range: Range<usize>,
        expected: &[u32],
        found: Error,
    ) -> Result<()> {
        let redundancy = self.0.layout.redundancy;
        let at = extent * EXTENT_BYTES as u64 + offset as u64;
        let is_right =
            |bytes: &[u8]| check(&self.0.layout.name, at, bytes, self.0.layout.block_bytes, expected).is_ok();
        if redundancy.parity() > 0 {
            let whole = FileExtent { job, file: self, position: extent };
            let mut buffer = extent_buffer()?;
            if whole.restore(&mut buffer)? && is_right(&buffer[offset..offset + range.len()]) {
                bytes[range.clone()].copy_from_slice(&buffer[offset..offset + range.len()]);
                // An error of this write is ignored, since the restored bytes in memory are correct.
                let _ = whole.rewrite(&buffer);
                job.counters().add_repair();
                return Ok(());
            }
            return Err(found);
        }
        for copy in 1..redundancy.copies() {
            let part_of = |place: ExtentAddress, range: Range<usize>| {
                let device = job.device(place.device)?;
                Ok::<_, Error>(part(device, place.extent, offset, range))
            };
            let Ok(other) = part_of(self.place_of(job, extent, copy)?, range.clone()) else { continue };
            if other.transfer(Direction::Read, bytes).is_ok() && is_right(&bytes[range.clone()]) {
                if let Ok(first) = part_of(self.place_of(job, extent, 0)?, range) {
                    let _ = first.transfer(Direction::Write, bytes);
                }
                job.counters().add_repair();
                return Ok(());
            }
        }
        Err(found)
    }
}

impl ExtentFile for CheckedFile {
    fn layout(&self) -> &Layout {
        &self.0.layout
    }

    fn references_at(&self, job: &Job, position: u64, count: u64) -> Result<Vec<ExtentRef>> {
        match &self.map().refs {
            Refs::Here(refs) => Ok(refs[position as usize..(position + count) as usize].to_vec()),
            Refs::Listed(list) => {
                let range = position * REF_BYTES as u64..(position + count) * REF_BYTES as u64;
                let buffer = metadata_buffer(list.read_bytes(&range))?;
                let (bytes, wanted) = list.submit_read(job, range, buffer)?.wait()?;
                let references = bytes[wanted].chunks_exact(REF_BYTES).map(ExtentRef::decode);
                let references: Option<Vec<_>> = references.collect();
                references.ok_or_else(|| {
                    list.damaged_header(0, "the list of extents refers to an extent without data")
                })
            }
        }
    }
}

impl FileInMemory {
    /// Copies bytes of the file, beginning at offset `start`, to `out`.
    fn copy(&self, start: u64, out: &mut [u8]) {
        let (mut number, mut offset) = (start as usize / HELD_PIECE_BYTES, start as usize % HELD_PIECE_BYTES);
        let mut copied = 0;
        while copied < out.len() {
            let count = (out.len() - copied).min(HELD_PIECE_BYTES - offset);
            out[copied..copied + count].copy_from_slice(&self.0[number][offset..offset + count]);
            (copied, number, offset) = (copied + count, number + 1, 0);
        }
    }
}

//! Every byte of a checked file is compared with a checksum when it is read back.
//!
//! A file is a list of extents, cut into blocks of 4 KiB to 2 MiB; the last block is padded with zeros to 4 KiB. A
//! checksum is stored in the reference to the data and never beside the data. The comparison therefore also detects a
//! read that went to the wrong place or returned an older version:
//!
//! ```text
//!   scratch    checksums stay in memory (4 bytes for each block, counted in the budget)
//!   dataset    log record ── reference to an extent ── header of the extent ── block
//!                           (CRC-32 of the header)    (CRC-32 of each block)
//! ```

use std::{
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use inshore_runtime::{Direction, Pending};

use crate::{
    Buffer, Device, EXTENT_BYTES, Error, ExtentRef, FileRecord, Job, PAGE_BYTES, Place, Redundancy,
    Reservation, Result,
    dataset::layout::{Identity, Layout},
    device::{Missing, metadata_buffer, part},
    log::catalog::REF_BYTES,
    log::header::Header,
    redundancy::whole::{ExtentFile, Whole, extent_buffer},
    shared::{HEADER_BYTES, Pin, header_of},
    space::extents::{Extents, pieces},
};

/// The number of headers that an open file of a dataset caches without [`CheckedFile::remember_headers`]. A header has
/// at most 2 KiB of checksums, and 0.5 KiB with blocks of 16 KiB.
const CACHED_HEADERS: usize = 64;
/// Bytes of a cached header beside its checksums.
const CACHED_HEADER_BYTES: usize = 96;
/// The number of headers that are read at once while extents are read in order. The headers lie side by side, and a
/// small read waits as long as the large ones before it: one read per header made scans slower by a third.
const HEADERS_AHEAD: u64 = 32;
/// The number of headers that are read at once while extents are read at random, which takes as long as one header.
const HEADERS_AROUND: u64 = 4;
/// The unit of checking of lists of references.
pub(crate) const LIST_BLOCK_BYTES: usize = PAGE_BYTES;

/// `CheckedFile` is a finished file. Clones share it, and any thread may read.
#[derive(Clone, Debug)]
pub struct CheckedFile(Arc<Inner>, Option<Arc<Held>>);

/// `Held` is the bytes of a file in memory, in pieces of [`HELD_PIECE_BYTES`].
#[derive(Debug)]
struct Held(Vec<Buffer>);

/// The size of a piece: a huge page.
const HELD_PIECE_BYTES: usize = 2 << 20;
/// The number of pieces that are allocated at once, since the number of mappings of a process is limited.
const HELD_PIECES: usize = 32;
/// The number of pieces whose reads are in flight at once.
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

/// `DatasetMap` holds the places and the expected content of the extents of a dataset's file.
#[derive(Debug)]
struct DatasetMap {
    refs: Refs,
    headers: Mutex<Headers>,
    /// The owner of the extents, which prevents their reuse.
    _kept: ExtentOwner,
}

/// The number of an extent, the place of its first copy, and the checksums of its blocks.
type CachedHeader = (u64, Place, Arc<[u32]>);

/// `Headers` caches headers that were read. Extent e is in slot e modulo the number of slots, if it is cached.
#[derive(Debug)]
struct Headers {
    slots: Vec<Option<CachedHeader>>,
    /// The numbers of the extents of the last batch that was read.
    last: Range<u64>,
    /// The memory for more slots than [`CACHED_HEADERS`].
    _reservation: Option<Reservation>,
}

impl Default for Headers {
    fn default() -> Self {
        Headers { slots: vec![None; CACHED_HEADERS], last: 0..0, _reservation: None }
    }
}

impl Headers {
    fn get(&self, extent: u64) -> Option<(Place, Arc<[u32]>)> {
        let (known, place, sums) = self.slots[extent as usize % self.slots.len()].as_ref()?;
        (*known == extent).then(|| (*place, sums.clone()))
    }

    fn put(&mut self, extent: u64, place: Place, sums: Arc<[u32]>) {
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
enum Refs {
    Here(Vec<ExtentRef>),
    /// The references are in a separate file.
    Listed(CheckedFile),
}

/// `ExtentOwner` is the owner of the extents of an open file: the commit of the dataset, or, before that commit, the lease of
/// the writer.
#[derive(Clone, Debug)]
pub(crate) enum ExtentOwner {
    Pin(#[allow(dead_code)] Arc<Pin>),
    Extents(#[allow(dead_code)] Vec<Arc<Extents>>),
}

impl CheckedFile {
    /// Opens a dataset's file as its record describes it. Errors call the file `name`.
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
        // A scratch file has no headers, so its identity is never used.
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

    /// Returns the file of the references, if they are in a separate file.
    pub(crate) fn list(&self) -> Option<&CheckedFile> {
        match &self.map().refs {
            Refs::Here(_) => None,
            Refs::Listed(list) => Some(list),
        }
    }

    /// Caches the headers of all extents now, so that each random read needs one request. The budget pays 4 bytes for
    /// each check block and 96 for each extent, and one page is read for each extent. If the budget has less, as many
    /// headers as fit are cached.
    ///
    /// # Errors
    /// I/O and damage.
    pub fn remember_headers(&self, job: &Job) -> Result<()> {
        let Map::Dataset(map) = &self.0.map else { return Ok(()) };
        let each = EXTENT_BYTES / self.0.layout.block_bytes * 4 + CACHED_HEADER_BYTES;
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

    /// Reads and checks the whole file, and returns it with its bytes in memory, so that later reads are copies. `each`
    /// is called with the length of each piece that was read.
    ///
    /// # Errors
    /// [`Error::OverBudget`]; [`Error::Io`] and [`Error::Damaged`]; cancellation.
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
        Ok(CheckedFile(self.0.clone(), Some(Arc::new(Held(pieces)))))
    }

    /// Returns the name of the file in errors: the name in the scratch folder, or `dataset/file`.
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

    /// Returns the unit of checking. Reads of whole, aligned blocks move no extra bytes.
    pub fn block_bytes(&self) -> usize {
        self.0.layout.block_bytes
    }

    /// Returns the length of the buffer that a read of `range` needs: the blocks that the range touches.
    pub fn read_bytes(&self, range: &Range<u64>) -> usize {
        let touched = self.touched(range);
        (touched.end - touched.start) as usize
    }

    /// Returns the bytes of the file that a read of `range` moves.
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
    fn device(&self, job: &Job, place: Place) -> Result<Arc<dyn Device>> {
        match job.device(place.device) {
            Err(Error::NoDevice { number }) if self.0.layout.redundancy.devices() > 1 => {
                Ok(Arc::new(Missing(number)))
            }
            device => device,
        }
    }

    /// Returns the place of a copy of an extent.
    pub(crate) fn place_of(&self, job: &Job, extent: u64, copy: usize) -> Result<Place> {
        match &self.0.map {
            Map::Scratch { extents, .. } => Ok(extents.take(extent)?[copy]),
            Map::Dataset(_) => Ok(self.references(job, extent, 1, copy)?[0].place),
        }
    }

    /// Returns the place of the first copy of an extent, and adds the recorded checksums of its `blocks` to `expected`.
    fn look_up(
        &self,
        job: &Job,
        extent: u64,
        blocks: Range<usize>,
        expected: &mut Vec<u32>,
    ) -> Result<Place> {
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

    /// Returns the references to a copy of `count` extents from `extent` on.
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

    /// Restores a part of an extent that is damaged or cannot be read, from other copies or parity. The result is
    /// checked and written over the damaged data.
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
            let whole = Whole { job, file: self, position: extent };
            let mut buffer = extent_buffer()?;
            if whole.restore(&mut buffer)? && is_right(&buffer[offset..offset + range.len()]) {
                bytes[range.clone()].copy_from_slice(&buffer[offset..offset + range.len()]);
                // A failed write is ignored, since the restored bytes are good.
                let _ = whole.rewrite(&buffer);
                job.counters().add_repair();
                return Ok(());
            }
            return Err(found);
        }
        for copy in 1..redundancy.copies() {
            let part_of = |place: Place, range: Range<usize>| {
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

impl DatasetMap {
    /// Returns the place of the first copy of an extent and the checksums of its blocks, from its header.
    fn look_up(&self, job: &Job, file: &CheckedFile, extent: u64) -> Result<(Place, Arc<[u32]>)> {
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
    fn make_header(&self, job: &Job, file: &CheckedFile, extent: u64) -> Result<Option<(Place, Arc<[u32]>)>> {
        let whole = Whole { job, file, position: extent };
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

/// Compares each block of `bytes` with its checksum.
fn check(name: &str, offset: u64, bytes: &[u8], block_bytes: usize, expected: &[u32]) -> Result<()> {
    for (number, (block, &expected)) in bytes.chunks(block_bytes).zip(expected).enumerate() {
        let found = crc32fast::hash(block);
        if found != expected {
            let offset = offset + (number * block_bytes) as u64;
            return Err(Error::Damaged { file: name.to_string(), offset, found, expected });
        }
    }
    Ok(())
}

impl Held {
    /// Copies the bytes from `start` on to `out`.
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

/// The origin of the bytes of a read.
#[derive(Debug)]
enum Source {
    Device(Pending),
    /// The bytes are copied and checked already.
    Held(Buffer),
}

/// `PendingRead` is a read in flight.
#[derive(Debug)]
pub struct PendingRead {
    source: Source,
    job: Job,
    file: CheckedFile,
    touched: Range<u64>,
    expected: Vec<u32>,
    wanted: Range<usize>,
}

impl PendingRead {
    /// Waits until one of several reads is done, and returns its index. Random reads do not always end in the order of
    /// their submission.
    ///
    /// # Panics
    /// Panics if `reads` is empty.
    pub fn wait_any(reads: &[PendingRead]) -> usize {
        let held = reads.iter().position(|read| matches!(read.source, Source::Held(_)));
        held.unwrap_or_else(|| {
            Pending::wait_any(reads.iter().filter_map(|read| match &read.source {
                Source::Device(pending) => Some(pending),
                Source::Held(_) => None,
            }))
        })
    }

    /// Waits for the read, checks the bytes, and returns the buffer with the range of the wanted bytes in it. If a
    /// dataset has redundancy, damaged or unreadable bytes are restored from it, and the first copy is repaired.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Damaged`].
    pub fn wait(self) -> Result<(Buffer, Range<usize>)> {
        let pending = match self.source {
            Source::Held(buffer) => return Ok((buffer, self.wanted)),
            Source::Device(pending) => pending,
        };
        let (mut buffer, result) = pending.wait();
        let (file, name) = (&self.file, &self.file.0.layout.name);
        let len = (self.touched.end - self.touched.start) as usize;
        let failed = result.err().map(|error| {
            Error::io(format!("read {len} bytes at {}", self.touched.start), PathBuf::from(name), error)
        });
        let has_failed = failed.is_some();
        if let Some(error) = failed
            && file.0.layout.redundancy.devices() == 1
        {
            return Err(error);
        }
        let block = file.0.layout.block_bytes;
        if !has_failed && check(name, self.touched.start, &buffer[..len], block, &self.expected).is_ok() {
            return Ok((buffer, self.wanted));
        }
        let mut sums = &self.expected[..];
        for (extent, offset, range) in pieces(self.touched.clone()) {
            let (expected, rest) = sums.split_at(range.len().div_ceil(block));
            sums = rest;
            let at = extent * EXTENT_BYTES as u64 + offset as u64;
            // After a failed read the buffer may hold anything, even valid bytes of an older read.
            if let Err(found) = check(name, at, &buffer[range.clone()], block, expected) {
                file.repair(&self.job, (extent, offset), &mut buffer, range, expected, found)?;
            }
        }
        Ok((buffer, self.wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Fault, Faulty, FileReader, FileWriter, Memory, Store, job::test_job};

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    fn write(job: &Job, bytes: &[u8], step: usize) -> Result<CheckedFile> {
        let mut writer = FileWriter::create(job, "file", 4096, 8192)?;
        for part in bytes.chunks(step) {
            writer.write(part)?;
        }
        writer.finish()
    }

    fn read(job: &Job, file: &CheckedFile, range: Range<u64>) -> Result<Vec<u8>> {
        let mut reader = FileReader::new(job, file, range, file.block_bytes().max(8192))?;
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next_piece()? {
            bytes.extend_from_slice(piece);
        }
        Ok(bytes)
    }

    /// Makes a store on a device that can fail, with a dataset `data` of one file `bytes`.
    fn with_dataset(bytes: &[u8]) -> (tempfile::TempDir, Faulty, Store, Job) {
        let folder = tempfile::tempdir().unwrap();
        let device = Faulty::new(Arc::new(Memory::new(512)), &[]);
        let store = Store::open_on(folder.path(), vec![Arc::new(device.clone())]).unwrap();
        let job = store.job(Budget::new(8 << 20, 1), Default::default()).unwrap();
        let mut builder = store.create_dataset(&job, "data", "test").unwrap();
        let mut writer = builder.file("bytes", 4096, 4096 * 64).unwrap();
        writer.write(bytes).unwrap();
        builder.add(writer).unwrap();
        builder.commit(&[]).unwrap();
        (folder, device, store, job)
    }

    #[test]
    fn written_bytes_are_read_back_in_any_range() {
        let (_folder, job) = test_job(1 << 20, &[]);
        for len in [0, 1, 4095, 4096, 4097, 8192, 50_000] {
            let bytes = pattern(len);
            let file = write(&job, &bytes, 777).unwrap();
            assert_eq!(file.len(), len as u64);
            for start in [0, 1, 4096, 8191, 20_000] {
                for end in [1, 4096, 8193, 33_333, len] {
                    let (start, end) = (start.min(len), end.min(len));
                    if start <= end {
                        let got = read(&job, &file, start as u64..end as u64).unwrap();
                        assert_eq!(got, &bytes[start..end], "{start}..{end} of {len}");
                    }
                }
            }
        }
        assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
    }

    #[test]
    fn a_file_in_memory_reads_as_it_does_on_its_drive() {
        let (_folder, job) = test_job(64 << 20, &[]);
        for len in [0, 1, 4097, HELD_PIECE_BYTES, HELD_PIECE_BYTES + 1, 5 * HELD_PIECE_BYTES + 4095] {
            let bytes = pattern(len);
            let file = write(&job, &bytes, 1 << 20).unwrap();
            let before = job.budget().reserved_bytes();
            let mut came = 0;
            let held = file.hold(&job, |bytes| came += bytes).unwrap();
            assert_eq!(came, len as u64);
            assert!(job.budget().reserved_bytes() - before <= CheckedFile::held_bytes(len as u64));
            let reads = job.counters().bytes_read();
            for start in [0, 1, 4096, HELD_PIECE_BYTES - 1, HELD_PIECE_BYTES, 3 * HELD_PIECE_BYTES + 7] {
                for end in [1, 4096, HELD_PIECE_BYTES + 1, len] {
                    let (start, end) = (start.min(len), end.min(len));
                    if start <= end {
                        let got = read(&job, &held, start as u64..end as u64).unwrap();
                        assert!(got == bytes[start..end], "{start}..{end} of {len}");
                    }
                }
            }
            assert_eq!(job.counters().bytes_read(), reads, "nothing more was read");
        }
        assert_eq!(job.budget().reserved_bytes(), 0);
    }

    #[test]
    fn a_damaged_file_is_not_held_in_memory() {
        let (_folder, device, store, job) = with_dataset(&pattern(100_000));
        let hold = || store.dataset("data").unwrap().file("bytes").unwrap().hold(&job, |_| {});
        device.set(&[]);
        hold().unwrap();
        let (reads, ..) = device.counts();
        assert!(reads >= 2, "a header and the bytes");
        // The bytes are read last.
        for fault in [Fault::FlipRead(reads - 1), Fault::FailRead(reads - 1)] {
            device.set(&[fault]);
            assert!(hold().is_err(), "{fault:?}");
        }
        device.set(&[]);
        assert_eq!(read(&job, &hold().unwrap(), 0..100_000).unwrap(), pattern(100_000));
    }

    #[test]
    fn buffers_and_reads_may_cross_the_borders_of_extents() {
        let bytes = pattern(3 * EXTENT_BYTES + 10_000);
        let (_folder, job) = test_job(32 << 20, &[]);
        let mut writer = FileWriter::create(&job, "file", 4096, 3 * 65536).unwrap();
        writer.write(&bytes).unwrap();
        let scratch = writer.finish().unwrap();
        let (_folder, _, store, other) = with_dataset(&bytes);
        let dataset = store.dataset("data").unwrap().file("bytes").unwrap();
        for (job, file) in [(&job, scratch), (&other, dataset)] {
            let border = EXTENT_BYTES as u64;
            for range in [0..bytes.len() as u64, border - 1..border + 1, border - 5000..2 * border + 5000] {
                let buffer = Buffer::zeroed(job.budget(), file.read_bytes(&range), "test");
                if let Ok(buffer) = buffer {
                    let (buffer, wanted) =
                        file.submit_read(job, range.clone(), buffer).unwrap().wait().unwrap();
                    assert!(buffer[wanted] == bytes[range.start as usize..range.end as usize], "{range:?}");
                }
                assert!(
                    read(job, &file, range.clone()).unwrap()
                        == bytes[range.start as usize..range.end as usize]
                );
            }
        }
    }

    #[test]
    fn every_faulty_read_and_write_is_an_error_and_never_wrong_bytes() {
        let bytes = pattern(100_000);
        let (_folder, job) = test_job(1 << 20, &[]);
        let file = write(&job, &bytes, 5000).unwrap();
        read(&job, &file, 0..100_000).unwrap();
        let faults = (0..13).flat_map(|n| {
            [
                Fault::FailRead(n),
                Fault::FailFromRead(n),
                Fault::FlipRead(n),
                Fault::MisdirectRead(n),
                Fault::FailWrite(n),
                Fault::FailFromWrite(n),
                Fault::DropWrite(n),
                Fault::MisdirectWrite(n),
                Fault::TearWrite(n),
                Fault::NoSpaceFromWrite(n),
            ]
        });
        for fault in faults {
            let (_folder, job) = test_job(1 << 20, &[fault]);
            let result = write(&job, &bytes, 5000).and_then(|file| read(&job, &file, 0..100_000));
            let error = result.expect_err(&format!("{fault:?}")).to_string();
            let told = match fault {
                Fault::NoSpaceFromWrite(_) => "No space left on device",
                Fault::FailRead(_) | Fault::FailFromRead(_) => "Input/output error",
                Fault::FailWrite(_) | Fault::FailFromWrite(_) => "Input/output error",
                _ => "damaged at offset",
            };
            assert!(error.contains(told), "{fault:?}: {error}");
            // A read-ahead that was in flight has ended.
            assert_eq!(job.budget().reserved_bytes(), 0, "{fault:?}");
        }
    }

    #[test]
    fn every_faulty_read_of_a_dataset_is_an_error_and_never_wrong_bytes() {
        let bytes = pattern(EXTENT_BYTES + 20_000);
        let (_folder, device, store, job) = with_dataset(&bytes);
        let all = 0..bytes.len() as u64;
        let open = || store.dataset("data").unwrap().file("bytes").unwrap();
        let file = open();
        device.set(&[]);
        assert!(read(&job, &file, all.clone()).unwrap() == bytes);
        let reads = device.counts().0;
        assert!(reads > 256, "{reads} reads");
        for n in (0..reads).step_by(7).chain([reads - 1]) {
            for fault in [Fault::FailRead(n), Fault::FlipRead(n), Fault::MisdirectRead(n)] {
                device.set(&[]);
                let file = open();
                device.set(&[fault]);
                // A header that was read ahead is read again when it is needed.
                if let Ok(found) = read(&job, &file, all.clone()) {
                    assert!(n == 0 && found == bytes, "{fault:?}");
                }
            }
        }
    }

    #[test]
    fn a_file_with_a_list_of_extents_is_read_back() {
        // The file has 130 extents and is read at a few places only, so that memory stays small.
        let (_folder, _, store, job) = with_dataset(b"");
        let mut builder = store.create_dataset(&job, "large", "test").unwrap();
        let mut writer = builder.file("bytes", 65536, 1 << 20).unwrap();
        let block = pattern(1 << 20);
        (0..260).for_each(|_| writer.write(&block).unwrap());
        writer.write(b"the end").unwrap();
        builder.add(writer).unwrap();
        builder.commit(&[]).unwrap();
        let dataset = store.dataset("large").unwrap();
        let file = dataset.file("bytes").unwrap();
        let len = file.len();
        assert_eq!(read(&job, &file, len - 7..len).unwrap(), b"the end");
        assert!(read(&job, &file, 200 << 20..(200 << 20) + 9999).unwrap() == block[..9999]);
        let found = dataset.locate(&job, &file, len - 9..len + 5).unwrap();
        let pieces: Vec<_> =
            found.iter().map(|place| (place.len, place.places.len(), place.extent_offset)).collect();
        assert_eq!(pieces, [(2, 1, EXTENT_BYTES as u64 - 2), (7, 1, 0)]);
    }

    #[test]
    fn a_faulty_device_counts_what_it_saw() {
        let (_folder, device, _store, job) = with_dataset(b"");
        job.lease().release(job.lease().take(&[]).unwrap());
        device.set(&[]);
        write(&job, &pattern(20_000), 20_000).unwrap();
        assert_eq!(device.counts().1, 3);
    }
}

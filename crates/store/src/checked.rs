//! Files whose every byte is checked when it is read back.
//!
//! A file is a list of extents, cut into blocks of 4 KiB to 2 MiB; the last block is padded with zeros to 4 KiB. A
//! checksum is kept in the reference to the data and never beside it, which also catches a read that went to the wrong
//! place or gave an older version:
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

use crate::{
    Buffer, EXTENT_BYTES, Error, ExtentRef, FileRecord, Job, Place, Reservation, Result,
    catalog::{REF_BYTES, REFS_INLINE},
    header::Header,
    io::{Direction, Part, Pending},
    lease::Lease,
    log::metadata_buffer,
    shared::{HEADER_BYTES, Pin, Shared, header_of},
};

/// The unit of O_DIRECT: offsets and lengths of all I/O are multiples of it.
pub const PAGE_BYTES: usize = 4096;
/// Headers that an open file of a dataset remembers: 2 KiB of checksums each at most, 0.5 KiB at 16 KiB a block.
const CACHED_HEADERS: usize = 64;
/// Headers that are read at once where extents are read in order. They lie side by side, and a small read waits as long
/// as the large ones before it: one for each extent made scans slower by a third.
const HEADERS_AHEAD: u64 = 32;
/// The same where extents are read here and there: as quick as one.
const HEADERS_AROUND: u64 = 4;
/// The reservation for a writer's checksums grows in steps of this size.
const SUMS_STEP: usize = 4096;

/// The extents of a file in order, as the copies of the first, then those of the second, and so on. What was taken
/// from a job's lease goes back to it in the end, unless a dataset took it over.
#[derive(Debug)]
pub(crate) struct Extents {
    copies: usize,
    places: Mutex<Vec<Place>>,
    lease: Mutex<Option<Arc<Lease>>>,
}

impl Extents {
    pub fn of_lease(lease: &Arc<Lease>, copies: usize) -> Arc<Extents> {
        Arc::new(Extents { copies, places: Mutex::default(), lease: Mutex::new(Some(lease.clone())) })
    }

    /// Where the copies of extent `index` lie; takes extents up to that one where there are fewer.
    pub fn take(&self, index: usize) -> Result<Vec<Place>> {
        let mut places = self.places.lock().expect("no panic under this lock");
        while places.len() < (index + 1) * self.copies {
            let lease = self.lease.lock().expect("no panic under this lock");
            let lease = lease.as_ref().expect("a file that grows has a lease");
            let avoid: Vec<u16> =
                places[places.len() / self.copies * self.copies..].iter().map(|place| place.device).collect();
            let place = lease.take(&avoid)?;
            places.push(place);
        }
        Ok(places[index * self.copies..(index + 1) * self.copies].to_vec())
    }

    /// All that were taken.
    pub fn places(&self) -> Vec<Place> {
        self.places.lock().expect("no panic under this lock").clone()
    }

    /// A dataset has them now.
    pub fn keep(&self) {
        *self.lease.lock().expect("no panic under this lock") = None;
    }
}

impl Drop for Extents {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.get_mut().expect("no panic under this lock") {
            let places = self.places.get_mut().expect("no panic under this lock");
            places.iter().for_each(|&place| lease.give_back(place));
        }
    }
}

/// The pieces of `bytes` of a file, none of which crosses a border between extents: the number of the extent, the
/// offset in it, and the range in a buffer that holds `bytes`.
pub(crate) fn pieces(bytes: Range<u64>) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut next = bytes.start;
    std::iter::from_fn(move || {
        if next >= bytes.end {
            return None;
        }
        let (extent, offset) = (next / EXTENT_BYTES as u64, (next % EXTENT_BYTES as u64) as usize);
        let end = bytes.end.min((extent + 1) * EXTENT_BYTES as u64);
        let range = (next - bytes.start) as usize..(end - bytes.start) as usize;
        next = end;
        Some((extent, offset, range))
    })
}

/// A finished file. Clones share it; any thread may read.
#[derive(Clone, Debug)]
pub struct CheckedFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    len: u64,
    block_bytes: usize,
    map: Map,
}

#[derive(Debug)]
enum Map {
    Scratch { extents: Arc<Extents>, sums: Vec<u32>, _reservation: Reservation },
    Dataset(Box<DatasetMap>),
}

/// Where the extents of a dataset's file lie and what they must contain.
#[derive(Debug)]
struct DatasetMap {
    shared: Arc<Shared>,
    identity: Identity,
    copies: usize,
    refs: Refs,
    headers: Mutex<Headers>,
    /// What keeps the extents from being used for something else.
    _kept: Kept,
}

/// The number of an extent, where its first copy lies, and the checksums of its blocks.
type CachedHeader = (u64, Place, Arc<[u32]>);

/// Headers that were read.
#[derive(Debug)]
struct Headers {
    slots: [Option<CachedHeader>; CACHED_HEADERS],
    /// The first extent of the last batch that was read, and the one after it.
    last: Range<u64>,
}

impl Default for Headers {
    fn default() -> Self {
        Headers { slots: [const { None }; CACHED_HEADERS], last: 0..0 }
    }
}

impl Headers {
    fn get(&self, extent: u64) -> Option<(Place, Arc<[u32]>)> {
        let (known, place, sums) = self.slots[extent as usize % CACHED_HEADERS].as_ref()?;
        (*known == extent).then(|| (*place, sums.clone()))
    }

    fn put(&mut self, extent: u64, place: Place, sums: Arc<[u32]>) {
        self.slots[extent as usize % CACHED_HEADERS] = Some((extent, place, sums));
    }

    /// How many to read for `extent`, which is not here: many where it follows those that were read last.
    fn batch(&mut self, extent: u64) -> u64 {
        let follows = (self.last.start..=self.last.end + HEADERS_AROUND).contains(&extent);
        let count = if follows { HEADERS_AHEAD } else { HEADERS_AROUND };
        self.last = extent..extent + count;
        count
    }
}

/// What a header must say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub dataset: u64,
    pub file: u32,
    pub level: u8,
}

#[derive(Debug)]
enum Refs {
    Here(Vec<ExtentRef>),
    /// In a file of references.
    Listed(CheckedFile),
}

/// What an open file of a dataset holds on to: the commit that it belongs to, or, before that commit, its writer's
/// lease.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Pin(#[allow(dead_code)] Arc<Pin>),
    Extents(#[allow(dead_code)] Vec<Arc<Extents>>),
}

impl CheckedFile {
    /// Opens a dataset's file as its record describes it. `name` is what errors call it.
    pub(crate) fn of_record(
        shared: &Arc<Shared>,
        name: String,
        record: &FileRecord,
        identity: Identity,
        copies: usize,
        kept: Kept,
    ) -> Self {
        let refs = if record.level == 0 {
            Refs::Here(record.refs.clone())
        } else {
            let len = record.extents() * (copies * REF_BYTES) as u64;
            let list = FileRecord {
                name: String::new(),
                len,
                level: 0,
                block_bytes: LIST_BLOCK_BYTES as u32,
                refs: record.refs.clone(),
            };
            let identity = Identity { level: 1, ..identity };
            let name = format!("{name} (list of extents)");
            Refs::Listed(Self::of_record(shared, name, &list, identity, copies, kept.clone()))
        };
        let map = DatasetMap {
            shared: shared.clone(),
            identity,
            copies,
            refs,
            headers: Mutex::default(),
            _kept: kept,
        };
        let (len, block_bytes) = (record.len, record.block_bytes as usize);
        CheckedFile(Arc::new(Inner { name, len, block_bytes, map: Map::Dataset(Box::new(map)) }))
    }

    /// What errors call it: the name in the scratch folder, or `dataset/file`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The unit of checking: reads of whole, aligned blocks waste nothing.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    /// Bytes that a buffer must hold to read `range`: the blocks that it touches.
    pub fn read_bytes(&self, range: &Range<u64>) -> usize {
        let touched = self.touched(range);
        (touched.end - touched.start) as usize
    }

    /// The bytes of the file that a read of `range` moves.
    fn touched(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.0.block_bytes as u64;
        let end = range.end.next_multiple_of(block).min(self.0.len.next_multiple_of(PAGE_BYTES as u64));
        range.start / block * block..end
    }

    /// Starts to read the blocks that `range` touches into `buffer`.
    ///
    /// # Panics
    /// Where the range is empty or ends after the file, or the buffer is smaller than [`Self::read_bytes`].
    pub fn submit_read(&self, job: &Job, range: Range<u64>, buffer: Buffer) -> Result<PendingRead> {
        assert!(range.start < range.end && range.end <= self.0.len, "read of {range:?} of {}", self.0.len);
        let touched = self.touched(&range);
        let len = (touched.end - touched.start) as usize;
        assert!(buffer.len() >= len, "buffer of {} bytes for {len}", buffer.len());
        let start = (range.start - touched.start) as usize;
        let (mut parts, mut expected) = (Vec::new(), Vec::new());
        for (extent, offset, range) in pieces(touched.clone()) {
            let blocks = offset / self.0.block_bytes..(offset + range.len()).div_ceil(self.0.block_bytes);
            let place = self.look_up(job, extent, blocks, &mut expected)?;
            let device = job.device(place.device)?;
            parts.push(Part { device, extent: place.extent, offset, range });
        }
        let extents = match &self.0.map {
            Map::Scratch { extents, .. } => Some(extents.clone()),
            Map::Dataset(_) => None,
        };
        Ok(PendingRead {
            pending: job.submit(Direction::Read, parts, buffer, extents),
            job: job.clone(),
            file: self.clone(),
            touched,
            expected,
            wanted: start..start + (range.end - range.start) as usize,
        })
    }

    /// Where a copy of an extent lies.
    pub(crate) fn place_of(&self, job: &Job, extent: u64, copy: usize) -> Result<Place> {
        match &self.0.map {
            Map::Scratch { extents, .. } => Ok(extents.take(extent as usize)?[copy]),
            Map::Dataset(map) => Ok(map.references(job, extent, 1, copy)?[0].place),
        }
    }

    /// Where the first copy of an extent lies; adds the recorded checksums of `blocks` of it to `expected`.
    fn look_up(
        &self,
        job: &Job,
        extent: u64,
        blocks: Range<usize>,
        expected: &mut Vec<u32>,
    ) -> Result<Place> {
        match &self.0.map {
            Map::Scratch { sums, extents, .. } => {
                let first = extent as usize * (EXTENT_BYTES / self.0.block_bytes);
                expected.extend_from_slice(&sums[first + blocks.start..first + blocks.end]);
                Ok(extents.take(extent as usize)?[0])
            }
            Map::Dataset(map) => {
                let (place, sums) = map.look_up(job, self, extent)?;
                let missing = || self.damaged_header(extent, "too few checksums");
                expected.extend_from_slice(sums.get(blocks).ok_or_else(missing)?);
                Ok(place)
            }
        }
    }

    fn damaged_header(&self, extent: u64, what: &str) -> Error {
        Error::DamagedHeader {
            file: self.0.name.clone(),
            offset: extent * EXTENT_BYTES as u64,
            what: what.to_string(),
        }
    }

    fn copies(&self) -> usize {
        match &self.0.map {
            Map::Scratch { .. } => 1,
            Map::Dataset(map) => map.copies,
        }
    }

    /// Reads a part of an extent from another copy, checks it, and writes it over the first one, which was damaged or
    /// cannot be read.
    fn repair(
        &self,
        job: &Job,
        (extent, offset): (u64, usize),
        bytes: &mut Buffer,
        range: Range<usize>,
        expected: &[u32],
        found: Error,
    ) -> Result<()> {
        for copy in 1..self.copies() {
            let part = |place: Place, range: Range<usize>| {
                let device = job.device(place.device)?;
                Ok::<_, Error>(Part { device, extent: place.extent, offset, range })
            };
            let other = part(self.place_of(job, extent, copy)?, range.clone())?;
            if other.transfer(Direction::Read, bytes).is_err() {
                continue;
            }
            let at = extent * EXTENT_BYTES as u64 + offset as u64;
            if check(&self.0.name, at, &bytes[range.clone()], self.0.block_bytes, expected).is_ok() {
                // That a device cannot be written any more is no reason to keep back what the other one knows.
                if let Ok(first) = part(self.place_of(job, extent, 0)?, range) {
                    let _ = first.transfer(Direction::Write, bytes);
                }
                job.counters().add_repair();
                return Ok(());
            }
        }
        Err(found)
    }
}

impl DatasetMap {
    /// References to `count` extents from `extent` on.
    fn references(&self, job: &Job, extent: u64, count: u64, copy: usize) -> Result<Vec<ExtentRef>> {
        match &self.refs {
            Refs::Here(refs) => {
                let first = copy * (refs.len() / self.copies) + extent as usize;
                Ok(refs[first..first + count as usize].to_vec())
            }
            Refs::Listed(list) => {
                let all = list.len() / (self.copies * REF_BYTES) as u64;
                let first = copy as u64 * all + extent;
                let range = first * REF_BYTES as u64..(first + count) * REF_BYTES as u64;
                let buffer = metadata_buffer(list.read_bytes(&range))?;
                let (bytes, wanted) = list.submit_read(job, range, buffer)?.wait()?;
                let references = bytes[wanted].chunks_exact(REF_BYTES);
                Ok(references.map(|bytes| ExtentRef::decode(bytes).expect("12 bytes")).collect())
            }
        }
    }

    /// Where the first copy of an extent lies, and the checksums of its blocks, from its header.
    fn look_up(&self, job: &Job, file: &CheckedFile, extent: u64) -> Result<(Place, Arc<[u32]>)> {
        let count = {
            let mut headers = self.headers.lock().expect("no panic under this lock");
            if let Some(found) = headers.get(extent) {
                return Ok(found);
            }
            headers.batch(extent).min(file.len().div_ceil(EXTENT_BYTES as u64) - extent)
        };
        let mut found = None;
        for copy in 0..self.copies {
            match self.read_headers(job, file, extent, count, copy) {
                Ok(read) => {
                    let places = match copy {
                        0 => read.iter().map(|(place, _)| *place).collect(),
                        _ => vec![self.references(job, extent, 1, 0)?[0].place],
                    };
                    let mut headers = self.headers.lock().expect("no panic under this lock");
                    for ((extent, &place), (_, sums)) in (extent..).zip(&places).zip(&read) {
                        headers.put(extent, place, sums.clone());
                    }
                    return Ok((places[0], read[0].1.clone()));
                }
                Err(error) => found = Some(error),
            }
        }
        Err(found.expect("at least one copy"))
    }

    /// The checksums of `extent` and of up to `count` extents from there on whose headers lie side by side.
    fn read_headers(
        &self,
        job: &Job,
        file: &CheckedFile,
        extent: u64,
        count: u64,
        copy: usize,
    ) -> Result<Vec<(Place, Arc<[u32]>)>> {
        let mut references = self.references(job, extent, count, copy)?;
        let first = references[0];
        let (header_extent, offset) = header_of(first.place.extent);
        let follows = |(next, reference): (u32, &ExtentRef)| {
            let place = Place { extent: first.place.extent + next, ..first.place };
            reference.place == place && header_of(place.extent).0 == header_extent
        };
        let beside = (0..).zip(&references).take_while(|&pair| follows(pair)).count();
        references.truncate(beside);
        let device = self.shared.device(first.place.device)?;
        let len = references.len() * HEADER_BYTES;
        let part = Part { device: device.clone(), extent: header_extent, offset, range: 0..len };
        let (pages, result) = job.submit(Direction::Read, vec![part], metadata_buffer(len)?, None).wait();
        result.map_err(|error| {
            Error::io("read the header of an extent", PathBuf::from(device.name()), error)
        })?;
        let mut all = Vec::with_capacity(references.len());
        for ((extent, reference), page) in (extent..).zip(references).zip(pages.chunks(HEADER_BYTES)) {
            match self.decode_header(file, extent, reference, page) {
                Ok(sums) => all.push((reference.place, sums)),
                // One that is damaged is an error for whoever needs it.
                Err(error) if all.is_empty() => return Err(error),
                Err(_) => break,
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
        let header = Header::decode(page).ok_or_else(|| file.damaged_header(extent, "not a header"))?;
        let identity = self.identity;
        let expected = (reference.place, identity.dataset, identity.file, identity.level, extent);
        if (header.place, header.dataset, header.file, header.level, header.index) != expected {
            return Err(file.damaged_header(extent, "it is that of another extent"));
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

/// A read on its way.
#[derive(Debug)]
pub struct PendingRead {
    pending: Pending,
    job: Job,
    file: CheckedFile,
    touched: Range<u64>,
    expected: Vec<u32>,
    wanted: Range<usize>,
}

impl PendingRead {
    /// Waits, checks, and gives the buffer back with the place of the wanted bytes in it. Where a dataset has a second
    /// copy, what is damaged or cannot be read comes from there, and the first one is repaired.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Damaged`].
    pub fn wait(self) -> Result<(Buffer, Range<usize>)> {
        let (mut buffer, result) = self.pending.wait();
        let (file, name) = (&self.file, &self.file.0.name);
        let len = (self.touched.end - self.touched.start) as usize;
        let failed = result.err().map(|error| {
            Error::io(format!("read {len} bytes at {}", self.touched.start), PathBuf::from(name), error)
        });
        let has_failed = failed.is_some();
        if let Some(error) = failed
            && file.copies() == 1
        {
            return Err(error);
        }
        let block = file.0.block_bytes;
        if !has_failed && check(name, self.touched.start, &buffer[..len], block, &self.expected).is_ok() {
            return Ok((buffer, self.wanted));
        }
        let mut sums = &self.expected[..];
        for (extent, offset, range) in pieces(self.touched.clone()) {
            let (expected, rest) = sums.split_at(range.len().div_ceil(block));
            sums = rest;
            let at = extent * EXTENT_BYTES as u64 + offset as u64;
            // After a failed read the buffer may hold anything, right bytes of an older read too.
            if let Err(found) = check(name, at, &buffer[range.clone()], block, expected) {
                file.repair(&self.job, (extent, offset), &mut buffer, range, expected, found)?;
            }
        }
        Ok((buffer, self.wanted))
    }
}

/// The unit of checking of lists of references.
const LIST_BLOCK_BYTES: usize = PAGE_BYTES;
/// The unit of writing of lists of references.
const LIST_BUFFER_BYTES: usize = 16 * PAGE_BYTES;

/// Writes a file from start to end. Two buffers: one is filled while the other is on its way to the device.
#[derive(Debug)]
pub struct FileWriter {
    job: Job,
    name: String,
    block_bytes: usize,
    extents: Arc<Extents>,
    /// Whose file it is, and the references to the extents that are full; `None`: scratch.
    dataset: Option<(Identity, Vec<Vec<ExtentRef>>)>,
    filling: Option<Buffer>,
    filled: usize,
    flying: Flying,
    /// Headers on their way.
    headers: Vec<Pending>,
    offset: u64,
    /// Of the whole file in scratch, of the last extent in a dataset.
    sums: Vec<u32>,
    reservation: Reservation,
}

#[derive(Debug)]
enum Flying {
    Idle(Option<Buffer>),
    Busy { pending: Pending, offset: u64, len: usize },
}

/// Headers that may be on their way at once.
const FLYING_HEADERS: usize = 4;

impl FileWriter {
    /// Begins a scratch file. `name` is what errors call it; `block_bytes` is the unit of checking (4 KiB times a
    /// power of two, up to 2 MiB) and `buffer_bytes` the unit of writing, a multiple of that. Takes twice
    /// `buffer_bytes` from the job's budget, and 4 bytes for each block written.
    pub fn create(job: &Job, name: &str, block_bytes: usize, buffer_bytes: usize) -> Result<FileWriter> {
        let extents = Extents::of_lease(job.lease(), 1);
        Self::new(job, name.to_string(), block_bytes, buffer_bytes, extents, None)
    }

    pub(crate) fn of_dataset(
        job: &Job,
        name: String,
        identity: Identity,
        copies: usize,
        block_bytes: usize,
        buffer_bytes: usize,
    ) -> Result<FileWriter> {
        let extents = Extents::of_lease(job.lease(), copies);
        let dataset = Some((identity, vec![Vec::new(); copies]));
        Self::new(job, name, block_bytes, buffer_bytes, extents, dataset)
    }

    fn new(
        job: &Job,
        name: String,
        block_bytes: usize,
        buffer_bytes: usize,
        extents: Arc<Extents>,
        dataset: Option<(Identity, Vec<Vec<ExtentRef>>)>,
    ) -> Result<FileWriter> {
        let good = block_bytes.is_power_of_two() && (PAGE_BYTES..=EXTENT_BYTES).contains(&block_bytes);
        assert!(good, "block of {block_bytes} bytes");
        assert!(
            buffer_bytes > 0 && buffer_bytes.is_multiple_of(block_bytes),
            "buffer of {buffer_bytes} bytes"
        );
        let mut buffers =
            Buffer::zeroed(job.budget(), 2 * buffer_bytes, "a file's write buffers")?.split(buffer_bytes);
        Ok(FileWriter {
            job: job.clone(),
            name,
            block_bytes,
            extents,
            dataset,
            filling: buffers.pop(),
            filled: 0,
            flying: Flying::Idle(buffers.pop()),
            headers: Vec::new(),
            offset: 0,
            sums: Vec::new(),
            reservation: job.budget().reserve(0, "a file's checksums")?,
        })
    }

    /// The number of the file in its dataset.
    pub(crate) fn number(&self) -> u32 {
        self.dataset.as_ref().expect("a file of a dataset").0.file
    }

    /// Bytes written so far.
    pub fn len(&self) -> u64 {
        self.offset + self.filled as u64
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`Error::Io`] of this or an earlier write; [`Error::NoSpace`]; [`Error::Cancelled`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let buffer = self.filling.as_mut().expect("only empty inside flush");
            let part = bytes.len().min(buffer.len() - self.filled);
            buffer[self.filled..self.filled + part].copy_from_slice(&bytes[..part]);
            self.filled += part;
            bytes = &bytes[part..];
            if self.filled == buffer.len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let mut buffer = self.filling.take().expect("a buffer outside flush");
        let len = self.filled.next_multiple_of(PAGE_BYTES);
        buffer[self.filled..len].fill(0);
        if (self.sums.len() + len.div_ceil(self.block_bytes)) * 4 > self.reservation.bytes() as usize {
            self.reservation.resize(self.reservation.bytes() + SUMS_STEP as u64)?;
        }
        let mut parts = Vec::new();
        for (extent, offset, range) in pieces(self.offset..self.offset + len as u64) {
            if offset == 0 && extent > 0 {
                self.end_extent(extent - 1, EXTENT_BYTES)?;
            }
            self.sums.extend(buffer[range.clone()].chunks(self.block_bytes).map(crc32fast::hash));
            for place in self.extents.take(extent as usize)? {
                let device = self.job.device(place.device)?;
                parts.push(Part { device, extent: place.extent, offset, range: range.clone() });
            }
        }
        self.filling = Some(self.land()?);
        let pending = self.job.submit(Direction::Write, parts, buffer, Some(self.extents.clone()));
        self.flying = Flying::Busy { pending, offset: self.offset, len };
        self.offset += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes the headers of an extent that is full, or is the last.
    fn end_extent(&mut self, extent: u64, used: usize) -> Result<()> {
        let Some((identity, refs)) = &mut self.dataset else { return Ok(()) };
        let sums = std::mem::take(&mut self.sums);
        for (place, refs) in self.extents.take(extent as usize)?.into_iter().zip(refs) {
            let header = Header {
                place,
                dataset: identity.dataset,
                file: identity.file,
                level: identity.level,
                index: extent,
                used: used as u32,
                block_bytes: self.block_bytes as u32,
                sums: sums.clone(),
            };
            let mut page = metadata_buffer(HEADER_BYTES)?;
            page.copy_from_slice(&header.encode());
            refs.push(ExtentRef { place, header_sum: crc32fast::hash(&page) });
            let (header_extent, offset) = header_of(place.extent);
            let device = self.job.device(place.device)?;
            let part = Part { device, extent: header_extent, offset, range: 0..HEADER_BYTES };
            if self.headers.len() == FLYING_HEADERS {
                land_header(&self.name, self.headers.remove(0))?;
            }
            let extents = Some(self.extents.clone());
            self.headers.push(self.job.submit(Direction::Write, vec![part], page, extents));
        }
        Ok(())
    }

    /// Waits for the write on its way and gives its buffer.
    fn land(&mut self) -> Result<Buffer> {
        match std::mem::replace(&mut self.flying, Flying::Idle(None)) {
            Flying::Idle(buffer) => Ok(buffer.expect("two buffers")),
            Flying::Busy { pending, offset, len } => {
                let (buffer, result) = pending.wait();
                result.map_err(|error| {
                    Error::io(format!("write {len} bytes at {offset}"), PathBuf::from(&self.name), error)
                })?;
                Ok(buffer)
            }
        }
    }

    fn complete(&mut self) -> Result<()> {
        if self.filled > 0 {
            self.flush()?;
        }
        self.land().map(drop)
    }

    /// Ends a scratch file: its checksums stay in memory, and nothing is made durable. Its extents are free again
    /// once it is dropped.
    ///
    /// # Errors
    /// [`Error::Io`] of a write that was still on its way.
    pub fn finish(mut self) -> Result<CheckedFile> {
        assert!(self.dataset.is_none(), "a dataset's file is ended by its builder");
        self.complete()?;
        // Many small scratch files may be open at once: none keeps a whole step.
        self.reservation.resize(self.sums.len() as u64 * 4)?;
        let map = Map::Scratch { extents: self.extents, sums: self.sums, _reservation: self.reservation };
        let (name, len, block_bytes) = (self.name, self.offset, self.block_bytes);
        Ok(CheckedFile(Arc::new(Inner { name, len, block_bytes, map })))
    }

    /// Ends a dataset's file: gives what the log keeps, and the extents that the commit takes over. Nothing is
    /// durable before that.
    pub(crate) fn seal(mut self) -> Result<(FileRecord, Vec<Arc<Extents>>)> {
        self.complete()?;
        if self.offset > 0 {
            let last = (self.offset - 1) / EXTENT_BYTES as u64;
            self.end_extent(last, (self.offset - last * EXTENT_BYTES as u64) as usize)?;
        }
        for pending in self.headers.drain(..) {
            land_header(&self.name, pending)?;
        }
        let (identity, refs) = self.dataset.take().expect("a scratch file is finished, not sealed");
        let copies = refs.len();
        let mut record = FileRecord {
            name: self.name.clone(),
            len: self.offset,
            block_bytes: self.block_bytes as u32,
            level: 0,
            refs: refs.into_iter().flatten().collect(),
        };
        let mut extents = vec![self.extents.clone()];
        if record.refs.len() > REFS_INLINE {
            let identity = Identity { level: 1, ..identity };
            let mut list = FileWriter::of_dataset(
                &self.job,
                format!("{} (list of extents)", self.name),
                identity,
                copies,
                LIST_BLOCK_BYTES,
                LIST_BUFFER_BYTES,
            )?;
            for reference in &record.refs {
                list.write(&reference.encode())?;
            }
            let (listed, more) = list.seal()?;
            assert!(listed.level == 0, "a file of {} extents", record.extents());
            (record.level, record.refs) = (1, listed.refs);
            extents.extend(more);
        }
        Ok((record, extents))
    }
}

fn land_header(name: &str, pending: Pending) -> Result<()> {
    pending.wait().1.map_err(|error| Error::io("write the header of an extent", PathBuf::from(name), error))
}

/// Streams a range of a file. One buffer is read by the caller while the others are on their way.
#[derive(Debug)]
pub struct FileReader {
    job: Job,
    file: CheckedFile,
    buffer_bytes: usize,
    spare: Vec<Buffer>,
    ahead: std::collections::VecDeque<PendingRead>,
    current: Option<Buffer>,
    next: u64,
    end: u64,
}

impl FileReader {
    /// Reads `range` through two buffers of `buffer_bytes` (a multiple of the file's block) from the budget.
    pub fn new(job: &Job, file: &CheckedFile, range: Range<u64>, buffer_bytes: usize) -> Result<FileReader> {
        let buffers = Buffer::zeroed(job.budget(), 2 * buffer_bytes, "a file's read buffers")?;
        Self::with_buffers(job, file, range, buffers.split(buffer_bytes))
    }

    /// Reads `range` through `buffers`: at least one, all of one size, a multiple of the file's block.
    pub fn with_buffers(
        job: &Job,
        file: &CheckedFile,
        range: Range<u64>,
        buffers: Vec<Buffer>,
    ) -> Result<FileReader> {
        let buffer_bytes = buffers[0].len();
        assert!(buffer_bytes.is_multiple_of(file.block_bytes()), "buffer of {buffer_bytes} bytes");
        assert!(buffers.iter().all(|buffer| buffer.len() == buffer_bytes));
        assert!(range.end <= file.len(), "{range:?} of {}", file.len());
        let mut reader = FileReader {
            job: job.clone(),
            file: file.clone(),
            buffer_bytes,
            spare: buffers,
            ahead: Default::default(),
            current: None,
            next: range.start,
            end: range.end,
        };
        reader.read_ahead()?;
        Ok(reader)
    }

    fn read_ahead(&mut self) -> Result<()> {
        while self.next < self.end {
            let Some(buffer) = self.spare.pop() else { break };
            // Up to the next multiple of the buffer's size, so that all reads but the first are aligned.
            let end = (self.next / self.buffer_bytes as u64 + 1) * self.buffer_bytes as u64;
            let range = self.next..end.min(self.end);
            self.next = range.end;
            self.ahead.push_back(self.file.submit_read(&self.job, range, buffer)?);
        }
        Ok(())
    }

    /// The next piece: up to the next multiple of the buffer's size. `None` at the end of the range.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`], [`Error::Cancelled`].
    pub fn next_piece(&mut self) -> Result<Option<&[u8]>> {
        self.job.check_cancelled()?;
        self.spare.extend(self.current.take());
        self.read_ahead()?;
        let Some(pending) = self.ahead.pop_front() else { return Ok(None) };
        let (buffer, wanted) = pending.wait()?;
        let buffer = self.current.insert(buffer);
        Ok(Some(&buffer[wanted]))
    }

    /// The buffers, for the next reader.
    pub fn into_buffers(mut self) -> Result<Vec<Buffer>> {
        for pending in self.ahead.drain(..) {
            self.spare.push(pending.wait()?.0);
        }
        self.spare.extend(self.current.take());
        Ok(self.spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Fault, Faulty, Memory, Store, job::test_job};

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

    /// A store on a device that can fail, with a dataset `data` of one file `bytes`.
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
    fn what_was_written_is_read_back_in_any_range() {
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
            // A read-ahead may still be on its way: it ends before the job does.
            let budget = job.budget().clone();
            drop(job);
            assert_eq!(budget.reserved_bytes(), 0, "{fault:?}");
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
        // 130 extents: the file is never touched but at a few places, so that memory stays small.
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
        let (places, offset) = dataset.locate(&job, &file, len - 1).unwrap();
        assert_eq!((places.len(), offset), (1, 6));
    }

    #[test]
    fn a_faulty_device_counts_what_it_saw() {
        let (_folder, device, _store, job) = with_dataset(b"");
        job.lease().give_back(job.lease().take(&[]).unwrap());
        device.set(&[]);
        write(&job, &pattern(20_000), 20_000).unwrap();
        assert_eq!(device.counts().1, 3);
    }
}

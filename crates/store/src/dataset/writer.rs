//! A file writer writes a new file from start to end, or appends to a file.
//!
//! ```text
//!   write ─► buffer ─► checksums of its blocks ─► device        some buffers are in flight while one is filled
//!                      extent full ─► header ─► reference       once for each 2 MiB, and at the end
//!                      group full  ─► parity                    with Reed-Solomon only
//! ```

use std::{collections::VecDeque, path::PathBuf, sync::Arc};

use inshore_runtime::{Direction, Pending};

use crate::{
    Buffer, CheckedFile, EXTENT_BYTES, Error, ExtentAddress, ExtentRef, FileRecord, Job, PAGE_BYTES,
    Redundancy, Reservation, Result,
    dataset::checked::LIST_BLOCK_BYTES,
    dataset::layout::{DATA, ExtentShape, Identity, PARITY},
    device::{metadata_buffer, part},
    log::catalog::REFS_INLINE,
    redundancy::parity::Stripe,
    shared::{HEADER_BYTES, header_of},
    space::extents::{Extents, pieces},
    space::lease::Lease,
};

/// The size in bytes of the writes to lists of references.
const LIST_BUFFER_BYTES: usize = 16 * PAGE_BYTES;
/// The reservation for the checksums of a writer grows in steps of this number of bytes.
const SUMS_STEP: usize = 4096;
/// The largest number of extent headers whose writes are in flight.
const HEADERS_IN_FLIGHT_MAX: usize = 4;

/// `FileWriter` writes a file. While the caller fills one buffer, the writes of other buffers are in flight.
#[derive(Debug)]
pub struct FileWriter {
    job: Job,
    name: String,
    block_bytes: usize,
    extents: Arc<Extents>,
    /// The state of a dataset's file. The value is `None` for a scratch file.
    dataset: Option<GrowingFile>,
    filling: Buffer,
    filled: usize,
    spare: Vec<Buffer>,
    in_flight: VecDeque<PendingWrite>,
    headers: VecDeque<Pending>,
    offset: u64,
    /// The checksums of all blocks of a scratch file, or of the blocks in the current extent of a dataset's file.
    sums: Vec<u32>,
    reservation: Reservation,
}

#[derive(Debug)]
struct PendingWrite {
    pending: Pending,
    offset: u64,
    len: usize,
}

/// `GrowingFile` is the state of a dataset's file while it grows.
#[derive(Debug)]
struct GrowingFile {
    identity: Identity,
    redundancy: Redundancy,
    /// The references to the full extents of each copy.
    refs: Vec<Vec<ExtentRef>>,
    parity: Vec<ExtentRef>,
    stripe: Option<Stripe>,
    /// The first extent that this writer writes. Lower-numbered extents belong to the existing file.
    first: u64,
}

/// `Existing` describes the extents of an existing file that an append leaves in place: their references and their
/// number.
#[derive(Debug)]
pub(crate) struct Existing {
    pub refs: Vec<Vec<ExtentRef>>,
    pub parity: Vec<ExtentRef>,
    pub extents: u64,
}

impl FileWriter {
    /// Begins a scratch file. Error messages call the file `name`. `block_bytes` is the size of a checksum block (a
    /// power of two from 4 KiB to 2 MiB). `buffer_bytes` is the size of a write, a multiple of `block_bytes`. The
    /// writer reserves two buffers from the budget, and 4 bytes per block that is written.
    pub fn create(job: &Job, name: &str, block_bytes: usize, buffer_bytes: usize) -> Result<FileWriter> {
        let extents = Extents::of_lease(job.lease(), Redundancy::Copies(1), 0);
        Self::new(job, name.to_string(), block_bytes, (buffer_bytes, 2), extents, None)
    }

    /// Begins a file of a dataset, or appends to the file that `existing` describes. `buffers` contains the size of a
    /// buffer in bytes, and the number of buffers.
    pub(crate) fn of_dataset(
        job: &Job,
        name: String,
        identity: Identity,
        redundancy: Redundancy,
        block_bytes: usize,
        buffers: (usize, usize),
        existing: Option<Existing>,
    ) -> Result<FileWriter> {
        let existing = existing.unwrap_or_else(|| Existing {
            refs: vec![Vec::new(); redundancy.copies()],
            parity: Vec::new(),
            extents: 0,
        });
        let stripe = (redundancy.parity() > 0).then(|| Stripe::new(job.budget(), redundancy)).transpose()?;
        let extents = Extents::of_lease(job.lease(), redundancy, existing.extents);
        let (refs, parity, first) = (existing.refs, existing.parity, existing.extents);
        let growing = GrowingFile { identity, redundancy, refs, parity, stripe, first };
        Self::new(job, name, block_bytes, buffers, extents, Some(growing))
    }

    fn new(
        job: &Job,
        name: String,
        block_bytes: usize,
        (buffer_bytes, count): (usize, usize),
        extents: Arc<Extents>,
        dataset: Option<GrowingFile>,
    ) -> Result<FileWriter> {
        let good = block_bytes.is_power_of_two() && (PAGE_BYTES..=EXTENT_BYTES).contains(&block_bytes);
        assert!(good, "block of {block_bytes} bytes");
        assert!(
            buffer_bytes > 0 && buffer_bytes.is_multiple_of(block_bytes),
            "buffer of {buffer_bytes} bytes"
        );
        assert!(count >= 2, "one buffer is filled while another is on its way");
        let buffers = Buffer::zeroed(job.budget(), count * buffer_bytes, "a file's write buffers")?;
        let mut spare = buffers.split(buffer_bytes);
        Ok(FileWriter {
            job: job.clone(),
            name,
            block_bytes,
            extents,
            filling: spare.pop().expect("at least two"),
            filled: 0,
            spare,
            in_flight: VecDeque::new(),
            headers: VecDeque::new(),
            offset: dataset.as_ref().map_or(0, |growing| growing.first * EXTENT_BYTES as u64),
            dataset,
            sums: Vec::new(),
            reservation: job.budget().reserve(0, "a file's checksums")?,
        })
    }

    /// Returns the number of the file in its dataset.
    pub(crate) fn number(&self) -> u32 {
        self.dataset.as_ref().expect("a file of a dataset").identity.file
    }

    /// Returns the length of the file so far.
    pub fn len(&self) -> u64 {
        self.offset + self.filled as u64
    }

    /// Returns true if nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if this write or an earlier write failed.
    /// - Returns [`Error::NoSpace`] if all devices are full.
    /// - Returns [`Error::Cancelled`] if the job was cancelled.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let space = self.space();
            let part = bytes.len().min(space.len());
            space[..part].copy_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            self.advance(part)?;
        }
        Ok(())
    }

    /// Returns the free space of the current buffer, which is never empty. A caller can write bytes directly into this
    /// space, and then calls [`Self::advance`].
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.filling[self.filled..]
    }

    /// Appends the first `len` bytes of [`Self::space`].
    ///
    /// # Errors
    /// Returns the errors of [`Self::write`].
    pub fn advance(&mut self, len: usize) -> Result<()> {
        self.filled += len;
        if self.filled == self.filling.len() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let len = self.filled.next_multiple_of(PAGE_BYTES);
        self.filling[self.filled..len].fill(0);
        if (self.sums.len() + len.div_ceil(self.block_bytes)) * 4 > self.reservation.bytes() as usize {
            self.reservation.resize(self.reservation.bytes() + SUMS_STEP as u64)?;
        }
        let first = self.dataset.as_ref().map_or(0, |growing| growing.first);
        let mut parts = Vec::new();
        for (extent, offset, range) in pieces(self.offset..self.offset + len as u64) {
            if offset == 0 && extent > first {
                self.end_extent(extent - 1, EXTENT_BYTES, false)?;
            }
            let bytes = &self.filling[range.clone()];
            self.sums.extend(bytes.chunks(self.block_bytes).map(crc32fast::hash));
            if let Some(GrowingFile { redundancy, stripe: Some(stripe), .. }) = &mut self.dataset {
                stripe.write((extent % redundancy.group()) as usize, offset, bytes);
            }
            for place in self.extents.take(extent)? {
                let device = self.job.device(place.device)?;
                parts.push(part(device, place.extent, offset, range.clone()));
            }
        }
        let next = match self.spare.pop() {
            Some(buffer) => buffer,
            None => self.wait_oldest()?,
        };
        let buffer = std::mem::replace(&mut self.filling, next);
        let pending = self.job.submit(Direction::Write, parts, buffer, Some(self.extents.clone()));
        self.in_flight.push_back(PendingWrite { pending, offset: self.offset, len });
        self.offset += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes the headers of all copies of an extent that is full or is the last extent of the file. If the extent is
    /// the last of its parity group, the call also writes the parity of the group.
    fn end_extent(&mut self, index: u64, used: usize, is_last: bool) -> Result<()> {
        let Some(growing) = &mut self.dataset else { return Ok(()) };
        let (identity, redundancy) = (growing.identity, growing.redundancy);
        let sums = std::mem::take(&mut self.sums);
        let shape = ExtentShape {
            level: identity.level,
            index,
            used: used as u32,
            block_bytes: self.block_bytes as u32,
        };
        for (copy, place) in self.extents.take(index)?.into_iter().enumerate() {
            let reference = self.write_header(identity, shape, place, &sums)?;
            self.dataset.as_mut().expect("looked at above").refs[copy].push(reference);
        }
        let in_group = index % redundancy.group() + 1;
        if redundancy.parity() > 0 && (is_last || in_group == redundancy.group()) {
            self.write_parity(index / redundancy.group(), in_group as usize)?;
        }
        Ok(())
    }

    fn write_header(
        &mut self,
        identity: Identity,
        shape: ExtentShape,
        place: ExtentAddress,
        sums: &[u32],
    ) -> Result<ExtentRef> {
        let mut page = metadata_buffer(HEADER_BYTES)?;
        page.copy_from_slice(&shape.header(identity, place, sums).encode());
        let reference = ExtentRef { place, header_sum: crc32fast::hash(&page) };
        let (extent, offset) = header_of(place.extent);
        let device = self.job.device(place.device)?;
        let part = part(device, extent, offset, 0..HEADER_BYTES);
        if self.headers.len() == HEADERS_IN_FLIGHT_MAX {
            self.wait_oldest_header()?;
        }
        let extents = Some(self.extents.clone());
        self.headers.push_back(self.job.submit(Direction::Write, vec![part], page, extents));
        Ok(reference)
    }

    fn write_parity(&mut self, group: u64, extents: usize) -> Result<()> {
        let growing = self.dataset.as_mut().expect("scratch has no parity");
        let (identity, block_bytes) = (growing.identity, self.block_bytes);
        let mut stripe = growing.stripe.take().expect("parity has a stripe");
        let (bytes, len) = stripe.finish(extents);
        for (number, place) in self.extents.take_parity()?.into_iter().enumerate() {
            let parity = &bytes[number * EXTENT_BYTES..][..len];
            // The writes of parity are synchronous, so they need no additional buffers.
            let device = self.job.device(place.device)?;
            let written = device.write(place.extent, 0, parity);
            written.map_err(|error| Error::io("write parity", PathBuf::from(&self.name), error))?;
            self.job.counters().add_written(len as u64);
            let sums: Vec<u32> = parity.chunks(block_bytes).map(crc32fast::hash).collect();
            let index = group * self.parity_extents() + number as u64;
            let shape =
                ExtentShape { level: PARITY, index, used: len as u32, block_bytes: block_bytes as u32 };
            let reference = self.write_header(identity, shape, place, &sums)?;
            self.dataset.as_mut().expect("looked at above").parity.push(reference);
        }
        self.dataset.as_mut().expect("looked at above").stripe = Some(stripe);
        Ok(())
    }

    fn parity_extents(&self) -> u64 {
        self.dataset.as_ref().map_or(0, |growing| growing.redundancy.parity())
    }

    /// Waits for the oldest write in flight and returns its buffer.
    fn wait_oldest(&mut self) -> Result<Buffer> {
        let PendingWrite { pending, offset, len } =
            self.in_flight.pop_front().expect("something is on its way");
        let (buffer, result) = pending.wait();
        result.map_err(|error| {
            Error::io(format!("write {len} bytes at {offset}"), PathBuf::from(&self.name), error)
        })?;
        Ok(buffer)
    }

    fn wait_oldest_header(&mut self) -> Result<()> {
        let pending = self.headers.pop_front().expect("something is on its way");
        let written = pending.wait().1;
        written.map_err(|error| Error::io("write the header of an extent", PathBuf::from(&self.name), error))
    }

    fn complete(&mut self) -> Result<()> {
        if self.filled > 0 {
            self.flush()?;
        }
        while !self.in_flight.is_empty() {
            self.wait_oldest()?;
        }
        Ok(())
    }

    /// Ends a scratch file. The checksums of the file stay in memory, and its data is not made durable. The extents of
    /// the file are free again after the file is dropped.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if a write that was still in flight failed.
    pub fn finish(mut self) -> Result<CheckedFile> {
        assert!(self.dataset.is_none(), "a dataset's file is ended by its builder");
        self.complete()?;
        // Many small scratch files may be open at once, so each file reserves only the memory that its checksums need.
        self.reservation.resize(self.sums.len() as u64 * 4)?;
        Ok(CheckedFile::of_scratch(
            self.name,
            self.offset,
            self.block_bytes,
            self.extents,
            self.sums,
            self.reservation,
        ))
    }

    /// Ends a file of a dataset. Returns the record of the file, and the extents of which the dataset becomes the
    /// owner. The commit of the dataset makes the data and the record durable.
    pub(crate) fn seal(mut self) -> Result<(FileRecord, Vec<Arc<Extents>>)> {
        self.complete()?;
        let first = self.dataset.as_ref().expect("a scratch file is finished, not sealed").first;
        if self.offset > first * EXTENT_BYTES as u64 {
            let last = (self.offset - 1) / EXTENT_BYTES as u64;
            self.end_extent(last, (self.offset - last * EXTENT_BYTES as u64) as usize, true)?;
        }
        while !self.headers.is_empty() {
            self.wait_oldest_header()?;
        }
        let growing = self.dataset.take().expect("a file of a dataset");
        let refs: Vec<ExtentRef> = growing.refs.into_iter().flatten().chain(growing.parity).collect();
        let mut record = FileRecord {
            name: self.name.clone(),
            len: self.offset,
            block_bytes: self.block_bytes as u32,
            level: 0,
            refs: Vec::new(),
        };
        let mut extents = vec![self.extents.clone()];
        let list = ListWriter {
            job: &self.job,
            lease: self.job.lease(),
            name: &self.name,
            identity: growing.identity,
        };
        extents.extend(list.write(&mut record, growing.redundancy, refs.into_iter().map(Ok))?);
        Ok((record, extents))
    }
}

/// `ListWriter` stores the references of a file, either in the record of the file or in separate extents.
pub(crate) struct ListWriter<'a> {
    pub job: &'a Job,
    /// The lease from which the extents of a list are taken.
    pub lease: &'a Arc<Lease>,
    pub name: &'a str,
    pub identity: Identity,
}

impl ListWriter<'_> {
    /// Stores all `refs` in `record`, directly or as a list in separate extents, and returns the extents that it
    /// allocated for a list.
    pub fn write(
        &self,
        record: &mut FileRecord,
        redundancy: Redundancy,
        refs: impl Iterator<Item = Result<ExtentRef>>,
    ) -> Result<Option<Arc<Extents>>> {
        let count = redundancy.refs(record.extents());
        if count <= REFS_INLINE as u64 {
            (record.level, record.refs) = (0, refs.collect::<Result<_>>()?);
            assert!(record.refs.len() as u64 == count, "{} references of {count}", record.refs.len());
            return Ok(None);
        }
        assert!(self.identity.level == DATA, "a list of {count} extents has no list");
        let copies = Redundancy::Copies(redundancy.list_copies() as u8);
        let growing = GrowingFile {
            identity: Identity { level: 1, ..self.identity },
            redundancy: copies,
            refs: vec![Vec::new(); copies.copies()],
            parity: Vec::new(),
            stripe: None,
            first: 0,
        };
        let name = format!("{} (list of extents)", self.name);
        let extents = Extents::of_lease(self.lease, copies, 0);
        let buffers = (LIST_BUFFER_BYTES, 2);
        let mut list = FileWriter::new(self.job, name, LIST_BLOCK_BYTES, buffers, extents, Some(growing))?;
        for reference in refs {
            list.write(&reference?.encode())?;
        }
        let (listed, extents) = list.seal()?;
        (record.level, record.refs) = (1, listed.refs);
        Ok(extents.into_iter().next())
    }
}

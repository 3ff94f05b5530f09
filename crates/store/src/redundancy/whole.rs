//! Extents of datasets as wholes: read and checked without their headers, restored from others, written elsewhere.
//!
//! All that a header says can be made again from the record of the file and the bytes of the extent, and the reference
//! to the extent has the checksum of the header. So an extent as a whole can be checked although its header is damaged
//! or gone, and both can be written again; and of an extent that was restored from others it is certain that it is what
//! was written.

use std::{path::PathBuf, sync::Arc};

use inshore_runtime::{Direction, Pending};

use crate::{
    Buffer, CheckedFile, Device, EXTENT_BYTES, Error, ExtentRef, Job, PAGE_BYTES, Place, Result,
    dataset::checked::Identity,
    device::part,
    log::header::Header,
    log::metadata_buffer,
    redundancy::parity,
    shared::{HEADER_BYTES, header_of},
};

/// The level of an extent that holds data.
pub(crate) const DATA: u8 = 0;
/// The level of an extent that holds parity.
pub(crate) const PARITY: u8 = 2;

/// What an extent is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub level: u8,
    /// The number of the extent among those of its level in the file.
    pub index: u64,
    /// Bytes of data in it.
    pub used: u32,
    pub block_bytes: u32,
}

impl Shape {
    /// The header of the copy at `place`.
    pub fn header(self, identity: Identity, place: Place, sums: &[u32]) -> Header {
        Header {
            place,
            dataset: identity.dataset,
            file: identity.file,
            level: self.level,
            index: self.index,
            used: self.used,
            block_bytes: self.block_bytes,
            sums: sums.to_vec(),
        }
    }

    /// The header page for these bytes of the extent.
    fn page(self, identity: Identity, place: Place, bytes: &[u8]) -> Vec<u8> {
        let sums: Vec<u32> = bytes.chunks(self.block_bytes as usize).map(crc32fast::hash).collect();
        self.header(identity, place, &sums).encode()
    }

    /// Bytes that lie in the extent: whole pages.
    fn stored(self) -> usize {
        (self.used as usize).next_multiple_of(PAGE_BYTES)
    }
}

/// What was found when an extent was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Whole,
    /// The bytes are those that were written; its header is not.
    DamagedHeader,
    /// The bytes are not those that were written, or cannot be read.
    Damaged,
    /// Its device is not there.
    Missing,
}

/// Memory for one extent, outside of every budget.
pub(crate) fn extent_buffer() -> Result<Buffer> {
    metadata_buffer(EXTENT_BYTES)
}

/// An extent of a dataset's file: `position` counts the file's references.
#[derive(Clone, Copy)]
pub(crate) struct Whole<'a> {
    pub job: &'a Job,
    pub file: &'a CheckedFile,
    pub position: u64,
}

impl Whole<'_> {
    fn at(&self, position: u64) -> Whole<'_> {
        Whole { position, ..*self }
    }

    pub fn reference(&self) -> Result<ExtentRef> {
        Ok(self.file.references_at(self.job, self.position, 1)?[0])
    }

    fn shape(&self) -> Shape {
        self.file.shape(self.position)
    }

    fn device(&self, place: Place) -> Result<Arc<dyn Device>> {
        self.job.device(place.device)
    }

    /// Reads the extent into `buffer` and says what of it is whole. The buffer holds the right bytes unless they are
    /// damaged.
    pub fn look(&self, buffer: &mut Buffer) -> Result<Health> {
        let reference = self.reference()?;
        let Ok(device) = self.device(reference.place) else { return Ok(Health::Missing) };
        if !self.read_bytes(reference, buffer) {
            return Ok(Health::Damaged);
        }
        let mut page = metadata_buffer(HEADER_BYTES)?;
        let (extent, offset) = header_of(reference.place.extent);
        self.job.counters().add_read(HEADER_BYTES as u64);
        let is_whole =
            device.read(extent, offset, &mut page).is_ok() && crc32fast::hash(&page) == reference.header_sum;
        Ok(if is_whole { Health::Whole } else { Health::DamagedHeader })
    }

    /// Reads the extent's bytes; whether they are what was written.
    fn read_bytes(&self, reference: ExtentRef, buffer: &mut Buffer) -> bool {
        let shape = self.shape();
        let bytes = &mut buffer[..shape.stored()];
        self.job.counters().add_read(bytes.len() as u64);
        let read = |bytes: &mut [u8]| {
            self.device(reference.place)
                .is_ok_and(|device| device.read(reference.place.extent, 0, bytes).is_ok())
        };
        read(bytes) && self.is_right(reference, bytes)
    }

    /// Starts to read the extent's bytes; gives the buffer back where its device is not there.
    pub fn submit(&self, reference: ExtentRef, buffer: Buffer) -> std::result::Result<Pending, Buffer> {
        let Ok(device) = self.device(reference.place) else { return Err(buffer) };
        let part = part(device, reference.place.extent, 0, 0..self.shape().stored());
        Ok(self.job.submit(Direction::Read, vec![part], buffer, None))
    }

    /// Whether `buffer` begins with what was written as this extent.
    pub fn is_right(&self, reference: ExtentRef, buffer: &[u8]) -> bool {
        let shape = self.shape();
        let page = shape.page(self.file.identity(), reference.place, &buffer[..shape.stored()]);
        crc32fast::hash(&page) == reference.header_sum
    }

    /// Fills `buffer` with the bytes of the extent: its own where they are right, else made from others.
    ///
    /// # Errors
    /// [`Error::DamagedExtent`] where nothing gives them.
    pub fn fetch(&self, buffer: &mut Buffer) -> Result<()> {
        let reference = self.reference()?;
        if self.read_bytes(reference, buffer) || self.restore(buffer)? {
            return Ok(());
        }
        Err(self.lost(reference))
    }

    /// Where the extent begins in the file; for parity the end of the file.
    pub fn offset(&self) -> u64 {
        let shape = self.shape();
        if shape.level == PARITY { self.file.len() } else { shape.index * EXTENT_BYTES as u64 }
    }

    /// The positions that must lie on other devices, and where they lie.
    pub fn siblings(&self) -> Result<Vec<(u64, Place)>> {
        let (redundancy, extents) = (self.file.redundancy(), self.file.extents());
        let others: Vec<u64> = if redundancy.parity() > 0 {
            self.file.group_of(self.position).into_iter().map(|(_, position)| position).collect()
        } else {
            let first = self.position % extents;
            (0..redundancy.copies() as u64).map(|copy| first + copy * extents).collect()
        };
        let others = others.into_iter().filter(|&position| position != self.position);
        others.map(|position| Ok((position, self.at(position).reference()?.place))).collect()
    }

    /// That an extent's bytes are lost.
    pub fn lost(&self, reference: ExtentRef) -> Error {
        if self.device(reference.place).is_err() {
            return Error::NoDevice { number: reference.place.device };
        }
        Error::DamagedExtent {
            file: self.file.name().to_string(),
            offset: self.offset(),
            device: reference.place.device,
            extent: reference.place.extent,
        }
    }

    /// Makes the bytes of the extent from others; whether that was possible. What comes out was checked.
    pub fn restore(&self, buffer: &mut Buffer) -> Result<bool> {
        let reference = self.reference()?;
        let redundancy = self.file.redundancy();
        if redundancy.parity() == 0 {
            let copies = redundancy.copies() as u64;
            let extents = self.file.extents();
            for copy in (0..copies).filter(|copy| copy * extents + self.position % extents != self.position) {
                let other = self.at(copy * extents + self.position % extents);
                if other.read_bytes(other.reference()?, buffer) && self.is_right(reference, buffer) {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        let mut others: Vec<(usize, u64)> = self.file.group_of(self.position);
        let data = others.iter().filter(|(_, position)| *position < self.file.extents()).count();
        let all = (data, redundancy.parity() as usize);
        let wanted =
            others.iter().position(|(_, position)| *position == self.position).expect("its own group");
        let wanted = others.remove(wanted).0;
        // First from whatever can be read; if what comes out is wrong, only from those that are whole.
        if self.restore_from(all, &others[..data.min(others.len())], wanted, buffer)?
            && self.is_right(reference, buffer)
        {
            return Ok(true);
        }
        let mut whole = Vec::new();
        for &(member, position) in &others {
            let other = self.at(position);
            if other.read_bytes(other.reference()?, buffer) {
                whole.push((member, position));
            }
        }
        whole.truncate(data);
        Ok(self.restore_from(all, &whole, wanted, buffer)? && self.is_right(reference, buffer))
    }

    fn restore_from(
        &self,
        all: (usize, usize),
        known: &[(usize, u64)],
        wanted: usize,
        buffer: &mut Buffer,
    ) -> Result<bool> {
        if known.len() < all.0 {
            return Ok(false);
        }
        let mut slices = metadata_buffer(known.len() * parity::SLICE_BYTES)?;
        let references: Vec<(ExtentRef, usize)> = known
            .iter()
            .map(|&(_, position)| Ok((self.at(position).reference()?, self.at(position).shape().stored())))
            .collect::<Result<_>>()?;
        // All of a group are coded to the length of the longest, beyond their ends as zeros.
        let group_len = self.file.group_len(self.position);
        let mut start = 0;
        while start < group_len {
            let len = parity::SLICE_BYTES.min(group_len - start);
            for ((reference, stored), slice) in references.iter().zip(slices.chunks_mut(parity::SLICE_BYTES))
            {
                let there = stored.saturating_sub(start).min(len);
                slice[there..len].fill(0);
                let Ok(device) = self.device(reference.place) else { return Ok(false) };
                if there > 0 && device.read(reference.place.extent, start, &mut slice[..there]).is_err() {
                    return Ok(false);
                }
                self.job.counters().add_read(there as u64);
            }
            let slices: Vec<(usize, &[u8])> = known
                .iter()
                .zip(slices.chunks(parity::SLICE_BYTES))
                .map(|((member, _), slice)| (*member, &slice[..len]))
                .collect();
            let Some(made) = parity::restore(all, &slices, wanted) else { return Ok(false) };
            buffer[start..start + len].copy_from_slice(&made);
            start += len;
        }
        Ok(true)
    }

    /// Writes the extent's bytes and header where it lies. Durable after a sync of its device.
    pub fn rewrite(&self, buffer: &Buffer) -> Result<()> {
        let reference = self.reference()?;
        self.write_to(reference.place, buffer).map(drop)
    }

    /// Writes the extent's bytes and header to `place`; gives the reference to it.
    pub fn write_to(&self, place: Place, buffer: &Buffer) -> Result<ExtentRef> {
        let shape = self.shape();
        let bytes = &buffer[..shape.stored()];
        let encoded = shape.page(self.file.identity(), place, bytes);
        let mut page = metadata_buffer(HEADER_BYTES)?;
        page.copy_from_slice(&encoded);
        let device = self.device(place)?;
        let (extent, offset) = header_of(place.extent);
        device
            .write(place.extent, 0, bytes)
            .and_then(|()| device.write(extent, offset, &page))
            .map_err(|error| Error::io("write an extent", PathBuf::from(device.name()), error))?;
        self.job.counters().add_written((bytes.len() + HEADER_BYTES) as u64);
        Ok(ExtentRef { place, header_sum: crc32fast::hash(&page) })
    }
}

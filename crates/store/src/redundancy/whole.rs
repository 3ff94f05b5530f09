//! This module verifies complete extents of datasets without their headers, restores them from other extents, and
//! writes them to other addresses.
//!
//! The content of a header can be computed from the record of the file and the bytes of the extent. The reference to
//! the extent contains the checksum of the header. An extent can therefore be verified even if its header is damaged or
//! lost, and the header can be written again. The same check proves that a restored extent has the original bytes.

use std::{path::PathBuf, sync::Arc};

use inshore_runtime::{Direction, Pending};

use crate::{
    Buffer, Device, EXTENT_BYTES, Error, ExtentAddress, ExtentRef, Job, Result,
    dataset::layout::{ExtentShape, Layout, PARITY},
    device::{metadata_buffer, part},
    redundancy::parity,
    shared::{HEADER_BYTES, header_of},
};

/// `ExtentHealth` is the result of the verification of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentHealth {
    Whole,
    /// The bytes of the extent are intact, but its header is damaged.
    DamagedHeader,
    /// The bytes of the extent are damaged or cannot be read.
    Damaged,
    /// The device of the extent is missing.
    Missing,
}

/// Allocates memory for one extent. This memory belongs to no job's budget.
pub(crate) fn extent_buffer() -> Result<Buffer> {
    metadata_buffer(EXTENT_BYTES)
}

/// `ExtentFile` provides the layout of a dataset's file and the references to its extents. References may be stored in
/// a list, whose extents are verified and restored in the same way as data. The module of files therefore uses this
/// module. This trait avoids a dependency in the other direction.
pub(crate) trait ExtentFile {
    fn layout(&self) -> &Layout;

    /// Returns `count` references of the file, beginning with the reference at `position`.
    ///
    /// # Errors
    /// Returns an error if the call has to read a list of references, and the list cannot be read or is damaged.
    fn references_at(&self, job: &Job, position: u64, count: u64) -> Result<Vec<ExtentRef>>;
}

/// `FileExtent` is an extent of a dataset's file. `position` is the index of its reference among the references of the
/// file.
#[derive(Clone, Copy)]
pub(crate) struct FileExtent<'a> {
    pub job: &'a Job,
    pub file: &'a dyn ExtentFile,
    pub position: u64,
}

impl FileExtent<'_> {
    pub fn layout(&self) -> &Layout {
        self.file.layout()
    }

    fn at(&self, position: u64) -> FileExtent<'_> {
        FileExtent { position, ..*self }
    }

    pub fn reference(&self) -> Result<ExtentRef> {
        Ok(self.file.references_at(self.job, self.position, 1)?[0])
    }

    fn shape(&self) -> ExtentShape {
        self.layout().shape(self.position)
    }

    fn device(&self, place: ExtentAddress) -> Result<Arc<dyn Device>> {
        self.job.device(place.device)
    }

    /// Reads the extent and its header, and returns the health of the extent. If the bytes of the extent are intact,
    /// they are in `buffer` afterwards.
    pub fn look(&self, buffer: &mut Buffer) -> Result<ExtentHealth> {
        let reference = self.reference()?;
        let Ok(device) = self.device(reference.place) else { return Ok(ExtentHealth::Missing) };
        if !self.read_bytes(reference, buffer) {
            return Ok(ExtentHealth::Damaged);
        }
        let mut page = metadata_buffer(HEADER_BYTES)?;
        let (extent, offset) = header_of(reference.place.extent);
        self.job.counters().add_read(HEADER_BYTES as u64);
        let is_whole =
            device.read(extent, offset, &mut page).is_ok() && crc32fast::hash(&page) == reference.header_sum;
        Ok(if is_whole { ExtentHealth::Whole } else { ExtentHealth::DamagedHeader })
    }

    /// Reads the bytes of the extent into `buffer`, and returns true if they are intact.
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

    /// Starts to read the bytes of the extent. If the device of the extent is missing, the call returns the buffer as
    /// the error.
    pub fn submit(&self, reference: ExtentRef, buffer: Buffer) -> std::result::Result<Pending, Buffer> {
        let Ok(device) = self.device(reference.place) else { return Err(buffer) };
        let part = part(device, reference.place.extent, 0, 0..self.shape().stored());
        Ok(self.job.submit(Direction::Read, vec![part], buffer, None))
    }

    /// Returns true if `buffer` begins with the original bytes of this extent.
    pub fn is_right(&self, reference: ExtentRef, buffer: &[u8]) -> bool {
        let shape = self.shape();
        let page = shape.page(self.layout().identity, reference.place, &buffer[..shape.stored()]);
        crc32fast::hash(&page) == reference.header_sum
    }

    /// Reads the bytes of the extent into `buffer`. If the bytes are damaged, they are restored from copies or parity.
    ///
    /// # Errors
    /// Returns [`Error::DamagedExtent`] if the bytes cannot be restored.
    pub fn fetch(&self, buffer: &mut Buffer) -> Result<()> {
        let reference = self.reference()?;
        if self.read_bytes(reference, buffer) || self.restore(buffer)? {
            return Ok(());
        }
        Err(self.lost(reference))
    }

    /// Returns the offset of the extent in the file. For an extent of parity, the result is the end of the file.
    pub fn offset(&self) -> u64 {
        let shape = self.shape();
        if shape.level == PARITY { self.layout().len } else { shape.index * EXTENT_BYTES as u64 }
    }

    /// Returns the extents that must not be on the same device as this extent, as positions with addresses.
    pub fn siblings(&self) -> Result<Vec<(u64, ExtentAddress)>> {
        let (redundancy, extents) = (self.layout().redundancy, self.layout().extents());
        let others: Vec<u64> = if redundancy.parity() > 0 {
            self.layout().group_of(self.position).into_iter().map(|(_, position)| position).collect()
        } else {
            let first = self.position % extents;
            (0..redundancy.copies() as u64).map(|copy| first + copy * extents).collect()
        };
        let others = others.into_iter().filter(|&position| position != self.position);
        others.map(|position| Ok((position, self.at(position).reference()?.place))).collect()
    }

    /// Returns the error for an extent whose bytes cannot be restored.
    pub fn lost(&self, reference: ExtentRef) -> Error {
        if self.device(reference.place).is_err() {
            return Error::NoDevice { number: reference.place.device };
        }
        Error::DamagedExtent {
            file: self.layout().name.clone(),
            offset: self.offset(),
            device: reference.place.device,
            extent: reference.place.extent,
        }
    }

    /// Restores the bytes of the extent from copies or parity, and returns true if the restored bytes are verified as
    /// correct.
    pub fn restore(&self, buffer: &mut Buffer) -> Result<bool> {
        let reference = self.reference()?;
        let redundancy = self.layout().redundancy;
        if redundancy.parity() == 0 {
            let copies = redundancy.copies() as u64;
            let extents = self.layout().extents();
            for copy in (0..copies).filter(|copy| copy * extents + self.position % extents != self.position) {
                let other = self.at(copy * extents + self.position % extents);
                if other.read_bytes(other.reference()?, buffer) && self.is_right(reference, buffer) {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        let mut others: Vec<(usize, u64)> = self.layout().group_of(self.position);
        let data = others.iter().filter(|(_, position)| *position < self.layout().extents()).count();
        let all = (data, redundancy.parity() as usize);
        let wanted =
            others.iter().position(|(_, position)| *position == self.position).expect("its own group");
        let wanted = others.remove(wanted).0;
        // The first attempt uses the first members of the group without verifying them. If the result is wrong, the
        // second attempt uses only members that were verified.
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
        // All members are encoded with the length of the longest member. Shorter members are padded with zeros.
        let group_len = self.layout().group_len(self.position);
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

    /// Writes the bytes and the header of the extent to its present address. The bytes and the header are durable after
    /// a sync of the device.
    pub fn rewrite(&self, buffer: &Buffer) -> Result<()> {
        let reference = self.reference()?;
        self.write_to(reference.place, buffer).map(drop)
    }

    /// Writes the bytes and the header of the extent to the address `place`, and returns the new reference.
    pub fn write_to(&self, place: ExtentAddress, buffer: &Buffer) -> Result<ExtentRef> {
        let shape = self.shape();
        let bytes = &buffer[..shape.stored()];
        let encoded = shape.page(self.layout().identity, place, bytes);
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

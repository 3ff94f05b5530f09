//! Buffers are memory for I/O and sorting. A buffer is aligned and counted in a budget; a buffer of 2 MiB or
//! more lies on huge pages.
//!
//! O_DIRECT requires addresses that are multiples of the drive's block size. In addition, huge pages make
//! direct reads fast on virtual drives: a request over ordinary pages has a segment for each 4 KiB, and a
//! drive may accept only 254 segments per request. Reads were measured at 1.1 to 1.5 GB/s with ordinary
//! pages, and at 3 to 4.1 GB/s with pages of 2 MiB. The buffers of a job are therefore parts of one large
//! region where possible ([`Buffer::split`]), and small buffers share huge pages ([`slab`](crate::slab)).

use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use rustix::mm::munmap;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    Budget, PAGE_BYTES, Reservation, Result,
    pages::{HUGE_BYTES, map_pages},
    slab::Place,
};

/// Returns the number of bytes that a [`Buffer`] of `len` bytes takes from a budget. The length is rounded up to pages
/// of 4 KiB (at least one), or, from 2 MiB on, to pages of 2 MiB.
pub const fn taken_bytes(len: usize) -> usize {
    let page = if len < HUGE_BYTES { PAGE_BYTES } else { HUGE_BYTES };
    if len == 0 { PAGE_BYTES } else { len.next_multiple_of(page) }
}

/// Returns the length of the largest [`Buffer`] that takes at most `bytes` from a budget.
pub const fn largest_buffer(bytes: usize) -> usize {
    let page = if bytes < HUGE_BYTES { PAGE_BYTES } else { HUGE_BYTES };
    bytes / page * page
}

/// `Region` is a range of mapped memory that one or more buffers share.
#[derive(Debug)]
enum Region {
    /// The region is a separate anonymous mapping.
    Mapped { address: NonNull<u8>, len: usize, _reservation: Reservation },
    /// The region is a part of a huge page that several regions share.
    Shared { _place: Place, _reservation: Reservation },
}

// SAFETY: a Region is plain memory; access to it goes through Buffers, whose ranges never overlap.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; the Region itself offers no access to its bytes.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        if let Region::Mapped { address, len, .. } = self {
            // SAFETY: address and len describe a mapping made in `Buffer::zeroed`. Every Buffer that pointed into the
            // mapping held an Arc to this Region, so none is left.
            unsafe { munmap(address.as_ptr().cast(), *len) }.expect("unmapping memory of our own");
        }
    }
}

/// A buffer holds bytes that are zero at first. The buffer's address is aligned to 4 KiB. A buffer of 2 MiB
/// or more is aligned to 2 MiB and lies on huge pages.
///
/// Pages that were never touched take no physical memory, but count in full against the budget.
#[derive(Debug)]
pub struct Buffer {
    region: Arc<Region>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a Buffer is the only owner of its range of the Region.
unsafe impl Send for Buffer {}
// SAFETY: shared access gives only shared slices.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a zeroed buffer of `len` bytes. The reservation is `len` rounded up to 4 KiB, or to 2 MiB if `len` is
    /// 2 MiB or more.
    ///
    /// # Errors
    /// - Returns [`crate::Error::OverBudget`] if the budget has too little free memory. The error names the purpose
    ///   `what`.
    /// - Returns [`crate::Error::Io`] if the system has no memory.
    pub fn zeroed(budget: &Budget, len: usize, what: &'static str) -> Result<Buffer> {
        let mapped_len = taken_bytes(len);
        let reservation = budget.reserve(mapped_len as u64, what)?;
        if let Some(place) = Place::of(len, budget.memory_bytes()) {
            let start = place.address();
            let region = Region::Shared { _place: place, _reservation: reservation };
            return Ok(Buffer { region: Arc::new(region), start, len });
        }
        let address = map_pages(mapped_len)
            .map_err(|error| crate::Error::io("map memory", "anonymous memory", error.into()))?;
        let region = Region::Mapped { address, len: mapped_len, _reservation: reservation };
        Ok(Buffer { region: Arc::new(region), start: address, len })
    }

    /// Splits the buffer into parts of `part_len` bytes, which share the region (and its huge pages). The region is
    /// unmapped when the last part is dropped; a remainder shorter than `part_len` is unused.
    ///
    /// # Panics
    /// Panics if `part_len` is 0 or not a multiple of 4096.
    pub fn split(self, part_len: usize) -> Vec<Buffer> {
        assert!(part_len > 0 && part_len.is_multiple_of(PAGE_BYTES), "part of {part_len} bytes");
        (0..self.len / part_len)
            .map(|part| Buffer {
                region: self.region.clone(),
                // SAFETY: part * part_len + part_len <= self.len, so this stays inside the region.
                start: unsafe { self.start.add(part * part_len) },
                len: part_len,
            })
            .collect()
    }

    /// Returns the bytes as a slice of `T`. A remainder that is shorter than `T` is left out.
    pub fn typed<T: FromBytes + Immutable + KnownLayout>(&self) -> &[T] {
        let whole = self.len - self.len % size_of::<T>();
        <[T]>::ref_from_bytes(&self[..whole]).expect("4 KiB alignment and whole elements")
    }

    /// Returns the bytes as a mutable slice of `T`. A remainder that is shorter than `T` is left out.
    pub fn typed_mut<T: FromBytes + IntoBytes + KnownLayout>(&mut self) -> &mut [T] {
        let whole = self.len - self.len % size_of::<T>();
        <[T]>::mut_from_bytes(&mut self[..whole]).expect("4 KiB alignment and whole elements")
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: start..start+len lies in the mapped, zero-initialised region and only this Buffer uses it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and &mut self is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_handed_back() {
        let budget = Budget::new(16 << 20, 1);
        for len in [1, 4096, 5000, 2 << 20, 3 << 20] {
            let mut buffer = Buffer::zeroed(&budget, len, "test").unwrap();
            let align = if len >= HUGE_BYTES { HUGE_BYTES } else { PAGE_BYTES };
            assert_eq!(buffer.as_ptr() as usize % align, 0);
            assert!(buffer.len() == len && buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert_eq!(budget.reserved_bytes(), len.next_multiple_of(align) as u64);
        }
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[test]
    fn parts_share_a_region_that_lives_as_long_as_the_last() {
        let budget = Budget::new(16 << 20, 1);
        let mut parts = Buffer::zeroed(&budget, 4 << 20, "test").unwrap().split(1 << 20);
        assert_eq!(parts.len(), 4);
        for (number, part) in parts.iter_mut().enumerate() {
            part.fill(number as u8);
        }
        assert!(parts.iter().enumerate().all(|(number, part)| part.iter().all(|&b| b == number as u8)));
        let last = parts.pop();
        drop(parts);
        assert_eq!(budget.reserved_bytes(), 4 << 20);
        drop(last);
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[test]
    fn typed_views_leave_out_a_remainder() {
        let budget = Budget::new(1 << 20, 1);
        let mut buffer = Buffer::zeroed(&budget, 4100, "test").unwrap();
        buffer.typed_mut::<u64>()[1] = 5;
        assert_eq!(buffer.typed::<u64>().len(), 512);
        assert_eq!(buffer.typed::<u32>()[2], 5);
    }
}

//! Typed arrays that are counted in a budget.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use inshore_store::{Budget, Buffer, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// From this size on a [`Buffer`] takes multiples of it.
const HUGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4 << 10;

/// What a [`Buffer`] of `bytes` bytes takes from the budget: whole pages, and at least one.
pub(crate) const fn taken_bytes(bytes: usize) -> usize {
    if bytes == 0 {
        PAGE_BYTES
    } else if bytes < HUGE_BYTES {
        bytes.next_multiple_of(PAGE_BYTES)
    } else {
        bytes.next_multiple_of(HUGE_BYTES)
    }
}

/// The most bytes that a [`Buffer`] may have so that it takes at most `bytes`.
pub(crate) fn largest_buffer(bytes: usize) -> usize {
    let unit = if bytes >= HUGE_BYTES { HUGE_BYTES } else { PAGE_BYTES };
    bytes / unit * unit
}

/// A zeroed array of fixed length; works for zero-sized elements too. Untouched pages cost no memory.
#[derive(Debug)]
pub(crate) struct Array<T> {
    buffer: Buffer,
    len: usize,
    of: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Array<T> {
    pub fn zeroed(budget: &Budget, len: usize, what: &'static str) -> Result<Self> {
        let buffer = Buffer::zeroed(budget, len * size_of::<T>(), what)?;
        Ok(Array { buffer, len, of: PhantomData })
    }
}

/// The first `len` elements in `bytes`, for zero-sized ones too.
pub(crate) fn typed<T: FromBytes + Immutable + KnownLayout>(bytes: &[u8], len: usize) -> &[T] {
    <[T]>::ref_from_bytes_with_elems(&bytes[..len * size_of::<T>()], len).expect("aligned and long enough")
}

/// As [`typed`], to be written.
pub(crate) fn typed_mut<T>(bytes: &mut [u8], len: usize) -> &mut [T]
where
    T: FromBytes + IntoBytes + Immutable + KnownLayout,
{
    <[T]>::mut_from_bytes_with_elems(&mut bytes[..len * size_of::<T>()], len)
        .expect("aligned and long enough")
}

impl<T: FromBytes + Immutable + KnownLayout> Deref for Array<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        typed(&self.buffer, self.len)
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> DerefMut for Array<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        typed_mut(&mut self.buffer, self.len)
    }
}

//! Typed arrays whose memory is reserved in a budget.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use inshore_store::{Budget, Buffer, Result};
pub(crate) use inshore_store::{largest_buffer, taken_bytes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An array of fixed length that is zeroed at first. The elements may be zero-sized. Memory pages that were never
/// touched take no physical memory.
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

/// Interprets the start of `bytes` as `len` elements of type `T`, which may be zero-sized.
pub(crate) fn typed<T: FromBytes + Immutable + KnownLayout>(bytes: &[u8], len: usize) -> &[T] {
    <[T]>::ref_from_bytes_with_elems(&bytes[..len * size_of::<T>()], len).expect("aligned and long enough")
}

/// Interprets mutable bytes in the same way as [`typed`] does.
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

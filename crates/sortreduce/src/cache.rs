//! Hints to the processor's cache.

/// The number of bytes in a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Prefetches the cache line in which `place` begins. The call has no effect on targets for which stable Rust has no
/// prefetch instruction.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching an address that a reference points to affects only the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            std::ptr::from_ref(place).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Prefetches the cache line of the element with index `place`, which may be out of bounds.
#[inline(always)]
pub(crate) fn prefetch_place<T>(items: &[T], place: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching any address affects only the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            items.as_ptr().wrapping_add(place).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, place);
}

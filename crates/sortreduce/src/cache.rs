//! Hints to the processor's cache.

/// A line of the cache.
pub(crate) const LINE_BYTES: usize = 64;

/// Prefetches the cache line in which `place` begins; has no effect on targets without such an instruction in stable
/// Rust.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching an address that a reference points to has no effect but on the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            std::ptr::from_ref(place).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Prefetches the cache line of the element at `place`, which may be out of bounds.
#[inline(always)]
pub(crate) fn prefetch_place<T>(items: &[T], place: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching any address has no effect but on the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            items.as_ptr().wrapping_add(place).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, place);
}

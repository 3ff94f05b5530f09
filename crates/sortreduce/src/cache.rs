//! What the processor is told of its cache.

/// Asks for the line of memory where `place` begins to be in the cache soon; does nothing where there is no such
/// instruction on stable Rust.
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

//! This module defines the memory allocator of programs that may run under a memory limit: [`LimitedAllocator`].
//!
//! A thread measures the size of a process every few milliseconds ([`crate::split`]). This is too late for memory
//! that is allocated and filled between two measurements. The allocator therefore counts each large allocation
//! before the process can write to the memory. Large allocations are rare, and a small allocation takes only one
//! additional comparison. If the system refuses memory, the process also reports this before it aborts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Allocations of fewer bytes aren't counted. A core fills an allocation of this size in 100 us.
const LARGE_BYTES: usize = 256 << 10;

/// The number of bytes in large allocations.
static LARGE: AtomicU64 = AtomicU64::new(0);
/// The limit of the number of bytes in large allocations.
static LARGE_MAX: AtomicU64 = AtomicU64::new(u64::MAX);
static REFUSED: OnceLock<fn() -> !> = OnceLock::new();

/// Wraps the system's allocator, and limits the sum of large allocations (256 KiB and more). The limit holds only
/// in worker processes that [`crate::split`] or [`crate::apart_main`] has started. A program that makes
/// `LimitedAllocator` its `#[global_allocator]` never exceeds the limit by large allocations.
#[derive(Debug)]
pub struct LimitedAllocator;

/// Sets the limit. Later allocations that exceed the limit, or that the system refuses, call `refused`.
pub(crate) fn limit(bytes: u64, refused: fn() -> !) {
    let _ = REFUSED.set(refused);
    LARGE_MAX.store(bytes, Ordering::Relaxed);
}

fn is_large(bytes: usize) -> bool {
    bytes >= LARGE_BYTES
}

/// Counts an allocation.
fn add(bytes: usize) {
    if is_large(bytes) {
        let all = LARGE.fetch_add(bytes as u64, Ordering::Relaxed).saturating_add(bytes as u64);
        if all > LARGE_MAX.load(Ordering::Relaxed) {
            refuse();
        }
    }
}

fn remove(bytes: usize) {
    if is_large(bytes) {
        LARGE.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

#[cold]
fn refuse() {
    if let Some(refused) = REFUSED.get() {
        refused();
    }
}

/// Calls `refused` if the system returned no memory. If `refused` is not set, returns the null pointer to the
/// caller.
fn given(place: *mut u8, bytes: usize) -> *mut u8 {
    if place.is_null() {
        remove(bytes);
        refuse();
    }
    place
}

// SAFETY: all calls go to the system's allocator, with unchanged layouts.
unsafe impl GlobalAlloc for LimitedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promises about the layout are those that the system's allocator needs.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as above.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller promises that this allocator made the allocation, so the system's allocator did.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // While the system moves a small allocation, the old and the new copy exist. For a large allocation the system
        // moves the pages without a copy.
        remove(layout.size());
        add(bytes);
        // SAFETY: as above.
        let moved = unsafe { System.realloc(place, layout, bytes) };
        if moved.is_null() {
            add(layout.size());
        }
        given(moved, bytes)
    }
}

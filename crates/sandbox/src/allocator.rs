//! The allocator of a program that may work within a limit of memory: [`LimitedAllocator`].
//!
//! Who looks at the size of a process every few milliseconds ([`crate::split`]) sees too late what is allocated and filled in between. So
//! large allocations, of which there are few, are counted here, exactly and before anything is written to them; small ones are passed on
//! for one comparison. Where the system has no memory to give, that is told too, before the program aborts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Allocations of fewer bytes aren't counted: a core takes 100 us to fill one.
const LARGE_BYTES: usize = 256 << 10;

/// Bytes of large allocations, and how many there may be.
static LARGE: AtomicU64 = AtomicU64::new(0);
static LARGE_MAX: AtomicU64 = AtomicU64::new(u64::MAX);
static REFUSED: OnceLock<fn() -> !> = OnceLock::new();

/// The system's allocator, with a limit on the sum of large allocations (256 KiB and more) in a process that [`crate::split`] made, and
/// none elsewhere. As the `#[global_allocator]` of a program it makes that limit exact for what grows fastest.
#[derive(Debug)]
pub struct LimitedAllocator;

/// From now on an allocation that is beyond the limit, or that the system refuses, calls `refused`.
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

/// Ends the process where the system gave nothing and there is somebody to tell; else the caller finds out.
fn given(place: *mut u8, bytes: usize) -> *mut u8 {
    if place.is_null() {
        remove(bytes);
        refuse();
    }
    place
}

// SAFETY: all memory is that of the system's allocator, for the same layouts.
unsafe impl GlobalAlloc for LimitedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller promises of the layout what this asks for.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as above.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller promises that it's from here, which is from there.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // A small allocation that moves is there twice for a moment; of a large one the system moves the pages.
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

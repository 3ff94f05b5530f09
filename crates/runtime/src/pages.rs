//! Pages are anonymous memory, in units of 4 KiB and of 2 MiB.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size and alignment of a huge page.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
/// The unit of O_DIRECT: offsets and lengths of all direct I/O are multiples of this number of bytes.
pub const PAGE_BYTES: usize = 4096;

/// Maps `len` bytes. From 2 MiB on, the mapping is aligned to 2 MiB and uses huge pages.
pub(crate) fn map_pages(len: usize) -> rustix::io::Result<NonNull<u8>> {
    let is_huge = len >= HUGE_BYTES;
    let address = map_aligned(len, if is_huge { HUGE_BYTES } else { PAGE_BYTES })?;
    if is_huge {
        // SAFETY: the range was just mapped and has no other user. A kernel without huge pages refuses the advice,
        // which only makes access slower.
        let _ = unsafe { madvise(address.as_ptr().cast(), len, Advice::LinuxHugepage) };
    }
    Ok(address)
}

/// Maps `len` bytes at a multiple of `align`. The function maps more bytes, and unmaps the surplus at both ends.
fn map_aligned(len: usize, align: usize) -> rustix::io::Result<NonNull<u8>> {
    let slack = if align > PAGE_BYTES { align } else { 0 };
    // SAFETY: a new private anonymous mapping at an address of the system's choice changes no existing memory.
    let base = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            len + slack,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    } as usize;
    let start = base.next_multiple_of(align);
    for (from, to) in [(base, start), (start + len, base + len + slack)] {
        if to > from {
            // SAFETY: from..to is a page-aligned part of the mapping above that nothing uses.
            unsafe { munmap(from as *mut _, to - from)? };
        }
    }
    Ok(NonNull::new(start as *mut u8).expect("mappings never start at 0"))
}

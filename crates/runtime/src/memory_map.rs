//! Maps a range of a file that is in the page cache into memory.
//!
//! A copy out of the page cache costs as much as a search of the bytes. A memory map costs little if the file lies in
//! large folios, which one entry of a page table maps: two threads read 4.2 GB in 0.13 s, where copies take 0.20 s
//! (with small folios both take 0.24 s). A memory map has two dangers:
//!
//! - The file may become shorter, or the drive may fail, while the bytes are read. The kernel then sends SIGBUS. A
//!   signal handler maps zeros in place of the lost pages and sets a flag, which [`MemoryMap::check`] reports. A SIGBUS
//!   outside of all memory maps goes to the previous handler.
//! - Other processes may write to the file while the bytes are read, so two reads of the same byte may
//!   differ. Memory maps are therefore only for callers that check every byte on which they rely, as they do
//!   with untrusted input.

use std::{
    fs::File,
    io,
    ops::Deref,
    path::Path,
    ptr::{self, NonNull},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{Error, PAGE_BYTES, Result};

/// The largest number of memory maps that exist in the process at the same time.
const WINDOWS_MAX: usize = 256;

/// `MemoryMapSlot` describes an existing memory map to the signal handler.
struct MemoryMapSlot {
    is_taken: AtomicBool,
    /// The number of the first page and the number of pages, packed into one integer, so that both always
    /// belong to the same memory map; 0 if the slot is unused.
    pages: AtomicU64,
    has_failed: AtomicBool,
}

/// The number of bits for the number of pages.
const COUNT_BITS: u32 = 16;

static SLOTS: [MemoryMapSlot; WINDOWS_MAX] = [const {
    MemoryMapSlot {
        is_taken: AtomicBool::new(false),
        pages: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
    }
}; WINDOWS_MAX];

/// `MemoryMap` is a memory map of a range of a file.
#[derive(Debug)]
pub struct MemoryMap {
    address: NonNull<u8>,
    len: usize,
    slot: usize,
    /// The end of the range in the file.
    end: u64,
}

// SAFETY: a MemoryMap is the only owner of its mapping.
unsafe impl Send for MemoryMap {}
// SAFETY: shared access gives only shared slices.
unsafe impl Sync for MemoryMap {}

impl MemoryMap {
    /// Maps `len` bytes of a file from `start` on, a multiple of 4096. The caller must have checked the length of the
    /// file. The result is `None` if too many memory maps exist, or the system can provide no mapping.
    pub(crate) fn open(file: &File, start: u64, len: usize) -> Option<MemoryMap> {
        let fits = len > 0 && len.div_ceil(PAGE_BYTES) < 1 << COUNT_BITS;
        assert!(start.is_multiple_of(PAGE_BYTES as u64) && fits, "{len} bytes from {start}");
        if !install_handler() {
            return None;
        }
        let slot = SLOTS.iter().position(|slot| !slot.is_taken.swap(true, Ordering::Acquire))?;
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the system's choice changes no existing memory. The module's
        // documentation explains why concurrent writes to the file are acceptable.
        let address = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, start) };
        let Some(address) = address.ok().and_then(|address| NonNull::new(address.cast::<u8>())) else {
            SLOTS[slot].is_taken.store(false, Ordering::Release);
            return None;
        };
        let (first, count) = (address.as_ptr() as usize / PAGE_BYTES, len.div_ceil(PAGE_BYTES));
        SLOTS[slot].has_failed.store(false, Ordering::SeqCst);
        SLOTS[slot].pages.store((first as u64) << COUNT_BITS | count as u64, Ordering::SeqCst);
        Some(MemoryMap { address, len, slot, end: start + len as u64 })
    }

    /// Checks that all bytes read so far were the file's bytes. The check also compares the length of the
    /// file with the end of the range.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file at `path` became shorter or the drive failed, since the memory map then
    /// contained zeros.
    pub(crate) fn check(&self, file: &File, path: &Path) -> Result<()> {
        // If the file ends within a page, the bytes after its end become zeros without a signal.
        let is_whole = file.metadata().is_ok_and(|found| found.len() >= self.end);
        match SLOTS[self.slot].has_failed.load(Ordering::SeqCst) || !is_whole {
            true => Err(Error::io(
                "read",
                path,
                io::Error::other("the file became shorter, or the drive failed, while it was read"),
            )),
            false => Ok(()),
        }
    }
}

impl Deref for MemoryMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: address..address+len is mapped as long as `self` lives, and lost pages become zeros.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        let slot = &SLOTS[self.slot];
        slot.pages.store(0, Ordering::SeqCst);
        // SAFETY: the mapping belongs to this memory map, and no borrow of it exists any more. The call cannot fail for
        // an existing mapping.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
        slot.is_taken.store(false, Ordering::Release);
    }
}

/// The action for SIGBUS before the handler was installed.
static PREVIOUS_ACTION: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler for SIGBUS once, and returns true if it is in place.
fn install_handler() -> bool {
    static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
    *IS_INSTALLED.get_or_init(|| {
        // SAFETY: all zeros are a valid sigaction, and both calls get valid ones. The handler is installed after the
        // previous action is stored, and calls only functions that a signal handler may call.
        unsafe {
            if libc::sysconf(libc::_SC_PAGESIZE) != PAGE_BYTES as i64 {
                return false;
            }
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
                return false;
            }
            let _ = PREVIOUS_ACTION.set(before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_lost_page as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) == 0
        }
    })
}

/// Maps zeros in place of the lost pages of a memory map. For any other address the handler restores the previous
/// action. When the handler returns, the failed access is tried again and triggers that action.
extern "C" fn on_lost_page(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo with the address of the access, and errno belongs to this thread.
    let (address, errno) = unsafe { ((*info).si_addr() as usize, libc::__errno_location()) };
    // SAFETY: errno belongs to this thread.
    let before = unsafe { *errno };
    for slot in &SLOTS {
        let pages = slot.pages.load(Ordering::SeqCst);
        let start = (pages >> COUNT_BITS) as usize * PAGE_BYTES;
        let end = start + (pages as usize & ((1 << COUNT_BITS) - 1)) * PAGE_BYTES;
        if address < start || address >= end {
            continue;
        }
        slot.has_failed.store(true, Ordering::SeqCst);
        let page = address & !(PAGE_BYTES - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: page..end is a part of a memory map, which lives while its bytes are read. A signal handler may make
        // system calls.
        let mapped = unsafe { libc::mmap(page as *mut _, end - page, libc::PROT_READ, flags, -1, 0) };
        // SAFETY: errno belongs to this thread.
        unsafe { *errno = before };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    if let Some(action) = PREVIOUS_ACTION.get() {
        // SAFETY: the action is the one that the system returned.
        unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    #[test]
    fn a_file_that_becomes_shorter_reads_as_zeros_and_the_check_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 64 << 10]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let window = MemoryMap::open(&file, 16 << 10, 40 << 10).unwrap();
        let other = MemoryMap::open(&file, 0, 8 << 10).unwrap();
        assert!(window.len() == 40 << 10 && window.iter().all(|&byte| byte == 7));
        window.check(&file, &path).unwrap();
        file.set_len(20 << 10).unwrap();
        assert!(window[..4 << 10].iter().all(|&byte| byte == 7));
        assert!(window[4 << 10..].iter().all(|&byte| byte == 0));
        let error = window.check(&file, &path).unwrap_err().to_string();
        assert!(error.contains("became shorter") && error.contains("file"), "{error}");
        // The kernel sends no signal for bytes after the file's end within its last page.
        let last = MemoryMap::open(&file, 16 << 10, 4 << 10).unwrap();
        last.check(&file, &path).unwrap();
        file.set_len((20 << 10) - 5).unwrap();
        assert_eq!(last[(4 << 10) - 6..], [7, 0, 0, 0, 0, 0]);
        last.check(&file, &path).unwrap_err();
        assert!(other.iter().all(|&byte| byte == 7));
        other.check(&file, &path).unwrap();
        drop(window);
        // A slot can be reused after it was released.
        let again = MemoryMap::open(&file, 0, 16 << 10).unwrap();
        assert!(again.iter().all(|&byte| byte == 7));
        again.check(&file, &path).unwrap();
    }

    #[test]
    fn windows_beyond_the_limit_are_none_and_slots_are_reused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        // Other tests may hold memory maps at the same time.
        let all: Vec<_> = (0..=WINDOWS_MAX).map_while(|_| MemoryMap::open(&file, 0, 4096)).collect();
        assert!(all.len() > WINDOWS_MAX / 2 && all.len() <= WINDOWS_MAX, "{}", all.len());
        drop(all);
        assert!(MemoryMap::open(&file, 0, 4096).is_some());
    }

    /// The test runs in a child process. SIGBUS must end the process as if it had no memory maps.
    #[test]
    fn a_lost_page_outside_of_all_windows_ends_the_process() {
        const IS_CHILD: &str = "INSHORE_TEST_LOSES_A_PAGE";
        let folder = tempfile::tempdir().unwrap();
        if std::env::var_os(IS_CHILD).is_none() {
            let me = std::env::current_exe().unwrap();
            let name = "memory_map::tests::a_lost_page_outside_of_all_windows_ends_the_process";
            let ended = Command::new(me).args(["--exact", name]).env(IS_CHILD, "1").output().unwrap().status;
            assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
            return;
        }
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let _window = MemoryMap::open(&file, 0, 4096).unwrap();
        // SAFETY: this is a new mapping, from which no slice is made.
        let other =
            unsafe { mmap(ptr::null_mut(), 8192, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
        file.set_len(0).unwrap();
        // SAFETY: the address is mapped; the test is about this access to a lost page.
        let byte = unsafe { ptr::read_volatile(other.cast::<u8>().add(4096)) };
        panic!("read {byte}");
    }
}

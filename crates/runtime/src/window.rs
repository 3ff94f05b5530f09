//! Bytes of a file that the page cache has, looked at where they lie.
//!
//! A copy of what the page cache holds costs as much as to search it twice. A mapping costs little where the file lies in
//! large folios, which one entry of a page table maps: 4.2 GB in 0.13 s by two threads, in 0.20 s by copies (and in the
//! same time, 0.24 s, where folios are small). It has two dangers:
//!
//! - The file becomes shorter, or the drive fails, while somebody looks: the system sends SIGBUS. Here a handler puts zeros
//!   in place of what is gone and notes it; [`Window::check`] tells. What is no window's goes to whoever handled it before.
//! - Others write to the file while somebody looks: the same byte may be two different ones. So a window is only for those
//!   who take no byte's word for anything that they do not check, as with bytes of which nothing is known.

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

/// Windows that there may be at a time, in the whole process.
const WINDOWS_MAX: usize = 256;

/// A window that is open, as the handler of signals sees it.
struct Slot {
    is_taken: AtomicBool,
    /// Its first page and how many there are, in one word, so that both are of the same window; 0 where there is none.
    pages: AtomicU64,
    has_failed: AtomicBool,
}

/// Bits for how many pages there are.
const COUNT_BITS: u32 = 16;

static SLOTS: [Slot; WINDOWS_MAX] = [const {
    Slot { is_taken: AtomicBool::new(false), pages: AtomicU64::new(0), has_failed: AtomicBool::new(false) }
}; WINDOWS_MAX];

/// Some bytes of a file, mapped.
#[derive(Debug)]
pub struct Window {
    address: NonNull<u8>,
    len: usize,
    slot: usize,
    /// Where in the file it ends.
    end: u64,
}

// SAFETY: it is the only owner of its mapping.
unsafe impl Send for Window {}
// SAFETY: shared access gives only shared slices.
unsafe impl Sync for Window {}

impl Window {
    /// `len` bytes of a file from `start` on, which is a multiple of 4096; none where there are too many windows, or the
    /// system has no mapping to give. The file has these bytes, as far as is known.
    pub(crate) fn open(file: &File, start: u64, len: usize) -> Option<Window> {
        let fits = len > 0 && len.div_ceil(PAGE_BYTES) < 1 << COUNT_BITS;
        assert!(start.is_multiple_of(PAGE_BYTES as u64) && fits, "{len} bytes from {start}");
        if !is_handled() {
            return None;
        }
        let slot = SLOTS.iter().position(|slot| !slot.is_taken.swap(true, Ordering::Acquire))?;
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the system's choice touches nothing existing. That others may change what
        // is mapped is said above, and why that is borne.
        let address = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, start) };
        let Some(address) = address.ok().and_then(|address| NonNull::new(address.cast::<u8>())) else {
            SLOTS[slot].is_taken.store(false, Ordering::Release);
            return None;
        };
        let (first, count) = (address.as_ptr() as usize / PAGE_BYTES, len.div_ceil(PAGE_BYTES));
        SLOTS[slot].has_failed.store(false, Ordering::SeqCst);
        SLOTS[slot].pages.store((first as u64) << COUNT_BITS | count as u64, Ordering::SeqCst);
        Some(Window { address, len, slot, end: start + len as u64 })
    }

    /// Whether all that was seen was the file's, as far as is known now. Asks the system how long the file is.
    ///
    /// # Errors
    /// [`Error::Io`] where some of it could not be had: the file, at `path`, became shorter, or the drive failed. There
    /// were zeros instead.
    pub(crate) fn check(&self, file: &File, path: &Path) -> Result<()> {
        // What is cut off within a page becomes zeros, and nobody is told.
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

impl Deref for Window {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: address..address+len is mapped as long as this lives, and what is lost of it becomes zeros.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let slot = &SLOTS[self.slot];
        slot.pages.store(0, Ordering::SeqCst);
        // SAFETY: the mapping is this one's, and nobody looks at it any more. It cannot fail for one that is there.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
        slot.is_taken.store(false, Ordering::Release);
    }
}

/// The action for SIGBUS before there were windows.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether SIGBUS comes here; makes it so once.
fn is_handled() -> bool {
    static IS_HANDLED: OnceLock<bool> = OnceLock::new();
    *IS_HANDLED.get_or_init(|| {
        // SAFETY: all zeros are a sigaction, and both calls are given valid ones. The handler is set after it is known what
        // to hand on to, and does only what a handler of signals may.
        unsafe {
            if libc::sysconf(libc::_SC_PAGESIZE) != PAGE_BYTES as i64 {
                return false;
            }
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
                return false;
            }
            let _ = BEFORE.set(before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_lost_page as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) == 0
        }
    })
}

/// Puts zeros where a window has lost its pages. What is no window's is left to what was there before: the access that failed
/// is tried again when this returns, and meets it.
extern "C" fn on_lost_page(signal: libc::c_int, told: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a valid siginfo with the address of the access, and errno is this thread's.
    let (address, errno) = unsafe { ((*told).si_addr() as usize, libc::__errno_location()) };
    // SAFETY: as above.
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
        // SAFETY: page..end is a part of a mapping that is a window's, which lives while somebody looks at it. A system
        // call, as those are that a handler may make.
        let mapped = unsafe { libc::mmap(page as *mut _, end - page, libc::PROT_READ, flags, -1, 0) };
        // SAFETY: as above.
        unsafe { *errno = before };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    if let Some(action) = BEFORE.get() {
        // SAFETY: what the system gave, given back.
        unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    #[test]
    fn a_file_that_becomes_shorter_reads_as_zeros_from_there_on_and_that_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 64 << 10]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let window = Window::open(&file, 16 << 10, 40 << 10).unwrap();
        let other = Window::open(&file, 0, 8 << 10).unwrap();
        assert!(window.len() == 40 << 10 && window.iter().all(|&byte| byte == 7));
        window.check(&file, &path).unwrap();
        file.set_len(20 << 10).unwrap();
        assert!(window[..4 << 10].iter().all(|&byte| byte == 7));
        assert!(window[4 << 10..].iter().all(|&byte| byte == 0));
        let told = window.check(&file, &path).unwrap_err().to_string();
        assert!(told.contains("became shorter") && told.contains("file"), "{told}");
        // Within a page the system tells nobody.
        let last = Window::open(&file, 16 << 10, 4 << 10).unwrap();
        last.check(&file, &path).unwrap();
        file.set_len((20 << 10) - 5).unwrap();
        assert_eq!(last[(4 << 10) - 6..], [7, 0, 0, 0, 0, 0]);
        last.check(&file, &path).unwrap_err();
        assert!(other.iter().all(|&byte| byte == 7));
        other.check(&file, &path).unwrap();
        drop(window);
        // A place that was used is as good as new.
        let again = Window::open(&file, 0, 16 << 10).unwrap();
        assert!(again.iter().all(|&byte| byte == 7));
        again.check(&file, &path).unwrap();
    }

    #[test]
    fn windows_beyond_the_last_place_are_none_and_places_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        // Other tests have some too.
        let all: Vec<_> = (0..=WINDOWS_MAX).map_while(|_| Window::open(&file, 0, 4096)).collect();
        assert!(all.len() > WINDOWS_MAX / 2 && all.len() <= WINDOWS_MAX, "{}", all.len());
        drop(all);
        assert!(Window::open(&file, 0, 4096).is_some());
    }

    /// In a process of its own, which dies of it as it would without windows.
    #[test]
    fn a_lost_page_of_somebody_else_ends_the_process_as_ever() {
        const TOLD: &str = "INSHORE_TEST_LOSES_A_PAGE";
        let folder = tempfile::tempdir().unwrap();
        if std::env::var_os(TOLD).is_none() {
            let me = std::env::current_exe().unwrap();
            let name = "window::tests::a_lost_page_of_somebody_else_ends_the_process_as_ever";
            let ended = Command::new(me).args(["--exact", name]).env(TOLD, "1").output().unwrap().status;
            assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
            return;
        }
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let _window = Window::open(&file, 0, 4096).unwrap();
        // SAFETY: a new mapping, of which no slice is made.
        let other =
            unsafe { mmap(ptr::null_mut(), 8192, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
        file.set_len(0).unwrap();
        // SAFETY: it is mapped; that its page is gone is what is tested.
        let byte = unsafe { ptr::read_volatile(other.cast::<u8>().add(4096)) };
        panic!("read {byte}");
    }
}

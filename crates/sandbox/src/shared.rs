//! This module shares memory between the calling process and a child process, which runs a WebAssembly module or
//! code of the current program. All `unsafe` code for shared memory is in this file.
//!
//! The shared memory is a file in memory (`memfd`) that is sealed against shrinking, so that the child cannot
//! remove pages that the calling process has mapped.

use std::{
    fs::File,
    io,
    ptr::{self, NonNull},
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// The file grows in multiples of this size.
const STEP_BYTES: usize = 64 << 10;

/// Holds one process's end of the shared memory: the file and this process's mapping.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    at: Option<NonNull<u8>>,
    mapped_bytes: usize,
}

// SAFETY: only this value uses the mapping, and writes it only through `&mut`.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    pub fn new() -> io::Result<SharedMemory> {
        let file = memfd_create("inshore-shared", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok(SharedMemory { file: File::from(file), at: None, mapped_bytes: 0 })
    }

    /// Returns the child's end of the shared memory, for the file that the parent made.
    pub fn of(file: File) -> SharedMemory {
        SharedMemory { file, at: None, mapped_bytes: 0 }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Grows the file and this process's mapping to at least `bytes`, so that the other process can map as much.
    pub fn grow(&mut self, bytes: usize) -> io::Result<()> {
        if bytes <= self.mapped_bytes {
            return Ok(());
        }
        let bytes = bytes.next_multiple_of(STEP_BYTES);
        if self.file.metadata()?.len() < bytes as u64 {
            self.file.set_len(bytes as u64)?;
        }
        self.unmap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: this makes a new mapping, at an address that the system chooses.
        let at = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &self.file, 0) }?;
        (self.at, self.mapped_bytes) = (NonNull::new(at.cast()), bytes);
        Ok(())
    }

    /// Writes bytes at `position`. The other process must not read these bytes meanwhile.
    pub fn put(&mut self, position: usize, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = position.checked_add(bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        self.grow(end)?;
        let at = self.at.expect("mapped just now");
        // SAFETY: `end` bytes of the file are mapped. The file can't become shorter, and no reference to these
        // bytes exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr().add(position), bytes.len()) };
        Ok(())
    }

    /// Appends the first `length` bytes of the shared memory to `bytes`. The other process must not write these
    /// bytes meanwhile. If it does, the appended bytes are a mixture of old and new bytes.
    pub fn take(&mut self, length: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.grow(length)?;
        bytes.reserve(length);
        let (at, end) = (self.at.expect("mapped just now"), bytes.len());
        // SAFETY: `length` bytes of the file are mapped, and the file can't become shorter. `bytes` has capacity
        // for as many bytes after its end.
        unsafe {
            ptr::copy_nonoverlapping(at.as_ptr(), bytes.as_mut_ptr().add(end), length);
            bytes.set_len(end + length);
        }
        Ok(())
    }

    fn unmap(&mut self) {
        if let Some(at) = self.at.take() {
            // SAFETY: the mapping was made in `grow`, and no pointer to the mapping is kept.
            let unmapped = unsafe { munmap(at.as_ptr().cast(), self.mapped_bytes) };
            assert!(unmapped.is_ok(), "what was mapped can be unmapped");
            self.mapped_bytes = 0;
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Records the range of a module's memory over which the shared file is mapped.
#[cfg(feature = "wasm")]
#[derive(Clone, Copy, Debug)]
pub struct MappedMemory {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: this is an address and a length; callers that use the address say why the address is valid.
#[cfg(feature = "wasm")]
unsafe impl Send for MappedMemory {}

#[cfg(feature = "wasm")]
impl MappedMemory {
    /// Maps the first `bytes` of the file over the memory at `at`.
    ///
    /// # Safety
    /// `at` is the start of a page. The caller owns `bytes` bytes from there on; the memory does not move until
    /// [`MappedMemory::take_back`], and no reference to the memory exists.
    pub unsafe fn lend(at: *mut u8, bytes: usize, file: &File) -> io::Result<MappedMemory> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the mapping replaces pages that the caller owns.
        unsafe { mmap(at.cast(), bytes, protection, flags, file, 0) }?;
        Ok(MappedMemory { at, bytes })
    }

    /// Maps zeroed pages over the memory again.
    ///
    /// # Safety
    /// The caller still owns the memory, and no reference to the memory exists.
    pub unsafe fn take_back(self) -> io::Result<()> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: the mapping replaces the one that `lend` made.
        unsafe { rustix::mm::mmap_anonymous(self.at.cast(), self.bytes, protection, flags) }?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn written_bytes_are_in_the_file_and_the_file_never_shrinks() {
        let mut shared = SharedMemory::new().unwrap();
        shared.put(0, b"abc").unwrap();
        shared.put(100_000, b"def").unwrap();
        shared.put(1, b"X").unwrap();
        let read = |at| {
            let mut bytes = [0; 3];
            shared.file().read_exact_at(&mut bytes, at).unwrap();
            bytes
        };
        assert_eq!((&read(0), &read(100_000)), (b"aXc", b"def"));
        assert!(shared.file().set_len(10).is_err());
        let mut other = SharedMemory::of(shared.file().try_clone().unwrap());
        let mut bytes = b"before".to_vec();
        other.take(3, &mut bytes).unwrap();
        assert_eq!(bytes, b"beforeaXc");
        other.put(0, b"from there").unwrap();
        shared.take(10, &mut bytes).unwrap();
        assert_eq!(bytes, b"beforeaXcfrom there");
    }

    #[cfg(feature = "wasm")]
    #[test]
    fn lent_memory_shows_the_file_until_it_is_taken_back() {
        let mut shared = SharedMemory::new().unwrap();
        shared.put(0, b"abc").unwrap();
        let bytes = STEP_BYTES;
        let flags = MapFlags::PRIVATE;
        // SAFETY: only this test uses the mapping, and reads it through raw pointers.
        unsafe {
            let at =
                rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags);
            let at = at.unwrap().cast::<u8>();
            let lent = MappedMemory::lend(at, bytes, shared.file()).unwrap();
            assert_eq!(at.add(2).read_volatile(), b'c');
            shared.put(2, b"C").unwrap();
            assert_eq!(at.add(2).read_volatile(), b'C');
            lent.take_back().unwrap();
            assert_eq!(at.add(2).read_volatile(), 0);
            munmap(at.cast(), bytes).unwrap();
        }
    }
}

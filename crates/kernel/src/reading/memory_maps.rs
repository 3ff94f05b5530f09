//! Maps byte ranges of a file in the page cache into memory, so that compute kernels can read them without a copy. A
//! mapped byte range is called a window.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use inshore_store::{MemoryMap, PlainFile};

use super::MARGIN_BYTES;
use crate::{Error, Result};

/// The size in bytes of a window (a byte range of a cached file that one memory map covers). Mapping takes little time:
/// Linux maps a folio (a group of adjacent pages) of 2 MiB by one page table entry, and smaller folios in large
/// batches.
pub(super) const WINDOW_BYTES: u64 = 16 << 20;
/// The block size in bytes of a file that is read through windows. Blocks are large because a worker waits for main
/// memory at the start of each block.
pub(super) const WINDOW_BLOCK_BYTES: u64 = 1 << 20;
/// The number of windows of a file that stay mapped at a time.
const WINDOWS_KEPT: usize = 2;

/// The windows (mapped byte ranges) of a file. Each window has a number, counted from the start of the file.
#[derive(Debug)]
pub struct MemoryMaps {
    open: Mutex<VecDeque<(u64, Arc<MemoryMap>)>>,
    /// The number of blocks whose processing has ended.
    done: AtomicU64,
    /// The file's modification time before the first window was mapped.
    written: SystemTime,
}

impl MemoryMaps {
    pub fn new(file: &PlainFile) -> Result<MemoryMaps> {
        Ok(MemoryMaps { open: Mutex::default(), done: AtomicU64::new(0), written: file.written()? })
    }

    /// Calls `work` with the bytes of `range` in a mapped window. If no window is available, the result is `None`, and
    /// `work` is not called.
    pub fn with_map<R>(
        &self,
        file: &PlainFile,
        range: Range<u64>,
        work: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Option<Result<R>> {
        let (window, place) = self.map_around(file, &range)?;
        // Code that assumes unchanged bytes may panic if another process changes the file.
        let worked = panic::catch_unwind(AssertUnwindSafe(|| work(&window[place])));
        let checked = file.check(&window).map_err(Error::from);
        if self.done.fetch_add(1, Ordering::Relaxed) + 1 == file.len().div_ceil(WINDOW_BLOCK_BYTES) {
            // After the last block, the source may stay open for a long time, until its parts are delivered. The
            // windows are no longer needed, so they are unmapped here.
            self.open.lock().expect("no panic under this lock").clear();
        }
        Some(match (checked, worked) {
            (Err(error), _) => Err(error),
            (Ok(()), Ok(result)) => result,
            (Ok(()), Err(panic)) => match file.written() {
                Ok(written) if written == self.written => panic::resume_unwind(panic),
                _ => {
                    let source = io::Error::other("the file changed while it was read");
                    let (what, path) = ("read".to_string(), file.path().to_path_buf());
                    Err(inshore_store::Error::Io { what, path, source }.into())
                }
            },
        })
    }

    /// Returns the window that contains all of `range`, and the offsets of `range` within the window. The result is
    /// `None` if no single window contains `range`, or if the mapping fails.
    fn map_around(&self, file: &PlainFile, range: &Range<u64>) -> Option<(Arc<MemoryMap>, Range<usize>)> {
        let number = range.start / WINDOW_BYTES;
        let start = number * WINDOW_BYTES;
        let len = (file.len() - start).min(WINDOW_BYTES + MARGIN_BYTES as u64);
        let place = (range.start - start) as usize..(range.end - start) as usize;
        if place.end as u64 > len {
            return None;
        }
        let mut open = self.open.lock().expect("no panic under this lock");
        if let Some((_, window)) = open.iter().find(|(other, _)| *other == number) {
            return Some((window.clone(), place));
        }
        let window = Arc::new(file.window(start, len as usize)?);
        open.push_back((number, window.clone()));
        // The oldest window is unmapped at the end of the function, after the lock is released.
        let _old = (open.len() > WINDOWS_KEPT).then(|| open.pop_front());
        drop(open);
        Some((window, place))
    }
}

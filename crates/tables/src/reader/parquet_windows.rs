//! Provides windows. A window is a read buffer that holds a contiguous range of a column chunk. Reads into windows
//! bypass the page cache.
//!
//! If a file is not in the page cache, each column chunk is read one window at a time. Pages are slices of windows and
//! are not copied. While the pages of one window are decoded, a thread reads the next window of the chunk, or the first
//! window of the column's next chunk. A page may begin in one window and end in the next one. The beginning of the page
//! is then copied into a gap in front of the bytes of the next window, so that the page is contiguous.
//!
//! ```text
//!   chunk    [ page | page | pa|ge | page | page ]
//!   windows  [ page | page | pa]
//!                   [ room | pa ge | page | page ]
//! ```
//!
//! Reading through the page cache with a read-ahead hint would be simpler, but the operating system would copy every
//! byte once more. The additional copy costs a sixth of the CPU time. In a measurement, `inshore reduce` by popular
//! keys took 9.5 s of CPU time (both cores) through the page cache, and 8.1 s with windows.
//!
//! The windows of a reader are reserved from the budget if possible, and take at most a 32nd of the budget. If there is
//! no memory for windows, or if a page is larger than a window, bytes are read through the page cache.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use inshore_store::{Budget, Buffer, PAGE_BYTES, PlainFile, RuntimeError};

use crate::Result;

const WINDOW_BYTES_MAX: u64 = 2 << 20;
/// The minimum size of a window in bytes. Smaller direct reads are slower than reads through the page cache. A group-by
/// of 250 million rows in 256 MiB read the last row after 3.3 s with windows of 512 KiB, and after 1.8 s with windows
/// of 1 MiB.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
/// The windows of one reader together take at most the budget divided by this number.
const BUDGET_SHARE: u64 = 32;
/// The size of the gap is the size of a window divided by this number. The gap takes the beginning of a page that began
/// in the previous window.
const ROOM_SHARE: usize = 4;

/// The state of all windows of one reader.
pub(super) struct Windows {
    file: PlainFile,
    window_bytes: usize,
    spare: FreeBuffers,
    /// The windows that are being read, the oldest first.
    ahead: Mutex<Vec<PendingWindow>>,
    /// The queue of requests. The value is `None` only while the windows are dropped.
    requests: Option<Sender<WindowRequest>>,
    reader: Option<JoinHandle<()>>,
}

/// A window with bytes of the file, beginning at the file offset `start`.
#[derive(Default)]
pub(super) struct Window {
    start: u64,
    bytes: Bytes,
}

/// A window whose read is in flight.
struct PendingWindow {
    start: u64,
    answer: Receiver<(Buffer, std::result::Result<usize, RuntimeError>)>,
}

/// A request to fill a range of a buffer with bytes of the file from offset `start` on.
struct WindowRequest {
    start: u64,
    range: Range<usize>,
    buffer: Buffer,
    answer: SyncSender<(Buffer, std::result::Result<usize, RuntimeError>)>,
}

/// The pool of unused buffers.
#[derive(Clone)]
struct FreeBuffers(Arc<Mutex<Vec<Buffer>>>);

impl FreeBuffers {
    fn take(&self) -> Option<Buffer> {
        lock(&self.0).pop()
    }

    /// Lends a buffer as bytes, and returns the buffer to the pool when the last slice is dropped.
    fn lend(&self, buffer: Buffer) -> Bytes {
        Bytes::from_owner(PooledBuffer { buffer: Some(buffer), spare: self.clone() })
    }
}

struct PooledBuffer {
    /// The buffer. The value is `None` only while this object is dropped.
    buffer: Option<Buffer>,
    spare: FreeBuffers,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..])
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        lock(&self.spare.0).extend(self.buffer.take());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn page_of(place: u64) -> u64 {
    place / PAGE_BYTES as u64 * PAGE_BYTES as u64
}

/// Returns the number of windows for `columns` columns. Each column has one window in use and one window that is being
/// read. There are two additional windows. One is for a page that is requested during these reads. The other replaces a
/// window whose last page is still in use.
fn count(columns: usize) -> usize {
    2 * columns + 2
}

impl Windows {
    /// Creates windows for columns that are read at the same time. Returns `None` if the page cache has the file, or
    /// the budget has too little memory.
    pub fn new(file: PlainFile, columns: usize, budget: &Budget) -> Option<Windows> {
        let count = count(columns);
        let bytes = (budget.memory_bytes() / BUDGET_SHARE / count as u64).min(WINDOW_BYTES_MAX);
        if file.is_cached() || bytes < WINDOW_BYTES_MIN {
            return None;
        }
        let window_bytes = 1 << bytes.ilog2();
        let region = Buffer::zeroed(budget, window_bytes * count, "read buffers of a Parquet file").ok()?;
        let spare = FreeBuffers(Arc::new(Mutex::new(region.split(window_bytes))));
        let (requests, queue) = channel::<WindowRequest>();
        let read_from = file.clone();
        let read_all = move || {
            for WindowRequest { start, range, mut buffer, answer } in queue {
                let read = read_from.read(start, &mut buffer[range]);
                // If the receiver of the answer was dropped, the answer is dropped too.
                _ = answer.send((buffer, read));
            }
        };
        let reader = thread::Builder::new().name("parquet".into()).spawn(read_all).ok()?;
        let (requests, reader, ahead) = (Some(requests), Some(reader), Mutex::default());
        Some(Windows { file, window_bytes, spare, ahead, requests, reader })
    }

    fn room_bytes(&self) -> usize {
        self.window_bytes / ROOM_SHARE
    }

    /// Begins to read a window at `start` of a column chunk that ends at `chunk_end`, if there is a free buffer.
    pub fn will_read(&self, start: u64, chunk_end: u64) {
        let (start, end) = (page_of(start), chunk_end.min(self.file.len()));
        let mut ahead = lock(&self.ahead);
        if start >= end || ahead.iter().any(|ahead| ahead.start == start) {
            return;
        }
        let Some(buffer) = self.spare.take() else { return };
        let room = self.room_bytes();
        let len =
            (end - start).next_multiple_of(PAGE_BYTES as u64).min((self.window_bytes - room) as u64) as usize;
        let (answer, coming) = sync_channel(1);
        let request = WindowRequest { start, range: room..room + len, buffer, answer };
        if self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok()) {
            ahead.push(PendingWindow { start, answer: coming });
        }
    }

    /// Returns `len` bytes at `start` of a column chunk that ends at `chunk_end`, and advances `window` to these bytes.
    /// Returns `None` if no window is free, or if a window is too small for the bytes.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if the drive fails.
    pub fn read(&self, window: &mut Window, start: u64, len: usize, chunk_end: u64) -> Result<Option<Bytes>> {
        if let Some(bytes) = window.slice(start, len) {
            return Ok(Some(bytes));
        }
        let is_there = self.go_on(window, start)? && window.slice(start, len).is_some();
        if !is_there && !self.fill(window, start, len, chunk_end)? {
            return Ok(None);
        }
        self.will_read(window.end(), chunk_end);
        Ok(window.slice(start, len))
    }

    /// Replaces `window` by the window that continues it, and returns true. Returns false if that window was not read
    /// ahead, or if its gap is too small. The window begins at the start of the 4 KiB page that contains `start`. If
    /// `window` already contains this page, the window begins at the end of `window`.
    fn go_on(&self, window: &mut Window, start: u64) -> Result<bool> {
        let page = page_of(start);
        let there = window.slice_from(page);
        let next = page + there.len() as u64;
        if there.len() > self.room_bytes() {
            return Ok(false);
        }
        let found = {
            let mut ahead = lock(&self.ahead);
            ahead.iter().position(|ahead| ahead.start == next).map(|found| ahead.remove(found))
        };
        let Some(found) = found else { return Ok(false) };
        let Ok((mut buffer, read)) = found.answer.recv() else { return Ok(false) };
        let room = self.room_bytes();
        buffer[room - there.len()..room].copy_from_slice(&there);
        let bytes = self.spare.lend(buffer);
        let read = read?;
        *window = Window { start: page, bytes: bytes.slice(room - there.len()..room + read) };
        Ok(true)
    }

    /// Reads a window that contains the `len` bytes at `start`, and waits until the read has ended. Returns `false` if
    /// no buffer is free, or if a buffer is too small for the bytes.
    fn fill(&self, window: &mut Window, start: u64, len: usize, chunk_end: u64) -> Result<bool> {
        let (base, page_bytes) = (page_of(start), PAGE_BYTES as u64);
        let needed = (start + len as u64).next_multiple_of(page_bytes) - base;
        if needed > self.window_bytes as u64 {
            return Ok(false);
        }
        let Some(mut buffer) = self.spare.take().or_else(|| self.take_oldest()) else { return Ok(false) };
        let wanted = chunk_end.saturating_sub(base).next_multiple_of(page_bytes).max(needed);
        let wanted = wanted.min(self.window_bytes as u64) as usize;
        let there = window.slice_from(base);
        buffer[..there.len()].copy_from_slice(&there);
        let read = self.file.read(base + there.len() as u64, &mut buffer[there.len()..wanted]);
        let bytes = self.spare.lend(buffer);
        *window = Window { start: base, bytes: bytes.slice(..there.len() + read?) };
        Ok(true)
    }

    /// Takes the buffer of the oldest window that was read ahead but not used, for example because its chunk was
    /// skipped.
    fn take_oldest(&self) -> Option<Buffer> {
        let mut ahead = lock(&self.ahead);
        let oldest = if ahead.is_empty() { None } else { Some(ahead.remove(0)) };
        drop(ahead);
        oldest?.answer.recv().ok().map(|(buffer, _)| buffer)
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.requests = None;
        // The memory of the windows is returned to the budget when this function ends.
        let ended = self.reader.take().map(JoinHandle::join);
        debug_assert!(ended.is_none_or(|ended| ended.is_ok()));
    }
}

impl Window {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn slice(&self, start: u64, len: usize) -> Option<Bytes> {
        let from = usize::try_from(start.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(len)?;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }

    /// Returns the bytes of the window from file offset `start` on. `start` must be a multiple of the page size of
    /// memory. The result is empty if the window does not end at a multiple of this page size.
    fn slice_from(&self, start: u64) -> Bytes {
        let end = self.end();
        if !(self.start..end).contains(&start) || !end.is_multiple_of(PAGE_BYTES as u64) {
            return Bytes::new();
        }
        self.bytes.slice((start - self.start) as usize..)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use super::*;

    /// Opens a file after its pages were evicted from the page cache. The operating system keeps pages that it is busy
    /// with, so the eviction is repeated for up to 2 seconds. Returns `None` if the file is still cached after that.
    fn open_evicted(path: &Path) -> Option<PlainFile> {
        let file = fs::File::open(path).unwrap();
        file.sync_all().unwrap();
        (0..100).find_map(|attempt| {
            thread::sleep(Duration::from_millis(20).min(Duration::from_millis(attempt)));
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            Some(PlainFile::open(path).unwrap()).filter(|plain| !plain.is_cached())
        })
    }

    /// Reads pages of many lengths one after the other. Returns the number of pages for which no window was available,
    /// or `None` if the budget is too small for windows.
    fn check(
        path: &Path,
        bytes: &[u8],
        budget_mib: u64,
        columns: usize,
        page_bytes: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        let plain = open_evicted(path).unwrap();
        let budget = Budget::new(budget_mib << 20, 1);
        let windows = Windows::new(plain, columns, &budget)?;
        assert!(budget.reserved_bytes() <= budget.memory_bytes() / BUDGET_SHARE + (2 << 20));
        // This chunk is skipped.
        windows.will_read(8_000_000, bytes.len() as u64);
        let (mut window, mut start, mut without) = (Window::default(), 5, 0);
        let mut held = Vec::new();
        for page in 0.. {
            let len = page_bytes(page).min(bytes.len() - start);
            match windows.read(&mut window, start as u64, len, bytes.len() as u64 - 7).unwrap() {
                Some(found) => {
                    assert!(found == bytes[start..start + len], "{len} bytes at {start}");
                    held = vec![found];
                }
                None => without += 1,
            }
            start += len;
            if start == bytes.len() {
                break;
            }
        }
        drop((window, held));
        assert_eq!(lock(&windows.spare.0).len() + lock(&windows.ahead).len(), count(columns));
        drop(windows);
        assert_eq!(budget.reserved_bytes(), 0);
        Some(without)
    }

    #[test]
    fn pages_of_any_length_come_from_windows_that_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..9_000_011usize).map(|i| (i * 31 + i / 4096) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        if open_evicted(&path).is_none() {
            return println!("skipped: the page cache keeps every file here");
        }
        assert_eq!(check(&path, &bytes, 1024, 2, |_| 100_000), Some(0));
        assert_eq!(check(&path, &bytes, 1024, 2, |page| 1 + page * 7919 % 300_000), Some(0));
        assert_eq!(check(&path, &bytes, 256, 1, |page| 1 + page * 7919 % 900_000), Some(0));
        // Some pages are larger than a window.
        assert!(check(&path, &bytes, 256, 3, |page| 1 + page * 77_777 % 1_500_000).unwrap() > 0);
        // The budget is too small for windows of the minimum size.
        assert_eq!(check(&path, &bytes, 64, 2, |_| 100_000), None);
    }
}

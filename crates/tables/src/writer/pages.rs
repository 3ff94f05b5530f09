//! Stores finished Parquet pages until their row group ends.
//!
//! In a row group, all pages of a column are contiguous. Rows arrive with all columns, so every page waits until its
//! row group is complete. The size of row groups does not depend on the budget, so that a file has the same bytes under
//! every budget. Pages wait in the memory that the writer could reserve. Further pages wait in an unnamed file in the
//! folder of the table. The unnamed file is written and read once, mostly through the page cache, since a row group has
//! about 10 MB.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use parquet::{
    arrow::arrow_writer::{PageKey, PageStore, PageStoreArgs, PageStoreFactory},
    errors::{ParquetError, Result},
};

/// The waiting pages of all columns of one writer.
#[derive(Debug)]
pub(super) struct PendingPages(Arc<Mutex<PendingState>>);

#[derive(Debug)]
struct PendingState {
    memory_bytes_left: u64,
    folder: PathBuf,
    file: Option<File>,
    file_end: u64,
    /// The number of pages in the file. After all of them were read, the file is overwritten from its start.
    pages_in_file: u64,
}

impl PendingPages {
    /// Holds up to `memory_bytes` bytes of pages in memory. Further pages go to an unnamed file in `folder`. This file
    /// is created when the first page needs it.
    pub fn new(memory_bytes: u64, folder: PathBuf) -> Self {
        let waiting = PendingState {
            memory_bytes_left: memory_bytes,
            folder,
            file: None,
            file_end: 0,
            pages_in_file: 0,
        };
        PendingPages(Arc::new(Mutex::new(waiting)))
    }
}

impl PageStoreFactory for PendingPages {
    fn create(&self, _: &PageStoreArgs<'_>) -> Result<Box<dyn PageStore>> {
        Ok(Box::new(ColumnPages { shared: self.0.clone(), pages: Vec::new() }))
    }
}

/// The waiting pages of one column.
struct ColumnPages {
    shared: Arc<Mutex<PendingState>>,
    pages: Vec<Page>,
}

enum Page {
    InMemory(Bytes),
    InFile { offset: u64, bytes: usize },
    Taken,
}

impl PageStore for ColumnPages {
    fn put(&mut self, page: Bytes) -> Result<PageKey> {
        let page = lock(&self.shared).put(page)?;
        self.pages.push(page);
        Ok(PageKey::new(self.pages.len() as u64 - 1))
    }

    fn take(&mut self, key: PageKey) -> Result<Bytes> {
        let page = self.pages.get_mut(key.get() as usize).map(|page| std::mem::replace(page, Page::Taken));
        Ok(lock(&self.shared).take(page.unwrap_or(Page::Taken))?)
    }

    fn memory_size(&self) -> usize {
        let in_memory = |page: &Page| if let Page::InMemory(page) = page { page.len() } else { 0 };
        self.pages.iter().map(in_memory).sum()
    }
}

impl PendingState {
    fn put(&mut self, page: Bytes) -> io::Result<Page> {
        let bytes = page.len();
        if let Some(left) = self.memory_bytes_left.checked_sub(bytes as u64) {
            self.memory_bytes_left = left;
            // The page is copied. A reference to the page would keep the library's buffer in memory, and this buffer
            // has the size of the uncompressed page.
            return Ok(Page::InMemory(Bytes::copy_from_slice(&page)));
        }
        if self.file.is_none() {
            self.file = Some(tempfile::tempfile_in(&self.folder)?);
        }
        let offset = self.file_end;
        self.file.as_ref().expect("made above").write_all_at(&page, offset)?;
        self.file_end += bytes as u64;
        self.pages_in_file += 1;
        Ok(Page::InFile { offset, bytes })
    }

    fn take(&mut self, page: Page) -> io::Result<Bytes> {
        match page {
            Page::InMemory(page) => {
                self.memory_bytes_left += page.len() as u64;
                Ok(page)
            }
            Page::InFile { offset, bytes } => {
                let mut page = vec![0; bytes];
                self.file.as_ref().expect("the page was written to it").read_exact_at(&mut page, offset)?;
                self.pages_in_file -= 1;
                if self.pages_in_file == 0 {
                    self.file_end = 0;
                }
                Ok(page.into())
            }
            Page::Taken => Err(io::Error::other(ParquetError::General("a page was taken twice".to_string()))),
        }
    }
}

fn lock(waiting: &Mutex<PendingState>) -> MutexGuard<'_, PendingState> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

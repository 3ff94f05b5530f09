//! Looks up rows in ascending order of vertices. A few consecutive pages of the index are in memory at a time.

use std::ops::Range;

use inshore_store::{Buffer, Job, PendingRead};

use super::{
    BLOCK_BYTES, BLOCK_PAGES, Csr, PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_VERTICES, WINDOW_BYTES, WINDOW_PAGES,
    blocks::{self, BlockCursor},
    typed,
};
use crate::Result;

/// Looks up rows in ascending order of vertices, with read-ahead if lookups are close together.
pub(crate) struct IndexCursor {
    job: Job,
    csr: Csr,
    /// The index pages in memory: the number of the first page, the count of pages, their buffer, and their offset in
    /// the buffer.
    window: Option<(u64, u64, Buffer, usize)>,
    ahead: Option<(u64, u64, PendingRead)>,
    spare: Vec<Buffer>,
    /// The number of pages to read next. The number is doubled if these pages follow the pages in memory.
    grown: u64,
    page: u64,
    slot: usize,
    entry: u64,
    blocks: BlockCursor,
}

/// The bytes of memory that one [`IndexCursor`] takes.
pub(crate) const CURSOR_BYTES: u64 = 2 * WINDOW_BYTES as u64 + blocks::CURSOR_BYTES;

/// A range of consecutive entries, and the range of blocks that hold these entries.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub entries: Range<u64>,
    pub blocks: Range<u64>,
}

impl Span {
    /// Returns the byte range of the blocks in the file of edges.
    pub fn bytes(&self) -> Range<u64> {
        self.blocks.start * BLOCK_BYTES as u64..self.blocks.end * BLOCK_BYTES as u64
    }
}

impl IndexCursor {
    pub fn new(job: &Job, csr: &Csr) -> Result<IndexCursor> {
        let buffers = Buffer::zeroed(job.budget(), 2 * WINDOW_BYTES, "an index cursor")?;
        Ok(IndexCursor {
            job: job.clone(),
            csr: csr.clone(),
            window: None,
            ahead: None,
            spare: buffers.split(WINDOW_BYTES),
            grown: BLOCK_PAGES,
            page: u64::MAX,
            slot: 0,
            entry: 0,
            blocks: BlockCursor::new(job, csr)?,
        })
    }

    /// Tells whether the cursor reads the files of `csr`.
    pub fn is_of(&self, csr: &Csr) -> bool {
        self.csr.index.name() == csr.index.name()
    }

    /// Returns as many of the given entries, from the first one on, as are in at most `blocks_max` blocks, and the
    /// range of these blocks. `entries` must not be empty, and must not begin before the row of the last lookup.
    pub fn span(&mut self, entries: Range<u64>, blocks_max: u64) -> Result<Span> {
        let (_, hint, _) = self.present();
        let first = self.blocks.find(entries.start, hint)?;
        if entries.end <= self.blocks.entries().end {
            return Ok(Span { entries, blocks: first..first + 1 });
        }
        let end = entries.end.min(self.blocks.first_entry(first + blocks_max)?);
        if end <= entries.start {
            return Err(self.blocks.bad(format!(
                "an end of block {} before edge {}",
                first + blocks_max,
                entries.start
            )));
        }
        let last = self.blocks.find(end - 1, first)?;
        if last - first >= blocks_max {
            return Err(self
                .blocks
                .bad(format!("edges {}..{end} in blocks {first} to {last}", entries.start)));
        }
        Ok(Span { entries: entries.start..end, blocks: first..last + 1 })
    }

    /// Returns the number of the first edge of `vertex`, and its degree.
    pub fn find(&mut self, vertex: u32) -> Result<(u64, u32)> {
        let (page, slot) = (vertex as u64 / PAGE_VERTICES, (vertex as u64 % PAGE_VERTICES) as usize);
        if page != self.page {
            self.load(page)?;
        } else if slot < self.slot {
            self.rewind();
        }
        let (_, _, degrees) = self.present();
        let (degree, passed) = (degrees[slot], &degrees[self.slot..slot]);
        self.entry += passed.iter().map(|&degree| degree as u64).sum::<u64>();
        self.slot = slot;
        if self.entry + u64::from(degree) > self.csr.entries {
            let (entries, end) = (self.csr.entries, self.entry + u64::from(degree));
            return Err(self
                .csr
                .bad_index(format!("a row that ends at edge {end}"), format!("at most {entries} edges")));
        }
        Ok((self.entry, degree))
    }

    /// Returns the degrees of a page's vertices. On the last page, slots past the last vertex are left out.
    fn degrees(&mut self, page: u64) -> Result<&[u32]> {
        if page != self.page {
            self.load(page)?;
        }
        Ok(self.present().2)
    }

    /// Returns the number of the first edge of the current page, the number of a block that begins at or before that
    /// edge, and the degrees.
    fn present(&self) -> (u64, u64, &[u32]) {
        let (first, _, buffer, start) = self.window.as_ref().expect("loaded");
        let at = start + ((self.page - first) * PAGE_BYTES) as usize;
        let entry = u64::from_le_bytes(buffer[at..at + 8].try_into().expect("8 bytes"));
        let block = u32::from_le_bytes(buffer[at + 8..at + PAGE_HEADER_BYTES].try_into().expect("4 bytes"));
        (entry, block.into(), typed(&buffer[at + PAGE_HEADER_BYTES..at + PAGE_BYTES as usize]))
    }

    fn rewind(&mut self) {
        self.entry = self.present().0;
        self.slot = 0;
    }

    /// Returns the number of the first edge of the next page, computed from the degrees of the current page.
    fn page_end(&self) -> u64 {
        let (entry, _, degrees) = self.present();
        entry + degrees.iter().map(|&degree| u64::from(degree)).sum::<u64>()
    }

    fn load(&mut self, page: u64) -> Result<()> {
        let follows_page = self.window.is_some() && page == self.page.wrapping_add(1);
        let expected = follows_page.then(|| self.page_end());
        let inside = |first: u64, pages: u64| (first..first + pages).contains(&page);
        if !self.window.as_ref().is_some_and(|&(first, pages, ..)| inside(first, pages)) {
            let before = self.window.take().map(|(first, pages, buffer, _)| {
                self.spare.push(buffer);
                first + pages
            });
            let follows = before.is_some_and(|end| (end..end + self.grown).contains(&page));
            self.grown = if follows { (self.grown * 2).min(WINDOW_PAGES) } else { BLOCK_PAGES };
            if !self.ahead.as_ref().is_some_and(|&(first, pages, _)| inside(first, pages)) {
                if let Some((_, _, pending)) = self.ahead.take() {
                    self.spare.push(pending.wait()?.0);
                }
                self.ahead = self.submit(page / BLOCK_PAGES * BLOCK_PAGES)?;
            }
            let (first, pages, pending) = self.ahead.take().expect("pages of the index");
            let (buffer, range) = pending.wait()?;
            self.window = Some((first, pages, buffer, range.start));
            if follows {
                self.ahead = self.submit(first + pages)?;
            }
        }
        self.page = page;
        self.rewind();
        match expected {
            Some(expected) if expected != self.entry => {
                let found = format!("edge {} at the beginning of page {page}", self.entry);
                Err(self.csr.bad_index(found, format!("edge {expected}")))
            }
            _ => Ok(()),
        }
    }

    /// Starts to read index pages from page `first` on; returns `None` if `first` is after the last page.
    fn submit(&mut self, first: u64) -> Result<Option<(u64, u64, PendingRead)>> {
        let total = self.csr.index.len() / PAGE_BYTES;
        let pages = self.grown.min(total.saturating_sub(first));
        if pages == 0 {
            return Ok(None);
        }
        let buffer = self.spare.pop().expect("two buffers: the window's and the one ahead");
        let range = first * PAGE_BYTES..(first + pages) * PAGE_BYTES;
        Ok(Some((first, pages, self.csr.index.submit_read(&self.job, range, buffer)?)))
    }
}

/// Reads degrees of vertices in order.
pub(crate) struct Degrees {
    cursor: IndexCursor,
    /// The vertices of the current page.
    page: Range<u64>,
    degrees: Vec<u32>,
}

impl Degrees {
    pub fn new(job: &Job, csr: &Csr) -> Result<Degrees> {
        Ok(Degrees::after(IndexCursor::new(job, csr)?))
    }

    pub(super) fn after(cursor: IndexCursor) -> Degrees {
        Degrees { cursor, page: 0..0, degrees: Vec::with_capacity(PAGE_VERTICES as usize) }
    }

    #[inline(always)]
    pub fn of(&mut self, vertex: u32) -> Result<u32> {
        if !self.page.contains(&vertex.into()) {
            self.load(vertex)?;
        }
        Ok(self.degrees[(u64::from(vertex) - self.page.start) as usize])
    }

    /// Returns the degrees from `vertex` to the end of its page.
    pub fn from(&mut self, vertex: u32) -> Result<&[u32]> {
        if !self.page.contains(&vertex.into()) {
            self.load(vertex)?;
        }
        Ok(&self.degrees[(u64::from(vertex) - self.page.start) as usize..])
    }

    #[inline(never)]
    fn load(&mut self, vertex: u32) -> Result<()> {
        let number = u64::from(vertex) / PAGE_VERTICES;
        self.degrees.clear();
        self.degrees.extend_from_slice(self.cursor.degrees(number)?);
        self.page = number * PAGE_VERTICES..(number + 1) * PAGE_VERTICES;
        Ok(())
    }
}

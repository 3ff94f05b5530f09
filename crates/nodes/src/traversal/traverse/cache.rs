//! The client's cache of pages.

use inshore_store::{Context, Reservation};

use super::options::{TraversalSide, TraverseOptions};
use crate::Result;

/// A direct-mapped cache of pages on the client: page p can only be in slot p mod n of n slots. A page in a
/// slot is never replaced. On a cyclic chain, a replacement would be evicted before its next use.
pub(super) struct PageCache {
    page_bytes: usize,
    numbers: Vec<u64>,
    pages: Vec<u8>,
    _memory: Option<Reservation>,
}

impl PageCache {
    pub fn new(job: &Context, options: &TraverseOptions) -> Result<PageCache> {
        let page_bytes = options.pointers.page_bytes;
        let count =
            if options.by == TraversalSide::Client { options.keep_bytes / (page_bytes + 8) } else { 0 };
        let memory = match count {
            0 => None,
            _ => Some(job.budget().reserve(count * (page_bytes + 8), "cached pages")?),
        };
        Ok(PageCache {
            page_bytes: page_bytes as usize,
            numbers: vec![u64::MAX; count as usize],
            pages: vec![0; (count * page_bytes) as usize],
            _memory: memory,
        })
    }

    fn place(&self, page: u64) -> Option<usize> {
        Some(page.checked_rem(self.numbers.len() as u64)? as usize)
    }

    pub fn get(&self, page: u64) -> Option<&[u8]> {
        let place = self.place(page).filter(|&place| self.numbers[place] == page)?;
        Some(&self.pages[place * self.page_bytes..][..self.page_bytes])
    }

    pub fn put(&mut self, page: u64, bytes: &[u8]) {
        let Some(place) = self.place(page).filter(|&place| self.numbers[place] == u64::MAX) else { return };
        self.numbers[place] = page;
        self.pages[place * self.page_bytes..][..self.page_bytes].copy_from_slice(bytes);
    }
}

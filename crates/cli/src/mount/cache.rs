//! Pieces of files in memory: what the file system answers from.
//!
//! A slot has a buffer of one extent (2 MiB: on a huge page, and no block of any file is larger) and is in one of these
//! states:
//!
//! ```text
//!   free ──► busy ──► flying ──► busy ──► ready ──► free
//!            a thread  a read on  a thread  any number
//!            submits   its way    checks    of readers
//! ```
//!
//! A reader that goes through a file finds whole extents that were asked for before it came ([`Cache::begin`]); any
//! other gets the blocks that it touches and no more. What was asked for ahead is not given up for what others ask for
//! ahead: with more streams than slots, the later ones read block by block, and nothing is read twice.

use std::{
    ops::{Deref, Range},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use inshore::store::{Buffer, CheckedFile, EXTENT_BYTES, Job, PendingRead, Result};

/// One extent.
pub const SLOT_BYTES: usize = EXTENT_BYTES;

/// An extent that was read ahead and not used for so long will not be.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// A file, and the number that tells it from all others in the cache.
#[derive(Debug)]
pub struct Source {
    pub number: u64,
    pub file: CheckedFile,
}

impl Source {
    /// The blocks that `range` touches.
    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.file.block_bytes() as u64;
        range.start / block * block..range.end.next_multiple_of(block).min(self.file.len())
    }

    /// Extent `index`, as far as the file goes.
    fn extent(&self, index: u64) -> Range<u64> {
        let start = index * EXTENT_BYTES as u64;
        start..(start + EXTENT_BYTES as u64).min(self.file.len())
    }
}

/// The cache. Any thread may read.
#[derive(Debug)]
pub struct Cache {
    job: Job,
    slots: Mutex<Vec<Slot>>,
    /// A slot is no longer busy, or no longer read.
    changed: Condvar,
}

#[derive(Debug)]
struct Slot {
    content: Content,
    source: u64,
    range: Range<u64>,
    used: Instant,
    /// Asked for ahead, and its end was not read yet.
    awaited: bool,
}

#[derive(Debug)]
enum Content {
    /// `None`: the buffer went with a read that failed.
    Free(Option<Buffer>),
    Busy,
    Flying(PendingRead),
    Ready(Arc<Buffer>),
}

impl Slot {
    /// Whether its buffer can be had at once.
    fn is_idle(&self) -> bool {
        match &self.content {
            Content::Free(_) => true,
            // Nobody gets hold of it without the lock.
            Content::Ready(buffer) => Arc::strong_count(buffer) == 1,
            Content::Busy | Content::Flying(_) => false,
        }
    }

    fn holds(&self, source: u64, range: &Range<u64>) -> bool {
        let covers = self.range.start <= range.start && range.end <= self.range.end;
        !matches!(self.content, Content::Free(_)) && self.source == source && covers
    }
}

/// Bytes of a file that stay where they are until this is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    cache: &'a Cache,
    // `None` only while it is dropped.
    buffer: Option<Arc<Buffer>>,
    part: Range<usize>,
}

impl Deref for Held<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer.as_ref().expect("held until dropped")[self.part.clone()]
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.buffer = None;
        // Under the lock, so that nobody misses this between looking and waiting.
        drop(self.cache.slots());
        self.cache.changed.notify_all();
    }
}

impl Cache {
    /// A cache of `slots` slots (at least two), whose memory is reserved now.
    ///
    /// # Errors
    /// [`OverBudget`](inshore::store::Error::OverBudget).
    pub fn new(job: &Job, slots: usize) -> Result<Cache> {
        let free = |_| {
            let content = Content::Free(Some(buffer(job)?));
            Ok(Slot { content, source: 0, range: 0..0, used: Instant::now(), awaited: false })
        };
        let slots = (0..slots).map(free).collect::<Result<_>>()?;
        Ok(Cache { job: job.clone(), slots: Mutex::new(slots), changed: Condvar::new() })
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().expect("no panic under this lock")
    }

    /// Begins to read the extents `indexes` that are not here, as far as there are slots that nobody needs.
    pub fn begin(&self, source: &Source, indexes: Range<u64>) {
        for range in indexes.map(|index| source.extent(index)) {
            let mut slots = self.slots();
            if slots.iter().any(|slot| slot.holds(source.number, &range)) {
                continue;
            }
            let Some(at) = oldest(&slots, |slot| !slot.is_needed()) else { return };
            let buffer = claim(&mut slots[at], source, &range);
            slots[at].awaited = true;
            drop(slots);
            // Whoever wants the bytes reads them again and is told what is wrong with them.
            let content = match self.submit(source, &range, buffer) {
                Ok(pending) => Content::Flying(pending),
                Err(_) => Content::Free(None),
            };
            self.settle(at, content);
        }
    }

    /// The bytes `range` of a file, which do not cross a border between extents.
    ///
    /// # Errors
    /// Those of [`PendingRead::wait`]: the blocks that `range` touches are damaged or cannot be read.
    pub fn get(&self, source: &Source, range: Range<u64>) -> Result<Held<'_>> {
        let mut slots = self.slots();
        loop {
            let found = slots.iter().position(|slot| slot.holds(source.number, &range));
            // In the end a read on its way for someone else gives its buffer.
            let Some(at) = found.or_else(|| oldest(&slots, |_| true)).or_else(|| flying(&slots)) else {
                slots = self.changed.wait(slots).expect("no panic under this lock");
                continue;
            };
            match std::mem::replace(&mut slots[at].content, Content::Busy) {
                Content::Busy => slots = self.changed.wait(slots).expect("no panic under this lock"),
                Content::Flying(pending) => {
                    drop(slots);
                    // A whole extent is not there where one of its blocks is not: then the blocks are read for
                    // themselves.
                    let landed = pending.wait();
                    let ready = |(buffer, _)| Content::Ready(Arc::new(buffer));
                    self.settle(at, landed.map_or(Content::Free(None), ready));
                    slots = self.slots();
                }
                Content::Ready(buffer) if found.is_some() => {
                    let slot = &mut slots[at];
                    slot.content = Content::Ready(buffer.clone());
                    slot.used = Instant::now();
                    slot.awaited &= range.end < slot.range.end;
                    return Ok(self.hold(buffer, &slot.range, &range));
                }
                idle => {
                    slots[at].content = idle;
                    let blocks = source.blocks(&range);
                    let buffer = claim(&mut slots[at], source, &blocks);
                    drop(slots);
                    let read = self.submit(source, &blocks, buffer).and_then(PendingRead::wait);
                    let buffer = match read {
                        Ok((buffer, _)) => Arc::new(buffer),
                        Err(error) => {
                            self.settle(at, Content::Free(None));
                            return Err(error);
                        }
                    };
                    let held = self.hold(buffer.clone(), &blocks, &range);
                    self.settle(at, Content::Ready(buffer));
                    return Ok(held);
                }
            }
        }
    }

    fn hold(&self, buffer: Arc<Buffer>, has: &Range<u64>, wanted: &Range<u64>) -> Held<'_> {
        let part = (wanted.start - has.start) as usize..(wanted.end - has.start) as usize;
        Held { cache: self, buffer: Some(buffer), part }
    }

    /// Starts to read whole blocks into a slot's buffer, or a new one where that was lost.
    fn submit(&self, source: &Source, blocks: &Range<u64>, lost: Option<Buffer>) -> Result<PendingRead> {
        let buffer = lost.map_or_else(|| buffer(&self.job), Ok)?;
        source.file.submit_read(&self.job, blocks.clone(), buffer)
    }

    /// What a busy slot has from now on.
    fn settle(&self, at: usize, content: Content) {
        self.slots()[at].content = content;
        self.changed.notify_all();
    }
}

impl Slot {
    /// Whether someone is still expected to come for it.
    fn is_needed(&self) -> bool {
        self.awaited && matches!(self.content, Content::Ready(_)) && self.used.elapsed() < FORGOTTEN
    }
}

/// The idle slot among those `wanted` that was used longest ago; one that is not needed any more, if there is one.
fn oldest(slots: &[Slot], wanted: impl Fn(&Slot) -> bool) -> Option<usize> {
    let idle = (0..slots.len()).filter(|&at| slots[at].is_idle() && wanted(&slots[at]));
    idle.min_by_key(|&at| (slots[at].is_needed(), slots[at].used))
}

/// The slot whose read has been on its way longest.
fn flying(slots: &[Slot]) -> Option<usize> {
    let flying = (0..slots.len()).filter(|&at| matches!(slots[at].content, Content::Flying(_)));
    flying.min_by_key(|&at| slots[at].used)
}

/// Makes an idle slot busy with a range of a file, and gives its buffer.
fn claim(slot: &mut Slot, source: &Source, range: &Range<u64>) -> Option<Buffer> {
    let content = std::mem::replace(&mut slot.content, Content::Busy);
    (slot.source, slot.range) = (source.number, range.clone());
    (slot.used, slot.awaited) = (Instant::now(), false);
    match content {
        Content::Free(buffer) => buffer,
        Content::Ready(buffer) => Some(Arc::into_inner(buffer).expect("an idle slot has no readers")),
        Content::Busy | Content::Flying(_) => unreachable!("not idle"),
    }
}

fn buffer(job: &Job) -> Result<Buffer> {
    Ok(Buffer::zeroed(job.budget(), SLOT_BYTES, "extents of mounted files")?)
}

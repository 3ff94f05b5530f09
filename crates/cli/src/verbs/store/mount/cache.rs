//! A memory cache of parts of files, from which the mounted file system answers reads.
//!
//! The cache consists of slots. A slot has a buffer of one extent, which is 2 MiB: the size of a huge page, and of the
//! largest block of a file. A slot is in one of these states:
//!
//! ```text
//!   free ──► busy ─────────► in flight ──► busy ───────────► ready ──► free
//!            a thread                      a thread waits,   any number
//!            submits a read                and checks the    of readers
//!                                          bytes
//! ```
//!
//! A slot is busy while one thread submits a read into its buffer, or waits for the read and checks the bytes. A slot
//! is in flight while its read was submitted, and no thread waits for the read yet. Only read-ahead leaves a slot in
//! flight: the thread of any other read does all steps, and the slot stays busy meanwhile.
//!
//! For a sequential reader, whole extents are read ahead ([`Cache::begin`]). For any other reader, the cache reads only
//! the blocks of each request. Read-ahead does not evict a slot that was itself read ahead, until a reader has read the
//! end of the slot, or no reader has used the slot for the time [`FORGOTTEN`]. If there are more sequential readers
//! than slots, some readers therefore read block by block.

use std::{
    ops::{Deref, Range},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use inshore::store::{Buffer, CheckedFile, EXTENT_BYTES, Job, PendingRead, Result};

/// The size of a slot: one extent.
pub const SLOT_BYTES: usize = EXTENT_BYTES;

/// Further read-ahead may evict an extent that was read ahead, if no reader has used the extent for this time.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// A file, with a number that is unique among the files in the cache.
#[derive(Debug)]
pub struct Source {
    pub number: u64,
    pub file: CheckedFile,
}

impl Source {
    /// Returns the byte range of the blocks that `range` overlaps.
    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.file.block_bytes() as u64;
        range.start / block * block..range.end.next_multiple_of(block).min(self.file.len())
    }

    /// Returns the byte range of extent `index`. In the last extent, the range ends at the end of the file.
    fn extent(&self, index: u64) -> Range<u64> {
        let start = index * EXTENT_BYTES as u64;
        start..(start + EXTENT_BYTES as u64).min(self.file.len())
    }
}

/// A cache of extents and blocks. Any thread may read from it.
#[derive(Debug)]
pub struct Cache {
    job: Job,
    slots: Mutex<Vec<Slot>>,
    /// Signals that a slot is no longer busy, or that its last reader is done.
    changed: Condvar,
}

#[derive(Debug)]
struct Slot {
    content: Content,
    source: u64,
    range: Range<u64>,
    used: Instant,
    /// True if the slot was read ahead, and no reader has read the end of the slot yet.
    awaited: bool,
}

#[derive(Debug)]
enum Content {
    /// The slot's buffer. The value is `None` if a read failed and did not return it.
    Free(Option<Buffer>),
    Busy,
    InFlight(PendingRead),
    Ready(Arc<Buffer>),
}

impl Slot {
    /// Tells whether the buffer can be reused without a wait.
    fn is_idle(&self) -> bool {
        match &self.content {
            Content::Free(_) => true,
            // The caller holds the lock, so that no other thread can take a reference to the buffer.
            Content::Ready(buffer) => Arc::strong_count(buffer) == 1,
            Content::Busy | Content::InFlight(_) => false,
        }
    }

    fn holds(&self, source: u64, range: &Range<u64>) -> bool {
        let covers = self.range.start <= range.start && range.end <= self.range.end;
        !matches!(self.content, Content::Free(_)) && self.source == source && covers
    }
}

/// Bytes of a file in a slot. The slot keeps them until this value is dropped.
#[derive(Debug)]
pub struct CachedBytes<'a> {
    cache: &'a Cache,
    // The buffer. The value is `None` only while this value is being dropped.
    buffer: Option<Arc<Buffer>>,
    part: Range<usize>,
}

impl Deref for CachedBytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer.as_ref().expect("held until dropped")[self.part.clone()]
    }
}

impl Drop for CachedBytes<'_> {
    fn drop(&mut self) {
        self.buffer = None;
        // Without the lock, a thread could miss the signal between its check of a slot and its wait.
        drop(self.cache.slots());
        self.cache.changed.notify_all();
    }
}

impl Cache {
    /// Creates a cache of `slots` slots (at least two), and reserves their memory.
    ///
    /// # Errors
    /// Returns [`OverBudget`](inshore::store::Error::OverBudget) if the budget has too little free memory.
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

    /// Starts to read those extents of `indexes` that are not cached, as long as there are idle slots that no reader
    /// needs.
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
            // The error is ignored: a later request reads the same bytes again, and reports the error.
            let content = match self.submit(source, &range, buffer) {
                Ok(pending) => Content::InFlight(pending),
                Err(_) => Content::Free(None),
            };
            self.set_content(at, content);
        }
    }

    /// Returns the bytes `range` of a file. The range must be within one extent.
    ///
    /// # Errors
    /// Returns the errors of [`PendingRead::wait`] if the blocks that `range` overlaps are damaged or cannot be read.
    pub fn get(&self, source: &Source, range: Range<u64>) -> Result<CachedBytes<'_>> {
        let mut slots = self.slots();
        loop {
            let found = slots.iter().position(|slot| slot.holds(source.number, &range));
            // If no slot is idle, the oldest read in flight is awaited, and its slot can then be reused.
            let Some(at) = found.or_else(|| oldest(&slots, |_| true)).or_else(|| in_flight(&slots)) else {
                slots = self.changed.wait(slots).expect("no panic under this lock");
                continue;
            };
            match std::mem::replace(&mut slots[at].content, Content::Busy) {
                Content::Busy => slots = self.changed.wait(slots).expect("no panic under this lock"),
                Content::InFlight(pending) => {
                    drop(slots);
                    // If one block of an extent cannot be read, the read of the extent fails, and the loop then reads
                    // only the requested blocks.
                    let landed = pending.wait();
                    let ready = |(buffer, _)| Content::Ready(Arc::new(buffer));
                    self.set_content(at, landed.map_or(Content::Free(None), ready));
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
                            self.set_content(at, Content::Free(None));
                            return Err(error);
                        }
                    };
                    let held = self.hold(buffer.clone(), &blocks, &range);
                    self.set_content(at, Content::Ready(buffer));
                    return Ok(held);
                }
            }
        }
    }

    fn hold(&self, buffer: Arc<Buffer>, has: &Range<u64>, wanted: &Range<u64>) -> CachedBytes<'_> {
        let part = (wanted.start - has.start) as usize..(wanted.end - has.start) as usize;
        CachedBytes { cache: self, buffer: Some(buffer), part }
    }

    /// Starts to read whole blocks into the buffer of a slot. `None` means that a failed read did not return the
    /// buffer; a new buffer is then allocated.
    fn submit(&self, source: &Source, blocks: &Range<u64>, lost: Option<Buffer>) -> Result<PendingRead> {
        let buffer = lost.map_or_else(|| buffer(&self.job), Ok)?;
        source.file.submit_read(&self.job, blocks.clone(), buffer)
    }

    /// Sets the content of a busy slot.
    fn set_content(&self, at: usize, content: Content) {
        self.slots()[at].content = content;
        self.changed.notify_all();
    }
}

impl Slot {
    /// Tells whether the slot was read ahead for a reader that will probably read it soon.
    fn is_needed(&self) -> bool {
        self.awaited && matches!(self.content, Content::Ready(_)) && self.used.elapsed() < FORGOTTEN
    }
}

/// Returns the least recently used of the idle slots for which `wanted` is true, preferably one that no reader needs.
fn oldest(slots: &[Slot], wanted: impl Fn(&Slot) -> bool) -> Option<usize> {
    let idle = (0..slots.len()).filter(|&at| slots[at].is_idle() && wanted(&slots[at]));
    idle.min_by_key(|&at| (slots[at].is_needed(), slots[at].used))
}

/// Returns the slot with the oldest read in flight.
fn in_flight(slots: &[Slot]) -> Option<usize> {
    let in_flight = (0..slots.len()).filter(|&at| matches!(slots[at].content, Content::InFlight(_)));
    in_flight.min_by_key(|&at| slots[at].used)
}

/// Marks an idle slot as busy with a range of a file, and returns its buffer.
fn claim(slot: &mut Slot, source: &Source, range: &Range<u64>) -> Option<Buffer> {
    let content = std::mem::replace(&mut slot.content, Content::Busy);
    (slot.source, slot.range) = (source.number, range.clone());
    (slot.used, slot.awaited) = (Instant::now(), false);
    match content {
        Content::Free(buffer) => buffer,
        Content::Ready(buffer) => Some(Arc::into_inner(buffer).expect("an idle slot has no readers")),
        Content::Busy | Content::InFlight(_) => unreachable!("not idle"),
    }
}

fn buffer(job: &Job) -> Result<Buffer> {
    Ok(Buffer::zeroed(job.budget(), SLOT_BYTES, "extents of mounted files")?)
}

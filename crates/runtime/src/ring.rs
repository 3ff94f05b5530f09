//! Reads and writes that the system moves by itself: io_uring.
//!
//! ```text
//!   submit    one slot for the request, one entry of the ring for each part of it; the system begins at once
//!   wait      the first who waits becomes the one that sleeps in the system for everybody; it hands out what is done,
//!             and when its own request is among that, the next one takes over
//! ```
//!
//! No thread stands between a caller and the drive, so a request costs two system calls and, with many on their way,
//! less than two. The slot owns the buffer until the system has let go of it: a caller that gives up leaves both behind,
//! and [`Ring::drain`] waits for them.

use std::{
    fs::File,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use io_uring::{IoUring, opcode, types};

use crate::{Buffer, Direction, Guard, PAGE_BYTES, Part};

/// Entries of the ring, and with that parts that can be on their way at once; who wants more waits.
const ENTRIES: u32 = 256;
const PART_BITS: u32 = 16;
/// How long to wait for a system that takes nothing and has nothing on its way.
const BUSY: Duration = Duration::from_millis(1);

/// A ring of one job.
pub(crate) struct Ring {
    ring: IoUring,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Parts that the system has and has not finished.
    flying: usize,
    /// Somebody sleeps in the system for everybody.
    has_sleeper: bool,
}

#[derive(Default)]
enum Slot {
    #[default]
    Free,
    Flying(Box<Flying>),
    Done(Buffer, io::Result<()>),
}

struct Flying {
    direction: Direction,
    parts: Vec<Part>,
    /// The file of each part, open as long as the system uses it.
    _files: Vec<Arc<File>>,
    buffer: Buffer,
    left: usize,
    result: io::Result<()>,
    guard: Option<Guard>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Ring")
    }
}

impl Ring {
    /// A ring; an error where the system has no io_uring or forbids it.
    pub fn new() -> io::Result<Arc<Ring>> {
        let ring = IoUring::new(ENTRIES)?;
        Ok(Arc::new(Ring { ring, state: Mutex::default(), changed: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Starts to transfer `parts` of `buffer`, at these places of these files. Gives the number of the slot to wait for.
    ///
    /// # Errors
    /// The system's answer to the submission as a whole; the buffer then comes back.
    pub fn submit(
        self: &Arc<Self>,
        direction: Direction,
        parts: Vec<Part>,
        places: Vec<(Arc<File>, u64)>,
        mut buffer: Buffer,
        guard: Option<Guard>,
    ) -> PendingSlot {
        assert!(parts.len() < 1 << PART_BITS && parts.len() <= ENTRIES as usize / 2);
        let mut state = self.state();
        while state.flying + parts.len() > ENTRIES as usize {
            state = self.step(state);
        }
        let slot = state.free.pop().unwrap_or_else(|| {
            state.slots.push(Slot::Free);
            state.slots.len() - 1
        });
        for (number, (part, (file, offset))) in parts.iter().zip(&places).enumerate() {
            let bytes = &mut buffer[part.range.clone()];
            let (fd, len) = (types::Fd(std::os::fd::AsRawFd::as_raw_fd(file)), bytes.len() as u32);
            let entry = match direction {
                Direction::Read => opcode::Read::new(fd, bytes.as_mut_ptr(), len).offset(*offset).build(),
                Direction::Write => opcode::Write::new(fd, bytes.as_ptr(), len).offset(*offset).build(),
            };
            let entry = entry.user_data((slot as u64) << PART_BITS | number as u64);
            // SAFETY: the buffer and the file go into the slot, which keeps both until the system has answered, and
            // `drain` waits for all answers before the ring goes. The queue is used under the lock of the state only.
            unsafe { self.ring.submission_shared().push(&entry) }
                .expect("no more entries than the queue has");
        }
        state.flying += parts.len();
        let left = parts.len();
        let files = places.into_iter().map(|(file, _)| file).collect();
        let flying = Flying { direction, parts, _files: files, buffer, left, result: Ok(()), guard };
        state.slots[slot] = Slot::Flying(Box::new(flying));
        loop {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if is_busy(&error) => {}
                Err(error) => panic!("io_uring refuses what it took before: {error}"),
            }
            // The system takes entries one by one, and may have no memory for the next or too much to say. Whoever waited for an entry
            // that it did not take would never hear of it.
            // SAFETY: the queue is used under the lock of the state only.
            let queued = unsafe { self.ring.submission_shared() }.len();
            if queued == 0 {
                break;
            }
            state = if state.flying > queued {
                // An end of those that it has makes room.
                self.step(state)
            } else {
                drop(state);
                thread::sleep(BUSY);
                self.state()
            };
        }
        drop(state);
        PendingSlot { ring: self.clone(), slot: Some(slot) }
    }

    /// Waits until something is done, by sleeping in the system or for whoever does.
    fn step<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.has_sleeper {
            return self.changed.wait(state).expect("no panic under this lock");
        }
        state.has_sleeper = true;
        drop(state);
        let wait = 1; // IORING_ENTER_GETEVENTS
        // SAFETY: no argument beyond the flags is given.
        let slept = unsafe { self.ring.submitter().enter::<()>(0, 1, wait, None) };
        if let Err(error) = slept
            && !is_busy(&error)
        {
            panic!("io_uring cannot be waited for: {error}");
        }
        let mut state = self.state();
        state.has_sleeper = false;
        let mut finished = Vec::new();
        // SAFETY: the queue is used under the lock of the state only.
        for answer in unsafe { self.ring.completion_shared() } {
            let (slot, part) = (answer.user_data() >> PART_BITS, answer.user_data() & ((1 << PART_BITS) - 1));
            state.flying -= 1;
            let Slot::Flying(flying) = &mut state.slots[slot as usize] else {
                unreachable!("an answer for a slot that waits for none");
            };
            flying.left -= 1;
            flying.take_answer(part as usize, answer.result());
            if flying.left == 0 {
                finished.push(slot as usize);
            }
        }
        for slot in finished {
            let Slot::Flying(mut flying) = std::mem::take(&mut state.slots[slot]) else { unreachable!() };
            // Before the answer is sent: its receiver finds free everything that the guard alone kept.
            drop(flying.guard.take());
            state.slots[slot] = Slot::Done(flying.buffer, flying.result);
        }
        self.changed.notify_all();
        state
    }

    /// Waits for everything that is on its way.
    pub fn drain(&self) {
        let mut state = self.state();
        while state.flying > 0 {
            state = self.step(state);
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    let busy = [rustix::io::Errno::INTR, rustix::io::Errno::AGAIN, rustix::io::Errno::BUSY];
    busy.iter().any(|busy| error.raw_os_error() == Some(busy.raw_os_error()))
}

impl Flying {
    fn take_answer(&mut self, number: usize, answer: i32) {
        let part = &self.parts[number];
        let done = match usize::try_from(answer) {
            Ok(done) => done,
            Err(_) => {
                let error = io::Error::from_raw_os_error(-answer);
                if !is_busy(&error) {
                    self.result = Err(error);
                    return;
                }
                0
            }
        };
        if done < part.range.len() {
            // Short: the end of a file, or the system was interrupted. Rare, and the storage knows what to do.
            let done = done / PAGE_BYTES * PAGE_BYTES;
            let rest = Part {
                storage: part.storage.clone(),
                offset: part.offset + done as u64,
                range: part.range.start + done..part.range.end,
            };
            if let Err(error) = rest.transfer(self.direction, &mut self.buffer) {
                self.result = Err(error);
            }
        }
        if self.direction == Direction::Write {
            part.storage.note_written();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.drain();
    }
}

/// A request that was submitted. Dropping it waits for its end: then what it held is free for whoever goes on.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    ring: Arc<Ring>,
    slot: Option<usize>,
}

impl PendingSlot {
    /// Waits for the end of the I/O and gives the buffer back.
    pub fn wait(mut self) -> (Buffer, io::Result<()>) {
        self.end().expect("waited for once")
    }

    /// The same; `None` if it was waited for before.
    fn end(&mut self) -> Option<(Buffer, io::Result<()>)> {
        let slot = self.slot.take()?;
        let mut state = self.ring.state();
        loop {
            if let Slot::Done(..) = state.slots[slot] {
                let Slot::Done(buffer, result) = std::mem::take(&mut state.slots[slot]) else {
                    unreachable!()
                };
                state.free.push(slot);
                return Some((buffer, result));
            }
            state = self.ring.step(state);
        }
    }
}

impl PendingSlot {
    /// Waits until one of these, all of one ring, is done, and says which one.
    pub fn wait_any<'a>(slots: impl Iterator<Item = &'a PendingSlot> + Clone) -> usize {
        let ring = &slots.clone().next().expect("at least one").ring;
        let mut state = ring.state();
        loop {
            let is_done = |pending: &PendingSlot| {
                matches!(state.slots[pending.slot.expect("not waited for yet")], Slot::Done(..))
            };
            match slots.clone().position(is_done) {
                Some(done) => return done,
                None => state = ring.step(state),
            }
        }
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        drop(self.end());
    }
}

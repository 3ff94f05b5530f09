//! A ring transfers bytes with io_uring, without threads of its own.
//!
//! ```text
//!   submit    one slot for the request, one entry of the ring for each part of it; the kernel begins at once
//!   wait      the first waiting thread sleeps in the kernel on behalf of all, and distributes the completions; when
//!             its own request is among them, the next waiting thread takes over
//! ```
//!
//! A request passes through no other thread, so it costs two system calls, and fewer if many requests are in
//! flight. The slot owns the buffer until the kernel has released it. Dropping a [`PendingSlot`] waits for
//! the end of its request, and [`Ring::drain`] waits for all requests.

use std::{
    fs::File,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use io_uring::{IoUring, opcode, types};

use crate::{Buffer, Direction, Guard, PAGE_BYTES, Part};

/// The number of entries of the ring, and thus of parts that can be in flight at once. If all entries are in use,
/// further submissions wait.
const ENTRIES: u32 = 256;
const PART_BITS: u32 = 16;
/// The time between two attempts to submit if the kernel takes no entry and no completion is pending.
const BUSY: Duration = Duration::from_millis(1);

/// `Ring` is the io_uring of one job.
pub(crate) struct Ring {
    ring: IoUring,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The number of parts that were submitted and are not complete.
    in_flight: usize,
    /// True while a thread sleeps in the kernel on behalf of all waiting threads.
    has_sleeper: bool,
}

#[derive(Default)]
enum Slot {
    #[default]
    Free,
    InFlight(Box<InFlight>),
    Done(Buffer, io::Result<()>),
}

struct InFlight {
    direction: Direction,
    parts: Vec<Part>,
    /// The file of each part, which stays open as long as the kernel uses it.
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
    /// Creates a ring.
    ///
    /// # Errors
    /// Returns the error of the system if the system has no io_uring or forbids its use.
    pub fn new() -> io::Result<Arc<Ring>> {
        let ring = IoUring::new(ENTRIES)?;
        Ok(Arc::new(Ring { ring, state: Mutex::default(), changed: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Starts to transfer `parts` of `buffer`. `places` contains the file and the offset for each part.
    ///
    /// # Panics
    /// Panics if the kernel refuses a submission with an error other than EINTR, EAGAIN or EBUSY.
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
        while state.in_flight + parts.len() > ENTRIES as usize {
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
            // SAFETY: the buffer and the file go into the slot, which holds both until the kernel has
            // answered, and `drain` waits for all answers before the ring is dropped. The queue is used only
            // under the lock of the state.
            unsafe { self.ring.submission_shared().push(&entry) }
                .expect("no more entries than the queue has");
        }
        state.in_flight += parts.len();
        let left = parts.len();
        let files = places.into_iter().map(|(file, _)| file).collect();
        let in_flight = InFlight { direction, parts, _files: files, buffer, left, result: Ok(()), guard };
        state.slots[slot] = Slot::InFlight(Box::new(in_flight));
        loop {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if is_busy(&error) => {}
                Err(error) => panic!("io_uring refuses what it took before: {error}"),
            }
            // The kernel takes entries one by one, and may lack memory for the next one or room for completions. An
            // entry that stays in the queue would never complete, so the loop submits until the queue is empty. SAFETY:
            // the queue is used only under the lock of the state.
            let queued = unsafe { self.ring.submission_shared() }.len();
            if queued == 0 {
                break;
            }
            state = if state.in_flight > queued {
                // When an earlier entry completes, the kernel has room for another.
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

    /// Waits until an entry completes: sleeps in the kernel, or waits for the thread that sleeps there.
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
        // SAFETY: the queue is used only under the lock of the state.
        for answer in unsafe { self.ring.completion_shared() } {
            let (slot, part) = (answer.user_data() >> PART_BITS, answer.user_data() & ((1 << PART_BITS) - 1));
            state.in_flight -= 1;
            let Slot::InFlight(in_flight) = &mut state.slots[slot as usize] else {
                unreachable!("an answer for a slot that waits for none");
            };
            in_flight.left -= 1;
            in_flight.take_answer(part as usize, answer.result());
            if in_flight.left == 0 {
                finished.push(slot as usize);
            }
        }
        for slot in finished {
            let Slot::InFlight(mut in_flight) = std::mem::take(&mut state.slots[slot]) else {
                unreachable!()
            };
            // The guard is dropped before the result is visible, so that its resources are free when a caller gets the
            // result.
            drop(in_flight.guard.take());
            state.slots[slot] = Slot::Done(in_flight.buffer, in_flight.result);
        }
        self.changed.notify_all();
        state
    }

    /// Waits until no entry is in flight.
    pub fn drain(&self) {
        let mut state = self.state();
        while state.in_flight > 0 {
            state = self.step(state);
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    let busy = [rustix::io::Errno::INTR, rustix::io::Errno::AGAIN, rustix::io::Errno::BUSY];
    busy.iter().any(|busy| error.raw_os_error() == Some(busy.raw_os_error()))
}

impl InFlight {
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
            // A short transfer means the end of a file, or an interrupted call. The storage transfers the rest; the
            // case is rare.
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

/// `PendingSlot` is a request that was submitted. Dropping the value waits for the end of the request, so that its
/// resources are free afterwards.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    ring: Arc<Ring>,
    slot: Option<usize>,
}

impl PendingSlot {
    /// Waits for the end of the I/O and returns the buffer.
    pub fn wait(mut self) -> (Buffer, io::Result<()>) {
        self.end().expect("waited for once")
    }

    /// Waits for the end of the I/O and returns the buffer; returns `None` if the buffer was already returned.
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
    /// Waits until one of `slots`, which must belong to one ring, is done, and returns its index.
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

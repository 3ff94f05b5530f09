//! Several threads read ranges of a file. Each thread works on one range while its next ranges are in flight.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use inshore_store::{Buffer, CheckedFile, Job};

use crate::Result;

/// The number of buffers of each thread.
pub(crate) const BUFFERS: usize = 3;

/// Ranges of a file that several threads read and process, in no particular order.
pub(crate) struct Ranges<'a, R: Fn(u64) -> Option<Range<u64>> + Sync> {
    pub job: &'a Job,
    pub file: &'a CheckedFile,
    pub threads: usize,
    /// The length of a buffer in bytes. No range may be longer than a buffer.
    pub buffer_bytes: usize,
    /// A function that returns the range with the given number. Numbers start at 0. The function returns `None` if the
    /// number is too large.
    pub range: R,
}

impl<R: Fn(u64) -> Option<Range<u64>> + Sync> Ranges<'_, R> {
    /// Reads all ranges, and calls `work` once for each range. The arguments of `work` are the state of the thread, the
    /// number of the range, and the bytes of the range. `make` creates the state of a thread. Returns the states of all
    /// threads.
    ///
    /// # Errors
    /// - Returns the first error of `work`.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the job was cancelled, or
    ///   the budget has too little free memory.
    pub fn each<S: Send>(
        &self,
        make: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u64, &[u8]) -> Result<()> + Sync,
    ) -> Result<Vec<S>> {
        let bytes = self.threads * BUFFERS * self.buffer_bytes;
        let mut buffers =
            Buffer::zeroed(self.job.budget(), bytes, "blocks")?.split(self.buffer_bytes).into_iter();
        let (next, is_stopped) = (AtomicU64::new(0), AtomicBool::new(false));
        let (failure, states) = (Mutex::new(None), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                let spare: Vec<Buffer> = buffers.by_ref().take(BUFFERS).collect();
                let (next, is_stopped, failure, states) = (&next, &is_stopped, &failure, &states);
                let (make, work) = (&make, &work);
                scope.spawn(move || {
                    let mut state = make();
                    match self
                        .work(spare, next, is_stopped, &mut |number, bytes| work(&mut state, number, bytes))
                    {
                        Ok(()) => states.lock().expect("no panic under this lock").push(state),
                        Err(error) => {
                            is_stopped.store(true, Ordering::Relaxed);
                            failure.lock().expect("no panic under this lock").get_or_insert(error);
                        }
                    }
                });
            }
        });
        match failure.into_inner().expect("no panic under this lock") {
            Some(error) => Err(error),
            None => Ok(states.into_inner().expect("no panic under this lock")),
        }
    }

    fn work(
        &self,
        mut spare: Vec<Buffer>,
        next: &AtomicU64,
        is_stopped: &AtomicBool,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut ahead = VecDeque::with_capacity(BUFFERS);
        loop {
            while let Some(buffer) = spare.pop() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(range) = (self.range)(number) else { break };
                ahead.push_back((number, self.file.submit_read(self.job, range, buffer)?));
            }
            let Some((number, pending)) = ahead.pop_front() else { return Ok(()) };
            self.job.check_cancelled()?;
            let (buffer, wanted) = pending.wait()?;
            if is_stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            work(number, &buffer[wanted])?;
            spare.push(buffer);
        }
    }
}

//! Reads and writes that go on while the caller computes.
//!
//! The buffer travels with the request and comes back with the answer, so that nobody can touch it meanwhile. Where the
//! storage is a file and the system allows it, that is io_uring ([`crate::ring`]); where not (a device of a test, a
//! container that forbids io_uring, `INSHORE_IO_URING=0`), a small pool of threads that do nothing but ask the storage:
//! sixteen of them keep as many requests in flight. They sleep in the kernel and are no workers of the budget.

use std::{
    io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crossbeam_channel::{Receiver, Select, Sender, bounded};

use crate::{
    Buffer, Direction, Guard, Part,
    ring::{PendingSlot, Ring},
};

const THREADS: usize = 16;
/// Requests that may wait; a submitter blocks beyond that.
const QUEUE: usize = 64;

struct Request {
    direction: Direction,
    parts: Vec<Part>,
    buffer: Buffer,
    guard: Option<Guard>,
    answer: Sender<(Buffer, io::Result<()>)>,
}

/// An I/O that was submitted. Dropping it waits for its end: a budget that is all in use has room again when a reader that
/// read ahead is dropped, and not at some time after.
#[derive(Debug)]
pub struct Pending(Way);

/// The mechanism that moves the bytes.
#[derive(Debug)]
enum Way {
    Ring(PendingSlot),
    Pool(PendingAnswer),
}

/// The answer that a thread of the pool will give.
#[derive(Debug)]
pub(crate) struct PendingAnswer(Receiver<(Buffer, io::Result<()>)>);

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        // At once where it was waited for: the thread has let go of its end then, or is about to.
        drop(self.0.recv());
    }
}

impl Pending {
    /// Waits for the end of the I/O and gives the buffer back.
    pub fn wait(self) -> (Buffer, io::Result<()>) {
        match self.0 {
            Way::Ring(slot) => slot.wait(),
            Way::Pool(answer) => answer.0.recv().expect("the I/O threads answer every request"),
        }
    }

    /// Waits until one of `pending` is done, and gives its index. Where some are in the ring and some are not, which
    /// happens on a device of half-written segments only, that is the first, and it may still be on its way.
    ///
    /// # Panics
    /// Where `pending` is empty.
    pub fn wait_any<'a>(pending: impl Iterator<Item = &'a Pending> + Clone) -> usize {
        let all = pending.clone().count();
        assert!(all > 0, "nothing to wait for");
        let slots = pending.clone().filter_map(|pending| match &pending.0 {
            Way::Ring(slot) => Some(slot),
            Way::Pool(_) => None,
        });
        match slots.clone().count() {
            0 => {
                let mut select = Select::new();
                for pending in pending {
                    if let Way::Pool(answer) = &pending.0 {
                        select.recv(&answer.0);
                    }
                }
                select.ready()
            }
            rings if rings == all => PendingSlot::wait_any(slots),
            _ => 0,
        }
    }
}

/// The I/O of a job: a ring, or a pool of threads.
#[derive(Debug)]
pub(crate) struct Io {
    // Both are made when they are needed first: many jobs do little.
    ring: OnceLock<Option<Arc<Ring>>>,
    pool: OnceLock<Pool>,
}

impl Io {
    pub fn new() -> Self {
        Io { ring: OnceLock::new(), pool: OnceLock::new() }
    }

    /// The ring, unless the system has none or the user wants none.
    fn ring(&self) -> Option<&Arc<Ring>> {
        let make = || {
            let is_wanted = std::env::var_os("INSHORE_IO_URING").is_none_or(|value| value != "0");
            is_wanted.then(|| Ring::new().ok()).flatten()
        };
        self.ring.get_or_init(make).as_ref()
    }

    /// How files were read and written.
    pub fn name(&self) -> &'static str {
        match self.ring.get() {
            Some(Some(_)) => "io_uring",
            _ if self.pool.get().is_some() => "threads",
            _ => "none",
        }
    }

    /// Starts to transfer `parts` of `buffer`. `guard` lives until that is done.
    pub fn submit(
        &self,
        direction: Direction,
        parts: Vec<Part>,
        buffer: Buffer,
        guard: Option<Guard>,
    ) -> Pending {
        if let Some(places) = parts.iter().map(|part| part.raw(direction)).collect()
            && let Some(ring) = self.ring()
        {
            return Pending(Way::Ring(ring.submit(direction, parts, places, buffer, guard)));
        }
        let (answer, pending) = bounded(1);
        let request = Request { direction, parts, buffer, guard, answer };
        self.pool.get_or_init(Pool::new).submit(request);
        Pending(Way::Pool(PendingAnswer(pending)))
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(Some(ring)) = self.ring.get() {
            ring.drain();
        }
    }
}

/// Threads are started one by one, when more requests are on their way than there are threads.
#[derive(Debug)]
struct Pool {
    requests: Option<Sender<Request>>,
    queue: Receiver<Request>,
    /// Requests that were submitted and are not done.
    flying: Arc<AtomicUsize>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Pool {
    fn new() -> Pool {
        let (requests, queue) = bounded(QUEUE);
        Pool { requests: Some(requests), queue, flying: Arc::default(), threads: Mutex::default() }
    }

    fn submit(&self, request: Request) {
        let flying = self.flying.fetch_add(1, Ordering::Relaxed) + 1;
        {
            let mut threads = self.threads.lock().expect("no panic under this lock");
            if flying > threads.len() && threads.len() < THREADS {
                threads.extend(self.start_thread());
            }
            if threads.is_empty() {
                // No thread could be started: the caller does it itself.
                drop(threads);
                return serve(request, &self.flying);
            }
        }
        let requests = self.requests.as_ref().expect("open until dropped");
        requests.send(request).expect("the I/O threads live as long as the pool");
    }

    fn start_thread(&self) -> Option<thread::JoinHandle<()>> {
        let (queue, flying) = (self.queue.clone(), self.flying.clone());
        // These threads only copy between a buffer and a system call.
        let builder = thread::Builder::new().name("inshore-io".into()).stack_size(128 << 10);
        builder.spawn(move || queue.iter().for_each(|request| serve(request, &flying))).ok()
    }
}

fn serve(request: Request, flying: &AtomicUsize) {
    let Request { direction, parts, mut buffer, guard, answer } = request;
    let result = parts.iter().try_for_each(|part| part.transfer(direction, &mut buffer));
    // Before the answer is sent: its receiver finds free everything that the guard alone kept.
    drop(guard);
    flying.fetch_sub(1, Ordering::Relaxed);
    let _ = answer.send((buffer, result));
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.get_mut().expect("no panic under this lock").drain(..) {
            let _ = thread.join();
        }
    }
}

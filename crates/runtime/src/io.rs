//! I/O runs in the background while the caller computes.
//!
//! A request owns its buffer until the transfer is done, so no other thread can use the buffer meanwhile. The
//! buffer is returned with the result. If the storage is a file and the system allows it, the mechanism is
//! io_uring ([`crate::ring`]). Otherwise (a device of a test, a container that forbids io_uring,
//! `INSHORE_IO_URING=0`) a pool of up to sixteen threads calls the storage, so up to sixteen requests are in
//! flight. The threads of the pool sleep in the kernel and do not count as worker threads of the budget.

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
/// The number of requests that may wait in the queue; when it is full, a caller that submits a request blocks.
const QUEUE: usize = 64;

struct Request {
    direction: Direction,
    parts: Vec<Part>,
    buffer: Buffer,
    guard: Option<Guard>,
    answer: Sender<(Buffer, io::Result<()>)>,
}

/// `Pending` is an I/O request that was submitted. Dropping the value waits for the end of the request, so that the
/// memory of a dropped reader with read-ahead is free immediately.
#[derive(Debug)]
pub struct Pending(Mechanism);

/// The mechanism that moves the bytes of a request.
#[derive(Debug)]
enum Mechanism {
    Ring(PendingSlot),
    Pool(PendingAnswer),
}

/// `PendingAnswer` is the result that a thread of the pool will send.
#[derive(Debug)]
pub(crate) struct PendingAnswer(Receiver<(Buffer, io::Result<()>)>);

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        // If the result was already received, this call returns at once, since the thread has dropped its sender or is
        // about to.
        drop(self.0.recv());
    }
}

impl Pending {
    /// Waits for the end of the I/O and returns the buffer.
    pub fn wait(self) -> (Buffer, io::Result<()>) {
        match self.0 {
            Mechanism::Ring(slot) => slot.wait(),
            Mechanism::Pool(answer) => answer.0.recv().expect("the I/O threads answer every request"),
        }
    }

    /// Waits until one of `pending` is done, and returns its index. If some requests are in the ring and some
    /// in the pool, the function does not wait and returns 0, although the first request may still be in
    /// flight. Ring and pool are mixed only on a device on which some segment files do not exist yet.
    ///
    /// # Panics
    /// Panics if `pending` is empty.
    pub fn wait_any<'a>(pending: impl Iterator<Item = &'a Pending> + Clone) -> usize {
        let all = pending.clone().count();
        assert!(all > 0, "nothing to wait for");
        let slots = pending.clone().filter_map(|pending| match &pending.0 {
            Mechanism::Ring(slot) => Some(slot),
            Mechanism::Pool(_) => None,
        });
        match slots.clone().count() {
            0 => {
                let mut select = Select::new();
                for pending in pending {
                    if let Mechanism::Pool(answer) = &pending.0 {
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

/// `Io` is the I/O of a job: a ring, or a pool of threads.
#[derive(Debug)]
pub(crate) struct Io {
    // The first request creates the ring or the pool. Neither exists before, since many jobs do little I/O.
    ring: OnceLock<Option<Arc<Ring>>>,
    pool: OnceLock<Pool>,
}

impl Io {
    pub fn new() -> Self {
        Io { ring: OnceLock::new(), pool: OnceLock::new() }
    }

    /// Returns the ring, unless the system or the user forbids io_uring.
    fn ring(&self) -> Option<&Arc<Ring>> {
        let make = || {
            let is_wanted = std::env::var_os("INSHORE_IO_URING").is_none_or(|value| value != "0");
            is_wanted.then(|| Ring::new().ok()).flatten()
        };
        self.ring.get_or_init(make).as_ref()
    }

    /// Returns the name of the I/O mechanism that was used so far.
    pub fn name(&self) -> &'static str {
        match self.ring.get() {
            Some(Some(_)) => "io_uring",
            _ if self.pool.get().is_some() => "threads",
            _ => "none",
        }
    }

    /// Starts to transfer `parts` of `buffer`. `guard` lives until the transfer is done.
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
            return Pending(Mechanism::Ring(ring.submit(direction, parts, places, buffer, guard)));
        }
        let (answer, pending) = bounded(1);
        let request = Request { direction, parts, buffer, guard, answer };
        self.pool.get_or_init(Pool::new).submit(request);
        Pending(Mechanism::Pool(PendingAnswer(pending)))
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(Some(ring)) = self.ring.get() {
            ring.drain();
        }
    }
}

/// `Pool` starts its threads one by one, each when there are more requests in flight than threads.
#[derive(Debug)]
struct Pool {
    requests: Option<Sender<Request>>,
    queue: Receiver<Request>,
    /// The number of requests that were submitted and are not done yet.
    in_flight: Arc<AtomicUsize>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Pool {
    fn new() -> Pool {
        let (requests, queue) = bounded(QUEUE);
        Pool { requests: Some(requests), queue, in_flight: Arc::default(), threads: Mutex::default() }
    }

    fn submit(&self, request: Request) {
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        {
            let mut threads = self.threads.lock().expect("no panic under this lock");
            if in_flight > threads.len() && threads.len() < THREADS {
                threads.extend(self.start_thread());
            }
            if threads.is_empty() {
                // No thread could be started, so the caller serves the request.
                drop(threads);
                return serve(request, &self.in_flight);
            }
        }
        let requests = self.requests.as_ref().expect("open until dropped");
        requests.send(request).expect("the I/O threads live as long as the pool");
    }

    fn start_thread(&self) -> Option<thread::JoinHandle<()>> {
        let (queue, in_flight) = (self.queue.clone(), self.in_flight.clone());
        // The threads need only a small stack, since they only copy between a buffer and a system call.
        let builder = thread::Builder::new().name("inshore-io".into()).stack_size(128 << 10);
        builder.spawn(move || queue.iter().for_each(|request| serve(request, &in_flight))).ok()
    }
}

fn serve(request: Request, in_flight: &AtomicUsize) {
    let Request { direction, parts, mut buffer, guard, answer } = request;
    let result = parts.iter().try_for_each(|part| part.transfer(direction, &mut buffer));
    // The guard is dropped before the answer is sent, so that the receiver finds its resources free.
    drop(guard);
    in_flight.fetch_sub(1, Ordering::Relaxed);
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

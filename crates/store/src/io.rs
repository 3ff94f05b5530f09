//! Reads and writes that go on while the caller computes: a small pool of threads that do nothing but ask devices.
//!
//! The buffer travels with the request and comes back with the answer, so that nobody can touch it meanwhile.
//! Sixteen threads keep as many requests in flight: four are enough for the sequential rate of a virtual NVMe drive
//! at 1 MiB a request, random reads want more. They sleep in the kernel and are no workers of the budget.

use std::{io, ops::Range, sync::Arc, thread};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::{Buffer, Device, checked::Extents};

const THREADS: usize = 16;
/// Requests that may wait; a submitter blocks beyond that.
const QUEUE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A range of a buffer and where on a device it belongs.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub device: Arc<dyn Device>,
    pub extent: u32,
    pub offset: usize,
    pub range: Range<usize>,
}

impl Part {
    /// Moves the bytes.
    pub fn transfer(&self, direction: Direction, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = &mut buffer[self.range.clone()];
        match direction {
            Direction::Read => self.device.read(self.extent, self.offset, bytes),
            Direction::Write => self.device.write(self.extent, self.offset, bytes),
        }
    }
}

struct Request {
    direction: Direction,
    parts: Vec<Part>,
    buffer: Buffer,
    /// What keeps the extents from being used for something else meanwhile.
    extents: Option<Arc<Extents>>,
    answer: Sender<(Buffer, io::Result<()>)>,
}

/// An I/O that was submitted.
#[derive(Debug)]
pub(crate) struct Pending(Receiver<(Buffer, io::Result<()>)>);

impl Pending {
    /// Waits for the end of the I/O and gives the buffer back.
    pub fn wait(self) -> (Buffer, io::Result<()>) {
        self.0.recv().expect("the I/O threads answer every request")
    }
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Io {
    requests: Option<Sender<Request>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Io {
    pub fn new() -> io::Result<Self> {
        let (requests, queue) = bounded::<Request>(QUEUE);
        let mut io = Io { requests: Some(requests), threads: Vec::with_capacity(THREADS) };
        for _ in 0..THREADS {
            let queue = queue.clone();
            // These threads only copy between a buffer and a system call.
            let builder = thread::Builder::new().name("inshore-io".into()).stack_size(128 << 10);
            io.threads.push(builder.spawn(move || queue.iter().for_each(serve))?);
        }
        Ok(io)
    }

    /// Starts to transfer `parts` of `buffer`. `extents` live until that is done.
    pub fn submit(
        &self,
        direction: Direction,
        parts: Vec<Part>,
        buffer: Buffer,
        extents: Option<Arc<Extents>>,
    ) -> Pending {
        let (answer, pending) = bounded(1);
        let request = Request { direction, parts, buffer, extents, answer };
        let requests = self.requests.as_ref().expect("open until dropped");
        requests.send(request).expect("the I/O threads live as long as the pool");
        Pending(pending)
    }
}

fn serve(request: Request) {
    let Request { direction, parts, mut buffer, extents, answer } = request;
    let result = parts.iter().try_for_each(|part| part.transfer(direction, &mut buffer));
    // Who has the answer finds the extents free, if nobody else needs them.
    drop(extents);
    // A caller that failed for another reason no longer waits; its buffer is freed here.
    let _ = answer.send((buffer, result));
}

impl Drop for Io {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

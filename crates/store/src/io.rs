//! Reads and writes that go on while the caller computes: a small pool of threads that do nothing but
//! `pread` and `pwrite`.
//!
//! The buffer travels with the request and comes back with the answer, so that nobody can touch it meanwhile.
//! Sixteen threads keep as many requests in flight: four are enough for the sequential rate of a virtual NVMe drive
//! at 1 MiB a request, random reads want more. They sleep in the kernel and are no workers of the budget.

use std::{io, sync::Arc, thread};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::{Buffer, DeviceFile};

const THREADS: usize = 16;
/// Requests that may wait; a submitter blocks beyond that.
const QUEUE: usize = 64;

pub(crate) enum Direction {
    Read,
    Write,
}

struct Request {
    direction: Direction,
    file: Arc<dyn DeviceFile>,
    offset: u64,
    len: usize,
    buffer: Buffer,
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

    /// Starts to transfer the first `len` bytes of `buffer` from or to `offset` of `file`.
    pub fn submit(
        &self,
        direction: Direction,
        file: Arc<dyn DeviceFile>,
        offset: u64,
        len: usize,
        buffer: Buffer,
    ) -> Pending {
        let (answer, pending) = bounded(1);
        let request = Request { direction, file, offset, len, buffer, answer };
        let requests = self.requests.as_ref().expect("open until dropped");
        requests.send(request).expect("the I/O threads live as long as the pool");
        Pending(pending)
    }
}

fn serve(mut request: Request) {
    let bytes = &mut request.buffer[..request.len];
    let result = match request.direction {
        Direction::Read => request.file.read_at(bytes, request.offset),
        Direction::Write => request.file.write_at(bytes, request.offset),
    };
    // A caller that failed for another reason no longer waits; its buffer is freed here.
    let _ = request.answer.send((request.buffer, result));
}

impl Drop for Io {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

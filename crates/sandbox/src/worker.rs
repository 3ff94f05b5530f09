//! This module runs the rest of a program in a child process under a memory limit, while the parent waits.
//! Programs use this module for a command line that runs one job of unpredictable memory.
//!
//! ```text
//!   main ── split ── fork ─────────────────► WorkerFork::Worker: runs the rest of the program
//!             │                                files, terminal, environment and arguments are the same
//!             │  SIGINT, SIGTERM ─── a byte ──► StopRequests; the pipe's end means that the parent has ended
//!             │◄── name of the operation ────── a thread that measures memory, and ends the worker at the limit
//!           WorkerFork::Parent ── wait ──► WorkerEnd
//! ```
//!
//! The fork happens at the start of the program. Both processes share the memory that exists at this time, and
//! neither arguments nor files have to be passed. Executing the program again would take 7 ms, and would duplicate
//! the program's relocated data.
//!
//! Only the parent handles signals that stop the program. Ctrl-C in a terminal sends a signal to both processes,
//! and `kill` sends a signal to the parent. In both cases the worker gets one request to stop. The worker also
//! ends if the parent ends for any reason.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{self, ExitStatus},
    thread,
};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::{
    ChildLimits, WorkerEnd, allocator,
    child::{ProcessSize, watch},
    sys::{self, ForkResult, SignalMask},
    worker_end::{self, LimitReport, end_too_large},
};

/// Says which of the two processes the caller is in.
#[derive(Debug)]
pub enum WorkerFork {
    /// The caller is in the worker, and runs the rest of the program.
    Worker(StopRequests),
    /// The caller is in the parent, and has to wait for the worker.
    Parent(WorkerHandle),
}

/// Represents the worker, in the parent process.
#[derive(Debug)]
pub struct WorkerHandle {
    worker: i32,
    signals: SignalMask,
    stop: File,
    words: File,
}

/// Receives, in the worker, the requests to stop that the parent forwards.
#[derive(Debug)]
pub struct StopRequests(File);

impl StopRequests {
    /// Waits for a request to stop. Exits this process if the parent has ended.
    pub fn wait(&mut self) {
        if self.0.read_exact(&mut [0]).is_err() {
            sys::exit(1);
        }
    }
}

/// Forks a worker within these limits. The parent must [wait](WorkerHandle::wait) for the worker's end. `doing`
/// returns the name of the worker's current operation. `doing` is called when the worker exceeds the limit, from
/// any thread, possibly with no memory left to allocate.
///
/// Call this while the process has one thread, and as early as possible, since the processes share only memory
/// that neither process changes later.
///
/// # Errors
/// Returns the system's error if no process can be started or limited, and an error if the process has more than one
/// thread.
pub fn split(limits: ChildLimits, doing: fn() -> String) -> io::Result<WorkerFork> {
    if sys::threads()? != 1 {
        return Err(io::Error::other(
            "cannot fork a worker: there are threads already, and a fork would lose them",
        ));
    }
    let (stops, stop) = pipe_with(PipeFlags::CLOEXEC)?;
    let (words, say) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let signals = SignalMask::block(&[libc::SIGINT, libc::SIGTERM, libc::SIGCHLD])?;
    // If SIGCHLD were ignored, the parent would not notice the worker's end.
    sys::by_default(libc::SIGCHLD);
    let parent = process::id();
    // SAFETY: this process has one thread, as was checked above, and only this thread could start another one.
    match unsafe { sys::fork() } {
        Ok(ForkResult::Parent(worker)) => {
            drop((stops, say));
            let (stop, words) = (File::from(stop), File::from(words));
            Ok(WorkerFork::Parent(WorkerHandle { worker, signals, stop, words }))
        }
        Ok(ForkResult::Child) => {
            drop((stop, words));
            begin(limits, LimitReport { say: File::from(say), doing }, parent, &signals)?;
            Ok(WorkerFork::Worker(StopRequests(File::from(stops))))
        }
        Err(error) => {
            signals.unblock()?;
            Err(error)
        }
    }
}

impl WorkerHandle {
    /// Waits for the end of the worker, and forwards stop signals meanwhile.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn wait(mut self) -> io::Result<WorkerEnd> {
        let waited = loop {
            if let Some(waited) = sys::wait(self.worker, false)? {
                break waited;
            }
            if self.signals.next()? != libc::SIGCHLD {
                // If the worker has just ended, SIGCHLD comes next.
                let _ = self.stop.write_all(&[1]);
            }
        };
        self.signals.unblock()?;
        let mut words = String::new();
        // Only the worker writes to this pipe, and the worker has ended.
        let _ = self.words.read_to_string(&mut words);
        Ok(WorkerEnd::of(ExitStatus::from_raw(waited.status), &words))
    }
}

/// Makes this process a worker.
fn begin(limits: ChildLimits, last: LimitReport, parent: u32, signals: &SignalMask) -> io::Result<()> {
    sys::die_with_parent()?;
    if sys::parent() != parent as i32 {
        // The parent ended before the call of `die_with_parent`.
        sys::exit(1);
    }
    sys::ignore(libc::SIGINT);
    sys::ignore(libc::SIGTERM);
    signals.unblock()?;
    let most = limits.memory_bytes.saturating_add(limits.stack_bytes);
    sys::limit(libc::RLIMIT_DATA, most, most)?;
    worker_end::begin(last);
    allocator::limit(limits.memory_bytes, || match end_too_large() {});
    let size = ProcessSize::open()?;
    thread::Builder::new()
        .name("memory".to_string())
        .stack_size(128 << 10)
        .spawn(move || watch(&size, limits, end_too_large))?;
    Ok(())
}

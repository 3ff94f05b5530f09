//! The rest of a program in a child process with a limit of memory, while the parent waits: for a command that does one thing, of which
//! nobody can foretell how much memory it takes.
//!
//! ```text
//!   main ── split ── fork ─────────────────► Split::Worker: goes on with all that the program does
//!             │                                files, terminal, environment and arguments are the same
//!             │  SIGINT, SIGTERM ─── a byte ──► Stops; the end of the pipe: the parent is gone
//!             │◄── what it was doing ────────── a thread that looks how much memory there is, and ends all
//!           Split::Parent ── wait ──► WorkerEnd
//! ```
//!
//! A fork of the process as it is when it has done next to nothing: what both have in memory is there once, and neither arguments nor files
//! have to be handed over. To execute the program again takes 7 ms, and its relocated data is there twice.
//!
//! The parent alone hears signals: a terminal sends Ctrl-C to both processes, `kill` to one of them, and either way it is asked to stop
//! once. The worker ends with its parent, whatever ends that.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{self, ExitStatus},
    thread,
};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::{
    ApartLimits, WorkerEnd, allocator,
    apart::{Size, watch},
    ends::{self, Last, end_too_large},
    sys::{self, Forked, Signals},
};

/// Which of two processes this one is.
#[derive(Debug)]
pub enum Split {
    /// The worker, which goes on.
    Worker(Stops),
    /// The parent, which is to wait.
    Parent(Waiting),
}

/// A parent and its worker.
#[derive(Debug)]
pub struct Waiting {
    worker: i32,
    signals: Signals,
    stop: File,
    words: File,
}

/// Wishes of others that a worker stops, as its parent heard them.
#[derive(Debug)]
pub struct Stops(File);

impl Stops {
    /// Waits for a wish. Ends this process where the parent has ended.
    pub fn wait(&mut self) {
        if self.0.read_exact(&mut [0]).is_err() {
            sys::exit(1);
        }
    }
}

/// Goes on in a child process within these limits; this one is to [wait](Waiting::wait) for its end. `doing` tells, in the worker, what it does at the
/// moment: it is called at its end, from any thread and maybe with no memory left to allocate.
///
/// To be called while the process has one thread, the earlier the better: what it has in memory by now, both have.
///
/// # Errors
/// The system's, where no process can be started or limited; an error too where there are threads.
pub fn split(limits: ApartLimits, doing: fn() -> String) -> io::Result<Split> {
    if sys::threads()? != 1 {
        return Err(io::Error::other("there are threads already, and a fork would lose them"));
    }
    let (stops, stop) = pipe_with(PipeFlags::CLOEXEC)?;
    let (words, say) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let signals = Signals::block(&[libc::SIGINT, libc::SIGTERM, libc::SIGCHLD])?;
    // Where it was ignored, nobody would hear of an end.
    sys::by_default(libc::SIGCHLD);
    let parent = process::id();
    // SAFETY: there is one thread, as was just seen, and only it could start another.
    match unsafe { sys::fork() } {
        Ok(Forked::Parent(worker)) => {
            drop((stops, say));
            let (stop, words) = (File::from(stop), File::from(words));
            Ok(Split::Parent(Waiting { worker, signals, stop, words }))
        }
        Ok(Forked::Child) => {
            drop((stop, words));
            begin(limits, Last { say: File::from(say), doing }, parent, &signals)?;
            Ok(Split::Worker(Stops(File::from(stops))))
        }
        Err(error) => {
            signals.unblock()?;
            Err(error)
        }
    }
}

impl Waiting {
    /// Waits for the end of the worker, and hands on to it what this process is asked meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(mut self) -> io::Result<WorkerEnd> {
        let waited = loop {
            if let Some(waited) = sys::wait(self.worker, false)? {
                break waited;
            }
            if self.signals.next()? != libc::SIGCHLD {
                // Where it has just ended, that is heard next.
                let _ = self.stop.write_all(&[1]);
            }
        };
        self.signals.unblock()?;
        let mut words = String::new();
        // As far as there are any: nobody else writes.
        let _ = self.words.read_to_string(&mut words);
        Ok(WorkerEnd::of(ExitStatus::from_raw(waited.status), &words))
    }
}

/// Makes this process a worker.
fn begin(limits: ApartLimits, last: Last, parent: u32, signals: &Signals) -> io::Result<()> {
    sys::die_with_parent()?;
    if sys::parent() != parent as i32 {
        // It ended before we asked to end with it.
        sys::exit(1);
    }
    sys::ignore(libc::SIGINT);
    sys::ignore(libc::SIGTERM);
    signals.unblock()?;
    let most = limits.memory_bytes.saturating_add(limits.stack_bytes);
    sys::limit(libc::RLIMIT_DATA, most, most)?;
    ends::begin(last);
    allocator::limit(limits.memory_bytes, || match end_too_large() {});
    let size = Size::open()?;
    thread::Builder::new()
        .name("memory".to_string())
        .stack_size(128 << 10)
        .spawn(move || watch(&size, limits, end_too_large))?;
    Ok(())
}

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
    convert::Infallible,
    fs::File,
    io::{self, Read, Write},
    process,
    sync::{
        OnceLock,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::{
    ApartLimits, allocator,
    apart::{Size, TOO_LARGE, UNKNOWN_SIZE, watch},
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

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerEnd {
    /// By itself, with this status.
    Exited(i32),
    /// It had more memory than it was given, while it did this.
    TooLarge(String),
    /// The system no longer told how much memory it had.
    UnknownSize,
    /// By this signal.
    Killed(i32),
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
        if libc::WIFSIGNALED(waited.status) {
            return Ok(WorkerEnd::Killed(libc::WTERMSIG(waited.status)));
        }
        Ok(match libc::WEXITSTATUS(waited.status) {
            TOO_LARGE => {
                let mut doing = String::new();
                // As far as there are any words: nobody else writes.
                let _ = self.words.read_to_string(&mut doing);
                WorkerEnd::TooLarge(doing)
            }
            UNKNOWN_SIZE => WorkerEnd::UnknownSize,
            status => WorkerEnd::Exited(status),
        })
    }
}

/// The last words of a worker.
struct Last {
    say: File,
    doing: fn() -> String,
}

static LAST: OnceLock<Last> = OnceLock::new();

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
    let _ = LAST.set(last);
    allocator::limit(limits.memory_bytes, || match end_too_large() {});
    let size = Size::open()?;
    thread::Builder::new()
        .name("memory".to_string())
        .stack_size(128 << 10)
        .spawn(move || watch(&size, limits, end_too_large))?;
    Ok(())
}

/// Ends this process since it takes too much memory, and tells what it did.
fn end_too_large() -> Infallible {
    /// The thread that ends it.
    static ENDS: AtomicI32 = AtomicI32::new(0);
    let mine = sys::thread();
    match ENDS.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            let last = LAST.get().expect("set before there is a limit");
            // What does not fit into the pipe, or into memory, is not told.
            let _ = (&last.say).write_all((last.doing)().as_bytes());
            sys::exit(TOO_LARGE)
        }
        // No memory to tell it in.
        Err(ends) if ends == mine => sys::exit(TOO_LARGE),
        // Another does so. It takes no more memory meanwhile.
        Err(_) => loop {
            thread::sleep(Duration::from_secs(1));
        },
    }
}

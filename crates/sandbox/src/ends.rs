//! How a process with a limit of memory ends: by itself, or with the name of what it did when it took too much.

use std::{
    convert::Infallible,
    fs::File,
    io::Write,
    process::ExitStatus,
    sync::{
        OnceLock,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use crate::sys;

/// The statuses with which a process ends where it has more memory than it was given, and where the system no longer tells how much that is.
pub(crate) const TOO_LARGE: i32 = 77;
pub(crate) const UNKNOWN_SIZE: i32 = 78;
/// Stands before what a process did last: other words may come the same way.
const MARK: char = '\0';

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

impl WorkerEnd {
    /// The end of a process of this status, which said these words.
    pub(crate) fn of(status: ExitStatus, words: &str) -> WorkerEnd {
        use std::os::unix::process::ExitStatusExt;
        if let Some(signal) = status.signal() {
            return WorkerEnd::Killed(signal);
        }
        match status.code().unwrap_or_default() {
            TOO_LARGE => {
                WorkerEnd::TooLarge(words.rsplit_once(MARK).map_or("", |(_, doing)| doing).to_string())
            }
            UNKNOWN_SIZE => WorkerEnd::UnknownSize,
            status => WorkerEnd::Exited(status),
        }
    }
}

/// The last words of a process.
pub(crate) struct Last {
    pub say: File,
    /// Tells what it does at the moment: from any thread, and maybe with no memory left to allocate.
    pub doing: fn() -> String,
}

static LAST: OnceLock<Last> = OnceLock::new();

/// From now on this process has last words.
pub(crate) fn begin(last: Last) {
    let _ = LAST.set(last);
}

/// Ends this process since it takes too much memory, and tells what it did.
pub(crate) fn end_too_large() -> Infallible {
    /// The thread that ends it.
    static ENDS: AtomicI32 = AtomicI32::new(0);
    let mine = sys::thread();
    match ENDS.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            let last = LAST.get().expect("set before there is a limit");
            // What does not fit into the pipe, or into memory, is not told.
            let _ = write!(&last.say, "{MARK}{}", (last.doing)());
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

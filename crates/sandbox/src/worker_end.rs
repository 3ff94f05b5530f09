//! This module defines how a process under a memory limit ends: normally, or with the name of the operation that
//! took too much memory.

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

/// The exit statuses of a process that exceeded the memory limit, and of one whose size the system no longer reported.
pub(crate) const TOO_LARGE: i32 = 77;
pub(crate) const UNKNOWN_SIZE: i32 = 78;
/// Separates the name of the last operation from earlier bytes in the pipe.
const MARK: char = '\0';

/// Says how a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerEnd {
    /// The worker exited with this status.
    Exited(i32),
    /// The worker exceeded the memory limit during the operation with this name.
    TooLarge(String),
    /// The system no longer reported how much memory the worker had.
    UnknownSize,
    /// The worker was killed by this signal.
    Killed(i32),
}

impl WorkerEnd {
    /// Interprets the exit status of a process and the last bytes that the process wrote.
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

/// Holds the pipe and the function by which a process reports the operation that exceeded the limit.
pub(crate) struct LimitReport {
    pub say: File,
    /// Returns the name of the current operation. Any thread may call this function, possibly with no memory left
    /// to allocate.
    pub doing: fn() -> String,
}

static LAST: OnceLock<LimitReport> = OnceLock::new();

/// Sets the pipe and the function by which this process reports the operation that exceeds the limit.
pub(crate) fn begin(last: LimitReport) {
    let _ = LAST.set(last);
}

/// Exits because this process exceeded the memory limit, and reports the current operation.
pub(crate) fn end_too_large() -> Infallible {
    /// Holds the id of the thread that ends the process.
    static ENDS: AtomicI32 = AtomicI32::new(0);
    let mine = sys::thread();
    match ENDS.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            let last = LAST.get().expect("set before there is a limit");
            // A name that does not fit into the pipe or into memory is dropped.
            let _ = write!(&last.say, "{MARK}{}", (last.doing)());
            sys::exit(TOO_LARGE)
        }
        // This thread exceeded the limit again while it wrote the report, so the report is dropped.
        Err(ends) if ends == mine => sys::exit(TOO_LARGE),
        // Another thread ends the process. This thread sleeps, so that it takes no more memory.
        Err(_) => loop {
            thread::sleep(Duration::from_secs(1));
        },
    }
}

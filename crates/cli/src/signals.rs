//! Ctrl-C and SIGTERM: the first asks the job to stop, the second ends the process at once. A deadline asks the job to stop too, and
//! ends the process soon afterwards.
//!
//! A query runs in a worker process, and its parent hears the signals: see [`crate::worker`].
//!
//! SIGHUP is left alone, so that `nohup inshore ...` outlives its terminal. Ending at once, or by a kill, is safe:
//! a store is whole at every instant, and the next job removes the scratch folder.

#[cfg(feature = "sql")]
use std::sync::Mutex;
use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use inshore::store::Cancel;
use signal_hook::{
    consts::{SIGABRT, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
};

use crate::{failure, outcome::say};

/// A worker that ends without tidying up ends with its exit code and so much more: its parent tidies up then, and says nothing.
#[cfg(feature = "sql")]
pub const UNTIDY_WORKER: u8 = 64;

/// Whether this process is a worker.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// Ends the process without tidying up.
fn end_untidy(code: u8) -> ! {
    #[cfg(feature = "sql")]
    let code = if IS_WORKER.load(Ordering::Relaxed) { code + UNTIDY_WORKER } else { code };
    process::exit(code.into())
}

/// The same, and says why, and where nobody does it in its place also that nothing was tidied up.
fn tell_end_untidy(code: u8, why: &str) -> ! {
    match IS_WORKER.load(Ordering::Relaxed) {
        true => say(&format!("inshore: {why}")),
        false => {
            say(&format!("inshore: {why} without tidying up; the next job removes what is left in scratch"));
        }
    }
    end_untidy(code)
}

/// How long a job may take to see that it should stop. Jobs look every few milliseconds; only one that waits
/// for a pipe or a drive that says nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes an abort the end of a command that failed. Memory that the system does not give aborts a program, behind a line that says so,
/// which is an error like any other.
pub fn exit_at_abort() {
    let always = Arc::new(AtomicBool::new(true));
    // Where that is not heard an abort is an abort.
    let _ = flag::register_conditional_shutdown(SIGABRT, failure::FAILED.into(), always);
}

/// Where a worker hears what its parent was asked, in the place of signals.
#[cfg(feature = "sql")]
static STOPS: Mutex<Option<inshore::sandbox::Stops>> = Mutex::new(None);

/// This process is a worker from now on.
#[cfg(feature = "sql")]
pub fn hear_from_parent(stops: inshore::sandbox::Stops) {
    *STOPS.lock().expect("no panic under this lock") = Some(stops);
    IS_WORKER.store(true, Ordering::Relaxed);
}

/// Wishes to stop, as they come.
fn stops() -> Result<Box<dyn Iterator<Item = ()> + Send>> {
    #[cfg(feature = "sql")]
    if let Some(mut stops) = STOPS.lock().expect("no panic under this lock").take() {
        return Ok(Box::new(std::iter::repeat_with(move || stops.wait())));
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    Ok(Box::new(std::iter::from_fn(move || signals.forever().next().map(drop))))
}

/// How long a job may take to see that its deadline is over.
const LATE: Duration = Duration::from_secs(2);

/// Begins to listen: the first signal sets `cancel`.
pub fn listen(cancel: &Cancel) -> Result<()> {
    let stops = stops()?;
    // Heard and not heeded: a write beyond the limit on the size of files is then an error like any other.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).context("cannot listen for signals")?;
    if let Some(deadline) = cancel.deadline() {
        let wait = move || {
            thread::sleep(deadline.left() + LATE);
            tell_end_untidy(failure::FAILED, &format!("{}: stopped", failure::told(deadline)));
        };
        thread::Builder::new()
            .name("deadline".into())
            .spawn(wait)
            .context("cannot start a thread for the deadline")?;
    }
    let cancel = cancel.clone();
    let wait = move || {
        for () in stops {
            if cancel.is_cancelled() {
                end_untidy(failure::STOPPED);
            }
            cancel.cancel();
            thread::spawn(|| {
                thread::sleep(PATIENCE);
                tell_end_untidy(failure::STOPPED, "stopped");
            });
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread for signals")?;
    Ok(())
}

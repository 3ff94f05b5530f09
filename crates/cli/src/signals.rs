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
    sync::{Arc, atomic::AtomicBool},
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

/// The exit code of a command that a signal stopped: 128 + SIGINT, as shells have it.
pub const STOPPED: u8 = 130;

const UNTIDY: &str = "stopped without tidying up; the next job removes what is left in scratch";

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
pub static STOPS: Mutex<Option<inshore::sandbox::Stops>> = Mutex::new(None);

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
            let over = failure::told(deadline);
            say(&format!("inshore: {over}: {UNTIDY}"));
            process::exit(failure::FAILED.into());
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
                process::exit(STOPPED.into());
            }
            cancel.cancel();
            thread::spawn(|| {
                thread::sleep(PATIENCE);
                say(&format!("inshore: {UNTIDY}"));
                process::exit(STOPPED.into());
            });
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread for signals")?;
    Ok(())
}

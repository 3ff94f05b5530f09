//! Ctrl-C and SIGTERM: the first asks the job to stop, the second ends the process at once.
//!
//! SIGHUP is left alone, so that `nohup inshore ...` outlives its terminal. Ending at once, or by a kill, is safe:
//! a store is whole at every instant, and the next job removes the scratch folder.

use std::{
    process,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use inshore::store::Cancel;
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
};

use crate::outcome::say;

/// The exit code of a command that a signal stopped: 128 + SIGINT, as shells have it.
pub const STOPPED: u8 = 130;

/// How long a job may take to see that it should stop. Jobs look every few milliseconds; only one that waits
/// for a pipe or a drive that says nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Begins to listen: the first signal sets `cancel`.
pub fn listen(cancel: &Cancel) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    // Heard and not heeded: a write beyond the limit on the size of files is then an error like any other.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).context("cannot listen for signals")?;
    let cancel = cancel.clone();
    let wait = move || {
        for _ in signals.forever() {
            if cancel.is_cancelled() {
                process::exit(STOPPED.into());
            }
            cancel.cancel();
            thread::spawn(|| {
                thread::sleep(PATIENCE);
                say("inshore: stopped without tidying up; the next job removes what is left in scratch");
                process::exit(STOPPED.into());
            });
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread for signals")?;
    Ok(())
}

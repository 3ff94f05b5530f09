//! What all commands have in common: the store, the options that go everywhere, and the stop flag.

use std::{path::Path, thread};

use anyhow::{Context, Result, bail};
use inshore::store::{Budget, Cancel, Job, Report, Store, default_memory_bytes, default_store_path};

use crate::{progress::Bar, signals, words::Everywhere};

/// One invocation of the command.
pub struct Session {
    pub store: Store,
    pub options: Everywhere,
    cancel: Cancel,
}

impl Session {
    /// Opens the store, or makes it, and begins to listen for signals.
    pub fn open(options: Everywhere) -> Result<Session> {
        Self::open_with(options, |path| Store::open(path))
    }

    /// Opens the store if it is there, and begins to listen for signals.
    pub fn open_existing(options: Everywhere) -> Result<Session> {
        Self::open_with(options, |path| Store::open_existing(path))
    }

    fn open_with(
        options: Everywhere,
        open: impl FnOnce(&Path) -> inshore::store::Result<Store>,
    ) -> Result<Session> {
        let path = options.store.clone().or_else(default_store_path).context(
            "no place for a store: there is neither --store nor INSHORE_STORE nor a home directory",
        )?;
        let cancel = Cancel::default();
        signals::listen(&cancel)?;
        Ok(Session { store: open(&path)?, options, cancel })
    }

    /// Refuses an output on standard output (`-`) where that belongs to `--json`.
    pub fn check_stdout_is_free(&self, output: &Path) -> Result<()> {
        if output == Path::new("-") && self.options.json {
            bail!("-o - and --json both want standard output: give one of them");
        }
        Ok(())
    }

    /// Starts a job in the budget that was named, and draws its progress where someone can see it.
    pub fn start(&self) -> Result<Run> {
        let memory_bytes = self.options.memory.unwrap_or_else(default_memory_bytes);
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        let threads = self.options.threads.map_or_else(cores, usize::from);
        let job = self.store.job(Budget::new(memory_bytes, threads), self.cancel.clone())?;
        let drawn = !self.options.quiet && !self.options.json;
        Ok(Run { bar: drawn.then(|| Bar::draw(&job)).flatten(), job })
    }
}

/// A job and its progress bar.
pub struct Run {
    // Dropped first: the bar is gone before anything else is printed.
    bar: Option<Bar>,
    pub job: Job,
}

impl Run {
    /// Takes the bar off the screen and gives what the job cost.
    pub fn finish(&mut self) -> Report {
        self.bar = None;
        self.job.report()
    }
}

//! What all commands have in common: the store, the options that go everywhere, and the stop flag.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
};

use anyhow::{Context, Result, bail};
use inshore::store::{
    self, Budget, Cancel, Error, Execution, Job, Kept, Report, Store, default_memory_bytes,
    default_store_path, format_bytes,
};

use crate::{args::Everywhere, outcome::say, progress::Bar, signals};

/// One invocation of the command.
pub struct Session {
    store: OnceLock<Store>,
    /// Where a store is made when it is needed first.
    folder: PathBuf,
    pub options: Everywhere,
    cancel: Cancel,
}

impl Session {
    /// Opens the store and begins to listen for signals. Where there is no store, one is made, and that is said, when it is
    /// [needed](Session::store): not by a command that fails before.
    pub fn open(options: Everywhere) -> Result<Session> {
        Self::open_with(options, |folders| match Store::open_folders(folders) {
            Err(Error::NoStore { .. }) if folders.len() == 1 => Ok(None),
            opened => opened.map(Some),
        })
    }

    /// The store, which is made where there is none.
    pub fn store(&self) -> Result<&Store> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = Store::open(&self.folder)?;
        if !self.options.quiet {
            say(&format!("note: a new store was made in {}", store.path().display()));
        }
        Ok(self.store.get_or_init(|| store))
    }

    /// The store, which belongs to the caller from now on.
    #[cfg(feature = "nodes")]
    pub fn into_store(self) -> Result<Store> {
        self.store()?;
        Ok(self.store.into_inner().expect("made just now"))
    }

    /// Opens the store, or makes it; signals are heard by somebody else.
    #[cfg(feature = "nodes")]
    pub fn open_unheard(options: Everywhere) -> Result<Session> {
        let folders = folders(&store_path(&options)?);
        let store = match Store::open_folders(&folders) {
            Err(Error::NoStore { .. }) if folders.len() == 1 => Store::open(&folders[0])?,
            opened => opened?,
        };
        let folder = store.path().to_path_buf();
        Ok(Session { store: store.into(), folder, options, cancel: Cancel::default() })
    }

    /// Opens the store if it is there, and begins to listen for signals.
    pub fn open_existing(options: Everywhere) -> Result<Session> {
        Self::open_with(options, |folders| Store::open_folders(folders).map(Some))
    }

    fn open_with(
        options: Everywhere,
        open: impl FnOnce(&[PathBuf]) -> inshore::store::Result<Option<Store>>,
    ) -> Result<Session> {
        let folder = store_path(&options)?;
        let cancel = Cancel::at(options.deadline);
        signals::listen(&cancel)?;
        let store = open(&folders(&folder))?.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Session { store, folder, options, cancel })
    }

    /// As [`check_stdout_is_free`].
    pub fn check_stdout_is_free(&self, output: &Path) -> Result<()> {
        check_stdout_is_free(&self.options, output)
    }

    /// Starts a job in the budget that was named, and draws its progress where someone can see it.
    pub fn start(&self) -> Result<Run> {
        Ok(run(self.job()?, &self.options))
    }

    fn job(&self) -> Result<Job> {
        Ok(self.store()?.job(budget(&self.options), self.cancel.clone())?)
    }

    /// The same for a job that reads files: where there is no store yet, none is made for files that cannot be read.
    #[cfg(feature = "graph")]
    pub fn start_on<'a>(&self, inputs: impl IntoIterator<Item = &'a PathBuf>) -> Result<Run> {
        self.look_at_all(inputs)?;
        self.start()
    }

    /// The same for an operation.
    pub fn start_operation(&self, inputs: &[PathBuf]) -> Result<Run<Execution>> {
        self.look_at_all(inputs)?;
        Ok(run(Execution::Stored(self.job()?), &self.options))
    }

    /// Fails where there is no store yet and a file cannot be read.
    fn look_at_all<'a>(&self, inputs: impl IntoIterator<Item = &'a PathBuf>) -> Result<()> {
        if self.store.get().is_none() {
            for path in inputs {
                if path.to_str().is_some_and(|path| path.starts_with("store:")) && !path.exists() {
                    // A dataset of no store: the error says so.
                    Store::open_folders(std::slice::from_ref(&self.folder))?;
                }
                look_at(path)?;
            }
        }
        Ok(())
    }
}

/// Opens a file that a command is going to read, and fails as that would; standard input is left alone.
fn look_at(path: &Path) -> Result<()> {
    let failed = |error| Error::io("open", path, error);
    if path == Path::new("-") {
        return Ok(());
    }
    let found = fs::metadata(path).map_err(failed)?;
    if found.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()).into());
    }
    // Whoever opens a pipe waits for a writer.
    if found.is_file() {
        File::open(path).map_err(failed)?;
    }
    Ok(())
}

/// Refuses an output on standard output (`-`) where that belongs to `--json`.
pub fn check_stdout_is_free(options: &Everywhere, output: &Path) -> Result<()> {
    if output == Path::new("-") && options.json {
        bail!("-o - and --json both want standard output: give -o FILE");
    }
    Ok(())
}

/// The memory and threads that were named, or those of habit.
pub fn budget(options: &Everywhere) -> Budget {
    let memory_bytes = options.memory.unwrap_or_else(default_memory_bytes);
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    Budget::new(memory_bytes, options.threads.map_or_else(cores, usize::from))
}

/// Starts a job that needs no store, begins to listen for signals, and draws its progress where someone can see it.
#[cfg(feature = "nodes")]
pub fn plain_run(options: &Everywhere) -> Result<Run<store::Context>> {
    let context = plain_context(options)?;
    Ok(run(context, options))
}

/// The same for an operation.
pub fn plain_operation(options: &Everywhere) -> Result<Run<Execution>> {
    let context = plain_context(options)?;
    Ok(run(Execution::Plain(context), options))
}

/// Starts an operation on nodes: on a store here where this machine may do a part of the work, which may need flash; without one
/// where there is no place for a store. Gives the options back.
#[cfg(feature = "nodes")]
pub fn run_beside_nodes(options: Everywhere) -> Result<(Run<Execution>, Everywhere)> {
    if options.only_nodes || store_path(&options).is_err() {
        return Ok((plain_operation(&options)?, options));
    }
    let session = Session::open(options)?;
    Ok((session.start_operation(&[])?, session.options))
}

/// A job whose progress is drawn, and whose plans are told, as far as that is wanted.
fn run<J: Reports>(job: J, options: &Everywhere) -> Run<J> {
    let bar = Bar::draw(job.as_ref(), !options.quiet && !options.json, options.explain);
    Run { bar, job }
}

/// Starts what needs no store, and begins to listen for signals.
pub fn plain_context(options: &Everywhere) -> Result<store::Context> {
    let cancel = Cancel::at(options.deadline);
    signals::listen(&cancel)?;
    Ok(store::Context::new(budget(options), cancel))
}

/// Where the store is, as options, environment or habit say.
pub fn store_path(options: &Everywhere) -> Result<PathBuf> {
    options
        .store
        .clone()
        .or_else(default_store_path)
        .context("no place for a store: there is neither --store nor INSHORE_STORE nor a home directory")
}

/// The folders that `--store` names: one, or several with ':' between them.
pub fn folders(path: &Path) -> Vec<PathBuf> {
    let names = path.as_os_str().as_bytes();
    if !names.contains(&b':') || path.exists() {
        return vec![path.to_path_buf()];
    }
    names.split(|&byte| byte == b':').map(|name| PathBuf::from(OsStr::from_bytes(name))).collect()
}

/// A run that can report its cost at its end.
pub trait Reports: AsRef<store::Context> {
    /// Ends the last phase and gives the counters.
    fn report(&self) -> Report;
}

impl Reports for Job {
    fn report(&self) -> Report {
        self.report()
    }
}

#[cfg(feature = "nodes")]
impl Reports for store::Context {
    fn report(&self) -> Report {
        self.report()
    }
}

impl Reports for Execution {
    fn report(&self) -> Report {
        self.report()
    }
}

/// A job, or a context where it needs no store, and its progress bar.
pub struct Run<J = Job> {
    // Dropped first: the bar is gone before anything else is printed.
    bar: Option<Bar>,
    pub job: J,
}

impl<J: Reports> Run<J> {
    /// Takes the bar off the screen and says what of a job that failed or was stopped is kept.
    pub fn tell_kept(&mut self, session: &Session) {
        self.bar = None;
        let mine = |kept: &Kept| kept.process == Some(std::process::id());
        let kept =
            session.store().and_then(|store| Ok(store.kept()?)).unwrap_or_default().into_iter().find(mine);
        if let Some(Kept { name, bytes, .. }) = kept.filter(|_| !session.options.quiet) {
            let bytes = format_bytes(bytes);
            say(&format!(
                "note: finished work ({bytes}) is kept as {name}: the same command goes on with it"
            ));
        }
    }

    /// Takes the bar off the screen and gives what the job cost.
    pub fn finish(&mut self) -> Report {
        self.bar = None;
        self.job.report()
    }
}

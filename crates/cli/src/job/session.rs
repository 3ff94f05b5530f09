//! The state that all commands share: the store, the global options, and the stop flag.

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
    self, Budget, Cancel, Error, Execution, Job, Report, ResumableWork, Store, default_memory_bytes,
    default_store_path, format_bytes,
};

use crate::{
    args::GlobalOptions,
    job::signals,
    report::{outcome::say, progress::Bar},
};

/// One invocation of the command.
pub struct Session {
    store: OnceLock<Store>,
    /// The folder in which the store is created when it is first needed.
    folder: PathBuf,
    pub options: GlobalOptions,
    cancel: Cancel,
}

impl Session {
    /// Opens the store and begins to listen for signals. A missing store is created, with a notice, when it is first
    /// [needed](Session::store). A command that fails before this point creates no store.
    pub fn open(options: GlobalOptions) -> Result<Session> {
        Self::open_with(options, |folders| match Store::open_folders(folders) {
            Err(Error::NoStore { .. }) if folders.len() == 1 => Ok(None),
            opened => opened.map(Some),
        })
    }

    /// Returns the store. Creates the store if it is missing.
    pub fn store(&self) -> Result<&Store> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = Store::open(&self.folder)?;
        if !self.options.quiet {
            say(&format!("note: created a new store in {}", store.path().display()));
        }
        Ok(self.store.get_or_init(|| store))
    }

    /// Consumes the session, and returns its store.
    #[cfg(feature = "nodes")]
    pub fn into_store(self) -> Result<Store> {
        self.store()?;
        Ok(self.store.into_inner().expect("made just now"))
    }

    /// Opens the store, or creates it. Unlike [`Session::open`], this function does not listen for signals; the caller
    /// must.
    #[cfg(feature = "nodes")]
    pub fn open_unheard(options: GlobalOptions) -> Result<Session> {
        let folders = folders(&store_path(&options)?);
        let store = match Store::open_folders(&folders) {
            Err(Error::NoStore { .. }) if folders.len() == 1 => Store::open(&folders[0])?,
            opened => opened?,
        };
        let folder = store.path().to_path_buf();
        Ok(Session { store: store.into(), folder, options, cancel: Cancel::default() })
    }

    /// Opens an existing store, and begins to listen for signals.
    pub fn open_existing(options: GlobalOptions) -> Result<Session> {
        Self::open_with(options, |folders| Store::open_folders(folders).map(Some))
    }

    fn open_with(
        options: GlobalOptions,
        open: impl FnOnce(&[PathBuf]) -> inshore::store::Result<Option<Store>>,
    ) -> Result<Session> {
        let folder = store_path(&options)?;
        let cancel = Cancel::at(options.deadline);
        signals::listen(&cancel)?;
        let store = open(&folders(&folder))?.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Session { store, folder, options, cancel })
    }

    /// Calls [`check_stdout_is_free`] with the options of this session.
    pub fn check_stdout_is_free(&self, output: &Path) -> Result<()> {
        check_stdout_is_free(&self.options, output)
    }

    /// Starts a job with the requested budget, and draws its progress if standard error is a terminal.
    pub fn start(&self) -> Result<Run> {
        Ok(run(self.job()?, &self.options))
    }

    fn job(&self) -> Result<Job> {
        Ok(self.store()?.job(budget(&self.options), self.cancel.clone())?)
    }

    /// Starts an operation that reads files. A missing store is not created if one of these files cannot be read.
    pub fn start_operation(&self, inputs: &[PathBuf]) -> Result<Run<Execution>> {
        self.check_inputs(inputs)?;
        Ok(run(Execution::Stored(self.job()?), &self.options))
    }

    /// Fails if there is no store yet and a file cannot be read.
    fn check_inputs(&self, inputs: &[PathBuf]) -> Result<()> {
        if self.store.get().is_none() {
            for path in inputs {
                if path.to_str().is_some_and(|path| path.starts_with("store:")) && !path.exists() {
                    // Opening the missing store fails, with an error that says that a dataset needs a store.
                    Store::open_folders(std::slice::from_ref(&self.folder))?;
                }
                check_readable(path)?;
            }
        }
        Ok(())
    }
}

/// Checks that a file can be opened, so that errors are reported early. Standard input is not checked.
fn check_readable(path: &Path) -> Result<()> {
    let failed = |error| Error::io("open", path, error);
    if path == Path::new("-") {
        return Ok(());
    }
    let found = fs::metadata(path).map_err(failed)?;
    if found.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()).into());
    }
    // A pipe is not opened, since the call would wait for a writer.
    if found.is_file() {
        File::open(path).map_err(failed)?;
    }
    Ok(())
}

/// Fails if the output is standard output (`-`) and `--json` uses standard output too.
pub fn check_stdout_is_free(options: &GlobalOptions, output: &Path) -> Result<()> {
    if output == Path::new("-") && options.json {
        bail!("-o - and --json both use standard output: give -o FILE");
    }
    Ok(())
}

/// Returns the requested memory and threads, or the defaults.
pub fn budget(options: &GlobalOptions) -> Budget {
    let memory_bytes = options.memory.unwrap_or_else(default_memory_bytes);
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    Budget::new(memory_bytes, options.threads.map_or_else(cores, usize::from))
}

/// Starts an operation that needs no store, begins to listen for signals, and draws its progress on a terminal.
pub fn plain_operation(options: &GlobalOptions) -> Result<Run<Execution>> {
    let context = plain_context(options)?;
    Ok(run(Execution::Plain(context), options))
}

/// Starts an operation on nodes. If this machine may do a part of the work, the operation gets a local store, since
/// this part may need flash. Without a path for a store, the operation gets no store. The options are returned to the
/// caller.
#[cfg(feature = "nodes")]
pub fn run_beside_nodes(options: GlobalOptions) -> Result<(Run<Execution>, GlobalOptions)> {
    if options.only_nodes || store_path(&options).is_err() {
        return Ok((plain_operation(&options)?, options));
    }
    let session = Session::open(options)?;
    Ok((session.start_operation(&[])?, session.options))
}

/// Adds a progress bar and the printing of plans to a job, if the options request them.
fn run<J: Reports>(job: J, options: &GlobalOptions) -> Run<J> {
    let bar = Bar::draw(job.as_ref(), !options.quiet && !options.json, options.explain);
    Run { bar, job }
}

/// Creates a context without a store, and begins to listen for signals.
pub fn plain_context(options: &GlobalOptions) -> Result<store::Context> {
    let cancel = Cancel::at(options.deadline);
    signals::listen(&cancel)?;
    Ok(store::Context::new(budget(options), cancel))
}

/// Returns the path of the store: the path of `--store` or of `INSHORE_STORE`, or the default path.
pub fn store_path(options: &GlobalOptions) -> Result<PathBuf> {
    options
        .store
        .clone()
        .or_else(default_store_path)
        .context("no folder for the store: neither --store nor INSHORE_STORE nor a home directory is set")
}

/// Splits the value of `--store` into folders, which are separated by ':'. An existing path is one folder, even if its
/// name has a ':'.
pub fn folders(path: &Path) -> Vec<PathBuf> {
    let names = path.as_os_str().as_bytes();
    if !names.contains(&b':') || path.exists() {
        return vec![path.to_path_buf()];
    }
    names.split(|&byte| byte == b':').map(|name| PathBuf::from(OsStr::from_bytes(name))).collect()
}

/// A job, or a context without a store, whose cost is reported at its end.
pub trait Reports: AsRef<store::Context> {
    /// Ends the last phase and returns the counters.
    fn report(&self) -> Report;
}

impl Reports for Job {
    fn report(&self) -> Report {
        self.report()
    }
}

impl Reports for Execution {
    fn report(&self) -> Report {
        self.report()
    }
}

/// A job, or a context without a store, together with its progress bar.
pub struct Run<J = Job> {
    // The bar comes first, so that it is dropped first and erased before any other output.
    bar: Option<Bar>,
    pub job: J,
}

impl<J: Reports> Run<J> {
    /// Erases the bar, and reports the work that a failed or stopped job of this process kept for `--resume`.
    pub fn tell_kept(&mut self, session: &Session) {
        self.bar = None;
        let mine = |kept: &ResumableWork| kept.process == Some(std::process::id());
        let kept =
            session.store().and_then(|store| Ok(store.kept()?)).unwrap_or_default().into_iter().find(mine);
        if let Some(ResumableWork { name, bytes, .. }) = kept.filter(|_| !session.options.quiet) {
            let bytes = format_bytes(bytes);
            say(&format!(
                "note: finished work ({bytes}) is kept as {name}: the same command resumes with it"
            ));
        }
    }

    /// Erases the bar and returns the cost of the job.
    pub fn finish(&mut self) -> Report {
        self.bar = None;
        self.job.report()
    }
}

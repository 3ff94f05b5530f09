//! Runs operations of the crate `inshore-ops` for commands. The global options determine the target and the job. Errors
//! name the options of the command line instead of the fields of requests.
//!
//! ```text
//!   arguments ─► Request ─┐
//!   --node ─► Target ─────┴─► plan ─► job and progress bar ─► run ─► FinishedOperation ─► Outcome
//! ```

use std::{
    io::Write,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, anyhow};
use inshore::store::{Execution, Report};
#[cfg(feature = "nodes")]
use inshore_ops::OnNodes;
#[cfg(feature = "text")]
use inshore_ops::verbs::Matches;
use inshore_ops::{
    Attachments, Error, Operation, Request, Response, RowReceiver, StoreUse, Target, TargetKind,
};
use serde::Serialize;

#[cfg(feature = "nodes")]
use crate::verbs::node;
use crate::{
    args::GlobalOptions,
    job::session::{self, Run, Session},
    report::{
        failure::AlreadyReported,
        outcome::{Outcome, say},
    },
};

/// An operation that has run.
pub struct FinishedOperation<A> {
    pub done: Response<A>,
    pub options: GlobalOptions,
    pub report: Report,
    /// Descriptions of the work that nodes did, for `--explain`.
    pub costs: Vec<(&'static str, String)>,
    /// True if an input could not be read. The error was printed when it occurred.
    has_failed: bool,
}

impl<A> FinishedOperation<A> {
    /// Prints the outcome, and with `--explain` also the work of nodes. Returns an error if an input could not be read.
    pub fn tell<S: Serialize>(self, outcome: impl FnOnce(Report, Response<A>) -> Outcome<S>) -> Result<()> {
        let checked = self.check();
        let mut outcome = outcome(self.report, self.done);
        outcome.how.extend(self.costs);
        outcome.tell(&self.options)?;
        checked
    }

    /// Returns whether an input could not be read.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns an error if an input could not be read. Callers print the results first.
    pub fn check(&self) -> Result<()> {
        if self.has_failed() { Err(AlreadyReported.into()) } else { Ok(()) }
    }
}

/// Tells whether an operation creates a missing store.
#[derive(Clone, Copy, PartialEq)]
pub enum StoreAccess {
    /// The store is created if it is missing.
    OrMakes,
    /// The store must exist.
    Existing,
}

/// Returns the kind of target that options select.
pub fn place(options: &GlobalOptions) -> TargetKind {
    match (options.node.is_empty(), options.is_cluster) {
        (true, _) => TargetKind::Local,
        (false, false) => TargetKind::Nodes,
        (false, true) => TargetKind::Cluster,
    }
}

fn target(options: &GlobalOptions) -> Result<Target> {
    #[cfg(feature = "nodes")]
    if place(options) != TargetKind::Local {
        let on = OnNodes { nodes: node::connect(options)?, options: node::run_options(options) };
        return Ok(if options.is_cluster { Target::Cluster(on) } else { Target::Nodes(on) });
    }
    let _ = options;
    Ok(Target::Local)
}

/// Runs an operation on the target that options select.
pub fn run<O: Operation>(
    options: GlobalOptions,
    request: &Request<O>,
) -> Result<FinishedOperation<O::Answer>> {
    run_on(options, StoreAccess::OrMakes, request, Attachments::default())
}

/// Runs an operation. `opens` selects whether a missing store is created. `attachments` has the receivers of the
/// answer's rows, bytes or matches.
pub fn run_on<O: Operation>(
    options: GlobalOptions,
    opens: StoreAccess,
    request: &Request<O>,
    attachments: Attachments<'_>,
) -> Result<FinishedOperation<O::Answer>> {
    let place = place(&options);
    request.check(place).map_err(advised)?;
    let needs_store = request.operation.needs_store(&request.inputs, place);
    let job = Jobs::open(options, opens, needs_store, O::STORE)?;
    let target = target(job.options())?;
    let planned = request.plan(&target).map_err(advised)?;
    let job = if planned.needs_store() { job.with_store(opens, O::STORE)? } else { job };
    let is_checked = |path: &&PathBuf| !(O::FOLDERS && path.is_dir());
    let checked: Vec<PathBuf> = request.inputs.iter().filter(is_checked).cloned().collect();
    let mut job = job.start(&checked, place)?;
    let has_failed = AtomicBool::new(false);
    let failed = |error: &Error| {
        has_failed.store(true, Ordering::Relaxed);
        say(&format!("inshore: {}", in_options(error).unwrap_or_else(|| error.to_string())));
    };
    let attachments = Attachments {
        failed: Some(&failed),
        rows: attachments.rows.map(|rows| rows as &mut dyn RowReceiver),
        bytes: attachments.bytes.map(|bytes| bytes as &mut (dyn Write + Send)),
        #[cfg(feature = "graph")]
        graph: attachments.graph,
        #[cfg(feature = "text")]
        matches: attachments.matches.map(|matches| matches as &mut dyn Matches),
    };
    let done = planned.run(&job.run.job, attachments);
    let done = done.inspect_err(|_| job.tell_kept()).map_err(advised)?;
    let report = job.run.finish();
    let options = job.options;
    #[cfg(not(feature = "nodes"))]
    let costs = Vec::new();
    #[cfg(feature = "nodes")]
    let costs = match (&target, &done.nodes) {
        (Target::Nodes(on) | Target::Cluster(on), Some(did)) => {
            node::tell_missing(&options, &on.nodes, &did.gathered);
            node::costs(&did.gathered)
        }
        _ => Vec::new(),
    };
    #[cfg(feature = "nodes")]
    let costs = costs.into_iter().chain(done.jobs.iter().flat_map(node::stages)).collect();
    Ok(FinishedOperation { done, options, report, costs, has_failed: has_failed.into_inner() })
}

/// The resources of an operation before its job starts.
enum Jobs {
    /// The job uses the open store of this session.
    OnStore(Session),
    /// The job runs on nodes. The job gets a local store if this machine may do a part of the work.
    #[cfg(feature = "nodes")]
    Beside(GlobalOptions),
    /// The job needs no store.
    Plain(GlobalOptions),
}

impl Jobs {
    /// Opens the store if the operation needs a store. An operation that reads datasets needs an existing store.
    fn open(options: GlobalOptions, opens: StoreAccess, needs_store: bool, store: StoreUse) -> Result<Jobs> {
        Ok(match (needs_store, store) {
            (true, StoreUse::Datasets) => Jobs::OnStore(Session::open_existing(options)?),
            (true, _) if opens == StoreAccess::Existing => Jobs::OnStore(Session::open_existing(options)?),
            (true, _) => Jobs::OnStore(Session::open(options)?),
            #[cfg(feature = "nodes")]
            (false, StoreUse::Spills) => Jobs::Beside(options),
            (false, _) => Jobs::Plain(options),
        })
    }

    /// Opens the store for a job that needs a store because of the data that was found.
    fn with_store(self, opens: StoreAccess, store: StoreUse) -> Result<Jobs> {
        match self {
            Jobs::OnStore(session) => Ok(Jobs::OnStore(session)),
            #[cfg(feature = "nodes")]
            Jobs::Beside(options) => Jobs::open(options, opens, true, store),
            Jobs::Plain(options) => Jobs::open(options, opens, true, store),
        }
    }

    fn options(&self) -> &GlobalOptions {
        match self {
            Jobs::OnStore(session) => &session.options,
            #[cfg(feature = "nodes")]
            Jobs::Beside(options) => options,
            Jobs::Plain(options) => options,
        }
    }

    /// Starts the job. A missing store is created only if all inputs can be read.
    fn start(self, inputs: &[PathBuf], place: TargetKind) -> Result<StartedOperation> {
        let inputs = if place == TargetKind::Local { inputs } else { &[] };
        Ok(match self {
            Jobs::OnStore(session) => {
                let run = session.start_operation(inputs)?;
                StartedOperation { run, options: session.options.clone(), session: Some(session) }
            }
            #[cfg(feature = "nodes")]
            Jobs::Beside(options) => {
                let (run, options) = session::run_beside_nodes(options)?;
                StartedOperation { run, options, session: None }
            }
            Jobs::Plain(options) => {
                let run = session::plain_operation(&options)?;
                StartedOperation { run, options, session: None }
            }
        })
    }
}

struct StartedOperation {
    run: Run<Execution>,
    options: GlobalOptions,
    session: Option<Session>,
}

impl StartedOperation {
    /// Reports the work that a failed or stopped job kept for a later run with `--resume`.
    fn tell_kept(&mut self) {
        if let Some(session) = &self.session {
            self.run.tell_kept(session);
        }
    }
}

/// Converts an error of an operation. If the error names an option of the library, the new error names the
/// corresponding option of the command line.
pub fn advised(error: Error) -> anyhow::Error {
    match in_options(&error) {
        Some(told) => anyhow!(told),
        None => error.into(),
    }
}

fn in_options(error: &Error) -> Option<String> {
    Some(match error {
        Error::Unsupported { place: TargetKind::Local, .. } => {
            "no nodes are given: use --node HOST,HOST:PORT,...".to_string()
        }
        Error::UnsupportedOption { option, place, why, .. } => {
            let option = match *option {
                "remove" => "rm",
                "unpack" => "search-zip",
                "walk" => "glob",
                "piece_bytes" => "piece",
                "record_bytes" => "record",
                option => option,
            };
            match place {
                TargetKind::Nodes => format!("--{option} does not work with --node: {why}"),
                TargetKind::Cluster => format!("--{option} does not work on a cluster: {why}"),
                TargetKind::Local => format!("--{option} needs --node: {why}"),
            }
        }
        Error::SeveralFiles { name, files } => {
            format!("{name} has several files: choose one with --file ({})", files.join(", "))
        }
        Error::NoInput { .. } => {
            "no dataset is given: expected store:NAME (`inshore store ls --node ...` lists them)".to_string()
        }
        Error::OneOutput { .. } => format!("-o {error}"),
        Error::OneInput { .. } => "nodes group one table: give one dataset, store:NAME".to_string(),
        Error::TableAsLines { .. } => format!("{error} with --key"),
        Error::KeyBeyondRecord { start, end, bytes } => {
            format!("--key-bytes {start}..{end} reaches beyond the {bytes} bytes of a record")
        }
        Error::NothingAsked => {
            "nothing to compute: give columns with --by, or aggregates (--count, --sum COLUMN, ...)"
                .to_string()
        }
        #[cfg(feature = "text")]
        Error::Kernel(inshore::kernels::Error::Exists { .. }) => format!("{error}: --force replaces it"),
        #[cfg(feature = "text")]
        Error::Kernel(inshore::kernels::Error::UnknownEnding { .. }) => {
            format!("{error}: pass -o FILE")
        }
        #[cfg(feature = "text")]
        Error::Kernel(inshore::kernels::Error::BadPattern { what })
            if what.contains(r#"the literal "\n" is not allowed"#) =>
        {
            format!("{what}; -U lets matches go across the ends of lines")
        }
        #[cfg(feature = "text")]
        Error::Kernel(inshore::kernels::Error::BadOption { option: "glob", found, what }) => {
            format!("bad --glob {found:?}: {what}")
        }
        #[cfg(feature = "text")]
        Error::Kernel(inshore::kernels::Error::BadOption { option: "type", what, .. }) => what.clone(),
        _ => return None,
    })
}

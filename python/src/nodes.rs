//! Nodes: requests to several machines.

use std::{
    ffi::OsString,
    fs::File,
    io::Write,
    net::SocketAddr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use inshore::{
    kernel::{Contents, Error as ReadError, Event, Next},
    kernels,
    nodes::{
        AgentConfig, By, ClientConfig, Error, LoadOptions, NodeStatus, Nodes as Named, Pointers, RunOptions,
        Serving, TraverseOptions, Whole, read_credentials, run_on_nodes,
    },
    ops::{self, OnNodes, Target, wholes},
    spreading::{cuts, record_lines, separator},
    store::{self, Deadline},
    tables::{Input, NewFile},
};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    error::{Tells, bad_option, to_python, whole},
    job::{Job, budget, run, size, to_json},
    run::file,
    store::Store,
};

/// A client of several machines.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Nodes {
    on: OnNodes,
    connection: Connection,
}

/// The parts of a connection to nodes, which another process of ours can make again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    addresses: Vec<String>,
    credentials: Option<Name>,
    /// The time limit of each call.
    deadline: Option<Duration>,
    partial: bool,
    node_memory_bytes: Option<u64>,
}

impl Connection {
    /// Makes the connection.
    pub(crate) fn open(self) -> Result<OnNodes, Error> {
        let Connection { addresses, credentials, deadline, partial, node_memory_bytes } = self;
        let credentials = credentials.map(|name| read_credentials(&name.path())).transpose()?;
        let deadline = deadline.and_then(Deadline::after);
        let nodes = Named::new(ClientConfig { deadline, ..ClientConfig::new(addresses, credentials) })?;
        Ok(OnNodes { nodes, options: RunOptions { partial, node_memory_bytes, ..RunOptions::default() } })
    }
}

/// A file name of arbitrary bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    pub(crate) fn of(path: &Path) -> Name {
        Name(path.as_os_str().as_bytes().to_vec())
    }

    pub(crate) fn path(self) -> PathBuf {
        OsString::from_vec(self.0).into()
    }
}

/// An agent that serves from this process.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Agent {
    address: SocketAddr,
    serving: Mutex<Option<Serving>>,
}

/// Starts to serve a store.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn serve(
    py: Python<'_>,
    store: &Store,
    listen: &str,
    name: String,
    credentials: Option<PathBuf>,
    memory: Option<&Bound<'_, PyAny>>,
    threads: Option<&Bound<'_, PyAny>>,
    slots: &Bound<'_, PyAny>,
) -> PyResult<Agent> {
    let bad = |_| Error::Address {
        address: listen.to_string(),
        what: "this is not an address to listen on: expected IP:PORT".to_string(),
    };
    let address: SocketAddr = listen.parse().map_err(bad).map_err(to_python)?;
    let slots = match whole::<u32>("slots", slots)? {
        0 => return Err(bad_option("slots", slots, "at least 1")),
        slots => slots as usize,
    };
    let (budget, store) = (budget(memory, threads)?, store.get());
    let habits = AgentConfig::new(name, budget.memory_bytes(), budget.threads());
    // WebAssembly modules would run in the current program, started again as a helper, and the current
    // program is Python.
    #[cfg(feature = "sql")]
    let works = inshore::works_by(crate::contained::helper(py)?);
    #[cfg(not(feature = "sql"))]
    let works = inshore::works_here();
    let serving = py.detach(|| {
        let credentials = credentials.map(|path| read_credentials(&file(path))).transpose()?;
        let config = AgentConfig { slots, credentials, ..habits };
        inshore::nodes::Agent::new(store, works, config).serve(address)
    });
    let serving = serving.map_err(to_python)?;
    Ok(Agent { address: serving.address(), serving: Mutex::new(Some(serving)) })
}

#[pymethods]
impl Agent {
    /// Returns the address of the agent.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Stops the agent.
    fn close(&self, py: Python<'_>) {
        let serving = self.serving.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        py.detach(|| drop(serving));
    }
}

/// Opens a client of nodes.
#[pyfunction]
#[pyo3(signature = (addresses, credentials, deadline, partial, node_memory))]
pub(crate) fn connect(
    py: Python<'_>,
    addresses: Vec<String>,
    credentials: Option<PathBuf>,
    deadline: Option<f64>,
    partial: bool,
    node_memory: Option<&Bound<'_, PyAny>>,
) -> PyResult<Nodes> {
    let deadline = match deadline.map(Duration::try_from_secs_f64) {
        None => None,
        Some(Ok(deadline)) if !deadline.is_zero() => Some(deadline),
        Some(_) => {
            let found = pyo3::types::PyFloat::new(py, deadline.unwrap_or_default());
            return Err(bad_option("deadline", found.as_any(), "a number of seconds above 0"));
        }
    };
    let connection = Connection {
        addresses,
        credentials: credentials.map(|path| Name::of(&file(path))),
        deadline,
        partial,
        node_memory_bytes: node_memory.map(size).transpose()?,
    };
    let on = py.detach(|| connection.clone().open()).map_err(to_python)?;
    Ok(Nodes { on, connection })
}

impl Nodes {
    /// Returns the nodes as a target, for one call.
    pub(crate) fn target(&self) -> Target {
        Target::Nodes(self.begin())
    }

    /// The connection, for another process that asks the same nodes.
    #[cfg(feature = "sql")]
    pub(crate) fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Returns the nodes, for one call.
    pub(crate) fn begin(&self) -> OnNodes {
        let nodes = self.on.nodes.begin(self.connection.deadline.and_then(Deadline::after));
        OnNodes { nodes, options: self.on.options.clone() }
    }

    /// Runs `work` with the nodes on a separate thread.
    fn run<T: Send + 'static, E: Tells + Send + 'static>(
        &self,
        py: Python<'_>,
        job: &Job,
        work: impl FnOnce(&store::Context, &Named) -> Result<T, E> + Send + 'static,
    ) -> PyResult<T> {
        let nodes = self.begin().nodes;
        run(py, &job.context()?, move |job| work(job, &nodes))
    }
}

#[pymethods]
impl Nodes {
    /// Returns the addresses of the nodes.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.on.nodes.addresses().map(str::to_string).collect()
    }

    /// Returns the status of each node, as JSON.
    fn status(&self, py: Python<'_>, job: &Job) -> PyResult<String> {
        let found = self.run(py, job, |_, nodes| Ok::<_, Error>(nodes.status()))?;
        let one = |node: &NodeStatus| match &node.status {
            Ok(status) => json!({ "node": node.address, "status": status }),
            Err(error) => json!({ "node": node.address, "error": error.to_string() }),
        };
        to_json(&found.iter().map(one).collect::<Vec<Value>>())
    }

    /// Returns the files of the nodes as JSON, and the errors of nodes without an answer.
    fn ls(&self, py: Python<'_>, job: &Job) -> PyResult<(String, Vec<String>)> {
        let (files, lost) = self.run(py, job, |_, nodes| {
            let catalog = nodes.catalog()?;
            let one = |whole: &Whole| {
                json!({ "name": whole.title, "kind": whole.kind, "bytes": whole.bytes(),
                    "pieces": whole.pieces.len(), "copies": whole.copies(), "nodes": whole.nodes(nodes) })
            };
            let lost = catalog.lost().iter().map(|(_, why)| why.clone()).collect();
            Ok::<_, Error>((catalog.wholes()?.iter().map(one).collect::<Vec<Value>>(), lost))
        })?;
        Ok((to_json(&files)?, lost))
    }

    /// Removes a dataset, and returns the number of nodes that had some of its pieces.
    fn rm(&self, py: Python<'_>, job: &Job, name: String) -> PyResult<usize> {
        self.run(py, job, move |_, nodes| nodes.remove(name.strip_prefix("store:").unwrap_or(&name)))
    }

    /// Spreads a file over all nodes, and returns a summary as JSON.
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put(
        &self,
        py: Python<'_>,
        job: &Job,
        path: PathBuf,
        name: String,
        copies: &Bound<'_, PyAny>,
        piece: Option<&Bound<'_, PyAny>>,
        record: Option<&Bound<'_, PyAny>>,
        block: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let habits = LoadOptions::default();
        let positive = |option: &'static str, value: &Bound<'_, PyAny>| match size(value)? {
            0 => Err(bad_option(option, value, "at least 1")),
            bytes => Ok(bytes),
        };
        let load = LoadOptions {
            copies: match whole::<u32>("copies", copies)? {
                0 => return Err(bad_option("copies", copies, "at least 1")),
                count => count as usize,
            },
            piece_bytes: piece.map(|piece| positive("piece", piece)).transpose()?,
            record_bytes: record.map(|record| positive("record", record)).transpose()?,
            ends: None,
            record_lines: record_lines(&[&name, &path.to_string_lossy()]),
            separator: separator(&[&name, &path.to_string_lossy()]),
            block_bytes: block
                .map(|block| positive("block", block))
                .transpose()?
                .unwrap_or(habits.block_bytes),
        };
        let path = file(path);
        let source = path.clone();
        let find = move |job: &store::Context| cuts(&Input::new(&source), job.budget());
        let ends = match load.record_bytes {
            None => run(py, &job.context()?, find)?,
            Some(_) => None,
        };
        let load = LoadOptions { ends, ..load };
        let loaded = self.run(py, job, move |job, nodes| {
            let called = path.display().to_string();
            let failed = |source| Error::Input { name: called.clone(), source };
            let input = File::open(&path).map_err(failed)?;
            let found = input.metadata().map_err(failed)?;
            nodes.put(job, &name, (&called, found.is_file().then_some(found.len())), input, &load)
        })?;
        to_json(&loaded)
    }

    /// Writes a file of the nodes to `path`, which appears complete or not at all, and returns its length.
    fn get(&self, py: Python<'_>, job: &Job, name: String, path: PathBuf) -> PyResult<u64> {
        let (path, options) = (file(path), RunOptions { partial: false, ..self.on.options.clone() });
        self.run(py, job, move |job, nodes| {
            let wholes = wholes(nodes, &[PathBuf::from(&name)])?;
            let [only] = &wholes[..] else {
                let titles: Vec<&str> = wholes.iter().map(|whole| whole.title.as_str()).collect();
                let what = format!("the dataset has several files: {}", titles.join(", "));
                return Err(Error::Incomplete { name, what }.into());
            };
            Ok::<_, ops::Error>(copy(job, nodes, only, &path, &options)?)
        })
    }

    /// Follows pointers through a file, and returns the ends of all chains as JSON.
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn traverse(
        &self,
        py: Python<'_>,
        job: &Job,
        name: String,
        starts: Vec<Bound<'_, PyAny>>,
        steps: &Bound<'_, PyAny>,
        page: &Bound<'_, PyAny>,
        at: &Bound<'_, PyAny>,
        by: &str,
    ) -> PyResult<String> {
        let by = match by {
            "nodes" => By::Nodes,
            "turns" => By::Turns,
            _ => By::Client,
        };
        let starts: Vec<u64> = starts.iter().map(|start| whole("starts", start)).collect::<PyResult<_>>()?;
        let pointers = Pointers { page_bytes: size(page)?, at: whole("at", at)? };
        let RunOptions { node_memory_bytes, .. } = self.on.options;
        let options =
            TraverseOptions { pointers, steps: whole("steps", steps)?, by, keep_bytes: 0, node_memory_bytes };
        let done = self.run(py, job, move |job, nodes| {
            let wholes = wholes(nodes, &[PathBuf::from(&name)])?;
            match &wholes[..] {
                [only] => Ok::<_, ops::Error>(nodes.traverse(job, only, &starts, &options)?),
                _ => Err(Error::Pages { name, what: "the dataset has several files".to_string() }.into()),
            }
        })?;
        to_json(&done)
    }
}

fn copy(
    job: &store::Context,
    nodes: &Named,
    only: &Whole,
    path: &Path,
    options: &RunOptions,
) -> kernels::Result<u64> {
    let output = NewFile::create(path)?;
    let mut writer = output.writer()?;
    let (mut bytes, mut failed) = (0, None);
    let wholes = std::slice::from_ref(only);
    run_on_nodes(nodes, job, &Contents, wholes, options, |event: Event<'_, Contents>| {
        if let Some(part) = event.part {
            let part = part?;
            bytes += part.len() as u64;
            if let Err(error) = writer.write_all(&part) {
                failed = Some(error);
                return Ok(Next::Stop);
            }
        }
        Ok::<_, ReadError>(Next::Go)
    })?;
    if let Some(error) = failed {
        return Err(kernels::Error::Write(error));
    }
    writer.flush().map_err(kernels::Error::Write)?;
    drop(writer);
    if bytes != only.bytes() {
        let what = format!("received {bytes} bytes, expected {}", only.bytes());
        let error = Error::Incomplete { name: only.title.clone(), what };
        return Err(ReadError::Stream(Box::new(error)).into());
    }
    output.publish()?;
    Ok(bytes)
}

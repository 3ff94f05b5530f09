//! Sends requests to several machines (nodes).

use std::{
    ffi::OsString,
    net::SocketAddr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use inshore::{
    nodes::{
        AgentConfig, ClientConfig, Error, NodeStatus, Nodes as Named, RunOptions, RunningAgent,
        read_credentials,
    },
    ops::{OnNodes, Target},
    store::Deadline,
};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    error::{bad_option, to_python, whole},
    job::{Job, budget, size},
    run::{Run, RunFacts, file, start},
    store::Store,
};

/// A client of several machines.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Nodes {
    on: OnNodes,
    connection: Connection,
}

/// The parts of a connection to nodes, from which a child process can make the same connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    addresses: Vec<String>,
    credentials: Option<Name>,
    /// The time limit of each call.
    deadline: Option<Duration>,
    partial: bool,
    node_memory_bytes: Option<u64>,
    /// True if the nodes exchange rows with each other.
    is_cluster: bool,
}

impl Connection {
    /// Makes the connection, as a target.
    #[cfg(feature = "sql")]
    pub(crate) fn open_target(self) -> Result<Target, Error> {
        let is_cluster = self.is_cluster;
        let on = self.open()?;
        Ok(if is_cluster { Target::Cluster(on) } else { Target::Nodes(on) })
    }

    /// Makes the connection.
    pub(crate) fn open(self) -> Result<OnNodes, Error> {
        let Connection { addresses, credentials, deadline, partial, node_memory_bytes, .. } = self;
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
    serving: Mutex<Option<RunningAgent>>,
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
    // A WebAssembly module runs in a helper process, which is the current program started again. The current program is
    // Python, which cannot be this helper.
    #[cfg(feature = "sql")]
    let helper = crate::contained::helper(py)?;
    #[cfg(feature = "sql")]
    let works = inshore::works_with_helper(helper.clone());
    #[cfg(not(feature = "sql"))]
    let works = inshore::works_here();
    let serving = py.detach(|| {
        let credentials = credentials.map(|path| read_credentials(&file(path))).transpose()?;
        let config = AgentConfig { slots, credentials, ..habits };
        #[cfg(feature = "sql")]
        let works = inshore::with_stages_and_helper(works, config.credentials.clone(), helper);
        #[cfg(not(feature = "sql"))]
        let works = inshore::with_stages(works, config.credentials.clone());
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

/// Opens a client of nodes. The nodes of a cluster exchange rows with each other.
#[pyfunction]
#[pyo3(signature = (addresses, credentials, deadline, partial, node_memory, *, is_cluster=false))]
pub(crate) fn connect(
    py: Python<'_>,
    addresses: Vec<String>,
    credentials: Option<PathBuf>,
    deadline: Option<f64>,
    partial: bool,
    node_memory: Option<&Bound<'_, PyAny>>,
    is_cluster: bool,
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
        is_cluster,
    };
    let on = py.detach(|| connection.clone().open()).map_err(to_python)?;
    Ok(Nodes { on, connection })
}

impl Nodes {
    /// Returns the nodes as a target, for one call.
    pub(crate) fn target(&self) -> Target {
        if self.connection.is_cluster { Target::Cluster(self.begin()) } else { Target::Nodes(self.begin()) }
    }

    /// Returns the connection, for another process that uses the same nodes.
    #[cfg(feature = "sql")]
    pub(crate) fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Returns the nodes, for one call.
    pub(crate) fn begin(&self) -> OnNodes {
        let nodes = self.on.nodes.begin(self.connection.deadline.and_then(Deadline::after));
        OnNodes { nodes, options: self.on.options.clone() }
    }
}

#[pymethods]
impl Nodes {
    /// Returns the addresses of the nodes.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.on.nodes.addresses().map(str::to_string).collect()
    }

    /// Starts a run whose summary is the status of each node.
    fn status(&self, job: &Job) -> PyResult<Run> {
        let nodes = self.begin().nodes;
        start(job.execution()?, None, Duration::MAX, move |_, _| {
            let one = |node: &NodeStatus| match &node.status {
                Ok(status) => json!({ "node": node.address, "status": status }),
                Err(error) => json!({ "node": node.address, "error": error.to_string() }),
            };
            Ok(RunFacts::of(&nodes.status().iter().map(one).collect::<Vec<Value>>()))
        })
    }
}

//! The native half of the Python package `inshore`: jobs, graphs and rows, without a word about Python's tables.
//!
//! The nouns are those of the Rust API: [`store::Store`], [`job::Job`], [`graph::Graph`] and [`nodes::Nodes`], for datasets as bytes
//! [`files::Files`], [`files::File`] and [`files::Writer`]. Whatever gives rows is a [`run::Run`]: a thread that works, and [`run::Batch`]es that
//! are had from it. [`operation::operate`] starts the run of any operation from its request in JSON, [`contained`] that of a query in a process
//! of its own; graphs start theirs. The public half, with the docs, the types and everything that needs `pyarrow`, is in
//! `inshore/*.py`; facts cross over as JSON text, rows as Arrow's C structures (no copies).
//!
//! - Long work goes through [`job::run`] and [`run::start`]: a thread of its own, the GIL released, Ctrl-C heard.
//! - Every error goes through [`error::to_python`].
//!
//! There is no `unsafe` here: a [`run::Batch`] hands its buffers over in capsules that own them.

use pyo3::{prelude::*, types::PyTuple};

#[cfg(not(feature = "full"))]
mod absent;
#[cfg(feature = "sql")]
mod contained;
mod error;
mod files;
mod graph;
mod job;
#[cfg(feature = "nodes")]
mod nodes;
#[cfg(any(feature = "records", feature = "text"))]
mod operation;
mod run;
#[cfg(feature = "sql")]
mod sql;
mod store;

/// A query may take so much memory and no more, in the process in which it runs.
#[cfg(feature = "sql")]
#[global_allocator]
static ALLOCATOR: inshore::sandbox::LimitedAllocator = inshore::sandbox::LimitedAllocator;

#[pymodule(gil_used = false)]
mod _native {
    use super::*;

    #[cfg(not(feature = "full"))]
    #[pymodule_export]
    use super::absent::__getattr__;
    #[cfg(feature = "sql")]
    #[pymodule_export]
    use super::contained::work_apart;
    #[cfg(feature = "nodes")]
    #[pymodule_export]
    use super::nodes::{Agent, Nodes, connect, serve};
    #[cfg(any(feature = "records", feature = "text"))]
    #[pymodule_export]
    use super::operation::operate;
    #[pymodule_export]
    use super::{
        files::{File, Files, Writer},
        graph::Graph,
        job::Job,
        run::{Batch, Columns, Run},
        store::Store,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let features = inshore::FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
        module.add("features", PyTuple::new(module.py(), features.collect::<Vec<_>>())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

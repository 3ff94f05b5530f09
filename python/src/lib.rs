//! The native part of the Python package `inshore`: jobs, graphs and rows, without types of Python's table
//! libraries.
//!
//! The nouns are those of the Rust API: [`store::Store`], [`job::Job`], [`graph::Graph`] and
//! [`nodes::Nodes`]; for datasets as bytes [`files::Files`], [`files::File`] and [`files::Writer`]. All rows
//! come from a [`run::Run`]: a working thread, from which Python takes [`run::Batch`]es.
//! [`operation::operate`] starts the run of any operation from its request in JSON, and [`contained`] runs a
//! query in a child process. [`searcher`] keeps vectors open for many searches. The public part, with the docs, the types and all uses of `pyarrow`, is in
//! `inshore/`. Facts are passed as JSON text, rows as Arrow's C structures without copies.
//!
//! - Long work uses [`run::start`]: a separate thread, the GIL released, and checks for Ctrl-C.
//! - All errors pass through [`error::to_python`].
//!
//! This crate has no `unsafe`: a [`run::Batch`] passes its buffers in capsules that own them.

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
mod operation;
mod run;
#[cfg(feature = "vectors")]
mod searcher;
#[cfg(feature = "sql")]
mod sql;
mod store;

/// The allocator that enforces the memory limit of a query in its child process.
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
    use super::contained::child_main;
    #[cfg(feature = "nodes")]
    #[pymodule_export]
    use super::nodes::{Agent, Nodes, connect, serve};
    #[cfg(feature = "vectors")]
    #[pymodule_export]
    use super::searcher::Searcher;
    #[cfg(feature = "sql")]
    #[pymodule_export]
    use super::sql::table_names;
    #[pymodule_export]
    use super::{
        files::{File, Files, Writer},
        graph::Graph,
        job::{Job, size},
        operation::operate,
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

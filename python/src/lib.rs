//! The native half of the Python package `inshore`: jobs, graphs and rows, without a word about Python's tables.
//!
//! The nouns are those of the Rust API: [`store::Store`], [`job::Job`], [`graph::Graph`], [`answer::Answer`] and
//! [`answer::Batch`], for queries [`sql::Asked`] and [`contained`], their processes, for searches [`search::Searching`], for datasets as bytes
//! [`files::Files`], [`files::File`] and [`files::Writer`], for several machines [`nodes::Nodes`], and for files of rows, texts and bytes the functions of
//! [`tables`], [`texts`] and [`packing`]. The public half, with the docs, the types and everything that needs `pyarrow`, is in
//! `inshore/*.py`; facts cross over as JSON text, rows as Arrow's C structures (no copies).
//!
//! - Long work goes through [`job::run`]: a thread of its own, the GIL released, Ctrl-C heard.
//! - Every error goes through [`error::to_python`].
//!
//! There is no `unsafe` here: a [`answer::Batch`] hands its buffers over in capsules that own them.

use pyo3::{prelude::*, types::PyTuple};

#[cfg(not(feature = "full"))]
mod absent;
mod answer;
#[cfg(feature = "sql")]
mod contained;
mod error;
mod files;
mod graph;
mod job;
#[cfg(feature = "nodes")]
mod nodes;
#[cfg(feature = "text")]
mod packing;
#[cfg(feature = "text")]
mod search;
#[cfg(feature = "sql")]
mod sql;
mod store;
#[cfg(feature = "records")]
mod tables;
#[cfg(feature = "text")]
mod texts;

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
    #[cfg(feature = "nodes")]
    #[pymodule_export]
    use super::nodes::{Agent, Nodes, connect, serve};
    #[cfg(feature = "records")]
    #[pymodule_export]
    use super::tables::{group, kmers, sort_binary, sort_tables, sort_text};
    #[pymodule_export]
    use super::{
        answer::{Answer, Batch, check_output},
        files::{File, Files, Writer},
        graph::Graph,
        job::Job,
        store::Store,
    };
    #[cfg(feature = "sql")]
    #[pymodule_export]
    use super::{
        contained::work_apart,
        sql::{Asked, query},
    };
    #[cfg(feature = "text")]
    #[pymodule_export]
    use super::{
        packing::{check_checksums, checksum, compress, decompress},
        search::{Searching, search},
        texts::{count_words, language_identify, language_train},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let features = inshore::FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
        module.add("features", PyTuple::new(module.py(), features.collect::<Vec<_>>())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

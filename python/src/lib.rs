//! The native half of the Python package `inshore`: jobs, graphs and rows, without a word about Python's tables.
//!
//! The nouns are those of the Rust API: [`store::Store`], [`job::Job`], [`graph::Graph`], [`answer::Answer`] and
//! [`answer::Batch`], for queries [`sql::Asked`], for searches [`search::Searching`], for datasets as bytes
//! [`files::Files`], [`files::File`] and [`files::Writer`], for several machines [`nodes::Nodes`], and for files of rows, texts and bytes the functions of
//! [`tables`], [`texts`] and [`packing`]. The public half, with the docs, the types and everything that needs `pyarrow`, is in
//! `inshore/*.py`; facts cross over as JSON text, rows as Arrow's C structures (no copies).
//!
//! - Long work goes through [`job::run`]: a thread of its own, the GIL released, Ctrl-C heard.
//! - Every error goes through [`error::to_python`].
//!
//! There is no `unsafe` here: a [`answer::Batch`] hands its buffers over in capsules that own them.

use pyo3::prelude::*;

mod answer;
mod error;
mod files;
mod graph;
mod job;
mod nodes;
mod packing;
mod search;
mod sql;
mod store;
mod tables;
mod texts;

#[pymodule(gil_used = false)]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::{
        answer::{Answer, Batch, check_output},
        files::{File, Files, Writer},
        graph::Graph,
        job::Job,
        nodes::{Agent, Nodes, connect, serve},
        packing::{check_checksums, checksum, compress, decompress},
        search::{Searching, search},
        sql::{Asked, query},
        store::Store,
        tables::{group, kmers, sort_binary, sort_tables, sort_text},
        texts::{count_words, language_identify, language_train},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

//! A build without some features answers for the functions and operations that it lacks.

use pyo3::{exceptions::PyAttributeError, prelude::*};

use crate::error::feature_error;

/// The functions and operations of features that a build may lack.
const NAMES: [(&str, &[&str]); 4] = [
    ("records", &["sort", "reduce", "count kmers", "count values"]),
    (
        "text",
        &[
            "search",
            "language train",
            "count words",
            "language identify",
            "compress",
            "decompress",
            "checksum",
        ],
    ),
    ("sql", &["sql"]),
    ("nodes", &["connect", "serve"]),
];

/// Stands in the signatures of functions that may be given nodes; none is ever made.
#[cfg(not(feature = "nodes"))]
#[allow(dead_code, reason = "builds without operations have no such functions")]
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Nodes;

/// The exception for a function or an operation of a feature that this build lacks.
pub(crate) fn lacking(name: &str) -> Option<PyErr> {
    NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(feature, _)| feature_error(feature))
}

/// Python asks this where the module has no such name.
#[pyfunction]
pub(crate) fn __getattr__(name: &str) -> PyResult<()> {
    // Without any operation there is no way to run one.
    let lacking = lacking(if name == "operate" { "sort" } else { name });
    Err(lacking.unwrap_or_else(|| {
        PyAttributeError::new_err(format!("module 'inshore._native' has no attribute '{name}'"))
    }))
}

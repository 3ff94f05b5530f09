//! Raises errors for functions and operations of features that a build lacks.

use pyo3::{exceptions::PyAttributeError, prelude::*};

use crate::error::feature_error;

/// The functions and operations of features that a build may lack.
const NAMES: [(&str, &[&str]); 5] = [
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
    ("sql", &["sql", "table_names"]),
    (
        "vectors",
        &[
            "nearest import",
            "nearest add",
            "nearest upsert",
            "nearest remove",
            "nearest compact",
            "nearest index",
            "nearest query",
            "nearest join",
            "nearest graph",
            "nearest dedup",
            "nearest recall",
            "Searcher",
        ],
    ),
    ("nodes", &["connect", "serve"]),
];

/// A type for the signatures of functions with nodes; no value of this type exists.
#[cfg(not(feature = "nodes"))]
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Nodes;

/// Returns the exception for a function or an operation of a feature that this build lacks.
pub(crate) fn lacking(name: &str) -> Option<PyErr> {
    NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(feature, _)| feature_error(feature))
}

/// Raises the exception for a missing name of the module, as Python's module attribute hook.
#[pyfunction]
pub(crate) fn __getattr__(name: &str) -> PyResult<()> {
    Err(lacking(name).unwrap_or_else(|| {
        PyAttributeError::new_err(format!("module 'inshore._native' has no attribute '{name}'"))
    }))
}

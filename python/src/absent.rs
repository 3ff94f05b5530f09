//! A build without some features answers for the functions that it lacks.

use pyo3::{exceptions::PyAttributeError, prelude::*};

use crate::error::feature_error;

/// The functions and classes of features that a build may lack.
const NAMES: [(&str, &[&str]); 4] = [
    ("records", &["count_kmers", "reduce", "sort_lines", "sort_records", "sort_tables"]),
    (
        "text",
        &[
            "check_checksums",
            "checksum",
            "compress",
            "count_words",
            "decompress",
            "language_identify",
            "language_train",
            "search",
        ],
    ),
    ("sql", &["query"]),
    ("nodes", &["connect", "serve"]),
];

/// Python asks this where the module has no such name.
#[pyfunction]
pub(crate) fn __getattr__(name: &str) -> PyResult<()> {
    match NAMES.iter().find(|(_, names)| names.contains(&name)) {
        Some((feature, _)) => Err(feature_error(feature)),
        None => Err(PyAttributeError::new_err(format!("module 'inshore._native' has no attribute '{name}'"))),
    }
}

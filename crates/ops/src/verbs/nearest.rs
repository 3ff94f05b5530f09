//! The operations on vectors in the local store, from `nearest import` to `nearest rm`.

mod changes;
mod content;
mod datasets;
mod dedup;
#[cfg(feature = "text")]
mod documents;
mod import;
mod index;
mod join;
mod open_vectors;
#[cfg(feature = "sql")]
mod predicate;
mod queries;
mod query;

use std::path::PathBuf;

use inshore_vectors::{Search, VectorFile};

pub use self::{
    changes::{AddVectors, CompactVectors, RemoveFromVectors, UpsertVectors, VectorId},
    content::{ContentKind, ImportFiles},
    datasets::{DescribeVectors, DescribedVectors, ListVectors, RemoveVectors, VectorsAnswer},
    dedup::DedupVectors,
    import::ImportVectors,
    index::{BuiltIndex, HashTables, IndexVectors, MeasureRecall},
    join::{JoinVectors, NeighbourGraph},
    open_vectors::{Neighbours, OpenInfo, OpenOptions, OpenVectors},
    query::{Found, SearchVectors},
};
use crate::{
    error::{Error, Result},
    operation::Plan,
};

fn default_k() -> u64 {
    Search::default().k
}

/// Returns an error for documents, which a build without the feature `text` cannot process.
#[cfg(not(feature = "text"))]
fn no_documents() -> Error {
    let what = "content: found documents, but this build lacks the feature `text`".to_string();
    Error::Request { operation: "nearest import content", what }
}

/// Opens the only input, which must be a file of vectors. For an input with another extension, `others` tells which
/// other inputs are possible.
fn only_file(operation: &'static str, inputs: &[PathBuf], others: &str) -> Result<VectorFile> {
    match inputs {
        [input] if VectorFile::is_named(input) => Ok(VectorFile::open(input)?),
        [input] => {
            let found = input.extension().map_or("no ending".to_string(), |ending| {
                format!(".{}", ending.to_string_lossy().to_ascii_lowercase())
            });
            Err(inshore_vectors::Error::BadFile {
                file: input.display().to_string(),
                place: "the ending of the name".to_string(),
                found,
                expected: format!("{}{others}", VectorFile::EXTENSIONS),
            }
            .into())
        }
        _ => {
            let what = format!("inputs: found {}, expected one file of vectors", inputs.len());
            Err(Error::Request { operation, what })
        }
    }
}

/// Refuses inputs for an operation whose options name its dataset.
fn no_inputs(operation: &'static str, inputs: &[PathBuf]) -> Result<()> {
    match inputs {
        [] => Ok(()),
        _ => {
            Err(Error::Request { operation, what: format!("inputs: found {}, expected none", inputs.len()) })
        }
    }
}

/// The queries or vectors of a file; the search itself is planned with the memory of the job.
impl Plan for VectorFile {}

//! The queries of a search. They are either a file of vectors, or images or documents whose vectors are computed in the
//! same way as the vectors of the dataset.

use std::path::PathBuf;

use inshore_store::Job;
use inshore_vectors::{self as vectors, Content, Element, Images, VectorFile, Vectors, content_queries};

#[cfg(feature = "text")]
use super::documents::{Documents, document_files};
use super::only_file;
use crate::{
    error::{Error, Result},
    operation::Plan,
};

/// The reason why queries that are lines are refused on nodes.
pub(super) const LINES_ON_NODES: &str = "the queries of vectors on nodes are a file of vectors";

/// The other inputs of a search, for the message about a file of an unknown kind.
const OTHERS: &str = ": queries that are a column of a table must be written to one of these files, and queries that are \
                      images or texts need vectors that were imported from such";

/// The inputs of a search, before the dataset is opened.
#[derive(Debug)]
pub enum Queries {
    /// A file of vectors whose header was checked.
    Vectors(VectorFile),
    /// Files and folders with images or documents.
    Content(Vec<PathBuf>),
}

impl Plan for Queries {}

impl Queries {
    /// Determines the kind of the inputs. A single file with the extension of a file of vectors is a file of vectors;
    /// all other inputs are content.
    pub(super) fn plan(operation: &'static str, inputs: &[PathBuf]) -> Result<Queries> {
        match inputs {
            [input] if VectorFile::is_named(input) => Ok(Queries::Vectors(VectorFile::open(input)?)),
            [] => only_file(operation, inputs, OTHERS).map(Queries::Vectors),
            _ => Ok(Queries::Content(inputs.to_vec())),
        }
    }

    /// Opens the only input, which must be a file of vectors. Returns queries for vectors with the element type
    /// `element`.
    #[cfg(feature = "nodes")]
    pub(super) fn into_file(self, operation: &'static str, element: Element) -> Result<VectorFile> {
        match self {
            Queries::Vectors(file) => for_elements(file, element),
            Queries::Content(inputs) => for_elements(only_file(operation, &inputs, OTHERS)?, element),
        }
    }

    /// Returns a file of vectors. If the input is not a file of vectors, the vectors are computed from the inputs. If
    /// `are_lines` is true, each line of the input is a document.
    pub(super) fn open(
        self,
        operation: &'static str,
        job: &Job,
        dataset: &Vectors,
        are_lines: bool,
    ) -> Result<VectorFile> {
        let inputs = match self {
            Queries::Vectors(file) if !are_lines => return Ok(file),
            Queries::Vectors(file) => vec![file.path().to_path_buf()],
            Queries::Content(inputs) => inputs,
        };
        let lines_refused = |what: &str| {
            let what = format!("lines: the queries are {what}, expected documents");
            Err(Error::Request { operation, what })
        };
        match dataset.content(job)? {
            None if are_lines => lines_refused("vectors"),
            None => only_file(operation, &inputs, OTHERS),
            Some(Content::Images) if are_lines => lines_refused("images"),
            Some(Content::Images) => Ok(content_queries(job, &mut Images::list(job, &inputs, false)?)?),
            Some(Content::Documents(vocabulary)) => documents(job, &inputs, are_lines, vocabulary),
        }
    }
}

/// Returns queries for vectors with the element type `element`. If the vectors consist of bits, each byte of a query is
/// interpreted as eight bits, since bytes and bits cannot be compared.
pub(super) fn for_elements(queries: VectorFile, element: Element) -> Result<VectorFile> {
    match (element, queries.element()) {
        (Element::Bits, Element::U8) => Ok(queries.as_bits()?),
        _ => Ok(queries),
    }
}

#[cfg(feature = "text")]
fn documents(
    job: &Job,
    inputs: &[PathBuf],
    are_lines: bool,
    vocabulary: vectors::Vocabulary,
) -> Result<VectorFile> {
    let files = document_files(job, inputs, are_lines)?;
    Ok(content_queries(job, &mut Documents::new(job, files, are_lines, vocabulary)?)?)
}

#[cfg(not(feature = "text"))]
fn documents(_: &Job, _: &[PathBuf], _: bool, _: vectors::Vocabulary) -> Result<VectorFile> {
    Err(super::no_documents())
}

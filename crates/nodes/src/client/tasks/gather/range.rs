//! Reads a byte range of a file from nodes.

use std::ops::Range;

use inshore_kernel::{Contents, Next};
use inshore_store::Context;

use super::ordered::run_on_nodes;
use crate::{DistributedFile, Error, Nodes, Result, client::tasks::gather_report::RunOptions};

/// Reads a byte range of a file from nodes.
///
/// Memory: the memory of [`run_on_nodes`], and the bytes of the range, which are not reserved.
///
/// # Errors
/// Returns the errors of [`run_on_nodes`].
pub fn read_from_nodes(
    nodes: &Nodes,
    job: &Context,
    file: &DistributedFile,
    range: Range<u64>,
    options: &RunOptions,
) -> Result<Vec<u8>> {
    let wanted = range.end - range.start;
    let incomplete = |bytes: usize| {
        let what = format!("received {bytes} bytes, expected {wanted}");
        Error::Incomplete { name: file.title.clone(), what }
    };
    let mut bytes = Vec::with_capacity(wanted as usize);
    let read = run_on_nodes(nodes, job, &Contents, &[file.slice(range)], options, |event| {
        bytes.extend(event.part.transpose()?.unwrap_or_default());
        match bytes.len() as u64 > wanted {
            true => Err(inshore_kernel::Error::Stream(Box::new(incomplete(bytes.len())))),
            false => Ok(Next::Go),
        }
    });
    read.map_err(|error: inshore_kernel::Error| match error {
        inshore_kernel::Error::Store(error) => Error::Store(error),
        inshore_kernel::Error::Stream(failure) => match failure.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::Incomplete { name: file.title.clone(), what: other.to_string() },
        },
        other => Error::Incomplete { name: file.title.clone(), what: other.to_string() },
    })?;
    match bytes.len() as u64 == wanted {
        true => Ok(bytes),
        false => Err(incomplete(bytes.len())),
    }
}

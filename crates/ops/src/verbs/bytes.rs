//! This module writes the bytes of an answer to a file or to a receiver.

use std::io::{BufWriter, Write};

use inshore_store::Error as StoreError;
use inshore_tables::NewFile;

use crate::{
    error::{Error, Result},
    operation::RequestContext,
};

/// Writes bytes to the output file of the request, or else to the receiver `bytes`. The file appears complete or
/// not at all.
///
/// # Errors
/// - Returns the errors of `write`.
/// - Returns [`Error::NoOutput`] if the request has no output.
pub(super) fn write_bytes<T>(
    context: &RequestContext<'_>,
    bytes: Option<&mut (dyn Write + Send)>,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<T>,
) -> Result<T> {
    let Some(output) = context.output else {
        let out = bytes.ok_or(Error::NoOutput { operation: context.operation })?;
        let done = write(out)?;
        out.flush().map_err(|error| StoreError::io("write", "the output", error))?;
        return Ok(done);
    };
    let file = NewFile::create(output)?;
    let mut out = BufWriter::with_capacity(1 << 16, file.writer()?);
    let done = write(&mut out)?;
    out.flush().map_err(|error| file.error(error))?;
    drop(out);
    file.publish()?;
    Ok(done)
}

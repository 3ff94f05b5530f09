//! Queries that are computed from content. The queries are a file of vectors in the scratch folder of the job.

use std::{
    fs::File,
    io::{BufWriter, Seek, SeekFrom, Write},
    path::Path,
};

use inshore_store::Job;

use super::ContentRows;
use crate::{Element, Error, Result, VectorFile};

/// Computes the vectors of all items, and writes them to a file that is removed at the end of the job. Returns the open
/// file.
///
/// # Errors
/// - Returns [`Error::BadFile`] if content is malformed.
/// - Returns [`Error::Store`] if an I/O operation fails, the budget has too little free memory, or the job was
///   cancelled.
pub fn content_queries(job: &Job, content: &mut dyn ContentRows) -> Result<VectorFile> {
    let ending = if content.element() == Element::F32 { "fbin" } else { "u8bin" };
    let path = job.scratch_path(&format!("{}.{ending}", job.scratch_name("queries")));
    let (unit, total) = content.total();
    job.start_phase("computing queries", unit, total);
    write(&path, content)?;
    VectorFile::open(&path)
}

fn write(path: &Path, content: &mut dyn ContentRows) -> Result<()> {
    let io = |error| inshore_store::Error::io("write", path, error);
    let dimensions = content.dimensions();
    let row_bytes = content.element().row_bytes(dimensions);
    let mut file = BufWriter::new(File::create(path).map_err(io)?);
    let mut bytes = 0;
    file.write_all(&[0; 8]).map_err(io)?;
    while let Some(batch) = content.next()? {
        file.write_all(batch.rows).map_err(io)?;
        bytes += batch.rows.len();
    }
    let count = u32::try_from(bytes / row_bytes).map_err(|_| Error::BadOption {
        option: "queries",
        found: (bytes / row_bytes).to_string(),
        expected: "fewer than 2^32".to_string(),
    })?;
    file.seek(SeekFrom::Start(0)).map_err(io)?;
    file.write_all(&[count.to_le_bytes(), (dimensions as u32).to_le_bytes()].concat()).map_err(io)?;
    file.flush().map_err(io)?;
    Ok(())
}

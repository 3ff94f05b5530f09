//! Adds images or documents to a dataset of images or documents.

use inshore_store::{Job, Store};

use super::{Change, Changed, retried};
use crate::{
    Content, ContentRows, Error, Result,
    content::Paths,
    dataset::{CHECK_BYTES, VECTORS},
    import::{BUFFER_BYTES, BUFFERS},
};

/// A function that returns the source of vectors for the content of a dataset: images, or documents with the vocabulary
/// of the dataset.
pub type OpenContent<'a> = &'a dyn Fn(Content) -> Result<Box<dyn ContentRows>>;

/// Adds vectors that are computed from images or documents to the dataset `name`. `open` returns the source of the
/// vectors. It is called again if another job changes the dataset meanwhile. The paths of files are added to the column
/// `path`. One commit publishes vectors and paths.
///
/// The function takes [`crate::CONSUMER_BYTES`] bytes in addition to the memory of the source.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the dataset has no images or documents, or if it cannot be changed.
/// - Returns [`Error::BadFile`] if an image or a document is malformed, or if there is none.
/// - Returns [`Error::BadOption`] if the documents are lines and those of the dataset are files, or the reverse.
/// - Returns [`inshore_store::Error::Changed`] if other jobs changed the dataset during each attempt.
/// - Returns the errors of `open`.
/// - Returns [`Error::Store`] if an I/O operation fails, the budget has too little free memory, or the job was
///   cancelled.
///
/// After an error, the dataset is unchanged.
pub fn add_content(store: &Store, job: &Job, name: &str, open: OpenContent<'_>) -> Result<Changed> {
    let changed = retried(job, || add_once(store, job, name, open))?;
    Ok(changed.listed(store, job))
}

fn add_once(store: &Store, job: &Job, name: &str, open: OpenContent<'_>) -> Result<Changed> {
    let mut change = Change::begin(store, job, name)?;
    let Some(content) = change.vectors.content(job)? else {
        return Err(Error::BadDataset {
            name: name.to_string(),
            what: "content",
            found: "none".to_string(),
            expected: "images or documents, to add such files".to_string(),
        });
    };
    let mut content = open(content)?;
    let mut writer = change.builder.append(VECTORS, CHECK_BYTES, BUFFER_BYTES, BUFFERS)?;
    let mut paths = Paths::append(job, &change.vectors, &mut change.builder)?;
    let row_bytes = change.info().row_bytes();
    let (unit, total) = content.total();
    job.start_phase("computing vectors", unit, total);
    let mut count = 0;
    while let Some(batch) = content.next()? {
        writer.write(batch.rows)?;
        count += (batch.rows.len() / row_bytes) as u64;
        match (&mut paths, batch.paths.is_empty()) {
            (Some(paths), false) => paths.add(batch.paths)?,
            (None, true) => {}
            (paths, _) => {
                let (found, expected) = match paths {
                    Some(_) => ("true", format!("false: each document of {name} is a file")),
                    None => ("false", format!("true: each document of {name} is a line")),
                };
                return Err(Error::BadOption { option: "lines", found: found.to_string(), expected });
            }
        }
    }
    drop(content);
    if count == 0 {
        let (file, place, found) = (name.to_string(), unit.to_string(), "none".to_string());
        return Err(Error::BadFile { file, place, found, expected: "at least one".to_string() });
    }
    change.builder.add(writer)?;
    if let Some(paths) = paths {
        paths.end(&mut change.builder)?;
    }
    change.commit_added(count, 0, 0)
}

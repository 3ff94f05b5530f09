//! Lists the files in folders.

use std::{
    fs,
    path::{Path, PathBuf},
};

use inshore_store::{Job, Reservation};

use crate::{Error, Result};

/// The memory of a path in bytes, without the bytes of its text.
const PATH_BYTES: u64 = 64;

/// A list of files. Its memory is reserved in the budget.
#[derive(Debug)]
pub struct Files {
    /// The paths.
    pub paths: Vec<PathBuf>,
    memory: Reservation,
}

/// Lists the files of `inputs`. An input that is a file is added to the list unchanged. From a folder and all its
/// subfolders, the files that `is_wanted` selects are added, sorted by path. Hidden files and folders are skipped, and
/// symbolic links to folders are not followed.
///
/// # Errors
/// - Returns [`Error::BadFile`] if a folder has no selected files. In the message, `wanted` describes the files that
///   would be selected.
/// - Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
pub fn list_files(
    job: &Job,
    inputs: &[PathBuf],
    is_wanted: impl Fn(&Path) -> bool,
    wanted: &str,
) -> Result<Files> {
    let memory = job.budget().reserve(0, "the list of files")?;
    let mut files = Files { paths: Vec::new(), memory };
    for input in inputs {
        let before = files.paths.len();
        match input.is_dir() {
            true => files.add_folder(job, input, &is_wanted)?,
            false => files.add(input.clone())?,
        }
        files.paths[before..].sort();
        if files.paths.len() == before {
            return Err(Error::BadFile {
                file: input.display().to_string(),
                place: "the folder".to_string(),
                found: format!("no {wanted}"),
                expected: "at least one".to_string(),
            });
        }
    }
    Ok(files)
}

impl Files {
    fn add(&mut self, path: PathBuf) -> Result<()> {
        self.memory.resize(self.memory.bytes() + PATH_BYTES + path.as_os_str().len() as u64)?;
        self.paths.push(path);
        Ok(())
    }

    fn add_folder(&mut self, job: &Job, folder: &Path, is_wanted: &impl Fn(&Path) -> bool) -> Result<()> {
        let io = |error| inshore_store::Error::io("read", folder, error);
        job.check_cancelled()?;
        for entry in fs::read_dir(folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            match entry.file_type().map_err(io)?.is_dir() {
                true => self.add_folder(job, &path, is_wanted)?,
                false if is_wanted(&path) && path.is_file() => self.add(path)?,
                false => {}
            }
        }
        Ok(())
    }
}

//! Files and datasets that are read as text, as they are named on the command line.

use std::path::{Path, PathBuf};

use anyhow::Result;
use inshore::{
    kernels::{TextOptions, text_source},
    neardata::Source,
    store::Job,
};

/// The dataset that a path names: `store:NAME`, or `store:NAME/FILE`.
pub fn dataset(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix("store:")
}

/// The files of the datasets that were named, each with what it is called.
pub fn stored(job: &Job, datasets: &[PathBuf]) -> Result<Vec<(PathBuf, Source)>> {
    let mut sources = Vec::new();
    for path in datasets {
        let named = dataset(path).expect("they were chosen by it");
        let files = job.store().named_files(named)?;
        sources.extend(
            files.into_iter().map(|found| (PathBuf::from(found.title()), Source::dataset(found.file))),
        );
    }
    Ok(sources)
}

/// Files, unpacked where they are packed, and datasets, in this order of paths.
pub fn texts(job: &Job, paths: &[PathBuf]) -> Result<Vec<Source>> {
    let mut all = Vec::new();
    for path in paths {
        match dataset(path) {
            Some(_) => {
                all.extend(stored(job, std::slice::from_ref(path))?.into_iter().map(|(_, source)| source));
            }
            None => all.push(text_source(path, TextOptions { unpack: true, ..TextOptions::default() })),
        }
    }
    Ok(all)
}

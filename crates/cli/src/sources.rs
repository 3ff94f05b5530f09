//! Files and datasets that are read as text, as they are named on the command line.

use std::path::{Path, PathBuf};

use anyhow::Result;
use inshore::{
    kernels::{TextOptions, text_source},
    neardata::Source,
    store::{Error, Job},
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
        let (name, file) = named.split_once('/').map_or((named, None), |(name, file)| (name, Some(file)));
        let dataset = job.store().dataset(name)?;
        let files: Vec<String> = dataset.file_names().map(str::to_string).collect();
        let is_single = files.len() == 1;
        for called in files.into_iter().filter(|called| file.is_none_or(|file| file == called)) {
            let file = dataset.file(&called).expect("it has this name");
            let shown = if is_single { format!("store:{name}") } else { format!("store:{name}/{called}") };
            sources.push((PathBuf::from(shown), Source::dataset(file)));
        }
        if let Some(file) = file
            && !dataset.file_names().any(|called| called == file)
        {
            let store = job.store().path().to_path_buf();
            return Err(Error::NotFound { name: format!("{name}/{file}"), store }.into());
        }
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

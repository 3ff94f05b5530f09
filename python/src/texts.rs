//! Languages of texts: training.

use std::path::PathBuf;

use inshore::{
    kernels::{self, Profiles, text_sources},
    store,
};
use pyo3::prelude::*;

use crate::{
    error::{bad_option, whole},
    job::{Job, run},
    run::file,
};

/// Makes profiles of labelled samples, stores them as `name`, and gives each label with how many n-grams it has.
#[pyfunction]
pub(crate) fn language_train(
    py: Python<'_>,
    job: &Job,
    samples: Vec<(String, Vec<PathBuf>)>,
    name: String,
    grams: &Bound<'_, PyAny>,
) -> PyResult<Vec<(String, usize)>> {
    let most: u32 = match whole("grams", grams)? {
        most @ 1..=100_000 => most,
        _ => return Err(bad_option("grams", grams, "1 to 100000")),
    };
    run(py, &job.get()?, move |job| train(job, samples, &name, most as usize))
}

fn train(
    job: &store::Job,
    samples: Vec<(String, Vec<PathBuf>)>,
    name: &str,
    grams: usize,
) -> kernels::Result<Vec<(String, usize)>> {
    let store = job.store();
    if store.list()?.iter().any(|known| known.name == name) {
        // Said before the work and not after it.
        store.create_dataset(job, name, "language")?;
    }
    let mut sources = Vec::new();
    for (label, paths) in samples {
        let paths: Vec<PathBuf> = paths.into_iter().map(file).collect();
        sources.push((label, text_sources(Some(job), &paths)?));
    }
    let profiles = Profiles::train(job, sources, grams)?;
    profiles.save(&store, job, name)?;
    let counted = |label: &str| (label.to_string(), profiles.grams(label).unwrap_or(0));
    Ok(profiles.labels().map(counted).collect())
}

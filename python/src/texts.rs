//! Words and languages of texts.

use std::path::{Path, PathBuf};

use inshore::{
    kernels::{
        self, Classifier, Identified, LanguagePlace, LanguageTable, Profiles, Unit, WordOptions, identify,
        identify_column, table_inputs, text_sources, word_schema,
    },
    store,
    tables::{Input, TableWriter},
};
use pyo3::prelude::*;
use serde::Serialize;

use crate::{
    answer::file,
    error::{bad_option, kernel_to_python, whole},
    job::{Job, run, to_json},
};

/// Counts words. Writes them all to `output`, if there is one, and gives the summary as JSON, with the `top` most frequent.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn count_words(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: Option<PathBuf>,
    split: bool,
    ignore_case: bool,
    min_count: &Bound<'_, PyAny>,
    top: &Bound<'_, PyAny>,
) -> PyResult<String> {
    let (min_count, top) = (whole("min_count", min_count)?, whole::<u32>("top", top)? as usize);
    let options = WordOptions { split, ignore_case, min_count, top, table_bytes: None };
    let paths: Vec<PathBuf> = paths.into_iter().map(file).collect();
    let count = move |job: &store::Job| Ok(words(job, &paths, output.map(file).as_deref(), &options));
    to_json(&run(py, &job.get()?, count)?.map_err(kernel_to_python)?)
}

fn words(
    job: &store::Job,
    paths: &[PathBuf],
    output: Option<&Path>,
    options: &WordOptions,
) -> kernels::Result<kernels::WordSummary> {
    job.start_phase("counting", "bytes", 0);
    let create = |path: &Path| TableWriter::create(path, word_schema(), job.budget());
    let mut writer = output.map(create).transpose()?;
    let sources = text_sources(Some(job), paths)?;
    let summary = kernels::count_words(job, sources.into_iter(), options, |batch| {
        writer.as_mut().map_or(Ok(()), |writer| writer.write(&batch).map_err(Into::into))
    })?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    Ok(summary)
}

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
    let train = move |job: &store::Job| Ok(train(job, samples, &name, most as usize));
    run(py, &job.get()?, train)?.map_err(kernel_to_python)
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

/// What was told, as JSON has it.
#[derive(Serialize)]
struct Told {
    texts: u64,
    unknown: u64,
    failed: usize,
}

/// Tells the languages of files, of their lines, or of the rows of a column, and writes a table. Gives the summary as JSON,
/// and what is wrong with files that were passed over.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn language_identify(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: PathBuf,
    profiles: String,
    lines: bool,
    column: Option<String>,
    skip: bool,
) -> PyResult<(String, Vec<String>)> {
    let job = job.get()?;
    let text_of = move |job: &store::Job| {
        Ok(tell(job, paths, &file(output), &profiles, lines, column.as_deref(), skip))
    };
    let (told, skipped) = run(py, &job, text_of)?.map_err(kernel_to_python)?;
    Ok((to_json(&told)?, skipped))
}

fn tell(
    job: &store::Job,
    paths: Vec<PathBuf>,
    output: &Path,
    profiles: &str,
    lines: bool,
    column: Option<&str>,
    skip: bool,
) -> kernels::Result<(Told, Vec<String>)> {
    let profiles = Profiles::load(&job.store(), job, profiles)?;
    let _filters = job.budget().reserve(Classifier::BYTES, "filters of languages")?;
    let classifier = Classifier::new(&profiles);
    job.start_phase("reading", "bytes", 0);
    let place = match (column, lines) {
        (Some(_), _) => LanguagePlace::Row,
        (None, true) => LanguagePlace::Line,
        (None, false) => LanguagePlace::Whole,
    };
    let mut table = LanguageTable::create(job, output, &classifier, place)?;
    let mut skipped = Vec::new();
    match column {
        Some(column) => {
            for input in column_inputs(job, paths)? {
                identify_column(job, &classifier, &input, column, |row, verdict| {
                    table.add(input.name(), Some(row), verdict)
                })?;
            }
        }
        None => {
            let unit = if lines { Unit::Line } else { Unit::Source };
            let paths: Vec<PathBuf> = paths.into_iter().map(file).collect();
            let sources = text_sources(Some(job), &paths)?;
            let write = |found: Identified<'_>| table.add_found(&found);
            let failed = |error: kernels::Error| match skip {
                true => {
                    skipped.push(error.to_string());
                    Ok(())
                }
                false => Err(error),
            };
            identify(job, &classifier, sources.into_iter(), unit, write, failed)?;
        }
    }
    let summary = table.finish()?;
    Ok((Told { texts: summary.texts, unknown: summary.unknown, failed: skipped.len() }, skipped))
}

fn column_inputs(job: &store::Job, paths: Vec<PathBuf>) -> kernels::Result<Vec<Input>> {
    let spilled = job.scratch_path("source.arrow");
    if paths == [spilled.clone()] {
        return Ok(vec![Input::new(spilled).called("the Arrow data", "arrow")]);
    }
    let paths: Vec<PathBuf> = paths.into_iter().map(file).collect();
    Ok(table_inputs(Some(job), &paths)?)
}

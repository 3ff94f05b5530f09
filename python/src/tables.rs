//! Sorting, grouping and counting of files; what Python has in memory comes and goes through a file in the scratch folder.

use std::path::PathBuf;

use inshore::{
    graph,
    sortreduce::rows::FixedRows,
    store,
    tables::{
        Aggregate, Input, KmerOptions, ReduceOptions, SortKey, SortOptions, count_kmers, reduce, sort_lines,
        sort_records, sort_table,
    },
};
use pyo3::prelude::*;
use serde::Serialize;

use crate::{
    answer::file,
    error::{bad_option, to_python, whole},
    job::{Job, run, to_json},
};

/// Runs `work` on files, and gives its summary as JSON.
fn work<S: Serialize + Send + 'static>(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: PathBuf,
    work: impl FnOnce(&store::Job, &[Input], PathBuf) -> inshore::tables::Result<S> + Send + 'static,
) -> PyResult<String> {
    let job = job.get()?;
    let spilled = job.scratch_path("source.arrow");
    let input = |path: PathBuf| match path == spilled {
        true => Input::new(path).called("the Arrow data", "arrow"),
        false => Input::new(file(path)),
    };
    let inputs: Vec<Input> = paths.into_iter().map(input).collect();
    to_json(&run(py, &job, move |job| work(job, &inputs, file(output)).map_err(graph::Error::from))?)
}

fn with_header(inputs: &[Input], has_names: Option<bool>) -> Vec<Input> {
    inputs.iter().map(|input| input.clone().with_header(has_names.into())).collect()
}

/// Tables by columns, each with whether the greatest comes first.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn sort_tables(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: PathBuf,
    keys: Vec<(String, bool)>,
    text: Vec<String>,
    header: Option<bool>,
    unique: bool,
    resume: bool,
) -> PyResult<String> {
    let keys: Vec<SortKey> =
        keys.into_iter().map(|(column, descending)| SortKey { column, descending }).collect();
    let options = SortOptions { unique, resume, ..Default::default() };
    work(py, job, paths, output, move |job, inputs, output| {
        sort_table(job, &with_header(inputs, header), &output, &keys, &text, options)
    })
}

/// Lines by their bytes.
#[pyfunction(name = "sort_lines")]
pub(crate) fn sort_text(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: PathBuf,
    descending: bool,
    unique: bool,
    resume: bool,
) -> PyResult<String> {
    let options = SortOptions { descending, unique, resume };
    work(py, job, paths, output, move |job, inputs, output| sort_lines(job, inputs, &output, options))
}

/// Records of `record_bytes` by the bytes from `start` to `end`.
#[pyfunction(name = "sort_records")]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn sort_binary(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: PathBuf,
    record_bytes: &Bound<'_, PyAny>,
    key: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    descending: bool,
    unique: bool,
    resume: bool,
) -> PyResult<String> {
    let bytes: u32 = whole("record_bytes", record_bytes)?;
    let (start, end) = (whole::<u32>("key", &key.0)?, whole::<u32>("key", &key.1)?);
    if bytes == 0 {
        return Err(bad_option("record_bytes", record_bytes, "at least 1"));
    }
    if start >= end || end > bytes {
        let found = format!("({start}, {end})");
        let expected = format!("a range of bytes within the {bytes} of a record");
        return Err(to_python(graph::Error::BadOption { option: "key", found, expected }));
    }
    let shape = FixedRows::new(bytes as usize, start as usize..end as usize);
    let options = SortOptions { descending, unique, resume };
    work(py, job, paths, output, move |job, inputs, output| {
        sort_records(job, inputs, &output, shape, options)
    })
}

/// Groups of rows with what is computed of each: the name of a function, and a column.
#[pyfunction(name = "reduce")]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn group(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: PathBuf,
    by: Vec<String>,
    aggregates: Vec<(String, Option<String>)>,
    text: Vec<String>,
    header: Option<bool>,
    resume: bool,
) -> PyResult<String> {
    let aggregates = aggregates.into_iter().map(aggregate).collect::<PyResult<Vec<Aggregate>>>()?;
    let options = ReduceOptions { by, aggregates, as_text: text, general: false, resume };
    work(py, job, paths, output, move |job, inputs, output| {
        reduce(job, &with_header(inputs, header), &output, &options)
    })
}

fn aggregate((function, column): (String, Option<String>)) -> PyResult<Aggregate> {
    let column = match (&*function, column) {
        ("count", None) => return Ok(Aggregate::count()),
        (_, Some(column)) => column,
        (_, None) => {
            let expected = format!("(column, {function:?}): only rows can be counted without a column");
            return Err(to_python(graph::Error::BadOption {
                option: "aggregates",
                found: function,
                expected,
            }));
        }
    };
    match &*function {
        "count" => Ok(Aggregate::count_of(column)),
        "sum" => Ok(Aggregate::sum(column)),
        "mean" => Ok(Aggregate::mean(column)),
        "min" => Ok(Aggregate::min(column)),
        "max" => Ok(Aggregate::max(column)),
        "first" => Ok(Aggregate::first(column)),
        "last" => Ok(Aggregate::last(column)),
        _ => {
            let expected = "count, sum, mean, min, max, first or last".to_string();
            Err(to_python(graph::Error::BadOption { option: "aggregates", found: function, expected }))
        }
    }
}

/// The k-mers of sequences.
#[pyfunction(name = "count_kmers")]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn kmers(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: PathBuf,
    k: &Bound<'_, PyAny>,
    canonical: bool,
    min_count: &Bound<'_, PyAny>,
    codes: bool,
    resume: bool,
) -> PyResult<String> {
    let (k, min_count) = (whole("k", k)?, whole("min_count", min_count)?);
    let options = KmerOptions { k, canonical, min_count, codes, resume };
    work(py, job, paths, output, move |job, inputs, output| count_kmers(job, inputs, &output, &options))
}

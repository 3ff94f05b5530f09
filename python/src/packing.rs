//! Compressing, decompressing and checksums of files.

use std::path::PathBuf;

use inshore::{
    kernels::{self, Checksum, FileOptions, Format, PackSummary, listed_checksums},
    store,
    tables::Input,
};
use pyo3::prelude::*;

use crate::{
    answer::file,
    error::{kernel_to_python, to_python, whole},
    job::{Job, STOP_PATIENCE, run, run_stopping_within, to_json},
};

/// Files that were written, and what was done as JSON has it.
type Packed = (Vec<PathBuf>, String);

/// Compresses files, each into `output` or one beside it.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn compress(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: Option<PathBuf>,
    format: Option<&str>,
    level: Option<Bound<'_, PyAny>>,
    force: bool,
    remove: bool,
) -> PyResult<Packed> {
    let format: Option<Format> = format.map(|format| read("format", format)).transpose()?;
    let level: Option<u32> = level.map(|level| whole("level", &level)).transpose()?;
    let to = FileOptions { output: output.map(file), force, remove };
    let pack =
        move |job: &store::Context, input: &Input| kernels::compress_file(job, input, format, level, &to);
    all(py, job, "compress", paths, pack)
}

/// Decompresses files, each into `output` or one beside it.
#[pyfunction]
pub(crate) fn decompress(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    output: Option<PathBuf>,
    force: bool,
    remove: bool,
) -> PyResult<Packed> {
    let to = FileOptions { output: output.map(file), force, remove };
    let unpack = move |job: &store::Context, input: &Input| kernels::decompress_file(job, input, &to);
    all(py, job, "decompress", paths, unpack)
}

/// One file after the other, each with all cores, until one fails.
fn all(
    py: Python<'_>,
    job: &Job,
    phase: &'static str,
    paths: Vec<PathBuf>,
    work: impl Fn(&store::Context, &Input) -> kernels::Result<(PathBuf, PackSummary)> + Send + 'static,
) -> PyResult<Packed> {
    let each = move |job: &store::Context| {
        job.start_phase(phase, "bytes", 0);
        let (mut written, mut sums) = (Vec::new(), PackSummary::default());
        for path in paths {
            let (to, done) = work(job, &Input::new(file(path)))?;
            written.push(to);
            sums.bytes_in += done.bytes_in;
            sums.bytes_out += done.bytes_out;
            sums.pieces += done.pieces;
        }
        kernels::Result::Ok((written, sums))
    };
    let done = run_stopping_within(py, &job.context()?, STOP_PATIENCE, move |job| Ok(each(job)))?;
    let (written, sums) = done.map_err(kernel_to_python)?;
    Ok((written, to_json(&sums)?))
}

/// The checksums of files, in their order.
#[pyfunction]
pub(crate) fn checksum(
    py: Python<'_>,
    job: &Job,
    paths: Vec<PathBuf>,
    algorithm: &str,
) -> PyResult<Vec<String>> {
    let algorithm: Checksum = read("algorithm", algorithm)?;
    let work = move |job: &store::Context| Ok(sums(job, algorithm, paths));
    run(py, &job.context()?, work)?.map_err(kernel_to_python)
}

/// The files of a list of checksums, each with whether it has its checksum.
#[pyfunction]
pub(crate) fn check_checksums(
    py: Python<'_>,
    job: &Job,
    list: PathBuf,
    algorithm: &str,
) -> PyResult<Vec<(PathBuf, bool)>> {
    let algorithm: Checksum = read("algorithm", algorithm)?;
    let check = move |job: &store::Context| {
        let refused = |source| kernels::Error::Input { name: list.display().to_string(), source };
        let text = std::fs::read_to_string(&list).map_err(refused)?;
        let (paths, wanted): (Vec<PathBuf>, Vec<String>) =
            listed_checksums(&list, &text, algorithm)?.into_iter().unzip();
        let found = sums(job, algorithm, paths.clone())?;
        let are_equal = wanted.iter().zip(&found).map(|(wanted, found)| wanted == found);
        kernels::Result::Ok(paths.into_iter().zip(are_equal).collect())
    };
    run(py, &job.context()?, move |job| Ok(check(job)))?.map_err(kernel_to_python)
}

fn sums(job: &store::Context, algorithm: Checksum, paths: Vec<PathBuf>) -> kernels::Result<Vec<String>> {
    job.start_phase("checksum", "bytes", 0);
    let inputs: Vec<Input> = paths.into_iter().map(|path| Input::new(file(path))).collect();
    kernels::checksum_files(job, algorithm, &inputs).into_iter().collect()
}

/// One of a few words.
fn read<T: std::str::FromStr<Err = String>>(option: &'static str, text: &str) -> PyResult<T> {
    text.parse().map_err(|expected: String| {
        let expected = expected.trim_start_matches("expected ").to_string();
        to_python(inshore::graph::Error::BadOption { option, found: text.to_string(), expected })
    })
}

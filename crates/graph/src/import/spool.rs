//! Makes inputs readable more than once. Standard input can be read only once, so it is first copied to a scratch file.

use std::{fs::File, io::Write};

use inshore_store::{Error, Job};
use inshore_tables::Input;

use super::EdgeFormat;
use crate::Result;

const STEP_BYTES: usize = 128 << 10;

/// Returns an input that is read in this format, whatever the extension of `input` is. If the header of the format is
/// read first, the returned input can be read more than once.
pub(super) fn readable(job: &Job, input: &Input, format: EdgeFormat) -> Result<Input> {
    let ending = match format {
        EdgeFormat::Text | EdgeFormat::Binary => return Ok(input.clone()),
        EdgeFormat::Csv if input.extension() == "tsv" => "tsv",
        EdgeFormat::Csv => "csv",
        EdgeFormat::Parquet => "parquet",
        EdgeFormat::Arrow => "arrow",
        EdgeFormat::MatrixMarket => "mtx",
        EdgeFormat::Ldbc if input.extension() == "v" => "v",
        EdgeFormat::Ldbc => "e",
    };
    let input = if input.path().is_some() { input.clone() } else { copy(job, input)? };
    let name = input.name().to_string();
    Ok(input.called(&name, ending))
}

/// Copies the input to the job's scratch and decompresses it. The copy has the name that the user knows.
fn copy(job: &Job, input: &Input) -> Result<Input> {
    job.start_phase("copying standard input", "bytes", 0);
    let path = job.scratch_path(&job.scratch_name("stdin"));
    let failed = |what: &'static str| move |error| Error::io(what, input.name(), error);
    let mut bytes = input.open(job.budget())?;
    let mut file = File::create_new(&path).map_err(failed("copy"))?;
    let mut block = vec![0; STEP_BYTES];
    loop {
        job.check_cancelled()?;
        let filled = bytes.fill(&mut block)?;
        if filled == 0 {
            return Ok(Input::new(&path).called(input.name(), ""));
        }
        file.write_all(&block[..filled]).map_err(failed("copy"))?;
        job.progress().add(filled as u64);
    }
}

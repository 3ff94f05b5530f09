//! `inshore compress`, `inshore decompress` and `inshore checksum`.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use inshore::{
    kernels::{
        self, FileOptions, PackSummary, checksum_files, compress_file, decompress_file, listed_checksums,
    },
    store::{self, format_bytes},
    tables::Input,
};
use serde::Serialize;

use crate::{
    args::{Checksum, Compress, Decompress, Everywhere, Packed},
    failure::AlreadyTold,
    outcome::{Outcome, counted, say},
    session::{Run, plain_run},
    terminal,
};

/// All files together, as JSON has it.
#[derive(Serialize)]
pub struct Summary {
    pub files: u64,
    #[serde(flatten)]
    pub sums: PackSummary,
}

pub fn compress(options: &Everywhere, words: &Compress) -> Result<()> {
    let work = |run: &Run<store::Context>, input: &Input, to: &FileOptions| {
        compress_file(&run.job, input, words.format, words.level, to)
    };
    all(options, "compress", &words.packed, work)
}

/// What became of all files.
pub fn told(summary: &Summary) -> String {
    let sums = summary.sums;
    format!(
        "{}, {} became {}, {:.1} % of it",
        counted(summary.files, "file"),
        format_bytes(sums.bytes_in),
        format_bytes(sums.bytes_out),
        100.0 * sums.bytes_out as f64 / (sums.bytes_in as f64).max(1.0)
    )
}

pub fn decompress(options: &Everywhere, words: &Decompress) -> Result<()> {
    let work =
        |run: &Run<store::Context>, input: &Input, to: &FileOptions| decompress_file(&run.job, input, to);
    all(options, "decompress", &words.packed, work)
}

/// One file after the other, each with all cores. A file that fails is told and the others go on.
fn all(
    options: &Everywhere,
    command: &'static str,
    words: &Packed,
    work: impl Fn(&Run<store::Context>, &Input, &FileOptions) -> kernels::Result<(PathBuf, PackSummary)>,
) -> Result<()> {
    let is_stdin = |path: &PathBuf| path == Path::new("-");
    let output =
        words.output.clone().or_else(|| words.inputs.iter().any(is_stdin).then(|| PathBuf::from("-")));
    if let Some(output) = &output
        && words.inputs.len() > 1
    {
        bail!("-o {} is one file, and {} are named", output.display(), words.inputs.len());
    }
    if output.as_deref() == Some(Path::new("-")) && command == "compress" && io::stdout().is_terminal() {
        bail!("compressed bytes are not for a terminal: give -o FILE");
    }
    if output.as_deref() == Some(Path::new("-")) && options.json {
        bail!("-o - and --json both want standard output: give -o FILE");
    }
    let mut run = plain_run(options)?;
    let sizes: u64 = words.inputs.iter().filter_map(|path| Input::new(path).compressed_bytes()).sum();
    run.job.start_phase(command, "bytes", sizes);
    let (mut summary, mut failed) = (Summary { files: 0, sums: PackSummary::default() }, false);
    let to = FileOptions { output: output.clone(), force: words.force, remove: words.remove };
    for path in &words.inputs {
        match work(&run, &Input::new(path), &to).map_err(advised) {
            Ok((_, done)) => {
                summary.files += 1;
                summary.sums.bytes_in += done.bytes_in;
                summary.sums.bytes_out += done.bytes_out;
                summary.sums.pieces += done.pieces;
            }
            Err(error) if words.inputs.len() == 1 || run.job.cancel().is_cancelled() => return Err(error),
            Err(error) => {
                failed = true;
                say(&format!("inshore: {error:#}"));
            }
        }
    }
    let sentence = told(&summary);
    let outcome = Outcome::new(command, run.finish(), summary, sentence);
    Outcome { sentence_aside: output.is_some(), ..outcome }.tell(options)?;
    if failed { Err(AlreadyTold.into()) } else { Ok(()) }
}

/// An error, and which option helps.
fn advised(error: kernels::Error) -> anyhow::Error {
    match error {
        kernels::Error::Exists { .. } => anyhow!("{error}: --force replaces it"),
        kernels::Error::UnknownEnding { .. } => anyhow!("{error}: say with -o what to write"),
        error => error.into(),
    }
}

/// What was found of all files.
#[derive(Serialize)]
struct Sums {
    files: Vec<Sum>,
}

#[derive(Serialize)]
struct Sum {
    name: String,
    checksum: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_right: Option<bool>,
}

/// Whether all that was checked is as it should be.
pub fn checksum(options: &Everywhere, words: &Checksum) -> Result<bool> {
    let wanted: Vec<(PathBuf, Option<String>)> = match &words.check {
        Some(list) => listed(list, words.algorithm)?,
        None => words.inputs.iter().map(|path| (path.clone(), None)).collect(),
    };
    let mut run = plain_run(options)?;
    let sizes = wanted.iter().filter_map(|(path, _)| Input::new(path).compressed_bytes()).sum();
    run.job.start_phase("checksum", "bytes", sizes);
    let inputs: Vec<Input> = wanted.iter().map(|(path, _)| Input::new(path)).collect();
    let found = checksum_files(&run.job, words.algorithm, &inputs);
    run.job.check_cancelled()?;
    let report = run.finish();
    let (mut all_right, mut failed, mut sums) = (true, false, Vec::new());
    let mut lines = String::new();
    for ((path, expected), found) in wanted.into_iter().zip(found) {
        // Standard input is called as those who read the list expect it.
        let name = path.display().to_string();
        let checksum = match found {
            Ok(checksum) => Some(checksum),
            Err(error) => {
                failed = true;
                say(&format!("inshore: {error}"));
                None
            }
        };
        let is_right = expected.map(|expected| checksum.as_ref() == Some(&expected));
        match (is_right, &checksum) {
            (Some(true), _) => lines += &format!("{name}: OK\n"),
            (Some(false), _) => {
                all_right = false;
                lines += &format!("{name}: FAILED\n");
            }
            (None, Some(checksum)) => lines += &format!("{checksum}  {name}\n"),
            (None, None) => {}
        }
        sums.push(Sum { name, checksum, is_right });
    }
    if options.json {
        let count = counted(sums.len() as u64, "file");
        Outcome::new("checksum", report, Sums { files: sums }, count).tell(options)?;
    } else {
        terminal::stdout().write_all(lines.as_bytes())?;
    }
    if failed { Err(AlreadyTold.into()) } else { Ok(all_right) }
}

/// Names and checksums as `sha256sum` prints them.
fn listed(list: &Path, algorithm: kernels::Checksum) -> Result<Vec<(PathBuf, Option<String>)>> {
    let text = match list == Path::new("-") {
        true => io::read_to_string(io::stdin()),
        false => fs::read_to_string(list),
    };
    let text = text.with_context(|| format!("{}: cannot read it", list.display()))?;
    let listed = listed_checksums(list, &text, algorithm)?;
    Ok(listed.into_iter().map(|(name, sum)| (name, Some(sum))).collect())
}

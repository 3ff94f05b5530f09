//! `inshore compress`, `inshore decompress` and `inshore checksum`.

use std::{
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use inshore::{
    ops::{
        Operation, Request, TargetKind,
        verbs::{self, FileChecksum, PackAnswer},
    },
    store::format_bytes,
};

use crate::{
    args::{Checksum, Compress, Decompress, GlobalOptions, Packed},
    job::{
        operations::{self, place},
        session::check_stdout_is_free,
    },
    report::{
        outcome::{Outcome, counted},
        terminal,
    },
};

pub fn compress(options: GlobalOptions, arguments: &Compress) -> Result<()> {
    let Packed { force, remove, .. } = arguments.packed;
    let is_here = place(&options) == TargetKind::Local;
    if is_here && output(&arguments.packed) == Some(Path::new("-")) && io::stdout().is_terminal() {
        bail!("compressed bytes are not written to a terminal: give -o FILE");
    }
    pack(
        options,
        &arguments.packed,
        verbs::Compress { format: arguments.format, level: arguments.level, force, remove },
    )
}

pub fn decompress(options: GlobalOptions, arguments: &Decompress) -> Result<()> {
    let Packed { force, remove, .. } = arguments.packed;
    pack(options, &arguments.packed, verbs::Decompress { force, remove })
}

/// Returns the value of `--output`. Without this option, returns `-` if an input is standard input, and otherwise
/// `None`.
fn output(arguments: &Packed) -> Option<&Path> {
    let stdin = arguments.inputs.iter().find(|path| *path == Path::new("-"));
    arguments.output.as_deref().or(stdin.map(PathBuf::as_path))
}

fn pack<O: Operation<Answer = PackAnswer>>(
    options: GlobalOptions,
    arguments: &Packed,
    operation: O,
) -> Result<()> {
    output(arguments).map_or(Ok(()), |output| check_stdout_is_free(&options, output))?;
    let sentence_aside = match place(&options) {
        TargetKind::Local => output(arguments).is_some(),
        TargetKind::Nodes | TargetKind::Cluster => output(arguments) == Some(Path::new("-")),
    };
    let request = Request { output: arguments.output.clone(), ..Request::new(operation, &arguments.inputs) };
    operations::run(options, &request)?.tell(|report, done| {
        let PackAnswer { files, sums, .. } = done.answer;
        let sentence = format!(
            "{}, {} became {}, {:.1} % of it",
            counted(files, "file"),
            format_bytes(sums.bytes_in),
            format_bytes(sums.bytes_out),
            100.0 * sums.bytes_out as f64 / (sums.bytes_in as f64).max(1.0)
        );
        Outcome { sentence_aside, ..Outcome::new(O::NAME, report, done, sentence) }
    })
}

/// Computes or checks checksums. Returns whether all checked files have the right checksum.
pub fn checksum(options: GlobalOptions, arguments: &Checksum) -> Result<bool> {
    let operation = verbs::Checksum { algorithm: arguments.algorithm, check: arguments.check.is_some() };
    let inputs = arguments.check.as_ref().map_or(&arguments.inputs[..], std::slice::from_ref);
    let ran = operations::run(options, &Request::new(operation, inputs))?;
    let files = &ran.done.answer.files;
    let all_right = files.iter().all(|file| file.is_right != Some(false));
    if !ran.options.json {
        let lines: String = files.iter().map(line).collect();
        terminal::stdout().write_all(lines.as_bytes())?;
        return ran.check().map(|()| all_right);
    }
    ran.tell(|report, done| {
        let count = counted(done.answer.files.len() as u64, "file");
        Outcome::new("checksum", report, done, count)
    })?;
    Ok(all_right)
}

/// Formats the checksum of a file, or the result of its check, as `sha256sum` does.
fn line(FileChecksum { name, checksum, is_right }: &FileChecksum) -> String {
    match (is_right, checksum) {
        (Some(true), _) => format!("{name}: OK\n"),
        (Some(false), _) => format!("{name}: FAILED\n"),
        (None, Some(checksum)) => format!("{checksum}  {name}\n"),
        (None, None) => String::new(),
    }
}

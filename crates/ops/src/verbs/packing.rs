//! The operations `compress` and `decompress`.

#[cfg(feature = "nodes")]
mod nodes;

use std::path::{Path, PathBuf};

use inshore_kernels::{self as kernels, FileOptions, Format, PackSummary, compress_file, decompress_file};
use inshore_store::Execution;
use inshore_tables::Input;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, ResolvedInputs, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Compresses files: see [`compress_file`]. Each result is written to the output, or else to a new file in the
/// folder of its input, with the extension of the format appended. The result of a file on nodes is a local file
/// with the name of the file on nodes and this extension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Compress {
    /// The compression format. By default, the extension of the output determines the format; without a known
    /// extension, the format is zstd.
    pub format: Option<Format>,
    /// The compression level. By default, the default level of the format.
    pub level: Option<u32>,
    /// Replaces existing files.
    pub force: bool,
    /// Removes each input after its result is written to the drive.
    pub remove: bool,
}

/// Decompresses files: see [`decompress_file`]. Each result is written to the output, or else to a new file in the
/// folder of its input, without the extension of the format. The client fetches a file on nodes in compressed
/// form, which moves fewer bytes. The result is a local file with the name of the file on nodes without the
/// extension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Decompress {
    /// Replaces existing files.
    pub force: bool,
    /// Removes each input after its result is written to the drive.
    pub remove: bool,
}

/// The summary of all files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PackAnswer {
    /// The number of files that succeeded.
    pub files: u64,
    /// The numbers of bytes of the files that succeeded.
    #[serde(flatten)]
    pub sums: PackSummary,
    /// The number of files that failed.
    #[serde(skip_serializing_if = "is_none")]
    pub failed: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

impl PackAnswer {
    fn add(&mut self, done: PackSummary) {
        self.files += 1;
        self.sums.bytes_in += done.bytes_in;
        self.sums.bytes_out += done.bytes_out;
        self.sums.pieces += done.pieces;
    }
}

/// Refuses several inputs if the request names one output file.
fn check_one(output: Option<&Path>, inputs: usize) -> Result<()> {
    match output {
        Some(output) if inputs > 1 => Err(Error::OneOutput { output: output.to_path_buf(), inputs }),
        _ => Ok(()),
    }
}

/// Processes one file after the other, each with all cores. If one of several files fails, the error is reported,
/// and the next files are processed.
fn each_file(
    context: &RequestContext<'_>,
    job: &Execution,
    mut attachments: Attachments<'_>,
    (force, remove): (bool, bool),
    work: impl Fn(&Input, &FileOptions) -> kernels::Result<(PathBuf, PackSummary)>,
) -> Result<Response<PackAnswer>> {
    let sizes = context.inputs.iter().filter_map(|path| Input::new(path).compressed_bytes()).sum();
    job.start_phase(context.operation, "bytes", sizes);
    // If an input is standard input, the default output is standard output.
    let has_stdin = context.inputs.iter().any(|path| path == Path::new("-"));
    let output = context.output.map(Path::to_path_buf).or_else(|| has_stdin.then(|| PathBuf::from("-")));
    check_one(output.as_deref(), context.inputs.len())?;
    let to = FileOptions { output, force, remove };
    let mut answer = PackAnswer::default();
    for path in context.inputs {
        job.check_cancelled()?;
        match work(&Input::new(path), &to).map_err(Error::from) {
            Ok((path, done)) => {
                answer.add(done);
                attachments.written(&path);
            }
            Err(error) if context.inputs.len() == 1 || job.cancel().is_cancelled() => return Err(error),
            Err(error) => {
                answer.failed += 1;
                attachments.fail(&error);
            }
        }
    }
    Ok(Response::local(answer))
}

impl Operation for Compress {
    const NAME: &'static str = "compress";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Never;
    const FORM: NormalForm = NormalForm::Unpacked;
    type Plan = ResolvedInputs;
    type Answer = PackAnswer;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, place: TargetKind) -> Result<()> {
        check_remove(Self::NAME, self.remove, place)?;
        check_one(output, inputs.len())
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<PackAnswer>> {
        match sources {
            ResolvedInputs::Here => {
                each_file(context, job, attachments, (self.force, self.remove), |input, to| {
                    compress_file(job, input, self.format, self.level, to)
                })
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                nodes::compress(self, context, (&on, &wholes), job, attachments)
            }
        }
    }
}

/// Refuses to remove inputs on nodes.
fn check_remove(operation: &'static str, remove: bool, place: TargetKind) -> Result<()> {
    if remove && place.is_on_nodes() {
        let (option, why) = ("remove", "use store rm to remove datasets of nodes");
        return Err(Error::UnsupportedOption { operation, option, place, why });
    }
    Ok(())
}

impl Operation for Decompress {
    const NAME: &'static str = "decompress";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Never;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = PackAnswer;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, place: TargetKind) -> Result<()> {
        check_remove(Self::NAME, self.remove, place)?;
        check_one(output, inputs.len())
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<PackAnswer>> {
        match sources {
            ResolvedInputs::Here => {
                each_file(context, job, attachments, (self.force, self.remove), |input, to| {
                    decompress_file(job, input, to)
                })
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                nodes::decompress(self, context, (&on, &wholes), job, attachments)
            }
        }
    }
}

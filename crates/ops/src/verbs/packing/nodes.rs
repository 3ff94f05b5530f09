//! This module compresses and decompresses files on nodes. The nodes compress files. To decompress a file, the
//! client fetches the compressed bytes.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use inshore_kernels::{Error as KernelError, Format, Pack, PackSummary};
use inshore_nodes::{DistributedFile, GatherReport};
use inshore_store::Execution;
use inshore_tables::NewFile;

use super::{Compress, Decompress, PackAnswer, check_one};
use crate::{
    error::Result,
    on_nodes::compress_on_nodes,
    operation::{Attachments, RequestContext},
    target::{OnNodes, Response},
    verbs::sequential_read::read_sequentially,
};

/// Compresses files on nodes.
pub fn compress(
    options: &Compress,
    context: &RequestContext<'_>,
    (on, wholes): (&OnNodes, &[DistributedFile]),
    job: &Execution,
    attachments: Attachments<'_>,
) -> Result<Response<PackAnswer>> {
    let format = options.format.or_else(|| Format::of_path(context.output?)).unwrap_or(Format::Zstd);
    let pack = Pack::new(format, options.level)?;
    let called = |name: &str| Ok(PathBuf::from(format!("{name}.{}", format.ending())));
    each_whole(context, on, (wholes, options.force), (job, attachments), called, |whole, out| {
        Ok(compress_on_nodes(&on.nodes, job, whole, pack, &on.options, out)?)
    })
}

/// Fetches files from nodes and decompresses them.
pub fn decompress(
    options: &Decompress,
    context: &RequestContext<'_>,
    (on, wholes): (&OnNodes, &[DistributedFile]),
    job: &Execution,
    attachments: Attachments<'_>,
) -> Result<Response<PackAnswer>> {
    let called = |name: &str| match Format::of_path(Path::new(name)) {
        Some(_) => Ok(PathBuf::from(name).with_extension("")),
        None => Err(KernelError::UnknownEnding { path: name.into() }.into()),
    };
    each_whole(context, on, (wholes, options.force), (job, attachments), called, |whole, out| {
        read_sequentially(on, job, whole, 0..whole.bytes(), |bytes| {
            Ok(inshore_kernels::decompress(job, &whole.title, bytes, out)?)
        })
    })
}

/// Processes files on nodes. Each result is written to the output, or else to a local file, whose name `called`
/// derives from the name of the file on nodes.
fn each_whole(
    context: &RequestContext<'_>,
    on: &OnNodes,
    (wholes, force): (&[DistributedFile], bool),
    (job, mut attachments): (&Execution, Attachments<'_>),
    called: impl Fn(&str) -> Result<PathBuf>,
    work: impl Fn(&DistributedFile, &mut dyn Write) -> Result<(PackSummary, GatherReport)>,
) -> Result<Response<PackAnswer>> {
    check_one(context.output, wholes.len())?;
    job.start_phase(context.operation, "bytes", wholes.iter().map(DistributedFile::bytes).sum());
    let (mut answer, mut all) = (PackAnswer::default(), GatherReport::default());
    for whole in wholes {
        let mut write = |out: &mut dyn Write| -> Result<()> {
            let (done, gathered) = work(whole, out)?;
            answer.add(done);
            all.add(gathered);
            Ok(())
        };
        if context.output == Some(Path::new("-")) {
            write(&mut io::stdout().lock())?;
            continue;
        }
        let own = || called(whole.file.as_deref().unwrap_or(&whole.dataset));
        let path = context.output.map_or_else(own, |output| Ok(output.to_path_buf()))?;
        if path.exists() && !force && !NewFile::is_in_place(&path) {
            return Err(KernelError::Exists { path }.into());
        }
        let file = NewFile::create(&path)?;
        let mut writer = file.writer()?;
        write(&mut writer)?;
        drop(writer);
        file.publish()?;
        attachments.written(&path);
    }
    Ok(Response::on_nodes(answer, on, all))
}

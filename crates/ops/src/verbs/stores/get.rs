//! The operation `store get`.

#[cfg(feature = "nodes")]
use std::io::Read;
use std::{
    io::{self, Write},
    ops::Range,
    path::{Path, PathBuf},
};

#[cfg(feature = "nodes")]
use inshore_nodes::DistributedFile;
use inshore_store::{CheckedFile, Error as StoreError, Execution, FileReader, Job};
use inshore_tables::NewFile;
use serde::{Deserialize, Serialize};

#[cfg(feature = "nodes")]
use super::{super::sequential_read::read_sequentially, only_file_on_nodes};
use super::{BUFFER_BYTES, check_is_outside, dataset_file, dataset_of, dataset_range, only};
#[cfg(feature = "nodes")]
use crate::{error::Error, operation::explain_files, target::OnNodes};
use crate::{
    error::Result,
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Writes the bytes of a dataset's file to the output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GetDataset {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; by default all bytes after the offset.
    pub length: Option<u64>,
}

/// The summary of the written bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GetAnswer {
    /// The dataset or its file, as named in the request.
    pub name: String,
    /// The number of written bytes.
    pub bytes: u64,
}

/// The file whose bytes are written to the output.
#[derive(Debug)]
pub enum GetPlan {
    /// A dataset of the local store, and the name of its file.
    Here(String, Option<String>),
    /// A file on nodes.
    #[cfg(feature = "nodes")]
    Nodes(OnNodes, Box<DistributedFile>),
}

impl Plan for GetPlan {
    fn explain(&self) -> Option<String> {
        match self {
            GetPlan::Here(..) => None,
            #[cfg(feature = "nodes")]
            GetPlan::Nodes(on, whole) => explain_files(on, std::slice::from_ref(whole)),
        }
    }
}

impl Operation for GetDataset {
    const NAME: &'static str = "store get";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = GetPlan;
    type Answer = GetAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::NAME, inputs).map(drop)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<GetPlan> {
        context.output()?;
        let path = only(Self::NAME, context.inputs)?;
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            return Ok(GetPlan::Nodes(on.clone(), Box::new(only_file_on_nodes(on, path)?)));
        }
        let named = dataset_of(path)?;
        let (name, file) = named.split_once('/').map_or((named, None), |(name, file)| (name, Some(file)));
        Ok(GetPlan::Here(name.to_string(), file.map(str::to_string)))
    }

    fn run(
        &self,
        plan: GetPlan,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<GetAnswer>> {
        let output = context.output()?;
        let name = dataset_of(only(Self::NAME, context.inputs)?)?.to_string();
        match plan {
            GetPlan::Here(dataset, file) => {
                let job = context.stored(job)?;
                check_is_outside(&job.store(), output)?;
                let dataset = job.store().dataset(&dataset)?;
                let file = dataset_file(&dataset, file.as_deref())?;
                let range = dataset_range((file.name(), file.len()), self.offset, self.length)?;
                let bytes = range.end - range.start;
                job.start_phase("reading", "bytes", bytes);
                write_to(output, |out| copy_out(job, &file, range, out))?;
                Ok(Response::local(GetAnswer { name, bytes }))
            }
            #[cfg(feature = "nodes")]
            GetPlan::Nodes(on, whole) => {
                let range = dataset_range((&whole.title, whole.bytes()), self.offset, self.length)?;
                let bytes = range.end - range.start;
                job.start_phase("reading", "bytes", bytes);
                let gathered = write_to(output, |out| {
                    let ((), gathered) =
                        read_sequentially(&on, job, &whole, range, |input| copy_all(job, input, out))?;
                    Ok(gathered)
                })?;
                Ok(Response::on_nodes(GetAnswer { name, bytes }, &on, gathered))
            }
        }
    }
}

/// Writes bytes to standard output, or to a file that appears complete or not at all.
fn write_to<T>(
    output: &Path,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<T>,
) -> Result<T> {
    if output == Path::new("-") {
        // The byte slices are large, so no further buffer is needed.
        let mut out = io::stdout().lock();
        let failed = |error| StoreError::io("write", "standard output", error);
        let done = write(&mut |piece| Ok(out.write_all(piece).map_err(failed)?))?;
        out.flush().map_err(failed)?;
        return Ok(done);
    }
    let file = NewFile::create(output)?;
    let mut writer = file.writer()?;
    let done = write(&mut |piece| Ok(writer.write_all(piece).map_err(|error| file.error(error))?))?;
    writer.flush().map_err(|error| file.error(error))?;
    drop(writer);
    file.publish()?;
    Ok(done)
}

#[cfg(feature = "nodes")]
fn copy_all(
    job: &Execution,
    input: &mut (dyn Read + Send),
    out: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let _memory = job.budget().reserve(BUFFER_BYTES as u64, "bytes that are written")?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                out(&buffer[..read])?;
                job.progress().add(read as u64);
            }
            Err(source) => return Err(Error::Unreadable { path: "a file on nodes".into(), source }),
        }
    }
}

fn copy_out(
    job: &Job,
    file: &CheckedFile,
    range: Range<u64>,
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let buffer_bytes = BUFFER_BYTES.next_multiple_of(file.block_bytes());
    let buffers = job.store().stream_buffers(job.budget(), buffer_bytes);
    let mut reader = FileReader::deep(job, file, range, buffer_bytes, buffers)?;
    while let Some(piece) = reader.next_piece()? {
        write(piece)?;
        job.progress().add(piece.len() as u64);
    }
    Ok(())
}

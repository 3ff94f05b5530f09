//! The operations `store put`, `store get`, `store ls` and `store rm`.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    ops::Range,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

#[cfg(feature = "nodes")]
use inshore_nodes::{DistributedFile, LoadOptions};
use inshore_store::{
    BYTES, CheckedFile, Dataset, DatasetBuilder, DatasetSummary, Error as StoreError, Execution, FileReader,
    FileSource, FileWriter, Job, Redundancy, Store, file_bytes, format_bytes,
};
use inshore_tables::NewFile;
use serde::{Deserialize, Serialize};

#[cfg(feature = "nodes")]
use super::whole::read_whole;
use crate::{
    error::{Error, Result},
    operation::{Asked, Beside, NormalForm, Operation, StoreUse},
    place::Place,
    target::{Done, Target},
};
#[cfg(feature = "nodes")]
use crate::{
    spreading::{cuts, record_lines, separator},
    target::{OnNodes, wholes},
};

/// The size of read and write requests in bytes; larger requests are not faster.
const BUFFER_BYTES: usize = 1 << 20;
/// The default size of a checksummed block in bytes.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes a file or standard input to the local store, or spreads the file over nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PutDataset {
    /// The name of the dataset.
    pub name: String,
    /// Appends to the dataset, or creates a dataset that can be appended to.
    #[serde(default)]
    pub append: bool,
    /// The number of devices (1 or 2) or nodes that hold each byte.
    #[serde(default)]
    pub copies: Option<u8>,
    /// The numbers of data extents and of Reed-Solomon parity extents in a group.
    #[serde(default)]
    pub parity: Option<(u8, u8)>,
    /// The size of a checksummed block in bytes: 4 KiB to 2 MiB, a power of two.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// The approximate size of a piece on nodes, in bytes.
    #[serde(default)]
    pub piece_bytes: Option<u64>,
    /// The length of a record in bytes: on nodes, pieces then end with records instead of lines.
    #[serde(default)]
    pub record_bytes: Option<u64>,
}

/// The summary of a written dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PutAnswer {
    /// The name of the dataset.
    pub name: String,
    /// The number of written bytes.
    pub bytes: u64,
    /// The size of the local dataset in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// The number of pieces on nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pieces: Option<u64>,
    /// The number of bytes sent over the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_moved: Option<u64>,
    /// The number of nodes that hold the pieces.
    #[serde(skip)]
    pub nodes: usize,
}

/// Returns the only input of an operation.
pub(super) fn only<'a>(operation: &'static str, inputs: &'a [PathBuf]) -> Result<&'a PathBuf> {
    match inputs {
        [input] => Ok(input),
        inputs => {
            let what = format!("inputs: expected one, got {}", inputs.len());
            Err(Error::Request { operation, what })
        }
    }
}

impl Operation for PutDataset {
    const NAME: &'static str = "store put";
    const PLACES: &'static [Place] = &Place::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Common;
    type Plan = ();
    type Answer = PutAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, place: Place) -> Result<()> {
        only(Self::NAME, inputs)?;
        let refused = match place {
            Place::Local if self.piece_bytes.is_some() => {
                Some(("piece_bytes", "datasets of a local store have no pieces"))
            }
            Place::Local if self.record_bytes.is_some() => {
                Some(("record_bytes", "datasets of a local store have no pieces"))
            }
            Place::Local if self.copies.is_some_and(|copies| !(1..=2).contains(&copies)) => {
                Some(("copies", "expected 1 or 2 on the devices of one store; more copies need nodes"))
            }
            Place::Nodes if self.append => {
                Some(("append", "a dataset on nodes is written once, and kept in copies"))
            }
            Place::Nodes if self.parity.is_some() => {
                Some(("parity", "a dataset on nodes is written once, and kept in copies"))
            }
            _ => None,
        };
        match refused {
            Some((option, why)) => {
                Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why })
            }
            None => Ok(()),
        }
    }

    fn plan(&self, _asked: &Asked<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        asked: &Asked<'_>,
        job: &Execution,
        _beside: Beside<'_>,
    ) -> Result<Done<PutAnswer>> {
        let file = only(Self::NAME, asked.inputs)?;
        match asked.target {
            Target::Local => Ok(Done::here(self.put_here(asked.stored(job)?, file)?)),
            #[cfg(feature = "nodes")]
            Target::Nodes(on) => Ok(Done::here(self.put_on_nodes(on, job, file)?)),
        }
    }
}

impl PutDataset {
    fn put_here(&self, job: &Job, file: &Path) -> Result<PutAnswer> {
        loop {
            match self.put_once(job, file) {
                // Another process appended at the same time. A regular file is read again and appended after
                // the other data.
                Err(Error::Store(StoreError::Changed { .. } | StoreError::NameExists { .. }))
                    if self.append =>
                {
                    if !fs::metadata(file).is_ok_and(|found| found.is_file()) {
                        let (name, store) = (self.name.clone(), job.store().path().to_path_buf());
                        return Err(StoreError::Changed { name, store }.into());
                    }
                    job.check_cancelled()?;
                }
                done => return done,
            }
        }
    }

    fn put_once(&self, job: &Job, path: &Path) -> Result<PutAnswer> {
        let mut builder = self.begin(&job.store(), job)?;
        let block_bytes = self.block_bytes.map(|block| block as usize);
        let block_bytes = builder.block_bytes(BYTES).or(block_bytes).unwrap_or(BLOCK_BYTES);
        let buffer_bytes = BUFFER_BYTES.max(block_bytes);
        check_memory(job, builder.guarded_by(), buffer_bytes)?;
        let buffers = job.store().stream_buffers(job.budget(), buffer_bytes);
        let mut writer = builder.append(BYTES, block_bytes, buffer_bytes, buffers)?;
        let before = writer.len();
        if path == Path::new("-") {
            job.start_phase("reading standard input", "bytes", 0);
            // The buffer of `Stdin` would need another copy.
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            let mut stdin = stdin.map(File::from).map_err(|error| unreadable(path, error))?;
            put_stream(job, path, &mut stdin, &mut writer)?;
        } else {
            let failed = |error| StoreError::io("open", path, error);
            let mut file = File::open(path).map_err(failed)?;
            let is_folder = file.metadata().is_ok_and(|found| found.is_dir());
            match file_bytes(&file).map_err(failed)? {
                // A named pipe, a device, or a file whose contents are generated during the read.
                None if !is_folder => {
                    job.start_phase("reading", "bytes", 0);
                    put_stream(job, path, &mut file, &mut writer)?;
                }
                _ => put_file(job, path, &mut writer)?,
            }
        }
        let bytes = writer.len() - before;
        builder.add(writer)?;
        builder.commit(&[])?;
        let (name, total_bytes) = (self.name.clone(), Some(before + bytes));
        Ok(PutAnswer { name, bytes, total_bytes, ..PutAnswer::default() })
    }

    fn begin(&self, store: &Store, job: &Job) -> Result<DatasetBuilder> {
        let name = &self.name;
        let parity = self.parity.map(|(data, parity)| Redundancy::Parity { data, parity });
        let redundancy = parity.or(self.copies.map(Redundancy::Copies));
        if self.append {
            match store.append_to_dataset(job, name) {
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
                Ok(builder) if redundancy.is_none() => {
                    let there = builder.block_bytes(BYTES);
                    match there.zip(self.block_bytes).filter(|&(there, wanted)| there != wanted as usize) {
                        Some((there, _)) => {
                            let there = format_bytes(there as u64);
                            let what = format!("with blocks of {there}, which cannot change");
                            return Err(Error::MadeOtherwise { name: name.clone(), what });
                        }
                        None => return Ok(builder),
                    }
                }
                Ok(_) => {
                    let what = "with another redundancy, which cannot change".to_string();
                    return Err(Error::MadeOtherwise { name: name.clone(), what });
                }
            }
        }
        let mut builder = store.create_dataset(job, name, BYTES)?;
        if let Some(redundancy) = redundancy {
            builder.redundancy(redundancy)?;
        }
        if self.append {
            builder.unsealed();
        }
        Ok(builder)
    }

    #[cfg(feature = "nodes")]
    fn put_on_nodes(&self, on: &OnNodes, job: &Execution, file: &Path) -> Result<PutAnswer> {
        use inshore_tables::Input;

        let (name, is_stdin) = (&self.name[..], file == Path::new("-"));
        let called = if is_stdin { "standard input".to_string() } else { file.display().to_string() };
        let failed = |error| StoreError::io("open", file, error);
        let (input, len): (Box<dyn Read>, Option<u64>) = match is_stdin {
            true => (Box::new(io::stdin().lock()), None),
            false => {
                let file = File::open(file).map_err(failed)?;
                let len = file_bytes(&file).map_err(failed)?;
                (Box::new(file), len)
            }
        };
        let ends = match !is_stdin && self.record_bytes.is_none() {
            true => cuts(&Input::new(file), job.budget())?,
            false => None,
        };
        if ends.is_none() && self.record_bytes.is_none() && Input::new(name).extension() == "parquet" {
            let what = "a Parquet table is divided between row groups, which are found in a file that ends with .parquet: \
                        put a file";
            return Err(crate::files::Error::unfit(&called, what).into());
        }
        let habits = LoadOptions::default();
        let load = LoadOptions {
            copies: self.copies.unwrap_or(1).into(),
            piece_bytes: self.piece_bytes,
            record_bytes: self.record_bytes,
            ends,
            record_lines: record_lines(&[&called, name]),
            separator: separator(&[name, &called]),
            block_bytes: self.block_bytes.map_or(habits.block_bytes, u64::from),
        };
        job.start_phase("loading", "bytes", len.unwrap_or(0));
        let loaded = on.nodes.put(job, name, (&called, len), input, &load)?;
        Ok(PutAnswer {
            name: name.to_string(),
            bytes: loaded.bytes,
            pieces: Some(loaded.pieces),
            bytes_moved: Some(loaded.bytes_moved),
            nodes: on.nodes.addresses().count(),
            ..PutAnswer::default()
        })
    }
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    let path = if path == Path::new("-") { PathBuf::from("standard input") } else { path.to_path_buf() };
    Error::Unreadable { path, source }
}

/// Refuses a budget that is too small to write a dataset with this redundancy.
fn check_memory(job: &Job, redundancy: Redundancy, buffer_bytes: usize) -> Result<()> {
    const MIB: u64 = 1 << 20;
    // The memory of a group of extents with parity, two buffers of the writer, four buffers of the reader,
    // and lists and checksums.
    let group = if redundancy.parity() > 0 { 2 * MIB * redundancy.devices() as u64 } else { 0 };
    let others = group + 5 * MIB;
    // The writer takes a quarter of the budget, if a quarter exceeds two buffers.
    let smallest = (others + 2 * buffer_bytes as u64).max(others * 4 / 3).next_multiple_of(MIB).max(8 * MIB);
    let given = job.budget().memory_bytes();
    if given < smallest {
        let what = match group {
            0 => "store put".to_string(),
            _ => format!("store put with {redundancy}"),
        };
        return Err(StoreError::BudgetTooSmall { what, given, smallest }.into());
    }
    Ok(())
}

/// Reads directly into the buffers of the writer.
fn put_stream(job: &Job, path: &Path, input: &mut impl Read, writer: &mut FileWriter) -> Result<()> {
    loop {
        job.check_cancelled()?;
        match input.read(writer.space()) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                writer.advance(count)?;
                job.progress().add(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(path, error)),
        }
    }
}

fn put_file(job: &Job, path: &Path, writer: &mut FileWriter) -> Result<()> {
    let mut source = FileSource::open(job, path)?;
    job.start_phase("reading", "bytes", source.len());
    while let Some(piece) = source.next_piece()? {
        writer.write(piece)?;
        job.progress().add(piece.len() as u64);
    }
    Ok(())
}

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

/// The file to read.
#[derive(Debug)]
pub enum GetPlan {
    /// A dataset of the local store, and the name of its file.
    Here(String, Option<String>),
    /// A file on nodes.
    #[cfg(feature = "nodes")]
    Nodes(OnNodes, Box<DistributedFile>),
}

/// Returns the name of a dataset or its file, `NAME` or `NAME/FILE`, without the prefix `store:`.
pub(super) fn dataset_of(path: &Path) -> Result<&str> {
    let named = path.to_str().ok_or_else(|| Error::BadName { path: path.to_path_buf() })?;
    Ok(named.strip_prefix("store:").unwrap_or(named))
}

/// Returns the only file of a dataset on nodes, or the named file.
///
/// # Errors
/// [`Error::SeveralFiles`]; the errors of [`wholes`].
#[cfg(feature = "nodes")]
pub(super) fn only_whole(on: &OnNodes, path: &PathBuf) -> Result<DistributedFile> {
    let mut found = wholes(&on.nodes, std::slice::from_ref(path))?;
    match (found.pop(), &found[..]) {
        (Some(whole), []) => Ok(whole),
        (last, _) => {
            let files = found.into_iter().chain(last).map(|whole| whole.title).collect();
            Err(Error::SeveralFiles { name: dataset_of(path)?.to_string(), files })
        }
    }
}

impl Operation for GetDataset {
    const NAME: &'static str = "store get";
    const PLACES: &'static [Place] = &Place::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = GetPlan;
    type Answer = GetAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: Place) -> Result<()> {
        only(Self::NAME, inputs).map(drop)
    }

    fn plan(&self, asked: &Asked<'_>) -> Result<GetPlan> {
        asked.output()?;
        let path = only(Self::NAME, asked.inputs)?;
        match asked.target {
            Target::Local => {
                let named = dataset_of(path)?;
                let (name, file) =
                    named.split_once('/').map_or((named, None), |(name, file)| (name, Some(file)));
                Ok(GetPlan::Here(name.to_string(), file.map(str::to_string)))
            }
            #[cfg(feature = "nodes")]
            Target::Nodes(on) => Ok(GetPlan::Nodes(on.clone(), Box::new(only_whole(on, path)?))),
        }
    }

    fn run(
        &self,
        plan: GetPlan,
        asked: &Asked<'_>,
        job: &Execution,
        _beside: Beside<'_>,
    ) -> Result<Done<GetAnswer>> {
        let output = asked.output()?;
        let name = dataset_of(only(Self::NAME, asked.inputs)?)?.to_string();
        match plan {
            GetPlan::Here(dataset, file) => {
                let job = asked.stored(job)?;
                check_is_outside(&job.store(), output)?;
                let dataset = job.store().dataset(&dataset)?;
                let file = dataset_file(&dataset, file.as_deref())?;
                let range = dataset_range((file.name(), file.len()), self.offset, self.length)?;
                let bytes = range.end - range.start;
                job.start_phase("reading", "bytes", bytes);
                write_to(output, |out| copy_out(job, &file, range, out))?;
                Ok(Done::here(GetAnswer { name, bytes }))
            }
            #[cfg(feature = "nodes")]
            GetPlan::Nodes(on, whole) => {
                let range = dataset_range((&whole.title, whole.bytes()), self.offset, self.length)?;
                let bytes = range.end - range.start;
                job.start_phase("reading", "bytes", bytes);
                let gathered = write_to(output, |out| {
                    let ((), gathered) =
                        read_whole(&on, job, &whole, range, |input| copy_all(job, input, out))?;
                    Ok(gathered)
                })?;
                Ok(Done::on_nodes(GetAnswer { name, bytes }, &on, gathered))
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
        // Pieces are large, so that no further buffer is needed.
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

/// Returns the named file of a dataset, or its only file.
///
/// # Errors
/// [`Error::SeveralFiles`], [`Error::NoFile`].
pub fn dataset_file(dataset: &Dataset, name: Option<&str>) -> Result<CheckedFile> {
    let files = || dataset.file_names().map(str::to_string).collect::<Vec<_>>();
    let found = match name {
        Some(name) => name.to_string(),
        None => match &files()[..] {
            [name] => name.clone(),
            files => {
                return Err(Error::SeveralFiles { name: dataset.name().to_string(), files: files.to_vec() });
            }
        },
    };
    let missing = || Error::NoFile { name: dataset.name().to_string(), file: found.clone(), files: files() };
    dataset.file(&found).ok_or_else(missing)
}

/// Returns a range within a file of this length in bytes.
///
/// # Errors
/// [`Error::BeyondEnd`].
pub fn dataset_range((file, bytes): (&str, u64), offset: u64, length: Option<u64>) -> Result<Range<u64>> {
    if offset > bytes {
        return Err(Error::BeyondEnd { file: file.to_string(), offset, bytes });
    }
    Ok(offset..length.map_or(bytes, |length| offset.saturating_add(length).min(bytes)))
}

/// Refuses an output that would overwrite a file of the store.
///
/// # Errors
/// [`Error::InStore`].
pub fn check_is_outside(store: &Store, output: &Path) -> Result<()> {
    let path = output.canonicalize().ok().or_else(|| {
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(output.file_name()?))
    });
    let Some(path) = path.filter(|_| output != Path::new("-")) else { return Ok(()) };
    for device in store.device_paths()?.into_values() {
        if path != device && path.starts_with(&device) {
            return Err(Error::InStore { output: output.to_path_buf(), device });
        }
    }
    Ok(())
}

/// Lists the datasets of the local store, or the files of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListDatasets {}

/// The listed datasets.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListAnswer {
    /// Local datasets, or files on nodes.
    pub datasets: Vec<Listed>,
    /// Problems of some datasets, and errors of nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A local dataset, or a file on nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Listed {
    /// The name of the dataset or file.
    pub name: String,
    /// The kind of data.
    pub kind: String,
    /// The size of all its files in bytes.
    pub bytes: u64,
    /// Properties of a local dataset.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub here: Option<ListedHere>,
    /// Properties of a file on nodes.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub spread: Option<ListedSpread>,
    /// The name of the dataset of a file.
    #[serde(skip)]
    pub dataset: String,
}

/// The properties of a local dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListedHere {
    /// The number of bytes on the devices.
    pub stored_bytes: u64,
    /// The number of files.
    pub files: usize,
    /// True if the dataset cannot be appended to.
    pub sealed: bool,
    /// The redundancy.
    pub redundancy: String,
}

/// The properties of a file on nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListedSpread {
    /// The number of pieces.
    pub pieces: usize,
    /// The number of nodes that hold each piece.
    pub copies: usize,
    /// The nodes that hold pieces.
    pub nodes: Vec<String>,
}

/// Makes an entry of a dataset's summary in the store.
impl From<DatasetSummary> for Listed {
    fn from(summary: DatasetSummary) -> Listed {
        let DatasetSummary { name, kind, bytes, stored_bytes, files, sealed, redundancy, .. } = summary;
        let here = Some(ListedHere { stored_bytes, files, sealed, redundancy: redundancy.to_string() });
        Listed { dataset: name.clone(), name, kind, bytes, here, spread: None }
    }
}

impl Operation for ListDatasets {
    const NAME: &'static str = "store ls";
    const PLACES: &'static [Place] = &Place::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Common;
    type Plan = ();
    type Answer = ListAnswer;

    fn plan(&self, _asked: &Asked<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        asked: &Asked<'_>,
        job: &Execution,
        _beside: Beside<'_>,
    ) -> Result<Done<ListAnswer>> {
        match asked.target {
            Target::Local => {
                let datasets = asked.stored(job)?.store().list()?.into_iter().map(Listed::from).collect();
                Ok(Done::here(ListAnswer { datasets, notes: Vec::new() }))
            }
            #[cfg(feature = "nodes")]
            Target::Nodes(on) => {
                let catalog = on.nodes.catalog()?;
                let wholes = catalog.wholes()?;
                let fault =
                    |whole: &DistributedFile| Some(format!("{}: {}", whole.title, whole.fault.as_ref()?));
                let lost = catalog.lost().iter().map(|(_, why)| why.to_string());
                let notes = wholes.iter().filter_map(fault).chain(lost).collect();
                let listed = |whole: &DistributedFile| Listed {
                    name: whole.title.clone(),
                    kind: whole.kind.clone(),
                    bytes: whole.bytes(),
                    here: None,
                    spread: Some(ListedSpread {
                        pieces: whole.pieces.len(),
                        copies: whole.copies(),
                        nodes: whole.nodes(&on.nodes).into_iter().map(str::to_string).collect(),
                    }),
                    dataset: whole.dataset.clone(),
                };
                Ok(Done::here(ListAnswer { datasets: wholes.iter().map(listed).collect(), notes }))
            }
        }
    }
}

/// Removes the datasets of the inputs. The error of a dataset is reported, and the other datasets are
/// removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoveDatasets {}

/// The removed datasets.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RemoveAnswer {
    /// The names of the datasets.
    pub removed: Vec<String>,
    /// The number of nodes from which each dataset was removed; empty for the local store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<usize>,
}

impl Operation for RemoveDatasets {
    const NAME: &'static str = "store rm";
    const PLACES: &'static [Place] = &Place::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Common;
    type Plan = ();
    type Answer = RemoveAnswer;

    fn plan(&self, _asked: &Asked<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<RemoveAnswer>> {
        let mut answer = RemoveAnswer::default();
        for path in asked.inputs {
            let name = dataset_of(path)?;
            let removed: Result<Option<usize>> = match asked.target {
                Target::Local => asked.stored(job)?.store().remove(name).map(|()| None).map_err(Error::from),
                #[cfg(feature = "nodes")]
                Target::Nodes(on) => on.nodes.remove(name).map(Some).map_err(Error::from),
            };
            match removed {
                Ok(holders) => {
                    answer.removed.push(name.to_string());
                    answer.holders.extend(holders);
                }
                Err(error) => beside.fail(&error),
            }
        }
        Ok(Done::here(answer))
    }
}

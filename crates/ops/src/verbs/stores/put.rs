//! The operation `store put`.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

#[cfg(feature = "nodes")]
use inshore_nodes::LoadOptions;
use inshore_store::{
    BYTES, DatasetBuilder, Error as StoreError, Execution, FileSource, FileWriter, Job, Redundancy, Store,
    file_bytes, format_bytes,
};
use serde::{Deserialize, Serialize};

use super::{BUFFER_BYTES, only};
use crate::{
    error::{Error, Result},
    operation::{Attachments, DatasetOperation, NormalForm, RequestContext},
    target::Response,
    target_kind::TargetKind,
};
#[cfg(feature = "nodes")]
use crate::{
    split_points::{record_lines, row_group_offsets, separator},
    target::OnNodes,
};

/// The default size of a checksummed block in bytes.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes a file or standard input to the local store, or divides the file into shards on nodes.
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
    /// The numbers of data extents and of Reed-Solomon parity extents in a parity group.
    #[serde(default)]
    pub parity: Option<(u8, u8)>,
    /// The size of a checksummed block in bytes: 4 KiB to 2 MiB, a power of two.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// The approximate size of a shard on nodes, in bytes.
    #[serde(default)]
    pub piece_bytes: Option<u64>,
    /// The length of a record in bytes. If this is set, shards on nodes end with records instead of lines.
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
    /// The number of shards on nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pieces: Option<u64>,
    /// The number of bytes sent over the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_moved: Option<u64>,
    /// The number of nodes that store the shards.
    #[serde(skip)]
    pub nodes: usize,
}

impl DatasetOperation for PutDataset {
    const VERB: &'static str = "store put";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = PutAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        only(Self::VERB, inputs)?;
        let refused = match place {
            TargetKind::Local if self.piece_bytes.is_some() => {
                Some(("piece_bytes", "datasets of a local store have no pieces"))
            }
            TargetKind::Local if self.record_bytes.is_some() => {
                Some(("record_bytes", "datasets of a local store have no pieces"))
            }
            TargetKind::Local if self.copies.is_some_and(|copies| !(1..=2).contains(&copies)) => {
                Some(("copies", "expected 1 or 2 on the devices of one store; more copies need nodes"))
            }
            place if place.is_on_nodes() && self.append => {
                Some(("append", "a dataset on nodes is written once, and kept in copies"))
            }
            place if place.is_on_nodes() && self.parity.is_some() => {
                Some(("parity", "a dataset on nodes is written once, and kept in copies"))
            }
            _ => None,
        };
        match refused {
            Some((option, why)) => {
                Err(Error::UnsupportedOption { operation: Self::VERB, option, place, why })
            }
            None => Ok(()),
        }
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<PutAnswer>> {
        let file = only(Self::VERB, context.inputs)?;
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            return Ok(Response::local(self.put_on_nodes(on, job, file)?));
        }
        Ok(Response::local(self.put_here(context.stored(job)?, file)?))
    }
}

impl PutDataset {
    fn put_here(&self, job: &Job, file: &Path) -> Result<PutAnswer> {
        loop {
            match self.put_once(job, file) {
                // Another process has changed the dataset at the same time. A regular file is read again, and its
                // bytes are appended after the data of the other process.
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
            // The buffer of `Stdin` would copy the bytes once more.
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            let mut stdin = stdin.map(File::from).map_err(|error| unreadable(path, error))?;
            put_stream(job, path, &mut stdin, &mut writer)?;
        } else {
            let failed = |error| StoreError::io("open", path, error);
            let mut file = File::open(path).map_err(failed)?;
            let is_folder = file.metadata().is_ok_and(|found| found.is_dir());
            match file_bytes(&file).map_err(failed)? {
                // The path is a named pipe, a device, or a file whose contents are generated during the read.
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
            true => row_group_offsets(&Input::new(file), job.budget())?,
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
            description: None,
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
    // This memory covers a parity group of extents, two buffers of the writer, four buffers of the reader, lists,
    // and checksums.
    let group = if redundancy.parity() > 0 { 2 * MIB * redundancy.devices() as u64 } else { 0 };
    let others = group + 5 * MIB;
    // The writer takes a quarter of the budget, or the size of two buffers if this is more.
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

/// Writes a stream to the store. The bytes are read directly into the writer's buffers.
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

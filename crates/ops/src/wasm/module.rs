//! This module loads and stores the code of a kernel, which may be in a file, in a store, or in a request.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use inshore_kernel::{Error as ReadError, MAP, SPREAD};
use inshore_store::{FileReader, Job, Store, format_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{ENDING, Error, MIB, MODULE_BYTES_MAX, Result};

/// The code of a kernel, with a name.
#[derive(Clone, Debug)]
pub struct Module {
    /// The name of the module, without an ending.
    pub name: String,
    /// The code in WebAssembly's binary format.
    pub bytes: Arc<[u8]>,
    /// True if a module with this name was pushed to the nodes, so that a request need not contain the code.
    pub is_pushed: bool,
}

impl Module {
    /// Returns a module of these bytes.
    ///
    /// # Errors
    /// Returns [`Error::Kernel`] if the module is larger than [`MODULE_BYTES_MAX`].
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Result<Module> {
        let module = Module { name: name.into(), bytes: bytes.into(), is_pushed: false };
        match module.bytes.len() as u64 {
            0..=MODULE_BYTES_MAX => Ok(module),
            bytes => Err(module.bad(&format!(
                "it has {}, more than the limit of {}",
                format_bytes(bytes),
                format_bytes(MODULE_BYTES_MAX)
            ))),
        }
    }

    /// Reads the module that was pushed into the job's store under this name.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`Error::Kernel`] if the dataset is not a module.
    pub fn stored(job: &Job, name: &str) -> Result<Module> {
        let dataset = job.store().dataset(&dataset_of(name))?;
        let is_module = |file: &&str| dataset.kind() != SPREAD || *file != MAP;
        let files: Vec<&str> = dataset.file_names().filter(is_module).collect();
        let none = |what: &str| Error::Kernel { name: name.to_string(), what: what.to_string() };
        let [file] = files[..] else { return Err(none("the dataset of this name has several files")) };
        let file = dataset.file(file).expect("it has this name");
        if file.len() > MODULE_BYTES_MAX {
            return Err(none("the dataset of this name is too large for a kernel"));
        }
        let _memory = job.budget().reserve(file.len() + MIB, "a module")?;
        let mut reader = FileReader::new(job, &file, 0..file.len(), 256 << 10)?;
        let mut bytes = Vec::with_capacity(file.len() as usize);
        while let Some(piece) = reader.next_piece()? {
            bytes.extend_from_slice(piece);
        }
        Ok(Module { is_pushed: true, ..Module::new(name, bytes)? })
    }

    /// Writes the module into the job's store under its name.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::NameExists`] if the store already has a dataset with this name.
    /// - Returns the errors of the store if the dataset cannot be written.
    pub fn put(&self, store: &Store, job: &Job) -> Result<()> {
        let mut builder = store.create_dataset(job, &dataset_of(&self.name), inshore_store::BYTES)?;
        let mut writer = builder.file_with_buffers(inshore_store::BYTES, 4096, 1 << 20, 2)?;
        writer.write(&self.bytes)?;
        builder.add(writer)?;
        Ok(builder.commit(&[])?)
    }

    /// Returns the SHA-256 of the module in hexadecimal.
    pub fn sha256(&self) -> String {
        Sha256::digest(&self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn bad(&self, what: &str) -> Error {
        Error::Kernel { name: self.name.clone(), what: what.to_string() }
    }
}

/// Returns the name of the dataset that holds the module of this name.
pub fn dataset_of(name: &str) -> String {
    format!("{name}{ENDING}")
}

/// The arguments of a request to run a kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Arguments {
    /// The module's name.
    pub(super) name: String,
    /// The SHA-256 of the module.
    pub(super) sha256: String,
    /// The module in base 64; absent if the module was pushed to the node before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) module: Option<String>,
    /// The arguments of the module.
    pub(super) args: String,
}

impl Arguments {
    /// Returns the module of the request: from the request itself, or from the job's store.
    pub(super) fn module(&self, job: Option<&Job>) -> Result<Module> {
        let Arguments { name, sha256, module, .. } = self;
        let bad = |what: &str| Error::Kernel { name: name.clone(), what: what.to_string() };
        let module = match (module, job) {
            (Some(text), _) => {
                let bytes = BASE64_STANDARD
                    .decode(text)
                    .map_err(|_| bad("the request has a module that is not in base 64"))?;
                Module::new(name, bytes)?
            }
            (None, Some(job)) => Module::stored(job, name)?,
            (None, None) => {
                return Err(bad("the request has only a name, and there is no store to find the kernel in"));
            }
        };
        if module.sha256() != *sha256 {
            return Err(bad("another kernel has this name here: push the kernel again, or run its file"));
        }
        Ok(module)
    }
}

pub(super) fn parsed(arguments: &Value) -> Result<Arguments> {
    Arguments::deserialize(arguments).map_err(|error| Error::Read(ReadError::Stream(Box::new(error))))
}

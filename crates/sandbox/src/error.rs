//! What can go wrong when code is run that is not trusted. What such code does by itself (a bad status, being killed at a
//! limit) is no error but part of the response.

use std::{io, path::PathBuf};

use crate::Protection;

/// The result of running something.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of running something. A message says what failed, where, and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program that contains others doesn't do so.
    #[error("{}: not a helper of the sandbox: {reason}", program.display())]
    Helper {
        /// Its path.
        program: PathBuf,
        /// What it did instead.
        reason: String,
    },
    /// A protection that the policy requires can't be had here.
    #[error("refused: the protection '{protection}' is required, but can't be had here: {reason}")]
    Missing {
        /// Which.
        protection: Protection,
        /// What the system said.
        reason: String,
    },
    /// A program or file that the command names.
    #[error("{}: {what}: {source}", path.display())]
    Path {
        /// What was to be done with it.
        what: String,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system, while the command was set up or watched.
    #[error("sandbox: {what}: {source}")]
    System {
        /// What was to be done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Something isn't a module that can be run.
    #[cfg(feature = "wasm")]
    #[error("not a WebAssembly kernel: {reason}")]
    Module {
        /// Why not.
        reason: String,
    },
    /// A module failed.
    #[cfg(feature = "wasm")]
    #[error("a WebAssembly kernel: {what}: {reason}")]
    Kernel {
        /// In doing what.
        what: String,
        /// How.
        reason: String,
    },
    /// A module was ended at a limit.
    #[cfg(feature = "wasm")]
    #[error("a WebAssembly kernel was ended: {0}")]
    Ended(crate::Ended),
    /// The input of the command could not be read.
    #[error("the input of a command: {0}")]
    Input(#[source] io::Error),
    /// Whoever got the output did not want it.
    #[error("the output of a command: {0}")]
    Output(#[source] io::Error),
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system(what: &str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { what: what.to_string(), source }
    }
}

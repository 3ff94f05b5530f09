//! This module defines the errors of running untrusted code. If a command exits with a bad status or is killed at
//! a limit, this is not an error: the response reports both.

use std::{io, path::PathBuf};

use crate::Protection;

/// Holds the result of running code in a sandbox.
pub type Result<T> = std::result::Result<T, Error>;

/// Says why code could not be run, or why the sandbox ended it. The message of an error names what failed, where,
/// and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program that was named as a helper does not behave like a helper.
    #[error("{}: this program is not a helper of the sandbox: {reason}", program.display())]
    Helper {
        /// Holds the path of the program.
        program: PathBuf,
        /// Says how the program behaved instead.
        reason: String,
    },
    /// A protection that the policy requires is not available on this machine.
    #[error(
        "command refused: the policy requires the protection '{protection}', which is not available on this machine: {reason}"
    )]
    Missing {
        /// Names the protection.
        protection: Protection,
        /// Holds the reason that the system gave.
        reason: String,
    },
    /// A program or file that the command names can't be used.
    #[error("{}: {what}: {source}", path.display())]
    Path {
        /// Says what the sandbox tried to do with the file.
        what: String,
        /// Holds the path of the file.
        path: PathBuf,
        /// Holds the error of the system.
        source: io::Error,
    },
    /// A system call failed while the command was set up or watched.
    #[error("sandbox: {what}: {source}")]
    System {
        /// Says what the sandbox tried to do.
        what: String,
        /// Holds the error of the system.
        source: io::Error,
    },
    /// The bytes are not a module that can be run.
    #[cfg(feature = "wasm")]
    #[error("the module is not a kernel for Inshore: {reason}")]
    Module {
        /// Says why the module is refused.
        reason: String,
    },
    /// A function of a WebAssembly module failed.
    #[cfg(feature = "wasm")]
    #[error("WebAssembly kernel: {what}: {reason}")]
    Kernel {
        /// Names the function or block that failed.
        what: String,
        /// Says how the call failed.
        reason: String,
    },
    /// A WebAssembly module was killed at a limit, or its run was cancelled.
    #[cfg(feature = "wasm")]
    #[error("the WebAssembly kernel was stopped: {0}")]
    Ended(crate::Termination),
    /// The input of the command could not be read.
    #[error("cannot read the input of a command: {0}")]
    Input(#[source] io::Error),
    /// The caller's function that receives the output returned an error.
    #[error("cannot write the output of a command: {0}")]
    Output(#[source] io::Error),
}

impl Error {
    /// Makes an [`Error::System`] in `map_err`.
    pub(crate) fn system(what: &str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { what: what.to_string(), source }
    }
}

//! This module runs WebAssembly kernels. A kernel is code of a user that processes local files, or files on the
//! nodes that hold them.
//!
//! The main types: a [`Module`] is code with a name. A [`WasmKernel`] is a module with its arguments, and
//! implements the kernel traits of the crate [`kernel`](inshore_kernel).
//!
//! ```text
//!   locally:    sources ─► run ─► instance for each worker ─► parts in order, or merged states ─► output
//!   on nodes:   the same on each node ─► parts or a state over the network ─► ordered or merged by the client
//! ```
//!
//! Each instance of a module runs in a separate process ([`sandbox`](inshore_sandbox)). The process reads files in
//! the page cache itself, and receives the blocks of all other sources. `docs/kernels-wasm.md` lists the exports
//! of a module. A request to a node contains the module itself, or only the name of a module that was pushed to
//! the nodes before. A pushed module is a dataset whose name ends with `.wasm`. In both cases the request contains
//! the SHA-256 of the module, so that all nodes run the same code.
//!
//! Memory: half of the free budget is for instances, the other half for reading. There is one instance for each
//! thread, or fewer if an instance would have less than 64 MiB. Of an instance's memory, 48 MiB are for the process
//! (compiler and runtime use about 20 MiB of it); the module may use the rest.

mod instances;
mod kernel;
mod module;
#[cfg(feature = "nodes")]
mod nodes;

use std::{io, sync::OnceLock};

use inshore_kernel::{Error as ReadError, Event, Next, Source, run};
use inshore_sandbox::{Error as SandboxError, Helper, Policy, Sandbox, WasmLimits, WasmResult, WasmRun};
use inshore_store::{Context, Job};

#[cfg(feature = "nodes")]
pub use self::nodes::{WebAssembly, run_wasm_on_nodes};
use self::{
    instances::{CALL, MODULE_MEMORY_BYTES_MAX, Prepared},
    module::Arguments,
};
pub use self::{
    instances::{WasmSummary, smallest_wasm_memory_bytes},
    module::{Module, dataset_of},
};

/// The name by which requests select the task that runs a WebAssembly kernel.
pub const WASM: &str = "wasm";
/// The names of datasets that hold modules end with this text.
pub const ENDING: &str = ".wasm";
/// The maximum size of a module in bytes. The size is limited because a request may contain the module.
pub const MODULE_BYTES_MAX: u64 = 8 << 20;

const MIB: u64 = 1 << 20;
/// The size of a block in bytes. The system copies smaller blocks more slowly. Larger blocks do not fit into the
/// cache of a core.
const BLOCK_BYTES: usize = 512 << 10;

/// The result type of functions that run a kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// The error type of functions that run a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading a source, the store or a node failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The module or its sandbox failed.
    #[error("kernel {name}: {source}")]
    Sandbox {
        /// The module's name.
        name: String,
        /// The failure of the module.
        source: SandboxError,
    },
    /// The module is invalid, or requires more than its limits.
    #[error("kernel {name}: {what}")]
    Kernel {
        /// The module's name.
        name: String,
        /// The reason why the module cannot run.
        what: String,
    },
    /// The receiver of the result failed.
    #[error("cannot write the result of a kernel: {0}")]
    Write(#[source] io::Error),
}

impl Error {
    /// Returns true if the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Read(error) if error.is_cancelled())
    }
}

impl From<inshore_store::Error> for Error {
    fn from(error: inshore_store::Error) -> Error {
        Error::Read(error.into())
    }
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        inshore_store::Error::from(error).into()
    }
}

/// A function that receives the bytes of a result.
pub type Output<'a> = &'a mut (dyn FnMut(&[u8]) -> io::Result<()> + Send);

/// A kernel that runs a module with these arguments.
pub struct WasmKernel {
    module: Module,
    args: String,
    sandbox: Sandbox,
    block_bytes: usize,
    prepared: OnceLock<Prepared>,
}

impl std::fmt::Debug for WasmKernel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("WasmKernel").field("module", &self.module.name).finish_non_exhaustive()
    }
}

impl WasmKernel {
    /// Returns a kernel that runs a module with these arguments. The current program has to begin with a call of
    /// [`inshore_sandbox::child_main_if_asked`].
    pub fn new(module: Module, args: &str) -> WasmKernel {
        WasmKernel {
            module,
            args: args.to_string(),
            sandbox: Sandbox::new(Helper::own(), Policy::default()),
            block_bytes: BLOCK_BYTES,
            prepared: OnceLock::new(),
        }
    }

    /// Returns the kernel of a request. If the request has only the module's name, the module is in the job's store.
    fn requested(arguments: &Arguments, job: Option<&Job>) -> Result<WasmKernel> {
        Ok(WasmKernel::new(arguments.module(job)?, &arguments.args))
    }

    /// Returns the same kernel, with another program that starts the processes of the instances.
    #[must_use]
    pub fn with_helper(mut self, helper: Helper) -> WasmKernel {
        self.sandbox.helper = helper;
        self
    }

    /// Returns the same kernel with another block size, which does not change the result.
    #[must_use]
    pub fn with_blocks(mut self, bytes: usize) -> WasmKernel {
        self.block_bytes = bytes;
        self
    }

    /// Checks that the module can run, and returns the kind of its result.
    ///
    /// # Errors
    /// Returns [`Error::Sandbox`] if the sandbox cannot be created.
    pub fn check(&self) -> Result<WasmResult> {
        let limits =
            WasmLimits { call: CALL, memory_bytes: MODULE_MEMORY_BYTES_MAX, ..WasmLimits::default() };
        self.sandbox.check_wasm(&self.module.bytes, &limits).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: SandboxError) -> Error {
        match source {
            SandboxError::Ended(inshore_sandbox::Termination::Cancelled) => {
                inshore_store::Error::Cancelled.into()
            }
            SandboxError::Output(error) => Error::Write(error),
            source => Error::Sandbox { name: self.module.name.clone(), source },
        }
    }

    /// Runs the kernel over sources.
    fn read(
        &self,
        job: &Context,
        sources: impl Iterator<Item = Source> + Send,
        output: Output<'_>,
    ) -> Result<u64> {
        let mut bytes = 0;
        run(job, self, sources, |event: Event<'_, WasmKernel>| {
            let Some(part) = event.part else { return Ok(Next::Go) };
            let part = part?;
            if !part.is_empty() {
                bytes += part.len() as u64;
                output(&part).map_err(Error::Write)?;
            }
            Ok(Next::Go)
        })?;
        Ok(bytes)
    }

    /// Calls the final function of the instance that holds the merged state, and passes on the result.
    fn finish(&self, last: WasmRun, output: Output<'_>, summary: &mut WasmSummary) -> Result<()> {
        let mut bytes = 0;
        let finished = last.finish(&mut |part| {
            bytes += part.len() as u64;
            output(part)
        });
        summary.add(&finished.map_err(|source| self.failed(source))?);
        summary.output_bytes = bytes;
        Ok(())
    }
}

/// Runs a kernel over sources, and passes the kernel's result to `output`. The result is the output for each block
/// in order, or the output of the merged states at the end.
///
/// # Errors
/// - Returns [`Error::Sandbox`] or [`Error::Kernel`] if the module fails.
/// - Returns [`Error::Read`] if reading a source fails or the budget is too small.
/// - Returns [`Error::Write`] if the result cannot be written.
pub fn run_wasm(
    job: &Context,
    kernel: &WasmKernel,
    sources: impl Iterator<Item = Source> + Send,
    output: Output<'_>,
) -> Result<WasmSummary> {
    let result = kernel.prepare(job)?.result;
    let output_bytes = kernel.read(job, sources, output)?;
    match result {
        WasmResult::InOrder => Ok(WasmSummary { output_bytes, ..kernel.end()? }),
        WasmResult::State => {
            let (last, mut summary) = kernel.merge(job)?;
            kernel.finish(*last, output, &mut summary)?;
            Ok(summary)
        }
    }
}

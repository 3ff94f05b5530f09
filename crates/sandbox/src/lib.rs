//! This crate runs code in child processes that can be killed: untrusted Linux commands and (feature `wasm`)
//! WebAssembly kernels inside a sandbox, and Inshore's own code under a memory limit.
//!
//! The main types:
//!
//! - [`Command`] is a program, the arguments, and the only files that the program may read and write; [`Response`] is
//!   the result of a run.
//! - [`Folder`] is the working folder of a command. Dropping a `Folder` removes the folder with all that the command
//!   left in the folder.
//! - [`CommandLimits`] say how much of each resource a command may use before the sandbox kills the command.
//! - [`Policy`] says which [`Protections`] to set up, and which of these protections are required before any code
//!   is run.
//! - [`Helper`] is the program that sets up the protections, in a separate process. A program becomes a helper by
//!   calling [`child_main`].
//! - [`ChildProcess`] starts the current program again as a worker process under a memory limit, without further
//!   protections ([`apart_main_if_asked`]).
//! - [`split`] runs the rest of the current program in a forked child under a memory limit. [`LimitedAllocator`]
//!   makes the limit exact for large allocations.
//!
//! ```text
//!   calling process        helper               init (PID 1 of its namespace)     the command
//!   Sandbox::run ─socket─► child_main           reaps orphans, knows the ─fork──► cgroup, rlimits, user,
//!     input ──────pipe──────┼─unshare, fork──►  command's status                  landlock, seccomp, exec
//!     output ◄────pipe──────┼──────────────────────────────────────────────────── stdout, stderr
//!     report ◄───socket────┘ waits: the end, the deadline, or the socket's end
//! ```
//!
//! A helper sets up the protections, not a closure between fork and exec. The calling process (which uses this
//! crate) has threads, and in a forked child of a process with threads no code may take a lock or allocate memory.
//! The libraries that make the landlock rules and the seccomp filter allocate memory. A helper is a new program
//! with one thread, and may allocate. For each command, starting a helper takes about 3 ms, and setting up the
//! protections takes 2 ms more. The helper also kills the command at the deadline if the calling process is
//! blocked by a slow consumer of the output, or has died.
//!
//! With a PID namespace, no process outlives a command. When the namespace's first process ends, the kernel
//! immediately kills every process that a command left behind (for example daemons that forked twice and started a
//! session). If a PID namespace is not allowed, the helper adopts all orphans and kills them until no process is
//! left.
//!
#![cfg(target_os = "linux")]
#![warn(missing_docs)]

mod allocator;
mod cgroup;
mod channel;
mod child;
mod command;
mod error;
mod folder;
mod helper;
mod host;
mod limits;
mod memory;
mod policy;
mod shared;
mod sys;
mod walk;
#[cfg(feature = "wasm")]
mod wasm;
mod worker;
mod worker_end;

pub use allocator::LimitedAllocator;
pub use child::{ChildFailure, ChildLimits, ChildMemory, ChildProcess, apart_main, apart_main_if_asked};
pub use command::{Command, Response};
pub use error::{Error, Result};
pub use folder::{Folder, open_left};
pub use helper::{child_main, child_main_if_asked};
pub use host::{Helper, Sandbox};
pub use limits::{CommandLimits, Termination};
pub use policy::{Policy, Protection, Protections};
#[cfg(feature = "wasm")]
pub use wasm::{
    BlockOutput, BlockPart, CancelCheck, FileBlocks, Output, WasmLimits, WasmResponse, WasmResult, WasmRun,
};
pub use worker::{StopRequests, WorkerFork, WorkerHandle, split};
pub use worker_end::WorkerEnd;

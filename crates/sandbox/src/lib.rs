//! Runs what is not trusted in processes that can be ended: Linux commands and (feature `wasm`) WebAssembly kernels, contained, and our
//! own code over what others ask.
//!
//! The nouns:
//!
//! - [`Command`]: a program, its arguments, and the only files it may read and write; [`Response`] is what came of it.
//! - [`Folder`]: where it works, removed with all that it left there.
//! - [`CommandLimits`]: how much of each resource it gets before it is ended.
//! - [`Policy`]: which [`Protections`] are wanted, and without which nothing is run at all.
//! - [`Helper`]: the program that contains. It is a process of its own; a binary becomes one by [`child_main`].
//! - [`Apart`]: our own program once more, within a limit of memory and not contained otherwise ([`apart_main_if_asked`]).
//! - [`split`]: the rest of our own program in a child process, within such a limit; [`LimitedAllocator`] makes the limit exact.
//!
//! ```text
//!   our process            helper               init (PID 1 of its namespace)     the command
//!   Sandbox::run ─socket─► child_main           reaps orphans, knows the ─fork──► cgroup, rlimits, user,
//!     input ──────pipe──────┼─unshare, fork──►  command's status                  landlock, seccomp, exec
//!     output ◄────pipe──────┼──────────────────────────────────────────────────── stdout, stderr
//!     report ◄───socket────┘ waits: the end, the deadline, or the socket's end
//! ```
//!
//! Why a helper rather than a closure between fork and exec: our process has threads, and in the child of such a process
//! nothing may take a lock, so nothing may allocate. The rules of landlock and the filter of seccomp are made by libraries
//! that do. A helper is executed afresh, has one thread, and may do as it likes. It costs about 3 ms a command, and what it sets up 2 more. It is also
//! what ends everything at the deadline when our process is stuck in a slow consumer, or has died.
//!
//! Why a PID namespace: whatever a command leaves behind (daemons that forked twice and have sessions of their own) dies
//! with the namespace's first process, by the kernel's hand and at once. Where none is allowed the helper becomes the
//! parent of all that is orphaned and kills until nothing is left.
//!
#![cfg(target_os = "linux")]
#![warn(missing_docs)]

mod allocator;
mod apart;
mod cgroup;
mod channel;
mod command;
mod ends;
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

pub use allocator::LimitedAllocator;
pub use apart::{Apart, ApartEnd, ApartLimits, ApartMemory, apart_main, apart_main_if_asked};
pub use command::{Command, Response};
pub use ends::WorkerEnd;
pub use error::{Error, Result};
pub use folder::{Folder, open_left};
pub use helper::{child_main, child_main_if_asked};
pub use host::{Helper, Sandbox};
pub use limits::{CommandLimits, Ended};
pub use policy::{Policy, Protection, Protections};
#[cfg(feature = "wasm")]
pub use wasm::{
    BlockOutput, BlockPart, FileBlocks, Output, Unwanted, WasmLimits, WasmResponse, WasmResult, WasmRun,
};
pub use worker::{Split, Stops, Waiting, split};

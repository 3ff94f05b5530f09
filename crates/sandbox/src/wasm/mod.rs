//! This module runs WebAssembly kernels: modules from clients, which process blocks of data on the machine that
//! stores the data.
//!
//! The main terms: a *module* is the client's code. A [`WasmRun`] is an instance of a module in a child process.
//! It receives blocks of data and returns results.
//!
//! # What a module is
//! `docs/kernels-wasm.md` describes the exports and imports byte by byte. In short: a module exports `memory`,
//! `inshore_abi`, `inshore_alloc`, `inshore_init` and `inshore_block`, and may import `emit`, `log`, `memmem`,
//! `hash64` and `decompress` from the module `inshore`, and nothing else. The bytes that a module emits for a
//! block are the block's part of the result, and parts come in the order of blocks ([`WasmResult::InOrder`]).
//! Alternatively, a module also exports `inshore_state`, `inshore_merge` and `inshore_finish`
//! ([`WasmResult::State`]). Then the module emits nothing for a block, but each instance has a state. The states
//! are merged in any order, and the instance with the merged state emits the result. In both cases the result does
//! not depend on the number of instances.
//!
//! Pointers and lengths are unsigned. A range outside the memory ends the run with an error. SIMD of 128 bits is
//! enabled. Threads, multiple memories, 64-bit memories, and instructions whose results differ between machines
//! are disabled.
//!
//! # How it's contained
//! A module can use only the functions above: it has no files, no clock, no randomness, and no WASI. The module's
//! process is confined like a command, but with far fewer system calls and without any files. An error in the
//! compiler or the runtime therefore gives an attacker little. The separate process also makes it possible to stop
//! a module that loops for ever, by killing the process. The alternative is to interrupt an instance after a
//! number of instructions ("fuel", "epochs"), which slows tight loops to a half or a quarter of the rate.
//!
//! # How a block gets there
//! The calling process passes blocks through a file in memory (`memfd`) with two slots, which both processes map.
//! The calling process writes a block into one slot while the module works on the block in the other slot. The
//! module's process maps the file over a part of the module's own memory (`inshore_alloc` returns the address), so
//! each byte is copied once. The file is sealed against shrinking, and the calling process never reads the file.
//! The module's process therefore cannot harm the calling process through this file. Results are returned over a
//! socket, in messages of up to 64 KiB.
//!
//! Alternatively, the module's process reads the blocks directly ([`FileBlocks`]). The process receives a file
//! that is open for reading together with the call, and reads one block after the other into the module's memory.
//! The bytes then stay in the cache of one core, and the two processes wake each other once for many blocks
//! instead of twice for each block. The module itself cannot read the file. It sees only the blocks that its
//! process reads into its memory. An attacker who controls the process could read all of this one file, which
//! the module may read anyhow. The process stops before a block
//! that it can't read. The calling process, which can report errors, then reads this block or fails.
//!
//! `memmem`, `hash64` and `decompress` are functions of the host, since the same code in a module is slower
//! (`memmem` runs at 21 % of the native rate, a hash function at 95 %). `docs/kernels-wasm.md` lists all costs.

mod blocks;
mod run;
mod unpack;
mod wire;
mod worker;

pub use run::{BlockOutput, BlockPart, CancelCheck, Output, WasmResponse, WasmRun};
pub(crate) use worker::work;

use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The time after which a process that reads blocks directly returns from the call, so that the calling process
/// learns the progress.
const BATCH: Duration = Duration::from_millis(100);

/// Limits the resources of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasmLimits {
    /// Limits the module's memory; at the limit `memory.grow` fails in the module. Default: 64 MiB.
    pub memory_bytes: u64,
    /// Limits the memory that the module's process takes in addition, for the compiler, the compiled code and the
    /// runtime. Default: 256 MiB, enough for a module of 10 MiB.
    pub own_bytes: u64,
    /// Limits the time of each step: compiling, initialising, each block, and finishing. The time that the
    /// consumer of the results takes does not count. A module that takes longer is killed. Default: 10 s.
    pub call: Duration,
    /// Limits the time from the start; at the deadline the module is killed. Default: one hour.
    pub wall: Duration,
    /// Limits the bytes of results; a module that emits more is killed. Default: 1 GiB.
    pub output_bytes: u64,
}

impl Default for WasmLimits {
    fn default() -> WasmLimits {
        WasmLimits {
            memory_bytes: 64 * MIB,
            own_bytes: 256 * MIB,
            call: Duration::from_secs(10),
            wall: Duration::from_secs(3600),
            output_bytes: 1024 * MIB,
        }
    }
}

/// Says which kind of result a module has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WasmResult {
    /// The module emits a part of the result for each block, in the order of blocks.
    InOrder,
    /// The module emits the result at the end, from the merged states of all instances.
    State,
}

/// Describes consecutive blocks of a file that the module's process [reads directly](WasmRun::file_blocks).
///
/// A block contains the lines that begin within its range of bytes. A line that begins exactly at the start of the
/// range belongs to the previous block, except for the first line of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileBlocks {
    /// The offset of the first block in the file. Reading is fastest if this is a multiple of the page size.
    pub start: u64,
    /// The distance in bytes from one block to the next.
    pub stride: u64,
    /// Counts the blocks.
    pub count: u64,
    /// Holds the size of the file in bytes.
    pub file_bytes: u64,
    /// The number that is added to offsets in the file to get the offsets that the module sees, since the file may
    /// be a part of a larger source.
    pub base: u64,
    /// Reading stops after the block at which the module has emitted this many bytes.
    pub enough_bytes: u64,
}

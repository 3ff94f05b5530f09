//! This module runs WebAssembly kernels: modules from clients, which work on blocks near the data.
//!
//! The nouns: a *module* is the client's code; a [`WasmRun`] is an instance of a module in a child process, which
//! receives blocks and returns results.
//!
//! # What a module is
//! `docs/kernels-wasm.md` describes the exports and imports byte by byte. In short: a module exports `memory`,
//! `inshore_abi`, `inshore_alloc`, `inshore_init` and `inshore_block`, and may import `emit`, `log`, `memmem`,
//! `hash64` and `decompress` from the module `inshore`, and nothing else. The bytes that a module emits for a block
//! are the block's part of the result, and parts come in the order of blocks ([`WasmResult::InOrder`]). Or a module
//! also exports `inshore_state`, `inshore_merge` and `inshore_finish` ([`WasmResult::State`]): then blocks emit
//! nothing, but each instance has a state, states are merged in any order, and the result is what the last instance
//! emits. In both cases the result does not depend on the number of instances.
//!
//! Pointers and lengths are unsigned; a range outside the memory ends the run with an error. SIMD of 128 bits is on;
//! threads, multiple memories, 64-bit memories, and instructions whose results differ between machines are off.
//!
//! # How it's contained
//! A module has no authority: no files, no clock, no randomness, no WASI, nothing but the functions above. The
//! module's process is confined as a command is, with a far shorter list of system calls and no files at all, so that
//! an error in the compiler or runtime gains an attacker little. The process is also the means to stop a module that
//! spins. Interrupting an instance at counted instructions ("fuel", "epochs") would slow tight loops to a half or a
//! quarter of the rate, and killing a process costs nothing.
//!
//! # How a block gets there
//! Blocks travel through a file in memory (`memfd`) with two slots, which both processes map: our process writes a
//! block into one slot while the module works on the other. The module's process maps the file over a part of the
//! module's own memory (`inshore_alloc` says where), so each byte is copied once. The file is sealed against
//! shrinking and our process never reads the file, so that nothing that the module's process does to the file can
//! harm ours. Results come back over a socket, framed, gathered to 64 KiB.
//!
//! Or the module's process reads the blocks directly ([`FileBlocks`]): the process gets a file that is open for
//! reading, together with the call, and reads block after block into the module's memory. So the bytes stay in the
//! cache of one core, and the two processes wake each other once for many blocks instead of twice for each. The
//! module sees no more of the file than the blocks; an attacker who took over the process could read all of that one
//! file, which the module may read anyhow. The process leaves blocks that it can't read; our process, which can
//! report errors, then reads the block or fails.
//!
//! `memmem`, `hash64` and `decompress` are functions of the host since compiled modules are slower at them (`memmem`
//! at 21 % of the native rate, a hash at 95 %). `docs/kernels-wasm.md` lists all costs.

mod blocks;
mod run;
mod unpack;
mod wire;
mod worker;

pub use run::{BlockOutput, BlockPart, CancelCheck, Output, WasmResponse, WasmRun};
pub(crate) use worker::work;

use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The time after which a process that reads blocks directly returns, so that our process knows the progress.
const BATCH: Duration = Duration::from_millis(100);

/// Limits the resources of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasmLimits {
    /// Limits the module's memory; at the limit `memory.grow` fails in the module. Default: 64 MiB.
    pub memory_bytes: u64,
    /// Limits the further memory of the module's process, for the compiler, the compiled code and the runtime.
    /// Default: 256 MiB, enough for a module of 10 MiB.
    pub own_bytes: u64,
    /// Limits the time of each step: compiling, initialising, each block, and finishing, without the time for which
    /// the consumer delays results; a module that takes longer is killed. Default: 10 s.
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
/// A block has the lines that begin inside, but not a line that begins exactly at the block's start: that line
/// belongs to the previous block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileBlocks {
    /// The offset of the first block in the file. Multiples of a page are read fastest.
    pub start: u64,
    /// The distance in bytes from one block to the next.
    pub stride: u64,
    /// Counts the blocks.
    pub count: u64,
    /// Holds the size of the file in bytes.
    pub file_bytes: u64,
    /// Is added to offsets in the file to get the offsets that the module sees: the file may be a part of a larger
    /// source.
    pub base: u64,
    /// Reading stops after the block at which the module has emitted this many bytes.
    pub enough_bytes: u64,
}

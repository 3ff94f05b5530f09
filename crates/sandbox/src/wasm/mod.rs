//! WebAssembly kernels: modules from clients, run on blocks near the data.
//!
//! The nouns: a *module* is the client's code; a [`WasmRun`] is one instance of it, in a process of its own, that is given
//! blocks and hands over results.
//!
//! # What a module is
//! What it exports and imports is told byte by byte in `docs/kernels-wasm.md`. In short: it exports `memory`, `inshore_abi`,
//! `inshore_alloc`, `inshore_init` and `inshore_block`, and may import `emit`, `log`, `memmem`, `hash64` and `decompress` from
//! the module `inshore`, and nothing else. What it emits of a block is the block's part of the result, and parts come in the
//! order of blocks ([`WasmResult::InOrder`]). Or it also exports `inshore_state`, `inshore_merge` and `inshore_finish`
//! ([`WasmResult::State`]): then nothing comes of a block, but each instance has a state, states are merged in any order, and
//! the result is what the last one emits. Either way it can't be seen in the result how many instances there were.
//!
//! Pointers and lengths are unsigned; one that leads out of the memory ends the run with an error. SIMD of 128 bits is on;
//! threads, more than one memory, memories of 64 bits, and instructions whose results differ between machines are off.
//!
//! # How it's contained
//! A module has no authority: no files, no clock, no randomness, no WASI, nothing but the functions above. Its process is
//! contained as a command is, with a far shorter list of system calls and no files at all, so that an error in the compiler
//! or runtime gains little. It's also what ends a module that spins: an instance that is interrupted at counted instructions
//! ("fuel", "epochs") ran its tight loops at a half to a quarter of the rate, and killing a process costs nothing.
//!
//! # How a block gets there
//! A file in memory (`memfd`) with two slots, which both processes map: ours writes a block into one while the module works on
//! the other. The module's process lays the file over a part of the module's own memory (the module says where, by
//! `inshore_alloc`), so each byte is copied once. The file is sealed against becoming shorter and our process never reads of
//! it, so that nothing which the other process does to it can harm ours. Results come back over a socket, framed, gathered
//! to 64 KiB.
//!
//! Or the module's process reads the blocks itself ([`FileBlocks`]): it gets a file that was opened for reading, beside what
//! it's asked, and reads block after block of it to where the module sees them. So the bytes stay in the cache of one core,
//! and the two processes wake each other once for many blocks instead of twice for each. The module sees no more of the file
//! than its blocks; the process, if it was taken over, could read all of that one file, which it's given to read anyhow. What
//! it can't read it leaves, and our process, which can say why, gives it or fails.
//!
//! `memmem`, `hash64` and `decompress` are the host's since compiled modules do these slower (`memmem` at 21 % of the native
//! rate, a hash at 95 %). What it all costs is in `docs/kernels-wasm.md`.

mod blocks;
mod run;
mod unpack;
mod wire;
mod worker;

pub use run::{BlockOutput, BlockPart, Output, Unwanted, WasmResponse, WasmRun};
pub(crate) use worker::work;

use std::time::Duration;

const MIB: u64 = 1 << 20;
/// A process that reads blocks itself stops after so much time, so that it's known to get on, and where.
const BATCH: Duration = Duration::from_millis(100);

/// What a module may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasmLimits {
    /// Its memory; beyond it `memory.grow` fails in the module. Default: 64 MiB.
    pub memory_bytes: u64,
    /// What its process may take beside that, for the compiler, the compiled code and the runtime. Default: 256 MiB, which is
    /// what a module of 10 MiB takes.
    pub own_bytes: u64,
    /// Time that is waited for it: to be compiled, to be initialised, for each block and to finish, without the time for which
    /// results wait for whoever takes them; then it's killed. Default: 10 s.
    pub call: Duration,
    /// Time from the start; then it's killed, whatever it waits for. Default: one hour.
    pub wall: Duration,
    /// Bytes of results; beyond it it's killed. Default: 1 GiB.
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

/// What kind of result a module has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WasmResult {
    /// What it emits of each block, in the order of blocks.
    InOrder,
    /// What it emits at the end, of the merged states of all instances.
    State,
}

/// Blocks of a file, one after the other, which the module's process [reads itself](WasmRun::file_blocks).
///
/// A block has the lines that begin in it, but not one that begins exactly where it does: that one is of the block before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileBlocks {
    /// Where the first one begins. Multiples of a page are read fastest.
    pub start: u64,
    /// Bytes from one to the next.
    pub stride: u64,
    /// How many there are.
    pub count: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Added to places in the file, these are the offsets that the module is told: of a whole that the file is a part of.
    pub base: u64,
    /// It stops after the block with which it has emitted so much.
    pub enough_bytes: u64,
}

//! WebAssembly kernels: modules from clients, run on blocks near the data.
//!
//! The nouns: a *module* is the client's code; a [`WasmRun`] is one instance of it, in a process of its own, that is given
//! blocks and hands over results.
//!
//! # What a module is
//! It exports:
//!
//! | export | |
//! |---|---|
//! | `memory` | its one memory, 32-bit |
//! | `inshore_abi() -> i32` | the version of this table that it was made for: 1 |
//! | `inshore_alloc(len: i32) -> i32` | where the host may put `len` bytes; 0: nowhere. What an earlier call gave isn't used any more |
//! | `inshore_init(ptr: i32, len: i32) -> i32` | the arguments; called once, before all blocks |
//! | `inshore_block(ptr: i32, len: i32, offset: i64) -> i32` | a block, and where in its source it begins |
//! | `inshore_finish() -> i32` | called once, after all blocks |
//!
//! The last three return 0, or a negative number that names an error of the module's own. It may import from the module
//! `inshore`, and nothing else:
//!
//! | import | |
//! |---|---|
//! | `emit(ptr: i32, len: i32)` | these bytes are part of the result |
//! | `memmem(hay: i32, hay_len: i32, needle: i32, needle_len: i32) -> i64` | where the needle is first found, or -1 |
//! | `hash64(ptr: i32, len: i32, seed: i64) -> i64` | XXH64 |
//! | `log(ptr: i32, len: i32)` | a line for [`WasmResponse::log`], of which the last 8 KiB are kept |
//!
//! `inshore_init` may not emit. Pointers and lengths are unsigned; one that leads out of the memory ends the run with an error. SIMD of 128 bits is on;
//! threads, more than one memory, memories of 64 bits, and instructions whose results differ between machines are off.
//!
//! # How it's contained
//! A module has no authority: no files, no clock, no randomness, no WASI, nothing but the functions above. Its process is
//! contained as a command is, with a far shorter list of system calls and no files at all, so that an error in the compiler
//! or runtime gains little. It's also what ends a module that spins: an instance that is interrupted at counted instructions
//! ("fuel", "epochs") ran its tight loops at a half to a quarter of the rate, and killing a process costs nothing.
//!
//! # How a block gets there
//! Two slots in a shared file in memory (`memfd`): our process writes a block into one while the module works on the other.
//! The module's process reads it straight into the module's memory, so each byte is copied twice. That the file is never
//! mapped means that nothing which the other process does to it can crash ours. Results come back over a socket, framed,
//! gathered to 64 KiB.
//!
//! Measured on two shared, busy cores with blocks of 1 MiB: 2.6 GB/s and 9.9 GB for each second of the module's process if the
//! module does nothing, 2.1 and 7.0 if it counts lines with SIMD; half of that with blocks of 64 KiB, for each of which the
//! processes wake each other, or of 4 MiB, which no longer stay in a core's cache.
//!
//! `memmem` and `hash64` are the host's since compiled modules do these at 21 % of the native rate (95 % for a hash), and
//! copying a block in costs 10 to 40 % of the time for the simplest kernels.

mod run;
mod wire;
mod worker;

pub use run::{Output, WasmResponse, WasmRun};
pub(crate) use worker::work;

use std::time::Duration;

const MIB: u64 = 1 << 20;

/// What a module may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasmLimits {
    /// Its memory; beyond it `memory.grow` fails in the module. Its process gets 256 MiB more for the compiler and the
    /// compiled code (a module of 10 MiB takes about that). Default: 64 MiB.
    pub memory_bytes: u64,
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
            call: Duration::from_secs(10),
            wall: Duration::from_secs(3600),
            output_bytes: 1024 * MIB,
        }
    }
}

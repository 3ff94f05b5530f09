//! This crate is the SDK for WebAssembly kernels of Inshore in Rust.
//!
//! A kernel is a type that is made from arguments and receives blocks: whole lines of a file. Blocks may have any
//! size and go to any number of instances. So a result has one of two forms, neither of which depends on how the file
//! is cut:
//!
//! - In the first form ([`kernel!`] with the type alone), the bytes that [`Kernel::block`] writes come out in the
//!   order of the file. Such a kernel handles each line independently.
//! - In the second form ([`kernel!`] with the type and `state`), the kernel adds up blocks: [`State`] saves the
//!   counts of an instance, merges the counts of further instances, in any order, and writes the result at the end.
//!
//! ```no_run
//! use inshore_sdk::{Kernel, Output};
//!
//! /// Gives the lines that begin with a digit.
//! struct Numbered;
//!
//! impl Kernel for Numbered {
//!     fn new(_arguments: &[u8]) -> Result<Self, i32> {
//!         Ok(Numbered)
//!     }
//!
//!     fn block(&mut self, block: &[u8], _offset: u64, out: &mut Output) -> Result<(), i32> {
//!         for line in block.split_inclusive(|byte| *byte == b'\n') {
//!             if line[0].is_ascii_digit() {
//!                 out.write(line);
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! inshore_sdk::kernel!(Numbered);
//! # fn main() {}
//! ```
//!
//! An error is a negative number that the kernel chooses. The error ends the run, and its message names the number.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

extern crate alloc;

use core::fmt;

/// Processes the lines of files, block by block.
pub trait Kernel: Sized {
    /// Makes an instance from the user's arguments.
    ///
    /// # Errors
    /// Returns a negative number, which the error message names.
    fn new(arguments: &[u8]) -> Result<Self, i32>;

    /// Processes a block of whole lines; only the last line of a file may lack its end. `offset` is the block's
    /// offset in the file. A kernel with a [`State`] writes nothing here.
    ///
    /// # Errors
    /// Returns a negative number, which the error message names.
    fn block(&mut self, block: &[u8], offset: u64, out: &mut Output) -> Result<(), i32>;
}

/// Merges the counts of several instances into a single result.
pub trait State: Kernel {
    /// Writes the state of this instance, for another instance. The host calls nothing on this instance afterwards.
    fn save(&mut self, out: &mut Output);

    /// Adds the state that another instance [saved](State::save). The result must not depend on the order of these
    /// calls.
    ///
    /// # Errors
    /// Returns a negative number, which the error message names.
    fn merge(&mut self, saved: &[u8]) -> Result<(), i32>;

    /// Writes the result, once, after all states were merged.
    fn finish(&mut self, out: &mut Output);
}

/// Takes the bytes that a kernel writes.
#[derive(Debug)]
pub struct Output(());

impl Output {
    /// Makes an output for code that calls a kernel; kernels receive an output as an argument.
    #[doc(hidden)]
    pub fn of_host() -> Output {
        Output(())
    }

    /// Writes bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        // SAFETY: the host reads these bytes and keeps no address.
        unsafe { host::emit(bytes.as_ptr(), bytes.len()) }
    }
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}

/// Finds the first `needle` in `hay`, at the speed of native code.
pub fn memmem(hay: &[u8], needle: &[u8]) -> Option<usize> {
    // SAFETY: the host reads both.
    let at = unsafe { host::memmem(hay.as_ptr(), hay.len(), needle.as_ptr(), needle.len()) };
    if at < 0 {
        None
    } else {
        Some(at as usize)
    }
}

/// Returns the XXH64 hash of these bytes, at the speed of native code. Hash short words in the kernel: the call costs
/// more than the hash.
pub fn hash64(bytes: &[u8], seed: u64) -> u64 {
    // SAFETY: the host reads these bytes.
    unsafe { host::hash64(bytes.as_ptr(), bytes.len(), seed) }
}

/// Says why nothing was decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The bytes are neither zstd nor gzip, or are damaged or cut.
    Bad,
    /// The decompressed bytes do not fit the room.
    TooLong,
}

/// Decompresses frames of zstd, or members of gzip, into `room`, and returns the number of decompressed bytes.
///
/// # Errors
/// See [`Refused`].
pub fn decompress(packed: &[u8], room: &mut [u8]) -> Result<usize, Refused> {
    // SAFETY: the host reads the first slice and writes the second, and the slices can't overlap.
    match unsafe { host::decompress(packed.as_ptr(), packed.len(), room.as_mut_ptr(), room.len()) } {
        -2 => Err(Refused::TooLong),
        length if length < 0 => Err(Refused::Bad),
        length => Ok(length as usize),
    }
}

/// Writes a message to the log of the run, of which the last 8 KiB are kept.
pub fn log(text: &str) {
    // SAFETY: the host reads these bytes.
    unsafe { host::log(text.as_ptr(), text.len()) }
}

/// Declares the functions of the host. If a kernel is compiled for another target than WebAssembly, to be tested or
/// measured, the program defines these functions, with `inshore_` before their names.
mod host {
    #[cfg_attr(target_arch = "wasm32", link(wasm_import_module = "inshore"))]
    extern "C" {
        #[cfg_attr(not(target_arch = "wasm32"), link_name = "inshore_emit")]
        pub fn emit(at: *const u8, length: usize);
        #[cfg_attr(not(target_arch = "wasm32"), link_name = "inshore_memmem")]
        pub fn memmem(hay: *const u8, hay_length: usize, needle: *const u8, needle_length: usize) -> i64;
        #[cfg_attr(not(target_arch = "wasm32"), link_name = "inshore_hash64")]
        pub fn hash64(at: *const u8, length: usize, seed: u64) -> u64;
        #[cfg_attr(not(target_arch = "wasm32"), link_name = "inshore_decompress")]
        pub fn decompress(from: *const u8, from_length: usize, to: *mut u8, to_length: usize) -> i64;
        #[cfg_attr(not(target_arch = "wasm32"), link_name = "inshore_log")]
        pub fn log(at: *const u8, length: usize);
    }
}

/// Exports a kernel, once in each module: `kernel!(Type)` if results come in order, `kernel!(Type, state)` if the
/// type has a [`State`]. Compiled for another target than WebAssembly, the macro exports nothing.
#[macro_export]
macro_rules! kernel {
    ($kernel:ty) => {
        /// Exports the functions that the host calls.
        #[cfg(target_arch = "wasm32")]
        mod inshore_exports {
            #[allow(unused_imports)]
            use super::*;

            pub static mut KERNEL: Option<$kernel> = None;

            #[no_mangle]
            extern "C" fn inshore_abi() -> i32 {
                1
            }

            #[no_mangle]
            extern "C" fn inshore_alloc(length: usize) -> *mut u8 {
                $crate::buffer(length)
            }

            #[no_mangle]
            unsafe extern "C" fn inshore_init(at: *const u8, length: usize) -> i32 {
                match <$kernel as $crate::Kernel>::new($crate::bytes(at, length)) {
                    Ok(kernel) => {
                        *core::ptr::addr_of_mut!(KERNEL) = Some(kernel);
                        0
                    }
                    Err(code) => $crate::negative(code),
                }
            }

            pub unsafe fn kernel() -> &'static mut $kernel {
                (*core::ptr::addr_of_mut!(KERNEL)).as_mut().expect("inshore_init comes first")
            }

            #[no_mangle]
            unsafe extern "C" fn inshore_block(at: *const u8, length: usize, offset: u64) -> i32 {
                let block = $crate::bytes(at, length);
                let done = $crate::Kernel::block(kernel(), block, offset, &mut $crate::Output::of_host());
                done.map_or_else($crate::negative, |()| 0)
            }
        }
    };
    ($kernel:ty, state) => {
        $crate::kernel!($kernel);

        /// Exports the functions that the host calls on a kernel with a state.
        #[cfg(target_arch = "wasm32")]
        mod inshore_state_exports {
            use super::inshore_exports::kernel;

            #[no_mangle]
            unsafe extern "C" fn inshore_state() -> i32 {
                $crate::State::save(kernel(), &mut $crate::Output::of_host());
                0
            }

            #[no_mangle]
            unsafe extern "C" fn inshore_merge(at: *const u8, length: usize) -> i32 {
                let merged = $crate::State::merge(kernel(), $crate::bytes(at, length));
                merged.map_or_else($crate::negative, |()| 0)
            }

            #[no_mangle]
            unsafe extern "C" fn inshore_finish() -> i32 {
                $crate::State::finish(kernel(), &mut $crate::Output::of_host());
                0
            }
        }
    };
}

/// Makes an error code negative, whatever code the kernel returned.
#[doc(hidden)]
pub fn negative(code: i32) -> i32 {
    if code < 0 {
        code
    } else {
        -1
    }
}

/// Returns the bytes that the host passes; an empty slice may have the address 0.
///
/// # Safety
/// The bytes exist, and are not written to while the slice is used.
#[doc(hidden)]
pub unsafe fn bytes<'a>(at: *const u8, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller has promised this.
    unsafe { core::slice::from_raw_parts(at, length) }
}

/// Returns a buffer that the host may write to, and frees the previous one.
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub fn buffer(length: usize) -> *mut u8 {
    use alloc::alloc::{alloc, dealloc};
    use core::{alloc::Layout, ptr::addr_of_mut};

    static mut BUFFER: Option<(*mut u8, Layout)> = None;
    let layout = match Layout::from_size_align(length.max(1), 16) {
        Ok(layout) => layout,
        Err(_) => return core::ptr::null_mut(),
    };
    // SAFETY: there is one thread, and the host calls one function at a time.
    unsafe {
        if let Some((at, layout)) = (*addr_of_mut!(BUFFER)).take() {
            dealloc(at, layout);
        }
        let at = alloc(layout);
        if !at.is_null() {
            *addr_of_mut!(BUFFER) = Some((at, layout));
        }
        at
    }
}

//! What a WebAssembly kernel of Inshore is made with.
//!
//! A kernel is a type that is made of arguments and given blocks: whole lines of a file, which may come in blocks of any size and
//! go to any number of instances. So a result has one of two forms, and neither can tell how the file was cut:
//!
//! - What [`Kernel::block`] writes comes out in the order of the file ([`kernel!`] with the type alone). Each line is to be
//!   worked on by itself.
//! - Or blocks are added up in the kernel ([`kernel!`] with the type and `state`): [`State`] hands over what an instance has
//!   counted, adds what others have, in any order, and writes the result at the end.
//!
//! ```no_run
//! use inshore_kernel::{Kernel, Output};
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
//! inshore_kernel::kernel!(Numbered);
//! # fn main() {}
//! ```
//!
//! An error is a negative number of the kernel's choice, which ends the run and is told.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

extern crate alloc;

use core::fmt;

/// A streaming function over the lines of files.
pub trait Kernel: Sized {
    /// Makes an instance of the arguments that the user gave.
    ///
    /// # Errors
    /// A negative number, which the user is told.
    fn new(arguments: &[u8]) -> Result<Self, i32>;

    /// Works on a block: whole lines, of which the last of a file may lack its end. `offset` is where in the file it begins.
    /// A kernel with a [`State`] writes nothing here.
    ///
    /// # Errors
    /// A negative number, which the user is told.
    fn block(&mut self, block: &[u8], offset: u64, out: &mut Output) -> Result<(), i32>;
}

/// A kernel whose blocks add up.
pub trait State: Kernel {
    /// Writes down all that was counted, for another instance. The last that is asked of this one.
    fn save(&mut self, out: &mut Output);

    /// Adds what another instance has [saved](State::save). The result may not depend on the order of these calls.
    ///
    /// # Errors
    /// A negative number, which the user is told.
    fn merge(&mut self, saved: &[u8]) -> Result<(), i32>;

    /// Writes the result, once, after everything was added.
    fn finish(&mut self, out: &mut Output);
}

/// Where a kernel writes.
#[derive(Debug)]
pub struct Output(());

impl Output {
    /// For those who call a kernel: whoever is called has one.
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

/// Where the first `needle` in `hay` begins: at the speed of the host.
pub fn memmem(hay: &[u8], needle: &[u8]) -> Option<usize> {
    // SAFETY: the host reads both.
    let at = unsafe { host::memmem(hay.as_ptr(), hay.len(), needle.as_ptr(), needle.len()) };
    if at < 0 {
        None
    } else {
        Some(at as usize)
    }
}

/// XXH64 of these bytes, at the speed of the host. Hash short words in the kernel: a call costs more than that.
pub fn hash64(bytes: &[u8], seed: u64) -> u64 {
    // SAFETY: the host reads these bytes.
    unsafe { host::hash64(bytes.as_ptr(), bytes.len(), seed) }
}

/// Why nothing was unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is neither zstd nor gzip, or damaged, or cut.
    Bad,
    /// More comes of it than there is room.
    TooLong,
}

/// Unpacks frames of zstd, or members of gzip, into `room`, and gives how many bytes came of it.
///
/// # Errors
/// See [`Refused`].
pub fn decompress(packed: &[u8], room: &mut [u8]) -> Result<usize, Refused> {
    // SAFETY: the host reads the one and writes the other, and they can't overlap.
    match unsafe { host::decompress(packed.as_ptr(), packed.len(), room.as_mut_ptr(), room.len()) } {
        -2 => Err(Refused::TooLong),
        length if length < 0 => Err(Refused::Bad),
        length => Ok(length as usize),
    }
}

/// Tells whoever runs the kernel: the last 8 KiB are kept.
pub fn log(text: &str) {
    // SAFETY: the host reads these bytes.
    unsafe { host::log(text.as_ptr(), text.len()) }
}

/// The functions of the host. Where a kernel is compiled for another machine than WebAssembly, to be tested or measured, the
/// program defines them, with `inshore_` before their names.
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

/// Exports a kernel: `kernel!(Type)` where results come in order, `kernel!(Type, state)` where it has a [`State`]. Once in each
/// module. Compiled for another machine it exports nothing.
#[macro_export]
macro_rules! kernel {
    ($kernel:ty) => {
        /// What the host calls.
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

        /// What the host calls of a kernel with a state.
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

/// An error is told by a negative number, whatever the kernel said.
#[doc(hidden)]
pub fn negative(code: i32) -> i32 {
    if code < 0 {
        code
    } else {
        -1
    }
}

/// The bytes that the host speaks of; none are at address 0.
///
/// # Safety
/// They are there, and nobody writes to them while they are used.
#[doc(hidden)]
pub unsafe fn bytes<'a>(at: *const u8, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: as whoever calls has promised.
    unsafe { core::slice::from_raw_parts(at, length) }
}

/// Where the host may write; what it got before is free again.
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

//! This kernel counts the lines of files.

use core::fmt::Write;

use inshore_sdk::{Kernel, Output, State};

/// Counts line feeds so far.
pub struct Scan(u64);

impl Kernel for Scan {
    fn new(_arguments: &[u8]) -> Result<Self, i32> {
        Ok(Scan(0))
    }

    fn block(&mut self, block: &[u8], _offset: u64, _out: &mut Output) -> Result<(), i32> {
        // The sums are bytes, so that the compiler adds 16 at a time.
        for piece in block.chunks(192) {
            let count: u8 = piece.iter().map(|byte| u8::from(*byte == b'\n')).sum();
            self.0 += u64::from(count);
        }
        Ok(())
    }
}

impl State for Scan {
    fn save(&mut self, out: &mut Output) {
        out.write(&self.0.to_le_bytes());
    }

    fn merge(&mut self, saved: &[u8]) -> Result<(), i32> {
        let saved = <[u8; 8]>::try_from(saved).map_err(|_| -1)?;
        self.0 += u64::from_le_bytes(saved);
        Ok(())
    }

    fn finish(&mut self, out: &mut Output) {
        writeln!(out, "{}", self.0).expect("an output takes everything");
    }
}

inshore_sdk::kernel!(Scan, state);

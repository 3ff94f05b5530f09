//! This kernel returns the lines that contain the argument, in order. A missing argument is an error.

use inshore_sdk::{Kernel, Output, memmem};

/// Holds the text to look for.
pub struct Search(Vec<u8>);

impl Kernel for Search {
    fn new(arguments: &[u8]) -> Result<Self, i32> {
        if arguments.is_empty() {
            return Err(-22);
        }
        Ok(Search(arguments.to_vec()))
    }

    fn block(&mut self, block: &[u8], _offset: u64, out: &mut Output) -> Result<(), i32> {
        let mut rest = block;
        while let Some(at) = memmem(rest, &self.0) {
            let start = rest[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let end =
                rest[at..].iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| at + end + 1);
            out.write(&rest[start..end]);
            if !rest[..end].ends_with(b"\n") {
                // The last line of a file may lack its end.
                out.write(b"\n");
            }
            rest = &rest[end..];
        }
        Ok(())
    }
}

inshore_sdk::kernel!(Search);

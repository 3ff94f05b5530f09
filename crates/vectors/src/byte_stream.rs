//! Adapts a source of vectors to a stream of bytes.

use std::io;

use crate::{Error, Result};

/// The state of a stream of bytes that a source of vectors fills.
#[derive(Default)]
pub(crate) struct ByteStream {
    /// The bytes of some vectors.
    pub pending: Vec<u8>,
    /// The number of bytes of `pending` that the stream has already returned.
    at: usize,
    error: Option<Error>,
}

impl ByteStream {
    /// Creates a stream. `pending` is an empty buffer with the capacity for the bytes of one filling.
    pub fn new(pending: Vec<u8>) -> ByteStream {
        ByteStream { pending, at: 0, error: None }
    }

    /// Returns the next bytes, as [`io::Read::read`] does. If all pending bytes were returned, `fill` appends the bytes
    /// of the next vectors to the empty buffer, or none after the last vector.
    pub fn read(
        &mut self,
        out: &mut [u8],
        fill: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> io::Result<usize> {
        if self.at == self.pending.len() {
            self.pending.clear();
            self.at = 0;
            if let Err(error) = fill(&mut self.pending) {
                let what = error.to_string();
                self.error = Some(error);
                return Err(io::Error::other(what));
            }
        }
        let part = out.len().min(self.pending.len() - self.at);
        out[..part].copy_from_slice(&self.pending[self.at..self.at + part]);
        self.at += part;
        Ok(part)
    }

    /// Returns the error of the source that ended the stream, if there was one.
    pub fn into_error(self) -> Option<Error> {
        self.error
    }
}

//! Reads zstd frames one after the other. The window of each frame must fit the budget.
//!
//! The stream decoder of the `zstd` crate allocates the window that a frame requests, up to a limit that is a power of
//! two. The decoder's error does not name the size of the window. This module therefore reads the header of every frame
//! first (RFC 8878, section 3.1.1.1):
//!
//! ```text
//! magic fd2fb528 | descriptor | window, 0 or 1 byte | dictionary id, 0 to 4 | content size, 0 to 8 | blocks ...
//! magic 184d2a5? | length, 4 bytes | bytes to skip
//! ```

use std::io::{self, Read};

use inshore_store::Budget;
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::SKIPPABLE_MAGIC;
use crate::{
    Error, Result,
    allowance::{Allowance, piece_limit},
};

const MAGIC: u32 = 0xfd2f_b528;
/// The length of the longest frame header.
const HEADER_BYTES_MAX: usize = 18;
const BUFFER_BYTES: usize = 128 << 10;

/// Reads the decompressed bytes of all frames of a stream.
pub(crate) struct ZstdFrames<R> {
    inner: R,
    name: String,
    /// Compressed bytes not yet decoded are `buffer[start..end]`.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    decoder: Decoder<'static>,
    state: State,
    window_limit: u64,
    allowance: Allowance,
}

#[derive(Clone, Copy)]
enum State {
    BetweenFrames,
    InFrame,
    Skipping(u64),
}

impl<R: Read> ZstdFrames<R> {
    /// Creates a decoder, and reads the header of the first frame. If the window of the first frame is too large, this
    /// call returns an error.
    pub fn new(inner: R, name: &str, budget: &Budget) -> Result<Self> {
        let failed = |source| Error::io(name, "set up zstd", source);
        let mut decoder = Decoder::new().map_err(failed)?;
        // The limit of this module, which depends on the budget, replaces the library's limit of 128 MiB.
        decoder
            .set_parameter(DParameter::WindowLogMax(if usize::BITS == 64 { 31 } else { 30 }))
            .map_err(failed)?;
        let mut frames = ZstdFrames {
            inner,
            name: name.to_string(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            decoder,
            state: State::BetweenFrames,
            window_limit: piece_limit(budget),
            allowance: Allowance::new(budget, "a zstd window")?,
        };
        frames.begin_frame()?;
        Ok(frames)
    }

    fn next_bytes(&mut self, out: &mut [u8]) -> Result<usize> {
        while !out.is_empty() {
            match self.state {
                State::BetweenFrames => {
                    if !self.begin_frame()? {
                        return Ok(0);
                    }
                }
                State::Skipping(left) => self.skip(left)?,
                State::InFrame => {
                    let written = self.decode(out)?;
                    if written > 0 {
                        return Ok(written);
                    }
                }
            }
        }
        Ok(0)
    }

    /// Reads the next frame header. Returns false at the end of the stream.
    fn begin_frame(&mut self) -> Result<bool> {
        while self.end - self.start < HEADER_BYTES_MAX && self.fill()? {}
        let head = &self.buffer[self.start..self.end];
        if head.is_empty() {
            return Ok(false);
        }
        match frame_header(head) {
            Some(Header::Skippable { bytes }) => {
                self.start += 8;
                self.state = State::Skipping(bytes);
            }
            Some(Header::Frame { window_bytes }) => {
                if window_bytes > self.window_limit {
                    let (place, limit) = (self.name.clone(), self.window_limit);
                    return Err(Error::TooLarge {
                        place,
                        what: "a zstd window",
                        bytes: window_bytes,
                        limit,
                        enough: None,
                    });
                }
                self.allowance.hold(window_bytes)?;
                self.state = State::InFrame;
            }
            None => {
                return Err(Error::damaged(
                    &self.name,
                    "damaged zstd data: expected the header of a frame, or the end of the data",
                ));
            }
        }
        Ok(true)
    }

    fn skip(&mut self, left: u64) -> Result<()> {
        let here = left.min((self.end - self.start) as u64);
        self.start += here as usize;
        if here == left {
            self.state = State::BetweenFrames;
        } else {
            self.state = State::Skipping(left - here);
            self.fill_in_frame()?;
        }
        Ok(())
    }

    fn decode(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut input = InBuffer::around(&self.buffer[self.start..self.end]);
        let mut output = OutBuffer::around(out);
        let hint = self
            .decoder
            .run(&mut input, &mut output)
            .map_err(|source| Error::damaged(&self.name, format!("damaged zstd data: {source}")))?;
        let (read, written) = (input.pos(), output.pos());
        self.start += read;
        if hint == 0 {
            self.state = State::BetweenFrames;
        } else if written == 0 && self.start == self.end {
            self.fill_in_frame()?;
        }
        Ok(written)
    }

    fn fill_in_frame(&mut self) -> Result<()> {
        if self.fill()? {
            return Ok(());
        }
        Err(Error::damaged(&self.name, "truncated: the zstd data ends inside a frame"))
    }

    /// Adds compressed bytes to the buffer. Returns false at the end of the stream.
    fn fill(&mut self) -> Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        loop {
            match self.inner.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::from_read(&self.name, error)),
            }
        }
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.next_bytes(out).map_err(io::Error::other)
    }
}

#[derive(Debug, PartialEq)]
enum Header {
    Frame { window_bytes: u64 },
    Skippable { bytes: u64 },
}

/// Parses the header at the start of `head`. Returns `None` if the bytes are not the beginning of a frame.
fn frame_header(head: &[u8]) -> Option<Header> {
    let magic = u32::from_le_bytes(*head.first_chunk()?);
    if magic & !15 == SKIPPABLE_MAGIC {
        let bytes = u32::from_le_bytes(*head.get(4..)?.first_chunk()?);
        return Some(Header::Skippable { bytes: bytes.into() });
    }
    if magic != MAGIC {
        return None;
    }
    let descriptor = *head.get(4)?;
    let single_segment = descriptor & 0x20 != 0;
    if !single_segment {
        let window = *head.get(5)?;
        let base = 1u64 << (10 + (window >> 3));
        return Some(Header::Frame { window_bytes: base + base / 8 * u64::from(window & 7) });
    }
    // If there is no window field, the window has the size of the whole content. This size is in the header.
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_bytes = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let field = head.get(5 + dictionary_bytes..)?.get(..size_bytes)?;
    let mut size = [0; 8];
    size[..size_bytes].copy_from_slice(field);
    let bias = if size_bytes == 2 { 256 } else { 0 };
    Some(Header::Frame { window_bytes: u64::from_le_bytes(size).saturating_add(bias) })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Compares the window size in frame headers with the window sizes that the encoder received, and with content
    /// sizes.
    #[test]
    fn frame_headers_give_the_window_that_the_encoder_chose() {
        for log in 10..=24 {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            // If the whole content is written in one call, the frame has no window field.
            encoder.write_all(b"x").unwrap();
            let bytes = encoder.finish().unwrap();
            assert_eq!(frame_header(&bytes), Some(Header::Frame { window_bytes: 1 << log }), "log {log}");
        }
        for size in [0, 1, 255, 256, 257, 65791, 65792, 1 << 18] {
            let bytes = zstd::bulk::compress(&vec![7; size], 1).unwrap();
            assert_eq!(
                frame_header(&bytes),
                Some(Header::Frame { window_bytes: size as u64 }),
                "size {size}"
            );
        }
    }

    #[test]
    fn every_length_of_output_buffer_gives_the_same_bytes() {
        let text: Vec<u8> = (0..200_000u32).flat_map(|n| n.to_string().into_bytes()).collect();
        let (first, second) = text.split_at(70_000);
        let mut packed = zstd::bulk::compress(first, 3).unwrap();
        packed.extend_from_slice(&0x184d_2a53u32.to_le_bytes());
        packed.extend_from_slice(&5u32.to_le_bytes());
        packed.extend_from_slice(b"skip!");
        packed.extend(zstd::bulk::compress(b"", 3).unwrap());
        packed.extend(zstd::stream::encode_all(second, 3).unwrap());
        for length in [1usize, 7, 4096, 1 << 20] {
            let mut frames = ZstdFrames::new(&packed[..], "it", &Budget::new(64 << 20, 1)).unwrap();
            let mut out = Vec::new();
            let mut piece = vec![0; length];
            loop {
                let read = frames.read(&mut piece).unwrap();
                if read == 0 {
                    break;
                }
                out.extend_from_slice(&piece[..read]);
            }
            assert!(out == text, "length {length}");
        }
    }
}

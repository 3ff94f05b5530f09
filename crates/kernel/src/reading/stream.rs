//! Reads streams, and passes complete lines to a function as soon as they arrive.

use std::io::{self, Read};

use inshore_store::Buffer;
use memchr::memrchr;

use super::{
    buffers::ReadBuffers,
    long_line::{line_too_long, without_zeros},
};
use crate::{Error, Result};

/// A read that returns fewer bytes than this shows that the stream is slow. The bytes that are available are then
/// processed without further reads.
const PATIENT_BYTES: usize = 16 << 10;

impl ReadBuffers {
    /// Reads a stream in blocks. Calls `work` with the start offset, the bytes and the end offset of each block, in
    /// order, until `work` returns false. If the stream is slow, complete lines are passed to `work` before the buffer
    /// is full.
    pub fn stream(
        &mut self,
        name: &str,
        stream: &mut dyn Read,
        mut work: impl FnMut(u64, &[u8], u64) -> bool,
    ) -> Result<()> {
        let mut buffer = self.take_block_buffer()?;
        let result = self.stream_through(&mut buffer, name, stream, &mut work);
        self.block_buffer = Some(buffer);
        result
    }

    fn stream_through(
        &mut self,
        buffer: &mut Buffer,
        name: &str,
        stream: &mut dyn Read,
        work: &mut impl FnMut(u64, &[u8], u64) -> bool,
    ) -> Result<()> {
        let (mut filled, mut searched, mut offset, mut ended) = (0, 0, 0, false);
        // `left_out` is the number of zero bytes that were removed from the line in the buffer.
        // `dense` is the number of bytes in the buffer that were already searched for zero bytes.
        let (mut left_out, mut dense) = (0, 0usize);
        // Only blocks of lines may also use the margin of the buffer.
        let room = if self.by_line { buffer.len() } else { self.plan.cached_bytes };
        // The buffer for a line that is longer than the block buffer. It is released when the stream ends.
        let mut grown: Option<Buffer> = None;
        while !ended {
            self.context.check_cancelled()?;
            let mut bytes: &mut [u8] = match &mut grown {
                Some(grown) => grown,
                None => &mut buffer[..room],
            };
            if filled == bytes.len() && self.zeros_end_lines {
                let from = dense.saturating_sub(1);
                dense = from + without_zeros(&mut bytes[from..]);
                left_out += (filled - dense) as u64;
                (filled, searched) = (dense, dense);
            }
            if filled == bytes.len() {
                let limit = self.plan.line_bytes_max;
                if filled as u64 >= limit {
                    return Err(line_too_long(&self.plan, name.to_string(), offset, &bytes[..filled]));
                }
                let more = (2 * filled).min(limit as usize);
                let mut larger = Buffer::zeroed(self.context.budget(), more, "a long line")?;
                larger[..filled].copy_from_slice(&bytes[..filled]);
                bytes = grown.insert(larger);
            }
            while filled < bytes.len() && !ended {
                let read =
                    read_some(stream, &mut bytes[filled..]).map_err(|error| Error::from_read(name, error))?;
                filled += read;
                ended = read == 0;
                if read < PATIENT_BYTES {
                    break;
                }
            }
            let whole = match memrchr(b'\n', &bytes[searched..filled]) {
                _ if ended || !self.by_line => filled,
                Some(end) => searched + end + 1,
                None => {
                    searched = filled;
                    continue;
                }
            };
            let end = offset + whole as u64 + left_out;
            if (whole > 0 || (ended && offset == 0)) && !work(offset, &bytes[..whole], end) {
                return Ok(());
            }
            bytes.copy_within(whole..filled, 0);
            (filled, searched, offset) = (filled - whole, 0, end);
            (left_out, dense) = (0, 0);
        }
        Ok(())
    }
}

fn read_some(stream: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

//! Reads lines that continue after the margin of their block. The margin is the range of bytes that is read after a
//! block.

use inshore_store::{Buffer, Context, Reservation};
use memchr::{memchr, memrchr};

use super::{Plan, random_access::RandomAccessSource};
use crate::{Error, Result};

/// The size in bytes of the buffer for the rest of a line that does not end in the margin. One read covers half of this
/// size.
pub(super) const LONG_LINE_BYTES: usize = 64 << 10;

/// The bytes of a block whose last line continues after the margin, up to the end of this line.
pub(super) struct LongBlock {
    pub bytes: Vec<u8>,
    /// The offset in the source at which the block ends.
    pub end: u64,
    _memory: Reservation,
}

/// Reads blocks whose last line continues after the margin.
pub(super) struct LongLineReader {
    /// True if consecutive NUL bytes in long lines are replaced by a single NUL byte.
    zeros_end_lines: bool,
    buffer: Option<Buffer>,
}

impl LongLineReader {
    pub fn new(zeros_end_lines: bool) -> LongLineReader {
        LongLineReader { zeros_end_lines, buffer: None }
    }

    /// Reads the rest of a block whose last line continues at offset `position`. The block begins at offset `start`,
    /// and `begun` contains the bytes that were already read.
    pub fn read_on(
        &mut self,
        context: &Context,
        plan: &Plan,
        file: &RandomAccessSource,
        start: u64,
        begun: &[u8],
        mut position: u64,
    ) -> Result<LongBlock> {
        let mut reservation = context.budget().reserve(begun.len() as u64, "a long line")?;
        let mut bytes = begun.to_vec();
        // `begun` may contain other lines before the long line, so the limit is larger by the length of `begun`.
        let limit = begun.len() as u64 + plan.line_bytes_max;
        while position < file.len() {
            context.check_cancelled()?;
            if bytes.len() as u64 > limit {
                let line = memrchr(b'\n', &begun[..begun.len().min((file.stride(plan)) as usize)]);
                let offset = start + line.map_or(0, |end| end as u64 + 1);
                return Err(line_too_long(plan, file.name(), offset, &bytes[(offset - start) as usize..]));
            }
            let room = bytes.len().max(LONG_LINE_BYTES) as u64 * 2;
            reservation.resize(room.min(2 * limit))?;
            // If the file has checksum blocks, the read may include part of an additional block at both ends.
            let needed = LONG_LINE_BYTES + 2 * file.margin() as usize;
            let fits = |buffer: &Buffer| buffer.len() >= needed;
            let buffer = match self.buffer.take().filter(fits) {
                Some(buffer) => buffer,
                None => Buffer::zeroed(context.budget(), needed, "a long line")?,
            };
            let range = position..(position + LONG_LINE_BYTES as u64 / 2).min(file.len());
            let (buffer, wanted) = file.begin(context, range.clone(), buffer)?.wait()?;
            let found = memchr(b'\n', &buffer[wanted.clone()]);
            let taken = found.map_or(wanted.len(), |end| end + 1);
            let old = bytes.len();
            bytes.extend_from_slice(&buffer[wanted.start..wanted.start + taken]);
            if self.zeros_end_lines {
                let kept = without_zeros(&mut bytes[old.saturating_sub(1)..]);
                bytes.truncate(old.saturating_sub(1) + kept);
            }
            self.buffer = Some(buffer);
            position += taken as u64;
            if found.is_some() {
                break;
            }
        }
        Ok(LongBlock { bytes, end: position, _memory: reservation })
    }
}

/// Replaces consecutive zero bytes by a single zero byte, and returns the number of remaining bytes.
pub(super) fn without_zeros(bytes: &mut [u8]) -> usize {
    let (mut kept, mut last) = (0, 1);
    for place in 0..bytes.len() {
        let byte = bytes[place];
        if byte != 0 || last != 0 {
            bytes[kept] = byte;
            kept += 1;
        }
        last = byte;
    }
    kept
}

/// Returns the error of a line that exceeds the limit of `plan`. `seen` is the beginning of the line.
pub(super) fn line_too_long(plan: &Plan, name: String, offset: u64, seen: &[u8]) -> Error {
    let (limit, has_nul) = (plan.line_bytes_max, memchr(0, seen).is_some());
    Error::LineTooLong { source_name: name, offset, limit, has_nul }
}

//! Reads blocks into the buffers of a worker, and passes the complete lines of each block to a function.

use std::ops::Range;

use inshore_store::{Buffer, Context, PlainFile};
use memchr::memchr;

use super::{
    MARGIN_BYTES, Plan,
    long_line::LongLineReader,
    memory_maps::WINDOW_BLOCK_BYTES,
    random_access::{RandomAccessSource, ReadInFlight},
};
use crate::Result;

/// The read buffers of one worker.
pub(crate) struct ReadBuffers {
    pub(super) context: Context,
    pub(super) plan: Plan,
    pub(super) by_line: bool,
    /// True if consecutive NUL bytes in long lines are replaced by a single NUL byte.
    pub(super) zeros_end_lines: bool,
    /// The buffer for blocks of cached files and of streams. Both the buffer and the blocks of a file begin at a page
    /// border. If source and target are aligned differently, the copy by the operating system takes a quarter longer.
    pub(super) block_buffer: Option<Buffer>,
    spare: Vec<Buffer>,
    /// The number of buffers that were lost with failed reads. When all buffers are lost, new buffers are allocated.
    lost: usize,
    long_lines: LongLineReader,
}

impl ReadBuffers {
    pub fn new(context: &Context, plan: Plan, by_line: bool, zeros_end_lines: bool) -> Result<ReadBuffers> {
        let block_buffer = Some(block_buffer(context, &plan)?);
        Ok(ReadBuffers {
            context: context.clone(),
            plan,
            by_line,
            zeros_end_lines,
            block_buffer,
            spare: Vec::new(),
            lost: 0,
            long_lines: LongLineReader::new(zeros_end_lines),
        })
    }

    /// Returns true if another direct read may be started while `in_flight` reads are in flight.
    pub fn may_begin(&self, in_flight: usize) -> bool {
        in_flight + self.lost < self.plan.ahead
    }

    /// Starts reading a block of a source that [is slow](RandomAccessSource::is_slow).
    pub fn begin(&mut self, file: &RandomAccessSource, number: u64) -> Result<ReadInFlight> {
        if self.spare.is_empty() {
            self.lost = 0;
            let bytes = (self.plan.ahead + 1) * self.plan.direct_bytes;
            let buffers =
                Buffer::zeroed(self.context.budget(), bytes, "blocks of files that are read ahead")?;
            self.spare = buffers.split(self.plan.direct_bytes);
        }
        let buffer = self.spare.pop().expect("one more than are ever on their way");
        let start = number * file.stride(&self.plan);
        file.begin(&self.context, start..self.end(file, start), buffer)
    }

    /// Returns the end offset of the first read for the block that begins at `start`. If blocks consist of lines, the
    /// read includes the margin after the block.
    fn end(&self, file: &RandomAccessSource, start: u64) -> u64 {
        let margin = if self.by_line { file.margin() } else { 0 };
        (start + file.stride(&self.plan) + margin).min(file.len())
    }

    /// Reads a block. Calls `work` with the start offset of the block, its bytes, and its end offset. Returns `None`
    /// without calling `work` if no line begins in the block.
    pub fn block<R>(
        &mut self,
        file: &RandomAccessSource,
        number: u64,
        in_flight: Option<ReadInFlight>,
        work: impl FnOnce(u64, &[u8], u64) -> R,
    ) -> Result<Option<R>> {
        let start = number * file.stride(&self.plan);
        let end = self.end(file, start);
        let Some(in_flight) = in_flight else {
            let RandomAccessSource::Cached(plain, windows) = file else {
                unreachable!("slow reads are begun early")
            };
            if let Some(windows) = windows {
                let mut work = Some(work);
                let result = windows.with_map(plain, start..end, |bytes| {
                    let cut = self.cut(file, start, bytes);
                    self.pass_on(file, start, bytes, cut, work.take().expect("a block is passed on once"))
                });
                let work = match (result, work) {
                    (Some(result), _) => return result,
                    (None, work) => work.expect("no map was available"),
                };
                // No memory map was available, so the block is copied.
                let bytes = WINDOW_BLOCK_BYTES as usize + MARGIN_BYTES;
                let mut buffer = Buffer::zeroed(self.context.budget(), bytes, "a block of a file")?;
                return self.read_cached(file, plain, start..end, &mut buffer, work);
            }
            let mut buffer = self.take_block_buffer()?;
            let result = self.read_cached(file, plain, start..end, &mut buffer, work);
            self.block_buffer = Some(buffer);
            return result;
        };
        let (buffer, wanted) = in_flight.wait().inspect_err(|_| self.lost += 1)?;
        let cut = self.cut(file, start, &buffer[wanted.clone()]);
        let result = self.pass_on(file, start, &buffer[wanted], cut, work);
        self.spare.push(buffer);
        result
    }

    /// Takes the block buffer out of this object. The caller puts the buffer back after use.
    pub(super) fn take_block_buffer(&mut self) -> Result<Buffer> {
        match self.block_buffer.take() {
            Some(buffer) => Ok(buffer),
            None => block_buffer(&self.context, &self.plan),
        }
    }

    /// Copies a block of a cached file into a buffer and calls `work`.
    fn read_cached<R>(
        &mut self,
        file: &RandomAccessSource,
        plain: &PlainFile,
        range: Range<u64>,
        buffer: &mut [u8],
        work: impl FnOnce(u64, &[u8], u64) -> R,
    ) -> Result<Option<R>> {
        let len = plain.read(range.start, &mut buffer[..(range.end - range.start) as usize])?;
        let cut = self.cut(file, range.start, &buffer[..len]);
        self.pass_on(file, range.start, &buffer[..len], cut, work)
    }

    /// Returns the start and the end of the block's lines within `bytes`. The end is `None` if the last line continues
    /// after `bytes`. The result is `None` if no line begins in the block.
    fn cut(&self, file: &RandomAccessSource, start: u64, bytes: &[u8]) -> Option<(usize, Option<usize>)> {
        let stride = (file.stride(&self.plan) as usize).min(bytes.len());
        if !self.by_line {
            return Some((0, Some(stride)));
        }
        // A block extends to the first line end after its last byte. A line that begins exactly at the start of this
        // block is therefore in the previous block.
        let first = if start == 0 { 0 } else { memchr(b'\n', &bytes[..stride])? + 1 };
        if start + bytes.len() as u64 == file.len() && bytes.len() == stride {
            return (first < stride).then_some((first, Some(stride)));
        }
        let end = match memchr(b'\n', &bytes[stride..]) {
            Some(end) => Some(stride + end + 1),
            None if start + bytes.len() as u64 == file.len() => Some(bytes.len()),
            None => None,
        };
        Some((first, end))
    }

    fn pass_on<R>(
        &mut self,
        file: &RandomAccessSource,
        start: u64,
        bytes: &[u8],
        cut: Option<(usize, Option<usize>)>,
        work: impl FnOnce(u64, &[u8], u64) -> R,
    ) -> Result<Option<R>> {
        let Some((first, end)) = cut else { return Ok(None) };
        let offset = start + first as u64;
        if let Some(end) = end {
            return Ok(Some(work(offset, &bytes[first..end], start + end as u64)));
        }
        let long = self.long_lines.read_on(
            &self.context,
            &self.plan,
            file,
            offset,
            &bytes[first..],
            start + bytes.len() as u64,
        )?;
        Ok(Some(work(offset, &long.bytes, long.end)))
    }
}

fn block_buffer(context: &Context, plan: &Plan) -> Result<Buffer> {
    Ok(Buffer::zeroed(context.budget(), Plan::block_bytes(plan.cached_bytes), "a block of a file")?)
}

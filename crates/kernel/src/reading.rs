//! Reads the blocks of a source and cuts them at line ends.

use std::{
    collections::VecDeque,
    io::{self, Read},
    ops::Range,
    os::fd::AsFd,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use inshore_store::{
    Budget, Buffer, CheckedFile, Context, FileReader, Job, MemoryMap, PendingPiece, PendingRead, PlainFile,
    Reservation,
};
use memchr::{memchr, memrchr};

use crate::{Error, FileBlocks, OpenedSource, Result, kernel::CACHED_BYTES};

/// The size of a direct read past the page cache: one huge page, the size that virtual drives read fastest. Reads are
/// smaller if the budget is small.
const DIRECT_BYTES: usize = 2 << 20;
const DIRECT_BYTES_MIN: usize = 256 << 10;
/// The number of direct reads in flight while a worker processes a block; [`AHEAD_MANY`] if their memory is a small
/// part of the budget.
const AHEAD: usize = 2;
const AHEAD_MANY: usize = 4;
/// The number of bytes read with a block beyond its end, which usually contain the end of the block's last line.
const MARGIN_BYTES: usize = 4096;
/// The size of the buffer for further reads if the line did not end in the margin; one read fills half of the buffer.
const MORE_BYTES: usize = 64 << 10;
const PAGE_BYTES: u64 = 4096;

/// The size of the part of a cached file that is mapped at a time. From 2 MiB on, one page table entry maps a large
/// folio; smaller folios are mapped in large batches, so their cost is small.
const WINDOW_BYTES: u64 = 16 << 20;
/// The block size of a file that is read through windows. The first bytes of each block arrive at memory latency, so
/// blocks are large.
const WINDOW_BLOCK_BYTES: u64 = 1 << 20;
/// The number of windows of a file that stay mapped.
const WINDOWS_KEPT: usize = 2;

/// The mapped windows of a file, with their numbers.
#[derive(Debug)]
pub(crate) struct MemoryMaps {
    open: Mutex<VecDeque<(u64, Arc<MemoryMap>)>>,
    /// The number of blocks that need no window any more.
    done: AtomicU64,
    /// The file's modification time before the first window was mapped.
    written: SystemTime,
}

impl MemoryMaps {
    fn new(file: &PlainFile) -> Result<MemoryMaps> {
        Ok(MemoryMaps { open: Mutex::default(), done: AtomicU64::new(0), written: file.written()? })
    }

    /// Calls `work` with the bytes of `range` in a mapped window. Returns `None` without calling `work` if no window is
    /// available.
    fn look<R>(
        &self,
        file: &PlainFile,
        range: Range<u64>,
        work: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Option<Result<R>> {
        let (window, place) = self.around(file, &range)?;
        // Code that relies on unchanged bytes may panic if the file changes.
        let worked = panic::catch_unwind(AssertUnwindSafe(|| work(&window[place])));
        let checked = file.check(&window).map_err(Error::from);
        if self.done.fetch_add(1, Ordering::Relaxed) + 1 == file.len().div_ceil(WINDOW_BLOCK_BYTES) {
            // The source may stay open for long until its parts are delivered, so the windows are unmapped here.
            self.open.lock().expect("no panic under this lock").clear();
        }
        Some(match (checked, worked) {
            (Err(error), _) => Err(error),
            (Ok(()), Ok(result)) => result,
            (Ok(()), Err(panic)) => match file.written() {
                Ok(written) if written == self.written => panic::resume_unwind(panic),
                _ => {
                    let source = io::Error::other("the file changed while it was read");
                    let (what, path) = ("read".to_string(), file.path().to_path_buf());
                    Err(inshore_store::Error::Io { what, path, source }.into())
                }
            },
        })
    }

    /// Returns the window that contains all of `range`, and the range within the window; `None` if `range` crosses a
    /// window border or the mapping fails.
    fn around(&self, file: &PlainFile, range: &Range<u64>) -> Option<(Arc<MemoryMap>, Range<usize>)> {
        let number = range.start / WINDOW_BYTES;
        let start = number * WINDOW_BYTES;
        let len = (file.len() - start).min(WINDOW_BYTES + MARGIN_BYTES as u64);
        let place = (range.start - start) as usize..(range.end - start) as usize;
        if place.end as u64 > len {
            return None;
        }
        let mut open = self.open.lock().expect("no panic under this lock");
        if let Some((_, window)) = open.iter().find(|(other, _)| *other == number) {
            return Some((window.clone(), place));
        }
        let window = Arc::new(file.window(start, len as usize)?);
        open.push_back((number, window.clone()));
        // Unmapped after the lock is released.
        let _old = (open.len() > WINDOWS_KEPT).then(|| open.pop_front());
        drop(open);
        Some((window, place))
    }
}

/// A source that is read at any position.
#[derive(Debug)]
pub(crate) enum RandomAccessSource {
    /// A file in the page cache; with windows if the kernel needs no copy.
    Cached(PlainFile, Option<MemoryMaps>),
    Direct(PlainFile),
    /// A byte range of a dataset's file. Bytes outside of the range are not read.
    Dataset(Job, CheckedFile, Range<u64>),
}

/// The sizes of the buffers and requests of each worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    cached_bytes: usize,
    direct_bytes: usize,
    ahead: usize,
    line_bytes_max: u64,
    takes_windows: bool,
}

impl Plan {
    /// Divides the budget's free memory among `workers` workers: at most half of the free memory, if half suffices.
    /// Blocks of cached files have `cached_bytes` bytes, and are not copied if the kernel accepts windows.
    pub fn new(budget: &Budget, workers: usize, cached_bytes: usize, takes_windows: bool) -> Plan {
        let each = budget.free_bytes() / workers as u64;
        let direct = (each / 2 / (AHEAD as u64 + 1)).min(DIRECT_BYTES as u64) as usize / DIRECT_BYTES_MIN;
        Plan {
            cached_bytes,
            direct_bytes: direct.max(1) * DIRECT_BYTES_MIN,
            ahead: if each / 8 >= ((AHEAD_MANY + 1) * DIRECT_BYTES) as u64 { AHEAD_MANY } else { AHEAD },
            line_bytes_max: (each / 4).clamp(1 << 16, 1 << 30),
            // If the system maps no window, a block of the same size is copied.
            takes_windows: takes_windows && each >= 4 * WINDOW_BLOCK_BYTES,
        }
    }

    /// Returns the size of a block of a cached file together with its margin, in bytes.
    fn near_bytes(&self) -> usize {
        self.cached_bytes + MARGIN_BYTES
    }

    /// The smallest memory of a worker, in bytes.
    pub const WORKER_BYTES_MIN: u64 =
        (CACHED_BYTES + MARGIN_BYTES + MORE_BYTES + (AHEAD + 1) * DIRECT_BYTES_MIN) as u64;
}

impl RandomAccessSource {
    /// Returns the source if it can be read at any position, otherwise a stream. A dataset whose checksum blocks are
    /// too large for the plan also becomes a stream.
    pub fn of(opened: OpenedSource, plan: &Plan) -> Result<std::result::Result<RandomAccessSource, Stream>> {
        Ok(match opened {
            OpenedSource::File(file) if file.is_cached() => {
                let takes_windows = plan.takes_windows && file.len() >= 2 * WINDOW_BYTES;
                let windows = takes_windows.then(|| MemoryMaps::new(&file)).transpose()?;
                Ok(RandomAccessSource::Cached(file, windows))
            }
            OpenedSource::File(file) => Ok(RandomAccessSource::Direct(file)),
            OpenedSource::Dataset(job, file, range)
                if (1 + touched_beside(&file, &range)) * file.block_bytes() > plan.direct_bytes =>
            {
                let reader = FileReader::new(&job, &file, range, file.block_bytes())?;
                Err(Box::new(Pieces { reader, piece: Vec::new(), place: 0 }))
            }
            OpenedSource::Dataset(job, file, range) => Ok(RandomAccessSource::Dataset(job, file, range)),
            OpenedSource::Stream(stream) => Err(stream),
        })
    }

    pub fn len(&self) -> u64 {
        match self {
            RandomAccessSource::Cached(file, _) | RandomAccessSource::Direct(file) => file.len(),
            RandomAccessSource::Dataset(.., range) => range.end - range.start,
        }
    }

    fn name(&self) -> String {
        match self {
            RandomAccessSource::Cached(file, _) | RandomAccessSource::Direct(file) => {
                file.path().display().to_string()
            }
            RandomAccessSource::Dataset(_, file, _) => file.name().to_string(),
        }
    }

    /// Returns true if a read takes long enough to start it ahead of its use.
    pub fn is_slow(&self) -> bool {
        !matches!(self, RandomAccessSource::Cached(..))
    }

    /// Returns the distance between two blocks in bytes, chosen so that a block and its margin fit into a buffer.
    pub fn stride(&self, plan: &Plan) -> u64 {
        let bytes = match self {
            RandomAccessSource::Cached(_, Some(_)) => WINDOW_BLOCK_BYTES as usize,
            RandomAccessSource::Cached(_, None) => plan.cached_bytes,
            RandomAccessSource::Direct(_) => plan.direct_bytes - MARGIN_BYTES,
            RandomAccessSource::Dataset(_, file, range) => {
                plan.direct_bytes - touched_beside(file, range) * file.block_bytes().max(MARGIN_BYTES)
            }
        };
        bytes as u64
    }

    /// Returns `count` blocks from block `number` on, for a kernel that reads blocks itself; `None` unless the file is
    /// in the page cache.
    pub fn blocks(&self, plan: &Plan, number: u64, count: u64, base: u64) -> Option<FileBlocks<'_>> {
        let (RandomAccessSource::Cached(file, _), stride) = (self, self.stride(plan)) else { return None };
        let (file_bytes, start, file) = (file.len(), number * stride, file.as_fd());
        Some(FileBlocks { file, file_bytes, start, stride, count, base })
    }

    fn margin(&self) -> u64 {
        match self {
            RandomAccessSource::Cached(..) | RandomAccessSource::Direct(_) => MARGIN_BYTES as u64,
            RandomAccessSource::Dataset(_, file, _) => file.block_bytes() as u64,
        }
    }

    fn begin(&self, context: &Context, range: Range<u64>, buffer: Buffer) -> Result<ReadInFlight> {
        Ok(match self {
            RandomAccessSource::Cached(file, _) | RandomAccessSource::Direct(file) => {
                let start = range.start / PAGE_BYTES * PAGE_BYTES;
                let wanted = (range.start - start) as usize..(range.end - start) as usize;
                ReadInFlight::Piece(file.submit_read(context, start, buffer), wanted)
            }
            RandomAccessSource::Dataset(job, file, all) => {
                let range = all.start + range.start..all.start + range.end;
                ReadInFlight::Checked(file.submit_read(job, range, buffer)?)
            }
        })
    }
}

/// Returns the number of checksum blocks that are read beyond a block: one after the block for its last line, and one
/// before the block if the range does not begin at a checksum block.
fn touched_beside(file: &CheckedFile, range: &Range<u64>) -> usize {
    if range.start.is_multiple_of(file.block_bytes() as u64) { 1 } else { 2 }
}

fn near(context: &Context, plan: &Plan) -> Result<Buffer> {
    Ok(Buffer::zeroed(context.budget(), plan.near_bytes(), "a block of a file")?)
}

pub(crate) type Stream = Box<dyn Read + Send>;

/// A dataset's file as a stream.
struct Pieces {
    reader: FileReader,
    piece: Vec<u8>,
    place: usize,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.place == self.piece.len() {
            let Some(piece) = self.reader.next_piece().map_err(io::Error::other)? else { return Ok(0) };
            self.piece.clear();
            self.piece.extend_from_slice(piece);
            self.place = 0;
        }
        let len = out.len().min(self.piece.len() - self.place);
        out[..len].copy_from_slice(&self.piece[self.place..self.place + len]);
        self.place += len;
        Ok(len)
    }
}

/// A read in flight.
pub(crate) enum ReadInFlight {
    Piece(PendingPiece, Range<usize>),
    Checked(PendingRead),
}

impl ReadInFlight {
    fn wait(self) -> Result<(Buffer, Range<usize>)> {
        Ok(match self {
            ReadInFlight::Piece(pending, wanted) => (pending.wait()?.0, wanted),
            ReadInFlight::Checked(pending) => pending.wait()?,
        })
    }
}

/// A block with a line that is longer than the block and its margin.
struct LongBlock {
    bytes: Vec<u8>,
    /// The position in the source at which the block ends.
    end: u64,
    _memory: Reservation,
}

/// Replaces each run of zero bytes by a single zero byte, and returns the number of remaining bytes.
fn without_zeros(bytes: &mut [u8]) -> usize {
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

/// The read buffers of one worker.
pub(crate) struct ReadBuffers {
    context: Context,
    plan: Plan,
    by_line: bool,
    /// In long lines, a single NUL byte represents a run of NUL bytes.
    zeros_end_lines: bool,
    /// The buffer for blocks of cached files, streams, and lines that are longer than a block. The buffer begins at a
    /// page border, as blocks of files do: the kernel's copy takes a quarter longer if source and target are aligned
    /// differently.
    near: Option<Buffer>,
    spare: Vec<Buffer>,
    /// The number of buffers that were lost with failed reads. All memory is released when no buffer is left.
    lost: usize,
    more: Option<Buffer>,
}

impl ReadBuffers {
    pub fn new(context: &Context, plan: Plan, by_line: bool, zeros_end_lines: bool) -> Result<ReadBuffers> {
        let near = Some(near(context, &plan)?);
        Ok(ReadBuffers {
            context: context.clone(),
            plan,
            by_line,
            zeros_end_lines,
            near,
            spare: Vec::new(),
            lost: 0,
            more: None,
        })
    }

    /// Returns true if another direct read may be started beside the block in progress.
    pub fn may_begin(&self, on_their_way: usize) -> bool {
        on_their_way + self.lost < self.plan.ahead
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

    /// Returns the end of the first read for the block that begins at `start`.
    fn end(&self, file: &RandomAccessSource, start: u64) -> u64 {
        let margin = if self.by_line { file.margin() } else { 0 };
        (start + file.stride(&self.plan) + margin).min(file.len())
    }

    /// Calls `work` with the offset of a block, its bytes, and the offset of its end. Returns `None` without calling
    /// `work` if no line begins in the block.
    pub fn block<R>(
        &mut self,
        file: &RandomAccessSource,
        number: u64,
        flying: Option<ReadInFlight>,
        work: impl FnOnce(u64, &[u8], u64) -> R,
    ) -> Result<Option<R>> {
        let start = number * file.stride(&self.plan);
        let end = self.end(file, start);
        let Some(flying) = flying else {
            let RandomAccessSource::Cached(plain, windows) = file else {
                unreachable!("slow reads are begun early")
            };
            if let Some(windows) = windows {
                let mut work = Some(work);
                let looked = windows.look(plain, start..end, |bytes| {
                    let cut = self.cut(file, start, bytes);
                    self.give(file, start, bytes, cut, work.take().expect("it looks once"))
                });
                let work = match (looked, work) {
                    (Some(result), _) => return result,
                    (None, work) => work.expect("it did not look"),
                };
                // The system mapped no window.
                let bytes = WINDOW_BLOCK_BYTES as usize + MARGIN_BYTES;
                let mut buffer = Buffer::zeroed(self.context.budget(), bytes, "a block of a file")?;
                return self.near_block(file, plain, start..end, &mut buffer, work);
            }
            let mut near = self.take_near()?;
            let result = self.near_block(file, plain, start..end, &mut near, work);
            self.near = Some(near);
            return result;
        };
        let (buffer, wanted) = flying.wait().inspect_err(|_| self.lost += 1)?;
        let cut = self.cut(file, start, &buffer[wanted.clone()]);
        let result = self.give(file, start, &buffer[wanted], cut, work);
        self.spare.push(buffer);
        result
    }

    fn take_near(&mut self) -> Result<Buffer> {
        match self.near.take() {
            Some(near) => Ok(near),
            None => near(&self.context, &self.plan),
        }
    }

    /// Reads a block of a cached file into a buffer and calls `work`.
    fn near_block<R>(
        &mut self,
        file: &RandomAccessSource,
        plain: &PlainFile,
        range: Range<u64>,
        buffer: &mut [u8],
        work: impl FnOnce(u64, &[u8], u64) -> R,
    ) -> Result<Option<R>> {
        let len = plain.read(range.start, &mut buffer[..(range.end - range.start) as usize])?;
        let cut = self.cut(file, range.start, &buffer[..len]);
        self.give(file, range.start, &buffer[..len], cut, work)
    }

    /// Returns the range of `bytes` that belongs to the block; the end is `None` if the block's last line goes on after
    /// `bytes`. Returns `None` if no line begins in the block.
    fn cut(&self, file: &RandomAccessSource, start: u64, bytes: &[u8]) -> Option<(usize, Option<usize>)> {
        let stride = (file.stride(&self.plan) as usize).min(bytes.len());
        if !self.by_line {
            return Some((0, Some(stride)));
        }
        // A line that begins exactly at a block's start belongs to the previous block, which is read up to a line end.
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

    fn give<R>(
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
        let long = self.read_on(file, offset, &bytes[first..], start + bytes.len() as u64)?;
        Ok(Some(work(offset, &long.bytes, long.end)))
    }

    /// Reads the rest of a block whose last line goes on at `position`.
    fn read_on(
        &mut self,
        file: &RandomAccessSource,
        start: u64,
        begun: &[u8],
        mut position: u64,
    ) -> Result<LongBlock> {
        let mut reservation = self.context.budget().reserve(begun.len() as u64, "a long line")?;
        let mut bytes = begun.to_vec();
        // The buffer may contain more than the last line, so the limit allows for these bytes.
        let limit = begun.len() as u64 + self.plan.line_bytes_max;
        while position < file.len() {
            self.context.check_cancelled()?;
            if bytes.len() as u64 > limit {
                let line = memrchr(b'\n', &begun[..begun.len().min((file.stride(&self.plan)) as usize)]);
                let offset = start + line.map_or(0, |end| end as u64 + 1);
                return Err(self.too_long(file.name(), offset, &bytes[(offset - start) as usize..]));
            }
            let room = bytes.len().max(MORE_BYTES) as u64 * 2;
            reservation.resize(room.min(2 * limit))?;
            // A read may touch a checksum block at both ends.
            let needed = MORE_BYTES + 2 * file.margin() as usize;
            let fits = |buffer: &Buffer| buffer.len() >= needed;
            let buffer = match self.more.take().filter(fits) {
                Some(buffer) => buffer,
                None => Buffer::zeroed(self.context.budget(), needed, "a long line")?,
            };
            let range = position..(position + MORE_BYTES as u64 / 2).min(file.len());
            let (buffer, wanted) = file.begin(&self.context, range.clone(), buffer)?.wait()?;
            let found = memchr(b'\n', &buffer[wanted.clone()]);
            let taken = found.map_or(wanted.len(), |end| end + 1);
            let old = bytes.len();
            bytes.extend_from_slice(&buffer[wanted.start..wanted.start + taken]);
            if self.zeros_end_lines {
                let kept = without_zeros(&mut bytes[old.saturating_sub(1)..]);
                bytes.truncate(old.saturating_sub(1) + kept);
            }
            self.more = Some(buffer);
            position += taken as u64;
            if found.is_some() {
                break;
            }
        }
        Ok(LongBlock { bytes, end: position, _memory: reservation })
    }

    /// Calls `work` with the offset, the bytes and the end offset of consecutive pieces of a stream, until `work`
    /// returns false. Complete lines from a slow stream are passed on at once, without waiting for a full buffer.
    pub fn stream(
        &mut self,
        name: &str,
        stream: &mut dyn Read,
        mut work: impl FnMut(u64, &[u8], u64) -> bool,
    ) -> Result<()> {
        let mut near = self.take_near()?;
        let result = self.stream_through(&mut near, name, stream, &mut work);
        self.near = Some(near);
        result
    }

    fn stream_through(
        &mut self,
        near: &mut Buffer,
        name: &str,
        stream: &mut dyn Read,
        work: &mut impl FnMut(u64, &[u8], u64) -> bool,
    ) -> Result<()> {
        let (mut filled, mut searched, mut offset, mut ended) = (0, 0, 0, false);
        // The number of zeros that were removed from the line in the buffer, and the number of buffer bytes already
        // searched for zeros.
        let (mut left_out, mut dense) = (0, 0usize);
        // The margin is reserved for the ends of lines.
        let room = if self.by_line { near.len() } else { self.plan.cached_bytes };
        // The buffer for a longer line; kept until the stream ends.
        let mut grown: Option<Buffer> = None;
        while !ended {
            self.context.check_cancelled()?;
            let mut bytes: &mut [u8] = match &mut grown {
                Some(grown) => grown,
                None => &mut near[..room],
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
                    return Err(self.too_long(name.to_string(), offset, &bytes[..filled]));
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

    fn too_long(&self, name: String, offset: u64, seen: &[u8]) -> Error {
        let (limit, has_nul) = (self.plan.line_bytes_max, memchr(0, seen).is_some());
        Error::LineTooLong { source_name: name, offset, limit, has_nul }
    }
}

/// The smallest read of a fast source, in bytes. After a shorter read the available bytes are processed at once.
const PATIENT_BYTES: usize = 16 << 10;

fn read_some(stream: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

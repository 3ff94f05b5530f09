//! This module compresses and decompresses with all cores. The formats are gzip, bzip2, zstd and lz4, in files that
//! standard programs read and write.
//!
//! ```text
//!   read ──► block, block, ... ──► worker: compress ─┐
//!                              ──► worker: compress ─┴──► written in order      each block a member, stream or frame
//! ```
//!
//! All four formats allow a sequence of independent pieces: members of gzip, streams of bzip2, frames of zstd, and
//! blocks of lz4. Blocks of the input are therefore compressed in parallel, and files with several pieces are
//! decompressed in parallel ([`units`]). A file that another program wrote usually has a single piece, which one worker
//! decompresses.
//!
//! The compressed bytes of an input depend neither on the memory nor on the number of threads.
//!
//! The idea to run compression where the data is stored comes from section 3.2.3 of the 2019 thesis (see
//! docs/from-the-papers.md).

mod bunzip2;
mod files;
mod format;
mod formats;
mod packs;
mod streams;
#[cfg(test)]
mod tests;
mod units;

use std::{
    io::{Read, Write},
    sync::Mutex,
};

use inshore_store::{Budget, Buffer, Context};
use serde::Serialize;

pub use self::{
    files::{FileOptions, compress_file, decompress_file},
    format::Format,
    packs::{Pack, Packs},
};
use self::{formats::Packer, units::Units};
use crate::{Error, Result, ordered::in_order};

/// The summary of a compression or decompression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackSummary {
    /// The number of bytes read.
    pub bytes_in: u64,
    /// The number of bytes written.
    pub bytes_out: u64,
    /// The number of pieces that were compressed or decompressed independently.
    pub pieces: u64,
}

/// Returns the smallest memory budget, in bytes, with which `threads` threads can compress in this format and at this
/// level.
pub fn smallest_pack_memory_bytes(format: Format, level: u32, threads: usize) -> u64 {
    piece_memory_bytes(format, level) * (threads as u64 + 1) + (1 << 20)
}

/// Returns the memory, in bytes, that the compression of one block takes. It includes the input, the output, and the
/// compressor's state.
fn piece_memory_bytes(format: Format, level: u32) -> u64 {
    let block = format.block_bytes(level) as u64;
    block + block + block / 64 + format.state_bytes(level)
}

/// Returns the largest number of threads for which the free memory of the budget suffices. One block more than there
/// are threads is in memory at the same time. Each block takes `each` bytes.
fn threads(budget: &Budget, each: u64) -> usize {
    let room = budget.free_bytes() / each;
    (room.saturating_sub(1) as usize).clamp(1, budget.threads())
}

/// Compresses all of `input` into `output`. In errors, the input is called `name`.
///
/// Each piece takes the memory of two blocks and of the state of a compressor. One piece more than there are threads is
/// in memory at the same time. A block has 1 MiB for gzip, 900 kB for bzip2, and 4 MiB for zstd and lz4. From level 9
/// on, a zstd block has 16 MiB, and from level 17 on 32 MiB. If the free memory is less than
/// [`smallest_pack_memory_bytes`] for all threads of the job, fewer threads compress.
///
/// # Errors
/// - Returns [`Error::BadLevel`] if the format does not have the level.
/// - Returns [`Error::Input`] or [`Error::Table`] if the input cannot be read.
/// - Returns [`Error::Write`] if the output cannot be written.
/// - Returns [`Error::Store`] if the job was stopped or the budget is too small for one thread.
pub fn compress(
    job: &Context,
    name: &str,
    mut input: impl Read + Send,
    output: impl Write,
    format: Format,
    level: Option<u32>,
) -> Result<PackSummary> {
    let level = format.checked_level(level)?;
    let each = piece_memory_bytes(format, level);
    job.budget().need(smallest_pack_memory_bytes(format, level, 1), || format!("compressing as {format}"))?;
    let threads = threads(job.budget(), each);
    let _memory = job.budget().reserve(each * (threads as u64 + 1), "blocks that are compressed")?;
    let mut out = CountingWriter { inner: output, bytes: 0 };
    let mut summary = PackSummary::default();
    let mut packer = Packer::new(format);
    out.all(&packer.head())?;
    let mut is_first = true;
    let next = || {
        job.check_cancelled()?;
        let mut block = vec![0; format.block_bytes(level)];
        let filled = fill(&mut input, &mut block, name)?;
        block.truncate(filled);
        // An empty input becomes a single empty block, so that the result is a valid compressed file.
        let is_only = std::mem::replace(&mut is_first, false);
        Ok((filled > 0 || is_only).then_some(block))
    };
    in_order(
        threads,
        next,
        |block: Vec<u8>| {
            let packed = format.pack(&block, level)?;
            Ok((block, packed))
        },
        |(block, packed)| {
            packer.saw(&block);
            summary.pieces += 1;
            summary.bytes_in += block.len() as u64;
            job.progress().add(block.len() as u64);
            out.all(&packed)
        },
    )?;
    out.all(&packer.tail())?;
    summary.bytes_out = out.bytes;
    Ok(summary)
}

/// Decompresses all of `input` into `output`. In errors, the input is called `name`. The first bytes determine the
/// format. Bytes after the end of the compressed data are an error, and so is a truncated input.
///
/// Pieces of up to 16 MiB are decompressed in parallel, as many as fit into half of the budget. One thread decompresses
/// a larger piece while reading the piece, and needs only memory for the window of the format. For bzip2, the budget
/// determines the number of threads and the number of blocks of each thread. A block and its table take 5 MB.
///
/// # Errors
/// - Returns [`Error::Damaged`] if the input has none of the formats, is truncated or is damaged.
/// - Returns [`Error::Input`] or [`Error::Table`] if the input cannot be read.
/// - Returns [`Error::Write`] if the output cannot be written.
/// - Returns [`Error::Store`] if the job was stopped, or if the budget has too little memory for one thread or for the
///   window that the stream needs.
pub fn decompress(
    job: &Context,
    name: &str,
    input: impl Read + Send,
    output: impl Write,
) -> Result<PackSummary> {
    let budget = job.budget();
    let mut out = CountingWriter { inner: output, bytes: 0 };
    let mut units = Units::open(name, input)?;
    let format = units.format();
    if format == Format::Bzip2 {
        return streams::decompress(job, name, units, &mut out);
    }
    // Each piece in memory has a buffer for its decompressed bytes. One piece more than there are threads is in memory.
    let quarter = budget.free_bytes() / 4;
    let threads = (quarter / units.piece_bytes()? as u64).saturating_sub(1) as usize;
    let threads = threads.clamp(1, budget.threads());
    let limit = usize::try_from(quarter / (threads as u64 + 1)).unwrap_or(usize::MAX);
    let limit = limit.clamp(64 << 10, PIECE_BYTES_MAX);
    units.limit(limit);
    let memory = budget.reserve((limit * (threads + 1)) as u64, "pieces that are decompressed")?;
    let used = buffers(budget, threads, limit)?;
    let mut summary = PackSummary::default();
    let mut check = units::ContentChecksum::default();
    let buffers = || used.lock().expect("no panic under this lock");
    // Pieces are decompressed in parallel up to the first piece that is too large.
    in_order(
        threads,
        || {
            job.check_cancelled()?;
            units.next_unit()
        },
        |unit| {
            let memory = buffers().pop().expect(BUFFERS_SUFFICE);
            unit.unpack(format, name, memory)
        },
        |unpacked| {
            summary.pieces += 1;
            check.saw(&unpacked, name)?;
            job.progress().add(unpacked.packed_bytes);
            out.all(unpacked.bytes())?;
            buffers().push(unpacked.into_memory());
            Ok(())
        },
    )?;
    drop((memory, used));
    if let Some(mut rest) = units.rest(job)? {
        copy(job, name, &mut rest, &mut out)?;
        summary.pieces += 1;
    }
    summary.bytes_in = units.bytes();
    summary.bytes_out = out.bytes;
    Ok(summary)
}

/// Allocates output buffers for the pieces that are being decompressed. A buffer is reused after its bytes were
/// written. The buffers lie on huge pages, since with small pages the page faults take a tenth of the decompression
/// time.
fn buffers(budget: &Budget, threads: usize, bytes: usize) -> Result<Mutex<Vec<Buffer>>> {
    let buffers = (0..=threads).map(|_| Buffer::zeroed(budget, bytes, "buffers of decompressed pieces"));
    Ok(Mutex::new(buffers.collect::<std::result::Result<_, _>>()?))
}

const BUFFERS_SUFFICE: &str = "a buffer for each piece in flight";

/// Copies all bytes of `input` to `out`, block by block.
fn copy(
    job: &Context,
    name: &str,
    input: &mut impl Read,
    out: &mut CountingWriter<impl Write>,
) -> Result<()> {
    let mut block = vec![0; COPY_BYTES];
    loop {
        job.check_cancelled()?;
        match fill(input, &mut block, name)? {
            0 => return Ok(()),
            filled => out.all(&block[..filled])?,
        }
    }
}

const COPY_BYTES: usize = 256 << 10;
/// The size in bytes of the largest piece that is decompressed in parallel. Most pieces that Inshore wrote contain at
/// most 16 MiB of data. A piece may be slightly larger than its data.
const PIECE_BYTES_MAX: usize = 17 << 20;

/// Fills `block` with bytes of `input`, and returns the number of bytes. This number is less than the length of `block`
/// only at the end of the input.
fn fill(input: &mut impl Read, block: &mut [u8], name: &str) -> Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match input.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_error(name, error)),
        }
    }
    Ok(filled)
}

/// Converts a read error to an error of this crate. The read error wraps an error of the crate `inshore_tables`, is an
/// error of the operating system, or reports damage that a decompressor found.
fn read_error(name: &str, error: std::io::Error) -> Error {
    match error.downcast::<inshore_tables::Error>() {
        Ok(error) => Error::Table(error),
        Err(error) => match error.raw_os_error() {
            Some(_) => Error::Input { name: name.to_string(), source: error },
            None => Error::Damaged { name: name.to_string(), what: error.to_string() },
        },
    }
}

struct CountingWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> CountingWriter<W> {
    fn all(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.inner.write_all(bytes).map_err(Error::Write)
    }
}

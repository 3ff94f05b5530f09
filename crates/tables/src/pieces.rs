//! Reads the bytes of an input by the fastest available method, and passes them to a function step by step.

use std::{fs::File, io::Read, path::Path};

use inshore_store::{Buffer, Context, FileSource};

use crate::{Bytes, Error, Input, Result, unpack::Compression};

const PIECE_BYTES: usize = 1 << 20;

/// Passes the bytes of an input to `take`, in order. Each call of `take` gets at least one byte and at most 1 MiB. The
/// bytes are decompressed if `may_unpack` is true and the first bytes are those of a compressed format. The job's
/// progress counts bytes of the file. The function takes up to 4 MiB from the budget.
///
/// # Errors
/// - Returns [`Error::Io`] if the input cannot be read.
/// - Returns [`Error::Damaged`] if compressed data is damaged.
/// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
/// - Returns the errors of `take`.
pub(crate) fn for_each_piece(
    job: &Context,
    input: &Input,
    may_unpack: bool,
    take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    match plain_file(input, may_unpack)? {
        Some((path, _)) => of_file(FileSource::open(job, path)?, job, take),
        None => of_stream(job, input, take),
    }
}

/// Passes the bytes of an input to `take`, as [`for_each_piece`] does, but never decompresses them. The input may be a
/// part of a file, and the first bytes of the part may by chance be those of a compressed format.
///
/// # Errors
/// Returns the errors of [`for_each_piece`].
pub(crate) fn for_each_piece_as_is(
    job: &Context,
    input: &Input,
    take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    of_bytes(input.open_as_is()?, job, take)
}

/// Passes bytes to `take` as [`for_each_piece`] does, but skips bytes before `start`. The function first calls `begin`
/// with the offset of the first byte that it will pass to `take`. This offset is at most `start`. Unless the input is
/// empty, its last byte is always passed to `take`.
///
/// # Errors
/// Returns the errors of [`for_each_piece`].
pub(crate) fn for_each_piece_from(
    job: &Context,
    input: &Input,
    may_unpack: bool,
    start: u64,
    begin: impl FnOnce(u64),
    take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    match plain_file(input, may_unpack)? {
        Some((path, bytes)) => {
            let source = FileSource::open_at(job, path, start.min(bytes.saturating_sub(1)))?;
            job.progress().add(source.position());
            begin(source.position());
            of_file(source, job, take)
        }
        None => {
            begin(0);
            of_stream(job, input, take)
        }
    }
}

/// Returns the path and the length in bytes of the input if the input is a file that is read without decompression.
/// Otherwise returns `None`.
fn plain_file(input: &Input, may_unpack: bool) -> Result<Option<(&Path, u64)>> {
    let Some((path, bytes)) = input.path().zip(input.compressed_bytes()) else { return Ok(None) };
    Ok((!(may_unpack && is_packed(input, path)?)).then_some((path, bytes)))
}

fn is_packed(input: &Input, path: &Path) -> Result<bool> {
    let mut head = Vec::new();
    let wanted = Compression::HEAD_BYTES as u64;
    let read = File::open(path).and_then(|file| file.take(wanted).read_to_end(&mut head));
    read.map_err(|source| Error::io(input.name(), "open it", source))?;
    Ok(Compression::of_head(&head).is_some())
}

fn of_file(mut source: FileSource, job: &Context, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    while let Some(piece) = source.next_piece()? {
        take(piece)?;
        job.progress().add(piece.len() as u64);
    }
    Ok(())
}

fn of_stream(job: &Context, input: &Input, take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    of_bytes(input.open(job.budget())?, job, take)
}

fn of_bytes(mut bytes: Bytes, job: &Context, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = Buffer::zeroed(job.budget(), PIECE_BYTES, "a piece of an input")?;
    let mut position = 0;
    loop {
        job.check_cancelled()?;
        let filled = bytes.fill(&mut buffer)?;
        if filled > 0 {
            take(&buffer[..filled])?;
        }
        job.progress().add(bytes.position() - position);
        position = bytes.position();
        if filled < buffer.len() {
            return Ok(());
        }
    }
}

//! The bytes of an input, piece by piece, by the fastest way there is to them.

use std::{fs::File, io::Read, path::Path};

use inshore_store::{Buffer, FileSource, Job};

use crate::{Error, Input, Result, zstd_frames::is_zstd};

const PIECE_BYTES: usize = 1 << 20;

/// Calls `take` with the bytes of an input, in order, in pieces of at least one byte and at most 1 MiB; unpacked if
/// `may_unpack` and they are gzip or zstd by their first bytes. Counts the job's progress in bytes of the file. Takes up to
/// 4 MiB from the budget.
///
/// # Errors
/// [`Error::Io`], [`Error::Damaged`], [`inshore_store::Error::Cancelled`], and what `take` returns.
pub(crate) fn for_each_piece(
    job: &Job,
    input: &Input,
    may_unpack: bool,
    take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let path = input.path().filter(|_| input.compressed_bytes().is_some());
    match path {
        Some(path) if !(may_unpack && is_packed(input, path)?) => of_file(job, path, take),
        _ => of_stream(job, input, take),
    }
}

fn is_packed(input: &Input, path: &Path) -> Result<bool> {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut head));
    read.map_err(|source| Error::io(input.name(), "open it", source))?;
    Ok(head.starts_with(&[0x1f, 0x8b]) || is_zstd(&head))
}

fn of_file(job: &Job, path: &Path, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut source = FileSource::open(job, path)?;
    while let Some(piece) = source.next_piece()? {
        take(piece)?;
        job.progress().add(piece.len() as u64);
    }
    Ok(())
}

fn of_stream(job: &Job, input: &Input, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut bytes = input.open(job.budget())?;
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

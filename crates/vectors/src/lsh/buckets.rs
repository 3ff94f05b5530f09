//! Reads the buckets of hash tables. The directory, a prefix sum, states where the rows of each bucket lie.

use std::{collections::VecDeque, ops::Range};

use inshore_store::{Buffer, CheckedFile, Job, PendingRead, Reservation, taken_bytes};
use zerocopy::little_endian::U64;

use super::info::LshInfo;
use crate::{
    Error, Result,
    read::{READ_ELEMENTS_BYTES, read_elements},
};

/// The length of a read buffer in bytes. A reader has `DEPTH` buffers, so at most `DEPTH` reads are in flight.
const BUFFER_BYTES: usize = 16 << 10;
const DEPTH: usize = 16;
/// The largest number of bytes that one read asks for. A buffer is longer, since a read of an unaligned range transfers
/// up to two check blocks more.
const CHUNK_BYTES: u64 = 8 << 10;

/// The files that contain the buckets of an index.
#[derive(Clone, Debug)]
pub(crate) struct BucketFiles {
    /// The row numbers of each bucket, one bucket after the other.
    pub lists: CheckedFile,
    /// The directory: for each bucket the number of rows in the buckets before it, then the number of all rows.
    pub firsts: CheckedFile,
}

/// The directory of the buckets, which is in memory or on flash.
enum Directory {
    Memory(Vec<u64>, #[allow(dead_code)] Reservation),
    Flash(CheckedFile),
}

/// `Buckets` is a reader of the row numbers in buckets.
pub(crate) struct Buckets {
    name: String,
    lists: CheckedFile,
    directory: Directory,
    /// The number of vectors in each table.
    vectors: u64,
    /// The number of row numbers in the buckets of all tables.
    rows: u64,
    id_bytes: usize,
    buffers: Vec<Buffer>,
}

impl Buckets {
    /// Returns the memory, in bytes, that a reader takes. `holds_directory` is true if the directory is in memory.
    pub fn bytes(files: &BucketFiles, holds_directory: bool) -> u64 {
        let directory = if holds_directory { files.firsts.len() + READ_ELEMENTS_BYTES } else { 0 };
        directory + taken_bytes(DEPTH * BUFFER_BYTES) as u64
    }

    /// Opens the buckets of an index. If `holds_directory` is true, the directory is read into memory.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the directory is read into memory and does not describe the buckets.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
    ///   memory, or the job was cancelled.
    pub fn open(job: &Job, files: &BucketFiles, info: &LshInfo, holds_directory: bool) -> Result<Buckets> {
        let rows = info.vectors * info.tables;
        let directory = match holds_directory {
            false => Directory::Flash(files.firsts.clone()),
            true => {
                let reservation = job.budget().reserve(files.firsts.len(), "the directory of hash tables")?;
                let mut firsts = Vec::with_capacity((files.firsts.len() / 8) as usize);
                read_elements::<U64>(job, &files.firsts, |piece| {
                    firsts.extend(piece.iter().map(|first| first.get()));
                })?;
                if !firsts.is_sorted() || firsts.first() != Some(&0) || firsts.last() != Some(&rows) {
                    return Err(bad_directory(files.lists.name(), "buckets out of order".to_string(), rows));
                }
                Directory::Memory(firsts, reservation)
            }
        };
        let buffers = Buffer::zeroed(job.budget(), DEPTH * BUFFER_BYTES, "buckets")?.split(BUFFER_BYTES);
        Ok(Buckets {
            name: files.lists.name().to_string(),
            lists: files.lists.clone(),
            directory,
            vectors: info.vectors,
            rows,
            id_bytes: info.id_bytes(),
            buffers,
        })
    }

    /// Reads all `buckets` in the given order, and calls `each` once for each row number in a bucket. The arguments of
    /// `each` are the position of the bucket in `buckets` and the row number.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if a bucket contains the number of a row that does not exist, or if the
    ///   directory does not describe the buckets.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the job was cancelled.
    pub fn each(&mut self, job: &Job, buckets: &[u64], each: &mut dyn FnMut(usize, u64)) -> Result<()> {
        job.check_cancelled()?;
        let places = self.places(job, buckets)?;
        let (id_bytes, vectors) = (self.id_bytes, self.vectors);
        let bytes = |places: &Range<u64>| places.start * id_bytes as u64..places.end * id_bytes as u64;
        let ranges = places.iter().map(bytes).enumerate().flat_map(|(place, range)| {
            let starts = (range.start..range.end).step_by(CHUNK_BYTES as usize);
            starts.map(move |start| (place, start..range.end.min(start + CHUNK_BYTES)))
        });
        let mut wrong = None;
        read_ranges(job, &self.lists, &mut self.buffers, ranges, &mut |place, bytes| {
            for bytes in bytes.chunks_exact(id_bytes) {
                let row = match id_bytes {
                    4 => u32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
                    _ => u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
                };
                if row < vectors {
                    each(place, row);
                } else {
                    wrong = wrong.or(Some((buckets[place], row)));
                }
            }
        })?;
        match wrong {
            None => Ok(()),
            Some((bucket, row)) => Err(Error::BadDataset {
                name: self.name.clone(),
                what: "vectors",
                found: format!("row {row} in bucket {bucket}"),
                expected: format!("rows below {vectors}"),
            }),
        }
    }

    /// Returns the range of each bucket in the sequence of the rows of all buckets.
    fn places(&mut self, job: &Job, buckets: &[u64]) -> Result<Vec<Range<u64>>> {
        let file = match &self.directory {
            Directory::Memory(firsts, _) => {
                let places = |&bucket: &u64| firsts[bucket as usize]..firsts[bucket as usize + 1];
                return Ok(buckets.iter().map(places).collect());
            }
            Directory::Flash(file) => file,
        };
        let ranges = buckets.iter().map(|&bucket| 8 * bucket..8 * bucket + 16).enumerate();
        let mut places = Vec::with_capacity(buckets.len());
        read_ranges(job, file, &mut self.buffers, ranges, &mut |_, bytes| {
            let first = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            places.push(first(0)..first(8));
        })?;
        match places.iter().find(|places| places.start > places.end || places.end > self.rows) {
            None => Ok(places),
            Some(wrong) => Err(bad_directory(&self.name, format!("a bucket at {wrong:?}"), self.rows)),
        }
    }
}

fn bad_directory(name: &str, found: String, rows: u64) -> Error {
    let expected = format!("buckets of {rows} rows in all");
    Error::BadDataset { name: name.to_string(), what: "directory", found, expected }
}

/// Reads ranges of a file with many reads in flight. Calls `each` with the number and the bytes of each range, in the
/// order of the ranges. Empty ranges are skipped. No range may be longer than [`CHUNK_BYTES`].
fn read_ranges(
    job: &Job,
    file: &CheckedFile,
    buffers: &mut Vec<Buffer>,
    ranges: impl Iterator<Item = (usize, Range<u64>)>,
    each: &mut dyn FnMut(usize, &[u8]),
) -> Result<()> {
    let mut ranges = ranges.filter(|(_, range)| !range.is_empty());
    let mut ahead: VecDeque<(usize, PendingRead)> = VecDeque::with_capacity(DEPTH);
    loop {
        while !buffers.is_empty()
            && let Some((place, range)) = ranges.next()
        {
            let buffer = buffers.pop().expect("not empty");
            ahead.push_back((place, file.submit_read(job, range, buffer)?));
        }
        let Some((place, pending)) = ahead.pop_front() else { return Ok(()) };
        let (buffer, bytes) = pending.wait()?;
        each(place, &buffer[bytes]);
        buffers.push(buffer);
    }
}

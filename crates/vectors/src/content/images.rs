//! Computes a vector from each image file. The vector is the histogram of the image.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex},
};

use inshore_store::{Job, Reservation};

use super::{
    CONSUMER_BYTES, ContentRows, RowBatch, Vocabulary,
    decode::{Image, Refused},
    each::each_row,
    files::{Files, list_files},
    histogram::{BINS, histogram},
};
use crate::{
    Element, Error, Result,
    element::{aligned, bytes_of},
};

/// The file name extensions by which images in folders are recognized.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// The number of images in a batch.
const BATCH: usize = 256;
const ROW_BYTES: usize = 4 * BINS;
/// The smallest memory, in bytes, for files and decoders.
const ROOM_BYTES_MIN: u64 = 4 << 20;
/// The memory that each thread takes for a scaled image, its luminance and its histogram, in bytes.
const THREAD_BYTES: u64 = 256 << 10;

/// Computes the histograms of image files, in the order of the files.
pub struct Images {
    job: Job,
    files: Files,
    next: usize,
    is_skipping: bool,
    skipped: u64,
    first_skipped: Option<String>,
    rows: Vec<u64>,
    paths: Vec<String>,
    room: Room,
}

impl Images {
    /// Lists the images of `inputs`. An input is an image file, or a folder. All PNG and JPEG files in folders are
    /// listed, sorted by path. If `is_skipping` is true, malformed files are counted and skipped.
    ///
    /// The list takes the memory of its paths. The free memory of the budget, without [`CONSUMER_BYTES`], is reserved
    /// for files and decoders.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if a folder has no images.
    /// - Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn list(job: &Job, inputs: &[PathBuf], is_skipping: bool) -> Result<Images> {
        let is_image = |path: &Path| {
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            ENDINGS.contains(&&*ending)
        };
        let files = list_files(job, inputs, is_image, "PNG or JPEG files")?;
        let fixed = (BATCH * ROW_BYTES) as u64 + THREAD_BYTES * job.budget().threads() as u64;
        let others = fixed + CONSUMER_BYTES;
        job.budget().need(others + ROOM_BYTES_MIN, || "computing the histograms of images".to_string())?;
        let room = Room::new(job, job.budget().free_bytes() - CONSUMER_BYTES, fixed)?;
        Ok(Images {
            job: job.clone(),
            files,
            next: 0,
            is_skipping,
            skipped: 0,
            first_skipped: None,
            rows: aligned(BATCH * ROW_BYTES),
            paths: Vec::new(),
            room,
        })
    }
}

impl ContentRows for Images {
    fn vocabulary(&self) -> Option<&Vocabulary> {
        None
    }

    fn element(&self) -> Element {
        Element::F32
    }

    fn dimensions(&self) -> usize {
        BINS
    }

    fn total(&self) -> (&'static str, u64) {
        ("images", self.files.paths.len() as u64)
    }

    fn next(&mut self) -> Result<Option<RowBatch<'_>>> {
        self.paths.clear();
        let mut kept = 0;
        let rows = bytes_of(&mut self.rows, BATCH * ROW_BYTES);
        while kept == 0 && self.next < self.files.paths.len() {
            let end = (self.next + BATCH).min(self.files.paths.len());
            let batch = &self.files.paths[self.next..end];
            let (job, room) = (&self.job, &self.room);
            let threads = job.budget().threads();
            let errors = each_row(threads, batch, rows, ROW_BYTES, !self.is_skipping, |path, row| {
                job.check_cancelled()?;
                let shares = histogram_of(job, room, path)?;
                for (out, share) in row.as_chunks_mut::<4>().0.iter_mut().zip(shares) {
                    *out = share.to_le_bytes();
                }
                job.progress().add(1);
                Ok(())
            });
            for (number, error) in errors.into_iter().enumerate() {
                match error {
                    None => {
                        rows.copy_within(number * ROW_BYTES..(number + 1) * ROW_BYTES, kept * ROW_BYTES);
                        self.paths.push(batch[number].display().to_string());
                        kept += 1;
                    }
                    Some(error @ Error::BadFile { .. }) if self.is_skipping => {
                        self.skipped += 1;
                        self.first_skipped.get_or_insert_with(|| error.to_string());
                    }
                    Some(error) => return Err(error),
                }
            }
            self.next = end;
        }
        Ok((kept > 0).then(|| RowBatch { rows: &rows[..kept * ROW_BYTES], paths: &self.paths }))
    }

    fn skipped(&self) -> (u64, Option<String>) {
        (self.skipped, self.first_skipped.clone())
    }
}

fn histogram_of(job: &Job, room: &Room, path: &Path) -> Result<[f32; BINS]> {
    let mut shares = [0.0; BINS];
    histogram(&pixels_of(job, room, path)?, &mut shares);
    Ok(shares)
}

/// Reads, decodes and scales an image. The function first takes memory for the file only. If the memory for the decoder
/// is then not free, the function drops the file, and waits until the memory for both is free. A waiting thread
/// therefore holds no memory.
fn pixels_of(job: &Job, room: &Room, path: &Path) -> Result<Vec<u8>> {
    let refused = |(found, expected): Refused| Error::BadFile {
        file: path.display().to_string(),
        place: "the image".to_string(),
        found,
        expected,
    };
    let mut decoder_bytes = 0;
    loop {
        let file = File::open(path).map_err(|error| inshore_store::Error::io("open", path, error))?;
        let io = |error| inshore_store::Error::io("read", path, error);
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(refused(("a folder, pipe or device".to_string(), "a regular file".to_string())));
        }
        let len = metadata.len();
        // Memory for twice the length of the file is taken, because the JPEG decoder copies some segments of the file.
        let mut memory = room.take(job, path, 2 * len + decoder_bytes)?;
        let mut bytes = Vec::with_capacity(len as usize);
        file.take(len).read_to_end(&mut bytes).map_err(io)?;
        let image = Image::read(&bytes).map_err(refused)?;
        if memory.has_more(image.memory_bytes().saturating_sub(decoder_bytes)) {
            return image.decode(&bytes).map_err(refused);
        }
        decoder_bytes = image.memory_bytes();
    }
}

/// The memory that all threads share for files and decoders. A thread waits until the memory for its image is free.
struct Room {
    _memory: Reservation,
    total: u64,
    free: Mutex<u64>,
    freed: Condvar,
}

impl Room {
    /// Reserves `bytes` bytes. The threads share these bytes, except for `fixed` bytes.
    fn new(job: &Job, bytes: u64, fixed: u64) -> Result<Room> {
        let memory = job.budget().reserve(bytes, "images that are decoded")?;
        let total = bytes - fixed;
        Ok(Room { _memory: memory, total, free: Mutex::new(total), freed: Condvar::new() })
    }

    /// Takes memory for an image. If other threads hold too much of the memory, the call waits.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::BudgetTooSmall`] if the image needs more than the whole shared memory.
    fn take(&self, job: &Job, path: &Path, bytes: u64) -> Result<Taken<'_>> {
        if bytes > self.total {
            let all = job.budget().free_bytes() + bytes - self.total;
            job.budget().need(all, || format!("decoding {} (larger images need more)", path.display()))?;
        }
        let mut free = self.free.lock().expect("no panic under this lock");
        while *free < bytes {
            free = self.freed.wait(free).expect("no panic under this lock");
        }
        *free -= bytes;
        Ok(Taken { room: self, bytes })
    }
}

struct Taken<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Taken<'_> {
    /// Takes `bytes` more bytes if they are free. Returns true if they were.
    fn has_more(&mut self, bytes: u64) -> bool {
        let mut free = self.room.free.lock().expect("no panic under this lock");
        let is_free = *free >= bytes;
        if is_free {
            *free -= bytes;
            self.bytes += bytes;
        }
        is_free
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.room.free.lock().expect("no panic under this lock") += self.bytes;
        self.room.freed.notify_all();
    }
}

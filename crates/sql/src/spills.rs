//! Spill files, to which DataFusion's operators write batches that do not fit the budget.
//!
//! If an exchange (`RepartitionExec`) gets no memory for an output, it writes the batch to a file. The exchange then
//! sends a marker in place of the batch. The reader of the marker waits for the oldest file of its output. In
//! DataFusion 55.2 (issue 24883), that wait is a deadlock if two inputs write at the same time:
//!
//! 1. Each input writes to its own file, and the batch of the marker may be in the newer file.
//! 2. The reader waits for the older file.
//! 3. The writer of the older file waits until a reader takes a marker.
//!
//! With one thread or a fast drive, inputs write one after the other into one file, so the deadlock does not occur.
//!
//! With this module, each file contains one batch. One call writes and completes the file without a wait for any
//! reader. A reader of the oldest file therefore waits only for a writer that makes progress, so there is no cycle of
//! waits. Many small files have two consequences:
//!
//! - A file is closed after its write and opened again for its read, since thousands of files may await a slow
//!   reader.
//! - After a failed write, the file is never completed, and its reader waits forever. [`Spills`] therefore records
//!   the first failure, and a waiting query calls [`Spills::check`].

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use datafusion::{
    error::{DataFusionError, Result},
    execution::{SpillFile, SpillWriter, TempFileFactory},
};
use futures::{Stream, stream};
use inshore_store::Job;

use crate::Error;

/// The value of DataFusion's option `max_spill_file_size_bytes`. With this value, a file ends after its first batch.
pub(crate) const FILE_BYTES_MAX: usize = 1;
/// The number of bytes of a spill file that one read call returns.
const PIECE_BYTES: usize = 128 << 10;

/// The folder of a query's spill files, and the first write that failed.
#[derive(Debug)]
pub(crate) struct Spills {
    folder: PathBuf,
    names: AtomicU64,
    failed: Arc<OnceLock<(PathBuf, io::ErrorKind, String)>>,
}

impl Spills {
    /// Creates a factory of spill files below the scratch folder of a job. The first file creates the folder.
    pub fn of(job: &Job) -> Spills {
        let folder = job.scratch_path(&job.scratch_name("sql"));
        Spills { folder, names: AtomicU64::new(0), failed: Arc::default() }
    }

    /// Returns the first failed write as an error.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Io`] if the operating system refuses an operation. The error names the file.
    pub fn check(&self) -> crate::Result<()> {
        let Some((path, kind, what)) = self.failed.get() else { return Ok(()) };
        Err(failed("write", path, io::Error::new(*kind, what.clone())))
    }
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    Error::Store(inshore_store::Error::io(what, path, error))
}

impl TempFileFactory for Spills {
    fn create_temp_file(&self, _: &str) -> Result<Arc<dyn SpillFile>> {
        fs::create_dir_all(&self.folder).map_err(|error| failed("create folder", &self.folder, error))?;
        let path = self.folder.join(self.names.fetch_add(1, Ordering::Relaxed).to_string());
        File::create_new(&path).map_err(|error| failed("create", &path, error))?;
        Ok(Arc::new(Spilled { path, failed: self.failed.clone() }))
    }
}

/// A spill file that is closed except during writes and reads. Dropping this value removes the file.
struct Spilled {
    path: PathBuf,
    failed: Arc<OnceLock<(PathBuf, io::ErrorKind, String)>>,
}

impl Drop for Spilled {
    fn drop(&mut self) {
        // If the removal fails, the file is removed later, together with the job's folder.
        let _ = fs::remove_file(&self.path);
    }
}

impl SpillFile for Spilled {
    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn size(&self) -> Option<u64> {
        fs::metadata(&self.path).ok().map(|found| found.len())
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let file = File::open(&self.path).map_err(|error| failed("open", &self.path, error))?;
        let pieces = stream::try_unfold((file, self.path.clone()), |(mut file, path)| async move {
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece);
            read.map_err(|error| failed("read", &path, error))?;
            Ok::<_, DataFusionError>((!piece.is_empty()).then(|| (Bytes::from(piece), (file, path))))
        });
        Ok(Box::pin(pieces))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        let file = File::options().append(true).open(&self.path);
        let file = file.map_err(|error| failed("open", &self.path, error))?;
        Ok(Box::new(Writer { file, path: self.path.clone(), failed: self.failed.clone() }))
    }
}

struct Writer {
    file: File,
    path: PathBuf,
    failed: Arc<OnceLock<(PathBuf, io::ErrorKind, String)>>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|error| {
            // An interrupted write is retried.
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed.get_or_init(|| (self.path.clone(), error.kind(), error.to_string()));
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use inshore_store::{Budget, Cancel, Store};

    use super::*;

    #[test]
    fn a_spill_file_returns_its_bytes_and_is_removed_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let job = store.job(Budget::new(24 << 20, 1), Cancel::default()).unwrap();
        let spills = Spills::of(&job);
        let file = spills.create_temp_file("a batch").unwrap();
        let bytes: Vec<u8> = (0..300_000u32).map(|place| place as u8).collect();
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&bytes).unwrap();
        writer.finish().unwrap();
        let pieces: Vec<_> = futures::executor::block_on(file.read_stream().unwrap().collect());
        let read: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap().to_vec()).collect();
        assert!(read == bytes && file.size() == Some(300_000));
        let path = file.path().unwrap().to_path_buf();
        drop(file);
        assert!(!path.exists());
        spills.check().unwrap();
    }

    /// DataFusion does not wake a reader that waits for a file whose write failed.
    #[test]
    fn a_failed_write_ends_the_query_with_its_error() {
        let full = PathBuf::from("/dev/full");
        let Ok(file) = File::options().write(true).open(&full) else {
            println!("skipped: no /dev/full");
            return;
        };
        let failed = Arc::default();
        let spills = Spills { folder: "/dev".into(), names: AtomicU64::new(0), failed: Arc::clone(&failed) };
        let mut writer = Writer { file, path: full, failed };
        assert!(writer.write_all(b"rows").is_err());
        let error = spills.check().unwrap_err().to_string();
        assert!(error.contains("/dev/full: cannot write") && error.contains("space"), "{error}");
    }
}

//! Treats datasets as bytes: reads ranges of a file, and writes a dataset of one file.
//!
//! [`Files`] owns one job and the buffers that all its reads share; each [`File`] and [`Writer`] refers to a
//! [`Files`]. A read borrows buffers or waits for a free buffer, so that memory does not grow with the number
//! of files or of reading threads.

use std::{
    ops::Range,
    sync::{Condvar, Mutex, MutexGuard},
};

use inshore::store::{
    self, BYTES, Buffer, Cancel, CheckedFile, Dataset, DatasetBuilder, FileReader, FileWriter,
};
use pyo3::{prelude::*, types::PyBytes};

use crate::{error::to_python, job::budget, job::to_json};

/// The size of one request, which is that of an extent: no block of a file is larger, and an extent fits a huge page.
const BUFFER_BYTES: usize = store::EXTENT_BYTES;
/// The maximal number of buffers of one read: one is copied from while the others are being read.
const READ_BUFFERS: usize = 4;
/// The maximal number of buffers of all reads: enough for four reads at full speed.
const BUFFERS_MAX: u64 = 16;
/// The size of a checksummed block in new datasets, as in `inshore store put`.
const BLOCK_BYTES: usize = 64 << 10;
/// The size of a write request.
const WRITE_BYTES: usize = 1 << 20;
/// The number of bytes between checks for Ctrl-C.
const STEP_BYTES: usize = 64 << 20;

/// A job that reads and writes files of datasets.
#[pyclass(frozen, module = "inshore._native", weakref)]
pub(crate) struct Files {
    store: store::Store,
    job: store::Job,
    buffers: Buffers,
}

impl Files {
    /// Starts a job. `memory` is a size as text or a number of bytes.
    pub(crate) fn start(store: &store::Store, memory: Option<&Bound<'_, PyAny>>) -> PyResult<Files> {
        let job = store.job(budget(memory, None)?, Cancel::default()).map_err(to_python)?;
        let buffers = Buffers::new(&job);
        Ok(Files { store: store.clone(), job, buffers })
    }
}

#[pymethods]
impl Files {
    /// Opens a file of a dataset.
    fn open(slf: &Bound<'_, Self>, dataset: &str, file: &str) -> PyResult<File> {
        let store = &slf.get().store;
        let opened = slf.py().detach(|| store.dataset(dataset)).map_err(to_python)?;
        let missing = || {
            let (name, store) = (format!("{dataset}/{file}"), store.path().to_path_buf());
            to_python(store::Error::NotFound { name, store })
        };
        let file = opened.file(file).ok_or_else(missing)?;
        Ok(File { file, _dataset: opened, files: slf.clone().unbind() })
    }

    /// Creates a dataset of plain bytes.
    fn create(slf: &Bound<'_, Self>, dataset: &str) -> PyResult<Writer> {
        let files = slf.get();
        let begun = slf.py().detach(|| {
            let mut builder = files.store.create_dataset(&files.job, dataset, BYTES)?;
            let writer = builder.file(BYTES, BLOCK_BYTES, WRITE_BYTES)?;
            Ok::<_, store::Error>((builder, writer))
        });
        let begun = Mutex::new(Some(begun.map_err(to_python)?));
        Ok(Writer { begun, _files: slf.clone().unbind() })
    }
}

/// A file of a dataset, in its state at the time of opening.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct File {
    file: CheckedFile,
    _dataset: Dataset,
    files: Py<Files>,
}

#[pymethods]
impl File {
    /// Returns the length in bytes.
    fn __len__(&self) -> usize {
        self.file.len() as usize
    }

    /// Reads the bytes from `start` up to `end`, or to the end of the file.
    fn read<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let start = start.min(self.file.len());
        let len = end.min(self.file.len()).saturating_sub(start) as usize;
        PyBytes::new_with(py, len, |bytes| {
            for (number, part) in (0..).zip(bytes.chunks_mut(STEP_BYTES)) {
                py.check_signals()?;
                let from = start + number * STEP_BYTES as u64;
                py.detach(|| self.fill(from, part)).map_err(to_python)?;
            }
            Ok(())
        })
    }
}

impl File {
    /// Fills `bytes` with the bytes of the file from `start` on.
    fn fill(&self, start: u64, bytes: &mut [u8]) -> store::Result<()> {
        let range = start..start + bytes.len() as u64;
        let requests = bytes.len().div_ceil(BUFFER_BYTES);
        let Files { job, buffers, .. } = self.files.get();
        let mut borrowed = buffers.borrow(job, requests.clamp(1, READ_BUFFERS))?;
        let own = std::mem::take(&mut borrowed.buffers);
        borrowed.buffers = read(job, &self.file, range, own, bytes)?;
        Ok(())
    }
}

/// Reads a range through `buffers`, and returns the buffers unless the read fails.
fn read(
    job: &store::Job,
    file: &CheckedFile,
    range: Range<u64>,
    buffers: Vec<Buffer>,
    mut to: &mut [u8],
) -> store::Result<Vec<Buffer>> {
    let mut reader = FileReader::with_buffers(job, file, range, buffers)?;
    while let Some(piece) = reader.next_piece()? {
        let (now, later) = to.split_at_mut(piece.len());
        now.copy_from_slice(piece);
        to = later;
    }
    reader.into_buffers()
}

/// The free buffers; `None` for a buffer that is not allocated yet, or that was lost with a failed read.
struct Buffers {
    free: Mutex<Vec<Option<Buffer>>>,
    returned: Condvar,
}

/// Borrowed buffers, which are returned on drop.
struct BorrowedBuffers<'a> {
    from: &'a Buffers,
    count: usize,
    buffers: Vec<Buffer>,
}

impl Buffers {
    /// Uses a quarter of the budget: failed reads may still hold as much, and the other half is for writers.
    fn new(job: &store::Job) -> Buffers {
        let count = job.budget().memory_bytes() / 4 / BUFFER_BYTES as u64;
        let free = (0..count.clamp(1, BUFFERS_MAX)).map(|_| None).collect();
        Buffers { free: Mutex::new(free), returned: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Option<Buffer>>> {
        self.free.lock().expect("no panic under this lock")
    }

    /// Borrows up to `wanted` buffers; waits until at least one is free.
    fn borrow(&self, job: &store::Job, wanted: usize) -> store::Result<BorrowedBuffers<'_>> {
        let mut free = self.free();
        while free.is_empty() {
            free = self.returned.wait(free).expect("no panic under this lock");
        }
        let kept = free.len() - wanted.min(free.len());
        let taken: Vec<Option<Buffer>> = free.drain(kept..).collect();
        drop(free);
        let mut borrowed = BorrowedBuffers { from: self, count: taken.len(), buffers: Vec::new() };
        for buffer in taken {
            let new = || Buffer::zeroed(job.budget(), BUFFER_BYTES, "reading a dataset");
            borrowed.buffers.push(buffer.map_or_else(new, Ok)?);
        }
        Ok(borrowed)
    }
}

impl Drop for BorrowedBuffers<'_> {
    fn drop(&mut self) {
        let mut free = self.from.free();
        let lost = self.count - self.buffers.len();
        // Unallocated buffers are taken last.
        free.splice(0..0, (0..lost).map(|_| None));
        free.extend(self.buffers.drain(..).map(Some));
        self.from.returned.notify_all();
    }
}

/// A dataset that is being written. The dataset appears with `commit`; without `commit` its bytes are
/// removed.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Writer {
    begun: Mutex<Option<(DatasetBuilder, FileWriter)>>,
    _files: Py<Files>,
}

impl Writer {
    fn begun(&self) -> MutexGuard<'_, Option<(DatasetBuilder, FileWriter)>> {
        self.begun.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[pymethods]
impl Writer {
    /// Appends `bytes`.
    fn write(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
        for part in bytes.chunks(STEP_BYTES) {
            py.check_signals()?;
            py.detach(|| match self.begun().as_mut() {
                Some((_, writer)) => writer.write(part),
                None => Err(store::Error::Cancelled),
            })
            .map_err(to_python)?;
        }
        Ok(())
    }

    /// Publishes the dataset; after the return, the dataset survives a power loss.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let (mut builder, writer) = self.begun().take().ok_or(store::Error::Cancelled)?;
            builder.add(writer)?;
            builder.commit(&[])
        })
        .map_err(to_python)
    }

    /// Discards all written bytes.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| *self.begun() = None);
    }
}

/// Returns name, number, kind and size of each dataset, as a JSON list.
pub(crate) fn datasets(store: &store::Store) -> PyResult<String> {
    let all = store.list().map_err(to_python)?;
    let fact = |dataset: &store::DatasetSummary| {
        let (name, id, kind, bytes) = (&dataset.name, dataset.id, &dataset.kind, dataset.bytes);
        serde_json::json!({ "name": name, "id": id, "kind": kind, "size": bytes })
    };
    to_json(&all.iter().map(fact).collect::<Vec<_>>())
}

/// Returns number, kind and size of a dataset, and name and size of each of its files, as JSON.
pub(crate) fn files(store: &store::Store, name: &str) -> PyResult<String> {
    let dataset = store.dataset(name).map_err(to_python)?;
    let size = |file: &str| dataset.file(file).map_or(0, |file| file.len());
    let files: Vec<_> =
        dataset.file_names().map(|file| serde_json::json!({ "name": file, "size": size(file) })).collect();
    let (id, kind, size) = (dataset.id(), dataset.kind(), dataset.bytes());
    to_json(&serde_json::json!({ "name": name, "id": id, "kind": kind, "size": size, "files": files }))
}

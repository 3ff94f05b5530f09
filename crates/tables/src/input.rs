//! An input is a source of records. It is a path, standard input, a dataset, some parts of a file, or a stream. Its
//! bytes may be compressed. A part of a file is a contiguous range of the file's bytes.
//!
//! Compression is detected from the bytes themselves, never from the name. A download that was renamed, or that a
//! browser decompressed, can therefore be read. The name determines the format of the decompressed bytes.

mod bytes;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    num::NonZeroU64,
    ops::Range,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use arrow_schema::SchemaRef;
use inshore_store::{
    Budget, Cancel, Context, FILE_SOURCE_BYTES, FileSource, Job, NamedFile, PlainFile, file_bytes,
};
use rustix::fs::{Advice, fadvise};

pub use self::bytes::Bytes;
use self::bytes::{CountingReader, RawBytes, ReadAheadFile};
use crate::{
    Error, Result, TableMetadata,
    allowance::UNCOUNTED_BYTES,
    stored::{FilePart, PartPieces, Parts, StoredFile, StoredPieces},
    unpack::{Compression, DecompressedReader},
};

/// The smallest budget, in bytes, with which reads of a file bypass the page cache.
const AHEAD_BUDGET_BYTES: u64 = 16 * FILE_SOURCE_BYTES;

/// States whether the first line of a CSV file has the names of the columns, or is a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Header {
    /// The line has names. If the line looks like a row of data, reading fails with an error. A line looks like a row
    /// of data if a field is a number, a date or a time, is empty, or occurs twice.
    #[default]
    Detected,
    /// The line has names, of any form.
    Present,
    /// The first line is a row of data. Columns are called `column_1`, `column_2` and so on.
    Absent,
}

impl From<Option<bool>> for Header {
    /// Converts an option. True means that the first line has names, and false that it is a row of data. `None` means
    /// [`Header::Detected`], the default.
    fn from(has_names: Option<bool>) -> Header {
        match has_names {
            None => Header::Detected,
            Some(true) => Header::Present,
            Some(false) => Header::Absent,
        }
    }
}

/// A source of records. It is a path, standard input, a file of a dataset, some parts of a file, or a stream.
#[derive(Clone, Debug)]
pub struct Input {
    place: InputLocation,
    columns: Option<SchemaRef>,
    unseen: Vec<String>,
    header: Header,
    is_whole: bool,
    name: String,
    ending: Option<String>,
    cancel: Option<Cancel>,
    number: u32,
}

#[derive(Clone, Debug)]
enum InputLocation {
    Stdin,
    Path(PathBuf),
    Stored(Box<StoredFile>),
    Parts(Arc<Parts>),
    Stream(SharedStream),
}

/// A stream that an input and its clones refer to. The first of them that is opened takes the stream.
#[derive(Clone)]
struct SharedStream(Arc<Mutex<Option<Box<dyn Read + Send>>>>);

impl fmt::Debug for SharedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stream")
    }
}

impl Input {
    fn at(place: InputLocation, name: String, ending: Option<String>) -> Input {
        let header = Header::default();
        let (columns, unseen) = (None, Vec::new());
        Input { place, columns, unseen, header, is_whole: false, name, ending, cancel: None, number: 0 }
    }

    /// Creates an input of the file at `path`, or of standard input for `-`. No file is opened yet.
    pub fn new(path: impl AsRef<Path>) -> Input {
        let path = path.as_ref();
        if path == Path::new("-") {
            return Input::at(InputLocation::Stdin, "standard input".to_string(), None);
        }
        Input::at(InputLocation::Path(path.to_path_buf()), path.display().to_string(), None)
    }

    /// Finds the files of a dataset of the job's store (`NAME`), or one file of a dataset (`NAME/FILE`). If `NAME` is a
    /// dataset with a single file, the extension of the dataset's name determines the format. Otherwise, the extension
    /// of each file's name determines the format of the file. Files are read through the job, and every checksum is
    /// verified.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::NotFound`] if the store has no such dataset or file.
    pub fn stored(job: &Job, named: &str) -> Result<Vec<Input>> {
        let files = job.store().named_files(named)?;
        Ok(files.into_iter().map(|found| Input::of_stored(job, found)).collect())
    }

    /// Makes an input of a dataset's file that the store has found, with the name and format that [`Input::stored`]
    /// uses.
    pub fn of_stored(job: &Job, found: NamedFile) -> Input {
        let name = found.title();
        let ending = ending_of(Path::new(if found.is_all { &found.dataset } else { &found.name }));
        let stored = StoredFile { job: job.clone(), file: found.file };
        Input::at(InputLocation::Stored(Box::new(stored)), name, Some(ending))
    }

    /// Makes an input for a file of `len` bytes, if this machine has only some parts of the file. `name` names the file
    /// in errors, and `ending` determines its format. If two parts overlap, only the part that comes first in `parts`
    /// is used. For formats that are read from start to end (CSV, JSON lines), the input returns the bytes of one part
    /// after the other. For Parquet, one part must have the footer. A row group can be read only if one part [has all
    /// its bytes](Input::holds).
    pub fn of_parts(name: &str, ending: &str, len: u64, parts: Vec<FilePart>) -> Input {
        let parts = Arc::new(Parts::new(len, parts));
        Input::at(InputLocation::Parts(parts), name.to_string(), Some(ending.to_string()))
    }

    /// Makes an input of a stream. The stream is never decompressed, since lines and records may begin with the same
    /// bytes as a compressed file. `name` names the stream in errors, and `ending` determines its format. The stream
    /// can be opened once, by the input or by one of its clones. The length of the stream is unknown.
    pub fn stream(name: &str, ending: &str, stream: impl Read + Send + 'static) -> Input {
        let stream = SharedStream(Arc::new(Mutex::new(Some(Box::new(stream)))));
        Input::at(InputLocation::Stream(stream), name.to_string(), Some(ending.to_string()))
    }

    /// Sets the number of the input, which is 0 by default. A sort that merges rows of several inputs adds this number
    /// to each row ([`sorted_records`](crate::sorted_records)).
    pub fn numbered(mut self, number: u32) -> Input {
        self.number = number;
        self
    }

    /// Returns the number of this input, which a sort adds to each row.
    #[cfg(feature = "records")]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Sets the columns of a table whose format has no schema (CSV, JSON lines). The reader then infers no types from
    /// the first rows.
    pub fn with_columns(mut self, columns: SchemaRef) -> Input {
        self.columns = Some(columns);
        self
    }

    /// Sets the columns, and the list of columns without values, from the [description](TableMetadata) of the table
    /// that another machine sent.
    pub fn with_known(self, known: &TableMetadata) -> Input {
        Input { unseen: known.unseen.clone(), ..self.with_columns(known.schema.clone()) }
    }

    /// Returns true if a column had no values in the first rows of the table, although its type was
    /// [set](Input::with_columns).
    pub(crate) fn is_unseen(&self, column: &str) -> bool {
        self.unseen.iter().any(|unseen| unseen == column)
    }

    /// Sets the meaning of the first line of CSV.
    pub fn with_header(mut self, header: Header) -> Input {
        self.header = header;
        self
    }

    /// Sets whether JSON lines may have members that are not columns. If `is_whole` is true, such a member is an error,
    /// even if the caller names the columns.
    pub fn with_whole_rows(mut self, is_whole: bool) -> Input {
        self.is_whole = is_whole;
        self
    }

    /// Returns the meaning of the first line of CSV.
    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// Returns true if JSON lines must not have members that are not columns, even if the caller names the columns.
    pub(crate) fn has_whole_rows(&self) -> bool {
        self.is_whole
    }

    /// Returns true if the input is a file that can be read a second time from its start.
    pub(crate) fn can_be_read_again(&self) -> bool {
        match &self.place {
            InputLocation::Stored(_) => true,
            InputLocation::Path(_) => self.compressed_bytes().is_some(),
            InputLocation::Stdin | InputLocation::Parts(_) | InputLocation::Stream(_) => false,
        }
    }

    /// Returns true if this machine has only some parts of the file.
    pub(crate) fn is_of_parts(&self) -> bool {
        self.parts().is_some()
    }

    /// Returns true if the input consists of parts or is a stream. Such an input is never decompressed.
    #[cfg(feature = "records")]
    pub(crate) fn is_as_it_lies(&self) -> bool {
        matches!(self.place, InputLocation::Parts(_) | InputLocation::Stream(_))
    }

    fn parts(&self) -> Option<&Parts> {
        if let InputLocation::Parts(parts) = &self.place { Some(parts) } else { None }
    }

    /// Returns the columns that were [set](Input::with_columns).
    pub(crate) fn columns(&self) -> Option<&SchemaRef> {
        self.columns.as_ref()
    }

    /// Returns true if a single part of the file on this machine has all bytes of `range`. An input that is not [of
    /// parts](Input::of_parts) has every range.
    pub fn holds(&self, range: &Range<u64>) -> bool {
        self.parts().is_none_or(|parts| parts.hold(range))
    }

    /// Sets the name of the input in errors, and the extension that determines the format. The extension of the path is
    /// then ignored.
    pub fn called(mut self, name: &str, ending: &str) -> Input {
        self.name = name.to_string();
        self.ending = Some(ending.to_string());
        self
    }

    /// Sets the cancellation flag of the input. After `cancel` is set, reads end with
    /// [`inshore_store::Error::Cancelled`], even while they wait for an empty pipe.
    pub fn stopped_by(mut self, cancel: &Cancel) -> Input {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Returns the name by which errors call the input. The name is the path, or "standard input".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path, if the input has one.
    pub fn path(&self) -> Option<&Path> {
        if let InputLocation::Path(path) = &self.place { Some(path) } else { None }
    }

    /// Returns true if the input is standard input.
    pub(crate) fn is_stdin(&self) -> bool {
        matches!(self.place, InputLocation::Stdin)
    }

    /// Returns the length of the file in bytes, before decompression, for progress. Returns `None` for standard input,
    /// streams, pipes, files of unknown length ([`inshore_store::file_bytes`]) and files whose metadata cannot be read.
    pub fn compressed_bytes(&self) -> Option<u64> {
        match &self.place {
            InputLocation::Stored(stored) => Some(stored.len()),
            InputLocation::Parts(parts) => Some(parts.len),
            InputLocation::Path(path) => {
                // Opening a pipe to look at its metadata would wait for a writer.
                let is_file = std::fs::metadata(path).ok()?.is_file();
                is_file.then(|| File::open(path).and_then(|file| file_bytes(&file)).ok())??
            }
            InputLocation::Stdin | InputLocation::Stream(_) => None,
        }
    }

    /// Returns how many bytes of the input this machine can read. This is the length of the file, or the total length
    /// of those parts of the file that are in the store.
    #[cfg(feature = "records")]
    pub(crate) fn bytes_here(&self) -> Option<u64> {
        match self.parts() {
            Some(parts) => Some(parts.stored_bytes()),
            None => self.compressed_bytes(),
        }
    }

    /// Returns the extension of the name in lower case, without an extension of compressed files: `txt` for
    /// `web.TXT.gz`. The result is empty for standard input and for names without an extension.
    ///
    /// ```
    /// use inshore_tables::Input;
    /// assert_eq!(Input::new("data/web.TXT.gz").extension(), "txt");
    /// assert_eq!(Input::new("edges.parquet").extension(), "parquet");
    /// assert_eq!(Input::new("-").extension(), "");
    /// ```
    pub fn extension(&self) -> String {
        if let Some(ending) = &self.ending {
            return ending.clone();
        }
        self.path().map(ending_of).unwrap_or_default()
    }

    /// Opens the input, and decompresses gzip, zstd, bzip2 and lz4 with any number of members or frames. The first
    /// bytes determine the compression ([`Compression::of_head`]). The input takes two buffers of 128 KiB, and memory
    /// for the decompressor's state.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the input cannot be opened or read.
    /// - Returns [`Error::Unsupported`] if this crate does not decompress the format of the input.
    /// - Returns [`Error::TooLarge`] if a zstd window is larger than a quarter of the budget.
    /// - Returns [`Error::Store`] if the budget has too little free memory for the zstd window, or for the part of the
    ///   lz4 decoder's memory above 8 MiB.
    ///
    /// Later calls of [`Bytes::read`] report damage in later bytes.
    pub fn open(&self, budget: &Budget) -> Result<Bytes> {
        self.unpack(self.counted()?, budget, UNCOUNTED_BYTES)
    }

    /// Opens the input, like [`Input::open`], for a caller that has many inputs open at the same time. All memory of
    /// the decompressor is therefore reserved from the budget.
    ///
    /// # Errors
    /// Returns the errors of [`Input::open`].
    pub fn open_counted(&self, budget: &Budget) -> Result<Bytes> {
        self.unpack(self.counted()?, budget, 0)
    }

    /// Opens the input for a job that reads all of it. If a file has at least 1 MiB and is not in the page cache, reads
    /// bypass the page cache, and several reads are in flight. Such reads take [`ahead_bytes`] bytes of the job's
    /// budget in addition.
    ///
    /// # Errors
    /// Returns the errors of [`Input::open`].
    pub fn open_ahead(&self, job: &Context) -> Result<Bytes> {
        let (mut counted, position) = self.counted()?;
        if let (RawBytes::File(file), Some(path)) = (&counted.inner, self.path())
            && ahead_bytes(job.budget()) > 0
            && file_bytes(file).is_ok_and(|bytes| bytes.is_some())
        {
            let file = file.try_clone().map_err(|source| Error::io(&self.name, "open it", source))?;
            let file = PlainFile::of(file, path)?;
            if !file.is_cached() {
                let source = FileSource::of(job, file, 0)?;
                counted.inner = RawBytes::Ahead(Box::new(ReadAheadFile { source, taken: 0 }));
            }
        }
        self.unpack((counted, position), job.budget(), UNCOUNTED_BYTES)
    }

    fn unpack(
        &self,
        (counted, position): (CountingReader, Arc<AtomicU64>),
        budget: &Budget,
        uncounted: u64,
    ) -> Result<Bytes> {
        let source = DecompressedReader::open(counted, &self.name, budget, uncounted)?;
        Ok(Bytes { name: self.name.clone(), source, position })
    }

    /// Opens the input without decompression.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the input cannot be opened.
    pub fn open_as_is(&self) -> Result<Bytes> {
        let (counted, position) = self.counted()?;
        Ok(Bytes { name: self.name.clone(), source: DecompressedReader::plain(counted), position })
    }

    fn counted(&self) -> Result<(CountingReader, Arc<AtomicU64>)> {
        let position = Arc::new(AtomicU64::new(0));
        let (inner, cancel) = match &self.place {
            InputLocation::Stored(stored) => (RawBytes::Stored(Box::new(stored.stream()?)), None),
            InputLocation::Parts(parts) => (RawBytes::Parts(parts.stream()), None),
            InputLocation::Stream(SharedStream(stream)) => {
                let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
                (
                    RawBytes::Stream(stream.ok_or_else(|| self.cannot("is a stream that was read already"))?),
                    None,
                )
            }
            InputLocation::Stdin | InputLocation::Path(_) => {
                let file = self.open_file()?;
                let is_file = file.metadata().is_ok_and(|data| data.is_file());
                (RawBytes::File(file), self.cancel.clone().filter(|_| !is_file))
            }
        };
        Ok((CountingReader { inner, position: position.clone(), cancel }, position))
    }

    fn cannot(&self, what: &str) -> Error {
        Error::unsupported(&self.name, format!("it {what}"))
    }

    /// Opens an input of known length for random access.
    pub(crate) fn open_pieces(&self) -> Result<Pieces> {
        match &self.place {
            InputLocation::Stored(stored) => Ok(Pieces::Stored(StoredPieces::new((**stored).clone()))),
            InputLocation::Parts(parts) => Ok(Pieces::Parts(parts.pieces())),
            InputLocation::Stream(_) => Err(self.cannot("comes as a stream, which has no length")),
            InputLocation::Stdin | InputLocation::Path(_) => {
                let path = self.path().map(Path::to_path_buf);
                self.open_file().map(|file| Pieces::File(file, path))
            }
        }
    }

    /// Opens the file or standard input. Reads of standard input do not use the small buffer of the standard library.
    fn open_file(&self) -> Result<File> {
        match self.path() {
            Some(path) => File::open(path),
            None => io::stdin().as_fd().try_clone_to_owned().map(File::from),
        }
        .map_err(|source| Error::io(&self.name, "open it", source))
    }
}

/// Returns the additional memory that [`Input::open_ahead`] takes compared with [`Input::open`], in bytes. The result
/// is 0 for a small budget, since nothing is then read ahead.
pub fn ahead_bytes(budget: &Budget) -> u64 {
    if budget.memory_bytes() < AHEAD_BUDGET_BYTES { 0 } else { FILE_SOURCE_BYTES }
}

/// Returns the extension of a name in lower case, without an extension of compressed files.
fn ending_of(path: &Path) -> String {
    let lower = |path: &Path| path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    match lower(path) {
        Some(ending) if Compression::is_ending(&ending) => lower(&path.with_extension("")),
        other => other,
    }
    .unwrap_or_default()
}

/// An input that can be read at any position.
pub(crate) enum Pieces {
    /// An open file, and the path by which the file was opened, if there is a path.
    File(File, Option<PathBuf>),
    Stored(StoredPieces),
    Parts(PartPieces),
}

impl Pieces {
    /// Fills `out` with the bytes from offset `start` on. All these bytes must lie within the file.
    pub fn read_exact_at(&self, name: &str, out: &mut [u8], start: u64) -> Result<()> {
        match self {
            Pieces::File(file, _) => {
                file.read_exact_at(out, start).map_err(|source| Error::io(name, "read it", source))
            }
            Pieces::Stored(pieces) => pieces.read_exact_at(out, start),
            Pieces::Parts(pieces) => pieces.read_exact_at(name, out, start),
        }
    }

    /// Returns the file for reads that bypass the page cache. Returns `None` if the input is not a file with a path.
    pub fn plain(&self) -> Option<PlainFile> {
        let Pieces::File(file, Some(path)) = self else { return None };
        PlainFile::of(file.try_clone().ok()?, path).ok()
    }

    /// Returns how many consecutive bytes from `start` on are on this machine. If the complete file is on this machine,
    /// the result is `u64::MAX`.
    pub fn bytes_from(&self, start: u64) -> u64 {
        match self {
            Pieces::File(..) | Pieces::Stored(_) => u64::MAX,
            Pieces::Parts(pieces) => pieces.bytes_from(start),
        }
    }

    /// Hints to the operating system that these bytes will be read soon.
    pub fn will_read(&self, start: u64, bytes: NonZeroU64) {
        if let Pieces::File(file, _) = self {
            _ = fadvise(file, start, Some(bytes), Advice::WillNeed);
        }
    }
}

//! Reads the headers and the rows of files of vectors.
//!
//! ```text
//!   .fvecs .bvecs .ivecs      each vector: i32 dimensions, elements (f32, u8, i32)
//!   .fbin .u8bin .i8bin       u32 vectors, u32 dimensions, elements (f32, u8, i8) of all vectors
//!   .hbin .b1bin              the same layout with f16 and bits: dimensions are a multiple of 8, eight in a byte
//!   .npy                      an array in C order: (vectors, dimensions), or (dimensions), of f32, f64, f16, u8, i8 or
//!                             i32; bfloat16 is written as <V2
//! ```
//!
//! All numbers are little endian. The length of a file must be exactly the length that its header implies, so a
//! truncated file is refused before the first vector is read.

use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use inshore_store::{Context, FILE_SOURCE_BYTES, FileSource, PlainFile};

use crate::{
    Error, Result,
    element::{Element, FileElement, aligned, bytes_of},
    npy,
};

/// The file name extensions, with the layout and the element type of each.
const ENDINGS: [(&str, Layout, FileElement); 8] = [
    ("fvecs", Layout::Prefixed, FileElement::F32),
    ("bvecs", Layout::Prefixed, FileElement::U8),
    ("ivecs", Layout::Prefixed, FileElement::I32),
    ("fbin", Layout::Counted, FileElement::F32),
    ("u8bin", Layout::Counted, FileElement::U8),
    ("i8bin", Layout::Counted, FileElement::I8),
    ("hbin", Layout::Counted, FileElement::F16),
    ("b1bin", Layout::Counted, FileElement::Bits),
];
/// Vectors of a streamed file are read and checked in steps of about this number of bytes. The next constant is the
/// number for queries. A step has at least one vector.
const CHUNK_BYTES: usize = 256 << 10;
const SMALL_CHUNK_BYTES: usize = 16 << 10;
/// The size in bytes of the buffer for a file that is read in small parts.
const BUFFERED_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// Each vector is preceded by its number of dimensions.
    Prefixed,
    /// The file begins with the numbers of vectors and dimensions.
    Counted,
    /// The file begins with a header of NumPy.
    Npy,
}

/// A file of vectors whose header has been checked.
#[derive(Clone, Debug)]
pub struct VectorFile {
    path: PathBuf,
    layout: Layout,
    element: FileElement,
    dimensions: usize,
    count: u64,
    /// The offset of the first vector in the file, in bytes.
    start: u64,
    /// The bytes of the file, if the file is in memory.
    data: Option<Arc<[u8]>>,
}

impl VectorFile {
    /// The extensions of files of vectors, for messages.
    pub const EXTENSIONS: &str = ".fvecs, .bvecs, .ivecs, .fbin, .u8bin, .i8bin, .hbin, .b1bin or .npy";

    /// Returns true if the extension of a file name is that of a file of vectors.
    pub fn is_named(path: &Path) -> bool {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        ending == "npy" || ENDINGS.iter().any(|(name, ..)| *name == ending)
    }

    /// Opens a file, and checks its header and its length. The extension of the file name determines the format.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if the file is malformed. The error contains the position of the fault.
    /// - Returns [`Error::Store`] if an I/O operation fails.
    pub fn open(path: impl AsRef<Path>) -> Result<VectorFile> {
        let path = path.as_ref();
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let known = ENDINGS.iter().find(|(name, ..)| *name == ending);
        if known.is_none() && ending != "npy" {
            return Err(bad(path, "the ending of the name", format!(".{ending}"), VectorFile::EXTENSIONS));
        }
        let io = |error| inshore_store::Error::io("read", path, error);
        let mut file = File::open(path).map_err(|error| inshore_store::Error::io("open", path, error))?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(bad(path, "the file", "a folder, pipe or device", "a regular file"));
        }
        VectorFile::of(path, &mut file, metadata.len(), known)
    }

    /// Returns the vectors of a `.npy` file that is in memory. Error messages call the file `name`. No budget counts
    /// the memory of `bytes`.
    ///
    /// # Errors
    /// Returns [`Error::BadFile`] if the file is malformed. The message states the position of the fault.
    pub fn in_memory(name: &str, data: Vec<u8>) -> Result<VectorFile> {
        let file = VectorFile::of(Path::new(name), &mut &data[..], data.len() as u64, None)?;
        Ok(VectorFile { data: Some(data.into()), ..file })
    }

    /// Reads and checks the header of a file of `len` bytes, whose format is `known` by its ending; `.npy` otherwise.
    fn of(
        path: &Path,
        file: &mut impl Read,
        len: u64,
        known: Option<&(&str, Layout, FileElement)>,
    ) -> Result<VectorFile> {
        let io = |error| inshore_store::Error::io("read", path, error);
        let mut head = |bytes: u64, what: &str| {
            let mut head = Vec::new();
            file.by_ref().take(bytes).read_to_end(&mut head).map_err(io)?;
            match head.len() as u64 == bytes {
                true => Ok(head),
                false => Err(bad(path, what, format!("{} bytes", head.len()), format!("{bytes} bytes"))),
            }
        };
        let (layout, element, dimensions, count, start) = match known {
            Some(&(_, Layout::Counted, element)) => {
                let head = head(8, "the header")?;
                let (count, dimensions) = (word(&head), word(&head[4..]));
                (Layout::Counted, element, u64::from(dimensions), Some(u64::from(count)), 8)
            }
            Some(&(_, layout, element)) => {
                let dimensions = word(&head(4, "the dimensions of vector 0")?);
                (layout, element, u64::from(dimensions), None, 0)
            }
            None => {
                let fail = |place, found: String, expected| bad(path, place, found, expected);
                let header = npy::header(head, &fail)?;
                let (count, dimensions) = header.shape;
                (Layout::Npy, header.element, dimensions, Some(count), header.start)
            }
        };
        let most = element.stored().dimensions_max();
        if dimensions == 0 || dimensions > most as u64 {
            let place = if layout == Layout::Prefixed { "vector 0" } else { "the header" };
            let found = format!("{dimensions} dimensions");
            return Err(bad(path, place, found, format!("1 to {most}")));
        }
        if element == FileElement::Bits && dimensions % 8 != 0 {
            return Err(bad(path, "the header", format!("{dimensions} bits"), "a multiple of 8"));
        }
        let mut file = VectorFile {
            path: path.to_path_buf(),
            layout,
            element,
            dimensions: dimensions as usize,
            count: count.unwrap_or(0),
            start,
            data: None,
        };
        file.check_length(len, count)?;
        if file.count == 0 {
            return Err(bad(path, "the file", "no vectors", "at least one"));
        }
        Ok(file)
    }

    /// Checks the length of the file. If the layout has no count of vectors, the length determines the count.
    fn check_length(&mut self, len: u64, count: Option<u64>) -> Result<()> {
        let stride = self.stride() as u64;
        match count {
            Some(count) => {
                let expected = u128::from(count) * u128::from(stride) + u128::from(self.start);
                if u128::from(len) != expected {
                    let what = format!("{expected} bytes: {count} vectors of {} dimensions", self.dimensions);
                    return Err(bad(&self.path, "its length", format!("{len} bytes"), what));
                }
            }
            None => {
                self.count = len / stride;
                let rest = len % stride;
                if rest > 0 {
                    let expected = format!("{stride} bytes, as of vector 0 ({} dimensions)", self.dimensions);
                    let place = format!("vector {}, at byte {}", self.count, self.count * stride);
                    return Err(bad(&self.path, &place, format!("{rest} bytes to the end"), expected));
                }
            }
        }
        Ok(())
    }

    /// Returns how many bytes a vector takes in the file. If the number of dimensions precedes each vector, its bytes
    /// are included.
    fn stride(&self) -> usize {
        self.prefix() + self.element.row_bytes(self.dimensions)
    }

    fn prefix(&self) -> usize {
        if self.layout == Layout::Prefixed { 4 } else { 0 }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of vectors.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of dimensions.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Returns the element type with which a dataset stores the vectors. For files of f64 and i32, the type is f32.
    /// Values of f64 are rounded.
    pub fn element(&self) -> Element {
        self.element.stored()
    }

    /// Returns the same file as a file of bits. Each byte then holds eight dimensions of one bit.
    ///
    /// # Errors
    /// Returns [`Error::BadFile`] if the elements are not unsigned bytes or bits.
    pub fn as_bits(self) -> Result<VectorFile> {
        match self.element {
            FileElement::Bits => Ok(self),
            FileElement::U8 => {
                Ok(VectorFile { element: FileElement::Bits, dimensions: 8 * self.dimensions, ..self })
            }
            other => Err(bad(&self.path, "the elements", other.stored(), "u8, of eight bits each")),
        }
    }

    /// Returns an error for a bad value at `dimension` of the vector with the number `row`.
    pub(crate) fn bad_value(
        &self,
        row: u64,
        dimension: usize,
        found: String,
        expected: impl ToString,
    ) -> Error {
        bad(&self.path, &format!("vector {row}, dimension {dimension}"), found, expected)
    }

    fn chunk_rows(&self, is_streamed: bool) -> usize {
        let bytes = if is_streamed { CHUNK_BYTES } else { SMALL_CHUNK_BYTES };
        (bytes / self.stride()).max(1)
    }

    /// Returns the memory, in bytes, that [`VectorFile::rows`] needs.
    pub(crate) fn rows_bytes(&self, is_streamed: bool) -> u64 {
        let rows = self.chunk_rows(is_streamed);
        let source = match (&self.data, is_streamed) {
            (Some(_), _) => 0,
            (None, true) => FILE_SOURCE_BYTES,
            (None, false) => BUFFERED_BYTES as u64,
        };
        let stored = self.element.stored().row_bytes(self.dimensions);
        source + (rows * (self.stride() + stored)) as u64 + 16
    }

    /// Starts to read the vectors, with the vector `first`. If `is_streamed` is true, the reads bypass the page cache
    /// and reach the speed of the drive. Otherwise they go through a small buffer.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub(crate) fn rows(&self, context: &Context, first: u64, is_streamed: bool) -> Result<Rows> {
        let offset = self.start + first * self.stride() as u64;
        let bytes = match (&self.data, is_streamed) {
            (Some(data), _) => Bytes::InMemory { data: data.clone(), at: offset as usize },
            (None, true) => {
                let source = FileSource::of(context, PlainFile::open(&self.path)?, offset)?;
                let skipped = offset - source.position();
                Bytes::Streamed { source, at: 0, skipped }
            }
            (None, false) => {
                let io = |error| inshore_store::Error::io("read", &self.path, error);
                let mut file = File::open(&self.path).map_err(io)?;
                file.seek(SeekFrom::Start(offset)).map_err(io)?;
                Bytes::Buffered(BufReader::with_capacity(BUFFERED_BYTES, file))
            }
        };
        let rows = self.chunk_rows(is_streamed);
        let stored = self.element.stored().row_bytes(self.dimensions);
        Ok(Rows {
            file: self.clone(),
            bytes,
            next: first,
            raw: vec![0; rows * self.stride()],
            stored: aligned(rows * stored),
            rounded: 0,
        })
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"))
}

fn bad(path: &Path, place: &str, found: impl ToString, expected: impl ToString) -> Error {
    Error::BadFile {
        file: path.display().to_string(),
        place: place.to_string(),
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

/// A source of the bytes of a file, from an offset on.
enum Bytes {
    Streamed { source: FileSource, at: usize, skipped: u64 },
    Buffered(BufReader<File>),
    InMemory { data: Arc<[u8]>, at: usize },
}

impl Bytes {
    fn read(&mut self, path: &Path, out: &mut [u8]) -> Result<()> {
        match self {
            Bytes::Buffered(file) => {
                let read = file.read_exact(out);
                Ok(read.map_err(|error| inshore_store::Error::io("read", path, error))?)
            }
            Bytes::InMemory { data, at } => {
                // The check of the header guarantees that the file has this length.
                out.copy_from_slice(&data[*at..][..out.len()]);
                *at += out.len();
                Ok(())
            }
            Bytes::Streamed { source, at, skipped } => {
                let mut filled = 0;
                while filled < out.len() {
                    if *at == source.piece().len() {
                        // The length was checked when the file was opened. If another program has shortened the file,
                        // the source returns an error.
                        source.next_piece()?;
                        *at = std::mem::take(skipped) as usize;
                        if source.piece().is_empty() {
                            return Err(bad(path, "its length", "its end", "more bytes"));
                        }
                    }
                    let piece = &source.piece()[*at..];
                    let part = piece.len().min(out.len() - filled);
                    out[filled..filled + part].copy_from_slice(&piece[..part]);
                    *at += part;
                    filled += part;
                }
                Ok(())
            }
        }
    }
}

/// Reads the vectors of a file in order, checks them, and converts them to stored elements.
pub(crate) struct Rows {
    file: VectorFile,
    bytes: Bytes,
    next: u64,
    raw: Vec<u8>,
    stored: Vec<u64>,
    rounded: u64,
}

impl Rows {
    /// Returns how many bytes a vector takes after its elements were converted to stored elements.
    pub fn row_bytes(&self) -> usize {
        self.file.element.stored().row_bytes(self.file.dimensions)
    }

    /// Returns how many elements were rounded so far.
    pub fn rounded(&self) -> u64 {
        self.rounded
    }

    /// Returns the bytes of the next vectors, converted to stored elements. The result has at most `most` vectors, and
    /// is empty after the last vector.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if the number of dimensions of a vector differs from that of vector 0, or if a
    ///   value cannot be stored.
    /// - Returns [`Error::Store`] if an I/O operation fails.
    pub fn next(&mut self, most: u64) -> Result<&[u8]> {
        let (stride, prefix) = (self.file.stride(), self.file.prefix());
        let most = most.min(self.file.count - self.next).min((self.raw.len() / stride) as u64) as usize;
        let raw = &mut self.raw[..most * stride];
        self.bytes.read(&self.file.path, raw)?;
        for row in 0..if prefix > 0 { most } else { 0 } {
            let found = word(&raw[row * stride..]);
            if found as usize != self.file.dimensions {
                let number = self.next + row as u64;
                let place = format!("vector {number}, at byte {}", number * stride as u64);
                let expected = format!("{}, as of vector 0", self.file.dimensions);
                return Err(bad(&self.file.path, &place, format!("{} dimensions", found as i32), expected));
            }
            // The elements of all rows are moved together without their prefixes, so that one call converts all rows.
            raw.copy_within(row * stride + prefix..(row + 1) * stride, row * (stride - prefix));
        }
        let (element, dimensions) = (self.file.element, self.file.dimensions);
        let stored = bytes_of(&mut self.stored, most * element.stored().row_bytes(dimensions));
        let raw = &raw[..most * element.row_bytes(dimensions)];
        let rounded = self.file.element.store(raw, stored).map_err(|(index, found)| {
            let (row, dimension) = (index / self.file.dimensions, index % self.file.dimensions);
            let expected = self.file.element.expected();
            self.file.bad_value(self.next + row as u64, dimension, found, expected)
        })?;
        self.rounded += rounded;
        self.next += most as u64;
        Ok(stored)
    }
}

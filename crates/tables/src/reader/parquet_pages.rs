//! Reads the pages of a Parquet file. Each page is read only after a check that its size fits the budget.
//!
//! The `parquet` crate asks for bytes through [`ChunkReader`]. The crate reads a page header, and then allocates memory
//! of the sizes that the header states. [`ColumnChunk`] parses that header first, and refuses sizes that do not fit.
//! [`Pages`] checks two more claims of each decoded page. These are the number of values in a dictionary, and the
//! lengths of strings that are encoded as differences ([`delta`]).

use std::{
    io::Cursor,
    num::NonZeroU64,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use inshore_store::Budget;
use parquet::{
    basic::{Compression, Encoding, Type},
    column::page::{Page, PageMetadata, PageReader},
    errors::{ParquetError, Result},
    file::{
        metadata::ColumnChunkMetaData,
        reader::{ChunkReader, Length},
        serialized_reader::SerializedPageReader,
    },
    schema::types::ColumnDescriptor,
};

use super::{
    delta::{self, StringSizes},
    parquet_codecs::Codec,
    parquet_windows::{Window, Windows},
    thrift::{PageHeader, page_header},
};
use crate::{Error, allowance::Allowance, input::Pieces};

/// The maximum size of a page header in bytes. A header has some 30 bytes and the statistics of the page. The
/// statistics of strings may be long.
const HEADER_BYTES_MAX: usize = 1 << 20;
const HEADER_BYTES_FIRST: usize = 4 << 10;
/// The memory of parsed metadata for each byte of the footer. This is an upper estimate for flat schemas without
/// statistics.
pub(super) const METADATA_BYTES_PER_FOOTER_BYTE: u64 = 8;
/// The memory, in bytes, that the decoder needs for each string in addition to its text. The decoder keeps two lengths
/// of 32 bits for each string: the length of the prefix that is shared with the previous string, and the length of the
/// rest.
const LENGTH_BYTES: u64 = 8;

/// The memory, in bytes, that the decoder takes for each number of a list. It consists of the number and of its two
/// levels.
pub(super) const LIST_VALUE_BYTES: u64 = 8 + 4;

/// The maximum size in bytes of a read-ahead hint for a column chunk. In longer chunks, the operating system reads
/// ahead by itself.
const READ_AHEAD_BYTES_MAX: u64 = 8 << 20;
const READ_AHEAD_STEP_BYTES: usize = 512 << 10;

/// One open Parquet file, with the state that all readers of its columns use.
pub(super) struct ParquetFile {
    pub name: String,
    pub bytes: u64,
    pub piece_limit: u64,
    pieces: Pieces,
    /// The read buffers (windows) of the column chunks. [`ParquetFile::set_windows`] creates them when columns are
    /// chosen.
    windows: OnceLock<Option<Windows>>,
    position: AtomicU64,
    /// An error of this crate. The error is stored here because the library turns errors into text.
    refusal: Mutex<Option<Error>>,
    held: Mutex<ReaderMemory>,
}

struct ReaderMemory {
    allowance: Allowance,
    metadata_bytes: u64,
    columns: Vec<ColumnMemory>,
}

#[derive(Clone, Default)]
struct ColumnMemory {
    dictionary_bytes: u64,
    page_bytes: u64,
    /// True if the column has strings or lists. Strings are views into pages, and a batch may have lists of many pages.
    /// The memory of pages is therefore counted until the batch ends.
    is_text: bool,
}

impl ParquetFile {
    pub fn new(pieces: Pieces, bytes: u64, name: &str, piece_limit: u64, allowance: Allowance) -> Self {
        ParquetFile {
            name: name.to_string(),
            bytes,
            piece_limit,
            pieces,
            windows: OnceLock::new(),
            position: AtomicU64::new(0),
            refusal: Mutex::new(None),
            held: Mutex::new(ReaderMemory { allowance, metadata_bytes: 0, columns: Vec::new() }),
        }
    }

    /// Returns the file offset at which the last read ended. This offset shows the progress, since row groups are read
    /// in order.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Returns the error of this crate that caused the library's error `reported`. If no error of this crate is stored,
    /// returns an error about damage.
    pub fn error(&self, reported: impl ToString) -> Error {
        let refusal = lock(&self.refusal).take();
        refusal.unwrap_or_else(|| {
            Error::damaged(&self.name, format!("damaged Parquet: {}", reported.to_string()))
        })
    }

    pub fn set_columns(&self, is_text: impl Iterator<Item = bool>) {
        lock(&self.held).columns =
            is_text.map(|is_text| ColumnMemory { is_text, ..Default::default() }).collect();
    }

    /// Stops counting the memory of those pages whose strings only the previous batch used.
    pub fn next_batch(&self) {
        let mut held = lock(&self.held);
        for column in held.columns.iter_mut().filter(|column| column.is_text) {
            column.page_bytes = 0;
        }
    }

    fn refuse(&self, error: Error) -> ParquetError {
        let text = error.to_string();
        *lock(&self.refusal) = Some(error);
        ParquetError::General(text)
    }

    fn too_large(&self, place: String, what: &'static str, bytes: u64) -> ParquetError {
        self.refuse(Error::TooLarge { place, what, bytes, limit: self.piece_limit, enough: None })
    }

    fn damaged(&self, what: String) -> ParquetError {
        self.refuse(Error::damaged(&self.name, what))
    }

    /// Decides at the first call whether reads bypass the page cache. `columns` is the number of columns that are read
    /// at the same time.
    pub fn set_windows(&self, columns: usize, budget: &Budget) {
        self.windows.get_or_init(|| Windows::new(self.pieces.plain()?, columns, budget));
    }

    fn windows(&self) -> Option<&Windows> {
        self.windows.get()?.as_ref()
    }

    fn read_at(&self, start: u64, length: usize) -> Result<Bytes> {
        self.check_range(start, length)?;
        let mut buffer = vec![0; length];
        let read = self.pieces.read_exact_at(&self.name, &mut buffer, start);
        read.map_err(|error| self.refuse(error))?;
        Ok(buffer.into())
    }

    /// Checks that a range that is about to be read lies within the file.
    fn check_range(&self, start: u64, length: usize) -> Result<()> {
        let end = start.checked_add(length as u64).filter(|&end| end <= self.bytes).ok_or_else(|| {
            let bytes = self.bytes;
            self.damaged(format!(
                "truncated: expected {length} bytes at offset {start}, the file has {bytes} bytes"
            ))
        })?;
        self.position.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    /// Hints to the operating system that the first bytes of a column chunk will be read soon, while other chunks are
    /// decoded. The hint covers at most `limit` bytes.
    pub fn will_read(&self, chunk: &ColumnChunkMetaData, limit: u64) {
        if let (Some(windows), Ok(start)) = (self.windows(), u64::try_from(start_of(chunk))) {
            let length = u64::try_from(chunk.compressed_size()).unwrap_or(0);
            return windows.will_read(start, start.saturating_add(length));
        }
        let length = u64::try_from(chunk.compressed_size()).unwrap_or(0).min(READ_AHEAD_BYTES_MAX).min(limit);
        let Ok(start) = u64::try_from(start_of(chunk)) else { return };
        let end = start.saturating_add(length);
        // For one hint, the operating system reads at most its read-ahead size. The range is therefore divided into
        // several hints.
        for step in (start..end).step_by(READ_AHEAD_STEP_BYTES) {
            let bytes = (end - step).min(READ_AHEAD_STEP_BYTES as u64);
            self.pieces.will_read(step, NonZeroU64::new(bytes).expect("steps end before the end"));
        }
    }

    /// Returns the number of bytes that are reserved for pages.
    pub fn reserved_bytes(&self) -> u64 {
        lock(&self.held).allowance.reserved_bytes()
    }

    /// Reads the page header at `start`, without an effect on later reads.
    pub fn header_at(&self, start: u64) -> Option<PageHeader> {
        let here = self.bytes.saturating_sub(start).min(self.pieces.bytes_from(start));
        [HEADER_BYTES_FIRST, HEADER_BYTES_MAX].into_iter().find_map(|most| {
            let mut bytes = vec![0; here.min(most as u64) as usize];
            self.pieces.read_exact_at(&self.name, &mut bytes, start).ok()?;
            page_header(&bytes)
        })
    }

    fn hold(&self, change: impl FnOnce(&mut ReaderMemory)) -> Result<()> {
        let mut held = lock(&self.held);
        change(&mut held);
        let columns =
            held.columns.iter().map(|column| column.dictionary_bytes + column.page_bytes).sum::<u64>();
        let bytes = held.metadata_bytes + columns;
        held.allowance.hold(bytes).map_err(|error| self.refuse(error))
    }

    fn hold_page(&self, column: usize, header: &PageHeader) -> Result<()> {
        let (packed, unpacked) = (header.compressed_bytes as u64, header.uncompressed_bytes as u64);
        self.hold(|held| {
            let column = &mut held.columns[column];
            match (header.is_dictionary, column.is_text) {
                // The memory contains the dictionary page and the values decoded from this page. Strings of the batch
                // may still be views into the previous dictionary page.
                (true, is_text) => {
                    column.page_bytes = if is_text { column.page_bytes + column.dictionary_bytes } else { 0 };
                    column.dictionary_bytes = 2 * unpacked;
                }
                (false, true) => column.page_bytes += packed + unpacked,
                (false, false) => column.page_bytes = packed + unpacked,
            }
        })
    }
}

/// Returns the start offset of a column chunk, as the file states it. Some writers write 0 as the offset of a missing
/// dictionary. This value is ignored, since a page never begins at offset 0.
pub(super) fn start_of(chunk: &ColumnChunkMetaData) -> i64 {
    chunk.dictionary_page_offset().filter(|&start| start != 0).unwrap_or(chunk.data_page_offset())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The view of a file through which the library reads the footer.
pub(super) struct Footer<'a>(pub &'a ParquetFile);

impl Length for Footer<'_> {
    fn len(&self) -> u64 {
        self.0.bytes
    }
}

impl ChunkReader for Footer<'_> {
    type T = Cursor<Bytes>;

    /// The library asks for a stream only to read the last 8 bytes.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let length = self.0.bytes.saturating_sub(start).min(64);
        Ok(Cursor::new(self.0.read_at(start, length as usize)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let file = self.0;
        if length as u64 > file.piece_limit {
            return Err(file.too_large(file.name.clone(), "a Parquet footer", length as u64));
        }
        file.hold(|held| held.metadata_bytes = METADATA_BYTES_PER_FOOTER_BYTE * length as u64)?;
        let footer = file.read_at(start, length)?;
        match super::thrift::schema_depth(&footer) {
            Some(0..=64) => Ok(footer),
            Some(depth) => {
                Err(file.damaged(format!("the schema is nested {depth} deep, expected at most 64")))
            }
            None => Err(file.damaged("damaged Parquet: the footer cannot be read".to_string())),
        }
    }
}

/// A column chunk (one column of one row group), through which the library reads pages.
pub(super) struct ColumnChunk {
    file: Arc<ParquetFile>,
    /// The index of the column among all leaf columns of the file.
    column: usize,
    column_name: String,
    /// The codec of the pages, if this crate decompresses them. The library then treats the chunk as uncompressed.
    codec: Option<Codec>,
    /// The header that was read last. The library requests the body of a page directly after its header.
    header: Mutex<PageHeader>,
    /// The offset after the header that was read last. The offset is stored until the library requests the body of the
    /// page. For a list column, the library peeks at the header of the next page, and then requests a stream at the
    /// body without reading it.
    body: Mutex<Option<u64>>,
    /// The end offset of the chunk, as the footer states it.
    end: u64,
    window: Mutex<Window>,
}

impl ColumnChunk {
    fn place(&self, offset: u64) -> String {
        format!("{}: column '{}', offset {offset}", self.file.name, self.column_name)
    }

    fn read_at(&self, start: u64, length: usize) -> Result<Bytes> {
        if let Some(windows) = self.file.windows() {
            self.file.check_range(start, length)?;
            let read = windows.read(&mut lock(&self.window), start, length, self.end);
            if let Some(bytes) = read.map_err(|error| self.file.refuse(error))? {
                return Ok(bytes);
            }
        }
        self.file.read_at(start, length)
    }

    /// Reads the page header at `start`. Returns its bytes and its fields.
    fn read_header(&self, start: u64) -> Result<(Bytes, PageHeader)> {
        // If this machine has only some parts of the file, it may lack the bytes after the chunk, so the read must end
        // before them.
        let here = self.file.bytes.saturating_sub(start).min(self.file.pieces.bytes_from(start));
        let available = here.min(HEADER_BYTES_MAX as u64) as usize;
        let mut length = HEADER_BYTES_FIRST.min(available);
        loop {
            let bytes = self.read_at(start, length)?;
            if let Some(header) = page_header(&bytes) {
                return Ok((bytes.slice(..header.header_bytes), header));
            }
            if length == available {
                let place = self.place(start);
                return Err(self
                    .file
                    .refuse(Error::damaged(place, "damaged Parquet: expected a page header")));
            }
            length = (8 * length).min(available);
        }
    }

    fn check_size(&self, start: u64, header: &PageHeader) -> Result<()> {
        let bytes = header.compressed_bytes.max(header.uncompressed_bytes);
        if header.compressed_bytes < 0 || header.uncompressed_bytes < 0 {
            let what = "damaged Parquet: a page has a negative size";
            return Err(self.file.refuse(Error::damaged(self.place(start), what)));
        }
        if bytes as u64 > self.file.piece_limit {
            return Err(self.file.too_large(self.place(start), "a Parquet page", bytes as u64));
        }
        Ok(())
    }

    fn unpack(&self, packed: Bytes, codec: Codec) -> Result<Bytes> {
        let header = lock(&self.header).clone();
        let levels = header.levels_bytes as usize;
        if !header.values_are_compressed {
            return Ok(packed);
        }
        let unpacked_bytes = header.uncompressed_bytes as usize;
        if levels > packed.len() || levels > unpacked_bytes {
            return Err(self.file.damaged("damaged Parquet: levels are longer than their page".to_string()));
        }
        let mut unpacked = Vec::with_capacity(unpacked_bytes + 1);
        unpacked.extend_from_slice(&packed[..levels]);
        if unpacked_bytes > levels {
            let packed = &packed[levels..];
            let window_bytes = codec.window_bytes(packed);
            self.file.hold(|held| held.columns[self.column].page_bytes += window_bytes)?;
            let done = codec.unpack(packed, unpacked_bytes - levels, &mut unpacked);
            self.file.hold(|held| held.columns[self.column].page_bytes -= window_bytes)?;
            done?;
        }
        if unpacked.len() != unpacked_bytes {
            return Err(self
                .file
                .damaged(format!("damaged Parquet: expected a page of {unpacked_bytes} bytes")));
        }
        Ok(unpacked.into())
    }
}

impl Length for ColumnChunk {
    fn len(&self) -> u64 {
        self.file.bytes
    }
}

impl ChunkReader for ColumnChunk {
    type T = Cursor<Bytes>;

    /// The library requests a stream at a page header, and once more at the body if it peeked at the header.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        if *lock(&self.body) == Some(start) {
            return Ok(Cursor::default());
        }
        let (bytes, header) = self.read_header(start)?;
        self.check_size(start, &header)?;
        self.file.hold_page(self.column, &header)?;
        *lock(&self.body) = Some(start + header.header_bytes as u64);
        *lock(&self.header) = header;
        Ok(Cursor::new(bytes))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length as u64 > self.file.piece_limit {
            return Err(self.file.too_large(self.place(start), "a Parquet page", length as u64));
        }
        *lock(&self.body) = None;
        self.read_at(start, length)
    }
}

/// The pages of one column of one row group.
pub(super) struct Pages {
    file: Arc<ParquetFile>,
    column: usize,
    column_name: String,
    /// The maximum repetition level and the maximum definition level.
    levels_max: (i16, i16),
    /// The size in bytes of the smallest possible value in a dictionary. The size is 0 if the type has no dictionaries.
    value_bytes_min: usize,
    chunk: Arc<ColumnChunk>,
    inner: SerializedPageReader<ColumnChunk>,
}

impl Pages {
    pub fn new(
        file: &Arc<ParquetFile>,
        column: usize,
        descriptor: &ColumnDescriptor,
        chunk: &ColumnChunkMetaData,
        rows: usize,
    ) -> Result<Self> {
        let start = start_of(chunk);
        if start < 0 || chunk.compressed_size() < 0 {
            return Err(file.damaged("damaged Parquet: a column chunk has a negative offset".to_string()));
        }
        let column_name = descriptor.path().string();
        let mut chunk = chunk.clone();
        let codec = Codec::of(chunk.compression());
        if chunk.dictionary_page_offset() == Some(0) {
            chunk = chunk.into_builder().set_dictionary_page_offset(None).build()?;
        }
        if codec.is_some() {
            chunk = chunk.into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        } else if matches!(chunk.compression(), Compression::BROTLI(_)) {
            let what = format!(
                "column '{column_name}' is compressed with Brotli, which needs the feature `records`"
            );
            return Err(file.refuse(Error::unsupported(&file.name, what)));
        }
        let value_bytes_min = match descriptor.physical_type() {
            Type::BOOLEAN => 0,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => descriptor.type_length().max(0) as usize,
        };
        let reader = Arc::new(ColumnChunk {
            file: file.clone(),
            column,
            column_name: column_name.clone(),
            codec,
            header: Mutex::default(),
            body: Mutex::default(),
            end: (start as u64).saturating_add(chunk.compressed_size() as u64),
            window: Mutex::default(),
        });
        let inner = SerializedPageReader::new(reader.clone(), &chunk, rows, None)?;
        let levels_max = (descriptor.max_rep_level(), descriptor.max_def_level());
        Ok(Pages {
            file: file.clone(),
            column,
            column_name,
            levels_max,
            value_bytes_min,
            chunk: reader,
            inner,
        })
    }

    /// Decompresses a page with a codec of this crate. The library has already verified the checksum of the compressed
    /// bytes.
    fn unpack(&self, mut page: Page) -> Result<Page> {
        if let Some(codec) = self.chunk.codec {
            let (Page::DataPage { buf, .. }
            | Page::DataPageV2 { buf, .. }
            | Page::DictionaryPage { buf, .. }) = &mut page;
            *buf = self.chunk.unpack(std::mem::take(buf), codec)?;
        }
        Ok(page)
    }

    fn check(&self, page: &Page) -> Result<()> {
        let place = || format!("{}: column '{}'", self.file.name, self.column_name);
        if let Page::DictionaryPage { buf, num_values, .. } = page {
            let bytes = u64::from(*num_values) * self.value_bytes_min as u64;
            if bytes > buf.len() as u64 || self.value_bytes_min == 0 {
                let what =
                    format!("damaged Parquet: a dictionary of {num_values} values in {} bytes", buf.len());
                return Err(self.file.refuse(Error::damaged(place(), what)));
            }
        }
        if self.levels_max.0 > 0 && !matches!(page, Page::DictionaryPage { .. }) {
            self.check_lists(page, place())?;
        }
        if let Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY = page.encoding() {
            self.check_strings(page, place())?;
        }
        Ok(())
    }

    /// Refuses a page of lists that contains too many numbers. Without this check, a page of a few bytes could claim
    /// any number of equal numbers.
    fn check_lists(&self, page: &Page, place: String) -> Result<()> {
        let bytes = u64::from(page.num_values()) * LIST_VALUE_BYTES;
        if bytes > self.file.piece_limit {
            return Err(self.file.too_large(place, "the lists of a Parquet page", bytes));
        }
        self.file.hold(|held| held.columns[self.column].page_bytes += bytes)
    }

    /// Returns an error if the strings of a page exceed the size limit. The lengths of these strings are encoded as
    /// differences.
    fn check_strings(&self, page: &Page, place: String) -> Result<()> {
        let strings_max = u64::from(page.num_values());
        let coded =
            self.values_of(page).and_then(|values| delta::coded(page.encoding(), values, strings_max));
        let Some(StringSizes { strings, bytes }) = coded else {
            let what =
                format!("damaged Parquet: the strings of a page are not encoded as {}", page.encoding());
            return Err(self.file.refuse(Error::damaged(place, what)));
        };
        let bytes = bytes.saturating_add(strings.saturating_mul(LENGTH_BYTES));
        if bytes > self.file.piece_limit {
            return Err(self.file.too_large(place, "the strings of a Parquet page", bytes));
        }
        self.file.hold(|held| held.columns[self.column].page_bytes += bytes)
    }

    /// Returns the bytes of the values of a page. In the page, the values follow the levels that mark nulls. Returns
    /// `None` for the deprecated encoding of levels.
    fn values_of<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
        match page {
            Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
                let mut rest = &buf[..];
                let levels =
                    [(self.levels_max.0, rep_level_encoding), (self.levels_max.1, def_level_encoding)];
                for (_, encoding) in levels.into_iter().filter(|&(max, _)| max > 0) {
                    let (length, after) = rest.split_first_chunk()?;
                    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
                    rest = (*encoding == Encoding::RLE).then_some(after)?.get(length..)?;
                }
                Some(rest)
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let levels = def_levels_byte_len.checked_add(*rep_levels_byte_len)?;
                buf.get(levels as usize..)
            }
            Page::DictionaryPage { .. } => None,
        }
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?.map(|page| self.unpack(page)).transpose()?;
        page.iter().try_for_each(|page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}

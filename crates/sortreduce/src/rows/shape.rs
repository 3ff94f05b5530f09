//! Row shapes, which define the ends and keys of rows, and operations on rows with equal keys.

use memchr::{memchr, memrchr};

/// A format of rows: finds rows and their keys in bytes.
pub trait RowShape: Clone + Send + Sync + 'static {
    /// Returns the length of the row at the start of `bytes`, including its line end or header. Returns `None` if the
    /// row does not end within `bytes`.
    fn row_len(&self, bytes: &[u8]) -> Option<usize>;

    /// Returns the length of the longest prefix of `bytes` that consists of complete rows.
    fn whole_rows_len(&self, bytes: &[u8]) -> usize;

    /// Returns how many bytes of `more` complete the row that begins with `start`. `start` is shorter than the row.
    /// Returns `None` if the row does not end within `more`.
    fn missing_len(&self, start: &[u8], more: &[u8]) -> Option<usize>;

    /// Returns the key of a complete row. Keys are compared as unsigned bytes. A key comes before longer keys of
    /// which it is a prefix.
    fn key<'a>(&self, row: &'a [u8]) -> &'a [u8];

    /// Returns the offset in `bytes` of the first row whose start can be recognized, or `None`. `bytes` is a section
    /// of a sequence of rows, which begins at byte `offset` of the sequence. `offset` is not 0.
    fn row_start(&self, offset: u64, bytes: &[u8]) -> Option<usize>;

    /// Returns the length of a row in bytes, or an estimate if rows differ in length. The length is used to divide
    /// the memory.
    fn row_bytes_hint(&self) -> usize;
}

/// Rows are lines of text with their line ends. The key is the line without its end. The last line must also have a
/// line end.
#[derive(Clone, Copy, Debug)]
pub struct Lines;

impl RowShape for Lines {
    #[inline]
    fn row_len(&self, bytes: &[u8]) -> Option<usize> {
        memchr(b'\n', bytes).map(|end| end + 1)
    }

    fn whole_rows_len(&self, bytes: &[u8]) -> usize {
        memrchr(b'\n', bytes).map_or(0, |end| end + 1)
    }

    fn missing_len(&self, _: &[u8], more: &[u8]) -> Option<usize> {
        self.row_len(more)
    }

    /// `bytes` may begin within a line, so only rows after the first line end are recognized.
    fn row_start(&self, _: u64, bytes: &[u8]) -> Option<usize> {
        self.row_len(bytes).filter(|&start| start < bytes.len())
    }

    #[inline]
    fn key<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        &row[..row.len() - 1]
    }

    fn row_bytes_hint(&self) -> usize {
        48
    }
}

/// Rows are records of a fixed length. The key is a fixed byte range of the record.
#[derive(Clone, Copy, Debug)]
pub struct FixedRows {
    row_bytes: usize,
    key_start: usize,
    key_end: usize,
}

impl FixedRows {
    /// Creates a shape for records of `row_bytes` bytes that are sorted by the bytes in the range `key`.
    ///
    /// # Panics
    /// The function panics if the key is not inside the record, or if the record has no bytes.
    pub fn new(row_bytes: usize, key: std::ops::Range<usize>) -> FixedRows {
        assert!(row_bytes > 0 && key.start <= key.end && key.end <= row_bytes, "key {key:?} of {row_bytes}");
        FixedRows { row_bytes, key_start: key.start, key_end: key.end }
    }
}

impl RowShape for FixedRows {
    #[inline]
    fn row_len(&self, bytes: &[u8]) -> Option<usize> {
        (bytes.len() >= self.row_bytes).then_some(self.row_bytes)
    }

    fn whole_rows_len(&self, bytes: &[u8]) -> usize {
        bytes.len() / self.row_bytes * self.row_bytes
    }

    fn missing_len(&self, start: &[u8], more: &[u8]) -> Option<usize> {
        Some(self.row_bytes - start.len()).filter(|&len| len <= more.len())
    }

    fn row_start(&self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let start = (offset.next_multiple_of(self.row_bytes as u64) - offset) as usize;
        Some(start).filter(|&start| start < bytes.len())
    }

    #[inline]
    fn key<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        &row[self.key_start..self.key_end]
    }

    fn row_bytes_hint(&self) -> usize {
        self.row_bytes
    }
}

/// Rows begin with the length of the row and the length of the key. [`frame`] creates such rows.
///
/// ```text
///   [ row bytes u32 | key bytes u32 | key | rest ]      little endian; "row bytes" includes both lengths
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FramedRows {
    /// The approximate length of a row in bytes.
    pub row_bytes_hint: usize,
}

/// The number of bytes before the key of a framed row.
pub(crate) const FRAME_BYTES: usize = 8;

/// Appends a framed row to `out`.
///
/// # Panics
/// The function panics if the row would have 4 GiB or more.
pub fn frame(key: &[u8], rest: &[u8], out: &mut Vec<u8>) {
    let len = u32::try_from(FRAME_BYTES + key.len() + rest.len()).expect("a row below 4 GiB");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(rest);
}

impl FramedRows {
    /// Returns the bytes of a row after the key.
    #[inline]
    pub fn rest<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        &row[FRAME_BYTES + number(&row[4..])..]
    }

    /// Returns the bytes of a row after the key as a mutable slice.
    pub fn rest_mut<'a>(&self, row: &'a mut [u8]) -> &'a mut [u8] {
        let start = FRAME_BYTES + number(&row[4..]);
        &mut row[start..]
    }
}

#[inline]
fn number(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize
}

impl RowShape for FramedRows {
    #[inline]
    fn row_len(&self, bytes: &[u8]) -> Option<usize> {
        if bytes.len() < FRAME_BYTES {
            return None;
        }
        Some(number(bytes)).filter(|&len| len <= bytes.len())
    }

    fn whole_rows_len(&self, bytes: &[u8]) -> usize {
        let mut whole = 0;
        while let Some(len) = self.row_len(&bytes[whole..]) {
            whole += len;
        }
        whole
    }

    fn missing_len(&self, start: &[u8], more: &[u8]) -> Option<usize> {
        let mut len = [0; 4];
        let there = start.len().min(4);
        len[..there].copy_from_slice(&start[..there]);
        len[there..].copy_from_slice(more.get(..4 - there)?);
        Some(number(&len) - start.len()).filter(|&len| len <= more.len())
    }

    /// Returns `None`, since any bytes may be a length, so that the start of a row cannot be recognized.
    fn row_start(&self, _: u64, _: &[u8]) -> Option<usize> {
        None
    }

    #[inline]
    fn key<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        &row[FRAME_BYTES..][..number(&row[4..])]
    }

    fn row_bytes_hint(&self) -> usize {
        self.row_bytes_hint
    }
}

/// An operation on rows with equal keys. The operation must be associative. Rows are combined in the order of the
/// input.
pub trait RowOperation: Clone + Send + Sync + 'static {
    /// True if the operation combines rows with equal keys; false if it keeps all rows.
    const COMBINES: bool;

    /// Combines the row `next` into the row `first`. The rows have the same key, and `first` is earlier in the input.
    fn combine(&self, first: &mut Vec<u8>, next: &[u8]);

    /// Returns whether all calls of the operation have succeeded, for example whether no sum overflowed. After a
    /// failure, no more runs are saved for a resumed sort.
    fn is_sound(&self) -> bool {
        true
    }
}

/// Keeps all rows, without combining any.
#[derive(Clone, Copy, Debug)]
pub struct KeepAll;

impl RowOperation for KeepAll {
    const COMBINES: bool = false;
    fn combine(&self, _: &mut Vec<u8>, _: &[u8]) {}
}

/// Keeps only the first input row of each key.
#[derive(Clone, Copy, Debug)]
pub struct KeepFirst;

impl RowOperation for KeepFirst {
    const COMBINES: bool = true;
    fn combine(&self, _: &mut Vec<u8>, _: &[u8]) {}
}

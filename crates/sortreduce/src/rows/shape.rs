//! Defines rows: their ends, their keys, and the operation on equal keys.

use memchr::{memchr, memrchr};

/// Finds rows and keys in bytes.
pub trait RowShape: Clone + Send + Sync + 'static {
    /// Returns the length of the row that begins with `bytes`, including its line end or header; `None` if the row does
    /// not end within `bytes`.
    fn row_len(&self, bytes: &[u8]) -> Option<usize>;

    /// Returns the length of the longest prefix of `bytes` that consists of complete rows.
    fn whole_rows_len(&self, bytes: &[u8]) -> usize;

    /// Returns the number of bytes at the start of `more` that complete the row which begins with `start`; `start`
    /// alone does not contain the row's end. Returns `None` if the row does not end in `more` either.
    fn missing_len(&self, start: &[u8], more: &[u8]) -> Option<usize>;

    /// Returns the key of a complete row. Keys are compared as unsigned bytes; a key sorts before longer keys that
    /// begin with it.
    fn key<'a>(&self, row: &'a [u8]) -> &'a [u8];

    /// Returns the offset in `bytes` of the first row whose start can be recognized, or `None`. `bytes` are the bytes
    /// of a sequence of rows from `offset` on; `offset` is not 0.
    fn row_start(&self, offset: u64, bytes: &[u8]) -> Option<usize>;

    /// Returns the bytes of a row, which are used to divide memory; an estimate if rows differ in length.
    fn row_bytes_hint(&self) -> usize;
}

/// Splits text into lines with their line ends; the whole line is the key. The last line must have its end too.
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

    /// A row starts after a line end. The first byte may belong to the previous line, so its row is not recognized.
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

/// Splits bytes into records of a fixed length, sorted by some of their bytes.
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
    /// If the key is not inside the record, or the record has no bytes.
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

/// Splits bytes into rows that begin with the length of the row and the length of the key; [`frame`] makes rows of this
/// form.
///
/// ```text
///   [ row bytes u32 | key bytes u32 | key | rest ]      little endian; row bytes counts all of it
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FramedRows {
    /// The approximate length of a row.
    pub row_bytes_hint: usize,
}

/// The number of bytes before the key of a framed row.
pub(crate) const FRAME_BYTES: usize = 8;

/// Appends a framed row to `out`.
///
/// # Panics
/// If the row would have 4 GiB or more.
pub fn frame(key: &[u8], rest: &[u8], out: &mut Vec<u8>) {
    let len = u32::try_from(FRAME_BYTES + key.len() + rest.len()).expect("a row below 4 GiB");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(rest);
}

impl FramedRows {
    /// Returns the bytes after the key.
    #[inline]
    pub fn rest<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        &row[FRAME_BYTES + number(&row[4..])..]
    }

    /// Returns the bytes after the key for modification.
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

    /// Any bytes can be a length, so the start of a row cannot be recognized.
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

/// Handles rows with equal keys. The operation must be associative; rows are combined in the order of the input.
pub trait RowOperation: Clone + Send + Sync + 'static {
    /// Tells whether the operation combines rows at all.
    const COMBINES: bool;

    /// Combines the row `next` into the row `first`, which has the same key and comes earlier in the input.
    fn combine(&self, first: &mut Vec<u8>, next: &[u8]);

    /// Tells whether the operation has succeeded so far, for example whether no sum overflowed. After a failure, no
    /// more runs are kept for a resumed sort.
    fn is_sound(&self) -> bool {
        true
    }
}

/// Keeps every row: a sort that combines nothing.
#[derive(Clone, Copy, Debug)]
pub struct KeepAll;

impl RowOperation for KeepAll {
    const COMBINES: bool = false;
    fn combine(&self, _: &mut Vec<u8>, _: &[u8]) {}
}

/// Keeps the first row of each key.
#[derive(Clone, Copy, Debug)]
pub struct KeepFirst;

impl RowOperation for KeepFirst {
    const COMBINES: bool = true;
    fn combine(&self, _: &mut Vec<u8>, _: &[u8]) {}
}

//! Computes the budget for a Parquet file whose pages did not fit. The error names this budget, so that the next try
//! succeeds.
//!
//! A reader that failed for lack of memory has read only some pages. The headers of all pages of the chosen columns are
//! therefore read for the error message. For each page, some KiB are read.
//!
//! The pages that are in memory at the same time have to fit in the memory that the rest of the job leaves free. In
//! most jobs, each step takes a fixed fraction of the budget. The memory that was free for this reader is therefore
//! assumed to grow in proportion to the budget. Some fractions are rounded to powers of two, so a quarter is added to
//! the result.

use inshore_store::Budget;
use parquet::{
    basic::{Compression, Type},
    file::metadata::{ColumnChunkMetaData, ParquetMetaData},
};

use super::parquet_pages::{ParquetFile, start_of};
use crate::{
    Error,
    allowance::{PAGES, PIECE_SHARE, UNCOUNTED_BYTES},
};

/// The maximum number of page headers that are read. If a file has more pages, its pages are small.
const HEADERS_MAX: usize = 10_000;
/// The memory of Brotli decoding with the default window of 4 MiB. While the window grows, the previous window of 2 MiB
/// is also in memory.
const BROTLI_WINDOW_BYTES: u64 = 6 << 20;

/// The memory for the pages of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageMemory {
    /// The size of the largest page, compressed or not.
    pub piece_bytes: u64,
    /// The largest memory, in bytes, that the pages of all columns take at the same time.
    pub held_bytes: u64,
}

impl PageMemory {
    /// Computes the memory for the columns `leaves` from their page headers in all row groups. Batches have
    /// `batch_rows` rows. `bytes` is the size of the page or value that was too large.
    pub fn of(
        file: &ParquetFile,
        metadata: &ParquetMetaData,
        leaves: &[usize],
        batch_rows: usize,
        bytes: u64,
    ) -> PageMemory {
        let mut left = HEADERS_MAX;
        let mut columns = vec![(0, 0); leaves.len()];
        let mut needs = PageMemory::default();
        for group in metadata.row_groups() {
            for (&leaf, (dictionary, page)) in leaves.iter().zip(&mut columns) {
                let chunk = group.column(leaf);
                let found = LargestPages::of(file, chunk, &mut left);
                needs.piece_bytes = needs.piece_bytes.max(found.largest);
                *dictionary = found.dictionary.max(*dictionary);
                *page = found.held(chunk, group.num_rows().max(1) as u64, batch_rows as u64).max(*page);
            }
        }
        let pages = columns.iter().map(|(dictionary, page)| dictionary + page).sum::<u64>();
        // If `bytes` is larger than every page, the decoding of one page needs these bytes in addition to the pages in
        // memory.
        let beside = if bytes > needs.piece_bytes { bytes } else { 0 };
        PageMemory { piece_bytes: needs.piece_bytes.max(bytes), held_bytes: pages + beside }
    }
}

/// The sizes of the largest pages of a column chunk, in bytes.
#[derive(Default)]
struct LargestPages {
    largest: u64,
    dictionary: u64,
    packed: u64,
    unpacked: u64,
}

impl LargestPages {
    fn of(file: &ParquetFile, chunk: &ColumnChunkMetaData, left: &mut usize) -> LargestPages {
        let mut pages = LargestPages::default();
        let mut start = u64::try_from(start_of(chunk)).unwrap_or(u64::MAX);
        let end = start.saturating_add(u64::try_from(chunk.compressed_size()).unwrap_or(0));
        while start < end && *left > 0 {
            let Some(header) = file.header_at(start) else { break };
            let sizes = [header.compressed_bytes, header.uncompressed_bytes].map(u64::try_from);
            let [Ok(packed), Ok(unpacked)] = sizes else { break };
            pages.largest = pages.largest.max(packed).max(unpacked);
            if header.is_dictionary {
                // The memory contains the dictionary page and the values decoded from this page.
                pages.dictionary = pages.dictionary.max(2 * unpacked);
            } else {
                (pages.packed, pages.unpacked) = (pages.packed.max(packed), pages.unpacked.max(unpacked));
            }
            start = start.saturating_add(header.header_bytes as u64).saturating_add(packed);
            *left -= 1;
        }
        pages
    }

    /// Returns the memory, in bytes, of the data pages that are in memory at the same time.
    fn held(&self, chunk: &ColumnChunkMetaData, rows: u64, batch_rows: u64) -> u64 {
        let window = match chunk.compression() {
            Compression::BROTLI(_) => BROTLI_WINDOW_BYTES,
            _ => 0,
        };
        let page = self.packed + self.unpacked;
        let pages = match chunk.column_descr().physical_type() {
            // Texts of a batch are views into all of the batch's pages, and into the previous dictionary.
            Type::BYTE_ARRAY => {
                let batch = chunk.uncompressed_size().max(0) as u64 / rows * batch_rows.min(rows);
                (2 * page).max(page + 2 * batch) + self.dictionary
            }
            _ => page,
        };
        pages + window
    }
}

/// Adds a sufficient budget, larger than `budget`, to an error for lack of memory. The reader that failed has reserved
/// `reserved_bytes`. `needs` is called with the size of the page or value that was too large, or with 0 if the size is
/// unknown.
pub(super) fn enough(
    error: Error,
    needs: impl FnOnce(u64) -> PageMemory,
    budget: &Budget,
    reserved_bytes: u64,
) -> Error {
    let enough = |bytes| {
        let PageMemory { piece_bytes, held_bytes } = needs(bytes);
        let total = budget.memory_bytes();
        let free = (budget.free_bytes() + reserved_bytes).max(total / 32).max(1);
        let held = u128::from(held_bytes.saturating_sub(UNCOUNTED_BYTES));
        let all = u128::from(total) * held / u128::from(free);
        let all = u64::try_from(all / 4 * 5).unwrap_or(u64::MAX);
        let enough = all.max(piece_bytes.saturating_mul(PIECE_SHARE));
        enough.checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
    };
    match error {
        Error::TooLarge { place, what, bytes, limit, .. } if !budget.is_part() => {
            Error::TooLarge { place, what, bytes, limit, enough: Some(enough(bytes)) }
        }
        Error::Store(inshore_store::Error::OverBudget {
            what: PAGES,
            wanted,
            free,
            total,
            enough: Some(least),
        }) => {
            let enough = Some(enough(0).max(least));
            Error::Store(inshore_store::Error::OverBudget { what: PAGES, wanted, free, total, enough })
        }
        other => other,
    }
}

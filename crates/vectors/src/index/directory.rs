//! The directory of a file of lists.

use std::ops::Range;

use inshore_store::Reservation;

/// `Directory` holds the position of each list in the file.
#[derive(Debug)]
pub(crate) struct Directory {
    firsts: Vec<u64>,
    entry_bytes: u64,
    _reservation: Reservation,
}

impl Directory {
    /// Creates a directory of lists whose vectors have `entry_bytes` bytes. `firsts` has the number of vectors before each
    /// list, and that of all.
    pub fn new(firsts: Vec<u64>, entry_bytes: u64, reservation: Reservation) -> Directory {
        Directory { firsts, entry_bytes, _reservation: reservation }
    }

    /// Returns the number of vectors of a list.
    pub fn count(&self, list: u32) -> u64 {
        self.firsts[list as usize + 1] - self.firsts[list as usize]
    }

    /// Returns the byte range of the lists `lists`, which are adjacent in the file.
    pub fn bytes_of(&self, lists: Range<u32>) -> Range<u64> {
        self.firsts[lists.start as usize] * self.entry_bytes
            ..self.firsts[lists.end as usize] * self.entry_bytes
    }

    /// Splits the sequence of all lists into spans. A span has at most `bytes` bytes, or is one list.
    pub fn spans(&self, bytes: u64) -> Vec<Range<u32>> {
        let lists = self.firsts.len() as u32 - 1;
        let (mut spans, mut start) = (Vec::new(), 0);
        for list in 1..=lists {
            let is_full = list < lists && {
                let range = self.bytes_of(start..list + 1);
                range.end - range.start > bytes
            };
            if is_full || list == lists {
                spans.push(start..list);
                start = list;
            }
        }
        spans
    }

    /// Returns the largest number of bytes of a list.
    pub fn list_bytes_max(&self) -> u64 {
        self.firsts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0) * self.entry_bytes
    }
}

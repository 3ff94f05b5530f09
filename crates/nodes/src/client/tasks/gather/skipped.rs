//! Checks the rows of shards whose remaining rows are not needed. A node sends these rows before the rows of
//! its next shard.

use inshore_kernel::{Answer, PartRow};

use super::PART_BYTES_MAX;

/// The position in a shard up to which an attempt has sent rows that the client does not need.
#[derive(Debug, Default)]
pub(super) struct SkippedRows {
    piece: u64,
    /// The bytes of the shard that the rows cover, counted from the position at which the attempt began.
    /// `is_over` is true at the end of the shard.
    reach: Option<u64>,
    is_over: bool,
    /// The bytes so far of a block's result that arrives in several rows.
    beginning: usize,
}

impl SkippedRows {
    /// Returns true if a row reaches further than the rows before, within a piece of `piece_bytes` bytes. A
    /// stream of rows without progress could be endless.
    pub fn goes_on(&mut self, row: &PartRow, piece_bytes: u64) -> bool {
        if row.number != self.piece {
            let is_later = row.number > self.piece;
            *self = SkippedRows { piece: row.number, ..SkippedRows::default() };
            if !is_later {
                return false;
            }
        }
        match &row.answer {
            _ if self.is_over => false,
            Answer::Beginning(bytes) => {
                self.beginning += bytes.len();
                !bytes.is_empty() && self.beginning <= PART_BYTES_MAX
            }
            Answer::Part(_) => {
                let reach = row.reach.bytes;
                let is_further = self.reach.is_none_or(|before| before < reach) && reach <= piece_bytes;
                (self.reach, self.beginning) = (Some(reach), 0);
                is_further
            }
            Answer::End | Answer::Failed(_) => {
                self.is_over = true;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use inshore_kernel::ResumePosition;

    use super::*;

    #[test]
    fn rows_that_are_passed_over_come_to_an_end() {
        let row =
            |number, bytes, answer| PartRow { number, reach: ResumePosition { bytes, lines: 0 }, answer };
        let part = |number, bytes| row(number, bytes, Answer::Part(Vec::new()));
        let beginning = |bytes| row(7, 0, Answer::Beginning(vec![0; bytes]));
        let goes_on = |rows: Vec<PartRow>| {
            let mut skipped = SkippedRows::default();
            rows.iter().all(|row| skipped.goes_on(row, 100))
        };
        let end = || row(4, 0, Answer::End);
        assert!(goes_on(vec![part(4, 10), part(4, 100), end(), beginning(5), beginning(5), part(7, 1)]));
        assert!(goes_on(vec![end(), part(5, 100), row(5, 0, Answer::Failed("x".to_string())), part(6, 1)]));
        for bad in [
            vec![part(4, 10), part(4, 10)],
            vec![part(4, 10), part(4, 9)],
            vec![part(4, 101)],
            vec![part(4, 10), part(3, 11)],
            vec![end(), end()],
            vec![end(), part(4, 10)],
            vec![beginning(0)],
            vec![beginning(PART_BYTES_MAX), beginning(1)],
        ] {
            assert!(!goes_on(bad));
        }
    }
}

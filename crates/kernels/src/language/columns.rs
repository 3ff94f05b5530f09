//! Languages of the rows of a table.
//!
//! ```text
//!   caller: read batches, copy texts into pieces ──► worker: score ─┐
//!                                                ──► worker: score ─┴──► caller: verdicts, in order
//! ```
//!
//! A piece has about as many bytes as the budget has for one, however long its rows are; what is longer than a piece is
//! scored where it was read, so that a few long rows take no more memory than the reader has for them.

use arrow_array::{Array, cast::AsArray};
use arrow_schema::DataType;
use inshore_store::Context;
use inshore_tables::{Input, TableReader};

use super::{Classifier, Reader, Verdict};
use crate::{Result, ordered::in_order};

/// Rows that are read at once, and rows of a piece at most.
const BATCH_ROWS: usize = 4096;
/// Bytes of the texts of a piece; less where the budget is small.
const PIECE_BYTES: u64 = 1 << 20;
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// Some rows, one after the other.
#[derive(Default)]
struct Piece {
    texts: Vec<u8>,
    rows: Vec<Row>,
}

enum Row {
    /// A text that ends here in the piece, and begins where the one before it does.
    Text(usize),
    /// A text that was too long for a piece.
    Scored(Option<Verdict>),
}

impl Piece {
    fn score(&self, classifier: &Classifier) -> Vec<Option<Verdict>> {
        let (mut reader, mut start) = (Reader::default(), 0);
        let verdict = |row: &Row| match *row {
            Row::Text(end) => {
                let text = &self.texts[start..end];
                start = end;
                classifier.score(&mut reader, text).verdict()
            }
            Row::Scored(verdict) => verdict,
        };
        self.rows.iter().map(verdict).collect()
    }
}

/// Tells the language of each row of a column of text, in order, with all threads of the job; a null is an empty text. Gives
/// the row's number, from 0, to `each`.
///
/// Memory: what [`TableReader`] takes, and a piece of a quarter of what is free, divided by the threads and two more (64 KiB
/// to 1 MiB), for each of them.
///
/// # Errors
/// [`Error::Table`](crate::Error::Table) for a table that cannot be read, or has no such column; what `each` gives;
/// [`Error::Store`](crate::Error::Store) where the job was stopped or has too little memory.
pub fn identify_column(
    job: &Context,
    classifier: &Classifier,
    input: &Input,
    column: &str,
    mut each: impl FnMut(u64, Option<Verdict>) -> Result<()>,
) -> Result<()> {
    let (budget, threads) = (job.budget(), job.budget().threads());
    // One more than workers is on its way, and one is made.
    let pieces = threads as u64 + 2;
    let piece_bytes = (budget.free_bytes() / 4 / pieces).clamp(PIECE_BYTES_MIN, PIECE_BYTES);
    let _memory = budget.reserve(pieces * piece_bytes, "rows whose language is told")?;
    let mut table = TableReader::open(input, &[(column, DataType::Utf8)], BATCH_ROWS, budget)?;
    let (mut reader, mut position, mut row) = (Reader::default(), 0, 0);
    // The batch that is divided, and the first of its rows that is in no piece.
    let mut batch = None;
    let next = || {
        job.check_cancelled()?;
        let mut piece = Piece::default();
        loop {
            let Some((texts, first)) = &mut batch else {
                if !piece.rows.is_empty() {
                    return Ok(Some(piece));
                }
                let Some(read) = table.next_batch()? else { return Ok(None) };
                job.progress().add(table.position().saturating_sub(position));
                position = table.position();
                batch = Some((read.column(0).as_string::<i32>().clone(), 0));
                continue;
            };
            while *first < texts.len() {
                let text = if texts.is_null(*first) { "" } else { texts.value(*first) };
                let is_long = text.len() as u64 > piece_bytes;
                let is_full = !is_long && (piece.texts.len() + text.len()) as u64 > piece_bytes;
                if is_full || piece.rows.len() == BATCH_ROWS {
                    return Ok(Some(piece));
                }
                piece.rows.push(match is_long {
                    true => Row::Scored(classifier.score(&mut reader, text.as_bytes()).verdict()),
                    false => {
                        piece.texts.extend_from_slice(text.as_bytes());
                        Row::Text(piece.texts.len())
                    }
                });
                *first += 1;
            }
            batch = None;
        }
    };
    in_order(
        threads,
        next,
        |piece: Piece| Ok(piece.score(classifier)),
        |verdicts| {
            for verdict in verdicts {
                each(row, verdict)?;
                row += 1;
            }
            Ok(())
        },
    )
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use inshore_store::{Budget, Cancel};

    use super::*;

    #[test]
    fn rows_are_told_in_order_by_any_number_of_threads() {
        let classifier = Classifier::new(&crate::language::tests::profiles(5000));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let long = "der faule Hund ".repeat(20_000);
        let texts = ["the dog is over there", "der Hund ist faul", "", "le chien est paresseux", &long];
        let mut csv = "id,body\n".to_string();
        // Mostly short rows, and some that are longer than a piece may be.
        let which = |row: usize| if row % 997 == 5 { 4 } else { row * row % 4 };
        for row in 0..9_000 {
            writeln!(csv, "{row},{}", texts[which(row)]).unwrap();
        }
        std::fs::write(&path, csv).unwrap();
        let expected = texts.map(|text| classifier.score(&mut Reader::default(), text.as_bytes()).verdict());
        for threads in [1, 2, 5] {
            let job = Context::new(Budget::new(8 << 20, threads), Cancel::default());
            let mut told = 0;
            let each = |row: u64, verdict| {
                assert_eq!((row, verdict), (told, expected[which(row as usize)]));
                told += 1;
                Ok(())
            };
            identify_column(&job, &classifier, &Input::new(&path), "body", each).unwrap();
            assert_eq!(told, 9_000);
            assert_eq!(job.budget().reserved_bytes(), 0);
            assert!(job.budget().reserved_bytes_max() <= 8 << 20);
        }
    }

    #[test]
    fn a_column_that_is_not_there_is_an_error_and_so_is_what_each_gives() {
        let classifier = Classifier::new(&crate::language::tests::profiles(50));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, "body\nthe dog\nthe fox\n").unwrap();
        let job = Context::new(Budget::new(8 << 20, 3), Cancel::default());
        let tell = |column: &str, each: &mut dyn FnMut(u64, Option<Verdict>) -> Result<()>| {
            identify_column(&job, &classifier, &Input::new(&path), column, each).unwrap_err().to_string()
        };
        assert!(tell("text", &mut |_, _| Ok(())).contains("text"));
        let stop = &mut |_, _| Err(inshore_store::Error::Cancelled.into());
        assert_eq!(tell("body", stop), inshore_store::Error::Cancelled.to_string());
    }
}

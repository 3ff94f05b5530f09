//! This module identifies the languages of the rows of a table.
//!
//! ```text
//!   caller: read batches, copy texts into pieces ──► worker: score ─┐
//!                                                ──► worker: score ─┴──► caller: verdicts, in order
//! ```
//!
//! A piece is a group of consecutive rows, which one worker scores. The budget determines the approximate size of a
//! piece in bytes, however long the rows are. The reading thread itself scores a text that is longer than a piece, so
//! that long rows need only the memory of the reader.

use arrow_array::{Array, cast::AsArray};
use arrow_schema::DataType;
use inshore_store::Context;
use inshore_tables::{Input, TableReader};

use super::{Classification, Classifier, Reader};
use crate::{Result, ordered::in_order};

/// The number of rows that are read in one batch. A piece has at most this number of rows.
const BATCH_ROWS: usize = 4096;
/// The target size of a piece's texts, in bytes. With a small budget, pieces are smaller.
const PIECE_BYTES: u64 = 1 << 20;
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// Consecutive rows of the table, which one worker scores.
#[derive(Default)]
struct Piece {
    texts: Vec<u8>,
    rows: Vec<Row>,
}

enum Row {
    /// A text of the piece. The text begins at the end of the previous text, and ends at this offset.
    Text(usize),
    /// The result for a text that was too long for a piece.
    Scored(Option<Classification>),
}

impl Piece {
    fn score(&self, classifier: &Classifier) -> Vec<Option<Classification>> {
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

/// Identifies the language of each row of a text column with all threads of the job. A null counts as an empty text.
/// The function calls `each` with the number of each row, from 0, and the language of the row, in the order of rows.
///
/// The function needs the memory of a [`TableReader`], of one piece for each thread, and of two further pieces. All
/// pieces together take a quarter of the free budget, and each piece has 64 KiB to 1 MiB.
///
/// # Errors
/// - Returns [`Error::Table`](crate::Error::Table) if the table cannot be read, or does not have the column.
/// - Returns the errors of `each`.
/// - Returns [`Error::Store`](crate::Error::Store) if the job was stopped or has too little memory.
pub fn identify_column(
    job: &Context,
    classifier: &Classifier,
    input: &Input,
    column: &str,
    mut each: impl FnMut(u64, Option<Classification>) -> Result<()>,
) -> Result<()> {
    let (budget, threads) = (job.budget(), job.budget().threads());
    // The workers and their queue together hold one piece more than there are threads. One further piece is being
    // filled.
    let pieces = threads as u64 + 2;
    let piece_bytes = (budget.free_bytes() / 4 / pieces).clamp(PIECE_BYTES_MIN, PIECE_BYTES);
    let _memory = budget.reserve(pieces * piece_bytes, "rows of text")?;
    let mut table = TableReader::open(input, &[(column, DataType::Utf8)], BATCH_ROWS, budget)?;
    let (mut reader, mut position, mut row) = (Reader::default(), 0, 0);
    // `batch` is the batch that is being divided into pieces, together with the index of its first row that is not yet
    // in a piece.
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
    fn languages_of_rows_come_in_order_with_any_number_of_threads() {
        let classifier = Classifier::new(&crate::language::tests::profiles(5000));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let long = "der faule Hund ".repeat(20_000);
        let texts = ["the dog is over there", "der Hund ist faul", "", "le chien est paresseux", &long];
        let mut csv = "id,body\n".to_string();
        // Most rows are short, and some are longer than a piece.
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
    fn a_missing_column_and_an_error_of_the_consumer_end_the_run() {
        let classifier = Classifier::new(&crate::language::tests::profiles(50));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, "body\nthe dog\nthe fox\n").unwrap();
        let job = Context::new(Budget::new(8 << 20, 3), Cancel::default());
        let tell = |column: &str, each: &mut dyn FnMut(u64, Option<Classification>) -> Result<()>| {
            identify_column(&job, &classifier, &Input::new(&path), column, each).unwrap_err().to_string()
        };
        assert!(tell("text", &mut |_, _| Ok(())).contains("text"));
        let stop = &mut |_, _| Err(inshore_store::Error::Cancelled.into());
        assert_eq!(tell("body", stop), inshore_store::Error::Cancelled.to_string());
    }
}

//! Reads FASTA and FASTQ as streams of bases.
//!
//! ```text
//!   FASTA   >name ...            FASTQ   @name ...
//!           ACGT...                      ACGT...            one line
//!           ACGT...                      +
//!                                        (as many letters of quality)
//! ```
//!
//! The output consists of blocks of letters in which [`BREAK`] separates sequences. A stretch is a fixed number of
//! consecutive letters, such as a k-mer. A block begins with the last letters of the previous block, so that no stretch
//! across two blocks is lost. The number of these letters is the overlap. If the overlap is one letter shorter than a
//! stretch, no stretch is counted twice. A line may be of any length, and ends with a line feed, a carriage return, or
//! both. A byte order mark before the first record is skipped.
//!
//! A file may be passed in pieces, each of which ends at the end of a line. A piece then [begins](PieceStart) within a
//! sequence or before a record. [`PieceEnds`] contains the first and the last letters of a piece. The stretches that
//! cross the borders of pieces are counted from these letters.

use memchr::memchr2;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, bases::is_base};

/// The separator of sequences, a letter other than a base.
pub(crate) const BREAK: u8 = b'\n';

/// The byte order mark that some programs write at the start of UTF-8 text.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The position in a file at which a piece begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceStart {
    /// The beginning of a file. The first letter of the file shows whether the format is FASTA or FASTQ.
    File,
    /// The beginning of a line of FASTA, which may be in the middle of a sequence.
    FastaLine,
    /// The beginning of a record of FASTQ.
    FastqRecord,
}

/// The first and last letters of a piece of FASTA. Letters that are no bases are replaced by N.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceEnds {
    /// The first letters of the piece, up to its first header. Their number is at most the overlap of blocks.
    pub head: String,
    /// The last letters of the piece, after its last header. Their number is at most the overlap of blocks.
    pub tail: String,
    /// True if the piece has a header.
    pub has_header: bool,
}

/// Converts the bytes of FASTA or FASTQ files to blocks of bases.
pub(crate) struct SequenceReader<F> {
    block: Vec<u8>,
    block_bytes: usize,
    /// The overlap, which is the number of letters that a block repeats from the previous block.
    overlap: usize,
    state: State,
    /// True if the last byte was a carriage return. A line feed that follows belongs to the same line end.
    has_return: bool,
    /// How many bytes of a byte order mark were found at the beginning of the file.
    mark: usize,
    /// The number of the current record in its file, from 1.
    record: u64,
    /// The number of letters of the current FASTQ sequence.
    letters: u64,
    /// The number of quality letters of the current FASTQ sequence.
    qualities: u64,
    /// The first letters of the current piece, up to its first header. Their number is at most `overlap`.
    head: Vec<u8>,
    has_header: bool,
    pub sequences: u64,
    pub bases: u64,
    emit: F,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first byte of a file.
    Begin,
    FastaHeader,
    /// At the beginning of a line of FASTA.
    FastaLine,
    FastaLetters,
    FastqBegin,
    FastqHeader,
    FastqLetters,
    FastqPlus,
    FastqPlusRest,
    FastqQuality,
}

impl<F: FnMut(Vec<u8>) -> Result<()>> SequenceReader<F> {
    /// Creates a reader that passes blocks of at most `block_bytes` bytes to `emit`.
    pub fn new(block_bytes: usize, overlap: usize, emit: F) -> Self {
        assert!(block_bytes > overlap + 1);
        SequenceReader {
            block: Vec::with_capacity(block_bytes),
            block_bytes,
            overlap,
            state: State::Begin,
            has_return: false,
            mark: 0,
            record: 0,
            letters: 0,
            qualities: 0,
            head: Vec::new(),
            has_header: false,
            sequences: 0,
            bases: 0,
            emit,
        }
    }

    /// Begins a file or a piece of a file, after the previous one [ended](Self::end_file).
    pub fn begin(&mut self, what: PieceStart) {
        self.state = match what {
            PieceStart::File => State::Begin,
            PieceStart::FastaLine => State::FastaLine,
            PieceStart::FastqRecord => State::FastqBegin,
        };
        self.mark = 0;
        self.head.clear();
        self.has_header = false;
    }

    /// Returns the first and last letters of the current piece, after the complete piece was passed to [`Self::take`].
    pub fn ends(&self) -> PieceEnds {
        // Every block except the first begins with `overlap` letters of the previous block, so the last letters are in
        // memory.
        let last = &self.block[self.block.len().saturating_sub(self.overlap)..];
        let tail = last.iter().rposition(|&letter| letter == BREAK).map_or(last, |end| &last[end + 1..]);
        let bases = |letters: &[u8]| -> String {
            let base = |&letter: &u8| if is_base(letter) { char::from(letter) } else { 'N' };
            letters.iter().map(base).collect()
        };
        PieceEnds { head: bases(&self.head), tail: bases(tail), has_header: self.has_header }
    }

    /// Reads the next bytes of a file called `name`.
    ///
    /// # Errors
    /// - Returns [`Error::BadValue`] if a record is neither FASTA nor FASTQ. The error names the number of the record.
    /// - Returns the errors of `emit`.
    pub fn take(&mut self, name: &str, mut bytes: &[u8]) -> Result<()> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.has_return) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let line = memchr2(b'\n', b'\r', bytes);
            let (part, ended) = (&bytes[..line.unwrap_or(bytes.len())], line.is_some());
            let mut used = part.len() + usize::from(ended);
            match self.state {
                State::Begin => {
                    used = 0;
                    self.state = match first {
                        _ if Some(&first) == BYTE_ORDER_MARK.get(self.mark) => {
                            (used, self.mark) = (1, self.mark + 1);
                            State::Begin
                        }
                        _ if (1..BYTE_ORDER_MARK.len()).contains(&self.mark) => {
                            return Err(self.bad(name, "'>' of FASTA or '@' of FASTQ", bytes));
                        }
                        b'>' => State::FastaLine,
                        b'@' => State::FastqBegin,
                        b'\n' | b'\r' => {
                            // After an empty line, a byte order mark is no longer skipped.
                            (used, self.mark) = (1, BYTE_ORDER_MARK.len());
                            State::Begin
                        }
                        _ => return Err(self.bad(name, "'>' of FASTA or '@' of FASTQ", bytes)),
                    };
                }
                State::FastaLine | State::FastaLetters if part.is_empty() => self.state = State::FastaLine,
                State::FastaLine if first == b'>' => {
                    self.begin_sequence()?;
                    self.state = if ended { State::FastaLine } else { State::FastaHeader };
                }
                State::FastaHeader => self.state = if ended { State::FastaLine } else { State::FastaHeader },
                State::FastaLine | State::FastaLetters => {
                    self.put(part)?;
                    self.state = if ended { State::FastaLine } else { State::FastaLetters };
                }
                State::FastqBegin => match first {
                    b'@' => {
                        self.begin_sequence()?;
                        self.state = if ended { State::FastqLetters } else { State::FastqHeader };
                    }
                    b'\n' | b'\r' => used = 1,
                    _ => return Err(self.bad(name, "'@' at the beginning of a record", bytes)),
                },
                State::FastqHeader => {
                    self.state = if ended { State::FastqLetters } else { State::FastqHeader }
                }
                State::FastqLetters => {
                    self.letters += part.len() as u64;
                    self.put(part)?;
                    self.state = if ended { State::FastqPlus } else { State::FastqLetters };
                }
                State::FastqPlus if first != b'+' => {
                    return Err(self.bad(name, "'+' after one line of bases", bytes));
                }
                State::FastqPlus | State::FastqPlusRest => {
                    self.state = if ended { State::FastqQuality } else { State::FastqPlusRest };
                }
                State::FastqQuality => {
                    self.qualities += part.len() as u64;
                    if ended {
                        self.check_quality(name)?;
                        self.state = State::FastqBegin;
                    }
                }
            }
            self.has_return = used > 0 && bytes[used - 1] == b'\r';
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Ends a file.
    ///
    /// # Errors
    /// - Returns [`Error::Damaged`] if a FASTQ record is truncated.
    /// - Returns the errors of `emit`.
    pub fn end_file(&mut self, name: &str) -> Result<()> {
        let is_cut = match self.state {
            State::FastqQuality => self.check_quality(name).is_err(),
            State::FastqBegin => false,
            State::Begin | State::FastaHeader | State::FastaLine | State::FastaLetters => false,
            _ => true,
        };
        if is_cut {
            return Err(Error::damaged(name, format!("truncated: record {} does not end", self.record)));
        }
        self.state = State::Begin;
        self.has_return = false;
        self.mark = 0;
        self.record = 0;
        self.put(&[BREAK])
    }

    /// Emits the last block. Returns the number of sequences and the number of letters.
    ///
    /// # Errors
    /// Returns the errors of `emit`.
    pub fn finish(mut self) -> Result<(u64, u64)> {
        if !self.block.is_empty() {
            (self.emit)(std::mem::take(&mut self.block))?;
        }
        Ok((self.sequences, self.bases))
    }

    fn begin_sequence(&mut self) -> Result<()> {
        self.record += 1;
        self.sequences += 1;
        (self.letters, self.qualities) = (0, 0);
        self.put(&[BREAK])
    }

    fn check_quality(&self, name: &str) -> Result<()> {
        if self.letters == self.qualities {
            return Ok(());
        }
        Err(Error::BadValue {
            place: format!("{name}: record {}", self.record),
            expected: format!("{} quality values, one for each base", self.letters),
            found: self.qualities.to_string(),
        })
    }

    fn bad(&self, name: &str, expected: &str, found: &[u8]) -> Error {
        let line = found.split(|&byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        Error::BadValue {
            place: format!("{name}: record {}", self.record),
            expected: expected.to_string(),
            found: crate::error::quote(line),
        }
    }

    fn put(&mut self, mut letters: &[u8]) -> Result<()> {
        if letters == [BREAK] {
            self.has_header = true;
        } else {
            self.bases += letters.len() as u64;
            if !self.has_header && self.head.len() < self.overlap {
                let wanted = self.overlap - self.head.len();
                self.head.extend_from_slice(&letters[..wanted.min(letters.len())]);
            }
        }
        while !letters.is_empty() {
            let part = letters.len().min(self.block_bytes - self.block.len());
            self.block.extend_from_slice(&letters[..part]);
            letters = &letters[part..];
            if self.block.len() == self.block_bytes {
                let tail = self.block[self.block_bytes - self.overlap..].to_vec();
                let full = std::mem::replace(&mut self.block, Vec::with_capacity(self.block_bytes));
                (self.emit)(full)?;
                self.block.extend_from_slice(&tail);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text in pieces, and joins the sequences of all blocks.
    fn read(text: &[u8], piece: usize, block: usize, overlap: usize) -> Result<Vec<String>> {
        let mut all: Vec<u8> = Vec::new();
        let mut first = true;
        let mut sequences = SequenceReader::new(block, overlap, |block: Vec<u8>| {
            let skip = if std::mem::replace(&mut first, false) { 0 } else { overlap };
            all.extend_from_slice(&block[skip..]);
            Ok(())
        });
        for part in text.chunks(piece) {
            sequences.take("test.fa", part)?;
        }
        sequences.end_file("test.fa")?;
        sequences.finish()?;
        let text = String::from_utf8(all).unwrap();
        Ok(text.split('\n').filter(|sequence| !sequence.is_empty()).map(str::to_string).collect())
    }

    #[test]
    fn both_formats_are_read_in_pieces_of_any_size() {
        let fasta = b">one\nACGT\nAC\r\n\n>two words\n\nGGG\n>three\n>four\nTTTT";
        let fastq = b"@one\nACGTAC\n+\n@>++++\n@two\r\nGGG\r\n+two\r\n+@I\r\n\n@four\nTTTT\n+\nIIII";
        for text in [&fasta[..], &fastq[..]] {
            for piece in 1..text.len() {
                for (block, overlap) in [(100, 3), (7, 3), (5, 0), (6, 4)] {
                    assert_eq!(
                        read(text, piece, block, overlap).unwrap(),
                        ["ACGTAC", "GGG", "TTTT"],
                        "{piece} {block}"
                    );
                }
            }
        }
    }

    #[test]
    fn lines_that_end_with_carriage_returns_and_a_mark_before_them_are_read() {
        for (text, expected) in [
            (&b">s\rACG\rGT\r>t\rTTT\r"[..], &["ACGGT", "TTT"][..]),
            (b"@a\rACG\r+\rIII\r@b\rTT\r+\rII", &["ACG", "TT"]),
            (b"\xef\xbb\xbf>s\r\nACG\r\n", &["ACG"]),
            (b"\xef\xbb\xbf\n@s\nACG\n+\nIII\n", &["ACG"]),
        ] {
            for piece in 1..text.len() {
                assert_eq!(read(text, piece, 100, 2).unwrap(), expected, "{piece}");
            }
        }
        for text in [&b"\xef\xbb>s\nACG\n"[..], b"\n\xef\xbb\xbf>s\nACG\n", b"\xef\xbb\xbf\xef\xbb\xbf>s\n"] {
            // The texts have an incomplete byte order mark, a mark after a line, and two marks.
            assert!(read(text, 100, 100, 2).is_err(), "{text:?}");
        }
    }

    /// Returns the sequences of a FASTA text, by a naive method.
    fn fasta_of(text: &str) -> Vec<String> {
        let mut sequences: Vec<String> = Vec::new();
        for line in text.split(['\n', '\r']) {
            match (line.starts_with('>'), sequences.last_mut()) {
                (true, _) => sequences.push(String::new()),
                (false, Some(last)) => last.push_str(line),
                (false, None) => assert!(line.is_empty(), "no header: {line}"),
            }
        }
        sequences.retain(|sequence| !sequence.is_empty());
        sequences
    }

    proptest::proptest! {
        /// Random texts cause no panic. For every division into pieces, they give the same sequences, or an error.
        #[test]
        fn any_bytes_are_read_the_same_however_they_are_cut(
            text in "[>@+ACI\r\n]{0,60}|@[AC]{0,4}\r?\n\\+\n[I@>]{0,4}\r?\n@?[ACI+\r\n]{0,20}",
            piece in 1usize..9,
            (block, overlap) in (5usize..20, 0usize..4),
        ) {
            let whole = read(text.as_bytes(), text.len().max(1), 1000, 3).map_err(|error| error.to_string());
            let cut = read(text.as_bytes(), piece, block, overlap).map_err(|error| error.to_string());
            match (whole, cut) {
                (Ok(whole), Ok(cut)) => proptest::prop_assert_eq!(whole, cut),
                // The messages may differ, since an error quotes only the bytes of one piece.
                (whole, cut) => proptest::prop_assert_eq!(whole.is_err(), cut.is_err()),
            }
        }

        #[test]
        fn fasta_has_the_sequences_of_a_naive_reader(text in "[\r\n]{0,3}(>[a-z ]{0,5}\r?\n([ACGTN]{0,9}\r?\n){0,4}){0,5}") {
            let found = read(text.as_bytes(), 7, 16, 3).unwrap();
            proptest::prop_assert_eq!(found, fasta_of(text.trim_start_matches(['\r', '\n'])));
        }
    }

    #[test]
    fn input_of_neither_format_is_refused_with_its_record() {
        for (text, expected) in [
            (&b"ACGT\n"[..], "test.fa: record 0: expected '>' of FASTA or '@' of FASTQ, got 'ACGT'"),
            (b"@a\nAC\nGT\n", "record 1: expected '+' after one line of bases, got 'GT'"),
            (b"@a\nAC\n+\nIII\n", "record 1: expected 2 quality values, one for each base, got 3"),
            (b"@a\nAC\n+\nII\nx\n", "record 1: expected '@' at the beginning of a record, got 'x'"),
            (b"@a\nAC\n+\nII\n@b\nAC\n", "test.fa: truncated: record 2 does not end"),
            (b"@a\nAC\n+\nI", "test.fa: truncated: record 1 does not end"),
        ] {
            let error = read(text, 100, 100, 3).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(read(b"", 1, 10, 3).unwrap().is_empty());
    }
}

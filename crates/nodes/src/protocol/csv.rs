//! Finds the ends of CSV records.
//!
//! A quote at the beginning of a field opens quoted text, which extends to the closing quote and may contain
//! line feeds; two quotes inside stand for one quote character. In a field that began with another character, a
//! quote is an ordinary character, as in the table reader (csv-core). The number of quotes therefore does not
//! determine if a quote is open: `5" pipe` has one quote and opens none.
//!
//! Two users need the ends of records: loading, which cuts a file (`client/load.rs`), and the crate
//! `inshore-ops`, which reads the first records of a file on nodes. Both must agree with the table reader, so
//! both use [`CsvRecord`]. The type is in this crate, since loading is a part of this crate and `inshore-ops`
//! depends on it.
//!
//! Cost: text without quotes is skipped at the speed of the search for quotes. Text with quotes is processed 64 bytes
//! at a time by the parity of the quotes, as long as each opening quote is at a permitted position, and otherwise
//! quote by quote. Measured on one core of a shared Xeon: at least 40 GB/s without quotes or with long texts between
//! quotes, and 3.6 GB/s with a word in each pair of quotes (1.0 GB/s quote by quote).

use memchr::{memchr, memchr_iter, memchr2};

/// The byte order mark of UTF-8 at the beginning of a file, which is no part of the first field.
const MARK: &[u8; 3] = b"\xef\xbb\xbf";
const MARK_BYTES: u8 = MARK.len() as u8;
/// The number of bytes that are processed together, with one bit for each.
const BITS: usize = 64;

/// The position in a record of CSV.
///
/// ```
/// use inshore_nodes::CsvRecord;
/// let mut record = CsvRecord::new(b',');
/// assert_eq!(record.end(b"5\" pipe,\"a\nb", 0), None);
/// assert_eq!(record.end(b"\"\n1,2\n", 0), Some(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsvRecord {
    separator: u8,
    place: CsvPosition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CsvPosition {
    /// The position within the byte order mark, in bytes. The position after the mark also covers line feeds
    /// that follow directly.
    Mark(u8),
    /// The start of a record.
    Start,
    /// The position after a carriage return; a line feed would then end an empty line.
    Return,
    /// The beginning of a field that is not the first field.
    Field,
    /// A field without an opening quote, or text after a closing quote.
    Text,
    /// The position inside an open quote.
    Quoted,
    /// The position after a closing quote, or after the first of two quotes.
    Closed,
}

impl CsvRecord {
    /// Returns the state at the beginning of a file. `separator` is the field separator: neither a quote nor a line
    /// feed.
    pub fn new(separator: u8) -> CsvRecord {
        CsvRecord { separator, place: CsvPosition::Mark(0) }
    }

    /// Advances to the first end of a record whose line feed is at offset `from` or later, and returns the offset
    /// after the line feed. Returns `None` if no record ends in these bytes. Empty lines are not records and belong
    /// to the next record.
    pub fn end(&mut self, bytes: &[u8], from: usize) -> Option<usize> {
        let mut at = from.min(bytes.len());
        self.pass(&bytes[..at]);
        loop {
            let rest = &bytes[at..];
            let is_quoted = self.place == CsvPosition::Quoted;
            let next = if is_quoted { memchr(b'"', rest) } else { memchr2(b'"', b'\n', rest) };
            self.pass_plain(&rest[..next.unwrap_or(rest.len())]);
            let byte = rest[next?];
            let is_end = byte == b'\n' && !self.is_empty();
            self.step(byte);
            at += next? + 1;
            if is_end {
                return Some(at);
            }
        }
    }

    /// Advances over all of these bytes.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while let Some(quote) = memchr(b'"', bytes) {
            self.pass_plain(&bytes[..quote]);
            bytes = &bytes[quote..];
            let left = bytes.len();
            while let Some((some, others)) = bytes.split_first_chunk()
                && self.pass_by_number(some)
            {
                bytes = others;
            }
            if bytes.len() == left {
                let (some, others) = bytes.split_at(left.min(BITS));
                self.pass_by_quotes(some);
                bytes = others;
            }
        }
        self.pass_plain(bytes);
    }

    /// Advances over bytes in which every quote opens or closes, so that the quotes alternate. Returns false
    /// without any change if a quote is an ordinary character or there is no quote.
    fn pass_by_number(&mut self, bytes: &[u8; BITS]) -> bool {
        let quotes = bits_of(b'"', bytes);
        // A bit is set if a quote is open after the byte: if the number of quotes up to the byte is odd.
        let mut is_open = quotes;
        for by in [1, 2, 4, 8, 16, 32] {
            is_open ^= is_open << by;
        }
        if self.place == CsvPosition::Quoted {
            is_open = !is_open;
        }
        // A quote directly after a closing quote is the second quote of a pair that stands for one character.
        let before = bits_of(self.separator, bytes) | bits_of(b'\n', bytes) | quotes;
        let may_open = before << 1 | u64::from(self.may_open());
        if quotes == 0 || quotes & is_open & !may_open != 0 {
            return false;
        }
        self.place = if is_open >> (BITS - 1) == 1 { CsvPosition::Quoted } else { CsvPosition::Closed };
        self.pass_plain(&bytes[BITS - quotes.leading_zeros() as usize..]);
        true
    }

    fn pass_by_quotes(&mut self, bytes: &[u8]) {
        let mut at = 0;
        for quote in memchr_iter(b'"', bytes) {
            self.pass_plain(&bytes[at..quote]);
            self.step(b'"');
            at = quote + 1;
        }
        self.pass_plain(&bytes[at..]);
    }

    /// Advances over bytes without a quote.
    fn pass_plain(&mut self, mut bytes: &[u8]) {
        if self.place == CsvPosition::Quoted {
            return;
        }
        while let (CsvPosition::Mark(_), Some((&first, others))) = (self.place, bytes.split_first()) {
            self.step(first);
            bytes = others;
        }
        // Only the last two bytes matter: the longest relevant sequence is a line feed and a carriage return.
        for &byte in &bytes[bytes.len().saturating_sub(2)..] {
            self.step(byte);
        }
    }

    fn step(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (CsvPosition::Quoted, b'"') => CsvPosition::Closed,
            (CsvPosition::Quoted, _) => CsvPosition::Quoted,
            (CsvPosition::Mark(seen), byte) if MARK.get(usize::from(seen)) == Some(&byte) => {
                CsvPosition::Mark(seen + 1)
            }
            (_, b'"') if self.may_open() => CsvPosition::Quoted,
            (CsvPosition::Mark(MARK_BYTES), b'\n') => CsvPosition::Mark(MARK_BYTES),
            (_, b'\n') => CsvPosition::Start,
            (_, byte) if byte == self.separator => CsvPosition::Field,
            (CsvPosition::Mark(0) | CsvPosition::Start, b'\r') => CsvPosition::Return,
            _ => CsvPosition::Text,
        };
    }

    /// Returns true if a quote at this position opens quoted text.
    fn may_open(&self) -> bool {
        matches!(
            self.place,
            CsvPosition::Mark(0 | MARK_BYTES) | CsvPosition::Start | CsvPosition::Field | CsvPosition::Closed
        )
    }

    /// Returns true if a line that ended at this position would be empty. The table reader counts a carriage
    /// return after a byte order mark as a record.
    fn is_empty(&self) -> bool {
        matches!(self.place, CsvPosition::Mark(0 | MARK_BYTES) | CsvPosition::Start | CsvPosition::Return)
    }
}

/// Returns a bit mask of the bytes that equal `byte`, with the first byte as the lowest bit.
fn bits_of(byte: u8, bytes: &[u8; BITS]) -> u64 {
    const LOW: u64 = u64::from_ne_bytes([0x7f; 8]);
    let mut bits = 0;
    for (number, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let differs = u64::from_le_bytes(*eight) ^ u64::from_ne_bytes([byte; 8]);
        // This integer has the highest bit of each byte that is equal. The multiplication gathers these eight
        // bits in one byte.
        let is_same = !(((differs & LOW) + LOW) | differs | LOW);
        let eight_bits = (is_same >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= eight_bits << (8 * number);
    }
    bits
}

#[cfg(test)]
mod tests {
    use csv::{ByteRecord, ReaderBuilder, Terminator};
    use proptest::prelude::*;

    use super::*;

    /// Returns the ends of records according to the `csv` library with the settings of the table reader.
    fn read_ends(text: &[u8], separator: u8) -> Vec<usize> {
        // If the text ends within a record, the record ends after the additional byte.
        let more = [text, b"x"].concat();
        let mut reader = ReaderBuilder::new()
            .delimiter(separator)
            .has_headers(false)
            .flexible(true)
            .terminator(Terminator::Any(b'\n'))
            .from_reader(&*more);
        let (mut record, mut ends, mut start) = (ByteRecord::new(), Vec::new(), (0, 1));
        while reader.read_byte_record(&mut record).unwrap() {
            let end = (reader.position().byte(), reader.position().line());
            let is_empty =
                record.len() == 1 && record.as_slice() == b"\r" && end.0 - start.0 == end.1 - start.1 + 1;
            if !is_empty && end.0 <= text.len() as u64 {
                ends.push(end.0 as usize);
            }
            start = end;
        }
        ends
    }

    /// Returns the ends of records that [`CsvRecord`] finds block by block.
    fn found_ends<'a>(blocks: impl Iterator<Item = &'a [u8]>, separator: u8) -> Vec<usize> {
        let (mut record, mut ends, mut before) = (CsvRecord::new(separator), Vec::new(), 0);
        for block in blocks {
            let mut at = 0;
            while let Some(end) = record.end(&block[at..], 0) {
                at += end;
                ends.push(before + at);
            }
            before += block.len();
        }
        ends
    }

    /// Checks the next end from every position, and that the final state equals the state after single steps.
    fn check_places(text: &[u8], separator: u8, ends: &[usize]) {
        for from in 0..text.len() {
            let next = ends.iter().copied().find(|&end| end > from);
            assert_eq!(CsvRecord::new(separator).end(text, from), next, "{:?} {from}", text.escape_ascii());
        }
        let (mut slow, mut fast) = (CsvRecord::new(separator), CsvRecord::new(separator));
        text.iter().for_each(|&byte| slow.step(byte));
        fast.pass(text);
        assert_eq!(slow, fast, "{}", text.escape_ascii());
    }

    #[test]
    fn records_of_all_short_texts_end_where_the_reader_ends_them() {
        const LETTERS: &[u8; 6] = b"a,\"\n\r\t";
        for mark in [&b""[..], MARK, &MARK[..2]] {
            for length in 0..=5 {
                for number in 0..6_usize.pow(length) {
                    let letter = |place: u32| LETTERS[number / 6_usize.pow(place) % 6];
                    let text: Vec<u8> = mark.iter().copied().chain((0..length).map(letter)).collect();
                    for separator in [b',', b'\t'] {
                        let expected = read_ends(&text, separator);
                        for size in 1..=3 {
                            let found = found_ends(text.chunks(size), separator);
                            assert_eq!(found, expected, "{} by {size}", text.escape_ascii());
                        }
                        check_places(&text, separator, &expected);
                    }
                }
            }
        }
    }

    fn letters() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            6 => prop::sample::select(&b"a,\"\n\r\t"[..]).prop_map(|letter| vec![letter]),
            1 => (1..70_usize).prop_map(|count| vec![b'a'; count]),
        ]
    }

    /// Generates CSV text that is valid or nearly valid.
    fn fields() -> impl Strategy<Value = Vec<u8>> {
        const FIELDS: [&str; 10] = [
            ",\"a\"",
            ",\"a\n\"\"b\"",
            "\t\"a,b\tc\"",
            "\n\"a\"",
            ",a",
            "\t",
            ",\"\"",
            "\r\n",
            "\n\"\"\"\n\"",
            "\n\"\",\"\"",
        ];
        prop_oneof![
            60 => prop::sample::select(&FIELDS[..]).prop_map(|field| field.as_bytes().to_vec()),
            1 => letters(),
        ]
    }

    #[test]
    fn bits_tell_which_bytes_are_the_same() {
        let mut bytes = [0; BITS];
        for round in 0..256 {
            for (number, byte) in bytes.iter_mut().enumerate() {
                *byte =
                    [0, 0x80, 0xff, b'"', b'"' ^ 0x80, b'#', round as u8][(number * 7 + round * number) % 7];
            }
            for byte in [0, 0x80, 0xff, b'"', round as u8] {
                let bit = |number: usize| u64::from(bytes[number] == byte) << number;
                assert_eq!(bits_of(byte, &bytes), (0..BITS).map(bit).sum::<u64>());
            }
        }
    }

    proptest! {
        #[test]
        fn records_end_where_the_reader_ends_them_however_texts_are_cut(
            parts in prop_oneof![
                prop::collection::vec(letters(), 0..120),
                prop::collection::vec(fields(), 0..200),
            ],
            is_marked: bool,
            sizes in prop::collection::vec(1..90_usize, 1..20),
            is_tsv: bool,
        ) {
            let mark = if is_marked { &MARK[..] } else { b"" };
            let text = [mark, &*parts.concat()].concat();
            let separator = if is_tsv { b'\t' } else { b',' };
            let expected = read_ends(&text, separator);
            let (mut rest, mut blocks) = (&*text, Vec::new());
            for &size in sizes.iter().cycle() {
                let (block, others) = rest.split_at(size.min(rest.len()));
                blocks.push(block);
                rest = others;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(found_ends(blocks.into_iter(), separator), &*expected);
            check_places(&text, separator, &expected);
        }
    }
}

//! Cuts the bytes of a CSV file into records, and each record into fields.
//!
//! A field that begins with a quote ends with the closing quote. A quote in any other position is an ordinary
//! character. A record ends with a line feed, or a carriage return and a line feed. Empty lines are skipped.
//!
//! A record is parsed once it is complete in the buffer, so that its fields are slices of the buffer. Only a quoted
//! field that contains quotes is copied. The size of the buffer is limited by the longest record that is accepted, so a
//! quote that is never closed does not fill the memory.
//!
//! The `csv` crate is not used, for three reasons. It treats the end of the file as the end of an open quote. It treats
//! text after a closing quote as a part of the field. It does not report whether a carriage return was in quotes. Each
//! of these faults silently loses rows or characters.

use std::ops::Range;

use memchr::{memchr, memchr_iter, memchr2};

use crate::{Bytes, Error, Result};

const BUFFER_BYTES: usize = 64 << 10;
const MARK: &[u8] = "\u{feff}".as_bytes();

/// The records of a CSV file.
pub(super) struct Records {
    input: Bytes,
    separator: u8,
    /// The maximum number of bytes of a record.
    limit: u64,
    buffer: Vec<u8>,
    /// The range of the buffer whose bytes were read from the input, but not yet returned in records.
    unread: Range<usize>,
    has_ended: bool,
    /// The line on which the unread bytes begin, from 1.
    line: u64,
    /// The line on which the current record begins, from 1.
    record_line: u64,
    /// The fields of the current record.
    fields: Vec<Field>,
    /// The text of quoted fields that contain quotes. Each doubled quote is stored as a single quote.
    copied: Vec<u8>,
}

/// A field of the current record. `place` is its range in the copied bytes if `is_copied` is true, and otherwise in the
/// buffer.
struct Field {
    place: Range<usize>,
    is_copied: bool,
    is_quoted: bool,
}

/// The result of an attempt to parse a record.
enum ParsedRecord {
    /// The record is complete. The values are the number of its bytes, including its line end, and the number of its
    /// lines.
    Whole(usize, u64),
    /// The end of the record is not in the buffer yet.
    Open,
}

impl Records {
    pub fn new(input: Bytes, separator: u8, limit: u64) -> Result<Records> {
        let mut records = Records {
            input,
            separator,
            limit,
            buffer: Vec::new(),
            unread: 0..0,
            has_ended: false,
            line: 1,
            record_line: 1,
            fields: Vec::new(),
            copied: Vec::new(),
        };
        records.fill()?;
        if records.buffer[records.unread.clone()].starts_with(MARK) {
            records.unread.start += MARK.len();
        }
        Ok(records)
    }

    pub fn position(&self) -> u64 {
        self.input.position()
    }

    /// Returns the line on which the current record begins.
    pub fn record_line(&self) -> u64 {
        self.record_line
    }

    /// Returns how many fields the current record has.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    pub fn field(&self, index: usize) -> &[u8] {
        let Field { place, is_copied, .. } = &self.fields[index];
        if *is_copied { &self.copied[place.clone()] } else { &self.buffer[place.clone()] }
    }

    /// Returns true if a field of the current record is in quotes.
    pub fn is_quoted(&self, index: usize) -> bool {
        self.fields[index].is_quoted
    }

    /// Returns true if all records of the file were returned.
    pub fn is_at_end(&self) -> bool {
        self.has_ended && self.unread.is_empty()
    }

    /// Moves to the next record. Returns false at the end.
    pub fn next_record(&mut self) -> Result<bool> {
        self.skip_empty_lines()?;
        self.record_line = self.line;
        if self.unread.is_empty() {
            return Ok(false);
        }
        loop {
            if let ParsedRecord::Whole(bytes, feeds) = self.parse_record()? {
                if bytes as u64 > self.limit {
                    return Err(self.too_large());
                }
                self.unread.start += bytes;
                self.line += feeds;
                return Ok(true);
            }
            if self.unread.len() as u64 > self.limit {
                return Err(self.too_large());
            }
            self.fill()?;
        }
    }

    fn skip_empty_lines(&mut self) -> Result<()> {
        loop {
            match &self.buffer[self.unread.clone()] {
                [] | [b'\r'] if !self.has_ended => self.fill()?,
                [b'\n', ..] => self.skip_line(1),
                [b'\r', b'\n', ..] => self.skip_line(2),
                // A carriage return at the end of the file is an empty last line.
                [b'\r'] => self.skip_line(1),
                _ => return Ok(()),
            }
        }
    }

    fn skip_line(&mut self, bytes: usize) {
        self.unread.start += bytes;
        self.line += 1;
    }

    /// Reads more bytes into the buffer.
    fn fill(&mut self) -> Result<()> {
        let kept = self.unread.len();
        self.buffer.copy_within(self.unread.clone(), 0);
        let room = BUFFER_BYTES.max((2 * kept).min(self.limit as usize + BUFFER_BYTES));
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        let read = self.input.fill(&mut self.buffer[kept..])?;
        self.has_ended = kept + read < self.buffer.len();
        self.unread = 0..kept + read;
        Ok(())
    }

    /// Splits the record at the beginning of the unread bytes into fields.
    fn parse_record(&mut self) -> Result<ParsedRecord> {
        self.fields.clear();
        self.copied.clear();
        let (mut at, end) = (self.unread.start, self.unread.end);
        let mut feeds = 0;
        loop {
            let is_quoted = at < end && self.buffer[at] == b'"';
            let behind = match is_quoted {
                true => self.quoted_field(at, &mut feeds)?,
                false => self.plain_field(at),
            };
            // After the field, at `behind`, there is a separator, a line end or the end of the file.
            let Some(behind) = behind else { return Ok(ParsedRecord::Open) };
            match self.buffer[..end].get(behind) {
                Some(&byte) if byte == self.separator => at = behind + 1,
                last => {
                    let ending = last.map_or(0, |&byte| if byte == b'\r' { 2 } else { 1 });
                    return Ok(ParsedRecord::Whole(end.min(behind + ending) - self.unread.start, feeds + 1));
                }
            }
        }
    }

    /// Parses a field without quotes. Returns the position after the field. Returns `None` if the end of the field is
    /// not in the buffer yet.
    fn plain_field(&mut self, start: usize) -> Option<usize> {
        let rest = &self.buffer[start..self.unread.end];
        let length = memchr2(self.separator, b'\n', rest).or(self.has_ended.then_some(rest.len()))?;
        let is_last = rest.get(length) != Some(&self.separator);
        let text = &rest[..length];
        let text = if is_last { text.strip_suffix(b"\r").unwrap_or(text) } else { text };
        let place = start..start + text.len();
        self.fields.push(Field { place, is_copied: false, is_quoted: false });
        Some(start + length)
    }

    /// Parses a field that begins with a quote. The result is that of [`Records::plain_field`].
    fn quoted_field(&mut self, start: usize, feeds: &mut u64) -> Result<Option<usize>> {
        let (copied_before, mut from, mut feeds_inside) = (self.copied.len(), start + 1, 0);
        let closed = loop {
            let rest = &self.buffer[from..self.unread.end];
            let Some(length) = memchr(b'"', rest) else {
                if self.has_ended {
                    return Err(Error::BadValue {
                        place: format!("{}:{}", self.input.name(), self.record_line + *feeds),
                        expected: "a closing quote for the quote that opens here".to_string(),
                        found: "the end of the file".to_string(),
                    });
                }
                return Ok(None);
            };
            feeds_inside += memchr_iter(b'\n', &rest[..length]).count() as u64;
            if rest.get(length + 1) != Some(&b'"') {
                break from + length;
            }
            // A doubled quote stands for one quote.
            self.copied.extend_from_slice(&rest[..=length]);
            from += length + 2;
        };
        let behind = &self.buffer[closed + 1..self.unread.end];
        match behind {
            [] if !self.has_ended => return Ok(None),
            [b'\r'] if !self.has_ended => return Ok(None),
            [] | [b'\n', ..] | [b'\r'] | [b'\r', b'\n', ..] => {}
            [byte, ..] if *byte == self.separator => {}
            _ => {
                let shown = behind.split(|&byte| byte == b'\n').next().unwrap_or_default().to_vec();
                let line = self.record_line + *feeds + feeds_inside;
                let expected = "a separator or the end of the line after a closing quote";
                return Err(Error::bad_line(self.input.name(), line, expected, &shown));
            }
        }
        *feeds += feeds_inside;
        let is_copied = from > start + 1;
        let place = if is_copied {
            self.copied.extend_from_slice(&self.buffer[from..closed]);
            copied_before..self.copied.len()
        } else {
            start + 1..closed
        };
        self.fields.push(Field { place, is_copied, is_quoted: true });
        Ok(Some(closed + 1))
    }

    fn too_large(&self) -> Error {
        Error::TooLarge {
            place: format!("{}:{}", self.input.name(), self.record_line),
            what: "a CSV record (or an open quote)",
            bytes: self.unread.len() as u64,
            limit: self.limit,
            enough: None,
        }
    }
}

//! Writes untrusted text to standard output and standard error: names, rows, logs of kernels, output of commands.
//!
//! Control characters in untrusted text could move the cursor, hide lines or set the clipboard. Output to a terminal
//! therefore has control characters escaped as in Rust (`\u{1b}`); files and pipes get all bytes unchanged. Results
//! that a user requests as bytes (`store get -o -`, `decompress -o -`, lines that `search` finds) bypass this module.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

/// Returns standard output for untrusted text.
pub fn stdout() -> Escaping<io::Stdout> {
    let out = io::stdout();
    Escaping { escapes: out.is_terminal(), out, rest: Vec::new() }
}

/// Returns standard error for untrusted text.
#[cfg(feature = "nodes")]
pub fn stderr() -> Escaping<io::Stderr> {
    let out = io::stderr();
    Escaping { escapes: out.is_terminal(), out, rest: Vec::new() }
}

/// Escapes all characters that control a terminal, as in Rust: control characters except line feeds and tabs, and
/// characters that change the direction of text.
pub fn printable(text: &str) -> Cow<'_, str> {
    let turns = |letter: char| matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_obeyed = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t') || turns(letter);
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_obeyed(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// Escapes bytes that need not be UTF-8, such as the name of a file.
#[cfg(feature = "text")]
pub fn printable_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    let mut out = Escaping { out: &mut shown, escapes: true, rest: Vec::new() };
    out.write_all(bytes).expect("a vector takes all");
    drop(out);
    shown
}

/// Writes text, escaped if `out` is a terminal.
pub struct Escaping<W: Write> {
    out: W,
    escapes: bool,
    /// The first bytes of a character whose other bytes have not arrived.
    rest: Vec<u8>,
}

impl<W: Write> Escaping<W> {
    /// Writes the first bytes of a character whose other bytes never arrived.
    fn end(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.rest);
        write!(self.out, "{}", rest.escape_ascii())
    }
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.escapes {
            return self.out.write(bytes);
        }
        let mut text = std::mem::take(&mut self.rest);
        text.extend_from_slice(bytes);
        let mut left = &text[..];
        while !left.is_empty() {
            let (valid, bad) = match std::str::from_utf8(left) {
                Ok(all) => (all, 0),
                Err(error) => {
                    let valid =
                        std::str::from_utf8(&left[..error.valid_up_to()]).expect("checked up to there");
                    (valid, error.error_len().unwrap_or(0))
                }
            };
            self.out.write_all(printable(valid).as_bytes())?;
            let (bytes, behind) = left[valid.len()..].split_at(bad);
            write!(self.out, "{}", bytes.escape_ascii())?;
            left = behind;
            if bad == 0 {
                break;
            }
        }
        self.rest = left.to_vec();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Drop for Escaping<W> {
    fn drop(&mut self) {
        // The error is ignored, since an earlier write has already reported it.
        let _ = self.end().and_then(|()| self.out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_and_the_rest_stays() {
        assert_eq!(printable("a\tb\nc ä 漢"), "a\tb\nc ä 漢");
        assert_eq!(printable("x\u{1b}[31mred\r\u{7}\u{9b}2J"), "x\\u{1b}[31mred\\r\\u{7}\\u{9b}2J");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn bytes_are_shown_alike_however_they_are_cut_and_go_to_a_file_as_they_are() {
        let bytes = b"a \x1b]0;x\x07 \xc3\xa4 \xe6\xbc\xa2 \xff\xc2\x9b2J \xe6\xbc";
        for size in 1..=bytes.len() {
            for (escapes, wanted) in [(true, &br"a \u{1b}]0;x\u{7} "[..]), (false, &bytes[..])] {
                let mut shown = Vec::new();
                let mut out = Escaping { out: &mut shown, escapes, rest: Vec::new() };
                bytes.chunks(size).for_each(|piece| out.write_all(piece).unwrap());
                drop(out);
                let rest = "ä 漢 \\xff\\u{9b}2J \\xe6\\xbc";
                let wanted = if escapes { [wanted, rest.as_bytes()].concat() } else { wanted.to_vec() };
                assert_eq!(String::from_utf8_lossy(&shown), String::from_utf8_lossy(&wanted), "{size}");
            }
        }
    }
}

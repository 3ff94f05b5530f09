//! Decodes consecutive gzip members. Zeros between the members and after the last member are skipped.
//!
//! Tapes and some file systems pad a file to whole blocks with zeros, which gzip skips silently. flate2's decoder of
//! several members (1.1.10) treats these zeros as the header of another member.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// Reads the decompressed bytes of all members. Another member, zeros, or the end of the file follows each member.
pub struct GzipMembers<R> {
    /// The source. The value is `None` after the source was moved into the decoder of the first member.
    source: Option<R>,
    decoder: Option<GzDecoder<Reusable<R>>>,
}

impl<R: BufRead> GzipMembers<R> {
    /// Makes a decoder of a source. No byte is read before the first [`Read::read`].
    pub fn new(source: R) -> GzipMembers<R> {
        GzipMembers { source: Some(source), decoder: None }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(mut source) = self.source.take() {
                let follows = follows(&mut source);
                if !matches!(follows, Ok(true)) {
                    self.source = Some(source);
                    return follows.map(|_| 0);
                }
                self.decoder = Some(GzDecoder::new(Reusable(Some(source))));
            }
            let decoder = self.decoder.as_mut().expect("made above");
            let read = decoder.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            // The decoder stops directly after a member. The decoder is reused, since files of many small members are
            // common (bgzip).
            if !follows(decoder.get_mut())? {
                return Ok(0);
            }
            let source = std::mem::take(decoder.get_mut());
            decoder.reset(source);
        }
    }
}

/// Skips zeros, and returns whether other bytes follow.
fn follows(source: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match source.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(false);
        }
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        let is_something = zeros < bytes.len();
        source.consume(zeros);
        if is_something {
            return Ok(true);
        }
    }
}

/// A source that can be taken out of a decoder and put back.
struct Reusable<R>(Option<R>);

impl<R> Default for Reusable<R> {
    fn default() -> Self {
        Reusable(None)
    }
}

const FULL: &str = "a source that is read is in its decoder";

impl<R: BufRead> Read for Reusable<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.as_mut().expect(FULL).read(out)
    }
}

impl<R: BufRead> BufRead for Reusable<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.as_mut().expect(FULL).fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.0.as_mut().expect(FULL).consume(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn unpacked(bytes: &[u8], buffer_bytes: usize) -> io::Result<Vec<u8>> {
        let source = io::BufReader::with_capacity(buffer_bytes, bytes);
        let mut out = Vec::new();
        GzipMembers::new(source).read_to_end(&mut out).map(|_| out)
    }

    #[test]
    fn zeros_between_and_behind_members_are_skipped() {
        let parts = [&packed(b"one ")[..], &[0; 3], &packed(b""), &packed(b"two"), &[0; 600]];
        let bytes = parts.concat();
        for buffer_bytes in [1, 2, 64, 10_000] {
            assert_eq!(unpacked(&bytes, buffer_bytes).unwrap(), b"one two", "{buffer_bytes}");
            // Bytes after the zeros that are not a member are an error, as in gzip.
            assert!(unpacked(&[&bytes[..], b"x"].concat(), buffer_bytes).is_err());
        }
        assert!(unpacked(&bytes[..bytes.len() - 601], 64).is_err(), "a member is cut");
    }
}

//! Decodes consecutive lz4 frames, with skippable frames before, between and after them. The decoder of lz4_flex
//! (0.14) stops after the first frame, refuses skippable frames, and treats any end of its input as the end of a
//! frame.

use std::io::{self, BufRead, Cursor, Read};

use lz4_flex::frame::FrameDecoder;

use super::{is_skippable, skip_exact};

/// The memory of a decoder in bytes. A decoder holds two uncompressed blocks and one compressed block. The uncompressed
/// blocks have the largest size of the format, since later frames may have this size. A compressed block is smaller
/// than an uncompressed one, since a block that would not shrink is stored uncompressed. The memory above
/// `UNCOUNTED_BYTES` is reserved from the budget. A sort leaves enough free memory for this reservation and for a read
/// of 1 MiB.
pub(super) const LZ4_BYTES: u64 = 2 * (4 << 20) + (3 << 20);

/// Reads the decompressed bytes of all frames. A truncated frame is an error.
pub struct Lz4Frames<R: Read> {
    /// The source, while no frame is being decoded.
    source: Option<R>,
    decoder: Option<FrameDecoder<PrefixedSource<R>>>,
}

impl<R: BufRead> Lz4Frames<R> {
    /// Makes a decoder of a source. No byte is read before the first [`Read::read`].
    pub fn new(source: R) -> Lz4Frames<R> {
        Lz4Frames { source: Some(source), decoder: None }
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(decoder) = &mut self.decoder {
                let read = decoder.read(out)?;
                if read > 0 || out.is_empty() {
                    return Ok(read);
                }
                let PrefixedSource { inner, has_ended, .. } =
                    self.decoder.take().expect("looked at above").into_inner();
                self.source = Some(inner);
                if has_ended {
                    // At the end of a frame, the decoder does not read further. Since it has read to the end of the
                    // source, the frame is truncated.
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "truncated: the data ends inside a frame",
                    ));
                }
            }
            let Some(source) = &mut self.source else { return Ok(0) };
            let Some(magic) = next_frame(source)? else { return Ok(0) };
            let inner = self.source.take().expect("looked at above");
            self.decoder = Some(FrameDecoder::new(PrefixedSource {
                magic: Cursor::new(magic),
                inner,
                has_ended: false,
            }));
        }
    }
}

/// Returns the first bytes of the next frame that is not skippable. Returns `None` at the end of the source.
fn next_frame(source: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    loop {
        let mut magic = Vec::with_capacity(4);
        source.by_ref().take(4).read_to_end(&mut magic)?;
        if magic.is_empty() {
            return Ok(None);
        }
        if !is_skippable(&magic) {
            return Ok(Some(magic));
        }
        let mut length = [0; 4];
        source.read_exact(&mut length)?;
        skip_exact(source, u32::from_le_bytes(length).into())?;
    }
}

/// A source that first returns the bytes of a magic number, which were already read from `inner`. `has_ended` is true
/// after `inner` has ended.
struct PrefixedSource<R> {
    magic: Cursor<Vec<u8>>,
    inner: R,
    has_ended: bool,
}

impl<R: Read> Read for PrefixedSource<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = match self.magic.read(out)? {
            0 => self.inner.read(out)?,
            read => read,
        };
        self.has_ended |= read == 0 && !out.is_empty();
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use lz4_flex::frame::{BlockMode, FrameEncoder, FrameInfo};

    use super::*;

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        Lz4Frames::new(packed).read_to_end(&mut bytes).map(|_| bytes)
    }

    #[test]
    fn all_frames_are_read_and_one_that_is_cut_anywhere_is_an_error() {
        // The contents of the skippable frames have 0 bytes and 3 bytes.
        let skippable = |bytes: &[u8]| {
            [&[0x5c, 0x2a, 0x4d, 0x18][..], &(bytes.len() as u32).to_le_bytes(), bytes].concat()
        };
        let mut packed = skippable(b"");
        // The offset of the end of each frame, and the number of bytes that are decoded before that offset.
        let mut ends = vec![(0, 0), (packed.len(), 0)];
        for (mode, checksum) in [(BlockMode::Linked, false), (BlockMode::Independent, true)] {
            let info = FrameInfo::new().block_mode(mode).content_checksum(checksum);
            let mut encoder = FrameEncoder::with_frame_info(info, packed);
            encoder.write_all(b"one and one and one and one").unwrap();
            packed = encoder.finish().unwrap();
            let bytes = ends.last().unwrap().1 + 27;
            ends.push((packed.len(), bytes));
            packed.extend(skippable(b"abc"));
            ends.push((packed.len(), bytes));
        }
        for cut in 0..=packed.len() {
            let expected = ends.iter().find(|&&(end, _)| end == cut).map(|&(_, bytes)| bytes);
            let found = unpacked(&packed[..cut]).ok().map(|bytes| bytes.len());
            assert_eq!(found, expected, "{cut} of {ends:?}");
        }
    }
}

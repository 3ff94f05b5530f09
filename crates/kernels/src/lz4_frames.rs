//! Frames of lz4 one after the other. The library stops behind the first, and takes the end of its input for the end of a
//! frame wherever that comes.

use std::io::{self, BufRead, Read};

use lz4_flex::frame::FrameDecoder;

/// The bytes of all frames. A frame that is cut is an error.
pub(crate) struct Lz4Frames<R: Read> {
    decoder: Option<FrameDecoder<Ending<R>>>,
}

impl<R: BufRead> Lz4Frames<R> {
    pub fn new(inner: R) -> Lz4Frames<R> {
        Lz4Frames { decoder: Some(FrameDecoder::new(Ending { inner, has_ended: false })) }
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let read = decoder.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            let Ending { mut inner, has_ended } = self.decoder.take().expect("looked at above").into_inner();
            if has_ended {
                // Whoever is at the end of a frame has read that, and no further.
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a frame ends in the middle"));
            }
            if !inner.fill_buf()?.is_empty() {
                self.decoder = Some(FrameDecoder::new(Ending { inner, has_ended: false }));
            }
        }
        Ok(0)
    }
}

/// Something that is read, and whether its end was met.
struct Ending<R> {
    inner: R,
    has_ended: bool,
}

impl<R: Read> Read for Ending<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
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
        let mut packed = Vec::new();
        let mut ends = vec![0];
        for (mode, checksum) in [(BlockMode::Linked, false), (BlockMode::Independent, true)] {
            let info = FrameInfo::new().block_mode(mode).content_checksum(checksum);
            let mut encoder = FrameEncoder::with_frame_info(info, packed);
            encoder.write_all(b"one and one and one and one").unwrap();
            packed = encoder.finish().unwrap();
            ends.push(packed.len());
        }
        for cut in 0..=packed.len() {
            match unpacked(&packed[..cut]) {
                Ok(bytes) => {
                    let frames = ends.iter().position(|&end| end == cut);
                    assert_eq!(frames.map(|frames| frames * 27), Some(bytes.len()), "{cut} of {ends:?}");
                }
                Err(error) => assert!(!ends[1..].contains(&cut), "{cut}: {error}"),
            }
        }
    }
}

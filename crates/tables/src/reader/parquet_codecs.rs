//! Decompresses pages of Parquet codecs that the library does not decompress safely. The library (parquet 59.3)
//! decompresses gzip and Brotli to the end of their streams without a limit of size. It skips LZ4 frames of Hadoop that
//! are shorter than the previous frame.
//!
//! ```text
//!   LZ4 of Hadoop   [ bytes of a block, unpacked | bytes of a part, packed | LZ4 | bytes of a part | LZ4 ... ] [ ... ]
//! ```
//!
//! The numbers of bytes are big-endian 32-bit numbers. Some other programs write one LZ4 block without lengths under
//! the same codec name.

use std::io::{self, Read};

use parquet::basic::Compression;

/// The compression of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Gzip,
    Lz4,
    #[cfg(feature = "records")]
    Brotli,
}

impl Codec {
    /// Returns the codec. Returns `None` for codecs that the library decompresses.
    pub fn of(compression: Compression) -> Option<Codec> {
        match compression {
            Compression::GZIP(_) => Some(Codec::Gzip),
            Compression::LZ4 => Some(Codec::Lz4),
            #[cfg(feature = "records")]
            Compression::BROTLI(_) => Some(Codec::Brotli),
            _ => None,
        }
    }

    /// Returns the memory of the decoder's window in bytes, without the memory of the decompressed page.
    #[cfg_attr(not(feature = "records"), allow(unused_variables))]
    pub fn window_bytes(self, packed: &[u8]) -> u64 {
        match self {
            Codec::Gzip | Codec::Lz4 => 0,
            // The window grows step by step. In each step, its bytes are copied into a window of twice the size, and
            // both windows exist during the copy.
            #[cfg(feature = "records")]
            Codec::Brotli => (1u64 << brotli_window_bits(packed)) / 2 * 3,
        }
    }

    /// Appends the decompressed page to `unpacked`. A valid page has `bytes` bytes after decompression. If the page is
    /// longer, at most one additional byte is appended.
    ///
    /// # Errors
    /// Returns the decoder's error if the compressed bytes are damaged.
    pub fn unpack(self, packed: &[u8], bytes: usize, unpacked: &mut Vec<u8>) -> io::Result<()> {
        let most = bytes as u64 + 1;
        match self {
            Codec::Gzip => {
                flate2::read::MultiGzDecoder::new(packed).take(most).read_to_end(unpacked)?;
            }
            Codec::Lz4 => {
                let start = unpacked.len();
                unpacked.resize(start + bytes, 0);
                let out = &mut unpacked[start..];
                if !unframe(packed, out) && lz4_flex::block::decompress_into(packed, out).ok() != Some(bytes)
                {
                    return Err(io::Error::other(
                        "invalid LZ4 data, with or without the length prefix of Hadoop",
                    ));
                }
            }
            #[cfg(feature = "records")]
            Codec::Brotli => {
                let mut decoder = brotli_decompressor::Decompressor::new(packed, BROTLI_BLOCK_BYTES);
                // Windows of up to 1 GiB are an extension that RFC 7932 (Brotli) does not have, so they are disabled.
                decoder.set_parameter(BrotliDecoderParameter::BROTLI_DECODER_PARAM_LARGE_WINDOW, 0);
                decoder.take(most).read_to_end(unpacked)?;
            }
        }
        Ok(())
    }
}

/// Decompresses LZ4 blocks in the frames of Hadoop, which state the lengths of the blocks. Returns `false` if the bytes
/// have another form, or if the result is not exactly as long as `out`.
fn unframe(packed: &[u8], out: &mut [u8]) -> bool {
    let length = |bytes: &mut &[u8]| {
        let (length, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_be_bytes(*length) as usize)
    };
    let mut all = |mut rest: &[u8]| {
        let mut done = 0;
        while !rest.is_empty() {
            let block = length(&mut rest)?;
            let end = block.checked_add(done).filter(|&end| end <= out.len())?;
            while done < end {
                let (part, behind) = length(&mut rest).and_then(|part| rest.split_at_checked(part))?;
                done += lz4_flex::block::decompress_into(part, &mut out[done..end]).ok()?;
                rest = behind;
            }
        }
        (done == out.len()).then_some(())
    };
    all(packed).is_some()
}

#[cfg(feature = "records")]
use brotli_decompressor::BrotliDecoderParameter;

#[cfg(feature = "records")]
const BROTLI_BLOCK_BYTES: usize = 4 << 10;

/// Returns the base-2 logarithm of the window size that a stream requests (RFC 7932, 9.1).
#[cfg(feature = "records")]
fn brotli_window_bits(packed: &[u8]) -> u32 {
    let first = u32::from(packed.first().copied().unwrap_or(0));
    match (first & 1, first >> 1 & 7, first >> 4 & 7) {
        (0, ..) => 16,
        (_, 0, 0) => 17,
        // This header requests a large window, which the decoder refuses.
        (_, 0, 1) => 0,
        (_, 0, bits) => 8 + bits,
        (_, bits, _) => 17 + bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(blocks: &[&[&[u8]]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for parts in blocks {
            let unpacked: usize = parts.iter().map(|part| part.len()).sum();
            bytes.extend((unpacked as u32).to_be_bytes());
            for part in *parts {
                let packed = lz4_flex::block::compress(part);
                bytes.extend((packed.len() as u32).to_be_bytes());
                bytes.extend(packed);
            }
        }
        bytes
    }

    fn unpacked(packed: &[u8], bytes: usize) -> io::Result<Vec<u8>> {
        let mut unpacked = b"before".to_vec();
        Codec::Lz4.unpack(packed, bytes, &mut unpacked)?;
        assert!(unpacked.starts_with(b"before"));
        Ok(unpacked.split_off(6))
    }

    #[test]
    fn lz4_of_hadoop_is_unpacked_however_it_is_divided() {
        let text: Vec<u8> = (0..50_000u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let (long, short) = text.split_at(190_000);
        for packed in [
            framed(&[&[&text]]),
            framed(&[&[long], &[short]]),
            framed(&[&[short], &[&text[10_000..]]]),
            framed(&[&[long, short]]),
            framed(&[&[], &[&text[..1], &text[1..50_000]], &[&text[50_000..]]]),
            lz4_flex::block::compress(&text),
        ] {
            let found = unpacked(&packed, text.len()).unwrap();
            assert_eq!(found.len(), text.len());
        }
        assert!(unpacked(&framed(&[&[long], &[short]]), text.len()).unwrap() == text);
        assert!(unpacked(&framed(&[&[long, short]]), text.len()).unwrap() == text);
        assert!(unpacked(&lz4_flex::block::compress(&text), text.len()).unwrap() == text);
    }

    #[test]
    fn lz4_of_another_length_or_cut_short_is_refused() {
        let text = b"to be or not to be, that is the question: to be or not to be".repeat(30);
        let packed = framed(&[&[&text[..700]], &[&text[700..900], &text[900..]]]);
        assert!(unpacked(&packed, text.len()).unwrap() == text);
        for bytes in [0, 1, text.len() - 1, text.len() + 1] {
            assert!(unpacked(&packed, bytes).is_err(), "{bytes}");
        }
        for length in 0..packed.len() {
            assert!(unpacked(&packed[..length], text.len()).is_err(), "{length}");
        }
        // The first length in these bytes is 4 GiB.
        assert!(unpacked(&[255; 40], text.len()).is_err());
    }

    #[cfg(feature = "records")]
    #[test]
    fn the_window_of_brotli_is_what_its_first_bits_say() {
        for (first, bits) in
            [(0x0c, 16), (0x0b, 22), (0x0f, 24), (0x01, 17), (0x21, 10), (0x71, 15), (0x03, 18)]
        {
            assert_eq!(brotli_window_bits(&[first]), bits, "{first:x}");
        }
    }
}

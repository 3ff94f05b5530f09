//! This module implements the function `decompress` that modules call. The formats are frames of zstd and members
//! of gzip, which are recognized by their first bytes.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;
use zstd::bulk::Decompressor;

/// Says why bytes could not be decompressed. The values are the error codes that modules receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecompressError {
    /// The bytes are in neither format, or are damaged or truncated.
    Bad = -1,
    /// The decompressed bytes do not fit into the output range.
    TooLong = -2,
}

/// Decompresses all of `packed` into `room`, and returns the number of decompressed bytes.
pub fn unpack(packed: &[u8], room: &mut [u8]) -> Result<usize, DecompressError> {
    match packed {
        [0x1f, 0x8b, ..] => gunzip(packed, room),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => unzstd(packed, room),
        _ => Err(DecompressError::Bad),
    }
}

fn gunzip(packed: &[u8], room: &mut [u8]) -> Result<usize, DecompressError> {
    let mut unpacked = MultiGzDecoder::new(packed);
    let mut length = 0;
    loop {
        let mut one_more = [0];
        let is_full = length == room.len();
        let into = if is_full { &mut one_more[..] } else { &mut room[length..] };
        match unpacked.read(into) {
            Ok(0) => return Ok(length),
            Ok(_) if is_full => return Err(DecompressError::TooLong),
            Ok(read) => length += read,
            Err(_) => return Err(DecompressError::Bad),
        }
    }
}

fn unzstd(packed: &[u8], room: &mut [u8]) -> Result<usize, DecompressError> {
    // The decoder writes directly into `room`. It needs no memory for a window, however large the window in the
    // frame's header is.
    let unpacked = Decompressor::new().and_then(|mut unpacker| unpacker.decompress_to_buffer(packed, room));
    unpacked.map_err(|error| match error.to_string().contains("too small") {
        true => DecompressError::TooLong,
        false => DecompressError::Bad,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn one_part_and_several_parts_decompress() {
        let text = b"to be or not to be, ".repeat(5000);
        let zstd = zstd::bulk::compress(&text, 3).unwrap();
        for packed in [gzip(&text), zstd] {
            let twice = [packed.clone(), packed.clone()].concat();
            let mut room = vec![0; 2 * text.len()];
            assert_eq!(unpack(&twice, &mut room), Ok(2 * text.len()));
            assert!(room.chunks(text.len()).all(|one| one == text));
            assert_eq!(unpack(&packed, &mut room[..text.len()]), Ok(text.len()));
            assert_eq!(unpack(&packed, &mut room[..text.len() - 1]), Err(DecompressError::TooLong));
            assert_eq!(unpack(&packed, &mut []), Err(DecompressError::TooLong));
            for cut in [1, 5, packed.len() / 2, packed.len() - 1] {
                assert_eq!(unpack(&packed[..cut], &mut room), Err(DecompressError::Bad), "{cut}");
            }
        }
        assert_eq!(unpack(b"", &mut []), Err(DecompressError::Bad));
        assert_eq!(unpack(b"plain text", &mut [0; 100]), Err(DecompressError::Bad));
    }
}

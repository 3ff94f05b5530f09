//! The decoding of PNG files (ISO/IEC 15948) with the library `png`, row by row.
//!
//! The decoder keeps a few rows in memory, whatever the height of the image. An interlaced image is decoded as a whole,
//! since each of its seven passes has rows of all parts of the image. Checksums of chunks are compared. Transparent pixels
//! show a white background. Of 16 bits the upper 8 are used.

use std::io::Cursor;

use ::png::{
    BitDepth, ColorType, Decoder, DecodingError, InterlaceInfo, Limits, Transformations,
    expand_interlaced_row,
};

/// The reason why a file was refused.
type Refused = String;

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
/// The memory of the decompressor, its window and the palette.
const FIXED_BYTES: u64 = 512 << 10;
/// The rows of the widest pixels (16 bits of four channels) that the decoder keeps.
const DECODER_ROWS: u64 = 4;
/// The bytes of the widest pixel of a file, and of a decoded pixel.
const FILE_PIXEL_BYTES: u64 = 8;
const PIXEL_BYTES: u64 = 4;

/// The header of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Header {
    pub width: u32,
    pub height: u32,
    is_interlaced: bool,
}

impl Header {
    /// Tells whether a file begins as a PNG file.
    pub fn is_png(bytes: &[u8]) -> bool {
        bytes.starts_with(&SIGNATURE)
    }

    /// Reads the header of a file.
    ///
    /// # Errors
    /// The message of the decoder.
    pub fn read(bytes: &[u8]) -> Result<Header, Refused> {
        let mut decoder = decoder(bytes, FIXED_BYTES);
        let info = decoder.read_header_info().map_err(reason)?;
        Ok(Header { width: info.width, height: info.height, is_interlaced: info.interlaced })
    }

    /// Returns the memory that [`Header::decode`] takes.
    pub fn memory_bytes(&self) -> u64 {
        let width = u64::from(self.width);
        let rows = if self.is_interlaced { 1 + u64::from(self.height) } else { 1 };
        self.decoder_bytes() + (3 + PIXEL_BYTES * rows) * width
    }

    fn decoder_bytes(&self) -> u64 {
        FIXED_BYTES + DECODER_ROWS * FILE_PIXEL_BYTES * u64::from(self.width)
    }

    /// Decodes the file of which this is the header, and calls `each` with each row: red, green and blue of each pixel.
    ///
    /// # Errors
    /// The message of the decoder: a malformed or truncated file.
    pub fn decode(&self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), Refused> {
        let mut reader = decoder(bytes, self.decoder_bytes()).read_info().map_err(reason)?;
        let (color, depth) = reader.output_color_type();
        let channels = color.samples();
        if depth != BitDepth::Eight || color == ColorType::Indexed {
            return Err(format!("pixels of {color:?} with {depth:?} bits"));
        }
        let mut pixels = Vec::with_capacity(3 * self.width as usize);
        let stride = channels * self.width as usize;
        let mut image = if self.is_interlaced { vec![0; stride * self.height as usize] } else { Vec::new() };
        while let Some(row) = reader.next_interlaced_row().map_err(reason)? {
            match row.interlace() {
                InterlaceInfo::Null(_) => each(rgb_of(row.data(), channels, &mut pixels)),
                InterlaceInfo::Adam7(pass) => {
                    expand_interlaced_row(&mut image, stride, row.data(), pass, 8 * channels as u8);
                }
            }
        }
        // The rest of the file has checksums, too.
        reader.finish().map_err(reason)?;
        if self.is_interlaced {
            image.chunks_exact(stride).for_each(|row| each(rgb_of(row, channels, &mut pixels)));
        }
        Ok(())
    }
}

/// Returns a decoder that allocates at most `bytes`, and converts all pixels to 8 bits for each channel.
fn decoder(file: &[u8], bytes: u64) -> Decoder<Cursor<&[u8]>> {
    let limits = Limits { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) };
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder
}

fn reason(error: DecodingError) -> Refused {
    format!("data that cannot be decoded ({error})")
}

/// Converts a row of one to four channels to red, green and blue over a white background.
fn rgb_of<'a>(row: &[u8], channels: usize, pixels: &'a mut Vec<u8>) -> &'a [u8] {
    pixels.clear();
    for pixel in row.chunks_exact(channels) {
        let (rgb, opacity) = match *pixel {
            [grey] => ([grey; 3], 255),
            [grey, opacity] => ([grey; 3], opacity),
            [red, green, blue] => ([red, green, blue], 255),
            [red, green, blue, opacity] => ([red, green, blue], opacity),
            _ => unreachable!("a pixel has one to four channels"),
        };
        pixels.extend(if opacity == 255 { rgb } else { rgb.map(|value| over_white(value, opacity)) });
    }
    pixels
}

fn over_white(value: u8, opacity: u8) -> u8 {
    let (value, opacity) = (u32::from(value), u32::from(opacity));
    ((value * opacity + 255 * (255 - opacity) + 127) / 255) as u8
}

//! The decoding of PNG and JPEG files to images of 128 x 128 pixels.
//!
//! The size in a file's header decides whether the file is decoded, and the memory that is reserved, before a decoder
//! allocates. The rows of a PNG file are scaled as they are decoded, unless they are interlaced.

use std::{
    io::Cursor,
    panic::{AssertUnwindSafe, catch_unwind},
};

use png::{ColorType, Limits, Transformations};
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{jpeg::Frame, scale::Scaler};

/// The largest width and height of an image.
const SIDE_MAX: u32 = 65_535;
/// The largest number of pixels of an image.
const PIXELS_MAX: u64 = 1 << 28;
/// The memory of the PNG decoder beside its rows.
const PNG_BYTES: u64 = 512 << 10;
/// The bytes of a PNG pixel: four channels, of 16 bits in the file, of 8 bits in memory.
const PNG_FILE_PIXEL: u64 = 8;
const PNG_PIXEL: u64 = 4;

/// The reason why a file was refused: what was found, and what was expected.
pub(crate) type Refused = (String, String);

/// The header of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Image {
    width: u32,
    height: u32,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Png { is_interlaced: bool },
    Jpeg(Frame),
}

impl Image {
    /// Reads the header of an image; its first bytes tell the format.
    ///
    /// # Errors
    /// [`Refused`], for other formats, malformed headers, and images that are too large.
    pub fn read(bytes: &[u8]) -> Result<Image, Refused> {
        let image = match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => png_header(bytes)?,
            [0xff, 0xd8, ..] => {
                let frame = Frame::read(bytes).map_err(|(found, expected)| (found, expected.to_string()))?;
                Image { width: frame.width, height: frame.height, format: Format::Jpeg(frame) }
            }
            [] => return Err(("an empty file".to_string(), "a PNG or JPEG file".to_string())),
            _ => return Err(("another format".to_string(), "a PNG or JPEG file".to_string())),
        };
        let Image { width, height, .. } = image;
        let sides = 1..=SIDE_MAX;
        let is_sized = sides.contains(&width) && sides.contains(&height);
        match is_sized && u64::from(width) * u64::from(height) <= PIXELS_MAX {
            true => Ok(image),
            false => {
                let most = format!("at most {PIXELS_MAX} pixels, and {SIDE_MAX} in a row or column");
                Err((format!("{width} x {height} pixels"), most))
            }
        }
    }

    /// Returns the memory that [`Image::decode`] takes.
    pub fn memory_bytes(&self) -> u64 {
        let width = u64::from(self.width);
        let decoder = match self.format {
            Format::Jpeg(frame) => frame.memory_bytes(),
            Format::Png { is_interlaced } => {
                let rows = if is_interlaced { u64::from(self.height) } else { 1 };
                PNG_BYTES + width * (4 * PNG_FILE_PIXEL + rows * PNG_PIXEL)
            }
        };
        decoder + Scaler::bytes(self.width)
    }

    /// Decodes the file of which this is the header, and scales the image to 128 x 128 pixels: red, green and blue of
    /// each. Transparent pixels show a white background.
    ///
    /// # Errors
    /// [`Refused`] for a malformed or truncated file.
    pub fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        let decoded = catch_unwind(AssertUnwindSafe(|| match self.format {
            Format::Png { is_interlaced } => self.decode_png(bytes, is_interlaced),
            Format::Jpeg(_) => self.decode_jpeg(bytes),
        }));
        let what = match decoded {
            Ok(Ok(pixels)) => return Ok(pixels),
            Ok(Err(what)) => what,
            Err(_) => "data on which the decoder failed".to_string(),
        };
        Err((what, "a whole image".to_string()))
    }

    fn decode_jpeg(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let options = DecoderOptions::default()
            .set_max_width(SIDE_MAX as usize)
            .set_max_height(SIDE_MAX as usize)
            .set_strict_mode(true)
            .jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(|error| format!("{error}"))?;
        let size = (self.width as usize, self.height as usize);
        if decoder.dimensions() != Some(size) {
            return Err(format!("an image of {:?} pixels after a frame of {size:?}", decoder.dimensions()));
        }
        let row_bytes = 3 * size.0;
        let mut pixels = vec![0; row_bytes * size.1];
        decoder.decode_into(&mut pixels).map_err(|error| format!("{error}"))?;
        let mut scaler = Scaler::new(self.width, self.height);
        pixels.chunks_exact(row_bytes).for_each(|row| scaler.add(row));
        Ok(scaler.finish())
    }

    fn decode_png(&self, bytes: &[u8], is_interlaced: bool) -> Result<Vec<u8>, String> {
        let told = |error: png::DecodingError| error.to_string();
        let limits = Limits { bytes: self.memory_bytes() as usize };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
        decoder.set_transformations(Transformations::normalize_to_color8());
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let mut reader = decoder.read_info().map_err(told)?;
        let (color, _) = reader.output_color_type();
        let mut scaler = Scaler::new(self.width, self.height);
        let mut pixels = Vec::new();
        if is_interlaced {
            let size = reader.output_buffer_size().ok_or("an image that is too large")?;
            let mut frame = vec![0; size];
            let info = reader.next_frame(&mut frame).map_err(told)?;
            for row in frame.chunks_exact(info.line_size) {
                scaler.add(colors(color, row, &mut pixels));
            }
        } else {
            for _ in 0..self.height {
                let row = reader.next_row().map_err(told)?.ok_or("an image with too few rows")?;
                scaler.add(colors(color, row.data(), &mut pixels));
            }
        }
        reader.finish().map_err(told)?;
        Ok(scaler.finish())
    }
}

fn png_header(bytes: &[u8]) -> Result<Image, Refused> {
    match bytes.get(8..29) {
        Some(
            &[0, 0, 0, 13, b'I', b'H', b'D', b'R', w3, w2, w1, w0, h3, h2, h1, h0, _, _, _, _, interlace],
        ) => {
            let [width, height] = [[w3, w2, w1, w0], [h3, h2, h1, h0]].map(u32::from_be_bytes);
            Ok(Image { width, height, format: Format::Png { is_interlaced: interlace != 0 } })
        }
        _ => Err(("no header after the signature".to_string(), "a PNG header (IHDR)".to_string())),
    }
}

/// Returns the red, green and blue of a row.
fn colors<'a>(color: ColorType, row: &'a [u8], pixels: &'a mut Vec<u8>) -> &'a [u8] {
    pixels.clear();
    match color {
        ColorType::Rgb => return row,
        ColorType::Rgba => {
            for &[red, green, blue, opacity] in row.as_chunks::<4>().0 {
                pixels.extend([red, green, blue].map(|value| over_white(value, opacity)));
            }
        }
        ColorType::GrayscaleAlpha => {
            row.as_chunks::<2>()
                .0
                .iter()
                .for_each(|&[gray, opacity]| pixels.extend([over_white(gray, opacity); 3]));
        }
        // The transformation to colours replaces palettes.
        ColorType::Grayscale | ColorType::Indexed => row.iter().for_each(|&gray| pixels.extend([gray; 3])),
    }
    pixels
}

fn over_white(value: u8, opacity: u8) -> u8 {
    let (value, opacity) = (u32::from(value), u32::from(opacity));
    ((value * opacity + 255 * (255 - opacity) + 127) / 255) as u8
}

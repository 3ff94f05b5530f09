//! Decodes PNG and JPEG files to images of 128 x 128 pixels.
//!
//! The size in the header of a file determines whether the file is decoded, and how much memory is reserved before a
//! decoder allocates. The rows of a PNG file are scaled while they are decoded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{jpeg::Frame, png, scale::Scaler};

/// The largest width and the largest height of an image, in pixels.
const SIDE_MAX: u32 = 65_535;
/// The largest number of pixels in an image.
const PIXELS_MAX: u64 = 1 << 28;
/// The reason why a file was refused. The first text describes what the file contains, and the second one what was
/// expected.
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
    Png(png::Header),
    Jpeg(Frame),
}

impl Image {
    /// Reads the header of an image. The first bytes of the file determine the format.
    ///
    /// # Errors
    /// Returns [`Refused`] if the format is unknown, the header is malformed, or the image is too large.
    pub fn read(bytes: &[u8]) -> Result<Image, Refused> {
        let image = match bytes {
            _ if png::Header::is_png(bytes) => {
                let header = png::Header::read(bytes);
                let header = header.map_err(|found| (found, "a PNG header (IHDR)".to_string()))?;
                Image { width: header.width, height: header.height, format: Format::Png(header) }
            }
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

    /// Returns the memory, in bytes, that [`Image::decode`] needs.
    pub fn memory_bytes(&self) -> u64 {
        let decoder = match self.format {
            Format::Jpeg(frame) => frame.memory_bytes(),
            Format::Png(header) => header.memory_bytes(),
        };
        decoder + Scaler::bytes(self.width)
    }

    /// Decodes the file that has this header, and scales the image to 128 x 128 pixels. The result has 3 bytes (red,
    /// green and blue) for each pixel. Transparent pixels are drawn on a white background.
    ///
    /// # Errors
    /// Returns [`Refused`] if the file is malformed or truncated.
    pub fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        let decoded = catch_unwind(AssertUnwindSafe(|| match self.format {
            Format::Png(header) => self.decode_png(header, bytes),
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

    fn decode_png(&self, header: png::Header, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut scaler = Scaler::new(self.width, self.height);
        header.decode(bytes, |row| scaler.add(row))?;
        Ok(scaler.finish())
    }
}

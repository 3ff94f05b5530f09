//! Decodes PNG files (ISO/IEC 15948), row by row.
//!
//! ```text
//!   file ─► chunks ─► data of all IDAT chunks ─► inflate ─► rows, each with a filter ─► red, green, blue
//! ```
//!
//! Rows are decoded one after the other, so the decoder holds two rows, regardless of the height of the image. An
//! interlaced image is decoded as a whole, because each of its seven passes has pixels of many rows. The checksum of
//! each chunk is verified. Transparent pixels are drawn on a white background. For samples of 16 bits, the upper 8 bits
//! are used.

use std::io::Read;

use flate2::{Crc, read::ZlibDecoder};

/// The reason why a file was refused.
type Refused = String;

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
/// The memory, in bytes, of the decompressor and of the palette.
const FIXED_BYTES: u64 = 128 << 10;
/// The seven passes of an interlaced image. The numbers of a pass are its first column, its first row, and the
/// distances between its columns and between its rows.
const PASSES: [[usize; 4]; 7] =
    [[0, 0, 8, 8], [4, 0, 8, 8], [0, 4, 4, 8], [2, 0, 4, 4], [0, 2, 2, 4], [1, 0, 2, 2], [0, 1, 1, 2]];

/// The header of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Header {
    pub width: u32,
    pub height: u32,
    /// The number of bits of a sample.
    depth: u8,
    color: Color,
    is_interlaced: bool,
}

/// The colour type of an image. It determines the channels of a pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Color {
    Grey,
    Rgb,
    Palette,
    GreyAlpha,
    RgbAlpha,
}

impl Color {
    fn channels(self) -> usize {
        match self {
            Color::Grey | Color::Palette => 1,
            Color::GreyAlpha => 2,
            Color::Rgb => 3,
            Color::RgbAlpha => 4,
        }
    }
}

impl Header {
    /// Returns true if the bytes begin with the signature of a PNG file.
    pub fn is_png(bytes: &[u8]) -> bool {
        bytes.starts_with(&SIGNATURE)
    }

    /// Reads the header of a file.
    ///
    /// # Errors
    /// Returns [`Refused`] if the file has no supported header.
    pub fn read(bytes: &[u8]) -> Result<Header, Refused> {
        let (kind, data) = Chunks { rest: &bytes[SIGNATURE.len()..] }.next()?;
        let (b"IHDR", Ok([w3, w2, w1, w0, h3, h2, h1, h0, depth, color, method, filter, interlace])) =
            (kind, <[u8; 13]>::try_from(data))
        else {
            return Err("no header (IHDR) after the signature".to_string());
        };
        let [width, height] = [[w3, w2, w1, w0], [h3, h2, h1, h0]].map(u32::from_be_bytes);
        let color = match (color, depth) {
            (0, 1 | 2 | 4 | 8 | 16) => Color::Grey,
            (2, 8 | 16) => Color::Rgb,
            (3, 1 | 2 | 4 | 8) => Color::Palette,
            (4, 8 | 16) => Color::GreyAlpha,
            (6, 8 | 16) => Color::RgbAlpha,
            _ => return Err(format!("colours of type {color} with {depth} bits")),
        };
        if (method, filter) != (0, 0) || interlace > 1 {
            return Err(format!(
                "methods {method}, {filter}, {interlace} of compression, filter and interlace"
            ));
        }
        Ok(Header { width, height, depth, color, is_interlaced: interlace == 1 })
    }

    /// Returns the memory, in bytes, that [`Header::decode`] needs.
    pub fn memory_bytes(&self) -> u64 {
        let width = u64::from(self.width);
        let rows = if self.is_interlaced { 1 + u64::from(self.height) } else { 1 };
        FIXED_BYTES + 2 * self.row_bytes(self.width as usize) as u64 + 3 * width * rows
    }

    /// Returns how many bytes `width` pixels take. A row of the file has one more byte, which states the filter type.
    fn row_bytes(&self, width: usize) -> usize {
        (width * self.color.channels() * usize::from(self.depth)).div_ceil(8)
    }

    /// Decodes the file that has this header. `each` is called with each row, from top to bottom. A row has 3 bytes
    /// (red, green and blue) for each pixel.
    ///
    /// # Errors
    /// Returns [`Refused`] if the file is malformed or truncated.
    pub fn decode(&self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), Refused> {
        let file = Parts::read(bytes)?;
        if self.color == Color::Palette && file.palette.is_empty() {
            return Err("no palette".to_string());
        }
        let mut rows = Rows::new(self, ZlibDecoder::new(Joined { chunks: file.chunks, part: &[] }));
        let colors = Colors { header: self, palette: file.palette, transparent: file.transparent };
        let (width, height) = (self.width as usize, self.height as usize);
        let mut pixels = Vec::with_capacity(3 * width);
        if !self.is_interlaced {
            rows.start_pass(width);
            for _ in 0..height {
                colors.convert(rows.next()?, width, &mut pixels)?;
                each(&pixels);
            }
            return Ok(());
        }
        let mut image = vec![0; 3 * width * height];
        for [x0, y0, dx, dy] in PASSES {
            let columns = width.saturating_sub(x0).div_ceil(dx);
            rows.start_pass(columns);
            for y in (y0..height).step_by(dy).filter(|_| columns > 0) {
                colors.convert(rows.next()?, columns, &mut pixels)?;
                for (x, pixel) in (x0..width).step_by(dx).zip(pixels.chunks_exact(3)) {
                    image[3 * (y * width + x)..][..3].copy_from_slice(pixel);
                }
            }
        }
        image.chunks_exact(3 * width).for_each(each);
        Ok(())
    }
}

/// The chunks of a file, after its signature.
#[derive(Clone, Copy)]
struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Chunks<'a> {
    /// Returns the kind and the data of the next chunk.
    fn next(&mut self) -> Result<(&'a [u8; 4], &'a [u8]), Refused> {
        let end = || "the end of the file within a chunk".to_string();
        let (len, rest) = self.rest.split_first_chunk().ok_or_else(end)?;
        let len = u32::from_be_bytes(*len) as usize;
        let (data, after) = rest.split_at_checked(4 + len).ok_or_else(end)?;
        let (sum, after) = after.split_first_chunk().ok_or_else(end)?;
        let (kind, content) = data.split_first_chunk().ok_or_else(end)?;
        let mut crc = Crc::new();
        crc.update(data);
        if crc.sum() != u32::from_be_bytes(*sum) {
            return Err(format!("a wrong checksum of the chunk {}", kind.escape_ascii()));
        }
        self.rest = after;
        Ok((kind, content))
    }
}

/// The chunks that are needed to decode an image.
struct Parts<'a> {
    palette: &'a [u8],
    transparent: &'a [u8],
    /// All chunks, from the first one on.
    chunks: Chunks<'a>,
}

impl<'a> Parts<'a> {
    /// Reads all chunks up to the end of the image, and checks their checksums.
    fn read(bytes: &'a [u8]) -> Result<Parts<'a>, Refused> {
        let mut chunks = Chunks { rest: &bytes[SIGNATURE.len()..] };
        let mut file = Parts { palette: &[], transparent: &[], chunks };
        loop {
            match chunks.next()? {
                (b"PLTE", palette) => file.palette = palette,
                (b"tRNS", transparent) => file.transparent = transparent,
                (b"IEND", _) => return Ok(file),
                _ => {}
            }
        }
    }
}

/// Reads the data of all IDAT chunks as one stream.
struct Joined<'a> {
    chunks: Chunks<'a>,
    part: &'a [u8],
}

impl Read for Joined<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while self.part.is_empty() {
            match self.chunks.next() {
                Ok((b"IDAT", data)) => self.part = data,
                Ok((b"IEND", _)) | Err(_) => return Ok(0),
                Ok(_) => {}
            }
        }
        self.part.read(out)
    }
}

/// Reads the rows of a pass and removes their filters.
struct Rows<R> {
    data: R,
    header: Header,
    /// The bytes of the current row. The next field has the bytes of the row above it.
    row: Vec<u8>,
    above: Vec<u8>,
}

impl<R: Read> Rows<R> {
    fn new(header: &Header, data: R) -> Rows<R> {
        Rows { data, header: *header, row: Vec::new(), above: Vec::new() }
    }

    /// Begins a pass with rows of `width` pixels. The row above the first row of a pass counts as zeros.
    fn start_pass(&mut self, width: usize) {
        let bytes = self.header.row_bytes(width);
        self.row.clear();
        self.row.resize(bytes, 0);
        self.above.clear();
        self.above.resize(bytes, 0);
    }

    fn next(&mut self) -> Result<&[u8], Refused> {
        let Rows { data, header, row, above } = self;
        std::mem::swap(row, above);
        let mut filter = [0];
        let cut = |error: std::io::Error| format!("data that cannot be decompressed ({error})");
        data.read_exact(&mut filter).map_err(cut)?;
        data.read_exact(row).map_err(cut)?;
        let pixel = (header.color.channels() * usize::from(header.depth)).div_ceil(8);
        unfilter(filter[0], pixel, row, above)?;
        Ok(row)
    }
}

/// Removes the filter from a row, by adding the value that the filter predicts to each byte. `pixel` is the number of
/// bytes between a byte and the corresponding byte of the pixel to the left.
fn unfilter(filter: u8, pixel: usize, row: &mut [u8], above: &[u8]) -> Result<(), Refused> {
    if !matches!(filter, 0..=4) {
        return Err(format!("a row with filter {filter}"));
    }
    for place in 0..row.len() {
        let is_first = place < pixel;
        let left = if is_first { 0 } else { row[place - pixel] };
        let corner = if is_first { 0 } else { above[place - pixel] };
        let up = above[place];
        let predicted = match filter {
            1 => left,
            2 => up,
            3 => ((u16::from(left) + u16::from(up)) / 2) as u8,
            4 => paeth(left, up, corner),
            _ => 0,
        };
        row[place] = row[place].wrapping_add(predicted);
    }
    Ok(())
}

/// Returns whichever of the three neighbours is nearest to `left + up - corner`.
fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let [a, b, c] = [left, up, corner].map(i32::from);
    let distances = [(b - c).abs(), (a - c).abs(), (a + b - 2 * c).abs()];
    if distances[0] <= distances[1] && distances[0] <= distances[2] {
        left
    } else if distances[1] <= distances[2] {
        up
    } else {
        corner
    }
}

/// Converts rows to red, green and blue.
struct Colors<'a> {
    header: &'a Header,
    palette: &'a [u8],
    transparent: &'a [u8],
}

impl Colors<'_> {
    fn convert(&self, row: &[u8], width: usize, pixels: &mut Vec<u8>) -> Result<(), Refused> {
        let Header { depth, color, .. } = *self.header;
        // `sample` returns the value of a sample, and `byte` converts a value to 8 bits. Samples of fewer than 8 bits
        // are packed into bytes.
        let sample = |number: usize| -> u16 {
            match depth {
                8 => row[number].into(),
                16 => u16::from_be_bytes([row[2 * number], row[2 * number + 1]]),
                _ => {
                    let bit = number * usize::from(depth);
                    u16::from(row[bit / 8] << (bit % 8) >> (8 - depth))
                }
            }
        };
        let byte = |value: u16| match depth {
            16 => (value >> 8) as u8,
            8 => value as u8,
            _ => (value * 255 / ((1 << depth) - 1)) as u8,
        };
        pixels.clear();
        let channels = color.channels();
        for first in (0..width).map(|number| number * channels) {
            let (rgb, opacity) = match color {
                Color::Grey => ([byte(sample(first)); 3], self.opacity(&[sample(first)])),
                Color::GreyAlpha => ([byte(sample(first)); 3], byte(sample(first + 1))),
                Color::Palette => {
                    let entry = usize::from(sample(first));
                    let color = self.palette.chunks_exact(3).nth(entry);
                    let color = color.ok_or_else(|| format!("colour {entry} of a smaller palette"))?;
                    let rgb = [color[0], color[1], color[2]];
                    (rgb, self.transparent.get(entry).copied().unwrap_or(255))
                }
                Color::Rgb | Color::RgbAlpha => {
                    let values = [sample(first), sample(first + 1), sample(first + 2)];
                    let is_opaque = color == Color::Rgb;
                    let opacity = if is_opaque { self.opacity(&values) } else { byte(sample(first + 3)) };
                    (values.map(byte), opacity)
                }
            };
            pixels.extend(if opacity == 255 { rgb } else { rgb.map(|value| over_white(value, opacity)) });
        }
        Ok(())
    }

    /// Returns 0 for the colour that the file declares as transparent, and 255 for all other colours.
    fn opacity(&self, values: &[u16]) -> u8 {
        let is_transparent = self.transparent.len() == 2 * values.len()
            && self
                .transparent
                .chunks_exact(2)
                .zip(values)
                .all(|(bytes, value)| bytes == value.to_be_bytes());
        if is_transparent { 0 } else { 255 }
    }
}

fn over_white(value: u8, opacity: u8) -> u8 {
    let (value, opacity) = (u32::from(value), u32::from(opacity));
    ((value * opacity + 255 * (255 - opacity) + 127) / 255) as u8
}

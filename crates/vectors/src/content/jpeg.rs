//! Reads the markers of a JPEG file (ITU-T T.81, annex B).
//!
//! The decoder allocates memory according to the header. This module therefore reads the header first. The size of the
//! image determines whether the image is decoded, and how much memory is reserved. The decoder also accepts some
//! truncated files. This module refuses them, because they have no marker for the end of the image.

/// The reason why a file was refused. The first text describes what the file contains, and the second one what was
/// expected.
type Refused = (String, &'static str);

/// The properties of an image that determine the memory of the decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Frame {
    pub width: u32,
    pub height: u32,
    pub components: u32,
    /// True if the decoder keeps the coefficients of the whole image, because the image is progressive or has several
    /// scans.
    pub is_kept_whole: bool,
}

/// The size, in bytes, of a decoded pixel (red, green and blue).
const PIXEL: u64 = 3;
/// The size, in bytes, of a coefficient in the decoder.
const COEFFICIENT: u64 = 2;
/// The memory, in bytes, of the decoder's row buffers for each pixel of a row. There are up to four components of 8
/// rows each. The decoder enlarges them by a factor of up to 4 in both directions.
const ROWS: u64 = 1024;

impl Frame {
    /// Reads all markers of a file, from the first one to the end of the image.
    ///
    /// # Errors
    /// Returns [`Refused`] if the file is malformed, truncated or not supported.
    pub fn read(bytes: &[u8]) -> Result<Frame, Refused> {
        let mut markers = Markers { bytes, at: 2 };
        let mut frame: Option<Frame> = None;
        let mut scans = 0;
        while let Some((marker, segment)) = markers.next()? {
            match marker {
                // The markers C4, C8 and CC are tables and extensions, not frames.
                0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                    if frame.is_some() {
                        return Err(("a second frame".to_string(), "one image"));
                    }
                    frame = Some(frame_of(marker, segment)?);
                }
                0xda => {
                    let frame = frame.as_mut().ok_or_else(|| ("a scan".to_string(), "a frame before it"))?;
                    scans += 1;
                    let components = segment.first().map_or(0, |&count| u32::from(count));
                    frame.is_kept_whole |= scans > 1 || components < frame.components;
                    markers.skip_scan();
                }
                _ => {}
            }
        }
        match frame {
            Some(frame) if scans > 0 => Ok(frame),
            _ => Err(("its end".to_string(), "a frame and a scan")),
        }
    }

    /// Returns the memory, in bytes, that the decoder needs for the pixels and its buffers, without the file.
    pub fn memory_bytes(&self) -> u64 {
        // The decoder rounds the size up to whole blocks of up to 32 x 32 pixels.
        let [width, height] = [self.width, self.height].map(|side| u64::from(side).next_multiple_of(32));
        let kept = if self.is_kept_whole { COEFFICIENT * u64::from(self.components) } else { 0 };
        width * height * (PIXEL + kept) + width * ROWS
    }
}

fn frame_of(marker: u8, segment: &[u8]) -> Result<Frame, Refused> {
    let &[bits, y1, y0, x1, x0, components, ..] = segment else {
        return Err((format!("a frame of {} bytes", segment.len()), "at least 6"));
    };
    if !matches!(marker, 0xc0..=0xc2) {
        return Err((
            format!("a frame of kind {marker:02X}"),
            "baseline, extended or progressive with Huffman codes",
        ));
    }
    if bits != 8 {
        return Err((format!("{bits} bits in a colour"), "8"));
    }
    let [width, height] = [[x1, x0], [y1, y0]].map(|side| u32::from(u16::from_be_bytes(side)));
    if width == 0 || height == 0 {
        return Err((format!("{width} x {height} pixels"), "at least 1 x 1"));
    }
    Ok(Frame { width, height, components: components.into(), is_kept_whole: marker == 0xc2 })
}

struct Markers<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Markers<'a> {
    /// Returns the next marker with its segment, or `None` at the end of the image.
    fn next(&mut self) -> Result<Option<(u8, &'a [u8])>, Refused> {
        let end = || ("the end of the file".to_string(), "the marker of the image's end");
        // Any number of FF bytes may precede a marker.
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let start = rest
            .windows(2)
            .position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff))
            .ok_or_else(end)?;
        let marker = rest[start + 1];
        self.at += start + 2;
        match marker {
            0xd9 => Ok(None),
            // The markers of restarts and of the start of an image have no segment.
            0x01 | 0xd0..=0xd8 => Ok(Some((marker, &[]))),
            _ => {
                let rest = &self.bytes[self.at..];
                let length = rest.first_chunk().map(|&length| usize::from(u16::from_be_bytes(length)));
                let segment = length.and_then(|length| rest.get(2..length)).ok_or_else(end)?;
                self.at += 2 + segment.len();
                Ok(Some((marker, segment)))
            }
        }
    }

    /// Skips the coded data of a scan. In this data, each FF is followed by a zero or belongs to a restart marker.
    fn skip_scan(&mut self) {
        let rest = &self.bytes[self.at..];
        let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
        self.at += rest.windows(2).position(is_marker).unwrap_or(rest.len());
    }
}

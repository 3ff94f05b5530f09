//! Scales an image to 128 x 128 pixels, row by row.
//!
//! Each pixel of the result corresponds to a rectangle of the source image. The pixel is the mean of this rectangle. If
//! a source pixel lies only partly in the rectangle, its weight is the fraction of its area that lies in the rectangle.
//! The sums are computed in integers, so each result is exact until it is rounded once. The ratio of width to height is
//! not kept. The 2018 thesis does the same: its images were "resized to have width and height of 128 pixels" (section
//! 6.3.1).

/// The width and height of a scaled image.
pub(crate) const SIDE: usize = 128;
const CHANNELS: usize = 3;
const ROW: usize = SIDE * CHANNELS;

/// The overlap of a source pixel with a pixel of the result, in the horizontal or the vertical direction.
#[derive(Clone, Copy)]
struct Part {
    source: u32,
    target: u32,
    weight: u32,
}

/// Scales an image whose rows are added from top to bottom.
pub(crate) struct Scaler {
    width: u64,
    height: u64,
    parts: Vec<Part>,
    /// The number of the next row of the source image.
    next: u64,
    /// The sums of the current row of the result.
    sums: [u64; ROW],
    pixels: Vec<u8>,
}

impl Scaler {
    /// Returns the memory, in bytes, of a scaler for images of this width.
    pub fn bytes(width: u32) -> u64 {
        (u64::from(width) + SIDE as u64) * size_of::<Part>() as u64 + (SIDE * ROW + 8 * ROW) as u64
    }

    /// Creates a scaler for an image of `width` x `height` pixels. Both sides must be at least 1.
    pub fn new(width: u32, height: u32) -> Scaler {
        let mut parts = Vec::with_capacity(width as usize + SIDE);
        for source in 0..width {
            overlaps(u64::from(source), u64::from(width), |target, weight| {
                parts.push(Part { source, target: target as u32, weight: weight as u32 });
            });
        }
        Scaler {
            width: width.into(),
            height: height.into(),
            parts,
            next: 0,
            sums: [0; ROW],
            pixels: Vec::with_capacity(SIDE * ROW),
        }
    }

    /// Adds the next row of the source image. The row has 3 bytes (red, green and blue) for each pixel.
    pub fn add(&mut self, row: &[u8]) {
        // A sum is at most 255 times the width, so 32 bits suffice for a width of up to 2^24.
        let mut sums = [0u32; ROW];
        for part in &self.parts {
            let pixel = &row[part.source as usize * CHANNELS..][..CHANNELS];
            let target = &mut sums[part.target as usize * CHANNELS..][..CHANNELS];
            for channel in 0..CHANNELS {
                target[channel] += part.weight * u32::from(pixel[channel]);
            }
        }
        let (number, height, area) = (self.next, self.height, self.width * self.height);
        let Scaler { sums: totals, pixels, .. } = self;
        overlaps(number, height, |target, weight| {
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total += weight * u64::from(sum);
            }
            // If this source row reaches the end of a row of the result, that row is complete.
            if (number + 1) * SIDE as u64 >= (target + 1) * height {
                pixels.extend(totals.iter().map(|total| ((total + area / 2) / area) as u8));
                *totals = [0; ROW];
            }
        });
        self.next += 1;
    }

    /// Returns the scaled image. All rows of the source image must have been added.
    pub fn finish(self) -> Vec<u8> {
        assert_eq!(self.pixels.len(), SIDE * ROW, "{} of {} rows were added", self.next, self.height);
        self.pixels
    }
}

/// Finds the pixels of the result that overlap a source pixel, in the horizontal or the vertical direction. `index` is
/// the index of the source pixel, and `len` is the number of source pixels in this direction. `each` receives the index
/// of each such pixel and the length of the overlap. The unit of length is chosen so that a source pixel has the length
/// 128, and a pixel of the result has the length `len`.
fn overlaps(index: u64, len: u64, mut each: impl FnMut(u64, u64)) {
    let (start, end) = (index * SIDE as u64, (index + 1) * SIDE as u64);
    for target in start / len..end.div_ceil(len) {
        each(target, end.min((target + 1) * len) - start.max(target * len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes each pixel as the mean of its rectangle, weighted by area, in f64.
    fn naive(pixels: &[u8], width: usize, height: usize) -> Vec<f64> {
        let overlap = |source: usize, target: usize, len: usize| {
            let scale = len as f64 / SIDE as f64;
            let end = (source as f64 + 1.0).min((target as f64 + 1.0) * scale);
            (end - (source as f64).max(target as f64 * scale)).max(0.0)
        };
        let mut out = Vec::new();
        for y in 0..SIDE {
            for x in 0..SIDE {
                for channel in 0..CHANNELS {
                    let mut sum = 0.0;
                    for row in 0..height {
                        let tall = overlap(row, y, height);
                        for column in (0..width).filter(|_| tall > 0.0) {
                            let wide = overlap(column, x, width);
                            sum +=
                                tall * wide * f64::from(pixels[(row * width + column) * CHANNELS + channel]);
                        }
                    }
                    out.push(sum / (width * height) as f64 * (SIDE * SIDE) as f64);
                }
            }
        }
        out
    }

    fn scaled(pixels: &[u8], width: usize, height: usize) -> Vec<u8> {
        let mut scaler = Scaler::new(width as u32, height as u32);
        pixels.chunks(width * CHANNELS).for_each(|row| scaler.add(row));
        scaler.finish()
    }

    #[test]
    fn pixels_are_means_of_their_rectangles() {
        let mut state = 1u32;
        for (width, height) in [(1, 1), (3, 200), (128, 128), (129, 127), (256, 64), (300, 1), (131, 257)] {
            let pixels: Vec<u8> = (0..width * height * CHANNELS)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            let expected = naive(&pixels, width, height);
            for (place, (found, expected)) in scaled(&pixels, width, height).iter().zip(&expected).enumerate()
            {
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference <= 0.5 + 1e-6, "{width} x {height}, {place}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn an_image_of_128_pixels_is_unchanged() {
        let pixels: Vec<u8> = (0..SIDE * ROW).map(|place| (place * 7 % 251) as u8).collect();
        assert_eq!(scaled(&pixels, SIDE, SIDE), pixels);
    }
}

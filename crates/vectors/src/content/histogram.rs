//! The joint histogram of colour and edgeness of an image of 128 x 128 pixels.
//!
//! Each pixel has four features: red, green, blue and edgeness. Each feature has four levels. The histogram has a bin
//! for each combination of levels:
//!
//! ```text
//!   bin = ((red level * 4 + green level) * 4 + blue level) * 4 + edgeness level
//! ```
//!
//! For a colour, each level covers a quarter of the range of values. Edgeness is the magnitude of the gradient of the
//! luminance, computed by the Sobel filters. [`EDGES`] has the limits between the levels of edgeness. All steps are
//! computed in integers.
//!
//! The comparison of images is described in sections 6.1.2 and 6.2.1 of the 2018 thesis (see docs/from-the-papers.md).
//! The thesis states the features and the number of levels. It states neither a formula for the luminance nor the
//! limits of edgeness.

use super::scale::SIDE;

/// The number of bins.
pub(crate) const BINS: usize = 256;
/// The number of pixels in a scaled image.
const PIXELS: usize = SIDE * SIDE;
/// The smallest gradient magnitudes of the levels 1, 2 and 3. The unit is that of the Sobel filter, in which a vertical
/// edge with a luminance step of 1 has the gradient 4. The limits are near the quartiles of photographs, so that each
/// level has about a quarter of the pixels. The quartiles of 1,000 photographs of ImageNet are 15, 48 and 119.
const EDGES: [i32; 3] = [16, 48, 120];

/// Computes, for each bin, which fraction of the pixels of an image is in the bin. `pixels` has 3 bytes (red, green and
/// blue) for each pixel, row by row. A fraction is a number of pixels divided by 16,384, and f32 represents it exactly.
pub(crate) fn histogram(pixels: &[u8], shares: &mut [f32; BINS]) {
    let luminance = luminance(pixels);
    let mut counts = [0u32; BINS];
    for (place, pixel) in pixels.as_chunks::<3>().0.iter().enumerate() {
        let [red, green, blue] = pixel.map(|value| usize::from(value >> 6));
        let edge = edge_level(&luminance, place % SIDE, place / SIDE);
        counts[((red * 4 + green) * 4 + blue) * 4 + edge] += 1;
    }
    for (share, count) in shares.iter_mut().zip(counts) {
        *share = count as f32 / PIXELS as f32;
    }
}

/// Returns the luminance of each pixel, from 0 to 255. The formula is 0.299 red + 0.587 green + 0.114 blue, with
/// weights rounded to 256ths.
fn luminance(pixels: &[u8]) -> Vec<i32> {
    let weighted = |[red, green, blue]: [u8; 3]| {
        (77 * i32::from(red) + 150 * i32::from(green) + 29 * i32::from(blue) + 128) >> 8
    };
    pixels.as_chunks::<3>().0.iter().map(|&pixel| weighted(pixel)).collect()
}

/// Returns the level of edgeness at a pixel. A pixel outside the image has the value of the nearest pixel inside.
fn edge_level(luminance: &[i32], x: usize, y: usize) -> usize {
    let (left, right) = (x.saturating_sub(1), (x + 1).min(SIDE - 1));
    let (above, below) = (y.saturating_sub(1), (y + 1).min(SIDE - 1));
    let at = |x: usize, y: usize| luminance[y * SIDE + x];
    let column = |x: usize| at(x, above) + 2 * at(x, y) + at(x, below);
    let row = |y: usize| at(left, y) + 2 * at(x, y) + at(right, y);
    let (across, down) = (column(right) - column(left), row(below) - row(above));
    let square = across * across + down * down;
    EDGES.iter().filter(|&&edge| square >= edge * edge).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(color: impl Fn(usize, usize) -> [u8; 3]) -> Vec<u8> {
        (0..PIXELS).flat_map(|place| color(place % SIDE, place / SIDE)).collect()
    }

    /// Computes the histogram with filter matrices, in f64.
    fn naive(pixels: &[u8]) -> Vec<f32> {
        let color = |x: i64, y: i64, channel: usize| {
            let [x, y] = [x, y].map(|place| place.clamp(0, SIDE as i64 - 1) as usize);
            pixels[3 * (y * SIDE + x) + channel]
        };
        let gray = |x, y| {
            let weights = [77.0, 150.0, 29.0];
            let sum: f64 = (0..3).map(|channel| weights[channel] * f64::from(color(x, y, channel))).sum();
            (sum / 256.0 + 0.5).floor()
        };
        let filter = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]];
        let mut counts = vec![0.0f32; BINS];
        for y in 0..SIDE as i64 {
            for x in 0..SIDE as i64 {
                let (mut across, mut down) = (0.0, 0.0);
                for (i, row) in filter.iter().enumerate() {
                    for (j, weight) in row.iter().enumerate() {
                        let (i, j) = (i as i64 - 1, j as i64 - 1);
                        across += weight * gray(x + j, y + i);
                        down += weight * gray(x + i, y + j);
                    }
                }
                let edge = match f64::hypot(across, down) {
                    size if size < 16.0 => 0,
                    size if size < 48.0 => 1,
                    size if size < 120.0 => 2,
                    _ => 3,
                };
                let level = |channel| usize::from(color(x, y, channel) / 64);
                counts[64 * level(0) + 16 * level(1) + 4 * level(2) + edge] += 1.0;
            }
        }
        counts.iter().map(|count| count / 16_384.0).collect()
    }

    fn shares(pixels: &[u8]) -> [f32; BINS] {
        let mut shares = [0.0; BINS];
        histogram(pixels, &mut shares);
        shares
    }

    #[test]
    fn histograms_equal_naive_ones() {
        let mut state = 7u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let random: Vec<u8> = (0..3 * PIXELS).map(|_| noise()).collect();
        let soft = image(|x, y| [(x + y) as u8, (x / 2) as u8, (255 - y) as u8]);
        let steps = image(|x, y| if (x / 9 + y / 7) % 2 == 0 { [200, 30, 64] } else { [10, 63, 191] });
        for pixels in [random, soft, steps] {
            let shares = shares(&pixels);
            assert_eq!(shares.to_vec(), naive(&pixels));
            assert_eq!(shares.iter().sum::<f32>(), 1.0);
        }
    }

    #[test]
    fn a_plain_image_has_one_bin_and_an_edge_has_the_upper_levels() {
        let plain = shares(&image(|_, _| [255, 0, 64]));
        assert_eq!(plain[3 * 64 + 4], 1.0);
        // On each side of the edge between black and white, one column of pixels has a large gradient.
        let edge = shares(&image(|x, _| if x < 64 { [0; 3] } else { [255; 3] }));
        assert_eq!((edge[0], edge[3]), (63.0 / 128.0, 1.0 / 128.0));
        assert_eq!((edge[252], edge[255]), (63.0 / 128.0, 1.0 / 128.0));
    }
}

//! Draws the figure of a measured drive as an SVG. The figure shows throughput over block size, with one line for each
//! number of requests in flight.
//!
//! ```text
//!   title, what was measured, legend
//!   sequential read   sequential write        all panels have the same scales, both logarithmic
//!   random read       random write
//! ```
//!
//! This module writes the SVG itself, without a plotting library, since the figure has only rectangles, lines, circles
//! and text.

use std::{collections::BTreeSet, fmt::Write};

use inshore::store::{AccessPattern, DeviceProfile, format_bytes};

const WIDTH: f64 = 960.0;
/// The height of the space above the panels of a device, and the height of one panel.
const HEAD: f64 = 104.0;
const PANEL: (f64, f64) = (WIDTH / 2.0, 280.0);
/// The plot area in a panel: left, top, width, height.
const PLOT: (f64, f64, f64, f64) = (88.0, 28.0, 364.0, 190.0);
const HEIGHT: f64 = HEAD + 2.0 * PANEL.1;
/// The colours of lines, from dark to light. They can be distinguished in grey and with colour blindness. If there are
/// more lines than colours, the first colours are used again.
const COLOURS: [&str; 6] = ["#440154", "#3b528b", "#21918c", "#5ec962", "#e6a800", "#d1495b"];

/// Returns the figure. If there are several devices, their panels are below each other.
pub fn svg(devices: &[DeviceProfile]) -> String {
    let height = HEIGHT * devices.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, device) in devices.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", HEIGHT * number as f64);
        draw_device(&mut out, device);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

/// The values that the axes of all panels show.
struct Scales {
    blocks: Vec<u64>,
    /// Rates in bytes per second, ascending. The first rate and the last rate are the ends of the axis.
    rates: Vec<f64>,
}

impl Scales {
    fn of(device: &DeviceProfile) -> Scales {
        let blocks: BTreeSet<u64> = device.points.iter().map(|point| point.block_bytes).collect();
        let rates = device.points.iter().map(|point| point.bytes_per_second);
        let (low, high) =
            rates.fold((f64::INFINITY, 0.0f64), |(low, high), rate| (low.min(rate), high.max(rate)));
        Scales { blocks: blocks.into_iter().collect(), rates: ticks(low, high) }
    }

    fn x(&self, block_bytes: u64) -> f64 {
        let (first, last) = (self.blocks[0] as f64, self.blocks[self.blocks.len() - 1] as f64);
        let part = if last > first { (block_bytes as f64 / first).ln() / (last / first).ln() } else { 0.5 };
        PLOT.0 + 12.0 + part * (PLOT.2 - 24.0)
    }

    fn y(&self, rate: f64) -> f64 {
        let (low, high) = (self.rates[0], self.rates[self.rates.len() - 1]);
        PLOT.1 + PLOT.3 * (1.0 - (rate / low).ln() / (high / low).ln())
    }
}

/// Returns the ticks of an axis from at most `low` to at least `high`: 1, 2 and 5 times each power of ten. If these are
/// more than ten, returns only the powers of ten.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32 + 1);
    let of = |steps: &[f64]| -> Vec<f64> {
        let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        let all: Vec<f64> = all.collect();
        let start = all.iter().rposition(|&tick| tick <= low).unwrap_or(0);
        let end = all.iter().position(|&tick| tick >= high).unwrap_or(all.len() - 1).max(start + 1);
        all[start..=end].to_vec()
    };
    let fine = of(&[1.0, 2.0, 5.0]);
    if fine.len() <= 10 { fine } else { of(&[1.0]) }
}

/// Formats a rate in the decimal units in which drives are sold.
pub fn format_rate(bytes_per_second: f64) -> String {
    let (value, unit) = match bytes_per_second {
        // A rate that would be rounded to 1000 of a unit is printed in the next larger unit.
        rate if rate >= 999.5e6 => (rate / 1e9, "GB/s"),
        rate if rate >= 999.5e3 => (rate / 1e6, "MB/s"),
        rate => (rate / 1e3, "kB/s"),
    };
    let digits = if value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}

/// Formats a block size for an axis: "64K", "2M".
fn short_bytes(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}M", bytes >> 20) } else { format!("{}K", bytes >> 10) }
}

fn draw_device(out: &mut String, device: &DeviceProfile) {
    text(
        out,
        (24.0, 32.0),
        "font-size=\"18\" font-weight=\"bold\"",
        &format!("Throughput of {}", short(&device.path)),
    );
    let cache = if device.direct_io { "past the page cache" } else { "through the page cache" };
    let how = format!("working set {}, {cache}, by {}", format_bytes(device.working_set_bytes), device.io);
    text(out, (24.0, 54.0), "fill=\"#555\"", &how);

    let counts: BTreeSet<u32> = device.points.iter().map(|point| point.in_flight).collect();
    let colour = |number: usize| COLOURS[number % COLOURS.len()];
    text(out, (24.0, 82.0), "", "Requests in flight:");
    for (number, count) in counts.iter().enumerate() {
        let x = 144.0 + 72.0 * number as f64;
        line(out, &[(x, 78.0), (x + 28.0, 78.0)], colour(number));
        text(out, (x + 36.0, 82.0), "", &count.to_string());
    }

    let scales = Scales::of(device);
    for (number, pattern) in AccessPattern::ALL.into_iter().enumerate() {
        let corner = (PANEL.0 * (number % 2) as f64, HEAD + PANEL.1 * (number / 2) as f64);
        let _ = writeln!(out, "<g transform=\"translate({} {})\">", corner.0, corner.1);
        draw_axes(out, &scales, pattern);
        for (number, &count) in counts.iter().enumerate() {
            let points = device.of(pattern).filter(|point| point.in_flight == count);
            let mut places: Vec<(u64, f64)> =
                points.map(|point| (point.block_bytes, point.bytes_per_second)).collect();
            places.sort_by_key(|place| place.0);
            let places: Vec<(f64, f64)> =
                places.into_iter().map(|(block, rate)| (scales.x(block), scales.y(rate))).collect();
            line(out, &places, colour(number));
        }
        out.push_str("</g>\n");
    }
}

fn draw_axes(out: &mut String, scales: &Scales, pattern: AccessPattern) {
    let (left, top, width, height) = PLOT;
    let (right, bottom) = (left + width, top + height);
    let mut title = pattern.to_string();
    title[..1].make_ascii_uppercase();
    text(out, (left, top - 10.0), "font-size=\"14\" font-weight=\"bold\"", &title);
    for &rate in &scales.rates {
        let y = scales.y(rate);
        rule(out, (left, y), (right, y), "#ddd");
        text(out, (left - 8.0, y + 4.0), "text-anchor=\"end\"", &format_rate(rate).replace(".0 ", " "));
    }
    for &block in &scales.blocks {
        let x = scales.x(block);
        rule(out, (x, bottom), (x, bottom + 5.0), "#222");
        text(out, (x, bottom + 19.0), "text-anchor=\"middle\"", &short_bytes(block));
    }
    rule(out, (left, top), (left, bottom), "#222");
    rule(out, (left, bottom), (right, bottom), "#222");
    let middle = (left + width / 2.0, bottom + 38.0);
    text(out, middle, "text-anchor=\"middle\" fill=\"#555\"", "block size (bytes)");
    let turned =
        format!("text-anchor=\"middle\" fill=\"#555\" transform=\"rotate(-90 18 {})\"", top + height / 2.0);
    text(out, (18.0, top + height / 2.0), &turned, "throughput");
}

fn rule(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// Draws a line through these points, with a dot at each point.
fn line(out: &mut String, places: &[(f64, f64)], colour: &str) {
    let joined: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        joined.join(" ")
    );
    for (x, y) in places {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

fn text(out: &mut String, place: (f64, f64), style: &str, words: &str) {
    let space = if style.is_empty() { "" } else { " " };
    let words = escape(words);
    let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\"{space}{style}>{words}</text>", place.0, place.1);
}

/// Escapes text for XML, and replaces control characters, which XML does not allow.
fn escape(words: &str) -> String {
    let words: String = words.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the end of a long path, since the title is one line.
fn short(path: &str) -> String {
    const MOST: usize = 70;
    let length = path.chars().count();
    if length <= MOST {
        return path.to_string();
    }
    format!("…{}", path.chars().skip(length - MOST + 1).collect::<String>())
}

#[cfg(test)]
mod tests {
    use inshore::store::{DriveProfile, Point};

    use super::*;

    fn device(path: &str) -> DeviceProfile {
        let blocks = [4u64, 16, 64, 256, 1024, 2048].map(|kib| kib << 10);
        let points = AccessPattern::ALL.into_iter().flat_map(|pattern| {
            blocks.into_iter().flat_map(move |block_bytes| {
                [1u32, 4, 16, 32, 64].into_iter().map(move |in_flight| {
                    let operations_per_second = 17e3 * (in_flight as f64).min(5.0);
                    let bytes_per_second = (operations_per_second * block_bytes as f64).min(3.1e9);
                    Point {
                        pattern,
                        block_bytes,
                        in_flight,
                        bytes_per_second,
                        operations_per_second,
                        latency_us_mean: 60.0,
                        latency_us_p99: 90.0,
                    }
                })
            })
        });
        let device = DriveProfile::default().devices.remove(0);
        DeviceProfile { path: path.to_string(), points: points.collect(), ..device }
    }

    #[test]
    fn the_figure_has_four_panels_with_a_line_for_each_number_in_flight() {
        let figure = svg(&[device("/data")]);
        let count = |part: &str| figure.matches(part).count();
        // Each of the four panels has five lines, and the legend has five.
        assert_eq!(count("<polyline"), 4 * 5 + 5);
        assert_eq!(count("<circle"), 4 * 5 * 6 + 5 * 2);
        for words in ["Sequential read", "Sequential write", "Random read", "Random write"] {
            assert_eq!(count(&format!(">{words}</text>")), 1, "{words}");
        }
        assert_eq!((count(">throughput</text>"), count(">block size (bytes)</text>")), (4, 4));
        assert_eq!((count(">4K</text>"), count(">2M</text>"), count(">1 GB/s</text>")), (4, 4, 4));
        assert_eq!((count("<g "), count("</g>")), (5, 5));
        assert!(!figure.contains("NaN") && !figure.contains("inf\""), "{figure}");
        assert_eq!(svg(&[device("/a"), device("/b")]).matches("<polyline").count(), 2 * 25);
    }

    #[test]
    fn every_point_lies_in_its_panel() {
        let device = device("/data");
        let scales = Scales::of(&device);
        for point in &device.points {
            let (x, y) = (scales.x(point.block_bytes), scales.y(point.bytes_per_second));
            assert!(
                (PLOT.0..=PLOT.0 + PLOT.2).contains(&x) && (PLOT.1..=PLOT.1 + PLOT.3).contains(&y),
                "{point:?}"
            );
        }
        let gaps = scales.rates.windows(2).map(|pair| scales.y(pair[0]) - scales.y(pair[1]));
        assert!(gaps.fold(f64::INFINITY, f64::min) > 13.0, "labels overlap: {:?}", scales.rates);
    }

    #[test]
    fn one_point_and_a_hostile_path_make_a_sound_figure() {
        let mut one = device(&format!("{}/<script>&\u{1b}\"", "x".repeat(300)));
        one.points.retain(|point| point.block_bytes == 4096 && point.in_flight == 1);
        one.points.iter_mut().for_each(|point| point.bytes_per_second = 1e6);
        let figure = svg(&[one]);
        assert!(figure.contains("/&lt;script&gt;&amp;\u{fffd}\"</text>"), "{figure}");
        assert!(!figure.contains("NaN") && !figure.contains("script>"), "{figure}");
    }

    #[test]
    fn ticks_enclose_what_they_are_for_and_are_not_too_many() {
        for (low, high) in [(1e6, 1e6), (70e6, 3.1e9), (1.0, 1e12), (999.0, 1001.0), (2e9, 5e9)] {
            let ticks = ticks(low, high);
            assert!(ticks[0] <= low && ticks[ticks.len() - 1] >= high, "{low} {high}: {ticks:?}");
            assert!((2..=14).contains(&ticks.len()) && ticks.is_sorted(), "{low} {high}: {ticks:?}");
        }
    }

    #[test]
    fn rates_are_short() {
        let texts = [(50e6, "50.0 MB/s"), (3.14e9, "3.1 GB/s"), (999.9e6, "1.0 GB/s"), (420.0, "0.4 kB/s")];
        for (rate, text) in texts.into_iter().chain([(123.4e6, "123 MB/s"), (99.99e6, "100 MB/s")]) {
            assert_eq!(format_rate(rate), text);
        }
    }
}

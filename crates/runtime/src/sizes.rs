//! Formats numbers of bytes for people.

/// Writes a size in the largest binary unit in which the number is 1 or more.
///
/// ```
/// assert_eq!(inshore_runtime::format_bytes(64 << 20), "64 MiB");
/// assert_eq!(inshore_runtime::format_bytes(1536), "1.5 KiB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    let (value, unit) = in_units(bytes);
    if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") }
}

/// Writes a size as [`format_bytes`] does, but rounds up: a budget of the printed size is never too small.
///
/// ```
/// assert_eq!(inshore_runtime::format_bytes_up(7 << 20), "7 MiB");
/// assert_eq!(inshore_runtime::format_bytes_up((7 << 20) + 1), "7.1 MiB");
/// ```
pub fn format_bytes_up(bytes: u64) -> String {
    let (value, unit) = in_units(bytes);
    let tenths = (value * 10.0).ceil();
    if tenths % 10.0 == 0.0 {
        format!("{} {unit}", tenths / 10.0)
    } else {
        format!("{:.1} {unit}", tenths / 10.0)
    }
}

/// Converts a size to the largest binary unit in which the number is 1 or more.
fn in_units(bytes: u64) -> (f64, &'static str) {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    (value, units[unit])
}

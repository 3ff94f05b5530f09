//! Formats counts for messages.

/// Returns a count with its noun: `1 vector`, `2 vectors`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

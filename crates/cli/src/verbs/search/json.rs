//! Prints the messages of ripgrep's `--json` format, one per line.

use std::{
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use inshore::kernels::{FoundLine, WalkedFile};
use serde_json::{Value, json};

/// Prints messages, and collects the statistics for the last message.
pub struct Json {
    started: Instant,
    files: u64,
    lines: u64,
    matches: u64,
}

impl Default for Json {
    fn default() -> Self {
        Json { started: Instant::now(), files: 0, lines: 0, matches: 0 }
    }
}

impl Json {
    pub fn begin(&self, out: &mut impl Write, whose: &WalkedFile) -> io::Result<()> {
        say(out, &json!({ "type": "begin", "data": { "path": path(whose) } }))
    }

    pub fn line(
        &self,
        out: &mut impl Write,
        whose: &WalkedFile,
        line: &FoundLine,
        text: &[u8],
        spans: &[(u32, u32)],
    ) -> io::Result<()> {
        let span = |&(start, end): &(u32, u32)| json!({ "match": bytes(&text[start as usize..end as usize]), "start": start, "end": end });
        let data = json!({
            "path": path(whose),
            "lines": bytes(text),
            "line_number": line.number,
            "absolute_offset": line.offset,
            "submatches": spans.iter().map(span).collect::<Vec<_>>(),
        });
        say(out, &json!({ "type": if line.is_match { "match" } else { "context" }, "data": data }))
    }

    pub fn end(
        &mut self,
        out: &mut impl Write,
        whose: &WalkedFile,
        lines: u64,
        matches: u64,
    ) -> io::Result<()> {
        self.add(lines, matches);
        let stats = json!({ "searches_with_match": 1, "matched_lines": lines, "matches": matches });
        say(
            out,
            &json!({ "type": "end", "data": { "path": path(whose), "binary_offset": null, "stats": stats } }),
        )
    }

    /// Adds a file with matches to the statistics.
    pub fn add(&mut self, lines: u64, matches: u64) {
        self.files += 1;
        self.lines += lines;
        self.matches += matches;
    }

    pub fn summary(&self, out: &mut impl Write) -> io::Result<()> {
        let stats = json!({ "searches_with_match": self.files, "matched_lines": self.lines, "matches": self.matches });
        let data = json!({ "elapsed_total": elapsed(self.started.elapsed()), "stats": stats });
        say(out, &json!({ "type": "summary", "data": data }))
    }
}

fn elapsed(time: Duration) -> Value {
    json!({ "secs": time.as_secs(), "nanos": time.subsec_nanos(), "human": format!("{:.6}s", time.as_secs_f64()) })
}

fn path(whose: &WalkedFile) -> Value {
    bytes(whose.path.as_os_str().as_bytes())
}

/// Encodes valid UTF-8 as text, and other bytes in base 64.
fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "bytes": STANDARD.encode(bytes) }),
    }
}

fn say(out: &mut impl Write, value: &Value) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

//! Prints the results of commands: as text for a person, or with `--json` for a program.
//!
//! ```text
//!                       standard output                 standard error
//!   --json              one JSON value                  (--explain)
//!   --top N             the table                       sentence, notices, cost, (--explain)
//!   -o FILE             nothing, or CSV with -o -       sentence, notices, cost, (--explain)
//!   neither             sentence                        notices, cost, (--explain)
//! ```

use std::io::{self, BufWriter, Write};

use inshore::store::{Report, format_bytes};
use serde::Serialize;

use crate::{
    args::GlobalOptions,
    report::{
        table::{self, Align},
        terminal::{self, printable},
        top::Top,
    },
};

/// The result of a job. Its JSON has only the fields that are for programs.
#[derive(Serialize)]
pub struct Outcome<S> {
    /// The command, such as "graph pagerank".
    pub command: &'static str,
    /// The cost of the job.
    pub report: Report,
    /// The library's summary of the result.
    pub summary: S,
    /// The rows that `--top` requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Top>,
    /// The summary as a sentence for people.
    #[serde(skip)]
    pub sentence: String,
    /// True if the summary goes to standard error, because the rows go to standard output or a file is the result.
    #[serde(skip)]
    pub sentence_aside: bool,
    /// A notice that the user should see although the run succeeded.
    #[serde(skip)]
    pub notice: Option<String>,
    /// Names and values that `--explain` prints.
    #[serde(skip)]
    pub how: Vec<(&'static str, String)>,
}

impl<S: Serialize> Outcome<S> {
    /// Creates an outcome that has a sentence, and neither rows nor notices.
    pub fn new(command: &'static str, report: Report, summary: S, sentence: String) -> Outcome<S> {
        let (rows, notice, how) = (None, None, Vec::new());
        Outcome { command, report, summary, rows, sentence, sentence_aside: false, notice, how }
    }

    /// Prints the outcome.
    pub fn tell(&self, options: &GlobalOptions) -> io::Result<()> {
        if options.json {
            print_json(self)?;
        } else {
            match &self.rows {
                Some(rows) => rows.print(&mut BufWriter::new(terminal::stdout()))?,
                None if self.sentence_aside => {}
                None => print_line(&self.sentence)?,
            }
        }
        if !options.json && !options.quiet {
            if self.sentence_aside || self.rows.is_some() {
                say(&self.sentence);
            }
            if let Some(notice) = &self.notice {
                say(&format!("note: {notice}"));
            }
            say(&cost(&self.report));
        }
        if options.explain {
            say(explain(&self.report, &self.how).trim_end());
        }
        Ok(())
    }
}

/// Prints a value as one line of JSON.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Prints a line on standard output.
pub fn print_line(line: &str) -> io::Result<()> {
    writeln!(terminal::stdout(), "{line}")
}

/// Prints a line on standard error. Errors are ignored, since there is no other place to report them. Control
/// characters are always escaped, since file names and quoted text may contain terminal control sequences.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(line));
}

/// The memory that a process may use in addition to its budget, for code, stacks, and the state of libraries.
const BESIDE_BYTES: u64 = 64 << 20;

fn cost(report: &Report) -> String {
    format!(
        "{:.1} s, read {} from the store, wrote {} to it, peak memory {} of at most {} (budget {} + {})",
        report.seconds,
        format_bytes(report.bytes_read),
        format_bytes(report.bytes_written),
        format_bytes(report.memory_resident_bytes_max),
        format_bytes(report.memory_budget_bytes + BESIDE_BYTES),
        format_bytes(report.memory_budget_bytes),
        format_bytes(BESIDE_BYTES),
    )
}

fn explain(report: &Report, how: &[(&'static str, String)]) -> String {
    let seconds = report.seconds.max(1e-9);
    let moved =
        |bytes: u64| format!("{} ({}/s)", format_bytes(bytes), format_bytes((bytes as f64 / seconds) as u64));
    let mut facts = how.to_vec();
    facts.push(("read", moved(report.bytes_read)));
    facts.push(("written", moved(report.bytes_written)));
    if let Some(floor) = &report.drive_floor {
        let (read, write) = (floor.read_seconds, floor.write_seconds);
        let all = read + write;
        facts.push((
            "drive floor",
            format!("{all:.2} s of {seconds:.2} s (read {read:.2} s, written {write:.2} s)"),
        ));
    }
    facts.push(("page cache", if report.direct_io { "not used" } else { "used" }.to_string()));
    facts.push(("I/O", report.io.to_string()));
    facts.push(("cores busy", format!("{:.1} of {}", report.cpu_seconds / seconds, report.threads)));
    let reserved = format_bytes(report.memory_reserved_bytes_max);
    facts.push(("reserved", format!("{reserved} of {}", format_bytes(report.memory_budget_bytes))));
    facts.push(("peak memory", format_bytes(report.memory_resident_bytes_max)));

    let mut text = Vec::new();
    for (name, value) in facts {
        let _ = writeln!(text, "{name:<16}{value}");
    }
    let phases = report.phases.iter().map(|phase| {
        let share = 100.0 * phase.seconds / seconds;
        vec![phase.phase.clone(), format!("{:.2}", phase.seconds), format!("{share:.0} %")]
    });
    let header = [("phase", Align::Left), ("seconds", Align::Right), ("share", Align::Right)];
    section(&mut text, &header, &phases.collect::<Vec<_>>());
    let levels = report.levels.iter().map(|level| {
        let kept = 100.0 * level.records_out as f64 / (level.records_in as f64).max(1.0);
        let counts = [level.level as u64, level.records_in, level.records_out].map(|count| count.to_string());
        counts.into_iter().chain([format!("{kept:.0} %")]).collect()
    });
    let header = ["level of sort-reduce", "records in", "records out", "kept"];
    section(&mut text, &header.map(|name| (name, Align::Right)), &levels.collect::<Vec<_>>());
    String::from_utf8_lossy(&text).into_owned()
}

/// Adds a table after an empty line, unless it has no rows.
fn section(text: &mut Vec<u8>, header: &[(&str, Align)], rows: &[Vec<String>]) {
    if !rows.is_empty() {
        text.push(b'\n');
        let _ = table::print(text, header, rows);
    }
}

/// Formats a count with its noun: "1 row", "2 rows".
pub fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Returns a phrase that names the output file; empty if the output is standard output.
#[cfg(any(feature = "records", feature = "text"))]
pub fn place(output: &std::path::Path) -> String {
    if output == std::path::Path::new("-") { String::new() } else { format!(" to {}", output.display()) }
}

/// Returns a phrase that says that the answer was written to the output file; empty if the output is standard output.
#[cfg(any(feature = "records", feature = "sql", feature = "vectors"))]
pub fn written(output: &std::path::Path) -> String {
    if output == std::path::Path::new("-") {
        String::new()
    } else {
        format!(" written to {}", output.display())
    }
}

#[cfg(test)]
mod tests {
    use inshore::store::{DriveFloor, LevelReport, PhaseReport};

    use super::*;

    fn report() -> Report {
        Report {
            seconds: 4.0,
            cpu_seconds: 6.0,
            memory_budget_bytes: 64 << 20,
            memory_reserved_bytes_max: 60 << 20,
            memory_resident_bytes_max: 96 << 20,
            threads: 2,
            bytes_read: 8 << 30,
            bytes_written: 0,
            repairs: 0,
            direct_io: true,
            io: "io_uring",
            drive_floor: Some(DriveFloor { read_seconds: 2.5, write_seconds: 0.25 }),
            phases: vec![PhaseReport { phase: "superstep 1".into(), seconds: 3.0 }],
            levels: vec![LevelReport { level: 0, records_in: 1000, records_out: 250 }],
        }
    }

    #[test]
    fn the_cost_is_one_line() {
        let line = "4.0 s, read 8 GiB from the store, wrote 0 bytes to it, peak memory 96 MiB of at most 128 MiB \
                    (budget 64 MiB + 64 MiB)";
        assert_eq!(cost(&report()), line);
    }

    #[test]
    fn an_explanation_has_rates_phases_and_levels() {
        let text = explain(&report(), &[("vertex state", "memory".into())]);
        for line in [
            "vertex state    memory",
            "read            8 GiB (2 GiB/s)",
            "drive floor     2.75 s of 4.00 s (read 2.50 s, written 0.25 s)",
            "cores busy      1.5 of 2",
            "superstep 1     3.00   75 %",
            "                   0        1000          250  25 %",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
        }
    }
}

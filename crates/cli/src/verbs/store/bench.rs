//! `inshore store bench`: measures a drive, and prints a table, JSON or a figure.
//!
//! The devices of a store are measured in scratch space of the store, and the results are kept in the store. For any
//! other folder, the measurement uses a temporary store in this folder.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use inshore::{
    store::{AccessPattern, DeviceProfile, Error, MeasurePlan, Store, format_bytes, measure},
    tables::NewFile,
};
use serde_json::json;

use crate::{
    args::{Bench, GlobalOptions},
    job::session::Session,
    report::{
        outcome::{Outcome, print_line},
        table::{self, Align},
        terminal,
    },
    verbs::store::figure::{self, format_rate},
};

/// The length of the longest bar of the chart on the terminal.
const BAR_CHARACTERS: f64 = 20.0;

pub fn bench(mut options: GlobalOptions, arguments: &Bench) -> Result<()> {
    // This variable is declared first, so that it is dropped last: the folder is removed when nothing uses it any more.
    let mut temporary = None;
    let session = match &arguments.folder {
        None => Session::open_existing(options)?,
        Some(folder) if is_device(folder)? => {
            options.store = Some(folder.clone());
            Session::open_existing(options)?
        }
        Some(folder) => {
            let temporary = temporary.insert(Temporary::create(folder)?);
            options.store = Some(temporary.0.clone());
            Session::open(options)?
        }
    };
    let is_stdout_taken = arguments.output.as_deref() == Some(Path::new("-"));
    // The output file is created first, so that an error is reported before half a minute of work.
    let file = match &arguments.output {
        Some(output) if is_stdout_taken => session.check_stdout_is_free(output).map(|()| None)?,
        output => output.as_deref().map(NewFile::create).transpose()?,
    };
    let numbers = numbers_of(session.store()?, arguments.folder.as_deref().filter(|_| temporary.is_none()))?;
    let plan = plan_of(arguments);
    let mut run = session.start()?;
    let devices = numbers.into_iter().map(|number| measure(&run.job, number, &plan));
    let mut devices = devices.collect::<inshore::store::Result<Vec<DeviceProfile>>>()?;
    match &arguments.folder {
        Some(folder) if temporary.is_some() => {
            devices[0].path = folder.canonicalize().unwrap_or(folder.clone()).display().to_string();
        }
        _ => drop(session.store()?.keep_drive_profile(devices.clone())?),
    }
    let report = run.finish();

    if let Some(file) = file {
        draw(file, &devices)?;
    } else if is_stdout_taken {
        let mut out = io::stdout().lock();
        out.write_all(figure::svg(&devices).as_bytes())?;
        out.flush()?;
    }
    if !session.options.json && !is_stdout_taken {
        let mut out = BufWriter::new(terminal::stdout());
        devices.iter().try_for_each(|device| print_device(&mut out, device, arguments.output.is_none()))?;
        out.flush()?;
    }
    let sentences: Vec<String> = devices.iter().map(sentence).collect();
    let summary = json!({ "kept": temporary.is_none(), "devices": devices });
    let outcome = Outcome::new("store bench", report, summary, sentences.join("\n"));
    Outcome { sentence_aside: is_stdout_taken, ..outcome }.tell(&session.options)?;
    if let Some(output) = arguments.output.as_deref().filter(|_| !is_stdout_taken && !session.options.json) {
        print_line(&format!("the figure is in {}", output.display()))?;
    }
    Ok(())
}

fn plan_of(arguments: &Bench) -> MeasurePlan {
    let plan = if arguments.quick { MeasurePlan::quick() } else { MeasurePlan::default() };
    MeasurePlan {
        seconds: arguments.seconds.unwrap_or(plan.seconds),
        working_set_bytes: arguments.size,
        ..plan
    }
}

/// Tells whether a folder is a device of a store.
fn is_device(folder: &Path) -> Result<bool> {
    if !folder.is_dir() {
        bail!("{} is not a folder", folder.display());
    }
    match Store::open_existing(folder) {
        Ok(_) => Ok(true),
        Err(Error::NoStore { .. } | Error::NotAStore { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the number of the device in `folder`. Without a folder, returns the numbers of all present devices.
fn numbers_of(store: &Store, folder: Option<&Path>) -> Result<Vec<u16>> {
    if let Some(folder) = folder {
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let number = store.device_paths()?.into_iter().find(|(_, path)| *path == folder);
        let number = number.with_context(|| {
            format!("{} was moved: it is not a device of {}", folder.display(), store.path().display())
        })?;
        return Ok(vec![number.0]);
    }
    let usage = store.usage()?;
    let numbers: Vec<u16> =
        usage.iter().filter(|device| device.state == "ok").map(|device| device.number).collect();
    if numbers.is_empty() {
        bail!("{} has no device that takes data", store.path().display());
    }
    Ok(numbers)
}

/// A folder that is removed on drop, with all its contents.
struct Temporary(PathBuf);

impl Temporary {
    fn create(parent: &Path) -> Result<Temporary> {
        let path = parent.join(format!("inshore-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The error is ignored: if the folder cannot be removed, its name shows the user where it came from.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn draw(file: NewFile, devices: &[DeviceProfile]) -> Result<()> {
    let mut writer = file.writer()?;
    let written = writer.write_all(figure::svg(devices).as_bytes()).and_then(|()| writer.flush());
    written.map_err(|error| file.error(error))?;
    drop(writer);
    Ok(file.publish()?)
}

/// Prints a table of throughput for each access pattern, and a table of latencies. With `with_bars`, the throughput
/// tables have a bar in each row.
fn print_device(out: &mut impl Write, device: &DeviceProfile, with_bars: bool) -> io::Result<()> {
    let cache = if device.direct_io { "past the page cache" } else { "through the page cache" };
    let set = format_bytes(device.working_set_bytes);
    writeln!(out, "{}: working set {set}, {cache}, by {}", device.path, device.io)?;
    writeln!(out, "throughput by block size (down) and requests in flight (across)")?;
    let best = AccessPattern::ALL.iter().filter_map(|&pattern| device.best(pattern));
    let best = best.map(|point| point.bytes_per_second).fold(1.0, f64::max);
    for pattern in AccessPattern::ALL {
        writeln!(out)?;
        let blocks: BTreeSet<u64> = device.of(pattern).map(|point| point.block_bytes).collect();
        let counts: BTreeSet<u32> = device.of(pattern).map(|point| point.in_flight).collect();
        let row = |&block: &u64| {
            let cell = |&count: &u32| {
                let point = device.point(pattern, block, count);
                point.map_or("-".to_string(), |point| format_rate(point.bytes_per_second))
            };
            let top = device.best_of_block(pattern, block).map_or(0.0, |point| point.bytes_per_second);
            let bar = with_bars.then(|| bar(top / best));
            let cells = counts.iter().map(cell);
            [format_bytes(block)].into_iter().chain(cells).chain(bar).collect()
        };
        let rows: Vec<Vec<String>> = blocks.iter().map(row).collect();
        let names = [pattern.to_string()].into_iter().chain(counts.iter().map(u32::to_string));
        let names: Vec<String> = names.chain(with_bars.then(String::new)).collect();
        print_columns(out, &names, &rows, with_bars)?;
    }
    writeln!(out)?;
    let names = ["random read of 4 KiB, in flight", "a second", "mean us", "99 % below us"].map(String::from);
    let row = |point: &inshore::store::Point| {
        let numbers = [point.operations_per_second, point.latency_us_mean, point.latency_us_p99];
        [point.in_flight.to_string()]
            .into_iter()
            .chain(numbers.map(|number| format!("{number:.0}")))
            .collect()
    };
    let smallest = device.of(AccessPattern::RandomRead).filter(|point| point.block_bytes == 4096);
    let rows: Vec<Vec<String>> = smallest.map(row).collect();
    print_columns(out, &names, &rows, false)?;
    writeln!(out)
}

/// Prints the first column left-aligned and the others right-aligned. Bars in the last column are left-aligned too.
fn print_columns(
    out: &mut impl Write,
    names: &[String],
    rows: &[Vec<String>],
    has_bars: bool,
) -> io::Result<()> {
    let align = |number: usize| match number {
        0 => Align::Left,
        _ if has_bars && number + 1 == names.len() => Align::Left,
        _ => Align::Right,
    };
    let header: Vec<(&str, Align)> =
        names.iter().enumerate().map(|(number, name)| (&name[..], align(number))).collect();
    table::print(out, &header, rows)
}

/// Draws a bar for the best value of a row, relative to the best value of all rows.
fn bar(part: f64) -> String {
    "#".repeat((part.clamp(0.0, 1.0) * BAR_CHARACTERS).round() as usize)
}

fn sentence(device: &DeviceProfile) -> String {
    let best = |pattern| device.best(pattern).map_or(0.0, |point| point.bytes_per_second);
    let operations = |block| {
        let point = device.best_of_block(AccessPattern::RandomRead, block);
        point.map(|point| {
            format!(", {:.0} random reads of {} a second", point.operations_per_second, format_bytes(block))
        })
    };
    let mut sentence = format!(
        "{}: reads {}, writes {}",
        device.path,
        format_rate(best(AccessPattern::SequentialRead)),
        format_rate(best(AccessPattern::SequentialWrite)),
    );
    [4 << 10, 64 << 10].into_iter().filter_map(operations).for_each(|part| sentence.push_str(&part));
    sentence
}

#[cfg(test)]
mod tests {
    use inshore::store::DriveProfile;

    use super::*;

    #[test]
    fn a_device_is_a_table_for_each_pattern_and_a_sentence() {
        let device = DriveProfile::default().devices.remove(0);
        let mut out = Vec::new();
        print_device(&mut out, &device, true).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in [
            vec!["sequential", "read", "4"],
            vec!["4", "KiB", "41.0", "MB/s", "##"],
            vec!["128", "KiB", "446", "MB/s", "####################"],
            vec!["4", "10000", "400", "400"],
        ] {
            let is_there = text.lines().any(|found| found.split_whitespace().eq(line.iter().copied()));
            assert!(is_there, "no {line:?} in\n{text}");
        }
        let mut out = Vec::new();
        print_device(&mut out, &device, false).unwrap();
        assert!(!String::from_utf8(out).unwrap().contains('#'));
        assert_eq!(
            sentence(&device),
            ": reads 446 MB/s, writes 378 MB/s, 10000 random reads of 4 KiB a second"
        );
    }
}

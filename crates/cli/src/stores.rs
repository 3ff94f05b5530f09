//! The commands of `inshore store`, one function each.

use std::{
    io::{self, BufWriter, Read, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use inshore::{
    store::{
        BYTES, CheckedFile, Dataset, DatasetBuilder, DatasetSummary, Directory, Error, FileReader,
        FileSource, FileWriter, Job, JobUsage, Kept, Redundancy, Store, file_bytes, format_bytes,
    },
    tables::NewFile,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    args::{AddDevice, Compact, Everywhere, Get, Init, Locate, Put, Rejoin, RemoveDevice},
    outcome::{Outcome, print_json, print_line, say},
    session::{Session, store_path},
    table::{self, Align},
    terminal,
};

/// The unit in which bytes stream: larger requests gain nothing.
const BUFFER_BYTES: usize = 1 << 20;
/// The unit of checking, unless the user wants another one.
const BLOCK_BYTES: usize = 64 << 10;

pub fn init(words: &Init, json: bool, quiet: bool) -> Result<()> {
    let store = Store::init(&words.folders, words.size)?;
    let devices: Vec<PathBuf> = store.device_paths()?.into_values().collect();
    if json {
        let summary = json!({ "store": store.path(), "devices": devices });
        return Ok(print_json(&json!({ "command": "store init", "summary": summary }))?);
    }
    if !quiet {
        let devices =
            if devices.len() == 1 { "1 device".into() } else { format!("{} devices", devices.len()) };
        print_line(&format!(
            "a store on {devices}; use it with --store or INSHORE_STORE={}",
            store.path().display()
        ))?;
    }
    Ok(())
}

fn print_table(header: &[(&str, Align)], rows: &[Vec<String>]) -> Result<()> {
    let mut out = BufWriter::new(terminal::stdout());
    table::print(&mut out, header, rows)?;
    Ok(out.flush()?)
}

fn summary_json(summary: &DatasetSummary) -> Value {
    json!({
        "name": summary.name,
        "kind": summary.kind,
        "bytes": summary.bytes,
        "stored_bytes": summary.stored_bytes,
        "files": summary.files,
        "sealed": summary.sealed,
        "redundancy": summary.redundancy.to_string(),
    })
}

pub fn ls(session: &Session) -> Result<()> {
    let datasets = session.store()?.list()?;
    if session.options.json {
        return Ok(print_json(&datasets.iter().map(summary_json).collect::<Vec<_>>())?);
    }
    if datasets.is_empty() {
        if !session.options.quiet {
            say(&format!("no datasets in {}", session.store()?.path().display()));
        }
        return Ok(());
    }
    let header = [
        ("name", Align::Left),
        ("kind", Align::Left),
        ("size", Align::Right),
        ("on flash", Align::Right),
        ("redundancy", Align::Left),
        ("state", Align::Left),
    ];
    let row = |summary: &DatasetSummary| {
        vec![
            summary.name.clone(),
            summary.kind.clone(),
            format_bytes(summary.bytes),
            format_bytes(summary.stored_bytes),
            summary.redundancy.to_string(),
            if summary.sealed { "sealed" } else { "open" }.to_string(),
        ]
    };
    print_table(&header, &datasets.iter().map(row).collect::<Vec<_>>())
}

pub fn stat(session: &Session, name: &str) -> Result<()> {
    let dataset = session.store()?.dataset(name)?;
    let summary = dataset.summary();
    let files: Vec<(&str, CheckedFile)> =
        dataset.file_names().map(|name| (name, dataset.file(name).expect("it has this name"))).collect();
    if session.options.json {
        let file = |(name, file): &(&str, CheckedFile)| json!({ "name": name, "bytes": file.len(), "block_bytes": file.block_bytes() });
        let mut value = summary_json(&summary);
        value["files"] = files.iter().map(file).collect();
        return Ok(print_json(&json!({ "command": "store stat", "summary": value }))?);
    }
    print_line(&format!(
        "{}: {}, {} in {} on flash, redundancy {}, {}",
        summary.name,
        summary.kind,
        format_bytes(summary.bytes),
        format_bytes(summary.stored_bytes),
        summary.redundancy,
        if summary.sealed { "sealed" } else { "open to be appended to" }
    ))?;
    let header = [("file", Align::Left), ("bytes", Align::Right), ("checked by", Align::Right)];
    let row = |(name, file): &(&str, CheckedFile)| {
        vec![name.to_string(), file.len().to_string(), format_bytes(file.block_bytes() as u64)]
    };
    print_table(&header, &files.iter().map(row).collect::<Vec<_>>())
}

/// What a file that is put is called.
pub fn name_of(words: &Put) -> Result<String> {
    let is_stdin = words.file == Path::new("-");
    Ok(match (&words.name, words.file.file_name()) {
        (Some(name), _) => name.clone(),
        (None, Some(name)) if !is_stdin => name.to_string_lossy().into_owned(),
        (None, _) if is_stdin => bail!("standard input has no name: give one with --name"),
        (None, _) => bail!("{} has no name: give one with --name", words.file.display()),
    })
}

pub fn put(session: &Session, words: &Put) -> Result<()> {
    if words.piece.is_some() || words.record.is_some() {
        bail!("--piece and --record go with --node");
    }
    let name = name_of(words)?;
    let mut run = session.start_on([&words.file])?;
    let (before, written) = loop {
        match put_once(session, &run.job, &name, words) {
            // Somebody else appended at the same time. What can be read again is appended after that.
            Err(error) if words.append && is_changed(&error) => {
                if !std::fs::metadata(&words.file).is_ok_and(|found| found.is_file()) {
                    let store = session.store()?.path().to_path_buf();
                    return Err(Error::Changed { name, store }.into());
                }
                run.job.check_cancelled()?;
            }
            done => break done?,
        }
    };
    let sentence = match before {
        0 => format!("{name}: {}", format_bytes(written)),
        before => format!("{name}: {} more, now {}", format_bytes(written), format_bytes(before + written)),
    };
    let summary = json!({ "name": name, "bytes": written, "total_bytes": before + written });
    let told = Outcome::new("store put", run.finish(), summary, sentence).tell(&session.options);
    told.with_context(|| format!("{name} is stored, and only telling of it on standard output failed"))
}

fn is_changed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Changed { .. } | Error::NameExists { .. }))
}

/// The bytes that were there before, and those that were written.
fn put_once(session: &Session, job: &Job, name: &str, words: &Put) -> Result<(u64, u64)> {
    let mut builder = begin(session, job, name, words)?;
    let block_bytes = builder.block_bytes(BYTES).or(words.block).unwrap_or(BLOCK_BYTES);
    let buffer_bytes = BUFFER_BYTES.max(block_bytes);
    check_memory(job, builder.guarded_by(), buffer_bytes)?;
    let buffers = session.store()?.stream_buffers(job.budget(), buffer_bytes);
    let mut writer = builder.append(BYTES, block_bytes, buffer_bytes, buffers)?;
    let before = writer.len();
    if words.file == Path::new("-") {
        job.start_phase("reading standard input", "bytes", 0);
        widen(&io::stdin());
        // Not through the buffer of `Stdin`, which would be a copy more.
        let mut stream = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
        put_stream(job, &mut stream, &mut writer)?;
    } else {
        let failed = |error| Error::io("open", &words.file, error);
        let mut file = std::fs::File::open(&words.file).map_err(failed)?;
        let is_folder = file.metadata().is_ok_and(|found| found.is_dir());
        match file_bytes(&file).map_err(failed)? {
            // A named pipe, a device, or a file that is made up as it is read.
            None if !is_folder => {
                job.start_phase("reading", "bytes", 0);
                put_stream(job, &mut file, &mut writer)?;
            }
            _ => put_file(job, &words.file, &mut writer)?,
        }
    }
    let written = writer.len() - before;
    builder.add(writer)?;
    builder.commit(&[])?;
    Ok((before, written))
}

/// Refuses a budget in which a dataset that is guarded like this cannot be written.
fn check_memory(job: &Job, redundancy: Redundancy, buffer_bytes: usize) -> Result<()> {
    const MIB: u64 = 1 << 20;
    // A group of extents with parity, two buffers of the writer, four to read the file, and lists and checksums.
    let group = if redundancy.parity() > 0 { 2 * MIB * redundancy.devices() as u64 } else { 0 };
    let others = group + 5 * MIB;
    // The writer takes a quarter of the budget, if that is more than two buffers.
    let smallest = (others + 2 * buffer_bytes as u64).max(others * 4 / 3).next_multiple_of(MIB).max(8 * MIB);
    let given = job.budget().memory_bytes();
    if given < smallest {
        let what = match group {
            0 => "store put".to_string(),
            _ => format!("store put with {redundancy}"),
        };
        return Err(Error::BudgetTooSmall { what, given, smallest }.into());
    }
    Ok(())
}

fn begin(session: &Session, job: &Job, name: &str, words: &Put) -> Result<DatasetBuilder> {
    if words.copies.is_some_and(|copies| copies > 2) {
        bail!("--copies: 1..=2 on the devices of one store; more goes with --node");
    }
    let redundancy = words.parity.or(words.copies.map(Redundancy::Copies));
    if words.append {
        match session.store()?.append_to_dataset(job, name) {
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(builder) if redundancy.is_none() => {
                if let (Some(there), Some(block)) = (builder.block_bytes(BYTES), words.block)
                    && there != block
                {
                    let there = format_bytes(there as u64);
                    bail!("{name} is there, in blocks of {there}: they are chosen when it is made");
                }
                return Ok(builder);
            }
            _ => bail!("{name} is there: what guards a dataset is chosen when it is made"),
        }
    }
    let mut builder = session.store()?.create_dataset(job, name, BYTES)?;
    if let Some(redundancy) = redundancy {
        builder.redundancy(redundancy)?;
    }
    if words.append {
        builder.unsealed();
    }
    Ok(builder)
}

/// Lets a pipe hold more than its 64 KiB, so that whoever writes into it waits less often.
fn widen(pipe: &impl AsFd) {
    // What is no pipe, or may not be wider, stays as it is.
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, BUFFER_BYTES);
}

/// Reads straight into the buffers that are written.
fn put_stream(job: &Job, input: &mut impl Read, writer: &mut FileWriter) -> Result<()> {
    loop {
        job.check_cancelled()?;
        match input.read(writer.space()) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                writer.advance(count)?;
                job.progress().add(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading the input"),
        }
    }
}

fn put_file(job: &Job, path: &Path, writer: &mut FileWriter) -> Result<()> {
    let mut source = FileSource::open(job, path)?;
    job.start_phase("reading", "bytes", source.len());
    while let Some(piece) = source.next_piece()? {
        writer.write(piece)?;
        job.progress().add(piece.len() as u64);
    }
    Ok(())
}

/// The file that was named, or the only one that there is.
fn file_of(dataset: &Dataset, name: Option<&str>) -> Result<CheckedFile> {
    let names: Vec<&str> = dataset.file_names().collect();
    let name = match (name, &names[..]) {
        (Some(name), _) => name,
        (None, [name]) => name,
        (None, names) => {
            bail!("{} has several files: choose one with --file ({})", dataset.name(), names.join(", "))
        }
    };
    dataset
        .file(name)
        .with_context(|| format!("{} has no file {name:?}: it has {}", dataset.name(), names.join(", ")))
}

fn range_of(file: &CheckedFile, offset: u64, length: Option<u64>) -> Result<std::ops::Range<u64>> {
    if offset > file.len() {
        bail!("--offset {offset} is beyond the end: {} has {} bytes", file.name(), file.len());
    }
    Ok(offset..length.map_or(file.len(), |length| offset.saturating_add(length).min(file.len())))
}

pub fn get(session: &Session, words: &Get) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    check_is_outside(session, &words.output)?;
    let dataset = session.store()?.dataset(&words.name)?;
    let file = file_of(&dataset, words.file.as_deref())?;
    let range = range_of(&file, words.offset, words.length)?;
    let bytes = range.end - range.start;
    let mut run = session.start()?;
    run.job.start_phase("reading", "bytes", bytes);
    if words.output == Path::new("-") {
        widen(&io::stdout());
        // No buffer between: pieces are large.
        let mut out = io::stdout().lock();
        copy_out(&run.job, &file, range, |piece| Ok(out.write_all(piece)?))?;
        out.flush()?;
    } else {
        let output = NewFile::create(&words.output)?;
        let mut writer = output.writer()?;
        copy_out(&run.job, &file, range, |piece| {
            writer.write_all(piece).map_err(|error| output.error(error).into())
        })?;
        writer.flush().map_err(|error| output.error(error))?;
        drop(writer);
        output.publish()?;
    }
    let sentence = format!("{} of {}", format_bytes(bytes), words.name);
    let summary = json!({ "name": words.name, "bytes": bytes });
    let outcome = Outcome::new("store get", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, ..outcome }.tell(&session.options)?)
}

/// Refuses to write over what the store consists of.
fn check_is_outside(session: &Session, output: &Path) -> Result<()> {
    let path = output.canonicalize().ok().or_else(|| {
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(output.file_name()?))
    });
    let Some(path) = path.filter(|_| output != Path::new("-")) else { return Ok(()) };
    for device in session.store()?.device_paths()?.into_values() {
        if path != device && path.starts_with(&device) {
            bail!(
                "{}: lies in {}, a device of the store: choose another place",
                output.display(),
                device.display()
            );
        }
    }
    Ok(())
}

fn copy_out(
    job: &Job,
    file: &CheckedFile,
    range: std::ops::Range<u64>,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let buffer_bytes = BUFFER_BYTES.next_multiple_of(file.block_bytes());
    let buffers = job.store().stream_buffers(job.budget(), buffer_bytes);
    let mut reader = FileReader::deep(job, file, range, buffer_bytes, buffers)?;
    while let Some(piece) = reader.next_piece()? {
        write(piece)?;
        job.progress().add(piece.len() as u64);
    }
    Ok(())
}

pub fn seal(session: &Session, names: &[String]) -> Result<()> {
    let store = session.store()?;
    for_each(session, "store seal", "sealed", names, |name| store.seal(name))
}

pub fn rm(session: &Session, names: &[String]) -> Result<()> {
    let store = session.store()?;
    for_each(session, "store rm", "removed", names, |name| store.remove(name))
}

/// Does something to each dataset; tells of those where it could not be done and fails at the end if there were any.
fn for_each(
    session: &Session,
    command: &'static str,
    done: &'static str,
    names: &[String],
    act: impl Fn(&str) -> Result<(), Error>,
) -> Result<()> {
    let (mut acted, mut failures) = (Vec::new(), Vec::new());
    for name in names {
        match act(name) {
            Ok(()) => acted.push(name),
            Err(error) => failures.push(error.to_string()),
        }
    }
    if session.options.json {
        print_json(&json!({ "command": command, "summary": { done: acted } }))?;
    }
    if !failures.is_empty() {
        if !acted.is_empty() && !session.options.quiet && !session.options.json {
            let acted: Vec<&str> = acted.iter().map(|name| name.as_str()).collect();
            say(&format!("{done}: {}", acted.join(", ")));
        }
        bail!(failures.join("\ninshore: "));
    }
    Ok(())
}

/// What `store jobs` tells.
#[derive(Serialize)]
struct Work {
    jobs: Vec<JobUsage>,
    kept: Vec<Kept>,
}

pub fn jobs(session: &Session, remove: &[String]) -> Result<()> {
    if !remove.is_empty() {
        let store = session.store()?;
        return for_each(session, "store jobs", "removed", remove, |name| store.remove_kept(name));
    }
    let work = Work { jobs: session.store()?.jobs()?, kept: session.store()?.kept()? };
    if session.options.json {
        return Ok(print_json(&work)?);
    }
    let Work { jobs, kept } = work;
    if jobs.is_empty() && !session.options.quiet {
        say(&format!("nobody is at work on {}", session.store()?.path().display()));
    }
    if !jobs.is_empty() {
        print_jobs(&jobs)?;
    }
    if kept.is_empty() { Ok(()) } else { print_kept(&kept) }
}

/// What interrupted jobs left, for the same command with --resume.
fn print_kept(kept: &[Kept]) -> Result<()> {
    let header = [
        ("kept", Align::Left),
        ("pieces", Align::Right),
        ("bytes", Align::Right),
        ("since", Align::Right),
        ("process", Align::Right),
        ("of", Align::Left),
    ];
    let rows = kept.iter().map(|kept| {
        let process = kept.process.map_or("-".to_string(), |process| process.to_string());
        let (bytes, since) = (format_bytes(kept.bytes), format!("{:.0} s", kept.seconds));
        vec![kept.name.clone(), kept.pieces.to_string(), bytes, since, process, kept.what.clone()]
    });
    print_table(&header, &rows.collect::<Vec<_>>())
}

fn print_jobs(jobs: &[JobUsage]) -> Result<()> {
    let header = [
        ("process", Align::Right),
        ("role", Align::Left),
        ("extents", Align::Right),
        ("since", Align::Right),
        ("reads", Align::Left),
    ];
    let rows = jobs.iter().map(|job| {
        vec![
            job.process.to_string(),
            job.role.to_string(),
            format_bytes(job.bytes),
            format!("{:.0} s", job.seconds),
            if job.reads_old_state { "an older state" } else { "" }.to_string(),
        ]
    });
    print_table(&header, &rows.collect::<Vec<_>>())
}

/// Whether all is whole, or mended.
pub fn verify(session: &Session, names: &[String], repair: bool) -> Result<bool> {
    let mut run = session.start()?;
    let findings = session.store()?.verify(&run.job, names, repair)?;
    let report = run.finish();
    let repaired = findings.damage.iter().filter(|damage| damage.is_repaired).count();
    let left = findings.damage.len() - repaired;
    for damage in findings.damage.iter().filter(|_| !session.options.json) {
        let place =
            damage.place.map(|place| format!(" (extent {} of device {})", place.extent, place.device));
        let file = if damage.file.is_empty() {
            "store".into()
        } else {
            format!("{} at {}", damage.file, damage.offset)
        };
        let mended = if damage.is_repaired { "; mended" } else { "" };
        print_line(&format!("{file}{}: {}{mended}", place.unwrap_or_default(), damage.what))?;
    }
    let extents = |count: usize| if count == 1 { "1 place".into() } else { format!("{count} places") };
    let datasets =
        if findings.datasets == 1 { "1 dataset".into() } else { format!("{} datasets", findings.datasets) };
    let mut sentence = format!("{datasets}, {} extents", findings.extents);
    sentence.push_str(&match (repaired, left) {
        (0, 0) => ": all as it was written".to_string(),
        (0, left) => format!(": damage in {}", extents(left)),
        (repaired, 0) => format!(": damage in {}, all of it mended", extents(repaired)),
        (repaired, left) => format!(": damage in {}, {left} of them not mended", extents(repaired + left)),
    });
    let damage = findings.damage.iter().map(|damage| {
        json!({
            "file": damage.file,
            "offset": damage.offset,
            "device": damage.place.map(|place| place.device),
            "extent": damage.place.map(|place| place.extent),
            "what": damage.what,
            "repaired": damage.is_repaired,
        })
    });
    let damage: Vec<Value> = damage.collect();
    let summary = json!({ "datasets": findings.datasets, "extents": findings.extents, "damage": damage });
    let command = if repair { "store scrub" } else { "store verify" };
    Outcome::new(command, report, summary, sentence).tell(&session.options)?;
    Ok(findings.is_sound())
}

pub fn df(session: &Session) -> Result<()> {
    let devices = session.store()?.usage()?;
    if session.options.json {
        return Ok(print_json(&devices)?);
    }
    let header = [
        ("device", Align::Right),
        ("size", Align::Right),
        ("datasets", Align::Right),
        ("jobs", Align::Right),
        ("metadata", Align::Right),
        ("free", Align::Right),
        ("state", Align::Left),
        ("folder", Align::Left),
    ];
    let rows = devices.iter().map(|device| {
        vec![
            device.number.to_string(),
            format_bytes(device.capacity_bytes),
            format_bytes(device.dataset_bytes + device.freed_bytes),
            format_bytes(device.job_bytes),
            format_bytes(device.metadata_bytes),
            format_bytes(device.free_bytes),
            device.state.to_string(),
            device.path.display().to_string(),
        ]
    });
    print_table(&header, &rows.collect::<Vec<_>>())
}

pub fn compact(session: &Session, words: &Compact) -> Result<()> {
    let mut run = session.start()?;
    let moved = session.store()?.compact(&run.job, words.balance)?;
    let sentence = format!("{} extents moved ({})", moved.extents, format_bytes(moved.extents * (2 << 20)));
    let summary = json!({ "extents": moved.extents });
    Ok(Outcome::new("store compact", run.finish(), summary, sentence).tell(&session.options)?)
}

pub fn add_device(session: &Session, words: &AddDevice) -> Result<()> {
    let fail = || words.folder.display().to_string();
    check_is_outside(session, &words.folder)?;
    std::fs::create_dir_all(&words.folder).with_context(fail)?;
    let folder = words.folder.canonicalize().with_context(fail)?;
    let known = session.store()?.device_paths()?.into_values().any(|path| path == folder);
    if !known
        && std::fs::read_dir(&folder).with_context(fail)?.any(|entry| {
            entry.is_ok_and(|entry| {
                entry.file_name() != "lost+found" && entry.file_name() != "segment-00000000"
            })
        })
    {
        bail!("{} is not empty", folder.display());
    }
    let device = Directory::open(&folder, words.size).with_context(fail)?;
    let number = session.store()?.add_device(Arc::new(device), words.size)?;
    if session.options.json {
        let summary = json!({ "number": number, "path": folder });
        return Ok(print_json(&json!({ "command": "store add-device", "summary": summary }))?);
    }
    Ok(print_line(&format!("device {number}: {}", folder.display()))?)
}

pub fn remove_device(session: &Session, words: &RemoveDevice) -> Result<()> {
    let store = session.store()?;
    let devices = store.device_paths()?;
    let folder = Path::new(&words.device).canonicalize().unwrap_or_else(|_| PathBuf::from(&words.device));
    let number = devices
        .iter()
        .find(|(number, path)| **path == folder || words.device == number.to_string())
        .map(|(number, _)| *number)
        .with_context(|| format!("{} is no device of {}", words.device, store.path().display()))?;
    if words.keep {
        session.store()?.keep_device(number)?;
        if session.options.json {
            let summary = json!({ "number": number, "kept": true });
            return Ok(print_json(&json!({ "command": "store remove-device", "summary": summary }))?);
        }
        return Ok(print_line(&format!("device {number} stays"))?);
    }
    let mut run = session.start()?;
    let mut last = String::new();
    let moved = session.store()?.remove_device(&run.job, number, |who| {
        if who != last && !session.options.quiet {
            say(&format!("waiting for {who}, which still needs the device"));
            last = who.to_string();
        }
    })?;
    let sentence = format!("device {number} removed: {} extents moved", moved.extents);
    let summary = json!({ "number": number, "extents": moved.extents });
    let mut outcome = Outcome::new("store remove-device", run.finish(), summary, sentence);
    let named = store_path(&session.options)?;
    let left = session.store()?.device_paths()?;
    if devices.get(&number) == Some(&named.canonicalize().unwrap_or(named))
        && let Some(folder) = left.values().next()
    {
        outcome.notice = Some(format!(
            "the store lies elsewhere now: use it with --store or INSHORE_STORE={}",
            folder.display()
        ));
    }
    Ok(outcome.tell(&session.options)?)
}

pub fn rejoin(options: &Everywhere, words: &Rejoin) -> Result<()> {
    let number = Store::rejoin(store_path(options)?, &words.folder)?;
    if options.json {
        let summary = json!({ "number": number, "path": words.folder });
        return Ok(print_json(&json!({ "command": "store rejoin", "summary": summary }))?);
    }
    Ok(print_line(&format!(
        "device {number} is a device of the store again; `inshore store scrub` mends what was written over"
    ))?)
}

pub fn locate(session: &Session, words: &Locate) -> Result<()> {
    let dataset = session.store()?.dataset(&words.name)?;
    let file = file_of(&dataset, words.file.as_deref())?;
    let range = range_of(&file, words.offset, words.length)?;
    let run = session.start()?;
    let found = dataset.locate(&run.job, &file, range)?;
    if session.options.json {
        let places = found.iter().map(|piece| {
            let copy =
                |place: &inshore::store::Place| json!({ "device": place.device, "extent": place.extent });
            json!({
                "offset": piece.offset,
                "bytes": piece.len,
                "extent_offset": piece.extent_offset,
                "copies": piece.places.iter().map(copy).collect::<Vec<_>>(),
            })
        });
        let summary = json!({ "name": words.name, "places": places.collect::<Vec<_>>() });
        return Ok(print_json(&json!({ "command": "store locate", "summary": summary }))?);
    }
    let copies = found.first().map_or(1, |piece| piece.places.len());
    let mut header = vec![("offset", Align::Right), ("bytes", Align::Right), ("in the extent", Align::Right)];
    (0..copies).for_each(|_| header.extend([("device", Align::Right), ("extent", Align::Right)]));
    let row = |piece: &inshore::store::Location| {
        let numbers = [piece.offset, piece.len, piece.extent_offset].map(|number| number.to_string());
        let places =
            piece.places.iter().flat_map(|place| [place.device.to_string(), place.extent.to_string()]);
        numbers.into_iter().chain(places).collect()
    };
    print_table(&header, &found.iter().map(row).collect::<Vec<_>>())
}

//! The commands of `inshore store`, one function each.

pub mod bench;
mod figure;
pub mod mount;

use std::{
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use inshore::store::{CheckedFile, Error, JobUsage, Redundancy, ResumableWork, Store, format_bytes};
use inshore_ops::{
    Attachments, Operation, Request, TargetKind,
    verbs::{
        GetAnswer, GetDataset, ListAnswer, ListDatasets, Listed, ListedHere, ListedSpread, PutAnswer,
        PutDataset, RemoveAnswer, check_is_outside, dataset_file, dataset_range,
    },
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    args::{AddDevice, Compact, Get, GlobalOptions, Init, Locate, Put, Rejoin, RemoveDevice},
    job::{
        operations::{self, FinishedOperation, StoreAccess},
        session::{Session, check_stdout_is_free, store_path},
    },
    report::{
        outcome::{Outcome, counted, print_json, print_line, say},
        table::{self, Align},
    },
};

/// The size of the buffer of an enlarged pipe, in bytes.
const PIPE_BYTES: usize = 1 << 20;

pub fn init(words: &Init, json: bool, quiet: bool) -> Result<()> {
    let store = Store::init(&words.folders, words.size)?;
    let devices: Vec<PathBuf> = store.device_paths()?.into_values().collect();
    if json {
        let devices: Vec<String> = devices.iter().map(|folder| folder.display().to_string()).collect();
        let summary = json!({ "store": store.path().display().to_string(), "devices": devices });
        return Ok(print_json(&json!({ "command": "store init", "summary": summary }))?);
    }
    if !quiet {
        let devices =
            if devices.len() == 1 { "1 device".into() } else { format!("{} devices", devices.len()) };
        print_line(&format!(
            "created a store on {devices}; use it with --store or INSHORE_STORE={}",
            store.path().display()
        ))?;
    }
    Ok(())
}

pub fn ls(options: GlobalOptions) -> Result<()> {
    let request = Request::new(ListDatasets {}, std::iter::empty::<PathBuf>());
    let FinishedOperation { done, options, .. } =
        operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?;
    let ListAnswer { datasets, notes } = done.answer;
    let is_local = operations::place(&options) == TargetKind::Local;
    if options.json {
        print_json(&datasets)?;
    } else if !datasets.is_empty() {
        let (name, kind, size) = (("name", Align::Left), ("kind", Align::Left), ("size", Align::Right));
        let here = [
            name,
            kind,
            size,
            ("on flash", Align::Right),
            ("redundancy", Align::Left),
            ("state", Align::Left),
        ];
        let spread =
            [name, kind, size, ("pieces", Align::Right), ("copies", Align::Right), ("nodes", Align::Left)];
        table::print_stdout(
            if is_local { &here } else { &spread },
            &datasets.iter().map(row).collect::<Vec<_>>(),
        )?;
    } else if !options.quiet {
        match is_local {
            true => say(&format!("no datasets in {}", store_path(&options)?.display())),
            false => say("no datasets on these nodes"),
        }
    }
    notes.iter().for_each(|note| say(&format!("note: {note}")));
    Ok(())
}

fn row(listed: &Listed) -> Vec<String> {
    let mut row = vec![listed.name.clone(), listed.kind.clone(), format_bytes(listed.bytes)];
    if let Some(ListedHere { stored_bytes, sealed, redundancy, .. }) = &listed.here {
        let state = if *sealed { "sealed" } else { "open" };
        row.extend([format_bytes(*stored_bytes), redundancy.clone(), state.to_string()]);
    }
    if let Some(ListedSpread { pieces, copies, nodes }) = &listed.spread {
        row.extend([pieces.to_string(), copies.to_string(), nodes.join(" ")]);
    }
    row
}

pub fn stat(session: &Session, name: &str) -> Result<()> {
    let dataset = session.store()?.dataset(name)?;
    let summary = dataset.summary();
    let files: Vec<(&str, CheckedFile)> =
        dataset.file_names().map(|name| (name, dataset.file(name).expect("it has this name"))).collect();
    if session.options.json {
        let file = |(name, file): &(&str, CheckedFile)| json!({ "name": name, "bytes": file.len(), "block_bytes": file.block_bytes() });
        let mut value = json!(Listed::from(summary));
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
    table::print_stdout(&header, &files.iter().map(row).collect::<Vec<_>>())
}

/// Returns the name of the new dataset: the value of `--name`, or the name of the file.
fn name_of(words: &Put) -> Result<String> {
    let is_stdin = words.file == Path::new("-");
    Ok(match (&words.name, words.file.file_name()) {
        (Some(name), _) => name.clone(),
        (None, Some(name)) if !is_stdin => name.to_string_lossy().into_owned(),
        (None, _) if is_stdin => bail!("standard input has no name: give one with --name"),
        (None, _) => bail!("{} has no name: give one with --name", words.file.display()),
    })
}

pub fn put(options: GlobalOptions, words: &Put) -> Result<()> {
    let name = name_of(words)?;
    let parity = match words.parity {
        Some(Redundancy::Parity { data, parity }) => Some((data, parity)),
        _ => None,
    };
    let operation = PutDataset {
        name: name.clone(),
        append: words.append,
        copies: words.copies,
        parity,
        block_bytes: words.block.map(|block| block as u32),
        piece_bytes: words.piece,
        record_bytes: words.record,
    };
    if words.file == Path::new("-") {
        widen(&io::stdin());
    }
    let told = operations::run(options, &Request::new(operation, [&words.file]))?.tell(|report, done| {
        let PutAnswer { name, bytes, total_bytes, pieces, nodes, .. } = &done.answer;
        let put = format_bytes(*bytes);
        let sentence = match (total_bytes, pieces) {
            (Some(total), _) if total > bytes => format!("{name}: {put} more, now {}", format_bytes(*total)),
            (_, Some(pieces)) => format!("{name}: {put} in {pieces} pieces on {nodes} nodes"),
            _ => format!("{name}: {put}"),
        };
        Outcome::new("store put", report, json!(done), sentence)
    });
    told.with_context(|| format!("{name} is stored, but the message on standard output failed"))
}

/// Enlarges the buffer of a pipe from the usual 64 KiB, so that the program at its other end waits less often.
fn widen(pipe: &impl AsFd) {
    // The error is ignored: the call fails, without harm, if this is not a pipe or if the user's pipes have reached
    // their limit.
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
}

pub fn get(options: GlobalOptions, words: &Get) -> Result<()> {
    check_stdout_is_free(&options, &words.output)?;
    if words.output == Path::new("-") {
        widen(&io::stdout());
    }
    let operation = GetDataset { offset: words.offset, length: words.length };
    let named = words.file.as_ref().map_or(words.name.clone(), |file| format!("{}/{file}", words.name));
    let request = Request::new(operation, [named]).to(&words.output);
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let done = done.map(|answer| GetAnswer { name: words.name.clone(), ..answer });
            let sentence = format!("{} of {}", format_bytes(done.answer.bytes), words.name);
            Outcome { sentence_aside: true, ..Outcome::new("store get", report, json!(done), sentence) }
        },
    )
}

/// Removes datasets, graphs, vectors or kernels, and prints the result.
pub fn rm<O>(operation: O, options: GlobalOptions, names: &[String]) -> Result<()>
where
    O: Operation<Answer = RemoveAnswer>,
{
    let request = Request::new(operation, names);
    let ran = operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?;
    let RemoveAnswer { removed, holders } = &ran.done.answer;
    if ran.options.json {
        print_json(&json!({ "command": O::NAME, "summary": { "removed": removed } }))?;
    } else if !ran.options.quiet {
        match operations::place(&ran.options) {
            TargetKind::Local if ran.has_failed() && !removed.is_empty() => {
                say(&format!("removed: {}", removed.join(", ")));
            }
            TargetKind::Local => {}
            TargetKind::Nodes | TargetKind::Cluster => {
                removed.iter().zip(holders).for_each(|(name, from)| {
                    say(&format!("{name}: removed from {}", counted(*from as u64, "node")));
                })
            }
        }
    }
    ran.check()
}

pub fn seal(session: &Session, names: &[String]) -> Result<()> {
    let store = session.store()?;
    for_each(session, "store seal", "sealed", names, |name| store.seal(name))
}

/// Runs an action on each name, even if the action fails for some names. Returns one error with all failures.
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

/// The output of `store jobs`.
#[derive(Serialize)]
struct JobListing {
    jobs: Vec<JobUsage>,
    kept: Vec<ResumableWork>,
}

pub fn jobs(session: &Session, remove: &[String]) -> Result<()> {
    if !remove.is_empty() {
        let store = session.store()?;
        return for_each(session, "store jobs", "removed", remove, |name| store.remove_kept(name));
    }
    let work = JobListing { jobs: session.store()?.jobs()?, kept: session.store()?.kept()? };
    if session.options.json {
        return Ok(print_json(&work)?);
    }
    let JobListing { jobs, kept } = work;
    if jobs.is_empty() && !session.options.quiet {
        say(&format!("no process uses {}", session.store()?.path().display()));
    }
    if !jobs.is_empty() {
        print_jobs(&jobs)?;
    }
    if kept.is_empty() { Ok(()) } else { print_kept(&kept) }
}

/// Prints the work that interrupted jobs kept, and that a later run of the same command with --resume can use.
fn print_kept(kept: &[ResumableWork]) -> Result<()> {
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
    table::print_stdout(&header, &rows.collect::<Vec<_>>())
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
    table::print_stdout(&header, &rows.collect::<Vec<_>>())
}

/// Verifies datasets, and repairs damage if `repair` is true. Returns true if no damage remains.
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
        (0, 0) => ": no damage".to_string(),
        (0, left) => format!(": damage in {}", extents(left)),
        (repaired, 0) => format!(": damage in {}, all repaired", extents(repaired)),
        (repaired, left) => format!(": damage in {}, {left} of them not repaired", extents(repaired + left)),
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
    table::print_stdout(&header, &rows.collect::<Vec<_>>())
}

pub fn compact(session: &Session, words: &Compact) -> Result<()> {
    let mut run = session.start()?;
    let moved = session.store()?.compact(&run.job, words.balance)?;
    let sentence = format!("{} extents moved ({})", moved.extents, format_bytes(moved.extents * (2 << 20)));
    let summary = json!({ "extents": moved.extents });
    Ok(Outcome::new("store compact", run.finish(), summary, sentence).tell(&session.options)?)
}

pub fn add_device(session: &Session, words: &AddDevice) -> Result<()> {
    check_is_outside(session.store()?, &words.folder)?;
    let number = session.store()?.add_folder(&words.folder, words.size)?;
    let folder = words.folder.canonicalize().unwrap_or_else(|_| words.folder.clone());
    let folder = folder.display().to_string();
    if session.options.json {
        let summary = json!({ "number": number, "path": folder });
        return Ok(print_json(&json!({ "command": "store add-device", "summary": summary }))?);
    }
    Ok(print_line(&format!("device {number}: {folder}"))?)
}

pub fn remove_device(session: &Session, words: &RemoveDevice) -> Result<()> {
    let store = session.store()?;
    let devices = store.device_paths()?;
    let folder = words.device.canonicalize().unwrap_or_else(|_| words.device.clone());
    let number = devices
        .iter()
        .find(|(number, path)| **path == folder || words.device == Path::new(&number.to_string()))
        .map(|(number, _)| *number)
        .with_context(|| {
            format!("{} is not a device of {}", words.device.display(), store.path().display())
        })?;
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
            say(&format!("waiting for {who}, which still uses the device"));
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
            "the folder of the store has changed: use it with --store or INSHORE_STORE={}",
            folder.display()
        ));
    }
    Ok(outcome.tell(&session.options)?)
}

pub fn rejoin(options: &GlobalOptions, words: &Rejoin) -> Result<()> {
    let number = Store::rejoin(store_path(options)?, &words.folder)?;
    if options.json {
        let summary = json!({ "number": number, "path": words.folder.display().to_string() });
        return Ok(print_json(&json!({ "command": "store rejoin", "summary": summary }))?);
    }
    Ok(print_line(&format!(
        "device {number} is a device of the store again; `inshore store scrub` repairs data that was overwritten"
    ))?)
}

pub fn locate(session: &Session, words: &Locate) -> Result<()> {
    let dataset = session.store()?.dataset(&words.name)?;
    let file = dataset_file(&dataset, words.file.as_deref()).map_err(operations::advised)?;
    let range = dataset_range((file.name(), file.len()), words.offset, words.length)?;
    let run = session.start()?;
    let found = dataset.locate(&run.job, &file, range)?;
    if session.options.json {
        let places = found.iter().map(|piece| {
            let copy =
                |place: &inshore::store::ExtentAddress| json!({ "device": place.device, "extent": place.extent });
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
    table::print_stdout(&header, &found.iter().map(row).collect::<Vec<_>>())
}

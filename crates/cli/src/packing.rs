//! `inshore compress`, `inshore decompress` and `inshore checksum`.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

use anyhow::{Context, Result, bail};
use inshore::{
    kernels::{self, Format, PackSummary, compress as pack, decompress as unpack},
    store::format_bytes,
    tables::{Input, NewFile},
};
use serde::Serialize;

use crate::{
    failure::AlreadyTold,
    outcome::{Outcome, say},
    session::{Run, plain_run},
    words::{Checksum, Compress, Decompress, Everywhere, Packed},
};

/// All files together, as JSON has it.
#[derive(Serialize)]
struct Summary {
    files: u64,
    #[serde(flatten)]
    sums: PackSummary,
}

pub fn compress(options: &Everywhere, words: &Compress) -> Result<()> {
    let named = words.packed.output.as_deref().and_then(Format::of_path);
    let format = words.format.or(named).unwrap_or(Format::Zstd);
    let target = |path: &Path| {
        if Format::of_path(path).is_some() {
            bail!("{}: it is compressed already, by its ending", path.display());
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".");
        name.push(format.ending());
        Ok(PathBuf::from(name))
    };
    let work = |run: &Run, input: &Input, out: &NewFile| {
        let bytes = input.open_as_is()?;
        Ok(pack(&run.job, input.name(), bytes, out.writer()?, format, words.level)?)
    };
    all(options, "compress", &words.packed, target, work)
}

pub fn decompress(options: &Everywhere, words: &Decompress) -> Result<()> {
    let target = |path: &Path| match Format::of_path(path) {
        Some(_) => Ok(path.with_extension("")),
        None => {
            bail!("{}: its ending is none of gz, bz2, zst and lz4: say with -o what to write", path.display())
        }
    };
    let work = |run: &Run, input: &Input, out: &NewFile| {
        let bytes = input.open_as_is()?;
        Ok(unpack(&run.job, input.name(), bytes, out.writer()?)?)
    };
    all(options, "decompress", &words.packed, target, work)
}

/// One file after the other, each with all cores. A file that fails is told and the others go on.
fn all(
    options: &Everywhere,
    command: &'static str,
    words: &Packed,
    target: impl Fn(&Path) -> Result<PathBuf>,
    work: impl Fn(&Run, &Input, &NewFile) -> Result<PackSummary>,
) -> Result<()> {
    let is_stdin = |path: &PathBuf| path == Path::new("-");
    let output =
        words.output.clone().or_else(|| words.inputs.iter().any(is_stdin).then(|| PathBuf::from("-")));
    if let Some(output) = &output
        && words.inputs.len() > 1
    {
        bail!("-o {} is one file, and {} are named", output.display(), words.inputs.len());
    }
    if output.as_deref() == Some(Path::new("-")) && command == "compress" && io::stdout().is_terminal() {
        bail!("compressed bytes are not for a terminal: give -o FILE");
    }
    if output.as_deref() == Some(Path::new("-")) && options.json {
        bail!("-o - and --json both want standard output: give -o FILE");
    }
    let mut run = plain_run(options)?;
    let sizes: u64 = words.inputs.iter().filter_map(|path| Input::new(path).compressed_bytes()).sum();
    run.job.start_phase(command, "bytes", sizes);
    let (mut summary, mut failed) = (Summary { files: 0, sums: PackSummary::default() }, false);
    for path in &words.inputs {
        match one(&run, words, path, output.as_deref(), &target, &work) {
            Ok(done) => {
                summary.files += 1;
                summary.sums.bytes_in += done.bytes_in;
                summary.sums.bytes_out += done.bytes_out;
                summary.sums.pieces += done.pieces;
            }
            Err(error) if words.inputs.len() == 1 || run.job.cancel().is_cancelled() => return Err(error),
            Err(error) => {
                failed = true;
                say(&format!("inshore: {error:#}"));
            }
        }
    }
    let sums = summary.sums;
    let sentence = format!(
        "{} files, {} became {}, {:.1} % of it",
        summary.files,
        format_bytes(sums.bytes_in),
        format_bytes(sums.bytes_out),
        100.0 * sums.bytes_out as f64 / (sums.bytes_in as f64).max(1.0)
    );
    let outcome = Outcome::new(command, run.finish(), summary, sentence);
    Outcome { sentence_aside: output.is_some(), ..outcome }.tell(options)?;
    if failed { Err(AlreadyTold.into()) } else { Ok(()) }
}

fn one(
    run: &Run,
    words: &Packed,
    path: &Path,
    output: Option<&Path>,
    target: &impl Fn(&Path) -> Result<PathBuf>,
    work: &impl Fn(&Run, &Input, &NewFile) -> Result<PackSummary>,
) -> Result<PackSummary> {
    let input = Input::new(path).stopped_by(run.job.cancel());
    let output = match output {
        Some(output) => output.to_path_buf(),
        None => target(path)?,
    };
    let is_stdout = output == Path::new("-");
    if !is_stdout && !words.force && output.exists() {
        bail!("{}: it is there already: --force replaces it", output.display());
    }
    // Else --rm would remove what was just written.
    if let (Some(from), Ok(to)) = (input.path(), fs::canonicalize(&output))
        && !is_stdout
        && fs::canonicalize(from).is_ok_and(|from| from == to)
    {
        bail!("{}: it is the file that is read: name another with -o", output.display());
    }
    let out = if is_stdout { NewFile::stdout()? } else { NewFile::create(&output)? };
    let done = work(run, &input, &out)?;
    out.publish()?;
    if let Some(from) = input.path().filter(|_| !is_stdout) {
        keep_facts(from, &output)?;
        if words.remove {
            fs::remove_file(from).with_context(|| format!("{}: cannot remove it", from.display()))?;
        }
    }
    Ok(done)
}

/// Who may read it, and when it was changed, stay what they were.
fn keep_facts(from: &Path, to: &Path) -> Result<()> {
    let keep = || -> io::Result<()> {
        let facts = fs::metadata(from)?;
        fs::set_permissions(to, facts.permissions())?;
        fs::File::options().append(true).open(to)?.set_modified(facts.modified()?)
    };
    keep().with_context(|| format!("{}: cannot keep its permissions and time", to.display()))
}

/// A file, what it should have, and what it has.
struct Summed {
    name: String,
    expected: Option<String>,
    found: Result<String>,
}

/// What was found of all files.
#[derive(Serialize)]
struct Sums {
    files: Vec<Sum>,
}

#[derive(Serialize)]
struct Sum {
    name: String,
    checksum: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_right: Option<bool>,
}

/// Whether all that was checked is as it should be.
pub fn checksum(options: &Everywhere, words: &Checksum) -> Result<bool> {
    let wanted: Vec<(PathBuf, Option<String>)> = match &words.check {
        Some(list) => listed(list, words.algorithm)?,
        None => words.inputs.iter().map(|path| (path.clone(), None)).collect(),
    };
    let mut run = plain_run(options)?;
    let sizes = wanted.iter().filter_map(|(path, _)| Input::new(path).compressed_bytes()).sum();
    run.job.start_phase("checksum", "bytes", sizes);
    let next = Mutex::new(wanted.into_iter().enumerate());
    let done: Mutex<Vec<(usize, Summed)>> = Mutex::default();
    let work = || loop {
        let Some((place, (path, expected))) = next.lock().expect("no panic under this lock").next() else {
            return;
        };
        let input = Input::new(&path).stopped_by(run.job.cancel());
        let found = input.open_as_is().map_err(anyhow::Error::from);
        let found = found.and_then(|bytes| Ok(words.algorithm.of(&run.job, input.name(), bytes)?));
        // Standard input is called as those who read the list expect it.
        let name = path.display().to_string();
        done.lock().expect("no panic under this lock").push((place, Summed { name, expected, found }));
    };
    thread::scope(|scope| {
        (1..run.job.budget().threads()).for_each(|_| _ = scope.spawn(work));
        work();
    });
    run.job.check_cancelled()?;
    let mut done = done.into_inner().expect("no panic under this lock");
    done.sort_by_key(|(place, _)| *place);
    let report = run.finish();
    let (mut all_right, mut failed, mut sums) = (true, false, Vec::new());
    let mut lines = String::new();
    for (_, Summed { name, expected, found }) in done {
        let checksum = match found {
            Ok(checksum) => Some(checksum),
            Err(error) => {
                failed = true;
                say(&format!("inshore: {error:#}"));
                None
            }
        };
        let is_right = expected.map(|expected| checksum.as_ref() == Some(&expected));
        match (is_right, &checksum) {
            (Some(true), _) => lines += &format!("{name}: OK\n"),
            (Some(false), _) => {
                all_right = false;
                lines += &format!("{name}: FAILED\n");
            }
            (None, Some(checksum)) => lines += &format!("{checksum}  {name}\n"),
            (None, None) => {}
        }
        sums.push(Sum { name, checksum, is_right });
    }
    if options.json {
        let count = sums.len();
        Outcome::new("checksum", report, Sums { files: sums }, format!("{count} files")).tell(options)?;
    } else {
        io::stdout().write_all(lines.as_bytes())?;
    }
    if failed { Err(AlreadyTold.into()) } else { Ok(all_right) }
}

/// Names and checksums as `sha256sum` prints them.
fn listed(list: &Path, algorithm: kernels::Checksum) -> Result<Vec<(PathBuf, Option<String>)>> {
    let text = match list == Path::new("-") {
        true => io::read_to_string(io::stdin()),
        false => fs::read_to_string(list),
    };
    let text = text.with_context(|| format!("{}: cannot read it", list.display()))?;
    let mut wanted = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let parts = line.split_once(' ').and_then(|(sum, name)| Some((sum, name.strip_prefix([' ', '*'])?)));
        let is_sum =
            |sum: &str| sum.len() == algorithm.letters() && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        match parts {
            Some((sum, name)) if is_sum(sum) && !name.is_empty() => {
                wanted.push((PathBuf::from(name), Some(sum.to_ascii_lowercase())));
            }
            _ => bail!(
                "{}:{}: expected a checksum of {algorithm} ({} letters), two spaces and a name",
                list.display(),
                number + 1,
                algorithm.letters()
            ),
        }
    }
    if wanted.is_empty() {
        bail!("{}: there is no checksum in it", list.display());
    }
    Ok(wanted)
}

//! What `--node` makes of `sort`, `count`, `compress` and `search`: the same verbs where the data lies.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, bail};
use inshore::{
    kernels::{
        self, Format, Pack, PackSummary, Search as Kernel, WordSummary, count_words_on_nodes, word_schema,
    },
    kmers::count_kmers_on_nodes,
    neardata::{
        Event,
        nodes::{Gathered, run_on_nodes},
    },
    sorting::{self, SortBy},
    tables::{KmerSummary, NewFile, SortKey, SortOptions, TableWriter},
};
use serde_json::json;

use crate::{
    args::{Compress, CountWords, Everywhere, Header, Kmers, Packed, Search, Sort},
    counting::{kmer_options, tell_kmers},
    counting_words::{tell_words, word_options},
    failure::AlreadyTold,
    nodes,
    outcome::{Outcome, say},
    packing::{Summary, told},
    search::{
        Printer, Whose, is_quiet, kernel, matcher_across_lines, pattern_words, patterns, print, style,
        unwrapped, write_counters, writer,
    },
    session::{self, check_stdout_is_free, plain_context, plain_run},
    sorting::{how, record, sentence},
};

/// Sorts datasets on nodes. Rows that this machine sorts lie in its own store meanwhile.
pub fn sort(options: Everywhere, words: &Sort) -> Result<()> {
    if words.resume {
        bail!("--resume does not go with --node: nodes keep no runs");
    }
    check_stdout_is_free(&options, &words.output)?;
    let keys: Vec<SortKey> = words.key.iter().map(|key| key.0.clone()).collect();
    let (by, what) = match words.record {
        Some(bytes) => {
            let (bytes, key) = record(bytes, words.key_bytes)?;
            (SortBy::Records(bytes, key), "records")
        }
        None if keys.is_empty() => (SortBy::Lines, "lines"),
        None => {
            let (as_text, header) = (words.text.clone(), Header::of(words.header));
            (SortBy::Columns { keys, as_text, header }, "rows")
        }
    };
    let nodes = nodes::connect(&options)?;
    let wholes = nodes::wholes(&nodes, &words.inputs)?;
    if matches!(by, SortBy::Lines)
        && let Some(table) = wholes.iter().find(|whole| sorting::is_binary_table(whole))
    {
        bail!("{}: a table is sorted by its columns: name them with --key", table.title);
    }
    let asked = nodes::run_options(&options);
    let (mut run, asked, options) = session::run_beside_nodes(options, asked)?;
    let how_to = SortOptions { descending: words.reverse, unique: words.unique, resume: false };
    let sorted = sorting::sort_on_nodes(&nodes, &run.job, wholes, &by, how_to, &words.output, &asked);
    let (summary, gathered) = sorted?;
    nodes::tell_missing(&options, &nodes, &gathered);
    let mut how = how(&summary);
    how.extend(nodes::costs(&gathered));
    let sentence = sentence(&summary, what, &words.output);
    let told = nodes::with_nodes(json!(summary), &nodes, &gathered);
    let outcome = Outcome::new("sort", run.finish(), told, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&options)?)
}

/// Counts k-mers on nodes.
pub fn count_kmers(options: Everywhere, words: &Kmers) -> Result<()> {
    if words.resume {
        bail!("--resume does not go with --node");
    }
    check_stdout_is_free(&options, &words.output)?;
    let nodes = nodes::connect(&options)?;
    let wholes = nodes::wholes(&nodes, &words.inputs)?;
    let asked = nodes::run_options(&options);
    let (mut run, asked, options) = session::run_beside_nodes(options, asked)?;
    let counted =
        count_kmers_on_nodes(&nodes, &run.job, &wholes, &words.output, &kmer_options(words), &asked);
    let (summary, gathered) = counted?;
    nodes::tell_missing(&options, &nodes, &gathered);
    let told = |summary: &KmerSummary| nodes::with_nodes(json!(summary), &nodes, &gathered);
    tell_kmers(&options, words, run.finish(), summary, told, nodes::costs(&gathered))
}

/// Counts words on nodes.
pub fn count_words(options: Everywhere, words: &CountWords) -> Result<()> {
    let counted = word_options(&options, words)?;
    let nodes = nodes::connect(&options)?;
    let wholes = nodes::wholes(&nodes, &words.inputs)?;
    let asked = nodes::run_options(&options);
    let (mut run, asked, options) = session::run_beside_nodes(options, asked)?;
    run.job.start_phase("counting", "words", 0);
    let mut writer = match &words.output {
        Some(path) => Some(TableWriter::create(path, word_schema(), run.job.budget())?),
        None => None,
    };
    let (summary, gathered) = count_words_on_nodes(&nodes, &run.job, &wholes, &counted, &asked, |batch| {
        run.job.progress().add(batch.num_rows() as u64);
        writer.as_mut().map_or(Ok(()), |writer| writer.write(&batch).map_err(Into::into))
    })?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    nodes::tell_missing(&options, &nodes, &gathered);
    let costs = nodes::costs(&gathered);
    let told = |summary: &WordSummary| nodes::with_nodes(json!(summary), &nodes, &gathered);
    tell_words(&options, words, run.finish(), summary, told, costs)
}

/// Compresses files on nodes, each of which compresses what it has.
pub fn compress(options: &Everywhere, words: &Compress) -> Result<()> {
    let Packed { output, force, remove, inputs } = &words.packed;
    if *remove {
        bail!("--rm does not go with --node: store rm removes what is there");
    }
    let nodes = nodes::connect(options)?;
    let wholes = nodes::wholes(&nodes, inputs)?;
    if let Some(output) = output
        && wholes.len() > 1
    {
        bail!("-o {} is one file, and {} are named", output.display(), wholes.len());
    }
    let is_stdout = output.as_deref() == Some(Path::new("-"));
    if is_stdout && options.json {
        bail!("-o - and --json both want standard output: give -o FILE");
    }
    let format = words.format.or_else(|| Format::of_path(output.as_deref()?)).unwrap_or(Format::Zstd);
    let pack = Pack::new(format, words.level)?;
    let mut run = plain_run(options)?;
    run.job.start_phase("compress", "bytes", wholes.iter().map(|whole| whole.bytes()).sum());
    let asked = nodes::run_options(options);
    let mut summary = Summary { files: 0, sums: PackSummary::default() };
    let mut all = Gathered::default();
    for whole in &wholes {
        let (done, gathered) = match is_stdout {
            true => kernels::compress_on_nodes(&nodes, &run.job, whole, pack, &asked, io::stdout().lock())?,
            false => {
                let called = whole.file.as_deref().unwrap_or(&whole.dataset);
                let path = output.clone().unwrap_or_else(|| format!("{called}.{}", format.ending()).into());
                if path.exists() && !force && !NewFile::is_in_place(&path) {
                    bail!("{}: it is there already: --force replaces it", path.display());
                }
                let file = NewFile::create(&path)?;
                let mut writer = file.writer()?;
                let done = kernels::compress_on_nodes(&nodes, &run.job, whole, pack, &asked, &mut writer)?;
                drop(writer);
                file.publish()?;
                done
            }
        };
        summary.files += 1;
        summary.sums.bytes_in += done.bytes_in;
        summary.sums.bytes_out += done.bytes_out;
        summary.sums.pieces += done.pieces;
        all.add(gathered);
    }
    nodes::tell_missing(options, &nodes, &all);
    let sentence = told(&summary);
    let summary = nodes::with_nodes(json!(summary), &nodes, &all);
    let outcome = Outcome::new("compress", run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: is_stdout, how: nodes::costs(&all), ..outcome }.tell(options)?)
}

/// Searches datasets where they lie, and prints what a local search prints.
pub fn search(options: &Everywhere, words: &Search) -> Result<bool> {
    if words.files || words.type_list || words.search_zip {
        bail!(
            "--files, --type-list and --search-zip do not go with --node: datasets are searched as they are"
        );
    }
    let (first, paths) = pattern_words(words);
    let job = plain_context(options)?;
    let patterns = patterns(words, first, job.budget())?;
    if matcher_across_lines(words, &patterns, job.budget())?.is_some() {
        bail!("a match across lines (-U) is not looked for on nodes, which have pieces of files");
    }
    if words.max_count == Some(0) {
        // As it is here: nothing is looked at, and nothing is found.
        return Ok(false);
    }
    if paths.is_empty() {
        bail!("which datasets? name them: store:NAME (`inshore store ls --node ...` lists them)");
    }
    let nodes = nodes::connect(options)?;
    let wholes = nodes::wholes(&nodes, &paths)?;
    let failed = AtomicBool::new(false);
    let several = paths
        .len()
        .max(usize::from(wholes.len() > 1 && wholes[0].dataset != wholes[wholes.len() - 1].dataset) * 2);
    let style = style(options, words, several, &[]);
    let kernel = kernel(words, patterns, &style, job.budget())?;
    let titles: Vec<Whose> =
        wholes.iter().map(|whole| Whose { path: PathBuf::from(&whole.title), is_named: true }).collect();
    let file = words.output.as_deref().map(NewFile::create).transpose()?;
    let out = writer(file.as_ref())?;
    let mut printer = Printer::new(style, out);
    let asked = nodes::run_options(options);
    let searched = run_on_nodes(&nodes, &job, &kernel, &wholes, &asked, |event: Event<'_, Kernel>| {
        let whose = &titles[event.source];
        print(&mut printer, whose, event, &failed)
    });
    let has_match = printer.has_match();
    let finished = printer.finish();
    let gathered = match searched {
        Ok(gathered) => gathered,
        Err(error) => return Err(unwrapped(error)),
    };
    finished?;
    drop(printer);
    if let Some(file) = file {
        file.publish()?;
    }
    nodes::tell_missing(options, &nodes, &gathered);
    if options.explain {
        nodes::costs(&gathered).iter().for_each(|(name, told)| say(&format!("{name:<12} {told}")));
    }
    write_counters(
        words,
        job.report(),
        nodes::with_nodes(json!({ "matched": has_match }), &nodes, &gathered),
    )?;
    if failed.load(Ordering::Relaxed) && !(has_match && is_quiet(options, words)) {
        bail!(AlreadyTold);
    }
    Ok(has_match)
}

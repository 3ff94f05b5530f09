//! The operation `search`.
//!
//! ```text
//!   folders, files, datasets ─► walk ─► sources ─┐                ┌─► rows: the output, or Beside::rows
//!   patterns ─► kernel ──────────────────────────┴─► here, nodes ─┤
//!                                                                 └─► Beside::matches: blocks, for whoever prints them
//! ```

use std::{
    io,
    path::{Path, PathBuf},
};

use inshore_kernels::{
    self as kernels, Candidate, Matching, PatternOptions, Search as Kernel, SearchItem, SearchSummary,
    SearchTable, SearchTableOptions, TextOptions, WalkOptions, dataset_name, matcher_across_lines,
    stored_sources, table_inputs, walk,
};
use inshore_neardata::{Event, Next, Source};
use inshore_store::Execution;
use inshore_tables::{Input, TableWriter};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    matches::{Matches, Text},
    operation::{Asked, Beside, NormalForm, Operation, Rows, Sources, StoreUse},
    place::Place,
    target::Done,
};

/// Searches files, and those below folders, for lines that match a pattern; see [`Kernel`] and [`walk`]. Without inputs, the current
/// folder is searched. The lines go to the output or to [`Beside::rows`] as rows, or to [`Beside::matches`]; without any of them
/// they are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// Patterns; a line that one of them matches is meant.
    pub patterns: Vec<String>,
    /// How patterns are read.
    #[serde(default)]
    pub matching: PatternOptions,
    /// How lines become rows.
    #[serde(default)]
    pub rows: SearchTableOptions,
    /// Which files below folders are searched.
    #[serde(default)]
    pub walk: WalkOptions,
    /// Unpacks gzip, bzip2, zstd and lz4.
    #[serde(default)]
    pub unpack: bool,
    /// Lets matches go across the ends of lines, for [`Beside::matches`].
    #[serde(default)]
    pub multiline: bool,
    /// With `multiline`, lets a dot match line feeds.
    #[serde(default)]
    pub multiline_dotall: bool,
}

type Failed<'a> = Option<&'a (dyn Fn(&Error) + Sync)>;

fn tell(failed: Failed<'_>, error: impl Into<Error>) {
    if let Some(failed) = failed {
        failed(&error.into());
    }
}

impl Search {
    /// The files that inputs mean here, without datasets. A path that cannot be looked at is told to `failed`, and the others go on.
    ///
    /// # Errors
    /// As [`walk`].
    pub fn candidates<'a>(
        &self,
        inputs: &[PathBuf],
        failed: Failed<'a>,
    ) -> Result<impl Iterator<Item = Candidate> + Send + use<'a>> {
        let paths: Vec<PathBuf> =
            inputs.iter().filter(|path| dataset_name(path).is_none()).cloned().collect();
        let has_files = inputs.is_empty() || !paths.is_empty();
        let walk = has_files.then(|| walk(&paths, &self.walk)).transpose()?;
        Ok(walk
            .into_iter()
            .flatten()
            .filter_map(move |found| found.map_err(|error| tell(failed, kernels::Error::from(error))).ok()))
    }

    fn text_options(&self) -> TextOptions {
        TextOptions { unpack: self.unpack, ..TextOptions::default() }
    }

    /// Files and then datasets, each with what it is called.
    fn files<'a>(
        &self,
        asked: &Asked<'_>,
        job: &Execution,
        failed: Failed<'a>,
    ) -> Result<impl Iterator<Item = (Candidate, Source)> + Send + use<'a>> {
        let options = self.text_options();
        let mut stored = Vec::new();
        for named in asked.inputs.iter().filter_map(|path| dataset_name(path)) {
            let whole = |(path, source)| (Candidate { path, is_named: true }, source);
            stored.extend(stored_sources(asked.stored(job)?, named, options)?.into_iter().map(whole));
        }
        let source = move |candidate: Candidate| {
            let source = candidate.source(options);
            (titled(candidate), source)
        };
        Ok(self.candidates(asked.inputs, failed)?.map(source).chain(stored))
    }

    /// The same as texts that are read as a whole.
    fn texts<'a>(
        &self,
        asked: &Asked<'_>,
        job: &Execution,
        failed: Failed<'a>,
    ) -> Result<impl Iterator<Item = Text> + use<'a>> {
        let options = self.text_options();
        let named: Vec<PathBuf> =
            asked.inputs.iter().filter(|path| dataset_name(path).is_some()).cloned().collect();
        let stored =
            if named.is_empty() { Vec::new() } else { table_inputs(Some(asked.stored(job)?), &named)? };
        // A dataset is searched as it is, or unpacked.
        let of_dataset = move |input: Input| Text {
            file: Candidate { path: PathBuf::from(input.name()), is_named: true },
            input,
            options: TextOptions { keep_encoding: true, ..options },
        };
        let of_file = move |candidate: Candidate| Text {
            input: Input::new(candidate.path.clone()),
            options: candidate.options(options),
            file: titled(candidate),
        };
        let files = self.candidates(asked.inputs, failed)?.map(of_file);
        Ok(files.chain(stored.into_iter().map(of_dataset)))
    }

    /// The matcher, where matches may go across the ends of lines.
    fn matching(&self, job: &Execution) -> Result<Option<Matching>> {
        if !self.multiline {
            return Ok(None);
        }
        let (text, dot_is_all) = (self.rows.text, self.multiline_dotall);
        Ok(matcher_across_lines(&self.patterns, &self.matching, dot_is_all, !text, job.budget())?)
    }

    /// Searches, and gives blocks to whoever takes them.
    fn give_matches(
        &self,
        sources: &Sources,
        asked: &Asked<'_>,
        job: &Execution,
        matches: &mut dyn Matches,
        failed: Failed<'_>,
    ) -> Result<Done<SearchSummary>> {
        if let Some(matching) = self.matching(job)? {
            let mut texts = self.texts(asked, job, failed)?;
            let summary = matches.across(job, &matching, &mut texts, &|error| {
                if let Some(failed) = failed {
                    failed(error);
                }
            })?;
            return Ok(Done::here(summary));
        }
        let (wanted, detect_binary) = (matches.wanted(), !self.rows.text);
        let kernel = Kernel::new(&self.patterns, &self.matching, wanted, detect_binary, job.budget())?;
        let kernel = match matches.replacement() {
            Some(replacement) => kernel.replacing(replacement)?,
            None => kernel,
        };
        if self.rows.max_count == 0 {
            // As for ripgrep: nothing is looked at.
            return Ok(Done::here(SearchSummary::default()));
        }
        let (mut summary, mut has_match) = (SearchSummary::default(), false);
        let mut take = |matches: &mut dyn Matches, file: &Candidate, event: Event<'_, Kernel>| {
            let next = match event.part {
                Some(Ok(found)) => {
                    summary.lines += found.line_count;
                    has_match |= found.line_count > 0 || found.matches_behind_nul;
                    matches.found(file, &found)
                }
                Some(Err(error)) if error.is_cancelled() => return Err(error),
                Some(Err(error)) => matches.failed(file, &error).map(|is_failure| {
                    if is_failure {
                        summary.failed += 1;
                        tell(failed, error);
                    } else {
                        summary.binary += 1;
                    }
                    Next::SkipSource
                }),
                None => {
                    summary.files += 1;
                    summary.files_matched += u64::from(std::mem::take(&mut has_match));
                    matches.end(file)
                }
            };
            next.map_err(kernels::Error::Write)
        };
        match sources {
            Sources::Here => {
                let files = self.files(asked, job, failed)?;
                kernel.run(job, files, |file, event| take(matches, file, event))?;
                Ok(Done::here(summary))
            }
            #[cfg(feature = "nodes")]
            Sources::Nodes(on, wholes) => {
                let is_of_several =
                    wholes.first().map(|whole| &whole.dataset) != wholes.last().map(|whole| &whole.dataset);
                matches.begin_on_nodes(is_of_several);
                let each = |file: &Candidate, event: Event<'_, Kernel>| take(matches, file, event);
                let gathered = kernel.run_on_nodes(&on.nodes, job, wholes, &on.options, each)?;
                Ok(Done::on_nodes(summary, on, gathered))
            }
        }
    }

    /// Searches, and makes rows of lines.
    fn give_rows(
        &self,
        sources: &Sources,
        asked: &Asked<'_>,
        job: &Execution,
        rows: Option<&mut dyn Rows>,
        failed: Failed<'_>,
    ) -> Result<Done<SearchSummary>> {
        if self.multiline && self.matching(job)?.is_some() {
            let what = "multiline: matches across the ends of lines are printed, and don't become rows";
            return Err(Error::Request { operation: Self::NAME, what: what.to_string() });
        }
        let table = SearchTable::new(&self.patterns, &self.matching, self.rows, job.budget())?;
        let create = |path| TableWriter::create(path, table.schema().clone(), job.budget());
        let mut writer = asked.output.map(create).transpose()?;
        let mut rows = rows.filter(|_| writer.is_none());
        if let Some(rows) = &mut rows {
            rows.begin(table.schema(), job)?;
        }
        let mut refused = None;
        let each = |item: SearchItem| {
            let taken = match (item, &mut writer, &mut rows) {
                (SearchItem::Failed(error), ..) => {
                    tell(failed, error);
                    Ok(())
                }
                (SearchItem::Rows(batch), Some(writer), _) => writer.write(&batch).map_err(Error::from),
                (SearchItem::Rows(batch), None, Some(rows)) => rows.batch(batch),
                (SearchItem::Rows(_), None, None) => Ok(()),
            };
            taken.map(|()| Next::Go).map_err(|error| {
                refused = Some(error);
                kernels::Error::Write(io::Error::other("rows were refused"))
            })
        };
        let searched = match sources {
            Sources::Here => table.run(job, self.files(asked, job, failed)?, each).map(Done::here),
            #[cfg(feature = "nodes")]
            Sources::Nodes(on, wholes) => table
                .run_on_nodes(&on.nodes, job, wholes, &on.options, each)
                .map(|(summary, gathered)| Done::on_nodes(summary, on, gathered)),
        };
        let done = searched.map_err(|error| refused.unwrap_or_else(|| error.into()))?;
        if let Some(rows) = rows {
            rows.end()?;
        }
        if let Some(writer) = writer {
            writer.finish()?;
        }
        Ok(done)
    }
}

/// The file as it is called.
fn titled(candidate: Candidate) -> Candidate {
    match candidate.path == Path::new("-") {
        true => Candidate { path: PathBuf::from("<stdin>"), ..candidate },
        false => candidate,
    }
}

impl Operation for Search {
    const NAME: &'static str = "search";
    const PLACES: &'static [Place] = &Place::ALL;
    const STORE: StoreUse = StoreUse::Datasets;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = Sources;
    type Answer = SearchSummary;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, place: Place) -> Result<()> {
        if place == Place::Nodes {
            let refuse =
                |option, why| Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why });
            let WalkOptions { globs, types, types_not, max_depth, .. } = &self.walk;
            let is_narrowed =
                !(globs.is_empty() && types.is_empty() && types_not.is_empty()) || max_depth.is_some();
            match () {
                () if self.unpack => return refuse("unpack", "datasets are searched as they are"),
                () if is_narrowed => return refuse("walk", "datasets are named, and there are no folders"),
                () if inputs.is_empty() => return Err(Error::NoInput { operation: Self::NAME }),
                () => {}
            }
        }
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    fn plan(&self, asked: &Asked<'_>) -> Result<Sources> {
        asked.sources()
    }

    fn run(
        &self,
        sources: Sources,
        asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<SearchSummary>> {
        let Beside { failed, rows, matches, .. } = beside;
        if asked.target.place() == Place::Nodes && self.matching(job)?.is_some() {
            let (operation, place) = (Self::NAME, Place::Nodes);
            let why = "a match across lines is not looked for in pieces of files";
            return Err(Error::UnsupportedOption { operation, option: "multiline", place, why });
        }
        match matches {
            Some(matches) => self.give_matches(&sources, asked, job, matches, failed),
            None => self.give_rows(&sources, asked, job, rows.map(|rows| rows as &mut dyn Rows), failed),
        }
    }
}

//! The operation `search`.
//!
//! ```text
//!   folders, files, datasets ─► walk ─► sources ─┐                ┌─► rows: the output, or Attachments::rows
//!   patterns ─► kernel ──────────────────────────┴─► local/nodes ─┤
//!                                                                 └─► Attachments::matches: blocks, for printing
//! ```

use std::{
    io,
    path::{Path, PathBuf},
};

use inshore_kernel::{Event, Next, Source};
use inshore_kernels::{
    self as kernels, MultilineMatcher, PatternOptions, Search as Kernel, SearchItem, SearchSummary,
    SearchTable, SearchTableOptions, TextOptions, WalkOptions, WalkedFile, dataset_name,
    matcher_across_lines, stored_sources, table_inputs, walk,
};
use inshore_store::Execution;
use inshore_tables::{Input, TableWriter};
use serde::{Deserialize, Serialize};

#[cfg(feature = "nodes")]
use crate::on_nodes::{search_on_nodes, search_table_on_nodes};
use crate::{
    error::{Error, Result},
    matches::{Matches, Text},
    operation::{
        Attachments, NormalForm, Operation, RequestContext, ResolvedInputs, RowOutput, RowReceiver, StoreUse,
    },
    target::Response,
    target_kind::TargetKind,
};

/// Searches files, and all files below folders, for lines that match a pattern: see [`Kernel`] and [`walk`].
/// Without inputs, the current folder is searched. If [`Attachments::matches`] is set, it receives the matches.
/// Otherwise the lines become rows, which go to the output file or to [`Attachments::rows`]. If none of these
/// exists, the lines are only counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The patterns; a line matches if one of them matches.
    pub patterns: Vec<String>,
    /// The options of pattern matching.
    #[serde(default)]
    pub matching: PatternOptions,
    /// The options for turning lines into rows.
    #[serde(default)]
    pub rows: SearchTableOptions,
    /// The options that select files below folders.
    #[serde(default)]
    pub walk: WalkOptions,
    /// Decompresses files in the formats gzip, bzip2, zstd and lz4.
    #[serde(default)]
    pub unpack: bool,
    /// Allows matches that span lines, for [`Attachments::matches`].
    #[serde(default)]
    pub multiline: bool,
    /// If `multiline` is set, a dot in a pattern also matches line feeds.
    #[serde(default)]
    pub multiline_dotall: bool,
}

/// A file that a walk found, or an error for a path.
type Walked = std::result::Result<WalkedFile, inshore_kernel::Error>;

type Failed<'a> = Option<&'a (dyn Fn(&Error) + Sync)>;

fn tell(failed: Failed<'_>, error: impl Into<Error>) {
    if let Some(failed) = failed {
        failed(&error.into());
    }
}

impl Search {
    /// Returns the local files of the inputs, without datasets. If a path cannot be read, `failed` receives the
    /// error, and the search continues with the other paths.
    ///
    /// # Errors
    /// Returns the errors of [`walk`].
    pub fn candidates<'a>(
        &self,
        inputs: &[PathBuf],
        failed: Failed<'a>,
    ) -> Result<impl Iterator<Item = WalkedFile> + Send + use<'a>> {
        let tell = move |error| tell(failed, kernels::Error::from(error));
        Ok(self.walked(inputs)?.filter_map(move |found| found.map_err(tell).ok()))
    }

    /// Returns the same files as [`Search::candidates`]. If a path cannot be read, the iterator returns the error
    /// at the position of this path.
    fn walked(&self, inputs: &[PathBuf]) -> Result<impl Iterator<Item = Walked> + Send + use<>> {
        let paths: Vec<PathBuf> =
            inputs.iter().filter(|path| dataset_name(path).is_none()).cloned().collect();
        let has_files = inputs.is_empty() || !paths.is_empty();
        let walk = has_files.then(|| walk(&paths, &self.walk)).transpose()?;
        Ok(walk.into_iter().flatten())
    }

    fn text_options(&self) -> TextOptions {
        TextOptions { unpack: self.unpack, ..TextOptions::default() }
    }

    /// Returns the files of a walk, and then the datasets, each with its name. A path that the walk cannot read
    /// becomes a source that fails when it is opened.
    fn files<W: Iterator<Item = Walked> + Send>(
        &self,
        walked: W,
        context: &RequestContext<'_>,
        job: &Execution,
    ) -> Result<impl Iterator<Item = (WalkedFile, Source)> + Send + use<W>> {
        let options = self.text_options();
        let mut stored = Vec::new();
        for named in context.inputs.iter().filter_map(|path| dataset_name(path)) {
            let whole = |(path, source)| (WalkedFile { path, is_named: true }, source);
            stored.extend(stored_sources(context.stored(job)?, named, options)?.into_iter().map(whole));
        }
        let source = move |found: Walked| match found {
            Ok(candidate) => {
                let source = candidate.source(options);
                (titled(candidate), source)
            }
            Err(error) => {
                let candidate = WalkedFile { path: PathBuf::new(), is_named: true };
                (candidate, Source::new(error.to_string(), move |_| Err(error)))
            }
        };
        Ok(walked.map(source).chain(stored))
    }

    /// Returns the same files and datasets as texts. Each text is searched as a whole.
    fn texts<'a>(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        failed: Failed<'a>,
    ) -> Result<impl Iterator<Item = Text> + use<'a>> {
        let options = self.text_options();
        let named: Vec<PathBuf> =
            context.inputs.iter().filter(|path| dataset_name(path).is_some()).cloned().collect();
        let stored =
            if named.is_empty() { Vec::new() } else { table_inputs(Some(context.stored(job)?), &named)? };
        // The character encoding of a dataset's bytes is not detected. Compressed bytes are decompressed if the
        // option `unpack` is set.
        let of_dataset = move |input: Input| Text {
            file: WalkedFile { path: PathBuf::from(input.name()), is_named: true },
            input,
            options: TextOptions { keep_encoding: true, ..options },
        };
        let of_file = move |candidate: WalkedFile| Text {
            input: Input::new(candidate.path.clone()),
            options: candidate.options(options),
            file: titled(candidate),
        };
        let files = self.candidates(context.inputs, failed)?.map(of_file);
        Ok(files.chain(stored.into_iter().map(of_dataset)))
    }

    /// Returns the matcher for matches that span lines, if the request allows them.
    fn matching(&self, job: &Execution) -> Result<Option<MultilineMatcher>> {
        if !self.multiline {
            return Ok(None);
        }
        let (text, dot_is_all) = (self.rows.text, self.multiline_dotall);
        Ok(matcher_across_lines(&self.patterns, &self.matching, dot_is_all, !text, job.budget())?)
    }

    /// Runs the search, and passes the matches block by block to the receiver `matches`.
    fn give_matches(
        &self,
        sources: &ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        matches: &mut dyn Matches,
        failed: Failed<'_>,
    ) -> Result<Response<SearchSummary>> {
        if let Some(matching) = self.matching(job)? {
            let mut texts = self.texts(context, job, failed)?;
            let summary = matches.across(job, &matching, &mut texts, &|error| {
                if let Some(failed) = failed {
                    failed(error);
                }
            })?;
            return Ok(Response::local(summary));
        }
        let (wanted, detect_binary) = (matches.wanted(), !self.rows.text);
        let kernel = Kernel::new(&self.patterns, &self.matching, wanted, detect_binary, job.budget())?;
        let kernel = match matches.replacement() {
            Some(replacement) => kernel.replacing(replacement)?,
            None => kernel,
        };
        if self.rows.max_count == 0 {
            // If the limit is zero matches, no file is read, as in ripgrep.
            return Ok(Response::local(SearchSummary::default()));
        }
        let (mut summary, mut has_match) = (SearchSummary::default(), false);
        let mut take = |matches: &mut dyn Matches, file: &WalkedFile, event: Event<'_, Kernel>| {
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
            ResolvedInputs::Here => {
                let files = self.files(self.candidates(context.inputs, failed)?.map(Ok), context, job)?;
                kernel.run(job, files, |file, event| take(matches, file, event))?;
                Ok(Response::local(summary))
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                let is_of_several =
                    wholes.first().map(|whole| &whole.dataset) != wholes.last().map(|whole| &whole.dataset);
                matches.begin_on_nodes(is_of_several);
                let each = |file: &WalkedFile, event: Event<'_, Kernel>| take(matches, file, event);
                let gathered = search_on_nodes(&kernel, &on.nodes, job, wholes, &on.options, each)?;
                Ok(Response::on_nodes(summary, on, gathered))
            }
        }
    }

    /// Runs the search, and turns matching lines into rows.
    fn give_rows(
        &self,
        sources: &ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        rows: Option<&mut dyn RowReceiver>,
        failed: Failed<'_>,
    ) -> Result<Response<SearchSummary>> {
        if self.multiline && self.matching(job)?.is_some() {
            let what = "multiline: matches across the ends of lines are printed, and don't become rows";
            return Err(Error::Request { operation: Self::NAME, what: what.to_string() });
        }
        let table = SearchTable::new(&self.patterns, &self.matching, self.rows, job.budget())?;
        let receiver = rows.filter(|_| context.output.is_none());
        let mut rows = RowOutput::begin(context.output, receiver, table.schema(), job)?;
        let mut refused = None;
        let each = |item: SearchItem| {
            let taken = match item {
                SearchItem::Failed(error) => {
                    tell(failed, error);
                    Ok(())
                }
                SearchItem::Rows(batch) => rows.batch(batch),
            };
            taken.map(|()| Next::Go).map_err(|error| {
                refused = Some(error);
                kernels::Error::Write(io::Error::other("rows were refused"))
            })
        };
        let searched = match sources {
            // A path that the walk cannot read fails only when the search reaches it. The rows of earlier files
            // have then been returned.
            ResolvedInputs::Here => {
                let files = self.files(self.walked(context.inputs)?, context, job)?;
                table.run(job, files, each).map(Response::local)
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                search_table_on_nodes(&table, &on.nodes, job, wholes, &on.options, each)
                    .map(|(summary, gathered)| Response::on_nodes(summary, on, gathered))
            }
        };
        let done = searched.map_err(|error| refused.unwrap_or_else(|| error.into()))?;
        rows.finish()?;
        Ok(done)
    }
}

/// Returns the file with the path that is displayed: `<stdin>` for standard input.
fn titled(candidate: WalkedFile) -> WalkedFile {
    match candidate.path == Path::new("-") {
        true => WalkedFile { path: PathBuf::from("<stdin>"), ..candidate },
        false => candidate,
    }
}

impl Operation for Search {
    const NAME: &'static str = "search";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Datasets;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = SearchSummary;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, place: TargetKind) -> Result<()> {
        if place.is_on_nodes() {
            let refuse =
                |option, why| Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why });
            let WalkOptions { globs, types, types_not, max_depth, .. } = &self.walk;
            let is_narrowed =
                !(globs.is_empty() && types.is_empty() && types_not.is_empty()) || max_depth.is_some();
            match () {
                () if self.unpack => return refuse("unpack", "datasets are searched without decompression"),
                () if is_narrowed => return refuse("walk", "datasets are given by name, without folders"),
                () if inputs.is_empty() => return Err(Error::NoInput { operation: Self::NAME }),
                () => {}
            }
        }
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<SearchSummary>> {
        let Attachments { failed, rows, matches, .. } = attachments;
        let place = context.target.place();
        if place.is_on_nodes() && self.matching(job)?.is_some() {
            let operation = Self::NAME;
            let why = "matches across lines are not searched in pieces of files";
            return Err(Error::UnsupportedOption { operation, option: "multiline", place, why });
        }
        match matches {
            Some(matches) => self.give_matches(&sources, context, job, matches, failed),
            None => {
                self.give_rows(&sources, context, job, rows.map(|rows| rows as &mut dyn RowReceiver), failed)
            }
        }
    }
}

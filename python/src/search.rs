//! Searching: a search gives its rows to a run.

use std::{path::PathBuf, time::Duration};

use inshore::{
    kernels::{
        self, Candidate, PatternOptions, SearchColumns, SearchItem, SearchTable, SearchTableOptions,
        TextOptions, WalkOptions, dataset_name, stored_sources, walk,
    },
    neardata::{self, Next, Source},
    store,
};
use pyo3::prelude::*;

#[cfg(not(feature = "nodes"))]
use crate::absent::Nodes;
#[cfg(feature = "nodes")]
use crate::nodes::Nodes;
use crate::{
    error::{bad_option, to_python, whole},
    job::Job,
    run::{Facts, Out, Run, file, start},
};

/// The options, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options<'py> {
    columns: String,
    spans: bool,
    max_count: Option<Bound<'py, PyAny>>,
    include_zero: bool,
    as_bytes: bool,
    text: bool,
    fixed: bool,
    ignore_case: bool,
    smart_case: bool,
    words: bool,
    lines: bool,
    invert: bool,
    crlf: bool,
    globs: Vec<String>,
    types: Vec<String>,
    types_not: Vec<String>,
    hidden: bool,
    no_ignore: bool,
    follow: bool,
    max_depth: Option<Bound<'py, PyAny>>,
    unpack: bool,
    skip: bool,
}

impl Options<'_> {
    fn patterns(&self) -> PatternOptions {
        let Options { fixed, ignore_case, smart_case, words, lines, invert, crlf, .. } = *self;
        PatternOptions { fixed, ignore_case, smart_case, words, lines, invert, crlf }
    }

    fn table(&self) -> PyResult<SearchTableOptions> {
        let columns = match (&*self.columns, self.spans) {
            ("line_counts", _) => SearchColumns::LineCounts,
            ("match_counts", _) => SearchColumns::MatchCounts,
            (_, true) => SearchColumns::LinesWithSpans,
            (_, false) => SearchColumns::Lines,
        };
        let max_count = match &self.max_count {
            Some(count) => match whole("max_count", count)? {
                0 => return Err(bad_option("max_count", count, "at least 1")),
                count => count,
            },
            None => u64::MAX,
        };
        let Options { include_zero, as_bytes, text, .. } = *self;
        Ok(SearchTableOptions { columns, max_count, include_zero, as_bytes, text })
    }

    fn walk(&self) -> PyResult<WalkOptions> {
        let depth = |depth| whole::<u32>("max_depth", depth);
        Ok(WalkOptions {
            globs: self.globs.clone(),
            types: self.types.clone(),
            types_not: self.types_not.clone(),
            hidden: self.hidden,
            no_ignore: self.no_ignore,
            follow: self.follow,
            max_depth: self.max_depth.as_ref().map(depth).transpose()?.map(|depth| depth as usize),
        })
    }
}

/// Starts a search below `paths`, without any of them below the current folder; on nodes of these datasets.
#[pyfunction]
#[pyo3(signature = (job, patterns, paths, options, *, output=None, nodes=None))]
pub(crate) fn search(
    job: &Job,
    patterns: Vec<String>,
    paths: Vec<PathBuf>,
    options: Options<'_>,
    output: Option<PathBuf>,
    nodes: Option<&Nodes>,
) -> PyResult<Run> {
    let job = job.execution()?;
    let table = SearchTable::new(&patterns, &options.patterns(), options.table()?, job.budget())
        .map_err(to_python)?;
    let (walking, skip) = (options.walk()?, options.skip);
    let text = TextOptions { unpack: options.unpack, ..TextOptions::default() };
    #[cfg(feature = "nodes")]
    let on = nodes.map(Nodes::begin);
    #[cfg(not(feature = "nodes"))]
    let _ = nodes;
    start(job, output, Duration::MAX, move |job, out| {
        out.begin(table.schema(), job.budget())?;
        let skips = out.skips();
        let mut each = |item| pass_on(out, &skips, item, skip);
        #[cfg(feature = "nodes")]
        if let Some(on) = on {
            let wholes = inshore::ops::wholes(&on.nodes, &paths)?;
            let (summary, _) = table.run_on_nodes(&on.nodes, job, &wholes, &on.options, &mut each)?;
            out.end()?;
            return Ok(Facts::of(&summary));
        }
        let files = files(job.job(), paths, &walking, text)?;
        let summary = table.run(job, files, &mut each)?;
        out.end()?;
        Ok(Facts::of(&summary))
    })
}

/// Files and folders, and then datasets, each with what rows call it.
fn files(
    job: Option<&store::Job>,
    paths: Vec<PathBuf>,
    walking: &WalkOptions,
    text: TextOptions,
) -> kernels::Result<impl Iterator<Item = (Candidate, Source)> + Send + use<>> {
    let is_here = paths.is_empty();
    let (stored, paths): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.into_iter().partition(|path| dataset_name(path).is_some());
    let mut datasets = Vec::new();
    for (path, named) in stored.iter().filter_map(|path| Some((path, dataset_name(path)?))) {
        let job = job.ok_or_else(|| store::Error::NoStore { path: path.clone() })?;
        let whole = |(path, source)| (Candidate { path, is_named: true }, source);
        datasets.extend(stored_sources(job, named, text)?.into_iter().map(whole));
    }
    let paths: Vec<PathBuf> = paths.into_iter().map(file).collect();
    let found = (is_here || !paths.is_empty()).then(|| walk(&paths, walking)).transpose()?;
    let found = found.into_iter().flatten().map(move |found| match found {
        Ok(candidate) => {
            let source = candidate.source(text);
            (candidate, source)
        }
        Err(error) => unreadable(error),
    });
    Ok(found.chain(datasets))
}

/// What the walk could not look at fails in its turn.
fn unreadable(error: neardata::Error) -> (Candidate, Source) {
    let candidate = Candidate { path: PathBuf::new(), is_named: true };
    (candidate, Source::new(error.to_string(), move |_| Err(error)))
}

/// Passes on what a search finds. A file that cannot be read is passed over where `skip` says so.
fn pass_on(
    out: &mut Out,
    skips: &impl Fn(String) -> Result<(), store::Error>,
    item: SearchItem,
    skip: bool,
) -> kernels::Result<Next> {
    match item {
        SearchItem::Rows(rows) => out.batch(rows)?,
        SearchItem::Failed(error) if skip => skips(error.to_string())?,
        SearchItem::Failed(error) => return Err(error),
    }
    Ok(Next::Go)
}

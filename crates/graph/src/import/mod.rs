//! Imports the user's edges as a graph on flash, within the budget.
//!
//! ```text
//!   1  files ─ parse ─┬► set of ids                  a bitmap for low ids, sort-reduce for the others
//!                     ├► sort-reduce by (id, id)     edges between low ids
//!                     └► log of (id, id, weight)     edges with other ids, a log for each lane
//!   2  set of ids ─► ids, ascending: the index of an id is its vertex number
//!   3  sort-reduce ─ id to number ─► rows            where all ids are low
//!      log ─ id to number ─► sort-reduce ─► rows     otherwise, with all edges in the log
//! ```
//!
//! Low ids are those with a bit in a bitmap, which takes a sixteenth to an eighth of the free memory, but at most 512
//! MiB. The order of ids is the order of vertex numbers, so edges between low ids are sorted on arrival. They get their
//! vertex numbers (by counting bits) when rows are written. Other ids need numbers of 32 bits before their edges can be
//! sorted. If all ids fit in memory, these numbers come from an array of ids. Otherwise the edges are numbered in bins.
//! The log is first split by ranges of the source's id, and then by ranges of the destination's id. The ids of one
//! range fit in memory. No lookup on flash is random.
//!
//! Cost for E edges between low ids: the traffic of sort-reduce (about 4 E bytes written and read if it spills), and 1
//! to 4 E bytes written for the rows. With other ids, or in less than 32 MiB, another 16 E bytes are written and read
//! for the log. With bins, another 48 E bytes are written and read.

mod bins;
mod idset;
mod lane;
mod log;
mod parse;
mod rows;
mod spool;

use std::str::FromStr;

use inshore_sortreduce::{Config, SortReduce, Sorted};
use inshore_store::{DatasetBuilder, Job, Store};
use inshore_tables::Input;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

pub use self::parse::{check_edge_text, edges_of_lines, weighted_edges_of_lines};
use self::{
    idset::{IdNumbers, IdSet},
    lane::{Edges, Lanes},
};
use crate::{
    Error, GraphInfo, Result, SMALLEST_BUDGET_BYTES,
    csr::{
        self, Csr, CsrFiles, CsrWriter, EdgeOperation, IdentityNumbering, Numbering, SmallestWeight,
        Unweighted, edge_key, writer_bytes,
    },
    graph::{self, VERTICES_MAX, check_budget},
};

/// Names the format of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeFormat {
    /// Two ids per line, and perhaps a weight, separated by tabs, spaces or commas. Lines that begin with `#` or `%`
    /// are comments (SNAP, WebGraph, KONECT).
    Text,
    /// Comma-separated values with a header line.
    Csv,
    /// Parquet.
    Parquet,
    /// Arrow IPC, file or stream.
    Arrow,
    /// Matrix Market coordinates of a square matrix. A symmetric matrix is an undirected graph.
    MatrixMarket,
    /// LDBC Graphalytics: a `.v` file of vertices, and an `.e` file of edges, which may have weights in a third column.
    Ldbc,
    /// Pairs of little-endian 32-bit numbers.
    Binary,
}

const FORMATS: [(&str, EdgeFormat); 7] = [
    ("text", EdgeFormat::Text),
    ("csv", EdgeFormat::Csv),
    ("parquet", EdgeFormat::Parquet),
    ("arrow", EdgeFormat::Arrow),
    ("mtx", EdgeFormat::MatrixMarket),
    ("ldbc", EdgeFormat::Ldbc),
    ("binary", EdgeFormat::Binary),
];

impl FromStr for EdgeFormat {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let known = FORMATS.iter().find(|(name, _)| *name == text);
        known.map(|(_, format)| *format).ok_or_else(|| Error::BadOption {
            option: "format",
            found: text.to_string(),
            expected: FORMATS.map(|(name, _)| name).join(", "),
        })
    }
}

impl std::fmt::Display for EdgeFormat {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, _) = FORMATS.iter().find(|(_, format)| format == self).expect("every format has a name");
        out.write_str(name)
    }
}

impl EdgeFormat {
    /// Returns the format that belongs to a file extension; text for unknown extensions.
    pub fn of(input: &Input) -> EdgeFormat {
        match input.extension().as_str() {
            "csv" => EdgeFormat::Csv,
            "parquet" | "pq" => EdgeFormat::Parquet,
            "arrow" | "arrows" | "ipc" | "feather" => EdgeFormat::Arrow,
            "mtx" => EdgeFormat::MatrixMarket,
            "e" | "v" => EdgeFormat::Ldbc,
            "bin" | "u32" => EdgeFormat::Binary,
            _ => EdgeFormat::Text,
        }
    }
}

/// Reads and writes the format as its name.
impl Serialize for EdgeFormat {
    fn serialize<S: Serializer>(&self, out: S) -> std::result::Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EdgeFormat {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Sets the options of an import.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImportOptions {
    /// Adds every edge in both directions.
    pub undirected: bool,
    /// Leaves out edges from a vertex to itself.
    pub drop_loops: bool,
    /// Keeps the third column of text as weights. Formats that mark weights always keep them: a column called `weight`,
    /// a third column in LDBC, and the values of a Matrix Market file.
    pub weighted: bool,
    /// Stores in-edges too. In a directed graph, betweenness, clustering, communities and searches use in-edges.
    pub reverse: bool,
    /// The format of all inputs; by default the format that each input's extension or content suggests.
    pub format: Option<EdgeFormat>,
    /// The name of the column of sources in CSV, Parquet and Arrow inputs. By default it is `source`, `src`, `from` or
    /// `vertex1`. If neither sources nor destinations have such a name, the first column that has no weights is taken.
    pub source_column: Option<String>,
    /// The name of the column of destinations. By default it is `target`, `dst`, `destination`, `dest`, `to` or
    /// `vertex2`. If neither sources nor destinations have such a name, the second column that has no weights is taken.
    pub target_column: Option<String>,
    /// The name of the column of weights. A name implies `weighted`. By default it is `weight`, if there is such a
    /// column.
    pub weight_column: Option<String>,
}

impl ImportOptions {
    /// Returns true if the options request weights.
    fn is_weighted(&self) -> bool {
        self.weighted || self.weight_column.is_some()
    }

    /// Refuses options that name columns if the input's columns have no names.
    fn refuse_columns(&self, input: &Input) -> Result<()> {
        match [&self.source_column, &self.target_column, &self.weight_column].into_iter().flatten().next() {
            None => Ok(()),
            Some(name) => Err(Error::BadInput {
                place: input.name().to_string(),
                found: "a format without column names".to_string(),
                expected: format!("CSV, Parquet or Arrow with a column {name}"),
            }),
        }
    }
}

/// Imports the edges of `inputs` as the graph `name`.
///
/// Every `u64` can be an id. Duplicate edges merge, and the smallest weight wins. The graph becomes visible only when
/// all of it is durable.
///
/// # Errors
/// - Returns [`Error::BadInput`] if an edge is malformed. The error names the file and the line.
/// - Returns [`Error::Empty`] if the inputs contain no vertex.
/// - Returns [`inshore_store::Error::NameExists`] if the store already has a dataset with this name.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails (for example because the disk is full), or if the job was
/// cancelled.
pub fn import(
    store: &Store,
    job: &Job,
    name: &str,
    inputs: &[Input],
    options: &ImportOptions,
) -> Result<GraphInfo> {
    check_budget(job, "import")?;
    let builder = store.create_dataset(job, name, graph::KIND)?;
    let format_of = |input: &Input| options.format.map_or_else(|| guess(job, input), Ok);
    let formats: Vec<_> = inputs.iter().map(format_of).collect::<Result<_>>()?;
    let inputs: Vec<Input> = inputs
        .iter()
        .zip(&formats)
        .map(|(input, format)| spool::readable(job, &input.clone().stopped_by(job.cancel()), *format))
        .collect::<Result<_>>()?;
    let traits = InputTraits::look(job, &inputs, formats, options)?;
    match traits.weighted {
        true => read::<SmallestWeight>(job, builder, name, &inputs, &traits, options),
        false => read::<Unweighted>(job, builder, name, &inputs, &traits, options),
    }
}

/// Guesses the format of an input by its extension, and otherwise by its first line.
///
/// # Errors
/// - Returns [`Error::BadInput`] if the input is a METIS file.
/// - Returns an I/O error if the input cannot be read.
fn guess(job: &Job, input: &Input) -> Result<EdgeFormat> {
    // The first line of a pipe is not read, since a pipe cannot be read again.
    let is_file = input.path().is_some() && input.compressed_bytes().is_some();
    match EdgeFormat::of(input) {
        EdgeFormat::Text if matches!(&*input.extension(), "graph" | "metis") => Err(parse::metis(input)),
        EdgeFormat::Text if is_file => {
            let mut head = [0; 32];
            let filled = input.clone().stopped_by(job.cancel()).open(job.budget())?.fill(&mut head)?;
            let head = &head[..filled];
            let line = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
            Ok(if parse::is_matrix_market(line) { EdgeFormat::MatrixMarket } else { EdgeFormat::Text })
        }
        format => Ok(format),
    }
}

/// Step 1: reads the inputs.
fn read<E: EdgeOperation>(
    job: &Job,
    builder: DatasetBuilder,
    name: &str,
    inputs: &[Input],
    traits: &InputTraits,
    options: &ImportOptions,
) -> Result<GraphInfo> {
    let set = IdSet::new(job, job.budget().free_bytes() / 4)?;
    let mut lanes = Lanes::<E>::new(job, &set, traits.undirected, options)?;
    let bytes = inputs.iter().map(|input| input.compressed_bytes()).sum::<Option<u64>>();
    job.start_phase("reading edges", "bytes", bytes.unwrap_or(0));
    for (input, format) in inputs.iter().zip(&traits.formats) {
        match format {
            EdgeFormat::Text => parse::text(job, input, &mut lanes, options.format.is_none())?,
            EdgeFormat::MatrixMarket => parse::matrix_market(job, input, &mut lanes)?,
            EdgeFormat::Ldbc if input.extension() == "v" => parse::vertices(job, input, &mut lanes)?,
            EdgeFormat::Ldbc => parse::text(job, input, &mut lanes, false)?,
            EdgeFormat::Binary => rows::binary(job, input, &mut lanes)?,
            EdgeFormat::Csv | EdgeFormat::Parquet | EdgeFormat::Arrow => {
                rows::table(job, input, options, &mut lanes)?
            }
        }
    }
    let edges = lanes.finish(job)?;
    let plan = ImportPlan { undirected: traits.undirected, reverse: options.reverse, inputs };
    finish(job, builder, name, set, edges, &plan)
}

/// Properties that all inputs have in common.
struct InputTraits {
    formats: Vec<EdgeFormat>,
    weighted: bool,
    undirected: bool,
}

impl InputTraits {
    /// Reads the names and headers of all inputs. Fails if only some inputs have weights, or if only some inputs are
    /// symmetric matrices and `undirected` is not set.
    fn look(
        job: &Job,
        inputs: &[Input],
        formats: Vec<EdgeFormat>,
        options: &ImportOptions,
    ) -> Result<InputTraits> {
        let mut symmetric: Option<(bool, &Input)> = None;
        let mut weighted: Option<(bool, &Input)> = None;
        for (input, format) in inputs.iter().zip(&formats) {
            let mut is_symmetric = false;
            if !matches!(format, EdgeFormat::Csv | EdgeFormat::Parquet | EdgeFormat::Arrow) {
                options.refuse_columns(input)?;
            }
            let has = match format {
                EdgeFormat::Text => options.is_weighted(),
                EdgeFormat::Binary => false,
                EdgeFormat::Ldbc if input.extension() == "v" => continue,
                EdgeFormat::Ldbc => options.is_weighted() || parse::has_third_column(job, input)?,
                EdgeFormat::MatrixMarket => {
                    let header = parse::matrix_header(job, input)?;
                    is_symmetric = header.symmetric;
                    header.weighted
                }
                _ => rows::weight_column(job, input, options)?.is_some(),
            };
            match weighted {
                Some((known, first)) if known != has => {
                    let with = |has| if has { "with weights" } else { "without weights" };
                    return Err(Error::BadInput {
                        place: input.name().to_string(),
                        found: format!("edges {}", with(has)),
                        expected: format!("edges {}, as in {}", with(known), first.name()),
                    });
                }
                _ => weighted = Some((has, input)),
            }
            match symmetric {
                Some((known, first)) if known != is_symmetric && !options.undirected => {
                    let kind = |symmetric| if symmetric { "a symmetric matrix" } else { "directed edges" };
                    return Err(Error::BadInput {
                        place: input.name().to_string(),
                        found: kind(is_symmetric).to_string(),
                        expected: format!("{}, as in {} (or --undirected)", kind(known), first.name()),
                    });
                }
                _ => symmetric = Some((is_symmetric, input)),
            }
        }
        let undirected = options.undirected || symmetric.is_some_and(|(is_symmetric, _)| is_symmetric);
        Ok(InputTraits { formats, undirected, weighted: weighted.is_some_and(|(has, _)| has) })
    }
}

struct ImportPlan<'a> {
    undirected: bool,
    reverse: bool,
    inputs: &'a [Input],
}

/// Does steps 2 and 3: numbers the ids, sorts the edges and writes the graph.
fn finish<E: EdgeOperation>(
    job: &Job,
    mut builder: DatasetBuilder,
    name: &str,
    set: IdSet,
    edges: Edges<E>,
    plan: &ImportPlan,
) -> Result<GraphInfo> {
    let sealed = set.seal(job, &mut builder)?;
    if sealed.count == 0 {
        let inputs = plan.inputs.iter().map(Input::name).collect::<Vec<_>>().join(", ");
        return Err(Error::Empty { inputs });
    }
    if sealed.count > VERTICES_MAX {
        return Err(Error::TooManyVertices { found: sealed.count, limit: VERTICES_MAX });
    }
    let draft = Draft {
        vertices: sealed.count,
        directed: !plan.undirected,
        dense_ids: sealed.dense,
        id_min: sealed.min,
        id_max: sealed.max,
        reverse: plan.reverse && !plan.undirected,
    };
    let logs = match (edges, &sealed.numbers) {
        (Edges::Sorted(sorter), IdNumbers::Bits(ranks)) => {
            let sorted = sorter.finish()?;
            return write_graph::<E>(job, builder, name, sorted, draft, &ranks.view());
        }
        (Edges::Sorted(sorter), _) => {
            let sorted = sorter.finish()?;
            drop(sealed);
            return write_graph::<E>(job, builder, name, sorted, draft, &IdentityNumbering);
        }
        (Edges::Logged(logs), IdNumbers::OnFlash(ids)) => bins::number(job, ids, logs)?,
        (Edges::Logged(logs), _) => logs,
    };
    let sorted = sort::<E>(job, &sealed.numbers, logs, plan.undirected)?;
    drop(sealed);
    write_graph::<E>(job, builder, name, sorted, draft, &IdentityNumbering)
}

/// Numbers the edges in the logs, and sorts them.
fn sort<E: EdgeOperation>(
    job: &Job,
    numbers: &IdNumbers,
    logs: Vec<log::EdgeLog>,
    undirected: bool,
) -> Result<Sorted<E>> {
    job.start_phase("sorting edges", "edges", logs.iter().map(log::EdgeLog::len).sum());
    let lanes = logs.len();
    let reading = lanes as u64 * log::READ_BYTES;
    let memory_bytes = job.budget().free_bytes().saturating_sub(reading + writer_bytes(job) + 128 * 1024);
    let config = Config { memory_bytes, sinks: lanes, name: "edges", ..Config::default() };
    let sorter = SortReduce::new(job, E::default(), &config)?;
    std::thread::scope(|scope| -> Result<()> {
        let mut workers = Vec::with_capacity(lanes);
        for log in logs {
            let mut sink = sorter.sink()?;
            workers.push(scope.spawn(move || -> Result<()> {
                log.for_each(job, |source, destination, weight| {
                    let (source, destination) = (numbers.number(source), numbers.number(destination));
                    sink.push(edge_key(source, destination), E::value(weight))?;
                    if undirected && source != destination {
                        sink.push(edge_key(destination, source), E::value(weight))?;
                    }
                    Ok(())
                })?;
                Ok(sink.finish()?)
            }));
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("a sorter does not panic"))
    })?;
    Ok(sorter.finish()?)
}

/// The properties of a graph that are known before its rows are written.
pub(crate) struct Draft {
    pub vertices: u64,
    pub directed: bool,
    pub dense_ids: bool,
    pub id_min: u64,
    pub id_max: u64,
    pub reverse: bool,
}

/// Writes sorted edges as rows, transposes them if requested, and publishes the graph. The key of an edge consists of
/// two ids, which `numbers` maps to vertex numbers.
pub(crate) fn write_graph<E: EdgeOperation>(
    job: &Job,
    mut builder: DatasetBuilder,
    name: &str,
    sorted: Sorted<E>,
    draft: Draft,
    numbers: &impl Numbering,
) -> Result<GraphInfo> {
    job.start_phase("writing edges", "edges", 0);
    let (out, stats) = write_direction::<E>(job, &mut builder, "out", sorted, &draft, numbers)?;
    let mut in_degree_max = (!draft.directed).then_some(stats.degree_max);
    if draft.reverse {
        let sorted = csr::transposed::<E>(job, &out)?;
        let (_, stats) = write_direction::<E>(job, &mut builder, "in", sorted, &draft, &IdentityNumbering)?;
        in_degree_max = Some(stats.degree_max);
    }
    let mut info = GraphInfo {
        name: name.to_string(),
        vertices: draft.vertices,
        edges: if draft.directed { stats.entries } else { stats.upward },
        directed: draft.directed,
        weighted: E::WEIGHTED,
        reverse: draft.reverse,
        dense_ids: draft.dense_ids,
        self_loops: stats.self_loops,
        sinks: stats.sinks,
        out_degree_max: stats.degree_max,
        in_degree_max,
        id_min: draft.id_min,
        id_max: draft.id_max,
        entries: stats.entries,
        bytes: 0,
        smallest_budget_bytes: SMALLEST_BUDGET_BYTES,
    };
    job.start_phase("publishing", "bytes", 0);
    info.bytes = builder.bytes();
    builder.commit(&info.to_attributes())?;
    Ok(info)
}

fn write_direction<E: EdgeOperation>(
    job: &Job,
    builder: &mut DatasetBuilder,
    direction: &str,
    sorted: Sorted<E>,
    draft: &Draft,
    numbers: &impl Numbering,
) -> Result<(Csr, csr::CsrStats)> {
    let create =
        |name: &str, block, buffer| Ok(builder.file(&format!("{direction}.{name}"), block, buffer)?);
    let writer = CsrWriter::new(job, create, draft.vertices, E::WEIGHTED, !draft.directed)?;
    let CsrFiles { index, edges, blocks, weights, stats } = csr::write_rows(job, sorted, writer, numbers)?;
    let csr = Csr {
        vertices: draft.vertices,
        entries: stats.entries,
        entry_range: draft.vertices,
        index: builder.add_and_open(index)?,
        edges: builder.add_and_open(edges)?,
        blocks: builder.add_and_open(blocks)?,
        weights: match weights {
            Some(weights) => Some(builder.add_and_open(weights)?),
            None => None,
        },
    };
    Ok((csr, stats))
}

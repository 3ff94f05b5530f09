//! A graph is stored on flash as compressed sparse rows (2018 thesis, section 9.5.1). Layout: `docs/format.md`,
//! "Graph".
//!
//! ```text
//!   out.index    for each vertex its out-degree; every 1021 vertices the number of their first edge
//!   out.edges    destinations, sorted within a source, sources in order; packed in blocks
//!   out.blocks   which edges are in which block
//!   out.weights  f64 for each edge                                           weighted graphs only
//!   in.*         the same for in-edges                                       --reverse only
//!   ids          u64 user's id of each vertex, ascending                     where they are not 0, 1, 2, ...
//! ```
//!
//! Vertices are numbered 0, 1, 2, ... in the order of the user's ids. The smallest vertex number therefore has the
//! smallest id, and an algorithm that breaks a tie by number also breaks it by id.

use inshore_store::{CheckedFile, Dataset, Job, Store, format_bytes};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{Error, Result, csr, program::VertexId};

/// The kind that the store records for datasets that are graphs.
pub(crate) const KIND: &str = "graph";
const MAGIC: [u8; 8] = *b"INSHGRPH";
const VERSION: u32 = 2;

/// The largest number of vertices that a graph can have. Vertex numbers are 32 bits wide, and the largest 32-bit number
/// means "no vertex".
pub const VERTICES_MAX: u64 = u32::MAX as u64;

/// The smallest memory budget in bytes that suffices for every job on every graph.
pub const SMALLEST_BUDGET_BYTES: u64 = 8 << 20;

/// Refuses a budget below [`SMALLEST_BUDGET_BYTES`].
pub(crate) fn check_budget(job: &Job, what: &str) -> Result<()> {
    let given = job.budget().memory_bytes();
    if given < SMALLEST_BUDGET_BYTES {
        let what = what.to_string();
        return Err(
            inshore_store::Error::BudgetTooSmall { what, given, smallest: SMALLEST_BUDGET_BYTES }.into()
        );
    }
    Ok(())
}

/// Creates the error for a budget that is too small. The error names the smallest sufficient budget: the least number
/// of whole MiB whose free part `fits` accepts.
pub(crate) fn too_small(job: &Job, what: String, fits: impl Fn(u64) -> bool) -> crate::Error {
    let (given, free) = (job.budget().memory_bytes(), job.budget().free_bytes());
    let mut budgets = (given >> 20..).map(|mib| (mib + 1) << 20);
    let smallest = budgets.find(|budget| fits(free + (budget - given))).expect("some budget is enough");
    inshore_store::Error::BudgetTooSmall { what, given, smallest }.into()
}

const DIRECTED: u32 = 1;
const WEIGHTED: u32 = 2;
const DENSE_IDS: u32 = 4;
const REVERSE: u32 = 8;

/// The attributes of a graph's manifest.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    vertices: U64,
    edges: U64,
    entries: U64,
    self_loops: U64,
    sinks: U64,
    out_degree_max: U64,
    in_degree_max: U64,
    id_min: U64,
    id_max: U64,
}

const _: () = assert!(size_of::<Header>() == 88);

/// The properties of a graph that are known without a pass over its edges.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct GraphInfo {
    /// The name in the store.
    pub name: String,
    /// The number of vertices, with or without edges.
    pub vertices: u64,
    /// The number of distinct edges. In an undirected graph each edge counts once.
    pub edges: u64,
    /// Tells whether edges have a direction.
    pub directed: bool,
    /// Tells whether edges have weights.
    pub weighted: bool,
    /// Tells whether the graph also stores in-edges. (An undirected graph needs none: its out-edges serve as both.)
    pub reverse: bool,
    /// Tells whether the user's ids are 0, 1, 2, ... without a gap.
    pub dense_ids: bool,
    /// The number of edges from a vertex to itself.
    pub self_loops: u64,
    /// The number of vertices without out-edges.
    pub sinks: u64,
    /// The largest out-degree.
    pub out_degree_max: u64,
    /// The largest in-degree; `None` in a directed graph without in-edges, where it is not known.
    pub in_degree_max: Option<u64>,
    /// The smallest of the user's ids.
    pub id_min: u64,
    /// The largest of the user's ids.
    pub id_max: u64,
    /// The number of entries in the out-edge file: `edges`, or about twice as many in an undirected graph.
    pub entries: u64,
    /// The size on flash in bytes.
    pub bytes: u64,
    /// The smallest memory budget in bytes that suffices for every job on the graph.
    pub smallest_budget_bytes: u64,
}

impl GraphInfo {
    pub(crate) fn to_attributes(&self) -> Vec<u8> {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let flags = flag(self.directed, DIRECTED)
            | flag(self.weighted, WEIGHTED)
            | flag(self.dense_ids, DENSE_IDS)
            | flag(self.reverse, REVERSE);
        let header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            flags: flags.into(),
            vertices: self.vertices.into(),
            edges: self.edges.into(),
            entries: self.entries.into(),
            self_loops: self.self_loops.into(),
            sinks: self.sinks.into(),
            out_degree_max: self.out_degree_max.into(),
            in_degree_max: self.in_degree_max.unwrap_or(u64::MAX).into(),
            id_min: self.id_min.into(),
            id_max: self.id_max.into(),
        };
        header.as_bytes().to_vec()
    }

    fn from_attributes(name: &str, bytes: u64, attributes: &[u8]) -> Result<GraphInfo> {
        let bad = |what, found: String, expected: String| Error::BadGraph {
            name: name.to_string(),
            what,
            found,
            expected,
        };
        let Ok(header) = Header::read_from_bytes(attributes) else {
            let (found, expected) = (attributes.len(), size_of::<Header>());
            return Err(bad("header", format!("{found} bytes"), format!("{expected} bytes")));
        };
        if header.magic != MAGIC {
            let show = |magic: &[u8]| magic.escape_ascii().to_string();
            return Err(bad("magic", show(&header.magic), show(&MAGIC)));
        }
        if header.version != VERSION {
            let expected = format!("{VERSION}: import it again, or use the version of Inshore that wrote it");
            return Err(bad("version", header.version.to_string(), expected));
        }
        let vertices = header.vertices.get();
        if vertices == 0 || vertices > VERTICES_MAX {
            return Err(bad("vertices", vertices.to_string(), format!("1 to {VERTICES_MAX}")));
        }
        let flags = header.flags.get();
        let in_degree_max = header.in_degree_max.get();
        Ok(GraphInfo {
            name: name.to_string(),
            vertices,
            edges: header.edges.get(),
            directed: flags & DIRECTED != 0,
            weighted: flags & WEIGHTED != 0,
            reverse: flags & REVERSE != 0,
            dense_ids: flags & DENSE_IDS != 0,
            self_loops: header.self_loops.get(),
            sinks: header.sinks.get(),
            out_degree_max: header.out_degree_max.get(),
            in_degree_max: (in_degree_max != u64::MAX).then_some(in_degree_max),
            id_min: header.id_min.get(),
            id_max: header.id_max.get(),
            entries: header.entries.get(),
            bytes,
            smallest_budget_bytes: SMALLEST_BUDGET_BYTES,
        })
    }
}

impl std::fmt::Display for GraphInfo {
    /// Formats the properties as text lines.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.directed { "directed" } else { "undirected" };
        let weights = if self.weighted { ", weighted" } else { "" };
        let average = self.entries as f64 / self.vertices as f64;
        writeln!(out, "{}: {kind}{weights}", self.name)?;
        writeln!(out, "  vertices         {}", self.vertices)?;
        writeln!(out, "  ids              {} to {}", self.id_min, self.id_max)?;
        writeln!(out, "  edges            {} ({} self-loops)", self.edges, self.self_loops)?;
        writeln!(out, "  out-degree       {average:.1} on average, {} at most", self.out_degree_max)?;
        writeln!(out, "                   {} vertices have none", self.sinks)?;
        match self.in_degree_max {
            Some(degree) => writeln!(out, "  in-degree        {degree} at most")?,
            None => writeln!(out, "  in-degree        not known (import with --reverse to keep in-edges)")?,
        }
        writeln!(out, "  on flash         {}", format_bytes(self.bytes))?;
        write!(out, "  smallest budget  {}", format_bytes(self.smallest_budget_bytes))
    }
}

/// An open graph. Its files stay open, so later changes of the store do not affect the graph.
#[derive(Clone, Debug)]
pub struct Graph {
    info: GraphInfo,
    id: u64,
    out: csr::Csr,
    reverse: Option<csr::Csr>,
    ids: Option<CheckedFile>,
}

impl Graph {
    /// Opens the graph `name`.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`Error::BadGraph`] if the dataset is not a graph, or is damaged.
    pub fn open(store: &Store, name: &str) -> Result<Graph> {
        let dataset = store.dataset(name)?;
        if dataset.kind() != KIND {
            let (found, expected) = (dataset.kind().to_string(), KIND.to_string());
            return Err(Error::BadGraph { name: name.to_string(), what: "kind", found, expected });
        }
        let info = GraphInfo::from_attributes(name, dataset.bytes(), dataset.attributes())?;
        let out = csr_of(&dataset, &info, "out")?;
        let reverse = if info.reverse { Some(csr_of(&dataset, &info, "in")?) } else { None };
        let ids =
            if info.dense_ids { None } else { Some(file_of(&dataset, "ids", Some(info.vertices * 8))?) };
        Ok(Graph { info, id: dataset.id(), out, reverse, ids })
    }

    /// Returns the properties of the graph.
    pub fn info(&self) -> &GraphInfo {
        &self.info
    }

    /// Returns a number that is unique to this graph. A graph that replaces another one of the same name has another
    /// number.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u64 {
        self.info.vertices
    }

    /// Returns the out-edges.
    pub(crate) fn out(&self) -> &csr::Csr {
        &self.out
    }

    /// Returns the in-edges that are stored with the graph, if there are any. In an undirected graph the out-edges
    /// serve as in-edges.
    pub(crate) fn kept_in_edges(&self) -> Option<&csr::Csr> {
        if self.info.directed { self.reverse.as_ref() } else { Some(&self.out) }
    }

    /// Returns the in-edges. If the graph has no stored in-edges, the out-edges are transposed into the job's scratch
    /// space, which costs one sort of all edges.
    pub(crate) fn in_edges(&self, job: &Job) -> Result<csr::Csr> {
        match self.kept_in_edges() {
            Some(csr) => Ok(csr.clone()),
            None => csr::transpose_to_scratch(job, &self.out),
        }
    }

    /// Returns a notice for the user if [`Self::in_edges`] has to compute in-edges.
    pub(crate) fn reverse_notice(&self) -> Option<String> {
        (self.info.directed && self.reverse.is_none()).then(|| {
            let name = &self.info.name;
            format!(
                "{name} was imported without in-edges: they were computed for this job (import with --reverse to keep them)"
            )
        })
    }

    /// Finds the vertex with this original id, which is the vertex's id in the imported file.
    ///
    /// Cost: nothing if ids are 0, 1, 2, ...; otherwise a binary search on flash, which reads 64 KiB per step.
    ///
    /// # Errors
    /// Returns [`Error::NoSuchVertex`] if the graph has no vertex with the given id. The function also fails if a read
    /// or write fails, stored data is damaged, or the job was cancelled.
    pub fn vertex_id(&self, job: &Job, original: u64) -> Result<VertexId> {
        Ok(VertexId::of_number(self.number_of(job, original)?))
    }

    /// Returns the original id of a vertex of this graph. Cost: one read of 64 KiB if ids are not 0, 1, 2, ...
    ///
    /// # Errors
    /// Returns [`Error::NoSuchVertex`] if the vertex belongs to a larger graph. The function also fails if a read or
    /// write fails, stored data is damaged, or the job was cancelled.
    pub fn original_id(&self, job: &Job, vertex: VertexId) -> Result<u64> {
        let (graph, number) = (self.info.name.clone(), vertex.number());
        let missing = Error::NoSuchVertex { graph, vertex: number };
        self.id_of(job, vertex.within(self.info.vertices).ok_or(missing)?)
    }

    /// Returns the user's id of a vertex number.
    pub(crate) fn id_of(&self, job: &Job, number: u32) -> Result<u64> {
        match &self.ids {
            None => Ok(number as u64),
            Some(file) => crate::idfile::get(job, file, number),
        }
    }

    /// Returns the file of the user's ids. Returns `None` if the ids are 0, 1, 2, ...
    pub(crate) fn ids(&self) -> Option<&CheckedFile> {
        self.ids.as_ref()
    }

    /// Returns the vertex number of a user's id, by a binary search on flash.
    pub(crate) fn number_of(&self, job: &Job, id: u64) -> Result<u32> {
        let missing = || Error::NoSuchVertex { graph: self.info.name.clone(), vertex: id };
        match &self.ids {
            None if id < self.info.vertices => Ok(id as u32),
            None => Err(missing()),
            Some(file) => crate::idfile::search(job, file, id)?.ok_or_else(missing),
        }
    }
}

/// Lists the graphs of a store, in the order of their names.
///
/// # Errors
/// Returns the errors of [`Graph::open`].
pub fn list(store: &Store) -> Result<Vec<GraphInfo>> {
    let mut graphs = Vec::new();
    for summary in store.list()?.into_iter().filter(|summary| summary.kind == KIND) {
        let dataset = match store.dataset(&summary.name) {
            Ok(dataset) => dataset,
            // Another process has just removed the graph.
            Err(inshore_store::Error::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        graphs.push(GraphInfo::from_attributes(&summary.name, summary.bytes, dataset.attributes())?);
    }
    Ok(graphs)
}

fn bad_length(dataset: &Dataset, name: &str, found: String, expected: String) -> Error {
    Error::BadGraph { name: format!("{}/{name}", dataset.name()), what: "length", found, expected }
}

fn file_of(dataset: &Dataset, name: &str, len: Option<u64>) -> Result<CheckedFile> {
    let bad = |found| {
        let expected = len.map_or("one".to_string(), |len| format!("{len} bytes"));
        bad_length(dataset, name, found, expected)
    };
    let file = dataset.file(name).ok_or_else(|| bad("no file".into()))?;
    match len {
        Some(len) if file.len() != len => Err(bad(format!("{} bytes", file.len()))),
        _ => Ok(file),
    }
}

/// Opens a file of rows. All blocks of such a file have the same size.
fn file_of_rows(dataset: &Dataset, name: &str, len: Option<u64>) -> Result<CheckedFile> {
    let file = file_of(dataset, name, len)?;
    if file.block_bytes() == csr::BLOCK_BYTES {
        return Ok(file);
    }
    Err(Error::BadGraph {
        name: format!("{}/{name}", dataset.name()),
        what: "blocks",
        found: format!("of {} bytes", file.block_bytes()),
        expected: format!("of {}", csr::BLOCK_BYTES),
    })
}

fn csr_of(dataset: &Dataset, info: &GraphInfo, direction: &str) -> Result<csr::Csr> {
    let name = |file: &str| format!("{direction}.{file}");
    let index = file_of_rows(dataset, &name("index"), Some(csr::index_bytes(info.vertices)))?;
    let blocks = file_of_rows(dataset, &name("blocks"), None)?;
    let (count, rest) = (blocks.len() / 4, blocks.len() % 4);
    if rest > 0 || (count == 0) != (info.entries == 0) {
        let expected = format!("4 for each block of {} edges", info.entries);
        return Err(bad_length(dataset, &name("blocks"), format!("{} bytes", blocks.len()), expected));
    }
    let edges = file_of_rows(dataset, &name("edges"), Some(count * csr::BLOCK_BYTES as u64))?;
    let weights = match info.weighted {
        true => Some(file_of_rows(dataset, &name("weights"), Some(info.entries * 8))?),
        false => None,
    };
    let (vertices, entries) = (info.vertices, info.entries);
    Ok(csr::Csr { vertices, entries, entry_range: vertices, index, edges, blocks, weights })
}

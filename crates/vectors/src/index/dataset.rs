//! The dataset of an index. Layout: `docs/format.md`, "Index of vectors".
//!
//! ```text
//!   lists      the vectors of each list, then their ids; lists follow each other without gaps
//!   firsts     u64 for each list: the number of vectors in the lists before it; and one more for all
//!   centroids  the centroid of each list
//!   groups     the centroid of each group of lists
//!   spans      u32 for each group: its first list; and one more for all
//!
//!   copies       optional: each list once more, with copies of vectors of other lists behind its own
//!   copy-firsts  u64 for each list: the number of vectors in the lists of `copies` before it; and one more for all
//! ```
//!
//! The index of the vectors NAME is the dataset `NAME.index`. It holds the id of the dataset from which it was built,
//! and is refused for a dataset with another id.

use inshore_store::{CheckedFile, Job, Store, format_bytes};
use serde::Serialize;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{F32, U32, U64},
};

use super::{
    Clustered,
    centroids::{Centroids, Lower, READ_ELEMENTS_BYTES, read_elements},
    directory::{Directory, List, list_of},
    layers::{Layer, all_layers, chain},
    table::{MeasuredOn, RecallPoint, RecallTable},
};
use crate::{Element, Error, Metric, Result, Vectors, dataset::file_of};

/// The dataset kind of an index.
pub(crate) const KIND: &str = "vector-index";
pub(crate) const LISTS: &str = "lists";
pub(crate) const FIRSTS: &str = "firsts";
pub(crate) const CENTROIDS: &str = "centroids";
pub(crate) const GROUPS: &str = "groups";
pub(crate) const SPANS: &str = "spans";
pub(crate) const COPIES: &str = "copies";
pub(crate) const COPY_FIRSTS: &str = "copy-firsts";
const MAGIC: [u8; 8] = *b"INSHVIDX";
/// The version of an index without copies, and that of an index with copies.
const VERSION: u32 = 1;
const VERSION_WITH_COPIES: u32 = 2;
/// The largest number of points in a table of recall.
const POINTS_MAX: u32 = 256;

/// The attributes of an index, before the points of its table of recall.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    element: U32,
    dimensions: U32,
    metric: U32,
    /// The id of the dataset of vectors.
    dataset: U64,
    vectors: U64,
    lists: U32,
    groups: U32,
    list_vectors_max: U32,
    id_bytes: U32,
    seed: U64,
    sample: U64,
    recall_k: U32,
    recall_queries: U32,
    measured_seconds: U64,
    measured_on: U32,
    points: U32,
}

const _: () = assert!(size_of::<Header>() == 96);

/// What follows the header of an index with copies.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CopiesHeader {
    vectors: U64,
    list_vectors_max: U32,
    points: U32,
}

const _: () = assert!(size_of::<CopiesHeader>() == 16);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Point {
    probes: U32,
    recall: F32,
}

/// Lists the properties of an index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IndexInfo {
    /// The name of the vectors.
    pub name: String,
    /// The id of the dataset of vectors.
    #[serde(skip)]
    pub(crate) dataset: u64,
    /// The number of vectors in all lists.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors and centroids.
    pub element: Element,
    /// The metric for which lists were made.
    pub metric: Metric,
    /// The number of lists.
    pub lists: u64,
    /// The number of groups of lists.
    pub groups: u64,
    /// The number of vectors in the largest list.
    pub list_vectors_max: u64,
    /// The number of vectors in the sample on which the centroids were trained.
    pub sample: u64,
    /// The seed that determines the samples.
    pub seed: u64,
    /// Bytes on flash.
    pub bytes: u64,
    /// The measured recall for several numbers of probes.
    pub recall: RecallTable,
    /// The lists with copies, if the index has any: the single strategy reads these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopiedLists>,
}

/// Lists the properties of lists with copies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopiedLists {
    /// The number of vectors in all lists. A vector counts once for each list that holds it.
    pub vectors: u64,
    /// The number of vectors in the largest list.
    pub list_vectors_max: u64,
    /// The measured recall for several numbers of probes.
    pub recall: RecallTable,
}

impl IndexInfo {
    /// Returns the number of bytes of an id in a list.
    pub(crate) fn id_bytes(&self) -> usize {
        id_bytes(self.vectors)
    }

    /// Returns the number of bytes of a vector in a list, including its id.
    pub(crate) fn entry_bytes(&self) -> usize {
        self.element.row_bytes(self.dimensions) + self.id_bytes()
    }

    pub(crate) fn to_attributes(&self) -> Vec<u8> {
        let RecallTable { k, queries, measured_seconds, measured_on, points } = &self.recall;
        let header = Header {
            magic: MAGIC,
            version: if self.copies.is_some() { VERSION_WITH_COPIES } else { VERSION }.into(),
            element: self.element.code().into(),
            dimensions: (self.dimensions as u32).into(),
            metric: metric_code(self.metric).into(),
            dataset: self.dataset.into(),
            vectors: self.vectors.into(),
            lists: (self.lists as u32).into(),
            groups: (self.groups as u32).into(),
            list_vectors_max: (self.list_vectors_max as u32).into(),
            id_bytes: (self.id_bytes() as u32).into(),
            seed: self.seed.into(),
            sample: self.sample.into(),
            recall_k: (*k).into(),
            recall_queries: (*queries).into(),
            measured_seconds: (*measured_seconds).into(),
            measured_on: measured_on.code().into(),
            points: (points.len() as u32).into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        let copied = match &self.copies {
            Some(copies) => {
                let header = CopiesHeader {
                    vectors: copies.vectors.into(),
                    list_vectors_max: (copies.list_vectors_max as u32).into(),
                    points: (copies.recall.points.len() as u32).into(),
                };
                bytes.extend_from_slice(header.as_bytes());
                &copies.recall.points[..]
            }
            None => &[],
        };
        for point in points.iter().chain(copied) {
            let point = Point { probes: (point.probes as u32).into(), recall: point.recall.into() };
            bytes.extend_from_slice(point.as_bytes());
        }
        bytes
    }

    fn from_attributes(name: &str, bytes: u64, attributes: &[u8]) -> Result<IndexInfo> {
        let bad = |what, found: String, expected: String| bad(name, what, found, expected);
        let range = |what, found: u64, most: u64| match (1..=most).contains(&found) {
            true => Ok(found),
            false => Err(bad(what, found.to_string(), format!("1 to {most}"))),
        };
        let Ok((header, points)) = Header::read_from_prefix(attributes) else {
            let (found, expected) = (attributes.len(), size_of::<Header>());
            return Err(bad("header", format!("{found} bytes"), format!("{expected} bytes or more")));
        };
        if header.magic != MAGIC {
            let show = |magic: &[u8]| magic.escape_ascii().to_string();
            return Err(bad("magic", show(&header.magic), show(&MAGIC)));
        }
        if ![VERSION, VERSION_WITH_COPIES].contains(&header.version.get()) {
            let expected = format!(
                "{VERSION} or {VERSION_WITH_COPIES}: build the index again, or use the version of Inshore that wrote it"
            );
            return Err(bad("version", header.version.to_string(), expected));
        }
        let code = header.element.get();
        let element = Element::of_code(code)
            .ok_or_else(|| bad("element", code.to_string(), "a type of elements".to_string()))?;
        let metric = header.metric.get();
        let metric = METRICS
            .into_iter()
            .find(|known| metric_code(*known) == metric)
            .ok_or_else(|| bad("metric", metric.to_string(), "1 (l2), 2 (ip) or 3 (cosine)".to_string()))?;
        let dimensions = range("dimensions", header.dimensions.get().into(), crate::DIMENSIONS_MAX as u64)?;
        let vectors = range("vectors", header.vectors.get(), u64::MAX / (8 * crate::DIMENSIONS_MAX as u64))?;
        let lists = range("lists", header.lists.get().into(), vectors)?;
        let groups = range("groups", header.groups.get().into(), lists)?;
        let list_vectors_max = range("vectors of a list", header.list_vectors_max.get().into(), vectors)?;
        let found = header.id_bytes.get();
        if found as usize != id_bytes(vectors) {
            return Err(bad("bytes of an id", found.to_string(), id_bytes(vectors).to_string()));
        }
        let (copies, points) = match header.version.get() {
            VERSION_WITH_COPIES => match CopiesHeader::read_from_prefix(points) {
                Ok((copies, points)) => (Some(copies), points),
                Err(_) => {
                    let expected = size_of::<Header>() + size_of::<CopiesHeader>();
                    let found = format!("{} bytes", attributes.len());
                    return Err(bad("header", found, format!("{expected} bytes or more")));
                }
            },
            _ => (None, points),
        };
        let count = header.points.get();
        let split = points.len().min(count as usize * size_of::<Point>());
        let (points, copied) = match copies {
            Some(_) => points.split_at(split),
            None => (points, &[][..]),
        };
        let points = points_of(name, lists, count, points)?;
        let code = header.measured_on.get();
        let recall = RecallTable {
            k: header.recall_k.get(),
            queries: header.recall_queries.get(),
            measured_seconds: header.measured_seconds.get(),
            measured_on: MeasuredOn::of_code(code)
                .ok_or_else(|| bad("source of recall", code.to_string(), "1 or 2".to_string()))?,
            points,
        };
        let copies = match copies {
            Some(copies) => {
                let points = points_of(name, lists, copies.points.get(), copied)?;
                let most = vectors.saturating_mul(lists);
                let vectors = range("vectors of lists with copies", copies.vectors.get(), most)?;
                let list_vectors_max = copies.list_vectors_max.get().into();
                let list_vectors_max = range("vectors of a list with copies", list_vectors_max, vectors)?;
                Some(CopiedLists {
                    vectors,
                    list_vectors_max,
                    recall: RecallTable { points, ..recall.clone() },
                })
            }
            None => None,
        };
        Ok(IndexInfo {
            name: name.to_string(),
            dataset: header.dataset.get(),
            vectors,
            dimensions: dimensions as usize,
            element,
            metric,
            lists,
            groups,
            list_vectors_max,
            sample: header.sample.get(),
            seed: header.seed.get(),
            bytes,
            recall,
            copies,
        })
    }
}

impl std::fmt::Display for IndexInfo {
    /// Writes one line for people.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let IndexInfo { name, vectors, lists, groups, metric, bytes, .. } = self;
        let metric = metric.name();
        write!(
            out,
            "index of {name} for {metric}: {vectors} vectors in {lists} lists of {groups} groups, {}",
            format_bytes(*bytes)
        )
    }
}

/// Reads the points of a table of recall.
fn points_of(name: &str, lists: u64, count: u32, bytes: &[u8]) -> Result<Vec<RecallPoint>> {
    let points = <[Point]>::ref_from_bytes(bytes).ok().filter(|points| {
        count <= POINTS_MAX
            && points.len() == count as usize
            && points.is_sorted_by_key(|point| point.probes.get())
    });
    let points = points.ok_or_else(|| {
        let expected = format!("at most {POINTS_MAX}, by rising lists");
        bad(name, "points of recall", format!("{count} in {} bytes", bytes.len()), expected)
    })?;
    let points = points.iter().map(|point| {
        let (probes, recall) = (u64::from(point.probes.get()), point.recall.get());
        if !(1..=lists).contains(&probes) {
            return Err(bad(name, "lists probed", probes.to_string(), format!("1 to {lists}")));
        }
        match (0.0..=1.0).contains(&recall) {
            true => Ok(RecallPoint { probes, recall }),
            false => Err(bad(name, "recall", recall.to_string(), "0 to 1".to_string())),
        }
    });
    points.collect()
}

fn bad(name: &str, what: &'static str, found: String, expected: String) -> Error {
    Error::BadDataset { name: index_name(name), what, found, expected }
}

/// The metrics for which an index can be built.
pub(crate) const METRICS: [Metric; 3] = [Metric::L2, Metric::Ip, Metric::Cosine];

fn metric_code(metric: Metric) -> u32 {
    match metric {
        Metric::L2 => 1,
        Metric::Ip => 2,
        Metric::Cosine => 3,
        Metric::Hamming | Metric::Jaccard => unreachable!("an index is built for one of METRICS"),
    }
}

/// Returns the number of bytes of an id: 4 if all ids fit, otherwise 8.
pub(crate) fn id_bytes(vectors: u64) -> usize {
    if vectors <= 1 << 32 { 4 } else { 8 }
}

/// Returns the name of the dataset that is the index of the vectors `name`.
pub fn index_name(name: &str) -> String {
    format!("{name}.index")
}

/// `VectorIndex` is an index whose files stay open: later changes of the store do not touch it.
#[derive(Clone, Debug)]
pub struct VectorIndex {
    info: IndexInfo,
    /// The id of the dataset.
    id: u64,
    pub(crate) files: IndexFiles,
    /// The layers behind the lists.
    pub(crate) layers: Vec<Layer>,
}

/// The files of an index.
#[derive(Clone, Debug)]
pub(crate) struct IndexFiles {
    pub lists: CheckedFile,
    pub firsts: CheckedFile,
    pub centroids: CheckedFile,
    pub groups: CheckedFile,
    pub spans: CheckedFile,
    pub copies: Option<CopyFiles>,
}

/// The files of lists with copies.
#[derive(Clone, Debug)]
pub(crate) struct CopyFiles {
    pub lists: CheckedFile,
    pub firsts: CheckedFile,
}

impl VectorIndex {
    /// Opens the index of `vectors`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::BadDataset`] if the index is damaged, of another version, or was built of other vectors of that name; I/O.
    pub fn open(store: &Store, vectors: &Vectors) -> Result<Option<VectorIndex>> {
        let name = &vectors.info().name;
        let dataset = match store.dataset(&index_name(name)) {
            Err(inshore_store::Error::NotFound { .. }) => return Ok(None),
            dataset => dataset?,
        };
        if dataset.kind() != KIND {
            return Err(bad(name, "kind", dataset.kind().to_string(), KIND.to_string()));
        }
        let info = IndexInfo::from_attributes(name, dataset.bytes(), dataset.attributes())?;
        if info.dataset != vectors.id() {
            let found = format!("an index of other vectors that were called {name}");
            return Err(bad(
                name,
                "vectors",
                found,
                format!("those of today: build the index again (`nearest index {name}`)"),
            ));
        }
        let facts = (info.vectors, info.dimensions, info.element);
        let expected = (vectors.info().vectors, vectors.info().dimensions, vectors.info().element);
        // Vectors that were added since are compared one by one.
        if (facts.1, facts.2) != (expected.1, expected.2) || facts.0 > expected.0 {
            return Err(bad(name, "vectors", format!("{facts:?}"), format!("{expected:?}")));
        }
        let row_bytes = info.element.row_bytes(info.dimensions) as u64;
        let files = IndexFiles {
            lists: file_of(&dataset, LISTS, info.vectors * info.entry_bytes() as u64)?,
            firsts: file_of(&dataset, FIRSTS, (info.lists + 1) * 8)?,
            centroids: file_of(&dataset, CENTROIDS, info.lists * row_bytes)?,
            groups: file_of(&dataset, GROUPS, info.groups * row_bytes)?,
            spans: file_of(&dataset, SPANS, (info.groups + 1) * 4)?,
            copies: match &info.copies {
                Some(copies) => Some(CopyFiles {
                    lists: file_of(&dataset, COPIES, copies.vectors * info.entry_bytes() as u64)?,
                    firsts: file_of(&dataset, COPY_FIRSTS, (info.lists + 1) * 8)?,
                }),
                None => None,
            },
        };
        let layers = chain(all_layers(store, name)?, dataset.id(), info.vectors, vectors.info().vectors);
        Ok(Some(VectorIndex { info, id: dataset.id(), files, layers }))
    }

    /// Returns the properties of the index.
    pub fn info(&self) -> &IndexInfo {
        &self.info
    }

    /// Returns the id of the dataset of the index.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of the first row that no list has.
    pub(crate) fn end(&self) -> u64 {
        self.layers.last().map_or(self.info.vectors, |last| last.rows.end)
    }

    /// Replaces the tables of recall: that of the lists, and that of the lists with copies.
    pub(crate) fn set_recall(&mut self, recall: RecallTable, copies: Option<RecallTable>) {
        self.info.recall = recall;
        if let (Some(copied), Some(recall)) = (&mut self.info.copies, copies) {
            copied.recall = recall;
        }
    }

    pub(crate) fn made(info: IndexInfo, files: IndexFiles) -> VectorIndex {
        VectorIndex { info, id: 0, files, layers: Vec::new() }
    }

    /// Returns the file of the lists, with or without copies.
    pub(crate) fn read_file(&self, with_copies: bool) -> &CheckedFile {
        match &self.files.copies {
            Some(copies) if with_copies => &copies.lists,
            _ => &self.files.lists,
        }
    }

    /// Returns the memory of the directories and the upper centroids, which stay in memory during a search.
    pub(crate) fn directory_bytes(&self) -> u64 {
        let directories = self.layers.len() as u64 + if self.info.copies.is_some() { 2 } else { 1 };
        directories * (self.info.lists + 1) * 8 + self.upper_bytes() + READ_ELEMENTS_BYTES
    }

    fn upper_bytes(&self) -> u64 {
        self.files.groups.len() + self.files.spans.len()
    }

    /// Returns the memory of the lower centroids.
    pub(crate) fn lower_bytes(&self) -> u64 {
        self.files.centroids.len()
    }

    /// Reads the directory, and the centroids: the lower ones too if `holds_lower`.
    ///
    /// # Errors
    /// [`Error::BadDataset`] for a directory that does not describe the lists; I/O and damage; too little memory.
    pub(crate) fn load<T: Clustered>(
        &self,
        job: &Job,
        holds_lower: bool,
    ) -> Result<(Directory, Centroids<T>)> {
        let (info, files) = (&self.info, &self.files);
        let directory = self.directory(job, &files.firsts, info.vectors, info.list_vectors_max)?;
        let upper_reservation = job.budget().reserve(self.upper_bytes(), "centroids of groups")?;
        let mut spans: Vec<u32> = Vec::with_capacity(info.groups as usize + 1);
        read_elements::<U32>(job, &files.spans, |piece| spans.extend(piece.iter().map(|first| first.get())))?;
        let is_sound = spans[0] == 0 && u64::from(spans[spans.len() - 1]) == info.lists;
        if !is_sound || !spans.is_sorted() {
            let expected = format!("groups of {} lists in all", info.lists);
            return Err(bad(&info.name, "groups", "other lists".to_string(), expected));
        }
        let mut upper: Vec<T> = Vec::with_capacity(info.groups as usize * info.dimensions);
        read_elements::<T>(job, &files.groups, |piece| upper.extend_from_slice(piece))?;
        let lower = match holds_lower {
            false => Lower::Flash(files.centroids.clone()),
            true => {
                let reservation = job.budget().reserve(self.lower_bytes(), "centroids of lists")?;
                let mut lower: Vec<T> = Vec::with_capacity(info.lists as usize * info.dimensions);
                read_elements::<T>(job, &files.centroids, |piece| lower.extend_from_slice(piece))?;
                Lower::Memory(lower, reservation)
            }
        };
        let centroids = Centroids {
            dimensions: info.dimensions,
            upper,
            firsts: spans,
            lower,
            _reservation: upper_reservation,
        };
        Ok((directory, centroids))
    }

    /// Reads the directory of the lists with copies, if the index has any. Each has at least the vectors of its list in
    /// `own`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn load_copies(&self, job: &Job, own: &Directory) -> Result<Option<Directory>> {
        let (Some(copies), Some(files)) = (&self.info.copies, &self.files.copies) else { return Ok(None) };
        let directory = self.directory(job, &files.firsts, copies.vectors, copies.list_vectors_max)?;
        match (0..self.info.lists as u32).find(|&list| directory.count(list) < own.count(list)) {
            None => Ok(Some(directory)),
            Some(list) => {
                let found = format!("{} vectors in list {list}", directory.count(list));
                let expected = format!("{} or more", own.count(list));
                Err(bad(&self.info.name, "directory of copies", found, expected))
            }
        }
    }

    /// Reads a directory: the number of vectors before each list, and that of all.
    fn directory(&self, job: &Job, file: &CheckedFile, vectors: u64, most: u64) -> Result<Directory> {
        let info = &self.info;
        let reservation = job.budget().reserve((info.lists + 1) * 8, "the directory of an index")?;
        let mut firsts: Vec<u64> = Vec::with_capacity(info.lists as usize + 1);
        read_elements::<U64>(job, file, |piece| firsts.extend(piece.iter().map(|first| first.get())))?;
        let is_sound = firsts[0] == 0 && firsts[firsts.len() - 1] == vectors;
        let is_list =
            |pair: &[u64]| pair[1].checked_sub(pair[0]).is_some_and(|len| (1..=most).contains(&len));
        let wrong = firsts.windows(2).position(|pair| !is_list(pair));
        if is_sound && wrong.is_none() {
            return Ok(Directory::new(firsts, info.entry_bytes() as u64, reservation));
        }
        let place = wrong.unwrap_or(0);
        let found = format!("list {place} at {:?}", firsts.get(place..place + 2));
        let expected = format!("lists of 1 to {most} vectors, {vectors} in all");
        Err(bad(&info.name, "directory", found, expected))
    }

    /// Returns the rows and the ids of a list of `count` vectors.
    ///
    /// # Errors
    /// [`Error::BadDataset`] if an id does not belong to a vector.
    pub(crate) fn list<'a, T: Clustered>(
        &self,
        list: u32,
        bytes: &'a [u8],
        count: usize,
    ) -> Result<List<'a, T>> {
        let row_bytes = self.info.dimensions * size_of::<T>();
        let place = (self.files.lists.name(), list);
        list_of(place, bytes, count, (row_bytes, self.info.entry_bytes()), self.info.vectors)
    }
}

//! The properties of an index. They are stored as the attributes of its dataset.

use inshore_store::format_bytes;
use serde::Serialize;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{
    codes::shape::{CODE_BITS, Shape},
    stored_recall::{StoredRecall, bad, points_of, points_to_bytes},
    table::RecallTable,
};
use crate::{Element, Metric, Result, text::counted};

pub(crate) const LISTS: &str = "lists";
pub(crate) const FIRSTS: &str = "firsts";
pub(crate) const CENTROIDS: &str = "centroids";
pub(crate) const GROUPS: &str = "groups";
pub(crate) const SPANS: &str = "spans";
pub(crate) const COPIES: &str = "copies";
pub(crate) const COPY_FIRSTS: &str = "copy-firsts";
pub(crate) const CODES: &str = "codes";
pub(crate) const CODE_CENTER: &str = "code-center";
const MAGIC: [u8; 8] = *b"INSHVIDX";
/// The version of an index without copies and codes. The next constants are the versions of an index with copies, and
/// of an index with codes.
const VERSION: u32 = 1;
const VERSION_WITH_COPIES: u32 = 2;
const VERSION_WITH_CODES: u32 = 3;
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
    recall: StoredRecall,
}

const _: () = assert!(size_of::<Header>() == 96);

/// Attributes that follow the header in an index with copies.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CopiesHeader {
    vectors: U64,
    list_vectors_max: U32,
    points: U32,
}

const _: () = assert!(size_of::<CopiesHeader>() == 16);

/// Attributes that follow the header in an index with codes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CodesHeader {
    bits: U32,
    /// The largest number of vectors in a chunk of a list.
    chunk: U32,
    points: U32,
    zero: U32,
}

const _: () = assert!(size_of::<CodesHeader>() == 16);

/// The properties of an index.
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
    /// The metric for which the index was built.
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
    /// The number of bytes that the index takes on flash.
    pub bytes: u64,
    /// The measured recall for several numbers of probes.
    pub recall: RecallTable,
    /// The lists with copies, if the index has copies. The single strategy reads these lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopiedLists>,
    /// The codes of the vectors, if the index has codes. The single strategy reads these codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<Box<CodedLists>>,
}

/// The properties of the lists with copies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopiedLists {
    /// The number of vectors in all lists. A vector counts once for each list that holds it.
    pub vectors: u64,
    /// The number of vectors in the largest list.
    pub list_vectors_max: u64,
    /// The measured recall for several numbers of probes.
    pub recall: RecallTable,
}

/// The properties of the codes of an index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CodedLists {
    /// The number of bits for each dimension.
    pub bits: u32,
    /// The size of the file of codes in bytes.
    pub bytes: u64,
    /// The largest number of vectors in a chunk of a list. A chunk is a unit of the file of vectors: the elements of
    /// some vectors of a list, then their row numbers.
    pub chunk_vectors: u64,
    /// The measured recall of searches by codes, for several numbers of probes. The table has no point for searches
    /// that probe all lists, since these compare all vectors.
    pub recall: RecallTable,
}

impl IndexInfo {
    /// Returns the form of the codes, if the index has codes.
    pub(crate) fn shape_of_codes(&self) -> Option<Shape> {
        let codes = self.codes.as_ref()?;
        Some(Shape { bits: codes.bits, dimensions: self.dimensions, id_bytes: self.id_bytes() })
    }

    /// Returns the largest number of vectors in a chunk of a list without copies.
    pub(crate) fn chunk(&self) -> u64 {
        let most = self.list_vectors_max;
        self.codes.as_ref().map_or(most, |codes| codes.chunk_vectors.min(most))
    }

    /// Returns how many bytes a row number takes in a list.
    pub(crate) fn id_bytes(&self) -> usize {
        id_bytes(self.vectors)
    }

    /// Returns how many bytes a vector and its row number take in a list.
    pub(crate) fn entry_bytes(&self) -> usize {
        self.element.row_bytes(self.dimensions) + self.id_bytes()
    }

    pub(crate) fn to_attributes(&self) -> Vec<u8> {
        let header = Header {
            magic: MAGIC,
            version: match (&self.copies, &self.codes) {
                (Some(_), _) => VERSION_WITH_COPIES,
                (_, Some(_)) => VERSION_WITH_CODES,
                _ => VERSION,
            }
            .into(),
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
            recall: StoredRecall::of(&self.recall),
        };
        let mut bytes = header.as_bytes().to_vec();
        let others = match (&self.copies, &self.codes) {
            (Some(copies), _) => {
                let header = CopiesHeader {
                    vectors: copies.vectors.into(),
                    list_vectors_max: (copies.list_vectors_max as u32).into(),
                    points: (copies.recall.points.len() as u32).into(),
                };
                bytes.extend_from_slice(header.as_bytes());
                &copies.recall.points[..]
            }
            (_, Some(codes)) => {
                let header = CodesHeader {
                    bits: codes.bits.into(),
                    chunk: (codes.chunk_vectors as u32).into(),
                    points: (codes.recall.points.len() as u32).into(),
                    zero: 0.into(),
                };
                bytes.extend_from_slice(header.as_bytes());
                &codes.recall.points[..]
            }
            _ => &[],
        };
        points_to_bytes(&self.recall.points, &mut bytes);
        points_to_bytes(others, &mut bytes);
        bytes
    }

    pub(super) fn from_attributes(name: &str, bytes: u64, attributes: &[u8]) -> Result<IndexInfo> {
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
        if !(VERSION..=VERSION_WITH_CODES).contains(&header.version.get()) {
            let expected = format!(
                "{VERSION} to {VERSION_WITH_CODES}: build the index again, or use the version of Inshore that wrote it"
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
        let cut = || {
            let expected = size_of::<Header>() + size_of::<CopiesHeader>();
            bad("header", format!("{} bytes", attributes.len()), format!("{expected} bytes or more"))
        };
        let (copies, codes, points) = match header.version.get() {
            VERSION_WITH_COPIES => {
                let (copies, points) = CopiesHeader::read_from_prefix(points).map_err(|_| cut())?;
                (Some(copies), None, points)
            }
            VERSION_WITH_CODES => {
                let (codes, points) = CodesHeader::read_from_prefix(points).map_err(|_| cut())?;
                (None, Some(codes), points)
            }
            _ => (None, None, points),
        };
        let split = points.len().min(header.recall.points_bytes());
        let (points, others) = match copies.is_some() || codes.is_some() {
            true => points.split_at(split),
            false => (points, &[][..]),
        };
        let recall = header.recall.table(name, lists, points)?;
        let copies = match copies {
            Some(copies) => {
                let points = points_of(name, lists, copies.points.get(), others)?;
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
        let codes = match codes {
            Some(codes) => {
                let points = points_of(name, lists, codes.points.get(), others)?;
                let bits = codes.bits.get();
                if !CODE_BITS.contains(&bits) {
                    return Err(bad("bits of codes", bits.to_string(), "1, 2 or 4".to_string()));
                }
                let shape = Shape { bits, dimensions: dimensions as usize, id_bytes: id_bytes(vectors) };
                Some(Box::new(CodedLists {
                    bits,
                    bytes: shape.file_bytes(vectors, lists),
                    chunk_vectors: range("vectors of a chunk", codes.chunk.get().into(), u32::MAX.into())?,
                    recall: RecallTable { points, ..recall.clone() },
                }))
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
            codes,
        })
    }
}

impl std::fmt::Display for IndexInfo {
    /// Writes a summary of one line.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let IndexInfo { name, vectors, lists, groups, metric, bytes, .. } = self;
        let (metric, vectors, lists) = (metric.name(), counted(*vectors, "vector"), counted(*lists, "list"));
        let groups = counted(*groups, "group");
        write!(
            out,
            "index of {name} for {metric}: {vectors} in {lists} of {groups}, {}",
            format_bytes(*bytes)
        )
    }
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

/// Returns how many bytes a row number takes. The result is 4 if 4 bytes suffice for `vectors` rows, and otherwise 8.
pub(crate) fn id_bytes(vectors: u64) -> usize {
    if vectors <= 1 << 32 { 4 } else { 8 }
}

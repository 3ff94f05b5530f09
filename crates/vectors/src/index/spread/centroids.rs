//! Defines the stored form of a spread index: the centroids of its lists, and the number of vectors of each list.
//!
//! ```text
//!   upper centroids │ lower centroids │ firsts: u32 │ counts: u64
//! ```
//!
//! `firsts` contains the number of the first list of each group, then the number of all lists. `counts` contains the
//! number of vectors of each list.

use inshore_store::Context;
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::{
    Element, Error, Metric, RecallTable, Result, VectorLayout,
    index::{
        Clustered,
        build::add_elements,
        centroids::{Centroids, Lower},
        compare::Space,
        info::METRICS,
    },
    layout::LAYOUT_VERSION,
    tiles::Instructions,
};

/// The description of an index of vectors that are spread over nodes. The map of the index, which the nodes store,
/// contains the description as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpreadIndexInfo {
    /// The kind of the bytes: `vector-index`.
    pub kind: SpreadIndexKind,
    /// The version of the layout: 1.
    pub version: u32,
    /// The type of the elements of vectors and centroids.
    pub element: Element,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The metric of all searches.
    pub metric: Metric,
    /// The number of vectors.
    pub vectors: u64,
    /// The number of lists.
    pub lists: u64,
    /// The number of groups of lists.
    pub groups: u64,
    /// The seed that determined the sample.
    pub seed: u64,
    /// The number of vectors on which the centroids were trained.
    pub sample: u64,
    /// The id of the vectors, as text. A search refuses the index if the vectors have another id.
    pub vectors_id: String,
    /// The id of the lists, as text.
    pub lists_id: String,
    /// The recall for different numbers of probed lists.
    pub recall: RecallTable,
}

/// The kind of the bytes of a spread index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpreadIndexKind {
    /// The bytes are the centroids and the numbers of vectors of lists.
    VectorIndex,
}

impl SpreadIndexInfo {
    /// Returns the layout of the vectors.
    pub fn layout(&self) -> VectorLayout {
        VectorLayout::new(self.element, self.dimensions)
    }

    /// Returns the number of bytes of the centroids and counts. Returns `None` if the number does not fit into a `u64`.
    fn bytes(&self) -> Option<u64> {
        let row_bytes = self.layout().row_bytes() as u64;
        let centroids = self.groups.checked_add(self.lists)?.checked_mul(row_bytes)?;
        let firsts = self.groups.checked_add(1)?.checked_mul(4)?;
        centroids.checked_add(firsts)?.checked_add(self.lists.checked_mul(8)?)
    }

    /// Checks the description, and checks that the centroids and counts have `len` bytes. Error messages call the index
    /// `name`.
    ///
    /// # Errors
    /// - Returns [`Error::BadOption`] if the number of dimensions is out of range.
    /// - Returns [`Error::BadDataset`] if another value of the description is out of range, or if `len` is wrong.
    pub fn check(&self, name: &str, len: u64) -> Result<()> {
        self.layout().check()?;
        let bad = |what, found: String, expected: String| {
            Err(Error::BadDataset { name: name.to_string(), what, found, expected })
        };
        let is_indexed = matches!(self.element, Element::F32 | Element::U8 | Element::I8);
        if self.version != LAYOUT_VERSION {
            return bad("version", self.version.to_string(), LAYOUT_VERSION.to_string());
        }
        if !is_indexed || !METRICS.contains(&self.metric) {
            let found = format!("{} by {}", self.element, self.metric.name());
            return bad("elements", found, "f32, u8 or i8 by l2, ip or cosine".to_string());
        }
        if self.groups == 0 || self.groups > self.lists || self.lists > 1 << 31 {
            let found = format!("{} lists in {} groups", self.lists, self.groups);
            return bad("lists", found, "at least one list in each group".to_string());
        }
        match self.bytes() {
            Some(bytes) if bytes == len => Ok(()),
            expected => bad("length", format!("{len} bytes"), format!("{expected:?} bytes")),
        }
    }
}

/// An index of vectors that are spread over nodes. It consists of the centroids of its lists and the number of vectors
/// of each list.
#[derive(Clone, Debug)]
pub struct SpreadIndex {
    /// The description.
    pub info: SpreadIndexInfo,
    pub(super) upper: Vec<u8>,
    pub(super) lower: Vec<u8>,
    pub(super) firsts: Vec<u32>,
    /// The number of vectors of each list. All numbers are 0 until the lists are written.
    pub counts: Vec<u64>,
}

impl SpreadIndex {
    /// Returns the stored bytes of the centroids and counts.
    pub fn to_bytes(&self) -> Vec<u8> {
        let counts = self.counts.iter().flat_map(|count| count.to_le_bytes());
        let firsts = self.firsts.iter().flat_map(|first| first.to_le_bytes());
        let mut bytes = [&self.upper[..], &self.lower[..]].concat();
        bytes.extend(firsts);
        bytes.extend(counts);
        bytes
    }

    /// Reads the stored bytes of the centroids and counts. Error messages call the index `name`.
    ///
    /// # Errors
    /// - Returns the errors of [`SpreadIndexInfo::check`].
    /// - Returns [`Error::BadDataset`] if the groups are not in order, or if a centroid has a value that is not finite.
    pub fn of_bytes(name: &str, info: SpreadIndexInfo, bytes: &[u8]) -> Result<SpreadIndex> {
        info.check(name, bytes.len() as u64)?;
        let row_bytes = info.layout().row_bytes();
        let (upper, rest) = bytes.split_at(info.groups as usize * row_bytes);
        let (lower, rest) = rest.split_at(info.lists as usize * row_bytes);
        let (firsts, counts) = rest.split_at(4 * (info.groups as usize + 1));
        let firsts: Vec<u32> =
            firsts.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let counts: Vec<u64> =
            counts.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let bad = |what, found: &str, expected: &str| Error::BadDataset {
            name: name.to_string(),
            what,
            found: found.to_string(),
            expected: expected.to_string(),
        };
        let are_in_order = firsts[0] == 0
            && firsts.windows(2).all(|pair| pair[0] < pair[1])
            && firsts.last() == Some(&(info.lists as u32));
        if !are_in_order {
            return Err(bad(
                "groups",
                "lists out of order",
                "lists of each group, one group after the other",
            ));
        }
        let is_finite = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).is_finite();
        let are_finite = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().all(is_finite);
        if info.element == Element::F32 && !(are_finite(upper) && are_finite(lower)) {
            return Err(bad("centroids", "a value that is not finite", "finite numbers"));
        }
        let (upper, lower) = (upper.to_vec(), lower.to_vec());
        Ok(SpreadIndex { info, upper, lower, firsts, counts })
    }

    /// Returns the centroids of groups and of lists.
    pub(crate) fn centroids<T: Clustered>(&self, context: &Context) -> Result<Centroids<T>> {
        let elements = |bytes: &[u8]| {
            let mut elements = Vec::with_capacity(bytes.len() / size_of::<T>());
            add_elements::<T>(&mut elements, bytes);
            elements
        };
        let memory = context.budget().reserve(self.lower.len() as u64, "centroids of lists")?;
        Ok(Centroids {
            dimensions: self.info.dimensions,
            upper: elements(&self.upper),
            firsts: self.firsts.clone(),
            lower: Lower::Memory(elements(&self.lower), memory),
            _reservation: context.budget().reserve(self.upper.len() as u64, "centroids of groups")?,
        })
    }

    /// Creates an index from trained centroids.
    pub(super) fn of_centroids<T: Clustered>(
        info: SpreadIndexInfo,
        upper: &[T],
        lower: &[T],
        firsts: Vec<u32>,
    ) -> SpreadIndex {
        let counts = vec![0; info.lists as usize];
        let (upper, lower) = (upper.as_bytes().to_vec(), lower.as_bytes().to_vec());
        SpreadIndex { info, upper, lower, firsts, counts }
    }
}

/// Returns the space in which vectors are compared with centroids.
pub(super) fn coarse<T: Clustered>(metric: Metric, dimensions: usize) -> Space<T> {
    let metric = if metric == Metric::Cosine { Metric::Cosine } else { Metric::L2 };
    Space::new(metric, dimensions, &[], Instructions::best())
}

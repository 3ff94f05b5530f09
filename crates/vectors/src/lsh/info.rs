//! The properties of hash tables. The attributes of their dataset store these properties.

use inshore_store::format_bytes;
use serde::Serialize;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{F64, U32, U64},
};

use super::functions::{BITS_OF_CODE_MAX, BUCKETS_MAX, Family, METRICS, Shape, TABLES_MAX};
use crate::{
    Element, Metric, RecallTable, Result,
    index::{StoredRecall, bad, id_bytes, points_to_bytes},
    text::counted,
};

const MAGIC: [u8; 8] = *b"INSHVLSH";
const VERSION: u32 = 1;

/// The first part of the attributes of hash tables. The points of the table of recall follow.
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
    tables: U32,
    bits: U32,
    buckets: U64,
    bucket_vectors_max: U64,
    seed: U64,
    width: F64,
    sample: U64,
    recall: StoredRecall,
}

const _: () = assert!(size_of::<Header>() == 112);

/// The properties of hash tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LshInfo {
    /// The name of the vectors.
    pub name: String,
    /// The id of the dataset of vectors.
    #[serde(skip)]
    pub(crate) dataset: u64,
    /// The number of vectors in each table.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors.
    pub element: Element,
    /// The metric for which the tables were built.
    pub metric: Metric,
    /// The family of the hash functions.
    pub family: Family,
    /// The number of tables.
    pub tables: u64,
    /// The number of hash functions of a table.
    pub bits: u64,
    /// The number of buckets of a table, including empty buckets.
    pub buckets: u64,
    /// The width of a cell of p-stable projections, in the unit of the vectors. The width is 1 for other families.
    pub width: f64,
    /// The number of vectors in the largest bucket.
    pub bucket_vectors_max: u64,
    /// The number of sampled vectors that the build drew to adapt the functions to the data.
    pub sample: u64,
    /// The seed that determines the functions and the sample.
    pub seed: u64,
    /// The size of the tables on flash, in bytes.
    pub bytes: u64,
    /// The measured recall for different numbers of probed buckets.
    pub recall: RecallTable,
}

impl LshInfo {
    /// Returns the number of bytes that a row number takes in a bucket.
    pub(crate) fn id_bytes(&self) -> usize {
        id_bytes(self.vectors)
    }

    /// Returns the shape of the hash functions.
    pub(crate) fn shape(&self) -> Shape {
        let LshInfo { family, element, dimensions, tables, bits, buckets, width, seed, .. } = *self;
        Shape { family, element, dimensions, tables, bits, buckets, width, seed }
    }

    pub(crate) fn to_attributes(&self) -> Vec<u8> {
        let header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            element: self.element.code().into(),
            dimensions: (self.dimensions as u32).into(),
            metric: metric_code(self.family).into(),
            dataset: self.dataset.into(),
            vectors: self.vectors.into(),
            tables: (self.tables as u32).into(),
            bits: (self.bits as u32).into(),
            buckets: self.buckets.into(),
            bucket_vectors_max: self.bucket_vectors_max.into(),
            seed: self.seed.into(),
            width: self.width.into(),
            sample: self.sample.into(),
            recall: StoredRecall::of(&self.recall),
        };
        let mut bytes = header.as_bytes().to_vec();
        points_to_bytes(&self.recall.points, &mut bytes);
        bytes
    }

    pub(super) fn from_attributes(name: &str, bytes: u64, attributes: &[u8]) -> Result<LshInfo> {
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
        if header.version != VERSION {
            let expected =
                format!("{VERSION}: build the index again, or use the version of Inshore that wrote it");
            return Err(bad("version", header.version.to_string(), expected));
        }
        let code = header.element.get();
        let element = Element::of_code(code)
            .ok_or_else(|| bad("element", code.to_string(), "a type of elements".to_string()))?;
        let code = header.metric.get();
        let known = METRICS.into_iter().find_map(|metric| {
            let family = Family::of(metric)?;
            (metric_code(family) == code).then_some((metric, family))
        });
        let (metric, family) =
            known.filter(|(metric, _)| metric.check(element).is_ok()).ok_or_else(|| {
                bad("metric", code.to_string(), format!("1 (l2), 3 (cosine) or 4 (hamming) of {element}"))
            })?;
        let most = element.dimensions_max() as u64;
        let dimensions = range("dimensions", header.dimensions.get().into(), most)? as usize;
        let vectors = range("vectors", header.vectors.get(), u64::MAX / (16 * TABLES_MAX))?;
        let tables = range("tables", header.tables.get().into(), TABLES_MAX)?;
        let bits = range("functions of a table", header.bits.get().into(), BITS_OF_CODE_MAX)?;
        let buckets = range("buckets of a table", header.buckets.get(), BUCKETS_MAX)?;
        let bucket_vectors_max = range("vectors of a bucket", header.bucket_vectors_max.get(), vectors)?;
        let width = header.width.get();
        if !(width > 0.0 && width.is_finite()) {
            return Err(bad("width of a cell", width.to_string(), "a positive number".to_string()));
        }
        let recall = header.recall.table(name, tables * buckets, points)?;
        Ok(LshInfo {
            name: name.to_string(),
            dataset: header.dataset.get(),
            vectors,
            dimensions,
            element,
            metric,
            family,
            tables,
            bits,
            buckets,
            width,
            bucket_vectors_max,
            sample: header.sample.get(),
            seed: header.seed.get(),
            bytes,
            recall,
        })
    }
}

impl std::fmt::Display for LshInfo {
    /// Writes the properties as one line of a message.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LshInfo { name, metric, family, bytes, .. } = self;
        let (vectors, tables) = (counted(self.vectors, "vector"), counted(self.tables, "table"));
        let (buckets, bits) = (counted(self.buckets, "bucket"), counted(self.bits, "function"));
        write!(
            out,
            "hash tables of {name} for {}: {vectors} in {tables} of {buckets}, {bits} each ({}), {}",
            metric.name(),
            family.name(),
            format_bytes(*bytes)
        )
    }
}

/// Returns the stored code of the metric of a family. Codes 1 and 3 are those of inverted lists, and 4 is the Hamming
/// distance.
fn metric_code(family: Family) -> u32 {
    match family {
        Family::PStable => 1,
        Family::Hyperplanes => 3,
        Family::BitSampling => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MeasuredOn;

    /// The format is frozen, since later versions must read the tables that this version writes.
    #[test]
    fn the_attributes_have_these_bytes() {
        let recall = RecallTable {
            k: 10,
            queries: 256,
            measured_seconds: 1_800_000_000,
            measured_on: MeasuredOn::Queries,
            points: vec![crate::RecallPoint { probes: 3, recall: 0.5 }],
        };
        let info = LshInfo {
            name: "v".to_string(),
            dataset: 7,
            vectors: 1000,
            dimensions: 128,
            element: Element::F32,
            metric: Metric::L2,
            family: Family::PStable,
            tables: 8,
            bits: 5,
            buckets: 30,
            width: 2.5,
            bucket_vectors_max: 90,
            sample: 1024,
            seed: 11,
            bytes: 99,
            recall,
        };
        let expected = b"INSHVLSH\x01\0\0\0\x01\0\0\0\x80\0\0\0\x01\0\0\0\x07\0\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0\
            \x08\0\0\0\x05\0\0\0\x1e\0\0\0\0\0\0\0\x5a\0\0\0\0\0\0\0\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\x40\
            \0\x04\0\0\0\0\0\0\x0a\0\0\0\0\x01\0\0\0\xd2\x49\x6b\0\0\0\0\x02\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\x3f";
        assert_eq!(info.to_attributes(), expected);
        assert_eq!(LshInfo::from_attributes("v", 99, expected).unwrap(), info);
    }
}

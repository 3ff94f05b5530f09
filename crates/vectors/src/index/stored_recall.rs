//! The stored form of a table of recall. The attributes of inverted lists and of hash tables contain it.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{F32, U32, U64},
};

use super::table::{MeasuredOn, RecallPoint, RecallTable};
use crate::{Error, Result, names::index_name};

/// The largest number of points in a table of recall.
const POINTS_MAX: u32 = 256;

/// A table of recall without its points. The points follow the attributes of an index.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct StoredRecall {
    k: U32,
    queries: U32,
    measured_seconds: U64,
    measured_on: U32,
    points: U32,
}

const _: () = assert!(size_of::<StoredRecall>() == 24);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Point {
    probes: U32,
    recall: F32,
}

impl StoredRecall {
    /// Returns the stored form of a table.
    pub fn of(table: &RecallTable) -> StoredRecall {
        let RecallTable { k, queries, measured_seconds, measured_on, points } = table;
        StoredRecall {
            k: (*k).into(),
            queries: (*queries).into(),
            measured_seconds: (*measured_seconds).into(),
            measured_on: measured_on.code().into(),
            points: (points.len() as u32).into(),
        }
    }

    /// Returns the number of bytes that the points take.
    pub fn points_bytes(&self) -> usize {
        self.points.get() as usize * size_of::<Point>()
    }

    /// Returns the table, whose points are stored in `points`. The index of the vectors `name` has `lists` lists or
    /// buckets.
    ///
    /// # Errors
    /// Returns [`crate::Error::BadDataset`] if the source of recall is unknown, or a point is malformed.
    pub fn table(&self, name: &str, lists: u64, points: &[u8]) -> Result<RecallTable> {
        let points = points_of(name, lists, self.points.get(), points)?;
        let code = self.measured_on.get();
        let measured_on = MeasuredOn::of_code(code)
            .ok_or_else(|| bad(name, "source of recall", code.to_string(), "1 or 2".to_string()))?;
        Ok(RecallTable {
            k: self.k.get(),
            queries: self.queries.get(),
            measured_seconds: self.measured_seconds.get(),
            measured_on,
            points,
        })
    }
}

/// Appends the points of a table of recall.
pub(crate) fn points_to_bytes(points: &[RecallPoint], bytes: &mut Vec<u8>) {
    for point in points {
        let point = Point { probes: (point.probes as u32).into(), recall: point.recall.into() };
        bytes.extend_from_slice(point.as_bytes());
    }
}

/// Reads the points of the table of recall of an index with `lists` lists or buckets.
pub(crate) fn points_of(name: &str, lists: u64, count: u32, bytes: &[u8]) -> Result<Vec<RecallPoint>> {
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

/// Returns the error for a damaged index of the dataset `name`.
pub(crate) fn bad(name: &str, what: &'static str, found: String, expected: String) -> Error {
    Error::BadDataset { name: index_name(name), what, found, expected }
}

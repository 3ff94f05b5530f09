//! The table of recall that an index keeps.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The queries on which recall was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredOn {
    /// Vectors of the dataset that were held out of the samples, each without itself as its neighbour.
    HeldOutVectors,
    /// Queries of the user.
    Queries,
}

impl MeasuredOn {
    pub(crate) fn code(self) -> u32 {
        match self {
            MeasuredOn::HeldOutVectors => 1,
            MeasuredOn::Queries => 2,
        }
    }

    pub(crate) fn of_code(code: u32) -> Option<MeasuredOn> {
        [MeasuredOn::HeldOutVectors, MeasuredOn::Queries].into_iter().find(|on| on.code() == code)
    }
}

/// A point of a table of recall.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RecallPoint {
    /// Lists probed.
    pub probes: u64,
    /// The share of exact neighbours that is found.
    pub recall: f32,
}

/// Recall by lists probed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecallTable {
    /// Neighbours of each query.
    pub k: u32,
    /// Queries.
    pub queries: u32,
    /// The time of the measurement, in seconds since 1970.
    pub measured_seconds: u64,
    /// The queries.
    pub measured_on: MeasuredOn,
    /// Points by rising probes.
    pub points: Vec<RecallPoint>,
}

impl RecallTable {
    /// Returns the fewest probes that reached a recall when it was measured, and `lists` if no measured number of
    /// probes reached it.
    pub fn probes_for(&self, recall: f64, lists: u64) -> u64 {
        // Points are f32: 0.95 is reached by the f32 nearest to it.
        let reached = self.points.iter().find(|point| point.recall >= recall as f32);
        reached.map_or(lists, |point| point.probes)
    }

    /// Returns the recall of a number of probes: that of the last point with no more of them.
    pub fn recall_of(&self, probes: u64) -> Option<f32> {
        self.points.iter().rfind(|point| point.probes <= probes).map(|point| point.recall)
    }

    pub(crate) fn new(
        k: u64,
        queries: usize,
        measured_on: MeasuredOn,
        points: Vec<RecallPoint>,
    ) -> RecallTable {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let measured_seconds = now.map_or(0, |since| since.as_secs());
        RecallTable { k: k as u32, queries: queries as u32, measured_seconds, measured_on, points }
    }
}

//! The table of recall that an index keeps.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The queries on which recall was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredOn {
    /// Vectors of the dataset that were held out of the samples. A held-out vector is not counted as its own neighbour.
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecallPoint {
    /// The number of lists or buckets that a query probes.
    pub probes: u64,
    /// The fraction of the exact neighbours that a search with this number of probes finds.
    pub recall: f32,
}

/// The measured recall for several numbers of probes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecallTable {
    /// The number of neighbours of each query.
    pub k: u32,
    /// The number of queries.
    pub queries: u32,
    /// The time of the measurement, in seconds since 1970.
    pub measured_seconds: u64,
    /// The kind of queries on which recall was measured.
    pub measured_on: MeasuredOn,
    /// The points, in ascending order of probes.
    pub points: Vec<RecallPoint>,
}

impl RecallTable {
    /// Returns the smallest measured number of probes for which the measured recall, minus its standard error, is at
    /// least `recall`. Returns `lists` if no measured number of probes does, and for the recall 1, which no sample of
    /// queries guarantees.
    pub fn probes_for(&self, recall: f64, lists: u64) -> u64 {
        if recall >= 1.0 {
            return lists;
        }
        let reached = self.points.iter().find(|point| {
            // The recall of a point is an f32. The sum is rounded to f32, so that a point with the f32 nearest to 0.95
            // reaches the recall 0.95.
            point.recall >= (recall + self.standard_error(point.recall)) as f32
        });
        reached.map_or(lists, |point| point.probes)
    }

    /// Returns the standard error of a measured recall. The neighbours of one query are often found or missed together.
    /// The k neighbours of a query therefore count as √k independent samples.
    fn standard_error(&self, recall: f32) -> f64 {
        let recall = f64::from(recall);
        let samples = f64::from(self.queries.max(1)) * f64::from(self.k.max(1)).sqrt();
        (recall * (1.0 - recall) / samples).sqrt()
    }

    /// Returns the recall of the last point with at most `probes` probes, or `None` if no point has so few probes.
    pub fn recall_of(&self, probes: u64) -> Option<f32> {
        self.points.iter().rfind(|point| point.probes <= probes).map(|point| point.recall)
    }

    /// Creates a table of recall whose time of measurement is the current time.
    pub fn new(k: u64, queries: usize, measured_on: MeasuredOn, points: Vec<RecallPoint>) -> RecallTable {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let measured_seconds = now.map_or(0, |since| since.as_secs());
        RecallTable { k: k as u32, queries: queries as u32, measured_seconds, measured_on, points }
    }
}

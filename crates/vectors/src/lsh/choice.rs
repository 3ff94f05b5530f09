//! Decides if a search answers from hash tables or exactly. The decision uses only estimates that are known before the
//! first read.

use serde::Serialize;

use crate::RowSet;

/// The largest number of buckets that a query probes. If a search asks for more probes, the answer is exact.
pub const PROBES_MAX: u64 = 4096;

/// A search is exact if at least one of `EXACT_SHARE` vectors is expected to be a candidate of each query. With this
/// share, the scattered reads of the candidates fetch nearly every check block of small vectors for each query. An exact
/// search compares at most twice as many pairs, and its reads are sequential and serve a batch of queries.
const EXACT_SHARE: u64 = 2;

/// The estimates from which a search chooses between hash tables and an exact search.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchEstimates {
    /// The number of vectors that may be answers.
    pub vectors: u64,
    /// The number of vectors that may be answers and are in no bucket, since they were added after the build.
    pub unlisted: u64,
    /// The number of tables.
    pub tables: u64,
    /// The number of buckets of all tables.
    pub buckets: u64,
    /// The number of buckets that each query probes.
    pub probes: u64,
    /// The number of candidates that a query needs. A query with fewer candidates probes more buckets.
    pub needed: u64,
}

/// The reason why a search of an index of hash tables is exact: most vectors would be candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ManyCandidates {
    /// The estimated number of candidates of a query.
    pub candidates: u64,
    /// The number of vectors that may be answers.
    pub vectors: u64,
    /// The number of vectors that may be answers and are in no bucket.
    pub unlisted: u64,
    /// The number of buckets that a query would probe.
    pub probes: u64,
    /// The number of buckets of all tables.
    pub buckets: u64,
}

impl SearchEstimates {
    /// Returns the number of vectors that may be answers, and the number of these that are in no bucket. `rows` is the
    /// number of rows of the dataset, and `listed` is the number of rows in the buckets.
    pub fn vectors_among(selection: Option<&RowSet>, listed: u64, rows: u64) -> (u64, u64) {
        match selection {
            None => (rows, rows - listed),
            Some(selection) => (selection.count(), selection.count_in(listed..rows)),
        }
    }

    /// Estimates the number of candidates of a query. The estimate assumes that vectors are spread evenly over the
    /// buckets, and that tables are independent. Buckets near a query often have more vectors than others, so the true
    /// number may be larger.
    pub fn candidates(&self) -> u64 {
        let SearchEstimates { vectors, unlisted, tables, buckets, probes, needed } = *self;
        if probes >= buckets || probes > PROBES_MAX {
            return vectors;
        }
        let share = probes as f64 / buckets as f64;
        let in_a_bucket = 1.0 - (1.0 - share).powf(tables as f64);
        let of_buckets = ((vectors - unlisted) as f64 * in_a_bucket).ceil() as u64;
        (unlisted + of_buckets).max(needed).min(vectors)
    }

    /// Returns the reason for an exact search, or `None` if the search answers from the hash tables.
    pub fn exact_because(&self) -> Option<ManyCandidates> {
        let SearchEstimates { vectors, unlisted, buckets, probes, .. } = *self;
        let candidates = self.candidates();
        let is_exact = candidates.saturating_mul(EXACT_SHARE) >= vectors;
        is_exact.then_some(ManyCandidates { candidates, vectors, unlisted, probes, buckets })
    }
}

impl std::fmt::Display for ManyCandidates {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ManyCandidates { candidates, vectors, unlisted, probes, buckets } = self;
        write!(
            out,
            "about {candidates} of {vectors} vectors would be candidates of each query ({probes} of {buckets} buckets"
        )?;
        match unlisted {
            0 => write!(out, ")"),
            _ => write!(out, ", and {unlisted} added after the build of the index)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_exact_if_half_of_the_vectors_are_candidates() {
        let base = SearchEstimates {
            vectors: 100_000,
            unlisted: 0,
            tables: 8,
            buckets: 8 * 4096,
            probes: 64,
            needed: 10,
        };
        let cases = [
            (base, 1_552, false),
            // The tables overlap, so 7 of 80 buckets contain less than 7 / 10 of the vectors.
            (SearchEstimates { buckets: 80, probes: 6, ..base }, 46_404, false),
            (SearchEstimates { buckets: 80, probes: 7, ..base }, 51_932, true),
            (SearchEstimates { tables: 1, buckets: 30, probes: 14, ..base }, 46_667, false),
            (SearchEstimates { tables: 1, buckets: 30, probes: 15, ..base }, 50_000, true),
            (SearchEstimates { probes: PROBES_MAX + 1, ..base }, 100_000, true),
            (SearchEstimates { probes: base.buckets, ..base }, 100_000, true),
            // Unlisted vectors are candidates of each query.
            (SearchEstimates { unlisted: 40_000, ..base }, 40_932, false),
            (SearchEstimates { unlisted: 50_000, ..base }, 50_776, true),
            // A query that needs many neighbours probes until it has enough candidates.
            (SearchEstimates { needed: 60_000, ..base }, 60_000, true),
            (SearchEstimates { vectors: 0, needed: 0, ..base }, 0, true),
        ];
        for (estimates, candidates, is_exact) in cases {
            assert_eq!(estimates.candidates(), candidates, "{estimates:?}");
            assert_eq!(estimates.exact_because().is_some(), is_exact, "{estimates:?}");
        }
        let reason = SearchEstimates { unlisted: 60_000, ..base }.exact_because().unwrap();
        assert_eq!(
            reason.to_string(),
            "about 60621 of 100000 vectors would be candidates of each query (64 of 32768 buckets, and 60000 added \
             after the build of the index)"
        );
    }
}

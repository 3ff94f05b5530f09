//! The rule that decides which lists hold copies of a vector. The method is the closure of SPANN (Chen et al., NeurIPS
//! 2021, section 3.2).
//!
//! A query near the border between two lists misses neighbours in the other list. Both lists therefore get copies of
//! the vectors near the border. A query that probes few lists with copies finds as many neighbours as a query that
//! probes many lists without copies.
//!
//! Let c0, c1, ... be the centroids nearest to a vector v, the nearest first, and let list j be the list of centroid
//! cj. List 0 holds the vector itself, and the other lists can only get copies of the vector. The rule examines the
//! other lists by ascending distance, and list j gets a copy if both conditions hold:
//!
//! ```text
//!   |v - cj| <= REACH |v - c0|                         the vector is near the border of list j
//!   |ci - cj| > APART |v - cj|  for each chosen list i  no chosen list lies in the same direction
//! ```
//!
//! Without the second condition, the copies of a vector would be in neighbouring lists, which a query probes together
//! in any case. The following figures were measured on 1,000,000 SIFT vectors in lists of 16 KiB, with copies up to 64
//! KiB. The first number states how many KiB a query reads at a recall of 0.95. The number in parentheses is the size
//! of the file with copies, divided by the size of the vectors.
//!
//! ```text
//!   no copies 1,082 in 61 lists       the nearest four lists 957 (3.5)        the first rule alone, reach 1.2 1,077 (3.8)
//!   APART 1    1,026 (1.4)            APART 0.85 856 (2.7)                    APART 0.8 807 in 14 lists (3.4)
//! ```

use crate::{
    index::Clustered,
    metric::{AT_ONCE, Metric},
    topk::Entry,
};

/// Only this number of nearest lists of a vector may get a copy of the vector.
pub(super) const CANDIDATES: usize = 16;
/// The largest number of lists that hold a vector, including the list that owns it.
pub(super) const LISTS_MAX: usize = 8;
const REACH: f64 = 1.5;
const APART: f64 = 0.8;

/// Decides which lists hold a vector.
pub(super) struct Closure<'a, T: Clustered> {
    /// The metric in which centroids are compared: L2 or cosine.
    pub metric: Metric,
    pub dimensions: usize,
    /// The elements of the centroids of all lists.
    pub centroids: &'a [T],
}

impl<T: Clustered> Closure<'_, T> {
    /// Sets `chosen` to the lists that hold a vector, each with the squared distance of the vector from the list's
    /// centroid. `nearest` has the nearest lists of the vector, by ascending distance. The id of an entry in `nearest`
    /// is the number of a list.
    pub fn choose(&self, nearest: &[Entry], chosen: &mut Vec<(u32, f64)>) {
        chosen.clear();
        let Some(first) = nearest.first() else { return };
        let most = self.square(first.key) * REACH * REACH;
        for entry in nearest {
            let (list, square) = (entry.id as u32, self.square(entry.key));
            if chosen.len() == LISTS_MAX || square > most {
                return;
            }
            if chosen.is_empty() || self.is_apart(list, square * APART * APART, chosen) {
                chosen.push((list, square));
            }
        }
    }

    /// Compares the centroid of `list` with the centroids of the lists in `chosen`. Returns true if all these squared
    /// distances are above `least`.
    fn is_apart(&self, list: u32, least: f64, chosen: &[(u32, f64)]) -> bool {
        let row = |list: u32| &self.centroids[list as usize * self.dimensions..][..self.dimensions];
        let (own, norm) = (row(list), T::norm(row(list)));
        chosen.chunks(AT_ONCE).all(|chosen| {
            // If fewer than `AT_ONCE` centroids are left, the last one fills the rest of the group.
            let others = std::array::from_fn(|number| row(chosen[number.min(chosen.len() - 1)].0));
            let keys = T::keys(self.metric, [own; AT_ONCE], others, [norm; AT_ONCE]);
            keys.iter().all(|&key| self.square(key) > least)
        })
    }

    /// Converts a key to the squared distance for which it stands. Under the cosine metric, the result is half of the
    /// squared distance between the two directions.
    fn square(&self, key: f64) -> f64 {
        match self.metric {
            Metric::Cosine => (1.0 + key).max(0.0),
            _ => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lists that hold a point of the plane.
    fn lists_of(point: [f32; 2], centroids: &[f32]) -> Vec<u32> {
        let closure = Closure { metric: Metric::L2, dimensions: 2, centroids };
        let square = |c: &[f32]| (0..2).map(|d| f64::from(c[d] - point[d]).powi(2)).sum::<f64>();
        let mut nearest: Vec<Entry> =
            (0..).zip(centroids.chunks(2)).map(|(id, c)| Entry { key: square(c), id }).collect();
        nearest.sort();
        let mut chosen = Vec::new();
        closure.choose(&nearest, &mut chosen);
        chosen.into_iter().map(|(list, _)| list).collect()
    }

    #[test]
    fn a_vector_between_lists_is_in_those_of_different_directions() {
        // The centroids lie around the origin. The centroids of lists 1 and 2 lie in one direction, and the centroid of
        // list 4 lies far away.
        let centroids = [-10.0, 0.0, 10.0, 0.0, 11.0, 1.0, 0.0, 10.5, 40.0, 0.0];
        assert_eq!(lists_of([0.0, 0.0], &centroids), [0, 1, 3]);
        // A vector at the centroid of a list is only in that list. So is a vector that is much nearer to the centroid
        // than to the border.
        assert_eq!(lists_of([-10.0, 0.0], &centroids), [0]);
        assert_eq!(lists_of([-7.0, 0.0], &centroids), [0]);
        assert_eq!(lists_of([0.5, 0.0], &centroids), [1, 0, 3]);
        // For this vector all seven centroids lie in one direction, so that only one list holds it.
        let circle: Vec<f32> = (0..7).flat_map(|n| [n as f32, 0.0]).collect();
        assert!(lists_of([3.0, 50.0], &circle).len() == 1);
    }
}

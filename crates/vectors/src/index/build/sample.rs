//! Implements step 1 of a build. This step reads the held-out vectors and a first sample, and trains the centroids of
//! groups on the sample. A later step measures recall on the held-out vectors.
//!
//! A *draw* is a pseudo-random number that depends only on the id of a vector and the seed. A vector is in a sample if
//! its draw lies in the range of the sample.

use std::sync::Mutex;

use inshore_store::{Job, Reservation};

use super::{
    Build,
    plan::{HELD_OUT, ITERATIONS, Memory, RECALL_K},
};
use crate::{
    Result,
    index::{Clustered, compare::Packed, kmeans, recall::for_vectors},
    random::mixed,
    topk::TopK,
};

/// If the dataset has fewer vectors than this, no vector is held out.
const FEW: u64 = 64;

/// The range of draws from `start` to `end`. The range does not contain `end`, unless `end` is the largest `u64`.
#[derive(Clone, Copy)]
pub(super) struct Draws {
    start: u64,
    end: u64,
}

impl Draws {
    pub fn contain(self, draw: u64) -> bool {
        (self.start..self.end).contains(&draw) || (self.end == u64::MAX && draw == self.end)
    }
}

/// The vectors on which recall is measured.
pub(super) struct HeldOut<T: Clustered> {
    pub ids: Vec<u64>,
    pub packed: Packed<T>,
    pub tops: Vec<TopK>,
    pub _reservation: Reservation,
}

impl<T: Clustered> HeldOut<T> {
    /// Returns an empty set of held-out vectors.
    pub fn none(job: &Job) -> Result<HeldOut<T>> {
        let _reservation = job.budget().reserve(0, "held-out vectors")?;
        Ok(HeldOut { ids: Vec::new(), packed: Packed::with_capacity(0, 0), tops: Vec::new(), _reservation })
    }
}

impl<T: Clustered> Build<'_, T> {
    /// Returns the draw of a vector.
    pub(super) fn draw(&self, id: u64) -> u64 {
        draw(id, self.options.seed)
    }

    /// Returns the range of the draws of held-out vectors.
    fn held_out_draws(&self) -> Draws {
        let vectors = self.info().vectors;
        let end = if vectors < FEW { 0 } else { below(HELD_OUT.min(vectors / 8), vectors) };
        Draws { start: 0, end }
    }

    /// Returns the range of draws that selects a sample of about `count` vectors. The sample contains no held-out
    /// vector.
    pub(super) fn sample_draws(&self, count: u64) -> Draws {
        let start = self.held_out_draws().end;
        Draws { start, end: start.saturating_add(below(count, self.info().vectors)) }
    }

    /// Returns the ids whose draws are among `draws`.
    fn drawn(&self, draws: Draws) -> impl Iterator<Item = u64> + '_ {
        (0..self.info().vectors).filter(move |id| draws.contain(self.draw(*id)))
    }

    /// Returns the ids of the vectors that are held out.
    pub(super) fn held_out_ids(&self) -> Vec<u64> {
        // The bound guarantees that the ids fit into the reserved memory. More than twice the expected number is
        // practically impossible.
        self.drawn(self.held_out_draws()).take(2 * HELD_OUT as usize).collect()
    }

    /// Reserves the memory of the held-out vectors and their neighbours.
    pub(super) fn reserve_held_out(&self) -> Result<Reservation> {
        let bytes = Memory::of::<T>(self.job, self.info(), &self.plan).held_out;
        Ok(self.job.budget().reserve(bytes, "held-out vectors")?)
    }

    /// Returns the held-out vectors with the ids `ids`, whose elements are `rows`.
    pub(super) fn held_out(&self, ids: Vec<u64>, rows: &[T], reservation: Reservation) -> HeldOut<T> {
        let info = self.info();
        let mut packed = Packed::with_capacity(info.dimensions, ids.len());
        packed.extend(rows, &self.exact);
        let k = (RECALL_K + 1).min(info.vectors) as usize;
        let tops = ids.iter().map(|_| TopK::new(k, f64::INFINITY)).collect();
        HeldOut { ids, packed, tops, _reservation: reservation }
    }

    /// Runs step 1: reads the held-out vectors and the first sample, and trains the centroids of groups.
    pub(super) fn sample(&self) -> Result<(HeldOut<T>, Vec<T>)> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let held_out_memory = self.reserve_held_out()?;
        let ids = self.held_out_ids();
        let sample: Vec<u64> =
            self.drawn(self.sample_draws(plan.group_sample)).take(plan.group_sample as usize).collect();
        let bytes = plan.group_sample * (self.row_bytes() as u64 + 8);
        let _sample_memory = job.budget().reserve(bytes, "the sample of vectors")?;
        let dimensions = info.dimensions;
        let zeros = |count: usize| vec![T::nearest(0.0); count * dimensions];
        let taken = Mutex::new((zeros(ids.len()), zeros(sample.len())));
        job.start_phase("sampling", "vectors", info.vectors);
        for_vectors::<T, _>(
            job,
            &self.vectors.file,
            (info.vectors, dimensions),
            || (),
            |(), first, rows| {
                let count = (rows.len() / dimensions) as u64;
                let mut taken = taken.lock().expect("no panic under this lock");
                let (held, sampled) = &mut *taken;
                for (ids, out) in [(&ids, held), (&sample, sampled)] {
                    let from = ids.partition_point(|id| *id < first);
                    let here = ids[from..].iter().take_while(|id| **id < first + count);
                    for (place, id) in (from..).zip(here) {
                        let row = &rows[(id - first) as usize * dimensions..][..dimensions];
                        out[place * dimensions..][..dimensions].copy_from_slice(row);
                    }
                }
                Ok(())
            },
        )?;
        let (held_rows, sampled) = taken.into_inner().expect("no panic under this lock");
        let held_out = self.held_out(ids, &held_rows, held_out_memory);
        job.start_phase("training groups", "vectors", 0);
        let bytes = kmeans::sums_bytes::<T>(dimensions, sample.len() as u64, plan.groups)
            + plan.threads as u64 * kmeans::thread_bytes::<T>(dimensions);
        let _training = job.budget().reserve(bytes, "k-means")?;
        let stop = || job.check_cancelled().is_err();
        let upper =
            kmeans::train(&self.space, &sampled, plan.groups as usize, ITERATIONS, plan.threads, &stop);
        job.check_cancelled()?;
        Ok((held_out, upper))
    }
}

/// Returns the draw of the vector with the id `id`.
pub(crate) fn draw(id: u64, seed: u64) -> u64 {
    mixed(id ^ mixed(seed))
}

/// Returns the end of a range of draws that starts at 0. The range is expected to contain the draws of `count` among
/// `all` vectors.
fn below(count: u64, all: u64) -> u64 {
    if count >= all { u64::MAX } else { (count as f64 / all as f64 * 2f64.powi(64)) as u64 }
}

//! Step 1: the held-out vectors, and the centroids of groups from a sample of all vectors.
//!
//! A vector is in a sample if its *draw*, a number that follows from its id and the seed, lies in the range of the sample.

use std::sync::Mutex;

use inshore_store::{Job, Reservation};

use super::{
    Build,
    plan::{HELD_OUT, ITERATIONS, Memory, RECALL_K},
};
use crate::{
    Result,
    index::{Clustered, compare::Packed, kmeans, recall::for_vectors},
    topk::TopK,
};

/// Fewer vectors than these are all in the samples, and none is held out.
const FEW: u64 = 64;

/// The draws from `start` to `end`, without `end` itself unless there is none above it.
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
    /// Returns no vectors.
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

    /// Returns the draws of vectors that are held out.
    fn held_out_draws(&self) -> Draws {
        let vectors = self.info().vectors;
        let end = if vectors < FEW { 0 } else { below(HELD_OUT.min(vectors / 8), vectors) };
        Draws { start: 0, end }
    }

    /// Returns the draws of a sample of `count` vectors, none of which is held out.
    pub(super) fn sample_draws(&self, count: u64) -> Draws {
        let start = self.held_out_draws().end;
        Draws { start, end: start.saturating_add(below(count, self.info().vectors)) }
    }

    /// Step 1: reads the held-out vectors and the first sample, and trains the upper centroids.
    pub(super) fn sample(&self) -> Result<(HeldOut<T>, Vec<T>)> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let memory = Memory::of::<T>(job, info, plan);
        let held_out_memory = job.budget().reserve(memory.held_out, "held-out vectors")?;
        let drawn = |draws: Draws| (0..info.vectors).filter(move |id| draws.contain(self.draw(*id)));
        // Twice as many as expected never come; a bound all the same keeps the memory that was reserved.
        let ids: Vec<u64> = drawn(self.held_out_draws()).take(2 * HELD_OUT as usize).collect();
        let sample: Vec<u64> =
            drawn(self.sample_draws(plan.group_sample)).take(plan.group_sample as usize).collect();
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
        let mut packed = Packed::with_capacity(dimensions, ids.len());
        packed.extend(&held_rows, &self.exact);
        let k = (RECALL_K + 1).min(info.vectors) as usize;
        let tops = ids.iter().map(|_| TopK::new(k, f64::INFINITY)).collect();
        job.start_phase("training groups", "vectors", 0);
        let bytes = kmeans::sums_bytes::<T>(dimensions, sample.len() as u64, plan.groups)
            + plan.threads as u64 * kmeans::thread_bytes::<T>(dimensions);
        let _training = job.budget().reserve(bytes, "k-means")?;
        let stop = || job.check_cancelled().is_err();
        let upper =
            kmeans::train(&self.space, &sampled, plan.groups as usize, ITERATIONS, plan.threads, &stop);
        job.check_cancelled()?;
        Ok((HeldOut { ids, packed, tops, _reservation: held_out_memory }, upper))
    }
}

/// Returns the draw of a vector.
pub(crate) fn draw(id: u64, seed: u64) -> u64 {
    mixed(id ^ mixed(seed))
}

/// Returns the end of the draws of which `count` of `all` are expected.
fn below(count: u64, all: u64) -> u64 {
    if count >= all { u64::MAX } else { (count as f64 / all as f64 * 2f64.powi(64)) as u64 }
}

/// Returns a number that looks random (splitmix64).
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

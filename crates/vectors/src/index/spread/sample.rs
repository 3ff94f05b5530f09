//! Chooses the sample of all vectors on which centroids are trained, and the vectors that are held out of the sample to
//! measure recall. A *draw* is a pseudo-random number that depends only on the id of a vector and the seed. The draw
//! decides if a vector is sampled or held out.

use std::{ops::Range, sync::Mutex};

use inshore_store::{CheckedFile, Job};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::{
    Element, Error, Index, Result, VectorLayout, Vectors, VectorsInfo,
    index::{Clustered, build::draw, info::METRICS, no_index_of, recall::for_vectors},
};

/// The largest size of a sample in bytes. The client holds the sample in memory.
const SAMPLE_BYTES_MAX: u64 = 8 << 20;
/// The smallest number of sampled vectors for each list, if the number of lists is the default.
const LIST_SAMPLE: u64 = 16;
/// The default size of an average list in bytes.
const LIST_BYTES: u64 = 16 << 10;
/// The smallest default number of vectors of an average list.
const LIST_VECTORS_MIN: u64 = 32;
/// The number of vectors that are held out to measure recall. At most an eighth of all vectors is held out.
const HELD_OUT: u64 = 256;

/// The plan of a sample. A vector is in the sample if its draw lies in a range. The draw of a vector depends only on
/// its id and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplePlan {
    /// The seed.
    pub seed: u64,
    /// A vector is held out if its draw is below this number.
    pub held_out: u64,
    /// A vector is in the sample if its draw is below this number and the vector is not held out.
    pub end: u64,
    /// The number of lists to train.
    pub lists: u64,
    /// The largest number of vectors that are in the sample or held out.
    pub rows_max: u64,
}

impl SamplePlan {
    /// Returns true if the vector with the id `id` is in the sample or held out.
    pub fn contains(&self, id: u64) -> bool {
        draw(id, self.seed) < self.end
    }

    /// Returns true if the vector with the id `id` is held out of the sample.
    pub fn holds_out(&self, id: u64) -> bool {
        draw(id, self.seed) < self.held_out
    }

    fn ids(self, ids: Range<u64>) -> impl Iterator<Item = u64> {
        ids.filter(move |id| self.contains(*id))
    }
}

/// Plans the sample and the number of lists. The plan does not depend on the budget, the nodes and the shards.
///
/// # Errors
/// - Returns [`Error::BadOption`] if the metric is not L2, inner product or cosine, or if the number of lists is out of
///   range.
/// - Returns [`Error::BadDataset`] if the element type of the vectors is not `f32`, `u8` or `i8`.
pub fn plan_sample(vectors: &VectorsInfo, options: &Index) -> Result<SamplePlan> {
    let bad = |option, found: String, expected: String| Err(Error::BadOption { option, found, expected });
    if !matches!(vectors.element, Element::F32 | Element::U8 | Element::I8) {
        return Err(no_index_of(vectors));
    }
    if !METRICS.contains(&options.metric) {
        return bad("metric", options.metric.name().to_string(), "l2, ip or cosine".to_string());
    }
    let (count, row_bytes) = (vectors.vectors, vectors.row_bytes() as u64);
    let held_out = HELD_OUT.min(count / 8);
    let most = (SAMPLE_BYTES_MAX / row_bytes).max(1).min(count);
    let average = (LIST_BYTES / (row_bytes + 4)).max(LIST_VECTORS_MIN);
    let lists = match options.lists {
        None => count.div_ceil(average).min(most / LIST_SAMPLE).max(1),
        Some(lists) if (1..=most).contains(&lists) => lists,
        Some(lists) => return bad("lists", lists.to_string(), format!("1 to {most}, those of the sample")),
    };
    let sample = (2 * LIST_SAMPLE * lists).min(most);
    let held_out_end = below(held_out, count);
    let end = held_out_end.saturating_add(below(sample, count));
    // The bound guarantees that the vectors fit into the reserved memory. A larger number is practically impossible.
    let rows_max = (sample + held_out + sample / 8 + 1024).min(count);
    Ok(SamplePlan { seed: options.seed, held_out: held_out_end, end, lists, rows_max })
}

/// Returns the number below which the draws of `count` among `all` vectors are expected.
fn below(count: u64, all: u64) -> u64 {
    if count >= all { u64::MAX } else { (count as f64 / all as f64 * 2f64.powi(64)) as u64 }
}

/// Calls `each` with the id and the elements of each vector of a shard that is in the sample or held out, by ascending
/// ids. The ids of the shard's vectors are consecutive and begin with `first_id`.
///
/// The memory consists of two copies of the sampled vectors.
///
/// # Errors
/// - Returns the errors of `each`.
/// - Returns [`Error::BadDataset`] if the length of the file is not a multiple of the size of a vector.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub fn sample_of_shard(
    job: &Job,
    layout: VectorLayout,
    file: &CheckedFile,
    first_id: u64,
    plan: &SamplePlan,
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    match layout.element {
        Element::F32 => sample::<f32>(job, layout, file, first_id, plan, each),
        Element::U8 => sample::<u8>(job, layout, file, first_id, plan, each),
        Element::I8 => sample::<i8>(job, layout, file, first_id, plan, each),
        Element::F16 | Element::Bf16 | Element::Bits => {
            Err(no_index_of(&layout.info(file.name(), file.len())?))
        }
    }
}

fn sample<T: Clustered>(
    job: &Job,
    layout: VectorLayout,
    file: &CheckedFile,
    first_id: u64,
    plan: &SamplePlan,
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let vectors = Vectors::shard(layout.info(file.name(), file.len())?, first_id, file)?;
    let info = vectors.info();
    let count = plan.ids(first_id..first_id + info.vectors).count() as u64;
    let row_bytes = info.row_bytes() as u64;
    // The memory is that of the elements and of the pairs of id and elements during the sort.
    let _memory = job.budget().reserve(2 * count * (row_bytes + 32), "the sample of vectors")?;
    let found = Mutex::new(Vec::<(u64, Vec<T>)>::with_capacity(count as usize));
    let shape = (info.vectors, info.dimensions);
    for_vectors::<T, _>(
        job,
        file,
        shape,
        || (),
        |(), first, rows| {
            for (id, row) in (first_id + first..).zip(rows.chunks_exact(info.dimensions)) {
                if plan.contains(id) {
                    found.lock().expect("no panic under this lock").push((id, row.to_vec()));
                }
            }
            Ok(())
        },
    )?;
    let mut found = found.into_inner().expect("no panic under this lock");
    found.sort_unstable_by_key(|(id, _)| *id);
    found.iter().try_for_each(|(id, row)| each(*id, row.as_bytes()))
}

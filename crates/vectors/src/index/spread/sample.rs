//! The sample of all vectors on which centroids are trained, and the vectors that are held out of it.

use std::{ops::Range, sync::Mutex};

use inshore_store::{CheckedFile, Job};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::{
    Element, Error, Index, Result, VectorLayout, Vectors, VectorsInfo,
    index::{Clustered, build::draw, info::METRICS, no_index_of, recall::for_vectors},
};

/// The most bytes of a sample. It is in the memory of the client.
const SAMPLE_BYTES_MAX: u64 = 8 << 20;
/// The vectors of the sample for each list.
const LIST_SAMPLE: u64 = 16;
/// The bytes of an average list, and its fewest vectors.
const LIST_BYTES: u64 = 16 << 10;
const LIST_VECTORS_MIN: u64 = 32;
/// The vectors that are held out to measure recall, at most an eighth of all.
const HELD_OUT: u64 = 256;

/// The vectors of a sample: those whose draws are in a range. The draw of a vector follows from its id and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplePlan {
    /// The seed.
    pub seed: u64,
    /// The draws of vectors that are held out are below this number.
    pub held_out: u64,
    /// The draws of the other vectors of the sample are below this number.
    pub end: u64,
    /// The number of lists that are trained.
    pub lists: u64,
    /// The largest number of vectors of the sample, with those that are held out.
    pub rows_max: u64,
}

impl SamplePlan {
    /// Returns whether a vector is in the sample, or held out.
    pub fn contains(&self, id: u64) -> bool {
        draw(id, self.seed) < self.end
    }

    /// Returns whether a vector is held out of the sample.
    pub fn holds_out(&self, id: u64) -> bool {
        draw(id, self.seed) < self.held_out
    }

    fn ids(self, ids: Range<u64>) -> impl Iterator<Item = u64> {
        ids.filter(move |id| self.contains(*id))
    }
}

/// Plans the sample and the number of lists. The plan does not depend on memory, nodes and shards.
///
/// # Errors
/// Bad options; vectors of other elements than f32, u8 and i8.
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
    // So many more than expected never come; the bound keeps the memory that is reserved.
    let rows_max = (sample + held_out + sample / 8 + 1024).min(count);
    Ok(SamplePlan { seed: options.seed, held_out: held_out_end, end, lists, rows_max })
}

/// Returns the number below which `count` of `all` draws are expected.
fn below(count: u64, all: u64) -> u64 {
    if count >= all { u64::MAX } else { (count as f64 / all as f64 * 2f64.powi(64)) as u64 }
}

/// Passes the vectors of a shard that are in the sample to `each`, by rising ids, with their elements. The ids of the
/// shard's vectors follow each other, from `first_id` on.
///
/// Memory: the vectors of the sample.
///
/// # Errors
/// A file that has no whole number of vectors; too little memory; I/O and damage; cancellation; the errors of `each`.
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
    // The elements, and the pairs that are sorted.
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

//! Plans a build of hash tables. The plan states the number and size of the tables, and the memory of each step.

use inshore_sortreduce::rows::smallest_row_memory_bytes_for;
use inshore_store::{Job, format_bytes};
use serde::Serialize;

use super::functions::{BITS_OF_CODE_MAX, BUCKETS_MAX, Family, METRICS, Shape, TABLES_MAX, Values};
use crate::{Error, Metric, Result, VectorsInfo, index::pass_bytes};

/// The default number of tables. Lv et al. (VLDB 2007) report that 2 to 20 tables are enough with multi-probe LSH.
const TABLES: u64 = 8;
/// The default number of vectors in an average bucket.
const BUCKET_VECTORS: u64 = 32;
/// The largest default number of functions of a table.
const BITS_MAX: u32 = 24;
/// The size of a sorted record in bytes. A record consists of a bucket number and a row number, 8 bytes each.
pub(super) const ENTRY_BYTES: usize = 16;
/// The largest number of sampled vectors.
const SAMPLE: u64 = 1024;
/// The largest number of vectors on which recall is measured.
const HELD_OUT: u64 = 256;
/// The largest size of a sample in bytes, unless the sample has only [`SAMPLE_MIN`] vectors. The vectors on which
/// recall is measured have the same limit.
const SAMPLE_BYTES: u64 = 2 << 20;
/// The smallest number of sampled vectors, if the dataset has as many.
const SAMPLE_MIN: u64 = 16;
/// The number of vectors below which recall is not measured.
pub(super) const FEW: u64 = 64;
/// The number of bytes of records after which a thread passes its records to the sort.
pub(super) const BATCH_BYTES: usize = 256 << 10;
/// The size of a check block of the files, in bytes.
pub(super) const CHECK_BYTES: usize = 4 << 10;
/// The sizes of the write buffers of the files, in bytes.
pub(super) const LIST_BUFFER_BYTES: usize = 1 << 20;
pub(super) const SMALL_BUFFER_BYTES: usize = 64 << 10;

/// The options of [`crate::build_lsh`].
#[derive(Clone, Debug, PartialEq)]
pub struct Lsh {
    /// The metric of the searches: L2, cosine or Hamming.
    pub metric: Metric,
    /// The number of tables, from 1 to [`TABLES_MAX`]. The default is 8. More tables raise the recall and take more
    /// flash.
    pub tables: Option<u64>,
    /// The number of hash functions of a table, from 1 to [`BITS_OF_CODE_MAX`]. The default gives an average bucket
    /// between 32 and 64 vectors, if the number of buckets is not set either.
    pub bits: Option<u64>,
    /// The number of buckets of a table, from 1 to [`BUCKETS_MAX`]. The codes are distributed over the buckets. By
    /// default a table of n functions has 2^n buckets, but at most [`BUCKETS_MAX`].
    pub buckets: Option<u64>,
    /// The width of a cell of p-stable projections, in the unit of the vectors. The default is twice the standard
    /// deviation of the projections. Other families have no width.
    pub width: Option<f64>,
    /// The seed that determines the functions and the sample.
    pub seed: u64,
}

impl Default for Lsh {
    /// Returns options for the Euclidean distance, with the default of each other option.
    fn default() -> Lsh {
        Lsh { metric: Metric::L2, tables: None, bits: None, buckets: None, width: None, seed: 0 }
    }
}

/// The plan of a build of hash tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LshPlan {
    /// The family of the hash functions.
    pub family: Family,
    /// The number of tables.
    pub tables: u64,
    /// The number of hash functions of a table.
    pub bits: u64,
    /// The number of buckets of a table.
    pub buckets: u64,
    /// The number of sampled vectors that adapt the functions to the data.
    pub sample: u64,
    /// The number of vectors on which recall is measured.
    pub held_out: u64,
    /// The number of worker threads.
    pub threads: usize,
    /// The memory of the sort, in bytes.
    pub sort_bytes: u64,
    /// The smallest memory with which the build succeeds, in bytes.
    pub smallest_bytes: u64,
    /// The number of bytes that the build reads from flash, without the sample and the measurement of recall.
    pub read_bytes: u64,
    /// The number of bytes that the build writes to flash.
    pub written_bytes: u64,
}

impl std::fmt::Display for LshPlan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} tables of {} buckets, {} functions each ({}); reads {}, writes {}; sorts in {}, {} threads; the smallest \
             memory is {}",
            self.tables,
            self.buckets,
            self.bits,
            self.family.name(),
            format_bytes(self.read_bytes),
            format_bytes(self.written_bytes),
            format_bytes(self.sort_bytes),
            self.threads,
            format_bytes(self.smallest_bytes),
        )
    }
}

impl Lsh {
    /// Checks the options, and returns the family of the metric.
    fn check(&self, vectors: &VectorsInfo) -> Result<Family> {
        let range = |option, found: Option<u64>, most: u64| match found {
            Some(found) if !(1..=most).contains(&found) => {
                Err(Error::BadOption { option, found: found.to_string(), expected: format!("1 to {most}") })
            }
            _ => Ok(()),
        };
        let found = self.metric.name().to_string();
        let Some(family) = Family::of(self.metric) else {
            let names = METRICS.map(Metric::name).join(", ");
            let expected = format!("one of {names}: there are no hash functions for {found}");
            return Err(Error::BadOption { option: "metric", found, expected });
        };
        self.metric.check(vectors.element)?;
        range("tables", self.tables, TABLES_MAX)?;
        range("bits", self.bits, BITS_OF_CODE_MAX)?;
        range("buckets", self.buckets, BUCKETS_MAX)?;
        match self.width {
            Some(_) if family != Family::PStable => {
                let expected = "no width: only hash functions for l2 have cells".to_string();
                Err(Error::BadOption {
                    option: "width",
                    found: self.width.unwrap_or(0.0).to_string(),
                    expected,
                })
            }
            Some(width) if !(width > 0.0 && width.is_finite()) => {
                let expected = "a positive number".to_string();
                Err(Error::BadOption { option: "width", found: width.to_string(), expected })
            }
            _ => Ok(family),
        }
    }

    /// Returns the shape of the hash functions. If the options state no width, the width is 1 until the build has read
    /// the sample.
    fn shape(&self, vectors: &VectorsInfo, family: Family) -> Shape {
        let by_vectors = (vectors.vectors / BUCKET_VECTORS).max(2).ilog2().clamp(1, BITS_MAX);
        let by_buckets = self.buckets.map(|buckets| u64::from(buckets.next_power_of_two().ilog2().max(1)));
        let bits = self.bits.or(by_buckets).unwrap_or(by_vectors.into());
        Shape {
            family,
            element: vectors.element,
            dimensions: vectors.dimensions,
            tables: self.tables.unwrap_or(TABLES),
            bits,
            buckets: self.buckets.unwrap_or((1 << bits).min(BUCKETS_MAX)),
            width: self.width.unwrap_or(1.0),
            seed: self.seed,
        }
    }
}

/// Plans a build. The plan uses the memory that is free in the budget of `job`.
///
/// # Errors
/// - Returns [`Error::BadOption`] if an option is out of range, or if the metric has no hash functions.
/// - Returns [`Error::Store`] if the budget has too little free memory.
pub fn plan_lsh(job: &Job, vectors: &VectorsInfo, options: &Lsh) -> Result<LshPlan> {
    Ok(plan_shape(job, vectors, options)?.0)
}

/// Plans a build, and returns the plan with the shape of the hash functions.
///
/// # Errors
/// Returns the errors of [`plan_lsh`].
pub(super) fn plan_shape(job: &Job, vectors: &VectorsInfo, options: &Lsh) -> Result<(LshPlan, Shape)> {
    let family = options.check(vectors)?;
    let shape = options.shape(vectors, family);
    let (count, row_bytes) = (vectors.vectors, vectors.row_bytes() as u64);
    let fitting = |most: u64| most.min(SAMPLE_BYTES / row_bytes).max(SAMPLE_MIN).min(count);
    let held_out = if count < FEW { 0 } else { fitting(HELD_OUT).min(count / 8) };
    let threads = job.budget().threads();
    let entries = count * shape.tables;
    let sorted = entries * ENTRY_BYTES as u64;
    // The sort holds its memory while vectors are hashed, and while buckets are written.
    let hashing = pass_bytes::<u8>(job, vectors.row_bytes())
        + threads as u64 * (Values::bytes(&shape) + BATCH_BYTES as u64 + shape.tables * ENTRY_BYTES as u64);
    let writing = 2 * (LIST_BUFFER_BYTES + 2 * SMALL_BUFFER_BYTES) as u64 + (2 << 20);
    let beside_sort = shape.memory_bytes() + hashing.max(writing);
    let smallest_sort = smallest_row_memory_bytes_for(threads, sorted);
    let sampling = sample_bytes(&shape, fitting(SAMPLE).max(held_out)) + (2 << 20);
    let smallest_bytes = (beside_sort + smallest_sort).max(sampling + shape.memory_bytes());
    let plan = LshPlan {
        family,
        tables: shape.tables,
        bits: shape.bits,
        buckets: shape.buckets,
        sample: fitting(SAMPLE),
        held_out,
        threads,
        sort_bytes: job.budget().free_bytes().saturating_sub(beside_sort).max(smallest_sort),
        smallest_bytes,
        read_bytes: count * row_bytes + sorted,
        written_bytes: sorted
            + entries * crate::index::id_bytes(count) as u64
            + (shape.all_buckets() + 1) * 8,
    };
    job.budget().need(smallest_bytes, || format!("building an index of {}", vectors.name))?;
    Ok((plan, shape))
}

/// Returns the memory, in bytes, that `count` sampled vectors and the sums over these vectors take.
pub(super) fn sample_bytes(shape: &Shape, count: u64) -> u64 {
    let row_bytes = shape.element.row_bytes(shape.dimensions) as u64;
    let sums = match shape.family {
        Family::BitSampling => 4 * shape.row_bits(),
        Family::Hyperplanes | Family::PStable => 24 * shape.dimensions as u64,
    };
    count * (row_bytes + 8) + sums
}

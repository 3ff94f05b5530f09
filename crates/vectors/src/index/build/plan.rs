//! Plans a build. The plan states the numbers of lists and groups, the sizes of the samples, and the memory of each
//! step.

use inshore_sortreduce::rows::smallest_row_memory_bytes_for;
use inshore_store::{Job, format_bytes};
use serde::Serialize;

use super::{
    COPIES_MAX, Index,
    closure::{CANDIDATES, LISTS_MAX},
    sort::KEY_BYTES,
};
use crate::{
    Element, Error, Result, VectorsInfo,
    heaps::Nearest,
    index::{
        Clustered,
        codes::{
            CodeWriter, measure_bytes,
            shape::{CODE_BITS, Shape},
        },
        compare::{Comparer, Packed},
        info::{METRICS, id_bytes},
        kmeans, no_index_of,
        recall::pass_bytes,
    },
    topk::TopK,
};

/// The size of an average list in bytes.
const LIST_BYTES: usize = 16 << 10;
/// The smallest number of vectors in an average list.
const LIST_VECTORS_MIN: usize = 32;
/// The size of an average list of codes in bytes. The next constant is the largest size of an average list of the
/// vectors themselves, if the index has codes.
const CODE_LIST_BYTES: u64 = 24 << 10;
const CODED_LIST_BYTES_MAX: u64 = 1 << 20;
/// The size of a chunk of a list in bytes, if the index has codes.
const CHUNK_BYTES: u64 = 64 << 10;
/// The number of vectors in a list is at most this number times the number of vectors in an average list.
const LIST_TIMES_MAX: u64 = 4;
/// The first sample has this number of rows for each group of lists. The next constant is the largest size of this
/// sample in bytes.
const GROUP_SAMPLE: u64 = 64;
const GROUP_SAMPLE_BYTES: u64 = 24 << 20;
/// The second sample has this number of rows for each list. The next constant is the largest size, in bytes, of the
/// sampled rows of one group.
const LIST_SAMPLE: u64 = 32;
const LIST_SAMPLE_BYTES: u64 = 6 << 20;
/// The number of iterations of k-means.
pub(super) const ITERATIONS: usize = 8;
/// When the nearest list of a vector is searched, the candidates are the lists of this number of nearest groups.
pub(super) const GROUPS_ASSIGNED: u64 = 8;
/// The number of held-out vectors. Recall is measured on these vectors. The next constant states how many neighbours of
/// each of them are searched.
pub(super) const HELD_OUT: u64 = 256;
pub(crate) const RECALL_K: u64 = 10;
/// Packed vectors of a batch, whose lists are found together.
const BATCH_BYTES: u64 = 2 << 20;
const BATCH_ROWS_MAX: u64 = 4096;
/// The size, in bytes, of a checksum block and of the write buffers of the files of an index.
pub(super) const CHECK_BYTES: usize = 4 << 10;
pub(super) const LIST_BUFFER_BYTES: usize = 1 << 20;
pub(super) const SMALL_BUFFER_BYTES: usize = 64 << 10;

/// The plan of a build.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BuildPlan {
    /// The number of lists that are trained. The index may have fewer, since some lists get no vectors, or more, since
    /// large lists are cut.
    pub lists: u64,
    /// The number of groups of lists.
    pub groups: u64,
    /// The largest number of vectors in a list.
    pub list_vectors_max: u64,
    /// A list is filled with copies until it has this number of vectors. The value is `None` if the index has no
    /// copies.
    pub copied_vectors_max: Option<u64>,
    /// The largest number of vectors in a chunk of a list. The value is `None` if each list is one chunk, as it is in an
    /// index without codes.
    pub chunk_vectors: Option<u64>,
    /// The number of vectors on which the centroids of groups are trained.
    pub group_sample: u64,
    /// The number of vectors on which the centroids of lists are trained.
    pub list_sample: u64,
    /// The number of worker threads.
    pub threads: usize,
    /// The memory of a sort in bytes.
    pub sort_bytes: u64,
    /// True if the centroids of all lists stay in memory during the assignment.
    pub holds_centroids: bool,
    /// The smallest memory budget, in bytes, with which the build works.
    pub smallest_bytes: u64,
    /// The number of bytes that the build reads.
    pub read_bytes: u64,
    /// The number of bytes that the build writes.
    pub written_bytes: u64,
    /// The number of fused multiply-add operations that the build computes.
    pub multiplications: u64,
}

impl std::fmt::Display for BuildPlan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} lists in {} groups, trained on {} vectors; reads {}, writes {}, {:.1}e9 multiplications; sorts in {}, \
             centroids {}, {} threads; the smallest memory is {}",
            self.lists,
            self.groups,
            self.list_sample,
            format_bytes(self.read_bytes),
            format_bytes(self.written_bytes),
            self.multiplications as f64 / 1e9,
            format_bytes(self.sort_bytes),
            if self.holds_centroids { "in memory" } else { "on flash" },
            self.threads,
            format_bytes(self.smallest_bytes),
        )
    }
}

/// Plans a build of an index. The plan uses the memory that is free in the budget of `job`.
///
/// # Errors
/// - Returns [`crate::Error::BadOption`] if an option is out of range.
/// - Returns [`Error::Store`] if the budget has too little free memory.
pub fn plan_index(job: &Job, vectors: &VectorsInfo, options: &Index) -> Result<BuildPlan> {
    plan_beside(job, vectors, options, |_, _| 0)
}

/// Plans a build as [`plan_index`] does, and leaves memory beside the sort free. `beside` returns the number of these
/// bytes for a plan.
///
/// # Errors
/// Returns the errors of [`plan_index`].
pub(super) fn plan_beside(
    job: &Job,
    vectors: &VectorsInfo,
    options: &Index,
    beside: impl Fn(&BuildPlan, &Memory) -> u64,
) -> Result<BuildPlan> {
    if !METRICS.contains(&options.metric) {
        let found = options.metric.name().to_string();
        let advice = match options.metric {
            crate::Metric::Hamming => {
                "`nearest index --lsh --metric hamming` builds hash tables in a local store"
            }
            _ => "no kind of index has this metric, and an exact search needs none",
        };
        let expected = format!("l2, ip or cosine for inverted lists: {advice}");
        return Err(Error::BadOption { option: "metric", found, expected });
    }
    let most = vectors.vectors.min(1 << 31);
    if let Some(lists) = options.lists
        && !(1..=most).contains(&lists)
    {
        let expected = format!("1 to {most}");
        return Err(Error::BadOption { option: "lists", found: lists.to_string(), expected });
    }
    if let Some(copies) = options.copies
        && !(2..=COPIES_MAX).contains(&copies)
    {
        let expected = format!("2 to {COPIES_MAX}");
        return Err(Error::BadOption { option: "copies", found: copies.to_string(), expected });
    }
    if let Some(bits) = options.codes {
        let refused = |found: String, expected: &str| {
            Err(Error::BadOption { option: "codes", found, expected: expected.to_string() })
        };
        if !CODE_BITS.contains(&bits) {
            return refused(bits.to_string(), "1, 2 or 4");
        }
        if options.copies.is_some() {
            return refused(bits.to_string(), "none beside copies: an index has copies or codes");
        }
    }
    let (mut plan, memory) = match vectors.element {
        Element::F32 => plan_elements::<f32>(job, vectors, options),
        Element::U8 => plan_elements::<u8>(job, vectors, options),
        Element::I8 => plan_elements::<i8>(job, vectors, options),
        Element::F16 | Element::Bf16 | Element::Bits => return Err(no_index_of(vectors)),
    };
    let beside = beside(&plan, &memory);
    plan.smallest_bytes += beside;
    job.budget().need(plan.smallest_bytes, || format!("building an index of {}", vectors.name))?;
    // The sort has the free memory, which is at least `beside` more than the smallest memory of a sort.
    plan.sort_bytes -= beside;
    Ok(plan)
}

/// Returns how many vectors an average list has if there are `count` vectors, and a vector and its row number take
/// `entry_bytes` bytes. `codes` is the shape of the codes, if the index has any.
pub(super) fn default_list_vectors(codes: Option<&Shape>, count: u64, entry_bytes: u64) -> u64 {
    match codes {
        None => (LIST_BYTES as u64 / entry_bytes).max(LIST_VECTORS_MIN as u64),
        Some(shape) => coded_average(shape, count, entry_bytes),
    }
}

/// Returns the largest number of lists that are trained for a group.
pub(super) fn group_lists_max(plan: &BuildPlan) -> u64 {
    4 * plan.lists.div_ceil(plan.groups) + 16
}

fn plan_elements<T: Clustered>(job: &Job, vectors: &VectorsInfo, options: &Index) -> (BuildPlan, Memory) {
    let (count, dimensions, row_bytes) = (vectors.vectors, vectors.dimensions, vectors.row_bytes() as u64);
    let entry_bytes = row_bytes + id_bytes(count) as u64;
    let shape = shape_of(vectors, options);
    let average = default_list_vectors(shape.as_ref(), count, entry_bytes);
    let lists = options.lists.unwrap_or_else(|| count.div_ceil(average).min(1 << 31));
    let average = count.div_ceil(lists);
    // A vector is compared with the centroids of all groups, and then with those of the lists in the nearest groups.
    // With this number of groups, the costs of the two steps are equal.
    let groups = (((lists * GROUPS_ASSIGNED) as f64).sqrt().ceil() as u64).min(lists.div_ceil(4)).max(1);
    let group_sample = (groups * GROUP_SAMPLE).min(GROUP_SAMPLE_BYTES / row_bytes).max(groups).min(count);
    let list_sample = (lists * LIST_SAMPLE).min(count);
    let compared = groups + (GROUPS_ASSIGNED * lists).div_ceil(groups).min(lists);
    let training = ITERATIONS as u64 * (group_sample * groups + list_sample * lists.div_ceil(groups));
    let multiplications = (training + list_sample * groups + count * compared) * dimensions as u64;
    let list_vectors_max = (average * LIST_TIMES_MAX).min(count);
    // The sort has at most `times` rows for each vector.
    let times = if options.copies.is_some() { LISTS_MAX as u64 } else { 1 };
    let copied = options.copies.map_or(0, |copies| copies.min(LISTS_MAX as u64));
    let mut plan = BuildPlan {
        lists,
        groups,
        list_vectors_max,
        copied_vectors_max: options.copies.map(|copies| average * copies),
        chunk_vectors: shape.map(|_| (CHUNK_BYTES / entry_bytes).clamp(1, list_vectors_max)),
        group_sample,
        list_sample,
        threads: job.budget().threads(),
        sort_bytes: 0,
        holds_centroids: true,
        smallest_bytes: 0,
        read_bytes: count * (4 * row_bytes + entry_bytes * (1 + copied)) + list_sample * row_bytes,
        written_bytes: count * (row_bytes + 2 * entry_bytes * (1 + copied)) + list_sample * row_bytes,
        multiplications,
    };
    if let Some(shape) = shape {
        let bytes = shape.file_bytes(count, lists);
        (plan.read_bytes, plan.written_bytes) = (plan.read_bytes + 2 * bytes, plan.written_bytes + bytes);
    }
    let memory = Memory::of::<T>(job, vectors, &plan);
    let (writing, measuring) = match shape {
        Some(shape) => {
            let codes = CodeWriter::bytes(&shape, list_vectors_max, plan.threads)
                + (LIST_BUFFER_BYTES + SMALL_BUFFER_BYTES) as u64 * 2;
            (memory.writing + codes, measuring_bytes::<T>(&shape, &plan, vectors))
        }
        None => (memory.writing, 0),
    };
    let free = job.budget().free_bytes();
    let held = memory.held_out + memory.upper;
    let lower = lists * row_bytes;
    // Copies are chosen by the distances between centroids, for which all centroids must be in memory.
    plan.holds_centroids = lower <= free / 4 || options.copies.is_some();
    let lower = if plan.holds_centroids { lower } else { 0 };
    // The sort of samples exists while lists are trained. The sort of vectors exists while vectors are assigned and
    // lists are written. Each of these steps needs its own memory in addition to the memory of a sort.
    let beside_sort = memory.pass.max(memory.training).max(writing) + lower;
    let smallest_sort =
        smallest_row_memory_bytes_for(plan.threads, count * times * (KEY_BYTES as u64 + row_bytes))
            .max(row_bytes * 128 * (plan.threads as u64 + 2));
    plan.smallest_bytes = held + (beside_sort + smallest_sort).max(memory.first_sample).max(measuring);
    plan.sort_bytes = free.saturating_sub(held + beside_sort).max(smallest_sort);
    (plan, memory)
}

/// Returns the form of the codes, if the options ask for codes.
pub(super) fn shape_of(vectors: &VectorsInfo, options: &Index) -> Option<Shape> {
    let bits = options.codes?;
    Some(Shape { bits, dimensions: vectors.dimensions, id_bytes: id_bytes(vectors.vectors) })
}

/// Returns the number of vectors in an average list of an index with codes. The number is that of a list of codes of
/// [`CODE_LIST_BYTES`], but lists are smaller if there are few vectors: a query probes at least a few lists, and should
/// not compare a large part of all vectors.
fn coded_average(shape: &Shape, count: u64, entry_bytes: u64) -> u64 {
    let of_codes = CODE_LIST_BYTES / shape.entry_bytes();
    let of_root = (count as f64).sqrt() as u64 / 4;
    of_codes.min(of_root).min(CODED_LIST_BYTES_MAX / entry_bytes).max(LIST_VECTORS_MIN as u64)
}

/// Returns the memory, in bytes, in which one thread measures the recall of searches by codes.
fn measuring_bytes<T: Clustered>(shape: &Shape, plan: &BuildPlan, vectors: &VectorsInfo) -> u64 {
    let (row_bytes, entry_bytes) = (vectors.row_bytes() as u64, vectors.row_bytes() as u64 + 8);
    let chunk_bytes = plan.chunk_vectors.unwrap_or(plan.list_vectors_max) * entry_bytes;
    // Lists are cut, so there may be more of them than planned.
    let lists = 2 * plan.lists;
    let directory = (lists + 1) * 8 + plan.groups * (row_bytes + 8) + shape.fixed_bytes();
    directory
        + measure_bytes::<T>(shape, (RECALL_K + 1, lists), (plan.list_vectors_max, chunk_bytes))
        + flash_bytes(plan, row_bytes)
        + (1 << 20)
}

/// The memory, in bytes, that each step of a build reserves.
pub(super) struct Memory {
    /// The memory of the held-out vectors and their neighbours.
    pub held_out: u64,
    /// The memory of the upper centroids, which are the centroids of groups.
    pub upper: u64,
    /// The memory of step 1, which reads the first sample.
    pub first_sample: u64,
    /// The memory of a pass over the vectors that finds their groups or lists.
    pub pass: u64,
    /// The memory of step 3, which trains the centroids of lists.
    pub training: u64,
    /// The memory of step 5, which writes the lists.
    pub writing: u64,
}

impl Memory {
    pub fn of<T: Clustered>(job: &Job, vectors: &VectorsInfo, plan: &BuildPlan) -> Memory {
        let (dimensions, row_bytes) = (vectors.dimensions, vectors.row_bytes() as u64);
        let threads = plan.threads as u64;
        let kmeans = kmeans::thread_bytes::<T>(dimensions);
        let sums = |rows, count| kmeans::sums_bytes::<T>(dimensions, rows, count);
        let held_out =
            2 * HELD_OUT * (Packed::<T>::bytes_each(dimensions) + row_bytes + TopK::bytes(RECALL_K + 1) + 64);
        let upper = plan.groups * (2 * row_bytes + 32);
        let pass = pass_bytes::<T>(job, dimensions);
        let batch = batch_rows::<T>(dimensions);
        // For each vector, a batch holds the packed elements, the nearest groups and their pairs, a heap, and the rows
        // for the sort.
        let rows = if plan.copied_vectors_max.is_some() { LISTS_MAX as u64 } else { 1 };
        let each = Packed::<T>::bytes_each(dimensions)
            + Nearest::bytes_each()
            + TopK::bytes(GROUPS_ASSIGNED)
            + 8 * GROUPS_ASSIGNED
            + 16
            + rows * (row_bytes + KEY_BYTES as u64)
            + if plan.copied_vectors_max.is_some() { TopK::bytes(CANDIDATES as u64) } else { 0 };
        let finder = 2 * Comparer::<T>::bytes(dimensions) + flash_bytes(plan, row_bytes);
        let group_rows = group_rows_max::<T>(plan, dimensions);
        let copies = plan
            .copied_vectors_max
            .map_or(0, |most| most * (row_bytes + 8) + 2 * (LIST_BUFFER_BYTES + SMALL_BUFFER_BYTES) as u64);
        Memory {
            held_out,
            upper,
            first_sample: plan.group_sample * (row_bytes + 8)
                + (pass).max(sums(plan.group_sample, plan.groups) + threads * kmeans),
            pass: pass + threads * (batch * each + finder),
            training: threads * (group_rows * row_bytes + sums(group_rows, group_lists_max(plan)) + kmeans)
                + (1 << 20)
                + 2 * SMALL_BUFFER_BYTES as u64,
            writing: 2 * (LIST_BUFFER_BYTES + 4 * SMALL_BUFFER_BYTES) as u64
                + plan.list_vectors_max * (row_bytes + 8)
                + copies
                + flash_bytes(plan, row_bytes)
                + (2 << 20),
        }
    }
}

/// Returns the memory, in bytes, in which a thread reads centroids of groups from flash.
pub(super) fn flash_bytes(plan: &BuildPlan, row_bytes: u64) -> u64 {
    16 * (8 * plan.lists.div_ceil(plan.groups) * row_bytes + (64 << 10))
}

pub(super) fn batch_rows<T: Clustered>(dimensions: usize) -> u64 {
    (BATCH_BYTES / Packed::<T>::bytes_each(dimensions)).clamp(32, BATCH_ROWS_MAX)
}

/// Returns how many rows of a group are sampled at most.
pub(super) fn group_rows_max<T: Clustered>(plan: &BuildPlan, dimensions: usize) -> u64 {
    let average = plan.list_sample.div_ceil(plan.groups);
    let row_bytes = (dimensions * size_of::<T>()) as u64;
    (3 * average).min(LIST_SAMPLE_BYTES / row_bytes).max(average.min(64)).max(1)
}

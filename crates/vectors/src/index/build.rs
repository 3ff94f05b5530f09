//! Builds an index: samples, k-means, assignment, and a sort by list.
//!
//! ```text
//!   1 sample   vectors ─► sample of all ─► k-means ─► upper centroids            one pass over the vectors
//!   2 gather   vectors ─► larger sample ─► nearest group ─► sort by group         one pass
//!   3 train    the sample of each group ─► k-means ─► the centroids of its lists
//!   4 assign   vectors ─► nearest list, by both levels ─► sort by list            one pass
//!   5 write    list by list: vectors, ids, centroid
//! ```
//!
//! The samples have a fixed size, and the second one goes through a sort, so that the same vectors, options and seed give
//! the same lists for every budget and number of threads. All of it streams: memory holds the first sample, then the
//! centroids, blocks of vectors and the buffers of a sort.
//!
//! A list has at most four times as many vectors as the average one. A larger cluster is cut into lists of one
//! centroid, which are probed together, so that no read grows with the number of equal vectors. A centroid that no
//! vector is nearest to has no list.
//!
//! # Cost
//!
//! Three reads of the vectors, one write and one read of the sort's runs (if they do not fit), one write of the lists, and
//! for each vector one multiplication for each dimension and centroid that it is compared with: the upper ones, and those of
//! [`GROUPS_ASSIGNED`] groups.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_sortreduce::rows::{
    FixedRows, KeepAll, RowConfig, RowSort, SortedRows, smallest_row_memory_bytes_for,
};
use inshore_store::{Buffer, CheckedFile, FileWriter, Job, Reservation, Store, format_bytes};
use serde::Serialize;
use zerocopy::IntoBytes;

use super::{
    Clustered,
    centroids::{Centroids, Lower},
    compare::{Comparer, Members, Packed, Space},
    dataset::{
        CENTROIDS, FIRSTS, GROUPS, IndexFiles, IndexInfo, KIND, LISTS, SPANS, VectorIndex, id_bytes,
        index_name,
    },
    heaps::{Nearest, Tops},
    kmeans,
    recall::{for_vectors, measure, pass_bytes},
    table::{MeasuredOn, RecallPoint, RecallTable},
};
use crate::{
    Element, Error, Metric, Result, Vectors, VectorsInfo, search::center_of_vectors, tiles::Instructions,
    topk::TopK,
};

/// Bytes of an average list.
const LIST_BYTES: usize = 16 << 10;
/// The fewest vectors of an average list.
const LIST_VECTORS_MIN: usize = 32;
/// A list has at most so many times the vectors of an average one.
const LIST_TIMES_MAX: u64 = 4;
/// Rows of the first sample for each group, and their bytes at most.
const GROUP_SAMPLE: u64 = 64;
const GROUP_SAMPLE_BYTES: u64 = 24 << 20;
/// Rows of the second sample for each list, and the bytes of a group's rows at most.
const LIST_SAMPLE: u64 = 32;
const LIST_SAMPLE_BYTES: u64 = 6 << 20;
/// Iterations of k-means.
const ITERATIONS: usize = 8;
/// Groups whose centroids are compared with a vector that looks for its list.
const GROUPS_ASSIGNED: u64 = 8;
/// Vectors on which recall is measured, and their neighbours.
const HELD_OUT: u64 = 256;
const RECALL_K: u64 = 10;
/// Fewer vectors than these are all in the samples, and none is held out.
const FEW: u64 = 64;
/// Packed vectors of a batch, whose lists are found together.
const BATCH_BYTES: u64 = 2 << 20;
const BATCH_ROWS_MAX: u64 = 4096;
/// Checks and buffers of the files of an index.
const CHECK_BYTES: usize = 4 << 10;
const LIST_BUFFER_BYTES: usize = 1 << 20;
const SMALL_BUFFER_BYTES: usize = 64 << 10;
/// Bytes before the elements in a row of a sort: a number of 4 bytes, and one of 8.
const KEY_BYTES: usize = 12;

/// The options of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    /// The metric of the searches.
    pub metric: Metric,
    /// The number of lists; by default as many as have 16 KiB, and at least 32 vectors.
    pub lists: Option<u64>,
    /// The number from which the samples follow.
    pub seed: u64,
}

impl Default for Index {
    /// Returns lists of 16 KiB for Euclidean distances.
    fn default() -> Index {
        Index { metric: Metric::L2, lists: None, seed: 0 }
    }
}

/// The result of a build.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Built {
    /// The new index.
    #[serde(flatten)]
    pub info: IndexInfo,
    /// The plan.
    pub plan: BuildPlan,
}

/// The plan of a build.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BuildPlan {
    /// Lists that are trained; some may get no vectors, and large ones are cut.
    pub lists: u64,
    /// Groups of lists.
    pub groups: u64,
    /// Vectors of the largest list.
    pub list_vectors_max: u64,
    /// Vectors that train the groups.
    pub group_sample: u64,
    /// Vectors that train the lists.
    pub list_sample: u64,
    /// Worker threads.
    pub threads: usize,
    /// Memory of the sorts.
    pub sort_bytes: u64,
    /// True if the centroids of all lists stay in memory during the assignment.
    pub holds_centroids: bool,
    /// The smallest memory that works.
    pub smallest_bytes: u64,
    /// Bytes that are read.
    pub read_bytes: u64,
    /// Bytes that are written.
    pub written_bytes: u64,
    /// Multiplications with additions.
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

/// Plans a build with the memory that is free in the budget of `job`.
///
/// # Errors
/// A bad option; too little memory.
pub fn plan_index(job: &Job, vectors: &VectorsInfo, options: &Index) -> Result<BuildPlan> {
    if !super::dataset::METRICS.contains(&options.metric) {
        let found = options.metric.name().to_string();
        let expected = "l2, ip or cosine: there is no index for counts".to_string();
        return Err(Error::BadOption { option: "metric", found, expected });
    }
    let most = vectors.vectors.min(1 << 31);
    if let Some(lists) = options.lists
        && !(1..=most).contains(&lists)
    {
        let expected = format!("1 to {most}");
        return Err(Error::BadOption { option: "lists", found: lists.to_string(), expected });
    }
    let plan = match vectors.element {
        Element::F32 => plan_elements::<f32>(job, vectors, options),
        Element::U8 => plan_elements::<u8>(job, vectors, options),
        Element::I8 => plan_elements::<i8>(job, vectors, options),
        Element::F16 | Element::Bf16 | Element::Bits => return Err(super::no_index_of(vectors)),
    };
    job.budget().need(plan.smallest_bytes, || format!("building an index of {}", vectors.name))?;
    Ok(plan)
}

fn plan_elements<T: Clustered>(job: &Job, vectors: &VectorsInfo, options: &Index) -> BuildPlan {
    let (count, dimensions, row_bytes) = (vectors.vectors, vectors.dimensions, vectors.row_bytes() as u64);
    let entry_bytes = row_bytes + id_bytes(count) as u64;
    let average = (LIST_BYTES as u64 / entry_bytes).max(LIST_VECTORS_MIN as u64);
    let lists = options.lists.unwrap_or_else(|| count.div_ceil(average).min(1 << 31));
    let average = count.div_ceil(lists);
    // A vector is compared with all groups, and with the lists of some groups: this number makes the two costs equal.
    let groups = (((lists * GROUPS_ASSIGNED) as f64).sqrt().ceil() as u64).min(lists.div_ceil(4)).max(1);
    let group_sample = (groups * GROUP_SAMPLE).min(GROUP_SAMPLE_BYTES / row_bytes).max(groups).min(count);
    let list_sample = (lists * LIST_SAMPLE).min(count);
    let compared = groups + (GROUPS_ASSIGNED * lists).div_ceil(groups).min(lists);
    let training = ITERATIONS as u64 * (group_sample * groups + list_sample * lists.div_ceil(groups));
    let multiplications = (training + list_sample * groups + count * compared) * dimensions as u64;
    let list_vectors_max = (average * LIST_TIMES_MAX).min(count);
    let mut plan = BuildPlan {
        lists,
        groups,
        list_vectors_max,
        group_sample,
        list_sample,
        threads: job.budget().threads(),
        sort_bytes: 0,
        holds_centroids: true,
        smallest_bytes: 0,
        read_bytes: count * (4 * row_bytes + entry_bytes) + list_sample * row_bytes,
        written_bytes: count * (row_bytes + 2 * entry_bytes) + list_sample * row_bytes,
        multiplications,
    };
    let memory = Memory::of::<T>(job, vectors, &plan);
    let free = job.budget().free_bytes();
    let held = memory.held_out + memory.upper;
    let lower = lists * row_bytes;
    plan.holds_centroids = lower <= free / 4;
    let lower = if plan.holds_centroids { lower } else { 0 };
    // The sorts are alive while samples are trained and vectors are assigned, and while lists are written.
    let beside_sort = memory.pass.max(memory.training).max(memory.writing) + lower;
    let smallest_sort = smallest_row_memory_bytes_for(plan.threads, count * (KEY_BYTES as u64 + row_bytes))
        .max(row_bytes * 128 * (plan.threads as u64 + 2));
    plan.smallest_bytes = held + (beside_sort + smallest_sort).max(memory.first_sample);
    plan.sort_bytes = free.saturating_sub(held + beside_sort).max(smallest_sort);
    plan
}

/// The memory of each step of a build, which a plan reserves.
struct Memory {
    /// The held-out vectors with their neighbours.
    held_out: u64,
    /// The upper centroids.
    upper: u64,
    /// Step 1.
    first_sample: u64,
    /// A pass that finds groups or lists.
    pass: u64,
    /// Step 3.
    training: u64,
    /// Step 5.
    writing: u64,
}

impl Memory {
    fn of<T: Clustered>(job: &Job, vectors: &VectorsInfo, plan: &BuildPlan) -> Memory {
        let (dimensions, row_bytes) = (vectors.dimensions, vectors.row_bytes() as u64);
        let threads = plan.threads as u64;
        let kmeans = kmeans::thread_bytes::<T>(dimensions);
        let sums = |rows, count| kmeans::sums_bytes::<T>(dimensions, rows, count);
        let held_out =
            2 * HELD_OUT * (Packed::<T>::bytes_each(dimensions) + row_bytes + TopK::bytes(RECALL_K + 1) + 64);
        let upper = plan.groups * (2 * row_bytes + 32);
        let pass = pass_bytes::<T>(job, dimensions);
        let batch = batch_rows::<T>(dimensions);
        // A batch holds packed vectors, their groups, pairs, and the rows for the sort.
        let each = Packed::<T>::bytes_each(dimensions)
            + Nearest::bytes_each()
            + TopK::bytes(GROUPS_ASSIGNED)
            + 8 * GROUPS_ASSIGNED
            + 16
            + row_bytes
            + KEY_BYTES as u64;
        let finder = 2 * Comparer::<T>::bytes(dimensions) + flash_bytes(plan, row_bytes);
        let group_rows = group_rows_max::<T>(plan, dimensions);
        let lists_of_group = 4 * plan.lists.div_ceil(plan.groups) + 16;
        Memory {
            held_out,
            upper,
            first_sample: plan.group_sample * (row_bytes + 8)
                + (pass).max(sums(plan.group_sample, plan.groups) + threads * kmeans),
            pass: pass + threads * (batch * each + finder),
            training: threads * (group_rows * row_bytes + sums(group_rows, lists_of_group) + kmeans)
                + (1 << 20)
                + 2 * SMALL_BUFFER_BYTES as u64,
            writing: 2 * (LIST_BUFFER_BYTES + 4 * SMALL_BUFFER_BYTES) as u64
                + plan.list_vectors_max * (row_bytes + 8)
                + flash_bytes(plan, row_bytes)
                + (2 << 20),
        }
    }
}

/// Returns the memory for reads of centroids of groups from flash, of one thread.
fn flash_bytes(plan: &BuildPlan, row_bytes: u64) -> u64 {
    16 * (8 * plan.lists.div_ceil(plan.groups) * row_bytes + (64 << 10))
}

fn batch_rows<T: Clustered>(dimensions: usize) -> u64 {
    (BATCH_BYTES / Packed::<T>::bytes_each(dimensions)).clamp(32, BATCH_ROWS_MAX)
}

/// Returns the most rows of a group's sample.
fn group_rows_max<T: Clustered>(plan: &BuildPlan, dimensions: usize) -> u64 {
    let average = plan.list_sample.div_ceil(plan.groups);
    let row_bytes = (dimensions * size_of::<T>()) as u64;
    (3 * average).min(LIST_SAMPLE_BYTES / row_bytes).max(average.min(64)).max(1)
}

/// Builds the index of `vectors`, or builds it again. A job that ends before the commit changes nothing.
///
/// # Errors
/// The errors of [`plan_index`]; I/O and damage; cancellation.
pub fn build_index(store: &Store, job: &Job, vectors: &Vectors, options: &Index) -> Result<Built> {
    match vectors.info().element {
        Element::F32 => Build::<f32>::run(store, job, vectors, options),
        Element::U8 => Build::<u8>::run(store, job, vectors, options),
        Element::I8 => Build::<i8>::run(store, job, vectors, options),
        Element::F16 | Element::Bf16 | Element::Bits => Err(super::no_index_of(vectors.info())),
    }
}

/// The state of a build.
struct Build<'a, T> {
    job: &'a Job,
    vectors: &'a Vectors,
    options: &'a Index,
    plan: BuildPlan,
    /// Where centroids are compared: by Euclidean distance, or by the cosine.
    space: Space,
    /// Where vectors are compared.
    exact: Space,
    _elements: std::marker::PhantomData<T>,
}

/// The vectors on which recall is measured.
struct HeldOut<T: Clustered> {
    ids: Vec<u64>,
    packed: Packed<T>,
    tops: Vec<TopK>,
    _reservation: Reservation,
}

type Sorter = RowSort<FixedRows, KeepAll>;
type Sorted = SortedRows<FixedRows, KeepAll>;

impl<T: Clustered> Build<'_, T> {
    fn run(store: &Store, job: &Job, vectors: &Vectors, options: &Index) -> Result<Built> {
        let plan = plan_index(job, vectors.info(), options)?;
        job.progress().tell(|| format!("index: {plan}"));
        let dimensions = vectors.info().dimensions;
        let metric = if options.metric == Metric::Cosine { Metric::Cosine } else { Metric::L2 };
        let instructions = Instructions::best();
        let center = center_of_vectors(job, vectors, Metric::L2)?;
        let space = Space::new::<T>(metric, dimensions, &center, instructions);
        let exact = Space::new::<T>(options.metric, dimensions, &center, instructions);
        let build: Build<'_, T> =
            Build { job, vectors, options, plan, space, exact, _elements: std::marker::PhantomData };
        let (held_out, upper) = build.sample()?;
        let upper_memory = job.budget().reserve(
            build.plan.groups * 32 + upper.len() as u64 * size_of::<T>() as u64,
            "centroids of groups",
        )?;
        let (sorted, counts) = build.gather(&upper)?;
        let centroids = build.train(upper, sorted, &counts, upper_memory)?;
        let sorted = build.assign(&centroids, &held_out)?;
        build.write(store, sorted, centroids, held_out)
    }

    fn info(&self) -> &VectorsInfo {
        self.vectors.info()
    }

    fn row_bytes(&self) -> usize {
        self.info().row_bytes()
    }

    /// Returns a number for a vector, by which samples are drawn.
    fn draw(&self, id: u64) -> u64 {
        mixed(id ^ mixed(self.options.seed))
    }

    /// Returns the draws of vectors that are held out: those below.
    fn held_out_below(&self) -> u64 {
        let vectors = self.info().vectors;
        if vectors < FEW { 0 } else { below(HELD_OUT.min(vectors / 8), vectors) }
    }

    /// Step 1: reads the held-out vectors and the first sample, and trains the upper centroids.
    fn sample(&self) -> Result<(HeldOut<T>, Vec<T>)> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let memory = Memory::of::<T>(job, info, plan);
        let held_out_memory = job.budget().reserve(memory.held_out, "held-out vectors")?;
        let held = self.held_out_below();
        let end = held.saturating_add(below(plan.group_sample, info.vectors));
        let drawn = |from: u64, to: u64| {
            let is_drawn = move |id: &u64| {
                (from..to).contains(&self.draw(*id)) || (to == u64::MAX && self.draw(*id) == to)
            };
            (0..info.vectors).filter(is_drawn)
        };
        // Twice as many as expected never come; a bound all the same keeps the memory that was reserved.
        let ids: Vec<u64> = drawn(0, held).take(2 * HELD_OUT as usize).collect();
        let sample: Vec<u64> = drawn(held, end).take(plan.group_sample as usize).collect();
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

    fn sorter(&self, name: &'static str) -> Result<Sorter> {
        let shape = FixedRows::new(KEY_BYTES + self.row_bytes(), 0..KEY_BYTES);
        let config = RowConfig {
            memory_bytes: self.plan.sort_bytes,
            threads: self.plan.threads,
            name,
            ..RowConfig::default()
        };
        Ok(RowSort::new(self.job, shape, KeepAll, &config)?)
    }

    /// Step 2: sorts the second sample by group. Returns the number of its vectors in each group, too.
    fn gather(&self, upper: &[T]) -> Result<(Sorted, Vec<u64>)> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let dimensions = info.dimensions;
        let groups = upper.len() / dimensions;
        let mut sorter = self.sorter("sample")?;
        let sink = Mutex::new(sorter.sink());
        let counts: Vec<AtomicU64> = (0..groups).map(|_| AtomicU64::new(0)).collect();
        let held = self.held_out_below();
        let end = held.saturating_add(below(plan.list_sample, info.vectors));
        let batch = batch_rows::<T>(dimensions) as usize;
        let members: Vec<u32> = (0..batch as u32).collect();
        let bytes = Memory::of::<T>(job, info, plan).pass - pass_bytes::<T>(job, dimensions);
        let _memory = job.budget().reserve(bytes, "batches of vectors")?;
        job.start_phase("gathering a sample", "vectors", info.vectors);
        let make = || {
            let packed = Packed::<T>::with_capacity(dimensions, batch);
            (packed, Vec::with_capacity(batch), Comparer::new(dimensions), Nearest::default(), Vec::new())
        };
        for_vectors::<T, _>(
            job,
            &self.vectors.file,
            (info.vectors, dimensions),
            make,
            |state, first, rows| {
                let (packed, draws, comparer, nearest, out) = state;
                let mut flush = |packed: &mut Packed<T>, draws: &mut Vec<u64>| -> Result<()> {
                    nearest.reset(packed.len());
                    let queries = Members { packed, members: &members[..packed.len()], heaps: nearest };
                    comparer.compare(&self.space, upper, |row| row as u64, &queries);
                    out.clear();
                    for (row, draw) in draws.iter().enumerate() {
                        let group = nearest.id(row) as u32;
                        counts[group as usize].fetch_add(1, Ordering::Relaxed);
                        push_row(out, group, *draw, packed.row(row));
                    }
                    sink.lock().expect("no panic under this lock").write(out)?;
                    packed.clear();
                    draws.clear();
                    Ok(())
                };
                for (id, row) in (first..).zip(rows.chunks_exact(dimensions)) {
                    let draw = self.draw(id);
                    let is_drawn = (held..end).contains(&draw) || (end == u64::MAX && draw == end);
                    if is_drawn {
                        packed.extend(row, &self.space);
                        draws.push(draw);
                        if draws.len() == batch {
                            flush(packed, draws)?;
                        }
                    }
                }
                if draws.is_empty() { Ok(()) } else { flush(packed, draws) }
            },
        )?;
        let cut = sink.into_inner().expect("no panic under this lock").finish()?;
        debug_assert!(cut.is_empty());
        Ok((sorter.finish()?, counts.into_iter().map(AtomicU64::into_inner).collect()))
    }

    /// Step 3: trains the centroids of the lists of each group. Groups without a sample are dropped.
    fn train(
        &self,
        upper: Vec<T>,
        mut sorted: Sorted,
        counts: &[u64],
        upper_memory: Reservation,
    ) -> Result<Centroids<T>> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let dimensions = info.dimensions;
        let memory = Memory::of::<T>(job, info, plan).training;
        let _memory = job.budget().reserve(memory - 2 * SMALL_BUFFER_BYTES as u64, "samples of groups")?;
        let mut lower = Growing::new(self)?;
        let sampled: u64 = counts.iter().sum();
        let (mut kept, mut firsts) = (Vec::with_capacity(upper.len()), vec![0u32]);
        let rows_max = group_rows_max::<T>(plan, dimensions) as usize;
        let mut groups = Groups::new(&mut sorted, dimensions, rows_max);
        job.start_phase("training lists", "groups", counts.len() as u64);
        loop {
            let mut some = Vec::with_capacity(plan.threads);
            while some.len() < plan.threads
                && let Some(group) = groups.next()?
            {
                some.push(group);
            }
            if some.is_empty() {
                break;
            }
            let trained: Vec<Vec<T>> = std::thread::scope(|scope| {
                let train = |group: &(u32, Vec<T>)| {
                    let share = counts[group.0 as usize] as f64 / sampled as f64 * plan.lists as f64;
                    let most = 4 * plan.lists.div_ceil(plan.groups) + 16;
                    let lists = (share.round() as u64).clamp(1, most) as usize;
                    let stop = || job.check_cancelled().is_err();
                    kmeans::train(&self.space, &group.1, lists, ITERATIONS, 1, &stop)
                };
                let threads: Vec<_> = some.iter().map(|group| scope.spawn(move || train(group))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            job.check_cancelled()?;
            for ((group, _), centroids) in some.iter().zip(&trained) {
                kept.extend_from_slice(&upper[*group as usize * dimensions..][..dimensions]);
                lower.add(centroids)?;
                let lists = (centroids.len() / dimensions) as u32;
                firsts.push(firsts[firsts.len() - 1] + lists);
            }
            job.progress().add(some.len() as u64);
        }
        let lower = lower.finish()?;
        Ok(Centroids { dimensions, upper: kept, firsts, lower, _reservation: upper_memory })
    }

    /// Step 4: sorts all vectors by their lists, and finds the neighbours of the held-out vectors meanwhile.
    fn assign(&self, centroids: &Centroids<T>, held_out: &HeldOut<T>) -> Result<Sorted> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let dimensions = info.dimensions;
        let mut sorter = self.sorter("lists")?;
        let sink = Mutex::new(sorter.sink());
        let batch = batch_rows::<T>(dimensions) as usize;
        let members: Vec<u32> = (0..batch.max(held_out.ids.len()) as u32).collect();
        let bytes = Memory::of::<T>(job, info, plan).pass
            - pass_bytes::<T>(job, dimensions)
            - plan.threads as u64 * flash_bytes(plan, (dimensions * size_of::<T>()) as u64);
        let _memory = job.budget().reserve(bytes, "batches of vectors")?;
        let finders = (0..plan.threads).map(|_| centroids.finder(job)).collect::<Result<Vec<_>>>()?;
        let finders = Mutex::new(finders);
        job.start_phase("assigning", "vectors", info.vectors);
        let make = || {
            let finder =
                finders.lock().expect("no panic under this lock").pop().expect("one for each thread");
            let packed = Packed::<T>::with_capacity(dimensions, batch);
            (packed, finder, Comparer::<T>::new(dimensions), Nearest::default(), Vec::new())
        };
        for_vectors::<T, _>(
            job,
            &self.vectors.file,
            (info.vectors, dimensions),
            make,
            |state, first, rows| {
                let (packed, finder, comparer, nearest, out) = state;
                let heaps = Tops { first: 0, tops: &held_out.tops };
                let held = &members[..held_out.ids.len()];
                let queries = Members { packed: &held_out.packed, members: held, heaps: &heaps };
                comparer.compare(&self.exact, rows, |row| first + row as u64, &queries);
                for (number, rows) in rows.chunks(batch * dimensions).enumerate() {
                    packed.clear();
                    packed.extend(rows, &self.space);
                    nearest.reset(packed.len());
                    let queries = Members { packed, members: &members[..packed.len()], heaps: nearest };
                    centroids.find(
                        job,
                        &self.space,
                        GROUPS_ASSIGNED.min(centroids.groups()),
                        &queries,
                        finder,
                    )?;
                    out.clear();
                    for (row, elements) in rows.chunks_exact(dimensions).enumerate() {
                        let id = first + (number * batch + row) as u64;
                        push_row(out, nearest.id(row) as u32, id, elements);
                    }
                    sink.lock().expect("no panic under this lock").write(out)?;
                }
                Ok(())
            },
        )?;
        let cut = sink.into_inner().expect("no panic under this lock").finish()?;
        debug_assert!(cut.is_empty());
        Ok(sorter.finish()?)
    }

    /// Step 5: writes the lists, measures recall, and publishes the index.
    fn write(
        &self,
        store: &Store,
        mut sorted: Sorted,
        centroids: Centroids<T>,
        held_out: HeldOut<T>,
    ) -> Result<Built> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let HeldOut { ids, packed, tops, _reservation } = held_out;
        let neighbours: Vec<Vec<u64>> = tops
            .into_iter()
            .zip(&ids)
            .map(|(top, own)| {
                let others = top.into_sorted().into_iter().map(|entry| entry.id).filter(|id| id != own);
                others.take(RECALL_K as usize).collect()
            })
            .collect();
        let mut lists_of: HashMap<u64, u32> = neighbours.iter().flatten().map(|&id| (id, u32::MAX)).collect();
        let mut builder = store.replace_dataset(job, &index_name(&info.name), KIND)?;
        builder.unsealed();
        let mut files = Files {
            lists: builder.file(LISTS, CHECK_BYTES, LIST_BUFFER_BYTES)?,
            firsts: builder.file(FIRSTS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            centroids: builder.file(CENTROIDS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            groups: builder.file(GROUPS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            spans: builder.file(SPANS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
        };
        job.start_phase("writing lists", "vectors", info.vectors);
        let written = self.write_lists(&mut sorted, &centroids, &mut files, &mut lists_of)?;
        drop(sorted);
        drop(centroids);
        let files = IndexFiles {
            lists: builder.add_and_open(files.lists)?,
            firsts: builder.add_and_open(files.firsts)?,
            centroids: builder.add_and_open(files.centroids)?,
            groups: builder.add_and_open(files.groups)?,
            spans: builder.add_and_open(files.spans)?,
        };
        let mut made = IndexInfo {
            name: info.name.clone(),
            dataset: self.vectors.id(),
            vectors: info.vectors,
            dimensions: info.dimensions,
            element: info.element,
            metric: self.options.metric,
            lists: written.lists,
            groups: written.groups,
            list_vectors_max: written.list_vectors_max,
            sample: plan.list_sample,
            seed: self.options.seed,
            bytes: builder.bytes(),
            recall: RecallTable::new(RECALL_K, ids.len(), MeasuredOn::HeldOutVectors, Vec::new()),
        };
        let index = VectorIndex::made(made.clone(), files);
        let everything = RecallPoint { probes: written.lists, recall: 1.0 };
        made.recall.points = vec![everything];
        if neighbours.iter().any(|ids| !ids.is_empty()) {
            job.start_phase("measuring recall", "queries", 0);
            let holds_lower = index.lower_bytes() <= job.budget().free_bytes() / 2;
            let (_, centroids) = index.load::<T>(job, holds_lower)?;
            let lists: Vec<Vec<u32>> =
                neighbours.iter().map(|ids| ids.iter().map(|id| lists_of[id]).collect()).collect();
            made.recall.points = measure(job, &centroids, &self.exact, &packed, &lists)?;
        }
        builder.commit(&made.to_attributes())?;
        Ok(Built { info: made, plan: plan.clone() })
    }

    fn write_lists(
        &self,
        sorted: &mut Sorted,
        centroids: &Centroids<T>,
        files: &mut Files,
        lists_of: &mut HashMap<u64, u32>,
    ) -> Result<Written> {
        let (job, plan, row_bytes) = (self.job, &self.plan, self.row_bytes());
        let id_bytes = id_bytes(self.info().vectors);
        let bytes = plan.list_vectors_max * (row_bytes as u64 + 8) + (2 << 20);
        let _memory = job.budget().reserve(bytes, "a list")?;
        let mut list = OpenList::default();
        let mut written = Written::default();
        let mut places = Places::new(centroids);
        let mut flush = |list: &mut OpenList, written: &mut Written| -> Result<()> {
            let count = (list.rows.len() / row_bytes) as u64;
            if count == 0 {
                return Ok(());
            }
            let (group, is_first) = places.find(job, list.number)?;
            if is_first {
                files.spans.write(&(written.lists as u32).to_le_bytes())?;
                files.groups.write(
                    centroids.upper[group * self.info().dimensions..][..self.info().dimensions].as_bytes(),
                )?;
                written.groups += 1;
            }
            files.firsts.write(&written.vectors.to_le_bytes())?;
            files.centroids.write(places.centroid(list.number))?;
            files.lists.write(&list.rows)?;
            files.lists.write(&list.ids)?;
            written.lists += 1;
            written.vectors += count;
            written.list_vectors_max = written.list_vectors_max.max(count);
            job.progress().add(count);
            list.rows.clear();
            list.ids.clear();
            Ok(())
        };
        let entry = KEY_BYTES + row_bytes;
        let mut piece = vec![0; ((1 << 20) / entry).max(1) * entry];
        loop {
            let filled = sorted.fill(&mut piece)?;
            for entry in piece[..filled].chunks_exact(entry) {
                let (number, id) = key_of(entry);
                let is_full = list.rows.len() as u64 == plan.list_vectors_max * row_bytes as u64;
                if number != list.number || is_full {
                    flush(&mut list, &mut written)?;
                    list.number = number;
                }
                if let Some(list_of) = lists_of.get_mut(&id) {
                    *list_of = written.lists as u32;
                }
                list.rows.extend_from_slice(&entry[KEY_BYTES..]);
                list.ids.extend_from_slice(&id.to_le_bytes()[..id_bytes]);
            }
            if filled < piece.len() {
                break;
            }
        }
        flush(&mut list, &mut written)?;
        files.firsts.write(&written.vectors.to_le_bytes())?;
        files.spans.write(&(written.lists as u32).to_le_bytes())?;
        Ok(written)
    }
}

/// A list that is being filled.
#[derive(Default)]
struct OpenList {
    number: u32,
    rows: Vec<u8>,
    ids: Vec<u8>,
}

/// The files that are being written.
struct Files {
    lists: FileWriter,
    firsts: FileWriter,
    centroids: FileWriter,
    groups: FileWriter,
    spans: FileWriter,
}

/// The sizes of the files that were written.
#[derive(Default)]
struct Written {
    lists: u64,
    groups: u64,
    vectors: u64,
    list_vectors_max: u64,
}

/// Finds the group and the centroid of lists, by rising numbers.
struct Places<'a, T> {
    centroids: &'a Centroids<T>,
    group: Option<usize>,
    /// The centroids of the group.
    held: Vec<u8>,
}

impl<'a, T: Clustered> Places<'a, T> {
    fn new(centroids: &'a Centroids<T>) -> Self {
        Places { centroids, group: None, held: Vec::new() }
    }

    /// Returns the group of a list, and whether it is the first list of the group.
    fn find(&mut self, job: &Job, list: u32) -> Result<(usize, bool)> {
        let group = self.centroids.firsts.partition_point(|first| *first <= list) - 1;
        if self.group == Some(group) {
            return Ok((group, false));
        }
        self.group = Some(group);
        let lists = self.centroids.lists_of(group as u32);
        let dimensions = self.centroids.dimensions;
        let rows = lists.start as usize * dimensions..lists.end as usize * dimensions;
        self.held.clear();
        match &self.centroids.lower {
            Lower::Memory(all, _) => self.held.extend_from_slice(all[rows].as_bytes()),
            Lower::Flash(file) => {
                let range = (rows.start * size_of::<T>()) as u64..(rows.end * size_of::<T>()) as u64;
                let buffer = Buffer::zeroed(job.budget(), file.read_bytes(&range), "centroids of a group")?;
                let (buffer, bytes) = file.submit_read(job, range, buffer)?.wait()?;
                self.held.extend_from_slice(&buffer[bytes]);
            }
        }
        Ok((group, true))
    }

    /// Returns the centroid of a list of the group that was found last.
    fn centroid(&self, list: u32) -> &[u8] {
        let group = self.group.expect("found before");
        let row_bytes = self.centroids.dimensions * size_of::<T>();
        let place = (list - self.centroids.firsts[group]) as usize;
        &self.held[place * row_bytes..][..row_bytes]
    }
}

/// The lower centroids while they are trained.
enum Growing<T> {
    Memory(Vec<T>, Reservation),
    Flash(Box<FileWriter>),
}

impl<T: Clustered> Growing<T> {
    fn new(build: &Build<'_, T>) -> Result<Growing<T>> {
        let (job, plan) = (build.job, &build.plan);
        if !plan.holds_centroids {
            let name = job.scratch_name("centroids");
            return Ok(Growing::Flash(Box::new(FileWriter::create(
                job,
                &name,
                CHECK_BYTES,
                SMALL_BUFFER_BYTES,
            )?)));
        }
        // Shares are rounded, and each group has at least one list.
        let most = plan.lists + plan.groups;
        let memory = job.budget().reserve(most * build.row_bytes() as u64, "centroids of lists")?;
        Ok(Growing::Memory(Vec::with_capacity(most as usize * build.info().dimensions), memory))
    }

    fn add(&mut self, rows: &[T]) -> Result<()> {
        match self {
            Growing::Memory(all, _) => all.extend_from_slice(rows),
            Growing::Flash(file) => file.write(rows.as_bytes())?,
        }
        Ok(())
    }

    fn finish(self) -> Result<Lower<T>> {
        Ok(match self {
            Growing::Memory(all, memory) => Lower::Memory(all, memory),
            Growing::Flash(file) => {
                let file: CheckedFile = file.finish()?;
                Lower::Flash(file)
            }
        })
    }
}

/// Reads the sample group by group.
struct Groups<'a, T> {
    sorted: &'a mut Sorted,
    dimensions: usize,
    rows_max: usize,
    piece: Vec<u8>,
    filled: usize,
    at: usize,
    _elements: std::marker::PhantomData<T>,
}

impl<'a, T: Clustered> Groups<'a, T> {
    fn new(sorted: &'a mut Sorted, dimensions: usize, rows_max: usize) -> Self {
        let entry = KEY_BYTES + dimensions * size_of::<T>();
        let piece = vec![0; ((1 << 19) / entry).max(1) * entry];
        let (filled, at) = (piece.len(), piece.len());
        Groups { sorted, dimensions, rows_max, piece, filled, at, _elements: std::marker::PhantomData }
    }

    /// Returns the next group with the first of its rows, which are in random order.
    fn next(&mut self) -> Result<Option<(u32, Vec<T>)>> {
        let entry = KEY_BYTES + self.dimensions * size_of::<T>();
        let mut found: Option<(u32, Vec<T>)> = None;
        loop {
            if self.at == self.filled {
                if self.filled < self.piece.len() {
                    return Ok(found);
                }
                self.filled = self.sorted.fill(&mut self.piece)?;
                self.at = 0;
                continue;
            }
            let row = &self.piece[self.at..self.at + entry];
            let (group, _) = key_of(row);
            match &mut found {
                Some((last, _)) if *last != group => return Ok(found),
                Some((_, rows)) if rows.len() < self.rows_max * self.dimensions => {
                    add_elements(rows, &row[KEY_BYTES..])
                }
                Some(_) => {}
                None => {
                    let mut rows = Vec::new();
                    add_elements(&mut rows, &row[KEY_BYTES..]);
                    found = Some((group, rows));
                }
            }
            self.at += entry;
        }
    }
}

/// Appends elements whose bytes may lie at any address.
fn add_elements<T: Clustered>(out: &mut Vec<T>, bytes: &[u8]) {
    let elements = bytes.chunks_exact(size_of::<T>());
    out.extend(elements.map(|bytes| T::read_from_bytes(bytes).expect("the bytes of one")));
}

/// Appends a row of a sort.
fn push_row<T: Clustered>(out: &mut Vec<u8>, number: u32, place: u64, elements: &[T]) {
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&place.to_be_bytes());
    out.extend_from_slice(elements.as_bytes());
}

/// Returns the two numbers of a row of a sort.
fn key_of(row: &[u8]) -> (u32, u64) {
    let number = u32::from_be_bytes(row[..4].try_into().expect("four bytes"));
    (number, u64::from_be_bytes(row[4..KEY_BYTES].try_into().expect("eight bytes")))
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

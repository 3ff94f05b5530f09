//! Splits lists that have grown, before an index is written again. The vectors of a list with more than twice the
//! planned number of vectors are clustered by k-means, and the centroids of the clusters replace the centroid of the
//! list.
//!
//! ```text
//!   vectors, sorted by list ─► vectors of each large list ─► k-means ─► centroids of its parts ─┐
//!                              other lists ─────────────────────────► centroid ───────────────┴─► group
//!   group with a list that was split ─► k-means of its centroids ─► groups of the planned size
//! ```
//!
//! All vectors are assigned to lists again afterwards, so a vector of a neighbouring list moves to a new centroid if
//! that is the nearest one (the reassignment of SPFresh; Xu et al., SOSP 2023, section 3.3).
//!
//! The new centroids depend only on the vectors and the former centroids. A large list is sampled at equal distances in
//! the order of its rows, and the size of the sample does not depend on the budget.

use inshore_store::{CheckedFile, FileWriter, Job};
use zerocopy::IntoBytes;

use super::{
    Build,
    plan::{
        BuildPlan, CHECK_BYTES, ITERATIONS, Memory, SMALL_BUFFER_BYTES, default_list_vectors,
        group_lists_max, group_rows_max,
    },
    sort::{Entries, KEY_BYTES, Sorted, add_elements, key_of},
    write::Places,
};
use crate::{
    Result,
    index::{
        Clustered, IndexInfo,
        centroids::{Centroids, Lower},
        kmeans,
    },
    read::read_elements,
};

/// A list is split if it has more than this number of times the planned number of vectors.
pub(crate) const SPLIT_TIMES: u64 = 2;
/// The largest size, in bytes, of the vectors of a list that are sampled, if a build would sample fewer for a group. The
/// next constant is the smallest number of sampled vectors for each part of a list.
const LIST_SAMPLE_BYTES: u64 = 1 << 20;
const PART_SAMPLE_MIN: u64 = 16;
/// A group gets no more lists if its centroids have this number of bytes.
const GROUP_BYTES: u64 = 2 << 20;

/// Returns the planned number of vectors of a list. If the average list of the index has at least half, and less than
/// twice, as many vectors as an average list has by default, the result is the default. Otherwise the user chose the
/// number of lists, and the result is the average.
pub(crate) fn planned_list_vectors(info: &IndexInfo) -> u64 {
    let average = info.vectors.div_ceil(info.lists);
    let codes = info.shape_of_codes();
    let default = default_list_vectors(codes.as_ref(), info.vectors, info.entry_bytes() as u64);
    if (default.div_ceil(2)..2 * default).contains(&average) { default } else { average }
}

/// Returns the memory, in bytes, of [`Build::split`] and of the counts of lists. The memory of a pass, of training and
/// of writing is free during a split, and is not included.
pub(super) fn split_bytes<T: Clustered>(plan: &BuildPlan, memory: &Memory, dimensions: usize) -> u64 {
    let row_bytes = (dimensions * size_of::<T>()) as u64;
    let split = training_bytes::<T>(plan, dimensions)
        + 2 * (GROUP_BYTES + plan.groups * row_bytes + SMALL_BUFFER_BYTES as u64);
    8 * plan.lists + split.saturating_sub(memory.pass.max(memory.training).max(memory.writing))
}

/// Returns the memory, in bytes, for the sorted vectors and the k-means of a list.
fn training_bytes<T: Clustered>(plan: &BuildPlan, dimensions: usize) -> u64 {
    let (rows, parts) = sample_max::<T>(plan, dimensions);
    let row_bytes = (dimensions * size_of::<T>()) as u64;
    let threads = plan.threads as u64 * kmeans::thread_bytes::<T>(dimensions);
    rows * row_bytes + kmeans::sums_bytes::<T>(dimensions, rows, parts) + threads + Entries::BYTES as u64
}

/// Returns the largest number of vectors of a list that are sampled, and of parts into which the list is split.
fn sample_max<T: Clustered>(plan: &BuildPlan, dimensions: usize) -> (u64, u64) {
    let rows = LIST_SAMPLE_BYTES / (dimensions * size_of::<T>()) as u64;
    let rows = rows.max(group_rows_max::<T>(plan, dimensions));
    (rows, (rows / PART_SAMPLE_MIN).max(2))
}

/// The centroids after lists were split.
pub(super) struct Split<T> {
    /// The elements of the centroids of groups.
    upper: Vec<T>,
    /// The number of the first list of each group, and at the end the number of all lists.
    firsts: Vec<u32>,
    lower: CheckedFile,
    /// The number of lists that were split.
    pub split: u64,
    /// The number of vectors on which the new centroids were trained.
    pub sampled: u64,
    /// The elements of the held-out vectors.
    pub held_out: Vec<T>,
}

impl<T: Clustered> Split<T> {
    /// Returns the number of lists after the split.
    pub fn lists(&self) -> u64 {
        u64::from(self.firsts[self.firsts.len() - 1])
    }

    /// Returns the memory, in bytes, of the centroids of groups.
    pub fn upper_bytes(&self) -> u64 {
        (self.upper.len() * size_of::<T>() + 4 * self.firsts.len()) as u64
    }

    /// Returns the centroids. If `holds_lower` is true, the centroids of lists are read into memory.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too
    /// little free memory.
    pub fn centroids(self, job: &Job, dimensions: usize, holds_lower: bool) -> Result<Centroids<T>> {
        let upper_memory = job.budget().reserve(self.upper_bytes(), "centroids of groups")?;
        let Split { upper, firsts, lower, .. } = self;
        let lower = match holds_lower {
            false => Lower::Flash(lower),
            true => {
                let memory = job.budget().reserve(lower.len(), "centroids of lists")?;
                let mut all: Vec<T> = Vec::with_capacity(lower.len() as usize / size_of::<T>());
                read_elements::<T>(job, &lower, |piece| all.extend_from_slice(piece))?;
                Lower::Memory(all, memory)
            }
        };
        Ok(Centroids { dimensions, upper, firsts, lower, _reservation: upper_memory })
    }
}

/// The sizes to which lists and groups are split.
struct Limits {
    /// The planned number of vectors of a list.
    planned: u64,
    /// The largest number of vectors of a list that are sampled, and of parts into which a list is split.
    rows_max: u64,
    parts_max: u64,
    /// The planned number of lists of a group. It grows with the number of lists, as in a build. The next field is the
    /// largest number.
    group_lists: u64,
    group_lists_max: u64,
}

impl Limits {
    fn of<T: Clustered>(plan: &BuildPlan, dimensions: usize, info: &IndexInfo) -> Limits {
        let (rows_max, parts_max) = sample_max::<T>(plan, dimensions);
        Limits {
            planned: planned_list_vectors(info),
            rows_max,
            parts_max,
            group_lists: plan.lists.div_ceil(plan.groups),
            group_lists_max: group_lists_max(plan),
        }
    }

    /// Returns the number of parts of a list with `count` vectors. `room` is the number of lists that the group may
    /// still get.
    fn parts(&self, count: u64, room: u64) -> u64 {
        if count <= SPLIT_TIMES * self.planned {
            return 1;
        }
        count.div_ceil(self.planned).min(self.parts_max).min(1 + room)
    }
}

impl<T: Clustered> Build<'_, T> {
    /// Splits the lists of `info` that have grown. `counts` has the number of vectors of each list, and `sorted` has
    /// the vectors in the order of their lists. Also reads the vectors `held_out`, whose row numbers are in ascending
    /// order, and trains no centroid on them.
    pub(super) fn split(
        &self,
        mut sorted: Sorted,
        centroids: &Centroids<T>,
        info: &IndexInfo,
        counts: &[u64],
        held_out: &[u64],
    ) -> Result<Split<T>> {
        let (job, dimensions) = (self.job, self.info().dimensions);
        let limits = Limits::of::<T>(&self.plan, dimensions, info);
        let training = training_bytes::<T>(&self.plan, dimensions);
        let _training = job.budget().reserve(training, "vectors of lists that are split")?;
        let mut lower =
            FileWriter::create(job, &job.scratch_name("centroids"), CHECK_BYTES, SMALL_BUFFER_BYTES)?;
        let mut group_memory = job.budget().reserve(0, "centroids of a group")?;
        let mut upper_memory = job.budget().reserve(0, "centroids of groups")?;
        let mut lists = GrownLists {
            build: self,
            limits: &limits,
            entries: Entries::new(&mut sorted, self.row_bytes()),
            places: Places::new(centroids),
            held_out,
            held_out_rows: vec![T::nearest(0.0); held_out.len() * dimensions],
            rows: Vec::new(),
            split: 0,
            sampled: 0,
        };
        let (mut upper, mut firsts) = (Vec::new(), vec![0u32]);
        job.start_phase("splitting lists", "lists", centroids.lists());
        for (group, former) in centroids.upper.chunks_exact(dimensions).enumerate() {
            let numbers = centroids.lists_of(group as u32);
            let most = (GROUP_BYTES / self.row_bytes() as u64).max(2 * numbers.len() as u64);
            group_memory.resize(2 * most * self.row_bytes() as u64)?;
            let mut room = most - numbers.len() as u64;
            let (mut members, before) = (Vec::new(), lists.split);
            for list in numbers {
                let parts = limits.parts(counts[list as usize], room);
                let split = lists.next(list, counts[list as usize], parts, &mut members)?;
                room -= split - 1;
                job.progress().add(1);
            }
            let groups = match lists.split > before {
                true => self.regroup(&members, &limits)?,
                false => vec![(former.to_vec(), (0..(members.len() / dimensions) as u32).collect())],
            };
            for (centroid, members_of) in groups {
                upper.extend_from_slice(&centroid);
                firsts.push(firsts[firsts.len() - 1] + members_of.len() as u32);
                for member in members_of {
                    let row = &members[member as usize * dimensions..][..dimensions];
                    lower.write(row.as_bytes())?;
                }
            }
            upper_memory.resize((upper.len() * size_of::<T>() + 4 * firsts.len()) as u64)?;
        }
        let GrownLists { split, sampled, held_out_rows, .. } = lists;
        Ok(Split { upper, firsts, lower: lower.finish()?, split, sampled, held_out: held_out_rows })
    }

    /// Divides the centroids `members` of the lists of a group into groups of about the planned size. Returns for each
    /// group its centroid and the numbers of its members.
    fn regroup(&self, members: &[T], limits: &Limits) -> Result<Vec<(Vec<T>, Vec<u32>)>> {
        let (job, dimensions, threads) = (self.job, self.info().dimensions, self.plan.threads);
        let count = members.len() / dimensions;
        let groups = count.div_ceil(limits.group_lists as usize);
        let stop = || job.check_cancelled().is_err();
        let centroids = kmeans::train(&self.space, members, groups, ITERATIONS, threads, &stop);
        job.check_cancelled()?;
        let mut labels = vec![0u32; count];
        kmeans::assign(&self.space, members, &centroids, &mut labels, threads);
        let mut found = Vec::new();
        for (group, centroid) in (0..).zip(centroids.chunks_exact(dimensions)) {
            let of_group = (0..).zip(&labels).filter(|(_, label)| **label == group);
            let numbers: Vec<u32> = of_group.map(|(number, _)| number).collect();
            // A group is at most as large as a group of a build, so that its centroids fit the buffers of a search.
            let chunks = numbers.chunks(limits.group_lists_max as usize);
            found.extend(chunks.map(|chunk| (centroid.to_vec(), chunk.to_vec())));
        }
        Ok(found)
    }
}

/// Reads the sorted vectors list by list, and splits the large lists.
struct GrownLists<'a, 'b, T: Clustered> {
    build: &'a Build<'b, T>,
    limits: &'a Limits,
    entries: Entries<'a>,
    places: Places<'a, T>,
    /// The row numbers of the held-out vectors. The next field has their elements.
    held_out: &'a [u64],
    held_out_rows: Vec<T>,
    /// The sampled vectors of a list.
    rows: Vec<T>,
    split: u64,
    sampled: u64,
}

impl<T: Clustered> GrownLists<'_, '_, T> {
    /// Reads the next list, which has `count` vectors, and appends the centroids of its at most `parts` parts to `out`.
    /// Returns the number of these centroids.
    fn next(&mut self, list: u32, count: u64, parts: u64, out: &mut Vec<T>) -> Result<u64> {
        self.sample(list, count, if parts > 1 { count.min(self.limits.rows_max) } else { 0 })?;
        let (job, dimensions) = (self.build.job, self.build.info().dimensions);
        let mut found: Vec<&[T]> = Vec::new();
        let stop = || job.check_cancelled().is_err();
        let trained = match self.rows.is_empty() {
            true => Vec::new(),
            false => kmeans::train(
                &self.build.space,
                &self.rows,
                parts as usize,
                ITERATIONS,
                self.build.plan.threads,
                &stop,
            ),
        };
        job.check_cancelled()?;
        for centroid in trained.chunks_exact(dimensions) {
            if !found.contains(&centroid) {
                found.push(centroid);
            }
        }
        // A list of equal vectors has one centroid however it is split.
        if found.len() < 2 {
            self.places.find(job, list)?;
            add_elements(out, self.places.centroid(list));
            return Ok(1);
        }
        self.split += 1;
        self.sampled += (self.rows.len() / dimensions) as u64;
        found.iter().for_each(|centroid| out.extend_from_slice(centroid));
        Ok(found.len() as u64)
    }

    /// Reads the vectors of a list, and sets `rows` to `wanted` of its `count` vectors, less those that are held out.
    fn sample(&mut self, list: u32, count: u64, wanted: u64) -> Result<()> {
        let dimensions = self.build.info().dimensions;
        self.rows.clear();
        let mut place = 0;
        while let Some(entry) = self.entries.peek()? {
            let (number, order, id) = key_of(entry);
            if number != list {
                break;
            }
            // Copies of vectors of other lists have a larger number than 0.
            if order == 0 {
                let is_sampled = (place + 1) * wanted / count > place * wanted / count;
                place += 1;
                match self.held_out.binary_search(&id) {
                    Ok(held) => {
                        let row = &mut self.held_out_rows[held * dimensions..][..dimensions];
                        row.as_mut_bytes().copy_from_slice(&entry[KEY_BYTES..]);
                    }
                    Err(_) if is_sampled => add_elements(&mut self.rows, &entry[KEY_BYTES..]),
                    Err(_) => {}
                }
            }
            self.entries.advance();
        }
        Ok(())
    }
}

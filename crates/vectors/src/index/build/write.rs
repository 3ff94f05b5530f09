//! Does step 5 of a build: writes the files of the index, one list after the other, and measures recall.

use std::{collections::HashMap, sync::Arc};

use inshore_store::{Buffer, DatasetBuilder, FileWriter, Job, Store};
use zerocopy::IntoBytes;

use super::{
    Build,
    plan::{CHECK_BYTES, LIST_BUFFER_BYTES, RECALL_K, SMALL_BUFFER_BYTES, shape_of},
    sample::HeldOut,
    sort::{KEY_BYTES, Sorted, key_of},
};
use crate::{
    Result,
    index::{
        Clustered,
        centroids::{Centroids, Lower},
        codes::{CodeWriter, Codes, Measured},
        compare::Packed,
        dataset::{CopyFiles, IndexFiles, VectorIndex},
        info::{
            CENTROIDS, COPIES, COPY_FIRSTS, CodedLists, CopiedLists, FIRSTS, GROUPS, IndexInfo, LISTS, SPANS,
            id_bytes,
        },
        parts::Part,
        recall::{measure, measure_codes},
        table::{MeasuredOn, RecallPoint, RecallTable},
    },
    names::{LISTS_KIND, index_name},
    topk::TopK,
};

impl<T: Clustered> Build<'_, T> {
    /// Does step 5 of a build: writes the lists, and measures recall. Returns the new dataset and the properties of the
    /// index. The caller must commit the dataset with these properties as its attributes.
    pub(super) fn write(
        &self,
        store: &Store,
        mut sorted: Sorted,
        centroids: Centroids<T>,
        held_out: HeldOut<T>,
    ) -> Result<(DatasetBuilder, IndexInfo)> {
        let (job, info) = (self.job, self.info());
        let HeldOut { ids, packed, tops, _reservation } = held_out;
        let neighbours = neighbours(&ids, tops);
        let mut lists_of: ListsOf = neighbours.iter().flatten().map(|&id| (id, Vec::new())).collect();
        let mut builder = store.replace_dataset(job, &index_name(&info.name), LISTS_KIND)?;
        builder.unsealed();
        let mut files = Files::begin(&mut builder, self.plan.copied_vectors_max.is_some())?;
        if let Some(shape) = shape_of(info, self.options) {
            let place = (shape, self.options.metric, self.options.seed);
            let sizes = (CHECK_BYTES, LIST_BUFFER_BYTES, SMALL_BUFFER_BYTES);
            let (groups, most) = (&centroids.upper, self.plan.list_vectors_max);
            files.codes = Some(CodeWriter::begin((job.budget(), &mut builder), place, groups, most, sizes)?);
        }
        job.start_phase("writing lists", "vectors", info.vectors);
        let written = self.write_lists(&mut sorted, &centroids, &mut files, &mut lists_of)?;
        drop(sorted);
        drop(centroids);
        let files = files.open(&mut builder)?;
        let mut made = self.describe(&written, builder.bytes(), ids.len());
        let index = VectorIndex::made(made.clone(), files);
        let all = || vec![RecallPoint { probes: written.lists, recall: 1.0 }];
        made.recall.points = all();
        if let Some(copies) = &mut made.copies {
            copies.recall.points = all();
        }
        if neighbours.iter().any(|ids| !ids.is_empty()) {
            let lists = |of: fn(&[u32]) -> &[u32]| -> Vec<Vec<&[u32]>> {
                let lists = |ids: &Vec<u64>| ids.iter().map(|id| of(&lists_of[id])).collect();
                neighbours.iter().map(lists).collect()
            };
            made.recall.points = self.measure(&index, &packed, &lists(own_list))?;
            if let Some(copies) = &mut made.copies {
                copies.recall.points = self.measure(&index, &packed, &lists(all_lists))?;
            }
            if let Some(codes) = &mut made.codes {
                codes.recall.points = self.measure_codes(&index, &packed, &neighbours, &lists(own_list))?;
            }
        }
        Ok((builder, made))
    }

    /// Returns the properties of the index. Its tables of recall have no points.
    fn describe(&self, written: &Written, bytes: u64, held_out: usize) -> IndexInfo {
        let info = self.info();
        let recall = RecallTable::new(RECALL_K, held_out, MeasuredOn::HeldOutVectors, Vec::new());
        IndexInfo {
            name: info.name.clone(),
            dataset: self.vectors.id(),
            vectors: info.vectors,
            dimensions: info.dimensions,
            element: info.element,
            metric: self.options.metric,
            lists: written.lists,
            groups: written.groups,
            list_vectors_max: written.list_vectors_max,
            sample: self.plan.list_sample,
            seed: self.options.seed,
            bytes,
            copies: written.copies.as_ref().map(|copies| CopiedLists {
                vectors: copies.vectors,
                list_vectors_max: copies.list_vectors_max,
                recall: recall.clone(),
            }),
            codes: shape_of(info, self.options).map(|shape| {
                Box::new(CodedLists {
                    bits: shape.bits,
                    bytes: shape.file_bytes(info.vectors, written.lists),
                    chunk_vectors: self.plan.chunk_vectors.unwrap_or(written.list_vectors_max),
                    recall: recall.clone(),
                })
            }),
            recall,
        }
    }

    /// Measures recall on the held-out vectors. For each neighbour of each held-out vector, `lists` states which lists
    /// hold the neighbour.
    fn measure(
        &self,
        index: &VectorIndex,
        held_out: &Packed<T>,
        lists: &[Vec<&[u32]>],
    ) -> Result<Vec<RecallPoint>> {
        let job = self.job;
        job.start_phase("measuring recall", "queries", 0);
        let holds_lower = index.lower_bytes() <= job.budget().free_bytes() / 2;
        let (_, centroids) = index.load::<T>(job, holds_lower)?;
        measure(job, &centroids, &self.exact, held_out, lists)
    }

    /// Measures the recall of searches by codes on the held-out vectors. `lists` are the lists of each neighbour.
    fn measure_codes(
        &self,
        index: &VectorIndex,
        packed: &Packed<T>,
        neighbours: &[Vec<u64>],
        lists: &[Vec<&[u32]>],
    ) -> Result<Vec<RecallPoint>> {
        let (job, info) = (self.job, index.info());
        job.start_phase("measuring recall by codes", "queries", 0);
        let free = job.budget().free_bytes();
        let holds_lower = index.lower_bytes() <= free / 4;
        let (directory, centroids) = index.load::<T>(job, holds_lower)?;
        let part = Part::of_lists(index, Arc::new(directory), None);
        let Some(codes) = Codes::open(job, index, false)? else { return Ok(Vec::new()) };
        let measured = Measured { packed, neighbours, k: RECALL_K as usize + 1, selected: None };
        measure_codes(job, (&codes, &part, &centroids), (&self.exact, info), &measured, lists)
    }

    /// Writes the files of the index. `sorted` has the vectors in the order of their lists.
    fn write_lists(
        &self,
        sorted: &mut Sorted,
        centroids: &Centroids<T>,
        files: &mut Files,
        lists_of: &mut ListsOf,
    ) -> Result<Written> {
        let (job, plan, row_bytes) = (self.job, &self.plan, self.row_bytes());
        let id_bytes = id_bytes(self.info().vectors);
        let copied_max = plan.copied_vectors_max.unwrap_or(0);
        let bytes = (plan.list_vectors_max + copied_max) * (row_bytes as u64 + 8) + (2 << 20);
        let _memory = job.budget().reserve(bytes, "a list")?;
        let mut list = OpenList::default();
        let mut written =
            Written { copies: files.copies.as_ref().map(|_| WrittenCopies::default()), ..Written::default() };
        let mut places = Places::new(centroids);
        let mut flush = |list: &mut OpenList, written: &mut Written| -> Result<()> {
            let count = (list.rows.len() / row_bytes) as u64;
            if count == 0 {
                return Ok(());
            }
            if let (Some(files), Some(copies)) = (&mut files.copies, &mut written.copies) {
                files.firsts.write(&copies.vectors.to_le_bytes())?;
                let parts = [&list.rows, &list.copied_rows, &list.ids, &list.copied_ids];
                parts.into_iter().try_for_each(|part| files.lists.write(part))?;
                let all = count + (list.copied_rows.len() / row_bytes) as u64;
                copies.vectors += all;
                copies.list_vectors_max = copies.list_vectors_max.max(all);
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
            let centroid = places.centroid(list.number);
            files.centroids.write(centroid)?;
            if let Some(codes) = &mut files.codes {
                codes.write::<T>(centroid, &list.rows, &list.ids)?;
            }
            let chunk = plan.chunk_vectors.unwrap_or(count) as usize;
            let ids = list.ids.chunks(chunk * id_bytes);
            for (rows, ids) in list.rows.chunks(chunk * row_bytes).zip(ids) {
                files.lists.write(rows)?;
                files.lists.write(ids)?;
            }
            written.lists += 1;
            written.vectors += count;
            written.list_vectors_max = written.list_vectors_max.max(count);
            job.progress().add(count);
            list.clear();
            Ok(())
        };
        let entry = KEY_BYTES + row_bytes;
        let mut piece = vec![0; ((1 << 20) / entry).max(1) * entry];
        loop {
            let filled = sorted.fill(&mut piece)?;
            for entry in piece[..filled].chunks_exact(entry) {
                let (number, order, id) = key_of(entry);
                let (own, copied) = (list.rows.len() / row_bytes, list.copied_rows.len() / row_bytes);
                let is_own = order == 0;
                if number != list.number || (is_own && own as u64 == plan.list_vectors_max) {
                    flush(&mut list, &mut written)?;
                    list.number = number;
                }
                // In the sort, the copies of a list follow its own vectors, the nearest copy first. A list without own
                // vectors is not written.
                if !is_own && (list.rows.is_empty() || (own + copied) as u64 >= copied_max) {
                    continue;
                }
                if let Some(lists) = lists_of.get_mut(&id) {
                    let place = if is_own { 0 } else { lists.len() };
                    lists.insert(place, written.lists as u32);
                }
                let (rows, ids) = match is_own {
                    true => (&mut list.rows, &mut list.ids),
                    false => (&mut list.copied_rows, &mut list.copied_ids),
                };
                rows.extend_from_slice(&entry[KEY_BYTES..]);
                ids.extend_from_slice(&id.to_le_bytes()[..id_bytes]);
            }
            if filled < piece.len() {
                break;
            }
        }
        flush(&mut list, &mut written)?;
        if let (Some(files), Some(copies)) = (&mut files.copies, &written.copies) {
            files.firsts.write(&copies.vectors.to_le_bytes())?;
        }
        files.firsts.write(&written.vectors.to_le_bytes())?;
        files.spans.write(&(written.lists as u32).to_le_bytes())?;
        Ok(written)
    }
}

/// Returns the nearest neighbours of each held-out vector, without the vector itself.
fn neighbours(ids: &[u64], tops: Vec<TopK>) -> Vec<Vec<u64>> {
    let others = |(top, own): (TopK, &u64)| {
        let others = top.into_sorted().into_iter().map(|entry| entry.id).filter(|id| id != own);
        others.take(RECALL_K as usize).collect()
    };
    tops.into_iter().zip(ids).map(others).collect()
}

/// For some vectors, the lists that hold the vector. The key is the id of the vector. The first list is the list that
/// owns the vector.
type ListsOf = HashMap<u64, Vec<u32>>;

fn own_list(lists: &[u32]) -> &[u32] {
    &lists[..1]
}

fn all_lists(lists: &[u32]) -> &[u32] {
    lists
}

/// A list that is being filled with its own vectors, and with copies of vectors of other lists.
#[derive(Default)]
struct OpenList {
    number: u32,
    rows: Vec<u8>,
    ids: Vec<u8>,
    copied_rows: Vec<u8>,
    copied_ids: Vec<u8>,
}

impl OpenList {
    fn clear(&mut self) {
        for part in [&mut self.rows, &mut self.ids, &mut self.copied_rows, &mut self.copied_ids] {
            part.clear();
        }
    }
}

/// The files that are being written.
struct Files {
    lists: FileWriter,
    firsts: FileWriter,
    centroids: FileWriter,
    groups: FileWriter,
    spans: FileWriter,
    copies: Option<FilesOfCopies>,
    codes: Option<CodeWriter>,
}

struct FilesOfCopies {
    lists: FileWriter,
    firsts: FileWriter,
}

impl Files {
    fn begin(builder: &mut DatasetBuilder, has_copies: bool) -> Result<Files> {
        let copies = match has_copies {
            true => Some(FilesOfCopies {
                lists: builder.file(COPIES, CHECK_BYTES, LIST_BUFFER_BYTES)?,
                firsts: builder.file(COPY_FIRSTS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            }),
            false => None,
        };
        Ok(Files {
            lists: builder.file(LISTS, CHECK_BYTES, LIST_BUFFER_BYTES)?,
            firsts: builder.file(FIRSTS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            centroids: builder.file(CENTROIDS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            groups: builder.file(GROUPS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            spans: builder.file(SPANS, CHECK_BYTES, SMALL_BUFFER_BYTES)?,
            copies,
            codes: None,
        })
    }

    /// Adds the files to the dataset, and opens them for the measurement of recall.
    fn open(self, builder: &mut DatasetBuilder) -> Result<IndexFiles> {
        Ok(IndexFiles {
            lists: builder.add_and_open(self.lists)?,
            firsts: builder.add_and_open(self.firsts)?,
            centroids: builder.add_and_open(self.centroids)?,
            groups: builder.add_and_open(self.groups)?,
            spans: builder.add_and_open(self.spans)?,
            copies: match self.copies {
                Some(copies) => Some(CopyFiles {
                    lists: builder.add_and_open(copies.lists)?,
                    firsts: builder.add_and_open(copies.firsts)?,
                }),
                None => None,
            },
            codes: self.codes.map(|codes| codes.open(builder)).transpose()?,
        })
    }
}

/// The counts that describe the files that were written.
#[derive(Default)]
struct Written {
    lists: u64,
    groups: u64,
    vectors: u64,
    list_vectors_max: u64,
    copies: Option<WrittenCopies>,
}

#[derive(Default)]
struct WrittenCopies {
    vectors: u64,
    list_vectors_max: u64,
}

/// Finds the groups and the centroids of lists. The lists must be given in ascending order.
pub(super) struct Places<'a, T> {
    centroids: &'a Centroids<T>,
    group: Option<usize>,
    /// The centroids of all lists of the group.
    held: Vec<u8>,
}

impl<'a, T: Clustered> Places<'a, T> {
    pub fn new(centroids: &'a Centroids<T>) -> Self {
        Places { centroids, group: None, held: Vec::new() }
    }

    /// Returns the group of a list. The flag is true if this group differs from the group that the previous call
    /// returned.
    pub fn find(&mut self, job: &Job, list: u32) -> Result<(usize, bool)> {
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

    /// Returns the centroid of a list. The list must be in the group that [`Self::find`] returned last.
    pub fn centroid(&self, list: u32) -> &[u8] {
        let group = self.group.expect("found before");
        let row_bytes = self.centroids.dimensions * size_of::<T>();
        let place = (list - self.centroids.firsts[group]) as usize;
        &self.held[place * row_bytes..][..row_bytes]
    }
}

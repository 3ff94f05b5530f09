//! Writes a layer, which is a dataset with rows that were added after the lists of an index were written. Each row is
//! assigned to a list, and the rows are sorted by list and written.

use std::ops::Range;

use inshore_sortreduce::rows::smallest_row_memory_bytes_for;
use inshore_store::{DatasetBuilder, FileWriter, Job, Store};

use super::{
    Build, Index,
    plan::{BuildPlan, CHECK_BYTES, LIST_BUFFER_BYTES, Memory, SMALL_BUFFER_BYTES},
    sample::HeldOut,
    sort::{KEY_BYTES, Sorted, key_of},
};
use crate::{
    Element, Metric, Result, Vectors,
    index::{
        Clustered,
        compare::Space,
        dataset::VectorIndex,
        info::{FIRSTS, LISTS, id_bytes},
        layers::{LAYER_KIND, Layer, all_layers, attributes, layer_name, next_layer},
        no_index_of,
    },
    live::{live_bytes, live_rows},
    names::index_dataset,
    search::center_of_vectors,
    tiles::Instructions,
};

/// A layer is written only for rows of at least this number of bytes. If there are fewer bytes, a query compares all of
/// them in less time than it takes to find the right rows through lists.
const TAIL_BYTES: u64 = 1 << 20;

/// Writes a layer with the rows that are in no list and no layer of an index, and removes layers that are no longer
/// used. If these rows have fewer than [`TAIL_BYTES`] bytes, no layer is written. Returns how many rows are still in no
/// list and no layer after the call.
///
/// # Errors
/// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
/// memory, or the job was cancelled. After an error, the vectors and the index are unchanged.
pub(crate) fn extend_index(store: &Store, job: &Job, name: &str) -> Result<u64> {
    let vectors = Vectors::open(store, name)?;
    let Some(index) = VectorIndex::open(store, &vectors)? else { return Ok(0) };
    let (info, rows) = (vectors.info(), vectors.info().vectors);
    let tail = rows - index.end();
    if tail * (info.row_bytes() as u64) < TAIL_BYTES {
        return Ok(tail);
    }
    let ranges: Vec<Range<u64>> = index.layers.iter().map(|layer| layer.rows.clone()).collect();
    let next = next_layer(&ranges, index.info().vectors, rows);
    let written = match info.element {
        Element::F32 => write_layer::<f32>(store, job, &vectors, &index, next.clone()),
        Element::U8 => write_layer::<u8>(store, job, &vectors, &index, next.clone()),
        Element::I8 => write_layer::<i8>(store, job, &vectors, &index, next.clone()),
        Element::F16 | Element::Bf16 | Element::Bits => Err(no_index_of(info)),
    };
    match written {
        // If the name exists, another job wrote the layer.
        Ok(()) | Err(crate::Error::Store(inshore_store::Error::NameExists { .. })) => {}
        Err(error) => return Err(error),
    }
    remove_unused_layers(store, name)?;
    Ok(0)
}

/// Removes those layers of the vectors `name` that belong to an earlier index, and those whose rows a longer layer
/// covers.
///
/// # Errors
/// - Returns [`crate::Error::BadDataset`] if a layer is damaged.
/// - Returns [`crate::Error::Store`] if an I/O operation fails.
pub(crate) fn remove_unused_layers(store: &Store, name: &str) -> Result<()> {
    let index = index_dataset(store, name)?.map(|index| index.id());
    let all = all_layers(store, name)?;
    let is_within = |layer: &Layer| {
        let others = all.iter().filter(|other| other.id != layer.id && other.index == layer.index);
        let mut ranges = others.map(|other| &other.rows);
        ranges.any(|rows| rows.start <= layer.rows.start && layer.rows.end < rows.end)
    };
    for layer in all.iter().filter(|layer| index != Some(layer.index) || is_within(layer)) {
        match store.remove_exactly(&layer.name, layer.id) {
            Ok(()) | Err(inshore_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes the layer that covers the rows `rows`.
fn write_layer<T: Clustered>(
    store: &Store,
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
    rows: Range<u64>,
) -> Result<()> {
    let plan = plan_layer::<T>(job, vectors, index, rows.end - rows.start)?;
    let info = index.info();
    let (_, centroids) = index.load::<T>(job, plan.holds_centroids)?;
    let live = live_rows(job, vectors)?;
    let (metric, lists, seed) = (info.metric, Some(info.lists), info.seed);
    let options = Index { metric, lists, seed, copies: None, codes: None };
    let center = center_of_vectors(job, vectors, Metric::L2)?;
    let metric = if info.metric == Metric::Cosine { Metric::Cosine } else { Metric::L2 };
    let space = Space::<T>::new(metric, info.dimensions, &center, Instructions::best());
    let exact = space.clone();
    let build: Build<'_, T> = Build { job, vectors, options: &options, plan, space, exact, keep: None };
    let (sorted, _) = build.assign(&centroids, &HeldOut::none(job)?, rows.clone(), live.as_ref())?;
    drop((centroids, live));
    let mut builder = store.create_dataset(job, &layer_name(&info.name, rows.end), LAYER_KIND)?;
    job.start_phase("writing a layer", "vectors", rows.end - rows.start);
    let chunk = info.chunk();
    let written = LayerFiles::begin(&mut builder, id_bytes(rows.end), chunk)?;
    let count = written.write(job, &mut builder, sorted, build.row_bytes(), info.lists)?;
    Ok(builder.commit(&attributes(index.id(), &rows, count, chunk))?)
}

/// Plans a layer of `rows` rows with the memory that is free in the budget of the job.
fn plan_layer<T: Clustered>(
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
    rows: u64,
) -> Result<BuildPlan> {
    let (info, row_bytes) = (index.info(), vectors.info().row_bytes() as u64);
    let mut plan = BuildPlan {
        lists: info.lists,
        groups: info.groups,
        list_vectors_max: info.chunk(),
        copied_vectors_max: None,
        chunk_vectors: None,
        group_sample: 0,
        list_sample: 0,
        threads: job.budget().threads(),
        sort_bytes: 0,
        holds_centroids: true,
        smallest_bytes: 0,
        read_bytes: rows * row_bytes,
        written_bytes: rows * (row_bytes + id_bytes(info.vectors) as u64),
        multiplications: rows * (info.groups + info.lists.div_ceil(info.groups)) * info.dimensions as u64,
    };
    let memory = Memory::of::<T>(job, vectors.info(), &plan);
    let free = job.budget().free_bytes();
    plan.holds_centroids = index.lower_bytes() <= free / 4;
    let lower = if plan.holds_centroids { index.lower_bytes() } else { 0 };
    let beside =
        memory.pass.max(memory.writing) + index.directory_bytes() + lower + live_bytes(vectors.info());
    let sort = smallest_row_memory_bytes_for(plan.threads, rows * (KEY_BYTES as u64 + row_bytes))
        .max(row_bytes * 128 * (plan.threads as u64 + 2));
    plan.smallest_bytes = beside + sort;
    // The sort gets at most as much memory as its rows need.
    let enough = (4 * rows * (KEY_BYTES as u64 + row_bytes)).max(16 << 20);
    plan.sort_bytes = free.saturating_sub(beside).min(enough).max(sort);
    job.budget().need(plan.smallest_bytes, || format!("adding to the index of {}", info.name))?;
    Ok(plan)
}

/// The files of a layer while they are written.
struct LayerFiles {
    lists: FileWriter,
    firsts: FileWriter,
    id_bytes: usize,
    /// The largest number of vectors in a chunk. A chunk holds some vectors of a list.
    chunk: u64,
    rows: Vec<u8>,
    ids: Vec<u8>,
}

impl LayerFiles {
    fn begin(builder: &mut DatasetBuilder, id_bytes: usize, chunk: u64) -> Result<LayerFiles> {
        let lists = builder.file(LISTS, CHECK_BYTES, LIST_BUFFER_BYTES)?;
        let firsts = builder.file(FIRSTS, CHECK_BYTES, SMALL_BUFFER_BYTES)?;
        Ok(LayerFiles { lists, firsts, id_bytes, chunk, rows: Vec::new(), ids: Vec::new() })
    }

    /// Writes the collected chunk, and clears it.
    fn flush(&mut self) -> Result<()> {
        self.lists.write(&self.rows)?;
        self.lists.write(&self.ids)?;
        self.rows.clear();
        self.ids.clear();
        Ok(())
    }

    /// Writes the sorted rows as lists. Returns the number of rows.
    fn write(
        mut self,
        job: &Job,
        builder: &mut DatasetBuilder,
        mut sorted: Sorted,
        row_bytes: usize,
        lists: u64,
    ) -> Result<u64> {
        let bytes = self.chunk * (row_bytes as u64 + 8) + (2 << 20);
        let _memory = job.budget().reserve(bytes, "a chunk of a list")?;
        let entry = KEY_BYTES + row_bytes;
        let mut piece = vec![0; ((1 << 20) / entry).max(1) * entry];
        // The number of lists whose positions were written so far, and the number of their vectors.
        let (mut begun, mut count) = (0u64, 0u64);
        loop {
            let filled = sorted.fill(&mut piece)?;
            for entry in piece[..filled].chunks_exact(entry) {
                let (list, _, row) = key_of(entry);
                let is_new = u64::from(list) >= begun;
                if is_new || self.rows.len() as u64 == self.chunk * row_bytes as u64 {
                    self.flush()?;
                }
                while begun <= u64::from(list) {
                    self.firsts.write(&count.to_le_bytes())?;
                    begun += 1;
                }
                self.rows.extend_from_slice(&entry[KEY_BYTES..]);
                self.ids.extend_from_slice(&row.to_le_bytes()[..self.id_bytes]);
                count += 1;
            }
            job.progress().add((filled / entry) as u64);
            if filled < piece.len() {
                break;
            }
        }
        self.flush()?;
        for _ in begun..=lists {
            self.firsts.write(&count.to_le_bytes())?;
        }
        builder.add(self.lists)?;
        builder.add(self.firsts)?;
        Ok(count)
    }
}

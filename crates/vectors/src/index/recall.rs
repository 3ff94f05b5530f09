//! Measures recall as a function of the number of probed lists. The build measures recall on held-out vectors.
//! [`measure_recall`] measures recall on the user's queries.
//!
//! An answer contains an exact neighbour if and only if the list of that neighbour is probed, since distances in probed
//! lists are exact. Recall can therefore be measured without searches. The exact neighbours of the queries and the
//! lists that hold these neighbours are found once. For each number of probes, the queries are then compared with
//! centroids only.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use inshore_store::{CheckedFile, Job, Store};

use super::{
    Clustered,
    centroids::{Centroids, Finder},
    codes::{Codes, Measured, lists_of_found},
    compare::{Comparer, Members, Packed, Space},
    dataset::VectorIndex,
    info::IndexInfo,
    parts::Part,
    ranges::{BUFFERS, Ranges},
    round::Selected,
    table::{MeasuredOn, RecallPoint, RecallTable},
};
use crate::{
    Element, Error, Result, VectorFile, Vectors,
    dataset::CHECK_BYTES,
    element::{aligned, bytes_of},
    heaps::Tops,
    live::{live_bytes, live_rows},
    names::index_name,
    search::{QueryRows, Source, center_of_vectors},
    tiles::Instructions,
    topk::TopK,
};

/// Once this recall is reached, larger numbers of probes are not measured.
pub(crate) const ENOUGH: f32 = 0.9995;
/// The size of a read in a pass over vectors or lists.
const BLOCK_BYTES: usize = 1 << 20;

/// Returns the numbers of probes that are measured: 1, 2, ..., 8, 10, 12, 14, 16, 20, ... up to `lists`.
pub(crate) fn grid(lists: u64) -> impl Iterator<Item = u64> {
    let steps = (0..32).flat_map(|power| (4..8u64).map(move |step| step << power));
    let mut steps: Vec<u64> =
        [1, 2, 3].into_iter().chain(steps).filter(|step| *step < lists).chain([lists]).collect();
    steps.sort_unstable();
    steps.dedup();
    steps.into_iter()
}

/// Measures recall for several numbers of probes. For each exact neighbour of each query, `lists_of` states which lists
/// hold the neighbour.
///
/// # Errors
/// Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free memory,
/// or the job was cancelled.
pub(crate) fn measure<T: Clustered>(
    job: &Job,
    centroids: &Centroids<T>,
    space: &Space<T>,
    packed: &Packed<T>,
    lists_of: &[Vec<&[u32]>],
) -> Result<Vec<RecallPoint>> {
    let wanted: usize = lists_of.iter().map(Vec::len).sum();
    let threads = job.budget().threads();
    let mut points = Vec::new();
    for probes in grid(centroids.lists()) {
        job.check_cancelled()?;
        let groups = centroids.groups_for(probes);
        let block = queries_at_once(job, centroids, packed.len() as u64, (probes, groups));
        let bytes = block * TopK::bytes(probes) + centroids.finder_bytes(block, groups);
        let _memory = job.budget().reserve(threads as u64 * bytes, "the measurement of recall")?;
        let (next, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || -> Result<()> {
            let mut finder: Finder<T> = centroids.finder(job)?;
            let block = block as usize;
            loop {
                let first = block * next.fetch_add(1, Ordering::Relaxed);
                if first >= packed.len() {
                    return Ok(());
                }
                let members: Vec<u32> =
                    (first..packed.len().min(first + block)).map(|query| query as u32).collect();
                let tops: Vec<TopK> =
                    members.iter().map(|_| TopK::new(probes as usize, f64::INFINITY)).collect();
                let heaps = Tops { first, tops: &tops };
                let queries = Members { packed, members: &members, heaps: &heaps };
                centroids.find(job, space, groups, &queries, &mut finder)?;
                for (top, lists_of) in tops.into_iter().zip(&lists_of[first..]) {
                    let mut lists: Vec<u32> = top.into_sorted().iter().map(|entry| entry.id as u32).collect();
                    lists.sort_unstable();
                    let is_probed = |list: &u32| lists.binary_search(list).is_ok();
                    let count = lists_of.iter().filter(|lists| lists.iter().any(is_probed)).count();
                    found.fetch_add(count, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        let recall = found.into_inner() as f32 / (wanted.max(1)) as f32;
        points.push(RecallPoint { probes, recall });
        if recall >= ENOUGH {
            break;
        }
    }
    Ok(points)
}

/// Returns the number of queries whose lists a thread finds together. Centroids on flash are read once for these
/// queries. Their heaps take at most a quarter of the free memory, and each thread has a part of the queries.
fn queries_at_once<T: Clustered>(
    job: &Job,
    centroids: &Centroids<T>,
    queries: u64,
    (probes, groups): (u64, u64),
) -> u64 {
    let threads = job.budget().threads() as u64;
    let fixed = centroids.finder_bytes(0, groups);
    let each = TopK::bytes(probes) + centroids.finder_bytes(1, groups) - fixed;
    (job.budget().free_bytes() / 4 / threads / each).clamp(1, queries.div_ceil(threads).max(1))
}

/// Measures the recall of the index on a sample of the user's queries, and replaces the table of recall of the index.
/// If the index has lists with copies or codes, their table is measured and replaced, too. Returns the table of the
/// lists without copies.
///
/// The function reads all vectors once, all lists once, and all lists with copies once.
///
/// # Errors
/// - Returns [`Error::BadOption`] if `sample` or `k` is out of range.
/// - Returns [`Error::BadFile`] if the queries have another number of dimensions than the vectors.
/// - Returns [`inshore_store::Error::Changed`] if another job changed the index.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub fn measure_recall(
    store: &Store,
    job: &Job,
    vectors: &Vectors,
    index: &mut VectorIndex,
    queries: &VectorFile,
    sample: u64,
    k: u64,
) -> Result<RecallTable> {
    check_measurement(sample, k)?;
    crate::search::check_dimensions(queries.into(), vectors.info())?;
    let (table, single) = match vectors.info().element {
        Element::F32 => measure_elements::<f32>(job, vectors, index, queries, sample, k),
        Element::U8 => measure_elements::<u8>(job, vectors, index, queries, sample, k),
        Element::I8 => measure_elements::<i8>(job, vectors, index, queries, sample, k),
        Element::F16 | Element::Bf16 | Element::Bits => Err(super::no_index_of(vectors.info())),
    }?;
    index.set_recall(table.clone(), single);
    commit_table(store, job, (&vectors.info().name, index.id()), &index.info().to_attributes())?;
    Ok(table)
}

/// Publishes new attributes of the index with the id `id`. The attributes contain a new table of recall.
///
/// # Errors
/// - Returns [`inshore_store::Error::Changed`] if another job replaced the index.
/// - Returns [`Error::Store`] if an I/O operation fails.
pub(crate) fn commit_table(
    store: &Store,
    job: &Job,
    (vectors, id): (&str, u64),
    attributes: &[u8],
) -> Result<()> {
    let name = index_name(vectors);
    let builder = store.append_to_dataset(job, &name)?;
    if builder.base().is_none_or(|index| index.id() != id) {
        let store = store.path().to_path_buf();
        return Err(inshore_store::Error::Changed { name, store }.into());
    }
    Ok(builder.commit(attributes)?)
}

/// Checks the number of queries and of neighbours of a measurement.
///
/// # Errors
/// Returns [`Error::BadOption`] if one of the numbers is out of range.
pub fn check_measurement(sample: u64, k: u64) -> Result<()> {
    for (option, found) in [("sample", sample), ("k", k)] {
        if found == 0 || found > 1 << 20 {
            let expected = format!("1 to {}", 1 << 20);
            return Err(Error::BadOption { option, found: found.to_string(), expected });
        }
    }
    Ok(())
}

fn measure_elements<T: Clustered>(
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
    file: &VectorFile,
    sample: u64,
    k: u64,
) -> Result<(RecallTable, Option<RecallTable>)> {
    let info = vectors.info();
    let sample = sample.min(file.count());
    let k = k.min(info.vectors);
    let memory = sample * (Packed::<T>::bytes_each(info.dimensions) + TopK::bytes(k) + k * 128);
    let reader_bytes = Source::from(file).rows_bytes();
    let others = live_bytes(info) + index.directory_bytes() + pass_bytes::<T>(job, info.dimensions);
    job.budget()
        .need(memory + reader_bytes + others, || format!("measuring recall with {sample} queries"))?;
    let _memory = job.budget().reserve(memory, "queries and their neighbours")?;
    let holds_lower = index.lower_bytes() <= job.budget().free_bytes() / 4;
    let (directory, centroids) = index.load::<T>(job, holds_lower)?;
    let center = center_of_vectors(job, vectors, index.info().metric)?;
    let space = Space::<T>::new(index.info().metric, info.dimensions, &center, Instructions::best());
    let mut packed = Packed::with_capacity(info.dimensions, sample as usize);
    read_queries(
        job,
        file.into(),
        vectors,
        (0..sample).map(|number| number * file.count() / sample),
        &space,
        &mut packed,
    )?;
    let tops: Vec<TopK> = (0..sample).map(|_| TopK::new(k as usize, f64::INFINITY)).collect();
    let live = live_rows(job, vectors)?;
    job.start_phase("finding exact neighbours", "vectors", info.vectors);
    let members: Vec<u32> = (0..sample as u32).collect();
    for_vectors::<T, _>(
        job,
        &vectors.file,
        // Rows that were added after the build are left out, since the lists of the build do not hold them.
        (index.info().vectors, info.dimensions),
        || Comparer::<T>::new(info.dimensions),
        |comparer, first, rows| {
            let heaps = Tops { first: 0, tops: &tops };
            let queries = Members { packed: &packed, members: &members, heaps: &heaps };
            let row_of = |row: usize| {
                let row = first + row as u64;
                live.as_ref().is_none_or(|live| live.contains(row)).then_some(row)
            };
            comparer.compare_some(&space, rows, row_of, &queries);
            Ok(())
        },
    )?;
    let neighbours: Vec<Vec<u64>> =
        tops.into_iter().map(|top| top.into_sorted().iter().map(|entry| entry.id).collect()).collect();
    let table_of = |points| RecallTable::new(k, sample as usize, MeasuredOn::Queries, points);
    let measure_lists = |lists: &[Vec<&[u32]>]| -> Result<RecallTable> {
        job.start_phase("measuring recall", "queries", 0);
        Ok(table_of(measure(job, &centroids, &space, &packed, lists)?))
    };
    let directory = Arc::new(directory);
    let own = Part::of_lists(index, directory.clone(), None);
    let found = lists_of_vectors::<T>(job, index, &own, &neighbours)?;
    let lists = lists_of_neighbours(&neighbours, &found);
    let table = measure_lists(&lists)?;
    if let Some(copied) = index.load_copies(job, &directory)? {
        let copied = Part::of_lists(index, Arc::new(copied), Some(directory));
        let found = lists_of_vectors::<T>(job, index, &copied, &neighbours)?;
        return Ok((table, Some(measure_lists(&lists_of_neighbours(&neighbours, &found))?)));
    }
    let Some(shape) = index.info().shape_of_codes() else { return Ok((table, None)) };
    let holds = CheckedFile::held_bytes(shape.file_bytes(index.info().vectors, index.info().lists))
        <= job.budget().free_bytes() / 2;
    let Some(codes) = Codes::open(job, index, holds)? else { return Ok((table, None)) };
    job.start_phase("measuring recall by codes", "queries", 0);
    let selected = live.as_ref().map(|live| Selected::new(live, packed.len()));
    let measured =
        Measured { packed: &packed, neighbours: &neighbours, k: k as usize, selected: selected.as_ref() };
    let points = measure_codes(job, (&codes, &own, &centroids), (&space, index.info()), &measured, &lists)?;
    Ok((table, Some(table_of(points))))
}

/// Returns the lists of each neighbour. `found` has the lists of vectors by id.
fn lists_of_neighbours<'a>(
    neighbours: &[Vec<u64>],
    found: &'a HashMap<u64, Vec<u32>>,
) -> Vec<Vec<&'a [u32]>> {
    let lists_of = |id: &u64| found.get(id).map_or(&[][..], Vec::as_slice);
    neighbours.iter().map(|ids| ids.iter().map(lists_of).collect()).collect()
}

/// Measures the recall of searches by codes. `lists_of` states for each neighbour of each query which lists hold it. A
/// search that probes all lists reads no codes, so the table ends before.
///
/// # Errors
/// Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free memory,
/// or the job was cancelled.
pub(super) fn measure_codes<T: Clustered>(
    job: &Job,
    (codes, part, centroids): (&Codes, &Part, &Centroids<T>),
    (space, info): (&Space<T>, &IndexInfo),
    measured: &Measured<'_, T>,
    lists_of: &[Vec<&[u32]>],
) -> Result<Vec<RecallPoint>> {
    let found = lists_of_found(job, (codes, part, centroids), (space, info), measured, lists_of)?;
    let mut points = measure(job, centroids, space, measured.packed, &found)?;
    points.retain(|point| point.probes < info.lists);
    Ok(points)
}

/// Returns the memory, in bytes, of a pass by [`for_vectors`].
pub(crate) fn pass_bytes<T: Clustered>(job: &Job, dimensions: usize) -> u64 {
    let threads = job.budget().threads();
    let buffers = inshore_store::taken_bytes(threads * BUFFERS * block_bytes(dimensions * size_of::<T>()));
    buffers as u64 + threads as u64 * Comparer::<T>::bytes(dimensions)
}

fn block_bytes(row_bytes: usize) -> usize {
    BLOCK_BYTES.max((row_bytes + 2 * CHECK_BYTES).next_multiple_of(CHECK_BYTES))
}

/// Calls `work` with blocks of the first `vectors` vectors of a file. The arguments are the state of the thread, the
/// row number of the first vector of the block, and the elements of the block.
///
/// # Errors
/// - Returns the errors of `work`.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub(crate) fn for_vectors<T: Clustered, S: Send>(
    job: &Job,
    file: &CheckedFile,
    (vectors, dimensions): (u64, usize),
    make: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, u64, &[T]) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    for_rows(job, file, Blocks { rows: 0..vectors, dimensions, rows_max: u64::MAX }, make, work)
}

/// The rows of a pass.
pub(crate) struct Blocks {
    /// The numbers of the rows in the file.
    pub rows: Range<u64>,
    /// The number of dimensions of a row.
    pub dimensions: usize,
    /// The largest number of rows of a block, at least 1.
    pub rows_max: u64,
}

/// Calls `work` with blocks of some rows of a file. The arguments are the number of the first row of the block, and the
/// elements.
///
/// # Errors
/// - Returns the errors of `work`.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub(crate) fn for_rows<T: Clustered, S: Send>(
    job: &Job,
    file: &CheckedFile,
    Blocks { rows: all, dimensions, rows_max }: Blocks,
    make: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, u64, &[T]) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let row_bytes = dimensions * size_of::<T>();
    let buffer_bytes = block_bytes(row_bytes);
    let rows = (((buffer_bytes - 2 * CHECK_BYTES) / row_bytes).max(1) as u64).min(rows_max);
    let range = |number: u64| {
        let first = all.start + number * rows;
        (first < all.end).then(|| first * row_bytes as u64..all.end.min(first + rows) * row_bytes as u64)
    };
    let ranges = Ranges { job, file, threads: job.budget().threads(), buffer_bytes, range };
    ranges.each(make, |state, number, bytes| {
        let rows_here = T::rows(bytes);
        work(state, all.start + number * rows, rows_here)?;
        job.progress().add((rows_here.len() / dimensions) as u64);
        Ok(())
    })
}

/// Reads the queries with the given numbers, and packs them. The numbers must be in ascending order.
///
/// # Errors
/// Returns [`crate::Error::BadFile`] if the element type of the vectors cannot hold a value of a query, and
/// [`crate::Error::Store`] if a read fails.
pub(crate) fn read_queries<T: Clustered>(
    job: &Job,
    source: Source<'_>,
    vectors: &Vectors,
    numbers: impl Iterator<Item = u64>,
    space: &Space<T>,
    packed: &mut Packed<T>,
) -> Result<()> {
    let mut rows = source.rows(job)?;
    let mut ids = Vec::new();
    for number in numbers {
        // `ids` has one id for each query that was read or skipped, so its length is the number of the next query.
        while (ids.len() as u64) < number {
            rows.next(number - ids.len() as u64, &mut ids)?;
        }
        pack_next(&mut rows, (source, number), vectors, space, packed, &mut ids)?;
    }
    Ok(())
}

/// Reads the next query, which has the number `number`, and packs it. The id of the query is appended to `ids`.
///
/// # Errors
/// Returns [`crate::Error::BadFile`] if the element type of the vectors cannot hold a value of a query, and
/// [`crate::Error::Store`] if a read fails.
pub(crate) fn pack_next<T: Clustered>(
    rows: &mut QueryRows,
    (source, number): (Source<'_>, u64),
    vectors: &Vectors,
    space: &Space<T>,
    packed: &mut Packed<T>,
    ids: &mut Vec<u64>,
) -> Result<()> {
    let info = vectors.info();
    let mut cast = Vec::with_capacity(info.row_bytes());
    let bytes = rows.next(1, ids)?;
    source.element().cast(bytes, info.element, &mut cast).map_err(|(dimension, value)| {
        let expected = format!("a value of {}, as the elements of {}", info.element, info.name);
        source.bad_value(number, dimension, value.to_string(), expected)
    })?;
    let mut memory = aligned(cast.len());
    let bytes = bytes_of(&mut memory, cast.len());
    bytes.copy_from_slice(&cast);
    packed.extend(T::rows(bytes), space);
    Ok(())
}

/// Finds the lists that hold each of the vectors `ids`, in one pass over the lists of a part.
fn lists_of_vectors<T: Clustered>(
    job: &Job,
    index: &VectorIndex,
    part: &Part,
    ids: &[Vec<u64>],
) -> Result<HashMap<u64, Vec<u32>>> {
    let wanted: HashMap<u64, ()> = ids.iter().flatten().map(|&id| (id, ())).collect();
    let lists = index.info().lists;
    job.start_phase("finding lists of neighbours", "lists", lists);
    let block_bytes = part.file.block_bytes();
    let buffer_bytes =
        (part.chunk_bytes() as usize + 2 * block_bytes).max(BLOCK_BYTES).next_multiple_of(block_bytes);
    let usable = (buffer_bytes - 2 * block_bytes) as u64;
    let lists: Vec<u32> = (0..lists as u32).collect();
    let pieces = part.pieces(&lists, usable, 0);
    let range = |number: u64| pieces.get(number as usize).map(|piece| part.bytes_of(piece));
    let ranges = Ranges { job, file: &part.file, threads: job.budget().threads(), buffer_bytes, range };
    let found = ranges.each(Vec::new, |found: &mut Vec<(u64, u32)>, number, bytes| {
        let piece = &pieces[number as usize];
        part.each_chunk::<T>(piece, bytes, |list, members, (_, count)| {
            let ids = (0..count).map(|place| members.row(place)).filter(|row| wanted.contains_key(row));
            found.extend(ids.map(|id| (id, list)));
            Ok(())
        })?;
        job.progress().add(piece.lists.len() as u64);
        Ok(())
    })?;
    let mut lists: HashMap<u64, Vec<u32>> = HashMap::new();
    for (id, list) in found.into_iter().flatten() {
        lists.entry(id).or_default().push(list);
    }
    Ok(lists)
}

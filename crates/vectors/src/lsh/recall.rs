//! Measures the recall of hash tables for different numbers of probed buckets. A build measures recall on vectors of
//! the dataset that serve as queries. Such a query is not a neighbour of itself. Recall can also be measured on queries
//! of the user.
//!
//! An answer contains an exact neighbour if and only if one of the probed buckets contains the neighbour. So a
//! measurement computes the exact neighbours of all queries once. Each query then probes its buckets until all of its
//! neighbours are found.

use inshore_store::Job;

use super::{
    buckets::Buckets,
    dataset::LshIndex,
    functions::Values,
    probes::Probes,
    query::{AT_ONCE, holds_directory},
    sample::{Drawn, drawn, read_rows},
};
use crate::{
    MeasuredOn, RecallPoint, RecallTable, Result, Search, Source, VectorFile, Vectors,
    ids::Ids,
    index::{RECALL_ENOUGH, RECALL_K, recall_grid},
    live::live_rows,
    search,
    search::{HeldRows, check_dimensions},
};

/// The largest number of probes for which recall is measured.
const PROBES_MEASURED: u64 = 512;

/// Measures recall on at most `count` vectors of the dataset. The result replaces the table of recall of `index`.
///
/// # Errors
/// - Returns [`crate::Error::BadDataset`] if the dataset or the index is damaged.
/// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little
///   free memory, or the job was cancelled.
pub(super) fn measure_held_out(job: &Job, vectors: &Vectors, index: &mut LshIndex, count: u64) -> Result<()> {
    let info = vectors.info();
    let mut numbers = drawn(index.info().seed, Drawn::HeldOut, count, index.info().vectors);
    if let Some(live) = live_rows(job, vectors)? {
        numbers.retain(|&row| live.contains(row));
    }
    if numbers.is_empty() {
        return Ok(());
    }
    let bytes = (numbers.len() * (info.row_bytes() + 16)) as u64;
    let _memory = job.budget().reserve(bytes, "held-out vectors")?;
    let ids = Ids::read(job, vectors)?;
    let (name, element, dimensions) = (info.name.clone(), info.element, info.dimensions);
    let bytes = read_rows(job, vectors, &numbers)?;
    let ids = numbers.into_iter().map(|row| ids.id(row)).collect();
    let held = HeldRows { name, element, dimensions, ids, bytes };
    let points = measure(job, vectors, index, &held, (RECALL_K, true))?;
    index.set_recall(RecallTable::new(RECALL_K, held.ids.len(), MeasuredOn::HeldOutVectors, points));
    Ok(())
}

/// Measures recall on a sample of the user's queries. The result replaces the table of recall of `index`. The caller
/// must commit the changed attributes.
///
/// The cost is one pass over the vectors, and up to 512 random reads for each query.
///
/// # Errors
/// - Returns [`crate::Error::BadFile`] if the queries have another number of dimensions than the vectors, or if the
///   element type of the vectors cannot represent a value of a query.
/// - Returns [`crate::Error::BadDataset`] if the dataset or the index is damaged.
/// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little
///   free memory, or the job was cancelled.
pub(crate) fn measure_lsh(
    job: &Job,
    vectors: &Vectors,
    index: &mut LshIndex,
    queries: &VectorFile,
    (sample, k): (u64, u64),
) -> Result<RecallTable> {
    let info = vectors.info();
    check_dimensions(queries.into(), info)?;
    let (sample, k) = (sample.min(queries.count()), k.min(info.live()));
    let (element, dimensions) = (info.element.queried(), info.dimensions);
    let bytes = sample * (element.row_bytes(dimensions) as u64 + 16);
    let _memory = job.budget().reserve(bytes, "queries")?;
    let name = Source::from(queries).name();
    let mut held = HeldRows { name, element, dimensions, ids: Vec::new(), bytes: Vec::new() };
    read_sample(job, queries, sample, &mut held)?;
    let points = measure(job, vectors, index, &held, (k, false))?;
    let table = RecallTable::new(k, held.ids.len(), MeasuredOn::Queries, points);
    index.set_recall(table.clone());
    Ok(table)
}

/// Reads `sample` queries at equal distances in a file, and adds them to `held`.
fn read_sample(job: &Job, queries: &VectorFile, sample: u64, held: &mut HeldRows) -> Result<()> {
    let source = Source::from(queries);
    let (mut rows, mut ids) = (source.rows(job)?, Vec::new());
    for number in (0..sample).map(|number| number * queries.count() / sample) {
        while (ids.len() as u64) < number {
            rows.next(number - ids.len() as u64, &mut ids)?;
        }
        let row = rows.next(1, &mut ids)?;
        source.element().cast(row, held.element, &mut held.bytes).map_err(|(dimension, value)| {
            let expected = format!("a value of {}, as the elements of the vectors", held.element);
            source.bad_value(number, dimension, value.to_string(), expected)
        })?;
        held.ids.push(number);
    }
    Ok(())
}

/// Measures the points of a table of recall. `are_vectors` is true if the queries are vectors of the dataset.
fn measure(
    job: &Job,
    vectors: &Vectors,
    index: &LshIndex,
    held: &HeldRows,
    (k, are_vectors): (u64, bool),
) -> Result<Vec<RecallPoint>> {
    let memory = held.ids.len() as u64 * k * 9;
    let _memory = job.budget().reserve(memory, "neighbours of queries")?;
    let neighbours = neighbours(job, vectors, index, held, (k, are_vectors))?;
    let wanted: usize = neighbours.iter().map(Vec::len).sum();
    let all = index.info().shape().all_buckets();
    if wanted == 0 {
        return Ok(vec![RecallPoint { probes: all, recall: 1.0 }]);
    }
    job.start_phase("measuring recall", "queries", held.ids.len() as u64);
    let found = found_by_probe(job, vectors, index, held, &neighbours)?;
    let mut points: Vec<RecallPoint> = Vec::new();
    let (mut sum, mut probed) = (0, 0);
    for probes in recall_grid(all).take_while(|&probes| probes <= PROBES_MEASURED) {
        sum += found[probed..probes as usize].iter().sum::<u64>();
        probed = probes as usize;
        points.push(RecallPoint { probes, recall: sum as f32 / wanted as f32 });
        if points[points.len() - 1].recall >= RECALL_ENOUGH {
            break;
        }
    }
    Ok(points)
}

/// Finds the exact neighbours of queries. Returns the ids of the neighbours of each query, ascending.
fn neighbours(
    job: &Job,
    vectors: &Vectors,
    index: &LshIndex,
    held: &HeldRows,
    (k, are_vectors): (u64, bool),
) -> Result<Vec<Vec<u64>>> {
    let options =
        Search { k, metric: index.info().metric, excludes_itself: are_vectors, ..Search::default() };
    let mut neighbours = vec![Vec::new(); held.ids.len()];
    let mut place = 0;
    search(job, vectors, Source::Held(held), &options, &mut |batch| {
        for (query, id) in crate::search::pairs_of_answer(&batch) {
            // The rows of the answer come in the order of the queries, and each query has a different id.
            while held.ids[place] != query {
                place += 1;
            }
            neighbours[place].push(id);
        }
        Ok(())
    })?;
    neighbours.iter_mut().for_each(|ids| ids.sort_unstable());
    Ok(neighbours)
}

/// Counts for each probe the neighbours that this probe finds first, summed over all queries.
fn found_by_probe(
    job: &Job,
    vectors: &Vectors,
    index: &LshIndex,
    held: &HeldRows,
    neighbours: &[Vec<u64>],
) -> Result<Vec<u64>> {
    let functions = index.functions(job)?;
    let _memory = job.budget().reserve(
        Values::bytes(&functions.shape) + Probes::bytes(&functions, PROBES_MEASURED),
        "the measurement of recall",
    )?;
    let (ids, live) = (Ids::read(job, vectors)?, live_rows(job, vectors)?);
    let mut buckets = Buckets::open(job, &index.buckets, index.info(), holds_directory(job, index))?;
    let mut values = Values::default();
    let mut found = vec![0; PROBES_MEASURED as usize];
    for (query, wanted) in neighbours.iter().enumerate() {
        functions.evaluate(held.element, held.row(query), &mut values);
        let mut is_found = vec![false; wanted.len()];
        let mut left = wanted.len();
        // Counts the vector `row` for the probe `probe` if the vector is a neighbour that no earlier probe has found. A
        // removed row does not count, since a live vector may have the same id.
        let mut take = |probe: usize, row: u64, left: &mut usize| {
            if let Ok(place) = wanted.binary_search(&ids.id(row))
                && live.as_ref().is_none_or(|live| live.contains(row))
                && !std::mem::replace(&mut is_found[place], true)
            {
                *left -= 1;
                found[probe] += 1;
            }
        };
        // Rows that were added after the build are candidates of each query.
        (index.info().vectors..vectors.info().vectors).for_each(|row| take(0, row, &mut left));
        let mut probes = Probes::new(&functions, &values).take(PROBES_MEASURED as usize);
        let mut probed = 0;
        while left > 0 {
            let some: Vec<u64> = probes.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            buckets.each(job, &some, &mut |place, row| take(probed + place, row, &mut left))?;
            probed += some.len();
        }
        job.progress().add(1);
    }
    Ok(found)
}

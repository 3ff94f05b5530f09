//! Writes the inverted lists of one shard of a spread file. A *shard* is a part of the vectors that are spread over
//! nodes. The centroids of the lists are given.
//!
//! ```text
//!   list 0: elements, rows (u32) │ list 1 │ ... │ directory: u64 for each list, the number of vectors before the list;
//!                                                 then u64, the number of all vectors
//! ```
//!
//! Each shard contains a part of every list, which may be empty. Row numbers count the rows of the shard from 0. The
//! row numbers of a list are ascending.

use inshore_store::{CheckedFile, FileWriter, Job};

use super::{
    Build, Index,
    plan::plan_index,
    sample::HeldOut,
    sort::{KEY_BYTES, key_of},
};
use crate::{
    Element, Error, Result, VectorLayout, Vectors,
    index::{Clustered, compare::Space, no_index_of, spread::SpreadIndex},
    tiles::Instructions,
};

/// The size of a row number in a list, in bytes.
pub(crate) const LIST_ID_BYTES: usize = 4;

/// Returns the size, in bytes, of the directory of a shard's lists.
pub(crate) fn shard_directory_bytes(lists: u64) -> u64 {
    8 * (lists + 1)
}

/// Returns the size, in bytes, of the lists and the directory of a shard with `rows` vectors.
pub fn shard_lists_bytes(layout: VectorLayout, rows: u64, lists: u64) -> u64 {
    rows.saturating_mul((layout.row_bytes() + LIST_ID_BYTES) as u64)
        .saturating_add(shard_directory_bytes(lists))
}

/// Writes the lists of the shard `file` to `writer`. Returns the number of vectors of each list.
///
/// The cost is one read of the shard, a sort by list, and one write.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the length of the file is not a multiple of the size of a vector, or if the file
///   contains more than 2^32 vectors.
/// - Returns [`Error::Sort`] if the sort fails.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub fn write_shard_lists(
    job: &Job,
    index: &SpreadIndex,
    file: &CheckedFile,
    writer: &mut FileWriter,
) -> Result<Vec<u64>> {
    match index.info.element {
        Element::F32 => write::<f32>(job, index, file, writer),
        Element::U8 => write::<u8>(job, index, file, writer),
        Element::I8 => write::<i8>(job, index, file, writer),
        Element::F16 | Element::Bf16 | Element::Bits => {
            Err(no_index_of(&index.info.layout().info(file.name(), file.len())?))
        }
    }
}

fn write<T: Clustered>(
    job: &Job,
    index: &SpreadIndex,
    file: &CheckedFile,
    writer: &mut FileWriter,
) -> Result<Vec<u64>> {
    let info = index.info.layout().info(file.name(), file.len())?;
    if info.vectors > 1 << 32 {
        let (found, expected) = (info.vectors.to_string(), "at most 2^32 in a shard".to_string());
        return Err(Error::BadDataset { name: info.name, what: "vectors", found, expected });
    }
    let (lists, row_bytes) = (index.info.lists, info.row_bytes());
    let _directory = job.budget().reserve(8 * lists, "the directory of lists")?;
    let centroids = index.centroids::<T>(job)?;
    let metric = index.info.metric;
    let (lists_wanted, seed) = (Some(lists.min(info.vectors)), index.info.seed);
    let options = Index { metric, lists: lists_wanted, seed, copies: None, codes: None };
    let mut plan = plan_index(job, &info, &options)?;
    (plan.lists, plan.groups) = (lists, index.info.groups);
    let coarse = if metric == crate::Metric::Cosine { metric } else { crate::Metric::L2 };
    let space = Space::<T>::new(coarse, info.dimensions, &[], Instructions::best());
    let vectors = Vectors::shard(info, 0, file)?;
    let build: Build<'_, T> =
        Build { job, vectors: &vectors, options: &options, plan, exact: space.clone(), space, keep: None };
    let rows = 0..vectors.info().vectors;
    let (mut sorted, _) = build.assign(&centroids, &HeldOut::none(job)?, rows, None)?;
    drop(centroids);
    let entry = KEY_BYTES + row_bytes;
    let mut piece = vec![0; ((1 << 20) / entry).max(1) * entry];
    let mut memory = job.budget().reserve(piece.len() as u64, "a list")?;
    let (mut counts, mut open, mut ids) = (vec![0u64; lists as usize], 0, Vec::new());
    loop {
        let filled = sorted.fill(&mut piece)?;
        for entry in piece[..filled].chunks_exact(entry) {
            let (list, _, row) = key_of(entry);
            if list != open {
                writer.write(&ids)?;
                ids.clear();
                open = list;
            }
            writer.write(&entry[KEY_BYTES..])?;
            if ids.len() == ids.capacity() {
                memory.resize((piece.len() + 2 * ids.len() + 64) as u64)?;
            }
            ids.extend_from_slice(&(row as u32).to_le_bytes());
            counts[list as usize] += 1;
        }
        if filled < piece.len() {
            break;
        }
    }
    writer.write(&ids)?;
    let mut first = 0u64;
    for count in &counts {
        writer.write(&first.to_le_bytes())?;
        first += count;
    }
    writer.write(&first.to_le_bytes())?;
    Ok(counts)
}

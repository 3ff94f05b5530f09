//! Checks, before a job begins, that the memory and the disk space suffice for the job.

use std::{os::unix::fs::MetadataExt, path::Path};

use inshore_sortreduce::rows::smallest_row_memory_bytes_for;
use inshore_store::{Budget, Job, format_bytes};

use crate::{Error, NewFile, Result};

/// Subtracts `beside` bytes from the free memory of a budget, and returns the fraction `part / of` of the rest.
///
/// # Errors
/// Returns [`inshore_store::Error::BudgetTooSmall`] if the result would be less than `smallest`. The error names a
/// sufficient budget.
pub(crate) fn sort_memory(
    budget: &Budget,
    what: &str,
    beside: u64,
    (part, of): (u64, u64),
    smallest: u64,
) -> Result<u64> {
    let memory_bytes = budget.free_bytes().saturating_sub(beside) / of * part;
    if memory_bytes >= smallest {
        return Ok(memory_bytes);
    }
    let taken = budget.memory_bytes() - budget.free_bytes();
    let needed = (smallest.div_ceil(part) * of + beside + taken).next_multiple_of(1 << 20);
    let (what, given) = (what.to_string(), budget.memory_bytes());
    Err(inshore_store::Error::BudgetTooSmall { what, given, smallest: needed }.into())
}

/// Returns an error if rows that together have `row_bytes` bytes cannot be sorted in `memory_bytes` bytes of memory.
/// This memory is the fraction `part / of` of the budget. Without this check, a sort that keeps all its rows would fail
/// only after most of its work.
///
/// # Errors
/// Returns [`inshore_store::Error::BudgetTooSmall`] if the memory is too small. The error names a sufficient budget.
pub(crate) fn check_rows(
    budget: &Budget,
    memory_bytes: u64,
    (part, of): (u64, u64),
    row_bytes: u64,
) -> Result<()> {
    let smallest = smallest_row_memory_bytes_for(budget.threads(), row_bytes);
    if memory_bytes >= smallest {
        return Ok(());
    }
    let given = budget.memory_bytes();
    let needed = (given + (smallest - memory_bytes).div_ceil(part) * of).next_multiple_of(1 << 20);
    let what = format!("sorting {} of rows", format_bytes(row_bytes));
    Err(inshore_store::Error::BudgetTooSmall { what, given, smallest: needed }.into())
}

/// Checks that the job's store has `scratch_bytes` bytes of free space, and that the file system of `output` has
/// `output_bytes` bytes of free space.
///
/// # Errors
/// Returns [`Error::NoRoom`] if the store or the file system has too little space. In this case, no file was written.
/// An unknown free space is not an error.
pub fn check_space(job: &Job, scratch_bytes: u64, output: Option<&Path>, output_bytes: u64) -> Result<()> {
    let store = job.store();
    let usage = store.usage()?;
    let scratch_free: u64 = usage.iter().map(|device| device.free_bytes).sum();
    let refuse = |place: String, needed: u64, free: u64, what: &str| {
        Err(Error::NoRoom { place, what: format!("{} for {what}", format_bytes(needed)), free })
    };
    if scratch_bytes > scratch_free {
        return refuse(store.path().display().to_string(), scratch_bytes, scratch_free, "sorted runs");
    }
    let Some(output) = output.filter(|output| !NewFile::is_in_place(output)) else { return Ok(()) };
    let folder = folder_of(output);
    let Ok(found) = std::fs::metadata(folder) else { return Ok(()) };
    let shares = |path: &Path| std::fs::metadata(path).is_ok_and(|device| device.dev() == found.dev());
    let all_shared = !usage.is_empty() && usage.iter().all(|device| shares(&device.path));
    if !all_shared || scratch_bytes == 0 {
        return check_output_space(output, output_bytes);
    }
    let (scratch, result) = (format_bytes(scratch_bytes), format_bytes(output_bytes));
    let needed = output_bytes + scratch_bytes;
    match free_bytes(folder) {
        Some(free) if needed > free => {
            let what = format!("the result ({result}) and sorted runs ({scratch})");
            refuse(folder.display().to_string(), needed, free, &what)
        }
        _ => Ok(()),
    }
}

/// Checks that the file system of `output` has `bytes` bytes of free space.
///
/// # Errors
/// Returns [`Error::NoRoom`] if the file system has too little space. In this case, no file was written. An unknown
/// free space is not an error.
pub fn check_output_space(output: &Path, bytes: u64) -> Result<()> {
    let folder = folder_of(output);
    match free_bytes(folder) {
        _ if NewFile::is_in_place(output) => Ok(()),
        Some(free) if bytes > free => {
            let (place, what) =
                (folder.display().to_string(), format!("{} for the result", format_bytes(bytes)));
            Err(Error::NoRoom { place, what, free })
        }
        _ => Ok(()),
    }
}

fn folder_of(output: &Path) -> &Path {
    output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let there = rustix::fs::statvfs(folder).ok()?;
    Some(there.f_bavail.saturating_mul(there.f_frsize))
}

//! This module finds the split points of a file: the offsets between records, at which the file can be divided
//! into shards for nodes.

use inshore_store::Budget;
use inshore_tables::{Input, row_groups};

/// Returns the offsets between the row groups of a Parquet file. Returns `None` for a file of another format.
///
/// # Errors
/// Returns an error if the footer cannot be read.
pub fn row_group_offsets(input: &Input, budget: &Budget) -> inshore_tables::Result<Option<Vec<u64>>> {
    if input.extension() != "parquet" {
        return Ok(None);
    }
    let groups = row_groups(input, budget)?;
    let mut starts: Vec<u64> = groups.iter().skip(1).map(|group| group.start).collect();
    // An offset within another row group is not a split point.
    starts.retain(|&start| groups.iter().all(|group| start <= group.start || group.end <= start));
    starts.sort_unstable();
    Ok(Some(starts))
}

/// Returns the field separator if one of the names has a CSV extension, and `None` otherwise. In CSV, a line feed
/// within quotes does not end a record. The first name with a CSV extension decides. The dataset's name comes
/// before the file's name, since readers also check the dataset's name first.
pub fn separator(names: &[&str]) -> Option<u8> {
    names.iter().find_map(|name| inshore_tables::separator(&Input::new(name).extension()))
}

/// Returns the number of lines of a record, if one of the names is that of a format in which this number is fixed.
/// Only FASTQ is such a format, with 4 lines.
pub fn record_lines(names: &[&str]) -> Option<u64> {
    names.iter().any(|name| ["fq", "fastq"].contains(&&*Input::new(name).extension())).then_some(4)
}

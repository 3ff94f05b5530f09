//! Where files can be cut that are spread over nodes: where stored bytes and formats of tables meet.

use inshore_store::Budget;
use inshore_tables::{Input, row_groups};

/// Where a file can be cut, if it is a table of Parquet: between its row groups; `None` where it is none.
///
/// # Errors
/// Those of reading its footer.
pub fn cuts(input: &Input, budget: &Budget) -> inshore_tables::Result<Option<Vec<u64>>> {
    if input.extension() != "parquet" {
        return Ok(None);
    }
    let groups = row_groups(input, budget)?;
    let mut starts: Vec<u64> = groups.iter().skip(1).map(|group| group.start).collect();
    // In no order, or one within the other, they are not cut.
    starts.retain(|&start| groups.iter().all(|group| start <= group.start || group.end <= start));
    starts.sort_unstable();
    Ok(Some(starts))
}

/// What lies between two fields in a file of one of these names, where it is CSV, whose line feeds between quotes end no record. The
/// first name that is one of CSV tells: that of the dataset comes before that of the file, since it is what the file is read by.
pub fn separator(names: &[&str]) -> Option<u8> {
    names.iter().find_map(|name| inshore_tables::separator(&Input::new(name).extension()))
}

/// Lines of a record in a file of one of these names, where its records have a fixed number of them: 4 of FASTQ.
pub fn record_lines(names: &[&str]) -> Option<u64> {
    names.iter().any(|name| ["fq", "fastq"].contains(&&*Input::new(name).extension())).then_some(4)
}

//! Functions that find the columns of a table and their exact types, before the table is read.

use std::{collections::HashMap, ops::Range, sync::Arc};

use arrow_schema::{DataType, Field, Schema};
use inshore_store::{Budget, Context};

use super::{
    parquet::ParquetSource,
    source::{Source, without_panic},
    value_classes::ValueClasses,
};
use crate::{Error, Input, Result};

/// Returns the names of the columns of a table, in the order of the file.
///
/// If the input is standard input, this call consumes it. [`TableReader::open_with`](super::TableReader::open_with)
/// chooses columns by their names without a second read.
///
/// # Errors
/// Returns the errors of [`TableReader::open`](super::TableReader::open).
pub fn column_names(input: &Input, budget: &Budget) -> Result<Vec<String>> {
    without_panic(input.name(), || Ok(Source::open(input, budget)?.names()))
}

/// Returns the byte ranges of a Parquet file's row groups, which can be read independently.
///
/// # Errors
/// Returns the errors of [`TableReader::open`](super::TableReader::open).
pub fn row_groups(input: &Input, budget: &Budget) -> Result<Vec<Range<u64>>> {
    without_panic(input.name(), || {
        let source = ParquetSource::open(input, budget)?;
        (0..source.row_groups()).map(|group| source.bytes_of(group)).collect()
    })
}

/// Finds column types that fit all values in all rows of `inputs`. Returns the inputs, in which these types are set for
/// CSV and JSON lines. The columns of a file of JSON lines are all members that occur in any line. The function reads
/// every CSV and JSON input from its start to its end. The function returns `None` if no input is CSV or JSON, if such
/// an input cannot be read twice, or if the columns of such an input are already set.
///
/// A caller that received [`Error::Contradiction`] calls this function and then restarts its job.
///
/// # Errors
/// - Returns the errors of [`TableReader::next_batch`](super::TableReader::next_batch).
/// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
pub fn exact_columns(job: &Context, inputs: &[Input], as_text: &[String]) -> Result<Option<Vec<Input>>> {
    let is_fit = |input: &&Input| !input.is_text() || input.columns().is_none() && input.can_be_read_again();
    if !inputs.iter().any(Input::is_text) || !inputs.iter().all(|input| is_fit(&input)) {
        return Ok(None);
    }
    let check_cancelled = || -> Result<()> { Ok(job.check_cancelled()?) };
    // `names` has the columns of each text file. `all` has one entry for each column name that occurs in a text file.
    // The entry has the kinds of values ([`ValueClasses`]) of this column in all rows of all these files.
    let mut names: Vec<Vec<String>> = Vec::new();
    let mut all: Vec<(String, ValueClasses)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for input in inputs.iter().filter(|input| input.is_text()) {
        let found = without_panic(input.name(), || match Source::open(input, job.budget())? {
            Source::Csv(mut source) => source.scan(&check_cancelled),
            Source::Json(mut source) => source.scan(&check_cancelled),
            Source::Ipc(_) | Source::Parquet(_) => unreachable!("this is text"),
        })?;
        names.push(found.iter().map(|(name, _)| name.clone()).collect());
        for (name, seen) in found {
            let place = *places.entry(name.clone()).or_insert(all.len());
            match all.get_mut(place) {
                Some((_, known)) => *known |= seen,
                None => all.push((name, seen)),
            }
        }
    }
    let field = |(name, seen): &(String, ValueClasses)| {
        let kind = if as_text.contains(name) { DataType::Utf8 } else { seen.data_type() };
        Field::new(name, kind, true)
    };
    let all: Vec<Field> = all.iter().map(field).collect();
    let mut names = names.into_iter();
    let exact = |input: &Input| {
        if !input.is_text() {
            return input.clone();
        }
        let own = names.next().unwrap_or_default();
        let of_name = |name: &String| places.get(name).map(|&place| all[place].clone());
        // A CSV file gets only its own columns. A file of JSON lines gets the columns of all files, since its lines may
        // lack members.
        let fields = if input.is_csv() { own.iter().filter_map(of_name).collect() } else { all.clone() };
        input.clone().with_columns(Arc::new(Schema::new(fields)))
    };
    Ok(Some(inputs.iter().map(exact).collect()))
}

/// Runs `work` on some inputs. If a value contradicts the guessed type of a column, `work` runs a second time on inputs
/// with [exact types](exact_columns). If the first rows of JSON lines lack a requested column, `work` also runs a
/// second time, since later rows may have the column.
#[cfg(feature = "records")]
pub(crate) fn with_exact_columns<T>(
    job: &Context,
    inputs: &[Input],
    as_text: &[String],
    work: impl Fn(&[Input]) -> Result<T>,
) -> Result<T> {
    let error = match work(inputs) {
        Err(error) if error.is_contradiction() => error,
        Err(error @ Error::NoColumn { found: 0, .. })
            if inputs.iter().any(|input| input.is_text() && !input.is_csv()) =>
        {
            error
        }
        done => return done,
    };
    match exact_columns(job, inputs, as_text)? {
        Some(exact) => work(&exact),
        None => Err(error),
    }
}

pub(super) fn find_columns(file: &str, names: &[String], wanted: &Schema) -> Result<Vec<usize>> {
    if wanted.fields().is_empty() {
        return Err(Error::unsupported(file, "no column is selected"));
    }
    let find = |field: &Arc<Field>| {
        let mut found = names.iter().enumerate().filter(|(_, name)| *name == field.name());
        match (found.next(), found.count()) {
            (Some((index, _)), 0) => Ok(index),
            (first, more) => Err(Error::NoColumn {
                file: file.to_string(),
                column: field.name().clone(),
                found: usize::from(first.is_some()) + more,
                columns: names.to_vec(),
            }),
        }
    };
    wanted.fields().iter().map(find).collect()
}

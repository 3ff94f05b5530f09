//! Reads tables of edges (CSV, Parquet, Arrow) and files of pairs of 32-bit numbers.

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Float64Type, UInt64Type},
};
use arrow_schema::DataType;
use inshore_store::Job;
use inshore_tables::{Input, TableReader, column_names};

use super::{ImportOptions, lane::Lanes};
use crate::{Error, Result, csr::EdgeOperation};

const BATCH_ROWS: usize = 8 << 10;

/// Reads pairs of little-endian 32-bit numbers.
pub(super) fn binary<E: EdgeOperation>(job: &Job, input: &Input, lanes: &mut Lanes<E>) -> Result<()> {
    let mut bytes = input.open_ahead(job)?;
    let block_bytes = lanes.block_bytes / 8 * 8;
    let (mut offset, mut position) = (0, 0);
    let read = |recycled: Option<Vec<u8>>| {
        let mut block = recycled.unwrap_or_default();
        block.resize(block_bytes, 0);
        let filled = bytes.fill(&mut block)?;
        job.progress().add(bytes.position() - position);
        position = bytes.position();
        offset += filled as u64;
        if filled % 8 != 0 {
            return Err(Error::BadInput {
                place: format!("{}: byte {}", input.name(), offset / 8 * 8),
                found: format!("the end of the file after {} bytes", filled % 8),
                expected: "a pair of 4-byte ids".to_string(),
            });
        }
        block.truncate(filled);
        Ok((filled > 0).then_some(block))
    };
    lanes.each_block(job, read, |lane, block: Vec<u8>| {
        lane.pairs(&block)?;
        Ok(block)
    })
}

/// The columns of a table of edges.
struct EdgeColumns {
    source: String,
    target: String,
    weight: Option<String>,
}

const SOURCE_NAMES: [&str; 4] = ["source", "src", "from", "vertex1"];
const TARGET_NAMES: [&str; 6] = ["target", "dst", "destination", "dest", "to", "vertex2"];
const WEIGHT_NAMES: [&str; 1] = ["weight"];

impl EdgeColumns {
    fn choose(job: &Job, input: &Input, options: &ImportOptions) -> Result<EdgeColumns> {
        let names = column_names(input, job.budget())?;
        let missing = |wanted: &str| Error::BadInput {
            place: input.name().to_string(),
            found: format!("columns {}", names.join(", ")),
            expected: format!("a column {wanted}"),
        };
        let pick = |wanted: &Option<String>, usual: &[&str]| match wanted {
            Some(name) => names.iter().find(|known| *known == name).map(Some).ok_or_else(|| missing(name)),
            None => Ok(names.iter().find(|name| usual.contains(&name.to_ascii_lowercase().as_str()))),
        };
        let weight = pick(&options.weight_column, &WEIGHT_NAMES)?;
        if options.is_weighted() && weight.is_none() {
            return Err(missing("of weights, called weight or named"));
        }
        let known =
            (pick(&options.source_column, &SOURCE_NAMES)?, pick(&options.target_column, &TARGET_NAMES)?);
        let (source, target) = match known {
            (Some(source), Some(target)) => (source, target),
            (Some(_), None) => {
                return Err(missing("of targets: target, dst or to, or the name given by --target-column"));
            }
            (None, Some(_)) => {
                return Err(missing("of sources: source, src or from, or the name given by --source-column"));
            }
            // If no column has a known name, the first two columns that are not weights are sources and destinations.
            (None, None) => {
                let mut others = names.iter().filter(|name| Some(*name) != weight);
                let source = others.next().ok_or_else(|| missing("of sources"))?;
                let target = others.next().ok_or_else(|| missing("of targets"))?;
                if [source, target].iter().all(|name| name.parse::<f64>().is_ok()) {
                    return Err(Error::BadInput {
                        place: input.name().to_string(),
                        found: format!("numbers in the first line: {}", names.join(", ")),
                        expected: "names of columns (--format text reads a file without them)".to_string(),
                    });
                }
                (source, target)
            }
        };
        let weight = weight.cloned();
        let columns = EdgeColumns { source: source.clone(), target: target.clone(), weight };
        let all = [Some(&columns.source), Some(&columns.target), columns.weight.as_ref()];
        let all: Vec<_> = all.into_iter().flatten().collect();
        if let Some(twice) = (1..all.len()).find(|&later| all[..later].contains(&all[later])) {
            return Err(missing(&format!("for each option, but '{}' is used twice", all[twice])));
        }
        Ok(columns)
    }
}

/// Returns the column of weights, if the table has one.
pub(super) fn weight_column(job: &Job, input: &Input, options: &ImportOptions) -> Result<Option<String>> {
    Ok(EdgeColumns::choose(job, input, options)?.weight)
}

/// Reads a table with a column of sources, a column of destinations, and perhaps a column of weights.
pub(super) fn table<E: EdgeOperation>(
    job: &Job,
    input: &Input,
    options: &ImportOptions,
    lanes: &mut Lanes<E>,
) -> Result<()> {
    let names = EdgeColumns::choose(job, input, options)?;
    let mut columns =
        vec![(names.source.as_str(), DataType::UInt64), (names.target.as_str(), DataType::UInt64)];
    if let Some(weight) = &names.weight {
        columns.push((weight, DataType::Float64));
    }
    let mut reader = TableReader::open(input, &columns, BATCH_ROWS, job.budget())?;
    let mut position = 0;
    let read = |recycled: Option<EdgeBatch>| {
        let Some(batch) = reader.next_batch()? else { return Ok(None) };
        job.progress().add(reader.position() - position);
        position = reader.position();
        refuse_nulls(input, &batch, reader.place())?;
        // Columns are copied, since a batch may keep much more of the file in memory than its own rows.
        let mut block = recycled.unwrap_or_default();
        block.first = reader.place();
        block.sources.clear();
        block.sources.extend_from_slice(batch.column(0).as_primitive::<UInt64Type>().values());
        block.targets.clear();
        block.targets.extend_from_slice(batch.column(1).as_primitive::<UInt64Type>().values());
        if E::WEIGHTED {
            block.weights.clear();
            block.weights.extend_from_slice(batch.column(2).as_primitive::<Float64Type>().values());
        }
        Ok(Some(block))
    };
    lanes.each_block(job, read, |lane, block: EdgeBatch| {
        for (row, (&source, &target)) in block.sources.iter().zip(&block.targets).enumerate() {
            let weight = if E::WEIGHTED { block.weights[row] } else { 1.0 };
            if !weight.is_finite() {
                return Err(Error::BadInput {
                    place: format!("{}: row {}", input.name(), block.first + row as u64 + 1),
                    found: weight.to_string(),
                    expected: "a finite weight".to_string(),
                });
            }
            lane.edge(source, target, weight)?;
        }
        Ok(block)
    })
}

/// Rows of a table of edges.
#[derive(Default)]
struct EdgeBatch {
    /// The number of the first of these rows in the table.
    first: u64,
    sources: Vec<u64>,
    targets: Vec<u64>,
    weights: Vec<f64>,
}

fn refuse_nulls(input: &Input, batch: &RecordBatch, first: u64) -> Result<()> {
    for (column, field) in batch.columns().iter().zip(batch.schema().fields()) {
        if let Some(row) = (0..batch.num_rows()).find(|&row| column.is_null(row)) {
            return Err(Error::BadInput {
                place: format!("{}: row {}", input.name(), first + row as u64 + 1),
                found: format!("null in column {}", field.name()),
                expected: "a value".to_string(),
            });
        }
    }
    Ok(())
}

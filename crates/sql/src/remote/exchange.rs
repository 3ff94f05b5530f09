//! Divides the rows of a stage into ranges by a hash of their keys.
//!
//! The hash is XXH64 of the keys in Arrow's row format, and so the same on all machines. DataFusion's own hash may
//! differ between processors.

use std::{hash::Hasher, sync::Arc};

use arrow::{
    array::ArrayRef,
    compute::interleave_record_batch,
    record_batch::RecordBatch,
    row::{RowConverter, SortField},
};
use datafusion::{
    common::utils::memory::get_record_batch_memory_size, error::DataFusionError, physical_plan::PhysicalExpr,
};
use twox_hash::XxHash64;

use crate::{Error, Result};

/// The smallest mean number of rows of a batch of the exchange. Below that, the description of a batch is longer than
/// its rows.
const ROWS_MIN: usize = 512;

/// Collects the rows of a stage, and passes them on by range.
pub(crate) struct Exchange<E> {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Encodes the keys. It is made for the types of the first batch.
    converter: Option<RowConverter>,
    ranges: u32,
    /// The largest memory of collected rows, in bytes.
    bytes_max: usize,
    batches: Vec<RecordBatch>,
    /// For each range, the batch and the number of each of its rows.
    rows: Vec<Vec<(usize, usize)>>,
    count: usize,
    bytes: usize,
    each: E,
}

impl<E: FnMut(u32, RecordBatch) -> Result<()>> Exchange<E> {
    /// Creates an exchange by `keys`. Without keys, all rows are in range 0.
    pub fn new(keys: Vec<Arc<dyn PhysicalExpr>>, ranges: u32, bytes_max: usize, each: E) -> Exchange<E> {
        let rows = vec![Vec::new(); ranges as usize];
        let (converter, batches) = (None, Vec::new());
        Exchange { keys, converter, ranges, bytes_max, batches, rows, count: 0, bytes: 0, each }
    }

    pub fn add(&mut self, batch: RecordBatch) -> Result<()> {
        if self.keys.is_empty() {
            return (self.each)(0, batch);
        }
        let values: datafusion::error::Result<Vec<ArrayRef>> = self
            .keys
            .iter()
            .map(|key| key.evaluate(&batch).and_then(|value| value.into_array(batch.num_rows())))
            .collect();
        let values = values?;
        let converter = match &mut self.converter {
            Some(converter) => converter,
            none => {
                let fields = values.iter().map(|values| SortField::new(values.data_type().clone()));
                none.insert(RowConverter::new(fields.collect()).map_err(DataFusionError::from)?)
            }
        };
        let encoded = converter.convert_columns(&values).map_err(DataFusionError::from)?;
        for (row, key) in encoded.iter().enumerate() {
            self.rows[range_of(key.as_ref(), self.ranges) as usize].push((self.batches.len(), row));
        }
        self.count += batch.num_rows();
        self.bytes += get_record_batch_memory_size(&batch);
        self.batches.push(batch);
        let is_full = self.bytes >= self.bytes_max || self.count >= ROWS_MIN * self.ranges as usize * 4;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Passes on all collected rows.
    pub fn flush(&mut self) -> Result<()> {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        for (range, rows) in self.rows.iter_mut().enumerate().filter(|(_, rows)| !rows.is_empty()) {
            let batch = interleave_record_batch(&batches, rows).map_err(DataFusionError::from)?;
            rows.clear();
            (self.each)(range as u32, batch)?;
        }
        self.batches.clear();
        (self.count, self.bytes) = (0, 0);
        Ok(())
    }
}

/// Returns the range of a key.
fn range_of(key: &[u8], ranges: u32) -> u32 {
    let mut hasher = XxHash64::with_seed(0);
    hasher.write(key);
    let range = (u128::from(hasher.finish()) * u128::from(ranges)) >> 64;
    u32::try_from(range).expect("below the number of ranges")
}

/// Checks the number of ranges that a request names.
pub(crate) fn check_ranges(ranges: u32) -> Result<()> {
    const RANGES_MAX: u32 = 1 << 16;
    match ranges {
        1..=RANGES_MAX => Ok(()),
        _ => Err(Error::Query(format!("an exchange has 1 to {RANGES_MAX} ranges, got {ranges}"))),
    }
}

//! A sort of the rows of one partition. GROUP BY, ORDER BY and joins use this sort.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray},
    compute::SortOptions,
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::RecordBatch,
    row::{RowConverter, SortField},
};
use datafusion::{
    error::Result,
    execution::SendableRecordBatchStream,
    physical_expr::{LexOrdering, PhysicalSortExpr, expressions::Column},
    physical_plan::{PhysicalExpr, stream::RecordBatchStreamAdapter},
};
use futures::{StreamExt, stream};
use inshore_sortreduce::rows::{FramedRows, KeepAll, RowConfig, RowSort, SortedRows};
use inshore_store::{Budget, Job};
use inshore_tables::RowCodec;

use super::shared::{Limits, Shared};
use crate::{BATCH_ROWS, Error};

/// If a query's limit is at most this number of rows or groups, DataFusion's operator is kept.
pub(crate) const FEW_ROWS: usize = 20_000;
/// The bytes of sorted rows that one call decodes into columns.
pub(crate) const BLOCK_BYTES: usize = 512 << 10;

/// The bytes of rows that one call encodes. The encoder needs three times this memory.
const PIECE_BYTES: usize = 1 << 20;

/// Cuts a batch into slices of about [`PIECE_BYTES`], which are encoded one at a time. If rows are long, a slice has
/// fewer rows.
pub(crate) fn pieces(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let bytes: usize = batch.columns().iter().map(bytes_of).sum();
    let rows = PIECE_BYTES / (bytes / batch.num_rows().max(1)).max(1);
    let rows = rows.clamp(1, BATCH_ROWS);
    (0..batch.num_rows())
        .step_by(rows)
        .map(move |start| batch.slice(start, rows.min(batch.num_rows() - start)))
}

/// Returns the total bytes of a column's values.
fn bytes_of(column: &ArrayRef) -> usize {
    let lengths = |views: &[u128]| views.iter().map(|&view| 16 + view as u32 as usize).sum();
    match column.data_type() {
        DataType::Utf8View => lengths(column.as_string_view().views()),
        DataType::BinaryView => lengths(column.as_binary_view().views()),
        _ => column.to_data().get_slice_memory_size().unwrap_or(0),
    }
}

/// Returns whether rows of this schema can be encoded as bytes and decoded again without a change of types.
pub(crate) fn is_sortable(schema: &Schema) -> bool {
    schema.fields().iter().all(|field| {
        let kind = field.data_type();
        let is_changed = matches!(kind, DataType::Dictionary(..) | DataType::RunEndEncoded(..));
        !is_changed && RowConverter::supports_fields(&[SortField::new(kind.clone())])
    })
}

/// The sort keys of rows: columns of the rows, and expressions that are computed from them.
#[derive(Debug)]
pub(crate) struct SortKeys {
    /// The columns of the rows, then the columns that are computed only as sort keys.
    schema: SchemaRef,
    /// The number of columns of the rows, without computed columns.
    columns: usize,
    pub computed: Vec<Arc<dyn PhysicalExpr>>,
    pub keys: Vec<(usize, SortOptions)>,
}

impl SortKeys {
    pub fn new(rows: &SchemaRef, order: &LexOrdering) -> Result<SortKeys> {
        let columns = rows.fields().len();
        // Decoded rows may have nulls in every column, even if the field is declared as not nullable.
        let field = |(index, field): (usize, &Arc<Field>)| {
            Field::new(format!("{index}"), field.data_type().clone(), true)
        };
        let mut fields: Vec<Field> = rows.fields().iter().enumerate().map(field).collect();
        let (mut computed, mut keys) = (Vec::new(), Vec::new());
        for PhysicalSortExpr { expr, options } in order {
            let place = match expr.downcast_ref::<Column>() {
                Some(column) => column.index(),
                None => {
                    fields.push(Field::new(format!("{}", fields.len()), expr.data_type(rows)?, true));
                    computed.push(expr.clone());
                    fields.len() - 1
                }
            };
            if !keys.iter().any(|&(key, _)| key == place) {
                keys.push((place, *options));
            }
        }
        Ok(SortKeys { schema: Arc::new(Schema::new(fields)), columns, computed, keys })
    }

    /// Returns whether rows and keys can be encoded as bytes and decoded again.
    pub fn is_sortable(&self) -> bool {
        is_sortable(&self.schema)
    }

    fn rows(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = batch.columns().to_vec();
        for computed in &self.computed {
            columns.push(computed.evaluate(batch)?.into_array(batch.num_rows())?);
        }
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}

/// Sorts the rows of `input`, and returns the first `fetch` rows. When the first rows arrive, `take_memory` is
/// called, and returns a part of the budget. After the last row, `on_sorted` is called with the sorted rows and the
/// number of input rows.
pub(crate) fn sorted(
    shared: &Shared,
    input: SendableRecordBatchStream,
    keys: &Arc<SortKeys>,
    fetch: Option<usize>,
    take_memory: impl FnOnce() -> inshore_store::Result<Budget> + Send + 'static,
    on_sorted: impl FnOnce(&SortedRows<FramedRows, KeepAll>, u64) + Send + 'static,
) -> SendableRecordBatchStream {
    let schema = input.schema();
    let sorting = PartitionSort {
        input: Some(input),
        schema: schema.clone(),
        job: shared.job.clone(),
        limits: shared.limits,
        keys: keys.clone(),
        left: fetch.unwrap_or(usize::MAX),
        take_memory: Some(Box::new(take_memory)),
        on_sorted: Some(Box::new(on_sorted)),
        sort: None,
        sorted: None,
        batch_left: None,
        rows_in: 0,
        block: Vec::new(),
    };
    let batches = stream::try_unfold(sorting, |mut sorting| async move {
        Ok(sorting.next().await?.map(|batch| (batch, sorting)))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

type OnSorted = dyn FnOnce(&SortedRows<FramedRows, KeepAll>, u64) + Send;

/// The state of the sort of one partition.
struct PartitionSort {
    input: Option<SendableRecordBatchStream>,
    schema: SchemaRef,
    job: Job,
    limits: Limits,
    keys: Arc<SortKeys>,
    /// The number of rows that are still to be returned.
    left: usize,
    take_memory: Option<Box<dyn FnOnce() -> inshore_store::Result<Budget> + Send>>,
    on_sorted: Option<Box<OnSorted>>,
    sort: Option<(RowCodec, RowSort<FramedRows, KeepAll>)>,
    sorted: Option<(RowCodec, SortedRows<FramedRows, KeepAll>)>,
    /// A batch of sorted rows, and the number of its rows that were already returned.
    batch_left: Option<(RecordBatch, usize)>,
    rows_in: u64,
    block: Vec<u8>,
}

impl PartitionSort {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(input) = &mut self.input {
            match input.next().await.transpose()? {
                Some(batch) if batch.num_rows() > 0 => self.add(&batch)?,
                Some(_) => {}
                None => {
                    self.input = None;
                    self.finish()?;
                }
            }
        }
        loop {
            if let Some((batch, given)) = &mut self.batch_left
                && *given < batch.num_rows()
                && self.left > 0
            {
                let rows = BATCH_ROWS.min(batch.num_rows() - *given).min(self.left);
                let piece = batch.slice(*given, rows);
                *given += rows;
                self.left -= rows;
                return Ok(Some(piece));
            }
            self.batch_left = None;
            let Some((codec, sorted)) = self.sorted.as_mut().filter(|_| self.left > 0) else {
                return Ok(None);
            };
            self.block.clear();
            sorted.append(&mut self.block, BLOCK_BYTES).map_err(Error::from)?;
            if self.block.is_empty() {
                self.sorted = None;
                return Ok(None);
            }
            let rows = codec.decode(&self.block).map_err(Error::from)?;
            let columns = rows.columns()[..self.keys.columns].to_vec();
            self.batch_left = Some((RecordBatch::try_new(self.schema.clone(), columns)?, 0));
        }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        if let Some(take_memory) = self.take_memory.take() {
            let part = take_memory().map_err(Error::from)?;
            let codec = RowCodec::new("ORDER BY", &self.keys.schema, &self.keys.keys).map_err(Error::from)?;
            let memory_bytes = part.memory_bytes();
            let arena_bytes = self.limits.arena_bytes;
            let config =
                RowConfig { memory_bytes, threads: 1, arena_bytes, name: "order", ..RowConfig::default() };
            let sort = RowSort::new(&self.job.within(part), RowCodec::SHAPE, KeepAll, &config);
            self.sort = Some((codec, sort.map_err(Error::from)?));
        }
        let (codec, sort) = self.sort.as_mut().expect("set above");
        let rows = self.keys.rows(batch)?;
        self.rows_in += rows.num_rows() as u64;
        for piece in pieces(&rows) {
            self.block.clear();
            codec.encode(&piece, &mut self.block).map_err(Error::from)?;
            sort.write(&self.block).map_err(Error::from)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some((codec, sort)) = self.sort.take() else { return Ok(()) };
        let sorted = sort.finish().map_err(Error::from)?;
        if let Some(on_sorted) = self.on_sorted.take() {
            on_sorted(&sorted, self.rows_in);
        }
        self.sorted = Some((codec, sorted));
        Ok(())
    }
}

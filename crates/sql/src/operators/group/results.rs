//! Computes the results of groups from a hash table, from sorted states, or from records that sort-reduce has
//! combined.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, UInt32Array},
    compute::{concat, take},
    record_batch::RecordBatch,
};
use datafusion::{
    error::Result,
    logical_expr::{EmitTo, GroupsAccumulator},
};
use inshore_sortreduce::rows::{FramedRows, KeepAll, RowShape, SortedRows};
use inshore_tables::{RowCodec, SortedGroups};

use super::{super::row_sort::BLOCK_BYTES, plan::GroupPlan, state_sort::NullGroup};
use crate::{BATCH_ROWS, Error};

pub(super) enum GroupResults {
    /// All results in memory, and the number of rows that were already returned.
    Memory(RecordBatch, usize),
    Sorted(Box<MergedStates>),
    Numbers(Box<CombinedGroups>),
}

/// Groups whose states were already combined by sort-reduce.
pub(super) struct CombinedGroups {
    pub plan: Arc<GroupPlan>,
    pub sorted: SortedGroups,
    pub functions: Vec<Box<dyn GroupsAccumulator>>,
    pub null_group: NullGroup,
    /// A batch of results, and the number of its rows that were already returned.
    pub results_left: Option<(RecordBatch, usize)>,
}

impl CombinedGroups {
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some((batch, given)) = &mut self.results_left {
                let rows = BATCH_ROWS.min(batch.num_rows() - *given);
                if rows > 0 {
                    *given += rows;
                    return Ok(Some(batch.slice(*given - rows, rows)));
                }
            }
            let Some(mut columns) = self.sorted.next_columns().map_err(Error::from)? else {
                self.results_left = None;
                return self.null_group.result(&self.plan);
            };
            let states = columns.split_off(1);
            let places: Vec<usize> = (0..columns[0].len()).collect();
            self.plan.merge(&mut self.functions, &states, &places, places.len())?;
            let batch = self.plan.results(columns, &mut self.functions, EmitTo::All)?;
            self.results_left = Some((batch, 0));
        }
    }
}

/// Reads sorted states, and merges states with equal keys.
pub(super) struct MergedStates {
    plan: Arc<GroupPlan>,
    codec: RowCodec,
    sorted: SortedRows<FramedRows, KeepAll>,
    functions: Vec<Box<dyn GroupsAccumulator>>,
    block: Vec<u8>,
    /// The key of the last row, as bytes and as columns of one row. The next block may have more states with this
    /// key.
    open: Option<(Vec<u8>, Vec<ArrayRef>)>,
    ended: bool,
}

impl MergedStates {
    pub fn new(
        plan: Arc<GroupPlan>,
        codec: RowCodec,
        sorted: SortedRows<FramedRows, KeepAll>,
    ) -> Result<MergedStates> {
        let functions = plan.accumulators()?;
        Ok(MergedStates { plan, codec, sorted, functions, block: Vec::new(), open: None, ended: false })
    }

    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        while !self.ended {
            self.block.clear();
            self.sorted.append(&mut self.block, BLOCK_BYTES).map_err(Error::from)?;
            let batch = if self.block.is_empty() { self.close()? } else { self.merge()? };
            if let Some(batch) = batch.filter(|batch| batch.num_rows() > 0) {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Returns the result of the last group.
    fn close(&mut self) -> Result<Option<RecordBatch>> {
        self.ended = true;
        let Some((_, keys)) = self.open.take() else { return Ok(None) };
        self.plan.results(keys, &mut self.functions, EmitTo::All).map(Some)
    }

    /// Adds the states of a block, and returns the results of the groups that end in the block.
    fn merge(&mut self) -> Result<Option<RecordBatch>> {
        let rows = self.codec.decode(&self.block).map_err(Error::from)?;
        let mut places = Vec::with_capacity(rows.num_rows());
        // The index of the first row of each group that begins in this block.
        let mut firsts: Vec<u32> = Vec::new();
        let was_open = self.open.is_some();
        let mut last: Option<&[u8]> = self.open.as_ref().map(|(key, _)| &key[..]);
        let mut rest = &self.block[..];
        while let Some(len) = RowCodec::SHAPE.row_len(rest) {
            let (row, after) = rest.split_at(len);
            let key = RowCodec::SHAPE.key(row);
            if last != Some(key) {
                firsts.push(places.len() as u32);
                last = Some(key);
            }
            places.push(firsts.len() + usize::from(was_open) - 1);
            rest = after;
        }
        let groups = firsts.len() + usize::from(was_open);
        let states = &rows.columns()[self.plan.key_count()..];
        self.plan.merge(&mut self.functions, states, &places, groups)?;
        let open_key = last.expect("a block has rows").to_vec();
        let firsts = UInt32Array::from(firsts);
        let begun = rows.columns()[..self.plan.key_count()].iter().map(|keys| Ok(take(keys, &firsts, None)?));
        let begun = begun.collect::<Result<Vec<ArrayRef>>>()?;
        let keys = match self.open.take() {
            None => begun,
            Some((_, open)) => {
                let join =
                    |(open, begun): (&ArrayRef, &ArrayRef)| Ok(concat(&[open.as_ref(), begun.as_ref()])?);
                open.iter().zip(&begun).map(join).collect::<Result<_>>()?
            }
        };
        let ended = groups - 1;
        // The row is copied, since a slice would keep all columns of the block in memory.
        let last_row = UInt32Array::from(vec![ended as u32]);
        let open =
            keys.iter().map(|keys| Ok(take(keys, &last_row, None)?)).collect::<Result<Vec<ArrayRef>>>()?;
        self.open = Some((open_key, open));
        if ended == 0 {
            return Ok(None);
        }
        let keys = keys.iter().map(|keys| keys.slice(0, ended)).collect();
        self.plan.results(keys, &mut self.functions, EmitTo::First(ended)).map(Some)
    }
}

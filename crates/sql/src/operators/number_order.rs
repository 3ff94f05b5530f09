//! ORDER BY for rows that consist of numbers. Each row is encoded as one integer, and all partitions share one sort.

use std::sync::{Arc, Mutex};

use arrow::{array::ArrayRef, datatypes::SchemaRef, record_batch::RecordBatch};
use datafusion::{
    common::runtime::JoinSet,
    error::{DataFusionError, Result},
    execution::SendableRecordBatchStream,
    physical_plan::stream::RecordBatchStreamAdapter,
};
use futures::{StreamExt, stream};
use inshore_store::Budget;
use inshore_tables::{NumberSink, NumberSort, NumberSortConfig, SortedNumbers, one_nan};

use super::{
    numbers::NumberRows,
    shared::{Counters, Shared},
};
use crate::{BATCH_ROWS, Error, memory::Claim};

/// The minimum number of input rows for a sort of integers. Fewer rows are sorted as encoded rows.
const MANY_ROWS: u64 = 1 << 20;

/// Sorts the rows of all inputs as integers.
pub(crate) struct NumberOrdering {
    pub inputs: Vec<SendableRecordBatchStream>,
    pub schema: SchemaRef,
    pub shared: Shared,
    pub claim: Arc<Claim>,
    pub counters: Arc<Counters>,
    pub numbers: Arc<NumberRows>,
    /// The operator's name in errors.
    pub name: String,
    /// The number of rows that are still to be returned.
    pub left: usize,
}

/// The sorted rows and their part of the budget. The value is `None` if there are no rows.
type SortedPart = Option<(SortedNumbers, Budget)>;

/// The sort that all input readers share. The first reader with rows creates the sort.
struct SharedSort {
    shared: Shared,
    claim: Arc<Claim>,
    numbers: Arc<NumberRows>,
    name: String,
    readers: usize,
    begun: Mutex<Option<BegunSort>>,
}

struct BegunSort {
    sort: NumberSort,
    sinks: Vec<Arc<Mutex<NumberSink>>>,
    part: Budget,
}

/// Returns whether there are enough rows that a sort of integers is faster than a sort of encoded rows. Tests that
/// limit memory always use integers.
pub(crate) fn are_many(numbers: &NumberRows, shared: &Shared) -> bool {
    shared.limits.table_bytes.is_some() || numbers.rows.is_some_and(|rows| rows >= MANY_ROWS)
}

impl NumberOrdering {
    /// Returns the rows of all inputs, sorted.
    pub fn run(self) -> SendableRecordBatchStream {
        let schema = self.schema.clone();
        let state = (self, None::<SortedPart>);
        let batches = stream::try_unfold(state, |(mut ordering, part)| async move {
            let mut part = match part {
                Some(part) => part,
                None => ordering.sort().await?,
            };
            let batch = ordering.next_batch(&mut part)?;
            Ok(batch.map(|batch| (batch, (ordering, Some(part)))))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    /// Reads all inputs concurrently, and sorts their rows.
    async fn sort(&mut self) -> Result<SortedPart> {
        let shared_sort = Arc::new(SharedSort {
            shared: self.shared.clone(),
            claim: self.claim.clone(),
            numbers: self.numbers.clone(),
            name: self.name.clone(),
            readers: self.inputs.len(),
            begun: Mutex::new(None),
        });
        let mut readers = JoinSet::new();
        for (number, input) in self.inputs.drain(..).enumerate() {
            let shared_sort = shared_sort.clone();
            readers.spawn(async move { shared_sort.push_all(input, number).await });
        }
        let mut rows = 0;
        while let Some(done) = readers.join_next().await {
            rows += done.map_err(|error| DataFusionError::Execution(error.to_string()))??;
        }
        let begun = shared_sort.begun.lock().expect("no panic under this lock").take();
        let Some(BegunSort { sort, sinks, part }) = begun else {
            self.claim.drop_floor();
            return Ok(None);
        };
        for sink in sinks {
            let sink = Arc::into_inner(sink).expect("its readers have ended");
            sink.into_inner().expect("no panic under this lock").finish().map_err(Error::from)?;
        }
        let sorted = sort.finish().map_err(Error::from)?;
        self.counters.add_way("sort-reduce of numbers", rows);
        self.counters.add_sort_reduce(&sorted.stats());
        Ok(Some((sorted, part)))
    }

    fn next_batch(&mut self, part: &mut SortedPart) -> Result<Option<RecordBatch>> {
        self.shared.job.check_cancelled().map_err(Error::from)?;
        let rows = BATCH_ROWS.min(self.left);
        if rows == 0 {
            return Ok(None);
        }
        let Some((sorted, _part)) = part else { return Ok(None) };
        let Some(sorted) = sorted.next_columns(rows).map_err(Error::from)? else { return Ok(None) };
        let mut columns: Vec<(usize, ArrayRef)> = self.numbers.places.iter().copied().zip(sorted).collect();
        columns.sort_unstable_by_key(|(place, _)| *place);
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        self.left -= batch.num_rows();
        Ok(Some(batch))
    }
}

impl SharedSort {
    /// Returns the sink into which a reader pushes its rows. The first reader with rows also reserves the memory.
    fn sink(&self, reader: usize) -> inshore_tables::Result<Arc<Mutex<NumberSink>>> {
        let mut begun = self.begun.lock().expect("no panic under this lock");
        if begun.is_none() {
            *begun = Some(self.begin()?);
        }
        let sinks = &begun.as_ref().expect("set above").sinks;
        Ok(sinks[reader % sinks.len()].clone())
    }

    fn begin(&self) -> inshore_tables::Result<BegunSort> {
        let part = self.claim.take("sorting")?;
        let memory_bytes = part.memory_bytes();
        let most = (memory_bytes / NumberSort::smallest_memory_bytes(1)).max(1) as usize;
        let config = NumberSortConfig {
            sinks: self.readers.min(most),
            rows: self.numbers.rows,
            memory_bytes,
            chunk_bytes: self.shared.limits.arena_bytes,
        };
        let job = self.shared.job.within(part.clone());
        let sort = NumberSort::new(&job, &self.name, &self.numbers.columns, &config)?;
        let sinks = (0..config.sinks).map(|_| Ok(Arc::new(Mutex::new(sort.sink()?))));
        let sinks = sinks.collect::<inshore_tables::Result<_>>()?;
        Ok(BegunSort { sort, sinks, part })
    }

    /// Pushes the rows of one input into the sort, and returns the number of rows.
    async fn push_all(&self, mut input: SendableRecordBatchStream, reader: usize) -> Result<u64> {
        let mut sink = None;
        let mut rows = 0;
        while let Some(batch) = input.next().await.transpose()? {
            self.shared.job.check_cancelled().map_err(Error::from)?;
            if batch.num_rows() == 0 {
                continue;
            }
            let sink = match &sink {
                Some(sink) => sink,
                None => &*sink.insert(self.sink(reader).map_err(Error::from)?),
            };
            let mut columns: Vec<ArrayRef> =
                self.numbers.places.iter().map(|&place| batch.column(place).clone()).collect();
            if self.numbers.has_one_nan {
                columns.iter_mut().for_each(|column| *column = one_nan(column));
            }
            sink.lock().expect("no panic under this lock").add(&columns).map_err(Error::from)?;
            rows += batch.num_rows() as u64;
        }
        Ok(rows)
    }
}

//! Record batches as messages of Arrow Flight.
//!
//! A batch may be compressed by zstd, as Arrow's format has it: see `squeeze.rs` for when, `lengths.rs` for what is looked at where it comes in.

use std::{sync::Arc, time::Duration};

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, cast::AsArray};
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::{
    CompressionType, MetadataVersion,
    writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions},
};
use arrow_schema::{DataType, SchemaRef};
use bytes::Bytes;
use serde::Serialize;
use tonic::Status as Refusal;

use super::{lengths::BATCH_BYTES_MAX, protocol::TaskDone, squeeze::LEVELS};

/// Bytes that an answer may have, as it comes and unpacked: a batch.
pub(super) const MESSAGE_BYTES_MAX: usize = BATCH_BYTES_MAX as usize;
/// Bytes that a request may have: a list of pieces, a map.
pub(super) const REQUEST_BYTES_MAX: usize = 16 << 20;

/// When a client may ask again, in milliseconds: the name that gRPC gives it (proposal A6, "server pushback").
const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// The time after which a client that a node had no room for may ask again.
const PUSHBACK_TIME: Duration = Duration::from_millis(200);

/// A refusal for want of room, where there may be some soon: it says when to ask again.
pub(super) fn ask_again(why: String) -> Refusal {
    let mut refusal = Refusal::resource_exhausted(why);
    refusal.metadata_mut().insert(PUSHBACK, (PUSHBACK_TIME.as_millis() as u64).into());
    refusal
}

/// The time after which a refused request may be sent again; `None` where the refusal says no such thing.
pub(super) fn pushback(refusal: &Refusal) -> Option<Duration> {
    let millis = refusal.metadata().get(PUSHBACK)?.to_str().ok()?.parse().ok()?;
    // A node that says "at once" must not be asked without a pause.
    Some(Duration::from_millis(millis).max(PUSHBACK_TIME / 4))
}

/// Bytes of a batch that are not worth compressing.
const PLAIN_BYTES_MAX: u64 = 4 << 10;
/// Turns batches of one task into messages.
pub(super) struct Encoder {
    tracker: DictionaryTracker,
    plain: Way,
    /// One for each of [`LEVELS`], once it was used: it keeps its zstd's memory, of about a MiB.
    packed: [Option<Way>; LEVELS.len()],
    schema: Option<SchemaRef>,
}

/// A way to write batches down.
#[derive(Default)]
struct Way {
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

impl Way {
    fn packed(level: i32) -> Result<Way, arrow_schema::ArrowError> {
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?
            .try_with_compression(Some(CompressionType::ZSTD))?
            .try_with_compression_level(Some(level))?;
        Ok(Way { options, context: IpcWriteContext::default() })
    }
}

/// Of buffers in a message, as Arrow's own default has it.
const ALIGNMENT: usize = 64;

impl Encoder {
    pub fn new() -> Encoder {
        Encoder {
            tracker: DictionaryTracker::new(false),
            plain: Way::default(),
            packed: Default::default(),
            schema: None,
        }
    }

    /// The messages of a batch: before the first one, what its columns are. Plain, or compressed by one of [`LEVELS`].
    pub fn batch(
        &mut self,
        batch: &RecordBatch,
        level: Option<usize>,
    ) -> Result<Vec<FlightData>, arrow_schema::ArrowError> {
        let mut messages = Vec::with_capacity(2);
        if self.schema.is_none() {
            messages.push(SchemaAsIpc::new(&batch.schema(), &self.plain.options).into());
            self.schema = Some(batch.schema());
        }
        let way = match level.filter(|_| batch_bytes(batch) > PLAIN_BYTES_MAX) {
            None => &mut self.plain,
            Some(level) => {
                let way = &mut self.packed[level];
                if way.is_none() {
                    *way = Some(Way::packed(LEVELS[level])?);
                }
                way.as_mut().expect("set above")
            }
        };
        let (dictionaries, data) =
            IpcDataGenerator::default().encode(batch, &mut self.tracker, &way.options, &mut way.context)?;
        messages.extend(dictionaries.into_iter().map(FlightData::from));
        messages.push(data.into());
        Ok(messages)
    }

    /// The last messages: no rows, and what the task cost.
    pub fn done(mut self, done: &TaskDone) -> Result<Vec<FlightData>, arrow_schema::ArrowError> {
        let schema =
            self.schema.clone().unwrap_or_else(|| std::sync::Arc::new(arrow_schema::Schema::empty()));
        let mut messages = self.batch(&RecordBatch::new_empty(schema), None)?;
        messages.last_mut().expect("a batch").app_metadata = json(done);
        Ok(messages)
    }
}

/// Bytes of the rows of a batch, whatever else lies in its buffers.
pub fn batch_bytes(batch: &RecordBatch) -> u64 {
    let bytes = |column: &dyn Array| {
        let texts = match column.data_type() {
            DataType::Utf8View => column.as_string_view().total_buffer_bytes_used(),
            DataType::BinaryView => column.as_binary_view().total_buffer_bytes_used(),
            _ => 0,
        };
        (column.to_data().get_slice_memory_size().unwrap_or(0) + texts) as u64
    };
    batch.columns().iter().map(|column| bytes(column)).sum()
}

/// A batch whose views have no buffers but for their own texts: what is written down are all of them, of a slice too.
pub fn compact(batch: RecordBatch) -> RecordBatch {
    let is_view = |column: &ArrayRef| matches!(column.data_type(), DataType::Utf8View | DataType::BinaryView);
    if !batch.columns().iter().any(is_view) {
        return batch;
    }
    let (schema, columns, rows) = batch.into_parts();
    let columns = columns.into_iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => column,
    });
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns.collect(), &options).expect("the same columns")
}

/// A message of JSON.
pub(super) fn json(message: &impl Serialize) -> Bytes {
    serde_json::to_vec(message).expect("plain data").into()
}

/// Bytes of a message on the wire, about.
pub(super) fn message_bytes(message: &FlightData) -> u64 {
    (message.data_header.len() + message.data_body.len() + message.app_metadata.len()) as u64
}

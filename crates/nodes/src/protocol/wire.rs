//! Encodes record batches as messages of Arrow Flight.
//!
//! A batch may be compressed by zstd, as specified by Arrow: `compression.rs` decides on the compression, and
//! `lengths.rs` checks received batches.

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

use super::{compression::LEVELS, lengths::BATCH_BYTES_MAX, messages::TaskDone};

/// The maximum bytes of one message of an answer, which contains a batch, as received and after
/// decompression.
pub(crate) const MESSAGE_BYTES_MAX: usize = BATCH_BYTES_MAX as usize;
/// The maximum bytes of a request: a list of pieces or a map.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 20;

/// The metadata key of the retry delay in milliseconds, as defined by gRPC (proposal A6, "server pushback").
const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// The delay after which a client may retry if a node had no room.
const PUSHBACK_TIME: Duration = Duration::from_millis(200);

/// Returns the refusal of a node that has no room, with the delay after which the client may retry.
pub(crate) fn ask_again(why: String) -> Refusal {
    let mut refusal = Refusal::resource_exhausted(why);
    refusal.metadata_mut().insert(PUSHBACK, (PUSHBACK_TIME.as_millis() as u64).into());
    refusal
}

/// Returns the delay after which a refused request may be sent again, or `None` if the refusal has no delay.
pub(crate) fn pushback(refusal: &Refusal) -> Option<Duration> {
    let millis = refusal.metadata().get(PUSHBACK)?.to_str().ok()?.parse().ok()?;
    // A minimum delay prevents retries without a pause.
    Some(Duration::from_millis(millis).max(PUSHBACK_TIME / 4))
}

/// The size in bytes up to which a batch is not compressed.
const PLAIN_BYTES_MAX: u64 = 4 << 10;
/// An encoder that converts the batches of one task to messages.
pub(crate) struct Encoder {
    tracker: DictionaryTracker,
    plain: BatchEncoder,
    /// A writer for each used level of [`LEVELS`]. Each writer holds about 1 MiB of memory for zstd.
    packed: [Option<BatchEncoder>; LEVELS.len()],
    schema: Option<SchemaRef>,
}

/// A writer of batches with fixed options.
#[derive(Default)]
struct BatchEncoder {
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

impl BatchEncoder {
    fn packed(level: i32) -> Result<BatchEncoder, arrow_schema::ArrowError> {
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?
            .try_with_compression(Some(CompressionType::ZSTD))?
            .try_with_compression_level(Some(level))?;
        Ok(BatchEncoder { options, context: IpcWriteContext::default() })
    }
}

/// The alignment of buffers in a message, as in Arrow's default.
const ALIGNMENT: usize = 64;

impl Encoder {
    pub fn new() -> Encoder {
        Encoder {
            tracker: DictionaryTracker::new(false),
            plain: BatchEncoder::default(),
            packed: Default::default(),
            schema: None,
        }
    }

    /// Returns the messages of a batch, uncompressed or compressed by one of [`LEVELS`]. The first batch also
    /// has a message with the schema.
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
                    *way = Some(BatchEncoder::packed(LEVELS[level])?);
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

    /// Returns the last messages of a task: an empty batch, whose metadata is the cost of the task.
    pub fn done(mut self, done: &TaskDone) -> Result<Vec<FlightData>, arrow_schema::ArrowError> {
        let schema =
            self.schema.clone().unwrap_or_else(|| std::sync::Arc::new(arrow_schema::Schema::empty()));
        let mut messages = self.batch(&RecordBatch::new_empty(schema), None)?;
        messages.last_mut().expect("a batch").app_metadata = json(done);
        Ok(messages)
    }
}

/// Returns the bytes of the rows of a batch, without unused parts of its buffers.
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

/// Returns the batch with view buffers that contain only its own texts. Without this, writing even a slice of a batch
/// would write the whole buffers.
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

/// Encodes a message as JSON.
pub(crate) fn json(message: &impl Serialize) -> Bytes {
    serde_json::to_vec(message).expect("plain data").into()
}

/// Returns the approximate bytes of a message on the wire.
pub(crate) fn message_bytes(message: &FlightData) -> u64 {
    (message.data_header.len() + message.data_body.len() + message.app_metadata.len()) as u64
}

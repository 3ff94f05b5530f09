//! Record batches as messages of Arrow Flight.

use arrow::{
    array::RecordBatch,
    datatypes::SchemaRef,
    ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions},
};
use arrow_flight::{FlightData, SchemaAsIpc};
use bytes::Bytes;
use serde::Serialize;

use super::protocol::TaskDone;

/// Bytes that an answer may have: a batch.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Bytes that a request may have: a list of pieces, a map.
pub(super) const REQUEST_BYTES_MAX: usize = 16 << 20;

/// Turns batches of one task into messages.
pub(super) struct Encoder {
    options: IpcWriteOptions,
    tracker: DictionaryTracker,
    context: IpcWriteContext,
    schema: Option<SchemaRef>,
}

impl Encoder {
    pub fn new() -> Encoder {
        Encoder {
            options: IpcWriteOptions::default(),
            tracker: DictionaryTracker::new(false),
            context: IpcWriteContext::default(),
            schema: None,
        }
    }

    /// The messages of a batch: before the first one, what its columns are.
    pub fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<FlightData>, arrow::error::ArrowError> {
        let mut messages = Vec::with_capacity(2);
        if self.schema.is_none() {
            messages.push(SchemaAsIpc::new(&batch.schema(), &self.options).into());
            self.schema = Some(batch.schema());
        }
        let (dictionaries, data) =
            IpcDataGenerator::default().encode(batch, &mut self.tracker, &self.options, &mut self.context)?;
        messages.extend(dictionaries.into_iter().map(FlightData::from));
        messages.push(data.into());
        Ok(messages)
    }

    /// The last messages: no rows, and what the task cost.
    pub fn done(mut self, done: &TaskDone) -> Result<Vec<FlightData>, arrow::error::ArrowError> {
        let schema =
            self.schema.clone().unwrap_or_else(|| std::sync::Arc::new(arrow::datatypes::Schema::empty()));
        let mut messages = self.batch(&RecordBatch::new_empty(schema))?;
        messages.last_mut().expect("a batch").app_metadata = json(done);
        Ok(messages)
    }
}

/// A message of JSON.
pub(super) fn json(message: &impl Serialize) -> Bytes {
    serde_json::to_vec(message).expect("plain data").into()
}

/// Bytes of a message on the wire, about.
pub(super) fn message_bytes(message: &FlightData) -> u64 {
    (message.data_header.len() + message.data_body.len() + message.app_metadata.len()) as u64
}

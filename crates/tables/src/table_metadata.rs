//! Describes a table on another machine. The client and the node both make their plans from this description, so that
//! they make the same plan.

use std::sync::Arc;

use arrow_ipc::{convert::fb_to_schema, root_as_message, writer::StreamWriter};
use arrow_schema::{Schema, SchemaRef};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Describes a table before its rows are read, with all facts that plans depend on. Columns are serialized as an
/// Arrow IPC schema in base64.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableMetadata {
    /// The columns of the table.
    #[serde(serialize_with = "write_schema", deserialize_with = "read_schema")]
    pub schema: SchemaRef,
    /// The number of rows, if known.
    pub rows: Option<u64>,
    /// The columns of a text file (CSV, JSON lines) that have no values in the first rows.
    /// [`TableDescription::unseen`](crate::TableDescription) describes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
    /// The name of a table on the nodes. The name is empty for a table of the client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
}

fn write_schema<S: Serializer>(schema: &SchemaRef, out: S) -> std::result::Result<S::Ok, S::Error> {
    let mut bytes = Vec::new();
    let written = StreamWriter::try_new(&mut bytes, schema).and_then(|mut writer| writer.finish());
    written.map_err(serde::ser::Error::custom)?;
    out.serialize_str(&BASE64.encode(bytes))
}

fn read_schema<'de, D: Deserializer<'de>>(input: D) -> std::result::Result<SchemaRef, D::Error> {
    let bytes = BASE64.decode(String::deserialize(input)?).map_err(D::Error::custom)?;
    schema_of(&bytes)
        .map(Arc::new)
        .ok_or_else(|| D::Error::custom("invalid columns: expected a schema of Arrow"))
}

/// Reads the schema at the start of an Arrow IPC stream. Arrow's own reader would allocate any length that the stream
/// claims.
fn schema_of(stream: &[u8]) -> Option<Schema> {
    let stream = stream.strip_prefix(&[0xff; 4])?;
    let (length, stream) = stream.split_first_chunk()?;
    let header = stream.get(..usize::try_from(i32::from_le_bytes(*length)).ok()?)?;
    Some(fb_to_schema(root_as_message(header).ok()?.header_as_schema()?))
}

//! Reads an Arrow IPC file or stream as a source of record batches.
//!
//! A file is read like a stream. The file format is a stream with a magic string before it, and with a footer and a
//! magic string after it. Only readers that seek need the footer. An Arrow file can therefore also be read from a pipe
//! or compressed by gzip.
//!
//! ```text
//! ["ARROW1" padding] message ... end of stream [footer, its length, "ARROW1"]
//! message: ffffffff | length | header (flatbuffer), says how long the body is | body
//! ```
//!
//! The lengths in the headers are read and compared with the budget before memory is allocated for them. Dictionaries
//! of chosen columns stay in memory as long as the file is open. A dictionary column is returned as a column of its
//! values. Texts in such a column are views into the dictionary.

use std::{
    collections::HashMap,
    io::{ErrorKind, Read},
    sync::Arc,
};

use arrow_array::{ArrayRef, RecordBatch, cast::AsArray};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_cast::cast::cast;
use arrow_ipc::{
    Message, MessageHeader, MetadataVersion,
    convert::fb_to_schema,
    reader::{RecordBatchDecoder, read_dictionary},
    root_as_message,
};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use arrow_select::take::take;
use inshore_store::Budget;

use crate::{
    Bytes, Error, Input, Result,
    allowance::{Allowance, piece_limit},
};

const FILE_MAGIC: &[u8; 8] = b"ARROW1\0\0";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The size, in bytes, of the number before a compressed buffer. This number is the uncompressed length, or -1 if the
/// buffer is stored uncompressed.
const LENGTH_BYTES: u64 = 8;
const BATCH: &str = "an Arrow record batch";
const UNPACKED_BATCH: &str = "an unpacked Arrow record batch";

pub(super) struct IpcSource {
    input: Bytes,
    is_file: bool,
    /// The schema of the file.
    stored: SchemaRef,
    /// The schema of the file, in which each dictionary column has the type of its values.
    plain: SchemaRef,
    /// The dictionaries, by their ids.
    dictionaries: HashMap<i64, ArrayRef>,
    /// The memory of each dictionary in bytes, by the id of the dictionary.
    dictionary_bytes: HashMap<i64, u64>,
    /// The chosen columns, in the order of the file.
    projection: Vec<usize>,
    /// The position of each requested column in `projection`.
    order: Vec<usize>,
    piece_limit: u64,
    allowance: Allowance,
    batches: u64,
    ended: bool,
}

impl IpcSource {
    pub fn open(input: &Input, budget: &Budget) -> Result<Self> {
        let mut source = IpcSource {
            input: input.open(budget)?,
            is_file: false,
            stored: Arc::new(Schema::empty()),
            plain: Arc::new(Schema::empty()),
            dictionaries: HashMap::new(),
            dictionary_bytes: HashMap::new(),
            projection: Vec::new(),
            order: Vec::new(),
            piece_limit: piece_limit(budget),
            allowance: Allowance::new(budget, "an Arrow record batch")?,
            batches: 0,
            ended: false,
        };
        source.read_schema()?;
        Ok(source)
    }

    pub fn schema(&self) -> &Schema {
        &self.plain
    }

    pub fn position(&self) -> u64 {
        self.input.position()
    }

    pub fn choose(&mut self, columns: &[usize]) {
        self.projection = columns.to_vec();
        self.projection.sort_unstable();
        self.projection.dedup();
        self.order =
            columns.iter().map(|column| self.projection.partition_point(|other| other < column)).collect();
    }

    fn read_schema(&mut self) -> Result<()> {
        let mut start = [0; 8];
        self.read_exact(&mut start)?;
        let header = if &start == FILE_MAGIC {
            self.is_file = true;
            self.header_after_magic()?
        } else if start[..4] == CONTINUATION {
            self.header_of(start[4..].try_into().expect("4 bytes"))?
        } else {
            return Err(self.damaged("expected an Arrow file (\"ARROW1\") or an Arrow stream".to_string()));
        };
        let header = header.ok_or_else(|| self.damaged("expected a schema, got the end".to_string()))?;
        let message = self.parse(&header)?;
        let schema = message
            .header_as_schema()
            .ok_or_else(|| self.damaged(format!("expected a schema, got {:?}", message.header_type())))?;
        if message.version() > MetadataVersion::V5 {
            let what =
                format!("Arrow of version V{} is not supported, V1 to V5 are", message.version().0 + 1);
            return Err(Error::unsupported(self.input.name(), what));
        }
        if !schema.endianness().equals_to_target_endianness() {
            return Err(Error::unsupported(self.input.name(), "big-endian Arrow is not supported"));
        }
        let body_bytes = self.body_bytes(&message)?;
        self.stored = Arc::new(fb_to_schema(schema));
        let plain = |field: &Arc<Field>| match field.data_type() {
            DataType::Dictionary(_, values) => {
                Arc::new(Field::new(field.name(), values.as_ref().clone(), field.is_nullable()))
            }
            _ => field.clone(),
        };
        self.plain = Arc::new(Schema::new(self.stored.fields().iter().map(plain).collect::<Fields>()));
        self.skip(body_bytes)
    }

    /// Reads the first header, which is the first message of the stream. A writer may put up to 64 zero bytes between
    /// the magic string and the header to align the header.
    fn header_after_magic(&mut self) -> Result<Option<Vec<u8>>> {
        let mut word = [0; 4];
        for _ in 0..64 / 4 {
            self.read_exact(&mut word)?;
            if word == CONTINUATION {
                self.read_exact(&mut word)?;
                break;
            }
            // Arrow files of versions before 0.15 have no continuation mark.
            if word != [0; 4] {
                break;
            }
        }
        self.header_of(word)
    }

    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        while !self.ended {
            let Some(header) = self.next_header()? else {
                self.ended = true;
                self.check_footer()?;
                break;
            };
            let message = self.parse(&header)?;
            let body_bytes = self.body_bytes(&message)?;
            match message.header_type() {
                MessageHeader::RecordBatch => return self.read_batch(&message, body_bytes).map(Some),
                MessageHeader::DictionaryBatch => self.read_dictionary(&message, body_bytes)?,
                MessageHeader::NONE => self.skip(body_bytes)?,
                other => return Err(self.damaged(format!("expected a record batch, got {other:?}"))),
            }
        }
        Ok(None)
    }

    /// Reads a dictionary, or an extension of a dictionary, if a chosen column needs it.
    fn read_dictionary(&mut self, message: &Message, body_bytes: u64) -> Result<()> {
        let no_dictionary = "no dictionary";
        let header = message.header_as_dictionary_batch();
        let header = header.ok_or_else(|| self.damaged(no_dictionary.to_string()))?;
        #[expect(deprecated, reason = "the number of a dictionary stands nowhere else")]
        let is_wanted = |&column: &usize| self.stored.field(column).dict_id() == Some(header.id());
        if !self.projection.iter().any(is_wanted) {
            return self.skip(body_bytes);
        }
        let data = header.data().ok_or_else(|| self.damaged(no_dictionary.to_string()))?;
        let (body, bytes) = self.read_body(&data, body_bytes, "an Arrow dictionary")?;
        // An extension is appended to the existing dictionary.
        let before = self.dictionary_bytes.get(&header.id()).copied().unwrap_or(0);
        let bytes = if header.isDelta() { bytes + before } else { bytes };
        self.dictionary_bytes.insert(header.id(), bytes);
        self.allowance.hold(self.dictionary_bytes.values().sum::<u64>() + bytes)?;
        let read = read_dictionary(&body, header, &self.stored, &mut self.dictionaries, &message.version());
        read.map_err(|error| self.damaged(error.to_string()))
    }

    /// Reads the body of a message. Returns the body, and its memory in bytes including decompressed buffers.
    fn read_body(
        &mut self,
        header: &arrow_ipc::RecordBatch,
        body_bytes: u64,
        what: &'static str,
    ) -> Result<(Buffer, u64)> {
        self.check_size(what, body_bytes)?;
        let kept: u64 = self.dictionary_bytes.values().sum();
        self.allowance.hold(kept + body_bytes)?;
        let mut body = MutableBuffer::from_len_zeroed(body_bytes as usize);
        self.read_exact(&mut body)?;
        let body = Buffer::from(body);
        self.check_buffers(header, body_bytes)?;
        let unpacked_bytes = match header.compression() {
            Some(_) => self.unpacked_bytes(header, &body)?,
            None => 0,
        };
        let unpacked = if what == BATCH { UNPACKED_BATCH } else { what };
        self.check_size(unpacked, unpacked_bytes)?;
        self.allowance.hold(kept + body_bytes + unpacked_bytes)?;
        Ok((body, body_bytes + unpacked_bytes))
    }

    fn read_batch(&mut self, message: &Message, body_bytes: u64) -> Result<RecordBatch> {
        let header =
            message.header_as_record_batch().ok_or_else(|| self.damaged("no record batch".to_string()))?;
        let (body, _) = self.read_body(&header, body_bytes, BATCH)?;
        let batch = RecordBatchDecoder::try_new(
            &body,
            header,
            self.stored.clone(),
            &self.dictionaries,
            &message.version(),
        )
        .and_then(|decoder| decoder.with_projection(Some(&self.projection)).read_record_batch())
        .and_then(|batch| batch.project(&self.order))
        .and_then(without_dictionaries)
        .map_err(|error| self.damaged(error.to_string()))?;
        self.batches += 1;
        Ok(batch)
    }

    /// Checks that all buffers lie within the body. The decoder panics on a buffer outside of the body.
    fn check_buffers(&self, header: &arrow_ipc::RecordBatch, body_bytes: u64) -> Result<()> {
        for buffer in header.buffers().iter().flatten() {
            let (offset, length) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length()));
            let end = offset.ok().zip(length.ok()).and_then(|(offset, length)| offset.checked_add(length));
            if end.is_none_or(|end| end > body_bytes) {
                return Err(self.damaged("a buffer lies outside of its batch".to_string()));
            }
        }
        Ok(())
    }

    /// Returns the total decompressed size, in bytes, that the buffers of a compressed batch claim to have.
    fn unpacked_bytes(&self, header: &arrow_ipc::RecordBatch, body: &[u8]) -> Result<u64> {
        let mut sum = 0u64;
        for buffer in header.buffers().iter().flatten() {
            if buffer.length() == 0 {
                continue;
            }
            let unpacked = usize::try_from(buffer.offset())
                .ok()
                .and_then(|offset| body.get(offset..)?.first_chunk())
                .map(|length| i64::from_le_bytes(*length))
                .ok_or_else(|| self.damaged("a compressed buffer lies outside of its batch".to_string()))?;
            let own = u64::try_from(buffer.length()).unwrap_or(0).saturating_sub(LENGTH_BYTES);
            sum = sum.saturating_add(u64::try_from(unpacked).unwrap_or(own));
        }
        Ok(sum)
    }

    /// Returns the header of the next message. Returns `None` at the end of the stream.
    fn next_header(&mut self) -> Result<Option<Vec<u8>>> {
        let mut start = [0; 4];
        if !self.read_exact_or_end(&mut start)? {
            // A stream may end without an end mark. A file must have an end mark and a footer.
            let end = if self.is_file { Err(self.truncated()) } else { Ok(None) };
            return end;
        }
        if start == CONTINUATION {
            self.read_exact(&mut start)?;
        }
        self.header_of(start)
    }

    fn header_of(&mut self, length: [u8; 4]) -> Result<Option<Vec<u8>>> {
        let length = u32::from_le_bytes(length);
        if length == 0 {
            return Ok(None);
        }
        self.check_size("the header of an Arrow message", length.into())?;
        let mut header = vec![0; length as usize];
        self.read_exact(&mut header)?;
        Ok(Some(header))
    }

    fn parse<'a>(&self, header: &'a [u8]) -> Result<Message<'a>> {
        root_as_message(header)
            .map_err(|error| self.damaged(format!("the header of a message is invalid: {error}")))
    }

    fn body_bytes(&self, message: &Message) -> Result<u64> {
        u64::try_from(message.bodyLength())
            .map_err(|_| self.damaged("a message has a body of negative length".to_string()))
    }

    /// Reads a file to its end, and checks that the file ends with the magic string of Arrow.
    fn check_footer(&mut self) -> Result<()> {
        if !self.is_file {
            return Ok(());
        }
        let mut buffer = [0; 4096];
        let mut tail = Vec::new();
        loop {
            let read = self.read(&mut buffer)?;
            tail.extend_from_slice(&buffer[..read]);
            tail.drain(..tail.len().saturating_sub(6));
            if read == 0 {
                return if tail == FILE_MAGIC[..6] { Ok(()) } else { Err(self.truncated()) };
            }
        }
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        let skipped = std::io::copy(&mut self.input.by_ref().take(bytes), &mut std::io::sink())
            .map_err(|error| Error::from_read(self.input.name(), error))?;
        if skipped < bytes { Err(self.truncated()) } else { Ok(()) }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.input.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other.map_err(|error| Error::from_read(self.input.name(), error)),
            }
        }
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        if buffer.is_empty() || self.read_exact_or_end(buffer)? { Ok(()) } else { Err(self.truncated()) }
    }

    /// Fills `buffer` with the next bytes of the input, and returns true. Returns false if the input has no more bytes.
    fn read_exact_or_end(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(self.truncated()),
                read => filled += read,
            }
        }
        Ok(true)
    }

    fn check_size(&self, what: &'static str, bytes: u64) -> Result<()> {
        if bytes <= self.piece_limit {
            return Ok(());
        }
        let place = format!("{}: batch {}", self.input.name(), self.batches);
        Err(Error::TooLarge { place, what, bytes, limit: self.piece_limit, enough: None })
    }

    fn truncated(&self) -> Error {
        Error::damaged(
            self.input.name(),
            format!("truncated: the Arrow data ends after {} batches", self.batches),
        )
    }

    fn damaged(&self, what: String) -> Error {
        Error::damaged(self.input.name(), format!("damaged Arrow data in batch {}: {what}", self.batches))
    }
}

/// Replaces dictionary columns by their values. Texts become views into the dictionary, since copies of long texts of a
/// short dictionary could fill gigabytes.
fn without_dictionaries(batch: RecordBatch) -> std::result::Result<RecordBatch, ArrowError> {
    let plain = |column: &ArrayRef| {
        let Some(coded) = column.as_any_dictionary_opt() else { return Ok(column.clone()) };
        let kind = match coded.values().data_type() {
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            other => other.clone(),
        };
        // A direct cast (arrow 59.3) would turn a null in the dictionary into an empty text.
        take(&cast(coded.values(), &kind)?, coded.keys(), None)
    };
    let columns = batch.columns().iter().map(plain).collect::<std::result::Result<Vec<_>, _>>()?;
    let fields = batch.schema_ref().fields().iter().zip(&columns);
    let fields = fields.map(|(field, column)| Field::new(field.name(), column.data_type().clone(), true));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)
}

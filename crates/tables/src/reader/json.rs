//! A file of JSON lines as a source of batches: one object in each line, its members are columns.
//!
//! The columns are those of the first lines; a member that a later line has beyond them cannot be asked for, and is an
//! error where all columns are read. A member that a line does not have is null.

use std::{
    fmt::{self, Formatter},
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_json::{ReaderBuilder, reader::Decoder};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use inshore_store::Budget;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;

use crate::{
    Error, Input, LineBlock, LineBlocks, Result,
    allowance::{Allowance, piece_limit},
};

const BLOCK_BYTES: u64 = 1 << 20;
/// Lines that are looked at to guess what a column is.
const SAMPLE_LINES: usize = 1_000;
/// What a batch takes beyond its text: the library notes every value before it builds columns.
const BYTES_FOR_A_BYTE: u64 = 8;

pub(super) struct JsonSource {
    blocks: LineBlocks,
    block: LineBlock,
    /// Bytes of the block that were decoded.
    decoded: usize,
    schema: Schema,
    decoder: Option<Decoder>,
    /// What the decoder decodes, and whether other members are refused.
    wanted: (SchemaRef, bool),
    batch_rows: usize,
    _allowance: Allowance,
}

impl JsonSource {
    pub fn open(input: &Input, budget: &Budget) -> Result<Self> {
        let block_bytes = BLOCK_BYTES.min(piece_limit(budget)).max(1);
        let mut allowance = Allowance::new(budget, "lines of JSON")?;
        allowance.hold(block_bytes * BYTES_FOR_A_BYTE)?;
        let mut blocks = LineBlocks::new(input.open(budget)?, block_bytes as usize);
        let empty = LineBlock { bytes: Vec::new(), first_line: 1 };
        let block = blocks.next_block(Vec::new())?.unwrap_or(empty);
        let wanted = (Arc::new(Schema::empty()), false);
        let mut source = JsonSource {
            blocks,
            block,
            decoded: 0,
            schema: Schema::empty(),
            decoder: None,
            wanted,
            batch_rows: 1,
            _allowance: allowance,
        };
        source.schema = match input.columns() {
            Some(columns) => columns.as_ref().clone(),
            None => source.inferred()?,
        };
        Ok(source)
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    pub fn position(&self) -> u64 {
        self.blocks.position()
    }

    /// Columns named in `as_text` are text from now on.
    pub fn take_as_text(&mut self, as_text: &[usize]) {
        let fields =
            self.schema.fields().iter().enumerate().map(|(index, field)| match as_text.contains(&index) {
                true => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
                false => field.clone(),
            });
        self.schema = Schema::new(fields.collect::<Vec<_>>());
    }

    /// Reads columns, as the types that `wanted` has for them.
    pub fn choose(&mut self, wanted: &SchemaRef, batch_rows: usize) -> Result<()> {
        let all = self.schema.fields().len() <= wanted.fields().len();
        // A member that is not there is null, and refused later where that is not wanted.
        let nullable = |field: &Arc<Field>| field.as_ref().clone().with_nullable(true);
        let schema = Schema::new(wanted.fields().iter().map(nullable).collect::<Vec<_>>());
        (self.wanted, self.batch_rows) = ((Arc::new(schema), all), batch_rows);
        self.decoder = Some(self.new_decoder()?);
        Ok(())
    }

    fn new_decoder(&self) -> Result<Decoder> {
        let (schema, strict) = &self.wanted;
        ReaderBuilder::new(schema.clone())
            .with_batch_size(self.batch_rows)
            .with_strict_mode(*strict)
            .with_coerce_primitive(true)
            .build_decoder()
            .map_err(|error| Error::unsupported(self.blocks.name(), error.to_string()))
    }

    /// The members of the first lines, in the order in which they come, with types that fit all their values.
    fn inferred(&self) -> Result<Schema> {
        let mut columns: Vec<(String, Kind)> = Vec::new();
        for (number, line) in self.block.lines().take(SAMPLE_LINES) {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Members(members) = serde_json::from_slice(line)
                .map_err(|error| self.bad_line(number, line, &error.to_string()))?;
            for (name, kind) in members {
                match columns.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = known.or(kind),
                    None => columns.push((name, kind)),
                }
            }
        }
        if columns.is_empty() {
            let what = "expected an object with members in each line, got none in the first ones";
            return Err(Error::damaged(self.blocks.name(), what));
        }
        let field = |(name, kind): &(String, Kind)| Field::new(name, kind.data_type(), true);
        Ok(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
    }

    fn bad_line(&self, number: u64, line: &[u8], why: &str) -> Error {
        let why = why.trim_start_matches("Json error: ");
        Error::bad_line(
            self.blocks.name(),
            number,
            format!("an object whose members fit their columns ({why})"),
            line,
        )
    }

    /// The next rows.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.decoded == self.block.bytes.len() {
                let recycled = std::mem::take(&mut self.block.bytes);
                let Some(block) = self.blocks.next_block(recycled)? else { return Ok(None) };
                (self.block, self.decoded) = (block, 0);
            }
            let decoder = self.decoder.as_mut().expect("columns are chosen before batches are read");
            let decoded = decoder.decode(&self.block.bytes[self.decoded..]);
            let batch = decoded.and_then(|decoded| {
                self.decoded += decoded;
                // Lines are whole, but for an object that lies across several of them.
                if decoder.has_partial_record() { Ok(None) } else { decoder.flush() }
            });
            match batch {
                Ok(Some(batch)) => return Ok(Some(batch)),
                Ok(None) if self.decoder.as_ref().is_some_and(Decoder::has_partial_record) => {
                    return Err(self.first_bad_line("the object does not end in its line"));
                }
                Ok(None) => {}
                Err(error) => return Err(self.first_bad_line(&error.to_string())),
            }
        }
    }

    /// The error of the line that does not decode by itself; the block is decoded again to find it.
    fn first_bad_line(&self, why: &str) -> Error {
        for (number, line) in self.block.lines() {
            let Ok(mut decoder) = self.new_decoder() else { break };
            let result = decoder.decode(line).and_then(|_| match decoder.has_partial_record() {
                true => Err(ArrowError::JsonError("the object does not end in its line".into())),
                false => decoder.flush(),
            });
            if let Err(error) = result {
                return self.bad_line(number, line, &error.to_string());
            }
        }
        Error::damaged(self.blocks.name(), why)
    }
}

/// What a value in JSON is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Null,
    Truth,
    Whole,
    Number,
    Text,
    /// An object or an array.
    Nested,
}

impl Kind {
    fn of(value: &Value) -> Kind {
        match value {
            Value::Null => Kind::Null,
            Value::Bool(_) => Kind::Truth,
            Value::Number(number) if number.is_i64() => Kind::Whole,
            Value::Number(_) => Kind::Number,
            Value::String(_) => Kind::Text,
            Value::Array(_) | Value::Object(_) => Kind::Nested,
        }
    }

    /// What both fit.
    fn or(self, other: Kind) -> Kind {
        use Kind::*;
        match (self, other) {
            (kind, Null) | (Null, kind) => kind,
            (Nested, _) | (_, Nested) => Nested,
            (Whole | Number, Whole | Number) if self != other => Number,
            (kind, other) if kind == other => kind,
            _ => Text,
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Kind::Truth => DataType::Boolean,
            Kind::Whole => DataType::Int64,
            Kind::Number => DataType::Float64,
            Kind::Null | Kind::Text => DataType::Utf8,
            // No column has this type, so that asking for it is refused by name.
            Kind::Nested => DataType::Struct(Fields::empty()),
        }
    }
}

/// The members of an object, in their order.
struct Members(Vec<(String, Kind)>);

impl<'a> Deserialize<'a> for Members {
    fn deserialize<D: Deserializer<'a>>(line: D) -> std::result::Result<Self, D::Error> {
        line.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'a> Visitor<'a> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut object: A) -> std::result::Result<Members, A::Error> {
        let mut members = Vec::new();
        while let Some((name, value)) = object.next_entry::<String, Value>()? {
            members.push((name, Kind::of(&value)));
        }
        Ok(Members(members))
    }
}

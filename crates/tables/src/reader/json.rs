//! Reads a file of JSON lines as a source of record batches. Each line is one object, whose members are the columns.
//!
//! The columns are the members of the first lines. A member that a line does not have is null. If a later line has
//! another member and the caller named the columns, the member is skipped. If all columns are read, such a member is an
//! error. If a member occurs twice in an object, the last value is used.
//!
//! Each line is parsed once. Values of requested members remain text until the column's type is known. A number is then
//! parsed as that type and never truncated.
//!
//! The `arrow-json` crate (59.3) is not used, for three reasons. It truncates floating-point numbers in columns of
//! whole numbers. It reads numbers in quotes as numbers. It turns half of all escaped surrogate pairs into other
//! characters.

use std::{
    collections::HashMap,
    fmt::{self, Formatter},
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::Budget;
use memchr::memchr;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    typed::{Column, TypeOrigin},
    value_classes::ValueClasses,
};
use crate::{Error, Input, LineBlock, LineBlocks, Result, allowance::piece_limit};

const BLOCK_BYTES: u64 = 1 << 20;
/// The number of lines from which types are inferred.
const SAMPLE_LINES: usize = 1_000;
const MARK: &[u8] = "\u{feff}".as_bytes();

pub(super) struct JsonSource {
    blocks: LineBlocks,
    block: LineBlock,
    /// How many bytes and how many lines of the current block were already read.
    read: (usize, u64),
    schema: Schema,
    /// The index of each column, by the name of the column.
    places: HashMap<String, usize>,
    /// The origin of the type of each column.
    origins: Vec<TypeOrigin>,
    is_known: bool,
    wanted: ProjectedColumns,
    text_bytes_max: u64,
}

/// The columns that are read.
struct ProjectedColumns {
    schema: SchemaRef,
    /// For each column, the index of its member and the origin of its type.
    columns: Vec<(usize, TypeOrigin)>,
    /// True if a member that is not a column is an error.
    is_strict: bool,
}

impl JsonSource {
    pub fn open(input: &Input, budget: &Budget) -> Result<Self> {
        let block_bytes = BLOCK_BYTES.min(piece_limit(budget)).max(1);
        let mut blocks = LineBlocks::new(input.open(budget)?, block_bytes as usize);
        let empty = LineBlock { bytes: Vec::new(), first_line: 1 };
        let block = blocks.next_block(Vec::new())?.unwrap_or(empty);
        let start = if block.bytes.starts_with(MARK) { MARK.len() } else { 0 };
        let wanted =
            ProjectedColumns { schema: Arc::new(Schema::empty()), columns: Vec::new(), is_strict: false };
        let mut source = JsonSource {
            blocks,
            block,
            read: (start, 0),
            schema: Schema::empty(),
            places: HashMap::new(),
            origins: Vec::new(),
            is_known: false,
            wanted,
            text_bytes_max: piece_limit(budget),
        };
        match input.columns() {
            Some(columns) => {
                source.schema = columns.as_ref().clone();
                let origin = |field: &Arc<Field>| match input.is_unseen(field.name()) {
                    true => TypeOrigin::Unseen,
                    false => TypeOrigin::Guessed,
                };
                source.origins = columns.fields().iter().map(origin).collect();
                source.is_known = true;
            }
            None => source.infer()?,
        }
        let names = source.schema.fields().iter().enumerate();
        source.places = names.map(|(place, field)| (field.name().clone(), place)).collect();
        Ok(source)
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    pub fn position(&self) -> u64 {
        self.blocks.position()
    }

    /// Returns true if a column had no values in the first lines.
    pub fn is_unseen(&self, column: usize) -> bool {
        self.origins[column] == TypeOrigin::Unseen
    }

    /// Sets the type of the columns named in `as_text` to text.
    pub fn take_as_text(&mut self, as_text: &[usize]) {
        let fields =
            self.schema.fields().iter().enumerate().map(|(index, field)| match as_text.contains(&index) {
                true => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
                false => field.clone(),
            });
        self.schema = Schema::new(fields.collect::<Vec<_>>());
        as_text.iter().for_each(|&index| self.origins[index] = TypeOrigin::Asked);
    }

    /// Chooses columns and their types. The first `carried` columns of `columns` are read as text. If `is_strict` is
    /// true, a member that is not a column is an error.
    pub fn choose(&mut self, columns: &[usize], wanted: &SchemaRef, carried: usize, is_strict: bool) {
        let origin = |(place, &column): (usize, &usize)| {
            let is_own = wanted.field(place).data_type() == self.schema.field(column).data_type();
            match place >= carried && is_own {
                true => (column, self.origins[column]),
                false => (column, TypeOrigin::Asked),
            }
        };
        let columns = columns.iter().enumerate().map(origin).collect();
        self.wanted = ProjectedColumns { schema: wanted.clone(), columns, is_strict };
    }

    /// Finds the columns, which are the members of the first lines in the order of their first appearance. Each column
    /// gets a type that fits all its values in these lines.
    fn infer(&mut self) -> Result<()> {
        let (mut all, mut lines) = (Members::default(), 0);
        let mut rest = &self.block.bytes[self.read.0..];
        while !rest.is_empty() && lines < SAMPLE_LINES {
            let (line, after) = first_line(rest);
            self.look(line, self.block.first_line + lines as u64, &mut all)?;
            (rest, lines) = (after, lines + 1);
        }
        if all.found.is_empty() {
            let what = "expected an object with members in each line, got none in the first ones";
            return Err(Error::damaged(self.blocks.name(), what));
        }
        let origin = |(_, seen): &(String, ValueClasses)| match *seen == ValueClasses::NOTHING {
            true if rest.is_empty() => TypeOrigin::Asked,
            true => TypeOrigin::Unseen,
            false => TypeOrigin::Guessed,
        };
        self.origins = all.found.iter().map(origin).collect();
        let field = |(name, seen): &(String, ValueClasses)| Field::new(name, seen.data_type(), true);
        self.schema = Schema::new(all.found.iter().map(field).collect::<Vec<_>>());
        Ok(())
    }

    /// Adds the members of a line, and the classes of their values, to `all`.
    fn look(&self, line: &[u8], number: u64, all: &mut Members) -> Result<()> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let mut decoder = serde_json::Deserializer::from_slice(line);
        let looked = decoder.deserialize_map(&mut *all).and_then(|()| decoder.end());
        looked.map_err(|error| self.bad_line(number, line, &error))?;
        match all.bytes <= self.text_bytes_max {
            true => Ok(()),
            false => Err(Error::TooLarge {
                place: format!("{}:{number}", self.blocks.name()),
                what: "the names of all members",
                bytes: all.bytes,
                limit: self.text_bytes_max,
                enough: None,
            }),
        }
    }

    /// Classifies all values of each member.
    pub fn scan(&mut self, check_cancelled: &dyn Fn() -> Result<()>) -> Result<Vec<(String, ValueClasses)>> {
        let mut all = Members::default();
        loop {
            let mut rest = &self.block.bytes[self.read.0..];
            let mut number = self.block.first_line;
            while !rest.is_empty() {
                let (line, after) = first_line(rest);
                self.look(line, number, &mut all)?;
                (rest, number) = (after, number + 1);
            }
            check_cancelled()?;
            if !self.next_block()? {
                return Ok(all.found);
            }
        }
    }

    fn next_block(&mut self) -> Result<bool> {
        let recycled = std::mem::take(&mut self.block.bytes);
        self.read = (0, 0);
        let Some(block) = self.blocks.next_block(recycled)? else { return Ok(false) };
        self.block = block;
        Ok(true)
    }

    /// Returns the next rows. The result has at most `batch_rows` rows, and fewer if strings are long.
    pub fn next_batch(&mut self, batch_rows: usize) -> Result<Option<RecordBatch>> {
        let ProjectedColumns { schema, columns, .. } = &self.wanted;
        let column = |(field, &(_, origin)): (&Arc<Field>, &(usize, TypeOrigin))| Column::new(field, origin);
        let mut columns: Vec<Column> = schema.fields().iter().zip(columns).map(column).collect();
        let schema = schema.clone();
        let (mut rows, mut text_bytes) = (0, 0);
        while rows < batch_rows && text_bytes < self.text_bytes_max {
            if self.read.0 == self.block.bytes.len() && !self.next_block()? {
                break;
            }
            self.read = self.rows_of_block(&mut columns, batch_rows, (&mut rows, &mut text_bytes))?;
        }
        if rows == 0 {
            return Ok(None);
        }
        let arrays = columns.into_iter().map(Column::finish).collect();
        Ok(Some(RecordBatch::try_new(schema, arrays).expect("columns of equal length and the wanted types")))
    }

    /// Adds rows of the current block to `columns`. Returns how many bytes and how many lines of the block were read so
    /// far.
    fn rows_of_block(
        &self,
        columns: &mut [Column],
        batch_rows: usize,
        (rows, text_bytes): (&mut usize, &mut u64),
    ) -> Result<(usize, u64)> {
        let (mut at, mut lines) = self.read;
        let (schema, places) = (&self.schema, &self.places);
        let mut values: Vec<Option<&RawValue>> = vec![None; schema.fields().len()];
        while at < self.block.bytes.len() && *rows < batch_rows && *text_bytes < self.text_bytes_max {
            let rest = &self.block.bytes[at..];
            let (line, after) = first_line(rest);
            let number = self.block.first_line + lines;
            (at, lines) = (at + rest.len() - after.len(), lines + 1);
            if line.trim_ascii().is_empty() {
                continue;
            }
            values.fill(None);
            let mut row = LineValues { columns: schema, places, next: 0, values: &mut values, other: None };
            let mut decoder = serde_json::Deserializer::from_slice(line);
            let walked = decoder.deserialize_map(&mut row).and_then(|()| decoder.end());
            walked.map_err(|error| self.bad_line(number, line, &error))?;
            if let Some(other) = row.other.filter(|_| self.wanted.is_strict) {
                let names: Vec<&str> = schema.fields().iter().map(|field| &**field.name()).collect();
                let expected = format!("the members {}", names.join(", "));
                let name = self.blocks.name();
                return Err(Error::contradiction(
                    name,
                    number,
                    (&expected, self.is_known),
                    None,
                    other.as_bytes(),
                ));
            }
            for (place, column) in columns.iter_mut().enumerate() {
                *text_bytes += self.push(column, place, &values, number)?;
            }
            *rows += 1;
        }
        Ok((at, lines))
    }

    fn push(
        &self,
        column: &mut Column,
        place: usize,
        values: &[Option<&RawValue>],
        line: u64,
    ) -> Result<u64> {
        let (member, origin) = self.wanted.columns[place];
        let value = values[member].map_or("null", RawValue::get);
        column.push_json(value).ok_or_else(|| {
            let (file, name) = (self.blocks.name(), self.schema.field(member).name());
            let expected = format!("{} in column '{name}'", column.expected());
            match origin {
                TypeOrigin::Asked => Error::bad_line(file, line, expected, value.as_bytes()),
                TypeOrigin::Guessed | TypeOrigin::Unseen => {
                    Error::contradiction(file, line, (&expected, self.is_known), Some(name), value.as_bytes())
                }
            }
        })
    }

    fn bad_line(&self, number: u64, line: &[u8], why: &serde_json::Error) -> Error {
        // The position in the library's message is removed, since it counts from the start of the line.
        let why = why.to_string();
        let why = why.split(" at line ").next().unwrap_or_default();
        Error::bad_line(self.blocks.name(), number, format!("an object in a line ({why})"), line)
    }
}

/// Splits bytes into the first line and the rest.
fn first_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b'\n', bytes) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

/// The members of objects in the order of their first appearance, with the classes of their values.
#[derive(Default)]
struct Members {
    found: Vec<(String, ValueClasses)>,
    places: HashMap<String, usize>,
    /// The estimated memory of all members.
    bytes: u64,
}

/// The estimated memory of a member, in bytes, without the memory of two copies of its name.
const MEMBER_BYTES: u64 = 128;

impl<'de> Visitor<'de> for &mut Members {
    type Value = ();

    fn expecting(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> std::result::Result<(), A::Error> {
        let mut next = 0;
        loop {
            let Some(place) = object.next_key_seed(&mut MemberName { of: &mut *self, next })? else {
                return Ok(());
            };
            let value: &RawValue = object.next_value()?;
            self.found[place].1 |= seen(value.get());
            next = place + 1;
        }
    }
}

fn seen(value: &str) -> ValueClasses {
    match value.as_bytes().first() {
        Some(b'n') => ValueClasses::NOTHING,
        Some(b't' | b'f') => ValueClasses::TRUTH,
        Some(b'"') => ValueClasses::TEXT,
        Some(b'{' | b'[') => ValueClasses::NESTED,
        _ => ValueClasses::of_number(value),
    }
}

/// Finds the position of a name among the members. A name that is not among the members is added. The name at position
/// `next` is compared first, since most objects have the same members in the same order.
struct MemberName<'a> {
    of: &'a mut Members,
    next: usize,
}

impl<'de> DeserializeSeed<'de> for &mut MemberName<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> std::result::Result<usize, D::Error> {
        name.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for &mut MemberName<'_> {
    type Value = usize;

    fn expecting(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("the name of a member")
    }

    fn visit_str<E>(self, name: &str) -> std::result::Result<usize, E> {
        let Members { found, places, bytes } = &mut *self.of;
        if found.get(self.next).is_some_and(|(next, _)| next == name) {
            return Ok(self.next);
        }
        if let Some(&place) = places.get(name) {
            return Ok(place);
        }
        *bytes += 2 * name.len() as u64 + MEMBER_BYTES;
        places.insert(name.to_string(), found.len());
        found.push((name.to_string(), ValueClasses::NOTHING));
        Ok(found.len() - 1)
    }
}

/// The values of the members in one line.
struct LineValues<'a, 'de> {
    columns: &'a Schema,
    places: &'a HashMap<String, usize>,
    next: usize,
    values: &'a mut [Option<&'de RawValue>],
    /// The name of a member that is not a column, if the line has one.
    other: Option<String>,
}

impl<'de> Visitor<'de> for &mut LineValues<'_, 'de> {
    type Value = ();

    fn expecting(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> std::result::Result<(), A::Error> {
        while let Some(place) = object.next_key_seed(&mut *self)? {
            match place {
                Some(place) => {
                    self.values[place] = Some(object.next_value()?);
                    self.next = place + 1;
                }
                None => _ = object.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut LineValues<'_, 'de> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> std::result::Result<Option<usize>, D::Error> {
        struct FieldVisitor<'b, 'a, 'de>(&'b mut LineValues<'a, 'de>);
        impl<'de> Visitor<'de> for FieldVisitor<'_, '_, '_> {
            type Value = Option<usize>;

            fn expecting(&self, text: &mut Formatter<'_>) -> fmt::Result {
                text.write_str("the name of a member")
            }

            fn visit_str<E>(self, name: &str) -> std::result::Result<Option<usize>, E> {
                let FieldVisitor(row) = self;
                let is_next = row.columns.fields().get(row.next).is_some_and(|next| next.name() == name);
                let place = if is_next { Some(row.next) } else { row.places.get(name).copied() };
                if place.is_none() && row.other.is_none() {
                    row.other = Some(name.to_string());
                }
                Ok(place)
            }
        }
        name.deserialize_str(FieldVisitor(self))
    }
}

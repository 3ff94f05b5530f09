//! Adds the rows of a table to a dataset that was imported from a table, or replaces rows of the dataset by them.
//!
//! ```text
//!   table ─┬─ ids ──────► compared with the ids of the dataset ─► `removed`: the rows that are replaced
//!          ├─ lists ────► `vectors`
//!          └─ others ───► `columns.parquet`, with the numbers of the new rows
//! ```
//!
//! One commit publishes all files, so vectors and columns always have the same rows.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::{Job, Store};
use inshore_tables::{Input, ParquetStream, TableReader, stored_schema};
use zerocopy::{IntoBytes, little_endian::U64};

use super::{APPEND_BYTES, Change, Changed, add::finish, check_ids, retried};
use crate::{
    Error, Result, RowSet, TableColumns, VectorsInfo,
    columns::{
        BATCH_ROWS, CHUNK_BYTES, COLUMNS_BUFFER_BYTES, COLUMNS_CHECK_BYTES, DatasetFile, KnownId, KnownIds,
        Layout, Lists, ROW_COLUMN, append_columns, columns_input, find_known, id_column, ids_bytes,
    },
    dataset::{CHECK_BYTES, REMOVED, VECTORS},
    import::{BUFFER_BYTES, BUFFERS},
    live::{RowsOfIds, live_bytes, live_rows},
};

/// Adds the vectors and the columns of the table `input` to the dataset `name`, which was imported from a table. The
/// table has the columns of the dataset, in any order and with the same types. `column` names the column of vectors. It
/// may be `None` if the table has exactly one column of lists of numbers. Other nested columns are left out.
///
/// The function reads the table once, writes its rows once, and copies the last extent of each file that grows. If the
/// dataset has a column of ids, the function also reads and sorts the ids of the dataset and of the table.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the dataset has no columns, or if it cannot be changed.
/// - Returns [`Error::BadFile`] if a column is missing, has another type, or is no column of the dataset. The error
///   names the column.
/// - Returns [`Error::BadFile`] if an id occurs twice, or if a vector of the dataset has it.
/// - Returns the errors of [`crate::import_table`] and [`crate::add_vectors`].
///
/// After an error, the dataset is unchanged.
pub fn add_table(
    store: &Store,
    job: &Job,
    name: &str,
    input: &Input,
    column: Option<&str>,
) -> Result<Changed> {
    let changed = retried(job, || {
        let mut change = Change::begin(store, job, name)?;
        let table = AddedTable::open(&change, input, column)?;
        if let Some(id) = &table.layout.id {
            table.find_known(&change, id, &mut |known| Err(table.known(&known, id)))?;
        }
        let (count, rounded) = table.append(&mut change)?;
        let changed = change.commit_added(count, 0, rounded)?;
        // A user knows the vectors by the values of the column of ids, if there is one.
        let first_id = changed.first_id.filter(|_| table.layout.id.is_none());
        Ok(Changed { first_id, ..changed })
    })?;
    Ok(changed.listed(store, job))
}

/// Inserts the rows of the table `input` into the dataset `name`, which was imported from a table, or replaces rows of
/// the dataset by them. A row replaces the live row with the same id. If the dataset has a column of ids, the table has
/// the ids, and `ids` is `None`. Otherwise `ids` has the number of each row's vector. One commit publishes all changes.
///
/// The work and the memory are those of [`add_table`]. With `ids`, the memory is that of [`crate::upsert_vectors`] in
/// addition. If the dataset has a column of ids, a vector that replaces another one comes last among vectors at the
/// same distance, as a vector that is added.
///
/// # Errors
/// - Returns the errors of [`add_table`], except that for an id that a vector of the dataset has.
/// - Returns [`Error::BadOption`] if `ids` is given and the dataset has a column of ids, or the reverse.
/// - Returns [`Error::BadOption`] if an id occurs twice or is too large, or if the number of ids is not the number of
///   rows.
///
/// After an error, the dataset is unchanged.
pub fn upsert_table(
    store: &Store,
    job: &Job,
    name: &str,
    input: &Input,
    (column, ids): (Option<&str>, Option<&[u64]>),
) -> Result<Changed> {
    let count = ids.map_or(0, <[u64]>::len) as u64;
    let memory = job.budget().reserve(count * 64, "ids of vectors that are replaced")?;
    let mut sorted = ids.unwrap_or_default().to_vec();
    sorted.sort_unstable();
    if ids.is_some() {
        check_ids(&sorted)?;
    }
    let changed = retried(job, || {
        let change = Change::begin(store, job, name)?;
        let table = AddedTable::open(&change, input, column)?;
        match (table.layout.id.clone(), ids) {
            (Some(id), None) => upsert_by_column(change, &table, &id),
            (None, Some(ids)) => upsert_by_ids(change, &table, ids, &sorted),
            (id, _) => {
                let (found, expected) = match id {
                    Some(id) => {
                        ("given", format!("none: the column '{}' of the table has the ids", id.name()))
                    }
                    None => ("none", "the id of each row of the table".to_string()),
                };
                Err(Error::BadOption { option: "ids", found: found.to_string(), expected })
            }
        }
    })?;
    drop((sorted, memory));
    Ok(changed.listed(store, job))
}

/// Replaces the rows whose values in the column of ids the table has, and adds the other rows of the table.
fn upsert_by_column(mut change: Change<'_>, table: &AddedTable<'_>, id: &Field) -> Result<Changed> {
    let (mut replaced, mut writer) = (0, None);
    let live = live_rows(change.job, &change.vectors)?;
    let known = table.known_ids(change.info(), live.as_ref());
    find_known(change.job, (table.input, id), &known, &mut |known| {
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(change.append(REMOVED)?),
        };
        replaced += 1;
        Ok(writer.write(U64::new(known.known_row).as_bytes())?)
    })?;
    drop(live);
    if let Some(writer) = writer {
        change.builder.add(writer)?;
    }
    let (count, rounded) = table.append(&mut change)?;
    Ok(Changed { first_id: None, ..change.commit_added(count, replaced, rounded)? })
}

/// Replaces the vectors with the numbers `ids`, of which `sorted` is the sorted copy, or adds vectors with these
/// numbers.
fn upsert_by_ids(
    mut change: Change<'_>,
    table: &AddedTable<'_>,
    ids: &[u64],
    sorted: &[u64],
) -> Result<Changed> {
    let (replaced, runs) = {
        let known = RowsOfIds::read(change.job, &change.vectors)?;
        let mut rows: Vec<u64> = known.find(sorted).into_iter().flatten().collect();
        rows.sort_unstable();
        (rows, known.ids.runs_of(change.info().vectors, ids.iter().copied()))
    };
    let (count, rounded) = table.append(&mut change)?;
    if count != ids.len() as u64 {
        return Err(Error::BadOption {
            option: "ids",
            found: format!("{} ids", ids.len()),
            expected: format!("one for each of the {count} rows of {}", table.input.name()),
        });
    }
    change.append_removed(&replaced)?;
    change.append_runs(&runs)?;
    finish(change, sorted, &replaced, &runs, rounded)
}

/// A table whose columns are those of a dataset.
struct AddedTable<'a> {
    input: &'a Input,
    layout: Layout,
    /// The name of the dataset.
    name: String,
    /// The columns of the dataset before the change, and their types.
    former: Input,
    stored: SchemaRef,
}

impl<'a> AddedTable<'a> {
    /// Opens a table, and checks its columns and the memory of the change.
    fn open(change: &Change<'_>, input: &'a Input, column: Option<&str>) -> Result<AddedTable<'a>> {
        let (job, info) = (change.job, change.info());
        if change.vectors.content.is_some() {
            return Err(Error::BadDataset {
                name: info.name.clone(),
                what: "content",
                found: "images or documents".to_string(),
                expected: "vectors of a table, to add a table".to_string(),
            });
        }
        let former = columns_input(job, &change.vectors)?;
        let columns =
            TableColumns { vectors: column.map(String::from), id: id_column(job, &change.vectors)? };
        let layout = Layout::of(job, input, &columns)?;
        let stored = TableReader::describe(&former, &[], job.budget())?.schema;
        let table = AddedTable { input, layout, name: info.name.clone(), former, stored };
        table.check_columns()?;
        let threads = job.budget().threads();
        let sorting = if table.layout.id.is_some() { ids_bytes(threads) + live_bytes(info) } else { 0 };
        let memory = (append_bytes() + RowsOfIds::bytes(info)).max(sorting);
        job.budget().need(memory, || format!("adding a table to {}", info.name))?;
        Ok(table)
    }

    fn bad_column(&self, column: &str, found: impl ToString, expected: impl ToString) -> Error {
        Error::BadFile {
            file: self.input.name().to_string(),
            place: format!("column '{column}'"),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// Checks that the table has the columns of the dataset with their types, and no others.
    fn check_columns(&self) -> Result<()> {
        let mut fields = Vec::new();
        for stored in self.stored.fields() {
            let name = stored.name();
            match self.layout.kept.iter().find(|field| field.name() == name) {
                Some(field) => fields.push(field.clone()),
                None if name == ROW_COLUMN => fields.push(Field::new(name, DataType::UInt64, false)),
                None => {
                    let expected = format!("{}, as in {}", stored.data_type(), self.name);
                    return Err(self.bad_column(name, "no such column, or a nested one", expected));
                }
            }
        }
        let is_known = |field: &&Field| self.stored.index_of(field.name()).is_ok();
        if let Some(field) = self.layout.kept.iter().find(|field| !is_known(field)) {
            let found = format!("a column that {} does not have", self.name);
            let names: Vec<&str> = self.stored.fields().iter().map(|field| field.name().as_str()).collect();
            let names = names.into_iter().filter(|name| *name != ROW_COLUMN).collect::<Vec<_>>().join(", ");
            let expected = format!("only its columns: {names}");
            return Err(self.bad_column(field.name(), found, expected));
        }
        // The dataset has the types that Parquet makes of the types of a table.
        let written = stored_schema(self.input.name(), &Arc::new(Schema::new(fields.clone())))?;
        for ((field, written), stored) in fields.iter().zip(written.fields()).zip(self.stored.fields()) {
            if written.data_type() != stored.data_type() {
                let expected = format!("{}, as in {}", stored.data_type(), self.name);
                return Err(self.bad_column(field.name(), field.data_type(), expected));
            }
        }
        Ok(())
    }

    fn known_ids<'b>(&'b self, info: &VectorsInfo, live: Option<&'b RowSet>) -> KnownIds<'b> {
        KnownIds { input: &self.former, name: &self.name, rows: info.vectors, live }
    }

    /// Calls `each` with each id of the table that a vector of the dataset has.
    fn find_known(
        &self,
        change: &Change<'_>,
        id: &Field,
        each: &mut dyn FnMut(KnownId<'_>) -> Result<()>,
    ) -> Result<()> {
        let live = live_rows(change.job, &change.vectors)?;
        let known = self.known_ids(change.info(), live.as_ref());
        find_known(change.job, (self.input, id), &known, each)
    }

    /// Returns the error of an id that a vector of the dataset has.
    fn known(&self, known: &KnownId<'_>, id: &Field) -> Error {
        Error::BadFile {
            file: self.input.name().to_string(),
            place: format!("row {}, column '{}'", known.row, id.name()),
            found: format!("{:?}", String::from_utf8_lossy(known.id)),
            expected: format!("an id that no vector of {} has: `nearest upsert` replaces vectors", self.name),
        }
    }

    /// Appends the vectors and the columns of all rows. Returns the number of rows, and how many elements were rounded.
    fn append(&self, change: &mut Change<'_>) -> Result<(u64, u64)> {
        let (job, info) = (change.job, change.info().clone());
        let (element, column) = (self.layout.element, self.layout.vectors.name());
        let stored = self.stored.fields().iter().map(|field| field.name());
        let names = std::iter::once(column).chain(stored.filter(|name| *name != ROW_COLUMN));
        let names: Vec<String> = names.cloned().collect();
        let mut reader = TableReader::open_lists(self.input, &names, BATCH_ROWS, job.budget())?;
        let mut lists = Lists::new(self.input.name(), column, element);
        job.start_phase("adding", "vectors", reader.rows().unwrap_or(0));
        let Some(first) = reader.next_batch()? else { return Err(lists.bad(0, "no rows", "at least one")) };
        let dimensions = lists.dimensions(first.column(0))?;
        if (element.stored(), dimensions) != (info.element, info.dimensions) {
            let found = format!("{dimensions} {}", element.stored());
            let expected = format!("{} {}, as the vectors of {}", info.dimensions, info.element, self.name);
            return Err(lists.bad(0, found, expected));
        }
        let mut writer = change.builder.append(VECTORS, CHECK_BYTES, BUFFER_BYTES, BUFFERS)?;
        let kept = append_columns(job, &change.vectors, &mut change.builder)?;
        let mut kept = kept.expect("the dataset has columns, since they were opened");
        lists.copy(job, (reader, first), dimensions, &mut kept, &mut |bytes| Ok(writer.write(bytes)?))?;
        let count = kept.rows() - info.vectors;
        change.builder.add(writer)?;
        change.builder.add(kept.finish()?.0)?;
        Ok((count, lists.rounded))
    }
}

/// Returns the memory, in bytes, that is needed to append rows. The metadata of the columns takes more.
fn append_bytes() -> u64 {
    let vectors = (BUFFERS * BUFFER_BYTES + 2 * CHECK_BYTES + (64 << 10) + 2 * CHUNK_BYTES) as u64;
    let columns = 2 * (COLUMNS_BUFFER_BYTES + COLUMNS_CHECK_BYTES) as u64;
    vectors + ParquetStream::<DatasetFile>::MEMORY_BYTES + columns + 2 * APPEND_BYTES
}

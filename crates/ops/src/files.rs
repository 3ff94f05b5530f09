//! This module reads the metadata of tables on nodes. A table consists of files, and a file is divided into
//! shards.
//!
//! The bytes of a file are stored on nodes unchanged. A shard ends with a row group (Parquet) or a line (CSV, JSON
//! lines). A task contains the bytes that a node needs to read its shards: the footer of a Parquet file, or the
//! header line of a CSV file.

use std::{
    io::{Cursor, Read},
    ops::Range,
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_kernel::{Failure, Source};
use inshore_nodes::{
    CsvRecord, DistributedFile, Error as NodesError, HelpPiece, Nodes, Piece, RunOptions, read_from_nodes,
};
use inshore_stages::DriverError;
use inshore_store::{Context, Job, Reservation, format_bytes};
use inshore_tables::{
    Compression, Error as TableError, FilePart, Header, Input, PartBytes, TableMetadata, TableReader,
    row_groups, separator,
};
use serde::{Deserialize, Serialize};

/// The number of bytes at the end of a Parquet file that are read first.
const TAIL_BYTES: u64 = 64 << 10;
/// The number of bytes at the beginning of a text from which columns are inferred: the number of the first
/// attempt, and the maximum.
const HEAD_BYTES: u64 = 1 << 20;
const HEAD_BYTES_MAX: u64 = 16 << 20;
/// The number of rows of a text from which columns are inferred.
const HEAD_ROWS: usize = 1_000;
/// The maximum size in bytes of a Parquet footer that a task may contain.
const FOOTER_BYTES_MAX: u64 = 8 << 20;

/// The error type of functions that read files on nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading a file, on a node or locally, or writing the result failed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A node or the network failed.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// A job in stages failed.
    #[error(transparent)]
    Stages(#[from] inshore_stages::DriverError),
    /// Nodes cannot process the file.
    #[error("{name}: {what}")]
    Unfit {
        /// The name of the file.
        name: String,
        /// The reason, and a remedy.
        what: String,
    },
}

impl Error {
    /// Returns true if the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Table(error) => error.is_cancelled(),
            Error::Nodes(error) => error.is_cancelled(),
            Error::Stages(DriverError::Nodes(error)) => error.is_cancelled(),
            Error::Stages(DriverError::Store(error)) => error.is_cancelled(),
            Error::Stages(_) | Error::Unfit { .. } => false,
        }
    }

    pub(crate) fn unfit(name: &str, what: impl Into<String>) -> Error {
        Error::Unfit { name: name.to_string(), what: what.into() }
    }
}

impl From<inshore_store::Error> for Error {
    fn from(error: inshore_store::Error) -> Error {
        Error::Table(error.into())
    }
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        inshore_store::Error::from(error).into()
    }
}

#[cfg(feature = "sql")]
impl From<Error> for inshore_sql::Error {
    fn from(error: Error) -> inshore_sql::Error {
        match error {
            Error::Table(error) => error.into(),
            Error::Nodes(NodesError::Store(error))
            | Error::Stages(DriverError::Store(error) | DriverError::Nodes(NodesError::Store(error))) => {
                error.into()
            }
            Error::Nodes(error) => inshore_sql::Error::Nodes(error.to_string()),
            error @ Error::Stages(_) => inshore_sql::Error::Nodes(error.to_string()),
            unfit @ Error::Unfit { .. } => inshore_sql::Error::Query(unfit.to_string()),
        }
    }
}

/// Reads files on nodes through a client, with these options.
pub(crate) struct Asker<'a> {
    pub nodes: &'a Nodes,
    pub options: &'a RunOptions,
    pub context: &'a Context,
}

/// The files of a table, with their metadata.
#[derive(Debug)]
pub(crate) struct Files {
    pub wholes: Vec<DistributedFile>,
    pub texts: Vec<FileText>,
    pub known: TableMetadata,
}

/// The metadata that a node needs to read shards of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileText {
    name: String,
    ending: String,
    bytes: u64,
    /// The footer or header line of the file: its offset, and its bytes in base 64.
    along: Option<(u64, String)>,
}

impl FileText {
    /// Returns the name of the file for error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_parquet(&self) -> bool {
        self.ending == "parquet"
    }

    /// Returns the footer or header line of the file.
    ///
    /// # Errors
    /// Returns an error if the footer or the header line is not valid base 64.
    pub fn along(&self) -> Result<Option<FilePart>, Failure> {
        let Some((at, bytes)) = &self.along else { return Ok(None) };
        Ok(Some(FilePart { at: *at, bytes: PartBytes::Memory(Arc::from(BASE64.decode(bytes)?)) }))
    }

    /// Returns an input that consists of these parts of the file. The footer or header line must be the last part.
    pub fn input(&self, parts: Vec<FilePart>) -> Input {
        Input::of_parts(&self.name, &self.ending, self.bytes, parts)
    }
}

/// Returns the metadata of the file with the index `whole` in the request.
///
/// # Errors
/// Returns an error if the request has fewer files.
pub(crate) fn text_of(files: &[FileText], whole: u64) -> Result<&FileText, Failure> {
    let file = usize::try_from(whole).ok().and_then(|whole| files.get(whole));
    file.ok_or_else(|| "the request does not describe the file".into())
}

/// Returns the shard of a file that a source refers to. The shard is in the store of `job`.
///
/// # Errors
/// Returns an error if the source is not a part of a dataset.
pub(crate) fn piece_of(job: &Job, source: &Source) -> Result<FilePart, Failure> {
    let (file, range) = source.part().ok_or("a source is not a file of a dataset")?;
    let bytes = PartBytes::Stored(job.clone(), file.clone(), range.clone());
    Ok(FilePart { at: source.base().offset, bytes })
}

/// Reserves memory for `at_once` shards, each as large as the largest shard of these files.
///
/// # Errors
/// Returns an error if the shards need more than three quarters of the budget.
pub(crate) fn hold_pieces<'a>(
    job: &Context,
    wholes: impl Iterator<Item = &'a DistributedFile>,
    at_once: usize,
) -> Result<Reservation, Failure> {
    let bytes = wholes.flat_map(|whole| &whole.pieces).map(|piece| piece.bytes).max().unwrap_or(0);
    let all = bytes.saturating_mul(at_once as u64);
    if all > job.budget().memory_bytes() / 4 * 3 {
        let what = format!("the memory budget here is too small for a piece of {}", format_bytes(bytes));
        return Err(what.into());
    }
    Ok(job.budget().reserve(all, "pieces of a table")?)
}

/// Returns a fetched shard as an input, together with the footer or header line of its file. The needed ranges of
/// the shard are read into memory if `in_memory` is set. Ranges of Parquet are always read into memory, since
/// Parquet is not read sequentially.
pub(crate) fn taken(files: &[FileText], mut piece: HelpPiece, in_memory: bool) -> Result<Input, TableError> {
    let name = piece.title.clone();
    let unfit = |failure: Failure| TableError::Unsupported { file: name.clone(), what: failure.to_string() };
    let text = text_of(files, piece.whole).map_err(unfit)?;
    let along = text.along().map_err(unfit)?;
    if !in_memory && !text.is_parquet() {
        // The first shard begins with the header line. Each other shard gets a copy of the header line.
        let head = match along.filter(|_| piece.offset > 0) {
            Some(FilePart { bytes: PartBytes::Memory(bytes), .. }) => bytes,
            _ => Arc::default(),
        };
        return Ok(Input::stream(&text.name, &text.ending, Cursor::new(head).chain(piece)));
    }
    let mut parts = Vec::with_capacity(piece.ranges.len() + 1);
    for range in piece.ranges.clone() {
        let bytes = usize::try_from(range.end - range.start).expect("it fits the memory");
        let mut held: Arc<[u8]> = std::iter::repeat_n(0, bytes).collect();
        let filled = Arc::get_mut(&mut held).expect("nobody else has it");
        piece.read_exact(filled).map_err(|source| TableError::Io {
            file: name.clone(),
            what: "read it",
            source,
        })?;
        parts.push(FilePart { at: range.start, bytes: PartBytes::Memory(held) });
    }
    parts.extend(along);
    Ok(text.input(parts))
}

/// Converts an error of nodes to an error about the file `name`.
pub(crate) fn of_nodes(name: &str, error: NodesError) -> TableError {
    match error {
        NodesError::Store(error) => TableError::Store(error),
        error => TableError::Unsupported { file: name.to_string(), what: error.to_string() },
    }
}

impl Asker<'_> {
    /// Reads the metadata of the files of a table. Errors call the table `name`.
    ///
    /// # Errors
    /// Returns an error if nodes cannot read a file, or if the files have different columns.
    pub fn files(
        &self,
        name: &str,
        wholes: Vec<DistributedFile>,
        as_text: &[String],
        header: Header,
    ) -> Result<Files, Error> {
        let mut texts = Vec::with_capacity(wholes.len());
        let mut known: Option<TableMetadata> = None;
        for whole in &wholes {
            let (text, found) = self.file(whole, as_text, header)?;
            texts.push(text);
            known = Some(match known {
                None => found,
                Some(known) if known.schema == found.schema => {
                    let rows = known.rows.zip(found.rows).map(|(all, rows)| all + rows);
                    // The type of a column remains a guess only if no file has a value of this column in its first
                    // rows.
                    let mut unseen = known.unseen;
                    unseen.retain(|name| found.unseen.contains(name));
                    TableMetadata { rows, unseen, ..known }
                }
                Some(_) => {
                    return Err(Error::unfit(
                        &whole.title,
                        "its columns differ from those of the first file",
                    ));
                }
            });
        }
        let along: usize = texts.iter().filter_map(|text| Some(text.along.as_ref()?.1.len())).sum();
        if along as u64 > FOOTER_BYTES_MAX {
            let what = format!("its footers have {along} bytes together, more than a request can hold");
            return Err(Error::unfit(name, what));
        }
        let known = known.ok_or_else(|| Error::unfit(name, "it has no files"))?;
        Ok(Files { wholes, texts, known })
    }

    /// Reads a range of a file's bytes.
    ///
    /// # Errors
    /// Returns the errors of [`read_from_nodes`]. Missing bytes are an error, even if the options allow partial
    /// answers.
    pub fn read(&self, whole: &DistributedFile, range: Range<u64>) -> Result<Vec<u8>, NodesError> {
        let options = RunOptions { partial: false, ..self.options.clone() };
        read_from_nodes(self.nodes, self.context, whole, range, &options)
    }

    /// Reads the metadata of one file of a table.
    fn file(
        &self,
        whole: &DistributedFile,
        as_text: &[String],
        header: Header,
    ) -> Result<(FileText, TableMetadata), Error> {
        let (name, bytes) = (whole.title.clone(), whole.bytes());
        let ending = ending_of(whole);
        let read = |range| self.read(whole, range);
        let describe = |at: u64, bytes_read: &[u8]| -> Result<(Input, TableMetadata), Error> {
            let part = FilePart { at, bytes: PartBytes::Memory(bytes_read.into()) };
            let input = Input::of_parts(&name, &ending, bytes, vec![part]).with_header(header);
            let described = TableReader::describe(&input, as_text, self.context.budget())?;
            let path = String::new();
            let (schema, rows, unseen) = (described.schema, described.rows, described.unseen);
            Ok((input, TableMetadata { schema, rows, unseen, path }))
        };
        if ending == "parquet" {
            let mut tail = read(bytes.saturating_sub(TAIL_BYTES)..bytes)?;
            let footer_bytes = footer_bytes(&tail).filter(|&footer| footer <= bytes);
            let footer_bytes =
                footer_bytes.ok_or_else(|| Error::unfit(&name, "this is not a Parquet file"))?;
            if footer_bytes > FOOTER_BYTES_MAX {
                let what = format!("its footer has {footer_bytes} bytes, more than a request can hold");
                return Err(Error::unfit(&name, what));
            }
            let start = bytes - footer_bytes;
            let footer = match tail.len().checked_sub(footer_bytes as usize) {
                Some(before) => tail.split_off(before),
                None => read(start..bytes)?,
            };
            let (input, known) = describe(start, &footer)?;
            check_groups(self.context, whole, &input)?;
            let along = Some((start, BASE64.encode(footer)));
            return Ok((FileText { name, ending, bytes, along }, known));
        }
        if ending == "arrow" {
            return Err(Error::unfit(&name, "nodes cannot read Arrow files: put a Parquet file"));
        }
        if let Some(record_bytes) = whole.record_bytes {
            return Err(NodesError::NoLines { name, record_bytes }.into());
        }
        let separator = separator(&ending);
        if separator.is_some() && header == Header::Absent {
            let what = "nodes need names of columns: put the file with a line of names";
            return Err(Error::unfit(&name, what));
        }
        let (mut head, mut ends) = (Vec::new(), RecordEnds::new(separator));
        let mut wanted = HEAD_BYTES.min(bytes);
        loop {
            head.extend(read(head.len() as u64..wanted)?);
            ends.go_on(&head);
            // The first record of a CSV file holds the names of the columns, and is not one of the `HEAD_ROWS`.
            if ends.count > HEAD_ROWS || wanted == bytes || wanted >= HEAD_BYTES_MAX {
                break;
            }
            wanted = (wanted * 4).min(bytes).min(HEAD_BYTES_MAX);
        }
        check_plain(&name, &head)?;
        if (head.len() as u64) < bytes {
            if ends.count == 0 {
                let what = format!("no row ends in its first {}", format_bytes(head.len() as u64));
                return Err(Error::unfit(&name, what));
            }
            head.truncate(ends.last);
        }
        let (_, known) = describe(0, &head)?;
        let along = separator.map(|_| (0, BASE64.encode(&head[..ends.first.unwrap_or(head.len())])));
        Ok((FileText { name, ending, bytes, along }, known))
    }
}

/// Refuses a file whose first bytes are those of a compression format.
///
/// # Errors
/// Returns [`Error::Unfit`] if nodes cannot read the file.
pub(crate) fn check_plain(name: &str, head: &[u8]) -> Result<(), Error> {
    match Compression::of_head(head) {
        None => Ok(()),
        Some(format) => Err(Error::unfit(
            name,
            format!(
                "it is compressed as a whole, so no node can read its piece: load it decompressed ({format})"
            ),
        )),
    }
}

/// Returns the file name extension that determines the format: that of the dataset's name, or else of the file's
/// name.
pub(crate) fn ending_of(whole: &DistributedFile) -> String {
    let of = |name: &str| Input::new(name).extension();
    let called = whole.file.as_deref().filter(|_| of(&whole.dataset).is_empty());
    of(called.unwrap_or(&whole.dataset))
}

/// Finds the end offsets of the first and last complete record at the beginning of a text, and counts the records.
/// The count equals that of a local reader, so that both infer the columns from the same rows. The text is cut
/// after the last complete record.
struct RecordEnds {
    /// The parser that finds the ends of CSV records. The value is `None` if each line is a record.
    csv: Option<CsvRecord>,
    /// The number of bytes that were parsed.
    seen: usize,
    count: usize,
    first: Option<usize>,
    last: usize,
}

impl RecordEnds {
    fn new(separator: Option<u8>) -> RecordEnds {
        RecordEnds { csv: separator.map(CsvRecord::new), seen: 0, count: 0, first: None, last: 0 }
    }

    /// Parses the bytes of `head` that the previous call has not parsed.
    fn go_on(&mut self, head: &[u8]) {
        loop {
            let rest = &head[self.seen..];
            let end = match &mut self.csv {
                Some(record) => record.end(rest, 0),
                None => rest.iter().position(|&byte| byte == b'\n').map(|feed| feed + 1),
            };
            let Some(end) = end else { break };
            self.seen += end;
            self.count += 1;
            self.first = self.first.or(Some(self.seen));
            self.last = self.seen;
        }
        self.seen = head.len();
    }
}

/// Refuses a file if one of its row groups does not lie within a single shard.
fn check_groups(job: &Context, whole: &DistributedFile, input: &Input) -> Result<(), Error> {
    let is_whole = |group: &Range<u64>| {
        let has = |piece: &Piece| piece.offset <= group.start && group.end <= piece.offset + piece.bytes;
        whole.pieces.iter().any(has)
    };
    match row_groups(input, job.budget())?.iter().all(is_whole) {
        true => Ok(()),
        false => Err(Error::unfit(
            &whole.title,
            "its pieces do not end with row groups: load it again with store put, from a file that ends with .parquet",
        )),
    }
}

/// Returns the length of a Parquet footer from the file's last bytes. The length includes the 8 bytes after the
/// footer, which hold the footer's length and a magic number.
fn footer_bytes(tail: &[u8]) -> Option<u64> {
    let (rest, magic) = tail.split_last_chunk::<4>()?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    (magic == b"PAR1").then(|| u64::from(u32::from_le_bytes(*length)) + 8)
}

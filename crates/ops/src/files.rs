//! Tables that lie on nodes, file by file: what a client asks about them, and what goes along with a task, so that a node can read
//! its pieces.
//!
//! A file keeps its bytes as it is spread; its pieces end with row groups (Parquet) or lines (CSV, JSON lines). What a node needs
//! beside its pieces travels with the task: the footer of Parquet, the line of CSV with the names of columns.

use std::{
    io::{Cursor, Read},
    ops::Range,
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_neardata::{
    Failure, Source,
    nodes::{CsvRecord, Error as NodesError, HelpPiece, Nodes, Piece, RunOptions, Whole, read_from_nodes},
};
use inshore_store::{Context, Job, Reservation, format_bytes};
use inshore_tables::{
    Compression, Error as TableError, FilePart, Header, Input, Known, PartBytes, TableReader, row_groups,
    separator,
};
use serde::{Deserialize, Serialize};

/// Bytes of a Parquet file's end that are read at first.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of the beginning of a text whose rows are looked at, at first and at most.
const HEAD_BYTES: u64 = 1 << 20;
const HEAD_BYTES_MAX: u64 = 16 << 20;
/// Rows of a text that are looked at.
const HEAD_ROWS: usize = 1_000;
/// The longest footer of Parquet that travels with a task.
const FOOTER_BYTES_MAX: u64 = 8 << 20;

/// Errors of files on nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file here or there cannot be read, or the result not be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// What nodes, or the way to them, failed with.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// A file that cannot be worked on where it lies.
    #[error("{name}: {what}")]
    Unfit {
        /// The file.
        name: String,
        /// Why, and what to do.
        what: String,
    },
}

impl Error {
    /// Whether somebody asked the job to stop.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Table(error) => error.is_cancelled(),
            Error::Nodes(error) => error.is_cancelled(),
            Error::Unfit { .. } => false,
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
            Error::Nodes(NodesError::Store(error)) => error.into(),
            Error::Nodes(error) => inshore_sql::Error::Elsewhere(error.to_string()),
            unfit @ Error::Unfit { .. } => inshore_sql::Error::Query(unfit.to_string()),
        }
    }
}

/// What nodes are asked with.
pub(crate) struct Asker<'a> {
    pub nodes: &'a Nodes,
    pub options: &'a RunOptions,
    pub context: &'a Context,
}

/// The files of a table.
#[derive(Debug)]
pub(crate) struct Files {
    pub wholes: Vec<Whole>,
    pub texts: Vec<FileText>,
    pub known: Known,
}

/// What a node has to know of a file of which it has pieces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileText {
    name: String,
    ending: String,
    bytes: u64,
    /// What goes along: where it is in the file, and the bytes.
    along: Option<(u64, String)>,
}

impl FileText {
    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_parquet(&self) -> bool {
        self.ending == "parquet"
    }

    /// What goes along with pieces of it.
    ///
    /// # Errors
    /// Where the request has something else there.
    pub fn along(&self) -> Result<Option<FilePart>, Failure> {
        let Some((at, bytes)) = &self.along else { return Ok(None) };
        Ok(Some(FilePart { at: *at, bytes: PartBytes::Memory(Arc::from(BASE64.decode(bytes)?)) }))
    }

    /// The file on a node that has these parts of it; what goes along comes last.
    pub fn input(&self, parts: Vec<FilePart>) -> Input {
        Input::of_parts(&self.name, &self.ending, self.bytes, parts)
    }
}

/// The file that a request numbers so.
///
/// # Errors
/// Where it tells of none.
pub(crate) fn text_of(files: &[FileText], whole: u64) -> Result<&FileText, Failure> {
    let file = usize::try_from(whole).ok().and_then(|whole| files.get(whole));
    file.ok_or_else(|| "a file that the request does not tell of".into())
}

/// The piece of a file that a source of a task is, on the store of `job`.
///
/// # Errors
/// Where it is none.
pub(crate) fn piece_of(job: &Job, source: &Source) -> Result<FilePart, Failure> {
    let (file, range) = source.part().ok_or("a source that is no file of a dataset")?;
    let bytes = PartBytes::Stored(job.clone(), file.clone(), range.clone());
    Ok(FilePart { at: source.base().offset, bytes })
}

/// Reserves memory for so many pieces at once of these files.
///
/// # Errors
/// Where three quarters of the budget have no room for them.
pub(crate) fn hold_pieces<'a>(
    job: &Context,
    wholes: impl Iterator<Item = &'a Whole>,
    at_once: usize,
) -> Result<Reservation, Failure> {
    let bytes = wholes.flat_map(|whole| &whole.pieces).map(|piece| piece.bytes).max().unwrap_or(0);
    let all = bytes.saturating_mul(at_once as u64);
    if all > job.budget().memory_bytes() / 4 * 3 {
        let what = format!("a piece has {}, and the memory here no room for it", format_bytes(bytes));
        return Err(what.into());
    }
    Ok(job.budget().reserve(all, "pieces of a table")?)
}

/// A piece that this machine takes over, with what goes along; all that is read of it in memory, where that is wanted or it cannot be read from start
/// to end.
pub(crate) fn taken(files: &[FileText], mut piece: HelpPiece, in_memory: bool) -> Result<Input, TableError> {
    let name = piece.title.clone();
    let unfit = |failure: Failure| TableError::Unsupported { file: name.clone(), what: failure.to_string() };
    let text = text_of(files, piece.whole).map_err(unfit)?;
    let along = text.along().map_err(unfit)?;
    if !in_memory && !text.is_parquet() {
        // The first piece begins with what goes along with the others.
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

/// An error of nodes as one of a file.
pub(crate) fn of_nodes(name: &str, error: NodesError) -> TableError {
    match error {
        NodesError::Store(error) => TableError::Store(error),
        error => TableError::Unsupported { file: name.to_string(), what: error.to_string() },
    }
}

impl Asker<'_> {
    /// What has to be known of the files of a table, which errors call `name`.
    ///
    /// # Errors
    /// Where they cannot be read on nodes, or have not the same columns.
    pub fn files(
        &self,
        name: &str,
        wholes: Vec<Whole>,
        as_text: &[String],
        header: Header,
    ) -> Result<Files, Error> {
        let mut texts = Vec::with_capacity(wholes.len());
        let mut known: Option<Known> = None;
        for whole in &wholes {
            let (text, found) = self.file(whole, as_text, header)?;
            texts.push(text);
            known = Some(match known {
                None => found,
                Some(known) if known.schema == found.schema => {
                    let rows = known.rows.zip(found.rows).map(|(all, rows)| all + rows);
                    // Text in one file is text in all.
                    let mut unseen = known.unseen;
                    unseen.retain(|name| found.unseen.contains(name));
                    Known { rows, unseen, ..known }
                }
                Some(_) => {
                    return Err(Error::unfit(&whole.title, "its columns are not those of the first file"));
                }
            });
        }
        let along: usize = texts.iter().filter_map(|text| Some(text.along.as_ref()?.1.len())).sum();
        if along as u64 > FOOTER_BYTES_MAX {
            let what = format!("its footers have {along} bytes together, more than can go along with a task");
            return Err(Error::unfit(name, what));
        }
        let known = known.ok_or_else(|| Error::unfit(name, "there is no file in it"))?;
        Ok(Files { wholes, texts, known })
    }

    /// The bytes of a part of a file.
    ///
    /// # Errors
    /// As [`read_from_nodes`]; a partial answer never does.
    pub fn read(&self, whole: &Whole, range: Range<u64>) -> Result<Vec<u8>, NodesError> {
        let options = RunOptions { partial: false, ..self.options.clone() };
        read_from_nodes(self.nodes, self.context, whole, range, &options)
    }

    /// What has to be known of a file.
    fn file(&self, whole: &Whole, as_text: &[String], header: Header) -> Result<(FileText, Known), Error> {
        let (name, bytes) = (whole.title.clone(), whole.bytes());
        let ending = ending_of(whole);
        let read = |range| self.read(whole, range);
        let describe = |at: u64, bytes_read: &[u8]| -> Result<(Input, Known), Error> {
            let part = FilePart { at, bytes: PartBytes::Memory(bytes_read.into()) };
            let input = Input::of_parts(&name, &ending, bytes, vec![part]).with_header(header);
            let described = TableReader::describe(&input, as_text, self.context.budget())?;
            let path = String::new();
            let (schema, rows, unseen) = (described.schema, described.rows, described.unseen);
            Ok((input, Known { schema, rows, unseen, path }))
        };
        if ending == "parquet" {
            let mut tail = read(bytes.saturating_sub(TAIL_BYTES)..bytes)?;
            let footer_bytes = footer_bytes(&tail).filter(|&footer| footer <= bytes);
            let footer_bytes = footer_bytes.ok_or_else(|| Error::unfit(&name, "this is no Parquet file"))?;
            if footer_bytes > FOOTER_BYTES_MAX {
                let what = format!("its footer has {footer_bytes} bytes, more than can go along with a task");
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
            return Err(Error::unfit(&name, "Arrow files are not read on nodes: Parquet is"));
        }
        if let Some(record_bytes) = whole.record_bytes {
            return Err(NodesError::NoLines { name, record_bytes }.into());
        }
        let separator = separator(&ending);
        if separator.is_some() && header == Header::Absent {
            let what = "columns without names are not read on nodes: load it with a line of names";
            return Err(Error::unfit(&name, what));
        }
        let (mut head, mut ends) = (Vec::new(), RecordEnds::new(separator));
        let mut wanted = HEAD_BYTES.min(bytes);
        loop {
            head.extend(read(head.len() as u64..wanted)?);
            ends.go_on(&head);
            // The first of CSV has the names of columns.
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

/// Refuses a file that begins as a compressed one does.
///
/// # Errors
/// [`Error::Unfit`].
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

/// How the name ends that says of what format a file is: that of its dataset, or its own.
pub(crate) fn ending_of(whole: &Whole) -> String {
    let of = |name: &str| Input::new(name).extension();
    let called = whole.file.as_deref().filter(|_| of(&whole.dataset).is_empty());
    of(called.unwrap_or(&whole.dataset))
}

/// Where the first and the last record end in the beginning of a text, and how many do. What is counted are records, as a reader
/// here counts them, so that as many are looked at there; and cut is behind one.
struct RecordEnds {
    /// Of CSV; a line is a record otherwise.
    csv: Option<CsvRecord>,
    /// Bytes that were looked at.
    seen: usize,
    count: usize,
    first: Option<usize>,
    last: usize,
}

impl RecordEnds {
    fn new(separator: Option<u8>) -> RecordEnds {
        RecordEnds { csv: separator.map(CsvRecord::new), seen: 0, count: 0, first: None, last: 0 }
    }

    /// Looks at what has come since.
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

/// Refuses a file with a row group that no node has whole.
fn check_groups(job: &Context, whole: &Whole, input: &Input) -> Result<(), Error> {
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

/// The length of a Parquet file's footer, with its frame, by the file's end.
fn footer_bytes(tail: &[u8]) -> Option<u64> {
    let (rest, magic) = tail.split_last_chunk::<4>()?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    (magic == b"PAR1").then(|| u64::from(u32::from_le_bytes(*length)) + 8)
}

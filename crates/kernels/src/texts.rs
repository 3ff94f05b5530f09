//! Sources of text: files as they are, unpacked, or turned into UTF-8.

use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use bzip2::read::MultiBzDecoder;
use encoding_rs_io::DecodeReaderBytesBuilder;
use inshore_neardata::{Opened, Source};
use inshore_store::{Job, NamedFile, PlainFile, Reservation};
use inshore_tables::Input;

use crate::{Error, Format, lz4_frames::Lz4Frames};

/// How a file becomes text.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOptions {
    /// Unpacks gzip, bzip2, zstd and lz4, known by their first bytes.
    pub unpack: bool,
    /// Takes files for UTF-8 even where a mark at their beginning says UTF-16.
    pub keep_encoding: bool,
}

/// A file, or standard input for `-`, as text: unpacked if asked for, from UTF-16 where its mark says so, and else as it
/// is. A file that is neither is read by all workers, anything else by one.
pub fn text_source(path: impl Into<PathBuf>, options: TextOptions) -> Source {
    let path = path.into();
    let name = if path == Path::new("-") { "<stdin>".to_string() } else { path.display().to_string() };
    Source::new(name, move |job| open(&path, options, job))
}

fn open(path: &Path, options: TextOptions, job: &Job) -> inshore_neardata::Result<Opened> {
    let stream = || text_reader(&Input::new(path), options, job).map(Opened::Stream);
    if path == Path::new("-") {
        return stream();
    }
    let fail =
        |source| inshore_store::Error::Io { what: "open".to_string(), path: path.to_path_buf(), source };
    let file = File::open(path).map_err(fail)?;
    let found = file.metadata().map_err(fail)?;
    if found.is_dir() {
        return Err(fail(io::ErrorKind::IsADirectory.into()).into());
    }
    if !found.is_file() || found.len() == 0 {
        return stream();
    }
    let mut head = [0; HEAD_BYTES];
    let read = file.read_at(&mut head, 0).map_err(fail)?;
    let is_marked = !options.keep_encoding && has_mark(&head[..read]);
    if is_marked || options.unpack && packed_with(&head[..read]).is_some() {
        return stream();
    }
    Ok(Opened::File(PlainFile::of(file, path)?))
}

/// The dataset that a path names: `store:NAME`, or `store:NAME/FILE`.
pub fn dataset_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix("store:")
}

/// The files of the dataset `named` (`NAME` or `NAME/FILE`) of the job's store, each with what it is called.
///
/// # Errors
/// [`inshore_store::Error::NotFound`].
pub fn stored_sources(job: &Job, named: &str) -> inshore_store::Result<Vec<(PathBuf, Source)>> {
    let files = job.store().named_files(named)?;
    let source = |found: NamedFile| {
        let title = found.title();
        (PathBuf::from(&title), Source::dataset(found.file).called(title))
    };
    Ok(files.into_iter().map(source).collect())
}

/// Files, unpacked where they are packed, and datasets of the job's store, in this order of paths.
///
/// # Errors
/// As [`stored_sources`]. Files are opened when it is their turn.
pub fn text_sources(job: &Job, paths: &[PathBuf]) -> inshore_store::Result<Vec<Source>> {
    let mut all = Vec::new();
    for path in paths {
        match dataset_name(path) {
            Some(named) => all.extend(stored_sources(job, named)?.into_iter().map(|(_, source)| source)),
            None => all.push(text_source(path, TextOptions { unpack: true, ..TextOptions::default() })),
        }
    }
    Ok(all)
}

/// Files and datasets of the job's store as tables, in this order of paths.
///
/// # Errors
/// [`inshore_store::Error::NotFound`] for a dataset. Files are opened when it is their turn.
pub fn table_inputs(job: &Job, paths: &[PathBuf]) -> inshore_tables::Result<Vec<Input>> {
    let mut all = Vec::new();
    for path in paths {
        match dataset_name(path) {
            Some(named) => all.extend(Input::stored(job, named)?),
            None => all.push(Input::new(path)),
        }
    }
    Ok(all)
}

const UTF8_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Whether text begins with a mark of its encoding.
fn has_mark(head: &[u8]) -> bool {
    head.starts_with(&UTF8_MARK) || has_utf16_mark(head)
}

fn has_utf16_mark(head: &[u8]) -> bool {
    head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff])
}

/// Bytes by which it is known what a file is packed with.
const HEAD_BYTES: usize = 10;
/// What the blocks of bzip2 begin with, and the end where there is none.
const BZIP2_BLOCKS: [[u8; 6]; 2] =
    [[0x31, 0x41, 0x59, 0x26, 0x53, 0x59], [0x17, 0x72, 0x45, 0x38, 0x50, 0x90]];

/// What a file that begins so is packed with, by its first 10 bytes. A text may begin as the header of bzip2 does, but not as that
/// and a block.
pub fn packed_with(head: &[u8]) -> Option<Format> {
    let is_block = |head: &[u8]| BZIP2_BLOCKS.iter().any(|block| head.get(4..HEAD_BYTES) == Some(block));
    Format::of_head(head).filter(|&format| format != Format::Bzip2 || is_block(head))
}

/// The text of an input, from its beginning to its end: unpacked if asked for and decoded, as its first bytes say.
///
/// # Errors
/// What cannot be opened or read; a budget without room for what unpacking takes.
pub fn text_reader(
    input: &Input,
    options: TextOptions,
    job: &Job,
) -> inshore_neardata::Result<Box<dyn Read + Send>> {
    let input = input.clone().stopped_by(job.cancel());
    let opened = |error: inshore_tables::Error| match error {
        inshore_tables::Error::Store(error) => inshore_neardata::Error::Store(error),
        error => inshore_neardata::Error::Stream(Box::new(error)),
    };
    let failed = |error| inshore_neardata::Error::from_read(input.name(), error);
    let bytes: Box<dyn Read + Send> = match options.unpack {
        false => Box::new(input.open_as_is().map_err(opened)?),
        true => {
            let bytes = input.open(job.budget()).map_err(opened)?;
            match bytes.is_unpacked() {
                true => Box::new(bytes),
                false => unpacked(input.name(), bytes, job)?,
            }
        }
    };
    if options.keep_encoding {
        return Ok(bytes);
    }
    let (head, mut whole) = peeked(bytes, UTF8_MARK.len()).map_err(failed)?;
    if head == UTF8_MARK {
        whole.read_exact(&mut [0; UTF8_MARK.len()]).map_err(failed)?;
    }
    Ok(match has_utf16_mark(&head) {
        true => Box::new(DecodeReaderBytesBuilder::new().build(whole)),
        false => Box::new(whole),
    })
}

/// What is packed as bzip2 or lz4, unpacked; anything else as it is.
fn unpacked(
    name: &str,
    bytes: impl Read + Send + 'static,
    job: &Job,
) -> inshore_neardata::Result<Box<dyn Read + Send>> {
    let failed = |error| inshore_neardata::Error::from_read(name, error);
    let (head, whole) = peeked(bytes, HEAD_BYTES).map_err(failed)?;
    let memory = |bytes| job.budget().reserve(bytes, "what a file is unpacked with");
    let name = name.to_string();
    Ok(match packed_with(&head) {
        Some(Format::Bzip2) => {
            let (memory, reader) = (memory(BZIP2_BYTES)?, MultiBzDecoder::new(BufReader::new(whole)));
            Box::new(Unpacked { reader, name, format: "bzip2", _memory: memory })
        }
        Some(Format::Lz4) => {
            let (memory, reader) = (memory(LZ4_BYTES)?, Lz4Frames::new(BufReader::new(whole)));
            Box::new(Unpacked { reader, name, format: "lz4", _memory: memory })
        }
        _ => Box::new(whole),
    })
}

/// A block of 900 KB as numbers of 32 bits, and tables.
const BZIP2_BYTES: u64 = 4 << 20;

/// A block packed and two of them unpacked, of the largest kind: what frames follow the first is not known.
const LZ4_BYTES: u64 = 3 * (4 << 20) + (128 << 10);

/// Bytes that are unpacked as they are read, whose errors name the file.
struct Unpacked<R> {
    reader: R,
    name: String,
    format: &'static str,
    _memory: Reservation,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.reader.read(out).map_err(|error| {
            let Unpacked { name, format, .. } = self;
            let is_named = error.get_ref().is_some_and(|inner| inner.is::<inshore_tables::Error>());
            let what = match error.kind() {
                _ if is_named || error.raw_os_error().is_some() => return error,
                io::ErrorKind::Interrupted => return error,
                io::ErrorKind::UnexpectedEof => format!("truncated: the {format} data ends in the middle"),
                _ => format!("damaged {format} data: {error}"),
            };
            io::Error::other(Error::Damaged { name: name.clone(), what })
        })
    }
}

type Whole<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// The first bytes of what is read, and all of it.
fn peeked<R: Read>(mut bytes: R, count: usize) -> io::Result<(Vec<u8>, Whole<R>)> {
    let mut head = Vec::with_capacity(count);
    bytes.by_ref().take(count as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(bytes)))
}

//! This module opens sources of text. Compressed files are decompressed, and UTF-16 is converted to UTF-8.

use std::{
    fs::File,
    io::{self, Cursor, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use encoding_rs_io::DecodeReaderBytesBuilder;
use inshore_kernel::{Error as ReadError, Failure, OpenedSource, Source, TaskSource};
use inshore_store::{Context, Job, NamedFile, PlainFile, file_bytes};
use inshore_tables::{Compression, Input};

/// The options for reading a file as text.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOptions {
    /// Decompresses gzip, bzip2, zstd and lz4 files, which are recognized by their first bytes. Files in other
    /// compression formats are errors.
    pub unpack: bool,
    /// Reads archives (zip, 7z, rar) as plain bytes. Without this option, `unpack` refuses archives. The option is for
    /// files that a walk through folders found, since users seldom want to read the
    /// archives among such files.
    pub keep_archives: bool,
    /// Reads files as UTF-8 even if a byte order mark indicates UTF-16.
    pub keep_encoding: bool,
}

impl TextOptions {
    /// Tells whether a file that begins with `head` must be decompressed or refused.
    fn unpacks(&self, head: &[u8]) -> bool {
        let is_meant = |format: Compression| !(self.keep_archives && format.is_archive());
        self.unpack && Compression::of_head(head).is_some_and(is_meant)
    }
}

/// Opens a file, or standard input for `-`, as text. The file is decompressed if the options ask for it, and converted
/// from UTF-16 if it has a byte order mark of UTF-16. A file that needs no conversion is read by all workers in
/// parallel. Any other source is read by one worker.
pub fn text_source(path: impl Into<PathBuf>, options: TextOptions) -> Source {
    let path = path.into();
    let name = if path == Path::new("-") { "<stdin>".to_string() } else { path.display().to_string() };
    Source::new(name, move |context| open(&path, options, context))
}

fn open(path: &Path, options: TextOptions, context: &Context) -> inshore_kernel::Result<OpenedSource> {
    let stream = || text_reader(&Input::new(path), options, context).map(OpenedSource::Stream);
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
    if file_bytes(&file).map_err(fail)?.is_none_or(|bytes| bytes == 0) {
        return stream();
    }
    let mut head = [0; Compression::HEAD_BYTES];
    let read = file.read_at(&mut head, 0).map_err(fail)?;
    let is_marked = !options.keep_encoding && has_mark(&head[..read]);
    if is_marked || options.unpacks(&head[..read]) {
        return stream();
    }
    Ok(OpenedSource::File(PlainFile::of(file, path)?))
}

/// Returns the dataset that a path names: `store:NAME`, or `store:NAME/FILE`.
pub fn dataset_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix("store:")
}

/// Returns the files of the dataset `named` (`NAME` or `NAME/FILE`) in the job's store, each with its name for
/// messages. If `options` asks for decompression, files in a compression format are decompressed. All other files are
/// read unchanged. UTF-16 is not converted.
///
/// # Errors
/// Returns [`inshore_store::Error::NotFound`] if the store has no such dataset or file.
pub fn stored_sources(
    job: &Job,
    named: &str,
    options: TextOptions,
) -> inshore_store::Result<Vec<(PathBuf, Source)>> {
    let files = job.store().named_files(named)?;
    let source = |found: NamedFile| {
        let title = found.title();
        let source = match options.unpack {
            false => Source::dataset(job, found.file).called(&title),
            true => {
                let job = job.clone();
                Source::new(&title, move |context| open_stored(found, job.within(context.budget().clone())))
            }
        };
        (PathBuf::from(title), source)
    };
    Ok(files.into_iter().map(source).collect())
}

/// Opens a file of a dataset, and decompresses the file if it is compressed.
fn open_stored(found: NamedFile, job: Job) -> inshore_kernel::Result<OpenedSource> {
    let file = found.file.clone();
    let input = Input::of_stored(&job, found);
    let options = TextOptions { unpack: true, keep_encoding: true, ..TextOptions::default() };
    if options.unpacks(&head_of(&input)?) {
        return text_reader(&input, options, &job).map(OpenedSource::Stream);
    }
    let all = 0..file.len();
    Ok(OpenedSource::Dataset(job, file, all))
}

/// Reads the first bytes of an input that can be opened again.
fn head_of(input: &Input) -> inshore_kernel::Result<Vec<u8>> {
    let mut head = vec![0; Compression::HEAD_BYTES];
    let filled = input.open_as_is().and_then(|mut bytes| bytes.fill(&mut head)).map_err(opened)?;
    head.truncate(filled);
    Ok(head)
}

/// Returns the source of a shard, or a source that fails with the reason why the shard could not be opened.
pub(crate) fn source_of_task(source: Result<TaskSource, Failure>) -> Source {
    match source {
        Ok(source) => source.source,
        Err(failure) => Source::new("a piece", |_| Err(ReadError::Stream(failure))),
    }
}

/// Returns the job in whose store the dataset `path` is searched, or an error if there is no job.
fn with_store<'a>(job: Option<&'a Job>, path: &Path) -> inshore_store::Result<&'a Job> {
    job.ok_or_else(|| inshore_store::Error::NoStore { path: path.to_path_buf() })
}

/// Opens files, and datasets of the job's store, in the order of `paths`. Compressed files are decompressed.
///
/// # Errors
/// - Returns the errors of [`stored_sources`].
/// - Returns [`inshore_store::Error::NoStore`] if a path names a dataset and `job` is `None`.
///
/// The function opens no file, so it does not report files that cannot be opened.
pub fn text_sources(job: Option<&Job>, paths: &[PathBuf]) -> inshore_store::Result<Vec<Source>> {
    let options = TextOptions { unpack: true, ..TextOptions::default() };
    let mut all = Vec::new();
    for path in paths {
        match dataset_name(path) {
            Some(named) => {
                let stored = stored_sources(with_store(job, path)?, named, options)?;
                all.extend(stored.into_iter().map(|(_, source)| source));
            }
            None => all.push(text_source(path, options)),
        }
    }
    Ok(all)
}

/// Returns files, and datasets of the job's store, as inputs of tables, in the order of `paths`.
///
/// # Errors
/// - Returns [`inshore_store::Error::NotFound`] if the store has no dataset of the given name.
/// - Returns [`inshore_store::Error::NoStore`] if a path names a dataset and `job` is `None`.
///
/// The function opens no file, so it does not report files that cannot be opened.
pub fn table_inputs(job: Option<&Job>, paths: &[PathBuf]) -> inshore_tables::Result<Vec<Input>> {
    let mut all = Vec::new();
    for path in paths {
        match dataset_name(path) {
            Some(named) => all.extend(Input::stored(with_store(job, path)?, named)?),
            None => all.push(Input::new(path)),
        }
    }
    Ok(all)
}

const UTF8_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Tells whether text begins with a byte order mark.
fn has_mark(head: &[u8]) -> bool {
    head.starts_with(&UTF8_MARK) || has_utf16_mark(head)
}

fn has_utf16_mark(head: &[u8]) -> bool {
    head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff])
}

/// Reads the text of an input from beginning to end. The first bytes of the input determine its encoding, and, if
/// `options` asks for decompression, its compression format.
///
/// # Errors
/// - Returns [`inshore_kernel::Error::Stream`] if the input cannot be opened, or if its compression format is not
///   supported.
/// - Returns [`inshore_kernel::Error::Store`] if the budget has too little memory for decompression.
///
/// The reader that the function returns reports later read errors.
pub fn text_reader(
    input: &Input,
    options: TextOptions,
    context: &Context,
) -> inshore_kernel::Result<Box<dyn Read + Send>> {
    let input = input.clone().stopped_by(context.cancel());
    let failed = |error| inshore_kernel::Error::from_read(input.name(), error);
    // The first bytes are read separately only if archives are read as plain bytes. `keep_archives` is set only for
    // files that a walk found, and these files can be opened twice.
    let unpacks = options.unpack && (!options.keep_archives || options.unpacks(&head_of(&input)?));
    let bytes = match unpacks {
        false => input.open_as_is().map_err(opened)?,
        // Decompression takes memory from the budget, since each worker may decompress a file.
        true => input.open_counted(context.budget()).map_err(opened)?,
    };
    if options.keep_encoding {
        return Ok(Box::new(bytes));
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

fn opened(error: inshore_tables::Error) -> inshore_kernel::Error {
    match error {
        inshore_tables::Error::Store(error) => inshore_kernel::Error::Store(error),
        error => inshore_kernel::Error::Stream(Box::new(error)),
    }
}

type PeekedReader<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// Reads the first `count` bytes. Returns them, and a reader of all bytes including the first.
fn peeked<R: Read>(mut bytes: R, count: usize) -> io::Result<(Vec<u8>, PeekedReader<R>)> {
    let mut head = Vec::with_capacity(count);
    bytes.by_ref().take(count as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(bytes)))
}

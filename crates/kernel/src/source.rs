//! Defines sources: the files, datasets and streams from which workers read blocks.

use std::{fmt, fs::File, io::Read, ops::Range, path::PathBuf};

use inshore_store::{CheckedFile, Context, Job, PlainFile, file_bytes};

use crate::{Error, Result};

/// The kind of datasets whose files are shards of larger files. The remaining shards of these larger files are on other
/// nodes.
pub const SPREAD: &str = "spread";

/// The name of the file, in a dataset of kind [`SPREAD`], that contains the locations of all shards.
pub const MAP: &str = "map";

/// A source that can be read in blocks. The worker that claims the source opens it.
pub struct Source {
    name: String,
    base: SourceOffset,
    part: Option<(CheckedFile, Range<u64>)>,
    open: OpenFunction,
}

/// The position of a source within a larger file, if the source is a shard of that file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceOffset {
    /// The number of bytes of the file before the source.
    pub offset: u64,
    /// The number of line feeds of the file before the source. If lines are not counted, the number is 0.
    pub lines: u64,
}

type OpenFunction = Box<dyn FnOnce(&Context) -> Result<OpenedSource> + Send>;

/// A [`Source`] that was opened.
pub enum OpenedSource {
    /// A file of the file system. Any worker may read any block.
    File(PlainFile),
    /// A byte range of a dataset's file, and the job that reads from its store. The range begins at the start of a
    /// line. Any worker may read any block. Reads verify checksums.
    Dataset(Job, CheckedFile, Range<u64>),
    /// A stream of bytes. One worker reads the complete stream.
    Stream(Box<dyn Read + Send>),
}

impl Source {
    /// Creates a source that the function `open` opens. Error messages call the source `name`.
    pub fn new(
        name: impl Into<String>,
        open: impl FnOnce(&Context) -> Result<OpenedSource> + Send + 'static,
    ) -> Source {
        Source { name: name.into(), base: SourceOffset::default(), part: None, open: Box::new(open) }
    }

    /// Creates a source from a file of the file system. An empty file, or a file without a reliable size (a pipe, a
    /// file of /proc), becomes a stream.
    pub fn file(path: impl Into<PathBuf>) -> Source {
        let path = path.into();
        Source::new(path.display().to_string(), move |_| {
            let fail = |error| {
                Error::Store(inshore_store::Error::Io {
                    what: "open".to_string(),
                    path: path.clone(),
                    source: error,
                })
            };
            let file = File::open(&path).map_err(fail)?;
            let found = file.metadata().map_err(fail)?;
            if found.is_dir() {
                return Err(fail(std::io::ErrorKind::IsADirectory.into()));
            }
            match file_bytes(&file).map_err(fail)? {
                Some(1..) => Ok(OpenedSource::File(PlainFile::of(file, &path)?)),
                _ => Ok(OpenedSource::Stream(Box::new(file))),
            }
        })
    }

    /// Creates a source from a dataset's file on the store of `job`. The source has the name of the file,
    /// [`CheckedFile::name`].
    pub fn dataset(job: &Job, file: CheckedFile) -> Source {
        let all = 0..file.len();
        Source::dataset_part(job, file, all)
    }

    /// Creates a source from a byte range of a dataset's file on the store of `job`. The range must lie within the file
    /// and begin at the start of a line.
    pub fn dataset_part(job: &Job, file: CheckedFile, range: Range<u64>) -> Source {
        let (part, job) = (Some((file.clone(), range.clone())), job.clone());
        let source = Source::new(file.name().to_string(), move |context| {
            // The budget of `context` may be smaller than the budget of the job.
            Ok(OpenedSource::Dataset(job.within(context.budget().clone()), file, range))
        });
        Source { part, ..source }
    }

    /// Returns the dataset's file and the byte range of this source, for callers that read the range without
    /// [`run`](crate::run). Returns `None` if the source is not a dataset.
    pub fn part(&self) -> Option<&(CheckedFile, Range<u64>)> {
        self.part.as_ref()
    }

    /// Returns the length in bytes of the range that [`Source::part`] returns. If the source is not a dataset, the
    /// result is 0.
    pub fn part_bytes(&self) -> u64 {
        self.part.as_ref().map_or(0, |(_, range)| range.end - range.start)
    }

    /// Replaces the name of the source in error messages.
    pub fn called(mut self, name: impl Into<String>) -> Source {
        self.name = name.into();
        self
    }

    /// Turns the source into a shard that begins at position `base` of a larger file. Offsets and line numbers then
    /// count from the start of the larger file.
    pub fn behind(mut self, base: SourceOffset) -> Source {
        self.base = base;
        self
    }

    /// Returns the position of the source within a larger file. If the source is not a shard, both fields are 0.
    pub fn base(&self) -> SourceOffset {
        self.base
    }

    /// Returns the name of the source in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the source, and returns its name and the opened source.
    pub fn open(self, context: &Context) -> (String, Result<OpenedSource>) {
        (self.name, (self.open)(context))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for OpenedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenedSource::File(file) => f.debug_tuple("File").field(file).finish(),
            OpenedSource::Dataset(_, file, range) => {
                f.debug_tuple("Dataset").field(&file.name()).field(range).finish()
            }
            OpenedSource::Stream(_) => f.write_str("Stream"),
        }
    }
}

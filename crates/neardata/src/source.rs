//! Where blocks come from.

use std::{fmt, fs::File, io::Read, ops::Range, path::PathBuf};

use inshore_store::{CheckedFile, Context, Job, PlainFile, file_bytes};

use crate::{Error, Result};

/// The kind of a dataset whose files are pieces of files that are spread over nodes.
pub const SPREAD: &str = "spread";

/// The file of such a dataset that says where all pieces are.
pub const MAP: &str = "map";

/// Something to be read in blocks. It is opened by the worker that comes to it.
pub struct Source {
    name: String,
    base: Base,
    part: Option<(CheckedFile, Range<u64>)>,
    open: Open,
}

/// What of a whole lies before a source that is a part of it: bytes, and lines where these count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Bytes before it.
    pub offset: u64,
    /// Line feeds in them.
    pub lines: u64,
}

type Open = Box<dyn FnOnce(&Context) -> Result<Opened> + Send>;

/// A [`Source`] that was opened.
pub enum Opened {
    /// A file of the file system: any worker reads any block of it.
    File(PlainFile),
    /// Some bytes of a file of a dataset, and the job on whose store they lie: the same, and checked. A line begins where they do.
    Dataset(Job, CheckedFile, Range<u64>),
    /// Bytes that come one after the other: one worker reads all of it.
    Stream(Box<dyn Read + Send>),
}

impl Source {
    /// A source that `open` opens, which errors call `name`.
    pub fn new(
        name: impl Into<String>,
        open: impl FnOnce(&Context) -> Result<Opened> + Send + 'static,
    ) -> Source {
        Source { name: name.into(), base: Base::default(), part: None, open: Box::new(open) }
    }

    /// A file of the file system. What has no size (a pipe, a file of /proc) is a stream.
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
                Some(1..) => Ok(Opened::File(PlainFile::of(file, &path)?)),
                _ => Ok(Opened::Stream(Box::new(file))),
            }
        })
    }

    /// A file of a dataset on the store of `job`, called as [`CheckedFile::name`] says.
    pub fn dataset(job: &Job, file: CheckedFile) -> Source {
        let all = 0..file.len();
        Source::dataset_part(job, file, all)
    }

    /// Some bytes of a file of a dataset on the store of `job`, which has them; where they begin, a line does.
    pub fn dataset_part(job: &Job, file: CheckedFile, range: Range<u64>) -> Source {
        let (part, job) = (Some((file.clone(), range.clone())), job.clone());
        let source = Source::new(file.name().to_string(), move |context| {
            // What reads it may have a part of the job's memory.
            Ok(Opened::Dataset(job.within(context.budget().clone()), file, range))
        });
        Source { part, ..source }
    }

    /// The file of a dataset that it is of, and which of its bytes: for work that reads in no order.
    pub fn part(&self) -> Option<&(CheckedFile, Range<u64>)> {
        self.part.as_ref()
    }

    /// Bytes of that part; 0 where the source is none.
    pub fn part_bytes(&self) -> u64 {
        self.part.as_ref().map_or(0, |(_, range)| range.end - range.start)
    }

    /// The same source, which errors call so.
    pub fn called(mut self, name: impl Into<String>) -> Source {
        self.name = name.into();
        self
    }

    /// The same source, as the part of a whole that `base` precedes: offsets and numbers of lines are those of the whole.
    pub fn behind(mut self, base: Base) -> Source {
        self.base = base;
        self
    }

    /// What of its whole lies before it.
    pub fn base(&self) -> Base {
        self.base
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn open(self, context: &Context) -> (String, Result<Opened>) {
        (self.name, (self.open)(context))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opened::File(file) => f.debug_tuple("File").field(file).finish(),
            Opened::Dataset(_, file, range) => {
                f.debug_tuple("Dataset").field(&file.name()).field(range).finish()
            }
            Opened::Stream(_) => f.write_str("Stream"),
        }
    }
}

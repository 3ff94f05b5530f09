//! Implements the file system: each request of the kernel is answered on one of the session's threads.
//!
//! Each lookup of a name reads the store, so that a commit becomes visible when the kernel's cached entries have
//! expired ([`TTL`]). An open file keeps its dataset as it was at the time of opening, even if the dataset is removed.
//! The store verifies all reads. If data cannot be read, the kernel gets `EIO`, and the error is printed once on
//! standard error.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use fuser::{
    Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use inshore::store::{Buffer, Dataset, EXTENT_BYTES, Error, Job, Reservation, Result, Store};

use super::{
    cache::{Cache, Source},
    tree::{Node, Owner, Tree},
};
use crate::report::outcome::say;

/// Time for which the kernel may cache a name.
const TTL: Duration = Duration::from_secs(1);
/// The largest read of the kernel, which is also the unit of the kernel's read-ahead.
pub const REQUEST_BYTES: usize = 128 << 10;
/// Reads within this distance of each other belong to one stream, since the kernel's read-ahead can arrive out of
/// order.
const NEAR_BYTES: u64 = 1 << 20;
/// A reader that has read this number of bytes in order is a stream, for which extents are read ahead.
const STREAM_BYTES: u64 = 256 << 10;
/// The number of extent headers that an open file caches.
const HEADERS: u64 = 64;
/// The largest number of error messages that are remembered, so that each message is printed only once.
const REPORTED_MAX: usize = 1000;

/// Statistics of a mount.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct MountStatistics {
    /// The number of files that were opened.
    pub files_opened: u64,
    /// The number of bytes that were passed to the kernel.
    pub bytes_served: u64,
    /// The number of reads that failed.
    pub reads_failed: u64,
}

/// The file system that a mount shows.
pub struct MountedFiles {
    store: Store,
    job: Job,
    cache: Cache,
    /// The number of extents that are read ahead of a stream.
    ahead: u64,
    owner: Owner,
    tree: Tree,
    handles: Mutex<OpenFiles>,
    /// Buffers for reads that span two extents, one for each thread.
    seams: Mutex<Vec<Buffer>>,
    reported: Mutex<HashSet<String>>,
    served: Arc<Mutex<MountStatistics>>,
}

/// The open files, by the numbers of their handles.
#[derive(Default)]
struct OpenFiles {
    next: u64,
    files: HashMap<u64, Arc<Handle>>,
    folders: HashMap<u64, Arc<Vec<Entry>>>,
    /// The open files, by the numbers of their nodes. All handles of a node share one open file.
    open: HashMap<u64, Weak<OpenFile>>,
}

impl OpenFiles {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// An open file, and its dataset at the time of opening.
struct OpenFile {
    source: Source,
    _dataset: Dataset,
    /// Reserves the memory of the cached headers.
    _reservation: Reservation,
}

/// An open handle of a file, and the stream of its last reads.
struct Handle {
    file: Arc<OpenFile>,
    run: Mutex<Run>,
}

/// A stream of reads that are nearly consecutive: the largest end of these reads, and the sum of their bytes.
#[derive(Default)]
struct Run {
    end: u64,
    bytes: u64,
}

impl Run {
    /// Records a read. Returns whether the stream is long enough for read-ahead.
    fn goes_on(&mut self, range: &Range<u64>) -> bool {
        let bytes = range.end - range.start;
        if range.start.abs_diff(self.end) <= NEAR_BYTES {
            *self = Run { end: self.end.max(range.end), bytes: self.bytes.saturating_add(bytes) };
        } else {
            *self = Run { end: range.end, bytes };
        }
        self.bytes >= STREAM_BYTES
    }
}

/// One entry of a folder, as the kernel lists it.
struct Entry {
    number: u64,
    kind: FileType,
    name: String,
}

impl MountedFiles {
    /// Creates a file system of the datasets in `store`, with `slots` extents in memory, for `threads` threads.
    ///
    /// # Errors
    /// Returns [`Error::OverBudget`] if the budget has too little free memory.
    pub fn new(store: &Store, job: &Job, slots: usize, threads: usize, owner: Owner) -> Result<MountedFiles> {
        let seams = Buffer::zeroed(job.budget(), threads * REQUEST_BYTES, "reads across extents")?;
        Ok(MountedFiles {
            store: store.clone(),
            job: job.clone(),
            cache: Cache::new(job, slots)?,
            ahead: (slots as u64 / 4).clamp(1, 4),
            owner,
            tree: Tree::default(),
            handles: Mutex::default(),
            seams: Mutex::new(seams.split(REQUEST_BYTES)),
            reported: Mutex::default(),
            served: Arc::default(),
        })
    }

    /// Returns the statistics. They can be read at any time.
    pub fn served(&self) -> Arc<Mutex<MountStatistics>> {
        self.served.clone()
    }

    fn handles(&self) -> MutexGuard<'_, OpenFiles> {
        self.handles.lock().expect("no panic under this lock")
    }

    fn count(&self, add: impl FnOnce(&mut MountStatistics)) {
        add(&mut self.served.lock().expect("no panic under this lock"));
    }

    /// Returns the error number for the kernel. Prints the error, unless a name was not found or the same message was
    /// printed before.
    fn errno_of(&self, error: &Error) -> Errno {
        match error {
            Error::NotFound { .. } | Error::BadName { .. } => return Errno::ENOENT,
            Error::OverBudget { .. } => self.tell(format!("too many files are open: {error}")),
            _ => self.tell(error.to_string()),
        }
        if matches!(error, Error::OverBudget { .. }) { Errno::ENFILE } else { Errno::EIO }
    }

    fn tell(&self, message: String) {
        let mut reported = self.reported.lock().expect("no panic under this lock");
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        if reported.insert(message.clone()) {
            say(&format!("inshore: {message}"));
        }
    }

    /// Returns the dataset of a node. If the dataset was removed, or another dataset has its name, the error is
    /// `ESTALE`; the kernel then looks up the name again.
    fn dataset(&self, node: &Node) -> std::result::Result<Dataset, Errno> {
        match self.store.dataset(&node.name) {
            Ok(dataset) if dataset.id() == node.id => Ok(dataset),
            Ok(_) | Err(Error::NotFound { .. }) => Err(Errno::ESTALE),
            Err(error) => Err(self.errno_of(&error)),
        }
    }

    /// Returns the entries of the root folder, or of a dataset's folder.
    fn children(&self, folder: INodeNo) -> std::result::Result<Vec<(u64, Node)>, Errno> {
        if folder == INodeNo::ROOT {
            let datasets = self.store.list().map_err(|error| self.errno_of(&error))?;
            return Ok(datasets.iter().map(Node::of_dataset).collect());
        }
        let node = self.tree.get(folder.0).ok_or(Errno::ESTALE)?;
        if node.file.is_some() {
            return Err(Errno::ENOTDIR);
        }
        Ok(Node::of_files(&self.dataset(&node)?).collect())
    }

    fn find(&self, folder: INodeNo, name: &OsStr) -> std::result::Result<(u64, Node), Errno> {
        let is_it = |(_, node): &(u64, Node)| name == node.label(folder == INodeNo::ROOT);
        self.children(folder)?.into_iter().find(is_it).ok_or(Errno::ENOENT)
    }

    fn open_file(&self, number: u64) -> std::result::Result<u64, Errno> {
        let node = self.tree.get(number).ok_or(Errno::ESTALE)?;
        let known = self.handles().open.get(&number).and_then(Weak::upgrade);
        let file = match known {
            Some(file) => file,
            None => Arc::new(self.new_file(number, &node)?),
        };
        let mut handles = self.handles();
        handles.open.insert(number, Arc::downgrade(&file));
        let handle = handles.number();
        handles.files.insert(handle, Arc::new(Handle { file, run: Mutex::default() }));
        self.count(|served| served.files_opened += 1);
        Ok(handle)
    }

    fn new_file(&self, number: u64, node: &Node) -> std::result::Result<OpenFile, Errno> {
        let (name, len) = node.file.as_ref().ok_or(Errno::EISDIR)?;
        let dataset = self.dataset(node)?;
        let file = dataset.file(name).ok_or(Errno::ESTALE)?;
        if file.len() != *len {
            return Err(Errno::ESTALE);
        }
        let sums = 4 * (EXTENT_BYTES / file.block_bytes()) as u64;
        let reservation = self.job.budget().reserve(HEADERS * (sums + 64), "headers of open files");
        let reservation = reservation.map_err(|error| self.errno_of(&error.into()))?;
        Ok(OpenFile { source: Source { number, file }, _dataset: dataset, _reservation: reservation })
    }

    fn close_file(&self, handle: u64) {
        let mut handles = self.handles();
        let closed = handles.files.remove(&handle);
        if let Some(number) = closed.as_ref().map(|handle| handle.file.source.number) {
            drop(closed);
            // If a read or another handle still uses the file, the entry remains, and a later close of the file removes
            // the entry.
            if handles.open.get(&number).is_some_and(|open| open.strong_count() == 0) {
                handles.open.remove(&number);
            }
        }
    }

    /// Answers a read. Most reads are within one extent, and are answered from the cache without a copy.
    fn answer(&self, handle: &Handle, range: Range<u64>, reply: ReplyData) {
        let source = &handle.file.source;
        let index = |offset| offset / EXTENT_BYTES as u64;
        if handle.run.lock().expect("no panic under this lock").goes_on(&range) {
            let end = source.file.len().div_ceil(EXTENT_BYTES as u64);
            self.cache.begin(source, index(range.start)..end.min(index(range.end - 1) + 1 + self.ahead));
        }
        self.count(|served| served.bytes_served += range.end - range.start);
        let border = (index(range.start) + 1) * EXTENT_BYTES as u64;
        if range.end <= border {
            match self.cache.get(source, range) {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => self.fail(&error, reply),
            }
            return;
        }
        let seam = self.seams.lock().expect("no panic under this lock").pop();
        let mut seam = seam.expect("one for each thread");
        let cut = (border - range.start) as usize;
        let len = (range.end - range.start) as usize;
        let (left, right) = seam[..len].split_at_mut(cut);
        let copied = self.copy(source, range.start..border, left);
        match copied.and_then(|()| self.copy(source, border..range.end, right)) {
            Ok(()) => reply.data(&seam[..len]),
            Err(error) => self.fail(&error, reply),
        }
        self.seams.lock().expect("no panic under this lock").push(seam);
    }

    fn copy(&self, source: &Source, range: Range<u64>, to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(&self.cache.get(source, range)?);
        Ok(())
    }

    fn fail(&self, error: &Error, reply: ReplyData) {
        self.errno_of(error);
        self.count(|served| served.reads_failed += 1);
        reply.error(Errno::EIO);
    }
}

impl Filesystem for MountedFiles {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The kernel limits the size of reads by the larger of these two limits, so the limit of writes is set too,
        // although no write ever comes. An error means that the kernel's limit is lower already.
        let _ = config.set_max_write(REQUEST_BYTES as u32);
        let _ = config.set_max_readahead(REQUEST_BYTES as u32);
        // The result is ignored, since old kernels refuse features that they do not know.
        for wish in [InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_ASYNC_DIO] {
            let _ = config.add_capabilities(wish);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok((number, node)) if self.tree.remember(number, &node) => {
                reply.entry(&TTL, &self.owner.attributes(number, Some(&node)), Generation(0));
            }
            Ok(_) => reply.error(Errno::EIO),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, times: u64) {
        self.tree.forget(number.0, times);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let node = self.tree.get(number.0);
        if node.is_none() && number != INodeNo::ROOT {
            return reply.error(Errno::ESTALE);
        }
        reply.attr(&TTL, &self.owner.attributes(number.0, node.as_ref()));
    }

    fn open(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(number.0) {
            // A node's number always stands for the same bytes, so the kernel may keep its cached pages.
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(handle) = self.handles().files.get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        // A short answer would mean the end of the file to the kernel, so a request that is too large fails.
        if size as usize > REQUEST_BYTES {
            return reply.error(Errno::EINVAL);
        }
        let end = offset.saturating_add(size.into()).min(handle.file.source.file.len());
        if offset >= end {
            return reply.data(&[]);
        }
        self.answer(&handle, offset..end, reply);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.close_file(handle.0);
        reply.ok();
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let children = match self.children(number) {
            Ok(children) => children,
            Err(errno) => return reply.error(errno),
        };
        let in_root = number == INodeNo::ROOT;
        let dots = [".", ".."].map(|name| (number.0, FileType::Directory, name.to_string()));
        let nodes = children.iter().map(|(number, node)| {
            let name = node.label(in_root).to_string();
            (*number, node.kind(), name)
        });
        let entries = dots.into_iter().chain(nodes).map(|(number, kind, name)| Entry { number, kind, name });
        let entries = Arc::new(entries.collect());
        let mut handles = self.handles();
        let handle = handles.number();
        handles.folders.insert(handle, entries);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(entries) = self.handles().folders.get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        for (next, entry) in (1..).zip(entries.iter()).skip(offset as usize) {
            if reply.add(INodeNo(entry.number), next, entry.kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles().folders.remove(&handle.0);
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_come_nearly_in_order_are_a_stream_and_scattered_ones_are_not() {
        let request = REQUEST_BYTES as u64;
        let mut run = Run::default();
        let at = |number: u64| number * request..(number + 1) * request;
        let stream = [0, 2, 1, 3].map(|number| run.goes_on(&at(number)));
        assert_eq!(stream, [false, true, true, true]);
        assert!(!run.goes_on(&at(1000)));
        assert!(!run.goes_on(&at(5)));
    }
}

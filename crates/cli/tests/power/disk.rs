//! A file system in memory, mounted by FUSE, that records every change.

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair},
};

use super::tree::{Change, Files, Node, Tree};

/// The kernel may cache no names and no attributes, so that every use of a name is a request to this file system.
const TTL: Duration = Duration::ZERO;
/// The largest read or write. A socket accepts twice as many bytes in one message.
const REQUEST_BYTES: u32 = 64 << 10;
const BLOCK_BYTES: u32 = 4096;
/// The free space that is reported, in blocks: 4 GiB.
const FREE_BLOCKS: u64 = 1 << 20;

/// Operations of the FUSE protocol: `TMPFILE` creates a file without a name, and `CREATE` creates a file with a name.
const TMPFILE: u32 = 51;
const CREATE: u32 = 35;
/// The name in a request to create a file without a name. No named file can have this name.
const NO_NAME: &str = "/";

type Answer<T> = Result<T, Errno>;

/// The files on the drive, and the changes since the drive was mounted.
pub struct Content {
    pub tree: Tree,
    pub changes: Vec<Change>,
}

impl Content {
    fn make(&mut self, change: Change) {
        self.tree.apply(&change);
        self.changes.push(change);
    }

    fn new_node(&mut self, is_folder: bool, mode: u32) -> u64 {
        let node = self.tree.free_number();
        self.make(Change::Make { node, is_folder, mode: mode & 0o7777 });
        node
    }

    fn new_entry(&mut self, folder: u64, name: &OsStr, is_folder: bool, mode: u32) -> Answer<u64> {
        let name = text(name)?;
        if self.find(folder, &name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let node = self.new_node(is_folder, mode);
        self.make(Change::Enter { folder, name, node });
        Ok(node)
    }

    fn node(&self, number: u64) -> Answer<&Node> {
        self.tree.nodes.get(&number).ok_or(Errno::ESTALE)
    }

    fn find(&self, folder: u64, name: &str) -> Answer<u64> {
        self.node(folder)?.names.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn leave(&mut self, folder: u64, name: &OsStr) -> Answer<()> {
        let name = text(name)?;
        if !self.node(self.find(folder, &name)?)?.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.make(Change::Leave { folder, name });
        Ok(())
    }

    fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags) -> Answer<()> {
        let (name, new_name) = (text(from.1)?, text(to.1)?);
        let node = self.find(from.0, &name)?;
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            let there = self.find(to.0, &new_name)?;
            self.make(Change::Enter { folder: to.0, name: new_name, node });
            self.make(Change::Enter { folder: from.0, name, node: there });
            return Ok(());
        }
        if !flags.difference(RenameFlags::RENAME_NOREPLACE).is_empty() {
            return Err(Errno::EINVAL);
        }
        if let Ok(there) = self.find(to.0, &new_name) {
            if flags.contains(RenameFlags::RENAME_NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            if there == node {
                return Ok(());
            }
        }
        self.make(Change::Enter { folder: to.0, name: new_name, node });
        self.make(Change::Leave { folder: from.0, name });
        Ok(())
    }

    fn attributes(&self, number: u64) -> Answer<FileAttr> {
        let node = self.node(number)?;
        Ok(FileAttr {
            ino: INodeNo(number),
            size: node.bytes.len() as u64,
            blocks: (node.bytes.len() as u64).div_ceil(512),
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: kind(node),
            perm: node.mode as u16,
            nlink: node.links + u32::from(node.is_folder),
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        })
    }

    fn read(&self, number: u64, offset: u64, bytes: u32) -> Answer<&[u8]> {
        let file = &self.node(number)?.bytes;
        let start = file.len().min(offset as usize);
        Ok(&file[start..file.len().min(start + bytes as usize)])
    }

    fn allocate(&mut self, number: u64, offset: u64, bytes: u64, mode: i32) -> Answer<()> {
        const KEEP_SIZE: i32 = 1;
        const PUNCH_HOLE: i32 = 2;
        let len = self.node(number)?.bytes.len() as u64;
        match mode {
            0 if offset + bytes > len => {
                self.make(Change::SetLength { node: number, bytes: offset + bytes });
            }
            0 | KEEP_SIZE => {}
            _ if mode == KEEP_SIZE | PUNCH_HOLE => {
                let end = len.min(offset + bytes);
                if offset < end {
                    let bytes = vec![0; (end - offset) as usize];
                    self.make(Change::Write { node: number, offset, bytes });
                }
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(())
    }
}

fn text(name: &OsStr) -> Answer<String> {
    name.to_str().map(str::to_string).ok_or(Errno::EINVAL)
}

fn kind(node: &Node) -> FileType {
    if node.is_folder { FileType::Directory } else { FileType::RegularFile }
}

struct ContentHandle(Arc<Mutex<Content>>);

impl ContentHandle {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Runs `work`, which returns a node or an error, and sends the result to the kernel.
    fn entry(&self, reply: ReplyEntry, work: impl FnOnce(&mut Content) -> Answer<u64>) {
        let mut content = self.content();
        match work(&mut content).and_then(|node| content.attributes(node)) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn done(&self, reply: ReplyEmpty, work: impl FnOnce(&mut Content) -> Answer<()>) {
        match work(&mut self.content()) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }
}

impl Filesystem for ContentHandle {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The results are ignored: an error means that the kernel's limit is lower already.
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_readahead(REQUEST_BYTES);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, |content| content.find(parent.0, &text(name)?));
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.content().attributes(number.0) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut content = self.content();
        if content.node(number.0).is_err() {
            return reply.error(Errno::ESTALE);
        }
        if let Some(bytes) = size {
            content.make(Change::SetLength { node: number.0, bytes });
        }
        if let Some(mode) = mode {
            content.make(Change::SetMode { node: number.0, mode: mode & 0o7777 });
        }
        match content.attributes(number.0) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(reply, |content| content.new_entry(parent.0, name, true, mode));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.done(reply, |content| content.leave(parent.0, name));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.done(reply, |content| content.leave(parent.0, name));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.done(reply, |content| content.rename((parent.0, name), (new_parent.0, new_name), flags));
    }

    fn link(&self, _request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, |content| {
            let name = text(name)?;
            content.node(number.0)?;
            if content.find(parent.0, &name).is_ok() {
                return Err(Errno::EEXIST);
            }
            content.make(Change::Enter { folder: parent.0, name, node: number.0 });
            Ok(number.0)
        });
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.content().read(number.0, offset, size) {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut content = self.content();
        if content.node(number.0).is_err() {
            return reply.error(Errno::ESTALE);
        }
        content.make(Change::Write { node: number.0, offset, bytes: data.to_vec() });
        reply.written(data.len() as u32);
    }

    fn fsync(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.done(reply, |content| {
            content.make(Change::Sync { node: number.0, all: !data_only });
            Ok(())
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.done(reply, |content| {
            content.make(Change::Sync { node: number.0, all: true });
            Ok(())
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let content = self.content();
        let Ok(folder) = content.node(number.0) else { return reply.error(Errno::ESTALE) };
        for (place, (name, child)) in folder.names.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*child), place as u64 + 1, kind(&content.tree.nodes[child]), name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        reply.statfs(FREE_BLOCKS, FREE_BLOCKS, FREE_BLOCKS, 0, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut content = self.content();
        let made = match name == NO_NAME {
            true => Ok(content.new_node(false, mode)),
            false => content.new_entry(parent.0, name, false, mode),
        };
        match made.and_then(|node| content.attributes(node)) {
            Ok(attributes) => {
                reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::empty());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.done(reply, |content| content.allocate(number.0, offset, length, mode));
    }
}

/// The mounted file system. It is unmounted on drop.
pub struct Disk {
    content: Arc<Mutex<Content>>,
    /// The mountpoint.
    point: tempfile::TempDir,
    threads: Vec<JoinHandle<()>>,
}

impl Disk {
    /// Mounts a file system with these files. If `knows_unnamed` is false, the file system does not support files
    /// without a name, as some real file systems.
    ///
    /// # Errors
    /// Fails without FUSE, or if this process has no right to mount.
    pub fn mount(files: &Files, knows_unnamed: bool) -> io::Result<Disk> {
        let content = Content { tree: Tree::new(files), changes: Vec::new() };
        let content = Arc::new(Mutex::new(content));
        let point = tempfile::tempdir()?;
        let device = Arc::new(File::options().read(true).write(true).open("/dev/fuse")?);
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,max_read={REQUEST_BYTES}", device.as_raw_fd());
        let options = CString::new(options).expect("no zero in it");
        mount("power", point.path(), "fuse.power", MountFlags::empty(), &*options)?;
        let mut disk = Disk { content: content.clone(), point, threads: Vec::new() };
        let (socket, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        disk.relay(device, socket, knows_unnamed)?;
        let session = Session::from_fd(ContentHandle(content), other, SessionACL::Owner, Config::default())?;
        // The result is ignored: the session ends with an error when the socket is closed.
        disk.threads.push(thread::spawn(move || drop(session.run())));
        Ok(disk)
    }

    /// Relays requests of the kernel to the crate fuser, and relays the answers to the kernel. fuser does not support
    /// requests to create a file without a name. The relay therefore changes the operation of such a request from
    /// `TMPFILE` to `CREATE`. The rest of the request is the same for both operations, and its name is [`NO_NAME`].
    fn relay(&mut self, device: Arc<File>, socket: OwnedFd, knows_unnamed: bool) -> io::Result<()> {
        let (answers, answered) = (socket.try_clone()?, device.clone());
        let mut buffer = vec![0; 2 * REQUEST_BYTES as usize];
        self.threads.push(thread::spawn(move || {
            loop {
                let bytes = match (&*device).read(&mut buffer) {
                    Ok(bytes) => bytes,
                    // The request was cancelled in the meantime.
                    Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => {
                        continue;
                    }
                    // The file system was unmounted.
                    Err(_) => break,
                };
                if knows_unnamed && buffer[4..8] == TMPFILE.to_ne_bytes() {
                    buffer[4..8].copy_from_slice(&CREATE.to_ne_bytes());
                }
                if rustix::io::write(&socket, &buffer[..bytes]).is_err() {
                    break;
                }
            }
            let _ = shutdown(socket.as_fd(), Shutdown::Both);
        }));
        let mut buffer = vec![0; 2 * REQUEST_BYTES as usize];
        self.threads.push(thread::spawn(move || {
            while let Ok(bytes @ 1..) = rustix::io::read(&answers, &mut buffer[..]) {
                // The result is ignored, since the process that sent the request may have ended.
                let _ = (&*answered).write(&buffer[..bytes]);
            }
        }));
        Ok(())
    }

    pub fn path(&self) -> &Path {
        self.point.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Returns the files on the drive, and all recorded changes.
    pub fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().expect("no panic under this lock")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The result is ignored, since a failing test may have files open.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        if !thread::panicking() {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}

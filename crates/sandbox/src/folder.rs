//! This module creates the working folder of a command, opens files in this folder, and removes the folder. This
//! code runs outside the sandbox, and does not trust the command that writes to the folder.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{
        AtFlags, CWD, FlockOperation, Mode, OFlags, ResolveFlags, fchmod, flock, openat, openat2, rmdir,
        statat,
    },
    io::Errno,
};

use crate::{Error, Result, walk};

/// The beginning of the names of folders. The process id and a number follow.
const PREFIX: &str = "inshore-command-";
/// The name of the inner folder, in which the command works.
const WORK: &str = "work";

/// Holds a folder for one command, and removes the folder with its content on drop.
///
/// There are two nested folders. The outer folder belongs to this process, which locks the folder as long as it
/// runs. The inner folder belongs to the command. If a process is killed before it could remove its folder, the
/// lock is released, and the next process that creates a folder in the same parent removes the abandoned folder. A
/// process id would not show whether a folder is abandoned, since a process id has no meaning in another
/// container. The lock is not on the inner folder, since the command could lock that folder too. On a file system
/// without locks, abandoned folders are not removed.
#[derive(Debug)]
pub struct Folder {
    whole: PathBuf,
    work: PathBuf,
    /// Holds the open outer folder, and thereby its lock.
    open: OwnedFd,
    removed: bool,
}

impl Folder {
    /// Creates a folder in `parent`. Other processes and users may use `parent` too, for example the system's
    /// folder for temporary files. First removes the folders that dead processes left in `parent`. The next call
    /// tries again to remove files that can't be removed now.
    ///
    /// # Errors
    /// Returns [`Error::Path`] if no folder can be made.
    pub fn create_in(parent: &Path) -> Result<Folder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        remove_abandoned(parent);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match Folder::make(&path) {
                Ok(Some(folder)) => return Ok(folder),
                Ok(None) => {}
                Err(source) => {
                    return Err(Error::Path {
                        what: "make a folder for a command".to_string(),
                        path,
                        source,
                    });
                }
            }
        }
    }

    /// Creates a folder. Returns `None` if the folder exists already, or if another process removed it as
    /// abandoned before it was locked.
    fn make(path: &Path) -> io::Result<Option<Folder>> {
        match fs::create_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(error),
        }
        let open = match open_folder(path) {
            Ok(open) => open,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let lock = flock(&open, FlockOperation::NonBlockingLockExclusive);
        if lock == Err(Errno::WOULDBLOCK) || !is_at(&open, path) {
            return Ok(None);
        }
        let folder = Folder { work: path.join(WORK), whole: path.to_path_buf(), open, removed: false };
        // The command's user must be able to reach the inner folder, whatever the umask of this process is.
        fchmod(&folder.open, Mode::from_raw_mode(0o711))?;
        fs::DirBuilder::new().mode(0o700).create(&folder.work)?;
        Ok(Some(folder))
    }

    /// Returns the path of the working folder: see [`crate::Command::folder`].
    pub fn path(&self) -> &Path {
        &self.work
    }

    /// Removes the folder with all files that the command left, whatever their depth, names and rights. Dropping does
    /// the same, and ignores errors.
    ///
    /// # Errors
    /// Returns [`Error::Path`] if a file can't be removed. All removable files are removed, and the next
    /// [`Folder::create_in`] tries again.
    pub fn remove(mut self) -> Result<()> {
        self.try_remove().map_err(|error| Error::Path {
            what: "remove the files that a command left".to_string(),
            path: self.whole.clone(),
            source: error.into(),
        })
    }

    fn try_remove(&mut self) -> rustix::io::Result<()> {
        let mut attempts = 0;
        loop {
            match walk::empty(self.open.as_fd()).and_then(|()| rmdir(&self.whole)) {
                // A process that still runs has written or moved files in the folder meanwhile.
                Err(Errno::NOTEMPTY | Errno::STALE) if attempts < walk::ATTEMPTS => attempts += 1,
                Err(error) => return Err(error),
                Ok(()) => {
                    self.removed = true;
                    return Ok(());
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.removed {
            let _ = self.try_remove();
        }
    }
}

/// Removes the folders in `parent` whose processes are dead.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let path = entry.path();
        let Ok(open) = open_folder(&path) else { continue };
        if flock(&open, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&open, &path) {
            drop(Folder { work: path.join(WORK), whole: path, open, removed: false });
        }
    }
}

fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    walk::listed(openat(CWD, path, flags, Mode::empty())?.as_fd())
}

/// Returns true if the open folder still has this path.
fn is_at(open: &OwnedFd, path: &Path) -> bool {
    let there = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| walk::id(open.as_fd()) == Ok((there.st_dev, there.st_ino)))
}

/// Opens a command's folder, so that its bytes can be counted even if the folder is moved later. Links in the path
/// are followed, since the caller has chosen the path.
pub(crate) fn open_to_count(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|error| Error::Path {
        what: "open the working folder".to_string(),
        path: path.to_path_buf(),
        source: error.into(),
    })
}

/// Opens a file that a command left in its folder; `name` is relative to the folder. A plain `open` would follow a
/// link that the command has created, with the rights of this process. It would also block for ever at a named
/// pipe.
///
/// # Errors
/// Returns [`Error::Path`] if the file is missing, is no plain file, or has a link or `..` in its path.
pub fn open_left(folder: &Path, name: &Path) -> Result<File> {
    let failed = |source: io::Error| Error::Path {
        what: "open a file that a command left".to_string(),
        path: folder.join(name),
        source,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let folder = openat(CWD, folder, flags | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
    let file = folder.and_then(|folder| openat2(folder, name, flags, Mode::empty(), beneath));
    let file = File::from(file.map_err(|error| failed(error.into()))?);
    match file.metadata() {
        Ok(data) if data.is_file() => Ok(file),
        Ok(_) => Err(failed(io::Error::other("expected a plain file"))),
        Err(error) => Err(failed(error)),
    }
}

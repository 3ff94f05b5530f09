//! A command's folder, seen from outside: made, read afterwards, and removed. Whoever writes there isn't trusted.

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

/// What names of folders begin with, before the process and a number.
const PREFIX: &str = "inshore-command-";
/// The command's part of a folder.
const WORK: &str = "work";

/// A folder for one command, gone with all that is in it when this is.
///
/// Two folders: ours, which is locked for as long as we live, and in it the command's. What a process left that was killed
/// before it could remove it isn't locked any more, and is removed by the next one that makes a folder beside it. A lock and
/// not the process's number, which means nothing in another container; and not on the command's folder, which is its own to
/// lock. On a file system without locks nothing is removed so.
#[derive(Debug)]
pub struct Folder {
    whole: PathBuf,
    work: PathBuf,
    /// With the lock.
    open: OwnedFd,
    removed: bool,
}

impl Folder {
    /// Makes one in a folder that may be shared with other processes and users, such as the system's for temporary files, and
    /// first removes what was left there by those that are dead; what of that can't be removed is left to the next one.
    ///
    /// # Errors
    /// [`Error::Path`] where none can be made.
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

    /// `None` where there is one already, or it was taken for abandoned before it was locked.
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
        // For the command's user to pass through, whatever the process keeps from new files.
        fchmod(&folder.open, Mode::from_raw_mode(0o711))?;
        fs::DirBuilder::new().mode(0o700).create(&folder.work)?;
        Ok(Some(folder))
    }

    /// Where the command works: see [`crate::Command::folder`].
    pub fn path(&self) -> &Path {
        &self.work
    }

    /// Removes it with all that the command left, whatever its depth, names and rights. Dropping does the same, and keeps
    /// what went wrong to itself.
    ///
    /// # Errors
    /// [`Error::Path`] where something can't be removed. All the rest is, and the next [`Folder::create_in`] tries again.
    pub fn remove(mut self) -> Result<()> {
        self.try_remove().map_err(|error| Error::Path {
            what: "remove what a command left".to_string(),
            path: self.whole.clone(),
            source: error.into(),
        })
    }

    fn try_remove(&mut self) -> rustix::io::Result<()> {
        let mut attempts = 0;
        loop {
            match walk::empty(self.open.as_fd()).and_then(|()| rmdir(&self.whole)) {
                // Something was written or moved there meanwhile, by a process that nobody ended.
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

/// Removes the folders in this one whose processes are dead.
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

/// Whether what is open has this path, still.
fn is_at(open: &OwnedFd, path: &Path) -> bool {
    let there = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| walk::id(open.as_fd()) == Ok((there.st_dev, there.st_ino)))
}

/// Opens a command's folder to count what is in it, wherever that is moved. By a path that the caller named, links in it
/// included.
pub(crate) fn open_to_count(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|error| Error::Path {
        what: "work in this folder".to_string(),
        path: path.to_path_buf(),
        source: error.into(),
    })
}

/// Opens a file that a command left in its folder, `name` being relative to that. A plain `open` would follow a link that the
/// command put there, with our rights, and would wait for ever at a pipe.
///
/// # Errors
/// [`Error::Path`] where there is none, where it's no plain file, and where a link or `..` is on the way to it.
pub fn open_left(folder: &Path, name: &Path) -> Result<File> {
    let failed = |source: io::Error| Error::Path {
        what: "open what a command left".to_string(),
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

//! This module writes files atomically: after a crash, a new file is complete or does not exist. Commands write all
//! their files, and standard output, by this module.
//!
//! The order of the steps is the same for all files. After a kill or a power loss at any instant, the old file or the
//! new file exists. A file that was reported as written exists:
//!
//! ```text
//!   create   create the file without a name, with its most restrictive permissions
//!   write    write the bytes, permissions and times
//!   publish  sync the file, link it, sync it again, swap names with the old file, sync the folder, remove the old file
//!   succeed  the command may now report success, and remove the input files of the new file (`remove_file`)
//! ```

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    num::NonZeroU64,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    fs::{Advice, AtFlags, CWD, Mode, OFlags, RenameFlags, fadvise, linkat, renameat_with},
    io::Errno,
};
use tempfile::NamedTempFile;

use crate::{Error, Result};

/// `NewFile` is a file that is being written. The file has no name until [`NewFile::publish`]. If the file is dropped
/// or its process is killed earlier, no file is left.
pub struct NewFile {
    name: String,
    /// The temporary file and its final path. The value is `None` for standard output.
    part: Option<(Part, PathBuf)>,
    out: NewFileWriter,
}

impl NewFile {
    /// Opens standard output. For standard output, [`NewFile::publish`] does nothing.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn stdout() -> Result<Self> {
        let name = "standard output";
        let file = io::stdout().as_fd().try_clone_to_owned().map(File::from);
        Ok(Self::of_file(name, file.map_err(|source| Error::io("open it", name, source))?))
    }

    /// Creates a `NewFile` from an open file, which is written in place and never renamed.
    pub fn of_file(name: &str, file: File) -> Self {
        NewFile { name: name.to_string(), part: None, out: NewFileWriter::new(file) }
    }

    /// Returns true if a write to `path` goes to an existing object and replaces no file. This is true for standard
    /// output (`-`), a character device such as /dev/null, and a named pipe.
    pub fn is_in_place(path: &Path) -> bool {
        let kind = fs::metadata(path).map(|found| found.file_type());
        path == Path::new("-") || kind.is_ok_and(|kind| kind.is_char_device() || kind.is_fifo())
    }

    /// Checks that [`NewFile::create`] can create a file at `path`, and leaves no file. Commands call this function
    /// before their work. A path that is written in place is not opened, since opening a pipe waits for a reader.
    ///
    /// # Errors
    /// Returns the errors of [`NewFile::create`].
    pub fn check(path: &Path) -> Result<()> {
        if Self::is_in_place(path) { Ok(()) } else { Self::create(path).map(drop) }
    }

    /// Begins a file for `path`, on the same file system. An existing file is not changed until [`NewFile::publish`].
    /// If `path` is a symbolic link, the target of the link is replaced. Standard output (`-`), a character device or a
    /// named pipe is [written in place](NewFile::is_in_place).
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if no file can be created in the folder.
    /// - Returns [`Error::BadOutput`] if `path` is a folder, a socket or a block device.
    pub fn create(path: &Path) -> Result<Self> {
        Self::create_with(path, None)
    }

    /// Begins a file like [`NewFile::create`]. Only the owner may read or write the new file, even if it replaces a
    /// public file. The caller sets the final permissions on [`NewFile::file`] before the file is published. No other
    /// user can therefore open the file earlier.
    ///
    /// # Errors
    /// Returns the errors of [`NewFile::create`].
    pub fn create_private(path: &Path) -> Result<Self> {
        Self::create_with(path, Some(0o600))
    }

    /// Writes a complete file and publishes it as [`NewFile::publish`] does. An existing file stays until all bytes are
    /// on the drive.
    ///
    /// # Errors
    /// - Returns the errors of [`NewFile::create`] and [`NewFile::publish`].
    /// - Returns [`Error::Io`] if the bytes cannot be written.
    pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
        Self::create(path)?.written(bytes)?.publish()
    }

    /// Writes and publishes a complete new file that only its owner may read or write. A file must not exist at `path`.
    ///
    /// # Errors
    /// - Returns the errors of [`NewFile::create`] and [`NewFile::publish_new`].
    /// - Returns [`Error::Io`] if the bytes cannot be written.
    pub fn write_whole_private(path: &Path, bytes: &[u8]) -> Result<()> {
        Self::create_private(path)?.written(bytes)?.publish_new()
    }

    fn written(self, bytes: &[u8]) -> Result<Self> {
        self.writer()?.write_all(bytes).map_err(|error| self.error(error))?;
        Ok(self)
    }

    fn create_with(path: &Path, mode: Option<u32>) -> Result<Self> {
        let name = path.display().to_string();
        if path == Path::new("-") {
            return Self::stdout();
        }
        if Self::is_in_place(path) {
            let file = File::options().write(true).open(path);
            return Ok(Self::of_file(&name, file.map_err(|source| Error::io("open it", path, source))?));
        }
        // If `path` is a symbolic link, the target of the link is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let old = fs::metadata(&path).ok();
        if old.as_ref().is_some_and(|old| !old.is_file()) {
            let what = "it exists and is not a plain file, so it cannot be replaced".to_string();
            return Err(Error::BadOutput { file: name, what });
        }
        fs::metadata(folder_of(&path)).map_err(|source| Error::io("open its folder", &name, source))?;
        let mode = mode.unwrap_or_else(|| old.map_or(0o666, |old| old.permissions().mode()));
        let make = || -> io::Result<(Part, NewFileWriter)> {
            let part = Part::create(&path, mode)?;
            let out = NewFileWriter::new(part.file().try_clone()?);
            Ok((part, out))
        };
        let (part, out) = make().map_err(|error| Error::io("create it", &name, system_error(error)))?;
        Ok(NewFile { name, part: Some((part, path)), out })
    }

    /// Returns the name of the file in error messages: the path, or "standard output".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns an unbuffered writer that appends to the file.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if there are too many open files.
    pub fn writer(&self) -> Result<NewFileWriter> {
        self.out.clone_handle().map_err(|source| Error::io("open it", &self.name, source))
    }

    /// Returns the open file, for callers that do not use [`NewFileWriter`].
    ///
    /// # Errors
    /// Returns [`Error::Io`] if there are too many open files.
    pub fn file(&self) -> Result<File> {
        self.out.file.try_clone().map_err(|source| Error::io("open it", &self.name, source))
    }

    /// Returns the folder of the final path, for scratch files in the same folder.
    pub fn folder(&self) -> PathBuf {
        self.part.as_ref().map_or_else(std::env::temp_dir, |(_, path)| folder_of(path).to_path_buf())
    }

    /// Returns the error of a failed write. If no write of [`NewFileWriter`] failed with a system error, the result
    /// contains the error that a library `reported`.
    pub fn error(&self, reported: impl ToString) -> Error {
        match self.out.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(source) => Error::io("write it", &self.name, source),
            None => {
                let what = format!("cannot be written: {}", reported.to_string());
                Error::BadOutput { file: self.name.clone(), what }
            }
        }
    }

    /// Makes the content of the file durable, gives the file its final name, and makes the name durable.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on the file. The old file then still exists,
    /// unless only a step after the renaming failed.
    pub fn publish(self) -> Result<()> {
        self.publish_by(Part::replace)
    }

    /// Publishes the file only if no file exists at the path.
    ///
    /// # Errors
    /// - Returns the errors of [`NewFile::publish`].
    /// - Returns [`Error::Io`] of the kind [`io::ErrorKind::AlreadyExists`] if a file exists at the path.
    pub fn publish_new(self) -> Result<()> {
        self.publish_by(Part::take)
    }

    fn publish_by(self, name_it: impl FnOnce(Part, &Path) -> io::Result<Option<PathBuf>>) -> Result<()> {
        let NewFile { name, part, .. } = self;
        let Some((part, path)) = part else { return Ok(()) };
        let failed = |what: &str, source| Error::io(what, &name, source);
        part.file().sync_all().map_err(|source| failed("sync it", source))?;
        let replaced = name_it(part, &path).map_err(|source| failed("rename its temporary file", source))?;
        sync_folder(folder_of(&path)).map_err(|source| failed("sync its folder", source))?;
        let removed = replaced.map_or(Ok(()), fs::remove_file);
        removed.map_err(|source| failed("remove the file that it replaced", source))
    }
}

/// Removes a file and syncs its folder. On a file system without a journal, the file's space may otherwise be reused
/// while the folder on the drive still contains the file's name.
///
/// # Errors
/// Returns the error of the operating system if the operation fails.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_folder(folder_of(path))
}

/// Creates a folder and its missing parent folders, and syncs all their names. Existing folders are also synced, since
/// the process that created them may have been killed before the sync.
///
/// # Errors
/// Returns the error of the operating system if the operation fails.
pub fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let path = fs::canonicalize(path)?;
    let device = fs::metadata(&path)?.dev();
    for folder in path.ancestors() {
        if fs::metadata(folder)?.dev() != device {
            break;
        }
        match sync_folder(folder) {
            // A folder without read permission belongs to another user, and this process created no names in it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            synced => synced?,
        }
    }
    Ok(())
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// `Part` is a temporary file that does not have its final name yet.
enum Part {
    /// The file has no name, so that no file is left even if the process is killed.
    Unnamed(File),
    /// The file is called `.NAME.RANDOM.part`, since the file system does not support unnamed files. The file is
    /// removed when it is dropped.
    Named(NamedTempFile),
}

impl Part {
    fn create(path: &Path, mode: u32) -> io::Result<Part> {
        let folder = folder_of(path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let unnamed = match Path::new("/proc/self/fd").exists() {
            true => rustix::fs::open(folder, flags, Mode::from_raw_mode(mode)),
            false => Err(Errno::OPNOTSUPP),
        };
        match unnamed {
            Ok(file) => Ok(Part::Unnamed(file.into())),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let part = tempfile::Builder::new()
                    .prefix(&format!(".{file_name}."))
                    .suffix(".part")
                    .permissions(Permissions::from_mode(mode))
                    .tempfile_in(folder)?;
                Ok(Part::Named(part))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn file(&self) -> &File {
        match self {
            Part::Unnamed(file) => file,
            Part::Named(part) => part.as_file(),
        }
    }

    /// Gives the file its final name. If a file of that name exists, the old file gets another name, which is returned.
    fn replace(self, path: &Path) -> io::Result<Option<PathBuf>> {
        let name = match self {
            Part::Unnamed(file) => link_hidden(&file, path)?,
            Part::Named(part) => part.keep().map_err(|error| error.error)?.1,
        };
        let is_replaced = exchange(&name, path).inspect_err(|_| _ = fs::remove_file(&name))?;
        Ok(is_replaced.then_some(name))
    }

    /// Gives the file its final name. If a file of that name exists, the call fails.
    fn take(self, path: &Path) -> io::Result<Option<PathBuf>> {
        match self {
            Part::Unnamed(file) => link(&file, path)?,
            Part::Named(part) => drop(part.persist_noclobber(path).map_err(|error| error.error)?),
        }
        Ok(None)
    }
}

/// Gives an unnamed file a hidden name in the folder of `path`, since a link of an unnamed file cannot replace an
/// existing file.
fn link_hidden(file: &File, path: &Path) -> io::Result<PathBuf> {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    for turn in 0.. {
        let name = folder_of(path).join(format!(".{file_name}.{}-{turn}.part", std::process::id()));
        match link(file, &name) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("some name is free")
}

/// Renames the file `name` to `path`. If a file exists at `path`, both files exchange their names, and the result is
/// true. On a file system without a journal, a replaced file may be freed on the drive before the folder is written.
/// After a power loss, a file system check then finds no file of that name. File systems that cannot exchange names
/// (the ext2 driver, NFS) replace the old file.
fn exchange(name: &Path, path: &Path) -> io::Result<bool> {
    match renameat_with(CWD, name, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(_) => fs::rename(name, path).map(|()| false),
    }
}

/// Gives an unnamed file its first name, and syncs the file again. Without a journal, ext4 and ext2 write the number of
/// a file's names only when the file is synced. After a power loss, a file system check removes a file without names.
fn link(file: &File, name: &Path) -> io::Result<()> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, &unnamed, CWD, name, AtFlags::SYMLINK_FOLLOW)?;
    file.sync_all().inspect_err(|_| _ = fs::remove_file(name))
}

/// Returns the error of the operating system, without the temporary name in its text.
fn system_error(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|wrapped| wrapped.source()?.downcast_ref::<io::Error>());
    match inner.or(Some(&error)).and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// `NewFileWriter` writes a file and stores the last write error, since some libraries keep only the text of an error.
pub struct NewFileWriter {
    file: File,
    failure: Arc<Mutex<Option<io::Error>>>,
    /// The number of bytes that were written to the file. `begun` is the number of those bytes whose transfer to the
    /// drive was started.
    written: u64,
    begun: u64,
}

/// The number of written bytes after which their transfer to the drive is started. Otherwise all bytes would wait for
/// the sync at the end.
const WRITE_BEHIND_BYTES: u64 = 4 << 20;

impl NewFileWriter {
    fn new(file: File) -> Self {
        NewFileWriter { file, failure: Arc::default(), written: 0, begun: 0 }
    }

    fn clone_handle(&self) -> io::Result<Self> {
        Ok(NewFileWriter { failure: self.failure.clone(), ..NewFileWriter::new(self.file.try_clone()?) })
    }

    /// Starts the transfer of written pages to the drive. Linux starts it for pages that are declared as not needed.
    /// The declaration is only a hint, so its errors are ignored.
    fn write_behind(&mut self) {
        if let Some(length) =
            NonZeroU64::new(self.written - self.begun).filter(|n| n.get() >= WRITE_BEHIND_BYTES)
        {
            _ = fadvise(&self.file, self.begun, Some(length), Advice::DontNeed);
            self.begun = self.written;
        }
    }
}

impl Write for NewFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                let copy = error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error);
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
            }
        })?;
        self.written += written as u64;
        self.write_behind();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_private_file_is_private_before_it_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("private");
        fs::write(&path, "old, for all").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let file = NewFile::create_private(&path).unwrap();
        assert_eq!(file.file().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        file.file().unwrap().set_permissions(Permissions::from_mode(0o640)).unwrap();
        file.publish().unwrap();
        assert_eq!(mode(&path), 0o640);
    }

    #[test]
    fn a_new_file_takes_no_name_that_another_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        NewFile::write_whole_private(&path, b"first").unwrap();
        let Error::Io { source, .. } = NewFile::write_whole_private(&path, b"second").unwrap_err() else {
            panic!("an error of the system")
        };
        assert_eq!(source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"first".to_vec(), 0o600));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_replaced_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for text in ["first", "second", "third"] {
            NewFile::write_whole(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn folders_are_made_where_they_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c");
        make_folder(&path).unwrap();
        make_folder(&path).unwrap();
        assert!(path.is_dir());
        fs::write(path.join("file"), "").unwrap();
        assert!(make_folder(&path.join("file/d")).is_err());
    }
}

//! This module walks through a folder that a command writes to or wrote to: to count the bytes, or to remove the
//! files. The command isn't trusted, and may still be running.
//!
//! The walk uses open folders, two at a time: it goes down by name and up by `..`. A path may be longer than the system
//! allows, and a tree may be deeper than the limit of open files or the stack. The walk checks that `..` is the folder
//! that it came from, since a folder may have been moved meanwhile; in this case the walk starts again. Links are never
//! followed, and mounted file systems aren't entered.
//!
//! If we aren't root, commands run as our own user, and can take away our rights to a folder. The walk restores
//! rights that it needs (`granted`), by an open folder and never by the name, which might be a link by then.

use std::{
    ffi::{CStr, CString},
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, chmod, fstat, openat, openat2, statat,
        unlinkat,
    },
    io::{Errno, Result},
};

/// The size of the buffer for the names in a folder.
const NAMES_BYTES: usize = 32 << 10;
/// The largest memory in bytes for the names of folders that are not yet entered while bytes are counted. This is
/// enough for some hundred thousand folders with the longest names, or millions with usual names. A larger tree is an
/// error.
const COUNTING_BYTES_MAX: usize = 64 << 20;
/// The largest number of times that a walk starts again after files were moved or added. The same number limits how
/// often one step of a walk restores rights that a command takes away.
pub const ATTEMPTS: usize = 8;

/// The flags to open a folder as the start of a path. Opening with these flags needs no right to the folder.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Sums the bytes that everything in a folder occupies, links not followed; each entry counts at least 512, so that
/// empty files count too. Stops once the sum exceeds `enough`. Entries that vanish meanwhile count for nothing; any
/// further obstacle is an error. Deleted files that are still open aren't seen.
pub fn occupied_bytes(folder: BorrowedFd<'_>, enough: u64) -> Result<u64> {
    let mut attempts = 0;
    loop {
        let mut count = Count { bytes: 0, enough };
        match walk(folder, COUNTING_BYTES_MAX, &mut count) {
            Err(Errno::STALE) if attempts < ATTEMPTS => attempts += 1,
            walked => return walked.map(|()| count.bytes),
        }
    }
}

/// Removes everything in a folder, links not followed. An entry that can't be removed doesn't keep the rest; the
/// first error is returned.
pub fn empty(folder: BorrowedFd<'_>) -> Result<()> {
    let mut removal = Removal { failed: None };
    // There is no limit of memory: a tree that was too large for counting has to be removed too.
    walk(folder, usize::MAX, &mut removal)?;
    removal.failed.map_or(Ok(()), Err)
}

/// Opens a folder for reading, after restoring rights to the folder if needed.
pub fn listed(folder: BorrowedFd<'_>) -> Result<OwnedFd> {
    granted(folder, || openat(folder, c".", LIST, Mode::empty()))
}

/// Says what a walk does with an entry.
enum WalkAction {
    /// The walk enters the folder.
    Enter,
    Skip,
    /// The walk ends.
    Stop,
}

/// Receives the entries of a walk.
trait Visitor {
    /// Visits an entry of a folder. An error ends the walk.
    fn entry(&mut self, folder: BorrowedFd<'_>, name: &CStr) -> Result<WalkAction>;
    /// Is called when the walk comes back to `folder` from the folder `name`.
    fn left(&mut self, folder: BorrowedFd<'_>, name: &CStr);
    /// Is called when a folder can't be entered or read.
    fn failed(&mut self, error: Errno) -> Result<()>;
}

struct Count {
    bytes: u64,
    enough: u64,
}

impl Visitor for Count {
    fn entry(&mut self, folder: BorrowedFd<'_>, name: &CStr) -> Result<WalkAction> {
        let data = match granted(folder, || statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Err(Errno::NOENT) => return Ok(WalkAction::Skip),
            data => data?,
        };
        self.bytes += (data.st_blocks as u64 * 512).max(512);
        Ok(if self.bytes > self.enough {
            WalkAction::Stop
        } else if FileType::from_raw_mode(data.st_mode).is_dir() {
            WalkAction::Enter
        } else {
            WalkAction::Skip
        })
    }

    fn left(&mut self, _: BorrowedFd<'_>, _: &CStr) {}

    fn failed(&mut self, error: Errno) -> Result<()> {
        // A command can't have mounted a file system there.
        if error == Errno::XDEV { Ok(()) } else { Err(error) }
    }
}

struct Removal {
    /// Holds the first error.
    failed: Option<Errno>,
}

impl Removal {
    fn note(&mut self, removed: Result<()>) {
        if let Err(error) = removed
            && error != Errno::NOENT
        {
            self.failed.get_or_insert(error);
        }
    }
}

impl Visitor for Removal {
    fn entry(&mut self, folder: BorrowedFd<'_>, name: &CStr) -> Result<WalkAction> {
        match granted(folder, || unlinkat(folder, name, AtFlags::empty())) {
            Err(Errno::ISDIR) => Ok(WalkAction::Enter),
            removed => {
                self.note(removed);
                Ok(WalkAction::Skip)
            }
        }
    }

    fn left(&mut self, folder: BorrowedFd<'_>, name: &CStr) {
        self.note(granted(folder, || unlinkat(folder, name, AtFlags::REMOVEDIR)));
    }

    fn failed(&mut self, error: Errno) -> Result<()> {
        self.note(Err(error));
        Ok(())
    }
}

/// Represents a folder on the path to the walk's place.
struct OpenFolder {
    /// Holds the folder's name in the parent.
    name: CString,
    /// Identifies the folder by device and inode.
    id: (u64, u64),
    /// Holds the names of subfolders not yet entered, each with a zero at the end, in one allocation.
    below: Vec<u8>,
    /// Counts the memory that the level took when its folder was read.
    bytes: usize,
}

impl OpenFolder {
    fn next_below(&mut self) -> Option<CString> {
        let end = self.below.len().checked_sub(1)?;
        let start = self.below[..end].iter().rposition(|&byte| byte == 0).map_or(0, |zero| zero + 1);
        let name = CString::from_vec_with_nul(self.below.split_off(start));
        Some(name.expect("written with a zero at its end and none within"))
    }
}

/// Visits everything in a folder, each folder's entries before those of subfolders, within `memory_bytes`.
/// [`Errno::STALE`] says that a folder was moved away with the walk inside.
fn walk(top: BorrowedFd<'_>, memory_bytes: usize, visit: &mut impl Visitor) -> Result<()> {
    let mut buffer = vec![MaybeUninit::uninit(); NAMES_BYTES];
    let mut at =
        top.try_clone_to_owned().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut levels: Vec<OpenFolder> = Vec::new();
    let mut left_bytes = memory_bytes;
    let mut entered = Some(CString::default());
    loop {
        if let Some(name) = entered.take() {
            let Some(level) = read(at.as_fd(), name, left_bytes, &mut buffer, visit)? else { return Ok(()) };
            left_bytes -= level.bytes;
            levels.push(level);
        }
        let level = levels.last_mut().expect("returns with the last one");
        if let Some(name) = level.next_below() {
            match enter(at.as_fd(), &name) {
                Ok(below) => (at, entered) = (below, Some(name)),
                Err(error) if gone(error) => {}
                Err(error) => visit.failed(error)?,
            }
            continue;
        }
        let left = levels.pop().expect("as above");
        left_bytes += left.bytes;
        let Some(parent) = levels.last() else { return Ok(()) };
        at = above(at.as_fd(), parent.id)?;
        visit.left(at.as_fd(), &left.name);
    }
}

/// Visits the entries of a folder, and keeps the subfolders; `None` if a visit ended the walk.
fn read(
    folder: BorrowedFd<'_>,
    name: CString,
    memory_bytes: usize,
    buffer: &mut [MaybeUninit<u8>],
    visit: &mut impl Visitor,
) -> Result<Option<OpenFolder>> {
    let own_bytes = size_of::<OpenFolder>() + name.as_bytes_with_nul().len();
    if own_bytes > memory_bytes {
        return Err(Errno::NOMEM);
    }
    let mut level = OpenFolder { name, id: id(folder)?, below: Vec::new(), bytes: own_bytes };
    let open = match listed(folder) {
        Ok(open) => open,
        Err(error) if gone(error) => return Ok(Some(level)),
        Err(error) => {
            visit.failed(error)?;
            return Ok(Some(level));
        }
    };
    let mut entries = RawDir::new(&open, buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            // The folder was removed.
            Err(error) if gone(error) => break,
            Err(error) => {
                visit.failed(error)?;
                break;
            }
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match visit.entry(folder, name)? {
            WalkAction::Enter => level.below.extend_from_slice(name.to_bytes_with_nul()),
            WalkAction::Skip => {}
            WalkAction::Stop => return Ok(None),
        }
        if own_bytes + level.below.len() > memory_bytes {
            return Err(Errno::NOMEM);
        }
        level.bytes = own_bytes + level.below.len();
    }
    Ok(Some(level))
}

/// Opens a subfolder, and nothing else that the name may mean by now.
fn enter(folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let inside = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    granted(folder, || openat2(folder, name, PLACE, Mode::empty(), inside))
}

/// Opens the parent folder, which has to be the expected one.
fn above(folder: BorrowedFd<'_>, expected: (u64, u64)) -> Result<OwnedFd> {
    match granted(folder, || openat(folder, c"..", PLACE, Mode::empty())) {
        Ok(parent) if id(parent.as_fd())? == expected => Ok(parent),
        Ok(_) | Err(Errno::NOENT) => Err(Errno::STALE),
        Err(error) => Err(error),
    }
}

/// Returns device and inode of an open file.
pub fn id(open: BorrowedFd<'_>) -> Result<(u64, u64)> {
    fstat(open).map(|data| (data.st_dev, data.st_ino))
}

/// Tells whether the error means that a folder has vanished: its name is free, or belongs to another kind of file.
fn gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Does something in a folder. If that is refused, gives the folder's owner all rights to it and tries again, several
/// times if a command takes the rights away just then. (A user who is neither the owner nor root can't give rights.)
fn granted<T>(folder: BorrowedFd<'_>, act: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..ATTEMPTS {
        match act() {
            Err(Errno::ACCESS) => {}
            result => return result,
        }
        let mode = Mode::from_raw_mode(fstat(folder)?.st_mode) | Mode::RWXU;
        // `fchmod` would not do: it takes no folder that was opened without a right to it.
        chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), mode).map_err(|_| Errno::ACCESS)?;
    }
    act()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::Path,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    fn place(path: &Path) -> OwnedFd {
        openat(rustix::fs::CWD, path, PLACE, Mode::empty()).unwrap()
    }

    #[test]
    fn as_many_bytes_are_counted_as_a_plain_walk_finds() {
        fn plain(folder: &Path) -> u64 {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
            let bytes = |entry: fs::DirEntry| {
                let data = entry.metadata().unwrap();
                let below = if data.is_dir() { plain(&entry.path()) } else { 0 };
                (std::os::unix::fs::MetadataExt::blocks(&data) * 512).max(512) + below
            };
            entries.map(bytes).sum()
        }
        let top = tempfile::tempdir().unwrap();
        for folder in ["a/b/c", "a/d", "e", "f/g/h/i"] {
            let folder = top.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            for file in 0..50 {
                fs::write(folder.join(format!("{file}")), vec![1; file * 999]).unwrap();
            }
        }
        std::os::unix::fs::symlink("/", top.path().join("a/link")).unwrap();
        let expected = plain(top.path());
        let open = place(top.path());
        assert_eq!(occupied_bytes(open.as_fd(), u64::MAX), Ok(expected));
        assert_eq!(occupied_bytes(open.as_fd(), expected), Ok(expected));
        let enough = occupied_bytes(open.as_fd(), 10_000).unwrap();
        assert!(enough > 10_000 && enough < expected, "{enough} of {expected}");
    }

    #[test]
    fn a_walk_over_its_memory_limit_is_an_error() {
        let top = tempfile::tempdir().unwrap();
        for folder in 0..100 {
            fs::create_dir(top.path().join(format!("{folder:0200}"))).unwrap();
        }
        let mut count = Count { bytes: 0, enough: u64::MAX };
        let open = place(top.path());
        assert_eq!(walk(open.as_fd(), 100 * 201, &mut count), Err(Errno::NOMEM));
        // The memory is for the subfolders, and for two levels: the top and a subfolder.
        assert_eq!(walk(open.as_fd(), 101 * 201 + 2 * size_of::<OpenFolder>() + 1, &mut count), Ok(()));
    }

    #[test]
    fn a_folder_moved_during_the_walk_does_not_lead_outside() {
        let place_of_all = tempfile::tempdir().unwrap();
        let [top, outside] = ["top", "outside"].map(|name| place_of_all.path().join(name));
        let others: Vec<String> = (0..20).map(|number| format!("other{number}")).collect();
        for other in &others {
            fs::create_dir_all(outside.join(other)).unwrap();
            fs::write(outside.join(other).join("kept"), "").unwrap();
        }
        let mut moved = 0;
        for _ in 0..100 {
            for folder in others.iter().map(String::as_str).chain(["moved", "moved/below"]) {
                fs::create_dir_all(top.join(folder)).unwrap();
            }
            for file in 0..200 {
                fs::write(top.join("moved/below").join(file.to_string()), "").unwrap();
            }
            let open = place(&top);
            let over = AtomicBool::new(false);
            let emptied = thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let _ = fs::rename(top.join("moved"), outside.join("moved"));
                        let _ = fs::rename(outside.join("moved"), top.join("moved"));
                    }
                });
                let emptied = empty(open.as_fd());
                over.store(true, Ordering::Relaxed);
                emptied
            });
            moved += usize::from(emptied == Err(Errno::STALE));
            let kept = others.iter().filter(|other| outside.join(other).join("kept").exists()).count();
            assert_eq!(kept, others.len());
        }
        println!("{moved} of 100 walks were led elsewhere");
    }
}

//! This module walks through the folder of a command, to count the bytes in the folder or to remove its files. The
//! command writes to the folder, isn't trusted, and may still be running.
//!
//! The walk opens at most two folders at a time. It enters a subfolder by the subfolder's name, and returns to the
//! parent by `..`. It uses neither full paths nor recursion, since a path may be longer than the system allows,
//! and a tree may be deeper than the stack or the limit of open files. The walk checks that `..` is the folder
//! from which it came, since a folder may have been moved meanwhile. In this case the walk starts again. Links are
//! never followed, and mounted file systems aren't entered.
//!
//! If this process isn't root, commands run as the same user, and can remove this user's rights to a folder. The
//! function `granted` restores the rights that the walk needs. It uses the open folder and never the folder's
//! name, since the name may refer to a link by then.

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

/// The size in bytes of the buffer into which the names in a folder are read.
const NAMES_BYTES: usize = 32 << 10;
/// The largest memory in bytes for the names of folders that are not yet entered while bytes are counted. This is
/// enough for some hundred thousand folders with the longest names, or for millions of folders with usual names. A
/// larger tree is an error.
const COUNTING_BYTES_MAX: usize = 64 << 20;
/// The largest number of times that a walk starts again after files were moved or added. The same number limits
/// how often one step of a walk restores rights that a command removes.
pub const ATTEMPTS: usize = 8;

/// The flags to open a folder as the start of a path. Opening with these flags needs no right to the folder.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Sums the bytes that all files and folders in a folder occupy. Links are not followed. Each entry counts at
/// least 512 bytes, so that empty files count too. The walk stops once the sum exceeds `enough`. Entries that
/// vanish meanwhile do not count. Any other obstacle is an error. Deleted files that are still open do not count.
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

/// Removes all files and folders in a folder. Links are not followed. If an entry can't be removed, the walk
/// continues with the next entry, and the first error is returned at the end.
pub fn empty(folder: BorrowedFd<'_>) -> Result<()> {
    let mut removal = Removal { failed: None };
    // The memory is not limited, since a tree that was too large for counting has to be removed too.
    walk(folder, usize::MAX, &mut removal)?;
    removal.failed.map_or(Ok(()), Err)
}

/// Opens a folder to list its entries. If rights to the folder are missing, they are restored first.
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
        // A mounted file system (`XDEV`) is not counted, since the command can't have mounted it.
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

/// Represents a folder on the path from the top folder to the folder that the walk is visiting.
struct OpenFolder {
    /// Holds the folder's name in the parent.
    name: CString,
    /// Identifies the folder by device and inode.
    id: (u64, u64),
    /// Holds the names of the subfolders that are not yet entered, in one allocation. Each name ends with a zero
    /// byte.
    below: Vec<u8>,
    /// Counts the bytes of memory that this value took when the folder was read.
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

/// Visits all entries of a folder and of its subfolders. The entries of a folder come before those of its
/// subfolders. The walk takes at most `memory_bytes`. [`Errno::STALE`] means that a folder was moved while the
/// walk was inside the folder.
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

/// Visits the entries of a folder, and returns the folder with the names of its subfolders. Returns `None` if a visit
/// ended the walk.
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

/// Opens a subfolder by its name. If the name refers to a link or another file by now, this is an error.
fn enter(folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let inside = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    granted(folder, || openat2(folder, name, PLACE, Mode::empty(), inside))
}

/// Opens the parent folder, and checks that it is the expected folder.
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

/// Returns true if the error means that a folder has vanished: its name is free, or belongs to another kind of
/// file.
fn gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Calls `act`, which accesses a folder. If access is denied, gives the folder's owner all rights to the folder,
/// and calls `act` again. This is repeated up to [`ATTEMPTS`] times, since a command may remove the rights again
/// meanwhile. (A user who is neither the owner nor root can't give rights.)
fn granted<T>(folder: BorrowedFd<'_>, act: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..ATTEMPTS {
        match act() {
            Err(Errno::ACCESS) => {}
            result => return result,
        }
        let mode = Mode::from_raw_mode(fstat(folder)?.st_mode) | Mode::RWXU;
        // `fchmod` does not work here, since it refuses a folder that was opened without any right to the folder
        // (`O_PATH`).
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
        // This memory suffices for the names of the subfolders, and for two open folders: the top and a subfolder.
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

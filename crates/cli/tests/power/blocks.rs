//! Simulates power losses under ext4. The image of the ext4 file system is a file on a [`Disk`], which records the
//! kernel's writes and flushes.
//!
//! ```text
//!   command ── files ── ext4 ── loop device ── image ── FUSE ── Disk
//!                                                                │
//!            one image for each power loss: all blocks that a flush made durable, and any of the other blocks
//!                                                                │
//!              with a journal: mounted            without: checked by e2fsck, then mounted
//! ```
//!
//! The kernel's ext4 driver itself finds the files in each state. The simulation therefore makes no assumption about
//! the order in which a file system writes names and files.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::Command,
};

use tempfile::TempDir;

use super::{
    disk::Disk,
    losses::Recording,
    tree::{self, Files},
};

/// The name of the image on its drive.
const IMAGE: &str = "image";
/// The smallest image with room for a journal and the files of commands.
const IMAGE_BYTES: u64 = 8 << 20;
/// The size of a block. Blocks are small, so that as few names, files and inodes as possible reach the drive in one
/// write.
const BLOCK_BYTES: usize = 1024;

/// Tells whether the file system has a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    With,
    Without,
}

/// An ext4 file system on a drive that records all writes.
pub struct Ext4 {
    mounted: Mounted,
    disk: Disk,
    old: Files,
}

impl Ext4 {
    /// Creates and mounts a file system with these files. The file `report` is outside of this file system, next to the
    /// image on the same drive.
    ///
    /// # Errors
    /// Fails without FUSE or loop devices, or if this process has no right to mount.
    pub fn mount(files: &Files, report: &str, journal: Journal) -> io::Result<Ext4> {
        let image = image_of(files, journal)?;
        let drive = [(IMAGE, image), (report, Vec::new())];
        let drive = drive.map(|(name, bytes)| (name.to_string(), tree::File { mode: 0o600, bytes }));
        let disk = Disk::mount(&drive.into(), true)?;
        let mounted = Mounted::new(&disk.join(IMAGE))?;
        rustix::fs::syncfs(File::open(mounted.path())?)?;
        let old = files_in(mounted.path())?;
        Ok(Ext4 { mounted, disk, old })
    }

    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Opens a file on the drive, outside of the ext4 file system.
    pub fn beside(&self, name: &str) -> io::Result<File> {
        File::options().write(true).open(self.disk.join(name))
    }

    /// Begins the recording, and returns the content of the drive at this time.
    pub fn begin(&self) -> tree::Tree {
        let mut content = self.disk.content();
        content.changes.clear();
        content.tree.clone()
    }

    /// Returns the recording: the changes of blocks since [`Ext4::begin`], which returned `before`, and the resulting
    /// files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub fn recording(&self, before: tree::Tree, report: &str) -> io::Result<Recording> {
        let changes = self.disk.content().changes.clone();
        let new = files_in(self.path())?;
        let changes = changes.into_iter().flat_map(|change| change.pieces(BLOCK_BYTES)).collect();
        Ok(Recording::of_blocks(before, changes, report, self.old.clone(), new))
    }

    /// Mounts the image of a drive, and returns the files that ext4 finds.
    ///
    /// # Errors
    /// Fails if the drive has no file system.
    pub fn look(scratch: &Path, drive: &Files, journal: Journal) -> Result<Files, String> {
        let look = || -> io::Result<Files> {
            // Each image is a new file, since the loop device of the previous image may still exist for a while, with
            // cached data.
            let image = tempfile::NamedTempFile::new_in(scratch)?;
            fs::write(image.path(), &drive[IMAGE].bytes)?;
            if journal == Journal::Without {
                check(image.path())?;
            }
            let mounted = Mounted::new(image.path())?;
            files_in(mounted.path())
        };
        look().map_err(|error| error.to_string())
    }
}

/// Creates a folder for images, in memory if possible.
///
/// # Errors
/// Returns an error if a folder cannot be created.
pub fn scratch() -> io::Result<TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// Returns the image of a file system with these files.
fn image_of(files: &Files, journal: Journal) -> io::Result<Vec<u8>> {
    let scratch = scratch()?;
    let (image, content) = (scratch.path().join("image"), scratch.path().join("content"));
    fs::create_dir(&content)?;
    fs::set_permissions(&content, fs::Permissions::from_mode(0o755))?;
    chown(&content, Some(0), Some(0))?;
    for (path, file) in files {
        let path = content.join(path);
        fs::create_dir_all(path.parent().expect("it is in the folder"))?;
        fs::write(&path, &file.bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    File::create(&image)?.set_len(IMAGE_BYTES)?;
    let features = match journal {
        Journal::With => "has_journal",
        Journal::Without => "^has_journal",
    };
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-m0", "-N256", "-b", &BLOCK_BYTES.to_string(), "-O", features, "-d"]);
    done(mkfs.arg(&content).arg(&image), |code| code == 0)?;
    fs::read(&image)
}

/// Checks and repairs a file system, as a machine does when it starts after a power loss.
fn check(image: &Path) -> io::Result<()> {
    // Exit code 1 means that e2fsck repaired the file system.
    done(Command::new("e2fsck").args(["-f", "-y"]).arg(image), |code| code <= 1)
}

fn done(command: &mut Command, is_well: impl Fn(i32) -> bool) -> io::Result<()> {
    let output = command.output().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        io::Error::new(error.kind(), format!("{program}: {error}"))
    })?;
    match output.status.code() {
        Some(code) if is_well(code) => Ok(()),
        _ => Err(io::Error::other(format!("{command:?}: {output:?}"))),
    }
}

/// An image that is mounted through a loop device. The image is unmounted on drop.
struct Mounted(TempDir);

impl Mounted {
    fn new(image: &Path) -> io::Result<Mounted> {
        let point = tempfile::tempdir()?;
        done(
            Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(image).arg(point.path()),
            |code| code == 0,
        )?;
        Ok(Mounted(point))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failing test may have files open.
        if done(Command::new("umount").arg(self.path()), |code| code == 0).is_err() {
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
    }
}

/// Returns all files in a folder, except files without a name, which a check of the file system moves to lost+found.
fn files_in(top: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    let mut folders = vec![(top.to_path_buf(), String::new())];
    while let Some((folder, above)) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = format!("{above}{}", entry.file_name().to_string_lossy());
            let facts = entry.metadata()?;
            if facts.is_dir() && path != "lost+found" {
                folders.push((entry.path(), path + "/"));
            } else if facts.is_file() {
                let bytes = fs::read(entry.path())?;
                files.insert(path, tree::File { mode: facts.permissions().mode() & 0o7777, bytes });
            }
        }
    }
    Ok(files)
}

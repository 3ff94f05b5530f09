//! A command's folder, seen from outside: how much it occupies, and what was left in it. Whoever writes there isn't trusted.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use crate::{Error, Result};

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

/// Bytes that everything in a folder occupies, links not followed; at least 512 for each, so that empty files count too.
/// Stops once there are more than `enough`. What vanishes meanwhile counts for nothing.
pub(crate) fn occupied_bytes(folder: &Path, enough: u64) -> io::Result<u64> {
    let mut bytes = 0;
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let Ok(data) = entry.metadata() else { continue };
            bytes += (data.blocks() * 512).max(512);
            if bytes > enough {
                return Ok(bytes);
            }
            if data.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(bytes)
}

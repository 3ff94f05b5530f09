//! How much a folder occupies.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

/// Bytes that everything in a folder occupies, links not followed; at least 512 for each, so that empty files count too.
/// Stops once there are more than `enough`. What vanishes meanwhile counts for nothing.
pub fn occupied_bytes(folder: &Path, enough: u64) -> io::Result<u64> {
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

//! A job's scratch folder, which outlives no job.
//!
//! ```text
//!   STORE/scratch/lock            held while a job's folder is made and while dead ones are removed
//!   STORE/scratch/PID-RANDOM/     one for each job
//!   STORE/scratch/PID-RANDOM/lock held by the job as long as it lives
//! ```
//!
//! A lock (`flock`) ends with the process that holds it, however it ends. So a folder whose lock can be taken
//! belongs to a dead job and is removed at the start of the next one; the folders of living jobs are not touched.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::{Error, Result};

/// The scratch folder of one job; removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Removes what dead jobs left in `root`, then makes a folder there for a new job.
    pub(crate) fn create(root: &Path) -> Result<Scratch> {
        let guard = open_lock(&root.join("lock"))?;
        flock(&guard, FlockOperation::LockExclusive)
            .map_err(|error| Error::io("lock", root.join("lock"), error.into()))?;
        remove_dead(root)?;
        let path = root.join(format!("{}-{:016x}", std::process::id(), random_u64()));
        fs::create_dir(&path).map_err(|error| Error::io("create folder", &path, error))?;
        let lock = open_lock(&path.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| Error::io("lock", path.join("lock"), error.into()))?;
        Ok(Scratch { path, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next job.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn open_lock(path: &Path) -> Result<File> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| Error::io("open", path, error))
}

fn remove_dead(root: &Path) -> Result<()> {
    let read = |error| Error::io("list", root, error);
    for entry in fs::read_dir(root).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.is_dir() && is_dead(&path)? {
            match fs::remove_dir_all(&path) {
                // A job that ends removes its folder without asking.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed.map_err(|error| Error::io("remove", &path, error))?,
            }
        }
    }
    Ok(())
}

/// Whether nobody holds the lock of a job's folder. A folder without one is of a job that died between two
/// system calls, since the lock of `root` is held here.
fn is_dead(folder: &Path) -> Result<bool> {
    match File::options().write(true).open(folder.join("lock")) {
        Ok(lock) => Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Error::io("open", folder.join("lock"), error)),
    }
}

/// Eight random bytes of the system's.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("the system has random bytes for whoever asks for eight");
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scratch_of_the_dead_goes_and_that_of_the_living_stays() {
        let root = tempfile::tempdir().unwrap();
        let living = Scratch::create(root.path()).unwrap();
        fs::write(living.path().join("run"), "alive").unwrap();
        let dead = root.path().join("1-dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("lock"), "").unwrap();
        fs::write(dead.join("run"), "dead").unwrap();
        let torn = root.path().join("1-torn");
        fs::create_dir(&torn).unwrap();

        let second = Scratch::create(root.path()).unwrap();
        assert!(living.path().join("run").exists());
        assert!(!dead.exists() && !torn.exists());
        let path = second.path().to_path_buf();
        drop(second);
        assert!(!path.exists() && living.path().exists());
    }
}

//! `inshore store mount`: shows the datasets as files of a read-only file system.
//!
//! ```text
//!   kernel ── /dev/fuse ── session threads ── MountedFiles ── Tree     numbers and names
//!                                               ├──── Cache    extents in memory, read ahead
//!                                               └──── Store
//! ```
//!
//! The job's budget covers the [`Cache`](cache::Cache), one buffer for each thread, and the state of open files. The
//! kernel has a page cache of its own, which it shrinks when memory is short.
//!
//! FUSE was chosen over NFS and 9P, since FUSE needs only one mount call and no network. With fusermount3, any user may
//! mount.

mod cache;
mod tree;
mod view;

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use inshore::store::{Cancel, Error, format_bytes};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::{getgid, getuid},
};

use crate::{
    args,
    job::session::Session,
    report::outcome::{Outcome, say},
};
use cache::SLOT_BYTES;
use tree::Owner;
use view::{MountStatistics, MountedFiles, REQUEST_BYTES};

/// The number of threads that answer the kernel. The threads mostly wait for the drive, so their number limits the
/// number of small reads in flight.
const THREADS: usize = 8;
/// The number of slots in the cache. A sequential reader needs two slots: one from which it reads, and one for
/// read-ahead. More than 32 slots do not help, since the kernel has a cache too.
const SLOTS: std::ops::RangeInclusive<u64> = 2..=32;
/// The memory for the state of open files.
const OPEN_BYTES: u64 = 512 << 10;
/// The smallest budget, the same as for every other job.
const SMALLEST_BYTES: u64 = 8 << 20;
/// The interval between two checks for the end of the mount or of the command.
const TICK: Duration = Duration::from_millis(20);
/// The time that other processes get to close their files after Ctrl-C.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn mount(session: &Session, arguments: &args::Mount) -> Result<()> {
    let place = arguments.mountpoint.display();
    check_mountpoint(&arguments.mountpoint)?;
    let mountpoint =
        arguments.mountpoint.canonicalize().with_context(|| format!("cannot mount at {place}"))?;
    let mut run = session.start()?;
    let slots = slots(run.job.budget().memory_bytes())?;
    let owner = Owner { uid: getuid().as_raw(), gid: getgid().as_raw() };
    let view = MountedFiles::new(session.store()?, &run.job, slots, THREADS, owner)?;
    let served = view.served();
    let mounted = fuser::Session::new(view, &mountpoint, &config(arguments))
        .and_then(fuser::Session::spawn)
        .with_context(|| cannot_mount(&mountpoint))?;
    if !session.options.quiet && !session.options.json {
        say(&format!("{} is mounted at {place}; Ctrl-C unmounts it", session.store()?.path().display()));
    }
    serve(mounted, &mountpoint, run.job.cancel())?;
    let served = *served.lock().expect("no panic under this lock");
    let outcome = Outcome::new("store mount", run.finish(), served, sentence(&served));
    Ok(outcome.tell(&session.options)?)
}

fn sentence(served: &MountStatistics) -> String {
    let failed = match served.reads_failed {
        0 => String::new(),
        failed => format!(", {failed} reads failed"),
    };
    format!(
        "unmounted: {} files opened, {} read{failed}",
        served.files_opened,
        format_bytes(served.bytes_served)
    )
}

fn config(arguments: &args::Mount) -> Config {
    let mut config = Config::default();
    let name = MountOption::FSName("inshore".into());
    config.mount_options = vec![name, MountOption::RO, MountOption::NoAtime, MountOption::DefaultPermissions];
    config.acl = if arguments.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config
}

/// Returns the number of cache slots that a budget of this size allows.
fn slots(budget_bytes: u64) -> Result<usize, Error> {
    if budget_bytes < SMALLEST_BYTES {
        let what = "store mount".to_string();
        return Err(Error::BudgetTooSmall { what, given: budget_bytes, smallest: SMALLEST_BYTES });
    }
    let free = budget_bytes - OPEN_BYTES - (THREADS * REQUEST_BYTES) as u64;
    Ok((free / SLOT_BYTES as u64).clamp(*SLOTS.start(), *SLOTS.end()) as usize)
}

/// Refuses a mountpoint that is not an empty folder, and fails if the machine has no FUSE.
fn check_mountpoint(mountpoint: &Path) -> Result<()> {
    let place = mountpoint.display();
    match fs::metadata(mountpoint) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => bail!("{place}: not a folder: expected an empty one"),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => bail!("{place}: no such folder: create it first"),
            io::ErrorKind::NotConnected => {
                bail!(
                    "{place}: a stale mount, whose command has ended: unmount it with fusermount3 -u {place}"
                )
            }
            _ => return Err(error).with_context(|| format!("cannot mount at {place}")),
        },
    }
    let mut entries = fs::read_dir(mountpoint).with_context(|| format!("cannot list {place}"))?;
    if let Some(entry) = entries.next() {
        let name = entry.with_context(|| format!("cannot list {place}"))?.file_name();
        bail!(
            "{place}: the folder is not empty (it has {:?}): expected an empty folder",
            name.to_string_lossy()
        );
    }
    if let Err(error) = fs::metadata("/dev/fuse") {
        bail!("/dev/fuse: {error}: load the kernel's module fuse, or give this container the device");
    }
    Ok(())
}

fn cannot_mount(mountpoint: &Path) -> String {
    let place = mountpoint.display();
    match getuid().is_root() {
        true => format!("cannot mount at {place}"),
        false => {
            format!("cannot mount at {place}: users need the permission to open /dev/fuse, and fusermount3")
        }
    }
}

/// Waits until another program unmounts the file system, or the command is cancelled. In the second case, unmounts the
/// file system.
fn serve(mounted: BackgroundSession, mountpoint: &Path, cancel: &Cancel) -> Result<()> {
    let device = fs::metadata(mountpoint).map(|root| root.dev()).ok();
    while !mounted.guard.is_finished() {
        if cancel.is_cancelled() {
            return stop(mounted, mountpoint, device);
        }
        thread::sleep(TICK);
    }
    mounted.join().context("the file system failed")
}

/// Detaches the mount from its folder, and waits a short time until other processes have closed their files. After the
/// end of this process, reads of files that are still open fail.
fn stop(mounted: BackgroundSession, mountpoint: &Path, device: Option<u64>) -> Result<()> {
    let place = mountpoint.display();
    // The device number is compared, since another process may have unmounted this file system and mounted a different
    // one.
    if device.is_some() && fs::metadata(mountpoint).map(|root| root.dev()).ok() == device {
        detach(mountpoint).with_context(|| format!("cannot unmount {place}"))?;
    }
    let asked = Instant::now();
    while !mounted.guard.is_finished() {
        if asked.elapsed() > PATIENCE {
            say(&format!("note: files of {place} are still open; further reads will fail"));
            // The session is not dropped: its drop would unmount once more, and the mountpoint may belong to another
            // mount.
            std::mem::forget(mounted);
            return Ok(());
        }
        thread::sleep(TICK);
    }
    mounted.join().context("the file system failed")
}

fn detach(mountpoint: &Path) -> Result<()> {
    match unmount(mountpoint, UnmountFlags::DETACH) {
        // Only root may unmount directly. For other users, the code below runs fusermount3.
        Err(rustix::io::Errno::PERM) => {}
        result => return Ok(result?),
    }
    let ask = |program| {
        let mut command = Command::new(program);
        command.args(["-u", "-z", "--"]).arg(mountpoint).stdin(Stdio::null()).status()
    };
    let status = ask("fusermount3").or_else(|_| ask("fusermount"))?;
    if status.success() { Ok(()) } else { bail!("fusermount3 ended with {status}") }
}

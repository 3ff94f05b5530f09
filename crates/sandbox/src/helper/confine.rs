//! What the task's process gives up before it is the task. In this order: what needs rights first, then the rights, then
//! files and system calls.

use std::{fs, io, os::unix::fs::OpenOptionsExt};

use super::{calls, files};
use crate::{
    Protection, Protections,
    channel::{Confinement, Failure},
    sys,
};

/// What the helper found and did.
pub struct Outside {
    /// Whether it is root.
    pub root: bool,
    /// Whether there are new namespaces, or why not.
    pub namespaces: Result<(), String>,
}

/// The protections that are active, and why others are not.
struct Active {
    wanted: Protections,
    active: Protections,
    reasons: Vec<(Protection, String)>,
}

impl Active {
    /// Does something if it's wanted, and notes what came of it.
    fn attempt(&mut self, one: Protection, act: impl FnOnce() -> Result<(), String>) {
        if !self.wanted.contains(one) || self.active.contains(one) {
            return;
        }
        match act() {
            Ok(()) => self.active = self.active.with(one),
            Err(reason) => self.reasons.push((one, reason)),
        }
    }

    /// The first that is required and not active.
    fn missing(&self, required: Protections) -> Option<Failure> {
        let missing = required.iter().find(|one| !self.active.contains(*one))?;
        let mut reasons =
            self.reasons.iter().filter(|(one, _)| *one == missing).map(|(_, reason)| reason.clone());
        Some(Failure::missing(
            missing,
            reasons.next().unwrap_or_else(|| "the policy doesn't want it".to_string()),
        ))
    }
}

/// Gives up everything, for ever, and says which protections that makes.
pub fn confine(order: &Confinement, outside: &Outside) -> Result<Protections, Failure> {
    let system = |what| move |error: io::Error| Failure::system(what, &error);
    let mut active = Active { wanted: order.wanted, active: Protections::NONE, reasons: Vec::new() };
    let changes_user = outside.root && order.wanted.contains(Protection::User);

    sys::new_session().map_err(system("make a session"))?;
    join_groups(order, &mut active);
    if changes_user && order.program.is_some() {
        give_folder(order)?;
    }
    limit_resources(order).map_err(system("limit resources"))?;
    if changes_user {
        sys::become_user(order.user, order.group).map_err(system("become another user"))?;
    }
    active.attempt(Protection::User, || match sys::user() {
        0 => Err("we are root, and are to stay that".to_string()),
        _ => Ok(()),
    });
    active.attempt(Protection::Network, || outside.namespaces.clone());
    active.attempt(Protection::Processes, || {
        count_processes(order.processes).map_err(|error| error.to_string())
    });
    sys::drop_capabilities().map_err(system("drop capabilities"))?;
    sys::no_new_privileges().map_err(system("forgo new privileges"))?;
    std::env::set_current_dir(&order.folder)
        .map_err(|error| Failure::path("work in this folder", &order.folder, &error))?;

    let mut no_signals = false;
    if order.wanted.contains(Protection::Files) {
        let rules = files::Rules::open(order)?;
        active.attempt(Protection::Files, || rules.enforce().map(|signals| no_signals = signals));
    }
    active.attempt(Protection::Descendants, || match &outside.namespaces {
        Err(reason) if !changes_user && !no_signals => {
            Err(format!("no namespace ({reason}), and the helper could be killed"))
        }
        _ => Ok(()),
    });
    sys::reset_signals();
    let calls = if order.program.is_some() { calls::Calls::OfPrograms } else { calls::Calls::OfModules };
    active.attempt(Protection::Calls, || calls.enforce());
    match active.missing(order.required) {
        Some(failure) => Err(failure),
        None => Ok(active.active),
    }
}

/// The cgroups: of us, whose children are then in them too.
fn join_groups(order: &Confinement, active: &mut Active) {
    let joined: io::Result<Vec<()>> = order.groups.iter().map(|file| fs::write(file, "0")).collect();
    for one in [Protection::Memory, Protection::Processes] {
        if order.group_protections.contains(one) {
            active.attempt(one, || joined.as_ref().map(drop).map_err(|error| error.to_string()));
        } else if one == Protection::Memory {
            active.attempt(one, || Err("no cgroup could be made".to_string()));
        }
    }
}

/// The working folder becomes the user's. Never through a link, which someone else might have put there.
fn give_folder(order: &Confinement) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::path("give this folder to the command's user", &order.folder, &error);
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = fs::File::options().read(true).custom_flags(flags).open(&order.folder).map_err(failed)?;
    std::os::unix::fs::fchown(&folder, Some(order.user), Some(order.group)).map_err(failed)
}

/// What `setrlimit` knows, each for every process alone.
fn limit_resources(order: &Confinement) -> io::Result<()> {
    for (resource, bytes) in [(libc::RLIMIT_AS, order.address_bytes), (libc::RLIMIT_DATA, order.data_bytes)] {
        if let Some(bytes) = bytes {
            sys::limit(resource, bytes, bytes)?;
        }
    }
    // A second after the signal that says so comes the one that can't be ignored.
    sys::limit(libc::RLIMIT_CPU, order.cpu_seconds, order.cpu_seconds.saturating_add(1))?;
    sys::limit(libc::RLIMIT_FSIZE, order.file_bytes, order.file_bytes)?;
    sys::limit(libc::RLIMIT_NOFILE, order.open_files, order.open_files)?;
    for none in [
        libc::RLIMIT_CORE,
        libc::RLIMIT_MEMLOCK,
        libc::RLIMIT_MSGQUEUE,
        libc::RLIMIT_NICE,
        libc::RLIMIT_RTPRIO,
    ] {
        sys::limit(none, 0, 0)?;
    }
    Ok(())
}

/// In a user namespace of our own only our own processes count.
fn count_processes(processes: u64) -> io::Result<()> {
    let (user, group) = (sys::user(), sys::group());
    if user == 0 {
        return Err(io::Error::other("no limit of processes holds for root"));
    }
    sys::unshare(libc::CLONE_NEWUSER)?;
    // Having changed our user, our own files in /proc are root's, but for as long as this says otherwise.
    sys::dumpable(true)?;
    map_user(user, group)?;
    sys::dumpable(false)?;
    sys::limit(libc::RLIMIT_NPROC, processes, processes)
}

/// In a user namespace that we just entered: the same user and group as outside, and no other.
pub fn map_user(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

//! This module confines the task's process before the task starts. First come the steps that need rights. Then the
//! process gives up its rights. Finally, access to files and system calls is restricted.

use std::{fs, io, os::unix::fs::OpenOptionsExt};

use super::{calls, files};
use crate::{
    Protection, Protections,
    channel::{Confinement, Failure},
    sys,
};

/// Reports the state of the helper outside the sandbox.
pub struct Outside {
    /// Says whether the helper is root.
    pub root: bool,
    /// Is an error with the reason if the helper could not make new namespaces.
    pub namespaces: Result<(), String>,
}

/// Collects the active protections, and the reasons why other wanted protections are not active.
struct Active {
    wanted: Protections,
    active: Protections,
    reasons: Vec<(Protection, String)>,
}

impl Active {
    /// Sets up a protection if it is wanted, and records the result.
    fn attempt(&mut self, one: Protection, act: impl FnOnce() -> Result<(), String>) {
        if !self.wanted.contains(one) || self.active.contains(one) {
            return;
        }
        match act() {
            Ok(()) => self.active = self.active.with(one),
            Err(reason) => self.reasons.push((one, reason)),
        }
    }

    /// Returns the failure for the first required protection that is not active.
    fn missing(&self, required: Protections) -> Option<Failure> {
        let missing = required.iter().find(|one| !self.active.contains(*one))?;
        let mut reasons =
            self.reasons.iter().filter(|(one, _)| *one == missing).map(|(_, reason)| reason.clone());
        Some(Failure::missing(
            missing,
            reasons.next().unwrap_or_else(|| "the policy does not list it as wanted".to_string()),
        ))
    }
}

/// Gives up all rights, for ever, and returns the protections that are then active.
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
        0 => Err("the helper is root, and the policy does not change the user".to_string()),
        _ => Ok(()),
    });
    active.attempt(Protection::Network, || outside.namespaces.clone());
    active.attempt(Protection::Processes, || {
        count_processes(order.processes).map_err(|error| error.to_string())
    });
    sys::drop_capabilities().map_err(system("drop capabilities"))?;
    sys::no_new_privileges().map_err(system("forgo new privileges"))?;
    std::env::set_current_dir(&order.folder)
        .map_err(|error| Failure::path("enter the working folder", &order.folder, &error))?;

    let mut no_signals = false;
    if order.wanted.contains(Protection::Files) {
        let rules = files::Rules::open(order)?;
        active.attempt(Protection::Files, || rules.enforce().map(|signals| no_signals = signals));
    }
    active.attempt(Protection::Descendants, || match &outside.namespaces {
        Err(reason) if !changes_user && !no_signals => {
            Err(format!("no PID namespace ({reason}), and the command could kill the helper"))
        }
        _ => Ok(()),
    });
    sys::reset_signals();
    let calls =
        if order.program.is_some() { calls::SystemCalls::OfPrograms } else { calls::SystemCalls::OfModules };
    active.attempt(Protection::Calls, || calls.enforce());
    match active.missing(order.required) {
        Some(failure) => Err(failure),
        None => Ok(active.active),
    }
}

/// Joins the cgroups. Children that are forked later belong to the same cgroups.
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

/// Gives the working folder to the policy's user. A link that another user may have put there is never followed.
fn give_folder(order: &Confinement) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::path("give this folder to the command's user", &order.folder, &error);
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = fs::File::options().read(true).custom_flags(flags).open(&order.folder).map_err(failed)?;
    std::os::unix::fs::fchown(&folder, Some(order.user), Some(order.group)).map_err(failed)
}

/// Sets resource limits by `setrlimit`. These limits hold for each process separately.
fn limit_resources(order: &Confinement) -> io::Result<()> {
    for (resource, bytes) in [(libc::RLIMIT_AS, order.address_bytes), (libc::RLIMIT_DATA, order.data_bytes)] {
        if let Some(bytes) = bytes {
            sys::limit(resource, bytes, bytes)?;
        }
    }
    // At the limit the kernel sends SIGXCPU. One second of processor time later it sends SIGKILL, which can't be
    // ignored.
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

/// Limits the number of processes in a new user namespace, where only this command's processes count.
fn count_processes(processes: u64) -> io::Result<()> {
    let (user, group) = (sys::user(), sys::group());
    if user == 0 {
        return Err(io::Error::other("RLIMIT_NPROC does not limit root"));
    }
    sys::unshare(libc::CLONE_NEWUSER)?;
    // After a change of user, root owns this process's own files in /proc, unless this process is dumpable.
    sys::dumpable(true)?;
    map_user(user, group)?;
    sys::dumpable(false)?;
    sys::limit(libc::RLIMIT_NPROC, processes, processes)
}

/// Maps the same user and group as outside, and no other, into the user namespace that this process has just
/// entered.
pub fn map_user(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

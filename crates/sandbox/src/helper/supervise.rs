//! This module supervises a task in the helper. It enters namespaces, checks the deadline, and ends all processes
//! of the task.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    confine::{Outside, map_user},
    init,
};
use crate::{
    Protection, Termination,
    channel::{Confinement, Failure, HelperTask, Report},
    memory,
    sys::{self, ForkResult, ReapedProcess},
};

/// Runs the task of an order to its end. The task ends early at the deadline, or if the other side of the socket
/// cancels or has ended.
pub fn supervise(
    socket: &mut Option<UnixStream>,
    order: HelperTask,
    files: Vec<OwnedFd>,
) -> Result<Report, Failure> {
    let system = |what| move |error: io::Error| Failure::system(what, &error);
    let wall = Duration::from_micros(order.wall_us);
    let end_all = order.confinement.wanted.contains(Protection::Descendants);
    let processes_file = order.confinement.processes_file.clone();
    let outside = enter_namespaces(&order.confinement);
    sys::adopt_orphans().map_err(system("adopt orphans"))?;
    let (said, say) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| system("make a pipe")(error.into()))?;
    let start = Instant::now();
    // SAFETY: a helper has one thread, as `one_thread` found, and no code here starts another.
    let pid = match unsafe { sys::fork() }.map_err(system("fork"))? {
        ForkResult::Child => {
            drop((said, socket.take()));
            init::run(order, files, File::from(say), outside);
        }
        ForkResult::Parent(pid) => pid,
    };
    drop((files, say));
    let socket = socket.as_ref().expect("closed in the child only");
    let ended = until_end(socket, pid, start, wall).map_err(system("wait for a task"))?;
    if end_all && let Some(file) = processes_file {
        // This forbids further forks. Without a PID namespace, the helper kills the processes one by one, which
        // only ends if no process can fork.
        let _ = fs::write(file, "0");
    }
    sys::kill(pid);
    let mut used = ResourceUsage::default();
    used.wait(pid).map_err(system("wait for a task"))?;
    let wall_us = start.elapsed().as_micros() as u64;
    if end_all {
        used.end_descendants().map_err(system("end processes that a task left"))?;
    }
    let mut text = String::new();
    File::from(said).read_to_string(&mut text).map_err(system("read the result of a task"))?;
    let outcome = init::Outcome::parse(&text)?;
    Ok(Report {
        status: outcome.status,
        ended,
        wall_us,
        user_us: used.user_us,
        system_us: used.system_us,
        resident_bytes_max: used.resident_bytes_max,
        active: outcome.active,
    })
}

/// Makes new namespaces for the processes that are forked from now on: for the network and for processes if these
/// are wanted, and for System V IPC and the host name. If this process is not root, a user namespace is needed
/// too.
fn enter_namespaces(confinement: &Confinement) -> Outside {
    let wants = |one, flag| if confinement.wanted.contains(one) { flag } else { 0 };
    let root = sys::user() == 0;
    let flags = wants(Protection::Descendants, libc::CLONE_NEWPID)
        | wants(Protection::Network, libc::CLONE_NEWNET)
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let user = if root { 0 } else { libc::CLONE_NEWUSER };
    let (own_user, own_group) = (sys::user(), sys::group());
    let result = sys::unshare(flags | user);
    if result.is_ok() && !root {
        // Without these maps, files that the command makes belong to `nobody`; all protections hold.
        let _ = map_user(own_user, own_group);
    }
    Outside { root, namespaces: result.map_err(|error| error.to_string()) }
}

/// Waits for the end of a process, for the deadline, or for the socket. The only message on the socket is a request to
/// cancel.
fn until_end(
    socket: &UnixStream,
    pid: i32,
    start: Instant,
    wall: Duration,
) -> io::Result<Option<Termination>> {
    let process = pidfd_open(Pid::from_raw(pid).expect("of a child"), PidfdFlags::empty())?;
    loop {
        let Some(left) = wall.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(Some(Termination::Deadline));
        };
        let left = Timespec { tv_sec: left.as_secs().min(3600) as i64, tv_nsec: left.subsec_nanos().into() };
        let mut files =
            [PollFd::new(&process, PollFlags::IN), PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        match poll(&mut files, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !files[0].revents().is_empty() {
            return Ok(None);
        }
        if !files[1].revents().is_empty() {
            return Ok(Some(Termination::Cancelled));
        }
    }
}

/// Sums the resources of all processes.
#[derive(Default)]
struct ResourceUsage {
    user_us: u64,
    system_us: u64,
    resident_bytes_max: u64,
}

impl ResourceUsage {
    fn add(&mut self, waited: &ReapedProcess) {
        self.user_us += waited.user_us;
        self.system_us += waited.system_us;
        self.resident_bytes_max = self.resident_bytes_max.max(waited.resident_bytes_max);
    }

    fn wait(&mut self, pid: i32) -> io::Result<()> {
        if let Some(waited) = sys::wait(pid, true)? {
            self.add(&waited);
        }
        Ok(())
    }

    /// Kills the children of this process until no child is left. If a child ends, its own children become
    /// children of this process. With a PID namespace, no child is left at the start. If a process forks without
    /// end, the loop ends only because a scan is faster than a fork. With a cgroup, no process can fork any more.
    fn end_descendants(&mut self) -> io::Result<()> {
        loop {
            match sys::wait(-1, false) {
                Ok(Some(waited)) => self.add(&waited),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                Err(error) => return Err(error),
                Ok(None) => {
                    for child in children()? {
                        sys::kill(child);
                    }
                }
            }
        }
    }
}

/// Lists the children of this process.
fn children() -> io::Result<Vec<i32>> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if memory::parent(&text) == Some(own) {
            found.push(pid);
        }
    }
    Ok(found)
}

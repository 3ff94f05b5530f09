//! This module wraps system calls for which no other crate has a safe wrapper. All `unsafe` code for commands is
//! in this file.

use std::{io, mem};

/// Says whether `fork` returned in the child or in the parent.
pub enum ForkResult {
    Child,
    Parent(i32),
}

fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks this process.
///
/// # Safety
/// The process has one thread. (With more threads, a lock such as that of the allocator could stay locked for ever
/// in the child.)
pub unsafe fn fork() -> io::Result<ForkResult> {
    // SAFETY: no further thread exists, as the caller promised, so the child's memory is consistent.
    match done(unsafe { libc::fork() })? {
        0 => Ok(ForkResult::Child),
        pid => Ok(ForkResult::Parent(pid)),
    }
}

/// Exits at once, without the exit handlers that the parent process registered before the fork.
pub fn exit(status: i32) -> ! {
    // SAFETY: the call accesses no memory and does not return.
    unsafe { libc::_exit(status) }
}

/// Reports a process that `wait4` returned: the status, and the resources of the process and of the descendants that
/// it waited for.
pub struct ReapedProcess {
    pub pid: i32,
    pub status: i32,
    pub user_us: u64,
    pub system_us: u64,
    pub resident_bytes_max: u64,
}

/// Waits for a child, or for any child with -1. Returns `None` if `block` is false and no child has ended.
pub fn wait(pid: i32, block: bool) -> io::Result<Option<ReapedProcess>> {
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        let mut status = 0;
        // SAFETY: this is a struct of integers, for which zeros are a valid value.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: both variables live longer than this call.
        let pid = match done(unsafe { libc::wait4(pid, &mut status, flags, &mut usage) }) {
            Ok(0) => return Ok(None),
            Ok(pid) => pid,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        return Ok(Some(ReapedProcess {
            pid,
            status,
            user_us: us(usage.ru_utime),
            system_us: us(usage.ru_stime),
            // Linux returns this number in KiB.
            resident_bytes_max: usage.ru_maxrss as u64 * 1024,
        }));
    }
}

/// Moves this process into new namespaces of these kinds.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes only flags. Files and memory are not unshared (CLONE_FILES and CLONE_VM are removed).
    done(unsafe { libc::unshare(flags & !(libc::CLONE_FILES | libc::CLONE_VM)) }).map(drop)
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the options used here take integers only.
    done(unsafe { libc::prctl(option, argument, 0, 0, 0) }).map(drop)
}

/// Makes the kernel kill this process when the thread that forked the process ends.
pub fn die_with_parent() -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
}

/// Makes this process the parent of descendants whose parent has ended.
pub fn adopt_orphans() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// Forbids that this process gains rights by executing a program.
pub fn no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Sets whether processes of this user may read this process's memory, and whether this process may write its own
/// files in /proc.
pub fn dumpable(yes: bool) -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(yes))
}

/// Gives up all capabilities for ever. Even root gets no capability back by executing a program.
pub fn drop_capabilities() -> io::Result<()> {
    for capability in 0..64 {
        // Errors are ignored. EINVAL means that the kernel has fewer capabilities. EPERM means that this process
        // has no capabilities to drop.
        let _ = prctl(libc::PR_CAPBSET_DROP, capability);
    }
    // The header holds _LINUX_CAPABILITY_VERSION_3, and 0 for this process. The data holds the effective,
    // permitted and inheritable capabilities, in two parts of 32 bits each.
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0u32; 6];
    // SAFETY: the two structs have these sizes in version 3 and are only read.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    done(result as libc::c_int).map(drop)
}

/// Becomes another user for ever. Only root can do this.
pub fn become_user(user: u32, group: u32) -> io::Result<()> {
    // SAFETY: the call does not read an empty list.
    done(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: the call takes only integers.
    done(unsafe { libc::setresgid(group, group, group) })?;
    // SAFETY: as for the call above.
    done(unsafe { libc::setresuid(user, user, user) }).map(drop)
}

/// Sets the limits of a resource by `setrlimit`, no higher than they are now.
pub fn limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    // SAFETY: this is a struct of integers, which is written only during this call.
    let mut now: libc::rlimit = unsafe { mem::zeroed() };
    // SAFETY: as for the call above.
    done(unsafe { libc::getrlimit(resource, &mut now) })?;
    // The system refuses limits above those of this process, and such limits are not needed.
    let (hard, soft) = (hard.min(now.rlim_max), soft.min(now.rlim_max));
    // SAFETY: the struct is only read.
    done(unsafe { libc::setrlimit(resource, &libc::rlimit { rlim_cur: soft, rlim_max: hard }) }).map(drop)
}

/// Starts a session, so that this process has no terminal and leaves its parent's process group.
pub fn new_session() -> io::Result<()> {
    // SAFETY: the call takes no arguments.
    done(unsafe { libc::setsid() }).map(drop)
}

/// Kills a process. The process may have ended already, but it must not have been reaped.
pub fn kill(pid: i32) {
    assert!(pid > 0, "0 and less are groups");
    // SAFETY: the call takes only integers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Ignores a signal from now on.
pub fn ignore(signal: libc::c_int) {
    // SAFETY: ignoring a signal runs no code of this program.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Resets all signals to the state at the start of a program: no signal is ignored (Rust's runtime ignores
/// SIGPIPE), and no signal is blocked.
pub fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: the default action runs no code of this program. Signals that can't be changed (SIGKILL) stay as
        // they are.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: this is a set of bits, for which zeros are a valid value: the empty set. The call only reads the
    // set.
    unsafe {
        let none: libc::sigset_t = mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Holds a set of blocked signals.
pub struct SignalMask(libc::sigset_t);

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text.write_str("Signals")
    }
}

impl SignalMask {
    /// Blocks these signals in this thread and in threads that are started later. A blocked signal is pending
    /// until [`SignalMask::next`] takes it.
    pub fn block(signals: &[libc::c_int]) -> io::Result<SignalMask> {
        // SAFETY: this is a set of bits, for which zeros are a valid value: the empty set.
        let mut set: libc::sigset_t = unsafe { mem::zeroed() };
        for signal in signals {
            // SAFETY: the set is written only during this call.
            done(unsafe { libc::sigaddset(&mut set, *signal) })?;
        }
        // SAFETY: the set is only read.
        done(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) })?;
        Ok(SignalMask(set))
    }

    /// Unblocks the signals.
    pub fn unblock(&self) -> io::Result<()> {
        // SAFETY: the set is only read.
        done(unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &self.0, std::ptr::null_mut()) }).map(drop)
    }

    /// Waits for a signal of the set.
    pub fn next(&self) -> io::Result<libc::c_int> {
        loop {
            // SAFETY: the call only reads the set, and returns only the number of the signal.
            match done(unsafe { libc::sigwaitinfo(&self.0, std::ptr::null_mut()) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                waited => return waited,
            }
        }
    }
}

/// Resets the action of a signal to the system's default.
pub fn by_default(signal: libc::c_int) {
    // SAFETY: the default action runs no code of this program.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Counts the threads of this process.
pub fn threads() -> io::Result<usize> {
    std::fs::read_dir("/proc/self/task").map(Iterator::count)
}

/// Returns the id of this thread.
pub fn thread() -> i32 {
    // SAFETY: the call takes no arguments and can't fail.
    unsafe { libc::gettid() }
}

/// Returns the id of the parent process.
pub fn parent() -> i32 {
    // SAFETY: the call takes no arguments and can't fail.
    unsafe { libc::getppid() }
}

/// Returns freed memory to the system, if the allocator can.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number, and uses the allocator's own locks.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Returns the effective user id.
pub fn user() -> u32 {
    // SAFETY: the call takes no arguments and can't fail.
    unsafe { libc::geteuid() }
}

/// Returns the effective group id.
pub fn group() -> u32 {
    // SAFETY: the call takes no arguments and can't fail.
    unsafe { libc::getegid() }
}

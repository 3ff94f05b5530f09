//! System calls that have no safe wrapper elsewhere: all `unsafe` of commands is in here.

use std::{io, mem};

/// What `fork` gave.
pub enum Forked {
    Child,
    Parent(i32),
}

fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks.
///
/// # Safety
/// The process has one thread. (Else the child may find a lock taken for ever, that of the allocator for one.)
pub unsafe fn fork() -> io::Result<Forked> {
    // SAFETY: no other thread, as the caller promised, so the child's memory is in order.
    match done(unsafe { libc::fork() })? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Ends the process at once: nothing that is registered to run at the end of the parent it was forked from.
pub fn exit(status: i32) -> ! {
    // SAFETY: takes no memory and does not return.
    unsafe { libc::_exit(status) }
}

/// What `wait4` gave: a process, its status, and what it and the descendants that it waited for used.
pub struct Waited {
    pub pid: i32,
    pub status: i32,
    pub user_us: u64,
    pub system_us: u64,
    pub resident_bytes_max: u64,
}

/// Waits for a child, any with -1. `None` if it's not to block and none has ended.
pub fn wait(pid: i32, block: bool) -> io::Result<Option<Waited>> {
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        let mut status = 0;
        // SAFETY: a struct of integers, for which zeros are a value.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: both are written to while this call lasts.
        let pid = match done(unsafe { libc::wait4(pid, &mut status, flags, &mut usage) }) {
            Ok(0) => return Ok(None),
            Ok(pid) => pid,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        return Ok(Some(Waited {
            pid,
            status,
            user_us: us(usage.ru_utime),
            system_us: us(usage.ru_stime),
            // KiB on Linux.
            resident_bytes_max: usage.ru_maxrss as u64 * 1024,
        }));
    }
}

/// Leaves the namespaces of these flags for new ones.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes flags alone; files and memory are not unshared (no CLONE_FILES, CLONE_VM).
    done(unsafe { libc::unshare(flags & !(libc::CLONE_FILES | libc::CLONE_VM)) }).map(drop)
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the options used here take integers only.
    done(unsafe { libc::prctl(option, argument, 0, 0, 0) }).map(drop)
}

/// Is killed when the thread that forked it ends.
pub fn die_with_parent() -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
}

/// Becomes the parent of descendants whose own has ended.
pub fn adopt_orphans() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// Gains no rights by executing anything.
pub fn no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Whether others of this user may look into it (and it into its own files in /proc).
pub fn dumpable(yes: bool) -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(yes))
}

/// Gives up all capabilities, for ever: even root gets none back by executing.
pub fn drop_capabilities() -> io::Result<()> {
    for capability in 0..64 {
        // EINVAL: more than this kernel has; EPERM: it has none that would allow this, and none to drop.
        let _ = prctl(libc::PR_CAPBSET_DROP, capability);
    }
    // _LINUX_CAPABILITY_VERSION_3, and this process; then effective, permitted and inheritable, twice.
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0u32; 6];
    // SAFETY: the two structs have these sizes in version 3 and are only read.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    done(result as libc::c_int).map(drop)
}

/// Becomes another user, for ever; needs root.
pub fn become_user(user: u32, group: u32) -> io::Result<()> {
    // SAFETY: an empty list is not read.
    done(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: takes integers alone.
    done(unsafe { libc::setresgid(group, group, group) })?;
    // SAFETY: as above.
    done(unsafe { libc::setresuid(user, user, user) }).map(drop)
}

/// A resource as of `setrlimit` may be used so much and no more.
pub fn limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    // SAFETY: a struct of integers, which is written to while this call lasts.
    let mut now: libc::rlimit = unsafe { mem::zeroed() };
    // SAFETY: as above.
    done(unsafe { libc::getrlimit(resource, &mut now) })?;
    // More than we have ourselves can't be given, and need not be.
    let (hard, soft) = (hard.min(now.rlim_max), soft.min(now.rlim_max));
    // SAFETY: the struct is only read.
    done(unsafe { libc::setrlimit(resource, &libc::rlimit { rlim_cur: soft, rlim_max: hard }) }).map(drop)
}

/// Its own session, so that it has no terminal and no group of ours.
pub fn new_session() -> io::Result<()> {
    // SAFETY: takes nothing.
    done(unsafe { libc::setsid() }).map(drop)
}

/// Kills a process; that it has ended already is fine.
pub fn kill(pid: i32) {
    assert!(pid > 0, "0 and less are groups");
    // SAFETY: takes integers alone.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// A signal does nothing from now on.
pub fn ignore(signal: libc::c_int) {
    // SAFETY: to ignore runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// All signals are as at the start of a program: none ignored (Rust's runtime ignores SIGPIPE), none blocked.
pub fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: the default action runs no code of ours. What can't be changed (SIGKILL) stays as it is.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: a set of bits, for which zeros are a value: the empty set; it's only read.
    unsafe {
        let none: libc::sigset_t = mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// A set of signals.
pub struct Signals(libc::sigset_t);

impl std::fmt::Debug for Signals {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text.write_str("Signals")
    }
}

impl Signals {
    /// Blocks these signals in this thread, and in those that it starts: they wait until [`Signals::next`] takes them.
    pub fn block(signals: &[libc::c_int]) -> io::Result<Signals> {
        // SAFETY: a set of bits, for which zeros are a value: the empty set.
        let mut set: libc::sigset_t = unsafe { mem::zeroed() };
        for signal in signals {
            // SAFETY: the set is written to while this call lasts.
            done(unsafe { libc::sigaddset(&mut set, *signal) })?;
        }
        // SAFETY: the set is only read.
        done(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) })?;
        Ok(Signals(set))
    }

    /// Lets them do again what they did before.
    pub fn unblock(&self) -> io::Result<()> {
        // SAFETY: the set is only read.
        done(unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &self.0, std::ptr::null_mut()) }).map(drop)
    }

    /// Waits for one of them.
    pub fn next(&self) -> io::Result<libc::c_int> {
        loop {
            // SAFETY: the set is only read, and nothing is asked of the signal but its number.
            match done(unsafe { libc::sigwaitinfo(&self.0, std::ptr::null_mut()) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                waited => return waited,
            }
        }
    }
}

/// The action of a signal is that of the system from now on.
pub fn by_default(signal: libc::c_int) {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// How many threads this process has.
pub fn threads() -> io::Result<usize> {
    std::fs::read_dir("/proc/self/task").map(Iterator::count)
}

/// The number of this thread.
pub fn thread() -> i32 {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::gettid() }
}

/// Our parent.
pub fn parent() -> i32 {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::getppid() }
}

/// Gives memory back to the system that was freed here, where the allocator can.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and the allocator's own locks.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Our user.
pub fn user() -> u32 {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::geteuid() }
}

/// Our group.
pub fn group() -> u32 {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::getegid() }
}

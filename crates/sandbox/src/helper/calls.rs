//! This module lists the system calls that a task may make, for a seccomp filter.
//!
//! The list names the allowed calls. A list of forbidden calls would have gaps: kernels add calls every year, and
//! some calls exist twice (the x32 calls of an x86-64 kernel have separate numbers). A call that isn't listed
//! fails with ENOSYS, not with EPERM, since programs test whether a kernel has a call and otherwise continue
//! without it. For example, `clone3` isn't listed, since a filter can't see its flags. The C library then makes
//! threads by the older call `clone`.
//!
//! The list holds the calls that `sh`, the core utilities, `grep`, `awk`, `sort`, `perl` and `python3` need for
//! files, memory, time, processes and threads. The following calls are omitted on purpose: sockets of every
//! family, namespaces (`unshare`, `setns`, those of `clone`) and mounts, `ptrace` and `process_vm_*`, `bpf`,
//! `perf_event_open`, `io_uring_*`, `userfaultfd`, keys, `kexec_*` and modules, `memfd_create` and `execveat`
//! (programs without a file), System V IPC and message queues, `seccomp`, `personality`, users and groups, clocks,
//! `open_by_handle_at`, `fanotify_*`, real-time scheduling, `chroot`.
//!
//! For programs, `fallocate` fails with EOPNOTSUPP, as on file systems that do not support this call. Otherwise a
//! single call could take all space that a folder may have, before the folder is measured. The C library, and
//! programs that reserve space, then write zeros instead, which is slow enough for the measurements.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// Lists the calls of every architecture.
const CALLS: &[c_long] = &[
    // These calls access files.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_pipe2,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_renameat2,
    libc::SYS_mknodat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_umask,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    // These calls wait for events.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // These calls manage memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_get_mempolicy,
    // These calls manage processes and threads.
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_setpgid,
    libc::SYS_getsid,
    libc::SYS_setsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_prctl,
    libc::SYS_setpriority,
    libc::SYS_getpriority,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
    // These calls handle signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // These calls return the time or information about the system, or set timers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
];

/// Lists older forms of the calls above, and calls that the crate `libc` names only on this architecture.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[c_long] = &[
    libc::SYS_sync_file_range,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getdents,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_mknod,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_inotify_init,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_getpgrp,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
/// Lists `renameat`, `sync_file_range`, `getrlimit` and `setrlimit`, by their numbers, which are the same on all
/// newer architectures.
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[c_long] = &[38, 84, 163, 164];

/// Combines the flags by which `clone`, like `unshare`, makes new namespaces.
const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// Lists the calls that the compiler and the runtime of modules need: calls for memory, for signals, and for
/// files. A signal tells the runtime that a module has accessed memory out of bounds. `pread64` reads files that
/// are open already, or were received over the open socket. The function `rules_of_modules` adds `fcntl`.
const CALLS_OF_MODULES: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_recvmsg,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Names the set of system calls that a task may make.
#[derive(Clone, Copy, Debug)]
pub enum SystemCalls {
    OfPrograms,
    OfModules,
}

impl SystemCalls {
    /// Forbids all calls that are not in this set, for ever, in this process and in all descendants.
    pub fn enforce(self) -> Result<(), String> {
        // The filter with the list is installed last, since it forbids the call that installs filters. The kernel
        // applies both filters, and a call must pass both.
        for program in [unsupported(), self.program()] {
            let program = program.map_err(|error| error.to_string())?;
            seccompiler::apply_filter(&program).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn program(self) -> Result<BpfProgram, seccompiler::BackendError> {
        let here = TargetArch::try_from(std::env::consts::ARCH)?;
        let denied = SeccompAction::Errno(libc::ENOSYS as u32);
        // The filter kills a process that makes calls by the numbers of another architecture.
        SeccompFilter::new(self.rules()?, denied, SeccompAction::Allow, here)?.try_into()
    }

    fn rules(self) -> Result<Rules, seccompiler::BackendError> {
        match self {
            SystemCalls::OfPrograms => rules_of_programs(),
            SystemCalls::OfModules => rules_of_modules(),
        }
    }
}

/// Refuses `fallocate` with an error after which programs continue without this call.
fn unsupported() -> Result<BpfProgram, seccompiler::BackendError> {
    let here = TargetArch::try_from(std::env::consts::ARCH)?;
    let rules = BTreeMap::from([(libc::SYS_fallocate, Vec::new())]);
    let refused = SeccompAction::Errno(libc::EOPNOTSUPP as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, refused, here)?.try_into()
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Allows a call if an argument fulfils a condition.
fn only(
    rules: &mut Rules,
    call: c_long,
    argument: u8,
    length: Length,
    is: Is,
    value: u64,
) -> Result<(), seccompiler::BackendError> {
    let condition = Condition::new(argument, length, is, value)?;
    rules.entry(call).or_default().push(SeccompRule::new(vec![condition])?);
    Ok(())
}

fn rules_of_modules() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = CALLS_OF_MODULES.iter().map(|call| (*call, Vec::new())).collect();
    // Other commands of `fcntl` are forbidden, since they could change or lock a file that other processes use.
    for command in [libc::F_GETFD, libc::F_DUPFD_CLOEXEC] {
        only(&mut rules, libc::SYS_fcntl, 1, Length::Dword, Is::Eq, command as u64)?;
    }
    Ok(rules)
}

fn rules_of_programs() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = CALLS.iter().chain(OLD_CALLS).map(|call| (*call, Vec::new())).collect();
    let mut only = |call, argument, length, is, value| only(&mut rules, call, argument, length, is, value);
    only(libc::SYS_clone, 0, Length::Qword, Is::MaskedEq(NAMESPACES), 0)?;
    // A process may set only its own limits.
    only(libc::SYS_prlimit64, 0, Length::Dword, Is::Eq, 0)?;
    // These requests on terminals, pipes and files are allowed. All others are forbidden, for example the request
    // that simulates input of a terminal, and requests on devices.
    for request in [
        libc::TCGETS,
        libc::TIOCGWINSZ,
        libc::TIOCGPGRP,
        libc::FIONREAD,
        libc::FIOCLEX,
        libc::FIONCLEX,
        libc::FIONBIO,
    ] {
        only(libc::SYS_ioctl, 1, Length::Dword, Is::Eq, request)?;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::ErrorKind,
        os::{fd::AsFd, unix::fs::FileExt, unix::net::UnixStream},
        thread,
    };

    use super::*;
    use crate::{channel, sys};

    /// Runs `attempt` with a filter in a new thread, since a filter holds for a thread, and returns the result.
    fn within<T: Send + 'static>(calls: SystemCalls, attempt: impl FnOnce() -> T + Send + 'static) -> T {
        let tried = thread::spawn(move || {
            sys::no_new_privileges().unwrap();
            calls.enforce().unwrap();
            attempt()
        });
        tried.join().unwrap()
    }

    #[test]
    fn a_module_reads_its_files_and_opens_none() {
        let file = File::open("/proc/self/exe").unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        channel::send_beside(&ours, b"file", &[file.as_fd()]).unwrap();
        let allowed = within(SystemCalls::OfModules, move || {
            let mut four = [0; 4];
            let (got, mut files) = channel::receive_beside(&theirs, &mut four).unwrap();
            let file = File::from(files.pop().unwrap());
            file.read_exact_at(&mut four, 0).unwrap();
            let again = file.try_clone().is_ok();
            (got, four, again)
        });
        assert_eq!(allowed, (4, *b"\x7fELF", true));
    }

    #[test]
    fn fallocate_fails_as_unsupported() {
        let file = tempfile::tempfile().unwrap();
        let (refused, written) = within(SystemCalls::OfPrograms, move || {
            let refused = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20);
            (refused, file.write_at(b"x", (1 << 20) - 1).map_err(|error| error.to_string()))
        });
        assert_eq!((refused, written), (Err(rustix::io::Errno::OPNOTSUPP), Ok(1)));
    }

    #[test]
    fn a_module_makes_no_sockets_and_changes_no_files() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"text").unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let refused = within(SystemCalls::OfModules, move || {
            let flags = rustix::fs::OFlags::NONBLOCK;
            [
                File::open("/dev/null").map(drop),
                File::open("/proc/self/fd/0").map(drop),
                UnixStream::pair().map(drop),
                UnixStream::connect("/run/socket").map(drop),
                channel::send_beside(&ours, b"x", &[file.as_fd()]),
                file.write_at(b"x", 0).map(drop),
                file.set_len(1),
                rustix::fs::fcntl_setfl(&file, flags).map_err(Into::into),
                rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared)
                    .map_err(Into::into),
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map(drop).map_err(Into::into),
            ]
        });
        for (number, result) in refused.into_iter().enumerate() {
            let error = result.expect_err(&format!("attempt {number}"));
            assert_eq!(error.kind(), ErrorKind::Unsupported, "attempt {number}: {error}");
        }
    }
}

//! This module defines the resource limits of a command, and the reasons for which a command is ended.

use std::{
    fmt::{self, Display, Formatter},
    io,
    time::Duration,
};

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Limits the resources of a command. A command cannot evade the limits. The documentation of each field says what
/// happens at the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLimits {
    /// Limits the memory of all processes of the command together, including the page cache that they cause. At
    /// the limit the kernel first drops that page cache, and then kills processes ([`Termination::Memory`]). If no
    /// cgroup can be made (see [`crate::Protection::Memory`]), two checks replace the cgroup. The address space of
    /// each process is limited, so that an allocation beyond the limit fails in the command. The memory of all
    /// processes is summed ten times a second, and a command whose sum exceeds the limit is ended. Default: 256
    /// MiB.
    pub memory_bytes: u64,
    /// Limits the processor time of each process. A process that exceeds the limit is killed ([`Termination::Cpu`]
    /// for the first process). The processor time of all processes together is at most `wall` times the number of
    /// cores. Default: 60 s.
    pub cpu_seconds: u64,
    /// Limits the time from the start of the command. At the deadline all its processes are killed
    /// ([`Termination::Deadline`]). Default: 60 s.
    pub wall: Duration,
    /// Limits the processes and threads at one time; at the limit `fork` fails in the command. Default: 64.
    pub processes: u64,
    /// Limits the bytes of standard output. Bytes beyond the limit aren't passed to the caller, and the command is
    /// ended ([`Termination::Output`]). Default: 1 GiB, since there is no advantage in running a command on the
    /// node that stores the data if its result is larger.
    pub output_bytes: u64,
    /// Limits the bytes of each file written; a write beyond the limit fails and kills the process
    /// ([`Termination::FileSize`] for the first process). Default: 256 MiB.
    pub file_bytes: u64,
    /// Limits the bytes that all files of the working folder occupy. The sandbox measures the folder four times a
    /// second, or less often if the folder has very many files. A command that writes fast can therefore exceed
    /// the limit before it is ended ([`Termination::Folder`]; [`Termination::FolderUnseen`] if the folder can't be
    /// read). Deleted files that are still open aren't counted: `file_bytes` times `open_files` times `processes`
    /// bounds their size, and the kernel frees all of them at the command's end. If this is too much, use a
    /// separate file system or a quota. Default: 1 GiB.
    pub folder_bytes: u64,
    /// Limits the open files of each process; at the limit `open` fails in the command. Default: 256.
    pub open_files: u64,
}

impl Default for CommandLimits {
    fn default() -> CommandLimits {
        CommandLimits {
            memory_bytes: 256 * MIB,
            cpu_seconds: 60,
            wall: Duration::from_secs(60),
            processes: 64,
            output_bytes: 1024 * MIB,
            file_bytes: 256 * MIB,
            folder_bytes: 1024 * MIB,
            open_files: 256,
        }
    }
}

/// Says why a task was ended before its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Termination {
    /// The deadline passed.
    Deadline,
    /// All processes together needed more memory than allowed: the kernel killed some of them, or the sandbox ended
    /// all.
    Memory,
    /// The first process used up the processor time allowed.
    Cpu,
    /// The output was larger than allowed.
    Output,
    /// The first process wrote a file larger than allowed.
    FileSize,
    /// The working folder grew larger than allowed.
    Folder,
    /// The working folder could not be read, so that the folder may have been larger than allowed.
    FolderUnseen {
        /// Holds the error number of the system.
        errno: i32,
    },
    /// The caller cancelled the task.
    Cancelled,
}

impl Display for Termination {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let text = match self {
            Termination::Deadline => "its deadline passed",
            Termination::Memory => "it needed more memory than its limit",
            Termination::Cpu => "its processor time was used up",
            Termination::Output => "its output exceeded the limit",
            Termination::FileSize => "a file exceeded the limit",
            Termination::Folder => "its working folder exceeded the limit",
            Termination::FolderUnseen { errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                return write!(out, "its working folder could not be read: {error}");
            }
            Termination::Cancelled => "it was cancelled",
        };
        out.write_str(text)
    }
}

//! This module defines the resource limits of a command, and the reasons for which a command is ended.

use std::{
    fmt::{self, Display, Formatter},
    io,
    time::Duration,
};

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Limits the resources of a command. Each limit holds whatever the command does; the fields say what happens at the
/// limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLimits {
    /// Limits the memory of all processes of the command together, including the page cache that they cause. At the
    /// limit the kernel first drops that page cache, then kills ([`Ended::Memory`]). Where no cgroup can be made (see
    /// [`crate::Protection::Memory`]) this limits the address space of each process, so that an allocation beyond the
    /// limit fails in the command, and the sum over all processes, measured ten times a second: a command whose sum
    /// exceeds the limit is ended. Default: 256 MiB.
    pub memory_bytes: u64,
    /// Limits the processor time of each process; a process that exceeds the limit is killed ([`Ended::Cpu`] for the
    /// first process). All processes together are bounded by `wall` times the cores. Default: 60 s.
    pub cpu_seconds: u64,
    /// Limits the time from the start; at the deadline every process is killed ([`Ended::Deadline`]). Default: 60 s.
    pub wall: Duration,
    /// Limits the processes and threads at one time; at the limit `fork` fails in the command. Default: 64.
    pub processes: u64,
    /// Limits the bytes of standard output; bytes beyond the limit aren't handed over, and the command is ended
    /// ([`Ended::Output`]). Default: 1 GiB, since a larger result isn't worth computing near the data.
    pub output_bytes: u64,
    /// Limits the bytes of each file written; a write beyond the limit fails and kills the process
    /// ([`Ended::FileSize`] for the first process). Default: 256 MiB.
    pub file_bytes: u64,
    /// Limits the bytes that all files of the working folder occupy. The sandbox measures the folder four times a
    /// second, less often if the folder has very many files, so that a fast writer can exceed the limit before being
    /// ended ([`Ended::Folder`]; [`Ended::FolderUnseen`] if the folder can't be read). Deleted files that are still
    /// open aren't counted: `file_bytes` times `open_files` times `processes` bounds their size, and the kernel frees
    /// all of them at the command's end. Use a separate file system or a quota where that matters. Default: 1 GiB.
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
pub enum Ended {
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

impl Display for Ended {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let text = match self {
            Ended::Deadline => "its deadline passed",
            Ended::Memory => "it needed more memory than its limit",
            Ended::Cpu => "its processor time was used up",
            Ended::Output => "its output exceeded the limit",
            Ended::FileSize => "a file exceeded the limit",
            Ended::Folder => "its working folder exceeded the limit",
            Ended::FolderUnseen { errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                return write!(out, "its working folder could not be read: {error}");
            }
            Ended::Cancelled => "it was cancelled",
        };
        out.write_str(text)
    }
}

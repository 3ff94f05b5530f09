//! How much a command gets, and why it was ended when it wanted more.

use std::{
    fmt::{self, Display, Formatter},
    io,
    time::Duration,
};

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// What a command may use. Each limit holds whatever the command does: what happens there is said with each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLimits {
    /// Memory of all processes of the command together, page cache that it caused included; beyond it the kernel first
    /// drops that cache, then kills ([`Ended::Memory`]). Where no cgroup can be made (see [`crate::Protection::Memory`])
    /// this is the address space of each process, where an allocation beyond it fails in the command, and the sum over all
    /// processes, which is looked at ten times a second: a command that exceeds it is ended. Default: 256 MiB.
    pub memory_bytes: u64,
    /// Processor time of each process; beyond it the process is killed ([`Ended::Cpu`] where that is the first one). All
    /// processes together are bounded by `wall` times the cores. Default: 60 s.
    pub cpu_seconds: u64,
    /// Time from the start; then every process is killed ([`Ended::Deadline`]). Default: 60 s.
    pub wall: Duration,
    /// Processes and threads at one time; beyond it `fork` fails in the command. Default: 64.
    pub processes: u64,
    /// Bytes of standard output; what exceeds it isn't handed over, and the command is ended ([`Ended::Output`]).
    /// Default: 1 GiB, since a result that is larger than that isn't worth computing near the data.
    pub output_bytes: u64,
    /// Bytes of each file written; a write beyond it fails and kills the process ([`Ended::FileSize`] where that is the
    /// first one). Default: 256 MiB.
    pub file_bytes: u64,
    /// Bytes that all files of the working folder occupy. Looked at four times a second, less often where there are very
    /// many files, so that a fast writer gets some further before it is ended ([`Ended::Folder`]; [`Ended::FolderUnseen`]
    /// where the folder can't be looked through). A file that is in no folder any more but still open isn't seen: no more
    /// than `file_bytes` times `open_files` times `processes` bounds those, and all are gone at the command's end. Use a
    /// file system of its own or a quota where that matters. Default: 1 GiB.
    pub folder_bytes: u64,
    /// Files that each process has open; beyond it `open` fails in the command. Default: 256.
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

/// Why something was ended before it ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Ended {
    /// Its time was over.
    Deadline,
    /// All processes together wanted more memory than they had: the kernel killed one or more of them, or we ended all.
    Memory,
    /// The first process used its processor time up.
    Cpu,
    /// More output than allowed.
    Output,
    /// The first process wrote a file larger than allowed.
    FileSize,
    /// The working folder got larger than allowed.
    Folder,
    /// The working folder could not be looked through, so that it may have been larger than allowed.
    FolderUnseen {
        /// What the system said.
        errno: i32,
    },
    /// Its caller no longer wanted it.
    Cancelled,
}

impl Display for Ended {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let text = match self {
            Ended::Deadline => "its time was over",
            Ended::Memory => "it wanted more memory than it had",
            Ended::Cpu => "its processor time was used up",
            Ended::Output => "its output exceeded the limit",
            Ended::FileSize => "a file exceeded the limit",
            Ended::Folder => "its working folder exceeded the limit",
            Ended::FolderUnseen { errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                return write!(out, "its working folder could not be looked through: {error}");
            }
            Ended::Cancelled => "it was no longer wanted",
        };
        out.write_str(text)
    }
}

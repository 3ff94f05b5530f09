//! This module defines the protections of the sandbox, and the policy that says which of them to set up and which to
//! require.

use std::{
    fmt::{self, Display, Formatter},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// Names a way in which the sandbox confines code. Protections are independent: if one protection fails, all
/// others still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Protection {
    /// Landlock allows access only to the files that the command names, the system's programs and libraries, and
    /// the working folder. The protection counts as active from landlock's third version on (Linux 6.2), since
    /// earlier versions let a process truncate files. From the sixth version on (6.12), landlock also forbids
    /// signals to processes outside the sandbox, and connections to their abstract sockets.
    Files,
    /// Seccomp allows only the system calls that programs like `sh`, `grep`, `awk`, `sort` and `python3` need.
    /// Sockets of every family, namespaces, mounts, tracing, keys and `io_uring` are forbidden.
    Calls,
    /// The command runs in an empty network namespace, in which not even the loopback interface is up. (Without this
    /// protection, [`Protection::Calls`] alone forbids the network.)
    Network,
    /// No process outlives the command. A PID namespace ensures this. If no PID namespace is allowed, the helper
    /// kills processes until no descendant is left. This is safe only if the command cannot kill the helper,
    /// because their users differ or landlock forbids signals.
    Descendants,
    /// A cgroup limits the memory of all processes together. (If the policy wants this and no cgroup can be made,
    /// `RLIMIT_AS` limits each process, and the sandbox sums the memory of all processes ten times a second.)
    Memory,
    /// A cgroup, or `RLIMIT_NPROC` within a new user namespace, limits the number of processes of this command alone.
    /// (The plain `RLIMIT_NPROC` counts all processes of the user, including those of further commands, and is no
    /// substitute.)
    Processes,
    /// The command runs as a user without rights: never root, no supplementary groups, no capabilities.
    User,
}

impl Protection {
    /// Lists all protections.
    pub const ALL: [Protection; 7] = [
        Protection::Files,
        Protection::Calls,
        Protection::Network,
        Protection::Descendants,
        Protection::Memory,
        Protection::Processes,
        Protection::User,
    ];
}

impl Display for Protection {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Protection::Files => "files",
            Protection::Calls => "calls",
            Protection::Network => "network",
            Protection::Descendants => "descendants",
            Protection::Memory => "memory",
            Protection::Processes => "processes",
            Protection::User => "user",
        })
    }
}

/// Holds a set of [`Protection`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protections(u16);

impl Protections {
    /// The empty set.
    pub const NONE: Protections = Protections(0);
    /// The set of all protections.
    pub const ALL: Protections = Protections((1 << Protection::ALL.len()) - 1);

    /// Returns the set with `one` added.
    #[must_use]
    pub const fn with(self, one: Protection) -> Protections {
        Protections(self.0 | 1 << one as u16)
    }

    /// Returns the set with `one` removed.
    #[must_use]
    pub const fn without(self, one: Protection) -> Protections {
        Protections(self.0 & !(1 << one as u16))
    }

    /// Returns true if `one` is in the set.
    pub const fn contains(self, one: Protection) -> bool {
        self.0 & 1 << one as u16 != 0
    }

    /// Iterates over the set.
    pub fn iter(self) -> impl Iterator<Item = Protection> {
        Protection::ALL.into_iter().filter(move |one| self.contains(*one))
    }
}

impl FromIterator<Protection> for Protections {
    fn from_iter<I: IntoIterator<Item = Protection>>(all: I) -> Protections {
        all.into_iter().fold(Protections::NONE, Protections::with)
    }
}

impl Display for Protections {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|one| one.to_string()).collect();
        out.write_str(&if names.is_empty() { "none".to_string() } else { names.join(", ") })
    }
}

/// Says how the sandbox confines code on this machine. The operator chooses the policy, not the client that sends
/// the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Lists the protections that are set up if the machine supports them. Default: all. Omit a protection on
    /// machines on which it prevents necessary programs from running, and in tests that show what the protection
    /// prevents.
    pub wanted: Protections,
    /// Lists the protections that must be active before any code is run ([`crate::Error::Missing`] names the first
    /// missing one). Default: all but `Network`, since `Calls` already forbids sockets, and `Memory`, for which
    /// containers seldom have the rights.
    pub required: Protections,
    /// Sets the user id for commands if this process is root. Otherwise commands run as the user of this process.
    /// Default: 65534, `nobody`. Two commands with the same user id have separate process namespaces, but can
    /// access the same user's files.
    pub user: u32,
    /// Sets the group id for commands. Default: 65534.
    pub group: u32,
    /// Names the cgroup in which the groups of commands are made: a folder of a version 2 hierarchy that is
    /// delegated to this process. Default: none. New groups are then made inside the group of this process, in the
    /// cgroup version of this machine.
    pub cgroup: Option<PathBuf>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            wanted: Protections::ALL,
            required: Protections::ALL.without(Protection::Network).without(Protection::Memory),
            user: 65534,
            group: 65534,
            cgroup: None,
        }
    }
}

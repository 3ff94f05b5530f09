//! This module defines the protections of the sandbox, and the policy that says which of them to set up and which to
//! require.

use std::{
    fmt::{self, Display, Formatter},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// Names a way in which the sandbox confines code. Protections are independent: where one fails, the rest still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Protection {
    /// Landlock allows no files but those named, the system's programs and libraries, and the working folder. The
    /// protection counts as active from landlock's third version on (Linux 6.2), since earlier versions let a process
    /// truncate files. From the sixth version on (6.12), landlock also forbids signals to processes outside the
    /// sandbox, and connections to their abstract sockets.
    Files,
    /// Seccomp allows no system calls but those that programs like `sh`, `grep`, `awk`, `sort` and `python3` need: no
    /// sockets of any family, no namespaces, no mounts, no tracing, no keys, no `io_uring`.
    Calls,
    /// The command runs in an empty network namespace, in which not even the loopback interface is up. (Without this
    /// protection, [`Protection::Calls`] alone forbids the network.)
    Network,
    /// No process outlives the command. A PID namespace ensures this, or, if none is allowed, a helper that kills
    /// until no descendant is left and that the command cannot signal (the users differ, or landlock forbids
    /// signals).
    Descendants,
    /// A cgroup limits the memory of all processes together. (If the policy wants this and no cgroup can be made,
    /// `RLIMIT_AS` limits each process, and the sandbox sums over all processes ten times a second.)
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

    /// Tells whether `one` is in the set.
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

/// Says how code is contained on this machine. The operator chooses the policy, not the client that sends the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Lists protections that are set up wherever the machine allows. Default: all. Leave a protection out on
    /// machines where the protection is in the way, and in tests that show what the protection prevents.
    pub wanted: Protections,
    /// Lists protections without which nothing is run ([`crate::Error::Missing`] names the first that is missing).
    /// Default: all but `Network`, since `Calls` already forbids sockets, and `Memory`, for which containers seldom
    /// have the rights.
    pub required: Protections,
    /// Sets the user id for commands if we are root; else commands run as our own user. Default: 65534, `nobody`. Two
    /// commands of one user share no process namespace, but do share the files of that user.
    pub user: u32,
    /// Sets the group id for commands. Default: 65534.
    pub group: u32,
    /// Names the cgroup in which the groups of commands are made: a folder of a version 2 hierarchy that is delegated
    /// to us. Default: none, so that new groups stand beside our own group, in the version that this machine has.
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

//! Which protections there are, which are wanted, and which are insisted on.

use std::{
    fmt::{self, Display, Formatter},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

/// One way in which code is contained. Each is independent of the others: where one fails, the others still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Protection {
    /// Landlock: no file but those named, the system's programs and libraries, and the working folder. Counts as active
    /// from its third version on (Linux 6.2), before which files could be truncated. From the sixth (6.12) also: no signals
    /// to, and no abstract sockets of, processes outside.
    Files,
    /// Seccomp: no system call but those that programs like `sh`, `grep`, `awk`, `sort` and `python3` need; no socket of any
    /// family, no namespaces, no mounts, no tracing, no keys, no `io_uring`.
    Calls,
    /// A network namespace with nothing in it, not even a loopback that is up. (Without it, [`Protection::Calls`] alone keeps
    /// from the network.)
    Network,
    /// Nothing outlives the command: a PID namespace, or, where none is allowed, a helper that the command cannot signal
    /// (it has another user, or landlock forbids it) and that kills until none of its descendants is left.
    Descendants,
    /// A cgroup that limits memory of all processes together. (Where it is wanted and none can be made: `RLIMIT_AS` of each, and
    /// the sum over all is looked at ten times a second.)
    Memory,
    /// The number of processes is limited for this command alone: by a cgroup, or by `RLIMIT_NPROC` within a user namespace
    /// of its own. (The plain limit counts all processes of the user, of other commands too, and is no substitute.)
    Processes,
    /// A user without rights: never root, no supplementary groups, no capabilities.
    User,
}

impl Protection {
    /// All of them.
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

/// A set of [`Protection`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protections(u16);

impl Protections {
    /// None.
    pub const NONE: Protections = Protections(0);
    /// All of them.
    pub const ALL: Protections = Protections((1 << Protection::ALL.len()) - 1);

    /// These and `one`.
    #[must_use]
    pub const fn with(self, one: Protection) -> Protections {
        Protections(self.0 | 1 << one as u16)
    }

    /// These without `one`.
    #[must_use]
    pub const fn without(self, one: Protection) -> Protections {
        Protections(self.0 & !(1 << one as u16))
    }

    /// Whether `one` is among them.
    pub const fn contains(self, one: Protection) -> bool {
        self.0 & 1 << one as u16 != 0
    }

    /// Each of them.
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

/// How code is contained on this machine: the operator's choice, not that of who sends the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Protections that are set up wherever the machine allows it. Default: all. To leave one out is for machines on which it
    /// is in the way, and for tests that want to see what it keeps from happening.
    pub wanted: Protections,
    /// Protections without which nothing is run ([`crate::Error::Missing`] names the first that is missing). Default: all but
    /// `Network`, since `Calls` already forbids sockets, and `Memory`, which a container seldom may set up.
    pub required: Protections,
    /// The user that commands run as where we are root; else they run as our own user. Default: 65534, `nobody`. Two
    /// commands of one user share no process namespace, but do share the files of that user.
    pub user: u32,
    /// Its group. Default: 65534.
    pub group: u32,
    /// The cgroup in which those of the commands are made: a folder of a version 2 hierarchy that is delegated to us. Default:
    /// none, which means beside our own, in whichever version this machine has.
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

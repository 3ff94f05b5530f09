//! This module defines the files that a task may open, as landlock rules.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreatedAttr, Scope,
};

use crate::channel::{Confinement, Failure};

/// The newest landlock version that this module uses. Older kernels enforce the part of the rules that they
/// support.
const NEWEST: ABI = ABI::V6;
/// The first landlock version that can forbid truncating files. Older versions do not protect files sufficiently.
const OLDEST: ABI = ABI::V3;

/// Lists the programs and libraries that a command may read and execute. An entry that does not exist is skipped.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache"];
/// Lists files that programs expect to read, none of which holds secrets.
const PLAIN: [&str; 5] = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/etc/localtime"];
/// Lists files that programs expect to write.
const SINKS: [&str; 1] = ["/dev/null"];

/// Holds the landlock rules: open files, each with the rights that a task gets to the file.
pub struct Rules(Vec<(PathFd, BitFlags<AccessFs>)>);

impl Rules {
    /// Opens the files of an order, all of which must exist.
    pub fn open(order: &Confinement) -> Result<Rules, Failure> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let execute = read | AccessFs::Execute;
        // A task with write access still can't create devices or sockets.
        let write = AccessFs::from_all(NEWEST)
            & !(AccessFs::Execute
                | AccessFs::MakeChar
                | AccessFs::MakeBlock
                | AccessFs::MakeSock
                | AccessFs::IoctlDev);
        let mut rules = Rules(Vec::new());
        for (paths, access) in [(&SYSTEM[..], execute), (&PLAIN, read), (&SINKS, write)] {
            // A WebAssembly module (a task without a program) needs none of these files.
            for path in paths.iter().filter(|_| order.program.is_some()) {
                // A file that exists and can't be opened here can't be opened by the command either.
                let _ = rules.add(Path::new(path), access);
            }
        }
        let named = order.readable.iter().map(|path| (path, read));
        let named = named.chain(order.writable.iter().map(|path| (path, write)));
        let program = order.program.iter().map(|path| (path, execute));
        let folder = order.program.iter().map(|_| (&order.folder, write));
        for (path, access) in named.chain(program).chain(folder) {
            rules.add(path, access).map_err(|error| {
                let PathFdError::OpenCall { source, .. } = error else {
                    return Failure::path("open", path, &std::io::ErrorKind::Other.into());
                };
                Failure::path("open", path, &source)
            })?;
        }
        Ok(rules)
    }

    fn add(&mut self, path: &Path, access: BitFlags<AccessFs>) -> Result<(), PathFdError> {
        let file = PathFd::new(path)?;
        // A rule for a plain file must not contain rights that exist only for folders.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
        self.0.push((file, access));
        Ok(())
    }

    /// Forbids this process and all descendants to open further files, for ever. Returns whether signals to
    /// processes outside the sandbox are forbidden too.
    pub fn enforce(self) -> Result<bool, String> {
        let status = self.restrict().map_err(|error| error.to_string())?;
        let LandlockStatus::Available { effective_abi, .. } = status else {
            return Err(format!("landlock is not available in this kernel ({status:?})"));
        };
        if effective_abi < OLDEST {
            return Err(format!(
                "landlock of this kernel has version {effective_abi:?}, expected {OLDEST:?} or later"
            ));
        }
        Ok(effective_abi >= NEWEST)
    }

    fn restrict(self) -> Result<LandlockStatus, landlock::RulesetError> {
        let mut rules = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        for (file, access) in self.0 {
            rules = rules.add_rule(PathBeneath::new(file, access))?;
        }
        Ok(rules.restrict_self()?.landlock)
    }
}

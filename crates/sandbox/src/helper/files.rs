//! Which files a task may open: rules of landlock.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreatedAttr, Scope,
};

use crate::channel::{Confinement, Failure};

/// What we know of: older kernels enforce what they know.
const NEWEST: ABI = ABI::V6;
/// Without truncation, which came with it, this is no protection of files.
const OLDEST: ABI = ABI::V3;

/// Programs and libraries: to read and execute. What is missing isn't needed.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache"];
/// Files that programs expect to read, none of which tells anything.
const PLAIN: [&str; 5] = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/etc/localtime"];
/// And to write.
const SINKS: [&str; 1] = ["/dev/null"];

/// Files, opened before the rules hold.
pub struct Rules(Vec<(PathFd, BitFlags<AccessFs>)>);

impl Rules {
    /// What an order names must be there.
    pub fn open(order: &Confinement) -> Result<Rules, Failure> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let execute = read | AccessFs::Execute;
        // No devices, no sockets.
        let write = AccessFs::from_all(NEWEST)
            & !(AccessFs::Execute
                | AccessFs::MakeChar
                | AccessFs::MakeBlock
                | AccessFs::MakeSock
                | AccessFs::IoctlDev);
        let mut rules = Rules(Vec::new());
        for (paths, access) in [(&SYSTEM[..], execute), (&PLAIN, read), (&SINKS, write)] {
            // What is no program needs no file at all.
            for path in paths.iter().filter(|_| order.program.is_some()) {
                // If it's there and can't be opened, the command can't open it either.
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
        // A rule for a file may not speak of what is done in folders.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
        self.0.push((file, access));
        Ok(())
    }

    /// From now on nothing else can be opened, for ever, by this process and all that it makes. Says whether signals to
    /// processes outside are forbidden too.
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

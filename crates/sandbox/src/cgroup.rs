//! This module makes the cgroups of a command. The cgroups limit the memory of all its processes together, and the
//! number of its processes.
//!
//! Cgroup version 1 has a separate hierarchy for each controller; version 2 has one hierarchy for all controllers.
//! The calling process makes and removes the groups, since it outlives the helper. The command's first process
//! joins the groups before it executes a program.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{Protection, Protections};

/// Holds the cgroups of one command and removes them on drop.
#[derive(Debug)]
pub struct Cgroups {
    version: u8,
    /// The group that limits memory, and the group that limits processes; in version 2 both are the same.
    memory: Option<PathBuf>,
    processes: Option<PathBuf>,
    made: Vec<PathBuf>,
}

impl Cgroups {
    /// Makes the groups for the wanted protections, as far as the machine allows. [`Cgroups::active`] lists the
    /// protections that the groups provide.
    pub fn make(beside: Option<&Path>, wanted: Protections, memory_bytes: u64, processes: u64) -> Cgroups {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("inshore-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let v2 = parent_v2(beside);
        let version = if v2.is_some() { 2 } else { 1 };
        let mut groups = Cgroups { version, memory: None, processes: None, made: Vec::new() };
        let parent = |controller| match &v2 {
            Some(folder) => Some(folder.clone()),
            None if beside.is_none() => parent_v1(controller),
            None => None,
        };
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            ["memory", "pids"].into_iter().filter_map(parent).for_each(|parent| remove_abandoned(&parent))
        });
        if wanted.contains(Protection::Memory) {
            let folder = parent("memory").and_then(|parent| groups.folder(parent.join(&name)));
            groups.memory = folder.filter(|folder| limit_memory(folder, groups.version, memory_bytes));
        }
        if wanted.contains(Protection::Processes) {
            let folder = parent("pids").and_then(|parent| groups.folder(parent.join(&name)));
            groups.processes = folder.filter(|folder| set(folder, "pids.max", processes));
        }
        groups
    }

    /// Creates the folder of a cgroup, unless it was already created for this command.
    fn folder(&mut self, folder: PathBuf) -> Option<PathBuf> {
        if !self.made.contains(&folder) {
            fs::create_dir(&folder).ok()?;
            self.made.push(folder.clone());
        }
        Some(folder)
    }

    /// Lists the protections that the groups provide.
    pub fn active(&self) -> Protections {
        let memory = self.memory.as_ref().map(|_| Protection::Memory);
        let processes = self.processes.as_ref().map(|_| Protection::Processes);
        memory.into_iter().chain(processes).collect()
    }

    /// Lists the files to which a process writes to join the groups.
    pub fn to_join(&self) -> Vec<PathBuf> {
        let mut folders: Vec<_> = [&self.memory, &self.processes].into_iter().flatten().collect();
        folders.dedup();
        folders.iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// Returns the path of the file with the limit of processes.
    pub fn processes_file(&self) -> Option<PathBuf> {
        self.processes.as_ref().map(|folder| folder.join("pids.max"))
    }

    /// Returns the peak memory of the group, page cache included.
    pub fn memory_bytes_max(&self) -> Option<u64> {
        let folder = self.memory.as_ref()?;
        let file = if self.version == 1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    }

    /// Returns true if the kernel killed a process of the group because it exceeded the memory limit.
    pub fn killed(&self) -> bool {
        let Some(folder) = &self.memory else { return false };
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|kills| kills.trim().parse::<u64>().ok()).is_some_and(|kills| kills > 0)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for folder in &self.made {
            // A killed process may still be in the group for a moment after `wait` has returned.
            for _ in 0..100 {
                match fs::remove_dir(folder) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Removes groups that were left by processes that were killed.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix("inshore-"));
        let pid = rest.and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // The kernel refuses to remove a group while processes are in the group.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Writes a limit to a file of a group. Returns true if the kernel accepted the limit. (The kernel creates these
/// files. If a file does not exist, the kernel does not support the limit.)
fn set(folder: &Path, file: &str, to: u64) -> bool {
    let path = folder.join(file);
    path.exists() && fs::write(path, to.to_string()).is_ok()
}

/// Limits memory, and swap if the kernel counts swap. In version 2, no swap is allowed. In version 1, the limit
/// applies to the sum of memory and swap.
fn limit_memory(folder: &Path, version: u8, bytes: u64) -> bool {
    if version == 1 {
        let limited = set(folder, "memory.limit_in_bytes", bytes);
        set(folder, "memory.memsw.limit_in_bytes", bytes);
        return limited;
    }
    let limited = set(folder, "memory.max", bytes);
    set(folder, "memory.swap.max", 0);
    // With this setting, the kernel kills all processes of the group together.
    set(folder, "memory.oom.group", 1);
    limited
}

/// Returns the folder for new groups of version 2: the configured folder, or else the folder of this process's
/// group. Returns `None` if the folder delegates neither the memory controller nor the controller of processes.
fn parent_v2(configured: Option<&Path>) -> Option<PathBuf> {
    let folder = match configured {
        Some(folder) => folder.to_path_buf(),
        None => {
            let own = own_path("")?;
            Path::new("/sys/fs/cgroup").join(own.strip_prefix('/')?)
        }
    };
    // The kernel refuses this write while processes are in the group. An operator then has to set up a group
    // without processes.
    let control = folder.join("cgroup.subtree_control");
    if !control.exists() {
        return None;
    }
    let _ = fs::write(&control, "+memory +pids");
    let given = fs::read_to_string(control).ok()?;
    let given: Vec<_> = given.split_whitespace().collect();
    (given.contains(&"memory") || given.contains(&"pids")).then_some(folder)
}

/// Returns the folder for new groups of version 1: the folder of this process's group. In a container that sees
/// only a part of the hierarchy, this is the top of that part.
fn parent_v1(controller: &str) -> Option<PathBuf> {
    let mount = Path::new("/sys/fs/cgroup").join(controller);
    let own = own_path(controller).and_then(|own| Some(mount.join(own.strip_prefix('/')?)));
    own.filter(|own| own.is_dir()).or_else(|| mount.is_dir().then_some(mount))
}

/// Returns the path of this process's group in the hierarchy of a controller. For version 2, `controller` is "".
fn own_path(controller: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|one| one == controller).then(|| path.to_string())
    })
}

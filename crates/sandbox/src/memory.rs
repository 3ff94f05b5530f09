//! This module measures the memory of a command if no cgroup counts it, by summing the memory of all its
//! processes.
//!
//! All processes of a command are descendants of the helper. This also holds for processes whose parent has ended,
//! since the helper and the first process in the namespace adopt orphans. A memory page that several processes
//! share should count once. The sum of resident sizes is cheap to read, but counts a shared page once for each
//! process. If this sum is within the limit, the exact value is not needed. Otherwise the module reads the
//! proportional set size of each process, for which the kernel walks over the page tables.

use std::{collections::HashMap, fs, io};

/// Returns the memory in bytes of all descendants of a process. The cheap sum of resident sizes is returned if it
/// is within `limit`; otherwise shared pages count once.
pub fn used_bytes(ancestor: u32, limit: u64) -> io::Result<u64> {
    let processes = descendants(ancestor)?;
    let resident = processes.iter().map(|process| resident_bytes(*process)).sum();
    if resident <= limit {
        return Ok(resident);
    }
    // If the system does not report a process's share, the resident size is used as an upper bound.
    let share = |process: &u32| share_bytes(*process).unwrap_or_else(|| resident_bytes(*process));
    Ok(processes.iter().map(share).sum())
}

/// Lists all descendants of a process. A process that forks during the scan may be missed, and is seen in the next
/// scan.
fn descendants(ancestor: u32) -> io::Result<Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has just ended has no memory.
        let Ok(text) = fs::read_to_string(format!("/proc/{process}/stat")) else { continue };
        if let Some(parent) = parent(&text) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![ancestor];
    while let Some(process) = next.pop() {
        let own = children.remove(&process).unwrap_or_default();
        found.extend(&own);
        next.extend(own);
    }
    Ok(found)
}

/// Parses the parent from `/proc/PID/stat`: "pid (name) state parent ...", where the name may hold any bytes.
pub fn parent(stat: &str) -> Option<u32> {
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

/// Returns the bytes of a process's resident pages, including pages of files; 0 for a process that has ended.
fn resident_bytes(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Returns the bytes of a process's resident pages, each divided by the number of processes that share the page.
/// Returns `None` if this process may not read the sizes, or if the process has ended.
fn share_bytes(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let share = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(share.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn descendants_of_descendants_are_counted_and_no_others() {
        let start = |script: &str| {
            Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        // Each shell has a child that waits for standard input.
        let mut tree = start("echo; (cat; :) | (cat; :)");
        let mut other = start("echo; cat; :");
        for child in [&mut tree, &mut other] {
            io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        }
        let began = std::time::Instant::now();
        while descendants(tree.id()).unwrap().len() < 4 {
            assert!(began.elapsed().as_secs() < 60, "{:?}", descendants(tree.id()));
        }
        let found = descendants(tree.id()).unwrap();
        assert!(!found.contains(&tree.id()) && !found.contains(&other.id()), "{found:?}");
        assert!(descendants(std::process::id()).unwrap().contains(&found[0]));
        let (cheap, exact) = (used_bytes(tree.id(), u64::MAX).unwrap(), used_bytes(tree.id(), 0).unwrap());
        assert!(exact > 0 && exact <= cheap, "{exact} of {cheap}");
        for mut child in [tree, other] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        assert_eq!(parent("12 (a ) b) (c) S 34 12 12 0"), Some(34));
    }
}

//! Releases the memory that holds the machine code of this program.

use std::fs;

use rustix::mm::{Advice, madvise};

/// Releases the memory of this program's code, or of the library that contains this function. The pages leave
/// the resident size. When the code runs again, the kernel maps it from the page cache, 64 KiB at a time. The
/// call is worth its cost after a step that ran much code once, such as planning a query (60 MiB) or
/// connecting to nodes (40 MiB in a development build). The call costs a millisecond, and does nothing if
/// /proc/self/smaps cannot be read.
pub fn release_code() {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let Some((start, end)) = code_at(&maps, release_code as fn() as usize) else { return };
    // SAFETY: the range is one mapping of a file, without write access and without a page that differs from the file.
    // The kernel loads the same bytes again at the next access, also for threads that run this code now.
    let _ = unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed) };
}

/// Finds the mapping around an address in the text of /proc/self/smaps. Returns `None` unless the mapping is a file's
/// code and has no changed page. (A debugger replaces pages of the file with its own.)
fn code_at(maps: &str, address: usize) -> Option<(usize, usize)> {
    let mut lines = maps.lines();
    let around = |line: &str| code_range(line).filter(|&(start, end)| (start..end).contains(&address));
    let range = lines.by_ref().find_map(around)?;
    let facts: Vec<&str> = lines
        .take_while(|line| line.split_whitespace().next().is_some_and(|word| word.ends_with(':')))
        .collect();
    let is_none = |fact: &str| {
        facts.iter().any(|line| line.strip_prefix(fact).is_some_and(|rest| rest.trim() == "0 kB"))
    };
    (is_none("Private_Dirty:") && is_none("Anonymous:")).then_some(range)
}

/// Parses the first line of a mapping, and returns its addresses if the mapping is a file's code.
fn code_range(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_whitespace();
    let (range, access) = (fields.next()?, fields.next()?);
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    if access != "r-xp" || inode == "0" {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unchanged_code_of_a_file_is_released() {
        let line = "55e0a000-55e0b000 r-xp 00001000 fe:00 1234 /usr/bin/inshore";
        let facts = "Size: 4 kB\nPrivate_Clean: 4 kB\nPrivate_Dirty: 0 kB\nAnonymous: 0 kB\nVmFlags: rd ex\n";
        let next = "55e0b000-55e0c000 r--p 00002000 fe:00 1234 /usr/bin/inshore\nPrivate_Dirty: 8 kB\nAnonymous: 8 kB\n";
        let at = |maps: &str| code_at(maps, 0x55e0_a010);
        let maps = format!("{line}\n{facts}{next}");
        assert_eq!(at(&maps), Some((0x55e0_a000, 0x55e0_b000)));
        assert_eq!(code_at(&maps, 0x55e0_b010), None);
        for access in ["r--p", "rw-p", "rwxp", "---p", "r-xs"] {
            assert_eq!(at(&maps.replace("r-xp", access)), None, "{access}");
        }
        assert_eq!(at(&maps.replace("Anonymous: 0", "Anonymous: 4")), None);
        assert_eq!(at(&maps.replace("Private_Dirty: 0", "Private_Dirty: 4")), None);
        assert_eq!(at(&maps.replace("fe:00 1234", "00:00 0")), None);
        assert_eq!(at(&format!("{line}\n{next}")), None, "nothing is known of it");
        assert_eq!(at("not a mapping"), None);
    }

    #[test]
    fn the_program_runs_on_after_a_release() {
        let workers: Vec<_> = (0..3)
            .map(|seed: u64| {
                std::thread::spawn(move || (0..200_000).fold(seed, |sum, i: u64| sum.rotate_left(5) ^ i))
            })
            .collect();
        for _ in 0..20 {
            release_code();
        }
        for worker in workers {
            worker.join().unwrap();
        }
    }
}

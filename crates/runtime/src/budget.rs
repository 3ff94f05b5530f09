//! The memory and threads that a job may use.
//!
//! Memory is a number that is passed in, reserved before use and handed back: every large allocation of a job
//! is preceded by [`Budget::reserve`] and lives no longer than the [`Reservation`]. What is not counted (code,
//! thread stacks, small vectors, the Parquet and zstd libraries' own state) is covered by the fixed 64 MiB
//! that contract 1 of the memory promise adds to the budget.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{Error, Result};

/// The memory and threads that a job may use. Clones share one account.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    memory_bytes: u64,
    threads: usize,
    reserved_bytes: AtomicU64,
    reserved_bytes_max: AtomicU64,
    /// The reservation in the budget that it is a part of.
    whole: Option<Reservation>,
}

impl Budget {
    /// A budget of `memory_bytes` bytes and `threads` worker threads (at least one).
    pub fn new(memory_bytes: u64, threads: usize) -> Self {
        Budget::with(memory_bytes, threads, None)
    }

    fn with(memory_bytes: u64, threads: usize, whole: Option<Reservation>) -> Self {
        Budget(Arc::new(Account {
            memory_bytes,
            threads: threads.max(1),
            reserved_bytes: AtomicU64::new(0),
            reserved_bytes_max: AtomicU64::new(0),
            whole,
        }))
    }

    /// A budget of its own, cut out of this one: its bytes are reserved here until all that use it are gone. What works
    /// in a part cannot find that others took the memory it was promised.
    ///
    /// # Errors
    /// [`Error::OverBudget`] where less is free; `what` names the purpose in it.
    pub fn part(&self, memory_bytes: u64, threads: usize, what: &'static str) -> Result<Budget> {
        let whole = self.reserve(memory_bytes, what)?;
        Ok(Budget::with(memory_bytes, threads, Some(whole)))
    }

    /// The whole budget in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    /// Whether it was cut out of another budget, so that a user who set that one does not know of this one.
    pub fn is_part(&self) -> bool {
        self.0.whole.is_some()
    }

    /// The number of worker threads, at least 1.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Bytes that nobody has reserved.
    pub fn free_bytes(&self) -> u64 {
        self.0.memory_bytes - self.0.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Bytes reserved now; 0 once a job has handed everything back.
    pub fn reserved_bytes(&self) -> u64 {
        self.0.reserved_bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever reserved at one moment.
    pub fn reserved_bytes_max(&self) -> u64 {
        self.0.reserved_bytes_max.load(Ordering::Relaxed)
    }

    /// Takes `bytes` out of the budget until the reservation is dropped.
    ///
    /// # Errors
    /// [`Error::OverBudget`] where less is free; `what` names the purpose in it.
    pub fn reserve(&self, bytes: u64, what: &'static str) -> Result<Reservation> {
        self.take(bytes, what)?;
        Ok(Reservation { budget: self.clone(), bytes, what })
    }

    fn take(&self, bytes: u64, what: &'static str) -> Result<()> {
        let account = &*self.0;
        let taken = account.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            reserved.checked_add(bytes).filter(|&sum| sum <= account.memory_bytes)
        });
        match taken {
            Ok(before) => {
                account.reserved_bytes_max.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(reserved) => {
                let (total, free) = (account.memory_bytes, account.memory_bytes - reserved);
                let enough = (!self.is_part()).then(|| enough_for(total, bytes - free));
                Err(Error::OverBudget { what, wanted: bytes, free, total, enough })
            }
        }
    }

    /// Makes sure that `bytes` are free, before any work is done.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`] where less is free, with the budget in which they would be; `what` says what cannot work. If
    /// something is reserved already, an eighth of what the budget grows by is taken to go there.
    pub fn need(&self, bytes: u64, what: impl FnOnce() -> String) -> Result<()> {
        let (given, free) = (self.memory_bytes(), self.free_bytes());
        if free >= bytes {
            return Ok(());
        }
        let missing = bytes - free;
        let others = if free < given { missing.div_ceil(7) } else { 0 };
        Err(Error::BudgetTooSmall {
            what: what(),
            given,
            smallest: given.saturating_add(missing).saturating_add(others),
        })
    }
}

/// A part of a [`Budget`] that is in use; handed back on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: u64,
    what: &'static str,
}

impl Reservation {
    /// The reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the reservation `bytes` large, taking from or handing back to the budget.
    ///
    /// # Errors
    /// [`Error::OverBudget`]; the reservation then keeps its size.
    pub fn resize(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            self.budget.take(bytes - self.bytes, self.what)?;
        } else {
            self.budget.0.reserved_bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.reserved_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A budget in which so many bytes more are free than in one of `total` bytes, where of what it is larger others take half at
/// most; a whole number of MiB.
fn enough_for(total: u64, missing: u64) -> u64 {
    total.saturating_add(missing.saturating_mul(2)).checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
}

/// The default budget: a quarter of the memory that the machine or this process's cgroup (version 1 or 2)
/// allows, whichever is smaller.
pub fn default_memory_bytes() -> u64 {
    let limits = [machine_memory_bytes(), cgroup_memory_bytes()];
    limits.into_iter().flatten().min().unwrap_or(1 << 30) / 4
}

fn machine_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The smallest limit of this process's memory cgroup and its parents.
fn cgroup_memory_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut smallest = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut folder = std::path::PathBuf::from(format!("{root}{path}"));
        while folder.starts_with(root) {
            let limit = std::fs::read_to_string(folder.join(file)).ok();
            if let Some(bytes) = limit.and_then(|text| text.trim().parse::<u64>().ok()) {
                smallest = Some(smallest.map_or(bytes, |known: u64| known.min(bytes)));
            }
            if !folder.pop() {
                break;
            }
        }
    }
    smallest
}

const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

/// Reads a size such as `64MiB`, `1.5GiB`, `200MB`, `64M` (binary, as in `ulimit` and GNU tools) or `4096`.
///
/// # Errors
/// [`Error::BadSize`] for anything else, and for sizes of 2^63 bytes and more.
///
/// ```
/// assert_eq!(inshore_runtime::parse_bytes("64MiB").unwrap(), 64 << 20);
/// assert_eq!(inshore_runtime::parse_bytes("1.5 GB").unwrap(), 1_500_000_000);
/// assert!(inshore_runtime::parse_bytes("many").is_err());
/// ```
pub fn parse_bytes(text: &str) -> Result<u64> {
    let bad = || Error::BadSize { text: text.to_string() };
    let lower = text.trim().to_ascii_lowercase();
    let (number, scale) = UNITS
        .iter()
        .find_map(|(unit, scale)| lower.strip_suffix(unit).map(|number| (number.trim_end(), *scale)))
        .unwrap_or((&lower, 1));
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(bad());
    }
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).filter(|&bytes| bytes < 1 << 63).ok_or_else(bad);
    }
    let fraction: f64 = number.parse().map_err(|_| bad())?;
    let bytes = fraction * scale as f64;
    if !bytes.is_finite() || bytes >= (1u64 << 63) as f64 {
        return Err(bad());
    }
    Ok(bytes as u64)
}

/// Writes a size with the largest binary unit that keeps it at 1 or more.
///
/// ```
/// assert_eq!(inshore_runtime::format_bytes(64 << 20), "64 MiB");
/// assert_eq!(inshore_runtime::format_bytes(1536), "1.5 KiB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    let (value, unit) = in_units(bytes);
    if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") }
}

/// Writes a size as [`format_bytes`] does, but never a smaller one: what is asked for is enough where it is given as it is
/// written.
///
/// ```
/// assert_eq!(inshore_runtime::format_bytes_up(7 << 20), "7 MiB");
/// assert_eq!(inshore_runtime::format_bytes_up((7 << 20) + 1), "7.1 MiB");
/// ```
pub fn format_bytes_up(bytes: u64) -> String {
    let (value, unit) = in_units(bytes);
    let tenths = (value * 10.0).ceil();
    if tenths % 10.0 == 0.0 {
        format!("{} {unit}", tenths / 10.0)
    } else {
        format!("{:.1} {unit}", tenths / 10.0)
    }
}

/// The size in the largest binary unit that keeps it at 1 or more.
fn in_units(bytes: u64) -> (f64, &'static str) {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    (value, units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_over_the_budget_is_refused_and_takes_nothing() {
        let budget = Budget::new(100, 1);
        let first = budget.reserve(60, "first").unwrap();
        let error = budget.reserve(41, "second").unwrap_err();
        assert!(error.to_string().contains("second needs 41 bytes but only 40 bytes"), "{error}");
        assert!(error.to_string().ends_with("a budget of 1 MiB is enough for that"), "{error}");
        assert_eq!(budget.reserved_bytes(), 60);
        drop(first);
        assert_eq!(budget.reserved_bytes(), 0);
        assert_eq!(budget.reserved_bytes_max(), 60);
    }

    #[test]
    fn a_part_is_taken_from_the_whole_until_its_last_user_is_gone() {
        let budget = Budget::new(100, 2);
        let part = budget.part(60, 1, "part").unwrap();
        let held = part.reserve(60, "all of it").unwrap();
        assert!(budget.part(41, 1, "second part").is_err());
        assert!(part.is_part() && !budget.is_part());
        // Whoever set the whole budget does not know of its parts.
        let error = part.reserve(1, "more").unwrap_err().to_string();
        assert!(error.ends_with("of the budget of 60 bytes is free"), "{error}");
        drop(part);
        assert_eq!(budget.free_bytes(), 40);
        drop(held);
        assert_eq!(budget.free_bytes(), 100);
    }

    #[test]
    fn what_a_budget_lacks_is_told_beside_what_is_taken() {
        let budget = Budget::new(10 << 20, 1);
        let _taken = budget.reserve(4 << 20, "taken").unwrap();
        budget.need(6 << 20, || unreachable!("there is enough")).unwrap();
        let error = budget.need(13 << 20, || "sorting".to_string()).unwrap_err().to_string();
        assert_eq!(error, "sorting cannot work in 10 MiB: the smallest budget that works is 18 MiB");
    }

    #[test]
    fn a_size_that_is_asked_for_is_enough_as_it_is_written() {
        for bytes in
            (10..49).flat_map(|shift| [1u64 << shift, (1 << shift) + 1, (1 << shift) | (1 << shift >> 7)])
        {
            let text = format_bytes_up(bytes);
            assert!(parse_bytes(&text).is_ok_and(|read| read >= bytes), "{bytes}: {text}");
        }
    }

    #[test]
    fn a_reservation_that_cannot_grow_keeps_its_size() {
        let budget = Budget::new(100, 1);
        let mut part = budget.reserve(60, "part").unwrap();
        part.resize(100).unwrap();
        assert!(part.resize(101).is_err());
        assert_eq!(part.bytes(), 100);
        part.resize(10).unwrap();
        assert_eq!(budget.free_bytes(), 90);
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17b", 17),
            ("64MiB", 64 << 20),
            ("64mib", 64 << 20),
            ("64 MiB", 64 << 20),
            ("64M", 64 << 20),
            ("1G", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("2TB", 2_000_000_000_000),
        ] {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "MiB", "-1", "1e30GiB", "nan", "inf", "64 Mib bytes", "9999999999GiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_budget_is_a_part_of_this_machine() {
        let bytes = default_memory_bytes();
        assert!(bytes > 1 << 20 && bytes < 1 << 50, "{bytes}");
    }
}

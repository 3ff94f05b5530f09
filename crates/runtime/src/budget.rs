//! A budget is the memory and the threads that a job may use.
//!
//! Memory is a number of bytes that is passed in, reserved before use and returned: [`Budget::reserve`]
//! precedes every large allocation of a job, and the allocation lives no longer than the [`Reservation`].
//! Some memory is not counted: code, thread stacks, small vectors, and the internal state of the Parquet and
//! zstd libraries. For this memory, a process may take 64 MiB in addition to its budget
//! (docs/guide/memory.md).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{Error, Result};

/// `Budget` limits the memory and threads of a job. Clones share one account.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    memory_bytes: u64,
    threads: usize,
    reserved_bytes: AtomicU64,
    reserved_bytes_max: AtomicU64,
    /// If this budget is a part of a larger budget, the reservation of its bytes in the larger budget;
    /// otherwise `None`.
    whole: Option<Reservation>,
}

impl Budget {
    /// Creates a budget of `memory_bytes` bytes and `threads` worker threads (at least one).
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

    /// Creates a budget that is a part of this budget. The bytes of the part are reserved in this budget
    /// until all users of the part are gone. A job that gets the part therefore always finds the promised
    /// memory.
    ///
    /// # Errors
    /// Returns [`Error::OverBudget`] if fewer bytes are free. `what` names the purpose in the message.
    pub fn part(&self, memory_bytes: u64, threads: usize, what: &'static str) -> Result<Budget> {
        let whole = self.reserve(memory_bytes, what)?;
        Ok(Budget::with(memory_bytes, threads, Some(whole)))
    }

    /// Returns the size of the budget in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    /// Returns true if the budget is a part of a larger budget. The user set the size of the larger budget,
    /// so errors of a part suggest no size.
    pub fn is_part(&self) -> bool {
        self.0.whole.is_some()
    }

    /// Returns the number of worker threads, at least 1.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Returns the number of bytes that are not reserved.
    pub fn free_bytes(&self) -> u64 {
        self.0.memory_bytes - self.0.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of reserved bytes, which is 0 once a job has returned all of them.
    pub fn reserved_bytes(&self) -> u64 {
        self.0.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Returns the largest number of bytes that were ever reserved at one moment.
    pub fn reserved_bytes_max(&self) -> u64 {
        self.0.reserved_bytes_max.load(Ordering::Relaxed)
    }

    /// Reserves `bytes` of the budget until the reservation is dropped.
    ///
    /// # Errors
    /// Returns [`Error::OverBudget`] if fewer bytes are free. `what` names the purpose in the message.
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

    /// Checks that `bytes` are free, before a job begins.
    ///
    /// # Errors
    /// Returns [`Error::BudgetTooSmall`] if fewer bytes are free. The error names a budget that would be enough, and
    /// `what` names the job that cannot run. If other reservations exist, the named budget leaves an eighth of the
    /// added bytes to these reservations.
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

/// A reservation is a part of a [`Budget`] that is in use; its bytes are returned on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: u64,
    what: &'static str,
}

impl Reservation {
    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Resizes the reservation to `bytes`: takes the difference from the budget, or returns it.
    ///
    /// # Errors
    /// Returns [`Error::OverBudget`] if the budget has too little free memory. The reservation then keeps its size.
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

/// Returns the size of a larger budget, rounded up to MiB, in which `missing` more bytes are free than in a
/// budget of `total` bytes. Other reservations may take half of the added bytes.
fn enough_for(total: u64, missing: u64) -> u64 {
    total.saturating_add(missing.saturating_mul(2)).checked_next_multiple_of(1 << 20).unwrap_or(u64::MAX)
}

/// Returns the default budget: a quarter of the memory that the machine or this process's cgroup (version 1 or 2)
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

/// Returns the smallest limit of this process's memory cgroup and its parents.
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

/// Parses a size such as `64MiB`, `1.5GiB`, `200MB`, `4096`, or `64M` (binary, as in `ulimit` and GNU tools).
///
/// # Errors
/// Returns [`Error::BadSize`] if the text has another form, or if the size is 2^63 bytes or more.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_bytes_up;

    #[test]
    fn a_reservation_over_the_budget_is_refused_and_takes_nothing() {
        let budget = Budget::new(100, 1);
        let first = budget.reserve(60, "first").unwrap();
        let error = budget.reserve(41, "second").unwrap_err();
        assert!(
            error.to_string().contains("not enough memory for second (41 bytes needed, 40 bytes"),
            "{error}"
        );
        assert!(error.to_string().ends_with("a budget of 1 MiB is enough"), "{error}");
        assert_eq!(budget.reserved_bytes(), 60);
        drop(first);
        assert_eq!(budget.reserved_bytes(), 0);
        assert_eq!(budget.reserved_bytes_max(), 60);
    }

    #[test]
    fn a_part_is_reserved_in_the_whole_until_its_last_user_is_gone() {
        let budget = Budget::new(100, 2);
        let part = budget.part(60, 1, "part").unwrap();
        let held = part.reserve(60, "all of it").unwrap();
        assert!(budget.part(41, 1, "second part").is_err());
        assert!(part.is_part() && !budget.is_part());
        // The user has set the complete budget, and does not know its parts. The error therefore suggests no
        // larger budget.
        let error = part.reserve(1, "more").unwrap_err().to_string();
        assert!(error.ends_with("of the budget of 60 bytes free)"), "{error}");
        drop(part);
        assert_eq!(budget.free_bytes(), 40);
        drop(held);
        assert_eq!(budget.free_bytes(), 100);
    }

    #[test]
    fn the_needed_budget_includes_current_reservations() {
        let budget = Budget::new(10 << 20, 1);
        let _taken = budget.reserve(4 << 20, "taken").unwrap();
        budget.need(6 << 20, || unreachable!("there is enough")).unwrap();
        let error = budget.need(13 << 20, || "sorting".to_string()).unwrap_err().to_string();
        assert_eq!(error, "sorting cannot work in 10 MiB: the smallest budget that works is 18 MiB");
    }

    #[test]
    fn sizes_that_are_rounded_up_never_become_smaller() {
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

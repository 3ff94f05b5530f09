//! Looks whether everything is as it was written, and mends what can be mended.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    Buffer, CheckedFile, Dataset, EXTENT_BYTES, Job, Place, Result, Store,
    whole::{Health, Whole, extent_buffer},
};

/// Extents that are read at the same time: as many requests of 2 MiB keep a drive busy.
const READERS: usize = 4;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The dataset and file; empty for superblocks and log.
    pub file: String,
    /// Where the extent begins in that file, in bytes.
    pub offset: u64,
    /// Where it lies; `None` for superblocks and log.
    pub place: Option<Place>,
    /// What is wrong.
    pub what: String,
    /// Whether it was mended.
    pub is_repaired: bool,
}

/// What was looked at and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Datasets that were looked at.
    pub datasets: u64,
    /// Extents that were read, with those of copies, parity and lists.
    pub extents: u64,
    /// What is damaged, in no order.
    pub damage: Vec<Damage>,
}

impl Findings {
    /// Whether nothing is damaged, or all that was is mended.
    pub fn is_sound(&self) -> bool {
        self.damage.iter().all(|damage| damage.is_repaired)
    }
}

impl Store {
    /// Reads every extent of `names` (all datasets where there are none), each copy, all parity, lists and headers,
    /// the superblocks and all copies of the log, and compares them with their checksums. With `repair`, what is
    /// damaged is made again from the rest where that gives it, and written where it belongs; superblocks and log are
    /// written anew.
    ///
    /// Costs one read of everything, and four buffers of 2 MiB from the budget.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; [`crate::Error::OverBudget`]; [`crate::Error::Cancelled`]. Damage is no error but a
    /// finding.
    pub fn verify(&self, job: &Job, names: &[String], repair: bool) -> Result<Findings> {
        let mut findings = Findings::default();
        let all: Vec<String> = match names {
            [] => self.list()?.into_iter().map(|summary| summary.name).collect(),
            names => names.to_vec(),
        };
        let datasets: Vec<Dataset> = all
            .iter()
            .filter_map(|name| match self.dataset(name) {
                // Of all datasets, one may have been removed just now.
                Err(crate::Error::NotFound { .. }) if names.is_empty() => None,
                opened => Some(opened),
            })
            .collect::<Result<_>>()?;
        let bytes = datasets.iter().map(|dataset| dataset.summary().stored_bytes).sum();
        job.start_phase(if repair { "scrubbing" } else { "verifying" }, "bytes", bytes);
        for what in self.0.check_log()? {
            let file = String::new();
            findings.damage.push(Damage { file, offset: 0, place: None, what, is_repaired: false });
        }
        if repair && !findings.damage.is_empty() && self.0.renew_log().is_ok() {
            let still = self.0.check_log()?;
            findings.damage.iter_mut().for_each(|damage| damage.is_repaired = !still.contains(&damage.what));
        }
        for dataset in &datasets {
            findings.datasets += 1;
            for file in &dataset.files {
                // The list first: all else is found through it.
                if let Some(list) = file.list() {
                    look_at_file(job, list, repair, &mut findings)?;
                }
                look_at_file(job, file, repair, &mut findings)?;
            }
        }
        if repair {
            for device in self.0.devices().values() {
                device.sync().map_err(|error| crate::Error::io("sync", device.name(), error))?;
            }
        }
        Ok(findings)
    }
}

fn look_at_file(job: &Job, file: &CheckedFile, repair: bool, findings: &mut Findings) -> Result<()> {
    let buffers = Buffer::zeroed(job.budget(), READERS * EXTENT_BYTES, "buffers to verify with")?;
    let next = AtomicU64::new(0);
    let damage = Mutex::new(Vec::new());
    let positions = file.positions();
    let look = |mut buffer: Buffer| -> Result<()> {
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            if position >= positions {
                return Ok(());
            }
            job.check_cancelled()?;
            let whole = Whole { job, file, position };
            if let Some(found) = look_at_extent(whole, repair, &mut buffer)? {
                damage.lock().expect("no panic under this lock").push(found);
            }
            job.progress().add(EXTENT_BYTES as u64);
        }
    };
    std::thread::scope(|scope| {
        let buffers = buffers.split(EXTENT_BYTES).into_iter();
        let readers: Vec<_> = buffers.map(|buffer| scope.spawn(|| look(buffer))).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    findings.extents += positions;
    findings.damage.extend(damage.into_inner().expect("no panic under this lock"));
    Ok(())
}

fn look_at_extent(whole: Whole, repair: bool, buffer: &mut Buffer) -> Result<Option<Damage>> {
    let reference = match whole.reference() {
        Ok(reference) => reference,
        Err(error) => {
            let (file, what) = (whole.file.name().to_string(), format!("no reference to it: {error}"));
            return Ok(Some(Damage { file, offset: 0, place: None, what, is_repaired: false }));
        }
    };
    let health = whole.look(buffer)?;
    let what = match health {
        Health::Whole => return Ok(None),
        Health::DamagedHeader => "its header is damaged".to_string(),
        Health::Damaged => "it is not what was written, or cannot be read".to_string(),
        Health::Missing => format!("device {} is missing", reference.place.device),
    };
    let is_repaired = repair
        && match health {
            Health::Missing => false,
            // What was damaged is read again from where it was written to.
            _ => {
                (health == Health::DamagedHeader || whole.restore(buffer)?)
                    && whole.rewrite(buffer).is_ok()
                    && whole.look(&mut extent_buffer()?)? == Health::Whole
            }
        };
    if is_repaired {
        whole.job.counters().add_repair();
    }
    let offset = whole.offset();
    let file = whole.file.name().to_string();
    Ok(Some(Damage { file, offset, place: Some(reference.place), what, is_repaired }))
}

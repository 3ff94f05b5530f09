//! This module verifies all data of a store and repairs damaged data.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_runtime::Pending;

use crate::{
    Buffer, CheckedFile, Dataset, EXTENT_BYTES, ExtentAddress, ExtentRef, Job, Result, Store,
    device::metadata_buffer,
    redundancy::whole::{ExtentFile, ExtentHealth, FileExtent, extent_buffer},
    shared::{HEADER_BYTES, Urgency, header_of},
};

/// The smallest number of extents that are read at the same time. Four requests of 2 MiB keep a drive busy.
const BUFFERS_MIN: usize = 4;
/// The number of extents whose references and headers are read together. The references are adjacent in their list, and
/// the headers are adjacent on the device.
const BATCH: u64 = 32;

/// `Damage` describes stored data that is damaged, cannot be read or is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The dataset and file (`dataset/file`); empty for damage in superblocks or in the log.
    pub file: String,
    /// The offset of the damaged extent in the file, in bytes.
    pub offset: u64,
    /// The address of the damaged extent. The address is `None` for superblocks and the log, and if it cannot be read.
    pub place: Option<ExtentAddress>,
    /// A description of the damage.
    pub what: String,
    /// True if the damage was repaired.
    pub is_repaired: bool,
}

/// `Findings` contains the results of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The number of datasets that were verified.
    pub datasets: u64,
    /// The number of extents that were read, including copies, parity and lists.
    pub extents: u64,
    /// The damage, in no particular order.
    pub damage: Vec<Damage>,
}

impl Findings {
    /// Returns true if nothing is damaged, or all damage was repaired.
    pub fn is_sound(&self) -> bool {
        self.damage.iter().all(|damage| damage.is_repaired)
    }
}

impl Store {
    /// Verifies the datasets `names`, or all datasets if `names` is empty. The call reads every extent, including
    /// copies, parity, lists of extents and headers, and verifies the checksums. It also checks the superblocks and all
    /// copies of the log. If a killed process has left an unfinished commit, the call finishes this commit first and
    /// does not report it as damage. With `repair`, damaged data is restored from redundancy, where possible, and
    /// rewritten in place. If superblocks or the log are damaged, they are written again. With `repair`, the call also
    /// frees unused space on the file system.
    ///
    /// The call reads all verified data once. It takes buffers of 2 MiB from the budget: four per drive, up to a
    /// quarter of the budget, and at least four. A small file needs fewer buffers.
    ///
    /// # Errors
    /// - Returns [`crate::Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`crate::Error::OverBudget`] if the budget has too little free memory.
    /// - Returns [`crate::Error::Cancelled`] if the job was cancelled.
    ///
    /// Damage is not an error, but is reported in the result.
    pub fn verify(&self, job: &Job, names: &[String], repair: bool) -> Result<Findings> {
        let mut findings = Findings::default();
        let all: Vec<String> = match names {
            [] => self.0.catalog()?.datasets.keys().cloned().collect(),
            names => names.to_vec(),
        };
        let datasets: Vec<Dataset> = all
            .iter()
            .filter_map(|name| match self.dataset(name) {
                // If all datasets are verified, another process may have removed a dataset in the meantime.
                Err(crate::Error::NotFound { .. }) if names.is_empty() => None,
                opened => Some(opened),
            })
            .collect::<Result<_>>()?;
        let bytes = datasets.iter().map(|dataset| dataset.summary().stored_bytes).sum();
        job.start_phase(if repair { "scrubbing" } else { "verifying" }, "bytes", bytes);
        // An error is ignored. If a commit cannot be finished, `check_log` reports it as damage.
        let _ = self.0.finish_commit();
        for what in self.0.check_log()? {
            let file = String::new();
            findings.damage.push(Damage { file, offset: 0, place: None, what, is_repaired: false });
        }
        if repair && !findings.damage.is_empty() && self.0.renew_log(Urgency::Needed).is_ok() {
            let still = self.0.check_log()?;
            findings.damage.iter_mut().for_each(|damage| damage.is_repaired = !still.contains(&damage.what));
        }
        for dataset in &datasets {
            findings.datasets += 1;
            for file in &dataset.files {
                // The list of extents is verified and repaired first, since all other extents are found through it.
                if let Some(list) = file.list() {
                    verify_file(job, list, repair, &mut findings)?;
                }
                verify_file(job, file, repair, &mut findings)?;
            }
        }
        if repair {
            // An error is ignored: if space cannot be freed, no data is lost.
            let _ = self.0.discard_unused();
            for device in self.0.devices().values() {
                device.sync().map_err(|error| crate::Error::io("sync", device.name(), error))?;
            }
        }
        Ok(findings)
    }
}

fn verify_file(job: &Job, file: &CheckedFile, repair: bool, findings: &mut Findings) -> Result<()> {
    if file.layout().positions() == 0 {
        return Ok(());
    }
    let wanted = job.store().stream_buffers(job.budget(), EXTENT_BYTES).max(BUFFERS_MIN);
    let count = wanted.min(file.layout().positions() as usize);
    let workers = job.budget().threads().min(count.div_ceil(2));
    let mut buffers =
        Buffer::zeroed(job.budget(), count * EXTENT_BYTES, "buffers for verification")?.split(EXTENT_BYTES);
    let look = Verifier { job, file, repair, next: AtomicU64::new(0), damage: Mutex::default() };
    std::thread::scope(|scope| {
        let shares =
            (0..workers).map(|worker| buffers.split_off(buffers.len() - buffers.len() / (workers - worker)));
        let workers: Vec<_> = shares.map(|share| scope.spawn(|| look.work(share))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    findings.extents += file.layout().positions();
    findings.damage.extend(look.damage.into_inner().expect("no panic under this lock"));
    Ok(())
}

/// `Verifier` verifies all extents of a file with several worker threads.
struct Verifier<'a> {
    job: &'a Job,
    file: &'a CheckedFile,
    repair: bool,
    next: AtomicU64,
    damage: Mutex<Vec<Damage>>,
}

/// `PendingExtent` is an extent whose read is in flight.
struct PendingExtent {
    position: u64,
    reference: ExtentRef,
    has_header: bool,
    pending: Pending,
}

impl Verifier<'_> {
    /// Verifies batches of extents until no extent is left. Each extent in flight needs a buffer, so the number of
    /// buffers limits the number of extents in flight.
    fn work(&self, mut spare: Vec<Buffer>) -> Result<()> {
        let mut batch = VecDeque::new();
        let mut in_flight: VecDeque<PendingExtent> = VecDeque::new();
        loop {
            self.job.check_cancelled()?;
            while let Some(mut buffer) = spare.pop() {
                if batch.is_empty() {
                    batch = self.next_batch(&mut buffer)?;
                }
                let Some((position, reference, has_header)) = batch.pop_front() else {
                    spare.push(buffer);
                    break;
                };
                let whole = self.whole(position);
                match whole.submit(reference, buffer) {
                    Ok(pending) => {
                        in_flight.push_back(PendingExtent { position, reference, has_header, pending })
                    }
                    Err(buffer) => {
                        spare.push(buffer);
                        self.examine(whole, spare.last_mut().expect("just pushed"))?;
                    }
                }
            }
            let Some(PendingExtent { position, reference, has_header, pending }) = in_flight.pop_front()
            else {
                return Ok(());
            };
            let (mut buffer, read) = pending.wait();
            let whole = self.whole(position);
            if has_header && read.is_ok() && whole.is_right(reference, &buffer) {
                self.job.progress().add(EXTENT_BYTES as u64);
            } else {
                self.examine(whole, &mut buffer)?;
            }
            spare.push(buffer);
        }
    }

    fn whole(&self, position: u64) -> FileExtent<'_> {
        FileExtent { job: self.job, file: self.file, position }
    }

    /// Returns the next extents to verify: for each extent its position, its reference, and true if its header is
    /// intact. If references cannot be read, the call examines their extents itself, with `buffer`.
    fn next_batch(&self, buffer: &mut Buffer) -> Result<VecDeque<(u64, ExtentRef, bool)>> {
        loop {
            let first = self.next.fetch_add(BATCH, Ordering::Relaxed);
            let count = self.file.layout().positions().saturating_sub(first).min(BATCH);
            if count == 0 {
                return Ok(VecDeque::new());
            }
            let Ok(references) = self.file.references_at(self.job, first, count) else {
                // Each position is examined separately, since some of the references may still be readable.
                (first..first + count).try_for_each(|position| self.examine(self.whole(position), buffer))?;
                continue;
            };
            let headers = whole_headers(self.job, &references)?;
            return Ok((first..)
                .zip(references)
                .zip(headers)
                .map(|((at, reference), has)| (at, reference, has))
                .collect());
        }
    }

    /// Verifies one extent synchronously, records its damage, and repairs the damage if `repair` is set.
    fn examine(&self, whole: FileExtent, buffer: &mut Buffer) -> Result<()> {
        self.job.check_cancelled()?;
        if let Some(found) = verify_extent(whole, self.repair, buffer)? {
            self.damage.lock().expect("no panic under this lock").push(found);
        }
        self.job.progress().add(EXTENT_BYTES as u64);
        Ok(())
    }
}

/// Returns for each reference true if the header of its extent is intact. The headers of a segment are read together.
fn whole_headers(job: &Job, references: &[ExtentRef]) -> Result<Vec<bool>> {
    let mut are_whole = vec![false; references.len()];
    let mut by_segment: BTreeMap<(u16, u32), Vec<usize>> = BTreeMap::new();
    for (index, reference) in references.iter().enumerate() {
        by_segment
            .entry((reference.place.device, header_of(reference.place.extent).0))
            .or_default()
            .push(index);
    }
    for ((device, extent), members) in by_segment {
        let Ok(device) = job.device(device) else { continue };
        let at = |index: usize| header_of(references[index].place.extent).1;
        let start = members.iter().map(|&index| at(index)).min().expect("a member");
        let end = members.iter().map(|&index| at(index)).max().expect("a member") + HEADER_BYTES;
        let mut pages = metadata_buffer(end - start)?;
        job.counters().add_read((end - start) as u64);
        if device.read(extent, start, &mut pages[..end - start]).is_ok() {
            for index in members {
                let page = &pages[at(index) - start..][..HEADER_BYTES];
                are_whole[index] = crc32fast::hash(page) == references[index].header_sum;
            }
        }
    }
    Ok(are_whole)
}

fn verify_extent(whole: FileExtent, repair: bool, buffer: &mut Buffer) -> Result<Option<Damage>> {
    let reference = match whole.reference() {
        Ok(reference) => reference,
        Err(error) => {
            let (file, what) = (
                whole.layout().name.clone(),
                format!("its place cannot be read from the list of extents: {error}"),
            );
            return Ok(Some(Damage { file, offset: 0, place: None, what, is_repaired: false }));
        }
    };
    let health = whole.look(buffer)?;
    let what = match health {
        ExtentHealth::Whole => return Ok(None),
        ExtentHealth::DamagedHeader => "the header of an extent is damaged".to_string(),
        ExtentHealth::Damaged => "the data of an extent is damaged or cannot be read".to_string(),
        ExtentHealth::Missing => format!("device {} is missing", reference.place.device),
    };
    let is_repaired = repair
        && match health {
            ExtentHealth::Missing => false,
            // After the repair, the extent is read again from the device and verified.
            _ => {
                (health == ExtentHealth::DamagedHeader || whole.restore(buffer)?)
                    && whole.rewrite(buffer).is_ok()
                    && whole.look(&mut extent_buffer()?)? == ExtentHealth::Whole
            }
        };
    if is_repaired {
        whole.job.counters().add_repair();
    }
    let offset = whole.offset();
    let file = whole.layout().name.clone();
    Ok(Some(Damage { file, offset, place: Some(reference.place), what, is_repaired }))
}

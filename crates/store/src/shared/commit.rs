//! A commit appends the edits of all waiting threads to the log, or begins a new log with them. First the caller writes
//! and syncs the data, then the commit writes and syncs the record, and then the change is acknowledged.

use std::sync::mpsc::{Sender, channel};

use super::{discovery::note_places, space::first_gap, *};
use crate::log::{LogExtents, Placement, capacity, io_error};

/// An `EditFunction` reads the catalog and returns the edits that change it.
type EditFunction = Box<dyn FnOnce(&Catalog) -> Result<Vec<Edit>> + Send>;

type Committed = std::result::Result<(), CommitError>;

/// `Queue` holds the changes that wait for their commit, and the channels for the results. The thread whose turn it is
/// commits the changes of all threads with one record of the log and one sync (group commit).
#[derive(Default)]
pub(super) struct Queue {
    turn: Mutex<()>,
    waiting: Mutex<Vec<(EditFunction, Sender<Committed>)>>,
}

/// `CommitError` is the error of a commit.
#[derive(Debug)]
pub(crate) struct CommitError {
    pub error: Error,
    /// True if it is unknown until the next read of the log whether the change was made.
    pub is_in_doubt: bool,
}

impl CommitError {
    fn again(&self) -> CommitError {
        CommitError { error: self.error.again(), is_in_doubt: self.is_in_doubt }
    }
}

/// `Urgency` is the reason to begin a new log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nothing can be appended to the old log.
    Needed,
    /// The log could lie on more devices. A new log is written only if it lies on more devices than the old one.
    BetterPlace,
}

impl Shared {
    /// Makes a change: `make` reads the current catalog and returns the edits. After the return, the edits survive a
    /// power loss. Concurrent changes of several threads share one record of the log.
    ///
    /// # Errors
    /// The errors of `make`, after which nothing was changed; I/O, after which the change was made or not, and the next
    /// call of any function finds out.
    pub fn commit(&self, make: impl FnOnce(&Catalog) -> Result<Vec<Edit>> + Send + 'static) -> Committed {
        let waiting = || self.queue.waiting.lock().expect("no panic under this lock");
        let (answer, committed) = channel();
        waiting().push((Box::new(make), answer));
        let _turn = self.queue.turn.lock().expect("no panic under this lock");
        if let Ok(committed) = committed.try_recv() {
            return committed;
        }
        let change = self.change();
        let all = std::mem::take(&mut *waiting());
        match change {
            Ok(change) => change.commit_all(all),
            Err(error) => {
                let failed = Err(CommitError { error, is_in_doubt: false });
                answer_all(all.into_iter().map(|(_, answer)| answer), &failed);
            }
        }
        committed.try_recv().expect("it was waiting")
    }
}

fn answer_all(answers: impl IntoIterator<Item = Sender<Committed>>, committed: &Committed) {
    for answer in answers {
        let _ = answer.send(committed.as_ref().copied().map_err(CommitError::again));
    }
}

impl Change<'_> {
    /// Commits the changes of all waiting threads in order: each change sees the catalog after the previous ones.
    fn commit_all(mut self, waiting: Vec<(EditFunction, Sender<Committed>)>) {
        let mut catalog = (*self.catalog).clone();
        let commit = catalog.commit + 1;
        let (mut edits, mut accepted) = (Vec::new(), Vec::new());
        for (make, answer) in waiting {
            match make(&catalog) {
                Ok(made) => {
                    catalog.apply(if made.is_empty() { catalog.commit } else { commit }, &made);
                    edits.extend(made);
                    accepted.push(answer);
                }
                Err(error) => {
                    let _ = answer.send(Err(CommitError { error, is_in_doubt: false }));
                }
            }
        }
        if edits.is_empty() {
            return answer_all(accepted, &Ok(()));
        }
        let committed = match self.write_edits(&catalog, &edits) {
            Ok(log) => {
                self.commit(log, Arc::new(catalog));
                Ok(())
            }
            Err(error) => Err(CommitError { error, is_in_doubt: self.is_begun }),
        };
        answer_all(accepted, &committed);
    }

    /// Writes `edits`, which lead to `catalog`, to the log. Begins a new log if that is necessary or better.
    fn write_edits(&mut self, catalog: &Catalog, edits: &[Edit]) -> Result<Log> {
        // A record that is appended to a failed log may lie behind a torn one.
        let is_free = !self.doubtful && !self.is_stale && self.log.is_fit(&self.devices);
        let superblock = self.log.superblock.clone();
        // A better placement of the log justifies one more write of the superblock. If there is no room for the new
        // log, the old log stays, without an error.
        if is_free && let Some(log) = self.checkpoint(superblock.clone(), catalog, Urgency::BetterPlace)? {
            return Ok(log);
        }
        if is_free && self.log.has_room(edits) {
            return self.append(catalog.commit, edits);
        }
        Ok(self.checkpoint(superblock, catalog, Urgency::Needed)?.expect("it was needed"))
    }

    /// Begins a new log with the current catalog and commits it, if that is necessary or a better place exists.
    pub fn commit_new_log(mut self, superblock: Superblock, urgency: Urgency) -> Result<()> {
        let catalog = self.catalog.clone();
        if let Some(log) = self.checkpoint(superblock, &catalog, urgency)? {
            self.commit(log, catalog);
        }
        Ok(())
    }

    /// Writes the catalog to the place of the spare log, or to a better one, and makes this the log of the superblock
    /// `next`. The result is `None`, and nothing was written, if the log lies well or there is no room for a better
    /// one.
    fn checkpoint(
        &mut self,
        mut next: Superblock,
        catalog: &Catalog,
        urgency: Urgency,
    ) -> Result<Option<Log>> {
        let placement = Placement::of(catalog, &next, &self.devices);
        if urgency == Urgency::BetterPlace && spread(&next.log) >= placement.spread() {
            return Ok(None);
        }
        // The catalog keeps freed extents until no process reads them and their space was discarded.
        let pinned = self.lock.pinned(catalog.commit)?.min(self.discarded);
        next.branch(&self.devices);
        self.drop_unfinished(&self.devices, catalog, &mut next)?;
        note_places(&mut next, &self.devices);
        next.sequence += 1;
        next.generation += 1;
        let needed = Log::needed_bytes(catalog, pinned);
        let stays =
            |place: &ExtentAddress| next.takes_data(place.device) && self.devices.contains_key(&place.device);
        let spare_stays = next.spare.iter().flatten().all(stays);
        let room = capacity(&next.spare);
        let log_stays = next.log.iter().flatten().all(|place| next.takes_data(place.device));
        let is_well_placed = spread(&next.spare) >= placement.spread();
        // A new log has room for its first record twice.
        let taken = if spare_stays && log_stays && is_well_placed && 2 * needed <= room {
            None
        } else {
            let extents = (4 * needed).div_ceil(EXTENT_BYTES).max(next.log[0].len());
            let mut taken = self.log_and_spare(&next, catalog, extents, placement);
            if urgency == Urgency::Needed && taken.as_ref().is_err_and(Error::is_no_space) {
                // A log on fewer devices is better than none.
                taken = self.log_and_spare(&next, catalog, extents, Placement { devices: 1, ..placement });
            }
            match taken {
                Ok(taken) => Some(taken),
                Err(error) if !error.is_no_space() => return Err(error),
                Err(_) if urgency == Urgency::BetterPlace => return Ok(None),
                // A full store must still accept deletions.
                Err(_) if spare_stays && log_stays && needed <= room => None,
                Err(error) => return Err(error),
            }
        };
        match taken {
            Some(taken) => (next.log, next.spare) = taken,
            None => std::mem::swap(&mut next.log, &mut next.spare),
        }
        self.begin_log(next, catalog, pinned).map(Some)
    }

    /// Allocates a log and its spare, with `extents` extents for each copy, on the devices that take new data. Each
    /// copy gets a device of its own, as long as devices with room are left.
    ///
    /// # Errors
    /// No space, if the copies would lie on fewer devices than `placement` requires.
    fn log_and_spare(
        &self,
        next: &Superblock,
        catalog: &Catalog,
        extents: usize,
        placement: Placement,
    ) -> Result<(LogExtents, LogExtents)> {
        let mut devices = self.devices.clone();
        devices.retain(|&number, _| next.takes_data(number));
        let mut busy = self.busy(next, catalog)?;
        let mut take = || {
            let mut log = LogExtents::new();
            for (&number, device) in &devices {
                if log.len() < placement.copies {
                    log.extend(places_on(device.as_ref(), number, extents, &mut busy));
                }
            }
            let lies_on = log.len();
            for (&number, device) in &devices {
                while log.len() < 2 {
                    let Some(places) = places_on(device.as_ref(), number, extents, &mut busy) else { break };
                    log.push(places);
                }
            }
            if lies_on < placement.spread() || log.len() < 2 {
                return Err(self.shared.no_space());
            }
            for place in log.iter().flatten() {
                let (device, extents) = (devices[&place.device].as_ref(), place.extent..place.extent + 1);
                device.prepare(extents).map_err(io_error("allocate space for the log", device))?;
            }
            Ok(log)
        };
        Ok((take()?, take()?))
    }
}

/// Allocates extents on a device for a copy of a log. The extents are not in `busy`, and are added to `busy`. The
/// result is `None` if the device has too few free extents.
fn places_on(
    device: &dyn Device,
    number: u16,
    extents: usize,
    busy: &mut Vec<Run>,
) -> Option<Vec<ExtentAddress>> {
    let (mut places, begin) = (Vec::new(), busy.len());
    while places.len() < extents {
        let wanted = (extents - places.len()) as u32;
        let Some(run) = first_gap(busy, number, device.extents(), wanted) else {
            busy.truncate(begin);
            return None;
        };
        busy.push(run);
        places.extend(run.places());
    }
    Some(places)
}

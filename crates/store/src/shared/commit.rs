//! A commit appends the edits of all waiting threads to the log as one record, or begins a new log that includes the
//! edits. The caller must have written and synced the data before. A change is acknowledged after its record was
//! written and synced.

use std::sync::mpsc::{Sender, channel};

use super::{discovery::note_places, space::first_gap, *};
use crate::log::{LogExtents, Placement, capacity, io_error};

/// An `EditFunction` reads the catalog and returns the edits that a change makes to it.
type EditFunction = Box<dyn FnOnce(&Catalog) -> Result<Vec<Edit>> + Send>;

type Committed = std::result::Result<(), CommitError>;

/// `Queue` contains the changes that wait for their commit, and the channels for the results. The thread that holds the
/// mutex `turn` commits the changes of all waiting threads with one record of the log and one sync (group commit).
#[derive(Default)]
pub(super) struct Queue {
    turn: Mutex<()>,
    waiting: Mutex<Vec<(EditFunction, Sender<Committed>)>>,
}

/// `CommitError` is the error of a commit.
#[derive(Debug)]
pub(crate) struct CommitError {
    pub error: Error,
    /// True if it is unknown whether the change was made. Only the next read of the log decides this.
    pub is_in_doubt: bool,
}

impl CommitError {
    fn again(&self) -> CommitError {
        CommitError { error: self.error.again(), is_in_doubt: self.is_in_doubt }
    }
}

/// `Urgency` is the reason for which a new log is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// No record can be appended to the old log.
    Needed,
    /// Copies of the log could be on more devices. A new log is written only if its copies are on more devices than
    /// those of the old log.
    BetterPlace,
}

impl Shared {
    /// Makes a change. The function `make` reads the current catalog and returns the edits of the change. After the
    /// return, the edits survive a power loss. Concurrent changes of several threads share one record of the log.
    ///
    /// # Errors
    /// - Returns the errors of `make`. Nothing was then changed.
    /// - Returns an I/O error if the log cannot be read or written.
    ///
    /// After an I/O error, the change may or may not have been made. The next read of the log shows which.
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
    /// Commits the changes of all waiting threads in order. Each change sees the catalog after the previous changes.
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

    /// Writes `edits`, whose result is `catalog`, to the log. Begins a new log if this is necessary or gives a better
    /// placement.
    fn write_edits(&mut self, catalog: &Catalog, edits: &[Edit]) -> Result<Log> {
        // If an earlier append failed, the log may end with a torn record, and a record after the torn record could not
        // be read.
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

    /// Begins a new log with the current catalog and commits it, if this is necessary or if a better placement exists.
    pub fn commit_new_log(mut self, superblock: Superblock, urgency: Urgency) -> Result<()> {
        let catalog = self.catalog.clone();
        if let Some(log) = self.checkpoint(superblock, &catalog, urgency)? {
            self.commit(log, catalog);
        }
        Ok(())
    }

    /// Writes the catalog as a new log, to the extents of the spare log or to newly allocated extents, and writes the
    /// superblock `next` that refers to this log. With [`Urgency::BetterPlace`], the call writes nothing and returns
    /// `None` if the placement of the log is already good or there is no space for a better placement.
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
        // The new log omits freed extents only after no process reads them and their space was discarded.
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
        // A new log must have room for twice the length of its first record.
        let taken = if spare_stays && log_stays && is_well_placed && 2 * needed <= room {
            None
        } else {
            let extents = (4 * needed).div_ceil(EXTENT_BYTES).max(next.log[0].len());
            let mut taken = self.log_and_spare(&next, catalog, extents, placement);
            if urgency == Urgency::Needed && taken.as_ref().is_err_and(Error::is_no_space) {
                // If there is no space for the wanted placement, the log is placed on fewer devices.
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

    /// Allocates a log and its spare log, with `extents` extents per copy, on the devices that take new data. Each copy
    /// is on a device of its own, as far as there are enough devices with room.
    ///
    /// # Errors
    /// Returns [`crate::Error::NoSpace`] if the copies would be on fewer devices than `placement` requires.
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

/// Allocates extents on a device for a copy of a log. The call takes extents that are not in `busy`, and adds them to
/// `busy`. The result is `None` if the device has too few free extents.
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

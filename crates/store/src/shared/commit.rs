//! A commit appends the edits of all threads that wait to the log, or begins a new log with them. The order is: data and
//! its sync (by the caller), record and its sync, answer.

use std::sync::mpsc::{Sender, channel};

use super::{discovery::note_places, space::first_gap, *};
use crate::log::{Aim, LogPlaces, capacity, io_error};

/// A `Make` looks at the catalog and gives the edits that change it.
type Make = Box<dyn FnOnce(&Catalog) -> Result<Vec<Edit>> + Send>;

type Committed = std::result::Result<(), Failed>;

/// `Queue` holds changes that wait for their commit, and where the results go. The thread whose turn it is commits those of
/// all threads: one record of the log, and one sync, for all of them (group commit).
#[derive(Default)]
pub(super) struct Queue {
    turn: Mutex<()>,
    waiting: Mutex<Vec<(Make, Sender<Committed>)>>,
}

/// `Failed` is the error of a commit.
#[derive(Debug)]
pub(crate) struct Failed {
    pub error: Error,
    /// Whether the change was made is unknown until the log is read again.
    pub is_in_doubt: bool,
}

impl Failed {
    fn again(&self) -> Failed {
        Failed { error: self.error.again(), is_in_doubt: self.is_in_doubt }
    }
}

/// `Urgency` says why a new log is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nothing can be appended to the old log.
    Needed,
    /// The log does not lie on as many devices as it could. Nothing is written unless the new one does.
    ToLieBetter,
}

impl Shared {
    /// Makes a change: `make` gives the edits, once it has looked at the catalog that they will change. When this
    /// returns, they survive a power loss. Changes of several threads that come at once share one record of the log.
    ///
    /// # Errors
    /// Those of `make`, and then nothing was changed; I/O, and then the change was made or not, and the next call
    /// of any function finds out.
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
                let failed = Err(Failed { error, is_in_doubt: false });
                answer_all(all.into_iter().map(|(_, answer)| answer), &failed);
            }
        }
        committed.try_recv().expect("it was waiting")
    }
}

fn answer_all(answers: impl IntoIterator<Item = Sender<Committed>>, committed: &Committed) {
    for answer in answers {
        let _ = answer.send(committed.as_ref().copied().map_err(Failed::again));
    }
}

impl Change<'_> {
    /// Commits the changes of all threads that wait: each one sees the catalog that those before it leave.
    fn commit_all(mut self, waiting: Vec<(Make, Sender<Committed>)>) {
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
                    let _ = answer.send(Err(Failed { error, is_in_doubt: false }));
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
            Err(error) => Err(Failed { error, is_in_doubt: self.is_begun }),
        };
        answer_all(accepted, &committed);
    }

    /// Writes `edits`, which lead to `catalog`, to the log, or begins a new log where that is needed or better.
    fn write_edits(&mut self, catalog: &Catalog, edits: &[Edit]) -> Result<Log> {
        // A record that is appended to a log that failed may lie behind one that is not whole.
        let is_free = !self.doubtful && !self.is_stale && self.log.is_fit(&self.devices);
        let superblock = self.log.superblock.clone();
        // A log that lies better is worth a superblock, but no error: there may be no room for it.
        if is_free && let Some(log) = self.checkpoint(superblock.clone(), catalog, Urgency::ToLieBetter)? {
            return Ok(log);
        }
        if is_free && self.log.has_room(edits) {
            return self.append(catalog.commit, edits);
        }
        Ok(self.checkpoint(superblock, catalog, Urgency::Needed)?.expect("it was needed"))
    }

    /// Begins a new log with the catalog as it is and commits that, if it is needed or there is a better place for it.
    pub fn commit_new_log(mut self, superblock: Superblock, urgency: Urgency) -> Result<()> {
        let catalog = self.catalog.clone();
        if let Some(log) = self.checkpoint(superblock, &catalog, urgency)? {
            self.commit(log, catalog);
        }
        Ok(())
    }

    /// Writes the catalog to where the spare log is, or to a place that is better, and makes that the log of the
    /// superblock `next`. `None`: the log lies well, or there is no room for a better one, and nothing was written.
    fn checkpoint(
        &mut self,
        mut next: Superblock,
        catalog: &Catalog,
        urgency: Urgency,
    ) -> Result<Option<Log>> {
        let aim = Aim::of(catalog, &next, &self.devices);
        if urgency == Urgency::ToLieBetter && spread(&next.log) >= aim.spread() {
            return Ok(None);
        }
        // Freed extents are remembered until no process reads them and their space was given back.
        let pinned = self.lock.pinned(catalog.commit)?.min(self.discarded);
        next.branch(&self.devices);
        self.drop_unfinished(&self.devices, catalog, &mut next)?;
        note_places(&mut next, &self.devices);
        next.sequence += 1;
        next.generation += 1;
        let needed = Log::needed_bytes(catalog, pinned);
        let stays = |place: &Place| next.takes_data(place.device) && self.devices.contains_key(&place.device);
        let spare_stays = next.spare.iter().flatten().all(stays);
        let room = capacity(&next.spare);
        let log_stays = next.log.iter().flatten().all(|place| next.takes_data(place.device));
        let lies_well = spread(&next.spare) >= aim.spread();
        // A new log has room for as much again as it begins with.
        let taken = if spare_stays && log_stays && lies_well && 2 * needed <= room {
            None
        } else {
            let extents = (4 * needed).div_ceil(EXTENT_BYTES).max(next.log[0].len());
            let mut taken = self.log_and_spare(&next, catalog, extents, aim);
            if urgency == Urgency::Needed && taken.as_ref().is_err_and(Error::is_no_space) {
                // Better on fewer devices than nowhere.
                taken = self.log_and_spare(&next, catalog, extents, Aim { devices: 1, ..aim });
            }
            match taken {
                Ok(taken) => Some(taken),
                Err(error) if !error.is_no_space() => return Err(error),
                Err(_) if urgency == Urgency::ToLieBetter => return Ok(None),
                // A full store can still be told what to delete.
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

    /// Room for a log and its spare, of `extents` extents a copy, on the devices that take new data: each copy on a device
    /// of its own, as long as there are any with room.
    ///
    /// # Errors
    /// No space, where the copies would lie on fewer devices than they are to.
    fn log_and_spare(
        &self,
        next: &Superblock,
        catalog: &Catalog,
        extents: usize,
        aim: Aim,
    ) -> Result<(LogPlaces, LogPlaces)> {
        let mut devices = self.devices.clone();
        devices.retain(|&number, _| next.takes_data(number));
        let mut busy = self.busy(next, catalog)?;
        let mut take = || {
            let mut log = LogPlaces::new();
            for (&number, device) in &devices {
                if log.len() < aim.copies {
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
            if lies_on < aim.spread() || log.len() < 2 {
                return Err(self.shared.no_space());
            }
            for place in log.iter().flatten() {
                let (device, extents) = (devices[&place.device].as_ref(), place.extent..place.extent + 1);
                device.prepare(extents).map_err(io_error("take space for the log", device))?;
            }
            Ok(log)
        };
        Ok((take()?, take()?))
    }
}

/// Extents for a copy of a log on a device, of those that are not in `busy`, to which they are added. `None` where there
/// are too few.
fn places_on(device: &dyn Device, number: u16, extents: usize, busy: &mut Vec<Run>) -> Option<Vec<Place>> {
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

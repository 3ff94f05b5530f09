//! Resumable work consists of finished pieces of a job. If the job is interrupted, a later job resumes from these
//! pieces.
//!
//! A piece of resumable work, such as a sorted run, is a dataset of the kind "kept" with the name
//! `resume-FINGERPRINT-RANDOM`. The piece survives crashes like every dataset, but [`Store::list`] omits it. The
//! fingerprint is a hash of the job's command and inputs, so only a job with the same command and inputs finds the
//! pieces. Only one running job at a time may use a fingerprint.
//!
//! ```text
//!   attributes   [ start of the job in seconds since 1970 u64 | description, a length u32 and UTF-8 | state ]
//! ```
//!
//! The crate that stores the work defines the format of the state.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use crate::{
    Dataset, DatasetBuilder, DatasetRecord, Edit, Error, Job, Result, Store,
    dataset::named::KEPT,
    log::encoding::{Cursor, put_bytes},
    random::random_u64,
};

/// The largest number of pieces that one commit removes. It limits the length of a log record.
const REMOVED_AT_ONCE: usize = 1000;

/// `Keep` stores the finished pieces of a job. Clones share their state.
#[derive(Clone, Debug)]
pub struct Keep(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    name: String,
    what: String,
    began: u64,
}

/// `ResumablePiece` is a finished piece of a job's work.
#[derive(Clone, Debug)]
pub struct ResumablePiece {
    /// The dataset of the piece. Its files stay readable while the dataset is open.
    pub dataset: Dataset,
    /// The state that was passed to [`Keep::commit`].
    pub state: Vec<u8>,
}

/// `ResumableWork` summarizes the finished pieces that an interrupted or running job has stored.
#[derive(Clone, Debug, Serialize)]
pub struct ResumableWork {
    /// The name of the work: `resume-` and a fingerprint.
    pub name: String,
    /// A description of the job for users.
    pub what: String,
    /// The number of finished pieces.
    pub pieces: usize,
    /// The number of bytes of data in the pieces.
    pub bytes: u64,
    /// The number of seconds since the first execution of the job began.
    pub seconds: f64,
    /// The id of the process that uses the work at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
}

impl Store {
    /// Begins to store finished pieces of `job`, which `what` describes. Jobs that must not share pieces need different
    /// fingerprints. [`Keep::pieces`] returns the pieces that an earlier, interrupted execution of the job stored.
    ///
    /// # Errors
    /// - Returns [`Error::InUse`] if a running job uses this fingerprint.
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn keep(&self, job: &Job, fingerprint: u64, what: &str) -> Result<Keep> {
        let name = format!("resume-{fingerprint:016x}");
        if let Some(process) = self.0.claim(job.scratch(), &name)? {
            return Err(Error::InUse { name, process });
        }
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(Keep(Arc::new(Inner { store: self.clone(), name, what: what.to_string(), began })))
    }

    /// Lists the resumable work of interrupted and running jobs, sorted by name.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    pub fn kept(&self) -> Result<Vec<ResumableWork>> {
        let (catalog, owners) = (self.0.catalog()?, self.0.owners()?);
        let mut found: BTreeMap<&str, ResumableWork> = BTreeMap::new();
        for record in catalog.datasets.values().filter(|record| record.kind == KEPT) {
            let name = name_of(record);
            let (began, what, _) = parse(&record.attributes).unwrap_or((0, "?".to_string(), &[]));
            let began = UNIX_EPOCH.checked_add(Duration::from_secs(began)).unwrap_or(UNIX_EPOCH);
            let seconds = began.elapsed().map_or(0.0, |since| since.as_secs_f64());
            let process = owners.iter().find(|owner| owner.keeps.as_deref() == Some(name));
            let process = process.map(|owner| owner.process);
            let first =
                || ResumableWork { name: name.to_string(), what, pieces: 0, bytes: 0, seconds, process };
            let kept = found.entry(name).or_insert_with(first);
            kept.pieces += 1;
            kept.bytes += record.bytes();
            kept.seconds = kept.seconds.max(seconds);
        }
        Ok(found.into_values().collect())
    }

    /// Removes the resumable work of an interrupted job. [`Store::kept`] lists the names of such work.
    ///
    /// # Errors
    /// - Returns [`Error::NotFound`] if the store has no dataset with this name.
    /// - Returns [`Error::InUse`] if a running process uses the stored work.
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn remove_kept(&self, name: &str) -> Result<()> {
        let all = self.kept()?;
        let Some(kept) = all.iter().find(|kept| kept.name == name) else {
            return Err(Error::NotFound { name: name.to_string(), store: self.path().to_path_buf() });
        };
        if let Some(process) = kept.process {
            return Err(Error::InUse { name: name.to_string(), process });
        }
        self.remove_pieces(&self.piece_names(name)?)
    }

    fn piece_names(&self, name: &str) -> Result<Vec<String>> {
        let catalog = self.0.catalog()?;
        let pieces =
            catalog.datasets.values().filter(|record| record.kind == KEPT && name_of(record) == name);
        Ok(pieces.map(|record| record.name.clone()).collect())
    }

    /// Removes pieces. If a piece was removed earlier, this is no error.
    fn remove_pieces(&self, names: &[String]) -> Result<()> {
        for names in names.chunks(REMOVED_AT_ONCE) {
            let names = names.to_vec();
            self.commit(move |catalog| {
                let there = names.into_iter().filter(|name| catalog.datasets.contains_key(name));
                Ok(there.map(Edit::Remove).collect())
            })?;
        }
        Ok(())
    }
}

impl Keep {
    /// Returns the name of the work, which [`Store::kept`] lists.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the pieces that were stored so far, in no particular order.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    pub fn pieces(&self) -> Result<Vec<ResumablePiece>> {
        let mut pieces = Vec::new();
        for name in self.0.store.piece_names(&self.0.name)? {
            let dataset = self.0.store.dataset(&name)?;
            if let Some((_, _, state)) = parse(dataset.attributes()) {
                let state = state.to_vec();
                pieces.push(ResumablePiece { dataset, state });
            }
        }
        Ok(pieces)
    }

    /// Begins a piece. [`Keep::commit`] stores the finished piece.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn begin(&self, job: &Job) -> Result<DatasetBuilder> {
        let name = format!("{}-{:016x}", self.0.name, random_u64());
        self.0.store.create_dataset(job, &name, KEPT)
    }

    /// Stores a finished piece. After the return, the piece survives a power loss.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`Error::Cancelled`] if the job was cancelled.
    pub fn commit(&self, piece: DatasetBuilder, state: &[u8]) -> Result<()> {
        let mut attributes = self.0.began.to_le_bytes().to_vec();
        put_bytes(&mut attributes, self.0.what.as_bytes());
        attributes.extend(state);
        piece.commit(&attributes)
    }

    /// Removes pieces that cannot be used.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn give_up(&self, pieces: &[ResumablePiece]) -> Result<()> {
        let names: Vec<String> = pieces.iter().map(|piece| piece.dataset.name().to_string()).collect();
        self.0.store.remove_pieces(&names)
    }

    /// Removes all pieces after the job has ended.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on a file.
    pub fn finish(&self) -> Result<()> {
        self.0.store.remove_pieces(&self.0.store.piece_names(&self.0.name)?)
    }
}

/// Returns the name of a piece without its random suffix.
fn name_of(record: &DatasetRecord) -> &str {
    record.name.rsplit_once('-').map_or(&record.name, |(name, _)| name)
}

/// Parses the attributes of a piece: the start of the job, its description, and the state.
fn parse(attributes: &[u8]) -> Option<(u64, String, &[u8])> {
    let mut rest = Cursor(attributes);
    Some((rest.u64()?, rest.string()?, rest.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Cancel};

    fn keep_one(keep: &Keep, job: &Job, bytes: &[u8], state: &[u8]) {
        let mut piece = keep.begin(job).unwrap();
        let mut writer = piece.file("rows", 4096, 4096).unwrap();
        writer.write(bytes).unwrap();
        piece.add(writer).unwrap();
        keep.commit(piece, state).unwrap();
    }

    #[test]
    fn kept_work_is_found_by_the_same_job_only_and_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = || store.job(Budget::new(16 << 20, 1), Cancel::default()).unwrap();
        let first = job();
        let keep = store.keep(&first, 7, "sort a.csv").unwrap();
        keep_one(&keep, &first, b"abc", b"one");
        keep_one(&keep, &first, b"defg", b"two");
        let unfinished = keep.begin(&first).unwrap();
        // `list` omits resumable work, and `verify` verifies it like datasets.
        assert!(store.list().unwrap().is_empty());
        assert_eq!(store.verify(&first, &[], false).unwrap().datasets, 2);
        let second = job();
        assert!(matches!(store.keep(&second, 7, "sort a.csv"), Err(Error::InUse { .. })));
        assert!(matches!(store.remove_kept(keep.name()), Err(Error::InUse { .. })));
        drop((unfinished, first));
        let other = store.keep(&job(), 8, "sort b.csv").unwrap();
        assert!(other.pieces().unwrap().is_empty());
        let again = store.keep(&second, 7, "sort a.csv").unwrap();
        let mut states: Vec<Vec<u8>> = again.pieces().unwrap().into_iter().map(|piece| piece.state).collect();
        states.sort();
        assert_eq!(states, [b"one", b"two"]);
        let kept = store.kept().unwrap();
        assert_eq!((kept.len(), &*kept[0].what, kept[0].pieces, kept[0].bytes), (1, "sort a.csv", 2, 7));
        again.finish().unwrap();
        assert!(store.kept().unwrap().is_empty() && again.pieces().unwrap().is_empty());
        assert!(matches!(store.remove_kept(again.name()), Err(Error::NotFound { .. })));
    }

    #[test]
    fn kept_work_of_a_dead_job_can_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let keep = store.keep(&job, 7, "sort a.csv").unwrap();
        keep_one(&keep, &job, &[1; 10_000], b"");
        drop(job);
        store.remove_kept(keep.name()).unwrap();
        assert!(store.kept().unwrap().is_empty());
        assert_eq!(store.usage().unwrap()[0].dataset_bytes, 0);
    }
}

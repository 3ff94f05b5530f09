//! The catalog lists the datasets of a store and the addresses of their extents. Layout: `docs/format.md`, "Catalog".
//!
//! A [`Catalog`] is the state of the store after a commit. Only [`Edit`]s change a catalog. The same code applies edits
//! when a commit is made and when the log is read.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    EXTENT_BYTES, PAGE_BYTES, Redundancy, SEGMENT_EXTENTS,
    log::SUPERBLOCK_EXTENT,
    log::encoding::{Cursor, put_bytes, put_u32},
};

/// `ExtentAddress` is the physical address of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentAddress {
    /// The number of the device in the store.
    pub device: u16,
    /// The number of the extent on the device.
    pub extent: u32,
}

impl ExtentAddress {
    /// Returns true if the extent can contain data. The extents of segment headers and of the superblock cannot.
    pub(crate) fn is_for_data(self) -> bool {
        !self.extent.is_multiple_of(SEGMENT_EXTENTS) && self.extent != SUPERBLOCK_EXTENT
    }
}

/// `ExtentRef` refers to an extent of a dataset. It contains the address of the extent and the CRC-32 of the extent's
/// header. The header contains the checksums of the extent's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRef {
    /// The address of the extent.
    pub place: ExtentAddress,
    /// The CRC-32 of the extent's header, which is one page.
    pub header_sum: u32,
}

/// The size of an [`ExtentRef`] on flash, in bytes.
pub(crate) const REF_BYTES: usize = 12;
/// The largest number of references that a file's record can contain. A longer list is stored in separate extents.
pub(crate) const REFS_INLINE: usize = 128;

impl ExtentRef {
    pub(crate) fn encode(&self) -> [u8; REF_BYTES] {
        let mut bytes = [0; REF_BYTES];
        bytes[..2].copy_from_slice(&self.place.device.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.place.extent.to_le_bytes());
        bytes[8..].copy_from_slice(&self.header_sum.to_le_bytes());
        bytes
    }

    /// Decodes a reference. The result is `None` if the extent at its address cannot contain data.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ExtentRef> {
        let mut bytes = Cursor(bytes);
        let device = bytes.u16()?;
        bytes.take(2)?;
        let place = ExtentAddress { device, extent: bytes.u32()? };
        let header_sum = bytes.u32()?;
        place.is_for_data().then_some(ExtentRef { place, header_sum })
    }
}

/// `FileRecord` describes one file of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRecord {
    /// The name of the file in the dataset.
    pub name: String,
    /// The length of the data in bytes.
    pub len: u64,
    /// The size of a checksum block in bytes.
    pub block_bytes: u32,
    /// The level is 0 if `refs` refer to the file's extents. The level is 1 if `refs` refer to extents that contain the
    /// list of references.
    pub level: u8,
    /// References to extents, in the order of [`Redundancy::refs`].
    pub refs: Vec<ExtentRef>,
}

impl FileRecord {
    /// Returns the number of extents of data, not counting copies.
    pub fn extents(&self) -> u64 {
        self.len.div_ceil(EXTENT_BYTES as u64)
    }

    /// Returns true if the numbers of the record are consistent, so that later arithmetic cannot overflow.
    fn is_sound(&self, redundancy: Redundancy) -> bool {
        let block = self.block_bytes as usize;
        if self.len > 1 << 56
            || block == 0
            || !block.is_multiple_of(PAGE_BYTES)
            || !EXTENT_BYTES.is_multiple_of(block)
        {
            return false;
        }
        let refs = redundancy.refs(self.extents());
        let expected = match self.level {
            0 if refs <= REFS_INLINE as u64 => refs,
            1 if refs > REFS_INLINE as u64 => {
                (refs * REF_BYTES as u64).div_ceil(EXTENT_BYTES as u64) * redundancy.list_copies() as u64
            }
            _ => return false,
        };
        self.refs.len() as u64 == expected
    }
}

/// `Run` is a sequence of adjacent extents of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first extent.
    pub start: ExtentAddress,
    /// The number of extents.
    pub count: u32,
}

impl Run {
    /// Returns the addresses of the extents.
    pub fn places(self) -> impl Iterator<Item = ExtentAddress> {
        let device = self.start.device;
        (0..self.count).map(move |next| ExtentAddress { device, extent: self.start.extent + next })
    }

    /// Returns true if every extent of the run can hold data. The run then lies in one segment.
    pub(crate) fn is_for_data(self) -> bool {
        let segment_end = (self.start.extent / SEGMENT_EXTENTS + 1) as u64 * SEGMENT_EXTENTS as u64;
        let end = self.start.extent as u64 + self.count as u64;
        // The end of the last possible segment exceeds 32 bits.
        self.count > 0 && self.start.is_for_data() && end <= segment_end.min(u32::MAX as u64)
    }

    fn end(self) -> u32 {
        self.start.extent + self.count
    }

    /// Returns the extents that are in `runs` and not in `kept`. The lists may be unsorted, and `kept` may contain an
    /// extent more than once. For example, an extent that a running job committed is in a dataset and also in the lease
    /// of the job.
    pub fn without(runs: &[Run], kept: &[Run]) -> Vec<Run> {
        let kept = Run::merged(kept);
        let mut left = Vec::new();
        for &run in runs {
            let (device, mut next) = (run.start.device, run.start.extent);
            let first = kept.partition_point(|kept| (kept.start.device, kept.end()) <= (device, next));
            for kept in &kept[first..] {
                if kept.start.device != device || kept.start.extent >= run.end() {
                    break;
                }
                if kept.start.extent > next {
                    let start = ExtentAddress { device, extent: next };
                    left.push(Run { start, count: kept.start.extent - next });
                }
                next = kept.end();
            }
            if next < run.end() {
                left.push(Run { start: ExtentAddress { device, extent: next }, count: run.end() - next });
            }
        }
        left
    }

    /// Returns the same extents as sorted runs that do not overlap.
    pub(crate) fn merged(runs: &[Run]) -> Vec<Run> {
        let mut runs = runs.to_vec();
        runs.sort_unstable_by_key(|run| run.start);
        runs.dedup_by(|next, last| {
            let joins = next.start.device == last.start.device && next.start.extent <= last.end();
            if joins {
                last.count = last.end().max(next.end()) - last.start.extent;
            }
            joins
        });
        runs
    }

    /// Sorts addresses and joins adjacent ones, which gives the smallest number of runs.
    pub fn collect(mut places: Vec<ExtentAddress>) -> Vec<Run> {
        places.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        for place in places {
            match runs.last_mut() {
                Some(run)
                    if run.start.device == place.device
                        && run.start.extent as u64 + run.count as u64 == place.extent as u64 =>
                {
                    run.count += 1;
                }
                _ => runs.push(Run { start: place, count: 1 }),
            }
        }
        runs
    }
}

/// `DatasetRecord` describes a dataset in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetRecord {
    /// A random id, which differs from the id of every other dataset, even of the same name.
    pub id: u64,
    /// The name of the dataset.
    pub name: String,
    /// The kind of the dataset ("graph"), which identifies its format. The crate that writes the dataset defines the
    /// kind.
    pub kind: String,
    /// True if no more bytes can be appended.
    pub sealed: bool,
    /// The redundancy against damage and the loss of a device.
    pub redundancy: Redundancy,
    /// A header in the format of the crate that wrote the dataset.
    pub attributes: Vec<u8>,
    /// The records of the files.
    pub files: Vec<FileRecord>,
    /// All extents of the dataset, including those of lists of references.
    pub runs: Vec<Run>,
}

impl DatasetRecord {
    /// Returns the number of bytes of data in all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// Returns true if the record is consistent. The runs must not overlap, must contain all extents to which the
    /// record refers, and must be long enough for the extents in lists of references.
    fn is_sound(&self) -> bool {
        let mut runs = self.runs.clone();
        runs.sort_unstable_by_key(|run| run.start);
        let is_apart = |pair: &[Run]| {
            (pair[0].start.device, pair[0].end()) <= (pair[1].start.device, pair[1].start.extent)
        };
        let holds = |reference: &ExtentRef| {
            let next = runs.partition_point(|run| run.start <= reference.place);
            next.checked_sub(1).is_some_and(|at| {
                runs[at].start.device == reference.place.device && reference.place.extent < runs[at].end()
            })
        };
        let taken = runs.iter().map(|run| run.count as u64).sum::<u64>();
        let needed = self.files.iter().map(|file| {
            let list = if file.level == 0 { 0 } else { file.refs.len() as u64 };
            self.redundancy.refs(file.extents()) + list
        });
        needed.fold(0u64, u64::saturating_add) <= taken
            && runs.windows(2).all(is_apart)
            && self.files.iter().flat_map(|file| &file.refs).all(holds)
    }
}

/// `Edit` is one change of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Creates a dataset, or replaces the dataset of the same name.
    Put(Arc<DatasetRecord>),
    /// Removes a dataset.
    Remove(String),
    /// Records, in a checkpoint, the extents that an earlier commit freed and that readers may still read. The number
    /// is the number of that commit.
    Freed(u64, Run),
}

/// `Catalog` is the content of the store after a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The number of the commit. Each commit has a number one higher than the previous commit.
    pub commit: u64,
    /// The records of the datasets by name.
    pub datasets: BTreeMap<String, Arc<DatasetRecord>>,
    /// The extents that were freed, each with the number of the commit that freed it. Readers of earlier commits may
    /// still read these extents.
    pub freed: Vec<(u64, Run)>,
}

impl Catalog {
    /// Applies the edits of the next commit.
    pub fn apply(&mut self, commit: u64, edits: &[Edit]) {
        self.commit = commit;
        for edit in edits {
            match edit {
                Edit::Put(record) => {
                    if let Some(old) = self.datasets.insert(record.name.clone(), record.clone()) {
                        self.free(&old.runs, &record.runs);
                    }
                }
                Edit::Remove(name) => {
                    if let Some(old) = self.datasets.remove(name) {
                        self.free(&old.runs, &[]);
                    }
                }
                Edit::Freed(commit, run) => self.freed.push((*commit, *run)),
            }
        }
    }

    fn free(&mut self, old: &[Run], kept: &[Run]) {
        let gone = Run::without(old, kept);
        self.freed.extend(gone.into_iter().map(|run| (self.commit, run)));
    }

    /// Returns all extents of datasets, and the extents that commits after `pinned` freed, which readers of commit
    /// `pinned` may still read.
    pub fn taken(&self, pinned: u64) -> Vec<Run> {
        let datasets = self.datasets.values().flat_map(|record| record.runs.iter().copied());
        let freed = self.freed.iter().filter(|(commit, _)| *commit > pinned).map(|(_, run)| *run);
        datasets.chain(freed).collect()
    }

    /// Returns the edits that create this catalog from an empty catalog. Extents that were freed up to commit `pinned`
    /// are omitted, since no reader can still read them.
    pub fn checkpoint(&self, pinned: u64) -> Vec<Edit> {
        let freed = self.freed.iter().filter(|(commit, _)| *commit > pinned);
        let freed = freed.map(|&(commit, run)| Edit::Freed(commit, run));
        let datasets = self.datasets.values().map(|record| Edit::Put(record.clone()));
        datasets.chain(freed).collect()
    }
}

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const FREED: u8 = 3;

/// Encodes the body of a log record.
pub(crate) fn encode_edits(edits: &[Edit]) -> Vec<u8> {
    let mut out = Vec::new();
    put_u32(&mut out, edits.len());
    for edit in edits {
        match edit {
            Edit::Put(record) => {
                out.push(PUT);
                put_dataset(&mut out, record);
            }
            Edit::Remove(name) => {
                out.push(REMOVE);
                put_bytes(&mut out, name.as_bytes());
            }
            Edit::Freed(commit, run) => {
                out.push(FREED);
                out.extend(commit.to_le_bytes());
                put_run(&mut out, run);
            }
        }
    }
    out
}

/// Decodes the body of a log record. The result is `None` if the body is invalid.
pub(crate) fn decode_edits(body: &[u8]) -> Option<Vec<Edit>> {
    let mut body = Cursor(body);
    let edits = body.list(|body| {
        Some(match body.u8()? {
            PUT => Edit::Put(Arc::new(take_dataset(body)?)),
            REMOVE => Edit::Remove(body.string()?),
            FREED => Edit::Freed(body.u64()?, take_run(body)?),
            _ => return None,
        })
    })?;
    body.0.is_empty().then_some(edits)
}

fn put_run(out: &mut Vec<u8>, run: &Run) {
    out.extend(run.start.device.to_le_bytes());
    out.extend(run.start.extent.to_le_bytes());
    out.extend(run.count.to_le_bytes());
}

fn take_run(body: &mut Cursor) -> Option<Run> {
    let start = ExtentAddress { device: body.u16()?, extent: body.u32()? };
    let run = Run { start, count: body.u32()? };
    run.is_for_data().then_some(run)
}

fn put_dataset(out: &mut Vec<u8>, record: &DatasetRecord) {
    out.extend(record.id.to_le_bytes());
    put_bytes(out, record.name.as_bytes());
    put_bytes(out, record.kind.as_bytes());
    out.push(record.sealed as u8);
    out.extend(record.redundancy.encode());
    put_bytes(out, &record.attributes);
    put_u32(out, record.files.len());
    for file in &record.files {
        put_bytes(out, file.name.as_bytes());
        out.extend(file.len.to_le_bytes());
        out.extend(file.block_bytes.to_le_bytes());
        out.push(file.level);
        put_u32(out, file.refs.len());
        file.refs.iter().for_each(|reference| out.extend(reference.encode()));
    }
    put_u32(out, record.runs.len());
    record.runs.iter().for_each(|run| put_run(out, run));
}

fn take_dataset(body: &mut Cursor) -> Option<DatasetRecord> {
    let (id, name, kind) = (body.u64()?, body.string()?, body.string()?);
    let sealed = body.u8()?;
    let redundancy = Redundancy::decode(body.array()?)?;
    if sealed > 1 {
        return None;
    }
    let attributes = body.bytes()?.to_vec();
    let files = body.list(|body| {
        let file = FileRecord {
            name: body.string()?,
            len: body.u64()?,
            block_bytes: body.u32()?,
            level: body.u8()?,
            refs: body.list(|body| ExtentRef::decode(body.take(REF_BYTES)?))?,
        };
        file.is_sound(redundancy).then_some(file)
    })?;
    let runs = body.list(take_run)?;
    let sealed = sealed == 1;
    let record = DatasetRecord { id, name, kind, sealed, redundancy, attributes, files, runs };
    record.is_sound().then_some(record)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(device: u16, extent: u32) -> ExtentAddress {
        ExtentAddress { device, extent }
    }

    fn record(name: &str, id: u64, places: &[ExtentAddress]) -> Arc<DatasetRecord> {
        let refs = places.iter().map(|&place| ExtentRef { place, header_sum: place.extent * 7 }).collect();
        let len = (places.len() as u64 * EXTENT_BYTES as u64).saturating_sub(5);
        Arc::new(DatasetRecord {
            id,
            name: name.into(),
            kind: "test".into(),
            sealed: true,
            redundancy: Redundancy::Copies(1),
            attributes: vec![1, 2, 3],
            files: vec![FileRecord { name: "a".into(), len, block_bytes: 4096, level: 0, refs }],
            runs: Run::collect(places.to_vec()),
        })
    }

    fn examples() -> Vec<Edit> {
        vec![
            Edit::Put(record("a", 3, &[place(0, 2), place(1, 2), place(0, 3)])),
            Edit::Put(record("b", 4, &[])),
            Edit::Remove("b".into()),
            Edit::Freed(9, Run { start: place(1, 77), count: 2 }),
        ]
    }

    #[test]
    fn edits_survive_encoding() {
        assert_eq!(decode_edits(&encode_edits(&examples())), Some(examples()));
    }

    #[test]
    fn impossible_records_are_refused() {
        let run = |device, extent, count| Run { start: place(device, extent), count };
        let whole = (*record("a", 3, &[place(0, 2), place(0, 3), place(1, 200)])).clone();
        let decodes = |record: &DatasetRecord| {
            decode_edits(&encode_edits(&[Edit::Put(Arc::new(record.clone()))])).is_some()
        };
        let with_runs = |runs: &[Run]| DatasetRecord { runs: runs.to_vec(), ..whole.clone() };
        assert!(decodes(&whole) && decodes(&with_runs(&[run(1, 200, 9), run(0, 3, 1), run(0, 2, 1)])));
        for (what, runs) in [
            ("an extent outside of the runs", vec![run(0, 2, 5)]),
            ("one just behind them", vec![run(0, 2, 1), run(1, 200, 3)]),
            ("one that two runs hold", vec![run(0, 2, 2), run(0, 3, 1), run(1, 200, 1)]),
            ("a run of nothing", vec![run(0, 2, 2), run(1, 200, 1), run(1, 300, 0)]),
            ("the superblock", vec![run(0, 1, 3), run(1, 200, 1)]),
            ("headers", vec![run(0, 2, 2), run(1, 200, 1), run(1, 128, 2)]),
            ("headers of the next segment", vec![run(0, 2, 2), run(1, 200, 57)]),
            ("an end that 32 bits do not hold", vec![run(0, 2, 2), run(1, 200, 1), run(1, u32::MAX, 1)]),
        ] {
            assert!(!decodes(&with_runs(&runs)), "{what}");
        }
        // The list of references of a file of 2^56 bytes is larger than any device.
        let len = 1u64 << 56;
        let lists = (len / EXTENT_BYTES as u64 * REF_BYTES as u64).div_ceil(EXTENT_BYTES as u64);
        let refs = vec![ExtentRef { place: place(0, 2), header_sum: 0 }; lists as usize];
        let file = FileRecord { name: "a".into(), len, block_bytes: 4096, level: 1, refs };
        assert!(!decodes(&DatasetRecord { files: vec![file], ..whole.clone() }));
        let reference = ExtentRef { place: place(0, 256), header_sum: 1 };
        assert_eq!(ExtentRef::decode(&reference.encode()), None);
    }

    #[test]
    fn places_are_collected_into_the_fewest_runs() {
        let places = [place(1, 5), place(0, 2), place(0, 1), place(0, 4)];
        let runs = Run::collect(places.to_vec());
        assert_eq!(runs.len(), 3);
        let mut back: Vec<_> = runs.into_iter().flat_map(Run::places).collect();
        back.sort_unstable();
        assert_eq!(back, [place(0, 1), place(0, 2), place(0, 4), place(1, 5)]);
    }

    proptest! {
        #[test]
        fn a_difference_of_runs_is_that_of_their_places(
            old in prop::collection::btree_set((0u16..2, 0u32..40), 0..40),
            kept in prop::collection::btree_set((0u16..2, 0u32..40), 0..40),
            again in prop::collection::vec((0u16..2, 0u32..40, 0u32..20), 0..4),
        ) {
            let places = |set: &std::collections::BTreeSet<(u16, u32)>| {
                set.iter().map(|&(device, extent)| place(device, extent)).collect::<Vec<_>>()
            };
            // The additional runs in `again` may overlap the other runs and each other.
            let again = again.into_iter().map(|(device, extent, count)| Run { start: place(device, extent), count });
            let runs: Vec<Run> = Run::collect(places(&kept)).into_iter().chain(again).collect();
            let kept = runs.iter().flat_map(|run| run.places()).map(|place| (place.device, place.extent)).collect();
            let left = Run::without(&Run::collect(places(&old)), &runs);
            let expected = places(&old.difference(&kept).copied().collect());
            let mut found: Vec<_> = left.into_iter().flat_map(Run::places).collect();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_replacement_frees_its_old_extents_and_a_checkpoint_is_the_same_catalog() {
        let mut catalog = Catalog::default();
        catalog.apply(1, &[Edit::Put(record("a", 0, &[place(0, 2), place(0, 3)]))]);
        catalog.apply(2, &[Edit::Put(record("a", 1, &[place(0, 3), place(0, 4)]))]);
        assert_eq!(catalog.freed, [(2, Run { start: place(0, 2), count: 1 })]);
        catalog.apply(3, &[Edit::Remove("a".into())]);
        assert_eq!(catalog.freed.last(), Some(&(3, Run { start: place(0, 3), count: 2 })));
        let mut again = Catalog::default();
        again.apply(3, &catalog.checkpoint(0));
        assert_eq!(again, catalog);
        again = Catalog::default();
        again.apply(3, &catalog.checkpoint(2));
        assert_eq!(again.freed, catalog.freed[1..]);
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = encode_edits(&examples());
        for len in 0..bytes.len() {
            assert_eq!(decode_edits(&bytes[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn hostile_edits_never_panic(
            at in 0usize..400, byte in any::<u8>(), tail in prop::collection::vec(any::<u8>(), 0..100)
        ) {
            let mut bytes = encode_edits(&examples());
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Some(edits) = decode_edits(&bytes) {
                Catalog::default().apply(1, &edits);
            }
            let _ = decode_edits(&tail);
        }
    }
}

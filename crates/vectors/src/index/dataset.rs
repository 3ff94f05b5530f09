//! The dataset of an index. `docs/format.md`, "Index of vectors", describes the layout.
//!
//! ```text
//!   lists      the elements of the vectors of each list, then their row numbers; lists follow each other without gaps
//!   firsts     u64 for each list: the number of vectors in the lists before it; then the number of all vectors
//!   centroids  the centroid of each list
//!   groups     the centroid of each group of lists
//!   spans      u32 for each group: its first list; then the number of all lists
//!
//!   copies       optional: each list again, with copies of vectors of other lists behind the list's own vectors
//!   copy-firsts  u64 for each list: the number of vectors in the lists of `copies` before it; then the number of all
//!
//!   codes        optional: each list again, with a code in the place of the elements of each vector
//!   code-center  f64 for each dimension: the center of all centroids, from which codes and queries are measured
//! ```
//!
//! The index of the vectors NAME is the dataset `NAME.index`. The index holds the id of the dataset of vectors from
//! which it was built. [`VectorIndex::open`] refuses the index for a dataset with another id.

use inshore_store::{CheckedFile, Job, Store};
use zerocopy::little_endian::{U32, U64};

use super::{
    Clustered,
    centroids::{Centroids, Lower},
    directory::Directory,
    info::{CENTROIDS, CODE_CENTER, CODES, COPIES, COPY_FIRSTS, FIRSTS, GROUPS, IndexInfo, LISTS, SPANS},
    layers::{Layer, all_layers, chain},
    stored_recall::bad,
    table::RecallTable,
};
use crate::{
    Result, Vectors,
    dataset::file_of,
    names::{LISTS_KIND, index_dataset},
    read::{READ_ELEMENTS_BYTES, read_elements},
};

/// An index whose files stay open. Later changes of the store do not affect it.
#[derive(Clone, Debug)]
pub struct VectorIndex {
    info: IndexInfo,
    /// The id of the dataset of the index.
    id: u64,
    pub(crate) files: IndexFiles,
    /// The layers, in the order of their rows.
    pub(crate) layers: Vec<Layer>,
}

/// The files of an index.
#[derive(Clone, Debug)]
pub(crate) struct IndexFiles {
    pub lists: CheckedFile,
    pub firsts: CheckedFile,
    pub centroids: CheckedFile,
    pub groups: CheckedFile,
    pub spans: CheckedFile,
    pub copies: Option<CopyFiles>,
    pub codes: Option<CodeFiles>,
}

/// The files of codes.
#[derive(Clone, Debug)]
pub(crate) struct CodeFiles {
    pub codes: CheckedFile,
    pub center: CheckedFile,
}

/// The files of lists with copies.
#[derive(Clone, Debug)]
pub(crate) struct CopyFiles {
    pub lists: CheckedFile,
    pub firsts: CheckedFile,
}

impl VectorIndex {
    /// Opens the index of `vectors`. Returns `None` if the vectors have no index.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadDataset`] if the index is damaged, has another version, or was built from other
    ///   vectors with the same name.
    /// - Returns [`crate::Error::Store`] if a read fails.
    pub fn open(store: &Store, vectors: &Vectors) -> Result<Option<VectorIndex>> {
        let name = &vectors.info().name;
        let Some(dataset) = index_dataset(store, name)? else { return Ok(None) };
        if dataset.kind() != LISTS_KIND {
            return Err(bad(name, "kind", dataset.kind().to_string(), LISTS_KIND.to_string()));
        }
        let info = IndexInfo::from_attributes(name, dataset.bytes(), dataset.attributes())?;
        if info.dataset != vectors.id() {
            let found = format!("an index of other vectors that were called {name}");
            return Err(bad(
                name,
                "vectors",
                found,
                format!("those of today: build the index again (`nearest index {name}`)"),
            ));
        }
        let facts = (info.vectors, info.dimensions, info.element);
        let expected = (vectors.info().vectors, vectors.info().dimensions, vectors.info().element);
        // The vectors may have more rows than the index, since rows that were added after the build are in layers or in
        // the tail.
        if (facts.1, facts.2) != (expected.1, expected.2) || facts.0 > expected.0 {
            return Err(bad(name, "vectors", format!("{facts:?}"), format!("{expected:?}")));
        }
        let row_bytes = info.element.row_bytes(info.dimensions) as u64;
        let files = IndexFiles {
            lists: file_of(&dataset, LISTS, info.vectors * info.entry_bytes() as u64)?,
            firsts: file_of(&dataset, FIRSTS, (info.lists + 1) * 8)?,
            centroids: file_of(&dataset, CENTROIDS, info.lists * row_bytes)?,
            groups: file_of(&dataset, GROUPS, info.groups * row_bytes)?,
            spans: file_of(&dataset, SPANS, (info.groups + 1) * 4)?,
            copies: match &info.copies {
                Some(copies) => Some(CopyFiles {
                    lists: file_of(&dataset, COPIES, copies.vectors * info.entry_bytes() as u64)?,
                    firsts: file_of(&dataset, COPY_FIRSTS, (info.lists + 1) * 8)?,
                }),
                None => None,
            },
            codes: match info.shape_of_codes() {
                Some(shape) => Some(CodeFiles {
                    codes: file_of(&dataset, CODES, shape.file_bytes(info.vectors, info.lists))?,
                    center: file_of(&dataset, CODE_CENTER, info.dimensions as u64 * 8)?,
                }),
                None => None,
            },
        };
        let layers = chain(all_layers(store, name)?, dataset.id(), info.vectors, vectors.info().vectors);
        Ok(Some(VectorIndex { info, id: dataset.id(), files, layers }))
    }

    /// Returns the properties of the index.
    pub fn info(&self) -> &IndexInfo {
        &self.info
    }

    /// Returns the id of the dataset of the index.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns how many rows the lists and the layers cover. The result is also the number of the first row of the
    /// tail.
    pub(crate) fn end(&self) -> u64 {
        self.layers.last().map_or(self.info.vectors, |last| last.rows.end)
    }

    /// Replaces the table of recall of the lists. If `single` is given, also replaces the table of the lists with
    /// copies, or that of the codes.
    pub(crate) fn set_recall(&mut self, recall: RecallTable, single: Option<RecallTable>) {
        self.info.recall = recall;
        match (&mut self.info.copies, &mut self.info.codes, single) {
            (Some(copies), _, Some(recall)) => copies.recall = recall,
            (_, Some(codes), Some(recall)) => codes.recall = recall,
            _ => {}
        }
    }

    pub(crate) fn made(info: IndexInfo, files: IndexFiles) -> VectorIndex {
        VectorIndex { info, id: 0, files, layers: Vec::new() }
    }

    /// Returns the file of the lists, with or without copies.
    pub(crate) fn read_file(&self, with_copies: bool) -> &CheckedFile {
        match &self.files.copies {
            Some(copies) if with_copies => &copies.lists,
            _ => &self.files.lists,
        }
    }

    /// Returns the files from which the single strategy reads lists, codes and vectors.
    pub(crate) fn single_files(&self) -> impl Iterator<Item = &CheckedFile> {
        let codes = self.files.codes.as_ref().map(|files| &files.codes);
        [self.read_file(true)].into_iter().chain(codes)
    }

    /// Returns the file of the lists that the single strategy reads.
    pub(crate) fn single_file(&mut self) -> &mut CheckedFile {
        match &mut self.files.copies {
            Some(copies) => &mut copies.lists,
            None => &mut self.files.lists,
        }
    }

    /// Returns the memory of the directories and the upper centroids, which stay in memory during a search.
    pub(crate) fn directory_bytes(&self) -> u64 {
        let directories = self.layers.len() as u64 + if self.info.copies.is_some() { 2 } else { 1 };
        directories * (self.info.lists + 1) * 8 + self.upper_bytes() + READ_ELEMENTS_BYTES
    }

    /// Returns the size of the upper centroids and of the numbers of the first lists of groups, in bytes.
    pub(crate) fn upper_bytes(&self) -> u64 {
        self.files.groups.len() + self.files.spans.len()
    }

    /// Returns the size of the lower centroids in bytes.
    pub(crate) fn lower_bytes(&self) -> u64 {
        self.files.centroids.len()
    }

    /// Reads the directory of the lists, and the centroids. If `holds_lower` is true, the lower centroids are read into
    /// memory. Otherwise they stay on flash.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadDataset`] if the directory does not describe the lists.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too
    ///   little free memory.
    pub(crate) fn load<T: Clustered>(
        &self,
        job: &Job,
        holds_lower: bool,
    ) -> Result<(Directory, Centroids<T>)> {
        let (info, files) = (&self.info, &self.files);
        let directory = self.directory(job, &files.firsts, info.vectors, info.list_vectors_max)?;
        let upper_reservation = job.budget().reserve(self.upper_bytes(), "centroids of groups")?;
        let mut spans: Vec<u32> = Vec::with_capacity(info.groups as usize + 1);
        read_elements::<U32>(job, &files.spans, |piece| spans.extend(piece.iter().map(|first| first.get())))?;
        let is_sound = spans[0] == 0 && u64::from(spans[spans.len() - 1]) == info.lists;
        if !is_sound || !spans.is_sorted() {
            let expected = format!("groups of {} lists in all", info.lists);
            return Err(bad(&info.name, "groups", "other lists".to_string(), expected));
        }
        let mut upper: Vec<T> = Vec::with_capacity(info.groups as usize * info.dimensions);
        read_elements::<T>(job, &files.groups, |piece| upper.extend_from_slice(piece))?;
        let lower = match holds_lower {
            false => Lower::Flash(files.centroids.clone()),
            true => {
                let reservation = job.budget().reserve(self.lower_bytes(), "centroids of lists")?;
                let mut lower: Vec<T> = Vec::with_capacity(info.lists as usize * info.dimensions);
                read_elements::<T>(job, &files.centroids, |piece| lower.extend_from_slice(piece))?;
                Lower::Memory(lower, reservation)
            }
        };
        let centroids = Centroids {
            dimensions: info.dimensions,
            upper,
            firsts: spans,
            lower,
            _reservation: upper_reservation,
        };
        Ok((directory, centroids))
    }

    /// Reads the directory of the lists with copies, if the index has copies. Each list must have at least as many
    /// vectors as it has in `own`, the directory of the lists without copies.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load`].
    pub(crate) fn load_copies(&self, job: &Job, own: &Directory) -> Result<Option<Directory>> {
        let (Some(copies), Some(files)) = (&self.info.copies, &self.files.copies) else { return Ok(None) };
        let directory = self.directory(job, &files.firsts, copies.vectors, copies.list_vectors_max)?;
        match (0..self.info.lists as u32).find(|&list| directory.count(list) < own.count(list)) {
            None => Ok(Some(directory)),
            Some(list) => {
                let found = format!("{} vectors in list {list}", directory.count(list));
                let expected = format!("{} or more", own.count(list));
                Err(bad(&self.info.name, "directory of copies", found, expected))
            }
        }
    }

    /// Reads a directory. It has the number of vectors before each list, followed by the number of all vectors.
    fn directory(&self, job: &Job, file: &CheckedFile, vectors: u64, most: u64) -> Result<Directory> {
        let info = &self.info;
        let reservation = job.budget().reserve((info.lists + 1) * 8, "the directory of an index")?;
        let mut firsts: Vec<u64> = Vec::with_capacity(info.lists as usize + 1);
        read_elements::<U64>(job, file, |piece| firsts.extend(piece.iter().map(|first| first.get())))?;
        let is_sound = firsts[0] == 0 && firsts[firsts.len() - 1] == vectors;
        let is_list =
            |pair: &[u64]| pair[1].checked_sub(pair[0]).is_some_and(|len| (1..=most).contains(&len));
        let wrong = firsts.windows(2).position(|pair| !is_list(pair));
        if is_sound && wrong.is_none() {
            return Ok(Directory::new(firsts, info.entry_bytes() as u64, reservation));
        }
        let place = wrong.unwrap_or(0);
        let found = format!("list {place} at {:?}", firsts.get(place..place + 2));
        let expected = format!("lists of 1 to {most} vectors, {vectors} in all");
        Err(bad(&info.name, "directory", found, expected))
    }
}

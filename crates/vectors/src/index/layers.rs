//! A layer holds rows that were added after the lists of an index were written. The rows are grouped by these lists.
//!
//! ```text
//!   rows     0 .................... n │ ............ │ ..... │ ..
//!                lists of the index     layer          layer   tail, in no list
//! ```
//!
//! A layer is a dataset of its own with the name `NAME.index.END`, where END is one more than the number of its last
//! row. The layer holds the id of the index whose lists it continues. A search uses a chain of layers without gaps
//! between their rows. If several layers begin at the same row, the search uses the longest of them. The rows after the
//! chain are the tail. The search compares each row of the tail with the queries. Any subset of the layers therefore
//! gives right answers. A missing layer only costs time. A layer may be missing because it was not written yet, because
//! the job that wrote it was killed, or because another job removed it while the search opened the layers.
//!
//! A new layer includes the rows of the tail. It also includes the rows of the last layer, if that layer has at most
//! twice as many rows as the new layer has without it. This step is repeated for the layers before it ([`next_layer`]).
//! Each layer therefore has more than twice as many rows as the next one, and the number of layers grows with the
//! logarithm of the number of rows. A new layer is published before the layers whose rows it includes are removed.
//!
//! ```text
//!   lists     the vectors of each list in chunks: the elements of at most C vectors, then their row numbers
//!   firsts    u64 for each list: the number of vectors in the lists before it; then the number of all vectors
//! ```
//!
//! A full chunk has as many vectors as the largest list of the index, so that a list that grows needs no more memory
//! than the lists of the build.

use std::ops::Range;

use inshore_store::{CheckedFile, Dataset, Job, Store};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{
    directory::Directory,
    info::{FIRSTS, IndexInfo, LISTS, id_bytes},
};
use crate::{Error, Result, dataset::file_of, names::index_name, read::read_elements};

/// The dataset kind of a layer.
pub(crate) const LAYER_KIND: &str = "vector-index-layer";
const MAGIC: [u8; 8] = *b"INSHVLAY";
const VERSION: u32 = 1;

/// The attributes of a layer.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    /// The largest number of vectors in a chunk. A chunk holds some vectors of a list.
    chunk: U32,
    /// The id of the dataset of the index.
    index: U64,
    first: U64,
    end: U64,
    vectors: U64,
}

const _: () = assert!(size_of::<Header>() == 48);

/// A layer whose files stay open.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// The name of the dataset of the layer. The next field is its id.
    pub name: String,
    pub id: u64,
    /// The id of the index whose lists the layer continues.
    pub index: u64,
    /// The range of row numbers that the layer covers. The layer does not contain rows that were removed before it was
    /// written.
    pub rows: Range<u64>,
    /// The number of vectors in the layer.
    pub vectors: u64,
    /// The largest number of vectors in a chunk.
    pub chunk: u64,
    dataset: Dataset,
}

/// Returns the attributes of a layer.
pub(super) fn attributes(index: u64, rows: &Range<u64>, vectors: u64, chunk: u64) -> Vec<u8> {
    let header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        chunk: (chunk as u32).into(),
        index: index.into(),
        first: rows.start.into(),
        end: rows.end.into(),
        vectors: vectors.into(),
    };
    header.as_bytes().to_vec()
}

impl Layer {
    fn of(dataset: Dataset) -> Result<Layer> {
        let bad = |what, found: String, expected: String| Error::BadDataset {
            name: dataset.name().to_string(),
            what,
            found,
            expected,
        };
        let attributes = dataset.attributes();
        let Ok(header) = Header::read_from_bytes(attributes) else {
            let (found, expected) = (attributes.len(), size_of::<Header>());
            return Err(bad("header", format!("{found} bytes"), format!("{expected} bytes")));
        };
        if header.magic != MAGIC {
            let show = |magic: &[u8]| magic.escape_ascii().to_string();
            return Err(bad("magic", show(&header.magic), show(&MAGIC)));
        }
        if header.version != VERSION {
            return Err(bad("version", header.version.to_string(), VERSION.to_string()));
        }
        let (rows, vectors) = (header.first.get()..header.end.get(), header.vectors.get());
        let chunk = u64::from(header.chunk.get());
        if rows.is_empty() || vectors > rows.end - rows.start || chunk == 0 {
            let found = format!("{vectors} vectors of rows {rows:?} in chunks of {chunk}");
            return Err(bad("counts", found, "rows, no more vectors than rows, and chunks".to_string()));
        }
        let (name, id, index) = (dataset.name().to_string(), dataset.id(), header.index.get());
        Ok(Layer { name, id, index, rows, vectors, chunk, dataset })
    }

    /// Returns how many bytes a vector and its row number take in a chunk.
    pub fn entry_bytes(&self, info: &IndexInfo) -> u64 {
        (info.element.row_bytes(info.dimensions) + id_bytes(self.rows.end)) as u64
    }

    /// Opens the directory of the layer.
    ///
    /// # Errors
    /// Returns [`Error::BadDataset`] if the file does not exist, or if its length is not that of a directory.
    pub fn firsts_file(&self, info: &IndexInfo) -> Result<CheckedFile> {
        file_of(&self.dataset, FIRSTS, (info.lists + 1) * 8)
    }

    /// Reads the directory of the layer, and opens its lists.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the directory does not describe the lists.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too little
    ///   free memory.
    pub fn load(&self, job: &Job, info: &IndexInfo) -> Result<(Directory, CheckedFile)> {
        let entry_bytes = self.entry_bytes(info);
        let lists = file_of(&self.dataset, LISTS, self.vectors * entry_bytes)?;
        let file = self.firsts_file(info)?;
        let reservation = job.budget().reserve((info.lists + 1) * 8, "the directory of a layer")?;
        let mut firsts: Vec<u64> = Vec::with_capacity(info.lists as usize + 1);
        read_elements::<U64>(job, &file, |piece| firsts.extend(piece.iter().map(|first| first.get())))?;
        let is_sound = firsts[0] == 0 && firsts[firsts.len() - 1] == self.vectors && firsts.is_sorted();
        if !is_sound {
            return Err(Error::BadDataset {
                name: self.name.clone(),
                what: "directory",
                found: "lists out of order".to_string(),
                expected: format!("lists of {} vectors in all", self.vectors),
            });
        }
        Ok((Directory::new(firsts, entry_bytes, reservation), lists))
    }
}

/// Opens all layers of the vectors `name`, including layers of an index that was replaced.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if a layer is damaged.
/// - Returns [`Error::Store`] if an I/O operation fails.
pub(super) fn all_layers(store: &Store, name: &str) -> Result<Vec<Layer>> {
    let mut all = Vec::new();
    for name in layer_names(store, name)? {
        match store.dataset(&name) {
            // Another job removed the layer.
            Err(inshore_store::Error::NotFound { .. }) => {}
            dataset => all.push(Layer::of(dataset?)?),
        }
    }
    Ok(all)
}

/// Returns the names of all layers of the vectors `name`, including damaged layers.
pub(crate) fn layer_names(store: &Store, name: &str) -> Result<Vec<String>> {
    let prefix = layer_name(name, "");
    let all = store.list()?.into_iter();
    let layers = all.filter(|summary| summary.kind == LAYER_KIND && summary.name.starts_with(&prefix));
    Ok(layers.map(|summary| summary.name).collect())
}

/// Returns the name of the layer of the vectors `name` that ends before the row `end`.
pub(super) fn layer_name(name: &str, end: impl std::fmt::Display) -> String {
    format!("{}.{end}", index_name(name))
}

/// Selects the chain of layers of an index. The lists of the index cover the rows below `covered`, and the layers of
/// the chain follow without gaps. `rows` is the number of rows of the vectors.
pub(super) fn chain(mut all: Vec<Layer>, index: u64, covered: u64, rows: u64) -> Vec<Layer> {
    all.retain(|layer| layer.index == index && layer.rows.end <= rows);
    let (mut chain, mut at): (Vec<Layer>, u64) = (Vec::new(), covered);
    while let Some(next) =
        all.iter().filter(|layer| layer.rows.start == at).max_by_key(|layer| layer.rows.end)
    {
        at = next.rows.end;
        chain.push(next.clone());
    }
    chain
}

/// Returns the rows of the next layer. They include the rows after all layers. They also include the rows of the last
/// layer if this layer has at most twice as many rows as the next layer has without it. This step is repeated for the
/// layers before it.
pub(super) fn next_layer(layers: &[Range<u64>], covered: u64, rows: u64) -> Range<u64> {
    let mut first = layers.last().map_or(covered, |last| last.end);
    for layer in layers.iter().rev() {
        if layer.end - layer.start > 2 * (rows - first) {
            break;
        }
        first = layer.start;
    }
    first..rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_become_fewer_as_they_grow() {
        let (covered, mut layers): (u64, Vec<Range<u64>>) = (1000, Vec::new());
        let (mut written, mut most) = (0, 0);
        for round in 1..=500 {
            let next = next_layer(&layers, covered, covered + 10 * round);
            layers.retain(|layer| layer.end <= next.start);
            assert_eq!(next.start, layers.last().map_or(covered, |last| last.end));
            written += next.end - next.start;
            layers.push(next);
            let sizes: Vec<u64> = layers.iter().map(|layer| layer.end - layer.start).collect();
            assert!(sizes.windows(2).all(|pair| pair[0] > 2 * pair[1]), "{sizes:?}");
            most = most.max(layers.len());
        }
        assert!(most <= 9, "{most} layers");
        assert!(written < 10 * 5000, "{written} rows for 5000");
        assert_eq!(next_layer(&[], 7, 9), 7..9);
    }
}

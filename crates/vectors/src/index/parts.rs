//! The parts of an index. The first part holds the lists that the build wrote. Each layer is one further part, which
//! has the same lists for vectors that were added later.
//!
//! A list is one or more *chunks*: the elements of some vectors, then the row numbers of these vectors. All chunks of a
//! list but the last are full. A list of the first part is one chunk, unless the
//! index has codes. A *piece* is the unit of one read. It consists of
//! some adjacent lists, or of some chunks of one list that is larger than a read.

use std::{ops::Range, sync::Arc};

use inshore_store::{CheckedFile, Job};

use super::{
    Clustered,
    dataset::VectorIndex,
    directory::{Directory, List, list_of},
};
use crate::Result;

/// One part.
#[derive(Clone)]
pub(super) struct Part {
    name: String,
    pub file: CheckedFile,
    pub directory: Arc<Directory>,
    /// The directory of the lists without copies, if the lists have copies. The own vectors of a list come first.
    own: Option<Arc<Directory>>,
    /// The most vectors of a chunk. A list with copies is one chunk.
    chunk: u64,
    row_bytes: usize,
    /// One more than the largest row number that may occur in the part.
    rows: u64,
}

/// The unit of one read. A piece consists of some adjacent lists, or of a range of the vectors of one list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub lists: Range<u32>,
    /// The positions of the vectors. Positions count the vectors of all lists of the part.
    places: Range<u64>,
}

impl Part {
    /// Returns all parts of an index, with lists without copies. `directory` is the directory of these lists in the
    /// first part. The layers follow.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadDataset`] if a directory is damaged.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too
    ///   little free memory.
    pub fn all(job: &Job, index: &VectorIndex, directory: Directory) -> Result<Vec<Part>> {
        let mut parts = vec![Part::of_lists(index, Arc::new(directory), None)];
        for layer in &index.layers {
            let (directory, file) = layer.load(job, index.info())?;
            let (name, rows) = (layer.name.clone(), layer.rows.end);
            let (directory, row_bytes) = (Arc::new(directory), parts[0].row_bytes);
            parts.push(Part { name, file, directory, own: None, chunk: layer.chunk, row_bytes, rows });
        }
        Ok(parts)
    }

    /// Returns the parts of an index whose lists have copies. `own` are the parts without copies. If the index has
    /// lists with copies, these lists replace the first part.
    ///
    /// # Errors
    /// Returns the errors of [`Part::all`].
    pub fn with_copies(job: &Job, index: &VectorIndex, own: &[Part]) -> Result<Vec<Part>> {
        let mut parts = own.to_vec();
        if let Some(copies) = index.load_copies(job, &own[0].directory)? {
            parts[0] = Part::of_lists(index, Arc::new(copies), Some(own[0].directory.clone()));
        }
        Ok(parts)
    }

    /// Returns the part that contains the lists of the build. `own` is the directory of the lists without copies. If
    /// `own` is given, the part contains the lists with copies.
    pub fn of_lists(index: &VectorIndex, directory: Arc<Directory>, own: Option<Arc<Directory>>) -> Part {
        let (info, with_copies) = (index.info(), own.is_some());
        let file = index.read_file(with_copies);
        Part {
            name: file.name().to_string(),
            file: file.clone(),
            directory,
            own,
            chunk: Part::chunk_vectors_max(index, with_copies),
            row_bytes: info.element.row_bytes(info.dimensions),
            rows: info.vectors,
        }
    }

    /// Returns the most vectors of a chunk of the first part. If `with_copies` is true, copies are counted.
    fn chunk_vectors_max(index: &VectorIndex, with_copies: bool) -> u64 {
        match &index.info().copies {
            Some(copies) if with_copies => copies.list_vectors_max,
            _ => index.info().chunk(),
        }
    }

    /// Returns the size, in bytes, of the largest chunk in any part of an index.
    pub fn chunk_bytes_max(index: &VectorIndex, with_copies: bool) -> u64 {
        let info = index.info();
        let layers = index.layers.iter().map(|layer| layer.chunk * layer.entry_bytes(info));
        layers.fold(Part::chunk_vectors_max(index, with_copies) * info.entry_bytes() as u64, u64::max)
    }

    /// Returns one more than the largest row number that may occur in the part.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the byte range of the elements of the vector at a position. Positions count the vectors of all lists.
    pub fn row_range(&self, place: u64) -> Range<u64> {
        let first = self.directory.places_of(self.directory.list_of(place)).start;
        let within = (place - first) % self.chunk;
        let chunk = (place - within) * self.directory.entry_bytes();
        let start = chunk + within * self.row_bytes as u64;
        start..start + self.row_bytes as u64
    }

    /// Returns the size, in bytes, of the largest chunk of the part.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk * self.directory.entry_bytes()
    }

    /// Returns true if the lists of the part have copies.
    pub fn has_copies(&self) -> bool {
        self.own.is_some()
    }

    /// Returns how many vectors of a list are its own, and not copies.
    pub fn own_count(&self, list: u32) -> u64 {
        self.own.as_ref().unwrap_or(&self.directory).count(list)
    }

    /// Returns the byte range of a piece in the file.
    pub fn bytes_of(&self, piece: &Piece) -> Range<u64> {
        let entry_bytes = self.directory.entry_bytes();
        piece.places.start * entry_bytes..piece.places.end * entry_bytes
    }

    /// Combines lists, which are in ascending order, into pieces. A piece has at most `most` bytes. The gaps between
    /// its lists have at most `gap` bytes. A list of more than `most` bytes is split into several pieces, between
    /// chunks.
    pub fn pieces(&self, lists: &[u32], most: u64, gap: u64) -> Vec<Piece> {
        let entry_bytes = self.directory.entry_bytes();
        let mut pieces: Vec<Piece> = Vec::new();
        for &list in lists {
            let places = self.directory.places_of(list);
            if places.is_empty() {
                continue;
            }
            if let Some(last) = pieces.last_mut() {
                let between = (places.start - last.places.end) * entry_bytes;
                let whole = (places.end - last.places.start) * entry_bytes;
                if between <= gap && whole <= most {
                    (last.lists.end, last.places.end) = (list + 1, places.end);
                    continue;
                }
            }
            // A list that is larger than a read is split into pieces of some chunks each.
            let at_once = (most / entry_bytes / self.chunk).max(1) * self.chunk;
            let mut start = places.start;
            while start < places.end {
                let end = places.end.min(start + at_once);
                pieces.push(Piece { lists: list..list + 1, places: start..end });
                start = end;
            }
        }
        pieces
    }

    /// Calls `each` for each chunk of a piece. The arguments of `each` are the list, the vectors of the chunk, and two
    /// counts. The counts are the number of the list's own vectors in the chunk, and the number of all vectors in the
    /// chunk including copies.
    ///
    /// # Errors
    /// Returns [`crate::Error::BadDataset`] if a row number is too large, and the errors of `each`.
    pub fn each_chunk<T: Clustered>(
        &self,
        piece: &Piece,
        bytes: &[u8],
        mut each: impl FnMut(u32, &List<'_, T>, (usize, usize)) -> Result<()>,
    ) -> Result<()> {
        let entry_bytes = self.directory.entry_bytes() as usize;
        let mut rest = bytes;
        for list in piece.lists.clone() {
            let places = self.directory.places_of(list);
            let mut start = places.start.max(piece.places.start);
            let end = places.end.min(piece.places.end);
            while start < end {
                let count = (end - start).min(self.chunk) as usize;
                let (chunk, others) = rest.split_at(count * entry_bytes);
                rest = others;
                let place = (&*self.name, list);
                let vectors = list_of::<T>(place, chunk, count, (self.row_bytes, entry_bytes), self.rows)?;
                let own = if self.has_copies() { self.own_count(list) as usize } else { count };
                each(list, &vectors, (own, count))?;
                start += count as u64;
            }
        }
        Ok(())
    }
}

/// A file whose block checksums stay in memory while this value lives.
pub(super) struct Remembered(CheckedFile);

impl Remembered {
    /// Reads the checksums of all blocks of a file.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails or stored bytes are damaged.
    pub fn new(job: &Job, file: &CheckedFile) -> Result<Remembered> {
        let remembered = Remembered(file.clone());
        file.remember_headers(job)?;
        Ok(remembered)
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.0.forget_headers();
    }
}

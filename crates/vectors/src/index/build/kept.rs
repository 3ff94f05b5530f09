//! Keeps the finished work of an interrupted build, and loads the work in a later build with the same options. The kept
//! work consists of the trained centroids and of the finished runs of the sort by list. It is stored in *pieces*, which
//! are datasets of [`Keep`].
//!
//! ```text
//!   trained   upper      the centroid of each group          the runs are pieces of the sort, in the order of the rows
//!             firsts     u32 for each group: its first list; and one more for all
//!             lower      the centroid of each list
//!             held-out   the vectors on which recall is measured
//! ```
//!
//! The centroids depend only on the vectors, the options and the seed. So a build with another budget or another number
//! of threads can resume too. A resumed build compares the held-out vectors with all vectors again, which takes one
//! pass over the vectors. The build finds lists only for the vectors that are in no finished run. If the index has
//! copies, the build finds lists for all vectors, since the number of copies of a vector is not known before. It then
//! sorts only the vectors that are in no finished run.

use std::hash::{DefaultHasher, Hash, Hasher};

use inshore_store::{Dataset, DatasetBuilder, FileReader, Keep, Store};
use zerocopy::{IntoBytes, little_endian::U32};

use super::{
    Build,
    plan::{CHECK_BYTES, SMALL_BUFFER_BYTES},
    sample::HeldOut,
};
use crate::{
    Result,
    index::{
        Clustered,
        centroids::{Centroids, Lower},
    },
    read::read_elements,
};

const UPPER: &str = "upper";
const FIRSTS: &str = "firsts";
const LOWER: &str = "lower";
const HELD_OUT: &str = "held-out";

impl<T: Clustered> Build<'_, T> {
    /// Returns the description under which builds of these vectors keep their work.
    fn kept_what(&self) -> String {
        format!("nearest index {}", self.info().name)
    }

    /// Opens the place for the finished work of this build. A later build of the same vectors with the same options
    /// finds the work there.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::InUse`] if another build of the same vectors with the same options is running.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails.
    pub(super) fn keep(&self, store: &Store) -> Result<Keep> {
        let mut hash = DefaultHasher::new();
        // The formats of the work may differ between versions.
        (env!("CARGO_PKG_VERSION"), self.kept_what(), self.vectors.id()).hash(&mut hash);
        (format!("{:?}", self.options), format!("{:?}", self.info())).hash(&mut hash);
        Ok(store.keep(self.job, hash.finish(), &self.kept_what())?)
    }

    /// Returns a message that explains why this build cannot use the kept work of an interrupted build of these
    /// vectors. Returns `None` if there is no such work.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails.
    pub(super) fn unused_work(&self, store: &Store, keep: &Keep) -> Result<Option<String>> {
        let what = self.kept_what();
        let mut others = store
            .kept()?
            .into_iter()
            .filter(|kept| kept.what == what && kept.name != keep.name() && kept.process.is_none());
        Ok(others.next().map(|kept| {
            format!(
                "the work kept as {} has other options or other vectors: the build began anew (store jobs \
                 --remove {} frees its space)",
                kept.name, kept.name
            )
        }))
    }

    /// Writes the trained centroids and the held-out vectors as a piece of kept work.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails, the budget has too little free memory, or the job was
    /// cancelled.
    pub(super) fn keep_trained(
        &self,
        keep: &Keep,
        centroids: &Centroids<T>,
        held_out: &HeldOut<T>,
    ) -> Result<()> {
        let mut piece = keep.begin(self.job)?;
        let firsts: Vec<U32> = centroids.firsts.iter().map(|&first| first.into()).collect();
        write(&mut piece, UPPER, |out| out(centroids.upper.as_bytes()))?;
        write(&mut piece, FIRSTS, |out| out(firsts.as_bytes()))?;
        write(&mut piece, LOWER, |out| match &centroids.lower {
            Lower::Memory(all, _) => out(all.as_bytes()),
            Lower::Flash(file) => {
                let mut reader = FileReader::new(self.job, file, 0..file.len(), SMALL_BUFFER_BYTES)?;
                while let Some(bytes) = reader.next_piece()? {
                    out(bytes)?;
                }
                Ok(())
            }
        })?;
        write(&mut piece, HELD_OUT, |out| {
            (0..held_out.packed.len()).try_for_each(|query| out(held_out.packed.row(query).as_bytes()))
        })?;
        Ok(keep.commit(piece, &[])?)
    }

    /// Returns the held-out vectors and the centroids that an interrupted build has kept. If the kept work cannot be
    /// used, this function removes the work and returns `None`.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too
    /// little free memory.
    pub(super) fn trained(&self, keep: &Keep) -> Result<Option<(HeldOut<T>, Centroids<T>)>> {
        let pieces = keep.pieces()?;
        let trained = pieces.iter().find(|piece| piece.dataset.file(UPPER).is_some());
        let found = trained.map(|piece| self.read_trained(&piece.dataset)).transpose()?.flatten();
        if found.is_none() {
            // Runs of a sort by list cannot be used without the centroids of the lists.
            keep.give_up(&pieces)?;
        }
        Ok(found)
    }

    /// Reads the trained centroids and the held-out vectors of a piece. Returns `None` if a file is missing, or if the
    /// lengths of the files contradict each other or the options of the build.
    fn read_trained(&self, piece: &Dataset) -> Result<Option<(HeldOut<T>, Centroids<T>)>> {
        let (job, row_bytes) = (self.job, self.row_bytes() as u64);
        let file = |name| piece.file(name);
        let (Some(upper_file), Some(firsts_file), Some(lower_file), Some(held_file)) =
            (file(UPPER), file(FIRSTS), file(LOWER), file(HELD_OUT))
        else {
            return Ok(None);
        };
        let ids = self.held_out_ids();
        let groups = upper_file.len() / row_bytes;
        let is_sound = (1..=self.plan.groups).contains(&groups)
            && upper_file.len() == groups * row_bytes
            && firsts_file.len() == (groups + 1) * 4
            && held_file.len() == ids.len() as u64 * row_bytes;
        if !is_sound {
            return Ok(None);
        }
        let upper_memory =
            job.budget().reserve(self.plan.groups * (32 + row_bytes), "centroids of groups")?;
        let held_out_memory = self.reserve_held_out()?;
        let (mut upper, mut firsts, mut held): (Vec<T>, Vec<u32>, Vec<T>) = Default::default();
        read_elements::<U32>(job, &firsts_file, |piece| {
            firsts.extend(piece.iter().map(|first| first.get()))
        })?;
        let lists = u64::from(firsts[firsts.len() - 1]);
        if firsts[0] != 0 || !firsts.is_sorted() || lower_file.len() != lists * row_bytes {
            return Ok(None);
        }
        read_elements::<T>(job, &upper_file, |piece| upper.extend_from_slice(piece))?;
        read_elements::<T>(job, &held_file, |piece| held.extend_from_slice(piece))?;
        let lower = match self.plan.holds_centroids {
            false => Lower::Flash(lower_file),
            true => {
                let memory = job.budget().reserve(lower_file.len(), "centroids of lists")?;
                let mut all: Vec<T> = Vec::with_capacity(lists as usize * self.info().dimensions);
                read_elements::<T>(job, &lower_file, |piece| all.extend_from_slice(piece))?;
                Lower::Memory(all, memory)
            }
        };
        let dimensions = self.info().dimensions;
        let centroids = Centroids { dimensions, upper, firsts, lower, _reservation: upper_memory };
        Ok(Some((self.held_out(ids, &held, held_out_memory), centroids)))
    }
}

/// Writes a file of a piece. The argument of `fill` is a function, to which `fill` passes the bytes of the file.
fn write(
    piece: &mut DatasetBuilder,
    name: &str,
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut writer = piece.file(name, CHECK_BYTES, SMALL_BUFFER_BYTES)?;
    fill(&mut |bytes| Ok(writer.write(bytes)?))?;
    Ok(piece.add(writer)?)
}

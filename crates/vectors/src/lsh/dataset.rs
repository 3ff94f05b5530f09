//! Opens the dataset of hash tables. The section "Hash tables of vectors" of `docs/format.md` describes the layout.
//!
//! ```text
//!   lists      the rows of each bucket, ascending: those of the buckets of table 0, then those of table 1, and so on
//!   firsts     u64 for each bucket: the number of rows in the buckets before it; and one more for all
//!   functions  the parameters from the sample: the positions of sampled bits, or the mean of vectors or directions
//! ```
//!
//! The hash tables of the vectors NAME are the dataset `NAME.index`, as inverted lists are. The attributes of this
//! dataset contain the id of the dataset of vectors from which the tables were built.

use inshore_store::{CheckedFile, Dataset, Job};
use zerocopy::little_endian::{F32, U32};

use super::{
    buckets::BucketFiles,
    functions::{Family, Functions, Parameters},
    info::LshInfo,
};
use crate::{RecallTable, Result, Vectors, dataset::file_of, index::bad, read::read_elements};

pub(crate) const LISTS: &str = "lists";
pub(crate) const FIRSTS: &str = "firsts";
pub(crate) const FUNCTIONS: &str = "functions";

/// `LshIndex` is an open set of hash tables. Its files stay open, so later changes of the store do not affect it.
#[derive(Clone, Debug)]
pub struct LshIndex {
    info: LshInfo,
    /// The id of the dataset.
    id: u64,
    pub(crate) buckets: BucketFiles,
    functions: CheckedFile,
}

impl LshIndex {
    /// Opens a dataset of hash tables of `vectors`.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadDataset`] if the dataset is damaged, has another version, or was built from other
    ///   vectors of the same name.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails.
    pub(crate) fn of(dataset: &Dataset, vectors: &Vectors) -> Result<LshIndex> {
        let name = &vectors.info().name;
        let info = LshInfo::from_attributes(name, dataset.bytes(), dataset.attributes())?;
        if info.dataset != vectors.id() {
            let found = format!("an index of other vectors that were called {name}");
            let expected = format!("those of today: build the index again (`nearest index {name} --lsh`)");
            return Err(bad(name, "vectors", found, expected));
        }
        let facts = (info.vectors, info.dimensions, info.element);
        let expected = (vectors.info().vectors, vectors.info().dimensions, vectors.info().element);
        // Vectors that were added after the build are in no bucket. They are candidates of each query.
        if (facts.1, facts.2) != (expected.1, expected.2) || facts.0 > expected.0 {
            return Err(bad(name, "vectors", format!("{facts:?}"), format!("{expected:?}")));
        }
        let shape = info.shape();
        let rows_bytes = info.vectors * info.tables * info.id_bytes() as u64;
        let lists = file_of(dataset, LISTS, rows_bytes)?;
        let firsts = file_of(dataset, FIRSTS, (shape.all_buckets() + 1) * 8)?;
        let functions = file_of(dataset, FUNCTIONS, shape.parameters_bytes())?;
        Ok(LshIndex { info, id: dataset.id(), buckets: BucketFiles { lists, firsts }, functions })
    }

    /// Returns hash tables that are written but not published yet. Their dataset id is 0.
    pub(crate) fn made(info: LshInfo, buckets: BucketFiles, functions: CheckedFile) -> LshIndex {
        LshIndex { info, id: 0, buckets, functions }
    }

    /// Returns the id of the dataset.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the properties of the tables.
    pub fn info(&self) -> &LshInfo {
        &self.info
    }

    pub(crate) fn set_recall(&mut self, recall: RecallTable) {
        self.info.recall = recall;
    }

    /// Reads the parameters of the functions, and returns the functions.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadDataset`] if a bit position is not below the number of bits of a vector.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little
    ///   free memory, or the job was cancelled.
    pub(crate) fn functions(&self, job: &Job) -> Result<Functions> {
        let shape = self.info.shape();
        let parameters = match shape.family {
            Family::BitSampling => {
                let mut positions = Vec::with_capacity(shape.functions());
                read_elements::<U32>(job, &self.functions, |piece| {
                    positions.extend(piece.iter().map(|position| position.get()));
                })?;
                if let Some(position) =
                    positions.iter().find(|position| u64::from(**position) >= shape.row_bits())
                {
                    let expected = format!("below {}", shape.row_bits());
                    return Err(bad(&self.info.name, "position of a bit", position.to_string(), expected));
                }
                Parameters::Positions(positions)
            }
            Family::Hyperplanes | Family::PStable => {
                let mut mean = Vec::with_capacity(shape.dimensions);
                read_elements::<F32>(job, &self.functions, |piece| {
                    mean.extend(piece.iter().map(|x| x.get()))
                })?;
                Parameters::Mean(mean)
            }
        };
        Functions::new(job.budget(), shape, parameters)
    }
}

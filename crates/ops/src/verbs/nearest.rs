//! The operations `nearest import` and `nearest query`.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
use inshore_tables::TableWriter;
use inshore_vectors::{self as vectors, Imported, Metric, Search, Searched, VectorFile, Vectors};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{Asked, Beside, NormalForm, Operation, Plan, RowOutput, StoreUse},
    place::Place,
    target::Done,
};

/// Imports a file of vectors as a dataset; see [`vectors::import()`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportVectors {
    /// The name of the new dataset.
    pub name: String,
}

/// Finds the nearest vectors of a dataset for each query of a file; see [`vectors::search()`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The number of neighbours of each query.
    #[serde(default = "default_k")]
    pub k: u64,
    /// The metric.
    #[serde(default)]
    pub metric: Metric,
    /// The largest distance of a neighbour, or its smallest inner product.
    #[serde(default)]
    pub radius: Option<f64>,
}

fn default_k() -> u64 {
    Search::default().k
}

impl SearchVectors {
    fn options(&self) -> Search {
        let SearchVectors { k, metric, radius, .. } = *self;
        Search { k, metric, radius, ..Search::default() }
    }
}

/// Opens the one input, a file of vectors.
fn only_file(operation: &'static str, inputs: &[PathBuf]) -> Result<VectorFile> {
    match inputs {
        [input] => Ok(VectorFile::open(input)?),
        _ => {
            let what = format!("inputs: found {}, expected one file of vectors", inputs.len());
            Err(Error::Request { operation, what })
        }
    }
}

/// The queries or vectors of a file; the search itself is planned with the memory of the job.
impl Plan for VectorFile {}

impl Operation for ImportVectors {
    const NAME: &'static str = "nearest import";
    const PLACES: &'static [Place] = &[Place::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Dataset;
    type Plan = VectorFile;
    type Answer = Imported;

    fn plan(&self, asked: &Asked<'_>) -> Result<VectorFile> {
        only_file(Self::NAME, asked.inputs)
    }

    fn run(
        &self,
        file: VectorFile,
        asked: &Asked<'_>,
        job: &Execution,
        _beside: Beside<'_>,
    ) -> Result<Done<Imported>> {
        let job = asked.stored(job)?;
        Ok(Done::here(vectors::import(&job.store(), job, &self.name, &file)?))
    }
}

impl Operation for SearchVectors {
    const NAME: &'static str = "nearest query";
    const PLACES: &'static [Place] = &[Place::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = VectorFile;
    type Answer = Searched;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, _place: Place) -> Result<()> {
        self.options().check()?;
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    fn plan(&self, asked: &Asked<'_>) -> Result<VectorFile> {
        only_file(Self::NAME, asked.inputs)
    }

    fn run(
        &self,
        queries: VectorFile,
        asked: &Asked<'_>,
        execution: &Execution,
        mut beside: Beside<'_>,
    ) -> Result<Done<Searched>> {
        let job = asked.stored(execution)?;
        let (vectors, options) = (Vectors::open(&job.store(), &self.dataset)?, self.options());
        // A search that cannot work is refused before a file is begun.
        let plan = vectors::plan(job, vectors.info(), &queries, &options)?;
        job.progress().tell(|| plan.to_string());
        let receiver = beside.rows.take().filter(|_| asked.output.is_none());
        let mut rows = RowOutput::begin(asked.output, receiver, &vectors::schema(), execution)?;
        let found = vectors::search(job, &vectors, &queries, &options, &mut |batch| {
            rows.batch(batch).map_err(|error| vectors::Error::Rows(error.into()))
        });
        let answer = found.map_err(|error| match error {
            // An error of the receiver of rows is one of this crate.
            vectors::Error::Rows(inner) => match inner.downcast::<Error>() {
                Ok(error) => *error,
                Err(inner) => Error::Rows(inner),
            },
            error => error.into(),
        })?;
        rows.finish()?;
        Ok(Done::here(answer))
    }
}

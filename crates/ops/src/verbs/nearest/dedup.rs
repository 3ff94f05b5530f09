//! The operation `nearest dedup`.

use std::path::{Path, PathBuf};

use inshore_store::{Execution, Job};
use inshore_tables::TableWriter;
use inshore_vectors::{
    self as vectors, Approximate, Dedup, Deduplicated, Metric, SearchIndex, VectorIndex, Vectors,
};
use serde::{Deserialize, Serialize};

use super::no_inputs;
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, RowOutput, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Finds all pairs of vectors of a dataset within a distance, or the groups that such pairs connect. The search is
/// exact, unless `recall` or `probes` is given; it then uses the lists of the dataset's index. See [`vectors::dedup`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The smallest cosine between near-duplicates. It replaces `metric` and `radius`.
    #[serde(default)]
    pub cosine: Option<f64>,
    /// The metric. The default is Euclidean distance.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// The largest distance between near-duplicates, or for `ip` the smallest inner product.
    #[serde(default)]
    pub radius: Option<f64>,
    /// If true, the answer has groups instead of pairs.
    #[serde(default)]
    pub groups: bool,
    /// The recall that an approximate answer is expected to reach. If the dataset has no index, the answer is exact.
    #[serde(default)]
    pub recall: Option<f64>,
    /// The number of lists of the index that each vector probes. It replaces `recall`.
    #[serde(default)]
    pub probes: Option<u64>,
}

impl DedupVectors {
    fn options(&self) -> Result<Dedup> {
        let bad = |what: String| Err(Error::Request { operation: Self::NAME, what });
        let groups = self.groups;
        match (self.cosine, self.metric, self.radius) {
            // The distance is one minus the cosine, and a subtraction keeps the order of rounded numbers.
            (Some(cosine), None, None) if (-1.0..=1.0).contains(&cosine) => {
                Ok(Dedup { metric: Metric::Cosine, radius: 1.0 - cosine, groups })
            }
            (Some(cosine), None, None) => bad(format!("cosine: found {cosine}, expected -1 to 1")),
            (Some(_), ..) => bad("cosine: found beside metric or radius, expected one of both".to_string()),
            (None, metric, Some(radius)) => Ok(Dedup { metric: metric.unwrap_or_default(), radius, groups }),
            (None, _, None) => bad("radius: found none, expected a radius or a cosine".to_string()),
        }
    }

    /// Returns the options of an approximate search, or `None` if the request asks for an exact search.
    fn approximate(&self) -> Option<Approximate> {
        let DedupVectors { recall, probes, .. } = *self;
        let is_asked = recall.is_some() || probes.is_some();
        let recall = recall.unwrap_or(Approximate::default().recall);
        is_asked.then_some(Approximate { recall, probes, strategy: None })
    }

    /// Opens the index if the request asks for an approximate search and the dataset has an index.
    fn index(&self, job: &Job, vectors: &Vectors) -> Result<Option<(VectorIndex, Approximate)>> {
        let Some(approximate) = self.approximate() else { return Ok(None) };
        match SearchIndex::open(&job.store(), vectors)? {
            Some(index) => {
                Ok(Some((index.into_lists("an approximate search for near-duplicates")?, approximate)))
            }
            None if approximate.probes.is_none() => Ok(None),
            None => Err(vectors::Error::NoIndex { name: self.dataset.clone() }.into()),
        }
    }
}

impl Operation for DedupVectors {
    const NAME: &'static str = "nearest dedup";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ();
    type Answer = Deduplicated;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, _place: TargetKind) -> Result<()> {
        self.options()?.check()?;
        if let Some(approximate) = self.approximate() {
            approximate.check()?;
        }
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<()> {
        no_inputs(Self::NAME, context.inputs)
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        execution: &Execution,
        mut attachments: Attachments<'_>,
    ) -> Result<Response<Deduplicated>> {
        let job = context.stored(execution)?;
        let (vectors, options) = (Vectors::open(&job.store(), &self.dataset)?, self.options()?);
        let index = self.index(job, &vectors)?;
        // A search that cannot run is refused before the output file is created.
        match &index {
            Some((index, approximate)) => {
                vectors::check_dedup_index(&vectors, index, &options, approximate)?;
            }
            None => {
                let plan = vectors::plan_dedup(job, &vectors, &options)?;
                job.progress().tell(|| plan.to_string());
            }
        }
        let receiver = attachments.rows.take().filter(|_| context.output.is_none());
        let mut rows = RowOutput::begin(context.output, receiver, &options.schema(), execution)?;
        let index = index.as_ref().map(|(index, approximate)| (index, approximate));
        let found = vectors::dedup(job, &vectors, index, &options, &mut |batch| {
            rows.batch(batch).map_err(|error| vectors::Error::Rows(error.into()))
        });
        let found = found.map_err(Error::of_search)?;
        rows.finish()?;
        Ok(Response::local(found))
    }
}

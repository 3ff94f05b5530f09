//! The operation `count kmers`.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
use inshore_tables::{Input, KmerOptions, KmerSummary, TableWriter, count_kmers};
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    operation::{Attachments, NormalForm, Operation, RequestContext, ResolvedInputs, StoreUse, check_resume},
    target::Response,
    target_kind::TargetKind,
};
#[cfg(feature = "nodes")]
use crate::{kmers::count_kmers_on_nodes, operation::helping_on};

/// Counts the k-mers of sequences in FASTA and FASTQ files: see [`count_kmers`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CountKmers {
    /// The number of bases in a k-mer.
    pub k: u32,
    /// Counts a k-mer and its reverse complement as the same k-mer.
    pub canonical: bool,
    /// Writes only k-mers with at least this count.
    pub min_count: u32,
    /// Writes numeric codes of k-mers instead of text. This requires that `k` is at most 32.
    pub codes: bool,
    /// If true, finished sorted runs remain in the store after an interruption, and a later call with the same
    /// options resumes the operation.
    pub resume: bool,
}

impl Default for CountKmers {
    /// Returns the options of [`KmerOptions::default`].
    fn default() -> Self {
        let KmerOptions { k, canonical, min_count, codes, resume } = KmerOptions::default();
        CountKmers { k, canonical, min_count, codes, resume }
    }
}

impl CountKmers {
    fn options(&self) -> KmerOptions {
        let CountKmers { k, canonical, min_count, codes, resume } = *self;
        KmerOptions { k, canonical, min_count, codes, resume }
    }
}

impl Operation for CountKmers {
    const NAME: &'static str = "count kmers";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Spills;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = KmerSummary;

    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        check_resume(Self::NAME, self.resume, place)?;
        Ok(self.options().check()?)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        TableWriter::check_path(context.output()?)?;
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<KmerSummary>> {
        let (output, options) = (context.output()?, self.options());
        match sources {
            ResolvedInputs::Here => {
                let inputs: Vec<Input> = context.inputs.iter().map(Input::new).collect();
                Ok(Response::local(count_kmers(context.stored(job)?, &inputs, output, &options)?))
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                let how = helping_on(&on, job);
                let counted = count_kmers_on_nodes(&on.nodes, job, &wholes, output, &options, &how);
                let (summary, gathered) = counted?;
                Ok(Response::on_nodes(summary, &on, gathered))
            }
        }
    }
}

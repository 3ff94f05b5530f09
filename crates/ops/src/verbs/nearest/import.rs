//! The operation `nearest import`.

use inshore_store::Execution;
use inshore_vectors::{self as vectors, Imported, VectorFile};
use serde::{Deserialize, Serialize};

use super::only_file;
use crate::{
    error::Result,
    operation::{Attachments, NormalForm, Operation, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Imports a file of vectors as a dataset; see [`vectors::import()`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportVectors {
    /// The name of the new dataset.
    pub name: String,
    /// Each byte of the file is eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
}

impl Operation for ImportVectors {
    const NAME: &'static str = "nearest import";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Dataset;
    type Plan = VectorFile;
    type Answer = Imported;

    fn plan(&self, context: &RequestContext<'_>) -> Result<VectorFile> {
        let file = only_file(Self::NAME, context.inputs)?;
        if self.bits { Ok(file.as_bits()?) } else { Ok(file) }
    }

    fn run(
        &self,
        file: VectorFile,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Imported>> {
        let job = context.stored(job)?;
        Ok(Response::local(vectors::import(&job.store(), job, &self.name, &file)?))
    }
}

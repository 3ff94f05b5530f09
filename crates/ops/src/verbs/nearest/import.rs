//! The operation `nearest import`.

use std::path::{Path, PathBuf};

use inshore_store::{Execution, Job};
use inshore_tables::Input;
use inshore_vectors::{self as vectors, Imported, TableColumns, VectorFile};
use serde::{Deserialize, Serialize};

use super::only_file;
#[cfg(feature = "nodes")]
use crate::nearest::{import_on_nodes, import_table_on_nodes};
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Imports a file of vectors, or a table with a column of vectors, as a dataset. See [`vectors::import()`] and
/// [`vectors::import_table`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportVectors {
    /// The name of the new dataset.
    pub name: String,
    /// True if each byte of the file has eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
    /// The column of the table that has the vectors. It may be `None` if the table has exactly one column of lists of
    /// numbers.
    #[serde(default)]
    pub column: Option<String>,
    /// The column of the table whose values are the ids of the vectors.
    #[serde(default)]
    pub id: Option<String>,
    /// The number of nodes that store each vector.
    #[serde(default)]
    pub copies: Option<u8>,
    /// The approximate size of a shard on nodes, in bytes.
    #[serde(default)]
    pub piece_bytes: Option<u64>,
}

/// The other inputs of an import, for the message about a file of an unknown kind.
const OTHERS: &str = " for vectors, or .parquet or .arrow for a table; `--images` imports PNG and JPEG files, and \
                      `--documents` texts";

/// The kind and the path of the file to import.
#[derive(Debug)]
pub enum ImportPlan {
    /// A file of vectors.
    Vectors(VectorFile),
    /// A table of Parquet or Arrow.
    Table(PathBuf),
}

impl Plan for ImportPlan {}

impl ImportVectors {
    /// Refuses options that do not apply to the kind of file.
    fn check_options(&self, is_table: bool) -> Result<()> {
        let options = match is_table {
            true => [("bits", self.bits), ("", false)],
            false => [("column", self.column.is_some()), ("id", self.id.is_some())],
        };
        match options.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((option, _)) => {
                let kind = if is_table { "a file of vectors" } else { "a table (.parquet or .arrow)" };
                let what = format!("{option}: found with another file, expected with {kind}");
                Err(Error::Request { operation: Self::NAME, what })
            }
        }
    }
}

impl ImportVectors {
    /// Returns the table to import, and its columns that have a special role.
    fn table(&self, path: &Path, job: &Job) -> (Input, TableColumns) {
        let columns = TableColumns { vectors: self.column.clone(), id: self.id.clone() };
        (Input::new(path).stopped_by(job.cancel()), columns)
    }

    /// Refuses options that a target does not support.
    fn check_target(&self, place: TargetKind) -> Result<()> {
        if place.is_on_nodes() {
            return Ok(());
        }
        let options = [
            ("copies", self.copies.is_some(), "a local store has vectors once"),
            ("piece_bytes", self.piece_bytes.is_some(), "vectors of a local store have no shards"),
        ];
        match options.into_iter().find(|(_, is_given, _)| *is_given) {
            None => Ok(()),
            Some((option, _, why)) => {
                Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why })
            }
        }
    }
}

/// Returns true if a file is a table with a column of vectors.
pub(super) fn is_table(path: &Path) -> bool {
    matches!(&*Input::new(path).extension(), "parquet" | "arrow")
}

impl Operation for ImportVectors {
    const NAME: &'static str = "nearest import";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Common;
    type Plan = ImportPlan;
    type Answer = Imported;

    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        self.check_target(place)
    }

    /// The columns of a table are written to the scratch space of a store before they are sent to nodes.
    fn needs_store(&self, inputs: &[PathBuf], place: TargetKind) -> bool {
        place == TargetKind::Local || inputs.iter().any(|input| is_table(input))
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ImportPlan> {
        if let [input] = context.inputs
            && is_table(input)
        {
            self.check_options(true)?;
            return Ok(ImportPlan::Table(input.clone()));
        }
        let file = only_file(Self::NAME, context.inputs, OTHERS)?;
        self.check_options(false)?;
        Ok(ImportPlan::Vectors(if self.bits { file.as_bits()? } else { file }))
    }

    fn run(
        &self,
        plan: ImportPlan,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Imported>> {
        #[cfg(feature = "nodes")]
        if let (Some(on), ImportPlan::Vectors(file)) = (context.target.on_nodes(), &plan) {
            let placed = (self.copies.unwrap_or(1), self.piece_bytes);
            return Ok(Response::local(import_on_nodes(on, job, &self.name, file, placed)?));
        }
        let job = context.stored(job)?;
        #[cfg(feature = "nodes")]
        if let (Some(on), ImportPlan::Table(path)) = (context.target.on_nodes(), &plan) {
            let (input, columns) = self.table(path, job);
            let placed = (self.copies.unwrap_or(1), self.piece_bytes);
            let imported = import_table_on_nodes(on, job, &self.name, (&input, &columns), placed)?;
            return Ok(Response::local(imported));
        }
        Ok(Response::local(match plan {
            ImportPlan::Vectors(file) => vectors::import(&job.store(), job, &self.name, &file)?,
            ImportPlan::Table(path) => {
                let (input, columns) = self.table(&path, job);
                vectors::import_table(&job.store(), job, &self.name, &input, &columns)?
            }
        }))
    }
}

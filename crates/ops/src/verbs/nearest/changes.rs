//! The operations `nearest add`, `nearest upsert`, `nearest remove` and `nearest compact`.

use std::path::{Path, PathBuf};

use inshore_store::{Execution, Job};
use inshore_tables::Input;
use inshore_vectors::{
    self as vectors, Changed, Compacted, Content, ContentRows, IdList, Images, ValueList, VectorFile,
    Vectors, Vocabulary,
};
use serde::{Deserialize, Serialize};

#[cfg(feature = "text")]
use super::documents::{Documents, document_files};
use super::{import::is_table, only_file};
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// The other inputs of a change, for the message about a file of an unknown kind.
const OTHERS: &str = " for vectors of a file; only vectors that were imported from a table take .parquet and .arrow, and \
                      only those of images or documents take images or texts";

/// Adds the vectors of a file ([`vectors::add_vectors`]) to a dataset, or the rows of a table ([`vectors::add_table`]).
/// The inputs for a dataset of images or documents are files and folders ([`vectors::add_content`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// True if each byte of the file has eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
    /// The column of the table that has the vectors. It may be `None` if the table has exactly one column of lists of
    /// numbers.
    #[serde(default)]
    pub column: Option<String>,
    /// True if each line of the only input is a document.
    #[serde(default)]
    pub lines: bool,
}

/// Inserts vectors into a dataset by their ids, or replaces vectors with the same ids. See [`vectors::upsert_vectors`]
/// and [`vectors::upsert_table`]. The first input is a file of vectors or a table. If `ids` is not given, the second
/// input is a text file of ids, unless the dataset has a column of ids. The table then has the ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpsertVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The id of each vector. `None` reads the ids from the second input, or from the column of ids of a table.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
    /// True if each byte of the file has eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
    /// The column of the table that has the vectors, as in [`AddVectors::column`].
    #[serde(default)]
    pub column: Option<String>,
}

/// Removes vectors of a dataset by their ids. See [`vectors::remove_vectors`]. If `ids` is not given, the input is a
/// text file of ids. If the ids of the dataset are the values of a column, each line of the file is a value. See
/// [`vectors::remove_values`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveFromVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The ids of the vectors. `None` reads the ids from the input.
    #[serde(default)]
    pub ids: Option<Vec<VectorId>>,
}

/// The id of a vector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VectorId {
    /// The number of a vector, or a value of a column of whole numbers.
    Number(u64),
    /// A value of a column of ids.
    Value(String),
}

/// Frees the rows of removed vectors, and writes the lists of the index again. See [`vectors::compact_vectors`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactVectors {
    /// The dataset of vectors.
    pub dataset: String,
}

/// The kind and the path of the vectors of a change.
#[derive(Debug)]
pub enum ChangePlan {
    /// A file of vectors.
    Vectors(VectorFile),
    /// A table of Parquet or Arrow.
    Table(PathBuf),
    /// Files and folders of images or documents.
    Content,
}

impl Plan for ChangePlan {}

impl ChangePlan {
    /// Opens the only input, and checks that the options apply to its kind.
    fn of(
        operation: &'static str,
        inputs: &[PathBuf],
        bits: bool,
        column: Option<&str>,
    ) -> Result<ChangePlan> {
        let refused = |option: &str, kind: &str| {
            let what = format!("{option}: found with another file, expected with {kind}");
            Err(Error::Request { operation, what })
        };
        match inputs {
            [input] if is_table(input) && bits => refused("bits", "a file of vectors"),
            [input] if is_table(input) => Ok(ChangePlan::Table(input.clone())),
            _ => {
                let file = only_file(operation, inputs, OTHERS)?;
                match column {
                    Some(_) => refused("column", "a table (.parquet or .arrow)"),
                    None => Ok(ChangePlan::Vectors(if bits { file.as_bits()? } else { file })),
                }
            }
        }
    }
}

/// Checks the number of inputs. A request has `count` files of vectors and, if `ids` is not given, a file of ids.
fn check_inputs(operation: &'static str, inputs: &[PathBuf], count: usize, has_ids: bool) -> Result<()> {
    let expected = count + usize::from(!has_ids);
    if inputs.len() == expected {
        return Ok(());
    }
    let file = if count == 0 { "" } else { "a file of vectors and " };
    let ids = if has_ids { "no file of ids, since `ids` is given" } else { "a file of ids, or `ids`" };
    let what = format!("inputs: found {}, expected {file}{ids}", inputs.len());
    Err(Error::Request { operation, what })
}

/// Returns the ids of the request. If it has none, returns the ids in the last input.
fn ids_of(job: &Job, ids: &Option<Vec<u64>>, inputs: &[PathBuf]) -> Result<IdList> {
    match (ids, inputs.last()) {
        (Some(ids), _) => Ok(IdList::of(job, ids)?),
        (None, Some(path)) => Ok(IdList::read(job, path)?),
        (None, None) => unreachable!("the inputs were checked"),
    }
}

impl Operation for AddVectors {
    const NAME: &'static str = "nearest add";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    const FOLDERS: bool = true;
    type Plan = ChangePlan;
    type Answer = Changed;

    fn plan(&self, context: &RequestContext<'_>) -> Result<ChangePlan> {
        let is_content = match context.inputs {
            [] => false,
            [input] => self.lines || !is_table(input) && !VectorFile::is_named(input),
            _ => true,
        };
        if !is_content {
            return ChangePlan::of(Self::NAME, context.inputs, self.bits, self.column.as_deref());
        }
        let options = [("bits", self.bits), ("column", self.column.is_some())];
        match options.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(ChangePlan::Content),
            Some((option, _)) => {
                let what = format!("{option}: found with files that are no vectors and no table");
                Err(Error::Request { operation: Self::NAME, what })
            }
        }
    }

    fn run(
        &self,
        plan: ChangePlan,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Changed>> {
        let job = context.stored(job)?;
        let (store, name) = (job.store(), &self.dataset);
        Ok(Response::local(match plan {
            ChangePlan::Vectors(file) => vectors::add_vectors(&store, job, name, &file)?,
            ChangePlan::Table(path) => {
                let input = Input::new(path).stopped_by(job.cancel());
                vectors::add_table(&store, job, name, &input, self.column.as_deref())?
            }
            ChangePlan::Content => self.add_files(job, context.inputs)?,
        }))
    }
}

impl AddVectors {
    /// Adds images or documents.
    fn add_files(&self, job: &Job, inputs: &[PathBuf]) -> Result<Changed> {
        let (store, name, are_lines) = (job.store(), &self.dataset, self.lines);
        match Vectors::open(&store, name)?.content(job)? {
            None if are_lines => {
                let what = format!("lines: {name} has vectors, expected documents");
                return Err(Error::Request { operation: Self::NAME, what });
            }
            // The error for a file that is no file of vectors lists the extensions of such files.
            None => {
                let file = only_file(Self::NAME, inputs, OTHERS)?;
                return Ok(vectors::add_vectors(&store, job, name, &file)?);
            }
            Some(Content::Images) if are_lines => {
                let what = format!("lines: {name} has images, expected documents");
                return Err(Error::Request { operation: Self::NAME, what });
            }
            Some(_) => {}
        }
        let open = |content| -> vectors::Result<Box<dyn ContentRows>> {
            match content {
                Content::Images => Ok(Box::new(Images::list(job, inputs, false)?)),
                Content::Documents(vocabulary) => documents(job, inputs, are_lines, vocabulary),
            }
        };
        Ok(vectors::add_content(&store, job, name, &open)?)
    }
}

#[cfg(feature = "text")]
fn documents(
    job: &Job,
    inputs: &[PathBuf],
    are_lines: bool,
    vocabulary: Vocabulary,
) -> vectors::Result<Box<dyn ContentRows>> {
    let files = document_files(job, inputs, are_lines)?;
    Ok(Box::new(Documents::new(job, files, are_lines, vocabulary)?))
}

#[cfg(not(feature = "text"))]
fn documents(_: &Job, _: &[PathBuf], _: bool, _: Vocabulary) -> vectors::Result<Box<dyn ContentRows>> {
    Err(vectors::Error::Content(Box::new(super::no_documents())))
}

impl Operation for UpsertVectors {
    const NAME: &'static str = "nearest upsert";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = ChangePlan;
    type Answer = Changed;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        match inputs {
            // The dataset may have a column of ids, which the run finds out.
            [input] if is_table(input) => Ok(()),
            _ => check_inputs(Self::NAME, inputs, 1, self.ids.is_some()),
        }
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ChangePlan> {
        ChangePlan::of(Self::NAME, &context.inputs[..1], self.bits, self.column.as_deref())
    }

    fn run(
        &self,
        plan: ChangePlan,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Changed>> {
        let job = context.stored(job)?;
        let has_ids = self.ids.is_some() || context.inputs.len() > 1;
        let ids = has_ids.then(|| ids_of(job, &self.ids, context.inputs)).transpose()?;
        let (store, name) = (job.store(), &self.dataset);
        Ok(Response::local(match plan {
            ChangePlan::Vectors(file) => {
                let ids = ids.expect("the inputs were checked");
                vectors::upsert_vectors(&store, job, name, &file, &ids)?
            }
            ChangePlan::Table(path) => {
                let input = Input::new(path).stopped_by(job.cancel());
                let options = (self.column.as_deref(), ids.as_deref());
                vectors::upsert_table(&store, job, name, &input, options)?
            }
            ChangePlan::Content => unreachable!("a plan of `ChangePlan::of` has vectors or a table"),
        }))
    }
}

impl Operation for RemoveFromVectors {
    const NAME: &'static str = "nearest remove";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = ();
    type Answer = Changed;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        check_inputs(Self::NAME, inputs, 0, self.ids.is_some())
    }

    fn plan(&self, _context: &RequestContext<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Changed>> {
        let job = context.stored(job)?;
        let (store, name) = (job.store(), &self.dataset);
        let is_by_value = Vectors::open(&store, name)?.has_id_column();
        Ok(Response::local(match is_by_value {
            true => vectors::remove_values(&store, job, name, &self.values(job, context.inputs)?)?,
            false => vectors::remove_vectors(&store, job, name, &self.numbers(job, context.inputs)?)?,
        }))
    }
}

impl RemoveFromVectors {
    /// Returns the ids as values of a column.
    fn values(&self, job: &Job, inputs: &[PathBuf]) -> Result<ValueList> {
        match (&self.ids, inputs) {
            (None, inputs) => Ok(ValueList::read(job, inputs.last().expect("the inputs were checked"))?),
            (Some(ids), _) => {
                let value = |id: &VectorId| match id {
                    VectorId::Number(number) => number.to_string(),
                    VectorId::Value(value) => value.clone(),
                };
                Ok(ValueList::of(job, ids.iter().map(value).collect())?)
            }
        }
    }

    /// Returns the ids as numbers of vectors.
    fn numbers(&self, job: &Job, inputs: &[PathBuf]) -> Result<IdList> {
        let number = |id: &VectorId| match id {
            VectorId::Number(number) => Ok(*number),
            VectorId::Value(value) => Err(Error::Request {
                operation: Self::NAME,
                what: format!("ids: found {value:?}, expected the numbers of vectors"),
            }),
        };
        let ids = self.ids.as_ref().map(|ids| ids.iter().map(number).collect::<Result<_>>()).transpose()?;
        ids_of(job, &ids, inputs)
    }
}

impl Operation for CompactVectors {
    const NAME: &'static str = "nearest compact";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = ();
    type Answer = Compacted;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        match inputs {
            [] => Ok(()),
            _ => {
                let what = format!("inputs: found {}, expected none", inputs.len());
                Err(Error::Request { operation: Self::NAME, what })
            }
        }
    }

    fn plan(&self, _context: &RequestContext<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Compacted>> {
        let job = context.stored(job)?;
        Ok(Response::local(vectors::compact_vectors(&job.store(), job, &self.dataset)?))
    }
}

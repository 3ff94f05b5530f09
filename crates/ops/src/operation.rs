//! This module defines an operation as a request, a target that runs the request, and a typed answer.
//!
//! ```text
//!   JSON ─► Request<O> ─► check ─► plan (look up names) ──────► run (a job) ─► Response<Answer>
//!                         pure     before a job begins              │
//!                                                                   └─► rows: a file, standard output, or a stream
//! ```
//!
//! A request in JSON is one object with `operation`, `version`, `inputs`, `output`, and the fields of the
//! operation. An unknown field is an error, and so is a version that this build does not support. Callbacks,
//! receivers of rows and open graphs cannot be written as JSON: the caller passes these as [`Attachments`],
//! together with the request.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
#[cfg(feature = "nodes")]
use inshore_nodes::{DistributedFile, RunOptions};
#[cfg(feature = "nodes")]
use inshore_store::format_bytes;
use inshore_store::{Execution, Job};
#[cfg(any(feature = "records", feature = "text"))]
use inshore_tables::Input;
#[cfg(any(feature = "graph", feature = "sql", feature = "text", feature = "vectors"))]
use inshore_tables::TableWriter;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

#[cfg(feature = "nodes")]
use crate::target::{OnNodes, wholes};
use crate::{
    error::{Error, Result},
    target::{Response, Target},
    target_kind::TargetKind,
};

/// The form in which tests compare the answers of different targets to the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormalForm {
    /// The bytes of the output are compared.
    Bytes,
    /// The decompressed bytes of the output are compared.
    Unpacked,
    /// The rows of the output are compared in their order. The last digits of floating-point sums and means may
    /// differ.
    Rows,
    /// The sorted rows of the output are compared, since a query without ORDER BY returns rows in any order.
    SortedRows,
    /// The answers are compared, since the operation writes no output.
    Answer,
    /// Only the fields that the answers of both targets have are compared.
    Common,
    /// The bytes of the new dataset are compared. The field `name` of the request holds the dataset's name.
    Dataset,
}

/// Says when an operation needs a local store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreUse {
    /// The operation never uses a store.
    Never,
    /// The operation writes data that exceed the memory budget to the store. [`Target::Local`] requires a store.
    /// If the target is nodes, a store is used only for data that the client processes itself.
    Spills,
    /// Every target requires a store.
    Always,
    /// [`Target::Local`] requires a store. If the target is nodes, no store is used.
    Here,
    /// [`Target::Local`] requires a store if an input is a dataset.
    Datasets,
}

impl StoreUse {
    /// Returns true if a job at this kind of target always needs a store.
    pub fn is_needed(self, place: TargetKind) -> bool {
        match self {
            StoreUse::Never | StoreUse::Datasets => false,
            StoreUse::Spills | StoreUse::Here => place == TargetKind::Local,
            StoreUse::Always => true,
        }
    }
}

/// An operation such as `sort`. The fields of an implementing type are the fields of the JSON request.
pub trait Operation: Serialize + DeserializeOwned {
    /// The name of the operation in requests.
    const NAME: &'static str;
    /// The version of the request. A change of the request's meaning increments the version.
    const VERSION: u32 = 1;
    /// The kinds of targets that can run the operation.
    const PLACES: &'static [TargetKind];
    /// Says when the operation needs a local store.
    const STORE: StoreUse;
    /// The form in which tests compare the answers of different targets.
    const FORM: NormalForm;
    /// Tells whether inputs may be folders.
    const FOLDERS: bool = false;
    /// The results of looking up the names in the request, before a job begins.
    type Plan: Plan;
    /// The answer: counts and names, never a whole table.
    type Answer: Serialize;

    /// Checks the combination of options, without I/O on inputs and nodes.
    ///
    /// # Errors
    /// Returns an error that names the refused option and the reason.
    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        Ok(())
    }

    /// Returns true if a job at this kind of target needs a store.
    fn needs_store(&self, inputs: &[PathBuf], place: TargetKind) -> bool {
        let reads_datasets = Self::STORE == StoreUse::Datasets && place == TargetKind::Local;
        Self::STORE.is_needed(place) || reads_datasets && inputs.iter().any(|path| is_dataset(path))
    }

    /// Looks up the names of the request, before a job begins and a store is created.
    ///
    /// # Errors
    /// Returns an error if a name cannot be found.
    fn plan(&self, context: &RequestContext<'_>) -> Result<Self::Plan>;

    /// Runs the operation.
    ///
    /// # Errors
    /// Returns the errors of the libraries that the operation calls.
    fn run(
        &self,
        plan: Self::Plan,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<Self::Answer>>;
}

/// The results of looking up the names in a request. [`Planned::run`] reports the plan's description through the
/// job's progress, and the option `--explain` prints this description first. The engines that run the operation
/// add descriptions of their decisions, as soon as the free memory is known.
pub trait Plan {
    /// Returns a description of the data that was found. Returns `None` if no names were looked up.
    fn explain(&self) -> Option<String> {
        None
    }

    /// Returns true if the job needs a store because of the data that was found. See also [`Operation::needs_store`].
    fn needs_store(&self) -> bool {
        false
    }
}

impl Plan for () {}

/// An operation on the datasets of a store that looks up no names before a job begins. The operation runs on the
/// local store, and also on nodes if [`PLACES`](DatasetOperation::PLACES) contains [`TargetKind::Nodes`]. Each
/// type that implements this trait is an [`Operation`].
pub trait DatasetOperation: Serialize + DeserializeOwned {
    /// The name of the operation.
    const VERB: &'static str;
    /// The kinds of targets that can run the operation.
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    /// The form in which tests compare the answers of different targets.
    const FORM: NormalForm;
    /// The answer: counts and names, never a whole table.
    type Answer: Serialize;

    /// Checks the names and the combination of options, without I/O.
    ///
    /// # Errors
    /// Returns an error that names the refused option and the reason.
    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        Ok(())
    }

    /// Runs the operation.
    ///
    /// # Errors
    /// Returns the errors of the libraries that the operation calls.
    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<Self::Answer>>;
}

impl<O: DatasetOperation> Operation for O {
    const NAME: &'static str = O::VERB;
    const PLACES: &'static [TargetKind] = <O as DatasetOperation>::PLACES;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = <O as DatasetOperation>::FORM;
    type Plan = ();
    type Answer = <O as DatasetOperation>::Answer;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, place: TargetKind) -> Result<()> {
        DatasetOperation::check(self, inputs, output, place)
    }

    fn plan(&self, _asked: &RequestContext<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<<O as DatasetOperation>::Answer>> {
        DatasetOperation::run(self, context, job, attachments)
    }
}

/// Returns true if a path names a dataset: `store:NAME`, or `store:NAME/FILE`.
pub(crate) fn is_dataset(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.starts_with("store:"))
}

/// A request: an operation, and the names of its inputs and its output.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<O> {
    /// The operation with its options.
    pub operation: O,
    /// The inputs: files, `store:NAME` or `store:NAME/FILE`; `-` is standard input.
    pub inputs: Vec<PathBuf>,
    /// The output file. The file name extension determines the format; `-` is standard output.
    pub output: Option<PathBuf>,
}

impl<O: Operation> Request<O> {
    /// Returns a request with these inputs and no output.
    pub fn new(operation: O, inputs: impl IntoIterator<Item = impl Into<PathBuf>>) -> Request<O> {
        Request { operation, inputs: inputs.into_iter().map(Into::into).collect(), output: None }
    }

    /// Returns the same request with an output.
    pub fn to(self, output: impl Into<PathBuf>) -> Request<O> {
        Request { output: Some(output.into()), ..self }
    }

    /// Returns the request in JSON.
    ///
    /// # Errors
    /// Returns [`Error::Request`] if a path is not UTF-8.
    pub fn to_json(&self) -> Result<Value> {
        let bad = |error: serde_json::Error| Error::Request { operation: O::NAME, what: error.to_string() };
        let mut all = json!({ "operation": O::NAME, "version": O::VERSION });
        all["inputs"] = serde_json::to_value(&self.inputs).map_err(bad)?;
        if let Some(output) = &self.output {
            all["output"] = serde_json::to_value(output).map_err(bad)?;
        }
        if let Value::Object(fields) = serde_json::to_value(&self.operation).map_err(bad)? {
            all.as_object_mut().expect("made as one").extend(fields);
        }
        Ok(all)
    }

    /// Parses a request in JSON.
    ///
    /// # Errors
    /// - Returns [`Error::Version`] if the request has another version.
    /// - Returns [`Error::Request`] if the text is not a valid request, or has an unknown field.
    pub fn from_json(request: &Value) -> Result<Request<O>> {
        let bad = |what: String| Error::Request { operation: O::NAME, what };
        let mut fields = request.as_object().ok_or_else(|| bad("expected an object".to_string()))?.clone();
        let named = fields.remove("operation");
        if named.as_ref().and_then(Value::as_str) != Some(O::NAME) {
            return Err(bad(format!("expected operation {:?}, got {}", O::NAME, shown(named.as_ref()))));
        }
        let version = fields.remove("version");
        if version.as_ref().and_then(Value::as_u64) != Some(O::VERSION.into()) {
            let found = shown(version.as_ref());
            return Err(Error::Version { operation: O::NAME, found, expected: O::VERSION });
        }
        let inputs = take(&mut fields, "inputs").map_err(bad)?.unwrap_or_default();
        let output = take(&mut fields, "output").map_err(bad)?;
        let operation =
            serde_json::from_value(Value::Object(fields)).map_err(|error| bad(error.to_string()))?;
        Ok(Request { operation, inputs, output })
    }

    /// Checks that the operation can run on this kind of target, and that the options are valid.
    ///
    /// # Errors
    /// - Returns [`Error::Unsupported`] if the operation does not support an option of the request.
    /// - Returns the errors of [`Operation::check`].
    pub fn check(&self, place: TargetKind) -> Result<()> {
        if !O::PLACES.contains(&place) {
            return Err(Error::Unsupported { operation: O::NAME, place });
        }
        self.operation.check(&self.inputs, self.output.as_deref(), place)
    }

    /// Looks up names at a target, before a job begins.
    ///
    /// # Errors
    /// Returns the errors of [`Request::check`] and [`Operation::plan`].
    pub fn plan<'a>(&'a self, target: &'a Target) -> Result<Planned<'a, O>> {
        self.check(target.place())?;
        let context = RequestContext {
            operation: O::NAME,
            inputs: &self.inputs,
            output: self.output.as_deref(),
            target,
        };
        let plan = self.operation.plan(&context)?;
        Ok(Planned { operation: &self.operation, context, plan })
    }
}

/// Formats the value of a field for an error message.
fn shown(value: Option<&Value>) -> String {
    value.map_or("none".to_string(), Value::to_string)
}

/// Removes a field from a JSON object, and returns the parsed value.
fn take<T: DeserializeOwned>(
    fields: &mut Map<String, Value>,
    name: &str,
) -> std::result::Result<Option<T>, String> {
    let read = |value| serde_json::from_value(value).map_err(|error| format!("{name}: {error}"));
    fields.remove(name).map(read).transpose()
}

/// A request whose names were looked up, and which can run.
#[derive(Debug)]
pub struct Planned<'a, O: Operation> {
    operation: &'a O,
    context: RequestContext<'a>,
    plan: O::Plan,
}

impl<O: Operation> Planned<'_, O> {
    /// Returns true if the job needs a store.
    pub fn needs_store(&self) -> bool {
        let RequestContext { inputs, target, .. } = self.context;
        self.operation.needs_store(inputs, target.place()) || self.plan.needs_store()
    }

    /// Runs the operation. If [`Planned::needs_store`] returns true, the job must have a store. If the target is
    /// nodes, data that the client processes itself may spill to the job's store.
    ///
    /// # Errors
    /// Returns the errors of [`Operation::run`].
    pub fn run(self, job: &Execution, attachments: Attachments<'_>) -> Result<Response<O::Answer>> {
        if self.needs_store() && job.job().is_none() {
            return Err(Error::NeedsStore { operation: O::NAME });
        }
        if let Some(plan) = self.plan.explain() {
            job.progress().tell(|| plan);
        }
        self.operation.run(self.plan, &self.context, job, attachments)
    }
}

/// The names of the operation, the inputs and the output in a request, and the target.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// The name of the operation.
    pub operation: &'static str,
    /// The inputs of the request.
    pub inputs: &'a [PathBuf],
    /// The output of the request.
    pub output: Option<&'a Path>,
    /// The target on which the operation runs.
    pub target: &'a Target,
}

impl RequestContext<'_> {
    /// Returns the output of the request, for an operation that requires an output.
    ///
    /// # Errors
    /// Returns [`Error::NoOutput`] if the request has no output.
    pub fn output(&self) -> Result<&Path> {
        self.output.ok_or(Error::NoOutput { operation: self.operation })
    }

    /// Returns the job, which must have a store.
    ///
    /// # Errors
    /// Returns [`Error::NeedsStore`] if there is no store.
    pub fn stored<'a>(&self, job: &'a Execution) -> Result<&'a Job> {
        job.job().ok_or(Error::NeedsStore { operation: self.operation })
    }

    /// Looks up the inputs of the request at the target.
    ///
    /// # Errors
    /// Returns the errors of [`wholes`].
    pub fn sources(&self) -> Result<ResolvedInputs> {
        #[cfg(feature = "nodes")]
        if let Some(on) = self.target.on_nodes() {
            return Ok(ResolvedInputs::Nodes(on.clone(), wholes(&on.nodes, self.inputs)?));
        }
        Ok(ResolvedInputs::Here)
    }
}

/// The inputs of a request after the look-up of their names.
#[derive(Debug)]
pub enum ResolvedInputs {
    /// The inputs are files and datasets of the local machine, under the names in the request.
    Here,
    /// The inputs are these files on nodes.
    #[cfg(feature = "nodes")]
    Nodes(OnNodes, Vec<DistributedFile>),
}

impl Plan for ResolvedInputs {
    fn explain(&self) -> Option<String> {
        match self {
            ResolvedInputs::Here => None,
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => explain_files(on, wholes),
        }
    }
}

/// The number of files that a plan lists.
#[cfg(feature = "nodes")]
const FILES_EXPLAINED: usize = 8;

/// Describes files on nodes, with one line for each of the first [`FILES_EXPLAINED`] files. Returns `None` without
/// a file.
#[cfg(feature = "nodes")]
pub(crate) fn explain_files(on: &OnNodes, files: &[DistributedFile]) -> Option<String> {
    let line = |file: &DistributedFile| {
        let (pieces, copies, nodes) = (file.pieces.len(), file.copies(), file.nodes(&on.nodes).len());
        format!(
            "{}: {}, pieces {pieces}, copies {copies}, nodes {nodes}",
            file.title,
            format_bytes(file.bytes())
        )
    };
    let mut lines: Vec<String> = files.iter().take(FILES_EXPLAINED).map(line).collect();
    if files.len() > FILES_EXPLAINED {
        lines.push(format!("and {} more files", files.len() - FILES_EXPLAINED));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Refuses to resume an interrupted run on nodes.
#[cfg(feature = "records")]
pub(crate) fn check_resume(operation: &'static str, resume: bool, place: TargetKind) -> Result<()> {
    if resume && place.is_on_nodes() {
        let why = "nodes do not keep runs of interrupted jobs";
        return Err(Error::UnsupportedOption { operation, option: "resume", place, why });
    }
    Ok(())
}

/// Returns the options for an operation on nodes. If the client processes data itself, the job's store provides
/// the scratch space.
#[cfg(feature = "nodes")]
pub(crate) fn helping_on(on: &OnNodes, job: &Execution) -> RunOptions {
    RunOptions { help_on: job.job().map(Job::store), ..on.options.clone() }
}

/// Callbacks and receivers that are passed together with a request.
#[derive(Default)]
pub struct Attachments<'a> {
    /// A callback for the error of each input that cannot be read. The operation continues with the other inputs,
    /// and the answer counts the failures. A caller that does not accept failures cancels the job, and then no
    /// output appears.
    pub failed: Option<&'a (dyn Fn(&Error) + Sync)>,
    /// The receiver of the answer's rows if no output is named. The rows of a graph algorithm go both to the
    /// output and to this receiver.
    pub rows: Option<&'a mut dyn RowReceiver>,
    /// The receiver of the answer's bytes if no output is named.
    pub bytes: Option<&'a mut (dyn Write + Send)>,
    /// An open graph, which the operation uses instead of the graph that the request names. Later changes of the
    /// store do not affect an open graph.
    #[cfg(feature = "graph")]
    pub graph: Option<&'a inshore_graph::Graph>,
    /// The receiver of the matches of a search. If this is set, the search produces no rows.
    #[cfg(feature = "text")]
    pub matches: Option<&'a mut dyn crate::matches::Matches>,
}

impl Attachments<'_> {
    /// Reports the error of an input that cannot be read.
    pub fn fail(&self, error: &Error) {
        if let Some(failed) = self.failed {
            failed(error);
        }
    }
}

impl Attachments<'_> {
    /// Reports the name of a written file.
    #[cfg(feature = "text")]
    pub(crate) fn written(&mut self, path: &Path) {
        if let Some(rows) = &mut self.rows {
            rows.written(path);
        }
    }
}

/// Returns the path of a file in the job's scratch space, for an Arrow table that the caller has in memory. The
/// caller writes the table to this file and runs an operation with this path as an input. Errors and rows call the
/// table "the Arrow data". The file is removed when the job ends.
pub fn handed_over(job: &Job) -> PathBuf {
    job.scratch_path("source.arrow")
}

/// Returns the [`Input`] for a path. The path may be that of an Arrow table that the caller [handed
/// over](handed_over).
#[cfg(any(feature = "records", feature = "text"))]
pub(crate) fn table_input(job: &Job, path: &Path) -> Input {
    match path == handed_over(job) {
        true => Input::new(path).called("the Arrow data", "arrow"),
        false => Input::new(path),
    }
}

/// Writes the rows of an answer to the output file, and to the receiver that was passed with the request.
#[cfg(any(feature = "graph", feature = "sql", feature = "text", feature = "vectors"))]
pub(crate) struct RowOutput<'a> {
    writer: Option<TableWriter>,
    receiver: Option<&'a mut dyn RowReceiver>,
}

#[cfg(any(feature = "graph", feature = "sql", feature = "text", feature = "vectors"))]
impl<'a> RowOutput<'a> {
    /// Creates the output file, and passes the columns to the receiver.
    pub(crate) fn begin(
        output: Option<&Path>,
        receiver: Option<&'a mut dyn RowReceiver>,
        schema: &SchemaRef,
        job: &Execution,
    ) -> Result<RowOutput<'a>> {
        let create = |path| TableWriter::create(path, schema.clone(), job.budget());
        let mut rows = RowOutput { writer: output.map(create).transpose()?, receiver };
        rows.receiver.as_mut().map_or(Ok(()), |receiver| receiver.begin(schema, job))?;
        Ok(rows)
    }

    /// Passes rows to the file and to the receiver.
    pub(crate) fn batch(&mut self, batch: RecordBatch) -> Result<()> {
        if let Some(writer) = &mut self.writer {
            writer.write(&batch)?;
        }
        self.receiver.as_mut().map_or(Ok(()), |receiver| receiver.batch(batch))
    }

    /// Publishes the output file, and tells the receiver that all rows were passed.
    pub(crate) fn finish(self) -> Result<()> {
        if let Some(writer) = self.writer {
            writer.finish()?;
        }
        self.receiver.map_or(Ok(()), |receiver| receiver.end())
    }
}

/// Receives the rows of an answer.
pub trait RowReceiver: Send {
    /// Receives the columns of the rows. A second call means that the rows start again, so the receiver discards
    /// all earlier rows.
    ///
    /// # Errors
    /// An error ends the operation.
    fn begin(&mut self, schema: &SchemaRef, job: &Execution) -> Result<()>;

    /// Receives some rows.
    ///
    /// # Errors
    /// An error ends the operation.
    fn batch(&mut self, batch: RecordBatch) -> Result<()>;

    /// Is called after the last rows.
    ///
    /// # Errors
    /// An error ends the operation.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns true if the receiver can still discard all rows and start again.
    fn can_begin_anew(&self) -> bool {
        false
    }

    /// Receives the name of a file that the operation has written under a name which the request does not contain.
    fn written(&mut self, _path: &Path) {}
}

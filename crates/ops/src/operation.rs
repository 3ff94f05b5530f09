//! What an operation is: a request that says what, a target that says where, and a typed answer.
//!
//! ```text
//!   JSON ─► Request<O> ─► check ─► plan (names are looked up) ─► run (a job) ─► Done<Answer>
//!                         pure     before a job begins              │
//!                                                                   └─► rows: a file by its ending, standard output, or a stream
//! ```
//!
//! A request in JSON is one object: `operation`, `version`, `inputs`, `output`, and the fields of the operation beside them. An
//! unknown field and another version are errors. Inputs and outputs that JSON cannot carry are handed [beside](Beside) it.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
#[cfg(feature = "nodes")]
use inshore_neardata::nodes::{RunOptions, Whole};
use inshore_store::{Context, Execution, Job};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

#[cfg(feature = "nodes")]
use crate::target::{OnNodes, wholes};
use crate::{
    error::{Error, Result},
    place::Place,
    target::{Done, Target},
};

/// How two answers of one request are compared, which ran at different targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormalForm {
    /// The bytes of the output.
    Bytes,
    /// The bytes that the output has decompressed.
    Unpacked,
    /// The rows of the output, in their order; a sum or a mean of fractions may differ by its last digits.
    Rows,
    /// The rows of the output, sorted, since a query without ORDER BY gives them in any order.
    SortedRows,
    /// The answer itself: the operation writes no output.
    Answer,
    /// The fields that the answers of both targets have.
    Common,
    /// The bytes of the dataset that it makes, which its field `name` names.
    Dataset,
}

/// What an operation uses a store of this machine for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreUse {
    /// For nothing.
    Never,
    /// For what exceeds the budget. At [`Target::Local`] the store is needed; on nodes this machine helps where it has one.
    Spills,
    /// It is needed at every target.
    Always,
    /// For all that it does at [`Target::Local`], and for nothing on nodes.
    Here,
    /// For datasets among the inputs at [`Target::Local`].
    Datasets,
}

impl StoreUse {
    /// Whether a job at such a target has to be one on a store, whatever the inputs are.
    pub fn is_needed(self, place: Place) -> bool {
        match self {
            StoreUse::Never | StoreUse::Datasets => false,
            StoreUse::Spills | StoreUse::Here => place == Place::Local,
            StoreUse::Always => true,
        }
    }
}

/// A verb, as data: the fields of an implementor are those of its request.
pub trait Operation: Serialize + DeserializeOwned {
    /// The name, as in a request.
    const NAME: &'static str;
    /// The version of the request. A change that gives a request another meaning raises it.
    const VERSION: u32 = 1;
    /// The kinds of targets at which it runs.
    const PLACES: &'static [Place];
    /// What it uses a store of this machine for.
    const STORE: StoreUse;
    /// How answers are compared.
    const FORM: NormalForm;
    /// What was looked up before a job begins.
    type Plan;
    /// Counts and names, never a whole table.
    type Answer: Serialize;

    /// Refuses what does not go together, without any I/O on inputs and nodes.
    ///
    /// # Errors
    /// The option, and why.
    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, _place: Place) -> Result<()> {
        Ok(())
    }

    /// Whether a job at such a target has to be one on a store.
    fn needs_store(&self, inputs: &[PathBuf], place: Place) -> bool {
        let reads_datasets = Self::STORE == StoreUse::Datasets && place == Place::Local;
        Self::STORE.is_needed(place) || reads_datasets && inputs.iter().any(|path| is_dataset(path))
    }

    /// Looks up what the names of the request mean, before a job begins and a store is made.
    ///
    /// # Errors
    /// Where there is nothing of a name.
    fn plan(&self, asked: &Asked<'_>) -> Result<Self::Plan>;

    /// Runs it.
    ///
    /// # Errors
    /// Those of the libraries below.
    fn run(
        &self,
        plan: Self::Plan,
        asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<Self::Answer>>;
}

/// Whether a path names a dataset: `store:NAME`, or `store:NAME/FILE`.
pub(crate) fn is_dataset(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.starts_with("store:"))
}

/// A request: an operation, and the names of its inputs and its output.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<O> {
    /// What to do.
    pub operation: O,
    /// Files, `store:NAME` or `store:NAME/FILE`; `-` is standard input.
    pub inputs: Vec<PathBuf>,
    /// The file to write, whose ending chooses the format; `-` is standard output.
    pub output: Option<PathBuf>,
}

impl<O: Operation> Request<O> {
    /// A request with these inputs and no output.
    pub fn new(operation: O, inputs: impl IntoIterator<Item = impl Into<PathBuf>>) -> Request<O> {
        Request { operation, inputs: inputs.into_iter().map(Into::into).collect(), output: None }
    }

    /// The same request, with an output.
    pub fn to(self, output: impl Into<PathBuf>) -> Request<O> {
        Request { output: Some(output.into()), ..self }
    }

    /// The request as JSON.
    ///
    /// # Errors
    /// [`Error::Request`] for a path that is not UTF-8.
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

    /// Reads a request.
    ///
    /// # Errors
    /// [`Error::Version`]; [`Error::Request`], which names an unknown field.
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

    /// Refuses what does not go together, and a target at which the operation does not run.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; as [`Operation::check`].
    pub fn check(&self, place: Place) -> Result<()> {
        if !O::PLACES.contains(&place) {
            return Err(Error::Unsupported { operation: O::NAME, place });
        }
        self.operation.check(&self.inputs, self.output.as_deref(), place)
    }

    /// Looks up names at a target, before a job begins.
    ///
    /// # Errors
    /// As [`Request::check`] and [`Operation::plan`].
    pub fn plan<'a>(&'a self, target: &'a Target) -> Result<Planned<'a, O>> {
        self.check(target.place())?;
        let asked =
            Asked { operation: O::NAME, inputs: &self.inputs, output: self.output.as_deref(), target };
        let plan = self.operation.plan(&asked)?;
        Ok(Planned { operation: &self.operation, asked, plan })
    }
}

/// A field as it is shown in an error.
fn shown(value: Option<&Value>) -> String {
    value.map_or("none".to_string(), Value::to_string)
}

/// Takes a field out of an object.
fn take<T: DeserializeOwned>(
    fields: &mut Map<String, Value>,
    name: &str,
) -> std::result::Result<Option<T>, String> {
    let read = |value| serde_json::from_value(value).map_err(|error| format!("{name}: {error}"));
    fields.remove(name).map(read).transpose()
}

/// A request whose names were looked up.
#[derive(Debug)]
pub struct Planned<'a, O: Operation> {
    operation: &'a O,
    asked: Asked<'a>,
    plan: O::Plan,
}

impl<O: Operation> Planned<'_, O> {
    /// Runs it: on a store where [`Operation::STORE`] says so. On nodes a store of the job is what this machine helps on.
    ///
    /// # Errors
    /// As [`Operation::run`].
    pub fn run(self, job: &Execution, beside: Beside<'_>) -> Result<Done<O::Answer>> {
        let needs_store = self.operation.needs_store(self.asked.inputs, self.asked.target.place());
        if needs_store && job.job().is_none() {
            return Err(Error::NeedsStore { operation: O::NAME });
        }
        self.operation.run(self.plan, &self.asked, job, beside)
    }
}

/// What a request names, and the target.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The name of the operation.
    pub operation: &'static str,
    /// The inputs.
    pub inputs: &'a [PathBuf],
    /// The output.
    pub output: Option<&'a Path>,
    /// The target.
    pub target: &'a Target,
}

impl Asked<'_> {
    /// The output, of an operation that cannot do without.
    ///
    /// # Errors
    /// [`Error::NoOutput`].
    pub fn output(&self) -> Result<&Path> {
        self.output.ok_or(Error::NoOutput { operation: self.operation })
    }

    /// The job on a store.
    ///
    /// # Errors
    /// [`Error::NeedsStore`].
    pub fn stored<'a>(&self, job: &'a Execution) -> Result<&'a Job> {
        job.job().ok_or(Error::NeedsStore { operation: self.operation })
    }

    /// Where the inputs are.
    ///
    /// # Errors
    /// As [`wholes`].
    pub fn sources(&self) -> Result<Sources> {
        match self.target {
            Target::Local => Ok(Sources::Here),
            #[cfg(feature = "nodes")]
            Target::Nodes(on) => Ok(Sources::Nodes(on.clone(), wholes(&on.nodes, self.inputs)?)),
        }
    }
}

/// Where the inputs of a request are.
#[derive(Debug)]
pub enum Sources {
    /// On this machine, under their names.
    Here,
    /// On nodes, as these files.
    #[cfg(feature = "nodes")]
    Nodes(OnNodes, Vec<Whole>),
}

/// Refuses to go on with an interrupted run on nodes.
#[cfg(feature = "records")]
pub(crate) fn check_resume(operation: &'static str, resume: bool, place: Place) -> Result<()> {
    match place {
        Place::Nodes if resume => {
            let why = "nodes keep no runs";
            Err(Error::UnsupportedOption { operation, option: "resume", place, why })
        }
        _ => Ok(()),
    }
}

/// How nodes are asked by an operation that may need flash where this machine helps.
#[cfg(feature = "nodes")]
pub(crate) fn helping_on(on: &OnNodes, job: &Execution) -> RunOptions {
    RunOptions { help_on: job.job().map(Job::store), ..on.options.clone() }
}

/// What is handed over beside a request.
#[derive(Default)]
pub struct Beside<'a> {
    /// Told of an input that cannot be read while the operation goes on with others; the answer counts them.
    pub failed: Option<&'a (dyn Fn(&Error) + Sync)>,
    /// Takes the rows of the answer, where no output is named.
    pub rows: Option<&'a mut dyn Rows>,
    /// Takes the bytes of the answer, where no output is named.
    pub bytes: Option<&'a mut (dyn Write + Send)>,
    /// Takes what a search finds, instead of rows.
    #[cfg(feature = "text")]
    pub matches: Option<&'a mut dyn crate::matches::Matches>,
}

impl Beside<'_> {
    /// Tells of an input that cannot be read.
    pub fn fail(&self, error: &Error) {
        if let Some(failed) = self.failed {
            failed(error);
        }
    }
}

/// Takes the rows of an answer.
pub trait Rows: Send {
    /// Begins with columns. A second call begins anew: what came before counts no more.
    ///
    /// # Errors
    /// What ends the operation.
    fn begin(&mut self, schema: &SchemaRef, job: &Context) -> Result<()>;

    /// Takes some rows.
    ///
    /// # Errors
    /// What ends the operation.
    fn batch(&mut self, batch: RecordBatch) -> Result<()>;

    /// Takes the end: all rows were given.
    ///
    /// # Errors
    /// What ends the operation.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether it may begin anew, having passed nothing on yet.
    fn can_begin_anew(&self) -> bool {
        false
    }
}

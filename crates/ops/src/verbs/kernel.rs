//! The operations `kernel run`, `kernel push`, `kernel ls` and `kernel rm`.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

#[cfg(feature = "nodes")]
use inshore_kernels::Error as KernelError;
use inshore_kernels::text_sources;
#[cfg(feature = "nodes")]
use inshore_nodes::LoadOptions;
use inshore_sandbox::WasmResult;
use inshore_store::Execution;
use serde::{Deserialize, Serialize};

#[cfg(feature = "nodes")]
use super::sequential_read::read_sequentially;
use super::{
    bytes::write_bytes,
    stores::{ListDatasets, Listed, RemoveAnswer, only, remove_dataset, remove_each},
};
use crate::{
    error::{Error, Result},
    operation::{
        Attachments, DatasetOperation, NormalForm, Operation, Plan, RequestContext, ResolvedInputs, StoreUse,
        is_dataset,
    },
    target::Response,
    target_kind::TargetKind,
    wasm::{ENDING, MODULE_BYTES_MAX, Module, WasmKernel, WasmSummary, dataset_of, run_wasm},
};
#[cfg(feature = "nodes")]
use crate::{
    target::{OnNodes, wholes},
    wasm::run_wasm_on_nodes,
};

/// The kinds of targets that can run the operations on kernels.
const PLACES: &[TargetKind] = if cfg!(feature = "nodes") { &TargetKind::ALL } else { &[TargetKind::Local] };

/// Runs a WebAssembly module over the bytes of the inputs: see [`run_wasm`]. The result goes to the output file,
/// or else to [`Attachments::bytes`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunKernel {
    /// The name of a pushed module, or a file that ends with `.wasm`.
    pub kernel: String,
    /// The arguments of the module.
    #[serde(default)]
    pub args: String,
}

/// The summary of a kernel's run.
#[derive(Clone, Debug, Serialize)]
pub struct KernelAnswer {
    /// The kernel, as named in the request.
    pub kernel: String,
    /// The resources that the instances took.
    pub module: WasmSummary,
}

/// Reads a module from a file. The name of the module is the file's name without its extension.
///
/// # Errors
/// - Returns [`Error::Unreadable`] if the module cannot be read.
/// - Returns [`Error::BadName`] if the name is not valid for a dataset.
/// - Returns the errors of [`Module::new`].
pub fn read_module(path: &Path) -> Result<Module> {
    let unreadable = |source| Error::Unreadable { path: path.to_path_buf(), source };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MODULE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    let name = path.file_stem().and_then(|name| name.to_str());
    Ok(Module::new(name.ok_or_else(|| Error::BadName { path: path.to_path_buf() })?, bytes)?)
}

impl RunKernel {
    fn is_file(&self) -> bool {
        self.kernel.ends_with(ENDING)
    }

    /// Reads the module from its file, or from the place to which it was pushed.
    fn module(&self, context: &RequestContext<'_>, job: &Execution) -> Result<Module> {
        if self.is_file() {
            return read_module(Path::new(&self.kernel));
        }
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            return self.on_nodes(on, job);
        }
        Ok(Module::stored(context.stored(job)?, &self.kernel)?)
    }

    /// Fetches the module that was pushed to nodes, so that the client checks the same module that the nodes
    /// run.
    #[cfg(feature = "nodes")]
    fn on_nodes(&self, on: &OnNodes, job: &Execution) -> Result<Module> {
        let name = &self.kernel;
        let found = wholes(&on.nodes, &[dataset_of(name).into()])?;
        let bad = |what: &str| crate::wasm::Error::Kernel { name: name.clone(), what: what.to_string() };
        let [whole] = &found[..] else {
            let what =
                "these nodes have different kernels of this name: push the kernel again, or run its file";
            return Err(bad(what).into());
        };
        if whole.bytes() > MODULE_BYTES_MAX {
            return Err(bad("the dataset of this name is too large for a kernel").into());
        }
        let (bytes, _) = read_sequentially(on, job, whole, 0..whole.bytes(), |input| {
            let mut bytes = Vec::new();
            let failed = |source| KernelError::Input { name: name.clone(), source };
            input.read_to_end(&mut bytes).map_err(failed)?;
            Ok(bytes)
        })?;
        Ok(Module { is_pushed: true, ..Module::new(name, bytes)? })
    }
}

impl Operation for RunKernel {
    const NAME: &'static str = "kernel run";
    const PLACES: &'static [TargetKind] = PLACES;
    const STORE: StoreUse = StoreUse::Datasets;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = KernelAnswer;

    fn needs_store(&self, inputs: &[PathBuf], place: TargetKind) -> bool {
        place == TargetKind::Local && (!self.is_file() || inputs.iter().any(|path| is_dataset(path)))
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<KernelAnswer>> {
        let module = self.module(context, job)?;
        let kernel = WasmKernel::new(module, &self.args);
        let answer = |module: WasmSummary| KernelAnswer { kernel: self.kernel.clone(), module };
        write_bytes(context, attachments.bytes, |out| match sources {
            ResolvedInputs::Here => {
                let sources = text_sources(job.job(), context.inputs)?.into_iter();
                Ok(Response::local(answer(run_wasm(job, &kernel, sources, &mut |bytes| {
                    out.write_all(bytes)
                })?)))
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                let write = &mut |bytes: &[u8]| out.write_all(bytes);
                let ran = run_wasm_on_nodes(&on.nodes, job, &kernel, &wholes, &on.options, write);
                let (summary, gathered) = ran?;
                Ok(Response::on_nodes(answer(summary), &on, gathered))
            }
        })
    }
}

/// Checks a module, and writes the module to the local store or to each node. The only input is the file with the
/// module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PushKernel {
    /// The name of the kernel; by default the name of the file without its ending.
    pub name: Option<String>,
}

/// A module that was pushed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PushAnswer {
    /// The name of the kernel.
    pub name: String,
    /// The size of the module in bytes.
    pub bytes: u64,
    /// The SHA-256 of the module in hexadecimal.
    pub sha256: String,
    /// The kind of the module's result.
    #[serde(skip)]
    pub result: WasmResult,
    /// The number of nodes that have the module.
    #[serde(skip)]
    pub nodes: usize,
}

/// A module that was checked, and can be pushed.
#[derive(Debug)]
pub struct CheckedModule {
    module: Module,
    /// The kind of the module's result.
    result: WasmResult,
}

impl Plan for CheckedModule {}

impl Operation for PushKernel {
    const NAME: &'static str = "kernel push";
    const PLACES: &'static [TargetKind] = PLACES;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = CheckedModule;
    type Answer = PushAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::NAME, inputs).map(drop)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<CheckedModule> {
        let mut module = read_module(only(Self::NAME, context.inputs)?)?;
        if let Some(name) = &self.name {
            module.name.clone_from(name);
        }
        let result = WasmKernel::new(module.clone(), "").check()?;
        Ok(CheckedModule { module, result })
    }

    fn run(
        &self,
        CheckedModule { module, result }: CheckedModule,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<PushAnswer>> {
        let (bytes, sha256) = (module.bytes.len() as u64, module.sha256());
        let answer = |name, nodes| Ok(Response::local(PushAnswer { name, bytes, sha256, result, nodes }));
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            let copies = on.nodes.addresses().count();
            let load = LoadOptions { copies, piece_bytes: Some(bytes + 2), ..LoadOptions::default() };
            let called = only(Self::NAME, context.inputs)?.display().to_string();
            let dataset = dataset_of(&module.name);
            on.nodes.put(job, &dataset, (&called, Some(bytes)), &module.bytes[..], &load)?;
            return answer(module.name, copies);
        }
        let job = context.stored(job)?;
        module.put(&job.store(), job)?;
        answer(module.name, 0)
    }
}

/// Lists the kernels that were pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListKernels {}

/// The listed kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KernelsAnswer {
    /// The kernels, in the order of their names.
    pub kernels: Vec<ListedKernel>,
    /// Descriptions of damaged kernels, and the errors of nodes that did not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A pushed kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListedKernel {
    /// The name of the kernel.
    pub name: String,
    /// The size of the module in bytes.
    pub bytes: u64,
    /// The nodes that store the module. The value is `None` for the local store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
}

impl DatasetOperation for ListKernels {
    const VERB: &'static str = "kernel ls";
    const PLACES: &'static [TargetKind] = PLACES;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = KernelsAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<KernelsAnswer>> {
        let kernel = |listed: Listed| {
            let name = listed.dataset.strip_suffix(ENDING)?.to_string();
            Some(ListedKernel { name, bytes: listed.bytes, nodes: listed.spread.map(|spread| spread.nodes) })
        };
        let listed = DatasetOperation::run(&ListDatasets {}, context, job, attachments)?;
        Ok(listed.map(|all| KernelsAnswer {
            kernels: all.datasets.into_iter().filter_map(kernel).collect(),
            notes: all.notes,
        }))
    }
}

/// Removes the kernels that the inputs name. If a kernel cannot be removed, the error is reported, and the other
/// kernels are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoveKernels {}

impl DatasetOperation for RemoveKernels {
    const VERB: &'static str = "kernel rm";
    const PLACES: &'static [TargetKind] = PLACES;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = RemoveAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<RemoveAnswer>> {
        remove_each(context, &attachments, |name| remove_dataset(context, job, &dataset_of(name)))
    }
}

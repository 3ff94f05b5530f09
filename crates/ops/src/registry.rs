//! This module lists all operations, and finds an operation by its name.
//!
//! Commands that need neither a store nor a target are not operations: `kernel new` writes a folder of source
//! files, and `kernel build` calls a compiler.

use std::path::PathBuf;

use inshore_store::Execution;
use serde_json::Value;

use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Request, StoreUse},
    target::Target,
    target_kind::TargetKind,
    verbs,
};

/// An operation in the list of all operations. Its functions take and return JSON, so that operations of different
/// Rust types fit into one list.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name of the operation in requests.
    pub name: &'static str,
    /// The version of the request.
    pub version: u32,
    /// The kinds of targets that can run the operation.
    pub places: &'static [TargetKind],
    /// Says when the operation needs a local store.
    pub store: StoreUse,
    /// The form in which tests compare the answers of different targets.
    pub form: NormalForm,
    read: fn(&Value) -> Result<Value>,
    run: fn(&Value, Names, &Target, &Execution, Attachments<'_>) -> Result<Value>,
}

/// File names with arbitrary bytes, which JSON cannot represent. The caller passes these names together with a
/// request.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Inputs, in addition to those of the request.
    pub inputs: Vec<PathBuf>,
    /// The output, which replaces the output of the request.
    pub output: Option<PathBuf>,
}

impl Entry {
    const fn of<O: Operation>() -> Entry {
        Entry {
            name: O::NAME,
            version: O::VERSION,
            places: O::PLACES,
            store: O::STORE,
            form: O::FORM,
            read: |request| Request::<O>::from_json(request)?.to_json(),
            run: |request, names, target, job, attachments| {
                let mut request = Request::<O>::from_json(request)?;
                request.inputs.extend(names.inputs);
                request.output = names.output.or(request.output);
                let done = request.plan(target)?.run(job, attachments)?;
                serde_json::to_value(&done)
                    .map_err(|error| Error::Request { operation: O::NAME, what: error.to_string() })
            },
        }
    }

    /// Reads a request and returns the request with all its fields, defaults included.
    ///
    /// # Errors
    /// Returns the errors of [`Request::from_json`].
    pub fn read(&self, request: &Value) -> Result<Value> {
        (self.read)(request)
    }

    /// Runs a request and returns the answer as JSON.
    ///
    /// # Errors
    /// Returns the errors of [`Request::from_json`], [`Request::plan`] and [`Operation::run`].
    pub fn run(
        &self,
        request: &Value,
        target: &Target,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Value> {
        self.run_named(request, Names::default(), target, job, attachments)
    }

    /// Runs a request with additional names.
    ///
    /// # Errors
    /// Returns the errors of [`Entry::run`].
    pub fn run_named(
        &self,
        request: &Value,
        names: Names,
        target: &Target,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Value> {
        (self.run)(request, names, target, job, attachments)
    }
}

/// The operations of this build.
pub const OPERATIONS: &[Entry] = &[
    #[cfg(feature = "records")]
    Entry::of::<verbs::Sort>(),
    #[cfg(feature = "records")]
    Entry::of::<verbs::Reduce>(),
    #[cfg(feature = "records")]
    Entry::of::<verbs::CountKmers>(),
    #[cfg(feature = "records")]
    Entry::of::<verbs::CountValues>(),
    #[cfg(feature = "text")]
    Entry::of::<verbs::Search>(),
    #[cfg(feature = "text")]
    Entry::of::<verbs::CountWords>(),
    #[cfg(feature = "text")]
    Entry::of::<verbs::TrainLanguage>(),
    #[cfg(feature = "text")]
    Entry::of::<verbs::IdentifyLanguage>(),
    #[cfg(feature = "text")]
    Entry::of::<verbs::Compress>(),
    #[cfg(feature = "text")]
    Entry::of::<verbs::Decompress>(),
    #[cfg(feature = "text")]
    Entry::of::<verbs::Checksum>(),
    #[cfg(feature = "sql")]
    Entry::of::<verbs::Sql>(),
    #[cfg(feature = "wasm")]
    Entry::of::<verbs::RunKernel>(),
    #[cfg(feature = "wasm")]
    Entry::of::<verbs::PushKernel>(),
    #[cfg(feature = "wasm")]
    Entry::of::<verbs::ListKernels>(),
    #[cfg(feature = "wasm")]
    Entry::of::<verbs::RemoveKernels>(),
    #[cfg(feature = "nodes")]
    Entry::of::<verbs::RunCommand>(),
    #[cfg(feature = "nodes")]
    Entry::of::<verbs::Traverse>(),
    #[cfg(feature = "graph")]
    Entry::of::<verbs::ImportGraph>(),
    #[cfg(feature = "graph")]
    Entry::of::<verbs::GenerateGraph>(),
    #[cfg(feature = "graph")]
    Entry::of::<verbs::ExportGraph>(),
    #[cfg(feature = "graph")]
    Entry::of::<verbs::ListGraphs>(),
    #[cfg(feature = "graph")]
    Entry::of::<verbs::DescribeGraph>(),
    #[cfg(feature = "graph")]
    Entry::of::<verbs::RemoveGraphs>(),
    #[cfg(feature = "graph")]
    Entry::of::<verbs::CheckGraph>(),
    #[cfg(feature = "graph")]
    Entry::of::<inshore_graph::PageRankOptions>(),
    #[cfg(feature = "graph")]
    Entry::of::<inshore_graph::BfsOptions>(),
    #[cfg(feature = "graph")]
    Entry::of::<inshore_graph::SsspOptions>(),
    #[cfg(feature = "graph")]
    Entry::of::<inshore_graph::ComponentsOptions>(),
    #[cfg(feature = "graph")]
    Entry::of::<inshore_graph::CommunitiesOptions>(),
    #[cfg(feature = "graph")]
    Entry::of::<inshore_graph::ClusteringOptions>(),
    #[cfg(feature = "graph")]
    Entry::of::<inshore_graph::BetweennessOptions>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::ImportVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::ImportFiles>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::AddVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::UpsertVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::RemoveFromVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::CompactVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::IndexVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::SearchVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::JoinVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::NeighbourGraph>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::DedupVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::MeasureRecall>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::ListVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::DescribeVectors>(),
    #[cfg(feature = "vectors")]
    Entry::of::<verbs::RemoveVectors>(),
    Entry::of::<verbs::PutDataset>(),
    Entry::of::<verbs::GetDataset>(),
    Entry::of::<verbs::ListDatasets>(),
    Entry::of::<verbs::RemoveDatasets>(),
];

/// Returns the operation that a request names.
///
/// # Errors
/// Returns [`Error::Unknown`] if there is no operation of this name.
pub fn named(request: &Value) -> Result<&'static Entry> {
    let name = request["operation"].as_str().unwrap_or_default();
    OPERATIONS.iter().find(|entry| entry.name == name).ok_or_else(|| Error::Unknown {
        operation: name.to_string(),
        known: OPERATIONS.iter().map(|entry| entry.name).collect(),
    })
}

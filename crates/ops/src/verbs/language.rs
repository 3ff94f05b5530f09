//! The operations `language train` and `language identify`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    slice,
    sync::atomic::{AtomicU64, Ordering},
};

#[cfg(feature = "nodes")]
use inshore_kernels::LanguageOfText;
use inshore_kernels::{
    self as kernels, Classifier, LanguagePlace, LanguageResult, LanguageSummary, LanguageTable, Profiles,
    TextUnit, identify, identify_column, table_inputs, text_sources,
};
use inshore_store::{Execution, Job};
use inshore_tables::{Input, TableWriter};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{
        Attachments, NormalForm, Operation, RequestContext, ResolvedInputs, StoreUse, handed_over,
        table_input,
    },
    target::Response,
    target_kind::TargetKind,
};
#[cfg(feature = "nodes")]
use crate::{
    on_nodes::{identify_on_nodes, train_on_nodes},
    target::wholes,
};

/// Trains profiles of languages with labelled samples, and writes the profiles to the local store as a
/// dataset; see [`Profiles::train`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainLanguage {
    /// The name of the dataset.
    pub name: String,
    /// The languages of the inputs, in the same order. Inputs with the same language form one sample.
    pub labels: Vec<String>,
    /// The number of n-grams in the profile of each language. A profile holds the most frequent n-grams.
    pub grams: usize,
}

/// The trained profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainAnswer {
    /// The name of the dataset.
    pub name: String,
    /// The number of n-grams of each language.
    pub grams: BTreeMap<String, usize>,
}

/// Identifies the languages of texts with profiles in the local store; see [`identify`] and
/// [`identify_column`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentifyLanguage {
    /// The name of the dataset of profiles that `language train` has written.
    pub profiles: String,
    /// Identifies the language of each non-empty line.
    #[serde(default)]
    pub lines: bool,
    /// Identifies the language of each row of this column of tables.
    #[serde(default)]
    pub column: Option<String>,
}

/// The counts of identified texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LanguageAnswer {
    /// The number of texts, and the number of texts that are in none of the languages.
    #[serde(flatten)]
    pub summary: LanguageSummary,
    /// The number of inputs that could not be read.
    pub failed: u64,
    /// The number of languages of the profiles.
    #[serde(skip)]
    pub languages: usize,
}

impl IdentifyLanguage {
    /// Returns the unit of text whose language is identified: a row, a line, or a whole input.
    pub fn place(&self) -> LanguagePlace {
        match (&self.column, self.lines) {
            (Some(_), _) => LanguagePlace::Row,
            (None, true) => LanguagePlace::Line,
            (None, false) => LanguagePlace::Whole,
        }
    }
}

impl Operation for TrainLanguage {
    const NAME: &'static str = "language train";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Always;
    const FORM: NormalForm = NormalForm::Dataset;
    type Plan = ResolvedInputs;
    type Answer = TrainAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        if inputs.len() != self.labels.len() {
            let (labels, inputs) = (self.labels.len(), inputs.len());
            let what = format!("labels: expected one for each of the {inputs} inputs, got {labels}");
            return Err(Error::Request { operation: Self::NAME, what });
        }
        Ok(())
    }

    /// Looks up all names, so that an unknown name fails before the job begins. `run` looks up the names of each
    /// label again.
    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<TrainAnswer>> {
        let stored = context.stored(job)?;
        let store = stored.store();
        if store.list()?.iter().any(|known| known.name == self.name) {
            // This call fails since the name exists already, so that no training takes place.
            store.create_dataset(stored, &self.name, "language")?;
        }
        let labelled = self.labels.iter().zip(context.inputs);
        let answer = |profiles: Profiles| -> Result<TrainAnswer> {
            profiles.save(&store, stored, &self.name)?;
            let grams = |label: &str| (label.to_string(), profiles.grams(label).unwrap_or_default());
            Ok(TrainAnswer { name: self.name.clone(), grams: profiles.labels().map(grams).collect() })
        };
        match sources {
            ResolvedInputs::Here => {
                let mut samples = Vec::new();
                for (label, path) in labelled {
                    samples.push((label.clone(), text_sources(Some(stored), slice::from_ref(path))?));
                }
                Ok(Response::local(answer(Profiles::train(stored, samples, self.grams)?)?))
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, _) => {
                let mut samples = Vec::new();
                for (label, path) in labelled {
                    samples.push((label.clone(), wholes(&on.nodes, slice::from_ref(path))?));
                }
                let trained = train_on_nodes(&on.nodes, stored, samples, self.grams, &on.options)?;
                let (profiles, gathered) = trained;
                Ok(Response::on_nodes(answer(profiles)?, &on, gathered))
            }
        }
    }
}

/// Returns the tables that the inputs name, or the Arrow table that the caller handed over.
fn tables(job: &Job, inputs: &[PathBuf]) -> Result<Vec<Input>> {
    match inputs {
        [path] if *path == handed_over(job) => Ok(vec![table_input(job, path)]),
        _ => Ok(table_inputs(Some(job), inputs)?),
    }
}

impl Operation for IdentifyLanguage {
    const NAME: &'static str = "language identify";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Always;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = LanguageAnswer;

    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        if self.column.is_some() && self.lines {
            let (option, why) = ("column", "with lines, each line is a text");
            return Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why });
        }
        if self.column.is_some() && place.is_on_nodes() {
            let why = "nodes identify the language of whole texts or, with --lines, of lines";
            return Err(Error::UnsupportedOption { operation: Self::NAME, option: "column", place, why });
        }
        Ok(())
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        let sources = context.sources()?;
        TableWriter::check_path(context.output()?)?;
        Ok(sources)
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<LanguageAnswer>> {
        let (job, output) = (context.stored(job)?, context.output()?);
        let profiles = &Profiles::load(&job.store(), job, &self.profiles)?;
        let _filters = job.budget().reserve(Classifier::BYTES, "filters of languages")?;
        let classifier = &Classifier::new(profiles);
        let bytes: Option<u64> = context.inputs.iter().map(|path| Input::new(path).compressed_bytes()).sum();
        job.start_phase("reading", "bytes", bytes.unwrap_or(0));
        let mut table = LanguageTable::create(job, output, classifier, self.place())?;
        let unit = if self.lines { TextUnit::Line } else { TextUnit::Source };
        let failures = AtomicU64::new(0);
        let failed = |error: kernels::Error| {
            failures.fetch_add(1, Ordering::Relaxed);
            if let Some(told) = attachments.failed {
                told(&error.into());
            }
            Ok(())
        };
        let answer = |summary: LanguageSummary| {
            let (failed, languages) = (failures.load(Ordering::Relaxed), classifier.labels().len());
            LanguageAnswer { summary, failed, languages }
        };
        match sources {
            ResolvedInputs::Here => {
                match &self.column {
                    Some(column) => {
                        for input in tables(job, context.inputs)? {
                            identify_column(job, classifier, &input, column, |row, verdict| {
                                table.add(input.name(), Some(row), verdict)
                            })?;
                        }
                    }
                    None => {
                        let sources = text_sources(Some(job), context.inputs)?.into_iter();
                        let write = |found: LanguageResult<'_>| table.add_found(&found);
                        identify(job, classifier, sources, unit, write, failed)?;
                    }
                }
                job.check_cancelled()?;
                Ok(Response::local(answer(table.finish()?)))
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                let kernel = LanguageOfText::new(profiles, unit);
                let write = |found: LanguageResult<'_>| table.add_found(&found);
                let told = identify_on_nodes(&on.nodes, job, &kernel, &wholes, &on.options, write, failed);
                let gathered = told?;
                job.check_cancelled()?;
                Ok(Response::on_nodes(answer(table.finish()?), &on, gathered))
            }
        }
    }
}

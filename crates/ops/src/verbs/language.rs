//! The operation `language identify`.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use inshore_kernels::{
    self as kernels, Classifier, Identified, LanguagePlace, LanguageSummary, LanguageTable, Profiles, Unit,
    identify, identify_column, table_inputs, text_sources,
};
#[cfg(feature = "nodes")]
use inshore_kernels::{LanguageOfText, identify_on_nodes};
use inshore_store::{Execution, Job};
use inshore_tables::{Input, TableWriter};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{Asked, Beside, NormalForm, Operation, Sources, StoreUse, handed_over, table_input},
    place::Place,
    target::Done,
};

/// Tells which language texts are in, by profiles in the store here; see [`identify`] and [`identify_column`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentifyLanguage {
    /// The dataset of profiles, as it was trained.
    pub profiles: String,
    /// Tells the language of each line that is not empty.
    #[serde(default)]
    pub lines: bool,
    /// Tells the language of each row of this column of tables.
    #[serde(default)]
    pub column: Option<String>,
}

/// What was told.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LanguageAnswer {
    /// Texts, and those of them in none of the languages.
    #[serde(flatten)]
    pub summary: LanguageSummary,
    /// Inputs that could not be read while others went on.
    pub failed: u64,
    /// Languages of the profiles.
    #[serde(skip)]
    pub languages: usize,
}

impl IdentifyLanguage {
    /// Where in a source a text is.
    pub fn place(&self) -> LanguagePlace {
        match (&self.column, self.lines) {
            (Some(_), _) => LanguagePlace::Row,
            (None, true) => LanguagePlace::Line,
            (None, false) => LanguagePlace::Whole,
        }
    }
}

/// The tables that are named, or the one that was handed over.
fn tables(job: &Job, inputs: &[PathBuf]) -> Result<Vec<Input>> {
    match inputs {
        [path] if *path == handed_over(job) => Ok(vec![table_input(job, path)]),
        _ => Ok(table_inputs(Some(job), inputs)?),
    }
}

impl Operation for IdentifyLanguage {
    const NAME: &'static str = "language identify";
    const PLACES: &'static [Place] = &Place::ALL;
    const STORE: StoreUse = StoreUse::Always;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = Sources;
    type Answer = LanguageAnswer;

    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, place: Place) -> Result<()> {
        if self.column.is_some() && self.lines {
            let (option, why) = ("column", "with lines, each line is a text");
            return Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why });
        }
        if self.column.is_some() && place == Place::Nodes {
            let why = "texts are told as a whole or, with --lines, by lines";
            return Err(Error::UnsupportedOption { operation: Self::NAME, option: "column", place, why });
        }
        Ok(())
    }

    fn plan(&self, asked: &Asked<'_>) -> Result<Sources> {
        let sources = asked.sources()?;
        TableWriter::check_path(asked.output()?)?;
        Ok(sources)
    }

    fn run(
        &self,
        sources: Sources,
        asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<LanguageAnswer>> {
        let (job, output) = (asked.stored(job)?, asked.output()?);
        let profiles = &Profiles::load(&job.store(), job, &self.profiles)?;
        let _filters = job.budget().reserve(Classifier::BYTES, "filters of languages")?;
        let classifier = &Classifier::new(profiles);
        let bytes: Option<u64> = asked.inputs.iter().map(|path| Input::new(path).compressed_bytes()).sum();
        job.start_phase("reading", "bytes", bytes.unwrap_or(0));
        let mut table = LanguageTable::create(job, output, classifier, self.place())?;
        let unit = if self.lines { Unit::Line } else { Unit::Source };
        let failures = AtomicU64::new(0);
        let failed = |error: kernels::Error| {
            failures.fetch_add(1, Ordering::Relaxed);
            if let Some(told) = beside.failed {
                told(&error.into());
            }
            Ok(())
        };
        let answer = |summary: LanguageSummary| {
            let (failed, languages) = (failures.load(Ordering::Relaxed), classifier.labels().len());
            LanguageAnswer { summary, failed, languages }
        };
        match sources {
            Sources::Here => {
                match &self.column {
                    Some(column) => {
                        for input in tables(job, asked.inputs)? {
                            identify_column(job, classifier, &input, column, |row, verdict| {
                                table.add(input.name(), Some(row), verdict)
                            })?;
                        }
                    }
                    None => {
                        let sources = text_sources(Some(job), asked.inputs)?.into_iter();
                        let write = |found: Identified<'_>| table.add_found(&found);
                        identify(job, classifier, sources, unit, write, failed)?;
                    }
                }
                Ok(Done::here(answer(table.finish()?)))
            }
            #[cfg(feature = "nodes")]
            Sources::Nodes(on, wholes) => {
                let kernel = LanguageOfText::new(profiles, unit);
                let write = |found: Identified<'_>| table.add_found(&found);
                let told = identify_on_nodes(&on.nodes, job, &kernel, &wholes, &on.options, write, failed);
                let gathered = told?;
                Ok(Done::on_nodes(answer(table.finish()?), &on, gathered))
            }
        }
    }
}

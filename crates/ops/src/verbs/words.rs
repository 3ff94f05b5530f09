//! The operation `count words`.

use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use inshore_kernels::{self as kernels, WordOptions, WordSummary, count_words, text_sources, word_schema};
use inshore_store::Execution;
use inshore_tables::{Input, TableWriter};
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    operation::{Attachments, NormalForm, Operation, RequestContext, ResolvedInputs, StoreUse},
    target::Response,
    target_kind::TargetKind,
};
#[cfg(feature = "nodes")]
use crate::{on_nodes::count_words_on_nodes, operation::helping_on};

/// Counts words: see [`count_words`]. The words go to the output file. The answer holds only the most frequent
/// words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CountWords {
    /// Splits text at white space, instead of at Unicode word boundaries.
    pub split: bool,
    /// Converts words to lower case before counting.
    pub ignore_case: bool,
    /// Returns only words with at least this count.
    pub min_count: u64,
    /// The number of most frequent words in the answer.
    pub top: usize,
}

impl Default for CountWords {
    /// Returns the options of [`WordOptions::default`].
    fn default() -> Self {
        let WordOptions { split, ignore_case, min_count, top, table_bytes: _ } = WordOptions::default();
        CountWords { split, ignore_case, min_count, top }
    }
}

impl Operation for CountWords {
    const NAME: &'static str = "count words";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Spills;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = WordSummary;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, _place: TargetKind) -> Result<()> {
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<WordSummary>> {
        let CountWords { split, ignore_case, min_count, top } = *self;
        let options = WordOptions { split, ignore_case, min_count, top, table_bytes: None };
        match &sources {
            ResolvedInputs::Here => {
                let sizes = context.inputs.iter().map(|path| Input::new(path).compressed_bytes());
                job.start_phase("counting", "bytes", sizes.sum::<Option<u64>>().unwrap_or(0));
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(..) => job.start_phase("counting", "words", 0),
        }
        let create = |path| TableWriter::create(path, word_schema(), job.budget());
        let mut writer = context.output.map(create).transpose()?;
        let write = |writer: &mut Option<TableWriter>, batch: RecordBatch| -> kernels::Result<()> {
            writer.as_mut().map_or(Ok(()), |writer| writer.write(&batch).map_err(Into::into))
        };
        let done = match sources {
            ResolvedInputs::Here => {
                let stored = context.stored(job)?;
                let inputs = text_sources(Some(stored), context.inputs)?;
                let each = |batch| write(&mut writer, batch);
                Response::local(count_words(stored, inputs.into_iter(), &options, each)?)
            }
            #[cfg(feature = "nodes")]
            ResolvedInputs::Nodes(on, wholes) => {
                let how = helping_on(&on, job);
                let each = |batch: RecordBatch| {
                    job.progress().add(batch.num_rows() as u64);
                    write(&mut writer, batch)
                };
                let counted = count_words_on_nodes(&on.nodes, job, &wholes, &options, &how, each);
                let (summary, gathered) = counted?;
                Response::on_nodes(summary, &on, gathered)
            }
        };
        if let Some(writer) = writer {
            writer.finish()?;
        }
        Ok(done)
    }
}

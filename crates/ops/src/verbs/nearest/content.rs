//! The operation `nearest import content`.

use std::path::{Path, PathBuf};

use inshore_store::{Execution, Job};
use inshore_vectors::{self as vectors, DIMENSIONS_MAX, Images, ImportedContent};
use serde::{Deserialize, Serialize};

#[cfg(feature = "text")]
use super::documents::{Documents, WORDS, document_files, vocabulary_of};
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// The kind of content of the imported files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentKind {
    /// PNG and JPEG files. See [`vectors::Images`].
    Images,
    /// Texts. A vector has the counts of the words of a vocabulary.
    Documents,
}

/// Imports images or documents as a dataset of vectors. See [`vectors::import_content`]. The inputs are files and
/// folders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportFiles {
    /// The name of the new dataset.
    pub name: String,
    /// The kind of content.
    pub content: ContentKind,
    /// Skips malformed images and counts them. Otherwise a malformed image is an error.
    #[serde(default)]
    pub skip_errors: bool,
    /// True if each line of the only input is a document.
    #[serde(default)]
    pub lines: bool,
    /// The largest number of words in the vocabulary of documents. The default is 8,000.
    #[serde(default)]
    pub words: Option<u64>,
}

impl Operation for ImportFiles {
    const NAME: &'static str = "nearest import content";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Dataset;
    const FOLDERS: bool = true;
    type Plan = ();
    type Answer = ImportedContent;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        let refuse = |what: String| Err(Error::Request { operation: Self::NAME, what });
        let are_images = self.content == ContentKind::Images;
        match self.words {
            _ if inputs.is_empty() => refuse("inputs: found none, expected files or folders".to_string()),
            _ if are_images && self.lines => {
                refuse("lines: found with images, expected documents".to_string())
            }
            Some(_) if are_images => refuse("words: found with images, expected documents".to_string()),
            _ if !are_images && self.skip_errors => {
                refuse("skip_errors: found with documents, expected images".to_string())
            }
            Some(words) if !(1..=DIMENSIONS_MAX as u64).contains(&words) => {
                refuse(format!("words: found {words}, expected 1 to {DIMENSIONS_MAX}"))
            }
            _ => Ok(()),
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
    ) -> Result<Response<ImportedContent>> {
        let job = context.stored(job)?;
        let imported = match self.content {
            ContentKind::Images => {
                let mut images = Images::list(job, context.inputs, self.skip_errors)?;
                vectors::import_content(&job.store(), job, &self.name, &mut images)?
            }
            ContentKind::Documents => self.import_documents(job, context.inputs)?,
        };
        Ok(Response::local(imported))
    }
}

impl ImportFiles {
    /// Reads the documents twice, first for the vocabulary and then for the counts.
    #[cfg(feature = "text")]
    fn import_documents(&self, job: &Job, inputs: &[PathBuf]) -> Result<ImportedContent> {
        let files = document_files(job, inputs, self.lines)?;
        let vocabulary = vocabulary_of(job, &files, self.words.unwrap_or(WORDS))?;
        let mut documents = Documents::new(job, files, self.lines, vocabulary)?;
        Ok(vectors::import_content(&job.store(), job, &self.name, &mut documents)?)
    }

    #[cfg(not(feature = "text"))]
    fn import_documents(&self, _: &Job, _: &[PathBuf]) -> Result<ImportedContent> {
        Err(super::no_documents())
    }
}

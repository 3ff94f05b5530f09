//! This module computes checksums of files on nodes. The client fetches the bytes of the files.

use std::{path::PathBuf, slice};

use inshore_nodes::{DistributedFile, GatherReport};
use inshore_store::Execution;

use super::{Checksum, ChecksumAnswer, Wanted, found};
use crate::{
    error::{Error, Result},
    operation::{Attachments, Operation},
    target::{OnNodes, Response, wholes},
    verbs::sequential_read::read_sequentially,
};

/// A file on nodes, or the error for a name in a list of checksums for which no node has a file.
type FoundWhole = std::result::Result<DistributedFile, (PathBuf, Error)>;

/// Files on nodes, and the names in a list for which no node has a file.
#[derive(Debug)]
pub struct FoundFiles {
    on: OnNodes,
    wanted: Vec<Wanted<FoundWhole>>,
}

impl Checksum {
    /// Looks up files on nodes.
    pub(super) fn on_nodes(&self, on: &OnNodes, wanted: Vec<Wanted<PathBuf>>) -> Result<FoundFiles> {
        let mut all = Vec::new();
        for (path, expected) in wanted {
            match wholes(&on.nodes, slice::from_ref(&path)) {
                Ok(found) => all.extend(found.into_iter().map(|whole| (Ok(whole), expected.clone()))),
                Err(error) if self.check => all.push((Err((path, error)), expected)),
                Err(error) => return Err(error),
            }
        }
        Ok(FoundFiles { on: on.clone(), wanted: all })
    }

    /// Fetches files and computes their checksums.
    pub(super) fn each_whole(
        &self,
        FoundFiles { on, wanted }: FoundFiles,
        job: &Execution,
        attachments: &Attachments<'_>,
    ) -> Result<Response<ChecksumAnswer>> {
        let sizes = wanted.iter().filter_map(|(file, _)| Some(file.as_ref().ok()?.bytes())).sum();
        job.start_phase(Self::NAME, "bytes", sizes);
        let (mut answer, mut all) = (ChecksumAnswer::default(), GatherReport::default());
        for (file, expected) in wanted {
            let (name, sum) = match file {
                Ok(whole) => {
                    let sum = read_sequentially(&on, job, &whole, 0..whole.bytes(), |bytes| {
                        Ok(self.algorithm.of(job, &whole.title, bytes)?)
                    });
                    job.check_cancelled()?;
                    let sum = sum.map(|(sum, gathered)| {
                        all.add(gathered);
                        sum
                    });
                    (whole.title, sum)
                }
                Err((path, error)) => (path.display().to_string(), Err(error)),
            };
            answer.files.push(found(name, expected, sum, attachments));
        }
        Ok(Response::on_nodes(answer, &on, all))
    }
}

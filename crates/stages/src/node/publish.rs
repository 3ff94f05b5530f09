//! Makes the outputs of a job's last stage the pieces of a dataset that is spread over the nodes.

use inshore_kernel::{Failure, Reply, RequiredRight, Task, TaskHandler};
use inshore_nodes::{
    protocol::{FileMap, MAP_BYTES_MAX, piece_name},
    spread,
};
use inshore_store::FileReader;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{PUBLISH_KIND, memory::PUBLISH_BUFFER_BYTES, output::BLOCK_BYTES, session::Sessions};

/// The request to publish outputs. A driver sends the pieces to all nodes, then the map, and then the commit, so that a
/// full node fails before a node has committed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum PublishRequest {
    /// Check before a job that its result can get this name. The request needs no session.
    Check { name: String },
    /// Begin the dataset, and copy outputs to its pieces.
    Pieces {
        session: String,
        name: String,
        /// The number of the piece, the attempt, and the checksum of its directory.
        outputs: Vec<(u32, u32, u64)>,
    },
    /// Add the map of the dataset.
    Map { session: String, map: FileMap },
    /// Make the dataset visible.
    Commit { session: String },
}

/// The summary of a publication.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum PublishAnswer {
    /// The pieces are complete. The number is the highest generation of a removed dataset of this name.
    Pieces {
        generation: u64,
    },
    Mapped,
    Committed,
    Free,
}

/// The handler that publishes outputs.
pub(super) struct Publishes(pub Sessions);

impl TaskHandler for Publishes {
    fn kind(&self) -> &'static str {
        PUBLISH_KIND
    }

    fn needs(&self) -> RequiredRight {
        RequiredRight::Store
    }

    fn takes_slot(&self) -> bool {
        false
    }

    fn work(&self, task: Task, _reply: &mut dyn Reply) -> Result<Value, Failure> {
        let find = |id: &str| self.0.get(id).ok_or("the session of the outputs has ended");
        match serde_json::from_value(task.arguments)? {
            PublishRequest::Check { name } => {
                spread::check(&task.job, &name)?;
                Ok(json!(PublishAnswer::Free))
            }
            PublishRequest::Pieces { session, name, outputs } => {
                let session = find(&session)?;
                let publication = session.begin_publication(task.job.cancel())?;
                let job = publication.job.with_cancel(task.job.cancel().clone());
                let (mut builder, generation) = spread::begin(&publication.job, &name)?;
                for (piece, token, checksum) in outputs {
                    let output = session.output(token, checksum).ok_or("an output of the result is lost")?;
                    let name = piece_name(piece as usize);
                    let mut writer = builder.file(&name, BLOCK_BYTES, PUBLISH_BUFFER_BYTES)?;
                    let mut reader =
                        FileReader::new(&job, &output.file, 0..output.bytes(), PUBLISH_BUFFER_BYTES)?;
                    while let Some(bytes) = reader.next_piece()? {
                        writer.write(bytes)?;
                    }
                    builder.add(writer)?;
                }
                session.keep_builder(builder, None);
                Ok(json!(PublishAnswer::Pieces { generation }))
            }
            PublishRequest::Map { session, map } => {
                let session = find(&session)?;
                let (mut builder, _) = session.take_builder().ok_or("no pieces were published")?;
                if !map.is_sound() || serde_json::to_vec(&map)?.len() > MAP_BYTES_MAX {
                    return Err("invalid request: the map of pieces is invalid".into());
                }
                spread::add_map(&mut builder, &map)?;
                session.keep_builder(builder, Some(map.generation));
                Ok(json!(PublishAnswer::Mapped))
            }
            PublishRequest::Commit { session } => {
                let taken = find(&session)?.take_builder();
                let (builder, generation) = taken.ok_or("no pieces were published")?;
                spread::commit(builder, &generation.ok_or("the pieces have no map")?)?;
                Ok(json!(PublishAnswer::Committed))
            }
        }
    }
}

//! The operation `node run`.

use std::{
    fs::File,
    io::{self, Seek, Write},
    time::Duration,
};

use inshore_nodes::{Error as NodesError, Streams, stream_from_each, stream_from_nodes};
use inshore_store::{Error as StoreError, Execution};
use serde::{Deserialize, Serialize};

use super::bytes::write_bytes;
use crate::{
    commands::{COMMAND, CommandArguments, CommandResponse, command_output},
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, ResolvedInputs, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Runs a Linux command on each node that stores parts of the inputs. The bytes of these parts are the standard
/// input of the command. Without inputs, the command runs on every node. The standard output of all nodes, one
/// node after the other, goes to the output file or to [`Attachments::bytes`]. If neither exists, the answer holds
/// the standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    /// The name under which the operators of the nodes allow the program.
    pub program: String,
    /// The arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
}

/// The outcome of a command on each node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CommandAnswer {
    /// The responses, one for each node.
    pub responses: Vec<NodeResponse>,
}

/// The outcome of a command on one node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeResponse {
    /// The name of the node.
    pub node: String,
    /// The exit status and the resources that the command took.
    #[serde(flatten)]
    pub response: CommandResponse,
    /// The standard output, if the request has neither an output file nor a receiver of bytes.
    pub output: String,
}

impl Operation for RunCommand {
    const NAME: &'static str = "node run";
    const PLACES: &'static [TargetKind] = &TargetKind::ON_NODES;
    const STORE: StoreUse = StoreUse::Never;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ResolvedInputs;
    type Answer = CommandAnswer;

    fn plan(&self, context: &RequestContext<'_>) -> Result<ResolvedInputs> {
        context.sources()
    }

    fn run(
        &self,
        sources: ResolvedInputs,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<CommandAnswer>> {
        let ResolvedInputs::Nodes(on, wholes) = sources else {
            return Err(Error::Unsupported { operation: Self::NAME, place: TargetKind::Local });
        };
        let arguments = CommandArguments { program: self.program.clone(), args: self.args.clone() };
        let arguments = serde_json::to_value(arguments).expect("plain data");
        let mut streams = match wholes.is_empty() {
            true => stream_from_each(&on.nodes, job, COMMAND, arguments, &on.options)?,
            false => stream_from_nodes(&on.nodes, job, (COMMAND, false), arguments, &wholes, &on.options)?,
        };
        let mut outputs: Vec<Output> = (0..streams.len()).map(|_| Output::default()).collect();
        match context.output.is_none() && attachments.bytes.is_none() {
            true => take_outputs(&mut streams, &mut outputs, None)?,
            false => write_bytes(context, attachments.bytes, |out| {
                take_outputs(&mut streams, &mut outputs, Some(out))
            })?,
        }
        let mut answer = CommandAnswer::default();
        for (stream, output) in outputs.into_iter().enumerate() {
            let node = streams.node(stream).to_string();
            let summary = streams.summary(stream).cloned().unwrap_or_default();
            let response: CommandResponse =
                serde_json::from_value(summary).map_err(|_| NodesError::BadAnswer {
                    node: node.clone(),
                    what: "expected the response of a command".to_string(),
                })?;
            let output = String::from_utf8_lossy(&output.kept).into_owned();
            answer.responses.push(NodeResponse { node, response, output });
        }
        Ok(Response::on_nodes(answer, &on, streams.finish()))
    }
}

/// The part of a node's standard output that is not yet written to the output.
#[derive(Default)]
struct Output {
    has_ended: bool,
    /// All bytes, if the request has neither an output file nor a receiver of bytes.
    kept: Vec<u8>,
    /// An unnamed temporary file that buffers this node's bytes while the bytes of an earlier node are written.
    waiting: Option<File>,
}

/// Writes the standard output of the commands to `out`, one node after the other, or collects the bytes in
/// `outputs` if `out` is `None`. The output of all nodes is read concurrently, so that no command has to wait for
/// an earlier node.
fn take_outputs(
    streams: &mut Streams,
    outputs: &mut [Output],
    mut out: Option<&mut (dyn Write + Send)>,
) -> Result<()> {
    let mut turn = 0;
    while turn < outputs.len() {
        for (stream, output) in outputs.iter_mut().enumerate().skip(turn) {
            let mut wait = if stream == turn { Duration::from_millis(5) } else { Duration::ZERO };
            while !output.has_ended {
                let Some(batch) = streams.next_within(stream, wait)? else { break };
                wait = Duration::ZERO;
                let Some(batch) = batch else {
                    output.has_ended = true;
                    break;
                };
                let bytes = command_output(&batch).ok_or_else(|| NodesError::BadAnswer {
                    node: streams.node(stream).to_string(),
                    what: "expected the output of a command".to_string(),
                })?;
                match &mut out {
                    None => output.kept.extend(bytes),
                    Some(out) if stream == turn => out.write_all(&bytes).map_err(unwritten)?,
                    Some(_) => output.wait(&bytes).map_err(unkept)?,
                }
            }
        }
        while outputs.get(turn).is_some_and(|output| output.has_ended) {
            turn += 1;
            let waiting = outputs.get_mut(turn).and_then(|output| output.waiting.take());
            if let (Some(mut file), Some(out)) = (waiting, &mut out) {
                file.rewind().map_err(unkept)?;
                io::copy(&mut file, out).map_err(unwritten)?;
            }
        }
        if let Some(out) = &mut out {
            out.flush().map_err(unwritten)?;
        }
    }
    Ok(())
}

impl Output {
    fn wait(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.waiting {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        file.write_all(bytes)
    }
}

fn unwritten(source: io::Error) -> Error {
    StoreError::io("write", "the output", source).into()
}

fn unkept(source: io::Error) -> Error {
    StoreError::io("store", "the output of a command", source).into()
}

//! Passes on the answers of several nodes in parallel, in one stream of batches for each node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow_array::RecordBatch;
use inshore_store::Context;
use serde_json::Value;

use super::{Gather, LOOK, ordered::check_lines, receive::Message};
use crate::{
    DistributedFile, Error, Nodes, Result,
    client::tasks::{
        gather_report::{GatherReport, RunOptions},
        local::{Help, HelpOptions, HelpState},
        scheduler::{AnswerOrder, Event, Puller},
    },
    protocol::TaskDone,
};

/// Requests one answer from each node that has some of the files, and returns the batches of each answer as
/// they arrive. With `by_line`, files whose pieces do not end with a line are refused.
///
/// If the answers are sorted by a key, the answer of a lost node can be continued after its last key: see
/// [`Streams::replace`].
///
/// # Errors
/// Returns the errors of [`run_on_nodes`](super::run_on_nodes).
pub fn stream_from_nodes(
    nodes: &Nodes,
    job: &Context,
    (kind, by_line): (&'static str, bool),
    arguments: Value,
    files: &[DistributedFile],
    options: &RunOptions,
) -> Result<Streams> {
    if by_line {
        check_lines(files)?;
    }
    let mut gather = Gather::new(nodes, job, files, (kind, arguments), options, AnswerOrder::Combined)?;
    gather.begin_all()?;
    Ok(Streams::of(gather))
}

/// Does the same as [`stream_from_nodes`], but lets this machine pull shards as nodes do, if `options`
/// permit. The answer of this machine is the last stream. The caller produces this answer in a separate
/// thread with [`Help::work`].
///
/// Memory: [`Help`] takes half of the free memory, or all of it with [`HelpOptions::takes_all_memory`]. If
/// the free memory is too small, this machine does not help.
///
/// # Errors
/// Returns the errors of [`run_on_nodes`](super::run_on_nodes).
pub fn stream_with_help(
    nodes: &Nodes,
    job: &Context,
    (kind, by_line): (&'static str, bool),
    arguments: Value,
    files: &[DistributedFile],
    options: &RunOptions,
    with: HelpOptions,
) -> Result<(Streams, Option<Help>)> {
    let mut streams = stream_from_nodes(nodes, job, (kind, by_line), arguments, files, options)?;
    let Some(after) = options.help_from else { return Ok((streams, None)) };
    let helps = Arc::new(HelpState::new(after));
    let help = Help::new(&streams.gather.run, &helps, job, with);
    streams.helps = Some(helps);
    Ok((streams, help))
}

/// Requests one answer from every node for a task that reads no file.
///
/// # Errors
/// This call returns no errors. Taking answers can return the errors of [`stream_from_nodes`].
pub fn stream_from_each(
    nodes: &Nodes,
    job: &Context,
    kind: &'static str,
    arguments: Value,
    options: &RunOptions,
) -> Result<Streams> {
    let gather = Gather::new(nodes, job, &[], (kind, arguments), options, AnswerOrder::Combined)?;
    (0..nodes.0.nodes.len()).for_each(|node| gather.run.begin_without_shards(node));
    Ok(Streams::of(gather))
}

/// The answers of several nodes, in parallel streams.
#[derive(Debug)]
pub struct Streams {
    gather: Gather,
    /// The final messages of streams that ended.
    done: BTreeMap<usize, TaskDone>,
    /// The state of the help of this machine. The value is `None` if this machine does not help.
    helps: Option<Arc<HelpState>>,
}

impl Streams {
    fn of(gather: Gather) -> Streams {
        Streams { gather, done: BTreeMap::new(), helps: None }
    }

    /// Returns the number of streams; [`Self::replace`] adds streams.
    pub fn len(&self) -> usize {
        self.gather.run.state().scheduler.attempts()
    }

    /// Returns true if there are no streams because no task was requested.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next batch of a stream, or `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns the reason why the node is lost. The caller can then [replace](Self::replace) the stream, except after
    /// [`Error::Deadline`], or after [`Error::Store`], which means that the job was stopped.
    pub fn next(&mut self, stream: usize) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(next) = self.next_within(stream, LOOK)? {
                return Ok(next);
            }
        }
    }

    /// Waits at most `wait` for the next batch of a stream. Returns `None` if no batch has arrived, and `Some(None)` at
    /// the end of the stream.
    ///
    /// # Errors
    /// Returns the errors of [`Self::next`].
    pub fn next_within(&mut self, stream: usize, wait: Duration) -> Result<Option<Option<RecordBatch>>> {
        if let Some(error) = self.failed(stream) {
            return Err(error);
        }
        let message = match self.gather.receive_within(stream, wait)? {
            Some(message) => message,
            None => return self.failed(stream).map_or(Ok(None), Err),
        };
        match message {
            Message::Batch(batch) => Ok(Some(Some(batch))),
            Message::Done => self.ended(stream).map(|()| Some(None)),
            Message::Failed(error) => Err(error),
        }
    }

    /// Returns the reason why a stream was given up, if any.
    fn failed(&self, stream: usize) -> Option<Error> {
        let state = self.gather.run.state();
        let what = state.scheduler.failed(stream)?.to_string();
        let node = self.gather.run.address(state.scheduler.puller(stream)).to_string();
        let what = what.strip_prefix(&format!("{node}: ")).map_or(what.clone(), str::to_string);
        Some(Error::Lost { node, what })
    }

    /// Accepts a complete answer if the answer covers all shards that were handed to its node.
    fn ended(&mut self, stream: usize) -> Result<()> {
        let done = {
            let state = self.gather.run.state();
            let told = state.links.get(&stream).map(|link| link.told.clone());
            told.and_then(|told| told.lock().expect("no panic under this lock").done.clone())
        };
        // A task that was cancelled before its first pull sends no final message.
        if let Some(done) = done {
            let shards = done.shards.iter().map(|&shard| shard as usize).collect();
            self.gather.run.tell(Event::Completed { attempt: stream, shards });
            self.done.insert(stream, done);
        }
        self.failed(stream).map_or(Ok(()), Err)
    }

    /// Returns true if this machine produces the answer of a stream.
    pub fn is_here(&self, stream: usize) -> bool {
        self.gather.run.state().scheduler.puller(stream) == Puller::Client
    }

    /// Returns the address of the node that produces the answer of a stream.
    pub fn node(&self, stream: usize) -> &str {
        let puller = self.gather.run.state().scheduler.puller(stream);
        self.gather.run.address(puller)
    }

    /// Returns the summary of a stream, which arrives at the end of the stream.
    pub fn summary(&self, stream: usize) -> Option<&Value> {
        self.done.get(&stream).map(|done| &done.summary)
    }

    /// Returns the lost stream whose shards a stream processes again, if any.
    pub fn origin(&self, stream: usize) -> Option<usize> {
        self.gather.run.state().scheduler.origin(stream)
    }

    /// Lets other nodes process the shards of a lost stream. The requests add [streams](Self::len), whose
    /// answers begin from the start.
    ///
    /// # Errors
    /// Returns [`Error::Missing`] if no other node has the data.
    pub fn replace(&mut self, stream: usize, why: &Error) -> Result<()> {
        let is_gone = !matches!(why, Error::SetAside { .. });
        let puller = self.gather.run.state().scheduler.puller(stream);
        if let (Puller::Client, Some(helps)) = (puller, &self.helps) {
            helps.give_up(why.to_string());
        }
        self.done.remove(&stream);
        self.gather.lose(stream, why.to_string(), is_gone)?;
        let state = self.gather.run.state();
        match state.scheduler.failed(stream) {
            Some(_) => Ok(()),
            None => Err(Error::BadAnswer {
                node: self.gather.run.address(puller).to_string(),
                what: "the answer ended with another part than expected".to_string(),
            }),
        }
    }

    /// Returns the number of parts of files that no reachable node has.
    pub fn missing(&self) -> usize {
        self.gather.run.missing(&self.gather.run.state()).len()
    }

    /// Ends the streams and returns the costs.
    pub fn finish(self) -> GatherReport {
        let Streams { gather, helps, .. } = self;
        let run = gather.run.clone();
        let mut gathered = gather.finish();
        if let Some(helps) = helps {
            helps.tell_costs(&run, &mut gathered);
        }
        gathered
    }
}

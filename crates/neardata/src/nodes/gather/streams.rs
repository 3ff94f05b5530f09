//! Answers of several nodes side by side, one stream of batches from each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow_array::RecordBatch;
use inshore_store::Context;
use serde_json::Value;

use super::{
    super::{
        Error, Nodes, Result, Whole,
        here::{Help, HelpWith, Helps},
        protocol::TaskDone,
        scheduler::{Event as Happened, Order, Puller},
    },
    Gather, Gathered, LOOK, Message, RunOptions, check_lines,
};

/// Asks the nodes that have the files for one answer each, and gives the batches of each as they come. With `by_line`, files whose
/// pieces do not end with a line are refused.
///
/// A kind of work whose answer is in order of a key can go on elsewhere behind the last key: see [`Streams::replace`].
///
/// # Errors
/// As [`run_on_nodes`](super::run_on_nodes).
pub fn stream_from_nodes(
    nodes: &Nodes,
    job: &Context,
    (kind, by_line): (&'static str, bool),
    arguments: Value,
    wholes: &[Whole],
    options: &RunOptions,
) -> Result<Streams> {
    if by_line {
        check_lines(wholes)?;
    }
    let mut gather = Gather::new(nodes, job, wholes, (kind, arguments), options, Order::Combined)?;
    gather.begin_all()?;
    Ok(Streams::of(gather))
}

/// The same, of which this machine does a part where `options` let it: it pulls shards as nodes do. Its work is one answer
/// more, the last one, and whoever calls gives it, in a thread of its own, by [`Help::work`].
///
/// Memory: half of what is free goes to the help, or all with [`HelpWith::takes_all_memory`], and none where that is too little.
///
/// # Errors
/// As [`run_on_nodes`](super::run_on_nodes).
pub fn stream_with_help(
    nodes: &Nodes,
    job: &Context,
    (kind, by_line): (&'static str, bool),
    arguments: Value,
    wholes: &[Whole],
    options: &RunOptions,
    with: HelpWith,
) -> Result<(Streams, Option<Help>)> {
    let mut streams = stream_from_nodes(nodes, job, (kind, by_line), arguments, wholes, options)?;
    let Some(after) = options.help_from else { return Ok((streams, None)) };
    let helps = Arc::new(Helps::new(after));
    let help = Help::new(&streams.gather.run, &helps, job, with);
    streams.helps = Some(helps);
    Ok((streams, help))
}

/// Asks every node for one answer that is about no file.
///
/// # Errors
/// None yet; as [`stream_from_nodes`] when answers are taken.
pub fn stream_from_each(
    nodes: &Nodes,
    job: &Context,
    kind: &'static str,
    arguments: Value,
    options: &RunOptions,
) -> Result<Streams> {
    let gather = Gather::new(nodes, job, &[], (kind, arguments), options, Order::Combined)?;
    (0..nodes.0.nodes.len()).for_each(|node| gather.run.begin_without_shards(node));
    Ok(Streams::of(gather))
}

/// The answers of several nodes, side by side.
#[derive(Debug)]
pub struct Streams {
    gather: Gather,
    /// The last messages of streams that ended.
    done: BTreeMap<usize, TaskDone>,
    /// The part of this machine.
    helps: Option<Arc<Helps>>,
}

impl Streams {
    fn of(gather: Gather) -> Streams {
        Streams { gather, done: BTreeMap::new(), helps: None }
    }

    /// How many streams there are; more after [`Self::replace`].
    pub fn len(&self) -> usize {
        self.gather.run.state().scheduler.attempts()
    }

    /// Whether there is none: nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next batch of a stream; `None` at its end.
    ///
    /// # Errors
    /// Why the node is lost: it can be [replaced](Self::replace). [`Error::Deadline`] and [`Error::Store`] (stopped) cannot.
    pub fn next(&mut self, stream: usize) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(next) = self.next_within(stream, LOOK)? {
                return Ok(next);
            }
        }
    }

    /// The next batch of a stream, if it comes within `wait`: `None` where nothing came, `Some(None)` at its end.
    ///
    /// # Errors
    /// As [`Self::next`].
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

    /// Why a stream was given up, where it was.
    fn failed(&self, stream: usize) -> Option<Error> {
        let state = self.gather.run.state();
        let what = state.scheduler.failed(stream)?.to_string();
        let node = self.gather.run.address(state.scheduler.puller(stream)).to_string();
        let what = what.strip_prefix(&format!("{node}: ")).map_or(what.clone(), str::to_string);
        Some(Error::Lost { node, what })
    }

    /// All of an answer is here: it counts where it is about all shards that its node was handed.
    fn ended(&mut self, stream: usize) -> Result<()> {
        let done = {
            let state = self.gather.run.state();
            let told = state.links.get(&stream).map(|link| link.told.clone());
            told.and_then(|told| told.lock().expect("no panic under this lock").done.clone())
        };
        // A task that was cancelled before it pulled anything says nothing.
        if let Some(done) = done {
            let shards = done.shards.iter().map(|&shard| shard as usize).collect();
            self.gather.run.tell(Happened::Completed { attempt: stream, shards });
            self.done.insert(stream, done);
        }
        self.failed(stream).map_or(Ok(()), Err)
    }

    /// Whether this machine answers, and no node.
    pub fn is_here(&self, stream: usize) -> bool {
        self.gather.run.state().scheduler.puller(stream) == Puller::Client
    }

    /// The address of the node that answers.
    pub fn node(&self, stream: usize) -> &str {
        let puller = self.gather.run.state().scheduler.puller(stream);
        self.gather.run.address(puller)
    }

    /// What the work of a stream said at its end.
    pub fn summary(&self, stream: usize) -> Option<&Value> {
        self.done.get(&stream).map(|done| &done.summary)
    }

    /// The stream whose answer was lost, for what a stream is asked for, if it is about such.
    pub fn origin(&self, stream: usize) -> Option<usize> {
        self.gather.run.state().scheduler.origin(stream)
    }

    /// Asks other nodes for all that a lost one was asked for: there are [more](Self::len) streams then, whose answers begin anew.
    ///
    /// # Errors
    /// [`Error::Missing`] where no other node has it.
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
                what: "something else than what it ended with".to_string(),
            }),
        }
    }

    /// How many parts of files no node that answers has.
    pub fn missing(&self) -> usize {
        self.gather.run.missing(&self.gather.run.state()).len()
    }

    /// What it all cost.
    pub fn finish(self) -> Gathered {
        let Streams { gather, helps, .. } = self;
        let run = gather.run.clone();
        let mut gathered = gather.finish();
        if let Some(helps) = helps {
            helps.tell_costs(&run, &mut gathered);
        }
        gathered
    }
}

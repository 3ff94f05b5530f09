//! Answers of several nodes side by side, one stream of batches from each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_store::Context;
use serde_json::Value;

use super::{
    super::{
        Error, Nodes, Result, Whole,
        here::{Help, HelpKind, HelpWith, Here, Stops},
        pump::Turn,
    },
    Gather, Gathered, Message, RunOptions, check_lines,
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
    let mut gather = Gather::new(nodes, job, wholes, kind, arguments, options)?;
    gather.begin_all()?;
    Ok(Streams::of(gather))
}

/// The same, of which this machine does a part where `options` let it: of pieces that nodes have not begun. What it does is one answer
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
    let Some(from) = options.help_from else {
        let streams = stream_from_nodes(nodes, job, (kind, by_line), arguments, wholes, options)?;
        return Ok((streams, None));
    };
    if by_line {
        check_lines(wholes)?;
    }
    let mut gather = Gather::new(nodes, job, wholes, kind, arguments, options)?;
    let here = Arc::new(Here::new(nodes, wholes, options, from, HelpKind::OneAnswer(with)));
    gather.here = Some(here.clone());
    gather.turn = Turn::Behind(here.gate().clone());
    gather.begin_all()?;
    let help = Help::new(&here, job);
    let help = help.map(|(help, answers, told)| {
        gather.helping = Some(gather.attempts.len());
        gather.begin_here(Vec::new(), answers, told);
        help
    });
    let answers_early = with.answers_early;
    Ok((Streams { stops: Some(Stops(here)), answers_early, ..Streams::of(gather) }, help))
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
    let mut gather = Gather::new(nodes, job, &[], kind, arguments, options)?;
    (0..nodes.0.nodes.len()).for_each(|node| gather.begin(node, Vec::new()));
    Ok(Streams::of(gather))
}

/// The answers of several nodes, side by side.
#[derive(Debug)]
pub struct Streams {
    gather: Gather,
    /// Since when a stream was waited for.
    waiting: BTreeMap<usize, Instant>,
    /// Streams that have said something.
    begun: BTreeSet<usize>,
    /// Ends what this machine does.
    stops: Option<Stops>,
    /// Nodes may answer and give pieces back later.
    answers_early: bool,
}

impl Streams {
    fn of(gather: Gather) -> Streams {
        Streams {
            gather,
            waiting: BTreeMap::new(),
            begun: BTreeSet::new(),
            stops: None,
            answers_early: false,
        }
    }

    /// What this machine does of it.
    fn here(&self) -> Option<Arc<Here>> {
        self.stops.as_ref().map(|Stops(here)| here.clone())
    }

    /// Whether a node may have given back what nobody does, asked when it has nothing left that it could give back.
    fn is_doubtful(&mut self, stream: usize) -> bool {
        let Some(here) = self.here() else { return false };
        if self.gather.attempts[stream].node.is_none() || !self.begun.insert(stream) {
            return false;
        }
        here.leave(stream);
        here.is_doubtful(stream)
    }
    /// How many streams there are; more after [`Self::replace`].
    pub fn len(&self) -> usize {
        self.gather.attempts.len()
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
            if let Some(next) = self.next_within(stream, Duration::from_millis(50))? {
                return Ok(next);
            }
        }
    }

    /// The next batch of a stream, if it comes within `wait`: `None` where nothing came, `Some(None)` at its end.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn next_within(&mut self, stream: usize, wait: Duration) -> Result<Option<Option<RecordBatch>>> {
        match self.gather.receive_within(stream, wait)? {
            Some(Message::Batch(_)) if !self.answers_early && self.is_doubtful(stream) => {
                Err(Error::SetAside { node: self.node(stream).to_string() })
            }
            Some(Message::Done) if self.is_doubtful(stream) => {
                Err(Error::SetAside { node: self.node(stream).to_string() })
            }
            None => {
                let since = *self.waiting.entry(stream).or_insert_with(Instant::now);
                if !self.gather.is_stalled(stream, since) {
                    return Ok(None);
                }
                let seconds = self.gather.options.stall.as_secs_f64();
                Err(self.gather.lost(stream, format!("it got on no further for {seconds} s")))
            }
            Some(Message::Batch(batch)) => {
                self.waiting.remove(&stream);
                Ok(Some(Some(batch)))
            }
            Some(Message::Done) => Ok(Some(None)),
            Some(Message::Failed(error)) => Err(error),
        }
    }

    /// Whether this machine answers, and no node.
    pub fn is_here(&self, stream: usize) -> bool {
        self.gather.attempts[stream].node.is_none()
    }

    /// The address of the node that answers.
    pub fn node(&self, stream: usize) -> &str {
        self.gather.address(self.gather.attempts[stream].node)
    }

    /// What the work of a stream said at its end.
    pub fn summary(&self, stream: usize) -> Option<&Value> {
        self.gather.attempts[stream].done.as_ref().map(|done| &done.summary)
    }

    /// Asks other nodes for all that a lost one was asked for, and gives the numbers of the new streams, whose answers begin
    /// anew.
    ///
    /// # Errors
    /// [`Error::Missing`] where no other node has it.
    pub fn replace(&mut self, stream: usize, why: &Error) -> Result<std::ops::Range<usize>> {
        let first = self.gather.attempts.len();
        let is_gone = !matches!(why, Error::SetAside { .. });
        if let Some(here) = self.here() {
            here.leave(stream);
            self.gather.adopt();
        }
        self.gather.lose_attempt(stream, why.to_string(), is_gone, true)?;
        Ok(first..self.gather.attempts.len())
    }

    /// How many parts of files no node that answers has.
    pub fn missing(&self) -> usize {
        self.gather.missing.len()
    }

    /// What it all cost.
    pub fn finish(self) -> Gathered {
        self.gather.finish()
    }
}

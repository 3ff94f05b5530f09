//! The counters of a node for the jobs in stages in which it takes part. They are metrics of the node.

use std::sync::atomic::{AtomicU64, Ordering};

use inshore_kernel::{Metric, MetricKind};

/// The kinds of stages, as the values of the label `stage`.
const STAGES: [&str; 2] = ["map", "merge"];
/// The ends of attempts, as the values of the label `end`.
const ENDS: [&str; 4] = ["done", "failed", "missing", "cancelled"];

/// The end of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Done,
    Failed,
    /// The attempt could not fetch all ranges.
    Missing,
    /// The attempt was cancelled, by the driver or with its session.
    Cancelled,
}

/// The counters of all jobs since the node began.
#[derive(Debug, Default)]
pub(super) struct Counters {
    started: [AtomicU64; STAGES.len()],
    ended: [[AtomicU64; ENDS.len()]; STAGES.len()],
    ranges_served: AtomicU64,
    ranges_fetched: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

/// The sessions and outputs that a node stores at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stored {
    pub sessions: u64,
    pub outputs: u64,
    pub bytes: u64,
}

/// Counts an attempt from its start to its end. An attempt that ends without [`Self::end`] was cancelled.
pub(super) struct CountedAttempt<'a> {
    counters: &'a Counters,
    stage: usize,
    end: End,
}

impl CountedAttempt<'_> {
    pub fn end(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for CountedAttempt<'_> {
    fn drop(&mut self) {
        add(&self.counters.ended[self.stage][self.end as usize], 1);
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Counters {
    pub fn start(&self, is_merge: bool) -> CountedAttempt<'_> {
        let stage = usize::from(is_merge);
        add(&self.started[stage], 1);
        CountedAttempt { counters: self, stage, end: End::Cancelled }
    }

    /// Counts bytes that were sent to another node or to a driver.
    pub fn sent(&self, bytes: u64) {
        add(&self.bytes_sent, bytes);
    }

    /// Counts ranges or pieces that were sent as a whole.
    pub fn served(&self, ranges: usize) {
        add(&self.ranges_served, ranges as u64);
    }

    /// Counts bytes that came from another node.
    pub fn received(&self, bytes: u64) {
        add(&self.bytes_received, bytes);
    }

    /// Counts ranges or pieces that came as a whole.
    pub fn fetched(&self, ranges: usize) {
        add(&self.ranges_fetched, ranges as u64);
    }

    pub fn metrics(&self, stored: Stored) -> Vec<Metric> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let single =
            |name, kind, help, value| Metric { name, help, kind, samples: vec![(Vec::new(), value)] };
        let started = STAGES.iter().zip(&self.started);
        let started = started.map(|(&stage, started)| (vec![("stage", stage)], count(started))).collect();
        let ended = STAGES.iter().zip(&self.ended).flat_map(|(&stage, ends)| {
            let ends = ENDS.iter().zip(ends);
            ends.map(move |(&end, ended)| (vec![("stage", stage), ("end", end)], count(ended)))
        });
        let ended = ended.collect();
        let (counter, gauge) = (MetricKind::Counter, MetricKind::Gauge);
        vec![
            single("inshore_stage_sessions", gauge, "Jobs in stages that hold memory here.", stored.sessions),
            single("inshore_stage_outputs", gauge, "Stored outputs of partitions.", stored.outputs),
            single("inshore_stage_output_bytes", gauge, "Bytes of stored outputs.", stored.bytes),
            Metric {
                name: "inshore_stage_attempts_started_total",
                help: "Started attempts, by the kind of the stage.",
                kind: counter,
                samples: started,
            },
            Metric {
                name: "inshore_stage_attempts_total",
                help: "Ended attempts, by the kind of the stage and the end.",
                kind: counter,
                samples: ended,
            },
            single(
                "inshore_exchange_ranges_served_total",
                counter,
                "Ranges and pieces that were sent as a whole.",
                count(&self.ranges_served),
            ),
            single(
                "inshore_exchange_ranges_fetched_total",
                counter,
                "Ranges and pieces that were fetched from other nodes as a whole.",
                count(&self.ranges_fetched),
            ),
            single(
                "inshore_exchange_sent_bytes_total",
                counter,
                "Bytes of ranges and pieces that were sent, before compression.",
                count(&self.bytes_sent),
            ),
            single(
                "inshore_exchange_received_bytes_total",
                counter,
                "Bytes of ranges and pieces that came from other nodes, after decompression.",
                count(&self.bytes_received),
            ),
        ]
    }
}

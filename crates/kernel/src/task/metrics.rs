//! The numbers that task handlers count, for the metrics of their node.

/// The kind of a metric, as Prometheus defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows while the node runs.
    Counter,
    /// A number of the present moment.
    Gauge,
}

/// A metric of a task handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, in the form of Prometheus.
    pub name: &'static str,
    /// The description, as one sentence.
    pub help: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The samples, each with the names and values of its labels.
    pub samples: Vec<(Vec<(&'static str, &'static str)>, u64)>,
}

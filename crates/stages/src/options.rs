//! The limits and time limits of a job.

use std::time::Duration;

/// The limits of a job.
///
/// The constants of the defaults come from the operations on nodes (`inshore-nodes`), except where a field names
/// another source. None was measured on a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time from the start after which the job fails with [`Error::Deadline`](crate::Error). Default: one day.
    pub deadline: Duration,
    /// The time without renewal after which a node ends the job's attempts and deletes its scratch, and after which
    /// the scheduler takes a silent node for lost. A shorter lease finds losses earlier, and loses nodes that pause.
    /// Leases are renewed three times as often. Default: 15 seconds.
    pub lease: Duration,
    /// The number of failures of a partition that end the job. Lost and cancelled attempts are not failures. Default:
    /// 4, as for Spark's tasks.
    pub max_failures: u32,
    /// The number of losses after which a node that joins again is ignored. Default: 3.
    pub max_losses: u32,
    /// The number of connections of a node in an exchange: half of them to fetch, half to serve. Nodes use at most half
    /// as many slots. More connections hide latency and cost buffers on both sides. Default: 64.
    pub max_connections: u32,
    /// The number of bytes of lists of outputs that the driver sends before nodes have taken them: see
    /// [`Scheduler::outputs_since`](crate::Scheduler::outputs_since). One more attempt may exceed it. The driver holds about
    /// three copies of these bytes. A smaller limit delays the first merges on many nodes by round trips. Default: 8 MiB.
    pub max_list_bytes: u64,
    /// The time after which an attempt may get a second attempt while no attempt of its stage has finished. Later the
    /// mean time of the stage's finished attempts counts. Default: 15 seconds.
    pub second_attempt_after: Duration,
    /// The time after which a fetch from an unreachable node and a refused reservation are tried again. Default: 2
    /// seconds.
    pub retry_after: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            deadline: Duration::from_secs(24 * 60 * 60),
            lease: Duration::from_secs(15),
            max_failures: 4,
            max_losses: 3,
            max_connections: 64,
            max_list_bytes: 8 << 20,
            second_attempt_after: Duration::from_secs(15),
            retry_after: Duration::from_secs(2),
        }
    }
}

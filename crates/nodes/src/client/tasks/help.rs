//! Decides whether the client's own threads pull shards: a pure function of the measurements of a job.
//!
//! A client that pulls shards can make a job slower if nodes and client share processors or if the network is
//! saturated. A node then reads and encrypts data that it does not process, and the fetched data delays answers.
//! Measured rates show this effect regardless of its cause. The client therefore tries one shard on each thread, and
//! continues if the nodes and the client together are faster than the nodes alone were. The rate of a node is measured
//! between two of its pulls, so that the size of shards causes no rounding error. Shards that the node is still reading
//! do not count.

use std::{collections::BTreeMap, time::Duration};

/// The minimum speed of nodes and client together, relative to the nodes alone. Smaller gains are within the
/// variation between two runs of one job.
const GAIN: f64 = 1.15;

/// The reason that is reported for a client that stopped pulling because its gain was never measured.
const TOO_LATE: &str = "the nodes finished the rest before the gain was measured";

/// The rates and sizes measured so far in a job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MeasuredRates {
    /// The bytes per second of all nodes before the client pulled; `None` until every node has finished a
    /// shard.
    pub alone: Option<f64>,
    /// The bytes per second of all nodes since the client began to pull; `None` until every node has finished another
    /// shard.
    pub meanwhile: Option<f64>,
    /// The bytes per second of the client, and the seconds that the client needs for a shard.
    pub client: Option<(f64, f64)>,
    /// The number of shards that the client has pulled.
    pub pulled: usize,
    /// The number of nodes that pull.
    pub nodes: usize,
    /// The number of queued shards.
    pub queued: usize,
    /// The total size of the queued shards, in bytes.
    pub queued_bytes: u64,
    /// The bytes of shards that no puller has finished reading.
    pub left_bytes: u64,
}

/// The next step of the client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// Pull a shard.
    Pull,
    /// Wait, since the decision is still open. The text is the reason, for the report.
    Wait(String),
    /// Pull no more shards.
    Leave(&'static str),
}

/// Decides whether the client pulls. The client does not begin if the nodes need less than `after` for the
/// remaining shards. Nor does the client begin before the rates of the nodes are known.
pub(crate) fn decide(observed: &MeasuredRates, threads: usize, after: Duration) -> Decision {
    let MeasuredRates { alone, meanwhile, client, pulled, nodes, queued, queued_bytes, left_bytes } =
        *observed;
    let is_long = alone.is_some_and(|alone| left_bytes as f64 / alone >= after.as_secs_f64());
    let Some(alone) = alone.filter(|_| pulled > 0 || is_long) else {
        return Decision::Wait(if pulled > 0 { TOO_LATE.to_string() } else { unneeded(after) });
    };
    if pulled < threads && client.is_none() {
        return Decision::Pull;
    }
    let Some((client, shard_seconds)) = client else { return Decision::Wait(TOO_LATE.to_string()) };
    // If shards are large, a node may finish no shard for a long time. Until every node has finished another shard, the
    // function assumes that the client does not slow down the nodes.
    let together = meanwhile.unwrap_or(alone) + client;
    if together < alone * GAIN {
        return Decision::Leave(
            "the nodes did as much less meanwhile: it would not have been worth the bytes",
        );
    }
    // The client pulls a shard only if the client can finish this shard before nodes and client finish the queue. The
    // queue takes at least the time that one node needs for one shard.
    let of_one_shard = queued_bytes as f64 / queued.max(1) as f64 * nodes as f64 / alone;
    match (queued_bytes as f64 / together).max(of_one_shard) > shard_seconds {
        true => Decision::Pull,
        false => Decision::Wait("the nodes were done with the rest before".to_string()),
    }
}

/// Returns the reason why the client has pulled nothing.
pub(crate) fn unneeded(after: Duration) -> String {
    format!("the nodes had less than {} s of work left", after.as_secs_f64())
}

/// Measures the rates of a job while the job runs.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// The time after which a node that has not finished a shard is treated as if it finished its first shard now. A
    /// rate is measured over at least a quarter of this time.
    patience: Duration,
    /// The attempts of nodes. The value is `None` for an attempt that no longer pulls.
    nodes: BTreeMap<usize, Option<AttemptProgress>>,
    client_began: Option<Duration>,
    client_pulled: usize,
    client_bytes: u64,
    client_shards: u64,
    client_seconds: f64,
    client_last: Duration,
}

/// The progress of an attempt of a node.
#[derive(Clone, Copy, Debug)]
struct AttemptProgress {
    began: Duration,
    last: Duration,
    bytes: u64,
    /// The time and the bytes of the first report of finished shards. The rate is measured from this report on, since
    /// a task first has to start, and reads ahead.
    first: (Duration, u64),
    /// The bytes of the first shard.
    first_bytes: u64,
    /// The last report before the client began to pull: its time and bytes.
    before: Option<(Duration, u64)>,
}

impl Rates {
    pub fn new(patience: Duration) -> Rates {
        Rates { patience, ..Rates::default() }
    }

    /// Records that a node pulls a shard and has finished `bytes` of shards.
    pub fn pulled(&mut self, attempt: usize, now: Duration, bytes: u64) {
        let none = AttemptProgress {
            began: now,
            last: now,
            bytes: 0,
            first: (now, 0),
            first_bytes: 0,
            before: None,
        };
        let seen = self.nodes.entry(attempt).or_insert(Some(none));
        if let Some(seen) = seen.as_mut().filter(|seen| bytes > seen.bytes) {
            if seen.bytes == 0 {
                seen.first = (now, bytes);
            }
            (seen.last, seen.bytes) = (now, bytes);
        }
    }

    /// Records that a node is handed a shard of `bytes`.
    pub fn handed(&mut self, attempt: usize, bytes: u64) {
        let seen = self.nodes.get_mut(&attempt).and_then(Option::as_mut);
        if let Some(seen) = seen.filter(|seen| seen.first_bytes == 0) {
            seen.first_bytes = bytes;
        }
    }

    /// Excludes a node that no longer pulls, since its rate does not affect the remaining shards. An earlier
    /// pull of the node may arrive after this call.
    pub fn forget(&mut self, attempt: usize) {
        self.nodes.insert(attempt, None);
    }

    pub fn client_pulls(&mut self, now: Duration) {
        self.client_pulled += 1;
        if self.client_began.is_none() {
            self.client_began = Some(now);
            self.nodes.values_mut().flatten().for_each(|seen| seen.before = Some((seen.last, seen.bytes)));
        }
    }

    /// Records a shard of `bytes` that the client finished at `now` after `seconds`.
    pub fn client_did(&mut self, now: Duration, bytes: u64, seconds: f64) {
        self.client_bytes += bytes;
        self.client_shards += 1;
        self.client_seconds += seconds;
        self.client_last = now;
    }

    /// Returns the bytes per second between two times.
    fn rate(bytes: u64, from: Duration, to: Duration) -> f64 {
        bytes as f64 / to.saturating_sub(from).as_secs_f64().max(1e-6)
    }

    /// Returns the measurements at time `now`, given the number and the bytes of queued shards and the bytes of
    /// unfinished shards.
    pub fn observed(&self, queued: (usize, u64), left_bytes: u64, now: Duration) -> MeasuredRates {
        let is_short = |from: Duration, to: Duration| to.saturating_sub(from) < self.patience / 4;
        let alone = |seen: &AttemptProgress| {
            let (last, bytes) = seen.before.unwrap_or((seen.last, seen.bytes));
            let until = seen.before.and(self.client_began).unwrap_or(now);
            let (first, first_bytes) = seen.first;
            if bytes > first_bytes && !is_short(first, last) {
                return Some(Rates::rate(bytes - first_bytes, first, last));
            }
            let is_waited_for = until.saturating_sub(seen.began) < self.patience;
            let to = if bytes == 0 || is_short(seen.began, last) { until } else { last };
            let bytes = if bytes == 0 { seen.first_bytes } else { bytes };
            (!is_waited_for).then(|| Rates::rate(bytes, seen.began, to))
        };
        let meanwhile = |seen: &AttemptProgress| {
            let (last, bytes) = seen.before?;
            (seen.bytes > bytes && !is_short(last, seen.last))
                .then(|| Rates::rate(seen.bytes - bytes, last, seen.last))
        };
        let of_all = |rate: &dyn Fn(&AttemptProgress) -> Option<f64>| {
            let sum = self.nodes.values().flatten().map(rate).sum::<Option<f64>>();
            sum.filter(|_| self.nodes.values().any(Option::is_some))
        };
        let client = self.client_began.filter(|_| self.client_shards > 0).map(|began| {
            let rate = Rates::rate(self.client_bytes, began, self.client_last);
            (rate, self.client_seconds / self.client_shards as f64)
        });
        MeasuredRates {
            alone: of_all(&alone),
            meanwhile: of_all(&meanwhile),
            client,
            pulled: self.client_pulled,
            nodes: self.nodes.values().flatten().count(),
            queued: queued.0,
            queued_bytes: queued.1,
            left_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_pulls_where_that_makes_all_together_faster() {
        let after = Duration::from_secs(2);
        let mega = 1e6;
        let tried = |meanwhile: f64, client: f64, queued: f64| MeasuredRates {
            alone: Some(100.0 * mega),
            meanwhile: Some(meanwhile * mega),
            client: Some((client * mega, 1.0)),
            pulled: 1,
            nodes: 2,
            queued: (queued / 10.0) as usize,
            queued_bytes: (queued * mega) as u64,
            left_bytes: (queued * mega) as u64,
        };
        let before = |alone: Option<f64>, queued: f64| MeasuredRates {
            alone: alone.map(|alone| alone * mega),
            left_bytes: (queued * mega) as u64,
            ..MeasuredRates::default()
        };
        let is_wait = |decision: Decision| matches!(decision, Decision::Wait(_));
        assert!(is_wait(decide(&before(None, 1000.0), 1, after)), "nothing is known");
        assert!(is_wait(decide(&before(Some(100.0), 150.0), 1, after)), "nodes are done in 1.5 s");
        assert_eq!(decide(&before(Some(100.0), 250.0), 1, after), Decision::Pull, "a trial");
        let unknown = MeasuredRates { meanwhile: None, ..tried(0.0, 50.0, 250.0) };
        assert_eq!(decide(&unknown, 1, after), Decision::Pull, "no node has finished a shard meanwhile");
        assert!(is_wait(decide(&MeasuredRates { client: None, ..unknown }, 1, after)), "nor has the client");
        for (meanwhile, client, pulls) in [
            (100.0, 50.0, true),
            (100.0, 10.0, false),
            (60.0, 50.0, false),
            (60.0, 90.0, true),
            (0.0, 120.0, true),
        ] {
            let decision = decide(&tried(meanwhile, client, 1000.0), 1, after);
            assert_eq!(decision == Decision::Pull, pulls, "{meanwhile} and {client}: {decision:?}");
            assert_eq!(matches!(decision, Decision::Leave(_)), !pulls);
        }
        assert!(
            is_wait(decide(&tried(100.0, 50.0, 100.0), 1, after)),
            "nodes are done sooner than a shard here"
        );
        let one = MeasuredRates { queued: 1, ..tried(100.0, 50.0, 60.0) };
        assert_eq!(decide(&one, 1, after), Decision::Pull, "a node needs longer for one shard");
    }

    #[test]
    fn a_client_leaves_nodes_whose_drives_are_the_limit() {
        // The drive reads 10 bytes per millisecond. After the client begins to pull, half of these bytes are for the
        // client.
        let at = |millis: u64| Duration::from_millis(millis);
        let mut rates = Rates::new(at(400));
        (0..=4).for_each(|shard| rates.pulled(0, at(shard * 100), shard * 1000));
        rates.handed(0, 1000);
        let decide_at =
            |rates: &Rates, now: u64| decide(&rates.observed((9, 9000), 9000, at(now)), 1, at(400));
        assert_eq!(decide_at(&rates, 400), Decision::Pull, "a trial");
        rates.client_pulls(at(400));
        assert_eq!(decide_at(&rates, 500), Decision::Wait(TOO_LATE.to_string()));
        rates.client_did(at(600), 1000, 0.2);
        rates.pulled(0, at(600), 5000);
        assert!(matches!(decide_at(&rates, 600), Decision::Leave(_)));
        // The rate of a node that no longer pulls does not indicate a gain.
        rates.forget(0);
        assert_eq!(decide_at(&rates, 600), Decision::Wait(TOO_LATE.to_string()));
    }

    #[test]
    fn rates_are_those_between_pulls() {
        let at = |millis: u64| Duration::from_millis(millis);
        let mut rates = Rates::new(at(2000));
        rates.pulled(0, at(100), 0);
        rates.pulled(1, at(200), 0);
        rates.pulled(0, at(1100), 1000);
        let alone = |rates: &Rates, now: u64| rates.observed((5, 5), 5, at(now)).alone;
        assert_eq!(alone(&rates, 2199), None, "a node has finished nothing");
        rates.handed(1, 2000);
        rates.handed(1, 5000);
        assert_eq!(alone(&rates, 2200), Some(2000.0), "it may be done with its first shard now");
        assert_eq!(alone(&rates, 4200), Some(1500.0));
        rates.pulled(1, at(2700), 2500);
        assert_eq!(alone(&rates, 2700), Some(2000.0));
        rates.client_pulls(at(2800));
        rates.pulled(0, at(2850), 3000);
        assert_eq!(rates.observed((5, 5), 5, at(2900)).meanwhile, None);
        rates.pulled(1, at(4700), 3500);
        rates.client_did(at(3800), 3000, 1.0);
        let observed = rates.observed((5, 5), 5, at(4700));
        assert_eq!(observed.alone, Some(2000.0), "it stays what it was");
        assert_eq!(observed.meanwhile, Some(2000.0 / 1.75 + 500.0));
        assert_eq!(observed.client, Some((3000.0, 1.0)));
    }

    #[test]
    fn the_start_of_a_task_and_reading_ahead_do_not_count() {
        let at = |millis: u64| Duration::from_millis(millis);
        let alone = |rates: &Rates, now: u64| rates.observed((5, 5), 5, at(now)).alone;
        let mut rates = Rates::new(at(2000));
        rates.pulled(0, at(0), 0);
        rates.pulled(0, at(1), 1000);
        rates.pulled(0, at(2), 2000);
        assert_eq!([2, 1999, 2000].map(|now| alone(&rates, now)), [None, None, Some(1000.0)]);
        rates.client_pulls(at(2000));
        rates.pulled(0, at(2500), 4000);
        assert_eq!(alone(&rates, 3000), Some(1000.0));
        let mut rates = Rates::new(at(2000));
        rates.pulled(0, at(0), 0);
        rates.pulled(0, at(700), 500);
        rates.pulled(0, at(1200), 1000);
        assert_eq!(alone(&rates, 1300), Some(1000.0), "the first shard took longer");
        rates.forget(0);
        rates.pulled(0, at(1400), 1500);
        assert_eq!(alone(&rates, 1400), None, "a late report of a task that has ended");
    }
}

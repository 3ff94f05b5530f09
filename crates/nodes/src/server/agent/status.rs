//! Collects the status of an agent: counters, running tasks, drives and the machine's sensors.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use inshore_kernel::Metric;
use inshore_store::DeviceUsage;

use super::{Agent, Inner};
use crate::protocol::{NodeDevice, RunningTask, Status, TRAVERSE, VERSION};

/// The longest wait for the usage of the drives. If the drives do not answer within this time, the status shows the
/// previous values.
const DRIVE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Counters since the start of the agent.
#[derive(Debug, Default)]
pub(super) struct AgentCounters {
    pub done: AtomicU64,
    pub failed: AtomicU64,
    pub refused: AtomicU64,
    pub bytes_read: AtomicU64,
    pub bytes_answered: AtomicU64,
    pub bytes_loaded: AtomicU64,
}

impl Agent {
    /// Returns the node's status: tasks, queue, counters, drives and limits.
    pub fn status(&self) -> Status {
        let inner = &self.0;
        let config = &inner.config;
        let fullness = inner.queue.fullness();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tasks = inner.tasks();
        let running: Vec<RunningTask> = tasks.iter().map(|(&number, task)| task.status(number)).collect();
        // The bytes are read under the lock under which a finished task leaves the list of running tasks, so
        // no byte counts twice.
        let bytes_read =
            count(&inner.counters.bytes_read) + running.iter().map(|task| task.bytes_read).sum::<u64>();
        drop(tasks);
        let devices = inner.devices();
        let drives = devices.iter().map(|device| NodeDevice {
            number: device.number.into(),
            path: device.path.display().to_string(),
            state: device.state.to_string(),
            free_bytes: device.free_bytes,
            capacity_bytes: device.capacity_bytes,
        });
        let (requests_bytes, unfinished_bytes) = inner.requests.bytes();
        Status {
            version: VERSION,
            name: config.name.clone(),
            node: self.number(),
            program: env!("CARGO_PKG_VERSION").to_string(),
            seconds: inner.began.elapsed().as_secs(),
            draining: inner.draining.load(Ordering::Relaxed),
            kinds: inner.handlers.kinds().chain([TRAVERSE]).map(str::to_string).collect(),
            memory_bytes: config.memory_bytes,
            memory_used_bytes: fullness.used_bytes,
            slots: config.slots as u64,
            queue: config.queue as u64,
            running,
            waiting: fullness.waiting as u64,
            done: count(&inner.counters.done),
            failed: count(&inner.counters.failed),
            refused: count(&inner.counters.refused),
            bytes_read,
            bytes_answered: count(&inner.counters.bytes_answered),
            bytes_loaded: count(&inner.counters.bytes_loaded),
            load: load_average(),
            cores: thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            celsius: celsius_max(),
            free_bytes: devices.iter().map(|device| device.free_bytes).sum(),
            capacity_bytes: devices.iter().map(|device| device.capacity_bytes).sum(),
            drives: drives.collect(),
            connections: inner.connections.counts(),
            resident_bytes: resident_bytes(),
            requests_bytes,
            unfinished_bytes,
            metrics: samples(inner.handlers.metrics()),
            expires: config.credentials.as_ref().and_then(|credentials| credentials.expires().ok()),
        }
    }

    /// Returns the metrics of the task handlers.
    pub(crate) fn handler_metrics(&self) -> Vec<Metric> {
        self.0.handlers.metrics()
    }

    /// Returns the reason if the node is not ready for requests.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        if self.0.draining.load(Ordering::Relaxed) {
            return Some("this node is shutting down and accepts no more tasks");
        }
        self.0.devices().is_empty().then_some("the drives of the store do not respond")
    }

    /// Counts received bytes of loads.
    pub(super) fn count_loaded(&self, bytes: u64) {
        self.0.counters.bytes_loaded.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Returns the samples of metrics by their names with labels, as Prometheus writes them.
fn samples(metrics: Vec<Metric>) -> BTreeMap<String, u64> {
    let sample = |name: &str, labels: &[(&str, &str)], value| {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        match labels.is_empty() {
            true => (name.to_string(), value),
            false => (format!("{name}{{{}}}", labels.join(",")), value),
        }
    };
    let samples = metrics.iter().flat_map(|metric| metric.samples.iter().map(|of| (metric.name, of)));
    samples.map(|(name, (labels, value))| sample(name, labels, *value)).collect()
}

impl Inner {
    /// Returns the usage of the drives. If a drive hangs, returns the previous usage.
    fn devices(&self) -> Vec<DeviceUsage> {
        let store = self.store.clone();
        self.drives.get(DRIVE_WAIT_MAX, move || store.usage().ok())
    }
}

/// Returns the load average of the machine over the last minute, or 0 if the system does not report the load.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// Returns the resident memory of this process in bytes, or 0 if the system does not report the memory.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns the highest temperature of the machine's thermal sensors, in degrees Celsius.
fn celsius_max() -> Option<f64> {
    let zones = std::fs::read_dir("/sys/class/thermal").ok()?;
    let read = |zone: std::fs::DirEntry| -> Option<f64> {
        let text = std::fs::read_to_string(zone.path().join("temp")).ok()?;
        Some(text.trim().parse::<f64>().ok()? / 1000.0)
    };
    zones.flatten().filter_map(read).reduce(f64::max)
}

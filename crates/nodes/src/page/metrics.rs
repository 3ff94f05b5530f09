//! Counters in the text format of Prometheus (version 0.0.4), in seconds and bytes without prefixes.

use std::fmt::Write;

use inshore_kernel::{Metric, MetricKind};

use crate::protocol::Status;

/// Formats the counters of a node, and the metrics of its task handlers.
pub(super) fn prometheus_text(status: &Status, of_handlers: &[Metric]) -> String {
    let mut out = Text(String::new());
    let info = [("name", status.name.as_str()), ("version", status.program.as_str())];
    out.metric("inshore_node_info", "gauge", "The node, and the version of its program.", &[(&info, 1.0)]);
    out.singles(&service(status));
    out.singles(&bytes(status));
    out.singles(&task_memory(status));
    out.singles(&connections(status));
    out.singles(&process(status));
    results(&mut out, status);
    credentials_and_temperature(&mut out, status);
    drives(&mut out, status);
    of_handlers.iter().for_each(|metric| handler_metric(&mut out, metric));
    out.0
}

/// A metric that has one sample without labels. The fields are name, kind, help text and value.
type Single = (&'static str, &'static str, &'static str, f64);

/// Returns the metrics of the service and its tasks.
fn service(status: &Status) -> [Single; 7] {
    [
        ("inshore_uptime_seconds", "gauge", "Time since the node began to serve.", status.seconds as f64),
        (
            "inshore_draining",
            "gauge",
            "1 while the node accepts no more tasks.",
            f64::from(u8::from(status.draining)),
        ),
        ("inshore_tasks_running", "gauge", "Running tasks.", status.running.len() as f64),
        ("inshore_tasks_running_limit", "gauge", "Limit of running tasks.", status.slots as f64),
        ("inshore_tasks_waiting", "gauge", "Queued tasks.", status.waiting as f64),
        ("inshore_tasks_waiting_limit", "gauge", "Limit of queued tasks.", status.queue as f64),
        ("inshore_refused_total", "counter", "Refused requests.", status.refused as f64),
    ]
}

/// Returns the metrics of the bytes of tasks and loads.
fn bytes(status: &Status) -> [Single; 3] {
    [
        (
            "inshore_read_bytes_total",
            "counter",
            "Bytes that tasks read from drives.",
            status.bytes_read as f64,
        ),
        (
            "inshore_answered_bytes_total",
            "counter",
            "Bytes of answers that were sent to clients.",
            status.bytes_answered as f64,
        ),
        (
            "inshore_loaded_bytes_total",
            "counter",
            "Bytes of files that clients sent.",
            status.bytes_loaded as f64,
        ),
    ]
}

/// Returns the metrics of the memory of tasks.
fn task_memory(status: &Status) -> [Single; 2] {
    [
        (
            "inshore_tasks_memory_bytes",
            "gauge",
            "Memory reserved by running tasks.",
            status.memory_used_bytes as f64,
        ),
        (
            "inshore_tasks_memory_limit_bytes",
            "gauge",
            "Memory for all tasks together.",
            status.memory_bytes as f64,
        ),
    ]
}

/// Returns the metrics of connections.
fn connections(status: &Status) -> [Single; 4] {
    [
        (
            "inshore_connections_open",
            "gauge",
            "Open connections, including those without a request so far.",
            status.connections.open as f64,
        ),
        (
            "inshore_connections_limit",
            "gauge",
            "Limit of open connections with requests.",
            status.connections.limit as f64,
        ),
        ("inshore_connections_total", "counter", "Accepted connections.", status.connections.opened as f64),
        (
            "inshore_connections_without_request_total",
            "counter",
            "Connections that ended before a request with a valid token: handshakes that failed or timed out, invalid tokens.",
            status.connections.without_request as f64,
        ),
    ]
}

/// Returns the metrics of requests, of the process and of the machine's load.
fn process(status: &Status) -> [Single; 4] {
    [
        (
            "inshore_requests_memory_bytes",
            "gauge",
            "Memory of queued and running requests, and of unread answers.",
            status.requests_bytes as f64,
        ),
        (
            "inshore_requests_unfinished_bytes",
            "gauge",
            "Memory of incomplete requests.",
            status.unfinished_bytes as f64,
        ),
        ("process_resident_memory_bytes", "gauge", "Memory of the process.", status.resident_bytes as f64),
        ("inshore_load1", "gauge", "Load average of the last minute.", status.load),
    ]
}

/// Formats the counters of ended tasks and refused connections, by result.
fn results(out: &mut Text, status: &Status) {
    out.metric(
        "inshore_tasks_total",
        "counter",
        "Ended tasks, by result.",
        &[(&[("end", "done")], status.done as f64), (&[("end", "failed")], status.failed as f64)],
    );
    out.metric(
        "inshore_connections_refused_total",
        "counter",
        "Connections whose request was told to retry: the limit of connections, or of connections from one address, was reached.",
        &[
            (&[("reason", "full")], status.connections.refused_full as f64),
            (&[("reason", "address")], status.connections.refused_address as f64),
        ],
    );
}

/// Formats the metrics that only some nodes have.
fn credentials_and_temperature(out: &mut Text, status: &Status) {
    if let Some(expires) = status.expires {
        let labels = expires.each().map(|(name, at)| ([("credential", name)], at as f64));
        let samples: Vec<Sample<'_>> = labels.iter().map(|(labels, at)| (&labels[..], *at)).collect();
        let help = "Expiry of the credentials of the node, in seconds since 1970.";
        out.metric("inshore_credentials_expiry_timestamp_seconds", "gauge", help, &samples);
    }
    if let Some(celsius) = status.celsius {
        let help = "Temperature of the warmest sensor of the machine.";
        out.metric("inshore_temperature_celsius", "gauge", help, &[(&[], celsius)]);
    }
}

/// Formats the free space and the capacity of each drive.
fn drives(out: &mut Text, status: &Status) {
    let numbers: Vec<String> = status.drives.iter().map(|drive| drive.number.to_string()).collect();
    let labels: Vec<[(&str, &str); 3]> = status
        .drives
        .iter()
        .zip(&numbers)
        .map(|(drive, number)| [("drive", number.as_str()), ("path", &drive.path), ("state", &drive.state)])
        .collect();
    for (name, help, values) in [
        (
            "inshore_drive_free_bytes",
            "Bytes that can still be written to a drive.",
            status.drives.iter().map(|drive| drive.free_bytes).collect::<Vec<_>>(),
        ),
        (
            "inshore_drive_capacity_bytes",
            "Bytes that a drive can hold.",
            status.drives.iter().map(|drive| drive.capacity_bytes).collect(),
        ),
    ] {
        let samples: Vec<(&[(&str, &str)], f64)> =
            labels.iter().zip(values).map(|(labels, value)| (&labels[..], value as f64)).collect();
        out.metric(name, "gauge", help, &samples);
    }
}

/// Formats a metric of a task handler.
fn handler_metric(out: &mut Text, Metric { name, help, kind, samples }: &Metric) {
    let kind = match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
    };
    let samples: Vec<Sample<'_>> =
        samples.iter().map(|(labels, value)| (labels.as_slice(), *value as f64)).collect();
    out.metric(name, kind, help, &samples);
}

/// The names and values of a sample's labels, and the sample's value.
type Sample<'a> = (&'a [(&'a str, &'a str)], f64);

struct Text(String);

impl Text {
    fn singles(&mut self, metrics: &[Single]) {
        for &(name, kind, help, value) in metrics {
            self.metric(name, kind, help, &[(&[], value)]);
        }
    }

    fn metric(&mut self, name: &str, kind: &str, help: &str, samples: &[Sample<'_>]) {
        if samples.is_empty() {
            return;
        }
        let out = &mut self.0;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let _ = match labels.is_empty() {
                true => writeln!(out, "{name} {value}"),
                false => writeln!(out, "{name}{{{}}} {value}", labels.join(",")),
            };
        }
    }
}

/// Escapes the value of a label for use between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_end_early() {
        let mut out = Text(String::new());
        let hostile = "a\"} 1\nevil_total 7\\";
        out.metric("m", "gauge", "Help.", &[(&[("name", hostile)], 1.5), (&[], 2e18)]);
        let expected = "# HELP m Help.\n# TYPE m gauge\nm{name=\"a\\\"} 1\\nevil_total 7\\\\\"} 1.5\n\
                        m 2000000000000000000\n";
        assert_eq!(out.0, expected);
    }
}

//! This histogram counts latencies in buckets whose width grows with the latency.

use std::time::Duration;

/// The number of latency buckets. Each power of two of nanoseconds has eight buckets.
const BUCKETS: usize = 64 * 8;

pub(super) struct Latencies {
    buckets: Box<[u32; BUCKETS]>,
    pub(super) count: u64,
    sum: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { buckets: Box::new([0; BUCKETS]), count: 0, sum: Duration::ZERO }
    }
}

fn bucket_of(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(8);
    let power = value.ilog2();
    (power as usize) * 8 + ((value >> (power - 3)) & 7) as usize
}

/// Returns the upper end of a bucket in nanoseconds.
fn end_of(bucket: usize) -> f64 {
    (9 + bucket % 8) as f64 * ((bucket / 8) as f64 - 3.0).exp2()
}

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration) {
        self.buckets[bucket_of(latency.as_nanos() as u64)] += 1;
        self.count += 1;
        self.sum += latency;
    }

    pub(super) fn mean_us(&self) -> f64 {
        self.sum.as_secs_f64() * 1e6 / self.count.max(1) as f64
    }

    /// Returns a percentile in microseconds. The result is too high by at most one eighth.
    pub(super) fn percentile_us(&self, percent: f64) -> f64 {
        let wanted = (self.count as f64 * percent / 100.0).ceil() as u64;
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += count as u64;
            if seen >= wanted && seen > 0 {
                return end_of(bucket) / 1000.0;
            }
        }
        0.0
    }
}

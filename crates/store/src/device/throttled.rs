//! A throttled device is slower than the device that it wraps. Tests and experiments use it to simulate a slow drive on
//! any machine.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::Device;

/// `Limits` contains the limits of a throttled device. Zero means no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The largest number of bytes per second, for reads and writes together.
    pub bytes_per_second: u64,
    /// The largest number of operations per second.
    pub operations_per_second: u64,
    /// The additional latency of each operation. It does not depend on the number of requests in flight.
    pub latency: Duration,
}

/// `Throttled` wraps a device and limits its speed to [`Limits`].
///
/// One queue serves the operations one after the other. Each operation occupies the drive for the time of its bytes at
/// the limit of bytes per second, but at least for the time of one operation at the limit of operations per second. The
/// latencies of several operations overlap. Full bandwidth therefore needs several requests in flight, as on a real
/// drive.
#[derive(Debug)]
pub struct Throttled {
    inner: Arc<dyn Device>,
    limits: Limits,
    /// The time at which the drive will have served all requests so far.
    busy_until: Mutex<Instant>,
}

impl Throttled {
    /// Wraps `inner` within `limits`.
    pub fn new(inner: Arc<dyn Device>, limits: Limits) -> Self {
        Throttled { inner, limits, busy_until: Mutex::new(Instant::now()) }
    }

    fn wait(&self, bytes: usize) {
        let share = |amount: u64, rate: u64| match rate {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(amount as f64 / rate as f64),
        };
        let takes = share(bytes as u64, self.limits.bytes_per_second)
            .max(share(1, self.limits.operations_per_second));
        let mut busy_until = self.busy_until.lock().expect("no panic under this lock");
        *busy_until = (*busy_until).max(Instant::now()) + takes;
        let done = *busy_until + self.limits.latency;
        drop(busy_until);
        thread::sleep(done.saturating_duration_since(Instant::now()));
    }
}

impl Device for Throttled {
    fn extents(&self) -> u32 {
        self.inner.extents()
    }

    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.wait(buffer.len());
        self.inner.read(extent, offset, buffer)
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        self.wait(buffer.len());
        self.inner.write(extent, offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.wait(0);
        self.inner.sync()
    }

    fn prepare(&self, extents: Range<u32>) -> io::Result<()> {
        self.inner.prepare(extents)
    }

    fn discard(&self, extents: Range<u32>) -> io::Result<()> {
        self.inner.discard(extents)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        self.inner.free_bytes()
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn a_throttled_device_takes_at_least_as_long_as_its_limits_say() {
        let limits =
            Limits { bytes_per_second: 1 << 20, latency: Duration::from_millis(1), ..Limits::default() };
        let device = Throttled::new(Arc::new(Memory::new(1)), limits);
        let started = Instant::now();
        for offset in 0..4 {
            device.write(0, offset * 4096, &[1; 4096]).unwrap();
        }
        // Four pages of 4 KiB take 15.6 ms at 1 MiB/s.
        assert!(started.elapsed() >= Duration::from_millis(15), "{:?}", started.elapsed());
        let limits = Limits { operations_per_second: 1000, ..Limits::default() };
        let device = Throttled::new(Arc::new(Memory::new(1)), limits);
        let started = Instant::now();
        (0..10).for_each(|_| device.read(0, 0, &mut [0; 4096]).unwrap());
        assert!(started.elapsed() >= Duration::from_millis(10), "{:?}", started.elapsed());
    }
}

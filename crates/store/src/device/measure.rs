//! This module measures the speed of a drive with the same I/O that jobs use.
//!
//! The measurement follows figure 5 of the LLNL article on data-intensive systems (Gokhale et al., 2008), which shows
//! the throughput of random reads as a function of the block size, for several numbers of requests in flight. This
//! module also measures sequential access and writes.
//!
//! ```text
//!   plan ─► working set: extents of the job's lease, written once with random bytes
//!        ─► rounds × blocks × patterns × in flight: a sample each ─► medians over the rounds ─► DeviceProfile
//! ```
//!
//! A sample keeps a fixed number of requests in flight for a short time, and then waits for the last request. The rate
//! of the sample is the number of bytes divided by the total time, including its start and its end. The requests use
//! the same I/O as jobs (io_uring or the pool of threads, O_DIRECT, buffers on huge pages), so the result is the rate
//! that a job can reach. Each round takes one sample of each point of the grid (block size, pattern and number of
//! requests in flight). If the drive is busy for a second, one sample of many points is wrong, but not all samples of
//! one point.
//!
//! The measurement writes the working set once, and then transfers as many bytes as the drive can in the time of the
//! plan. About half of these bytes are written: 30 GB on a drive of 2 GB/s in 30 s. On slow drives, the last requests
//! may exceed the time of the plan. The measurement takes at most half of the free memory, and at most 128 MiB.

mod latencies;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use inshore_runtime::{Direction, Pending};

use self::latencies::Latencies;
use crate::{
    AccessPattern, Buffer, Device, DeviceProfile, EXTENT_BYTES, Error, ExtentAddress, Job, PAGE_BYTES, Point,
    Result, device::part,
};

/// The memory in bytes for the point of the grid that needs the most: 64 requests of 2 MiB.
const BUFFER_BYTES_MAX: u64 = 128 << 20;
/// The default size of the working set in bytes. It is larger than the cache of most drives, and is written within one
/// or two seconds.
const WORKING_SET_BYTES: u64 = 1 << 30;
const IN_FLIGHT_MAX: u32 = 64;
/// The number of requests in flight while the working set is written.
const FILL_IN_FLIGHT: usize = 4;

/// `MeasurePlan` contains the grid of points (block sizes and numbers of requests in flight) and the duration of a
/// measurement.
#[derive(Clone, Debug)]
pub struct MeasurePlan {
    /// The time of all samples together, without the writing of the working set. The default is 30 s, which is 83 ms
    /// per sample. A drive of 1 GB/s transfers 83 MB in this time.
    pub seconds: f64,
    /// The size of the working set, in which blocks are read and written. The default is `None`: 1 GiB, but at most a
    /// quarter of the free space. If a drive has a cache, the working set must be larger than the cache.
    pub working_set_bytes: Option<u64>,
    /// The block sizes in bytes: powers of two from 4 KiB to 2 MiB.
    pub blocks: Vec<usize>,
    /// The numbers of requests in flight, each from 1 to 64. Without io_uring, sixteen threads serve the requests, and
    /// further requests wait.
    pub in_flight: Vec<u32>,
    /// The number of samples of each point. The result of a point is the median of its samples, so with the default of
    /// 3 one wrong sample has no effect.
    pub rounds: usize,
}

impl Default for MeasurePlan {
    fn default() -> Self {
        MeasurePlan {
            seconds: 30.0,
            working_set_bytes: None,
            blocks: [4, 16, 64, 256, 1024, 2048].map(|kib| kib << 10).to_vec(),
            in_flight: vec![1, 4, 16, 32, 64],
            rounds: 3,
        }
    }
}

impl MeasurePlan {
    /// Returns a coarse plan of 6 seconds.
    pub fn quick() -> MeasurePlan {
        MeasurePlan {
            seconds: 6.0,
            blocks: [4, 64, 1024].map(|kib| kib << 10).to_vec(),
            in_flight: vec![1, 16, 64],
            ..MeasurePlan::default()
        }
    }

    fn check(&self) {
        let block_range = PAGE_BYTES..=EXTENT_BYTES;
        let is_block = |block: &usize| block.is_power_of_two() && block_range.contains(block);
        assert!(!self.blocks.is_empty() && self.blocks.iter().all(is_block), "blocks: {:?}", self.blocks);
        let is_count = |count: &u32| (1..=IN_FLIGHT_MAX).contains(count);
        assert!(
            self.in_flight.contains(&1) && self.in_flight.iter().all(is_count),
            "requests in flight: {:?}, expected 1 and others to {IN_FLIGHT_MAX}",
            self.in_flight
        );
        assert!(self.rounds > 0 && self.seconds >= 0.0 && self.seconds.is_finite());
    }
}

/// Measures device `number` of the job's store, in scratch space of the job. The call does not change datasets. It
/// returns all space and memory, also after an error. Other I/O on the drive at the same time affects the result.
///
/// The call omits points whose buffers do not fit in half of the job's free memory.
///
/// # Errors
/// - Returns [`Error::NoDevice`] if a device is missing.
/// - Returns [`Error::NoSpace`] if the device has no room for the working set.
/// - Returns [`Error::OverBudget`] if the memory has no room for one block.
/// - Returns [`Error::Cancelled`] if the job was cancelled.
/// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
///
/// # Panics
/// Panics if a field of the plan is outside its range, or if the plan has no point with one request in flight.
pub fn measure(job: &Job, number: u16, plan: &MeasurePlan) -> Result<DeviceProfile> {
    plan.check();
    let mut area = WorkingSet::take(job, number, plan.working_set_bytes)?;
    area.fill()?;
    let memory_bytes = (job.budget().free_bytes() / 2).min(BUFFER_BYTES_MAX) as usize;
    // The point with one request of the smallest block size is always measured. If its buffer does not fit in memory,
    // the allocation fails with the error of the budget.
    let smallest = *plan.blocks.iter().min().expect("checked");
    let fits =
        |block: usize, count: usize| block * count <= memory_bytes || (block == smallest && count == 1);
    let mut points = Vec::new();
    for &block in &plan.blocks {
        for pattern in AccessPattern::ALL {
            let counts = plan.in_flight.iter().filter(|&&count| fits(block, count as usize));
            points.extend(counts.map(|&in_flight| MeasuredPoint {
                pattern,
                block,
                in_flight,
                samples: Vec::new(),
            }));
        }
    }
    let samples = points.len() * plan.rounds;
    let time = Duration::from_secs_f64(plan.seconds / samples as f64);
    job.start_phase("measuring", "samples", samples as u64);
    for _ in 0..plan.rounds {
        // The buffers of one block size are allocated together, so that all of them lie on huge pages.
        for points in points.chunk_by_mut(|a, b| a.block == b.block) {
            let (block, most) = (points[0].block, points.iter().map(|p| p.in_flight).max().expect("some"));
            let mut buffers = random_buffers(job, block, most as usize)?;
            for point in points {
                let sample = area.sample(point.pattern, point.in_flight as usize, time, &mut buffers)?;
                point.samples.push(sample);
                job.progress().add(1);
            }
        }
    }
    let mut points: Vec<Point> = points.into_iter().map(MeasuredPoint::median).collect();
    points.sort_by_key(|point| (point.pattern, point.block_bytes, point.in_flight));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(DeviceProfile {
        number,
        path: area.device.name(),
        measured_unix_seconds: now.as_secs(),
        capacity_bytes: area.device.extents() as u64 * EXTENT_BYTES as u64,
        working_set_bytes: area.bytes(),
        direct_io: area.device.is_direct(),
        io: job.io_name().to_string(),
        points,
    })
}

/// Allocates `count` buffers of `block` random bytes, since some drives compress data that is not random.
fn random_buffers(job: &Job, block: usize, count: usize) -> Result<Vec<Buffer>> {
    let mut buffers =
        Buffer::zeroed(job.budget(), block * count, "the buffers of a measurement")?.split(block);
    buffers.iter_mut().for_each(|buffer| fill_random(buffer, &mut Random::new()));
    Ok(buffers)
}

fn fill_random(buffer: &mut Buffer, random: &mut Random) {
    buffer.typed_mut::<u64>().fill_with(|| random.next());
}

/// `Random` is the random number generator SplitMix64 (Steele et al., 2014). It takes about a nanosecond per eight
/// bytes.
struct Random(u64);

impl Random {
    fn new() -> Random {
        Random(crate::random::random_u64())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        ((self.next() as u128 * limit as u128) >> 64) as u64
    }
}

/// `MeasuredPoint` is a point of the grid with its samples so far.
struct MeasuredPoint {
    pattern: AccessPattern,
    block: usize,
    in_flight: u32,
    samples: Vec<Sample>,
}

struct Sample {
    operations_per_second: f64,
    latency_us_mean: f64,
    latency_us_p99: f64,
}

impl MeasuredPoint {
    fn median(self) -> Point {
        let median = |of: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = self.samples.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let operations_per_second = median(|sample| sample.operations_per_second);
        Point {
            pattern: self.pattern,
            block_bytes: self.block as u64,
            in_flight: self.in_flight,
            bytes_per_second: operations_per_second * self.block as f64,
            operations_per_second,
            latency_us_mean: median(|sample| sample.latency_us_mean),
            latency_us_p99: median(|sample| sample.latency_us_p99),
        }
    }
}

/// `WorkingSet` contains the extents of one device in which the measurement reads and writes. When it is dropped, the
/// extents return to the lease of the job.
struct WorkingSet {
    job: Job,
    device: Arc<dyn Device>,
    places: Vec<ExtentAddress>,
    random: Random,
    /// The offsets of the next sequential read and of the next sequential write.
    next: [u64; 2],
}

impl WorkingSet {
    fn take(job: &Job, number: u16, bytes: Option<u64>) -> Result<WorkingSet> {
        let others: Vec<u16> = job.shared().devices().into_keys().filter(|&other| other != number).collect();
        let device = job.device(number)?;
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => {
                let usage = job.store().usage()?.into_iter().find(|device| device.number == number);
                usage.map_or(0, |device| device.free_bytes / 4).min(WORKING_SET_BYTES)
            }
        };
        let random = Random::new();
        let mut area = WorkingSet { job: job.clone(), device, places: Vec::new(), random, next: [0, 0] };
        for _ in 0..(bytes / EXTENT_BYTES as u64).max(1) {
            job.check_cancelled()?;
            area.places.push(job.lease().take(&others)?);
        }
        Ok(area)
    }

    fn bytes(&self) -> u64 {
        self.places.len() as u64 * EXTENT_BYTES as u64
    }

    /// Fills the working set with random bytes. Reads of space that was never written may be faster than reads of data.
    fn fill(&mut self) -> Result<()> {
        self.job.start_phase("writing", "bytes", self.bytes());
        let block = if self.job.budget().free_bytes() < 16 << 20 { 64 << 10 } else { 1 << 20 };
        let mut buffers = random_buffers(&self.job, block, FILL_IN_FLIGHT)?;
        let mut random = Random::new();
        let mut flight = RequestsInFlight::default();
        for block_number in 0..self.bytes() / block as u64 {
            self.job.check_cancelled()?;
            if buffers.is_empty() {
                buffers.push(flight.wait_any()?.0);
                self.job.progress().add(block as u64);
            }
            let mut buffer = buffers.pop().expect("there is one now");
            fill_random(&mut buffer, &mut random);
            flight.submit(&self.job, Direction::Write, self.block(block_number, block), buffer);
        }
        while !flight.is_empty() {
            flight.wait_any()?;
        }
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        self.device.sync().map_err(|error| Error::io("sync", self.device.name(), error))
    }

    /// Returns the address of a block of the working set.
    fn block(&self, block_number: u64, len: usize) -> Block {
        let byte = block_number * len as u64;
        Block {
            device: self.device.clone(),
            extent: self.places[(byte / EXTENT_BYTES as u64) as usize].extent,
            offset: (byte % EXTENT_BYTES as u64) as usize,
            len,
        }
    }

    fn next_block(&mut self, pattern: AccessPattern, block: usize) -> u64 {
        let blocks = self.bytes() / block as u64;
        if !pattern.is_sequential() {
            return self.random.below(blocks);
        }
        let next = &mut self.next[pattern.is_write() as usize];
        // The previous sample may have had another block size. Sequential requests therefore continue at the next
        // multiple of the current block size.
        let block_number = next.div_ceil(block as u64) % blocks;
        *next = (block_number + 1) * block as u64;
        block_number
    }

    /// Keeps `in_flight` requests in flight for `time`, and submits at least `in_flight` requests. Each of the
    /// `buffers` has room for one block.
    fn sample(
        &mut self,
        pattern: AccessPattern,
        in_flight: usize,
        time: Duration,
        buffers: &mut Vec<Buffer>,
    ) -> Result<Sample> {
        let direction = if pattern.is_write() { Direction::Write } else { Direction::Read };
        let (block, mut waiting) = (buffers[0].len(), buffers.split_off(buffers.len() - in_flight));
        let (mut latencies, mut flight) = (Latencies::default(), RequestsInFlight::default());
        let started = Instant::now();
        loop {
            while let Some(mut buffer) = waiting.pop() {
                if pattern.is_write() {
                    stamp(&mut buffer, &mut self.random);
                }
                let block_number = self.next_block(pattern, block);
                let part = self.block(block_number, block);
                flight.submit(&self.job, direction, part, buffer);
            }
            let (buffer, latency) = flight.wait_any()?;
            latencies.add(latency);
            self.job.check_cancelled()?;
            if started.elapsed() < time {
                waiting.push(buffer)
            } else {
                buffers.push(buffer)
            }
            if flight.is_empty() && waiting.is_empty() {
                break;
            }
        }
        if pattern.is_write() {
            self.sync()?;
        }
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        Ok(Sample {
            operations_per_second: latencies.count as f64 / seconds,
            latency_us_mean: latencies.mean_us(),
            latency_us_p99: latencies.percentile_us(99.0),
        })
    }
}

impl Drop for WorkingSet {
    fn drop(&mut self) {
        self.places.iter().for_each(|&place| self.job.lease().release(place));
    }
}

/// Changes eight bytes in every page of a buffer, so that the drive cannot deduplicate the writes. This takes much less
/// time than new random bytes for all of the buffer.
fn stamp(buffer: &mut Buffer, random: &mut Random) {
    let stamp = random.next();
    for (page, bytes) in buffer.chunks_exact_mut(PAGE_BYTES).enumerate() {
        bytes[..8].copy_from_slice(&(stamp ^ page as u64).to_le_bytes());
    }
}

/// `Block` is a block of the working set.
struct Block {
    device: Arc<dyn Device>,
    extent: u32,
    offset: usize,
    len: usize,
}

/// `RequestsInFlight` contains the requests in flight. Its drop waits for all requests, since their extents may be
/// reused afterwards.
#[derive(Default)]
struct RequestsInFlight {
    pending: Vec<Pending>,
    /// For each request: its direction, its block, and the time of its submission.
    notes: Vec<(Direction, Block, Instant)>,
}

impl RequestsInFlight {
    fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    fn submit(&mut self, job: &Job, direction: Direction, block: Block, buffer: Buffer) {
        let part = part(block.device.clone(), block.extent, block.offset, 0..block.len);
        self.notes.push((direction, block, Instant::now()));
        self.pending.push(job.submit(direction, vec![part], buffer, None));
    }

    /// Waits for one request, and returns its buffer and latency.
    fn wait_any(&mut self) -> Result<(Buffer, Duration)> {
        let index = Pending::wait_any(self.pending.iter());
        let (buffer, result) = self.pending.swap_remove(index).wait();
        let (direction, block, submitted) = self.notes.swap_remove(index);
        let latency = submitted.elapsed();
        result.map_err(|error| {
            let verb = if direction == Direction::Read { "read" } else { "write" };
            let Block { device, extent, offset, len } = block;
            let what = format!("{verb} {len} bytes at {offset} of extent {extent}");
            Error::io(what, device.name(), error)
        })?;
        Ok((buffer, latency))
    }
}

impl Drop for RequestsInFlight {
    fn drop(&mut self) {
        self.pending.drain(..).for_each(|pending| drop(pending.wait()));
    }
}

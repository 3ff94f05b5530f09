//! A drive profile contains the measured speeds of the drives of a store, and estimates the time of reads and writes
//! from them.
//!
//! ```text
//!   DriveProfile ── DeviceProfile (one for each device) ── Point: pattern, block size, requests in flight
//!                                                            └─► bytes a second, latency
//! ```
//!
//! The planner of a job calls [`DriveProfile::read_seconds`]. For each block size, the estimate uses only the fastest
//! point, since the planner also chooses the number of requests in flight. Between block sizes the rate is interpolated
//! on logarithmic scales. On these scales, the curve of an ideal drive consists of two straight lines: operations per
//! second limit the rate for small blocks, and bytes per second for large blocks. A model of only these two limits is
//! wrong for real drives between 16 and 256 KiB. In this range the lines meet, and most plans choose their block size
//! in it.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{EXTENT_BYTES, Error, NewFile, PAGE_BYTES, Result, Store};

const FILE_NAME: &str = "drive.json";
const VERSION: u32 = 1;
/// The largest accepted size of a profile file in bytes. The profile of one device takes about 25 KB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// `AccessPattern` is the order and the direction of transfers: sequential or random, read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessPattern {
    /// Reads, each at the end of the previous one.
    SequentialRead,
    /// Writes, each at the end of the previous one.
    SequentialWrite,
    /// Reads of blocks at random offsets.
    RandomRead,
    /// Writes of blocks at random offsets.
    RandomWrite,
}

impl AccessPattern {
    /// All four patterns, in the order in which reports show them.
    pub const ALL: [AccessPattern; 4] = [
        AccessPattern::SequentialRead,
        AccessPattern::SequentialWrite,
        AccessPattern::RandomRead,
        AccessPattern::RandomWrite,
    ];

    /// Returns true if the pattern writes to the drive.
    pub fn is_write(self) -> bool {
        matches!(self, AccessPattern::SequentialWrite | AccessPattern::RandomWrite)
    }

    /// Returns true if each request continues at the end of the previous one.
    pub fn is_sequential(self) -> bool {
        matches!(self, AccessPattern::SequentialRead | AccessPattern::SequentialWrite)
    }
}

impl fmt::Display for AccessPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            AccessPattern::SequentialRead => "sequential read",
            AccessPattern::SequentialWrite => "sequential write",
            AccessPattern::RandomRead => "random read",
            AccessPattern::RandomWrite => "random write",
        })
    }
}

/// `Point` is the result of a measurement with one pattern, one block size and one number of requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The access pattern: the order and the direction of the transfers.
    pub pattern: AccessPattern,
    /// The number of bytes of each request: a power of two from 4 KiB to 2 MiB.
    pub block_bytes: u64,
    /// The number of requests in flight at once.
    pub in_flight: u32,
    /// The number of bytes per second. For writes, the time includes the sync that makes the bytes durable.
    pub bytes_per_second: f64,
    /// The number of requests per second.
    pub operations_per_second: f64,
    /// The mean latency of a request in microseconds, from its submission until its end was noticed.
    pub latency_us_mean: f64,
    /// The 99th percentile of the latency in microseconds. The value may be too high by up to one eighth.
    pub latency_us_p99: f64,
}

impl Point {
    fn is_sound(&self) -> bool {
        let rates = [self.bytes_per_second, self.operations_per_second];
        let latencies = [self.latency_us_mean, self.latency_us_p99];
        self.block_bytes.is_power_of_two()
            && (PAGE_BYTES as u64..=EXTENT_BYTES as u64).contains(&self.block_bytes)
            && self.in_flight > 0
            && rates.iter().all(|rate| rate.is_finite() && *rate > 0.0)
            && latencies.iter().all(|latency| latency.is_finite() && *latency >= 0.0)
    }
}

/// `DeviceProfile` is the profile of one device of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// The number of the device in the store.
    pub number: u16,
    /// The folder of the device.
    pub path: String,
    /// The time of the measurement, in seconds since 1970.
    pub measured_unix_seconds: u64,
    /// The capacity of the device in bytes. Data is spread over devices in proportion to their capacities.
    pub capacity_bytes: u64,
    /// The size of the working set in bytes, in which the measurement read and wrote. If the drive or the host has a
    /// cache of at least this size, the measured rates are too high.
    pub working_set_bytes: u64,
    /// True if the I/O bypassed the page cache.
    pub direct_io: bool,
    /// The mechanism of asynchronous I/O: "io_uring" or "threads".
    pub io: String,
    /// All points, sorted by pattern, block size and number of requests in flight. Each pattern has at least one point.
    pub points: Vec<Point>,
}

impl DeviceProfile {
    /// Returns the points of a pattern.
    pub fn of(&self, pattern: AccessPattern) -> impl Iterator<Item = &Point> + Clone {
        self.points.iter().filter(move |point| point.pattern == pattern)
    }

    /// Returns the point of a pattern with the most bytes per second.
    pub fn best(&self, pattern: AccessPattern) -> Option<&Point> {
        self.of(pattern).max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
    }

    /// Returns the point of a pattern and a block size with the most bytes per second.
    pub fn best_of_block(&self, pattern: AccessPattern, block_bytes: u64) -> Option<&Point> {
        let points = self.of(pattern).filter(|point| point.block_bytes == block_bytes);
        points.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
    }

    /// Returns the point of a pattern, a block size and a number of requests in flight.
    pub fn point(&self, pattern: AccessPattern, block_bytes: u64, in_flight: u32) -> Option<&Point> {
        self.of(pattern).find(|point| point.block_bytes == block_bytes && point.in_flight == in_flight)
    }

    /// Returns the rate in bytes per second for requests of a given size, at the best number of requests in flight. The
    /// rate never falls as the request size grows.
    fn rate(&self, pattern: AccessPattern, request_bytes: u64) -> f64 {
        let mut curve = BTreeMap::<u64, f64>::new();
        for point in self.of(pattern) {
            let best = curve.entry(point.block_bytes).or_default();
            *best = best.max(point.bytes_per_second);
        }
        let mut best = 0.0f64;
        // A rate that is lower at a larger block size is noise, or the drive is faster with smaller blocks. In both
        // cases a reader can split its requests, so the higher rate is used.
        curve.values_mut().for_each(|rate| {
            best = best.max(*rate);
            *rate = best;
        });
        let request_bytes = request_bytes.max(1);
        let below = curve.range(..=request_bytes).next_back();
        let above = curve.range(request_bytes..).next();
        match (below, above) {
            (Some((&x, &y)), Some((&x2, &y2))) if x2 > x => {
                let part = (request_bytes as f64 / x as f64).ln() / (x2 as f64 / x as f64).ln();
                (y.ln() + part * (y2.ln() - y.ln())).exp()
            }
            (Some((_, &rate)), _) => rate,
            // A request that is smaller than all measured blocks takes as long as the smallest measured block.
            (None, Some((&block_bytes, &rate))) => rate * request_bytes as f64 / block_bytes as f64,
            (None, None) => unreachable!("every pattern has points"),
        }
    }

    fn is_sound(&self) -> bool {
        self.capacity_bytes > 0
            && self.points.iter().all(Point::is_sound)
            && AccessPattern::ALL.iter().all(|&pattern| self.of(pattern).next().is_some())
    }
}

/// `DriveProfile` contains the profiles of the drives of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveProfile {
    version: u32,
    /// The profiles of the measured devices, sorted by device number. There is at least one profile.
    pub devices: Vec<DeviceProfile>,
}

impl Default for DriveProfile {
    /// Returns a conservative guess for stores without a measurement. Three rates are those of the flash card of 2008
    /// in the LLNL article, section "ioMemory benchmark": 446 MB/s of sequential reads, 378 MB/s of sequential writes,
    /// and 328 MB/s of random reads. The other numbers are guesses: 200 MB/s of random writes, and 10,000 operations of
    /// 4 KiB per second. Current drives are faster. A plan that is good for this card does few random reads, and loses
    /// little on a faster drive.
    fn default() -> Self {
        let point = |pattern, block_bytes: u64, in_flight, bytes_per_second: f64| {
            let operations_per_second = bytes_per_second / block_bytes as f64;
            let latency_us = in_flight as f64 / operations_per_second * 1e6;
            Point {
                pattern,
                block_bytes,
                in_flight,
                bytes_per_second,
                operations_per_second,
                latency_us_mean: latency_us,
                latency_us_p99: latency_us,
            }
        };
        let small = 4096.0 * 10e3;
        let points = [
            (AccessPattern::SequentialRead, 446e6),
            (AccessPattern::SequentialWrite, 378e6),
            (AccessPattern::RandomRead, 328e6),
            (AccessPattern::RandomWrite, 200e6),
        ];
        let points = points.into_iter().flat_map(|(pattern, large)| {
            [point(pattern, 4 << 10, 4, small), point(pattern, 128 << 10, 4, large)]
        });
        let device = DeviceProfile {
            number: 0,
            path: String::new(),
            measured_unix_seconds: 0,
            capacity_bytes: 1,
            working_set_bytes: 0,
            direct_io: true,
            io: "none".to_string(),
            points: points.collect(),
        };
        DriveProfile::new(vec![device])
    }
}

impl DriveProfile {
    /// Creates a profile from the profiles of single devices.
    ///
    /// # Panics
    /// Panics if there are no devices, if a device has no point of some pattern, or if a number of a point is
    /// impossible.
    pub fn new(mut devices: Vec<DeviceProfile>) -> DriveProfile {
        assert!(!devices.is_empty() && devices.iter().all(DeviceProfile::is_sound), "{devices:?}");
        devices.sort_by_key(|device| device.number);
        DriveProfile { version: VERSION, devices }
    }

    /// Parses the output of [`DriveProfile::to_json`]. Error messages name the file `path`.
    ///
    /// # Errors
    /// Returns [`Error::BadFormat`] if the file has another version or contains impossible numbers.
    pub fn from_json(json: &[u8], path: &Path) -> Result<DriveProfile> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let bad = |what, found: String, expected: String| Error::BadFormat {
            path: path.to_path_buf(),
            what,
            found,
            expected,
        };
        let no_json = |error: serde_json::Error| bad("JSON", error.to_string(), "a drive profile".into());
        let version = serde_json::from_slice::<Versioned>(json).map_err(no_json)?.version;
        if version != VERSION {
            return Err(bad("version", version.to_string(), VERSION.to_string()));
        }
        let mut profile: DriveProfile = serde_json::from_slice(json).map_err(no_json)?;
        if profile.devices.is_empty() {
            return Err(bad("devices", "none".into(), "at least one".into()));
        }
        if let Some(device) = profile.devices.iter().find(|device| !device.is_sound()) {
            let found = format!("an implausible capacity, rate or latency of device {}", device.number);
            return Err(bad("numbers", found, "positive numbers for every access pattern".into()));
        }
        profile.devices.sort_by_key(|device| device.number);
        Ok(profile)
    }

    /// Returns the profile as JSON, in the format of `docs/format.md`.
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("numbers and strings");
        json.push(b'\n');
        json
    }

    /// Estimates the seconds to read `bytes` bytes in requests of `request_bytes` bytes, at the best number of requests
    /// in flight.
    ///
    /// The model spreads the bytes over the devices in proportion to their capacities, and assumes that the devices
    /// work in parallel. If several devices are folders on one drive, the estimate is too low. The estimate grows with
    /// `bytes`, and never with `request_bytes`. Each call visits all points, so the function is meant for planning and
    /// not for each request.
    ///
    /// ```
    /// use inshore_store::DriveProfile;
    /// let profile = DriveProfile::default();
    /// let stream = profile.read_seconds(1 << 30, 1 << 20, true);
    /// let scattered = profile.read_seconds(1 << 30, 4 << 10, false);
    /// assert!(stream < 3.0 && scattered > 10.0);
    /// ```
    pub fn read_seconds(&self, bytes: u64, request_bytes: u64, is_sequential: bool) -> f64 {
        let pattern = if is_sequential { AccessPattern::SequentialRead } else { AccessPattern::RandomRead };
        self.seconds(pattern, bytes, request_bytes)
    }

    /// Estimates the seconds to write `bytes` bytes: see [`DriveProfile::read_seconds`].
    pub fn write_seconds(&self, bytes: u64, request_bytes: u64, is_sequential: bool) -> f64 {
        let pattern = if is_sequential { AccessPattern::SequentialWrite } else { AccessPattern::RandomWrite };
        self.seconds(pattern, bytes, request_bytes)
    }

    fn seconds(&self, pattern: AccessPattern, bytes: u64, request_bytes: u64) -> f64 {
        let all: f64 = self.devices.iter().map(|device| device.capacity_bytes as f64).sum();
        let seconds = self.devices.iter().map(|device| {
            let share = device.capacity_bytes as f64 / all;
            bytes as f64 * share / device.rate(pattern, request_bytes)
        });
        seconds.fold(0.0, f64::max)
    }
}

impl Store {
    /// Returns the stored results of [`crate::measure`]. The result is `None` if there is no measurement, or if the
    /// file is damaged or of another version. A new measurement replaces such a file.
    pub fn drive_profile(&self) -> Option<DriveProfile> {
        let path = self.path().join(FILE_NAME);
        let is_small = fs::metadata(&path).is_ok_and(|file| file.len() <= FILE_BYTES_MAX);
        DriveProfile::from_json(&is_small.then(|| fs::read(&path).ok())??, &path).ok()
    }

    /// Stores the profiles of measured devices in the folder of the first device, in place of earlier profiles of the
    /// same devices. Returns the profiles of all measured devices.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`Error::BadFormat`] if a file contains bytes that this version cannot interpret.
    ///
    /// # Panics
    /// Panics if `measured` is empty.
    pub fn keep_drive_profile(&self, measured: Vec<DeviceProfile>) -> Result<DriveProfile> {
        let paths = self.device_paths()?;
        let mut devices = self.drive_profile().map_or(Vec::new(), |profile| profile.devices);
        // A new device may have the number of a removed device, so a profile is kept only if the path is the same.
        devices.retain(|old| {
            let is_there = paths.get(&old.number).is_some_and(|path| path == Path::new(&old.path));
            is_there && measured.iter().all(|new| new.number != old.number)
        });
        devices.extend(measured);
        let profile = DriveProfile::new(devices);
        NewFile::write_whole(&self.path().join(FILE_NAME), &profile.to_json())?;
        Ok(profile)
    }
}

/// Removes the profile from the folder of a device that is no longer the first device of the store.
pub(crate) fn forget(home: &Path) {
    // If the file cannot be removed, it does no harm.
    let _ = fs::remove_file(home.join(FILE_NAME));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Memory;

    /// Creates the profile of an ideal drive with a limit of operations per second and a limit of bytes per second.
    fn device(number: u16, capacity_bytes: u64, operations: f64, bandwidth: f64) -> DeviceProfile {
        let mut profile = DriveProfile::default().devices.remove(0);
        let block = |shift| 1u64 << shift;
        let points = AccessPattern::ALL.into_iter().flat_map(|pattern| {
            [12, 14, 16, 18, 20, 21].into_iter().map(move |shift| {
                let bytes_per_second = (operations * block(shift) as f64).min(bandwidth);
                Point {
                    pattern,
                    block_bytes: block(shift),
                    in_flight: 32,
                    bytes_per_second,
                    operations_per_second: bytes_per_second / block(shift) as f64,
                    latency_us_mean: 80.0,
                    latency_us_p99: 200.0,
                }
            })
        });
        profile.points = points.collect();
        DeviceProfile { number, capacity_bytes, path: format!("drive {number}"), ..profile }
    }

    #[test]
    fn a_profile_survives_its_encoding() {
        let path = Path::new("drive.json");
        for profile in
            [DriveProfile::default(), DriveProfile::new(vec![device(1, 5, 1e5, 3e9), device(0, 7, 1e4, 1e9)])]
        {
            assert_eq!(DriveProfile::from_json(&profile.to_json(), path).unwrap(), profile);
        }
    }

    #[test]
    fn hostile_json_is_refused_by_name() {
        let good = String::from_utf8(DriveProfile::default().to_json()).unwrap();
        let changes = [
            ("\"version\": 1", "\"version\": 2", "version: found 2, expected 1"),
            ("\"version\": 1", "\"version\": -1", "JSON"),
            ("\"version\": 1", "\"revision\": 1", "JSON"),
            ("\"bytes_per_second\": 446000000.0", "\"bytes_per_second\": 0.0", "numbers"),
            ("\"bytes_per_second\": 446000000.0", "\"bytes_per_second\": -1", "numbers"),
            ("\"bytes_per_second\": 446000000.0", "\"bytes_per_second\": 1e999", "JSON"),
            ("\"bytes_per_second\": 446000000.0", "\"bytes_per_second\": null", "JSON"),
            ("\"bytes_per_second\": 446000000.0", "\"bytes_per_second\": \"x\"", "JSON"),
            ("\"block_bytes\": 4096", "\"block_bytes\": 0", "numbers"),
            ("\"block_bytes\": 4096", "\"block_bytes\": 5000", "numbers"),
            ("\"block_bytes\": 4096", "\"block_bytes\": 18446744073709551615", "numbers"),
            ("\"in_flight\": 4", "\"in_flight\": 0", "numbers"),
            ("\"capacity_bytes\": 1", "\"capacity_bytes\": 0", "numbers"),
            ("\"latency_us_mean\": 400.0", "\"latency_us_mean\": -1", "numbers"),
            ("random-write", "random-wipe", "JSON"),
            ("random-write", "random-read", "numbers"),
        ];
        for (from, to, what) in changes {
            assert!(good.contains(from), "no {from} in {good}");
            let error =
                DriveProfile::from_json(good.replace(from, to).as_bytes(), Path::new("d")).unwrap_err();
            assert!(error.to_string().starts_with(&format!("d: invalid {what}")), "{to}: {error}");
        }
        for text in ["", "{", "[]", "null", "{\"version\":1}", "{\"version\":1,\"devices\":[]}", "\u{0}"] {
            assert!(DriveProfile::from_json(text.as_bytes(), Path::new("d")).is_err(), "{text:?}");
        }
        let deep = "[".repeat(1 << 20);
        assert!(DriveProfile::from_json(deep.as_bytes(), Path::new("d")).is_err());
        for length in 0..good.len() - 2 {
            assert!(DriveProfile::from_json(&good.as_bytes()[..length], Path::new("d")).is_err(), "{length}");
        }
    }

    #[test]
    fn estimates_grow_with_bytes_and_never_with_the_size_of_requests() {
        let mut noisy = device(0, 1, 1e5, 3e9);
        // The measured rate of this drive is lower for the largest blocks.
        noisy.points.iter_mut().filter(|point| point.block_bytes > 1 << 18).for_each(|point| {
            point.bytes_per_second /= 3.0;
        });
        for profile in [DriveProfile::default(), DriveProfile::new(vec![noisy, device(1, 3, 1e4, 1e9)])] {
            for is_sequential in [false, true] {
                for estimate in [DriveProfile::read_seconds, DriveProfile::write_seconds] {
                    let of = |bytes, request| estimate(&profile, bytes, request, is_sequential);
                    let mut before = f64::INFINITY;
                    for request in (0..24).flat_map(|shift| [1u64 << shift, 3 << shift]).chain([u64::MAX]) {
                        if request.is_power_of_two() {
                            let next = of(1 << 30, request + request / 3);
                            assert!(next <= of(1 << 30, request) * (1.0 + 1e-12), "{request}");
                        }
                        if request.is_power_of_two() || request == u64::MAX {
                            let seconds = of(1 << 30, request);
                            assert!(seconds > 0.0 && seconds <= before * (1.0 + 1e-12), "{request}");
                            before = seconds;
                        }
                        assert!(of(2 << 30, request) > of(1 << 30, request));
                        assert_eq!(of(0, request), 0.0);
                    }
                    assert_eq!(of(1 << 30, 0), of(1 << 30, 1));
                }
            }
        }
    }

    #[test]
    fn estimates_meet_the_measured_points_and_lie_between_them() {
        let profile = DriveProfile::new(vec![device(0, 1, 1e5, 3e9)]);
        let rate = |request| (1u64 << 30) as f64 / profile.read_seconds(1 << 30, request, false);
        let is_near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(is_near(rate(4 << 10), 1e5 * 4096.0) && is_near(rate(1 << 20), 3e9));
        // On a logarithmic scale, 8 KiB is half way between the measured blocks of 4 and 16 KiB. A read of 2 KiB, which
        // is half of the smallest block, takes as long as a read of 4 KiB.
        assert!(is_near(rate(8 << 10), 1e5 * 8192.0), "{}", rate(8 << 10));
        assert!(is_near(rate(2 << 10), 1e5 * 2048.0));
        assert!(is_near(rate(1 << 30), 3e9));
    }

    #[test]
    fn the_slowest_device_for_its_share_determines_the_estimate() {
        let fast = device(0, 1, 1e6, 4e9);
        let one = DriveProfile::new(vec![fast.clone()]).read_seconds(1 << 30, 1 << 20, true);
        let equal = DriveProfile::new(vec![fast.clone(), device(1, 1, 1e6, 4e9)]);
        assert!((equal.read_seconds(1 << 30, 1 << 20, true) / (one / 2.0) - 1.0).abs() < 1e-9);
        let slow = DriveProfile::new(vec![fast, device(1, 1, 1e6, 1e9)]);
        assert!((slow.read_seconds(1 << 30, 1 << 20, true) / (one * 2.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_store_keeps_its_measurements_and_ignores_unknown_versions() {
        let folder = tempfile::tempdir().unwrap();
        let memory: [Arc<Memory>; 2] = [0, 1].map(|_| Arc::new(Memory::new(256)));
        let devices = memory.map(|device| device as Arc<dyn crate::Device>).to_vec();
        let store = Store::open_on(folder.path(), devices).unwrap();
        assert_eq!(store.drive_profile(), None);
        let job = store.job(crate::Budget::new(1 << 20, 1), crate::Cancel::default()).unwrap();
        assert!(job.report().drive_floor.is_none());

        let paths = store.device_paths().unwrap();
        let of = |number, bandwidth| DeviceProfile {
            path: paths[&number].display().to_string(),
            ..device(number, 1, 1e5, bandwidth)
        };
        assert_eq!(store.keep_drive_profile(vec![of(0, 1e9)]).unwrap().devices, [of(0, 1e9)]);
        assert_eq!(store.keep_drive_profile(vec![of(1, 2e9)]).unwrap().devices, [of(0, 1e9), of(1, 2e9)]);
        let profile = store.keep_drive_profile(vec![of(0, 3e9)]).unwrap();
        assert_eq!(profile.devices, [of(0, 3e9), of(1, 2e9)]);
        assert_eq!(store.drive_profile(), Some(profile));
        let floor = job.report().drive_floor.unwrap();
        assert_eq!((floor.read_seconds, floor.write_seconds), (0.0, 0.0));

        let names = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names().filter(|name| name.to_string_lossy().starts_with("drive.json")).count(), 1);
        for text in ["{\"version\":2}", "", "no JSON"] {
            fs::write(folder.path().join(FILE_NAME), text).unwrap();
            assert_eq!(store.drive_profile(), None, "{text:?}");
            assert!(job.report().drive_floor.is_none());
        }
        // A new measurement replaces a file that cannot be parsed.
        assert_eq!(store.keep_drive_profile(vec![of(1, 1e9)]).unwrap().devices, [of(1, 1e9)]);
        forget(folder.path());
        assert_eq!(store.drive_profile(), None);
    }
}

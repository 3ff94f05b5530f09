use std::thread;

use super::*;
use crate::{Budget, Cancel, Fault, Faulty, Limits, Memory, Store, Throttled, job::test_job};

fn plan(blocks: &[usize], in_flight: &[u32]) -> MeasurePlan {
    MeasurePlan {
        seconds: 0.1,
        working_set_bytes: Some(8 << 20),
        blocks: blocks.to_vec(),
        in_flight: in_flight.to_vec(),
        rounds: 2,
    }
}

fn store_on(devices: Vec<Arc<dyn Device>>) -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_on(folder.path(), devices).unwrap();
    (folder, store)
}

fn assert_all_is_handed_back(job: &Job) {
    assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
}

#[test]
fn every_point_of_the_grid_is_measured_and_all_resources_are_returned() {
    let (_folder, job) = test_job(64 << 20, &[]);
    let (blocks, in_flight) = ([4 << 10, 64 << 10, 1 << 20], [1, 4, 16]);
    let profile = measure(&job, 0, &plan(&blocks, &in_flight)).unwrap();
    assert_all_is_handed_back(&job);
    assert_eq!((profile.number, profile.working_set_bytes), (0, 8 << 20));
    assert_eq!(profile.points.len(), 4 * 3 * 3);
    for pattern in AccessPattern::ALL {
        for (block, count) in blocks.iter().flat_map(|&block| in_flight.map(|count| (block, count))) {
            let point = profile.point(pattern, block as u64, count).expect("it was in the plan");
            let bytes = point.operations_per_second * block as f64;
            assert!((point.bytes_per_second / bytes - 1.0).abs() < 1e-9, "{point:?}");
            assert!(point.latency_us_mean > 0.0 && point.latency_us_p99 > 0.0, "{point:?}");
        }
    }
    // The profile survives its encoding as JSON.
    let path = std::path::Path::new("d");
    let profile = crate::DriveProfile::new(vec![profile]);
    assert_eq!(crate::DriveProfile::from_json(&profile.to_json(), path).unwrap(), profile);
}

#[test]
fn a_drive_in_a_folder_is_measured_by_the_ring_or_by_threads() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::init(&[folder.path().join("store")], None).unwrap();
    let job = store.job(Budget::new(32 << 20, 2), Cancel::default()).unwrap();
    let profile = measure(&job, 0, &plan(&[4 << 10, 2 << 20], &[1, 4])).unwrap();
    assert_all_is_handed_back(&job);
    assert!(["io_uring", "threads"].contains(&&profile.io[..]), "{}", profile.io);
    assert_eq!(profile.points.len(), 16);
}

#[test]
fn a_small_budget_leaves_out_large_points_and_no_pattern() {
    let (_folder, job) = test_job(8 << 20, &[]);
    let profile = measure(&job, 0, &plan(&[4 << 10, 1 << 20, 2 << 20], &[1, 64])).unwrap();
    assert_all_is_handed_back(&job);
    for pattern in AccessPattern::ALL {
        let points: Vec<_> = profile.of(pattern).map(|point| (point.block_bytes, point.in_flight)).collect();
        assert_eq!(points, [(4 << 10, 1), (4 << 10, 64), (1 << 20, 1), (2 << 20, 1)]);
    }
    let (_folder, job) = test_job(100 << 10, &[]);
    let error = measure(&job, 0, &plan(&[4 << 10], &[1])).unwrap_err();
    assert!(matches!(error, Error::OverBudget { .. }), "{error}");
    assert_all_is_handed_back(&job);
}

#[test]
fn a_throttled_drive_measures_near_its_limit() {
    let bytes_per_second = 64 << 20;
    let limits = Limits { bytes_per_second, ..Limits::default() };
    let slow = Throttled::new(Arc::new(Memory::new(256)), limits);
    let (_folder, store) = store_on(vec![Arc::new(slow)]);
    let job = store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap();
    let profile = measure(&job, 0, &MeasurePlan { seconds: 1.0, ..plan(&[256 << 10], &[1, 4]) }).unwrap();
    for point in &profile.points {
        let part = point.bytes_per_second / bytes_per_second as f64;
        assert!((0.1..1.2).contains(&part), "{part} of the limit: {point:?}");
    }
    assert_eq!(profile.io, "threads");
}

#[test]
fn a_cancelled_measurement_stops_and_returns_its_resources() {
    let limits = Limits { latency: Duration::from_millis(5), ..Limits::default() };
    let (_folder, store) = store_on(vec![Arc::new(Throttled::new(Arc::new(Memory::new(256)), limits))]);
    // The first measurement is cancelled while the working set is written, the second later.
    for milliseconds in [1, 300] {
        let job = store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap();
        let cancel = job.cancel().clone();
        let stopper = thread::spawn(move || {
            thread::sleep(Duration::from_millis(milliseconds));
            cancel.cancel();
        });
        let plan = MeasurePlan { seconds: 3600.0, ..plan(&[4 << 10, 64 << 10], &[1, 16]) };
        let measured = measure(&job, 0, &plan);
        stopper.join().unwrap();
        assert!(matches!(measured, Err(Error::Cancelled)), "{measured:?}");
        assert_all_is_handed_back(&job);
    }
}

#[test]
fn a_failing_drive_is_reported_by_name_and_all_resources_are_returned() {
    // The 8 MiB of the working set are written in 8 requests. The other requests belong to samples.
    for fault in [
        Fault::FailWrite(0),
        Fault::FailWrite(5),
        Fault::FailWrite(20),
        Fault::FailRead(0),
        Fault::FailRead(30),
        Fault::FailSync(0),
        Fault::FailSync(1),
        Fault::NoSpaceFromWrite(3),
    ] {
        let (_folder, job) = test_job(64 << 20, &[fault]);
        let error = measure(&job, 0, &plan(&[4 << 10, 64 << 10], &[1, 16])).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{fault:?}: {error}");
        assert!(error.to_string().contains("memory"), "{fault:?}: {error}");
        assert_all_is_handed_back(&job);
    }
}

#[test]
fn only_the_named_device_is_written_and_datasets_stay_intact() {
    let memory: [Arc<Memory>; 2] = [0, 1].map(|_| Arc::new(Memory::new(256)));
    let devices = memory.clone().map(|device| Arc::new(Faulty::new(device, &[])));
    let (_folder, store) = store_on(devices.clone().map(|device| device as Arc<dyn Device>).to_vec());
    let job = store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap();
    let mut builder = store.create_dataset(&job, "data", crate::BYTES).unwrap();
    let mut writer = builder.file(crate::BYTES, 4096, 1 << 20).unwrap();
    (0..5u8).for_each(|byte| writer.write(&vec![byte; 1 << 20]).unwrap());
    builder.add(writer).unwrap();
    builder.commit(&[]).unwrap();
    drop(job);

    let job = store.job(Budget::new(64 << 20, 2), Cancel::default()).unwrap();
    devices.iter().for_each(|device| device.set(&[]));
    measure(&job, 1, &plan(&[4 << 10, 1 << 20], &[1, 4])).unwrap();
    assert_eq!(devices[0].counts().1, 0, "the other device was written to");
    assert!(devices[1].counts().1 > 0);
    assert_all_is_handed_back(&job);
    assert!(store.verify(&job, &[], false).unwrap().is_sound());
    assert!(matches!(measure(&job, 7, &plan(&[4096], &[1])), Err(Error::NoDevice { number: 7 })));
    drop(job);
    let used = store.usage().unwrap();
    assert!(used.iter().all(|device| device.job_bytes == 0), "{used:?}");
}

#[test]
fn a_working_set_that_does_not_fit_is_refused() {
    let (_folder, job) = test_job(64 << 20, &[]);
    let plan = MeasurePlan { working_set_bytes: Some(1 << 30), ..plan(&[4 << 10], &[1]) };
    assert!(matches!(measure(&job, 0, &plan), Err(Error::NoSpace { .. })));
    assert_all_is_handed_back(&job);
    let plan = MeasurePlan { working_set_bytes: None, ..plan };
    let profile = measure(&job, 0, &plan).unwrap();
    assert!((2 << 20..=128 << 20).contains(&profile.working_set_bytes), "{}", profile.working_set_bytes);
}

#[test]
fn sequential_requests_wrap_around_and_random_ones_reach_every_block() {
    let (_folder, job) = test_job(64 << 20, &[]);
    let mut area = WorkingSet::take(&job, 0, Some(8 << 20)).unwrap();
    let mut blocks = |pattern, block, count: usize| -> Vec<u64> {
        (0..count).map(|_| area.next_block(pattern, block)).collect()
    };
    assert_eq!(blocks(AccessPattern::SequentialRead, 2 << 20, 5), [0, 1, 2, 3, 0]);
    // The sequential reads continue after the 2 MiB of the last request.
    assert_eq!(blocks(AccessPattern::SequentialRead, 1 << 20, 3), [2, 3, 4]);
    assert_eq!(blocks(AccessPattern::SequentialWrite, 4 << 10, 2), [0, 1]);
    assert_eq!(blocks(AccessPattern::SequentialWrite, 2 << 20, 2), [1, 2]);
    let mut random = blocks(AccessPattern::RandomRead, 1 << 20, 1000);
    random.sort();
    random.dedup();
    assert_eq!(random, (0..8).collect::<Vec<_>>());
}

#[test]
fn percentiles_are_those_of_a_sorted_list_or_an_eighth_more() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let values: Vec<u64> =
            (0..1 + random.below(3000)).map(|_| 8 + random.next() % (1 << (4 + seed * 2))).collect();
        let mut latencies = Latencies::default();
        values.iter().for_each(|&value| latencies.add(Duration::from_nanos(value)));
        let mut sorted = values;
        sorted.sort();
        for percent in [1.0, 50.0, 99.0, 100.0] {
            let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
            let (exact, found) = (sorted[rank - 1] as f64, latencies.percentile_us(percent) * 1000.0);
            let bound = exact..=exact * 1.125 + 1e-6;
            assert!(bound.contains(&found), "seed {seed}, {percent} %: {found} for {exact}");
        }
    }
    assert_eq!(Latencies::default().percentile_us(99.0), 0.0);
    let mut longest = Latencies::default();
    longest.add(Duration::from_nanos(u64::MAX));
    assert!(longest.percentile_us(99.0) > 1e15);
}

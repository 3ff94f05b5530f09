use super::*;
use crate::{Budget, Fault, Faulty, FileReader, FileWriter, Memory, Store, job::test_job};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn write(job: &Job, bytes: &[u8], step: usize) -> Result<CheckedFile> {
    let mut writer = FileWriter::create(job, "file", 4096, 8192)?;
    for part in bytes.chunks(step) {
        writer.write(part)?;
    }
    writer.finish()
}

fn read(job: &Job, file: &CheckedFile, range: Range<u64>) -> Result<Vec<u8>> {
    let mut reader = FileReader::new(job, file, range, file.block_bytes().max(8192))?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// Creates a store on a device that can fail, with a dataset `data` that consists of one file `bytes`.
fn with_dataset(bytes: &[u8]) -> (tempfile::TempDir, Faulty, Store, Job) {
    let folder = tempfile::tempdir().unwrap();
    let device = Faulty::new(Arc::new(Memory::new(512)), &[]);
    let store = Store::open_on(folder.path(), vec![Arc::new(device.clone())]).unwrap();
    let job = store.job(Budget::new(8 << 20, 1), Default::default()).unwrap();
    let mut builder = store.create_dataset(&job, "data", "test").unwrap();
    let mut writer = builder.file("bytes", 4096, 4096 * 64).unwrap();
    writer.write(bytes).unwrap();
    builder.add(writer).unwrap();
    builder.commit(&[]).unwrap();
    (folder, device, store, job)
}

#[test]
fn written_bytes_are_read_back_in_any_range() {
    let (_folder, job) = test_job(1 << 20, &[]);
    for len in [0, 1, 4095, 4096, 4097, 8192, 50_000] {
        let bytes = pattern(len);
        let file = write(&job, &bytes, 777).unwrap();
        assert_eq!(file.len(), len as u64);
        for start in [0, 1, 4096, 8191, 20_000] {
            for end in [1, 4096, 8193, 33_333, len] {
                let (start, end) = (start.min(len), end.min(len));
                if start <= end {
                    let got = read(&job, &file, start as u64..end as u64).unwrap();
                    assert_eq!(got, &bytes[start..end], "{start}..{end} of {len}");
                }
            }
        }
    }
    assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
}

#[test]
fn a_file_in_memory_reads_as_it_does_on_its_drive() {
    let (_folder, job) = test_job(64 << 20, &[]);
    for len in [0, 1, 4097, HELD_PIECE_BYTES, HELD_PIECE_BYTES + 1, 5 * HELD_PIECE_BYTES + 4095] {
        let bytes = pattern(len);
        let file = write(&job, &bytes, 1 << 20).unwrap();
        let before = job.budget().reserved_bytes();
        let mut came = 0;
        let held = file.hold(&job, |bytes| came += bytes).unwrap();
        assert_eq!(came, len as u64);
        assert!(job.budget().reserved_bytes() - before <= CheckedFile::held_bytes(len as u64));
        let reads = job.counters().bytes_read();
        for start in [0, 1, 4096, HELD_PIECE_BYTES - 1, HELD_PIECE_BYTES, 3 * HELD_PIECE_BYTES + 7] {
            for end in [1, 4096, HELD_PIECE_BYTES + 1, len] {
                let (start, end) = (start.min(len), end.min(len));
                if start <= end {
                    let got = read(&job, &held, start as u64..end as u64).unwrap();
                    assert!(got == bytes[start..end], "{start}..{end} of {len}");
                }
            }
        }
        assert_eq!(job.counters().bytes_read(), reads, "nothing more was read");
    }
    assert_eq!(job.budget().reserved_bytes(), 0);
}

#[test]
fn a_damaged_file_is_not_held_in_memory() {
    let (_folder, device, store, job) = with_dataset(&pattern(100_000));
    let hold = || store.dataset("data").unwrap().file("bytes").unwrap().hold(&job, |_| {});
    device.set(&[]);
    hold().unwrap();
    let (reads, ..) = device.counts();
    assert!(reads >= 2, "a header and the bytes");
    // The requested bytes are read last, after the headers.
    for fault in [Fault::FlipRead(reads - 1), Fault::FailRead(reads - 1)] {
        device.set(&[fault]);
        assert!(hold().is_err(), "{fault:?}");
    }
    device.set(&[]);
    assert_eq!(read(&job, &hold().unwrap(), 0..100_000).unwrap(), pattern(100_000));
}

#[test]
fn buffers_and_reads_may_cross_the_borders_of_extents() {
    let bytes = pattern(3 * EXTENT_BYTES + 10_000);
    let (_folder, job) = test_job(32 << 20, &[]);
    let mut writer = FileWriter::create(&job, "file", 4096, 3 * 65536).unwrap();
    writer.write(&bytes).unwrap();
    let scratch = writer.finish().unwrap();
    let (_folder, _, store, other) = with_dataset(&bytes);
    let dataset = store.dataset("data").unwrap().file("bytes").unwrap();
    for (job, file) in [(&job, scratch), (&other, dataset)] {
        let border = EXTENT_BYTES as u64;
        for range in [0..bytes.len() as u64, border - 1..border + 1, border - 5000..2 * border + 5000] {
            let buffer = Buffer::zeroed(job.budget(), file.read_bytes(&range), "test");
            if let Ok(buffer) = buffer {
                let (buffer, wanted) = file.submit_read(job, range.clone(), buffer).unwrap().wait().unwrap();
                assert!(buffer[wanted] == bytes[range.start as usize..range.end as usize], "{range:?}");
            }
            assert!(
                read(job, &file, range.clone()).unwrap() == bytes[range.start as usize..range.end as usize]
            );
        }
    }
}

#[test]
fn every_faulty_read_and_write_is_an_error_and_never_wrong_bytes() {
    let bytes = pattern(100_000);
    let (_folder, job) = test_job(1 << 20, &[]);
    let file = write(&job, &bytes, 5000).unwrap();
    read(&job, &file, 0..100_000).unwrap();
    let faults = (0..13).flat_map(|n| {
        [
            Fault::FailRead(n),
            Fault::FailFromRead(n),
            Fault::FlipRead(n),
            Fault::MisdirectRead(n),
            Fault::FailWrite(n),
            Fault::FailFromWrite(n),
            Fault::DropWrite(n),
            Fault::MisdirectWrite(n),
            Fault::TearWrite(n),
            Fault::NoSpaceFromWrite(n),
        ]
    });
    for fault in faults {
        let (_folder, job) = test_job(1 << 20, &[fault]);
        let result = write(&job, &bytes, 5000).and_then(|file| read(&job, &file, 0..100_000));
        let error = result.expect_err(&format!("{fault:?}")).to_string();
        let told = match fault {
            Fault::NoSpaceFromWrite(_) => "No space left on device",
            Fault::FailRead(_) | Fault::FailFromRead(_) => "Input/output error",
            Fault::FailWrite(_) | Fault::FailFromWrite(_) => "Input/output error",
            _ => "damaged at offset",
        };
        assert!(error.contains(told), "{fault:?}: {error}");
        // A read-ahead that was in flight has ended, so its memory is free.
        assert_eq!(job.budget().reserved_bytes(), 0, "{fault:?}");
    }
}

#[test]
fn every_faulty_read_of_a_dataset_is_an_error_and_never_wrong_bytes() {
    let bytes = pattern(EXTENT_BYTES + 20_000);
    let (_folder, device, store, job) = with_dataset(&bytes);
    let all = 0..bytes.len() as u64;
    let open = || store.dataset("data").unwrap().file("bytes").unwrap();
    let file = open();
    device.set(&[]);
    assert!(read(&job, &file, all.clone()).unwrap() == bytes);
    let reads = device.counts().0;
    assert!(reads > 256, "{reads} reads");
    for n in (0..reads).step_by(7).chain([reads - 1]) {
        for fault in [Fault::FailRead(n), Fault::FlipRead(n), Fault::MisdirectRead(n)] {
            device.set(&[]);
            let file = open();
            device.set(&[fault]);
            // A header that was read ahead is read again when it is needed.
            if let Ok(found) = read(&job, &file, all.clone()) {
                assert!(n == 0 && found == bytes, "{fault:?}");
            }
        }
    }
}

#[test]
fn a_file_with_a_list_of_extents_is_read_back() {
    // The file has 130 extents. The test reads only a few offsets, so that it needs little memory.
    let (_folder, _, store, job) = with_dataset(b"");
    let mut builder = store.create_dataset(&job, "large", "test").unwrap();
    let mut writer = builder.file("bytes", 65536, 1 << 20).unwrap();
    let block = pattern(1 << 20);
    (0..260).for_each(|_| writer.write(&block).unwrap());
    writer.write(b"the end").unwrap();
    builder.add(writer).unwrap();
    builder.commit(&[]).unwrap();
    let dataset = store.dataset("large").unwrap();
    let file = dataset.file("bytes").unwrap();
    let len = file.len();
    assert_eq!(read(&job, &file, len - 7..len).unwrap(), b"the end");
    assert!(read(&job, &file, 200 << 20..(200 << 20) + 9999).unwrap() == block[..9999]);
    let found = dataset.locate(&job, &file, len - 9..len + 5).unwrap();
    let pieces: Vec<_> =
        found.iter().map(|place| (place.len, place.places.len(), place.extent_offset)).collect();
    assert_eq!(pieces, [(2, 1, EXTENT_BYTES as u64 - 2), (7, 1, 0)]);
}

#[test]
fn a_faulty_device_counts_what_it_saw() {
    let (_folder, device, _store, job) = with_dataset(b"");
    job.lease().release(job.lease().take(&[]).unwrap());
    device.set(&[]);
    write(&job, &pattern(20_000), 20_000).unwrap();
    assert_eq!(device.counts().1, 3);
}

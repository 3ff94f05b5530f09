//! Measures the memory of readers and writers, with an allocator that counts.
//!
//! All cases are in one test, since the allocator counts the memory of the whole process. Allocations of zstd, which
//! is written in C, are not counted.
#![allow(missing_docs)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use arrow_ipc::{
    CompressionType,
    writer::{FileWriter, IpcWriteOptions, StreamWriter},
};
use arrow_schema::DataType;
use inshore_store::Budget;
use inshore_tables::{Input, TableReader, TableWriter};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, Encoding, GzipLevel},
    file::properties::{WriterProperties, WriterVersion},
};
use proptest::{prelude::*, test_runner::TestRunner};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer comes from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the maximum number of bytes that were allocated at the same time during `work`. Bytes that were allocated
/// before `work` are not counted.
fn peak_bytes<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (PEAK.load(Relaxed) - before, result)
}

const BUDGET: u64 = 8 << 20;
const COLUMNS: [(&str, DataType); 3] =
    [("src", DataType::UInt64), ("weight", DataType::Float64), ("name", DataType::Utf8)];

fn edges(rows: u64) -> RecordBatch {
    let columns: [(&str, ArrayRef); 3] = [
        ("src", Arc::new(UInt64Array::from_iter_values(0..rows))),
        ("weight", Arc::new(Float64Array::from_iter_values((0..rows).map(|row| row as f64 / 4.0)))),
        ("name", Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("n{}", row % 7))))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn parquet_of(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_file(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Reads all rows of a table.
fn read(path: &Path) -> inshore_tables::Result<()> {
    let mut reader = TableReader::open(&Input::new(path), &COLUMNS, 1024, &Budget::new(BUDGET, 1))?;
    while reader.next_batch()?.is_some() {}
    Ok(())
}

#[test]
fn memory_stays_bounded_in_writers_and_for_hostile_files() {
    let folder = tempfile::tempdir().unwrap();
    writers_hold_little_under_a_small_budget(folder.path());
    pages_that_are_too_large_are_refused_before_they_are_allocated(folder.path());
    schemas_nested_without_end_are_refused_before_they_are_walked(folder.path());
    damaged_tables_neither_panic_nor_take_memory(folder.path());
}

fn writers_hold_little_under_a_small_budget(folder: &Path) {
    let batch = edges(100_000).project(&[0, 1]).unwrap();
    for name in ["t.parquet", "t.arrow", "t.csv"] {
        let (peak, rows) = peak_bytes(|| {
            let budget = Budget::new(BUDGET, 1);
            let mut writer = TableWriter::create(folder.join(name), batch.schema(), &budget).unwrap();
            (0..30).for_each(|_| writer.write(&batch).unwrap());
            writer.finish().unwrap()
        });
        assert_eq!(rows, 3_000_000);
        // The library reserves one MiB for each column of whole numbers, and uses little of this memory.
        assert!(peak < 5 << 19, "{name}: {peak} bytes");
    }
}

fn pages_that_are_too_large_are_refused_before_they_are_allocated(folder: &Path) {
    let path = folder.join("large.parquet");
    let text = "x".repeat(50 << 20);
    let columns: [(&str, ArrayRef); 3] = [
        ("src", Arc::new(UInt64Array::from(vec![1]))),
        ("weight", Arc::new(Float64Array::from(vec![1.0]))),
        ("name", Arc::new(StringArray::from(vec![&text[..]]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(GzipLevel::default())] {
        fs::write(&path, parquet_of(&batch, WriterProperties::builder().set_compression(codec).build()))
            .unwrap();
        let (peak, result) = peak_bytes(|| read(&path));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("a Parquet page of 50.0 MiB"), "{error}");
        assert!(peak < 2 << 20, "{codec}: {peak} bytes");
    }
}

/// The library walks a schema by recursion. Without a check, this file would overflow the stack of the library and end
/// the process.
fn schemas_nested_without_end_are_refused_before_they_are_walked(folder: &Path) {
    let path = folder.join("deep.parquet");
    let levels = 100_000u32;
    // FileMetaData: version 1, a list of SchemaElement { name "n", num_children 1 }, num_rows 0, no row groups.
    let mut footer = vec![0x15, 2, 0x19, 0xfc];
    footer.extend([levels as u8 | 128, (levels >> 7) as u8 | 128, (levels >> 14) as u8]);
    footer.extend([0x48, 1, b'n', 0x15, 2, 0].repeat(levels as usize));
    footer.extend([0x16, 0, 0x19, 0x0c, 0]);
    let length = (footer.len() as u32).to_le_bytes();
    fs::write(&path, [&b"PAR1"[..], &footer, &length, b"PAR1"].concat()).unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("the schema is nested 100000 deep"), "{error}");
}

/// A damaged file may give any rows or an error, but no panic and no unbounded memory. Damage in plain values cannot be
/// detected, since neither format has checksums by default.
fn damaged_tables_neither_panic_nor_take_memory(folder: &Path) {
    let small = WriterProperties::builder().set_data_page_row_count_limit(16).build();
    let packed = WriterProperties::builder()
        .set_compression(Compression::GZIP(GzipLevel::default()))
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_column_encoding("name".into(), Encoding::PLAIN)
        .set_dictionary_enabled(false)
        .build();
    let files = vec![
        ("e.arrow", arrow_file(&edges(40), None)),
        ("e.arrow", arrow_file(&edges(40), Some(CompressionType::LZ4_FRAME))),
        ("e.arrow", arrow_stream(&edges(40))),
        ("e.parquet", parquet_of(&edges(40), small)),
        ("e.parquet", parquet_of(&edges(40), packed)),
        ("e.csv", b"src,name,weight\n1,a,0.5\n2,\"b\",1\n".to_vec()),
    ];
    let flips = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let damaged = (prop::sample::select(files), flips).prop_map(|((name, mut bytes), flips)| {
        for (place, value) in flips {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        (name, bytes)
    });
    // Without a hook that prints nothing, each panic that the reader catches would load the debug information for its
    // backtrace.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let config = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&damaged, |(name, bytes)| {
        let path: PathBuf = folder.join(name);
        fs::write(&path, &bytes).unwrap();
        let (peak, _) = peak_bytes(|| read(&path));
        prop_assert!(peak < 4 << 20, "{name}: {peak} bytes");
        Ok(())
    });
    std::panic::set_hook(hook);
    outcome.unwrap();
}

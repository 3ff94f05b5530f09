use std::{sync::Arc, time::Instant};
use arrow::{array::*, record_batch::RecordBatch};
use inshore_store::Budget;
use inshore_tables::TableWriter;
use parquet::{arrow::ArrowWriter, basic::*, file::properties::*};
fn hwm() -> u64 { std::fs::read_to_string("/proc/self/status").unwrap().lines().find(|l| l.starts_with("VmHWM")).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap() }
fn batch(from: u64, rows: usize) -> RecordBatch {
    let mut r = from + 1;
    let mut next = || { r = r.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); r >> 33 };
    let ids: Vec<u64> = (0..rows as u64).map(|row| 3 * (from + row) + next() % 3).collect();
    let comp: Vec<u64> = (0..rows).map(|_| if next() % 10 < 8 { 5 } else { next() }).collect();
    let ranks: Vec<f64> = (0..rows).map(|_| 0.15e-7 + 1e-7 / (1 + next() % 100000) as f64).collect();
    RecordBatch::try_from_iter([("vertex", Arc::new(UInt64Array::from(ids)) as ArrayRef), ("comp", Arc::new(UInt64Array::from(comp))), ("rank", Arc::new(Float64Array::from(ranks)))]).unwrap()
}
fn main() {
    let n = 40u64; let rows = 100_000;
    if std::env::args().nth(1).as_deref() == Some("mem") {
        let ending = std::env::args().nth(2).unwrap();
        let mb: u64 = std::env::args().nth(3).unwrap().parse().unwrap();
        let _ = batch(0, rows);
        let before = hwm();
        let t = Instant::now();
        let path = format!("/tmp/measure_out.{ending}");
        let mut w = TableWriter::create(&path, batch(0, 1).schema(), &Budget::new(mb << 20, 1)).unwrap();
        for i in 0..n { w.write(&batch(i * rows as u64, rows)).unwrap(); }
        w.finish().unwrap();
        println!("{ending} {mb}MiB: {} KiB more, {:.2} s, {} bytes", hwm() - before, t.elapsed().as_secs_f64(), std::fs::metadata(&path).unwrap().len());
        return;
    }
    let batches: Vec<_> = (0..n).map(|i| batch(i * rows as u64, rows)).collect();
    for (cn, c) in [("none", Compression::UNCOMPRESSED), ("snappy", Compression::SNAPPY), ("lz4", Compression::LZ4_RAW), ("zstd1", Compression::ZSTD(ZstdLevel::try_new(1).unwrap()))] {
        for (ie, i) in [("delta", Encoding::DELTA_BINARY_PACKED), ("plain", Encoding::PLAIN)] {
            for (fe, f) in [("plain", Encoding::PLAIN), ("bss", Encoding::BYTE_STREAM_SPLIT)] {
                let p = WriterProperties::builder().set_compression(c).set_dictionary_enabled(false).set_column_encoding("vertex".into(), i).set_column_encoding("comp".into(), i).set_column_encoding("rank".into(), f).set_data_page_row_count_limit(16384).build();
                let t = Instant::now();
                let mut w = ArrowWriter::try_new(Vec::new(), batches[0].schema(), Some(p)).unwrap();
                for b in &batches { for k in (0..rows).step_by(10000) { w.write(&b.slice(k, 10000)).unwrap(); } }
                let m = w.close().unwrap();
                let sizes: Vec<_> = (0..3).map(|c| m.row_groups().iter().map(|g| g.column(c).compressed_size()).sum::<i64>() as f64 / (n * rows as u64) as f64).collect();
                println!("{cn} int {ie} float {fe}: {:.2} s, bytes/value {sizes:.2?}", t.elapsed().as_secs_f64());
            }
        }
    }
}

use std::{fs, io::Write, path::PathBuf};

use ::parquet::{
    arrow::ArrowWriter,
    basic::{Compression, Encoding, GzipLevel, ZstdLevel},
    file::properties::{WriterProperties, WriterVersion},
};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, DurationMillisecondArray, Float64Array, Int32Array, Int64Array,
    LargeStringArray, NullArray, StringArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    UInt32Array, UInt64Array,
    cast::AsArray,
    types::{Float64Type, Int32Type, Int64Type, UInt64Type},
};
use arrow_ipc::{
    CompressionType, MetadataVersion,
    writer::{FileWriter, IpcWriteOptions, StreamWriter},
};
use arrow_select::concat::concat_batches;
use tempfile::TempDir;

use super::*;
use crate::{FilePart, PartBytes};

const SMALL: u64 = 8 << 20;

fn file(name: &str, bytes: &[u8]) -> (TempDir, Input) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    (folder, Input::new(path))
}

fn read_with(
    name: &str,
    bytes: &[u8],
    columns: &[(&str, DataType)],
    batch_rows: usize,
    budget_bytes: u64,
) -> Result<RecordBatch> {
    let (_folder, input) = file(name, bytes);
    let budget = Budget::new(budget_bytes, 1);
    let mut reader = TableReader::open(&input, columns, batch_rows, &budget)?;
    let mut batches = Vec::new();
    while let Some(batch) = reader.next_batch()? {
        assert!(batch.num_rows() > 0 && batch.num_rows() <= batch_rows);
        batches.push(batch);
    }
    assert!(reader.next_batch()?.is_none());
    assert!(reader.position() <= bytes.len() as u64 && reader.position() > 0);
    let whole = concat_batches(reader.schema(), &batches).unwrap();
    drop(reader);
    assert_eq!(budget.reserved_bytes(), 0);
    Ok(whole)
}

fn read(name: &str, bytes: &[u8], columns: &[(&str, DataType)]) -> Result<RecordBatch> {
    read_with(name, bytes, columns, 1000, SMALL)
}

fn refusal(name: &str, bytes: &[u8], columns: &[(&str, DataType)]) -> String {
    read(name, bytes, columns).unwrap_err().to_string()
}

fn batch(columns: impl IntoIterator<Item = (&'static str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn edges(rows: u64) -> RecordBatch {
    batch([
        ("src", Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|row| row / 3))) as ArrayRef),
        ("name", Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("n{}", row % 7))))),
        ("dst", Arc::new(UInt32Array::from_iter_values((0..rows as u32).map(|row| row * 2)))),
        ("weight", Arc::new(Float64Array::from_iter_values((0..rows).map(|row| row as f64 / 4.0)))),
    ])
}

const WANTED: [(&str, DataType); 4] = [
    ("dst", DataType::UInt64),
    ("src", DataType::UInt64),
    ("weight", DataType::Float64),
    ("name", DataType::Utf8),
];

fn check_edges(found: &RecordBatch, rows: u64) {
    assert_eq!(found.num_rows() as u64, rows);
    let [dst, src] = [0, 1].map(|column| found.column(column).as_primitive::<UInt64Type>());
    let weight = found.column(2).as_primitive::<Float64Type>();
    let name = found.column(3).as_string::<i32>();
    for row in 0..rows {
        let at = row as usize;
        assert_eq!((dst.value(at), src.value(at)), (row * 2, row / 3));
        assert_eq!((weight.value(at), name.value(at)), (row as f64 / 4.0, &*format!("n{}", row % 7)));
    }
}

fn parquet(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_file(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch.slice(0, batch.num_rows() / 2)).unwrap();
    writer.write(&batch.slice(batch.num_rows() / 2, batch.num_rows().div_ceil(2))).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn parquet_of_every_codec_version_and_coding_is_read() {
    let rows = 5000;
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
        Compression::LZ4,
    ];
    for codec in codecs {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for dictionary in [true, false] {
                let properties = WriterProperties::builder()
                    .set_compression(codec)
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
                    .set_column_encoding("name".into(), Encoding::PLAIN)
                    .set_max_row_group_row_count(Some(1700))
                    .set_data_page_row_count_limit(300)
                    .build();
                let bytes = parquet(&edges(rows), properties);
                for batch_rows in [7, 1024, 10_000] {
                    let found = read_with("e.parquet", &bytes, &WANTED, batch_rows, SMALL).unwrap();
                    check_edges(&found, rows);
                }
            }
        }
    }
}

/// Another library wrote these files, since this crate has no encoder for their codecs: see test_data/README.md.
#[test]
fn parquet_that_is_packed_by_brotli_is_read_or_refused_by_name() {
    let files: [&[u8]; 2] = [
        include_bytes!("../../test_data/brotli_1.parquet"),
        include_bytes!("../../test_data/brotli_2.parquet"),
    ];
    for bytes in files {
        let found = read("b.parquet", bytes, &WANTED);
        if !cfg!(feature = "records") {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("compressed with Brotli, which needs the feature `records`"), "{error}");
            continue;
        }
        check_edges(&found.unwrap(), 500);
        // A damaged file may be read or refused, but it must not cause a panic.
        for place in (0..bytes.len()).step_by(3) {
            for flip in [1, 0xff] {
                let mut damaged = bytes.to_vec();
                damaged[place] ^= flip;
                _ = read("b.parquet", &damaged, &WANTED);
            }
        }
    }
}

#[test]
fn arrow_files_and_streams_packed_or_not_are_read() {
    let whole = edges(5000);
    let stream = arrow_stream(&whole);
    for bytes in [
        arrow_file(&whole, None),
        arrow_file(&whole, Some(CompressionType::LZ4_FRAME)),
        arrow_file(&whole, Some(CompressionType::ZSTD)),
        gzip(&arrow_file(&whole, None)),
        stream[..stream.len() - 8].to_vec(),
        stream,
    ] {
        check_edges(&read("e.arrow", &bytes, &WANTED).unwrap(), 5000);
    }
}

#[test]
fn csv_and_tsv_are_read_packed_or_not_with_any_line_ends() {
    let mut text = "src,name,dst,weight\n".to_string();
    for row in 0..5000u32 {
        text += &format!("{},\"n{}\",{},{}\n", row / 3, row % 7, row * 2, f64::from(row) / 4.0);
    }
    check_edges(&read("e.csv", text.as_bytes(), &WANTED).unwrap(), 5000);
    check_edges(&read("e.csv", text.replace('\n', "\r\n").as_bytes(), &WANTED).unwrap(), 5000);
    check_edges(&read("e.csv", format!("\u{feff}{}", text.trim_end()).as_bytes(), &WANTED).unwrap(), 5000);
    check_edges(&read("e.csv.gz", &gzip(text.as_bytes()), &WANTED).unwrap(), 5000);
    check_edges(
        &read("e.tsv.zst", &zstd::encode_all(text.replace(',', "\t").as_bytes(), 1).unwrap(), &WANTED)
            .unwrap(),
        5000,
    );
}

#[test]
fn the_names_of_the_columns_are_given_before_a_choice() {
    let (_folder, input) = file("e.csv", b"a, b ,c\n1,2,3\n");
    let budget = Budget::new(SMALL, 1);
    assert_eq!(column_names(&input, &budget).unwrap(), ["a", "b", "c"]);
    let mut reader = TableReader::open_with(&input, 10, &budget, |names| {
        Ok(vec![
            Field::new(&names[2], DataType::UInt64, false),
            Field::new(&names[0], DataType::Float64, false),
        ])
    })
    .unwrap();
    let found = reader.next_batch().unwrap().unwrap();
    assert_eq!(found.column(0).as_primitive::<UInt64Type>().value(0), 3);
    assert_eq!(found.schema().field(1).name(), "a");
}

#[test]
fn a_column_that_may_have_nulls_gives_them() {
    let (_folder, input) = file("e.csv", b"a,b\n1,\n,0.5\n");
    let budget = Budget::new(SMALL, 1);
    let fields = vec![Field::new("a", DataType::UInt64, true), Field::new("b", DataType::Float64, true)];
    let mut reader = TableReader::open_with(&input, 10, &budget, |_| Ok(fields)).unwrap();
    let found = reader.next_batch().unwrap().unwrap();
    let nulls = |column: usize| [0, 1].map(|row| found.column(column).is_null(row));
    assert_eq!((nulls(0), nulls(1)), ([false, true], [true, false]));
    let error = refusal("e.csv", b"a\n\"\"\n", &[("a", DataType::UInt64)]);
    assert!(error.contains("e.csv:2"), "{error}");
}

#[test]
fn columns_that_are_missing_double_or_of_another_kind_are_refused_by_name() {
    let id = |name| [(name, DataType::UInt64)];
    let (_folder, twice) = file("e.csv", b"a,b,b\n1,2,3\n");
    let opened = TableReader::open(&twice, &id("b"), 10, &Budget::new(SMALL, 1));
    let error = opened.err().unwrap().to_string();
    assert!(error.contains("2 columns are called 'b', expected one; the columns are a, b, b"), "{error}");
    let error = refusal("e.arrow", &arrow_file(&edges(3), None), &id("to"));
    assert!(error.contains("no column 'to'") && error.contains("src, name, dst, weight"), "{error}");
    for (name, bytes) in [
        ("e.arrow", arrow_file(&edges(3), None)),
        ("e.parquet", parquet(&edges(3), WriterProperties::default())),
    ] {
        let error = refusal(name, &bytes, &id("weight"));
        assert!(
            error.contains("column 'weight' has type Float64, which cannot be read as UInt64"),
            "{error}"
        );
        assert!(refusal(name, &bytes, &[("src", DataType::Binary)]).contains("cannot be read as Binary"));
    }
}

#[test]
fn dictionary_columns_are_read_as_their_values() {
    let coded: DictionaryArray<Int32Type> = (0..3000).map(|row| ["a", "bc", "def"][row % 3]).collect();
    let numbers = Int64Array::from_iter_values(0..3);
    let places = Int32Array::from_iter_values((0..3000).map(|row| row % 3));
    let number: DictionaryArray<Int32Type> = DictionaryArray::new(places, Arc::new(numbers));
    let ids = UInt64Array::from_iter_values(0..3000);
    let nothing = NullArray::new(3000);
    let whole = batch([
        ("id", Arc::new(ids) as ArrayRef),
        ("name", Arc::new(coded)),
        ("number", Arc::new(number)),
        ("nothing", Arc::new(nothing)),
    ]);
    for bytes in
        [arrow_file(&whole, None), arrow_file(&whole, Some(CompressionType::ZSTD)), arrow_stream(&whole)]
    {
        let (_folder, input) = file("e.arrow", &bytes);
        let budget = Budget::new(SMALL, 1);
        let mut reader = TableReader::open_stored(&input, None, &[], 10_000, &budget, (0, 1)).unwrap();
        let mut batches = Vec::new();
        while let Some(batch) = reader.next_batch().unwrap() {
            batches.push(batch);
        }
        let found = concat_batches(reader.schema(), &batches).unwrap();
        assert_eq!(found.column(1).as_string::<i32>().value(2999), "def");
        assert_eq!(found.column(2).as_primitive::<Int64Type>().value(2998), 1);
        assert_eq!((found.column(3).data_type(), found.column(3).null_count()), (&DataType::Utf8, 3000));
        // Nested columns that are not chosen are skipped.
        assert_eq!(read("e.arrow", &bytes, &[("id", DataType::UInt64)]).unwrap().num_rows(), 3000);
        assert_eq!(read("e.arrow", &bytes, &[("name", DataType::Utf8)]).unwrap().num_rows(), 3000);
    }
    // A null may be among the keys of the rows, or among the values of the dictionary.
    let values = StringArray::from(vec![Some("a"), None]);
    let places = Int32Array::from(vec![Some(0), Some(1), None]);
    let nulls: DictionaryArray<Int32Type> = DictionaryArray::new(places, Arc::new(values));
    let whole = batch([("name", Arc::new(nulls) as ArrayRef)]);
    let (_folder, input) = file("e.arrow", &arrow_stream(&whole));
    let budget = Budget::new(SMALL, 1);
    let mut reader = TableReader::open_stored(&input, None, &[], 10, &budget, (0, 1)).unwrap();
    let found = reader.next_batch().unwrap().unwrap();
    let found: Vec<Option<&str>> = found.column(0).as_string::<i32>().iter().collect();
    assert_eq!(found, [Some("a"), None, None]);
    // A dictionary above a quarter of the budget causes an error that names its size, but only if its column is chosen.
    let long: DictionaryArray<Int32Type> = ["x".repeat(3 << 20).as_str()].into_iter().collect();
    let whole = batch([("id", Arc::new(UInt64Array::from(vec![1])) as ArrayRef), ("name", Arc::new(long))]);
    let bytes = arrow_stream(&whole);
    let error = refusal("e.arrow", &bytes, &[("name", DataType::Utf8)]);
    assert!(
        error.contains("an Arrow dictionary of") && error.contains("exceeds the limit of 2 MiB"),
        "{error}"
    );
    assert_eq!(read("e.arrow", &bytes, &[("id", DataType::UInt64)]).unwrap().num_rows(), 1);
}

#[test]
fn times_keep_their_zones_and_durations_are_no_numbers() {
    let zone: Arc<str> = "Europe/Berlin".into();
    let seconds = [0i64, 253_402_300_799];
    let whole = batch([
        (
            "t",
            Arc::new(TimestampMicrosecondArray::from(seconds.to_vec()).with_timezone(zone.clone()))
                as ArrayRef,
        ),
        ("d", Arc::new(DurationMillisecondArray::from(vec![5, -7]))),
        ("u", Arc::new(TimestampMillisecondArray::from(vec![1, 2]).with_timezone("UTC"))),
    ]);
    let bytes = parquet(&whole, WriterProperties::default());
    let (folder, input) = file("e.parquet", &bytes);
    let budget = Budget::new(SMALL, 1);
    // The table writer also preserves time zones and durations.
    let copy = folder.path().join("copy.parquet");
    let mut writer = crate::TableWriter::create(&copy, whole.schema(), &budget).unwrap();
    writer.write(&whole).unwrap();
    writer.finish().unwrap();
    for input in [input, Input::new(copy)] {
        let mut reader = TableReader::open_stored(&input, None, &[], 10, &budget, (0, 1)).unwrap();
        let found = reader.next_batch().unwrap().unwrap();
        assert_eq!(found.columns(), whole.columns());
    }
}

#[test]
fn csv_errors_name_the_line() {
    let id = [("a", DataType::UInt64)];
    let text = |line: &str| format!("a,b\r\n1,\"two\nlines\"\r\n\r\n3,4\r\n{line}\r\n5,6\r\n");
    for (line, expected) in [
        ("foo,1", ":6: expected a whole number from 0 to 2^64-1 in column 'a', got 'foo'"),
        ("-1,1", ":6: expected a whole number from 0 to 2^64-1 in column 'a', got '-1'"),
        ("\"a\nb\",\"\n\n\"", ":6: expected a whole number from 0 to 2^64-1 in column 'a', got 'a\\nb'"),
        (",1", ":6: expected a whole number from 0 to 2^64-1 in column 'a', got ''"),
        ("18446744073709551616,1", "got '18446744073709551616'"),
        ("1,2,3", ":6: expected 2 fields as in the first line, got 3"),
        ("1", ":6: expected 2 fields as in the first line, got 1"),
    ] {
        let error = refusal("e.csv", text(line).as_bytes(), &id);
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert!(refusal("e.csv", b"a\n\xff\n", &[("a", DataType::Utf8)]).contains(":2: expected text in UTF-8"));
    assert!(refusal("e.csv", b"", &id).contains("expected a line with the names"));
}

#[test]
fn values_that_do_not_fit_are_refused_with_row_and_column() {
    let ids = |values: Vec<Option<i64>>| batch([("id", Arc::new(Int64Array::from(values)) as ArrayRef)]);
    let with = |row: usize, value| {
        let mut values: Vec<_> = (0..3000).map(Some).collect();
        values[row] = value;
        ids(values)
    };
    for (whole, kind, expected) in [
        (
            with(2500, Some(-7)),
            DataType::UInt64,
            "row 2500, column 'id': expected a value of type UInt64, got '-7'",
        ),
        (
            with(2500, None),
            DataType::UInt64,
            "row 2500, column 'id': expected a value of type UInt64, got null",
        ),
        (with(1, Some(1 << 40)), DataType::UInt32, "row 1, column 'id': expected a value of type UInt32"),
    ] {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(900)).build();
        for (name, bytes) in
            [("e.parquet", parquet(&whole, properties)), ("e.arrow", arrow_file(&whole, None))]
        {
            let error = refusal(name, &bytes, &[("id", kind.clone())]);
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}

#[test]
fn a_reader_that_failed_gives_no_more_rows() {
    let (_folder, input) = file("e.csv", b"a\nx\n1\n");
    let budget = Budget::new(SMALL, 1);
    let mut reader = TableReader::open(&input, &[("a", DataType::UInt64)], 10, &budget).unwrap();
    assert!(reader.next_batch().is_err());
    assert!(reader.next_batch().unwrap_err().to_string().contains("an earlier read failed"));
}

#[test]
fn files_that_are_not_what_their_name_says_are_refused() {
    let id = [("a", DataType::UInt64)];
    for name in ["e.parquet", "e.arrow"] {
        for bytes in [&b""[..], b"a", b"a,b\n1,2\n3,4\n", &[0; 1000], &[0xff; 1000]] {
            assert!(refusal(name, bytes, &id).contains(name));
        }
    }
    assert!(refusal("e.xlsx", b"", &id).contains("the file extension \"xlsx\" cannot be read"));
    let packed = gzip(&parquet(&edges(10), WriterProperties::default()));
    assert!(refusal("e.parquet.gz", &packed, &id).contains("must be a plain file"));
    let missing = TableReader::open(&Input::new("none.parquet"), &id, 10, &Budget::new(SMALL, 1));
    assert!(matches!(missing.err().unwrap(), Error::Io { .. }));
}

#[test]
fn parquet_pages_above_a_quarter_of_the_budget_are_refused_by_name_and_size() {
    let text = "x".repeat(3 << 20);
    let long = batch([("name", Arc::new(StringArray::from(vec![&text[..]; 2])) as ArrayRef)]);
    for (dictionary, codec) in [
        (true, Compression::UNCOMPRESSED),
        (false, Compression::SNAPPY),
        (true, Compression::GZIP(GzipLevel::default())),
    ] {
        let properties =
            WriterProperties::builder().set_dictionary_enabled(dictionary).set_compression(codec).build();
        let bytes = parquet(&long, properties);
        let error = refusal("e.parquet", &bytes, &[("name", DataType::Utf8)]);
        assert!(error.contains("column 'name'") && error.contains("a Parquet page of"), "{error}");
        assert!(error.contains("exceeds the limit of 2 MiB"), "{error}");
        assert!(read_with("e.parquet", &bytes, &[("name", DataType::Utf8)], 10, 64 << 20).is_ok());
    }
}

/// The file has three numbers, 1000001 to 1000003, in a page with a checksum, as pyarrow 26.0.1 writes them
/// (`write_page_checksum=True`).
const WITH_CHECKSUM: &str = "\
    5041523115001524152415b3a2838d0b1c15061500150615061c00000002000000060141420f0042420f0043420f001504192c35\
    001806736368656d6115020015022502180161001606191c191c26001c1502192506001918016115001606165616562608491c15\
    0015001502003c2906192600060000001656160626081656002820706172717565742d6370702d6172726f772076657273696f6e\
    2032362e302e31191c1c0000007a00000050415231\
";

fn bytes_of(digits: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.as_bytes().chunks(2).map(byte).collect()
}

#[test]
fn a_flipped_bit_in_a_parquet_page_with_a_checksum_is_an_error() {
    let mut bytes = bytes_of(WITH_CHECKSUM);
    let a = [("a", DataType::Int32)];
    let found = read("c.parquet", &bytes, &a).unwrap();
    assert_eq!(found.column(0).as_primitive::<Int32Type>().values(), &[1_000_001, 1_000_002, 1_000_003]);
    let value = bytes.windows(4).position(|word| word == 1_000_002i32.to_le_bytes()).unwrap();
    bytes[value] ^= 1;
    let error = refusal("c.parquet", &bytes, &a);
    assert!(error.contains("c.parquet") && error.contains("checksum"), "{error}");
}

/// Dremio writes files in which the offset of a missing dictionary is 0.
#[test]
fn a_parquet_dictionary_at_offset_0_is_ignored() {
    let (offset, footer) = ("2608491c", "7a00000050415231");
    assert!(WITH_CHECKSUM.contains(offset) && WITH_CHECKSUM.ends_with(footer));
    // The new field 11 of the column's metadata adds two bytes to the footer.
    let digits = WITH_CHECKSUM.replace(offset, "26082600291c").replace(footer, "7c00000050415231");
    let found = read("d.parquet", &bytes_of(&digits), &[("a", DataType::Int32)]).unwrap();
    assert_eq!(found.column(0).as_primitive::<Int32Type>().values(), &[1_000_001, 1_000_002, 1_000_003]);
}

/// The checksum of a page covers its compressed bytes. The files are described in test_data/README.md.
#[test]
fn checksums_of_packed_parquet_pages_are_compared_before_unpacking() {
    let files: [&[u8]; 4] = [
        include_bytes!("../../test_data/gzip_1.parquet"),
        include_bytes!("../../test_data/gzip_2.parquet"),
        include_bytes!("../../test_data/lz4_1.parquet"),
        include_bytes!("../../test_data/lz4_2.parquet"),
    ];
    for bytes in files {
        check_edges(&read("c.parquet", bytes, &WANTED).unwrap(), 500);
        let footer_bytes = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        let mut by_checksum = 0;
        for place in (4..bytes.len() - 8 - footer_bytes).step_by(7) {
            let mut damaged = bytes.to_vec();
            damaged[place] ^= 1;
            // Page headers have no checksum, and a changed flag in a header may have no effect.
            match read("c.parquet", &damaged, &WANTED) {
                Ok(found) if found.num_rows() == 500 => {}
                Ok(found) => panic!("{} rows where byte {place} is damaged", found.num_rows()),
                Err(error) => by_checksum += usize::from(error.to_string().contains("checksum")),
            }
        }
        // Most bytes of the file belong to pages, whose checksums find the damage.
        assert!(by_checksum > bytes.len() / 7 / 3, "{by_checksum} of {} bytes", bytes.len());
    }
}

#[test]
fn arrow_of_a_future_version_is_refused() {
    let mut bytes = arrow_stream(&edges(10));
    let version = |bytes: &[u8]| arrow_ipc::root_as_message(&bytes[8..]).map(|message| message.version());
    assert_eq!(version(&bytes), Ok(MetadataVersion::V5));
    // The version is a number of 16 bits somewhere in the first message.
    let place = (8..200).find(|&at| {
        bytes[at] += 1;
        let is_found = version(&bytes) == Ok(MetadataVersion(MetadataVersion::V5.0 + 1));
        bytes[at] -= u8::from(!is_found);
        is_found
    });
    assert!(place.is_some());
    let error = refusal("v.arrow", &bytes, &WANTED);
    assert!(error.contains("version V6 is not supported, V1 to V5 are"), "{error}");
}

#[test]
fn arrow_batches_above_a_quarter_of_the_budget_are_refused_by_size() {
    let whole = batch([("id", Arc::new(UInt64Array::from(vec![7; 600_000])) as ArrayRef)]);
    let id = [("id", DataType::UInt64)];
    for (compression, what) in
        [(None, "an Arrow record batch"), (Some(CompressionType::ZSTD), "an unpacked Arrow record batch")]
    {
        let bytes = arrow_file(&whole, compression);
        let error = refusal("e.arrow", &bytes, &id);
        assert!(error.contains(what) && error.contains("2.3 MiB exceeds the limit of 2 MiB"), "{error}");
        assert_eq!(read_with("e.arrow", &bytes, &id, 1000, 16 << 20).unwrap().num_rows(), 600_000);
    }
}

#[test]
fn a_csv_record_above_a_quarter_of_the_budget_is_refused_with_its_line() {
    let text = format!("a,b\n1,2\n3,\"{}", "x\n".repeat(3 << 20));
    let error = refusal("e.csv", text.as_bytes(), &[("a", DataType::UInt64)]);
    assert!(
        error.contains("e.csv:3: a CSV record") && error.contains("exceeds the limit of 2 MiB"),
        "{error}"
    );
}

/// A million rows that refer to one dictionary string of 1 MiB would be 1 TiB of text. This test has 50 MiB.
#[test]
fn long_strings_that_repeat_come_in_batches_of_few_rows() {
    let text = "x".repeat(500 << 10);
    let rows = 100;
    let long = batch([("name", Arc::new(StringArray::from(vec![&text[..]; rows])) as ArrayRef)]);
    let (_folder, input) = file("e.parquet", &parquet(&long, WriterProperties::default()));
    let budget = Budget::new(SMALL, 1);
    let mut reader = TableReader::open(&input, &[("name", DataType::Utf8)], 100_000, &budget).unwrap();
    let mut found = 0;
    while let Some(batch) = reader.next_batch().unwrap() {
        assert!(batch.get_array_memory_size() < 5 << 20);
        found += batch.num_rows();
    }
    assert_eq!(found, rows);
}

#[test]
fn large_strings_are_read_as_text() {
    let large = batch([("name", Arc::new(LargeStringArray::from(vec!["a", "b"])) as ArrayRef)]);
    let found = read("e.arrow", &arrow_file(&large, None), &[("name", DataType::Utf8)]).unwrap();
    assert_eq!(found.column(0).as_string::<i32>().value(1), "b");
}

#[test]
fn strings_whose_lengths_are_differences_are_read_as_far_as_they_fit() {
    let coded = |encoding: Encoding, version: WriterVersion, whole: &RecordBatch| {
        let mut properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_writer_version(version)
            .set_data_page_row_count_limit(300);
        for field in whole.schema().fields() {
            let plain = if field.name() == "name" { encoding } else { Encoding::PLAIN };
            properties = properties.set_column_encoding(field.name().as_str().into(), plain);
        }
        parquet(whole, properties.build())
    };
    for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            check_edges(&read("e.parquet", &coded(encoding, version, &edges(5000)), &WANTED).unwrap(), 5000);
            let names = (0..2000).map(|row| (row % 3 > 0).then(|| format!("name {row}")));
            let nulls = batch([("name", Arc::new(StringArray::from_iter(names)) as ArrayRef)]);
            let (_folder, input) = file("e.parquet", &coded(encoding, version, &nulls));
            let budget = Budget::new(SMALL, 1);
            let mut reader = TableReader::open_stored(&input, None, &[], 10_000, &budget, (0, 1)).unwrap();
            let mut batches = Vec::new();
            while let Some(batch) = reader.next_batch().unwrap() {
                batches.push(batch);
            }
            assert_eq!(concat_batches(reader.schema(), &batches).unwrap().columns(), nulls.columns());
        }
    }
    // A page of less than 400 KB claims to have strings of 30 MB.
    let same = "x".repeat(100_000);
    let whole = batch([("name", Arc::new(StringArray::from(vec![&same[..]; 300])) as ArrayRef)]);
    let bytes = coded(Encoding::DELTA_BYTE_ARRAY, WriterVersion::PARQUET_2_0, &whole);
    assert!(bytes.len() < 400_000, "{}", bytes.len());
    let error = refusal("e.parquet", &bytes, &[("name", DataType::Utf8)]);
    assert!(error.contains("column 'name'") && error.contains("the strings of a Parquet page of"), "{error}");
    assert_eq!(
        read_with("e.parquet", &bytes, &[("name", DataType::Utf8)], 10, 256 << 20).unwrap().num_rows(),
        300
    );
}

#[test]
fn pages_larger_than_usual_need_room_in_the_budget() {
    let text = "x".repeat(10 << 20);
    let long = batch([("name", Arc::new(StringArray::from(vec![&text[..]])) as ArrayRef)]);
    let (_folder, input) = file("e.parquet", &parquet(&long, WriterProperties::default()));
    let budget = Budget::new(64 << 20, 1);
    let _rest = budget.reserve(60 << 20, "the rest").unwrap();
    let mut reader = TableReader::open(&input, &[("name", DataType::Utf8)], 10, &budget).unwrap();
    assert!(matches!(reader.next_batch(), Err(Error::Store(_))));
}

#[test]
fn files_cut_anywhere_are_refused() {
    let arrow = arrow_file(&edges(40), None);
    let parquet = parquet(&edges(40), WriterProperties::default());
    for (name, bytes) in [("e.arrow", arrow), ("e.parquet", parquet)] {
        for length in 0..bytes.len() {
            assert!(
                read(name, &bytes[..length], &WANTED).is_err(),
                "{name} cut at {length} of {}",
                bytes.len()
            );
        }
    }
}

#[test]
fn inputs_and_tables_can_move_to_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<TableReader>();
    is_send::<crate::Bytes>();
    is_send::<crate::LineBlocks>();
    is_send::<crate::TableWriter>();
}

#[test]
fn only_the_present_parts_of_a_file_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = inshore_store::Store::open(folder.path().join("store")).unwrap();
    let job = store.job(Budget::new(SMALL, 1), inshore_store::Cancel::default()).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1_000)).build();
    let bytes = parquet(&edges(5_000), properties);
    let (_folder, whole) = file("edges.parquet", &bytes);
    let groups = row_groups(&whole, job.budget()).unwrap();
    assert_eq!(groups.len(), 5);
    let part = |range: Range<u64>| FilePart {
        at: range.start,
        bytes: PartBytes::Memory(bytes[range.start as usize..range.end as usize].into()),
    };
    let footer = groups[4].end..bytes.len() as u64;
    // The first two parts are the second and the third row group. Two further parts are the halves of the last row
    // group.
    let middle = (groups[4].start + groups[4].end) / 2;
    let parts = [groups[1].start..groups[2].end, groups[4].start..middle, middle..groups[4].end, footer];
    let input = Input::of_parts("far", "parquet", bytes.len() as u64, parts.map(part).to_vec());
    let here: Vec<bool> = groups.iter().map(|group| input.holds(group)).collect();
    assert_eq!(here, [false, true, true, false, false]);
    assert_eq!(TableReader::describe(&input, &[], job.budget()).unwrap().rows, Some(5_000));
    let columns = ["src".to_string(), "name".to_string()];
    let open =
        |input: &Input| TableReader::open_stored(input, Some(&columns), &[], 400, job.budget(), (0, 1));
    let (mut far, mut near) = (open(&input).unwrap(), open(&whole).unwrap());
    assert!(far.next_batch().unwrap().is_none(), "nothing before it is named");
    for group in [2, 1, 4] {
        far.read_row_groups(group..group + 1).unwrap();
        near.read_row_groups(group..group + 1).unwrap();
        while let Some(batch) = near.next_batch().unwrap() {
            assert_eq!(far.next_batch().unwrap().unwrap(), batch);
        }
        assert!(far.next_batch().unwrap().is_none());
    }
    let missing = far.read_row_groups(0..1).and_then(|()| far.next_batch()).unwrap_err().to_string();
    assert!(missing.contains("far") && missing.contains("not sent to this machine"), "{missing}");
}

#[test]
fn text_in_parts_has_the_columns_that_were_set() {
    let folder = tempfile::tempdir().unwrap();
    let store = inshore_store::Store::open(folder.path().join("store")).unwrap();
    let job = store.job(Budget::new(SMALL, 1), inshore_store::Cancel::default()).unwrap();
    let input = |ending: &str, parts: [(u64, &str); 2], columns: [(&str, DataType); 2]| {
        let part =
            |(at, text): (u64, &str)| FilePart { at, bytes: PartBytes::Memory(text.as_bytes().into()) };
        let fields = columns.map(|(name, kind)| Field::new(name, kind, true)).to_vec();
        let input = Input::of_parts("far", ending, 1_000, parts.map(part).to_vec());
        input.with_columns(Arc::new(Schema::new(fields)))
    };
    let read = |input: &Input| {
        let mut reader = TableReader::open_stored(input, None, &[], 100, job.budget(), (0, 1))?;
        reader.next_batch()
    };
    // Every value of this part looks like a whole number.
    let csv =
        input("csv", [(500, "7,8\n9,\n"), (0, "a,b\n")], [("a", DataType::Float64), ("b", DataType::Utf8)]);
    let batch = read(&csv).unwrap().unwrap();
    assert_eq!(batch.column(0).as_primitive::<Float64Type>().values(), &[7.0, 9.0]);
    assert_eq!((batch.column(1).as_string::<i32>().value(0), batch.column(1).null_count()), ("8", 1));
    let other = input("csv", [(0, "a,c\n"), (4, "1,2\n")], [("a", DataType::Int64), ("b", DataType::Int64)]);
    let refused = read(&other).unwrap_err().to_string();
    assert!(refused.contains("expected the columns a, b, got a, c"), "{refused}");
    let bad = input("csv", [(0, "a,b\n"), (9, "1,x\n")], [("a", DataType::Int64), ("b", DataType::Int64)]);
    assert!(
        read(&bad)
            .unwrap_err()
            .to_string()
            .contains("as in other rows (or name the column as text: --text b)")
    );
    let json = input(
        "jsonl",
        [(9, "{\"b\":3}\n"), (0, "{\"b\":4}\n")],
        [("a", DataType::Utf8), ("b", DataType::Int64)],
    );
    let batch = read(&json).unwrap().unwrap();
    assert_eq!((batch.num_rows(), batch.column(0).null_count()), (2, 2));
    let values = batch.column(1).as_primitive::<arrow_array::types::Int64Type>().values().to_vec();
    assert_eq!(values, [4, 3]);
}

#[test]
fn times_of_96_bits_reach_beyond_2262() {
    use ::parquet::{
        data_type::{Int96, Int96Type},
        file::writer::SerializedFileWriter,
        schema::parser::parse_message_type,
    };
    const DAY: i64 = 86_400_000_000;
    // The days are counted from 1970. The file counts days from an epoch that is 2440588 days earlier.
    let days = [2_932_896i64, 0, -719_162];
    let schema = Arc::new(parse_message_type("message m { required int96 t; }").unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let time = |&day: &i64| {
        let mut time = Int96::new();
        time.set_data(7_000, 0, (day + 2_440_588) as u32);
        time
    };
    let times: Vec<Int96> = days.iter().map(time).collect();
    column.typed::<Int96Type>().write_batch(&times, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let (_folder, input) = file("e.parquet", &writer.into_inner().unwrap());
    let budget = Budget::new(SMALL, 1);
    let mut reader = TableReader::open_stored(&input, None, &[], 10, &budget, (0, 1)).unwrap();
    let found = reader.next_batch().unwrap().unwrap();
    let expected = TimestampMicrosecondArray::from(days.map(|day| day * DAY + 7).to_vec());
    assert_eq!(found.column(0).as_ref(), &expected as &dyn Array);
}

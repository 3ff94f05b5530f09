//! These tests cover round trips, files that standard programs read or write, and damage.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use inshore_store::{Budget, Cancel, Context};
use proptest::prelude::*;

use super::*;

fn job(memory_bytes: u64, threads: usize) -> Context {
    Context::new(Budget::new(memory_bytes, threads), Cancel::default())
}

fn packed(bytes: &[u8], format: Format, level: Option<u32>, threads: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let summary = compress(&job(1 << 30, threads), "bytes", bytes, &mut out, format, level).unwrap();
    assert_eq!((summary.bytes_in, summary.bytes_out), (bytes.len() as u64, out.len() as u64));
    out
}

fn unpacked(bytes: &[u8], memory_bytes: u64, threads: usize) -> Result<Vec<u8>> {
    let (mut out, job) = (Vec::new(), job(memory_bytes, threads));
    let summary = decompress(&job, "bytes", bytes, &mut out)?;
    assert_eq!((summary.bytes_in, summary.bytes_out), (bytes.len() as u64, out.len() as u64));
    assert_eq!(job.budget().reserved_bytes(), 0);
    Ok(out)
}

/// Makes data that consists of text, a long run of one byte, and noise.
fn sample(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut noise = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    let mut all = Vec::new();
    while all.len() < bytes {
        match all.len() / 100_000 % 4 {
            0 => all.extend((0..5000).map(|_| noise())),
            1 => all.extend_from_slice(&[b'x'; 20_000]),
            _ => writeln!(all, "{} is the number of line {}", noise(), all.len()).unwrap(),
        }
    }
    all.truncate(bytes);
    all
}

#[test]
fn compression_round_trips_at_every_size_and_level() {
    for format in Format::ALL {
        let block = format.block_bytes(format.levels().1);
        for size in [0, 1, 100, block - 1, block, block + 1, 3 * block + 17] {
            let bytes = sample(size);
            let compressed = packed(&bytes, format, None, 2);
            assert_eq!(unpacked(&compressed, 256 << 20, 2).unwrap(), bytes, "{format}, {size} bytes");
            assert_eq!(compressed, packed(&bytes, format, None, 1), "{format}, {size} bytes, one thread");
            // With this budget, the pieces are too large for parallel decompression.
            assert_eq!(
                unpacked(&compressed, 9 << 20, 1).unwrap(),
                bytes,
                "{format}, {size} bytes, little memory"
            );
        }
        let bytes = sample(300_000);
        for level in format.levels().0 {
            let compressed = packed(&bytes, format, Some(level), 2);
            assert_eq!(unpacked(&compressed, 256 << 20, 2).unwrap(), bytes, "{format} -{level}");
        }
        let above = *format.levels().0.end() + 1;
        let error = compress(&job(1 << 30, 1), "x", &b"x"[..], Vec::new(), format, Some(above)).unwrap_err();
        assert!(error.to_string().contains(&format!("no level {above}")), "{error}");
    }
}

#[test]
fn too_small_a_budget_is_named() {
    let error = compress(&job(1 << 20, 1), "x", &b"x"[..], Vec::new(), Format::Zstd, None).unwrap_err();
    assert!(error.to_string().contains("compressing as zstd"), "{error}");
    let smallest = smallest_pack_memory_bytes(Format::Zstd, 3, 1);
    let bytes = sample(9 << 20);
    let mut out = Vec::new();
    compress(&job(smallest, 4), "x", &bytes[..], &mut out, Format::Zstd, None).unwrap();
    assert_eq!(unpacked(&out, 256 << 20, 2).unwrap(), bytes);
}

#[test]
fn high_levels_of_zstd_use_distant_repetitions() {
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    // The repetitions are farther apart than the level's own window of 4 MiB. The input has two pieces.
    let once: Vec<u8> = (0..6 << 20).map(|_| noise()).collect();
    let bytes = once.repeat(3);
    let compressed = packed(&bytes, Format::Zstd, Some(9), 2);
    assert!(compressed.len() < 9 << 20, "{} bytes are left", compressed.len());
    let smallest = smallest_pack_memory_bytes(Format::Zstd, 9, 1);
    let mut again = Vec::new();
    compress(&job(smallest, 2), "bytes", &bytes[..], &mut again, Format::Zstd, Some(9)).unwrap();
    assert!(again == compressed);
    // The first two budgets allow parallel decompression. The last budget does not.
    for (mib, pieces) in [(512, 2), (128, 2), (40, 1)] {
        let mut out = Vec::new();
        let summary = decompress(&job(mib << 20, 2), "bytes", &compressed[..], &mut out).unwrap();
        assert!(out == bytes && summary.pieces == pieces, "{mib} MiB: {} pieces", summary.pieces);
    }
}

/// Returns the name of the standard program for the format.
fn program(format: Format) -> &'static str {
    match format {
        Format::Gzip => "gzip",
        Format::Bzip2 => "bzip2",
        Format::Zstd => "zstd",
        Format::Lz4 => "lz4",
    }
}

fn through(program: &str, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{program} {arguments:?} failed");
    Some(output.stdout)
}

#[test]
fn standard_programs_read_our_files_and_we_read_theirs() {
    let bytes = sample(9_500_000);
    for format in Format::ALL {
        let name = program(format);
        for size in [0, 10, 9_500_000] {
            let bytes = &bytes[..size];
            let Some(theirs) = through(name, &["-d", "-c"], &packed(bytes, format, None, 2)) else {
                eprintln!("skipped: {name} is not installed");
                break;
            };
            assert_eq!(theirs, bytes, "{name} reads {size} bytes");
            for arguments in [&["-c"][..], &["-1", "-c"]] {
                let written = through(name, arguments, bytes).unwrap();
                assert_eq!(
                    unpacked(&written, 256 << 20, 2).unwrap(),
                    bytes,
                    "{name} {arguments:?}, {size} bytes"
                );
                // Files that were written by the program and by Inshore are concatenated.
                let both = [&written[..], &packed(bytes, format, None, 2), &written].concat();
                let expected = [bytes, bytes, bytes].concat();
                assert_eq!(unpacked(&both, 256 << 20, 2).unwrap(), expected, "{name} and ours, {size} bytes");
            }
        }
    }
    if let Some(linked) = through("lz4", &["-BD", "-B4", "-BX", "-c"], &bytes) {
        assert_eq!(unpacked(&linked, 64 << 20, 2).unwrap(), bytes);
    }
}

#[test]
fn a_small_stream_that_becomes_large_is_written_while_it_is_read() {
    let bytes = vec![7; 40 << 20];
    let out = Vec::new();
    let mut encoder = bzip2::write::BzEncoder::new(out, bzip2::Compression::best());
    encoder.write_all(&bytes).unwrap();
    let stream = encoder.finish().unwrap();
    assert!(stream.len() < 4096);
    assert_eq!(unpacked(&stream, 8 << 20, 2).unwrap(), bytes);
}

/// A truncated file causes an error. A file with a changed bit causes an error or gives the original bytes (for
/// example, if the bit is in the time in a header).
#[test]
fn damage_is_found() {
    let bytes = sample(5_000);
    for format in Format::ALL {
        let whole = packed(&bytes, format, None, 1);
        for cut in 0..whole.len() {
            let cut = unpacked(&whole[..cut], 64 << 20, 1);
            assert!(cut.is_err(), "{format} cut: {} bytes of {}", cut.unwrap().len(), bytes.len());
        }
        let mut unnoticed = 0;
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1 << (place % 8);
            match unpacked(&changed, 64 << 20, 1) {
                Err(Error::Damaged { .. } | Error::Store(_)) => {}
                Err(other) => panic!("{format}: {other:?}"),
                Ok(found) => {
                    assert_eq!(found, bytes, "{format}, changed at {place}");
                    unnoticed += 1;
                }
            }
        }
        assert!(unnoticed < 20, "{format}: {unnoticed} changes went unnoticed");
        let mut longer = whole.clone();
        longer.extend_from_slice(b"and more");
        assert!(unpacked(&longer, 64 << 20, 1).is_err(), "{format} with more behind it");
    }
    for bytes in [&b""[..], b"x", b"plain text", b"BZh", &[0x1f, 0x8b]] {
        assert!(unpacked(bytes, 64 << 20, 1).is_err(), "{bytes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn arbitrary_bytes_do_not_panic(
        format in 0usize..4,
        keep in 0usize..200,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let whole = packed(b"some text that is compressed, and some text that is compressed again", Format::ALL[format], None, 1);
        let mixed = [&whole[..keep.min(whole.len())], &bytes].concat();
        let _ = unpacked(&mixed, 64 << 20, 1);
        let _ = unpacked(&[&whole[..], &bytes].concat(), 64 << 20, 1);
    }
}

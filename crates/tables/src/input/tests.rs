use std::{fs, io::Write};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn file(bytes: &[u8]) -> (TempDir, Input) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.txt.gz");
    fs::write(&path, bytes).unwrap();
    (folder, Input::new(path))
}

fn read(bytes: &[u8], budget_bytes: u64) -> Result<Vec<u8>> {
    let (_folder, input) = file(bytes);
    let budget = Budget::new(budget_bytes, 1);
    let mut opened = input.open(&budget)?;
    let mut out = Vec::new();
    opened.read_to_end(&mut out).map_err(|error| Error::from_read("lost its name", error))?;
    assert_eq!(opened.position(), bytes.len() as u64);
    drop(opened);
    assert_eq!(budget.reserved_bytes(), 0);
    Ok(out)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

#[test]
fn plain_and_short_files_are_read_unchanged() {
    for text in [&b""[..], b"a", b"abc", b"abcd", b"\x1f", b"\x28\xb5\x2f", &[7; 300_000]] {
        assert_eq!(read(text, 64 << 20).unwrap(), text);
    }
}

#[test]
fn reading_ahead_past_the_page_cache_gives_the_bytes_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = inshore_store::Store::open(folder.path()).unwrap();
    let text: Vec<u8> = (0..900_000u32).flat_map(|n| (n ^ n << 7).to_le_bytes()).collect();
    for (bytes, memory_bytes) in [(text.clone(), 64 << 20), (gzip(&text), 64 << 20), (text.clone(), 63 << 20)]
    {
        let (_folder, input) = file(&bytes);
        let written = File::open(input.path().unwrap()).unwrap();
        written.sync_all().unwrap();
        fadvise(&written, 0, None, Advice::DontNeed).unwrap();
        let job = store.job(Budget::new(memory_bytes, 1), Cancel::default()).unwrap();
        let mut opened = input.open_ahead(&job).unwrap();
        assert!(job.budget().reserved_bytes() <= ahead_bytes(job.budget()), "{memory_bytes}");
        let mut out = vec![0; text.len() + 1];
        assert_eq!(opened.fill(&mut out).unwrap(), text.len());
        assert!(out[..text.len()] == text);
        assert_eq!(opened.position(), bytes.len() as u64);
        drop(opened);
        assert_eq!(job.budget().reserved_bytes(), 0);
    }
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn formats_without_a_decoder_are_refused_by_name() {
    let budget = Budget::new(64 << 20, 1);
    for (head, name) in [
        (&b"\xfd7zXZ\0\0\x04"[..], "with xz,"),
        (&[0x5d, 0, 0, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], "with lzma,"),
        (&[0x1f, 0x9d, 0x90, 1], "with compress (.Z),"),
        (b"LZIP\x01", "with lzip,"),
        (b"PK\x03\x04", "a zip archive"),
    ] {
        let (_folder, input) = file(head);
        let error = input.open(&budget).err().unwrap().to_string();
        assert!(error.contains("data.txt.gz: it is ") && error.contains(name), "{error}");
        // Without decompression the bytes are unchanged.
        let mut bytes = Vec::new();
        input.open_as_is().unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, head);
    }
}

#[test]
fn skippable_frames_before_zstd_and_lz4_are_skipped() {
    let skippable =
        |bytes: &[u8]| [&[0x5f, 0x2a, 0x4d, 0x18][..], &(bytes.len() as u32).to_le_bytes(), bytes].concat();
    for pack in [zstd, lz4] {
        for skipped in [&b""[..], b"a", &[7; 12], &[0; 300_000]] {
            let one = [skippable(skipped), pack(b"text")].concat();
            assert_eq!(read(&one, 64 << 20).unwrap(), b"text");
            let two = [skippable(b"x"), skippable(skipped), pack(b"text"), skippable(skipped)].concat();
            assert_eq!(read(&two, 64 << 20).unwrap(), b"text");
        }
    }
    assert_eq!(read(&skippable(b"alone"), 64 << 20).unwrap(), b"");
    let error = read(&[skippable(b"x"), gzip(b"text")].concat(), 64 << 20).unwrap_err().to_string();
    assert!(error.contains("expected a frame after a skippable frame"), "{error}");
    let error = read(&skippable(b"cut")[..10], 64 << 20).unwrap_err().to_string();
    assert!(error.contains("truncated"), "{error}");
}

#[test]
fn compressed_files_of_several_parts_are_read_to_the_end() {
    for pack in [gzip, zstd, bzip2, lz4] {
        let packed = [pack(b"one\n"), pack(b""), pack(&[b'x'; 500_000]), pack(b"end")].concat();
        let expected = [&b"one\n"[..], &[b'x'; 500_000], b"end"].concat();
        assert!(read(&packed, 64 << 20).unwrap() == expected);
    }
}

#[test]
fn compressed_files_cut_anywhere_are_refused_by_name() {
    let text: Vec<u8> = (0..300u32).flat_map(|n| n.to_string().into_bytes()).collect();
    for pack in [gzip, zstd, bzip2, lz4] {
        let (first, second) = (pack(&text), pack(b"more"));
        let packed = [&first[..], &second].concat();
        // The test skips prefixes that are too short for detection. It also skips the prefix that ends between the two
        // members, since this prefix is a complete file.
        let known = (1..).find(|&bytes| Compression::of_head(&packed[..bytes]).is_some()).unwrap();
        for length in (known..packed.len()).filter(|&length| length != first.len()) {
            let error = read(&packed[..length], 64 << 20).unwrap_err().to_string();
            assert!(error.contains("data.txt.gz: "), "{length}: {error}");
            assert!(error.contains("truncated") || error.contains("damaged"), "{length}: {error}");
        }
    }
}

#[test]
fn garbage_after_the_last_part_is_an_error() {
    for pack in [gzip, zstd, bzip2, lz4] {
        let packed = [&pack(b"text")[..], b"garbage that is no header of any kind"].concat();
        assert!(matches!(read(&packed, 64 << 20), Err(Error::Damaged { .. })));
    }
}

#[test]
fn a_zstd_window_above_a_quarter_of_the_budget_is_refused_by_size_in_any_frame() {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(24).unwrap();
    encoder.write_all(&[1; 100]).unwrap();
    let wide = encoder.finish().unwrap();
    for packed in [wide.clone(), [zstd(b"narrow"), wide].concat()] {
        assert!(read(&packed, 64 << 20).is_ok());
        let error = read(&packed, 63 << 20).unwrap_err().to_string();
        assert!(error.contains("a zstd window of 16 MiB exceeds the limit of 15.8 MiB"), "{error}");
    }
}

#[test]
fn a_large_zstd_window_needs_room_in_the_budget() {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(24).unwrap();
    encoder.write_all(&[1; 100]).unwrap();
    let (_folder, input) = file(&encoder.finish().unwrap());
    let budget = Budget::new(64 << 20, 1);
    let _rest = budget.reserve(60 << 20, "the rest").unwrap();
    assert!(matches!(input.open(&budget), Err(Error::Store(_))));
}

#[test]
fn a_missing_file_and_a_folder_are_errors_with_their_names() {
    let budget = Budget::new(1 << 20, 1);
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("none.txt"), folder.path().to_path_buf()] {
        let error = Input::new(&path).open(&budget).err().unwrap().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
    }
}

proptest! {
    #[test]
    fn damaged_compressed_bytes_never_panic(
        text in proptest::collection::vec(any::<u8>(), 0..2000),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        as_zstd: bool,
    ) {
        let mut packed = if as_zstd { zstd(&text) } else { gzip(&text) };
        for (place, value) in flips {
            let place = place.index(packed.len());
            packed[place] = value;
        }
        let (_folder, input) = file(&packed);
        if let Ok(mut bytes) = input.open(&Budget::new(1 << 20, 1)) {
            let _ = bytes.read_to_end(&mut Vec::new());
        }
    }
}

use super::superblock::{decode_path, encode_path};
use std::os::unix::ffi::OsStrExt;

use super::*;
use std::path::Path;

#[test]
fn every_path_survives_its_encoding_as_text() {
    for bytes in [&b"/a/b"[..], b"/\xc3\xa4", b"/x\xff/%41", b"%", b"%zz", b"", b"/\xfe\xff"] {
        let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
        assert_eq!(decode_path(&encode_path(path)).as_deref(), Some(path));
    }
    assert_eq!(encode_path(Path::new("/\u{e4}%")), "/\u{e4}%");
    for text in ["%%", "%%4", "%%g1", "%/a%\u{e4}"] {
        assert_eq!(decode_path(text), None, "{text}");
    }
}

#[test]
fn impossible_superblocks_and_records_are_refused() {
    let place = |device, extent| ExtentAddress { device, extent };
    let entry = |number| {
        let path = PathBuf::from("d");
        DeviceEntry { number, uuid: [1; 16], path, limit_bytes: None, is_leaving: false }
    };
    let (log, spare) = (vec![vec![place(0, 2)], vec![place(1, 2)]], vec![vec![place(0, 3)]]);
    let devices = vec![entry(0), entry(1)];
    let whole =
        Superblock { store: [7; 16], sequence: 2, generation: 1, branches: vec![3, 4], devices, log, spare };
    let decodes = |superblock: &Superblock| Superblock::decode(&superblock.encode(0)).is_some();
    assert!(decodes(&whole));
    for bad in [(0, 1), (0, 0), (0, 128), (0, 2), (2, 9)] {
        let spare = vec![vec![place(bad.0, bad.1)]];
        assert!(!decodes(&Superblock { spare, ..whole.clone() }), "{bad:?}");
    }
    assert!(!decodes(&Superblock { devices: vec![entry(0), entry(1), entry(1)], ..whole.clone() }));
    assert!(!decodes(&Superblock { sequence: u64::MAX, ..whole.clone() }));
    assert!(!decodes(&Superblock { generation: u64::MAX, ..whole.clone() }));
    for (commit, is_right) in [(9, true), (u64::MAX, false)] {
        let header =
            RecordHeader { generation: 1, number: 0, before: 0, commit, body_len: 4, body_sum: 0, sum: 0 };
        let bytes = header.encode(&whole.store);
        assert_eq!(RecordHeader::decode(&whole.store, &bytes).is_some(), is_right);
    }
}

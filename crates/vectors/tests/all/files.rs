//! Tests of files of vectors. Every format must be read, and every malformed file must be refused with its name and the
//! position of the error.

use inshore_store::FileReader;
use inshore_vectors::{Element, Search, VectorFile, Vectors, import};

use crate::support::{Made, Random, Setup};

/// Returns the bytes of a file in a format in which each vector is preceded by its number of dimensions.
fn prefixed(rows: &[&[u8]], dimensions: &[u32]) -> Vec<u8> {
    let row = |(row, dimensions): (&&[u8], &u32)| [&dimensions.to_le_bytes()[..], row].concat();
    rows.iter().zip(dimensions).flat_map(row).collect()
}

fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let text = format!("{text:<53}\n");
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), elements].concat()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Imports a file. Returns the element type, the count, the dimensions and the elements of the dataset, and the number
/// of rounded elements.
fn stored(setup: &Setup, name: &str, bytes: &[u8]) -> (Element, u64, usize, Vec<u8>, u64) {
    let file = VectorFile::open(setup.write(name, bytes)).unwrap();
    let job = setup.job(16 << 20, 1);
    let imported = import(&setup.store, &job, name, &file).unwrap();
    let dataset = setup.store.dataset(name).unwrap();
    assert_eq!(dataset.kind(), "vectors");
    let file = dataset.file("vectors").unwrap();
    let mut reader = FileReader::new(&job, &file, 0..file.len(), 64 << 10).unwrap();
    let mut elements = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        elements.extend_from_slice(piece);
    }
    let info = Vectors::open(&setup.store, name).unwrap().info().clone();
    assert_eq!(info, imported.info);
    (info.element, info.vectors, info.dimensions, elements, imported.rounded)
}

#[test]
fn every_format_is_read() {
    let setup = Setup::new();
    let six = floats(&[1.0, -2.5, 3.0, 4.0, 5.0, 1e-3]);
    let (first, second) = six.split_at(12);
    let counted = |dimensions: u32, elements: &[u8]| {
        [&2u32.to_le_bytes()[..], &dimensions.to_le_bytes(), elements].concat()
    };
    let expected = (Element::F32, 2, 3, six.clone(), 0);
    assert_eq!(stored(&setup, "a.fvecs", &prefixed(&[first, second], &[3, 3])), expected);
    assert_eq!(stored(&setup, "b.fbin", &counted(3, &six)), expected);
    assert_eq!(stored(&setup, "c.npy", &npy("<f4", "(2, 3)", &six)), expected);
    // Values of f64 are rounded, and the rounded elements are counted.
    let doubles: Vec<u8> = [1.0f64, -2.5, 3.0, 4.0, 5.0, f64::from(1e-3f32) + 1e-12]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let rounded = stored(&setup, "d.npy", &npy("<f8", "(2, 3)", &doubles));
    assert_eq!(rounded, (Element::F32, 2, 3, six, 1));
    let bytes = [1, 2, 255, 0, 128, 7];
    let (first, second) = bytes.split_at(3);
    let expected = (Element::U8, 2, 3, bytes.to_vec(), 0);
    assert_eq!(stored(&setup, "e.bvecs", &prefixed(&[first, second], &[3, 3])), expected);
    assert_eq!(stored(&setup, "f.u8bin", &counted(3, &bytes)), expected);
    assert_eq!(stored(&setup, "g.npy", &npy("|u1", "(2, 3)", &bytes)), expected);
    let expected = (Element::I8, 2, 3, bytes.to_vec(), 0);
    assert_eq!(stored(&setup, "h.i8bin", &counted(3, &bytes)), expected);
    assert_eq!(stored(&setup, "i.npy", &npy("|i1", "(2, 3)", &bytes)), expected);
    let integers: Vec<u8> = [7i32, -9, 1 << 24].iter().flat_map(|x| x.to_le_bytes()).collect();
    let expected = (Element::F32, 1, 3, floats(&[7.0, -9.0, 16_777_216.0]), 0);
    assert_eq!(stored(&setup, "j.ivecs", &prefixed(&[&integers], &[3])), expected);
    // The 16-bit floats are 1, -2, 2^-24 (the smallest of binary16) and 65504 (the largest).
    let halves: Vec<u8> =
        [0x3c00u16, 0xc000, 0x0001, 0x7bff].into_iter().flat_map(u16::to_le_bytes).collect();
    assert_eq!(
        stored(&setup, "l.npy", &npy("<f2", "(2, 2)", &halves)),
        (Element::F16, 2, 2, halves.clone(), 0)
    );
    assert_eq!(stored(&setup, "m.hbin", &counted(2, &halves)), (Element::F16, 2, 2, halves.clone(), 0));
    let brains: Vec<u8> =
        [0x3f80u16, 0xc000, 0x0001, 0x7f7f].into_iter().flat_map(u16::to_le_bytes).collect();
    assert_eq!(stored(&setup, "n.npy", &npy("<V2", "(2, 2)", &brains)), (Element::Bf16, 2, 2, brains, 0));
    let bits = [1, 2, 255, 0];
    assert_eq!(stored(&setup, "o.b1bin", &counted(16, &bits)), (Element::Bits, 2, 16, bits.to_vec(), 0));
    // An array of one dimension is read as one vector.
    let expected = (Element::F32, 1, 3, floats(&[7.0, -9.0, 16_777_216.0]), 0);
    assert_eq!(stored(&setup, "k.npy", &npy("<i4", "(3,)", &integers)), expected);
}

#[test]
fn a_file_of_many_pieces_is_read_whole() {
    let setup = Setup::new();
    let mut random = Random(23);
    // The size of a row does not divide the 1 MiB of a read.
    let made = Made::new(Element::F32, 37, 30_000, || random.normal());
    let expected = made.bytes()[8..].to_vec();
    assert_eq!(stored(&setup, "big.fbin", &made.bytes()).3, expected);
    let rows: Vec<&[u8]> = expected.chunks(37 * 4).collect();
    assert_eq!(stored(&setup, "big.fvecs", &prefixed(&rows, &vec![37; rows.len()])).3, expected);
}

#[test]
fn malformed_files_are_refused_by_name_with_the_place() {
    let setup = Setup::new();
    let job = setup.job(16 << 20, 1);
    let refused = |name: &str, bytes: &[u8]| {
        let path = setup.write(name, bytes);
        let opened =
            VectorFile::open(&path).and_then(|file| import(&setup.store, &job, "v", &file).map(drop));
        let error = opened.expect_err(name).to_string();
        let found = error.strip_prefix(&format!("{}: ", path.display()));
        found.unwrap_or_else(|| panic!("{error} does not name the file")).to_string()
    };
    let two = floats(&[1.0, 2.0]);
    let good = prefixed(&[&two, &two], &[2, 2]);
    assert!(refused("a.txt", b"1 2 3").starts_with("the ending of the name: found .txt, expected .fvecs"));
    assert_eq!(refused("a.fvecs", b""), "the dimensions of vector 0: found 0 bytes, expected 4 bytes");
    for end in (5..12).chain(13..24) {
        let place = if end < 12 { "vector 0, at byte 0: found" } else { "vector 1, at byte 12: found" };
        assert!(refused("b.fvecs", &good[..end]).starts_with(place), "{end}");
    }
    assert_eq!(
        refused("b.fvecs", &good[..20]),
        "vector 1, at byte 12: found 8 bytes to the end, expected 12 bytes, as of vector 0 (2 dimensions)"
    );
    assert_eq!(
        refused("c.fvecs", &prefixed(&[&two, &two, &two], &[2, 3, 2])),
        "vector 1, at byte 12: found 3 dimensions, expected 2, as of vector 0"
    );
    let hostile = prefixed(&[&two], &[u32::MAX]);
    assert_eq!(refused("d.fvecs", &hostile), "vector 0: found 4294967295 dimensions, expected 1 to 32768");
    assert!(refused("e.fvecs", &prefixed(&[&two], &[0])).starts_with("vector 0: found 0 dimensions"));
    let bad = |value: f32| prefixed(&[&two, &floats(&[1.0, value])], &[2, 2]);
    let wanted = "vector 1, dimension 1: found NaN, expected a finite number";
    assert_eq!(refused("f.fvecs", &bad(f32::NAN)), wanted);
    assert!(refused("g.fvecs", &bad(f32::NEG_INFINITY)).contains("dimension 1: found -inf"));
    let integer = prefixed(&[&((1i32 << 24) + 1).to_le_bytes()], &[1]);
    let wanted = "vector 0, dimension 0: found 16777217, expected an integer that f32 can hold exactly";
    assert_eq!(refused("h.ivecs", &integer), wanted);

    let counted =
        |count: u32, dimensions: u32| [&count.to_le_bytes()[..], &dimensions.to_le_bytes(), &two].concat();
    assert_eq!(
        refused("i.fbin", &counted(2, 2)),
        "its length: found 16 bytes, expected 24 bytes: 2 vectors of 2 dimensions"
    );
    assert!(refused("j.fbin", &counted(u32::MAX, 32_768)).starts_with("its length: found 16 bytes"));
    assert!(refused("k.fbin", &counted(1, 1)).contains("expected 12 bytes"));
    assert!(refused("l.fbin", &counted(0, 2)[..8]).starts_with("the file: found no vectors"));
    assert!(refused("m.fbin", &counted(1, 2)[..7]).starts_with("the header: found 7 bytes"));
    let wide = npy("<f8", "(1, 2)", &[1.0f64, 1e300].map(f64::to_le_bytes).concat());
    assert!(refused("n.npy", &wide).contains("dimension 1: found 1"));
    assert!(refused("o.npy", &npy("<f4", "(2, 2)", &two)).starts_with("its length"));
    assert!(refused("p.npy", &npy(">f4", "(1, 2)", &two)).starts_with("descr: found >f4"));
    assert!(refused("q.npy", b"PK\x03\x04....").starts_with("the magic"));
    let halves = |bits: u16| npy("<f2", "(1, 2)", &[0x3c00, bits].map(u16::to_le_bytes).concat());
    assert!(
        refused("s.npy", &halves(0x7c00)).starts_with("vector 0, dimension 1: found inf, expected a finite")
    );
    assert!(refused("t.npy", &halves(0xfc00)).contains("found -inf"));
    assert!(refused("u.npy", &halves(0x7c01)).contains("found NaN"));
    let brains = npy("<V2", "(1, 2)", &[0x3f80u16, 0x7f80].map(u16::to_le_bytes).concat());
    assert!(refused("v.npy", &brains).contains("dimension 1: found inf"));
    assert_eq!(refused("w.b1bin", &counted(2, 12)), "the header: found 12 bits, expected a multiple of 8");
    assert!(refused("x.b1bin", &counted(1, 262_152)).contains("expected 1 to 262144"));
    let huge = npy("<f4", "(18446744073709551615, 32768)", &two);
    assert!(refused("r.npy", &huge).starts_with("its length"));
    assert!(VectorFile::open(setup.folder.path()).is_err());
    assert!(VectorFile::open(setup.folder.path().join("none.fvecs")).is_err());
    assert!(setup.store.list().unwrap().is_empty());
    assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
}

#[test]
fn queries_that_do_not_go_with_the_vectors_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &Made::new(Element::U8, 2, 5, || 1.0));
    let vectors = Vectors::open(&setup.store, "v").unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        let job = setup.job(16 << 20, 1);
        let queries = VectorFile::open(setup.write(name, bytes)).unwrap();
        let found =
            inshore_vectors::search(&job, &vectors, &queries, &Search::default(), &mut |_| panic!("no rows"));
        found.unwrap_err().to_string()
    };
    let error = refused("a.npy", &npy("<f4", "(2, 2)", &floats(&[1.0, 2.0, 3.0, 0.5])));
    let wanted = "vector 1, dimension 1: found 0.5, expected a value of u8, as the elements of v";
    assert!(error.ends_with(wanted), "{error}");
    let error = refused("b.npy", &npy("|u1", "(1, 3)", &[1, 2, 3]));
    assert!(error.ends_with("vector 0: found 3 dimensions, expected 2, as the vectors of v"), "{error}");
    let error = refused("c.npy", &npy("<f4", "(1, 2)", &floats(&[f32::NAN, 1.0])));
    assert!(error.ends_with("vector 0, dimension 0: found NaN, expected a finite number"), "{error}");
    let error = refused("d.npy", &npy("|i1", "(1, 2)", &[255, 0]));
    assert!(error.contains("found -1, expected a value of u8"), "{error}");
}

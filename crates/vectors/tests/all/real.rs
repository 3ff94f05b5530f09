//! Tests with real data whose answers come from third parties. `INSHORE_TEST_DATA` names the folder of the data. If the
//! data is missing, a test prints that it was skipped.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use inshore_vectors::{Element, Metric, Search};

use crate::support::{Made, Setup, brute_force};

/// The answers in NGT's documentation (bin/ngt/README.md, Apache-2.0) for its data. An answer has ids, counted from 1,
/// and distances.
const NGT: [[(u64, f32); 10]; 3] = [
    [
        (3031, 239.332),
        (4079, 240.002),
        (3164, 244.504),
        (3718, 246.763),
        (157, 251.094),
        (2422, 251.185),
        (1313, 251.34),
        (379, 252.446),
        (3521, 260.158),
        (2594, 261.132),
    ],
    [
        (2726, 291.983),
        (924, 296.987),
        (3638, 298.585),
        (858, 300.376),
        (1453, 306.805),
        (174, 307.789),
        (2992, 308.485),
        (2980, 308.93),
        (1525, 309.49),
        (244, 309.816),
    ],
    [
        (762, 194.286),
        (1046, 212.695),
        (4906, 215.244),
        (2905, 216.539),
        (4142, 219.479),
        (1879, 219.616),
        (4398, 223.352),
        (3842, 223.468),
        (233, 224.127),
        (2794, 224.366),
    ],
];

/// Returns the path of a file of real data. If the file is missing, prints that the test was skipped, and returns
/// `None`.
fn data(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let root = std::env::var_os("INSHORE_TEST_DATA").map_or(beside, PathBuf::from);
    let path = root.join("vectors").join(name);
    if !path.exists() {
        println!("skipped: no {} (INSHORE_TEST_DATA names the folder of test data)", path.display());
        return None;
    }
    Some(path)
}

fn read(path: &Path) -> Vec<u8> {
    let (mut bytes, file) = (Vec::new(), std::fs::File::open(path).unwrap());
    match path.extension().is_some_and(|ending| ending == "gz") {
        true => flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes).unwrap(),
        false => std::io::BufReader::new(file).read_to_end(&mut bytes).unwrap(),
    };
    bytes
}

/// Reads lines of 128 integers. A further column of a line, which is an id, is ignored.
fn descriptors(path: &Path) -> Vec<f64> {
    let text = String::from_utf8(read(path)).unwrap();
    text.lines().flat_map(|line| line.split_whitespace().take(128).map(|x| x.parse().unwrap())).collect()
}

#[test]
fn sift_descriptors_have_the_neighbours_that_ngt_shows() {
    let (Some(base), Some(queries)) = (data("sift-dataset-5k.tsv.gz"), data("sift-query-3.tsv")) else {
        return;
    };
    let (base, queries) = (descriptors(&base), descriptors(&queries));
    for element in [Element::U8, Element::F32] {
        let setup = Setup::new();
        let vectors = Made { element, dimensions: 128, values: base.clone() };
        let asked = Made { element, dimensions: 128, values: queries.clone() };
        setup.import("sift", &vectors);
        let (rows, _) = setup.search("sift", &setup.file("q", &asked), &Search::default(), (16 << 20, 2));
        for (query, expected) in NGT.iter().enumerate() {
            for (rank, &(id, distance)) in expected.iter().enumerate() {
                let (.., found_id, found) = rows[query * 10 + rank];
                assert_eq!(found_id, id - 1, "query {query}, rank {rank}");
                assert!((f32::from_bits(found) - distance).abs() < 1e-3, "query {query}, rank {rank}");
            }
        }
    }
}

#[test]
fn handwritten_digits_have_the_neighbours_of_brute_force() {
    let Some(images) = data("t10k-images-idx3-ubyte.gz") else { return };
    let bytes = read(&images);
    let values: Vec<f64> = bytes[16..].iter().take(2000 * 784).map(|&x| x.into()).collect();
    let vectors = Made { element: Element::U8, dimensions: 784, values };
    let queries = Made { values: vectors.values[..30 * 784].to_vec(), ..vectors.clone() };
    let setup = Setup::new();
    setup.import("digits", &vectors);
    let file = setup.file("q", &queries);
    for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
        let options = Search { metric, ..Search::default() };
        let (rows, _) = setup.search("digits", &file, &options, (16 << 20, 2));
        assert_eq!(rows, brute_force(&vectors, &queries, &options), "{metric:?}");
    }
}

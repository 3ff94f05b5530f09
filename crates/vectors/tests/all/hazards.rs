//! Tests with difficult data. The data is far from zero, of extreme size, damaged, or has few or many dimensions. Some
//! budgets are small.

use std::{fs, path::Path};

use inshore_store::{Budget, Cancel, Store};
use inshore_vectors::{Element, Kernel, Metric, Search, Vectors, import, search};

use crate::support::{Made, Random, Setup, brute_force};

#[test]
fn data_far_from_zero_do_not_cancel() {
    for (mean, share) in [(1000.0, 0.2), (1e6, 1.0), (-3e5, 1.0)] {
        let setup = Setup::new();
        let mut random = Random(11);
        let mut near = || mean + random.normal();
        let vectors = Made::new(Element::F32, 128, 2000, &mut near);
        let queries = Made::new(Element::F32, 128, 40, &mut near);
        setup.import("v", &vectors);
        let file = setup.file("q", &queries);
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            let options = Search { metric, ..Search::default() };
            let (rows, searched) = setup.search("v", &file, &options, (16 << 20, 2));
            assert_eq!(rows, brute_force(&vectors, &queries, &options), "mean {mean}, {metric:?}");
            let by_rows = Search { kernel: Some(Kernel::Rows), ..options.clone() };
            let (same, by_rows) = setup.search("v", &file, &by_rows, (16 << 20, 2));
            assert_eq!(same, rows, "mean {mean}, {metric:?}");
            if metric == Metric::L2 {
                // Sums of squared differences do not suffer from cancellation.
                assert!(by_rows.measured < 2000 * 40 / 5, "mean {mean}: {} pairs measured", by_rows.measured);
                let measured = searched.measured as f64 / (2000.0 * 40.0);
                assert!(measured < share + 1e-9, "mean {mean}: {measured} of all pairs measured");
            }
        }
    }
}

#[test]
fn numbers_of_any_size_are_compared_rightly() {
    let mut random = Random(13);
    for scale in [1e30, 3e38, 1e19, 1e-20, 1e-38, 1e-44] {
        let setup = Setup::new();
        let mut any = || (random.normal() / 6.0).clamp(-1.0, 1.0) * scale;
        let vectors = Made::new(Element::F32, 24, 300, &mut any);
        let queries = Made::new(Element::F32, 24, 20, &mut any);
        setup.import("v", &vectors);
        let file = setup.file("q", &queries);
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            let options = Search { k: 7, metric, ..Search::default() };
            let expected = brute_force(&vectors, &queries, &options);
            for kernel in [Kernel::Tiles, Kernel::Rows] {
                let options = Search { kernel: Some(kernel), ..options.clone() };
                let (rows, _) = setup.search("v", &file, &options, (16 << 20, 2));
                assert_eq!(rows, expected, "{scale} {metric:?} {kernel:?}");
            }
        }
    }
    // This block has vectors of all sizes, up to the largest float.
    let setup = Setup::new();
    let mut any =
        || (random.normal() / 6.0).clamp(-1.0, 1.0) * 10f64.powi(random.below(82) as i32 - 44).min(3e38);
    let vectors = Made::new(Element::F32, 5, 500, &mut any);
    setup.import("v", &vectors);
    let file = setup.file("q", &vectors);
    for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
        for kernel in [Kernel::Tiles, Kernel::Rows] {
            let options = Search { k: 7, metric, kernel: Some(kernel), ..Search::default() };
            let (rows, _) = setup.search("v", &file, &options, (16 << 20, 2));
            assert_eq!(rows, brute_force(&vectors, &vectors, &options), "{metric:?} {kernel:?}");
        }
    }
}

#[test]
fn one_dimension_and_many_are_searched_within_the_budget() {
    let mut random = Random(17);
    for element in [Element::F32, Element::U8, Element::I8] {
        for (dimensions, count, queries) in [(1, 3000, 50), (8192, 60, 20), (32_768, 9, 3)] {
            let setup = Setup::new();
            let mut any = || match element {
                Element::F32 => random.normal(),
                // These bytes give the largest products, and their sums must not overflow.
                Element::U8 => [255.0, 0.0, 255.0][random.below(3) as usize],
                _ => [-128.0, 127.0][random.below(2) as usize],
            };
            let vectors = Made::new(element, dimensions, count, &mut any);
            let asked = Made::new(element, dimensions, queries, &mut any);
            setup.import("v", &vectors);
            let file = setup.file("q", &asked);
            for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
                let options = Search { k: 5, metric, ..Search::default() };
                let (rows, _) = setup.search("v", &file, &options, (8 << 20, 2));
                assert_eq!(
                    rows,
                    brute_force(&vectors, &asked, &options),
                    "{element} {dimensions} {metric:?}"
                );
            }
        }
    }
}

#[test]
fn more_neighbours_than_vectors_are_all_vectors() {
    let setup = Setup::new();
    let vectors = Made::new(Element::U8, 4, 3, || 1.0);
    setup.import("v", &vectors);
    let file = setup.file("q", &vectors);
    let options = Search { k: u64::MAX, ..Search::default() };
    let (rows, _) = setup.search("v", &file, &options, (8 << 20, 2));
    // The vectors are equal, so the vector with the smaller id comes first.
    let ids: Vec<u64> = rows.iter().map(|row| row.2).collect();
    assert_eq!(ids, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_the_size_that_works() {
    let setup = Setup::new();
    let vectors = Made::new(Element::F32, 1024, 4000, || 1.0);
    setup.import("v", &vectors);
    let queries = setup.file("q", &vectors);
    let options = Search { k: 4000, ..Search::default() };
    let failed = |memory_bytes: u64| {
        let job = setup.job(memory_bytes, 2);
        let vectors = Vectors::open(&setup.store, "v").unwrap();
        let found = search(&job, &vectors, &queries, &options, &mut |_| panic!("no rows"));
        assert_eq!(job.budget().reserved_bytes(), 0);
        found.unwrap_err()
    };
    let error = failed(200 << 10);
    let inshore_vectors::Error::Store(inshore_store::Error::BudgetTooSmall { smallest, .. }) = &error else {
        panic!("{error}")
    };
    let one = Made::new(Element::F32, 1024, 1, || 1.0);
    let (rows, _) = setup.search("v", &setup.file("one", &one), &options, (*smallest, 2));
    assert_eq!(rows.len(), 4000);
}

#[test]
fn bad_options_are_refused_by_name() {
    let bad = |k, radius, metric| {
        Search { k, radius, metric, ..Search::default() }.check().unwrap_err().to_string()
    };
    assert_eq!(bad(0, None, Metric::L2), "k is 0: expected at least 1");
    assert!(bad(1, Some(f64::NAN), Metric::Ip).starts_with("radius is NaN"));
    assert!(bad(1, Some(-1.0), Metric::Cosine).starts_with("radius is -1"));
    assert!(Search { radius: Some(-1.0), metric: Metric::Ip, ..Search::default() }.check().is_ok());
}

#[test]
fn an_import_that_fails_leaves_nothing() {
    let setup = Setup::new();
    let mut bytes = Made::new(Element::F32, 64, 50_000, || 1.0).bytes();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = inshore_vectors::VectorFile::open(setup.write("bad.fbin", &bytes)).unwrap();
    let job = setup.job(16 << 20, 2);
    let error = import(&setup.store, &job, "v", &file).unwrap_err().to_string();
    assert!(error.ends_with("vector 49999, dimension 63: found NaN, expected a finite number"), "{error}");
    assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
    // A job that is cancelled leaves nothing, either.
    let cancel = Cancel::default();
    let job = setup.store.job(Budget::new(16 << 20, 2), cancel.clone()).unwrap();
    cancel.cancel();
    assert!(import(&setup.store, &job, "v", &file).unwrap_err().is_cancelled());
    assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
    assert!(setup.store.list().unwrap().is_empty());
    // After the failure, an import of the right data works. A second import with the same name fails.
    let good = Made::new(Element::F32, 64, 10, || 1.0);
    setup.import("v", &good);
    let job = setup.job(16 << 20, 2);
    let error = import(&setup.store, &job, "v", &setup.file("good", &good)).unwrap_err();
    assert!(error.to_string().contains('v'), "{error}");
}

/// Flips a bit in the first file in the folder or its subfolders that contains `bytes`. Returns false if no file
/// contains them.
pub fn flip(folder: &Path, bytes: &[u8]) -> bool {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            if flip(&entry, bytes) {
                return true;
            }
        } else {
            let mut content = fs::read(&entry).unwrap();
            if let Some(place) = content.windows(bytes.len()).position(|window| window == bytes) {
                content[place] ^= 1;
                fs::write(&entry, content).unwrap();
                return true;
            }
        }
    }
    false
}

#[test]
fn a_flipped_bit_on_the_drive_is_an_error_that_names_the_place() {
    let setup = Setup::new();
    let mut random = Random(19);
    let vectors = Made::new(Element::F32, 32, 1000, || random.normal());
    setup.import("v", &vectors);
    let queries = setup.file("q", &vectors);
    let row: Vec<u8> = vectors.rows()[700].iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let store = setup.folder.path().join("store");
    assert!(flip(&store, &row), "the vector lies on the drive");
    let store = Store::open(&store).unwrap();
    let job = store.job(Budget::new(16 << 20, 2), Cancel::default()).unwrap();
    let opened = Vectors::open(&store, "v").unwrap();
    let error = search(&job, &opened, &queries, &Search::default(), &mut |_| panic!("no rows")).unwrap_err();
    assert!(error.to_string().contains("v/vectors"), "{error}");
    assert_eq!(job.budget().reserved_bytes(), 0);
}

#[test]
fn a_dataset_of_another_kind_is_refused_by_name() {
    let setup = Setup::new();
    let job = setup.job(16 << 20, 1);
    let mut builder = setup.store.create_dataset(&job, "text", "bytes").unwrap();
    let writer = builder.file("text", 4096, 4096).unwrap();
    builder.add(writer).unwrap();
    builder.commit(b"").unwrap();
    let error = Vectors::open(&setup.store, "text").unwrap_err();
    assert_eq!(error.to_string(), "text: kind: found bytes, expected vectors");
}

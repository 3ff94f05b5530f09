//! Tests of searches for near-duplicates. The pairs and the groups must equal those of brute force.

use std::collections::BTreeMap;

use arrow_array::{RecordBatch, UInt64Array, cast::AsArray, types::Float32Type, types::UInt64Type};
use inshore_store::{Budget, Cancel};
use inshore_vectors::{
    Approximate, Dedup, Deduplicated, Element, Index, Metric, Search, VectorIndex, dedup, plan_dedup,
};

use crate::{
    changes::{Model, add, remove, small, upsert},
    exact::{ELEMENTS, made, metrics},
    index::{EVERYTHING, ask, build, clustered},
    support::{Made, Random, Setup, brute_force},
};

/// The ids of two vectors, and the bits of their distance.
type Pair = (u64, u64, u32);

/// Returns all pairs within the radius, in ascending order, by brute force.
fn pairs_by_force(vectors: &Made, options: &Dedup) -> Vec<Pair> {
    let search =
        Search { k: u64::MAX, metric: options.metric, radius: Some(options.radius), ..Search::default() };
    let rows = brute_force(vectors, vectors, &search);
    let mut pairs: Vec<Pair> =
        rows.iter().filter(|row| row.0 < row.2).map(|row| (row.0, row.2, row.3)).collect();
    pairs.sort_unstable();
    pairs
}

/// Returns the id and the group of each vector that has a near-duplicate. The group is the smallest id to which pairs
/// connect the vector. It is computed by repeated minima over all pairs.
fn groups_by_force(pairs: &[Pair]) -> Vec<(u64, u64)> {
    let ids = pairs.iter().flat_map(|&(one, other, _)| [(one, one), (other, other)]);
    let mut groups: BTreeMap<u64, u64> = ids.collect();
    loop {
        let mut is_changed = false;
        for (one, other, _) in pairs {
            let smallest = groups[one].min(groups[other]);
            for id in [one, other] {
                is_changed |= groups.insert(*id, smallest) != Some(smallest);
            }
        }
        if !is_changed {
            return groups.into_iter().collect();
        }
    }
}

fn ids(batch: &RecordBatch, column: usize) -> &UInt64Array {
    batch.column(column).as_primitive::<UInt64Type>()
}

/// Finds near-duplicates. Asserts that the search stayed within the budget, and that it freed all memory.
fn find(
    setup: &Setup,
    name: &str,
    options: &Dedup,
    approximate: Option<&Approximate>,
    (memory_bytes, threads): (u64, usize),
) -> (Vec<Pair>, Deduplicated) {
    let job = setup.job(memory_bytes, threads);
    let vectors = setup.open(name);
    let index = approximate.map(|_| VectorIndex::open(&setup.store, &vectors).unwrap().expect("an index"));
    let mut rows = Vec::new();
    let found = dedup(&job, &vectors, index.as_ref().zip(approximate), options, &mut |batch| {
        assert_eq!(batch.schema(), options.schema());
        for row in 0..batch.num_rows() {
            let distance =
                (!options.groups).then(|| batch.column(2).as_primitive::<Float32Type>().value(row));
            let bits = distance.map_or(0, f32::to_bits);
            rows.push((ids(&batch, 0).value(row), ids(&batch, 1).value(row), bits));
        }
        Ok(())
    });
    let found = found.unwrap();
    assert_eq!((job.budget().reserved_bytes(), found.rows), (0, rows.len() as u64));
    assert!(job.budget().reserved_bytes_max() <= memory_bytes);
    (rows, found)
}

/// Returns a radius that contains the fraction `share` of all pairs.
fn radius(vectors: &Made, metric: Metric, share: f64) -> f64 {
    let search = Search { k: u64::MAX, metric, ..Search::default() };
    let mut distances: Vec<f32> =
        brute_force(vectors, vectors, &search).iter().map(|row| f32::from_bits(row.3)).collect();
    distances
        .sort_by(|one, other| if metric == Metric::Ip { other.total_cmp(one) } else { one.total_cmp(other) });
    distances[(distances.len() as f64 * share) as usize].into()
}

#[test]
fn pairs_and_groups_equal_brute_force_for_any_elements_and_metric() {
    for (round, element) in ELEMENTS.into_iter().enumerate() {
        let mut random = Random(200 + round as u64);
        let setup = Setup::new();
        let dimensions = if element == Element::Bits { 8 * 13 } else { 37 };
        let vectors = made(&mut random, element, dimensions, 150);
        setup.import("v", &vectors);
        for &metric in metrics(element) {
            for share in [0.0, 0.02, 0.3] {
                let radius = radius(&vectors, metric, share);
                let options = Dedup { metric, radius, groups: false };
                let expected = pairs_by_force(&vectors, &options);
                for (memory_bytes, threads) in [(4 << 20, 1), (16 << 20, 2)] {
                    let (pairs, _) = find(&setup, "v", &options, None, (memory_bytes, threads));
                    assert_eq!(pairs, expected, "{element} {options:?}");
                }
                let options = Dedup { groups: true, ..options };
                let (groups, found) = find(&setup, "v", &options, None, (16 << 20, 2));
                let groups: Vec<(u64, u64)> = groups.iter().map(|row| (row.0, row.1)).collect();
                assert_eq!(groups, groups_by_force(&expected), "{element} {options:?}");
                let roots = groups.iter().filter(|(id, group)| id == group).count() as u64;
                assert_eq!(found.groups, Some(roots));
            }
        }
    }
}

#[test]
fn no_number_of_neighbours_limits_the_pairs_of_a_vector() {
    let setup = Setup::new();
    // All vectors are equal, so all pairs are duplicates. Their rows take 20 MB.
    let count = 1500;
    setup.import("v", &Made { element: Element::U8, dimensions: 16, values: vec![7.0; 16 * count] });
    let options = Dedup { metric: Metric::L2, radius: 0.0, groups: false };
    let (pairs, _) = find(&setup, "v", &options, None, (4 << 20, 2));
    let all = (0..count as u64).flat_map(|one| (one + 1..count as u64).map(move |other| (one, other, 0)));
    assert!(pairs == all.collect::<Vec<_>>(), "{} pairs", pairs.len());
    let options = Dedup { groups: true, ..options };
    let (groups, found) = find(&setup, "v", &options, None, (4 << 20, 2));
    assert!(groups == (0..count as u64).map(|id| (id, 0, 0)).collect::<Vec<_>>());
    assert_eq!(found.groups, Some(1));
    // All queries are in one block. Its components need 1,499 links, while there are more than a million pairs.
    assert_eq!(found.sorted, 2 * 1499);
}

#[test]
fn a_chain_of_near_vectors_is_one_group() {
    let setup = Setup::new();
    // The vectors are points on a line, in shuffled order. Each vector is near the point before it and the point after
    // it.
    let mut values: Vec<f64> = (0..4000).map(f64::from).collect();
    let mut random = Random(8);
    for place in (1..values.len()).rev() {
        values.swap(place, random.below(place as u64 + 1) as usize);
    }
    // A gap in the line separates two groups.
    let gap = values.iter().position(|&value| value == 2500.0).unwrap();
    values[gap] = 9000.0;
    setup.import("v", &Made { element: Element::F32, dimensions: 1, values: values.clone() });
    let options = Dedup { metric: Metric::L2, radius: 1.0, groups: true };
    let (groups, found) = find(&setup, "v", &options, None, (8 << 20, 2));
    assert_eq!((groups.len(), found.groups), (3999, Some(2)));
    let smallest = |is_low: bool| {
        values.iter().position(|&value| value < 9000.0 && (value < 2500.0) == is_low).unwrap() as u64
    };
    for (id, group, _) in groups {
        assert_eq!(group, smallest(values[id as usize] < 2500.0), "vector {id}");
    }
}

#[test]
fn pairs_are_the_same_bits_for_every_budget_and_number_of_threads() {
    let setup = Setup::new();
    let vectors = clustered(Element::U8, 96, 6000, 3);
    setup.import("v", &vectors);
    let options = Dedup { metric: Metric::L2, radius: 140.0, groups: false };
    let (expected, once) = find(&setup, "v", &options, None, (64 << 20, 2));
    assert!(expected.len() > 1000, "{} pairs", expected.len());
    let groups = Dedup { groups: true, ..options.clone() };
    let (expected_groups, _) = find(&setup, "v", &groups, None, (64 << 20, 2));
    for (memory_bytes, threads) in [(3 << 20, 1), (4 << 20, 2), (8 << 20, 1), (8 << 20, 3), (32 << 20, 1)] {
        let (pairs, found) = find(&setup, "v", &options, None, (memory_bytes, threads));
        assert!(pairs == expected, "{memory_bytes} bytes, {threads} threads");
        let is_one_pass = found.plan.to_string().starts_with("1 pass ");
        assert_eq!(is_one_pass, memory_bytes > 4 << 20, "{}", found.plan);
        let (found, _) = find(&setup, "v", &groups, None, (memory_bytes, threads));
        assert!(found == expected_groups, "{memory_bytes} bytes, {threads} threads");
    }
    assert!(once.measured < 6000 * 6000 / 10, "{} pairs measured", once.measured);
}

#[test]
fn an_index_finds_the_pairs_of_its_probed_lists() {
    for (element, metric) in [(Element::U8, Metric::L2), (Element::F32, Metric::Cosine)] {
        let setup = Setup::new();
        let vectors = clustered(element, 24, 3000, 5);
        setup.import("v", &vectors);
        build(&setup, "v", &Index { metric, lists: Some(40), seed: 1, ..Index::default() }, (32 << 20, 2));
        let options = Dedup { metric, radius: radius(&vectors, metric, 0.002), groups: false };
        let (expected, _) = find(&setup, "v", &options, None, (32 << 20, 2));
        let (pairs, found) = find(&setup, "v", &options, Some(&EVERYTHING), (32 << 20, 2));
        assert!(pairs == expected, "{element}: {} of {} pairs", pairs.len(), expected.len());
        let [probes, lists] = found.probes.unwrap();
        assert_eq!((found.recall_estimate, probes), (Some(1.0), lists));
        let few = Approximate { probes: Some(4), ..EVERYTHING };
        let (pairs, _) = find(&setup, "v", &options, Some(&few), (32 << 20, 2));
        assert!(pairs.iter().all(|pair| expected.binary_search(pair).is_ok()));
        assert!(pairs.len() * 10 > expected.len() * 8, "{} of {}", pairs.len(), expected.len());
        let (again, _) = find(&setup, "v", &options, Some(&few), (9 << 20, 1));
        assert!(again == pairs, "{element}");
    }
}

#[test]
fn searches_for_duplicates_that_cannot_work_are_refused_by_name() {
    let setup = Setup::new();
    setup.import("v", &made(&mut Random(4), Element::F32, 20, 10));
    let vectors = setup.open("v");
    let refused = |options: &Dedup, memory_bytes| {
        let job = setup.job(memory_bytes, 1);
        let planned = plan_dedup(&job, &vectors, options).unwrap_err().to_string();
        let found = dedup(&job, &vectors, None, options, &mut |_| Ok(())).unwrap_err().to_string();
        assert_eq!((&planned, job.budget().reserved_bytes()), (&found, 0));
        found
    };
    let good = Dedup { metric: Metric::L2, radius: 1.0, groups: true };
    let error = refused(&Dedup { radius: -1.0, ..good.clone() }, 16 << 20);
    assert_eq!(error, "radius is -1: expected a distance, at least 0");
    let error = refused(&Dedup { metric: Metric::Hamming, ..good.clone() }, 16 << 20);
    assert_eq!(error, "metric is hamming: expected l2 or ip or cosine for vectors of f32");
    // The search works with the budget that the error demands.
    let error = setup.job(100 << 10, 1);
    let error = plan_dedup(&error, &vectors, &good).unwrap_err();
    let inshore_vectors::Error::Store(inshore_store::Error::BudgetTooSmall { smallest, what, .. }) = error
    else {
        panic!("{error}")
    };
    assert_eq!(what, "a search for near-duplicates in v");
    find(&setup, "v", &good, None, (smallest, 1));
    let (rows, _) =
        find(&setup, "v", &Dedup { groups: false, radius: 1e9, ..good.clone() }, None, (smallest, 1));
    assert_eq!(rows.len(), 45);
}

#[test]
fn a_cancelled_search_for_duplicates_returns_its_memory_and_flash() {
    let setup = Setup::new();
    setup.import("v", &Made { element: Element::U8, dimensions: 16, values: vec![7.0; 16 * 1500] });
    let cancel = Cancel::default();
    let job = setup.store.job(Budget::new(4 << 20, 2), cancel.clone()).unwrap();
    let options = Dedup { metric: Metric::L2, radius: 0.0, groups: false };
    let mut batches = 0;
    let stopped = dedup(&job, &setup.open("v"), None, &options, &mut |_| {
        batches += 1;
        cancel.cancel();
        Ok(())
    });
    assert!(stopped.unwrap_err().is_cancelled());
    assert!(batches >= 1);
    assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
}

#[test]
fn joins_and_duplicates_of_changed_vectors_have_the_ids_of_the_live_ones() {
    for element in [Element::U8, Element::F32, Element::Bits] {
        let (setup, mut random, mut model) = (Setup::new(), Random(72), Model::default());
        let metric = if element == Element::Bits { Metric::Hamming } else { Metric::L2 };
        let first = small(element, &mut random, 200);
        setup.import("v", &first);
        model.add(&first);
        if element != Element::Bits {
            build(
                &setup,
                "v",
                &Index { metric, lists: Some(10), seed: 1, ..Index::default() },
                (32 << 20, 2),
            );
        }
        let (some, ids) = (small(element, &mut random, 4), [3, 150, 7, 60]);
        upsert(&setup, &some, &ids).unwrap();
        model.upsert(&some, &ids);
        remove(&setup, &[10, 11, 199]).unwrap();
        model.remove(&[10, 11, 199]);
        let more = small(element, &mut random, 50);
        add(&setup, &more).unwrap();
        model.add(&more);
        let live = Made { values: model.vectors.values().flatten().copied().collect(), ..first };
        let ids: Vec<u64> = model.vectors.keys().copied().collect();

        let search = Search { k: 5, metric, excludes_itself: true, ..Search::default() };
        let mut expected = brute_force(&live, &live, &search);
        expected.iter_mut().for_each(|row| {
            row.0 = ids[row.0 as usize];
            row.2 = ids[row.2 as usize];
        });
        let options = Dedup { metric, radius: 3.0, groups: false };
        let named = |pair: &Pair| (ids[pair.0 as usize], ids[pair.1 as usize], pair.2);
        let pairs: Vec<Pair> = pairs_by_force(&live, &options).iter().map(named).collect();
        assert!(pairs.len() > 50, "{} pairs", pairs.len());
        let groups: Vec<Pair> =
            groups_by_force(&pairs).into_iter().map(|(id, group)| (id, group, 0)).collect();
        for memory in [(16 << 20, 2), (6 << 20, 1)] {
            let (mut rows, found) = setup.search("v", &setup.open("v"), &search, memory);
            rows.sort_unstable();
            assert_eq!(rows, expected, "{element}");
            assert_eq!((found.queries, found.vectors), (247, 247));
            assert_eq!(find(&setup, "v", &options, None, memory).0, pairs, "{element}");
            let grouped = Dedup { groups: true, ..options.clone() };
            assert_eq!(find(&setup, "v", &grouped, None, memory).0, groups, "{element}");
            if element != Element::Bits {
                let of_index = find(&setup, "v", &options, Some(&EVERYTHING), (32 << 20, memory.1)).0;
                assert_eq!(of_index, pairs, "{element}");
                let of_index = find(&setup, "v", &grouped, Some(&EVERYTHING), (32 << 20, memory.1)).0;
                assert_eq!(of_index, groups, "{element}");
            }
        }
        if element != Element::Bits {
            let (mut rows, _) = ask(&setup, "v", &setup.open("v"), (&search, &EVERYTHING), (32 << 20, 2));
            rows.sort_unstable();
            assert_eq!(rows, expected, "{element}");
        }
    }
}

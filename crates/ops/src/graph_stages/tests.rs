//! Tests of the parts of a job that need no node. `crates/cli/tests/cluster_graphs.rs` tests jobs on nodes.

use std::collections::BTreeSet;

use inshore_store::{Budget, Cancel, Store};
use proptest::prelude::*;

use super::{
    Arguments,
    memory::Growing,
    rows::{Rows, partition_of},
    run::stages,
    supersteps::{add_shares, splitters},
};

#[test]
fn partitions_of_vertices_are_the_same_in_every_version() {
    let of = |vertices: [u64; 6], partitions| vertices.map(|vertex| partition_of(vertex, partitions));
    let vertices = [0, 1, 2, 1000, 1 << 40, u64::MAX];
    assert_eq!(of(vertices, 1), [0; 6]);
    assert_eq!(of(vertices, 7), [0, 2, 6, 5, 0, 4]);
    assert_eq!(of(vertices, 512), [0, 173, 439, 387, 1, 361]);
    let mut counts = [0u32; 8];
    (0..80_000).for_each(|vertex| counts[partition_of(vertex, 8) as usize] += 1);
    assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
}

#[test]
fn an_algorithm_has_a_stage_for_each_superstep_and_reads_the_state_of_the_one_before() {
    let of = |iterations| {
        let arguments = Arguments {
            partitions: 4,
            iterations,
            damping: 0.85,
            tolerance: 0.0,
            to_csv: false,
            names: Vec::new(),
        };
        let stages = stages(&arguments, Vec::new());
        stages.iter().map(|stage| format!("{}: {:?}", stage.name, stage.input)).collect::<Vec<String>>()
    };
    let exchange = |name: &str, ranges: &str, states: &str| {
        format!("{name}: Exchange {{ ranges: [{ranges}], states: [{states}] }}")
    };
    assert_eq!(
        of(2)[1..],
        [
            exchange("rows", "0", ""),
            exchange("superstep 0", "1", "1"),
            exchange("superstep 1", "2", "1, 2"),
            exchange("collect", "1, 3", "1, 3"),
            exchange("result", "4", ""),
        ]
    );
    assert_eq!(of(0)[2..], [exchange("collect", "1", "1"), exchange("result", "2", "")]);
}

#[test]
fn ids_divide_a_sample_into_equal_parts() {
    assert!(splitters(vec![], 3).is_empty());
    assert_eq!(splitters(vec![5, 5, 5, 5], 4), [5]);
    assert_eq!(splitters((0..100).rev().collect(), 4), [25, 50, 75]);
    assert_eq!(splitters(vec![7, 9], 5), [7, 9]);
}

#[test]
fn a_vector_that_grows_beyond_its_memory_is_compacted_and_then_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let job = store.job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
    let mut growing = Growing::<u64>::new(&job, "numbers").unwrap();
    // All numbers are equal, so they take little memory after each compaction.
    for _ in 0..1000 {
        growing.room(&job, 3, 1000, |values| values.dedup()).unwrap();
        growing.values.extend(std::iter::repeat_n(7, 1000));
        assert!(job.budget().reserved_bytes() >= 8 * growing.values.len() as u64);
    }
    let grown = (0..1000).try_for_each(|part| {
        growing.room(&job, 3, 1000, |values| values.dedup())?;
        growing.values.extend(part * 1000..(part + 1) * 1000);
        Ok::<(), inshore_kernel::Failure>(())
    });
    let told = grown.unwrap_err().to_string();
    assert!(told.contains("partition 3: numbers need") && told.contains("--node-memory"), "{told}");
    drop(growing);
    assert_eq!(job.budget().reserved_bytes(), 0);
}

proptest! {
    #[test]
    fn rows_have_each_vertex_and_each_edge_once(
        edges in prop::collection::vec((0u64..20, 0u64..20), 0..60),
        vertices in prop::collection::vec(0u64..30, 0..20),
        partitions in 1u32..9,
    ) {
        let rows = Rows::of(edges.clone(), vertices.clone(), partitions);
        let all: BTreeSet<u64> = edges.iter().map(|edge| edge.0).chain(vertices).collect();
        prop_assert_eq!(&rows.ids, &all.into_iter().collect::<Vec<u64>>());
        let expected: BTreeSet<(u64, u64)> = edges.into_iter().collect();
        for (id, &degree) in rows.ids.iter().zip(&rows.degrees) {
            prop_assert_eq!(degree as usize, expected.iter().filter(|edge| edge.0 == *id).count());
        }
        let found: BTreeSet<(u64, u64)> =
            rows.edges.iter().map(|&(target, source)| (rows.ids[source as usize], target)).collect();
        prop_assert_eq!(rows.edges.len(), expected.len());
        prop_assert_eq!(found, expected);
        let places = rows.edges.iter().map(|&(target, source)| (partition_of(target, partitions), target, source));
        prop_assert!(places.is_sorted());
    }

    #[test]
    fn shares_reach_the_sums_of_their_vertices(
        ids in prop::collection::btree_set(0u64..200, 1..80),
        picks in prop::collection::vec((any::<bool>(), 1u64..9), 80),
        stranger in 200u64..300,
    ) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let chosen: Vec<(u64, u64)> =
            ids.iter().zip(&picks).filter(|(_, pick)| pick.0).map(|(id, pick)| (*id, pick.1)).collect();
        let (vertices, shares): (Vec<u64>, Vec<u64>) = chosen.iter().copied().unzip();
        let mut sums = vec![1; ids.len()];
        add_shares(&ids, &vertices, &shares, &mut sums).unwrap();
        for (id, sum) in ids.iter().zip(sums) {
            let share = chosen.iter().find(|(vertex, _)| vertex == id).map_or(0, |(_, share)| *share);
            prop_assert_eq!(sum, 1 + share);
        }
        let unknown = add_shares(&ids, &[stranger], &[1], &mut vec![0; ids.len()]);
        prop_assert!(unknown.unwrap_err().to_string().contains(&stranger.to_string()));
    }
}

//! Tests of the parts of a job that need no node. `crates/cli/tests/cluster_graphs.rs` tests jobs on nodes.

use std::collections::BTreeSet;

use inshore_stages::JobStage;
use inshore_store::{Budget, Cancel, Store};
use proptest::prelude::*;

use super::{
    Program,
    collect::splitters,
    exchange::{NEVER, Visit},
    memory::Growing,
    pagerank::add_shares,
    rows::{Rows, partition_of},
    run::{Course, End},
    searches::Search,
    weights::{Number, Weight},
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

fn course(program: Program, supersteps: u32, tolerance: f64) -> Course {
    Course::new(program, End { supersteps, tolerance }, 4, "links".to_string())
}

/// Returns the names and inputs of the stages that a course takes, with the counts of each superstep.
fn stages_of(mut course: Course, counts: &[[u64; 3]]) -> crate::error::Result<Vec<String>> {
    let mut stages = course.first_stages(Vec::new());
    for counts in counts {
        assert!(stages.last().unwrap().ranges > 0, "no stage follows the result");
        stages.extend(course.next_stages(counts)?);
    }
    assert_eq!(stages.last().unwrap().ranges, 0, "the last stage makes the result");
    let told = |stage: &JobStage| format!("{}: {:?} {}", stage.name, stage.input, stage.arguments);
    Ok(stages[1..].iter().map(told).collect())
}

fn stage(name: &str, ranges: &str, states: &str, arguments: &str) -> String {
    format!("{name}: Exchange {{ ranges: [{ranges}], states: [{states}] }} {arguments}")
}

fn superstep(number: u32, sends: bool) -> String {
    format!(r#"{{"Superstep":{{"number":{number},"sends":{sends}}}}}"#)
}

#[test]
fn pagerank_has_a_stage_for_each_iteration_and_ends_at_its_tolerance() {
    let program = Program::PageRank { damping: 0.85 };
    let counts = [[0, 9, 5], [1 << 50, 9, 5], [1 << 50, 9, 5]];
    assert_eq!(
        stages_of(course(program, 2, 0.0), &counts).unwrap(),
        [
            stage("rows", "0", "", "\"Rows\""),
            stage("superstep 0", "1", "1", &superstep(0, true)),
            stage("superstep 1", "2", "1, 2", &superstep(1, true)),
            stage("superstep 2", "3", "1, 3", &superstep(2, false)),
            stage("collect", "1", "1, 4", "\"Collect\""),
            stage("result", "5", "", "\"Result\""),
        ]
    );
    let none = stages_of(course(program, 0, 0.0), &counts[..1]).unwrap();
    assert_eq!(none[1], stage("superstep 0", "1", "1", &superstep(0, false)));
    assert_eq!(
        none[2..],
        [stage("collect", "1", "1, 2", "\"Collect\""), stage("result", "3", "", "\"Result\"")]
    );
    // Ranks that no iteration has changed yet are not final, and a later small change ends the job.
    let early = stages_of(course(program, 50, 1e-6), &[[0, 9, 5], [1 << 50, 9, 5], [3, 9, 5]]).unwrap();
    assert_eq!(early.len(), 6);
}

#[test]
fn a_search_ends_when_no_vertex_is_active_or_has_an_edge() {
    let bfs = Program::Search(Search::Bfs { source: 7 });
    let supersteps = |counts: &[[u64; 3]]| {
        let mut course = course(bfs, 3, 0.0);
        course.first_stages(Vec::new());
        for counts in counts {
            let _ = course.next_stages(counts).unwrap();
        }
        let (summary, vertices) = course.summary(&[5, 4]);
        assert_eq!((vertices, summary.reached), (5, Some(4)));
        (summary.levels, summary.edges_traversed)
    };
    assert_eq!(supersteps(&[[1, 2, 5], [2, 3, 5], [0, 0, 0]]), (Some(2), 5));
    assert_eq!(supersteps(&[[1, 2, 5], [2, 0, 5]]), (Some(2), 2));
    assert_eq!(supersteps(&[[1, 0, 5]]), (Some(1), 0));
    let error = |counts: &[[u64; 3]]| stages_of(course(bfs, 3, 0.0), counts).unwrap_err().to_string();
    assert_eq!(error(&[[0, 0, 5]]), "links has no vertex 7");
    assert_eq!(error(&[[0, 0, 0]]), "links: no edges and no vertices found");
    let long = error(&[[1, 1, 5], [1, 1, 5], [1, 1, 5], [1, 1, 5]]);
    assert!(long.contains("not ended after 3 supersteps, which is the limit"), "{long}");
}

#[test]
fn a_vertex_keeps_the_smallest_message_that_it_may_take() {
    let take = |search: Search, visit: (u64, u32), message, number| {
        let mut visit = Visit { value: visit.0, since: visit.1 };
        search.take(&mut visit, message, number);
        (visit.value, visit.since)
    };
    let bfs = Search::Bfs { source: 3 };
    assert_eq!(take(bfs, (9, NEVER), u64::MAX, 2), (u64::MAX, 2));
    // The parents of a level compete, and no later level does.
    assert_eq!(take(bfs, (9, 2), 4, 2), (4, 2));
    assert_eq!(take(bfs, (4, 2), 9, 2), (4, 2));
    assert_eq!(take(bfs, (9, 2), 4, 3), (9, 2));
    for search in [Search::Components, Search::Sssp { source: 3 }] {
        assert_eq!(take(search, (9, 2), 4, 3), (4, 3));
        assert_eq!(take(search, (4, 2), 4, 3), (4, 2));
        assert_eq!(take(search, (4, 2), 9, 3), (4, 2));
    }
    assert_eq!(take(Search::Sssp { source: 3 }, (0, NEVER), 9, 3), (9, 3));
    assert_eq!(bfs.first(3), Visit { value: 3, since: 0 });
    assert_eq!(bfs.first(4).since, NEVER);
    assert_eq!(Search::Components.first(4), Visit { value: 4, since: 0 });
}

#[test]
fn weights_have_the_order_of_numbers() {
    let numbers = [f64::MIN, -2.5, -1e-300, 0.0, 1e-300, 0.5, 2.0, f64::MAX];
    let weights = numbers.map(Number::of);
    assert!(weights.is_sorted());
    assert_eq!(weights.map(Weight::get), numbers);
    let rows = Rows::of(vec![(1, 2, Number::of(3.0)), (1, 2, Number::of(-1.0))], vec![], 3);
    assert_eq!(rows.edges, [(2, 0, Number::of(-1.0))]);
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
        let unweighted = edges.iter().map(|&(source, target)| (source, target, ())).collect();
        let rows = Rows::of(unweighted, vertices.clone(), partitions);
        let all: BTreeSet<u64> = edges.iter().map(|edge| edge.0).chain(vertices).collect();
        prop_assert_eq!(&rows.ids, &all.into_iter().collect::<Vec<u64>>());
        let expected: BTreeSet<(u64, u64)> = edges.into_iter().collect();
        for (id, &degree) in rows.ids.iter().zip(&rows.degrees) {
            prop_assert_eq!(degree as usize, expected.iter().filter(|edge| edge.0 == *id).count());
        }
        let found: BTreeSet<(u64, u64)> =
            rows.edges.iter().map(|&(target, source, ())| (rows.ids[source as usize], target)).collect();
        prop_assert_eq!(rows.edges.len(), expected.len());
        prop_assert_eq!(found, expected);
        let places = rows.edges.iter().map(|&(target, source, ())| (partition_of(target, partitions), target, source));
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

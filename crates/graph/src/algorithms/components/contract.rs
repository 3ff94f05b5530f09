//! Computes components if memory is too small for a number per vertex.

use inshore_store::Job;

use super::{
    absorb::{self, AbsorbedSet, absorb},
    edges_once,
    ranges::{RangeForest, RangePlan},
    sets::MemberNumbers,
};
use crate::{
    Graph, Result, Summary, Tuning,
    checkpoint::Checkpoints,
    csr::{SCAN_BYTES, scan},
    engine::{StateStream, VertexArray},
    graph::too_small,
};

/// Labels each vertex with its component. If a bit per vertex fits in memory, a set of vertices is first contracted to
/// one vertex.
pub(super) fn contract(
    graph: &Graph,
    job: &Job,
    tuning: &Tuning,
    checkpoints: &mut Checkpoints,
) -> Result<(Summary, StateStream<u32>)> {
    let kept_bytes = checkpoints.bytes::<u64>(graph.vertices().div_ceil(64));
    if absorb::fits(job.budget().free_bytes().saturating_sub(kept_bytes), graph.vertices()) {
        return contract_set(graph, job, tuning.column_vertices, checkpoints);
    }
    let (out, vertices, width) = (graph.out().unweighted(), graph.vertices(), tuning.column_vertices);
    job.progress()
        .tell(|| "labels and a forest on flash, a range of vertices at a time in memory".to_string());
    job.start_phase("joining trees", "edges", out.entries);
    let mut ranges = ranges_of(job, vertices, width, SCAN_BYTES)?;
    let directed = graph.info().directed;
    scan(job, &out, 0..vertices, |vertex, row, _| {
        job.progress().add(row.len() as u64);
        let row = edges_once(directed, vertex, row);
        row.iter().filter(|&&to| to != vertex).try_for_each(|&to| ranges.push(vertex, to))
    })?;
    let labels =
        name(job, vertices, ranges, &MemberNumbers::All(vertices), |_, label| label.expect("all have one"))?;
    Ok((Summary { supersteps: 1, ..summary(out.entries) }, labels))
}

/// Contracts a set of connected vertices, and joins the trees of a forest along the edges outside of the set.
fn contract_set(
    graph: &Graph,
    job: &Job,
    width: Option<u64>,
    checkpoints: &mut Checkpoints,
) -> Result<(Summary, StateStream<u32>)> {
    let out = graph.out().unweighted();
    job.progress()
        .tell(|| "a bit for each vertex in memory, labels on flash, edges read once or twice".to_string());
    let AbsorbedSet { set, first, left, pairs, passes, passes_kept, edges } =
        absorb(job, &out, graph.info().directed, width, checkpoints)?;
    let count = pairs.iter().map(|pairs| pairs.len()).sum();
    job.start_phase("joining trees along the remaining edges", "edges", count);
    let mut ranges = ranges_of(job, left.count(), width, 0)?;
    let of_set = left.get(first).expect("it stands for the set");
    let number = |vertex| left.get(vertex).unwrap_or(of_set);
    for pairs in pairs {
        pairs.for_each(job, |a, b| match (number(a), number(b)) {
            (a, b) if a == b => Ok(()),
            (a, b) => ranges.push(a, b),
        })?;
        job.progress().add(pairs.len());
    }
    let mut of_set = first;
    let labels = name(job, graph.vertices(), ranges, &left, |vertex, label| {
        if vertex == first {
            of_set = label.expect("it stands for the set");
        }
        // The other members of the set get the label of the first member, which comes before them.
        label.unwrap_or(if set.has(vertex) { of_set } else { vertex })
    })?;
    Ok((Summary { supersteps: passes, supersteps_kept: passes_kept, ..summary(edges + count) }, labels))
}

fn summary(edges_traversed: u64) -> Summary {
    Summary { edges_traversed, state: "flash", strategy: "union-find".to_string(), ..Summary::default() }
}

/// Creates a forest of `count` members in the free memory minus `beside` bytes.
fn ranges_of(job: &Job, count: u64, width: Option<u64>, beside: u64) -> Result<RangeForest> {
    let plan = |free: u64| RangePlan::new(free.saturating_sub(beside), count, width);
    let Some(plan) = plan(job.budget().free_bytes()) else {
        return Err(too_small(job, format!("components of {count} vertices"), |free| plan(free).is_some()));
    };
    tracing::debug!(?plan, "forest");
    job.progress().tell(|| match plan.ranges() {
        1 => format!("a forest of {count} vertices in memory"),
        ranges => format!("a forest of {count} vertices, 1/{ranges} of it in memory at a time"),
    });
    RangeForest::new(job, plan)
}

/// Writes the labels of all vertices to flash. `each` gets every vertex in order, together with its label if the vertex
/// is in `left`, and returns the label to be written.
fn name(
    job: &Job,
    vertices: u64,
    ranges: RangeForest,
    left: &MemberNumbers,
    mut each: impl FnMut(u32, Option<u32>) -> u32,
) -> Result<StateStream<u32>> {
    let mut labels = ranges.finish(left.members())?;
    job.start_phase("naming components", "vertices", vertices);
    let labels = VertexArray::on_flash(job, vertices, |vertex| {
        let label = if left.has(vertex) { Some(labels.next()?) } else { None };
        Ok(each(vertex, label))
    })?;
    StateStream::new(vertices, labels)
}

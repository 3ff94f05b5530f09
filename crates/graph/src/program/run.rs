//! Runs programs: the loop over supersteps, and the rows of the answer.

use std::{collections::HashSet, sync::Arc};

use arrow_schema::{DataType, Field, Schema};
use inshore_store::Job;

use super::{
    Column, FixedWidth, ProgramOptions, SearchProgram, SuperstepInfo, VertexProgram,
    column::Cells,
    hosted::{Hosted, HostedSearch, HostedVertices},
};
use crate::{
    Answer, Error, Graph, Result, Rows,
    answer::VertexRows,
    checkpoint::Checkpoints,
    csr::Csr,
    engine::{Dense, Engine, Frontier, FrontierCollection, Setup, StateStream, Superstep},
    graph::check_budget,
    ids::Translation,
};

/// Runs a vertex program and returns a row for each vertex, in the order of original ids. The columns are `vertex` (the
/// original id of the vertex) and the columns of the program, each of which may have nulls. Messages go from the source
/// of an edge to its destination.
///
/// Cost of a superstep: the rows of active vertices are read, up to 4 bytes per edge and 8 more with weights. One value
/// is read for each vertex that is active or gets a message. If one message per vertex does not fit in memory, messages
/// are sorted and reduced through flash. Of n messages with m bytes each, about a third of (4 + m) n bytes is then
/// written and read again. Memory stays within the job's budget, which must be at least
/// [`SMALLEST_BUDGET_BYTES`](crate::SMALLEST_BUDGET_BYTES).
///
/// The method is algorithm 1 in section 9.2 and algorithm 3 in section 9.4 of the 2018 thesis.
///
/// # Errors
/// - Returns [`Error::Program`] if a function of the program panics or breaks a rule of its documentation.
/// - Returns [`Error::BadInput`] if the program needs weights and the graph has none.
/// - Returns [`Error::BadOption`] if the program would never end.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
pub fn run<P: VertexProgram>(
    graph: &Graph,
    job: &Job,
    program: P,
    options: &ProgramOptions,
) -> Result<Answer> {
    if P::NEEDS.every_vertex && options.supersteps.is_none() {
        let expected = "a number, since every vertex is active in every superstep".to_string();
        return Err(Error::BadOption { option: "supersteps", found: "none".to_string(), expected });
    }
    if P::NEEDS.weights && !graph.info().weighted {
        return Err(Error::BadInput {
            place: graph.info().name.clone(),
            found: "none".to_string(),
            expected: "edges with weights (import --weighted keeps them)".to_string(),
        });
    }
    let out = graph.out();
    let rows = vec![if P::NEEDS.weights { out.clone() } else { out.unweighted() }];
    drive(graph, job, HostedVertices::new(program), options, rows, false)
}

/// Runs a search and returns rows as [`run`] does.
///
/// Cost: each edge is read at most once, in whole blocks of the edge file. If the graph has in-edges, a superstep pulls
/// along the in-edges of waiting vertices if that reads less.
///
/// # Errors
/// Returns the errors of [`run`].
pub fn search<P: SearchProgram>(
    graph: &Graph,
    job: &Job,
    program: P,
    options: &ProgramOptions,
) -> Result<Answer> {
    let mut rows = vec![graph.out().unweighted()];
    let in_edges = graph.kept_in_edges();
    rows.extend(in_edges.filter(|_| graph.info().directed).map(Csr::unweighted));
    drive(graph, job, HostedSearch::new(program), options, rows, in_edges.is_some())
}

fn drive<H: Hosted>(
    graph: &Graph,
    job: &Job,
    mut hosted: H,
    options: &ProgramOptions,
    rows: Vec<Csr>,
    has_in_edges: bool,
) -> Result<Answer> {
    check_budget(job, H::NAME)?;
    let failures = hosted.failures().clone();
    let check = || failures.check(graph, job, H::NAME);
    let columns = hosted.columns();
    check().and_then(|()| check_columns(H::NAME, &columns))?;

    let vertices = graph.vertices();
    let (every, question) =
        options.resume.as_ref().map(|resume| (resume.every, resume.question.as_str())).unzip();
    let limit = options.supersteps.unwrap_or(u32::MAX);
    let question = (question, options.supersteps);
    let mut checkpoints =
        Checkpoints::new(graph, job, every, &format!("graph program {}", H::NAME), question)?;
    let done = checkpoints.numbers::<H::State>(vertices)?.map_or(0, |[done, _]| done as u32);
    let to_come = limit.saturating_sub(done);
    let dense = H::EVERY_VERTEX.then(|| Dense::new(job, vertices - graph.info().sinks, to_come, false));
    let kept_bytes = checkpoints.bytes::<H::State>(vertices);
    let setup = Setup { tuning: &options.tuning, rows, has_in_edges, dense, kept_bytes };
    let engine = Engine::new::<H>(job, setup, |vertex| hosted.initial(vertex));
    check()?;
    let mut engine = engine?;
    let (mut active, mut number, mut edges_before) = match engine.resume_from(&checkpoints)? {
        Some((active, [number, edges_before])) => (active, number as u32, edges_before),
        None if H::EVERY_VERTEX => (Frontier::All, 0, 0),
        None => (engine.frontier(|vertex, state| hosted.starts(vertex, state))?, 0, 0),
    };
    check()?;
    while !active.is_empty() && number < limit {
        number += 1;
        *hosted.at() = SuperstepInfo { number, vertices, aggregate: 0 };
        let collect = if H::EVERY_VERTEX { FrontierCollection::No } else { FrontierCollection::Yes };
        let done =
            engine.superstep(&mut hosted, Superstep { edges_before, ..Superstep::new(&active, collect) });
        check()?;
        let done = done?;
        edges_before += done.edges_counted.unwrap_or(0);
        if !H::EVERY_VERTEX {
            active = done.active;
        }
        engine.save(&mut checkpoints, &active, [number.into(), edges_before])?;
    }
    let summary = engine.summary();
    let rows = table(graph, job, &hosted, columns, engine.into_stream()?)?;
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// Makes a row for each vertex.
fn table<H: Hosted>(
    graph: &Graph,
    job: &Job,
    hosted: &H,
    columns: Vec<Column<H::Value>>,
    mut states: StateStream<H::State>,
) -> Result<Rows> {
    let (failures, vertices) = (hosted.failures().clone(), graph.vertices());
    let of = |graph: &Graph, job: &Job, vertex: u32| -> Result<Error> {
        Ok(Error::Program {
            program: H::NAME,
            function: "a column",
            vertex: Some(graph.id_of(job, vertex)?),
            what: "returned a vertex that is not in the graph".to_string(),
        })
    };
    let mut translation = Translation::Dense;
    if let Some(Column { cells: Cells::Vertex(cell), .. }) = columns.iter().find(|column| column.is_vertex())
    {
        let named = |each: &mut dyn FnMut(u32, u32) -> Result<()>| {
            states.for_each(|vertex, state| {
                let value = H::Value::from_bits(*state);
                match failures.call("a column", Some(vertex), None, || cell(value)) {
                    None => Ok(()),
                    Some(named) => match named.within(vertices) {
                        Some(named) => each(vertex, named),
                        None => Err(of(graph, job, vertex)?),
                    },
                }
            })
        };
        translation = Translation::new(graph, job, named)?;
        failures.check(graph, job, H::NAME)?;
    }
    let mut fields = vec![Field::new("vertex", DataType::UInt64, false)];
    fields.extend(columns.iter().map(Column::field));
    let (its_graph, its_job) = (graph.clone(), job.clone());
    let arrays = move |first: u32, states: &[H::State]| {
        let mut id = |vertex, named: super::VertexId| match named.within(vertices) {
            Some(named) => translation.id(vertex, named),
            None => Err(of(&its_graph, &its_job, vertex)?),
        };
        let arrays: Result<Vec<_>> =
            columns.iter().map(|column| column.array(first, states, &failures, &mut id)).collect();
        failures.check(&its_graph, &its_job, H::NAME)?;
        arrays
    };
    VertexRows::stream(graph, job, Arc::new(Schema::new(fields)), states, arrays)
}

/// Refuses duplicate names of columns, and more than one column of vertices.
fn check_columns<V: FixedWidth>(program: &'static str, columns: &[Column<V>]) -> Result<()> {
    let bad = |what| Err(Error::Program { program, function: "columns", vertex: None, what });
    let mut names = HashSet::from(["vertex"]);
    if let Some(twice) = columns.iter().find(|column| !names.insert(&column.name)) {
        return bad(format!("returned two columns with the name {}", twice.name));
    }
    if columns.iter().filter(|column| column.is_vertex()).count() > 1 {
        return bad("returned more than one column of vertices".to_string());
    }
    Ok(())
}

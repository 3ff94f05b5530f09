//! Runs the algorithms. Each has its options and its summary sentence; running, streaming the rows and reporting are shared.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};
use inshore::{
    graph::{
        self, Answer, BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions,
        ComponentsOptions, Graph, PageRankOptions, Rows, SsspOptions, Summary, Tuning,
    },
    store::Job,
    tables::TableWriter,
};

use crate::{
    args::{self, AlgorithmArgs, ResumeArgs},
    job::session::Session,
    report::{
        outcome::Outcome,
        top::{Best, Order, Top},
    },
    verbs::graph::sizes::Sizes,
};

pub fn pagerank(session: &Session, arguments: &args::Pagerank) -> Result<()> {
    let options = PageRankOptions {
        tolerance: arguments.tolerance,
        resume: resume(&arguments.resumed),
        tuning: tuning(&arguments.asked),
        ..arguments.how.options()
    };
    let run = |graph: &Graph, job: &Job| graph::pagerank(graph, job, &options);
    let sentence = |vertices: u64, summary: &Summary| {
        let supersteps = summary.supersteps;
        if let Some(error) = summary.error_max {
            return format!(
                "ranks of {vertices} vertices after {supersteps} supersteps, all together within {error:.1e} of converged ones"
            );
        }
        let change =
            summary.last_change.map(|change| format!(", the last of which changed them by {change:.1e}"));
        format!("ranks of {vertices} vertices after {supersteps} iterations{}", change.unwrap_or_default())
    };
    let shown = TopContents::Rows(Order::Descending(1));
    answer(session, "graph pagerank", &arguments.asked, shown, run, sentence)
}

pub fn bfs(session: &Session, arguments: &args::Bfs) -> Result<()> {
    let options = BfsOptions {
        resume: resume(&arguments.resumed),
        tuning: tuning(&arguments.asked),
        ..BfsOptions::new(arguments.source)
    };
    let run = |graph: &Graph, job: &Job| graph::bfs(graph, job, &options);
    let sentence = |vertices: u64, summary: &Summary| {
        let (reached, levels) = (summary.reached.unwrap_or(0), summary.levels.unwrap_or(0));
        format!("reached {reached} of {vertices} vertices in {levels} levels")
    };
    answer(session, "graph bfs", &arguments.asked, TopContents::Rows(Order::Ascending(2)), run, sentence)
}

pub fn sssp(session: &Session, arguments: &args::Sssp) -> Result<()> {
    let options = SsspOptions {
        resume: resume(&arguments.resumed),
        tuning: tuning(&arguments.asked),
        ..SsspOptions::new(arguments.source)
    };
    let run = |graph: &Graph, job: &Job| graph::sssp(graph, job, &options);
    let sentence = |vertices: u64, summary: &Summary| {
        format!("distances to {} of {vertices} vertices", summary.reached.unwrap_or(0))
    };
    answer(session, "graph sssp", &arguments.asked, TopContents::Rows(Order::Ascending(1)), run, sentence)
}

pub fn communities(session: &Session, arguments: &args::Communities) -> Result<()> {
    let options = CommunitiesOptions {
        iterations: arguments.iterations,
        resume: resume(&arguments.resumed),
        tuning: tuning(&arguments.asked),
    };
    let run = |graph: &Graph, job: &Job| graph::communities(graph, job, &options);
    let sentence = |vertices: u64, summary: &Summary| {
        format!("communities of {vertices} vertices after {} iterations", summary.supersteps)
    };
    answer(session, "graph communities", &arguments.asked, TopContents::Sizes, run, sentence)
}

pub fn clustering(session: &Session, arguments: &args::Clustering) -> Result<()> {
    let options = ClusteringOptions { tuning: tuning(&arguments.asked) };
    let run = |graph: &Graph, job: &Job| graph::clustering(graph, job, &options);
    let sentence = |vertices: u64, summary: &Summary| {
        let triangles = summary.triangles.unwrap_or(0);
        format!("clustering coefficients of {vertices} vertices, {triangles} triangles")
    };
    let shown = TopContents::Rows(Order::Descending(1));
    answer(session, "graph clustering", &arguments.asked, shown, run, sentence)
}

pub fn components(session: &Session, arguments: &args::Components) -> Result<()> {
    let options = ComponentsOptions { resume: resume(&arguments.resumed), tuning: tuning(&arguments.asked) };
    let run = |graph: &Graph, job: &Job| graph::components(graph, job, &options);
    let sentence = |vertices: u64, summary: &Summary| {
        format!("{} components of {vertices} vertices", summary.components.unwrap_or(0))
    };
    answer(session, "graph components", &arguments.asked, TopContents::Sizes, run, sentence)
}

pub fn betweenness(session: &Session, arguments: &args::Betweenness) -> Result<()> {
    let (sources, seed) = (arguments.sample.sources, arguments.sample.seed);
    let options = BetweennessOptions {
        sources,
        seed,
        resume: resume(&arguments.resumed),
        tuning: tuning(&arguments.asked),
    };
    let run = |graph: &Graph, job: &Job| graph::betweenness(graph, job, &options);
    let sentence = |vertices: u64, summary: &Summary| {
        format!("centrality of {vertices} vertices from {} sources", summary.sources.len())
    };
    let shown = TopContents::Rows(Order::Descending(1));
    answer(session, "graph betweenness", &arguments.asked, shown, run, sentence)
}

/// Returns the interval between checkpoints.
fn resume(resumed: &ResumeArgs) -> Option<Duration> {
    resumed.resume.then(|| Duration::from_secs_f64(resumed.checkpoint_every))
}

fn tuning(asked: &AlgorithmArgs) -> Tuning {
    Tuning {
        strategy: asked.strategy.map(Into::into),
        regime: asked.regime.map(Into::into),
        ..Tuning::default()
    }
}

/// The contents of `--top`.
#[derive(Clone, Copy)]
enum TopContents {
    /// The best rows in this order.
    Rows(Order),
    /// The most frequent values of the second column, and their counts.
    Sizes,
}

fn answer(
    session: &Session,
    command: &'static str,
    asked: &AlgorithmArgs,
    shown: TopContents,
    run_algorithm: impl FnOnce(&Graph, &Job) -> graph::Result<Answer>,
    sentence: impl FnOnce(u64, &Summary) -> String,
) -> Result<()> {
    check_output(session, asked)?;
    let graph = Graph::open(session.store()?, &asked.graph)?;
    let mut run = session.start()?;
    let Answer { summary, rows } = run_algorithm(&graph, &run.job).inspect_err(|_| run.tell_kept(session))?;
    let top = stream(rows, asked, shown).inspect_err(|_| run.tell_kept(session))?;

    let mut sentence = sentence(graph.vertices(), &summary);
    match &asked.output {
        Some(output) if output != Path::new("-") => {
            sentence.push_str(&format!("; all rows are in {}", output.display()));
        }
        None if asked.top.is_none() => sentence.push_str("; use -o FILE or --top N to see them"),
        _ => {}
    }
    let how = how(&summary);
    let notice = summary.notice.clone();
    let outcome = Outcome::new(command, run.finish(), summary, sentence);
    let sentence_aside = asked.output.is_some();
    Ok(Outcome { rows: top, sentence_aside, notice, how, ..outcome }.tell(&session.options)?)
}

/// The output is checked before the work, which may take hours.
fn check_output(session: &Session, asked: &AlgorithmArgs) -> Result<()> {
    let Some(path) = &asked.output else { return Ok(()) };
    if path == Path::new("-") && asked.top.is_some() {
        bail!("-o - and --top both use standard output: give one of them");
    }
    session.check_stdout_is_free(path)?;
    Ok(TableWriter::check_path(path)?)
}

/// Reads the rows once, into the file and into the result of `--top`. Reads no rows if neither was requested.
fn stream(mut rows: Rows, asked: &AlgorithmArgs, shown: TopContents) -> Result<Option<Top>> {
    if asked.output.is_none() && asked.top.is_none() {
        rows.finish()?;
        return Ok(None);
    }
    let job = rows.job().clone();
    let columns: Vec<String> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    let writer = |path: &PathBuf| TableWriter::create(path, rows.schema().clone(), job.budget());
    let mut writer = asked.output.as_ref().map(writer).transpose()?;
    let mut best = match (asked.top, shown) {
        (Some(limit), TopContents::Rows(order)) => Some(Best::new(limit as usize, order)),
        _ => None,
    };
    let mut sizes = match (asked.top, shown) {
        (Some(_), TopContents::Sizes) => Some(Sizes::new(&job)?),
        _ => None,
    };
    while let Some(batch) = rows.next_batch()? {
        if let Some(writer) = &mut writer {
            writer.write(&batch)?;
        }
        if let Some(best) = &mut best {
            best.offer_batch(&batch);
        }
        if let Some(sizes) = &mut sizes {
            sizes.count(&batch)?;
        }
    }
    if let Some(writer) = writer {
        writer.finish()?;
    }
    let top = match (best, sizes) {
        (Some(best), _) => Some(best.into_top(columns)),
        (_, Some(sizes)) => {
            let column = columns.into_iter().nth(1).expect("a vertex and what it is part of");
            Some(sizes.largest(asked.top.unwrap_or(0) as usize, column)?)
        }
        _ => None,
    };
    rows.finish()?;
    Ok(top)
}

/// Returns the facts of `--explain` about an algorithm, beside those of every job.
fn how(summary: &Summary) -> Vec<(&'static str, String)> {
    let state = if summary.state == "memory" { "in memory" } else { "on flash" };
    let updates = match &summary.strategy[..] {
        "look-up" => "none: vertices read their neighbours' labels".to_string(),
        "union-find" => {
            "none: edges joined trees of a forest, or joined a set of connected vertices".to_string()
        }
        "columns" => "combined by edge partition".to_string(),
        strategy => format!("combined by the {strategy} strategy"),
    };
    let regime = match (summary.state, &summary.strategy[..]) {
        _ if summary.edges_held => "in memory: vertices and edges",
        ("memory", strategy) if strategy.starts_with("columns") => {
            "semi-external: vertices in memory, edges partitioned by destination where that is possible"
        }
        ("memory", "dense" | "look-up" | "union-find") => "semi-external: vertices in memory, edges on flash",
        (_, "dense") => "semi-external: updates in memory, states and edges on flash",
        (_, "union-find") => {
            "external: a bit for each vertex or a part of a forest in memory, labels and edges on flash"
        }
        (_, "columns") => "external: updates of an edge partition in memory, states and edges on flash",
        (_, strategy) if strategy.starts_with("columns") => {
            "external: updates of an edge partition in memory while many vertices are active, then through sort-reduce"
        }
        _ => "external: updates through sort-reduce",
    };
    let supersteps = match summary.supersteps_kept {
        None => summary.supersteps.to_string(),
        Some(kept) => format!("{}, {kept} of them before it was interrupted", summary.supersteps),
    };
    vec![
        ("regime", regime.to_string()),
        ("vertex state", state.to_string()),
        ("updates", updates),
        ("supersteps", supersteps),
        ("edges walked", summary.edges_traversed.to_string()),
    ]
}

//! Runs the algorithms on graphs. Each function builds the request of an algorithm, the sentence that summarizes its
//! answer, and the rows of `--top`.

use std::path::Path;

use anyhow::{Result, bail};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore::{
    graph::{
        BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions, ComponentsOptions,
        PageRankOptions, SsspOptions, Summary,
    },
    store::Execution,
};
use inshore_ops::{
    self as ops, Attachments, Request, RowReceiver,
    verbs::{Algorithm, AlgorithmAnswer},
};

use crate::{
    args::{self, AlgorithmArgs, GlobalOptions},
    job::{
        operations::{self, StoreAccess},
        session::check_stdout_is_free,
    },
    report::{
        outcome::Outcome,
        top::{Order, Top, TopK},
    },
    verbs::graph::sizes::Sizes,
};

pub fn pagerank(options: GlobalOptions, arguments: &args::Pagerank) -> Result<()> {
    let algorithm = PageRankOptions {
        tolerance: arguments.tolerance,
        resume: arguments.resumed.interval(),
        tuning: arguments.asked.tuning(),
        ..arguments.how.options()
    };
    answer(options, algorithm, &arguments.asked, TopContents::Rows(Order::Descending(1)), ranked)
}

/// Returns the sentence about computed ranks.
fn ranked(vertices: u64, summary: &Summary) -> String {
    let supersteps = summary.supersteps;
    if let Some(error) = summary.error_max {
        return format!(
            "ranks of {vertices} vertices after {supersteps} supersteps, all together within {error:.1e} of converged ones"
        );
    }
    let change =
        summary.last_change.map(|change| format!(", the last of which changed them by {change:.1e}"));
    format!("ranks of {vertices} vertices after {supersteps} iterations{}", change.unwrap_or_default())
}

/// Computes ranks on a cluster.
#[cfg(feature = "nodes")]
pub fn pagerank_on_cluster(options: GlobalOptions, arguments: &args::PagerankOnCluster) -> Result<()> {
    let args::PagerankOnCluster { files, iterations, damping, tolerance } = arguments;
    let algorithm = PageRankOptions {
        iterations: Some(*iterations),
        damping: *damping,
        tolerance: *tolerance,
        ..PageRankOptions::default()
    };
    on_cluster("cluster pagerank", options, algorithm, files, ranked)
}

/// Searches breadth first on a cluster.
#[cfg(feature = "nodes")]
pub fn bfs_on_cluster(options: GlobalOptions, arguments: &args::BfsOnCluster) -> Result<()> {
    let algorithm = BfsOptions::new(arguments.source);
    on_cluster("cluster bfs", options, algorithm, &arguments.files, searched)
}

/// Finds connected components on a cluster.
#[cfg(feature = "nodes")]
pub fn components_on_cluster(options: GlobalOptions, arguments: &args::ComponentsOnCluster) -> Result<()> {
    on_cluster(
        "cluster components",
        options,
        ComponentsOptions::default(),
        &arguments.files,
        found_components,
    )
}

/// Computes distances on a cluster.
#[cfg(feature = "nodes")]
pub fn sssp_on_cluster(options: GlobalOptions, arguments: &args::SsspOnCluster) -> Result<()> {
    let algorithm = SsspOptions::new(arguments.source);
    on_cluster("cluster sssp", options, algorithm, &arguments.files, measured)
}

#[cfg(feature = "nodes")]
fn on_cluster<A: Algorithm>(
    verb: &'static str,
    options: GlobalOptions,
    algorithm: A,
    args::EdgesOnCluster { edges, output }: &args::EdgesOnCluster,
    sentence: impl FnOnce(u64, &Summary) -> String,
) -> Result<()> {
    check_stdout_is_free(&options, output)?;
    let request = Request::new(algorithm, [edges]).to(output);
    operations::run(options, &request)?.tell(|report, done| {
        let AlgorithmAnswer { summary, vertices } = &done.answer;
        let sentence = sentence(*vertices, summary) + &crate::report::outcome::written(output);
        Outcome { sentence_aside: true, ..Outcome::new(verb, report, done, sentence) }
    })
}

/// Returns the sentence about a breadth-first search.
fn searched(vertices: u64, summary: &Summary) -> String {
    let (reached, levels) = (summary.reached.unwrap_or(0), summary.levels.unwrap_or(0));
    format!("reached {reached} of {vertices} vertices in {levels} levels")
}

/// Returns the sentence about distances.
fn measured(vertices: u64, summary: &Summary) -> String {
    format!("distances to {} of {vertices} vertices", summary.reached.unwrap_or(0))
}

/// Returns the sentence about connected components.
fn found_components(vertices: u64, summary: &Summary) -> String {
    format!("{} components of {vertices} vertices", summary.components.unwrap_or(0))
}

pub fn bfs(options: GlobalOptions, arguments: &args::Bfs) -> Result<()> {
    let algorithm = BfsOptions {
        source: arguments.source,
        resume: arguments.resumed.interval(),
        tuning: arguments.asked.tuning(),
    };
    answer(options, algorithm, &arguments.asked, TopContents::Rows(Order::Ascending(2)), searched)
}

pub fn sssp(options: GlobalOptions, arguments: &args::Sssp) -> Result<()> {
    let algorithm = SsspOptions {
        source: arguments.source,
        resume: arguments.resumed.interval(),
        tuning: arguments.asked.tuning(),
    };
    answer(options, algorithm, &arguments.asked, TopContents::Rows(Order::Ascending(1)), measured)
}

pub fn communities(options: GlobalOptions, arguments: &args::Communities) -> Result<()> {
    let algorithm = CommunitiesOptions {
        iterations: arguments.iterations,
        resume: arguments.resumed.interval(),
        tuning: arguments.asked.tuning(),
    };
    let sentence = |vertices: u64, summary: &Summary| {
        format!("communities of {vertices} vertices after {} iterations", summary.supersteps)
    };
    answer(options, algorithm, &arguments.asked, TopContents::Sizes, sentence)
}

pub fn clustering(options: GlobalOptions, arguments: &args::Clustering) -> Result<()> {
    let algorithm = ClusteringOptions { tuning: arguments.asked.tuning() };
    let sentence = |vertices: u64, summary: &Summary| {
        let triangles = summary.triangles.unwrap_or(0);
        format!("clustering coefficients of {vertices} vertices, {triangles} triangles")
    };
    answer(options, algorithm, &arguments.asked, TopContents::Rows(Order::Descending(1)), sentence)
}

pub fn components(options: GlobalOptions, arguments: &args::Components) -> Result<()> {
    let algorithm =
        ComponentsOptions { resume: arguments.resumed.interval(), tuning: arguments.asked.tuning() };
    answer(options, algorithm, &arguments.asked, TopContents::Sizes, found_components)
}

pub fn betweenness(options: GlobalOptions, arguments: &args::Betweenness) -> Result<()> {
    let algorithm = BetweennessOptions {
        sources: arguments.sample.sources,
        seed: arguments.sample.seed,
        resume: arguments.resumed.interval(),
        tuning: arguments.asked.tuning(),
    };
    let sentence = |vertices: u64, summary: &Summary| {
        format!("centrality of {vertices} vertices from {} sources", summary.sources.len())
    };
    answer(options, algorithm, &arguments.asked, TopContents::Rows(Order::Descending(1)), sentence)
}

/// The kind of rows that `--top` shows.
#[derive(Clone, Copy)]
enum TopContents {
    /// The best rows in this order.
    Rows(Order),
    /// The most frequent values of the second column, and their counts.
    Sizes,
}

fn answer<A: Algorithm>(
    options: GlobalOptions,
    algorithm: A,
    asked: &AlgorithmArgs,
    shown: TopContents,
    sentence: impl FnOnce(u64, &Summary) -> String,
) -> Result<()> {
    if let Some(output) = &asked.output {
        if output == Path::new("-") && asked.top.is_some() {
            bail!("-o - and --top both use standard output: give one of them");
        }
        check_stdout_is_free(&options, output)?;
    }
    let request = Request { output: asked.output.clone(), ..Request::new(algorithm, [&asked.graph]) };
    let mut top = asked.top.map(|limit| TopRows::new(limit as usize, shown));
    let attachments =
        Attachments { rows: top.as_mut().map(|top| top as &mut dyn RowReceiver), ..Attachments::default() };
    let ran = operations::run_on(options, StoreAccess::Existing, &request, attachments)?;
    ran.tell(|report, done| {
        let AlgorithmAnswer { summary, vertices } = &done.answer;
        let mut sentence = sentence(*vertices, summary);
        match &asked.output {
            Some(output) if output != Path::new("-") => {
                sentence.push_str(&format!("; all rows are in {}", output.display()));
            }
            None if asked.top.is_none() => sentence.push_str("; use -o FILE or --top N to see them"),
            _ => {}
        }
        let (how, notice) = (how(summary), summary.notice.clone());
        let (rows, sentence_aside) = (top.and_then(|top| top.top), asked.output.is_some());
        Outcome { rows, sentence_aside, notice, how, ..Outcome::new(A::VERB, report, done, sentence) }
    })
}

/// Receives the rows of an answer for `--top`.
struct TopRows {
    limit: usize,
    shown: TopContents,
    columns: Vec<String>,
    counted: Option<Counted>,
    /// The rows for `--top`; `None` until all rows have been received.
    top: Option<Top>,
}

/// The state of `--top` while rows are being received.
enum Counted {
    Best(TopK),
    Sizes(Sizes),
}

impl TopRows {
    fn new(limit: usize, shown: TopContents) -> TopRows {
        TopRows { limit, shown, columns: Vec::new(), counted: None, top: None }
    }
}

impl RowReceiver for TopRows {
    fn begin(&mut self, schema: &SchemaRef, job: &Execution) -> ops::Result<()> {
        self.columns = schema.fields().iter().map(|field| field.name().clone()).collect();
        self.counted = Some(match self.shown {
            TopContents::Rows(order) => Counted::Best(TopK::new(self.limit, order)),
            TopContents::Sizes => Counted::Sizes(Sizes::new(job.job().expect("graphs are in a store"))?),
        });
        Ok(())
    }

    fn batch(&mut self, batch: RecordBatch) -> ops::Result<()> {
        match self.counted.as_mut().expect("the rows have begun") {
            Counted::Best(best) => best.offer_batch(&batch),
            Counted::Sizes(sizes) => sizes.count(&batch)?,
        }
        Ok(())
    }

    fn end(&mut self) -> ops::Result<()> {
        self.top = Some(match self.counted.take().expect("the rows have begun") {
            Counted::Best(best) => best.into_top(std::mem::take(&mut self.columns)),
            Counted::Sizes(sizes) => sizes.largest(self.limit, self.columns.swap_remove(1))?,
        });
        Ok(())
    }
}

/// Returns the `--explain` lines about an algorithm, in addition to those that every job has.
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

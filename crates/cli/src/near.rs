//! Queries over tables on nodes: what `sql`, `reduce` and `count values` have in common.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, bail};
use inshore::{
    neardata::nodes::Nodes,
    queries::NodeTables,
    sql::{Query, Tables},
    tables::TableWriter,
};
use serde_json::{Value, json};

use crate::{
    args::{Header, Reduce, Values},
    nodes,
    outcome::{Outcome, counted},
    session::Session,
};

/// Nodes, and the tables that lie on them.
pub struct Near {
    nodes: Nodes,
    pub tables: Arc<NodeTables>,
}

impl Near {
    pub fn connect(session: &Session, header: Option<Header>) -> Result<Near> {
        let nodes = nodes::connect(&session.options)?;
        let tables = NodeTables::new(&nodes, nodes::run_options(&session.options))?;
        let tables = Arc::new(tables.with_header(Header::of(header)));
        Ok(Near { nodes, tables })
    }

    /// What nodes did, for --explain and in a summary; says what is missing.
    pub fn told(&self, session: &Session, summary: Value) -> (Vec<(&'static str, String)>, Value) {
        let gathered = self.tables.gathered();
        nodes::tell_missing(&session.options, &self.nodes, &gathered);
        (nodes::costs(&gathered), nodes::with_nodes(summary, &self.nodes, &gathered))
    }
}

/// The same on nodes: the first half of grouping runs where the rows lie.
pub fn reduce(session: &Session, words: &Reduce) -> Result<()> {
    if words.resume || !words.first.is_empty() || !words.last.is_empty() {
        bail!("--first, --last and --resume do not go with --node: nodes answer in no order");
    }
    let mut columns = Vec::new();
    let named = |function: &str, column: &str| name(&format!("{function}_{column}"));
    columns.extend(words.count.iter().map(|column| match &**column {
        "" => "arrow_cast(count(*), 'UInt64') AS \"count\"".to_string(),
        column => format!("arrow_cast(count({}), 'UInt64') AS {}", name(column), named("count", column)),
    }));
    columns
        .extend(words.sum.iter().map(|column| format!("sum({}) AS {}", name(column), named("sum", column))));
    columns.extend(
        words
            .mean
            .iter()
            .map(|column| format!("avg(CAST({} AS DOUBLE)) AS {}", name(column), named("mean", column))),
    );
    columns
        .extend(words.min.iter().map(|column| format!("min({}) AS {}", name(column), named("min", column))));
    columns
        .extend(words.max.iter().map(|column| format!("max({}) AS {}", name(column), named("max", column))));
    if words.by.is_empty() && columns.is_empty() {
        bail!(
            "nothing is asked for: name columns with --by, or what to compute (--count, --sum COLUMN, ...)"
        );
    }
    group_on_nodes(
        session,
        "reduce",
        (&words.inputs, &words.text, words.header),
        (&words.by, &columns),
        &words.output,
    )
}

/// The same on nodes.
pub fn values(session: &Session, words: &Values) -> Result<()> {
    if words.resume {
        bail!("--resume does not go with --node");
    }
    let count = ["arrow_cast(count(*), 'UInt64') AS \"count\"".to_string()];
    let (inputs, by) = ((&words.inputs[..], &words.text[..], words.header), (&words.column[..], &count[..]));
    group_on_nodes(session, "count values", inputs, by, &words.output)
}

/// Groups the rows of a table on nodes by columns, and writes these and more `columns` of SQL, in the order of groups.
fn group_on_nodes(
    session: &Session,
    command: &'static str,
    (inputs, text, header): (&[PathBuf], &[String], Option<Header>),
    (by, columns): (&[String], &[String]),
    output: &Path,
) -> Result<()> {
    session.check_stdout_is_free(output)?;
    TableWriter::check_path(output)?;
    let [input] = inputs else { bail!("one table is grouped on nodes: name one dataset, store:NAME") };
    let by: Vec<String> = by.iter().map(|column| name(column)).collect();
    let all = by.iter().chain(columns).cloned().collect::<Vec<_>>().join(", ");
    let mut query = format!("SELECT {all} FROM rows");
    if !by.is_empty() {
        let order = by.iter().map(|column| format!("{column} ASC NULLS LAST")).collect::<Vec<_>>();
        query += &format!(" GROUP BY {} ORDER BY {}", by.join(", "), order.join(", "));
    }
    let near = Near::connect(session, header)?;
    let tables = Tables::default().with_text(text).with_files("rows", std::slice::from_ref(input));
    let mut run = session.start()?;
    let mut query = Query::start(&run.job, &query, tables.with_elsewhere(near.tables.clone()))?;
    let mut writer = TableWriter::create(output, query.schema().clone(), run.job.budget())?;
    while let Some(batch) = query.next_batch()? {
        writer.write(&batch)?;
    }
    writer.finish()?;
    let report = query.report();
    drop(query);
    let groups = counted(report.rows, "group");
    let sentence = match output == Path::new("-") {
        true => groups,
        false => format!("{groups} written to {}", output.display()),
    };
    let summary = json!({ "groups": report.rows, "operators": report.operators });
    let (how, summary) = near.told(session, summary);
    let outcome = Outcome::new(command, run.finish(), summary, sentence);
    Ok(Outcome { sentence_aside: true, how, ..outcome }.tell(&session.options)?)
}

/// The name of a column in SQL.
fn name(column: &str) -> String {
    format!("\"{}\"", column.replace('"', "\"\""))
}

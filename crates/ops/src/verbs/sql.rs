//! The operation `sql`.

#[cfg(feature = "nodes")]
use std::sync::Arc;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use inshore_sql::{Error as QueryError, Query, Report, Tables};
use inshore_store::{Execution, Job};
use inshore_tables::{Header, TableWriter};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, RowOutput, RowReceiver, StoreUse},
    target::Response,
    target_kind::TargetKind,
};
#[cfg(feature = "nodes")]
use crate::{
    queries::NodeTables,
    target::{OnNodes, Target},
};

/// Runs an SQL query over files and datasets: see [`Query`]. The rows go to the output file, or else to
/// [`Attachments::rows`]. If neither exists, the rows are only counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// The SQL text of the query.
    pub query: String,
    /// The CSV columns that are read as text, even if their values look like numbers.
    #[serde(default)]
    pub text: Vec<String>,
    /// True if the first line of CSV holds the names of columns. By default, a first line that could also be a row
    /// is an error.
    #[serde(default)]
    pub header: Option<bool>,
    /// Folders whose files are tables of the query. The name of a table is the name of its file.
    #[serde(default)]
    pub folders: Vec<PathBuf>,
    /// Tables whose names are set in the request.
    #[serde(default)]
    pub tables: Vec<NamedTable>,
}

/// A file with the name by which the query refers to it. Files with the same name are one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedTable {
    /// The name of the table in the query.
    pub name: String,
    /// The path of the file.
    pub path: PathBuf,
}

/// The nodes that store the tables of a query.
#[cfg(feature = "nodes")]
#[derive(Debug)]
pub struct NodesOfQuery {
    on: OnNodes,
    tables: Arc<NodeTables>,
}

#[cfg(feature = "nodes")]
impl NodesOfQuery {
    /// Requests the list of datasets from the nodes of a target. Returns `None` for the local machine.
    pub(crate) fn new(target: &Target, header: Option<bool>) -> Result<Option<NodesOfQuery>> {
        let (on, has_exchanges) = match target {
            Target::Local => return Ok(None),
            Target::Nodes(on) => (on, false),
            Target::Cluster(on) => (on, true),
        };
        let tables = NodeTables::new(&on.nodes, on.options.clone())?.with_header(header.into());
        let tables = if has_exchanges { tables.with_exchanges() } else { tables };
        Ok(Some(NodesOfQuery { on: on.clone(), tables: Arc::new(tables) }))
    }

    /// Adds the tables on nodes to the tables of a query.
    pub(crate) fn add_to(&self, tables: Tables) -> Tables {
        tables.with_elsewhere(self.tables.clone())
    }

    /// Returns the response of a completed query, with the cost report of the nodes.
    pub(crate) fn done<A>(&self, answer: A) -> Response<A> {
        let response = Response::on_nodes(answer, &self.on, self.tables.gathered());
        Response { jobs: self.tables.jobs(), ..response }
    }
}

/// Runs a query. If a row contradicts the inferred columns of a table, the query runs again and the output is
/// written again. This is possible only if the output is a file, or a receiver that can start again.
pub(crate) fn run(
    job: &Job,
    text: &str,
    tables: Tables,
    output: Option<&Path>,
    rows: Option<&mut (dyn RowReceiver + '_)>,
) -> Result<Report> {
    let mut query = Query::start(job, text, tables)?;
    let mut receiver = rows.filter(|_| output.is_none());
    let can_begin_anew = match output {
        Some(output) => output != Path::new("-"),
        None => receiver.as_ref().is_some_and(|rows| rows.can_begin_anew()),
    };
    exactly(&mut query, can_begin_anew, |query| {
        let receiver = receiver.as_mut().map(|rows| &mut **rows as &mut dyn RowReceiver);
        let job = Execution::Stored(job.clone());
        let mut rows = RowOutput::begin(output, receiver, query.schema(), &job)?;
        while let Some(batch) = query.next_batch()? {
            rows.batch(batch)?;
        }
        rows.finish()
    })?;
    Ok(query.report())
}

/// Passes a query to `take`, which reads the rows. If a row contradicts the inferred columns of a table, runs the
/// query again with columns that are inferred from all rows.
fn exactly(
    query: &mut Query,
    can_begin_anew: bool,
    mut take: impl FnMut(&mut Query) -> Result<()>,
) -> Result<()> {
    match take(query) {
        Err(Error::Sql(QueryError::Table(error)))
            if error.is_contradiction() && can_begin_anew && query.begin_exactly()? =>
        {
            take(query)
        }
        taken => taken,
    }
}

/// The tables that a query may use.
#[derive(Debug)]
pub struct QueryPlan {
    tables: Tables,
    #[cfg(feature = "nodes")]
    nodes: Option<NodesOfQuery>,
}

impl Plan for QueryPlan {}

impl Operation for Sql {
    const NAME: &'static str = "sql";
    const PLACES: &'static [TargetKind] =
        if cfg!(feature = "nodes") { &TargetKind::ALL } else { &[TargetKind::Local] };
    const STORE: StoreUse = StoreUse::Always;
    const FORM: NormalForm = NormalForm::SortedRows;
    type Plan = QueryPlan;
    type Answer = Report;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, _place: TargetKind) -> Result<()> {
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<QueryPlan> {
        let mut tables = Tables::default().with_text(&self.text).with_header(Header::from(self.header));
        for folder in &self.folders {
            tables = tables.with_folder(folder)?;
        }
        let mut files: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
        for NamedTable { name, path } in &self.tables {
            files.entry(name).or_default().push(path.clone());
        }
        for (name, paths) in files {
            tables = tables.with_files(name, &paths);
        }
        #[cfg(not(feature = "nodes"))]
        let _ = context;
        #[cfg(feature = "nodes")]
        if let Some(nodes) = NodesOfQuery::new(context.target, self.header)? {
            return Ok(QueryPlan { tables: nodes.add_to(tables), nodes: Some(nodes) });
        }
        Ok(QueryPlan {
            tables,
            #[cfg(feature = "nodes")]
            nodes: None,
        })
    }

    fn run(
        &self,
        plan: QueryPlan,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<Report>> {
        let answer = run(context.stored(job)?, &self.query, plan.tables, context.output, attachments.rows)?;
        #[cfg(feature = "nodes")]
        if let Some(nodes) = plan.nodes {
            return Ok(nodes.done(answer));
        }
        Ok(Response::local(answer))
    }
}

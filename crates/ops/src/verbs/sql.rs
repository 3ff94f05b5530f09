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
    operation::{Asked, Beside, NormalForm, Operation, Rows, StoreUse},
    place::Place,
    target::Done,
};
#[cfg(feature = "nodes")]
use crate::{
    queries::NodeTables,
    target::{OnNodes, Target},
};

/// Runs a query over files and datasets; see [`Query`]. The rows go to the output, or else to
/// [`Beside::rows`]; without both, the rows are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// The query.
    pub query: String,
    /// Columns of CSV that are text even if their values look like numbers.
    #[serde(default)]
    pub text: Vec<String>,
    /// True if the first line of CSV holds names; by default the line is refused if it may be a row.
    #[serde(default)]
    pub header: Option<bool>,
    /// Folders whose files are tables under their own names.
    #[serde(default)]
    pub folders: Vec<PathBuf>,
    /// Tables with names from the request.
    #[serde(default)]
    pub tables: Vec<NamedTable>,
}

/// A file with a name in a query. Files of the same name are one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedTable {
    /// The name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
}

/// The nodes of a query's tables.
#[cfg(feature = "nodes")]
#[derive(Debug)]
pub struct NodesOfQuery {
    on: OnNodes,
    tables: Arc<NodeTables>,
}

#[cfg(feature = "nodes")]
impl NodesOfQuery {
    /// Asks nodes for their datasets.
    pub(crate) fn new(on: &OnNodes, header: Option<bool>) -> Result<NodesOfQuery> {
        let tables = NodeTables::new(&on.nodes, on.options.clone())?.with_header(header.into());
        Ok(NodesOfQuery { on: on.clone(), tables: Arc::new(tables) })
    }

    /// Adds the tables of nodes.
    pub(crate) fn add_to(&self, tables: Tables) -> Tables {
        tables.with_elsewhere(self.tables.clone())
    }

    /// Returns the answer to a completed query, with the work of nodes.
    pub(crate) fn done<A>(&self, answer: A) -> Done<A> {
        Done::on_nodes(answer, &self.on, self.tables.gathered())
    }
}

/// Runs a query. If a row contradicts the inferred columns of a table, the query runs again and the output is written
/// again, if the output is a file or a receiver that can restart.
pub(crate) fn run(
    job: &Job,
    text: &str,
    tables: Tables,
    output: Option<&Path>,
    rows: Option<&mut (dyn Rows + '_)>,
) -> Result<Report> {
    let mut query = Query::start(job, text, tables)?;
    match (output, rows) {
        (Some(output), _) => {
            let can_begin_anew = output != Path::new("-");
            exactly(&mut query, can_begin_anew, |query| {
                let mut writer = TableWriter::create(output, query.schema().clone(), job.budget())?;
                while let Some(batch) = query.next_batch()? {
                    writer.write(&batch)?;
                }
                writer.finish()?;
                Ok(())
            })?;
        }
        (None, Some(rows)) => {
            let can_begin_anew = rows.can_begin_anew();
            exactly(&mut query, can_begin_anew, |query| {
                rows.begin(query.schema(), &Execution::Stored(job.clone()))?;
                while let Some(batch) = query.next_batch()? {
                    rows.batch(batch)?;
                }
                rows.end()
            })?;
        }
        (None, None) => while query.next_batch()?.is_some() {},
    }
    Ok(query.report())
}

/// Passes on the rows of a query; if a row contradicts the inferred columns, runs the query again with columns that
/// are inferred from all rows.
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

impl Operation for Sql {
    const NAME: &'static str = "sql";
    const PLACES: &'static [Place] = if cfg!(feature = "nodes") { &Place::ALL } else { &[Place::Local] };
    const STORE: StoreUse = StoreUse::Always;
    const FORM: NormalForm = NormalForm::SortedRows;
    #[cfg(feature = "nodes")]
    type Plan = (Tables, Option<NodesOfQuery>);
    #[cfg(not(feature = "nodes"))]
    type Plan = Tables;
    type Answer = Report;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, _place: Place) -> Result<()> {
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    fn plan(&self, asked: &Asked<'_>) -> Result<Self::Plan> {
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
        let _ = asked;
        #[cfg(feature = "nodes")]
        let tables = match asked.target {
            Target::Local => (tables, None),
            Target::Nodes(on) => {
                let nodes = NodesOfQuery::new(on, self.header)?;
                (nodes.add_to(tables), Some(nodes))
            }
        };
        Ok(tables)
    }

    fn run(
        &self,
        plan: Self::Plan,
        asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<Report>> {
        #[cfg(feature = "nodes")]
        let (tables, nodes) = plan;
        #[cfg(not(feature = "nodes"))]
        let tables = plan;
        let answer = run(asked.stored(job)?, &self.query, tables, asked.output, beside.rows)?;
        #[cfg(feature = "nodes")]
        if let Some(nodes) = nodes {
            return Ok(nodes.done(answer));
        }
        Ok(Done::here(answer))
    }
}

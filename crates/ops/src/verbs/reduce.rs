//! The operations `reduce` and `count values`.
//!
//! On the local machine, `inshore_tables::reduce` computes the groups. On nodes, an SQL query computes the groups,
//! and the nodes that store the rows aggregate their own rows first.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
pub use inshore_tables::Function;
use inshore_tables::{self as tables, Header, Input, ReduceOptions, ReduceSummary, TableWriter};
use serde::{Deserialize, Serialize};

#[cfg(all(feature = "nodes", feature = "sql"))]
use crate::verbs::sql;
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, StoreUse, table_input},
    target::{Response, Target},
    target_kind::TargetKind,
};

/// Groups the rows of tables by columns, and computes aggregates of each group: see [`tables::reduce`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reduce {
    /// The columns whose values define a group; without any column, all rows are one group.
    pub by: Vec<String>,
    /// The aggregates of each group, in the order of the result's columns.
    pub aggregates: Vec<Aggregate>,
    /// The CSV columns that are read as text, even if their values look like numbers.
    pub text: Vec<String>,
    /// True if the first line of CSV holds the names of columns. By default, a first line that could also be a row
    /// is an error.
    pub header: Option<bool>,
    /// If true, finished sorted runs remain in the store after an interruption, and a later call with the same
    /// options resumes the operation.
    pub resume: bool,
}

/// Counts the rows for each combination of values in these columns, by [`Reduce`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountValues {
    /// The columns whose combined values are counted.
    pub columns: Vec<String>,
    /// The CSV columns that are read as text, even if their values look like numbers.
    #[serde(default)]
    pub text: Vec<String>,
    /// True if the first line of CSV holds the names of columns. By default, a first line that could also be a row
    /// is an error.
    #[serde(default)]
    pub header: Option<bool>,
    /// If true, finished sorted runs remain in the store after an interruption, and a later call with the same
    /// options resumes the operation.
    #[serde(default)]
    pub resume: bool,
}

/// An aggregate: one column of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aggregate {
    /// The aggregate function.
    pub function: Function,
    /// The column of the aggregate. A count without a column counts rows.
    #[serde(default)]
    pub column: Option<String>,
}

impl Aggregate {
    /// Returns an aggregate that counts rows.
    pub fn count() -> Aggregate {
        Aggregate { function: Function::Count, column: None }
    }

    /// Returns the aggregate of a function and a column.
    pub fn of(function: Function, column: impl Into<String>) -> Aggregate {
        Aggregate { function, column: Some(column.into()) }
    }

    /// Converts the aggregate to the corresponding type of the crate `inshore_tables`.
    fn known(&self) -> Result<tables::Aggregate> {
        match &self.column {
            Some(column) => Ok(tables::Aggregate::of(self.function, column)),
            None if self.function == Function::Count => Ok(tables::Aggregate::count()),
            None => Err(Error::NoColumn { function: self.function.name() }),
        }
    }

    /// Converts the aggregate to SQL. Returns `None` for a function that depends on the order of rows.
    #[cfg(all(feature = "nodes", feature = "sql"))]
    fn sql(&self) -> Option<String> {
        let column = self.column.as_deref().map(quoted);
        let column = column.as_deref().unwrap_or("*");
        let computed = match self.function {
            Function::Count => format!("arrow_cast(count({column}), 'UInt64')"),
            Function::Sum => format!("sum({column})"),
            Function::Mean => format!("avg(CAST({column} AS DOUBLE))"),
            Function::Min => format!("min({column})"),
            Function::Max => format!("max({column})"),
            Function::First | Function::Last => return None,
        };
        let name = self.known().ok()?.name();
        Some(format!("{computed} AS {}", quoted(&name)))
    }
}

/// Quotes the name of a column for SQL.
#[cfg(all(feature = "nodes", feature = "sql"))]
fn quoted(column: &str) -> String {
    format!("\"{}\"", column.replace('"', "\"\""))
}

/// The summary of a run that grouped rows.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum ReduceAnswer {
    /// The summary of a local run.
    Here(ReduceSummary),
    /// The summary of a run on nodes. Operators on the client combine the answers of the nodes.
    #[cfg(all(feature = "nodes", feature = "sql"))]
    Nodes {
        /// The number of written groups.
        groups: u64,
        /// The operators that ran on the client.
        operators: Vec<inshore_sql::OperatorStats>,
    },
}

impl ReduceAnswer {
    /// Returns the number of written groups.
    pub fn groups(&self) -> u64 {
        match self {
            ReduceAnswer::Here(summary) => summary.groups,
            #[cfg(all(feature = "nodes", feature = "sql"))]
            ReduceAnswer::Nodes { groups, .. } => *groups,
        }
    }
}

/// The machines that store the tables.
#[derive(Debug)]
pub enum ReducePlan {
    /// The tables are on the local machine.
    Here,
    /// The tables are on nodes.
    #[cfg(all(feature = "nodes", feature = "sql"))]
    Nodes(sql::NodesOfQuery),
}

/// The kinds of targets. Nodes compute groups by SQL queries, so the target `Nodes` needs the feature `sql`.
const PLACES: &[TargetKind] =
    if cfg!(all(feature = "nodes", feature = "sql")) { &TargetKind::ALL } else { &[TargetKind::Local] };

impl Plan for ReducePlan {}

impl Reduce {
    fn check_at(&self, operation: &'static str, inputs: &[PathBuf], place: TargetKind) -> Result<()> {
        if self.by.is_empty() && self.aggregates.is_empty() {
            return Err(Error::NothingAsked);
        }
        self.aggregates.iter().try_for_each(|aggregate| aggregate.known().map(drop))?;
        if place == TargetKind::Local {
            return Ok(());
        }
        let has = |function| self.aggregates.iter().any(|aggregate| aggregate.function == function);
        let context =
            [("resume", self.resume), ("first", has(Function::First)), ("last", has(Function::Last))];
        if let Some((option, _)) = context.into_iter().find(|(_, is_asked)| *is_asked) {
            let why = "nodes answer in no order";
            return Err(Error::UnsupportedOption { operation, option, place, why });
        }
        match inputs.len() {
            1 => Ok(()),
            inputs => Err(Error::OneInput { operation, inputs }),
        }
    }

    fn look_up(&self, context: &RequestContext<'_>) -> Result<ReducePlan> {
        TableWriter::check_path(context.output()?)?;
        match context.target {
            #[cfg(all(feature = "nodes", feature = "sql"))]
            target @ (Target::Nodes(_) | Target::Cluster(_)) => {
                let nodes = sql::NodesOfQuery::new(target, self.header)?;
                Ok(nodes.map_or(ReducePlan::Here, ReducePlan::Nodes))
            }
            #[cfg(all(feature = "nodes", not(feature = "sql")))]
            Target::Nodes(_) | Target::Cluster(_) => {
                Err(Error::Unsupported { operation: context.operation, place: TargetKind::Nodes })
            }
            Target::Local => Ok(ReducePlan::Here),
        }
    }

    fn group(
        &self,
        plan: ReducePlan,
        context: &RequestContext<'_>,
        job: &Execution,
    ) -> Result<Response<ReduceAnswer>> {
        let (job, output) = (context.stored(job)?, context.output()?);
        match plan {
            ReducePlan::Here => {
                let header = Header::from(self.header);
                let inputs: Vec<Input> =
                    context.inputs.iter().map(|path| table_input(job, path).with_header(header)).collect();
                let options = ReduceOptions {
                    by: self.by.clone(),
                    aggregates: self.aggregates.iter().map(Aggregate::known).collect::<Result<_>>()?,
                    as_text: self.text.clone(),
                    general: false,
                    resume: self.resume,
                };
                Ok(Response::local(ReduceAnswer::Here(tables::reduce(job, &inputs, output, &options)?)))
            }
            #[cfg(all(feature = "nodes", feature = "sql"))]
            ReducePlan::Nodes(nodes) => {
                let tables = inshore_sql::Tables::default().with_text(&self.text);
                let tables = tables.with_files("rows", context.inputs);
                let ran = sql::run(job, &self.query(), nodes.add_to(tables), Some(output), None)?;
                let answer = ReduceAnswer::Nodes { groups: ran.rows, operators: ran.operators };
                Ok(nodes.done(answer))
            }
        }
    }

    /// Returns the equivalent SQL query. The query sorts the groups by their columns.
    #[cfg(all(feature = "nodes", feature = "sql"))]
    fn query(&self) -> String {
        let by: Vec<String> = self.by.iter().map(|column| quoted(column)).collect();
        let computed = self.aggregates.iter().filter_map(Aggregate::sql);
        let all: Vec<String> = by.iter().cloned().chain(computed).collect();
        let mut query = format!("SELECT {} FROM rows", all.join(", "));
        if !by.is_empty() {
            let order: Vec<String> = by.iter().map(|column| format!("{column} ASC NULLS LAST")).collect();
            query += &format!(" GROUP BY {} ORDER BY {}", by.join(", "), order.join(", "));
        }
        query
    }
}

impl Operation for Reduce {
    const NAME: &'static str = "reduce";
    const PLACES: &'static [TargetKind] = PLACES;
    const STORE: StoreUse = StoreUse::Always;
    const FORM: NormalForm = NormalForm::Rows;
    type Plan = ReducePlan;
    type Answer = ReduceAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        self.check_at(Self::NAME, inputs, place)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ReducePlan> {
        self.look_up(context)
    }

    fn run(
        &self,
        plan: ReducePlan,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<ReduceAnswer>> {
        self.group(plan, context, job)
    }
}

impl CountValues {
    fn reduce(&self) -> Reduce {
        let CountValues { columns, text, header, resume } = self.clone();
        Reduce { by: columns, aggregates: vec![Aggregate::count()], text, header, resume }
    }
}

impl Operation for CountValues {
    const NAME: &'static str = "count values";
    const PLACES: &'static [TargetKind] = PLACES;
    const STORE: StoreUse = StoreUse::Always;
    const FORM: NormalForm = NormalForm::Rows;
    type Plan = ReducePlan;
    type Answer = ReduceAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        self.reduce().check_at(Self::NAME, inputs, place)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ReducePlan> {
        self.reduce().look_up(context)
    }

    fn run(
        &self,
        plan: ReducePlan,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<ReduceAnswer>> {
        self.reduce().group(plan, context, job)
    }
}

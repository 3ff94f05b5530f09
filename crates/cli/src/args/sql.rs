//! `inshore sql`.

use std::path::PathBuf;

use clap::Args;

use super::Header;

/// Query tables larger than memory in SQL
///
/// Tables are Parquet, CSV, TSV, JSON lines or Arrow. Name them in quotes (FROM 'sales/*.parquet'), or give them names
/// with --table and --tables. The SQL dialect is the dialect of DataFusion, which is close to PostgreSQL. If memory is
/// short, grouping, sorting and joining continue with sorted runs on flash. EXPLAIN shows the plan; EXPLAIN ANALYZE and
/// --explain show the work of each operator. Without -o, a terminal shows the first rows as a table, and a file or pipe
/// gets all rows as CSV.
///
/// With --node, a table called store:NAME is on nodes. The nodes run filters and partial aggregation, and send only the
/// results. This machine reads all other tables, and runs the rest of the query.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore sql \"SELECT shop, sum(price) FROM 'sales.parquet' GROUP BY shop ORDER BY 2 DESC LIMIT 10\"
  inshore sql --table log='logs/*.csv.gz' \"SELECT count(DISTINCT user) FROM log\" --memory 256MiB
  inshore sql --tables tpch/ --file q1.sql -o q1.parquet
  inshore --node a,b,c sql \"SELECT shop, sum(price) FROM 'store:sales.parquet' GROUP BY shop\"
  inshore sql \"EXPLAIN ANALYZE SELECT * FROM 'sales.parquet' ORDER BY price\"")]
pub struct Sql {
    /// The query; - reads it from standard input
    #[arg(value_name = "QUERY", required_unless_present = "file")]
    pub query: Option<String>,
    /// Read the query from a file
    #[arg(long, value_name = "FILE", conflicts_with = "query")]
    pub file: Option<PathBuf>,
    /// The table to write: .parquet, .arrow or .csv; - is CSV on standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Give a name to a table: a file, a folder, or several files by a path with *
    #[arg(long, value_name = "NAME=PATH")]
    pub table: Vec<NamedTable>,
    /// Use every table in a folder, by its name without the extension
    #[arg(long, value_name = "DIR")]
    pub tables: Vec<PathBuf>,
    /// Columns of CSV and JSON lines that are text even if they look like numbers
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub text: Vec<String>,
    /// Treat the first line of CSV as column names (yes) or as a row (no); without this option, a first line that may
    /// be a row is an error
    #[arg(long, value_name = "yes|no", hide_possible_values = true)]
    pub header: Option<Header>,
}

/// A table name and its files.
#[derive(Clone, Debug)]
pub struct NamedTable {
    pub name: String,
    pub path: PathBuf,
}

impl std::str::FromStr for NamedTable {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(NamedTable { name: name.to_string(), path: PathBuf::from(path) })
            }
            _ => Err("expected NAME=PATH such as sales=sales.parquet".to_string()),
        }
    }
}

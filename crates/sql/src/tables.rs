//! The resolution of table names in a query.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use datafusion::{catalog::TableProvider, datasource::MemTable};
use inshore_store::Job;
use inshore_tables::{Header, Input, TableMetadata, exact_columns};

use crate::{
    Error, RemoteExecutor, Result,
    remote::{Planning, RemoteTable},
    scan::Files,
};

/// The tables of a query: tables with given names, and paths in quotes.
///
/// `store:NAME` is a dataset of the job's store. A path may be a folder (all tables in it, which must have the same columns)
/// or have `*` in its last part.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    named: HashMap<String, TableSource>,
    as_text: Vec<String>,
    header: Header,
    elsewhere: Option<Arc<dyn RemoteExecutor>>,
    /// True if types of CSV and JSON lines are inferred from all rows, false if from the first rows.
    is_exact: bool,
    /// True if the columns of a table were inferred from its first rows.
    is_guessed: Arc<AtomicBool>,
    /// True if a table is JSON lines, whose later rows may have members that the inferred columns lack.
    may_have_more: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
enum TableSource {
    Files(Vec<PathBuf>),
    Inputs(Vec<Input>),
    Batches(SchemaRef, Vec<RecordBatch>),
}

impl Tables {
    /// Adds files as the table `name`.
    pub fn with_files(mut self, name: &str, paths: &[PathBuf]) -> Tables {
        self.named.insert(name.to_string(), TableSource::Files(paths.to_vec()));
        self
    }

    /// Adds inputs that are already open or found, such as files of a dataset, as the table `name`.
    pub fn with_inputs(mut self, name: &str, inputs: Vec<Input>) -> Tables {
        self.named.insert(name.to_string(), TableSource::Inputs(inputs));
        self
    }

    /// Adds batches in memory as the table `name`. The budget does not count their memory.
    pub fn with_batches(mut self, name: &str, schema: SchemaRef, batches: Vec<RecordBatch>) -> Tables {
        self.named.insert(name.to_string(), TableSource::Batches(schema, batches));
        self
    }

    /// Reads these columns of CSV and JSON lines as text, even where all values look like numbers.
    pub fn with_text(mut self, columns: &[String]) -> Tables {
        self.as_text = columns.to_vec();
        self
    }

    /// Says whether the first line of CSV files is a header.
    pub fn with_header(mut self, header: Header) -> Tables {
        self.header = header;
        self
    }

    /// Returns whether columns of a table were inferred from its first rows.
    pub(crate) fn are_guessed(&self) -> bool {
        !self.is_exact && self.is_guessed.load(Ordering::Relaxed)
    }

    /// Returns whether a table may have columns that are missing in its first rows.
    pub(crate) fn may_have_more_columns(&self) -> bool {
        self.are_guessed() && self.may_have_more.load(Ordering::Relaxed)
    }

    /// Makes later look-ups read all rows of CSV and JSON lines to find their columns.
    pub(crate) fn look_at_all_rows(&mut self) {
        self.is_exact = true;
    }

    /// Adds tables on other machines; each name is looked up there before it is looked up on this machine.
    pub fn with_elsewhere(mut self, elsewhere: Arc<dyn RemoteExecutor>) -> Tables {
        self.elsewhere = Some(elsewhere);
        self
    }

    /// Returns the tables on other machines.
    pub(crate) fn elsewhere(&self) -> Option<&Arc<dyn RemoteExecutor>> {
        self.elsewhere.as_ref()
    }

    /// Adds every table of a folder, named by the file without its ending.
    ///
    /// # Errors
    /// [`Error::Query`] is returned where the folder cannot be read, or two files have one name.
    pub fn with_folder(mut self, folder: &Path) -> Result<Tables> {
        for path in tables_in(folder)? {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = file.split('.').next().unwrap_or_default().to_string();
            if let Some(TableSource::Files(before)) =
                self.named.insert(name.clone(), TableSource::Files(vec![path.clone()]))
            {
                let (one, other) = (before[0].display(), path.display());
                return Err(Error::Query(format!("two tables are called {name}: {one} and {other}")));
            }
        }
        Ok(self)
    }

    /// Returns whether there is a table of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Finds the table that a query calls `name`. If nodes plan the query too, the table's columns and row
    /// count are also returned.
    pub(crate) fn find(
        &self,
        job: &Job,
        name: &str,
        planning: &Planning,
        is_whole: bool,
    ) -> Result<(Arc<dyn TableProvider>, Option<TableMetadata>)> {
        if let Some(elsewhere) = &self.elsewhere {
            let path = match self.named.get(name) {
                Some(TableSource::Files(paths)) if paths.len() == 1 => paths[0].to_str().unwrap_or(name),
                _ => name,
            };
            // Requests to nodes block, and threads of the query must not block.
            let described = thread::scope(|scope| {
                let asking = scope.spawn(|| elsewhere.describe(job, path, &self.as_text));
                asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            if let Some(known) = described? {
                // A fragment sends the name of its table to the nodes.
                let table = RemoteTable::new(name, known.clone(), planning.partitions);
                return Ok((Arc::new(table), Some(known)));
            }
            let (table, rows) = self.find_here(job, name, is_whole)?;
            let known =
                TableMetadata { schema: table.schema(), rows, unseen: Vec::new(), path: String::new() };
            return Ok((table, Some(known)));
        }
        Ok((self.find_here(job, name, is_whole)?.0, None))
    }

    /// Finds a table on this machine, and its row count if the files record one.
    fn find_here(
        &self,
        job: &Job,
        name: &str,
        is_whole: bool,
    ) -> Result<(Arc<dyn TableProvider>, Option<u64>)> {
        let files_of = |inputs: Vec<Input>| -> Result<(Arc<dyn TableProvider>, Option<u64>)> {
            let inputs: Vec<Input> = inputs.into_iter().map(|input| input.with_header(self.header)).collect();
            let exact = if self.is_exact { exact_columns(job, &inputs, &self.as_text)? } else { None };
            if exact.is_none() && inputs.iter().any(Input::is_text) {
                self.is_guessed.store(true, Ordering::Relaxed);
                let has_members = inputs.iter().any(|input| input.is_text() && !input.is_csv());
                self.may_have_more.fetch_or(has_members, Ordering::Relaxed);
            }
            let mut files = Files::open(job, exact.unwrap_or(inputs), &self.as_text)?;
            files.has_whole_rows = is_whole;
            files.has_only_row_counts = self.elsewhere.is_some();
            let rows = files.rows();
            Ok((Arc::new(files), rows))
        };
        let files = |paths: &[PathBuf]| {
            files_of(paths.iter().map(|path| inputs(job, path)).collect::<Result<Vec<_>>>()?.concat())
        };
        match self.named.get(name) {
            Some(TableSource::Files(paths)) => files(paths),
            Some(TableSource::Inputs(inputs)) => files_of(inputs.clone()),
            Some(TableSource::Batches(schema, batches)) => {
                let table = MemTable::try_new(schema.clone(), vec![batches.clone()]).map_err(Error::from)?;
                let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
                Ok((Arc::new(table), Some(rows)))
            }
            None if name.contains(['/', '.', '*', ':']) || Path::new(name).exists() => {
                files(&[PathBuf::from(name)])
            }
            None => {
                let mut known: Vec<&str> = self.named.keys().map(String::as_str).collect();
                known.sort_unstable();
                let known = match known.is_empty() {
                    true => String::new(),
                    false => format!(" (there are {})", known.join(", ")),
                };
                Err(Error::Query(format!(
                    "there is no table called {name}{known}: name a file in quotes, FROM 'sales.parquet', or give it a name \
                     with --table {name}=sales.parquet"
                )))
            }
        }
    }
}

/// Returns the files that a path denotes, or those of a dataset.
fn inputs(job: &Job, path: &Path) -> Result<Vec<Input>> {
    if let Some(dataset) = path.to_str().and_then(|path| path.strip_prefix("store:")) {
        return Ok(Input::stored(job, dataset)?);
    }
    Ok(expanded(path)?.into_iter().map(|path| Input::new(path).stopped_by(job.cancel())).collect())
}

/// Returns the files that a path denotes: one file, those of a folder, or those that match a `*`.
fn expanded(path: &Path) -> Result<Vec<PathBuf>> {
    let last = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if last.contains('*') && !path.exists() {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let mut found: Vec<PathBuf> = listed(folder)?
            .into_iter()
            .filter(|path| matches(&last, &path.file_name().unwrap_or_default().to_string_lossy()))
            .collect();
        found.sort();
        return match found.is_empty() {
            true => Err(Error::Query(format!("{}: no file matches", path.display()))),
            false => Ok(found),
        };
    }
    if path.is_dir() {
        let found = tables_in(path)?;
        return match found.is_empty() {
            true => Err(Error::Query(format!("{}: there is no table in this folder", path.display()))),
            false => Ok(found),
        };
    }
    Ok(vec![path.to_path_buf()])
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let fail = |error: std::io::Error| {
        Error::Query(format!("{}: cannot list the folder: {error}", folder.display()))
    };
    let entries = fs::read_dir(folder).map_err(fail)?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(fail)).collect()
}

/// Lists the files of a folder that can be tables, by name.
fn tables_in(folder: &Path) -> Result<Vec<PathBuf>> {
    const TABLES: [&str; 7] = ["parquet", "csv", "tsv", "jsonl", "ndjson", "json", "arrow"];
    let is_table = |path: &PathBuf| {
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(['.', '_']));
        path.is_file() && !is_hidden && TABLES.contains(&&*Input::new(path).extension())
    };
    let mut found: Vec<PathBuf> = listed(folder)?.into_iter().filter(is_table).collect();
    found.sort();
    Ok(found)
}

/// Returns whether a name matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(place) = rest.find(part) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name) in
            [("*.csv", "a.csv"), ("a*b*c", "a-b-b-c"), ("*", ""), ("a*", "a"), ("aa*a", "aaa")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.csv", "a.csv.gz"), ("a*b", "ba"), ("aa*a", "aa"), ("x", "xy")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}

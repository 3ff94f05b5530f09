//! The names of tables in a query, found without a run.

use std::{collections::HashSet, ops::ControlFlow, thread};

use datafusion::{
    common::TableReference,
    error::Result,
    sql::{
        parser::{DFParserBuilder, Statement},
        resolve::resolve_table_references,
        sqlparser::{
            ast::{Ident, TableFactor, Visit, Visitor},
            dialect::GenericDialect,
        },
    },
};
use pyo3::prelude::*;

/// The longest text that is parsed. The tree of a longer one, with an operator for each two bytes, could exceed the
/// stack when it is dropped.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The stack of the thread that parses, of which only used pages take memory.
const STACK_BYTES: usize = 256 << 20;

/// Returns the names of the tables that a query reads, in alphabetical order: each as a table has to be called to be
/// found, which is in lower case unless the query quotes the name.
///
/// The names exclude tables of a WITH, table functions such as `generate_series`, and files in single quotes. A text that
/// is no query, or is longer than 64 KiB, has no names: its run returns the error. The call takes the time of parsing,
/// some microseconds for a short text, and reads no file.
#[pyfunction]
pub(crate) fn table_names(py: Python<'_>, query: &str) -> Vec<String> {
    if query.len() > TEXT_BYTES_MAX {
        return Vec::new();
    }
    // A query of many terms is a deep tree, which is walked and dropped recursively.
    let names = || {
        let builder = thread::Builder::new().name("names".to_string()).stack_size(STACK_BYTES);
        thread::scope(|scope| {
            let found = builder.spawn_scoped(scope, || find_names(query).unwrap_or_default());
            found.ok()?.join().ok()
        })
    };
    py.detach(names).unwrap_or_default()
}

fn find_names(text: &str) -> Result<Vec<String>> {
    let mut statements =
        DFParserBuilder::new(text).with_dialect(&GenericDialect {}).build()?.parse_statements()?;
    let (Some(statement), true) = (statements.pop_front(), statements.is_empty()) else {
        return Ok(Vec::new());
    };
    let mut others = Others::default();
    visit(&statement, &mut others);
    let (references, _) = resolve_table_references(&statement, true)?;
    let name = |reference| match reference {
        TableReference::Bare { table } if !others.0.contains(&*table) => Some(table.to_string()),
        _ => None,
    };
    Ok(references.into_iter().filter_map(name).collect())
}

fn visit(statement: &Statement, others: &mut Others) {
    match statement {
        Statement::Statement(statement) => drop(statement.visit(others)),
        Statement::Explain(explain) => visit(&explain.statement, others),
        _ => {}
    }
}

/// The names in FROM that are no names of tables: functions, and files in single quotes.
#[derive(Default)]
struct Others(HashSet<String>);

impl Visitor for Others {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, args, .. } = factor
            && let [part] = &name.0[..]
            && let Some(Ident { value, quote_style, .. }) = part.as_ident()
            && (args.is_some() || *quote_style == Some('\''))
        {
            self.0.insert(if quote_style.is_none() { value.to_lowercase() } else { value.clone() });
        }
        ControlFlow::Continue(())
    }
}

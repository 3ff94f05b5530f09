//! Finds the names of the tables in a query, without a run of the query.

use std::{collections::HashSet, ops::ControlFlow};

use datafusion::{
    common::TableReference,
    sql::{
        parser::{DFParserBuilder, Statement},
        resolve::resolve_table_references,
        sqlparser::{
            ast::{Ident, TableFactor, Visit, Visitor},
            dialect::GenericDialect,
        },
    },
};

use super::running::on_large_stack;
use crate::{Result, rules::plan_size::check_statement};

/// The maximum length of a query text that is parsed. The parse tree of a longer text may be so deep that its drop
/// overflows the stack, since an operator takes only two bytes of text.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Returns the names of the tables that a query reads, in alphabetical order. Each name has the form under which the
/// table must be registered: lower case, unless the query quotes the name.
///
/// The result excludes tables of a WITH, table functions such as `generate_series`, and files in single quotes. The
/// result is empty for a text that is not a query, or is longer than 64 KiB. For such a text,
/// [`Query::start`](super::Query::start) returns an error. The function only parses the text, which takes some
/// microseconds for a short text, and reads no file.
pub fn table_names(text: &str) -> Vec<String> {
    if text.len() > TEXT_BYTES_MAX {
        return Vec::new();
    }
    on_large_stack(|| find_names(text)).unwrap_or_default()
}

fn find_names(text: &str) -> Result<Vec<String>> {
    let mut statements =
        DFParserBuilder::new(text).with_dialect(&GenericDialect {}).build()?.parse_statements()?;
    let (Some(statement), true) = (statements.pop_front(), statements.is_empty()) else {
        return Ok(Vec::new());
    };
    check_statement(&statement)?;
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

/// Collects the names in FROM that are not table names: table functions, and files in single quotes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_tables_to_be_found() {
        let cases: [(&str, &[&str]); 12] = [
            ("SELECT 1", &[]),
            ("SELECT * FROM Sales, \"Shops\" s JOIN days d ON true", &["Shops", "days", "sales"]),
            ("WITH a AS (SELECT * FROM b) SELECT * FROM a", &["b"]),
            ("WITH t AS (SELECT * FROM t) SELECT * FROM t", &["t"]),
            ("SELECT (SELECT max(x) FROM t) FROM u WHERE x IN (SELECT y FROM v)", &["t", "u", "v"]),
            ("SELECT extract(year FROM day) FROM t WHERE a IS DISTINCT FROM b", &["t"]),
            ("SELECT * FROM generate_series(1, 3), 'file.parquet', 'plain'", &[]),
            ("SELECT 'FROM x' FROM t -- FROM y", &["t"]),
            ("FROM t SELECT a", &["t"]),
            ("EXPLAIN SELECT * FROM t", &["t"]),
            ("SELECT * FROM information_schema.tables", &[]),
            ("SELECT (", &[]),
        ];
        for (text, names) in cases {
            assert_eq!(table_names(text), names, "{text}");
        }
    }

    #[test]
    fn a_long_text_has_no_names_and_a_deep_one_exceeds_no_stack() {
        let deep = format!("SELECT 1{} FROM t", "+1".repeat(30_000));
        assert_eq!(table_names(&deep), [""; 0]);
        let long = format!("SELECT {} FROM t", "1,".repeat(40_000));
        assert_eq!(table_names(&long), [""; 0]);
    }
}

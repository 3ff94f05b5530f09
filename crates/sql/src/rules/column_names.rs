//! Makes the column names of a result unique. A second column `a` is named `a_1`, as in DuckDB.
//!
//! DataFusion refuses a SELECT that lists the same column twice, so [`rename_repeats`] adds aliases to the later
//! columns in the parse tree. Columns of several tables may have the same name in a plan (`t.id, u.id`, or `*` of a
//! join). [`result_schema`] renames these columns when rows are returned.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::sql::sqlparser::ast::{Expr, Ident, SelectItem, WildcardAdditionalOptions};
use inshore_tables::unique_names;

use super::plan_size::normal_name;

/// Renames the columns of a result so that each name is unique.
pub(crate) fn result_schema(schema: &SchemaRef) -> SchemaRef {
    let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let unique = unique_names(names.clone());
    if unique == names {
        return schema.clone();
    }
    let renamed = |(field, name): (&Arc<Field>, String)| Arc::new(field.as_ref().clone().with_name(name));
    let fields: Vec<Arc<Field>> = schema.fields().iter().zip(unique).map(renamed).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Adds an alias to each SELECT item that repeats an earlier name, and to each column that a `*` of the same SELECT
/// also contains.
pub(crate) fn rename_repeats(items: &mut [SelectItem]) {
    let names: Vec<Option<ColumnName>> = items.iter().map(ColumnName::of).collect();
    let has_all = items.iter().any(|item| matches!(item, SelectItem::Wildcard(options) if is_plain(options)));
    let mut taken: HashSet<String> = names.iter().flatten().map(|name| name.last.clone()).collect();
    // Maps each name to its first column in each table, and to the last number that was appended to the name.
    let mut seen: HashMap<&str, (Vec<&ColumnName>, usize)> = HashMap::new();
    for (name, item) in names.iter().zip(items) {
        let Some(name) = name else { continue };
        let (firsts, number) = seen.entry(&name.last).or_default();
        if !firsts.iter().any(|first| first.is_same(name)) {
            firsts.push(name);
            if !(has_all && name.is_column) {
                continue;
            }
        }
        let other = loop {
            *number += 1;
            let other = format!("{}_{number}", name.last);
            if taken.insert(other.clone()) {
                break other;
            }
        };
        let alias = Ident::with_quote('"', other);
        match item {
            SelectItem::UnnamedExpr(expr) => {
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
            SelectItem::ExprWithAlias { alias: name, .. } => *name = alias,
            _ => {}
        }
    }
}

/// Returns whether a `*` selects all columns, and keeps their names.
fn is_plain(options: &WildcardAdditionalOptions) -> bool {
    let WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        opt_exclude,
        opt_except,
        opt_replace,
        opt_rename,
        opt_alias,
    } = options;
    opt_ilike.is_none()
        && opt_exclude.is_none()
        && opt_except.is_none()
        && opt_replace.is_none()
        && opt_rename.is_none()
        && opt_alias.is_none()
}

/// The name of a result column.
struct ColumnName {
    /// The table name that qualifies the column name, if there is one.
    table: Option<String>,
    last: String,
    /// True if the SELECT item is a column without an alias.
    is_column: bool,
}

impl ColumnName {
    fn of(item: &SelectItem) -> Option<ColumnName> {
        let plain = |last: String| ColumnName { table: None, last, is_column: false };
        match item {
            SelectItem::ExprWithAlias { alias, .. } => Some(plain(normal_name(alias))),
            SelectItem::UnnamedExpr(expr) => {
                let mut expr = expr;
                while let Expr::Nested(inner) = expr {
                    expr = inner;
                }
                Some(match expr {
                    Expr::Identifier(name) => ColumnName { is_column: true, ..plain(normal_name(name)) },
                    Expr::CompoundIdentifier(parts) => {
                        let (last, before) = parts.split_last()?;
                        let table = before.iter().map(normal_name).collect::<Vec<_>>().join(".");
                        ColumnName { table: Some(table), last: normal_name(last), is_column: true }
                    }
                    other => plain(lower(&other.to_string())),
                })
            }
            _ => None,
        }
    }

    /// Returns whether two column names are the same. In a plan, columns of different tables may have the same name.
    fn is_same(&self, other: &ColumnName) -> bool {
        let are_apart = matches!((&self.table, &other.table), (Some(one), Some(other)) if one != other);
        self.last == other.last && !are_apart
    }
}

/// Converts SQL text to lower case, except for text in quotes.
fn lower(text: &str) -> String {
    let mut quote = None;
    let letter = |letter: char| {
        match quote {
            Some(open) if open == letter => quote = None,
            None if matches!(letter, '\'' | '"') => quote = Some(letter),
            _ => {}
        }
        if quote.is_some() { letter } else { letter.to_ascii_lowercase() }
    };
    text.chars().map(letter).collect()
}

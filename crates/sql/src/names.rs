//! Columns of a result that have one name: the second `a` is `a_1`, as in DuckDB.
//!
//! The library refuses a SELECT that names a column twice, so [`rename_repeats`] gives later ones a name in the text. Columns of several
//! tables may have one name in a plan (`t.id, u.id`, `*` of a join): [`result_schema`] renames those when rows come out.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::sql::sqlparser::ast::{Expr, Ident, SelectItem, WildcardAdditionalOptions};
use inshore_tables::unique_names;

use crate::plan_size::normal;

/// The columns of a result, each with a name of its own.
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

/// Names those items of a SELECT that are called as one before them, and columns beside a `*`, which has them too.
pub(crate) fn rename_repeats(items: &mut [SelectItem]) {
    let names: Vec<Option<Name>> = items.iter().map(Name::of).collect();
    let has_all = items.iter().any(|item| matches!(item, SelectItem::Wildcard(options) if is_plain(options)));
    let mut taken: HashSet<String> = names.iter().flatten().map(|name| name.last.clone()).collect();
    // For each name the first columns of it, one for each table; and the last number behind it.
    let mut seen: HashMap<&str, (Vec<&Name>, usize)> = HashMap::new();
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

/// A `*` for all columns under their names.
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

/// What a column of a result is called.
struct Name {
    /// The table that it is said to be of.
    table: Option<String>,
    last: String,
    /// It is a column as it is, without a name for it.
    is_column: bool,
}

impl Name {
    fn of(item: &SelectItem) -> Option<Name> {
        let plain = |last: String| Name { table: None, last, is_column: false };
        match item {
            SelectItem::ExprWithAlias { alias, .. } => Some(plain(normal(alias))),
            SelectItem::UnnamedExpr(expr) => {
                let mut expr = expr;
                while let Expr::Nested(inner) = expr {
                    expr = inner;
                }
                Some(match expr {
                    Expr::Identifier(name) => Name { is_column: true, ..plain(normal(name)) },
                    Expr::CompoundIdentifier(parts) => {
                        let (last, before) = parts.split_last()?;
                        let table = before.iter().map(normal).collect::<Vec<_>>().join(".");
                        Name { table: Some(table), last: normal(last), is_column: true }
                    }
                    other => plain(lower(&other.to_string())),
                })
            }
            _ => None,
        }
    }

    /// Columns of different tables may have one name within a plan.
    fn is_same(&self, other: &Name) -> bool {
        let are_apart = matches!((&self.table, &other.table), (Some(one), Some(other)) if one != other);
        self.last == other.last && !are_apart
    }
}

/// SQL in small letters but for what stands in quotes.
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

//! `inshore sql`.

use std::io::{self, Read};

use anyhow::{Context as _, Result};
use inshore::ops::{
    Attachments, Request,
    verbs::{self, NamedTable},
};
use serde_json::json;

use crate::{
    args::{GlobalOptions, Header, Sql},
    job::{
        operations::{self, StoreAccess},
        session::check_stdout_is_free,
    },
    report::{
        outcome::{Outcome, counted, written},
        row_display::RowDisplay,
    },
};

pub fn sql(options: GlobalOptions, words: &Sql) -> Result<()> {
    if let Some(output) = &words.output {
        check_stdout_is_free(&options, output)?;
    }
    let operation = verbs::Sql {
        query: question(words)?,
        text: words.text.clone(),
        header: Header::has_names(words.header),
        folders: words.tables.clone(),
        tables: words
            .table
            .iter()
            .map(|table| NamedTable { name: table.name.clone(), path: table.path.clone() })
            .collect(),
    };
    let request = Request { operation, inputs: Vec::new(), output: words.output.clone() };
    let mut rows = RowDisplay::new(&options);
    let ran = operations::run_on(
        options,
        StoreAccess::OrMakes,
        &request,
        Attachments { rows: Some(&mut rows), ..Attachments::default() },
    )?;
    rows.print(ran.done.answer.rows)?;
    ran.tell(|report, done| {
        let place = words.output.as_deref().map_or(String::new(), written);
        let sentence = counted(done.answer.rows, "row") + &place;
        let operators = done.answer.operators.iter();
        let how = operators.map(|ran| ("operator", format!("{}: {ran}", ran.operator))).collect();
        Outcome { sentence_aside: true, how, ..Outcome::new("sql", report, json!(done), sentence) }
    })
}

/// Returns the text of the query, which is an argument, a file, or standard input.
fn question(words: &Sql) -> Result<String> {
    match (&words.query, &words.file) {
        (_, Some(file)) => std::fs::read_to_string(file)
            .with_context(|| format!("{}: cannot read the query", file.display())),
        (Some(query), None) if query == "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("standard input: cannot read the query")?;
            Ok(text)
        }
        (Some(query), None) => Ok(query.clone()),
        (None, None) => anyhow::bail!("no query is given: inshore sql \"SELECT ...\", or --file"),
    }
}

//! `inshore nearest`.

use anyhow::Result;
use inshore::ops::{
    Beside, Request,
    verbs::{ImportVectors, SearchVectors},
};

use crate::{
    args::{GlobalOptions, NearestCommand, NearestImport, NearestQuery},
    job::{
        operations::{self, StoreAccess},
        session::check_stdout_is_free,
    },
    report::{
        outcome::{Outcome, counted, written},
        row_display::RowDisplay,
    },
};

pub fn nearest(options: GlobalOptions, command: &NearestCommand) -> Result<()> {
    match command {
        NearestCommand::Import(arguments) => import(options, arguments),
        NearestCommand::Query(arguments) => query(options, arguments),
    }
}

fn import(options: GlobalOptions, arguments: &NearestImport) -> Result<()> {
    let request = Request::new(ImportVectors { name: arguments.name.clone() }, [&arguments.input]);
    operations::run(options, &request)?.tell(|report, done| {
        let (sentence, rounded) = (done.answer.info.to_string(), done.answer.rounded);
        let notice =
            (rounded > 0).then(|| format!("{} rounded from f64 to f32", counted(rounded, "element")));
        Outcome { notice, ..Outcome::new("nearest import", report, done, sentence) }
    })
}

fn query(options: GlobalOptions, arguments: &NearestQuery) -> Result<()> {
    if let Some(output) = &arguments.output {
        check_stdout_is_free(&options, output)?;
    }
    let operation = SearchVectors {
        dataset: arguments.dataset.clone(),
        k: arguments.k,
        metric: arguments.metric.into(),
        radius: arguments.radius,
    };
    let request =
        Request { operation, inputs: vec![arguments.queries.clone()], output: arguments.output.clone() };
    let mut rows = RowDisplay::new(&options);
    let beside = Beside { rows: Some(&mut rows), ..Beside::default() };
    let ran = operations::run_on(options, StoreAccess::Existing, &request, beside)?;
    rows.print(ran.done.answer.rows)?;
    ran.tell(|report, done| {
        let found = &done.answer;
        let place = arguments.output.as_deref().map_or(String::new(), written);
        let vectors = found.vectors;
        let queries =
            if found.queries == 1 { "1 query".into() } else { format!("{} queries", found.queries) };
        let passes = match found.plan.passes {
            1 => String::new(),
            passes => format!(", in {passes} passes (more --memory needs fewer)"),
        };
        let (rows, dimensions, element) = (found.rows, found.dimensions, found.element);
        let sentence = format!(
            "{} of {queries} among {vectors} vectors of {dimensions} {element}{passes}{place}",
            counted(rows, "neighbour")
        );
        let pairs = found.queries as f64 * vectors as f64;
        let share = 100.0 * found.measured as f64 / pairs;
        let how = vec![("measured", format!("{} of {pairs:.0} pairs ({share:.3} %)", found.measured))];
        Outcome { sentence_aside: true, how, ..Outcome::new("nearest query", report, done, sentence) }
    })
}

//! `inshore nearest`.

use anyhow::Result;
use inshore::{
    ops::{
        Attachments, Operation, Request, TargetKind,
        verbs::{
            AddVectors, BuiltIndex, CompactVectors, ContentKind, DedupVectors, DescribeVectors,
            DescribedVectors, Found, HashTables, ImportFiles, ImportVectors, IndexVectors, JoinVectors,
            ListVectors, MeasureRecall, NeighbourGraph, RemoveFromVectors, RemoveVectors, SearchVectors,
            UpsertVectors, VectorId, VectorsAnswer,
        },
    },
    store::format_bytes,
    vectors::{
        ApproximateSearched, Built, Changed, DedupPlan, Deduplicated, Description, Imported, ImportedContent,
        LshSearched, ManyCandidates, MeasuredOn, RecallTable, Searched,
    },
};

#[cfg(feature = "nodes")]
use inshore::{
    ops::nearest::{NodeSearched, ProbedLists, SearchedOnNodes, SpreadDescription},
    vectors::SpreadIndexInfo,
};
use serde_json::json;

use crate::{
    args::{
        GlobalOptions, HashTableOptions, Ids, NearestAdd, NearestCommand, NearestDedup, NearestGraph,
        NearestImport, NearestIndex, NearestJoin, NearestQuery, NearestRecall, NearestRemove, NearestUpsert,
    },
    job::{
        operations::{self, StoreAccess},
        session::{check_stdout_is_free, store_path},
    },
    report::{
        outcome::{Outcome, counted, print_json, print_line, say, written},
        row_display::RowDisplay,
        table::{self, Align},
    },
    verbs::store,
};

pub fn nearest(options: GlobalOptions, command: &NearestCommand) -> Result<()> {
    match command {
        NearestCommand::Import(arguments) => import(options, arguments),
        NearestCommand::Add(arguments) => add(options, arguments),
        NearestCommand::Upsert(arguments) => upsert(options, arguments),
        NearestCommand::Remove(arguments) => remove(options, arguments),
        NearestCommand::Compact { dataset } => compact(options, dataset),
        NearestCommand::Index(arguments) => index(options, arguments),
        NearestCommand::Query(arguments) => query(options, arguments),
        NearestCommand::Join(arguments) => join(options, arguments),
        NearestCommand::Graph(arguments) => graph(options, arguments),
        NearestCommand::Dedup(arguments) => dedup(options, arguments),
        NearestCommand::Recall(arguments) => recall(options, arguments),
        NearestCommand::Ls => ls(options),
        NearestCommand::Info { dataset } => info(options, dataset),
        NearestCommand::Rm { datasets, index } => {
            store::rm(RemoveVectors { index: *index }, options, datasets)
        }
    }
}

fn ls(options: GlobalOptions) -> Result<()> {
    let request = Request::new(ListVectors {}, [""; 0]);
    let ran = operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?;
    let (VectorsAnswer { datasets, notes }, options) = (ran.done.answer, ran.options);
    if options.json {
        print_json(&datasets)?;
    } else if !datasets.is_empty() {
        let header = [
            ("name", Align::Left),
            ("vectors", Align::Right),
            ("dimensions", Align::Right),
            ("elements", Align::Left),
            ("on flash", Align::Right),
            ("index", Align::Left),
        ];
        table::print_stdout(&header, &datasets.iter().map(listed).collect::<Vec<_>>())?;
    } else if !options.quiet {
        match operations::place(&options) {
            TargetKind::Local => say(&format!("no vectors in {}", store_path(&options)?.display())),
            TargetKind::Nodes | TargetKind::Cluster => say("no vectors on these nodes"),
        }
    }
    notes.iter().for_each(|note| say(&format!("note: {note}")));
    Ok(())
}

/// Returns the row of a dataset of vectors in a list.
fn listed(described: &DescribedVectors) -> Vec<String> {
    let (info, index) = match described {
        DescribedVectors::Local(described) => {
            let Description { vectors, index, lsh, index_error, .. } = &**described;
            let tables = || lsh.as_ref().map(|tables| format!("{}, lsh", tables.metric.name()));
            let index = index.as_ref().map(|index| index.metric.name().to_string()).or_else(tables);
            (vectors, index.unwrap_or_else(|| unusable(index_error)))
        }
        #[cfg(feature = "nodes")]
        DescribedVectors::OnNodes(described) => {
            let SpreadDescription { vectors, index, index_error, .. } = &**described;
            let index = index.as_ref().map(|index| index.metric.name().to_string());
            (vectors, index.unwrap_or_else(|| unusable(index_error)))
        }
    };
    vec![
        info.name.clone(),
        info.live().to_string(),
        info.dimensions.to_string(),
        info.element.to_string(),
        format_bytes(info.bytes),
        index,
    ]
}

/// Describes the absence of an index that can be used.
fn unusable(index_error: &Option<String>) -> String {
    if index_error.is_some() { "not usable" } else { "none" }.to_string()
}

fn info(options: GlobalOptions, name: &str) -> Result<()> {
    let request = Request::new(DescribeVectors {}, [name]);
    let ran = operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?;
    let description = ran.done.answer;
    if ran.options.json {
        return Ok(print_json(&json!({ "command": "nearest info", "summary": description }))?);
    }
    Ok(print_line(&description.to_string())?)
}

fn import(options: GlobalOptions, arguments: &NearestImport) -> Result<()> {
    if arguments.images || arguments.documents {
        return import_content(options, arguments);
    }
    let request = Request::new(
        ImportVectors {
            name: arguments.name.clone(),
            bits: arguments.bits,
            column: arguments.column.clone(),
            id: arguments.id.clone(),
            copies: arguments.copies,
            piece_bytes: arguments.piece,
        },
        &arguments.inputs,
    );
    operations::run(options, &request)?.tell(|report, done| {
        let Imported { info, rounded, columns, left_out } = &done.answer;
        let kept = match columns.is_empty() {
            true => String::new(),
            false => format!("; columns {}", columns.join(", ")),
        };
        let sentence = format!("{info}{kept}");
        let mut notices = Vec::new();
        if *rounded > 0 {
            notices.push(format!("{} rounded from f64 to f32", counted(*rounded, "element")));
        }
        if !left_out.is_empty() {
            notices.push(format!("left out, since they are nested: {}", left_out.join(", ")));
        }
        let notice = (!notices.is_empty()).then(|| notices.join("; "));
        Outcome { notice, ..Outcome::new("nearest import", report, done, sentence) }
    })
}

/// Imports images or documents.
fn import_content(options: GlobalOptions, arguments: &NearestImport) -> Result<()> {
    let NearestImport { inputs, name, images, skip_errors, lines, words, .. } = arguments;
    let content = if *images { ContentKind::Images } else { ContentKind::Documents };
    let (skip_errors, lines, words) = (*skip_errors, *lines, *words);
    let operation = ImportFiles { name: name.clone(), content, skip_errors, lines, words };
    operations::run(options, &Request::new(operation, inputs))?.tell(|report, done| {
        let ImportedContent { info, skipped, first_skipped } = &done.answer;
        let notice = first_skipped.as_ref().map(|first| match skipped {
            1 => format!("1 malformed file was left out: {first}"),
            _ => format!("{skipped} malformed files were left out, the first: {first}"),
        });
        let sentence = info.to_string();
        Outcome { notice, ..Outcome::new("nearest import", report, done, sentence) }
    })
}

fn add(options: GlobalOptions, arguments: &NearestAdd) -> Result<()> {
    let NearestAdd { dataset, inputs, bits, column, lines } = arguments;
    let (dataset, column) = (dataset.clone(), column.clone());
    let operation = AddVectors { dataset, bits: *bits, column, lines: *lines };
    let request = Request { operation, inputs: inputs.clone(), output: None };
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let (sentence, notice) = (changes(&done.answer), not_listed(&done.answer));
            Outcome { notice, ..Outcome::new("nearest add", report, done, sentence) }
        },
    )
}

fn upsert(options: GlobalOptions, arguments: &NearestUpsert) -> Result<()> {
    let NearestUpsert { dataset, input, ids, bits, column } = arguments;
    let (ids, file) = ids.as_ref().map_or((None, None), list_or_file);
    let operation = UpsertVectors { dataset: dataset.clone(), ids, bits: *bits, column: column.clone() };
    let inputs = [input.clone()].into_iter().chain(file).collect();
    let request = Request { operation, inputs, output: None };
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let (sentence, notice) = (changes(&done.answer), not_listed(&done.answer));
            Outcome { notice, ..Outcome::new("nearest upsert", report, done, sentence) }
        },
    )
}

fn remove(options: GlobalOptions, arguments: &NearestRemove) -> Result<()> {
    let NearestRemove { dataset, ids } = arguments;
    let (ids, file) = list_or_file(ids);
    let ids = ids.map(|ids| ids.into_iter().map(VectorId::Number).collect());
    let operation = RemoveFromVectors { dataset: dataset.clone(), ids };
    let request = Request { operation, inputs: file.into_iter().collect(), output: None };
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let sentence = changes(&done.answer);
            Outcome::new("nearest remove", report, done, sentence)
        },
    )
}

fn compact(options: GlobalOptions, dataset: &str) -> Result<()> {
    let operation = CompactVectors { dataset: dataset.to_string() };
    let request = Request { operation, inputs: Vec::new(), output: None };
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let answer = &done.answer;
            let mut lists =
                answer.lists.map_or(String::new(), |lists| format!(", {} written", counted(lists, "list")));
            if let Some(split @ 1..) = answer.split {
                lists += &format!(" ({split} of the old ones split)");
            }
            let sentence = format!("{} freed{lists}; {}", counted(answer.freed, "row"), answer.info);
            Outcome::new("nearest compact", report, done, sentence)
        },
    )
}

fn list_or_file(ids: &Ids) -> (Option<Vec<u64>>, Option<std::path::PathBuf>) {
    match ids {
        Ids::List(ids) => (Some(ids.clone()), None),
        Ids::File(path) => (None, Some(path.clone())),
    }
}

/// Tells why an index does not have the vectors of a change.
fn not_listed(changed: &Changed) -> Option<String> {
    let error = changed.index_error.as_ref()?;
    Some(format!(
        "approximate searches compare the new vectors one by one, since the index stays as it was: {error}"
    ))
}

/// Describes a change.
fn changes(changed: &Changed) -> String {
    let counts = [
        (changed.added, "added"),
        (changed.replaced, "replaced"),
        (changed.taken, "removed"),
        (changed.absent, "removed before"),
        (changed.rounded, "elements rounded from f64 to f32"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    let ids = match changed.first_id {
        Some(first) if changed.added == 1 => format!(" (id {first})"),
        Some(first) => format!(" (ids {first} to {})", first + changed.added - 1),
        None => String::new(),
    };
    format!("{}{ids}; {}", parts.join(", "), changed.info)
}

fn index(options: GlobalOptions, arguments: &NearestIndex) -> Result<()> {
    let NearestIndex { dataset, metric, lists, seed, copies, codes, resume, lsh, tables } = arguments;
    let HashTableOptions { tables, bits, buckets, width } = *tables;
    let operation = IndexVectors {
        dataset: dataset.clone(),
        metric: (*metric).into(),
        lists: *lists,
        seed: *seed,
        copies: *copies,
        codes: *codes,
        resume: *resume,
        lsh: lsh.then_some(HashTables { tables, bits, buckets, width }),
    };
    let request = Request { operation, inputs: Vec::new(), output: None };
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let (sentence, how) = match &done.answer {
                BuiltIndex::Lists(built) => lists_of(built),
                BuiltIndex::Tables(built) => {
                    let recall = &built.info.recall;
                    let how = vec![("plan", built.plan.to_string()), ("recall", points(recall))];
                    (format!("{}; {}", built.info, recall_of(recall, "bucket")), how)
                }
                #[cfg(feature = "nodes")]
                BuiltIndex::OnNodes { index } => index_on_nodes(dataset, index),
            };
            Outcome { how, ..Outcome::new("nearest index", report, done, sentence) }
        },
    )
}

/// Describes inverted lists that were built: a sentence, and facts for `--explain`.
fn lists_of(built: &Built) -> (String, Vec<(&'static str, String)>) {
    let mut sentence = format!("{}; {}", built.info, recall_of(&built.info.recall, "list"));
    if let Some(vectors) = built.resumed {
        let sorted = counted(vectors, "vector");
        sentence += &format!("; resumed with the centroids and {sorted} of an interrupted build");
    }
    if let Some(why) = &built.unused {
        sentence += &format!("; {why}");
    }
    let mut how = vec![("plan", built.plan.to_string()), ("recall", points(&built.info.recall))];
    if let Some(copies) = &built.info.copies {
        sentence += &format!("; with copies {}", reached_of(&copies.recall, "list"));
        how.push(("with copies", points(&copies.recall)));
    }
    if let Some(codes) = &built.info.codes {
        let size = format_bytes(codes.bytes);
        let reached = reached_of(&codes.recall, "list");
        sentence += &format!("; by codes of {} ({size}) {reached}", counted(codes.bits.into(), "bit"));
        how.push(("by codes", points(&codes.recall)));
    }
    (sentence, how)
}

/// Describes an index on nodes: a sentence, and facts for `--explain`.
#[cfg(feature = "nodes")]
fn index_on_nodes(name: &str, index: &SpreadIndexInfo) -> (String, Vec<(&'static str, String)>) {
    let SpreadIndexInfo { lists, groups, vectors, sample, metric, recall, .. } = index;
    let sentence = format!(
        "{name}: an index of {} by {}, {} in {}, trained on {}; {}",
        counted(*vectors, "vector"),
        metric.name(),
        counted(*lists, "list"),
        counted(*groups, "group"),
        counted(*sample, "vector"),
        recall_of(recall, "list")
    );
    (sentence, vec![("recall", points(recall))])
}

fn recall(options: GlobalOptions, arguments: &NearestRecall) -> Result<()> {
    let NearestRecall { dataset, queries, lines, sample, k } = arguments;
    let operation = MeasureRecall { dataset: dataset.clone(), k: *k, sample: *sample, lines: *lines };
    let request = Request { operation, inputs: queries.clone(), output: None };
    operations::run_on(options, StoreAccess::Existing, &request, Attachments::default())?.tell(
        |report, done| {
            let sentence = recall_of(&done.answer, "probe");
            let how = vec![("recall", points(&done.answer))];
            Outcome { how, ..Outcome::new("nearest recall", report, done, sentence) }
        },
    )
}

/// Describes a table of recall: for usual values of recall, the number of lists or buckets to probe.
fn recall_of(table: &RecallTable, probed: &str) -> String {
    let on = match table.measured_on {
        MeasuredOn::HeldOutVectors => "vectors of the dataset",
        MeasuredOn::Queries => "queries",
    };
    format!("recall at {} of {} {on}: {}", table.k, table.queries, reached_of(table, probed))
}

/// Lists, for usual values of recall, the number of lists or buckets to probe.
fn reached_of(table: &RecallTable, probed: &str) -> String {
    let reached = [0.8f32, 0.9, 0.95, 0.99].into_iter().filter_map(|recall| {
        let point = table.points.iter().find(|point| point.recall >= recall)?;
        Some(format!("{recall} with {}", counted(point.probes, probed)))
    });
    reached.collect::<Vec<_>>().join(", ")
}

/// Lists all points of a table of recall.
fn points(table: &RecallTable) -> String {
    let point = |point: &inshore::vectors::RecallPoint| format!("{} lists {:.4}", point.probes, point.recall);
    table.points.iter().map(point).collect::<Vec<_>>().join(", ")
}

fn query(options: GlobalOptions, arguments: &NearestQuery) -> Result<()> {
    let operation = SearchVectors {
        dataset: arguments.dataset.clone(),
        k: arguments.k,
        metric: arguments.metric.into(),
        radius: arguments.radius,
        recall: arguments.recall,
        probes: arguments.probes,
        strategy: arguments.strategy.map(Into::into),
        predicate: arguments.predicate.clone(),
        select: arguments.select.clone(),
        lines: arguments.lines,
    };
    let request = Request { operation, inputs: arguments.queries.clone(), output: arguments.output.clone() };
    let asked = Asked {
        dataset: &arguments.dataset,
        has_recall: arguments.recall.is_some(),
        has_predicate: arguments.predicate.is_some(),
    };
    find(options, &request, asked)
}

fn join(options: GlobalOptions, arguments: &NearestJoin) -> Result<()> {
    let NearestJoin { queries, dataset, neighbours } = arguments;
    let operation = JoinVectors {
        queries: queries.clone(),
        dataset: dataset.clone(),
        k: neighbours.k,
        metric: neighbours.metric.into(),
        radius: neighbours.radius,
        recall: neighbours.index.recall,
        probes: neighbours.index.probes,
        strategy: neighbours.strategy.map(Into::into),
    };
    let request = Request { operation, inputs: Vec::new(), output: neighbours.output.clone() };
    let has_recall = neighbours.index.recall.is_some();
    find(options, &request, Asked { dataset, has_recall, has_predicate: false })
}

fn graph(options: GlobalOptions, arguments: &NearestGraph) -> Result<()> {
    let NearestGraph { dataset, neighbours } = arguments;
    let operation = NeighbourGraph {
        dataset: dataset.clone(),
        k: neighbours.k,
        metric: neighbours.metric.into(),
        radius: neighbours.radius,
        recall: neighbours.index.recall,
        probes: neighbours.index.probes,
        strategy: neighbours.strategy.map(Into::into),
    };
    let request = Request { operation, inputs: Vec::new(), output: neighbours.output.clone() };
    let has_recall = neighbours.index.recall.is_some();
    find(options, &request, Asked { dataset, has_recall, has_predicate: false })
}

/// The options of a search for neighbours that its messages depend on.
#[derive(Clone, Copy)]
struct Asked<'a> {
    /// The dataset in which neighbours are found.
    dataset: &'a str,
    /// True if the user asks for a recall, and thus for an index.
    has_recall: bool,
    /// True if a predicate selects the vectors that may be answers.
    has_predicate: bool,
}

/// Runs an operation that finds neighbours, and prints or writes them.
fn find<O: Operation<Answer = Found>>(
    options: GlobalOptions,
    request: &Request<O>,
    asked: Asked<'_>,
) -> Result<()> {
    let Asked { has_predicate, has_recall, dataset } = asked;
    if let Some(output) = &request.output {
        check_stdout_is_free(&options, output)?;
    }
    let mut rows = RowDisplay::new(&options);
    let attachments = Attachments { rows: Some(&mut rows), ..Attachments::default() };
    // The store has the vectors, or the scratch space for columns on nodes.
    let access = match operations::place(&options) {
        TargetKind::Local => StoreAccess::Existing,
        TargetKind::Nodes | TargetKind::Cluster => StoreAccess::OrMakes,
    };
    let ran = operations::run_on(options, access, request, attachments)?;
    rows.print(ran.done.answer.rows())?;
    ran.tell(|report, done| {
        let place = request.output.as_deref().map_or(String::new(), written);
        let (sentence, how) = match &done.answer {
            Found::Exact(found) => exact(found, has_predicate),
            Found::Approximate(found) => approximate(found, has_predicate),
            Found::Hashed(found) => hashed(found, has_predicate),
            #[cfg(feature = "nodes")]
            Found::OnNodes(found) => on_nodes(found),
        };
        let notice = match &done.answer {
            Found::Exact(found) => has_recall.then(|| why_exact(dataset, found)),
            Found::Approximate(_) => None,
            Found::Hashed(found) => {
                found.exact_because.as_ref().map(|reason| without_tables(dataset, reason))
            }
            #[cfg(feature = "nodes")]
            Found::OnNodes(found) => {
                (has_recall && found.approximate.is_none()).then(|| why_exact_on_nodes(dataset, found))
            }
        };
        let sentence = sentence + &place;
        Outcome { sentence_aside: true, how, notice, ..Outcome::new(O::NAME, report, done, sentence) }
    })
}

fn dedup(options: GlobalOptions, arguments: &NearestDedup) -> Result<()> {
    let NearestDedup { dataset, cosine, radius, metric, groups, index, output } = arguments;
    if let Some(output) = output {
        check_stdout_is_free(&options, output)?;
    }
    let operation = DedupVectors {
        dataset: dataset.clone(),
        cosine: *cosine,
        metric: metric.map(Into::into),
        radius: *radius,
        groups: *groups,
        recall: index.recall,
        probes: index.probes,
    };
    let request = Request { operation, inputs: Vec::new(), output: output.clone() };
    let mut rows = RowDisplay::new(&options);
    let attachments = Attachments { rows: Some(&mut rows), ..Attachments::default() };
    let ran = operations::run_on(options, StoreAccess::Existing, &request, attachments)?;
    rows.print(ran.done.answer.rows)?;
    ran.tell(|report, done| {
        let found = &done.answer;
        let is_exact = matches!(found.plan, DedupPlan::Exact(_));
        let notice = index.recall.filter(|_| is_exact).map(|_| without_index(dataset));
        let sentence = duplicates(found) + &output.as_deref().map_or(String::new(), written);
        let mut how = vec![("measured", format!("{} pairs", found.measured))];
        if !is_exact {
            how.push(("plan", found.plan.to_string()));
        }
        Outcome { sentence_aside: true, how, notice, ..Outcome::new("nearest dedup", report, done, sentence) }
    })
}

/// Describes a search for near-duplicates.
fn duplicates(found: &Deduplicated) -> String {
    let Deduplicated { rows, vectors, dimensions, element, .. } = *found;
    let what = match found.groups {
        Some(groups) => format!("{} in {}", counted(rows, "vector"), counted(groups, "group")),
        None => counted(rows, "pair"),
    };
    let how = match (&found.plan, found.probes) {
        (DedupPlan::Exact(plan), _) if plan.passes > 1 => {
            format!(", in {} passes (more --memory needs fewer)", plan.passes)
        }
        (_, Some([probes, lists])) => format!(", approximate ({probes} of {lists} lists each)"),
        _ => String::new(),
    };
    let vectors = counted(vectors, "vector");
    format!("{what} of near-duplicates among {vectors} of {dimensions} {element}{how}")
}

/// Tells why a search with `--recall` was exact.
fn why_exact(name: &str, found: &Searched) -> String {
    match found.plan.selected {
        Some(selected) if found.is_sparse => only_selected(selected),
        _ => without_index(name),
    }
}

/// Tells that vectors have no index, and how to make one.
fn without_index(name: &str) -> String {
    format!("{name} has no index, so the answer is exact: `inshore nearest index {name}` builds one")
}

/// Tells why a search did not use hash tables. If many vectors were added after the build of the tables, the message
/// states the command that adds them to the tables.
fn without_tables(name: &str, reason: &ManyCandidates) -> String {
    let advice = match 2 * reason.unlisted > reason.candidates {
        true => format!(": `inshore nearest compact {name}` adds the new vectors to the hash tables"),
        false => String::new(),
    };
    format!("{reason}, so the answer is exact{advice}")
}

/// Tells why a search on nodes with `--recall` was exact. If the vectors have no index, the message states the command
/// that builds one.
#[cfg(feature = "nodes")]
fn why_exact_on_nodes(name: &str, found: &SearchedOnNodes) -> String {
    match found.selected {
        Some(selected) if found.is_sparse => only_selected(selected),
        _ => format!(
            "{name} has no index, so the answer is exact: `inshore nearest index {name} --node ...` builds one"
        ),
    }
}

/// Tells that so few vectors are selected that a search was exact.
fn only_selected(selected: u64) -> String {
    format!("only {} selected, so the answer is exact", counted(selected, "vector"))
}

/// Describes an exact search: a sentence, and facts for `--explain`.
fn exact(found: &Searched, has_predicate: bool) -> (String, Vec<(&'static str, String)>) {
    let passes = match found.plan.passes {
        1 => String::new(),
        passes => format!(", in {passes} passes (more --memory needs fewer)"),
    };
    let Searched { rows, vectors, dimensions, element, .. } = *found;
    let among = counted(vectors, if has_predicate { "selected vector" } else { "vector" });
    let sentence = format!(
        "{} of {} among {among} of {dimensions} {element}{passes}",
        counted(rows, "neighbour"),
        queries(found.queries)
    );
    let pairs = found.queries as f64 * vectors as f64;
    let share = 100.0 * found.measured as f64 / pairs;
    let how = vec![("measured", format!("{} of {pairs:.0} pairs ({share:.3} %)", found.measured))];
    (sentence, how)
}

/// Describes a search on nodes: a sentence, and the distances of each node for `--explain`.
#[cfg(feature = "nodes")]
fn on_nodes(found: &SearchedOnNodes) -> (String, Vec<(&'static str, String)>) {
    let SearchedOnNodes { rows, vectors, dimensions, element, by_node, approximate, .. } = found;
    let among = among(*vectors, found.selected);
    let lists =
        approximate.map_or(String::new(), |ProbedLists { probes, lists, recall_estimate, recall_k }| {
            format!(", {} ({probes} of {lists} lists each)", expected_recall(recall_estimate, recall_k))
        });
    let passes = match found.passes {
        1 => String::new(),
        passes => format!(", in {passes} passes"),
    };
    let sentence = format!(
        "{} of {} among {among} of {dimensions} {element} on {}{lists}{passes}",
        counted(*rows, "neighbour"),
        queries(found.queries),
        counted(by_node.len() as u64, "node")
    );
    let how = by_node.iter().map(|node| {
        let NodeSearched { node, vectors, lists, compared, measured } = node;
        let read = match lists {
            0 => format!("{vectors} vectors"),
            lists => format!("{lists} parts of lists"),
        };
        ("distances", format!("{node}: {read} read, {compared} pairs, {measured} measured exactly"))
    });
    let mut how: Vec<_> = how.collect();
    if let Some(exhaustive @ 1..) = found.exhaustive {
        let what = "had too few selected vectors in their lists, and were compared with all";
        how.push(("selection", format!("{} {what}", queries(exhaustive))));
    }
    (sentence, how)
}

/// Describes an approximate search: a sentence, and facts for `--explain`.
fn approximate(found: &ApproximateSearched, has_predicate: bool) -> (String, Vec<(&'static str, String)>) {
    let ApproximateSearched { rows, vectors, dimensions, element, probes, lists, .. } = *found;
    let among = among(vectors, found.selected.filter(|_| has_predicate));
    let recall = expected_recall(found.recall_estimate, found.recall_k);
    let sentence = format!(
        "{} of {} among {among} of {dimensions} {element}, {recall} ({probes} of {lists} lists each, {})",
        counted(rows, "neighbour"),
        queries(found.queries),
        found.plan.strategy,
    );
    let each = found.compared as f64 / found.queries as f64;
    let mut how = vec![
        ("plan", found.plan.to_string()),
        ("compared", format!("{each:.0} vectors with each query, {} pairs measured", found.measured)),
    ];
    if found.exhaustive > 0 {
        let what = "had too few selected vectors in their lists, and were compared with all";
        how.push(("selection", format!("{} {what}", queries(found.exhaustive))));
    }
    if let Some([half, most]) = found.latency_us {
        how.push(("latency", format!("50 % of queries within {half} us, 99 % within {most} us")));
    }
    (sentence, how)
}

/// Describes a search in hash tables: a sentence, and facts for `--explain`.
fn hashed(found: &LshSearched, has_predicate: bool) -> (String, Vec<(&'static str, String)>) {
    let LshSearched { rows, vectors, dimensions, element, probes, buckets, .. } = *found;
    let among = among(vectors, found.selected.filter(|_| has_predicate));
    let recall = expected_recall(found.recall_estimate, found.recall_k);
    let how = match found.exact_because {
        Some(_) => "exact".to_string(),
        None => format!("{recall} ({probes} of {buckets} buckets each)"),
    };
    let sentence = format!(
        "{} of {} among {among} of {dimensions} {element}, {how}",
        counted(rows, "neighbour"),
        queries(found.queries),
    );
    let each = found.compared as f64 / found.queries as f64;
    let mut how =
        vec![("compared", format!("{each:.0} vectors with each query, {} pairs measured", found.measured))];
    if found.exhaustive > 0 {
        let what = "had too few vectors in their buckets, and were compared with all";
        how.push(("exhaustive", format!("{} {what}", queries(found.exhaustive))));
    }
    (sentence, how)
}

/// Describes the vectors that may be neighbours: all vectors of a dataset, or those that a predicate selects.
fn among(vectors: u64, selected: Option<u64>) -> String {
    let all = counted(vectors, "vector");
    selected.map_or(all.clone(), |selected| format!("{selected} of {all}"))
}

/// Describes the expected recall. The table of recall was measured for `k` neighbours of each query.
fn expected_recall(estimate: Option<f32>, k: u32) -> String {
    match estimate {
        Some(recall) => format!("recall at {k} about {recall:.3}"),
        None => "recall not measured".to_string(),
    }
}

/// Formats a number of queries with its noun.
fn queries(count: u64) -> String {
    if count == 1 { "1 query".to_string() } else { format!("{count} queries") }
}

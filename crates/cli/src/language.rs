//! `inshore language`.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, bail};
use arrow::{
    array::{Array, ArrayRef, AsArray, Float64Builder, RecordBatch, StringBuilder, UInt64Builder},
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use inshore::{
    kernels::{Classifier, Profiles, Reader, Unit, Verdict, identify, text_sources},
    neardata::Source,
    store::Job,
    tables::{Input, TableReader, TableWriter},
};
use serde_json::json;

use crate::{
    failure::AlreadyTold,
    outcome::{Outcome, say},
    session::Session,
    words::{Identify, Train},
};

/// Rows that are written at once.
const BATCH_ROWS: usize = 4096;

pub fn train(session: &Session, words: &Train) -> Result<()> {
    let mut samples: Vec<(String, Vec<Source>)> = Vec::new();
    let mut run = session.start()?;
    for sample in &words.samples {
        let (label, path) = labelled(sample)?;
        samples.push((label, text_sources(&run.job, std::slice::from_ref(&path))?));
    }
    if session.store.list()?.iter().any(|known| known.name == words.name) {
        // Said before the work and not after it.
        run.job.store().create_dataset(&run.job, &words.name, "language")?;
    }
    let profiles = Profiles::train(&run.job, samples, words.grams as usize)?;
    profiles.save(&session.store, &run.job, &words.name)?;
    let labels: Vec<&str> = profiles.labels().collect();
    let sentence = format!("{}: {} languages, {}", words.name, labels.len(), labels.join(" "));
    let grams = labels.iter().map(|label| (label.to_string(), json!(profiles.grams(label))));
    let summary = json!({ "name": words.name, "grams": grams.collect::<serde_json::Map<_, _>>() });
    Ok(Outcome::new("language train", run.finish(), summary, sentence).tell(&session.options)?)
}

/// `LABEL=FILE`, or a file whose name up to the first dot is the label.
fn labelled(sample: &str) -> Result<(String, PathBuf)> {
    if let Some((label, path)) = sample.split_once('=').filter(|(label, _)| !label.contains('/')) {
        return Ok((label.to_string(), PathBuf::from(path)));
    }
    let path = PathBuf::from(sample);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.split('.').next().filter(|label| !label.is_empty()) {
        Some(label) => Ok((label.to_string(), path)),
        None => bail!("{sample}: expected LABEL=FILE, or a file with a name"),
    }
}

pub fn tell(session: &Session, words: &Identify) -> Result<()> {
    session.check_stdout_is_free(&words.output)?;
    TableWriter::check_path(&words.output)?;
    let mut run = session.start()?;
    let job = &run.job;
    let profiles = Profiles::load(&session.store, job, &words.profiles)?;
    let _filters = job.budget().reserve(Classifier::BYTES, "filters of languages")?;
    let classifier = Classifier::new(&profiles);
    let bytes: Option<u64> = words.inputs.iter().map(|path| Input::new(path).compressed_bytes()).sum();
    job.start_phase("reading", "bytes", bytes.unwrap_or(0));
    let place = match (&words.column, words.lines) {
        (Some(_), _) => Some("row"),
        (None, true) => Some("line"),
        (None, false) => None,
    };
    let mut rows = Rows::new(job, &words.output, &classifier, place)?;
    let failures = AtomicU64::new(0);
    match &words.column {
        Some(column) => {
            for path in &words.inputs {
                tell_column(job, &classifier, &Input::new(path), column, &mut rows)?;
            }
        }
        None => {
            let unit = if words.lines { Unit::Line } else { Unit::Source };
            let sources = text_sources(job, &words.inputs)?;
            let failed = |error: &inshore::kernels::Error| {
                failures.fetch_add(1, Ordering::Relaxed);
                say(&format!("inshore: {error}"));
            };
            let write = |found: inshore::kernels::Identified<'_>| {
                Ok(rows.add(found.name, found.line, found.verdict)?)
            };
            identify(job, &classifier, sources.into_iter(), unit, write, failed)?;
        }
    }
    let (count, unknown) = rows.finish()?;
    let what = place.map_or("texts", |place| if place == "row" { "rows" } else { "lines" });
    let sentence =
        format!("{count} {what}, {unknown} of them in none of {} languages", classifier.labels().len());
    let summary = json!({ "texts": count, "unknown": unknown, "failed": failures.load(Ordering::Relaxed) });
    let outcome = Outcome::new("language identify", run.finish(), summary, sentence);
    Outcome { sentence_aside: true, ..outcome }.tell(&session.options)?;
    if failures.load(Ordering::Relaxed) > 0 {
        bail!(AlreadyTold);
    }
    Ok(())
}

fn tell_column(
    job: &Job,
    classifier: &Classifier,
    input: &Input,
    column: &str,
    rows: &mut Rows<'_>,
) -> Result<()> {
    let mut table = TableReader::open(input, &[(column, DataType::Utf8)], BATCH_ROWS, job.budget())?;
    let (mut reader, mut row, mut position) = (Reader::default(), 0, 0);
    while let Some(batch) = table.next_batch()? {
        job.check_cancelled()?;
        let texts = batch.column(0).as_string::<i32>();
        for number in 0..texts.len() {
            let text = if texts.is_null(number) { "" } else { texts.value(number) };
            let verdict = classifier.score(&mut reader, text.as_bytes()).verdict();
            rows.add(input.name(), Some(row), verdict)?;
            row += 1;
        }
        job.progress().add(table.position().saturating_sub(position));
        position = table.position();
    }
    Ok(())
}

/// The rows of the result: whose, where in it, the language and how sure.
struct Rows<'a> {
    labels: &'a [String],
    schema: SchemaRef,
    writer: TableWriter,
    names: StringBuilder,
    places: Option<UInt64Builder>,
    languages: StringBuilder,
    confidences: Float64Builder,
    waiting: usize,
    count: u64,
    unknown: u64,
}

impl<'a> Rows<'a> {
    fn new(job: &Job, output: &Path, classifier: &'a Classifier, place: Option<&str>) -> Result<Rows<'a>> {
        let mut fields = vec![Field::new("source", DataType::Utf8, false)];
        fields.extend(place.map(|place| Field::new(place, DataType::UInt64, false)));
        fields.push(Field::new("language", DataType::Utf8, true));
        fields.push(Field::new("confidence", DataType::Float64, true));
        let schema = Arc::new(Schema::new(fields));
        Ok(Rows {
            labels: classifier.labels(),
            writer: TableWriter::create(output, schema.clone(), job.budget())?,
            schema,
            names: StringBuilder::new(),
            places: place.map(|_| UInt64Builder::new()),
            languages: StringBuilder::new(),
            confidences: Float64Builder::new(),
            waiting: 0,
            count: 0,
            unknown: 0,
        })
    }

    fn add(
        &mut self,
        name: &str,
        place: Option<u64>,
        verdict: Option<Verdict>,
    ) -> inshore::tables::Result<()> {
        self.names.append_value(name);
        if let Some(places) = &mut self.places {
            places.append_value(place.unwrap_or(0));
        }
        self.languages.append_option(verdict.map(|verdict| &self.labels[verdict.language]));
        self.confidences.append_option(verdict.map(|verdict| verdict.confidence));
        self.count += 1;
        self.unknown += u64::from(verdict.is_none());
        self.waiting += 1;
        if self.waiting == BATCH_ROWS { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> inshore::tables::Result<()> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.names.finish())];
        if let Some(places) = &mut self.places {
            columns.push(Arc::new(places.finish()));
        }
        columns.push(Arc::new(self.languages.finish()));
        columns.push(Arc::new(self.confidences.finish()));
        self.waiting = 0;
        let batch = RecordBatch::try_new(self.schema.clone(), columns).expect("columns of one length");
        self.writer.write(&batch)
    }

    fn finish(mut self) -> Result<(u64, u64)> {
        self.write()?;
        self.writer.finish().context("writing languages")?;
        Ok((self.count, self.unknown))
    }
}

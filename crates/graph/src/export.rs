//! Exports a graph's edges to a file, with the user's ids.

use std::{
    io::{BufWriter, Write},
    path::Path,
    sync::Arc,
};

use arrow_array::{ArrayRef, Float64Array, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use inshore_store::Job;
use inshore_tables::{NewFile, TableWriter};

use crate::{
    Error, Graph, Result,
    csr::scan,
    graph::check_budget,
    ids::{IdStream, Translation},
};

const BATCH_EDGES: usize = 8 << 10;

/// Writes the edges to `path`, sorted by source and destination. `.parquet`, `.arrow` and `.csv` files have columns
/// `source`, `target` and, in a weighted graph, `weight`. A `.bin` file has pairs of little-endian 32-bit numbers. An
/// undirected edge is written once, from its smaller id. Returns the number of edges. Vertices without edges are not in
/// the file.
///
/// # Errors
/// Fails if the file extension is unknown. A `.bin` file also fails if an id does not fit in 32 bits or if edges have
/// weights. The function also fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
pub fn export(graph: &Graph, job: &Job, path: &Path) -> Result<u64> {
    check_budget(job, "export")?;
    let weighted = graph.info().weighted;
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    match &*ending {
        "bin" if weighted => {
            let (found, expected) = (".bin".to_string(), "a format that holds weights".to_string());
            return Err(Error::BadOption { option: "the output format", found, expected });
        }
        "bin" => return export_pairs(graph, job, path),
        "parquet" | "arrow" | "csv" => {}
        _ if path == Path::new("-") => {}
        _ => {
            let expected = ".parquet, .arrow, .csv or .bin, or - for CSV on standard output".to_string();
            return Err(Error::BadOption {
                option: "the output format",
                found: format!(".{ending}"),
                expected,
            });
        }
    }
    let mut fields =
        vec![Field::new("source", DataType::UInt64, false), Field::new("target", DataType::UInt64, false)];
    if weighted {
        fields.push(Field::new("weight", DataType::Float64, false));
    }
    let schema = Arc::new(Schema::new(fields));
    let mut writer = TableWriter::create(path, schema.clone(), job.budget())?;
    let (mut sources, mut targets, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    let mut flush = |sources: &mut Vec<u64>, targets: &mut Vec<u64>, weights: &mut Vec<f64>| -> Result<()> {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(std::mem::take(sources))),
            Arc::new(UInt64Array::from(std::mem::take(targets))),
        ];
        if weighted {
            columns.push(Arc::new(Float64Array::from(std::mem::take(weights))));
        }
        let batch = RecordBatch::try_new(schema.clone(), columns).expect("columns of the schema's types");
        Ok(writer.write(&batch)?)
    };
    each_edge(graph, job, |source, target, weight| {
        sources.push(source);
        targets.push(target);
        weights.extend(weight);
        if sources.len() == BATCH_EDGES {
            flush(&mut sources, &mut targets, &mut weights)?;
        }
        Ok(())
    })?;
    flush(&mut sources, &mut targets, &mut weights)?;
    Ok(writer.finish()?)
}

fn export_pairs(graph: &Graph, job: &Job, path: &Path) -> Result<u64> {
    if graph.info().id_max > u32::MAX as u64 {
        let (found, expected) = (graph.info().id_max.to_string(), "ids below 2^32 for .bin".to_string());
        return Err(Error::BadOption { option: "the largest id", found, expected });
    }
    let file = NewFile::create(path)?;
    let mut out = BufWriter::with_capacity(256 << 10, file.writer()?);
    let mut count = 0;
    each_edge(graph, job, |source, target, _| {
        let pair = (target << 32 | source).to_le_bytes();
        out.write_all(&pair).map_err(|error| file.error(error))?;
        count += 1;
        Ok(())
    })?;
    out.flush().map_err(|error| file.error(error))?;
    file.publish()?;
    Ok(count)
}

/// Calls `each(source, target, weight)` with the user's ids of every edge, in order.
fn each_edge(
    graph: &Graph,
    job: &Job,
    mut each: impl FnMut(u64, u64, Option<f64>) -> Result<()>,
) -> Result<()> {
    let mut sources = Sources { ids: IdStream::new(job, graph)?, current: None, taken: 0 };
    let mut targets = Translation::new(graph, job, |each| {
        each_number(graph, job, |source, target, _| each(source, target))
    })?;
    job.start_phase("writing edges", "edges", graph.out().entries);
    each_number(graph, job, |source, target, weight| {
        job.progress().add(1);
        each(sources.id(source)?, targets.id(source, target)?, weight)
    })
}

/// Calls `each` with the vertex numbers of every edge. An undirected edge is passed once, with its smaller number as
/// the source.
fn each_number(
    graph: &Graph,
    job: &Job,
    mut each: impl FnMut(u32, u32, Option<f64>) -> Result<()>,
) -> Result<()> {
    let directed = graph.info().directed;
    let mut loop_seen = None;
    scan(job, graph.out(), 0..graph.vertices(), |source, targets, weights| {
        job.check_cancelled()?;
        for (place, &target) in targets.iter().enumerate() {
            // In an undirected graph a self-loop has two entries.
            let again = source == target && loop_seen.replace(source) == Some(source);
            if directed || target > source || (target == source && !again) {
                each(source, target, weights.map(|weights| weights[place]))?;
            }
        }
        Ok(())
    })
}

/// Looks up the user's ids of sources of edges. Sources must come in ascending order.
struct Sources {
    ids: IdStream,
    current: Option<(u32, u64)>,
    taken: u64,
}

impl Sources {
    fn id(&mut self, source: u32) -> Result<u64> {
        if let Some((known, id)) = self.current
            && known == source
        {
            return Ok(id);
        }
        let mut id = 0;
        while self.taken <= source as u64 {
            // Ids are read in pieces of limited size, since any number of vertices without edges may be between two
            // sources.
            let piece = (source as u64 + 1 - self.taken).min(BATCH_EDGES as u64);
            id = *self.ids.take(piece as usize)?.last().expect("at least one id");
            self.taken += piece;
        }
        self.current = Some((source, id));
        Ok(id)
    }
}

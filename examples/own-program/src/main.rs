//! Ranks the vertices of a graph in a file of edges: `inshore-own-program EDGES RANKS [MEMORY_MIB]`.
//!
//! EDGES has two vertex ids a line; RANKS becomes a table (`.csv`, `.parquet` or `.arrow`). The graph may be larger than memory:
//! MEMORY_MIB, 64 by default, is what the job takes.
#![forbid(unsafe_code)]

use std::{env, error::Error, path::Path, process::ExitCode};

use inshore::{
    graph::{
        Graph, ImportOptions, import,
        program::{ProgramOptions, run},
    },
    store::{Budget, Cancel, Store},
    tables::{Input, TableWriter},
};
use inshore_own_program::Rank;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (edges, ranks, memory) = match &arguments[..] {
        [edges, ranks] => (edges, ranks, "64"),
        [edges, ranks, memory] => (edges, ranks, memory.as_str()),
        _ => {
            eprintln!("usage: inshore-own-program EDGES RANKS [MEMORY_MIB]");
            return ExitCode::from(2);
        }
    };
    match rank(edges, Path::new(ranks), memory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn rank(edges: &str, ranks: &Path, memory_mib: &str) -> Result<(), Box<dyn Error>> {
    let memory_bytes = memory_mib.parse::<u64>()?.checked_mul(1 << 20).ok_or("that is too much memory")?;
    // A store of its own beside the answer, which is removed at the end.
    let folder = ranks.with_extension("store");
    let store = Store::open(&folder)?;
    let job = || store.job(Budget::new(memory_bytes, 2), Cancel::default());
    import(&store, &job()?, "links", &[Input::new(edges)], &ImportOptions::default())?;

    let (graph, job) = (Graph::open(&store, "links")?, job()?);
    let program = Rank { damping: 0.85, vertices: graph.vertices() };
    let options = ProgramOptions { supersteps: Some(10), ..ProgramOptions::default() };
    let mut rows = run(&graph, &job, program, &options)?.rows;
    let mut writer = TableWriter::create(ranks, rows.schema().clone(), job.budget())?;
    while let Some(batch) = rows.next_batch()? {
        writer.write(&batch)?;
    }
    writer.finish()?;
    drop((rows, graph, job, store));
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

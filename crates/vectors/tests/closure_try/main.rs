//! Tries.
use std::collections::HashSet;

use arrow_array::{UInt64Array, cast::AsArray, types::UInt64Type};
use inshore_store::{Budget, Cancel, Store};
use inshore_vectors::*;

#[test]
fn tries() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let Ok(args) = std::env::var("TRY") else { return Ok(()) };
    let args: Vec<String> = args.split(' ').map(str::to_string).collect();
    let (store, name, file, exact) = (&args[0], &args[1], &args[2], &args[3]);
    let store = Store::open(store)?;
    let exact: HashSet<(u64, u64)> = std::fs::read_to_string(exact)?
        .lines()
        .skip(1)
        .map(|line| {
            let mut parts = line.split(',');
            let query = parts.next().unwrap().parse().unwrap();
            (query, parts.nth(1).unwrap().parse().unwrap())
        })
        .collect();
    for word in &args[4..] {
        let (probes, threads) = word.split_once(':').unwrap();
        let job = store.job(Budget::new(256 << 20, threads.parse()?), Cancel::default())?;
        let vectors = Vectors::open(&store, name)?;
        if let Some(options) = probes.strip_prefix("index") {
            let started = std::time::Instant::now();
            let index = Index { copies: options.parse().ok(), ..Index::default() };
            let built = build_index(&store, &job, &vectors, &index)?;
            println!("built in {:.1} s: {} {:?}", started.elapsed().as_secs_f64(), built.info, job.report().phases);
            let copies = built.info.copies.map(|copies| (copies.vectors, copies.list_vectors_max, copies.recall.points));
            println!("Info {copies:?}");
            println!("Info {:?}", built.info.recall.points);
            continue;
        }
        let index = VectorIndex::open(&store, &vectors)?.unwrap();
        let queries = VectorFile::open(file)?;
        let mut found = 0u64;
        let strategy = Some(Strategy::Single);
        let approximate = match probes.strip_prefix('r') {
            Some(recall) => Approximate { recall: recall.parse()?, strategy, ..Approximate::default() },
            None => Approximate { probes: Some(probes.parse()?), strategy, ..Approximate::default() },
        };
        let started = std::time::Instant::now();
        let done = search_index(&job, &vectors, &index, &queries, &Search::default(), &approximate, &mut |batch| {
            let q = batch.column(0).as_primitive::<UInt64Type>();
            let id: &UInt64Array = batch.column(2).as_primitive::<UInt64Type>();
            for row in 0..batch.num_rows() {
                found += u64::from(exact.contains(&(q.value(row), id.value(row))));
            }
            Ok(())
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let report = job.report();
        let queries = done.queries as f64;
        println!(
            "{word:>8}: probes {} recall {:.4} (table {:?}) {:.0} q/s latency {:?} us, cpu {:.2} ms/q, read {:.0} KiB/q, compared {:.0}",
            done.probes,
            found as f64 / exact.len() as f64,
            done.recall_estimate,
            queries / seconds,
            done.latency_us.unwrap(),
            report.cpu_seconds * 1e3 / queries,
            report.bytes_read as f64 / 1024.0 / queries,
            done.compared as f64 / queries,
        );
    }
    Ok(())
}

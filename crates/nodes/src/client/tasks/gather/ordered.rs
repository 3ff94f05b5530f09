//! Runs a kernel on nodes and takes the results of blocks in the order of files and blocks.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread,
};

use inshore_kernel::{Border, Event, Next, Portable, ResumePosition};
use inshore_store::Context;

use super::{Gather, rows::TakenRow};
use crate::{
    DistributedFile, Error, Nodes, Result,
    client::tasks::{
        gather_report::{GatherReport, RunOptions},
        local::{LocalThreads, PANICKED},
        scheduler::AnswerOrder,
    },
};

/// The size, in bytes, of the range after the first unanswered shard from which shards are handed out. A fast node can
/// thus be ahead of the slowest node by at most this number of bytes. Answers that arrive before the answers of earlier
/// shards use only the memory that is reserved for each node.
const WINDOW_BYTES: u64 = 4 << 30;

/// Runs a kernel on the nodes that have the files, and passes the results of their blocks to `consume`, in the
/// order of files and blocks, as [`inshore_kernel::run`] does on one machine.
///
/// With [`RunOptions::help_from`] this machine processes a part of the shards, if [`Portable::for_client`]
/// provides a kernel and measurements show a gain.
///
/// Memory on this machine: answers that are being received take 3 MiB for each node, which flow control enforces. The
/// threads that help take up to a quarter of the remaining memory, and at most 512 MiB each. Answers that wait for the
/// answers of earlier shards take an eighth of the rest, and at most 64 MiB for each node.
///
/// # Errors
/// - Returns the errors of `consume`.
/// - Returns [`Error::Missing`], wrapped in [`inshore_kernel::Error::Stream`], if no reachable node holds a part of the
///   data and [`RunOptions::partial`] is false.
/// - Returns [`Error::Deadline`] if the deadline passes before the call has finished.
/// - Returns [`Error::Refused`] if a node refuses the task and no other node has a copy.
pub fn run_on_nodes<K: Portable>(
    nodes: &Nodes,
    job: &Context,
    kernel: &K,
    files: &[DistributedFile],
    options: &RunOptions,
    consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error>,
) -> std::result::Result<GatherReport, K::Error>
where
    K::Error: std::error::Error + Sync + 'static,
{
    if matches!(kernel.border(), Border::Line { .. }) {
        check_lines(files).map_err(failed)?;
    }
    let arguments = kernel.arguments();
    let help_from = options.help_from.filter(|_| K::CAN_HELP && !files.is_empty());
    let order = AnswerOrder::Window(WINDOW_BYTES);
    let mut gather =
        Gather::new(nodes, job, files, (K::KIND, arguments.clone()), options, order).map_err(failed)?;
    gather.reserve_ahead();
    let Some(help_from) = help_from else {
        gather.begin_all().map_err(failed)?;
        return consume_all(gather, files, consume);
    };
    let local_threads = Arc::new(LocalThreads::new(&gather.run, help_from));
    gather.local_threads = Some(local_threads.clone());
    let budgets = local_threads.budgets(job);
    thread::scope(|scope| {
        gather.begin_all().map_err(failed)?;
        for budget in budgets {
            let (local_threads, arguments) = (&local_threads, &arguments);
            scope.spawn(move || {
                let work = AssertUnwindSafe(|| local_threads.work::<K>(budget, arguments));
                if panic::catch_unwind(work).is_err() {
                    local_threads.give_up(PANICKED.to_string());
                }
            });
        }
        consume_all(gather, files, consume)
    })
}

/// Passes the results of all pieces to `consume`, in the order of pieces.
fn consume_all<K: Portable>(
    mut gather: Gather,
    files: &[DistributedFile],
    mut consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error>,
) -> std::result::Result<GatherReport, K::Error> {
    let mut number = 0;
    for (source, file) in files.iter().enumerate() {
        let mut skipped = false;
        for _ in &file.pieces {
            while let Some(row) = if skipped { None } else { gather.next_row(number).map_err(failed)? } {
                let (reach, part) = match row {
                    TakenRow::Part(reach, bytes) => match K::decode(&bytes) {
                        Some(part) => (reach, Ok(part)),
                        None => {
                            gather.lose_shard(number, "protocol error: an invalid part").map_err(failed)?;
                            continue;
                        }
                    },
                    TakenRow::Failed(error) => (ResumePosition::default(), Err(failed(error))),
                };
                gather.accept(number, reach);
                let was_bad = part.is_err();
                match consume(Event { source, name: &file.title, reach, part: Some(part) })? {
                    Next::Go if !was_bad => {}
                    Next::Stop => return Ok(gather.finish()),
                    _ => {
                        skipped = true;
                        break;
                    }
                }
            }
            gather.end_of(number, skipped);
            number += 1;
        }
        if consume(Event { source, name: &file.title, reach: ResumePosition::default(), part: None })?
            == Next::Stop
        {
            return Ok(gather.finish());
        }
    }
    gather.wait_for_ends().map_err(failed)?;
    Ok(gather.finish())
}

/// Refuses files whose pieces do not end with a line, for kernels that process lines.
pub(super) fn check_lines(files: &[DistributedFile]) -> Result<()> {
    if let Some(file) = files.iter().find(|file| file.is_grouped) {
        return Err(Error::RowGroups { name: file.title.clone() });
    }
    let cut =
        |file: &DistributedFile| file.record_bytes.map(|record_bytes| (file.title.clone(), record_bytes));
    match files.iter().find_map(cut) {
        Some((name, record_bytes)) => Err(Error::NoLines { name, record_bytes }),
        None => Ok(()),
    }
}

/// Converts an error of nodes to the error of a kernel.
fn failed<E: From<inshore_kernel::Error>>(error: Error) -> E {
    match error {
        Error::Store(error) => inshore_kernel::Error::Store(error).into(),
        error => inshore_kernel::Error::Stream(Box::new(error)).into(),
    }
}

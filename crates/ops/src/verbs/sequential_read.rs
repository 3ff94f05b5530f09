//! This module reads the bytes of a file on nodes sequentially.

use std::{
    io::{self, Read},
    ops::Range,
    slice,
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use inshore_kernel::{Contents, Error as ReadError, Event, Next};
use inshore_kernels as kernels;
use inshore_nodes::{DistributedFile, Error as NodesError, GatherReport, RunOptions, run_on_nodes};
use inshore_store::Context;

use crate::{
    error::{Error, Result},
    target::OnNodes,
};

/// The number of blocks that are fetched ahead of the reader, and the approximate size of a block in bytes.
const BLOCKS_AHEAD: usize = 2;
const BLOCK_BYTES: u64 = 2 << 20;

/// Passes the bytes of a range of a file on nodes to `read`, while the next bytes are fetched. A missing byte is
/// an error even if partial answers are allowed, since `read` needs all bytes in order.
///
/// Memory: 6 MiB, and the memory of [`run_on_nodes`].
///
/// # Errors
/// Returns the errors of `read` and of [`run_on_nodes`].
pub(crate) fn read_sequentially<T>(
    on: &OnNodes,
    job: &Context,
    whole: &DistributedFile,
    range: Range<u64>,
    read: impl FnOnce(&mut (dyn Read + Send)) -> Result<T>,
) -> Result<(T, GatherReport)> {
    let _ahead =
        job.budget().reserve((BLOCKS_AHEAD as u64 + 1) * BLOCK_BYTES, "blocks of a file from nodes")?;
    let (wanted, part) = (range.end - range.start, whole.slice(range));
    let options = RunOptions { partial: false, ..on.options.clone() };
    thread::scope(|scope| {
        let (sender, blocks) = sync_channel(BLOCKS_AHEAD);
        let part = &part;
        let gather = move || {
            let files = slice::from_ref(part);
            run_on_nodes(&on.nodes, job, &Contents, files, &options, |event: Event<'_, Contents>| {
                let is_wanted = event.part.transpose()?.is_none_or(|part| sender.send(part).is_ok());
                Ok::<_, ReadError>(if is_wanted { Next::Go } else { Next::Stop })
            })
        };
        let gathering = thread::Builder::new().name("inshore-gather".into()).spawn_scoped(scope, gather);
        let gathering =
            gathering.map_err(|error| inshore_store::Error::io("start a thread", &whole.title, error))?;
        let mut bytes = Blocks { blocks, block: Vec::new(), taken: 0, read: 0 };
        let done = read(&mut bytes);
        let came = bytes.read;
        drop(bytes);
        let gathered = gathering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // If nodes failed, `read` may have failed because the bytes ended early. The error of the nodes is then
        // returned first.
        let gathered = gathered.map_err(of_nodes)?;
        let done = done?;
        if came != wanted {
            let what = format!("received {came} bytes, expected {wanted}");
            return Err(NodesError::Incomplete { name: whole.title.clone(), what }.into());
        }
        Ok((done, gathered))
    })
}

fn of_nodes(error: ReadError) -> Error {
    match error {
        ReadError::Stream(failure) => match failure.downcast::<NodesError>() {
            Ok(error) => (*error).into(),
            Err(failure) => kernels::Error::Read(ReadError::Stream(failure)).into(),
        },
        error => kernels::Error::Read(error).into(),
    }
}

/// A reader over the bytes of the fetched blocks.
struct Blocks {
    blocks: Receiver<Vec<u8>>,
    block: Vec<u8>,
    /// The number of bytes of the current block that were read.
    taken: usize,
    /// The number of bytes of all blocks that were read.
    read: u64,
}

impl Read for Blocks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.block.len() {
            let Ok(block) = self.blocks.recv() else { return Ok(0) };
            (self.block, self.taken) = (block, 0);
        }
        let read = out.len().min(self.block.len() - self.taken);
        out[..read].copy_from_slice(&self.block[self.taken..][..read]);
        self.taken += read;
        self.read += read as u64;
        Ok(read)
    }
}

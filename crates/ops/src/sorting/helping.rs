//! This module sorts, on the client, the shards that the client processes itself in a sort on nodes.

use inshore_kernel::{Failure, Reply};
use inshore_nodes::{DistributedFile, HelpPieces};
use inshore_store::Job;
use inshore_tables::{Input, Inputs};
use serde_json::Value;

use super::{Arguments, What, node::sort_pieces};
use crate::files::{FileText, hold_pieces, of_nodes, taken};

/// Sorts the shards that the client fetches, and sends the rows to `reply` in the same form as a node.
pub(super) fn sort_here(
    job: &Job,
    pieces: HelpPieces,
    arguments: Arguments,
    wholes: &[DistributedFile],
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let files = match &arguments.what {
        What::Table { files, .. } => files.clone(),
        What::Lines | What::Records(..) => Vec::new(),
    };
    // A shard of Parquet is not read sequentially, so the whole shard is in memory.
    let is_parquet = |(_, text): &(&DistributedFile, &FileText)| text.is_parquet();
    let held = wholes.iter().zip(&files).filter(is_parquet).map(|(whole, _)| whole);
    let _held = hold_pieces(job, held, 1)?;
    let title = wholes.first().map_or("store", |whole| &whole.title);
    let inputs = pieces.map(|piece| {
        let piece = piece.map_err(|error| of_nodes(title, error))?;
        let number = u32::try_from(piece.number).expect("no request has so many pieces");
        let input = match files.is_empty() {
            true => Ok(Input::stream(&piece.title.clone(), "", piece)),
            false => taken(&files, piece, false),
        };
        Ok(input?.numbered(number))
    });
    // Shards are fetched from the node with the most remaining shards, so the shards' numbers are not ascending.
    sort_pieces(job, title, arguments, Inputs::asked(inputs, None).in_any_order(), reply)
}

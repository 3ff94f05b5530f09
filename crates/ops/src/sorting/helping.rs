//! The part of a sort on nodes that is done here.

use inshore_neardata::{
    Failure, Reply,
    nodes::{HelpPieces, Whole},
};
use inshore_store::Job;
use inshore_tables::{Input, Inputs};
use serde_json::Value;

use super::{Arguments, What, node::sort_pieces};
use crate::files::{FileText, hold_pieces, of_nodes, taken};

/// Sorts what this machine pulls, and answers as nodes do.
pub(super) fn sort_here(
    job: &Job,
    pieces: HelpPieces,
    arguments: Arguments,
    wholes: &[Whole],
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let files = match &arguments.what {
        What::Table { files, .. } => files.clone(),
        What::Lines | What::Records(..) => Vec::new(),
    };
    // Parquet is not read from start to end.
    let is_parquet = |(_, text): &(&Whole, &FileText)| text.is_parquet();
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
    // Pieces are pulled of the node that has most left, so their numbers go up and down.
    sort_pieces(job, title, arguments, Inputs::asked(inputs, None).in_any_order(), reply)
}

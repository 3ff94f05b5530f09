//! The part of a sort on nodes that is done here.

use std::{
    io::{Cursor, Read},
    sync::Arc,
};

use inshore_neardata::{
    Failure, Reply,
    nodes::{Error as NodesError, HelpPiece, HelpPieces, Whole},
};
use inshore_store::{Job, format_bytes};
use inshore_tables::{Error as TableError, FilePart, Input, Inputs, PartBytes};
use serde_json::Value;

use super::{Arguments, What, node::sort_pieces};
use crate::files::{FileText, text_of};

/// Sorts what nodes have not begun, and answers as they do.
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
    // Parquet is not read from start to end: a piece of it is in memory.
    let is_held = |(_, text): &(&Whole, &FileText)| text.is_parquet();
    let held = wholes.iter().zip(&files).filter(is_held).flat_map(|(whole, _)| &whole.pieces);
    let held_bytes = held.map(|piece| piece.bytes).max().unwrap_or(0);
    if held_bytes > job.budget().memory_bytes() / 2 {
        let what = format!("a piece has {}, and the memory here no room for it", format_bytes(held_bytes));
        return Err(what.into());
    }
    let _held = job.budget().reserve(held_bytes, "a piece of a table")?;
    let title = wholes.first().map_or("store", |whole| &whole.title);
    let inputs = pieces.map(|piece| {
        let piece = piece.map_err(|error| failed(title, error))?;
        let number = u32::try_from(piece.number).expect("no request has so many pieces");
        let input = match files.is_empty() {
            true => Ok(Input::stream(&piece.title.clone(), "", piece)),
            false => table(job, &files, piece),
        };
        Ok(input?.numbered(number))
    });
    sort_pieces(job, title, arguments, Inputs::asked(inputs, None), reply)
}

/// A piece of a table with what goes along.
fn table(job: &Job, files: &[FileText], mut piece: HelpPiece) -> Result<Input, TableError> {
    let name = piece.title.clone();
    let unfit = |failure: Failure| TableError::Unsupported { file: name.clone(), what: failure.to_string() };
    let text = text_of(files, piece.whole).map_err(unfit)?;
    let along = text.along().map_err(unfit)?;
    if !text.is_parquet() {
        // The first piece begins with what goes along with the others.
        let head = match along.filter(|_| piece.offset > 0) {
            Some(FilePart { bytes: PartBytes::Memory(bytes), .. }) => bytes,
            _ => Arc::default(),
        };
        return Ok(text.stream(Cursor::new(head).chain(piece)));
    }
    let bytes = usize::try_from(piece.bytes).expect("it fits the memory");
    let mut held: Arc<[u8]> = std::iter::repeat_n(0, bytes).collect();
    let filled = Arc::get_mut(&mut held).expect("nobody else has it");
    piece.read_exact(filled).map_err(|source| TableError::Io {
        file: name.clone(),
        what: "read it",
        source,
    })?;
    let part = FilePart { at: piece.offset, bytes: PartBytes::Memory(held) };
    Ok(text.input(job, [Some(part), along].into_iter().flatten().collect()))
}

fn failed(name: &str, error: NodesError) -> TableError {
    match error {
        NodesError::Store(error) => TableError::Store(error),
        error => TableError::Unsupported { file: name.to_string(), what: error.to_string() },
    }
}

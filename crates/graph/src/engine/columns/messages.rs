//! What all senders have to say in a superstep, in order: an array, or a file that is read once for each column.

use std::{marker::PhantomData, ops::Range};

use inshore_store::{Buffer, CheckedFile, FileReader, FileWriter, Job, taken_bytes};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Result, engine::Message};

/// The unit in which messages are read and written.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Windows that a reader has, all but one of them on their way.
const WINDOWS: usize = 4;
const BLOCK_BYTES: usize = 64 << 10;
/// Messages that are written at once.
const STAGED: usize = 1024;

/// Memory of the writer, and then of readers, and of checksums of so many bytes.
pub(super) fn flash_memory_bytes(readers: usize, bytes: u64) -> u64 {
    let writer = 2 * WINDOW_BYTES + STAGED * 16;
    // Their list may have twice the room.
    let sums = 8 * (bytes / BLOCK_BYTES as u64 + 1);
    sums + writer.max(readers * taken_bytes(WINDOWS * WINDOW_BYTES)) as u64
}

/// The messages of a superstep.
pub(super) enum Messages {
    Memory(Buffer),
    Flash(CheckedFile),
}

impl Messages {
    /// For the messages of a range of senders.
    pub fn reader<M: Message>(&self, job: &Job, senders: Range<u64>) -> Result<MessageReader<'_, M>> {
        match self {
            Messages::Memory(buffer) => Ok(MessageReader::Memory(buffer.typed())),
            Messages::Flash(file) => {
                let buffers = Buffer::zeroed(job.budget(), WINDOWS * WINDOW_BYTES, "windows of messages")?;
                // From the block in which the first one is.
                let first = senders.start * size_of::<M>() as u64 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
                Ok(MessageReader::Flash {
                    job: job.clone(),
                    file: file.clone(),
                    range: first..(senders.end * size_of::<M>() as u64).max(first),
                    reader: None,
                    spare: buffers.split(WINDOW_BYTES),
                    start: 0,
                    of: PhantomData,
                })
            }
        }
    }
}

/// Writes messages one after the other.
pub(super) enum MessageWriter<'a, M: Message> {
    Memory { cells: &'a [M::Cell], next: usize },
    Flash { file: Box<FileWriter>, staged: Vec<M> },
}

impl<'a, M: Message> MessageWriter<'a, M> {
    /// Into the cells of the senders from `first` on.
    pub fn memory(cells: &'a [M::Cell], first: u64) -> Self {
        MessageWriter::Memory { cells, next: first as usize }
    }

    pub fn flash(job: &Job) -> Result<Self> {
        let file = Box::new(FileWriter::create(job, "messages", BLOCK_BYTES, WINDOW_BYTES)?);
        Ok(MessageWriter::Flash { file, staged: Vec::with_capacity(STAGED) })
    }

    #[inline]
    pub fn push(&mut self, message: M) -> Result<()> {
        match self {
            MessageWriter::Memory { cells, next } => {
                message.store(&cells[*next]);
                *next += 1;
            }
            MessageWriter::Flash { file, staged } => {
                staged.push(message);
                if staged.len() == STAGED {
                    file.write(staged.as_bytes())?;
                    staged.clear();
                }
            }
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Panics
    /// Where there is none.
    pub fn finish(self) -> Result<CheckedFile> {
        match self {
            MessageWriter::Memory { .. } => panic!("no file"),
            MessageWriter::Flash { mut file, staged } => {
                file.write(staged.as_bytes())?;
                Ok(file.finish()?)
            }
        }
    }
}

/// Reads messages in the order of senders, once for each column.
pub(super) enum MessageReader<'a, M> {
    Memory(&'a [M]),
    Flash {
        job: Job,
        file: CheckedFile,
        /// Its bytes that are read.
        range: Range<u64>,
        reader: Option<Box<FileReader>>,
        spare: Vec<Buffer>,
        /// The sender of the first message of the window.
        start: u64,
        of: PhantomData<M>,
    },
}

impl<M: Message> MessageReader<'_, M> {
    /// Goes to the first sender.
    pub fn begin(&mut self) -> Result<()> {
        if let MessageReader::Flash { job, file, range, reader, spare, start, .. } = self {
            if let Some(reader) = reader.take() {
                *spare = reader.into_buffers()?;
            }
            let spare = std::mem::take(spare);
            *reader = Some(Box::new(FileReader::with_buffers(job, file, range.clone(), spare)?));
            *start = range.start / size_of::<M>() as u64;
        }
        Ok(())
    }

    /// Messages that follow each other, that of `sender` among them, with the sender of the first one. Senders are asked for
    /// in order.
    #[inline]
    pub fn window(&mut self, sender: u64) -> Result<(u64, &[M])> {
        match self {
            MessageReader::Memory(messages) => Ok((0, messages)),
            MessageReader::Flash { reader, start, .. } => {
                let reader = reader.as_mut().expect("begun");
                let messages = |reader: &FileReader| (reader.piece().len() / size_of::<M>()) as u64;
                while sender >= *start + messages(reader) {
                    *start += messages(reader);
                    reader.next_piece()?.expect("a message of each sender");
                }
                let window = <[M]>::ref_from_bytes(reader.piece()).expect("whole messages, aligned");
                Ok((*start, window))
            }
        }
    }
}

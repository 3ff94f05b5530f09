//! The messages of all senders in a superstep, in the order of senders. Messages are an array in memory, or they are in
//! files that are read once for each column.

use std::ops::Range;

use inshore_store::{Buffer, CheckedFile, FileReader, FileWriter, Job, taken_bytes};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Result, engine::Message};

/// The size of a read or write of messages, in bytes.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// The number of buffers of a reader. While one buffer is in use, all other buffers have a read in flight.
const WINDOWS: usize = 4;
const BLOCK_BYTES: usize = 64 << 10;
/// The number of messages that are collected for each write.
const STAGED: usize = 1024;

/// The bytes of memory that a writer to flash takes.
pub(super) const WRITER_BYTES: usize = 2 * WINDOW_BYTES + STAGED * 16;

/// Returns the bytes of memory that a reader from flash takes.
pub(super) fn reader_bytes() -> usize {
    taken_bytes(WINDOWS * WINDOW_BYTES)
}

/// Returns the bytes of memory that the checksums of this number of bytes in this number of files take. The capacity of
/// a list of checksums may be twice its length.
pub(super) fn sums_bytes(files: usize, bytes: u64) -> u64 {
    8 * (bytes / BLOCK_BYTES as u64 + files as u64)
}

/// The messages of a superstep.
pub(super) enum Messages {
    Memory(Buffer),
    /// Files of messages, in the order of senders.
    Flash(Vec<MessageFile>),
}

/// A file of the messages of consecutive senders.
pub(super) struct MessageFile {
    pub first_sender: u64,
    pub file: CheckedFile,
}

impl Messages {
    /// Creates a reader of the messages of a range of senders.
    pub fn reader<M: Message>(&self, job: &Job, senders: Range<u64>) -> Result<MessageReader<'_, M>> {
        match self {
            Messages::Memory(buffer) => Ok(MessageReader::Memory(buffer.typed())),
            Messages::Flash(parts) => {
                let buffers =
                    Buffer::zeroed(job.budget(), WINDOWS * WINDOW_BYTES, "read buffers of messages")?;
                Ok(MessageReader::Flash(FlashReader {
                    job: job.clone(),
                    parts,
                    senders,
                    number: 0,
                    reader: None,
                    spare: buffers.split(WINDOW_BYTES),
                    start: 0,
                }))
            }
        }
    }
}

/// Writes the messages of consecutive senders.
pub(super) enum MessageWriter<'a, M: Message> {
    Memory { accumulators: &'a [M::Cell], next: usize },
    Flash { file: Box<FileWriter>, staged: Vec<M> },
}

impl<'a, M: Message> MessageWriter<'a, M> {
    /// Creates a writer that stores messages in accumulators, beginning with that of sender `first`.
    pub fn memory(accumulators: &'a [M::Cell], first: u64) -> Self {
        MessageWriter::Memory { accumulators, next: first as usize }
    }

    pub fn flash(job: &Job) -> Result<Self> {
        let file = Box::new(FileWriter::create(job, "messages", BLOCK_BYTES, WINDOW_BYTES)?);
        Ok(MessageWriter::Flash { file, staged: Vec::with_capacity(STAGED) })
    }

    #[inline]
    pub fn push(&mut self, message: M) -> Result<()> {
        match self {
            MessageWriter::Memory { accumulators, next } => {
                message.store(&accumulators[*next]);
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

    /// Finishes the file.
    ///
    /// # Panics
    /// Panics if messages are in memory, since there is no file then.
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
    Flash(FlashReader<'a>),
}

impl<M: Message> MessageReader<'_, M> {
    /// Moves to the first sender of the range.
    pub fn begin(&mut self) -> Result<()> {
        match self {
            MessageReader::Memory(_) => Ok(()),
            MessageReader::Flash(flash) => flash.begin(size_of::<M>() as u64),
        }
    }

    /// Returns consecutive messages, including that of `sender`, and the sender of the first of these messages. Calls
    /// must pass senders in ascending order.
    #[inline]
    pub fn window(&mut self, sender: u64) -> Result<(u64, &[M])> {
        match self {
            MessageReader::Memory(messages) => Ok((0, messages)),
            MessageReader::Flash(flash) => {
                let (start, bytes) = flash.window(sender, size_of::<M>() as u64)?;
                Ok((start, <[M]>::ref_from_bytes(bytes).expect("whole messages, aligned")))
            }
        }
    }
}

/// Reads the messages of a range of senders, one file after the other.
pub(super) struct FlashReader<'a> {
    job: Job,
    parts: &'a [MessageFile],
    senders: Range<u64>,
    /// The number of the file that is being read.
    number: usize,
    reader: Option<Box<FileReader>>,
    spare: Vec<Buffer>,
    /// The sender of the first message in the current buffer.
    start: u64,
}

impl FlashReader<'_> {
    fn begin(&mut self, message_bytes: u64) -> Result<()> {
        let before = self.parts.partition_point(|part| part.first_sender <= self.senders.start);
        self.open(before - 1, message_bytes)
    }

    fn open(&mut self, number: usize, message_bytes: u64) -> Result<()> {
        if let Some(reader) = self.reader.take() {
            self.spare = reader.into_buffers()?;
        }
        let MessageFile { first_sender, file } = &self.parts[number];
        let place = |sender: u64| (sender.saturating_sub(*first_sender) * message_bytes).min(file.len());
        // Reading begins at the start of the block that holds the first message.
        let first = place(self.senders.start) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let range = first..place(self.senders.end).max(first);
        let spare = std::mem::take(&mut self.spare);
        self.reader = Some(Box::new(FileReader::with_buffers(&self.job, file, range, spare)?));
        self.number = number;
        self.start = first_sender + first / message_bytes;
        Ok(())
    }

    #[inline]
    fn window(&mut self, sender: u64, message_bytes: u64) -> Result<(u64, &[u8])> {
        loop {
            let messages = self.reader.as_ref().expect("begun").piece().len() as u64 / message_bytes;
            if sender < self.start + messages {
                break;
            }
            self.start += messages;
            while self.reader.as_mut().expect("begun").next_piece()?.is_none() {
                self.open(self.number + 1, message_bytes)?;
            }
        }
        Ok((self.start, self.reader.as_ref().expect("begun").piece()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_job;

    #[test]
    fn messages_of_any_senders_are_read_across_files() {
        let (_folder, job) = test_job(16 << 20);
        let window = (WINDOW_BYTES / 8) as u64;
        // The numbers of messages give empty files, a file that ends exactly at the end of a buffer, and one that ends
        // within a block.
        let counts = [0, 5, 2 * window, 0, 3 * window + 77, 1, 0];
        let (mut parts, mut senders) = (Vec::new(), 0);
        for count in counts {
            let mut writer = MessageWriter::<u64>::flash(&job).unwrap();
            (senders..senders + count).for_each(|sender| writer.push(sender * 3).unwrap());
            parts.push(MessageFile { first_sender: senders, file: writer.finish().unwrap() });
            senders += count;
        }
        let messages = Messages::Flash(parts);
        let borders = [0, 3, 5, window, 2 * window + 5, 3 * window, senders - 1, senders];
        for (place, &first) in borders.iter().enumerate() {
            for &end in &borders[place..] {
                let mut reader = messages.reader::<u64>(&job, first..end).unwrap();
                for step in [1, 7, 40_000] {
                    reader.begin().unwrap();
                    for sender in (first..end).step_by(step) {
                        let (start, found) = reader.window(sender).unwrap();
                        assert_eq!(found[(sender - start) as usize], sender * 3);
                    }
                }
            }
        }
    }
}

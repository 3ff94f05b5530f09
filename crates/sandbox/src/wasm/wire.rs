//! What goes between our process and that of a module: fixed headers, little endian. Data of ours lies in the shared file;
//! theirs follows the header.
//!
//! ```text
//! to it    kind u32 | 0 u32 | position u64 | length u64 | offset i64 | capacity u64 | start u64 | stride u64 | count u64
//!          | file u64 | base u64 | enough u64
//! from it  kind u32 | code i32 | length u64 | block u64 | offset i64 | end u64 | that many bytes
//! ```
//! `position`: of the bytes in the shared file; `capacity`: how much of that file the module has to see in its memory. From
//! `start` on: of [`Ask::Blocks`], and 0 else ([`FileBlocks`] says what it is); the file itself comes beside the header.
//!
//! `block`: which of those blocks what was emitted is of, or how many of them are done; `offset`: where the block begins that it
//! is about, as the module was told; `end`: where in the file that one ends.

use std::{
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::FileBlocks;
use crate::channel::{receive_beside, send_beside};

/// Bytes of what a module's process sends at once: results are gathered to this.
pub const PAYLOAD_BYTES: usize = 64 << 10;

/// What is asked of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Compile what lies there.
    Load,
    /// Call `inshore_init`.
    Init,
    /// Call `inshore_block`.
    Block,
    /// Read blocks of a file, and call `inshore_block` with each.
    Blocks,
    /// Call `inshore_state`.
    State,
    /// Call `inshore_merge`.
    Merge,
    /// Call `inshore_finish`.
    Finish,
}

const ASKS: [Ask; 7] = [Ask::Load, Ask::Init, Ask::Block, Ask::Blocks, Ask::State, Ask::Merge, Ask::Finish];

impl Ask {
    /// What is called for it, as errors name it.
    pub fn name(self) -> &'static str {
        match self {
            Ask::Load => "its start",
            Ask::Init => "inshore_init",
            Ask::Block | Ask::Blocks => "inshore_block",
            Ask::State => "inshore_state",
            Ask::Merge => "inshore_merge",
            Ask::Finish => "inshore_finish",
        }
    }
}

/// The code of [`Ask::Load`] for a module that has a state.
pub const HAS_STATE: i32 = 1;

/// Bytes of a [`Call`].
const CALL_BYTES: usize = 88;

/// A header to a module's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub ask: Ask,
    pub position: u64,
    pub length: u64,
    pub offset: i64,
    pub capacity: u64,
    pub blocks: FileBlocks,
}

impl Call {
    fn to_bytes(self) -> [u8; CALL_BYTES] {
        let FileBlocks { start, stride, count, file_bytes, base, enough_bytes } = self.blocks;
        let numbers =
            [u64::from(self.ask as u32), self.position, self.length, self.offset as u64, self.capacity];
        let all = numbers.into_iter().chain([start, stride, count, file_bytes, base, enough_bytes]);
        let mut bytes = [0; CALL_BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(all) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8; CALL_BYTES]) -> io::Result<Call> {
        let number = |place| number(bytes, place);
        Ok(Call {
            ask: *ASKS.get(number(0) as usize).ok_or_else(garbage)?,
            position: number(1),
            length: number(2),
            offset: number(3) as i64,
            capacity: number(4),
            blocks: FileBlocks {
                start: number(5),
                stride: number(6),
                count: number(7),
                file_bytes: number(8),
                base: number(9),
                enough_bytes: number(10),
            },
        })
    }

    /// Sends it, and a file where it's about one.
    pub fn send(&self, socket: impl AsFd, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send_beside(socket, &self.to_bytes(), file.as_slice())
    }

    /// Waits for the next one, and the file that comes with it.
    pub fn receive(socket: impl AsFd) -> io::Result<(Call, Option<OwnedFd>)> {
        let mut bytes = [0; CALL_BYTES];
        let (got, mut files) = receive_beside(socket, &mut bytes)?;
        if got < CALL_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((Call::parse(&bytes)?, files.pop()))
    }
}

/// The word of 64 bits at this place of a header, counted in such words.
fn number(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * place..][..8].try_into().expect("eight bytes"))
}

/// What a module's process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// Bytes of the result.
    Emit,
    /// Bytes for the log.
    Log,
    /// The call returned this code.
    Done,
    /// The module isn't one, or not of our kind: why.
    NotOurs,
    /// The call ended otherwise: why.
    Failed,
}

const SAYS: [Say; 5] = [Say::Emit, Say::Log, Say::Done, Say::NotOurs, Say::Failed];

/// Which block something is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub block: u64,
    pub offset: i64,
    pub end: u64,
}

/// The code of [`Say::Emit`] for the last of a block's part.
pub const LAST: i32 = 1;

/// A header from a module's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub say: Say,
    pub code: i32,
    pub length: usize,
    pub place: Place,
}

/// Bytes of an [`Answer`].
pub const ANSWER_BYTES: usize = 40;

impl Answer {
    fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let Place { block, offset, end } = self.place;
        let kind = u64::from(self.say as u32) | u64::from(self.code as u32) << 32;
        let mut bytes = [0; ANSWER_BYTES];
        let all = [kind, self.length as u64, block, offset as u64, end];
        for (place, number) in bytes.chunks_exact_mut(8).zip(all) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Whoever sent it may have been taken over: anything but an answer of ours is an error.
    pub fn parse(bytes: &[u8; ANSWER_BYTES]) -> io::Result<Answer> {
        let number = |place| number(bytes, place);
        let length = usize::try_from(number(1)).ok().filter(|length| *length <= PAYLOAD_BYTES);
        Ok(Answer {
            say: *SAYS.get(number(0) as u32 as usize).ok_or_else(garbage)?,
            code: (number(0) >> 32) as i32,
            length: length.ok_or_else(garbage)?,
            place: Place { block: number(2), offset: number(3) as i64, end: number(4) },
        })
    }
}

/// What a module's process has to say: answers, which are gathered and sent several at a time.
#[derive(Debug)]
pub struct Outbox<W> {
    to: W,
    bytes: Vec<u8>,
    /// Where the answer begins that takes what is emitted now, which it isn't known yet how much that is.
    open: Option<usize>,
    /// The block that is worked on, and whether anything was said of it.
    place: Place,
    is_told: bool,
    emitted_bytes: u64,
}

impl<W: Write> Outbox<W> {
    pub fn new(to: W) -> Outbox<W> {
        let bytes = Vec::with_capacity(2 * PAYLOAD_BYTES);
        Outbox { to, bytes, open: None, place: Place::default(), is_told: false, emitted_bytes: 0 }
    }

    /// What is said from now on is of this block.
    pub fn begin(&mut self, place: Place) {
        self.close(0);
        (self.place, self.is_told) = (place, false);
    }

    /// All was emitted that comes of the block.
    pub fn end(&mut self) {
        if self.is_told && self.open.is_none() {
            self.open();
        }
        self.close(LAST);
    }

    /// Bytes emitted so far, of all blocks.
    pub fn emitted_bytes(&self) -> u64 {
        self.emitted_bytes
    }

    pub fn emit(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.emitted_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let begun = self.open.unwrap_or_else(|| self.open());
            let room = PAYLOAD_BYTES - (self.bytes.len() - begun - ANSWER_BYTES);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.bytes.extend_from_slice(now);
            bytes = later;
            if now.len() == room {
                self.close(0);
                self.send()?;
            }
        }
        Ok(())
    }

    /// Adds another answer, about the same block.
    pub fn say(&mut self, say: Say, code: i32, payload: &[u8]) {
        self.close(0);
        let answer = Answer { say, code, length: payload.len(), place: self.place };
        self.bytes.extend_from_slice(&answer.to_bytes());
        self.bytes.extend_from_slice(payload);
    }

    /// Sends all that was gathered.
    pub fn send(&mut self) -> io::Result<()> {
        self.close(0);
        self.to.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    fn open(&mut self) -> usize {
        let begun = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ANSWER_BYTES]);
        (self.open, self.is_told) = (Some(begun), true);
        begun
    }

    fn close(&mut self, code: i32) {
        if let Some(begun) = self.open.take() {
            let length = self.bytes.len() - begun - ANSWER_BYTES;
            let answer = Answer { say: Say::Emit, code, length, place: self.place };
            self.bytes[begun..][..ANSWER_BYTES].copy_from_slice(&answer.to_bytes());
        }
    }
}

fn garbage() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a message of a WebAssembly kernel's process")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let blocks = FileBlocks { start: 1, stride: 2, count: 3, file_bytes: 4, base: 5, enough_bytes: 6 };
        for ask in ASKS {
            let call = Call { ask, position: 1 << 40, length: 3, offset: -5, capacity: 1 << 33, blocks };
            assert_eq!(Call::parse(&call.to_bytes()).unwrap(), call);
        }
        let place = Place { block: 9, offset: -3, end: 1 << 50 };
        for say in SAYS {
            let answer = Answer { say, code: -7, length: 3, place };
            assert_eq!(Answer::parse(&answer.to_bytes()).unwrap(), answer);
        }
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(Answer::parse(&[0xff; ANSWER_BYTES]).is_err());
        let mut long = [0; ANSWER_BYTES];
        long[8..16].copy_from_slice(&(PAYLOAD_BYTES as u64 + 1).to_le_bytes());
        assert!(Answer::parse(&long).is_err());
        assert!(Call::parse(&[0xff; CALL_BYTES]).is_err());
    }

    /// What was sent, as answers with their bytes.
    fn sent(mut bytes: &[u8]) -> Vec<(Answer, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some((header, rest)) = bytes.split_first_chunk() {
            let answer = Answer::parse(header).unwrap();
            let (payload, rest) = rest.split_at(answer.length);
            all.push((answer, payload.to_vec()));
            bytes = rest;
        }
        all
    }

    #[test]
    fn what_is_emitted_is_told_block_by_block_and_its_end_once() {
        let mut out = Outbox::new(Vec::new());
        let place = |block| Place { block, offset: block as i64 * 10, end: 7 };
        let lengths = [0, 5, PAYLOAD_BYTES - 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 3 * PAYLOAD_BYTES, 0, 1];
        for (block, length) in lengths.into_iter().enumerate() {
            out.begin(place(block as u64));
            vec![block as u8; length].chunks(10_000).for_each(|some| out.emit(some).unwrap());
            out.end();
        }
        assert_eq!(out.emitted_bytes(), lengths.iter().sum::<usize>() as u64);
        out.say(Say::Done, 0, &[]);
        out.send().unwrap();
        let mut answers = sent(&out.to);
        assert_eq!(answers.pop().unwrap().0.say, Say::Done);
        for (block, length) in lengths.into_iter().enumerate() {
            let of_it: Vec<_> =
                answers.iter().filter(|(answer, _)| answer.place.block == block as u64).collect();
            let bytes: Vec<u8> = of_it.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            assert_eq!(bytes, vec![block as u8; length]);
            let ends = of_it.iter().filter(|(answer, _)| answer.code == LAST).count();
            assert_eq!(ends, usize::from(length > 0), "{length}");
            assert!(
                of_it
                    .last()
                    .is_none_or(|(answer, _)| answer.code == LAST && answer.place == place(block as u64))
            );
        }
    }
}

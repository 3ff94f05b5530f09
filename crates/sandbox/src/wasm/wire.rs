//! This module defines the protocol between the calling process and a module's process: fixed headers, little
//! endian. Bytes to the module are in the shared file. Bytes from the module follow the header.
//!
//! ```text
//! call    kind u32 | 0 u32 | position u64 | length u64 | offset i64 | capacity u64 | start u64 | stride u64
//!         | count u64 | file u64 | base u64 | enough u64
//! answer  kind u32 | code i32 | length u64 | block u64 | offset i64 | end u64 | `length` bytes
//! ```
//! `position` is the offset of the bytes in the shared file; `capacity` is the number of bytes of that file that the
//! module's process maps into the module's memory. The fields from `start` on belong to [`CallKind::Blocks`] and are
//! described in [`FileBlocks`]; they are 0 in all other calls. The open file itself is passed together with the header.
//!
//! `block` is the number of the block to which the emitted bytes belong, or the number of blocks that are done.
//! `offset` is the offset of the block's start as the module sees it. `end` is the offset of the block's end in
//! the file.

use std::{
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::FileBlocks;
use crate::channel::{receive_beside, send_beside};

/// The maximum number of bytes in one answer of a module's process. Results are collected up to this size.
pub const PAYLOAD_BYTES: usize = 64 << 10;

/// Names a call to a module's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Compiles the module in the shared file.
    Load,
    /// Calls `inshore_init`.
    Init,
    /// Calls `inshore_block`.
    Block,
    /// Reads blocks of a file, and calls `inshore_block` with each.
    Blocks,
    /// Calls `inshore_state`.
    State,
    /// Calls `inshore_merge`.
    Merge,
    /// Calls `inshore_finish`.
    Finish,
}

const CALL_KINDS: [CallKind; 7] = [
    CallKind::Load,
    CallKind::Init,
    CallKind::Block,
    CallKind::Blocks,
    CallKind::State,
    CallKind::Merge,
    CallKind::Finish,
];

impl CallKind {
    /// Returns the name of the module's function, for error messages.
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Load => "start",
            CallKind::Init => "inshore_init",
            CallKind::Block | CallKind::Blocks => "inshore_block",
            CallKind::State => "inshore_state",
            CallKind::Merge => "inshore_merge",
            CallKind::Finish => "inshore_finish",
        }
    }
}

/// The code of [`CallKind::Load`] for a module that has a state.
pub const HAS_STATE: i32 = 1;

/// The size of an encoded [`Call`] in bytes.
const CALL_BYTES: usize = 88;

/// The header of a call to a module's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub kind: CallKind,
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
            [u64::from(self.kind as u32), self.position, self.length, self.offset as u64, self.capacity];
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
            kind: *CALL_KINDS.get(number(0) as usize).ok_or_else(garbage)?,
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

    /// Sends the call, together with an open file if the call needs a file.
    pub fn send(&self, socket: impl AsFd, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send_beside(socket, &self.to_bytes(), file.as_slice())
    }

    /// Waits for the next call, and returns the call with the open file that was sent with it.
    pub fn receive(socket: impl AsFd) -> io::Result<(Call, Option<OwnedFd>)> {
        let mut bytes = [0; CALL_BYTES];
        let (got, mut files) = receive_beside(socket, &mut bytes)?;
        if got < CALL_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((Call::parse(&bytes)?, files.pop()))
    }
}

/// Returns the 64-bit number at index `place` of a header.
fn number(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * place..][..8].try_into().expect("eight bytes"))
}

/// Names the kind of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// The answer contains bytes of the result.
    Emit,
    /// The answer contains bytes for the log.
    Log,
    /// The call returned this code.
    Done,
    /// The module is invalid or not a kernel. The answer contains the reason.
    Invalid,
    /// The call failed. The answer contains the reason.
    Failed,
}

const ANSWER_KINDS: [AnswerKind; 5] =
    [AnswerKind::Emit, AnswerKind::Log, AnswerKind::Done, AnswerKind::Invalid, AnswerKind::Failed];

/// Identifies the block to which an answer belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockId {
    pub block: u64,
    pub offset: i64,
    pub end: u64,
}

/// The code of [`AnswerKind::Emit`] for the last part of a block's result.
pub const LAST: i32 = 1;

/// The header of an answer from a module's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub say: AnswerKind,
    pub code: i32,
    pub length: usize,
    pub place: BlockId,
}

/// The size of the header of an [`Answer`] in bytes.
pub const ANSWER_BYTES: usize = 40;

impl Answer {
    fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let BlockId { block, offset, end } = self.place;
        let kind = u64::from(self.say as u32) | u64::from(self.code as u32) << 32;
        let mut bytes = [0; ANSWER_BYTES];
        let all = [kind, self.length as u64, block, offset as u64, end];
        for (place, number) in bytes.chunks_exact_mut(8).zip(all) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Parses a header. An attacker may control the sender, so any unknown value is an error.
    pub fn parse(bytes: &[u8; ANSWER_BYTES]) -> io::Result<Answer> {
        let number = |place| number(bytes, place);
        let length = usize::try_from(number(1)).ok().filter(|length| *length <= PAYLOAD_BYTES);
        Ok(Answer {
            say: *ANSWER_KINDS.get(number(0) as u32 as usize).ok_or_else(garbage)?,
            code: (number(0) >> 32) as i32,
            length: length.ok_or_else(garbage)?,
            place: BlockId { block: number(2), offset: number(3) as i64, end: number(4) },
        })
    }
}

/// Collects the answers of a module's process, to send several answers at a time.
#[derive(Debug)]
pub struct Outbox<W> {
    to: W,
    bytes: Vec<u8>,
    /// The offset in `bytes` of the unfinished answer, to which emitted bytes are appended. The length of the
    /// answer is written when the answer is closed.
    open: Option<usize>,
    /// Identifies the current block.
    place: BlockId,
    /// Says whether any emitted bytes of the current block were written.
    is_told: bool,
    emitted_bytes: u64,
}

impl<W: Write> Outbox<W> {
    pub fn new(to: W) -> Outbox<W> {
        let bytes = Vec::with_capacity(2 * PAYLOAD_BYTES);
        Outbox { to, bytes, open: None, place: BlockId::default(), is_told: false, emitted_bytes: 0 }
    }

    /// Starts a block: later answers belong to this block.
    pub fn begin(&mut self, place: BlockId) {
        self.close(0);
        (self.place, self.is_told) = (place, false);
    }

    /// Ends the current block: no more bytes are emitted for this block.
    pub fn end(&mut self) {
        if self.is_told && self.open.is_none() {
            self.open();
        }
        self.close(LAST);
    }

    /// Returns the bytes emitted so far, of all blocks.
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

    /// Appends another answer for the current block.
    pub fn say(&mut self, say: AnswerKind, code: i32, payload: &[u8]) {
        self.close(0);
        let answer = Answer { say, code, length: payload.len(), place: self.place };
        self.bytes.extend_from_slice(&answer.to_bytes());
        self.bytes.extend_from_slice(payload);
    }

    /// Sends all gathered answers.
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
            let answer = Answer { say: AnswerKind::Emit, code, length, place: self.place };
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
    fn headers_round_trip() {
        let blocks = FileBlocks { start: 1, stride: 2, count: 3, file_bytes: 4, base: 5, enough_bytes: 6 };
        for kind in CALL_KINDS {
            let call = Call { kind, position: 1 << 40, length: 3, offset: -5, capacity: 1 << 33, blocks };
            assert_eq!(Call::parse(&call.to_bytes()).unwrap(), call);
        }
        let place = BlockId { block: 9, offset: -3, end: 1 << 50 };
        for say in ANSWER_KINDS {
            let answer = Answer { say, code: -7, length: 3, place };
            assert_eq!(Answer::parse(&answer.to_bytes()).unwrap(), answer);
        }
    }

    #[test]
    fn invalid_headers_are_errors() {
        assert!(Answer::parse(&[0xff; ANSWER_BYTES]).is_err());
        let mut long = [0; ANSWER_BYTES];
        long[8..16].copy_from_slice(&(PAYLOAD_BYTES as u64 + 1).to_le_bytes());
        assert!(Answer::parse(&long).is_err());
        assert!(Call::parse(&[0xff; CALL_BYTES]).is_err());
    }

    /// Parses sent bytes into answers with their bytes.
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
    fn emitted_bytes_are_sent_block_by_block_with_one_end_each() {
        let mut out = Outbox::new(Vec::new());
        let place = |block| BlockId { block, offset: block as i64 * 10, end: 7 };
        let lengths = [0, 5, PAYLOAD_BYTES - 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 3 * PAYLOAD_BYTES, 0, 1];
        for (block, length) in lengths.into_iter().enumerate() {
            out.begin(place(block as u64));
            vec![block as u8; length].chunks(10_000).for_each(|some| out.emit(some).unwrap());
            out.end();
        }
        assert_eq!(out.emitted_bytes(), lengths.iter().sum::<usize>() as u64);
        out.say(AnswerKind::Done, 0, &[]);
        out.send().unwrap();
        let mut answers = sent(&out.to);
        assert_eq!(answers.pop().unwrap().0.say, AnswerKind::Done);
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

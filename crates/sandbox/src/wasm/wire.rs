//! What goes between our process and that of a module: fixed headers, little endian. Data of ours lies in the shared file;
//! theirs follows the header.
//!
//! ```text
//! to it    kind u32 | 0 u32     | position u64 | length u64 | offset i64 | capacity u64
//! from it  kind u32 | code i32  | length u64   | that many bytes
//! ```
//! `position`: of the bytes in the shared file; `capacity`: how much of that file the module has to see in its memory.

use std::io::{self, Read, Write};

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
    /// Call `inshore_state`.
    State,
    /// Call `inshore_merge`.
    Merge,
    /// Call `inshore_finish`.
    Finish,
}

const ASKS: [Ask; 6] = [Ask::Load, Ask::Init, Ask::Block, Ask::State, Ask::Merge, Ask::Finish];

impl Ask {
    /// What is called for it, as errors name it.
    pub fn name(self) -> &'static str {
        match self {
            Ask::Load => "its start",
            Ask::Init => "inshore_init",
            Ask::Block => "inshore_block",
            Ask::State => "inshore_state",
            Ask::Merge => "inshore_merge",
            Ask::Finish => "inshore_finish",
        }
    }
}

/// The code of [`Ask::Load`] for a module that has a state.
pub const HAS_STATE: i32 = 1;

/// Bytes of a [`Call`].
const CALL_BYTES: usize = 40;

/// A header to a module's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub ask: Ask,
    pub position: u64,
    pub length: u64,
    pub offset: i64,
    pub capacity: u64,
}

impl Call {
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let mut bytes = [0; CALL_BYTES];
        bytes[..4].copy_from_slice(&(self.ask as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..].copy_from_slice(&self.capacity.to_le_bytes());
        to.write_all(&bytes)
    }

    pub fn read(mut from: impl Read) -> io::Result<Call> {
        let mut bytes = [0; CALL_BYTES];
        from.read_exact(&mut bytes)?;
        let kind = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Ok(Call {
            ask: *ASKS.get(kind as usize).ok_or_else(garbage)?,
            position: number(8),
            length: number(16),
            offset: number(24) as i64,
            capacity: number(32),
        })
    }
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

/// A header from a module's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub say: Say,
    pub code: i32,
    pub length: usize,
}

/// Bytes of an [`Answer`].
pub const ANSWER_BYTES: usize = 16;

impl Answer {
    pub fn write(say: Say, code: i32, payload: &[u8], mut to: impl Write) -> io::Result<()> {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&(say as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&code.to_le_bytes());
        bytes[8..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        to.write_all(&bytes)?;
        to.write_all(payload)
    }

    /// Whoever sent it may have been taken over: anything but an answer of ours is an error.
    pub fn parse(bytes: &[u8; ANSWER_BYTES]) -> io::Result<Answer> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let length = u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"));
        let length = usize::try_from(length).ok().filter(|length| *length <= PAYLOAD_BYTES);
        Ok(Answer {
            say: *SAYS.get(number(0) as usize).ok_or_else(garbage)?,
            code: number(4) as i32,
            length: length.ok_or_else(garbage)?,
        })
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
        for ask in ASKS {
            let call = Call { ask, position: 1 << 40, length: 3, offset: -5, capacity: 1 << 33 };
            let mut bytes = Vec::new();
            call.write(&mut bytes).unwrap();
            assert_eq!(Call::read(&bytes[..]).unwrap(), call);
        }
        for say in SAYS {
            let mut bytes = Vec::new();
            Answer::write(say, -7, b"abc", &mut bytes).unwrap();
            let header = bytes[..ANSWER_BYTES].try_into().unwrap();
            assert_eq!(Answer::parse(header).unwrap(), Answer { say, code: -7, length: 3 });
        }
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(Answer::parse(&[0xff; ANSWER_BYTES]).is_err());
        let mut long = [0; ANSWER_BYTES];
        long[8..].copy_from_slice(&(PAYLOAD_BYTES as u64 + 1).to_le_bytes());
        assert!(Answer::parse(&long).is_err());
        assert!(Call::read(&[0xff; CALL_BYTES][..]).is_err());
    }
}

//! The socket between our process and a helper: messages in JSON with their length before them (four bytes, little endian),
//! and open files beside them.
//!
//! JSON, since one message goes each way and a path may be any bytes; data goes through pipes of its own.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
};

use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Ended, Protection, Protections};

/// Bytes of a message; a command line of Linux has at most 2 MiB, and JSON may write a byte as four.
const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Files beside a message.
const FILES_MAX: usize = 2;

/// What a helper is to do, the first message to it; files come beside it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub task: Task,
    pub confinement: Confinement,
    pub wall_us: u64,
}

/// What is run once all is set up.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Beside it: its standard input.
    Command { program: PathBuf, args: Vec<Vec<u8>>, env: Vec<(Vec<u8>, Vec<u8>)> },
    /// Beside it: a socket for calls, and the shared file. Known to helpers that were built without WebAssembly too, so
    /// that they can say so.
    Wasm { memory_bytes: u64 },
}

/// What is set up before it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Confinement {
    pub wanted: Protections,
    pub required: Protections,
    pub user: u32,
    pub group: u32,
    pub folder: PathBuf,
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// A program that may be executed besides the system's own.
    pub program: Option<PathBuf>,
    /// Files named `cgroup.procs` of the groups to join.
    pub groups: Vec<PathBuf>,
    /// Whether they limit memory and processes.
    pub group_protections: Protections,
    /// The file to write a limit of no processes to, where there is a group that limits them.
    pub processes_file: Option<PathBuf>,
    /// Bytes of address space of each process; none where there is a cgroup.
    pub address_bytes: Option<u64>,
    /// Bytes of memory of each process that it may write to, whether shared or not in use.
    pub data_bytes: Option<u64>,
    pub cpu_seconds: u64,
    pub processes: u64,
    pub file_bytes: u64,
    pub open_files: u64,
}

/// What a helper says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The first message: it is one.
    Ready,
    /// The last.
    Done(Report),
    /// The last, where nothing was run.
    Failed(Failure),
}

/// What came of a task.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// As of `wait`; none where it was ended with the rest.
    pub status: Option<i32>,
    pub ended: Option<Ended>,
    pub wall_us: u64,
    pub user_us: u64,
    pub system_us: u64,
    /// Of the largest process.
    pub resident_bytes_max: u64,
    pub active: Protections,
}

/// Why nothing was run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    pub missing: Option<Protection>,
    pub path: Option<PathBuf>,
    pub what: String,
    /// 0 where it was not the system that failed.
    pub errno: i32,
}

impl Failure {
    /// Of the system, in doing `what`.
    pub fn system(what: &str, error: &io::Error) -> Failure {
        Failure {
            missing: None,
            path: None,
            what: what.to_string(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// Of the system, with a file that the caller named.
    pub fn path(what: &str, path: &std::path::Path, error: &io::Error) -> Failure {
        Failure { path: Some(path.to_path_buf()), ..Failure::system(what, error) }
    }

    /// Of a protection that is required.
    pub fn missing(protection: Protection, reason: String) -> Failure {
        Failure { missing: Some(protection), path: None, what: reason, errno: 0 }
    }
}

impl From<Failure> for crate::Error {
    fn from(failure: Failure) -> crate::Error {
        let source = match failure.errno {
            0 => io::Error::other("failed"),
            errno => io::Error::from_raw_os_error(errno),
        };
        match failure {
            Failure { missing: Some(protection), what: reason, .. } => {
                crate::Error::Missing { protection, reason }
            }
            Failure { path: Some(path), what, .. } => crate::Error::Path { what, path, source },
            Failure { what, .. } => crate::Error::System { what, source },
        }
    }
}

/// Sends a message, and files beside it.
pub fn send<T: Serialize>(mut socket: &UnixStream, message: &T, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a command line of more than 16 MiB"))?.to_le_bytes();
    send_beside(socket, &length, files)?;
    socket.write_all(&body)
}

/// Receives a message and the files beside it; `None` at the socket's end.
pub fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let (got, files) = receive_beside(socket, &mut length)?;
    if got == 0 {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length);
    if got < 4 || length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a message of the sandbox"));
    }
    let mut body = vec![0; length as usize];
    socket.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, files)))
}

/// Sends a few bytes, which always fit an empty socket, and files beside them.
pub fn send_beside(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(files.len() <= FILES_MAX);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(beside.push(SendAncillaryMessage::ScmRights(files)), "room for {FILES_MAX} files");
    }
    let sent =
        retry_on_intr(|| sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL))?;
    assert_eq!(sent, bytes.len());
    Ok(())
}

/// Receives as many bytes, fewer only where the socket ends, and the files beside them; says how many bytes came.
pub fn receive_beside(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    // A socket with a time limit is interrupted where others are not: by what io_uring has to say to the thread, for one.
    let got = retry_on_intr(|| {
        recvmsg(socket.as_fd(), &mut [IoSliceMut::new(bytes)], &mut beside, flags).map(|got| got.bytes)
    })?;
    let mut files = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            files.extend(some);
        }
    }
    Ok((got, files))
}

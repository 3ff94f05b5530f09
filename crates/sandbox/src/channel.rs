//! This module defines the protocol between the calling process and a helper: messages in JSON over a socket, each
//! after its length (four bytes, little endian), with open files passed as ancillary data.
//!
//! JSON is fast enough, since each side sends at most two messages. Data is sent through separate pipes.

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

use crate::{Protection, Protections, Termination};

/// The largest size of a message in bytes. A command line of Linux has at most 2 MiB, and JSON may encode one byte
/// as four characters.
const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Limits the number of open files that are passed with a message.
const FILES_MAX: usize = 2;

/// The task of a helper, and the protections of the task. This is the only message to a helper. It is sent
/// together with the open files that the task needs.
#[derive(Debug, Serialize, Deserialize)]
pub struct HelperTask {
    pub task: Task,
    pub confinement: Confinement,
    pub wall_us: u64,
}

/// Says what the helper runs after setting up the protections.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Runs a command. The file that comes with the message is the standard input.
    Command { program: PathBuf, args: Vec<Vec<u8>>, env: Vec<(Vec<u8>, Vec<u8>)> },
    /// Runs a module. The files that come with the message are a socket for calls and the shared file. Helpers that
    /// were built without WebAssembly can decode this variant too, so that they can refuse it with a clear error.
    Wasm { memory_bytes: u64 },
}

/// Lists the protections and limits to set up before the task starts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Confinement {
    pub wanted: Protections,
    pub required: Protections,
    pub user: u32,
    pub group: u32,
    pub folder: PathBuf,
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// The path of a program that may be executed in addition to the system's own programs.
    pub program: Option<PathBuf>,
    /// Lists the `cgroup.procs` files of the groups to join.
    pub groups: Vec<PathBuf>,
    /// Says whether the groups limit memory and processes.
    pub group_protections: Protections,
    /// Names the file to which the helper writes a limit of zero processes, so that no process can fork any more.
    /// None if no cgroup limits processes.
    pub processes_file: Option<PathBuf>,
    /// The limit of the address space of each process in bytes; none if a cgroup limits the memory.
    pub address_bytes: Option<u64>,
    /// Limits the bytes of writable memory of each process, including shared memory and memory that is reserved but
    /// unused.
    pub data_bytes: Option<u64>,
    pub cpu_seconds: u64,
    pub processes: u64,
    pub file_bytes: u64,
    pub open_files: u64,
}

/// A message from a helper.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The program is a helper. This is the first message.
    Ready,
    /// The task is done. This is the last message.
    Done(Report),
    /// The task could not be started. This is the last message.
    Failed(Failure),
}

/// Reports how a task ended and what the task used.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Holds the exit status in the format of `wait`; none if the task was killed from outside the sandbox.
    pub status: Option<i32>,
    pub ended: Option<Termination>,
    pub wall_us: u64,
    pub user_us: u64,
    pub system_us: u64,
    /// Holds the resident size of the largest process.
    pub resident_bytes_max: u64,
    pub active: Protections,
}

/// Says why the task was not started.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    pub missing: Option<Protection>,
    pub path: Option<PathBuf>,
    pub what: String,
    /// Holds the error number of the system, or 0 if no system call failed.
    pub errno: i32,
}

impl Failure {
    /// Creates the failure of a system call during `what`.
    pub fn system(what: &str, error: &io::Error) -> Failure {
        Failure {
            missing: None,
            path: None,
            what: what.to_string(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// Makes the failure of a system call on a file that the caller named.
    pub fn path(what: &str, path: &std::path::Path, error: &io::Error) -> Failure {
        Failure { path: Some(path.to_path_buf()), ..Failure::system(what, error) }
    }

    /// Makes the failure for a required protection that is not available.
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

/// Sends a message together with open files.
pub fn send<T: Serialize>(mut socket: &UnixStream, message: &T, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("command line is longer than 16 MiB"))?.to_le_bytes();
    send_beside(socket, &length, files)?;
    socket.write_all(&body)
}

/// Receives a message and the open files that come with it; `None` at the socket's end.
pub fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let (got, files) = receive_beside(socket, &mut length)?;
    if got == 0 {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length);
    if got < 4 || length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "protocol error: not a message of the sandbox",
        ));
    }
    let mut body = vec![0; length as usize];
    socket.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, files)))
}

/// Sends open files together with a few bytes, which always fit into an empty socket.
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

/// Fills `bytes` from the socket and receives the open files that come with them. Returns the number of bytes, which is
/// less than `bytes.len()` only at the socket's end.
pub fn receive_beside(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    // Completions of io_uring, for example, interrupt a call on a socket that has a timeout, but not on a socket
    // without a timeout. The call is then repeated.
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

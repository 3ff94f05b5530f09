//! The memory of the parts of a session, in bytes.

use super::output::{BLOCK_BYTES, WRITER_BYTES};

/// The number of read buffers of a served range.
pub(super) const SERVE_BUFFERS: usize = 4;
/// The memory for a served range: read buffers, and a message with its copies.
pub(super) const SERVE_BYTES: u64 = (SERVE_BUFFERS as u64 + 4) * BLOCK_BYTES as u64;

/// The size of the buffers of published pieces.
pub(super) const PUBLISH_BUFFER_BYTES: usize = 512 << 10;
/// The memory of a publication: two read buffers, two write buffers, and checksums.
pub(super) const PUBLISH_BYTES: u64 = 4 * PUBLISH_BUFFER_BYTES as u64 + (1 << 20);

/// The memory for the messages of an attempt: the unread bytes of a stream from another node (2 MiB), and a decoded
/// batch.
const MESSAGE_BYTES: u64 = (2 << 20) + (256 << 10);
/// The memory of a slot besides that of its attempt: its writer and its messages.
pub(super) const SLOT_BESIDE_BYTES: u64 = WRITER_BYTES + MESSAGE_BYTES;

//! Checks a received batch before decompression, so that no length in a message determines how much memory this
//! machine uses.
//!
//! ```text
//!   header   the buffers, their places in the body; compressed, or not
//!   body     [ length unpacked, i64 | zstd ] [ -1 | plain ] ...          a length for each buffer, if the batch is compressed
//! ```
//!
//! For zstd, the decompressing library allocates exactly the stated length. An LZ4 frame is decompressed to its end,
//! regardless of the stated length. The library copies an uncompressed buffer that is not aligned for its values. Each
//! such buffer is copied separately, even if all buffers have the same offset.

use arrow_ipc::{CompressionType, MessageHeader, RecordBatch, root_as_message};

/// The maximum size of a batch in memory, in bytes.
pub(crate) const BATCH_BYTES_MAX: u64 = 64 << 20;
/// Buffers at a multiple of this number of bytes are never copied.
const ALIGNMENT: usize = 16;
/// The value of the length field that marks an uncompressed buffer.
const AS_IT_IS: i64 = -1;
/// The size of the length field, in bytes.
const LENGTH_BYTES: usize = size_of::<i64>();

/// Returns the memory that a message may occupy, in bytes: its body, and the buffers that are decompressed or copied.
///
/// # Errors
/// - Returns an error if the message is a dictionary. Answers have no dictionaries, and a dictionary would stay in
///   memory as long as the stream.
/// - Returns an error if a buffer is outside the body, or if buffers overlap.
/// - Returns an error if the compression is not zstd. An LZ4 frame may be longer than stated.
/// - Returns an error if a length is invalid or more than [`BATCH_BYTES_MAX`].
pub(crate) fn check_lengths(header: &[u8], body: &[u8]) -> Result<u64, String> {
    let message = root_as_message(header).map_err(|error| format!("an invalid message: {error}"))?;
    if message.header_type() == MessageHeader::DictionaryBatch {
        return Err("an unexpected dictionary".to_string());
    }
    let Some(batch) = message.header_as_record_batch() else { return Ok(body.len() as u64) };
    match batch.compression().map(|compression| compression.codec()) {
        Some(codec) if codec != CompressionType::ZSTD => {
            Err(format!("a batch compressed by {codec:?}, expected ZSTD"))
        }
        Some(_) => Ok(body.len() as u64 + unpacked_bytes(&batch, body)?),
        None => Ok(body.len() as u64 + copied_bytes(&batch, body)?),
    }
}

/// Returns the byte ranges of a batch's buffers in the body.
fn buffers<'a>(
    batch: &RecordBatch<'a>,
    body: &'a [u8],
) -> impl Iterator<Item = Result<&'a [u8], String>> + use<'a> {
    batch.buffers().into_iter().flatten().map(move |buffer| {
        let place = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let found = place.and_then(|(at, len)| body.get(at..at.checked_add(len)?));
        found.ok_or_else(|| "a buffer outside of its message".to_string())
    })
}

/// Returns the number of bytes of an uncompressed batch that the library may copy.
fn copied_bytes(batch: &RecordBatch<'_>, body: &[u8]) -> Result<u64, String> {
    let (mut all, mut copied) = (0u64, 0);
    for found in buffers(batch, body) {
        let found = found?;
        let bytes = found.len() as u64;
        all = all.saturating_add(bytes);
        copied += if (found.as_ptr() as usize).is_multiple_of(ALIGNMENT) { 0 } else { bytes };
        if all > body.len() as u64 {
            return Err("buffers that overlap".to_string());
        }
    }
    Ok(copied)
}

fn unpacked_bytes(batch: &RecordBatch<'_>, body: &[u8]) -> Result<u64, String> {
    let mut all = 0u64;
    for found in buffers(batch, body) {
        let found = found?;
        let Some((length, rest)) = found.split_first_chunk::<LENGTH_BYTES>() else {
            match found.len() {
                0 => continue,
                len => {
                    return Err(format!(
                        "a compressed buffer of {len} bytes, too short for its length prefix"
                    ));
                }
            }
        };
        let bytes = match i64::from_le_bytes(*length) {
            AS_IT_IS => Some(rest.len() as u64),
            length => u64::try_from(length).ok(),
        };
        all = bytes.and_then(|bytes| all.checked_add(bytes)).unwrap_or(u64::MAX);
        if all > BATCH_BYTES_MAX {
            return Err(format!("a batch that would have {all} bytes, expected {BATCH_BYTES_MAX} at most"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::{ptr, sync::Arc};

    use arrow_array::{
        ArrayRef, BinaryArray, DictionaryArray, RecordBatch, StringArray, UInt8Array, UInt64Array,
        types::Int32Type,
    };
    use arrow_flight::FlightData;
    use arrow_ipc::{
        reader::RecordBatchDecoder,
        writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions, StreamWriter},
    };
    use inshore_kernel::part_schema;

    use super::*;
    use crate::protocol::wire::{Encoder, batch_bytes};

    /// Returns rows with numbers that compress well, bytes that do not, and an empty column.
    fn rows(count: u64) -> RecordBatch {
        let mix = |n: u64| {
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let bytes: Vec<[u8; 8]> = (0..count).map(|row| mix(row).to_le_bytes()).collect();
        let columns: [(&str, ArrayRef); 3] = [
            ("number", Arc::new(UInt64Array::from_iter_values((0..count).map(|row| row / 3)))),
            ("bytes", Arc::new(BinaryArray::from_iter_values(bytes))),
            ("nothing", Arc::new(StringArray::from_iter_values((0..count).map(|_| "")))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn sent(batch: &RecordBatch, level: Option<usize>) -> FlightData {
        Encoder::new().batch(batch, level).unwrap().pop().unwrap()
    }

    fn received(batch: &RecordBatch, message: &FlightData) -> RecordBatch {
        let header = root_as_message(&message.data_header).unwrap();
        let body = message.data_body.as_ref().into();
        let none = Default::default();
        let columns = header.header_as_record_batch().unwrap();
        let version = header.version();
        let decoder = RecordBatchDecoder::try_new(&body, columns, batch.schema(), &none, &version).unwrap();
        decoder.read_record_batch().unwrap()
    }

    #[test]
    fn what_is_compressed_comes_back_and_its_length_is_known_before() {
        for count in [0, 1, 10, 5_000] {
            let batch = rows(count);
            let plain = sent(&batch, None);
            assert_eq!(received(&batch, &plain), batch);
            let bytes = check_lengths(&plain.data_header, &plain.data_body).unwrap();
            let body = plain.data_body.len() as u64;
            assert!((body..=2 * body).contains(&bytes), "{bytes} of {body}");
            for level in [0, 1] {
                let packed = sent(&batch, Some(level));
                let bytes = check_lengths(&packed.data_header, &packed.data_body).unwrap();
                assert_eq!(received(&batch, &packed), batch);
                assert!(bytes >= batch_bytes(&batch), "{bytes} of {}", batch_bytes(&batch));
                let is_packed = packed.data_body.len() * 10 < plain.data_body.len() * 7;
                assert_eq!(
                    is_packed,
                    count == 5_000,
                    "{} of {}",
                    packed.data_body.len(),
                    plain.data_body.len()
                );
            }
        }
    }

    #[test]
    fn a_batch_that_would_be_larger_than_any_is_refused_before_it_is_unpacked() {
        let batch = rows(5_000);
        let message = sent(&batch, Some(0));
        let header = root_as_message(&message.data_header).unwrap();
        let buffers = header.header_as_record_batch().unwrap().buffers().unwrap();
        let places: Vec<usize> = buffers
            .iter()
            .filter(|buffer| buffer.length() > 0)
            .map(|buffer| buffer.offset() as usize)
            .collect();
        for length in [BATCH_BYTES_MAX as i64 + 1, i64::MAX, i64::MIN, -2] {
            for &place in &places {
                let mut body = message.data_body.to_vec();
                body[place..place + 8].copy_from_slice(&length.to_le_bytes());
                assert!(check_lengths(&message.data_header, &body).is_err(), "{length} at {place}");
            }
        }
        // The sum of all lengths is too large.
        let mut body = message.data_body.to_vec();
        let each = BATCH_BYTES_MAX as i64 / places.len() as i64 + 1;
        places.iter().for_each(|&place| body[place..place + 8].copy_from_slice(&each.to_le_bytes()));
        assert!(
            check_lengths(&message.data_header, &body).unwrap_err().contains("expected 67108864 at most")
        );
        // Truncated bodies are refused.
        for bytes in [0, 4, places[0] + 4, message.data_body.len() / 2] {
            assert!(check_lengths(&message.data_header, &message.data_body[..bytes]).is_err(), "{bytes}");
        }
        assert!(check_lengths(&message.data_header[..20], &message.data_body).is_err());
    }

    #[test]
    fn what_lies_outside_of_its_message_is_refused_though_it_is_not_compressed() {
        let message = sent(&rows(5_000), None);
        assert!(check_lengths(&message.data_header, &message.data_body).is_ok());
        for bytes in [0, 64, message.data_body.len() - 64] {
            let refused = check_lengths(&message.data_header, &message.data_body[..bytes]);
            assert!(refused.unwrap_err().contains("outside of its message"), "{bytes}");
        }
    }

    #[test]
    fn buffers_in_the_same_place_are_refused_since_each_would_be_copied() {
        let column = || Arc::new(UInt64Array::from_iter_values(0..999)) as ArrayRef;
        let message = sent(&RecordBatch::try_from_iter([("a", column()), ("b", column())]).unwrap(), None);
        let body = message.data_body;
        let mut header = message.data_header.to_vec();
        let all = i64::try_from(body.len() - 1).unwrap();
        let start = header.as_ptr() as usize;
        let batch = root_as_message(&header).unwrap().header_as_record_batch().unwrap();
        let buffers: Vec<usize> =
            batch.buffers().unwrap().iter().map(|buffer| ptr::from_ref(buffer) as usize - start).collect();
        assert_eq!(buffers.len(), 4);
        // Each buffer has an offset and a length.
        for at in buffers {
            header[at..at + 8].copy_from_slice(&1i64.to_le_bytes());
            header[at + 8..at + 16].copy_from_slice(&all.to_le_bytes());
        }
        assert_eq!(check_lengths(&header, &body).unwrap_err(), "buffers that overlap");
    }

    #[test]
    fn what_does_not_lie_as_values_have_to_is_counted_twice() {
        let message = sent(&rows(5_000), None);
        let mut room = vec![0; message.data_body.len() + 2 * ALIGNMENT];
        let place = ALIGNMENT - room.as_ptr() as usize % ALIGNMENT;
        for (beside, is_copied) in [(0, false), (4, true)] {
            let body = &mut room[place + beside..][..message.data_body.len()];
            body.copy_from_slice(&message.data_body);
            let bytes = check_lengths(&message.data_header, body).unwrap();
            assert_eq!(bytes > body.len() as u64, is_copied, "{beside}");
        }
    }

    #[test]
    fn dictionaries_are_refused() {
        let column: DictionaryArray<Int32Type> = ["some", "other"].into_iter().collect();
        let batch = RecordBatch::try_from_iter([("word", Arc::new(column) as ArrayRef)]).unwrap();
        let mut file = Vec::new();
        let mut writer = StreamWriter::try_new(&mut file, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        // A message begins with a marker of four bytes and the length of the header. The first header describes
        // the columns, the second the dictionary.
        let after =
            |at: usize| at + 8 + u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap()) as usize;
        let (columns, list) = (after(0), after(after(0)));
        let refused = check_lengths(&file[columns + 8..list], &file[list..]);
        assert_eq!(refused.unwrap_err(), "an unexpected dictionary");
    }

    #[test]
    fn lz4_whose_frames_may_be_of_any_length_is_refused() {
        let options =
            IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
        let (mut tracker, mut context) = (DictionaryTracker::new(false), IpcWriteContext::default());
        let encoded = IpcDataGenerator::default().encode(&rows(100), &mut tracker, &options, &mut context);
        let message = FlightData::from(encoded.unwrap().1);
        let refused = check_lengths(&message.data_header, &message.data_body);
        assert!(refused.unwrap_err().contains("expected ZSTD"));
    }

    #[test]
    #[ignore = "writes the seeds of the fuzz target"]
    fn make_seeds() {
        let batch = |rows: u64| {
            let numbers = |step| Arc::new(UInt64Array::from_iter_values((0..rows).map(|row| row * step)));
            let whats = UInt8Array::from_iter_values((0..rows).map(|row| (row % 3) as u8));
            let parts = BinaryArray::from_iter_values((0..rows).map(|row| vec![b'a'; row as usize % 7]));
            let columns: Vec<ArrayRef> =
                vec![numbers(1), numbers(0), numbers(7), Arc::new(whats), Arc::new(parts)];
            RecordBatch::try_new(part_schema(), columns).unwrap()
        };
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/node_messages");
        for (name, rows, level) in
            [("batch", 50, None), ("batch_fast", 300, Some(0)), ("batch_small", 300, Some(1))]
        {
            let message = sent(&batch(rows), level);
            let header_bytes = u16::try_from(message.data_header.len()).unwrap().to_le_bytes();
            let seed = [&[0x80][..], &header_bytes, &message.data_header, &message.data_body].concat();
            std::fs::write(format!("{folder}/{name}"), seed).unwrap();
        }
    }
}

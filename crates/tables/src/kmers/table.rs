//! Writes the table of k-mers and counts.

use std::{path::Path, sync::Arc};

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::Context;

use super::{KmerCode, KmerOptions, KmerSummary};
use crate::{Result, writer::BackgroundWriter};

/// The largest number of elements in the histogram. The last of them also counts all k-mers that occur more often.
const HISTOGRAM: usize = 256;
/// The maximum number of k-mers that are converted to rows in one step.
const BATCH_ROWS: usize = 8 << 10;

/// Writes a table of k-mers, which the caller passes in the order of their codes.
pub struct KmerWriter {
    job: Context,
    rows: RowBuilder,
    writer: BackgroundWriter,
    histogram: Vec<u64>,
    distinct: u64,
}

impl KmerWriter {
    /// Begins the table at `output`, as [`crate::TableWriter::create`] does. An error of that function is returned by
    /// a later call of this writer.
    pub fn create(job: &Context, output: &Path, options: &KmerOptions) -> KmerWriter {
        let rows = RowBuilder::new(options);
        let writer = BackgroundWriter::create(output, rows.schema.clone(), job.budget());
        KmerWriter { job: job.clone(), rows, writer, histogram: vec![0; HISTOGRAM], distinct: 0 }
    }

    /// Appends distinct k-mers in order, each with its count.
    ///
    /// # Errors
    /// - Returns the errors of [`crate::TableWriter::write`].
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn add<K: KmerCode>(&mut self, codes: &[K], counts: &[u32]) -> Result<()> {
        codes.chunks(BATCH_ROWS).zip(counts.chunks(BATCH_ROWS)).try_for_each(|(codes, counts)| {
            self.job.check_cancelled()?;
            self.block(codes, counts)
        })
    }

    fn block<K: KmerCode>(&mut self, codes: &[K], counts: &[u32]) -> Result<()> {
        for &count in counts {
            self.histogram[(count as usize).clamp(1, HISTOGRAM) - 1] += 1;
        }
        self.distinct += codes.len() as u64;
        self.job.progress().add(codes.len() as u64);
        match self.rows.batch(codes, counts) {
            Some(batch) => self.writer.write(batch),
            None => Ok(()),
        }
    }

    /// Completes and publishes the table. Returns the summary `counted`, to which the numbers that only the table
    /// determines were added.
    ///
    /// # Errors
    /// Returns the errors of [`crate::TableWriter::finish`].
    pub fn finish(self, counted: KmerSummary) -> Result<KmerSummary> {
        let KmerWriter { writer, mut histogram, distinct, .. } = self;
        let written = writer.finish()?;
        histogram.truncate(HISTOGRAM - histogram.iter().rev().take_while(|&&count| count == 0).count());
        Ok(KmerSummary { distinct, written, histogram, ..counted })
    }
}

/// Converts codes and counts to rows.
struct RowBuilder {
    schema: SchemaRef,
    k: usize,
    min_count: u32,
    codes: bool,
}

impl RowBuilder {
    fn new(options: &KmerOptions) -> RowBuilder {
        let kind = if options.codes { DataType::UInt64 } else { DataType::Utf8 };
        let fields = vec![Field::new("kmer", kind, false), Field::new("count", DataType::UInt32, false)];
        let schema = Arc::new(Schema::new(fields));
        RowBuilder { schema, k: options.k as usize, min_count: options.min_count, codes: options.codes }
    }

    /// Converts the k-mers that occur often enough to rows. Returns `None` if there are none.
    fn batch<K: KmerCode>(&self, keys: &[K], counts: &[u32]) -> Option<RecordBatch> {
        let kept = || keys.iter().zip(counts).filter(|&(_, &count)| count >= self.min_count);
        let rows = if self.min_count <= 1 { keys.len() } else { kept().count() };
        if rows == 0 {
            return None;
        }
        let kmers: ArrayRef = if self.codes {
            Arc::new(UInt64Array::from_iter_values(kept().map(|(key, _)| key.wide() as u64)))
        } else {
            let mut text = vec![0u8; rows * self.k];
            for (text, (key, _)) in text.chunks_exact_mut(self.k).zip(kept()) {
                spell(key.wide(), text);
            }
            let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(self.k, rows));
            // The text is ASCII, since it consists of letters of bases.
            Arc::new(StringArray::new(offsets, Buffer::from_vec(text), None))
        };
        let counts: ArrayRef = Arc::new(UInt32Array::from_iter_values(kept().map(|(_, &count)| count)));
        let batch = RecordBatch::try_new(self.schema.clone(), vec![kmers, counts]);
        Some(batch.expect("columns of one length and the types of the schema"))
    }
}

/// For each value of a byte, the four letters for which this byte of a code stands.
const SPELLED: [[u8; 4]; 256] = {
    let mut all = [[0; 4]; 256];
    let mut code = 0;
    while code < 256 {
        let mut place = 0;
        while place < 4 {
            all[code][place] = b"ACGT"[code >> (6 - 2 * place) & 3];
            place += 1;
        }
        code += 1;
    }
    all
};

/// Writes the bases of a code as letters to `text`.
fn spell(code: u128, text: &mut [u8]) {
    let mut rest = code;
    for letters in text.rchunks_mut(4) {
        let spelled = SPELLED[(rest & 0xff) as usize];
        letters.copy_from_slice(&spelled[4 - letters.len()..]);
        rest >>= 8;
    }
}

#[cfg(test)]
mod tests {
    use inshore_store::{Budget, Cancel};

    use super::*;

    #[test]
    fn added_kmers_are_counted_and_frequent_ones_written() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("kmers.csv");
        let job = Context::new(Budget::new(8 << 20, 1), Cancel::default());
        let options = KmerOptions { k: 3, min_count: 2, ..KmerOptions::default() };
        let mut writer = KmerWriter::create(&job, &output, &options);
        writer.add(&[0u64, 1], &[1, 2]).unwrap();
        writer.add(&[2u128, 63], &[u32::MAX, 301]).unwrap();
        let summary = writer.finish(KmerSummary { sequences: 9, ..KmerSummary::default() }).unwrap();
        assert_eq!((summary.sequences, summary.distinct, summary.written), (9, 4, 3));
        assert_eq!((summary.histogram[..2].to_vec(), summary.histogram[255]), (vec![1, 1], 2));
        let text = std::fs::read_to_string(&output).unwrap();
        assert_eq!(text, "kmer,count\nAAC,2\nAAG,4294967295\nTTT,301\n");
        // A writer that is dropped before `finish` leaves no file.
        let mut writer = KmerWriter::create(&job, &folder.path().join("none.csv"), &options);
        writer.add(&[0u64], &[2]).unwrap();
        drop(writer);
        assert!(!folder.path().join("none.csv").exists());
    }
}

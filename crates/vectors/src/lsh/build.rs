//! Builds hash tables. A build reads a sample, hashes all vectors in one pass, and sorts the rows by bucket.
//!
//! ```text
//!   1 sample   vectors ─► sample ─► mean, or balanced bits ─► functions              random reads
//!   2 hash     vectors ─► a bucket of each table ─► sort by (bucket, row)            one pass
//!   3 write    bucket by bucket: rows
//!   4 measure  vectors held out ─► exact neighbours ─► the probe that finds each     one pass, random reads
//! ```
//!
//! The size of the sample does not depend on the budget, and the rows of a bucket are sorted. So the tables are the
//! same for each budget and each number of threads.

use std::sync::Mutex;

use inshore_sortreduce::rows::{FixedRows, KeepAll, RowConfig, RowSort, SortedRows};
use inshore_store::{CheckedFile, DatasetBuilder, Job, Store};
use serde::Serialize;
use zerocopy::IntoBytes;

use super::{
    buckets::BucketFiles,
    dataset::{FIRSTS, FUNCTIONS, LISTS, LshIndex},
    functions::{Family, Functions, Parameters, Shape, Values, elements_of, make_direction},
    info::LshInfo,
    plan::{
        BATCH_BYTES, CHECK_BYTES, ENTRY_BYTES, LIST_BUFFER_BYTES, Lsh, LshPlan, SMALL_BUFFER_BYTES,
        plan_shape, sample_bytes,
    },
    recall::measure_held_out,
    sample::{Drawn, drawn, read_rows},
};
use crate::{
    MeasuredOn, RecallPoint, RecallTable, Result, Vectors, VectorsInfo,
    index::{RECALL_K, for_vectors, id_bytes, remove_unused_layers},
    names::{TABLES_KIND, check_index_place, index_name},
};

/// The result of [`build_lsh`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LshBuilt {
    /// The properties of the new tables.
    #[serde(flatten)]
    pub info: LshInfo,
    /// The plan that the build followed.
    pub plan: LshPlan,
}

/// Builds hash tables of `vectors`, or builds them again. The new tables replace the index of the vectors, which may be
/// of another kind. A job that ends before the commit changes nothing.
///
/// # Errors
/// - Returns the errors of [`super::plan_lsh`].
/// - Returns [`crate::Error::BadDataset`] if the dataset with the name of the index is no index.
/// - Returns [`crate::Error::Sort`] if the sort fails.
/// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little
///   free memory, or the job was cancelled.
pub fn build_lsh(store: &Store, job: &Job, vectors: &Vectors, options: &Lsh) -> Result<LshBuilt> {
    let (plan, shape) = plan_shape(job, vectors.info(), options)?;
    check_index_place(store, &vectors.info().name)?;
    job.progress().tell(|| format!("index: {plan}"));
    let build = Build { job, vectors, plan: &plan };
    let (builder, mut index) = build.run(store, shape, options)?;
    if plan.held_out > 0 {
        measure_held_out(job, vectors, &mut index, plan.held_out)?;
    }
    let info = index.info().clone();
    builder.commit(&info.to_attributes())?;
    remove_unused_layers(store, &vectors.info().name)?;
    Ok(LshBuilt { info, plan })
}

/// Builds hash tables again, for all rows of `vectors` and with the options of `index`. `vectors` may be a dataset that
/// is not published yet. The caller must commit the returned builder with the attributes of the returned properties.
/// The new tables take over the table of recall of `index`.
///
/// # Errors
/// Returns the errors of [`build_lsh`].
pub(crate) fn rewrite_lsh(
    store: &Store,
    job: &Job,
    vectors: &Vectors,
    index: &LshIndex,
) -> Result<(DatasetBuilder, LshInfo)> {
    let LshInfo { metric, tables, bits, buckets, seed, family, width, .. } = *index.info();
    let width = (family == Family::PStable).then_some(width);
    let (tables, bits, buckets) = (Some(tables), Some(bits), Some(buckets));
    let options = Lsh { metric, tables, bits, buckets, width, seed };
    let (plan, shape) = plan_shape(job, vectors.info(), &options)?;
    let (builder, made) = Build { job, vectors, plan: &plan }.run(store, shape, &options)?;
    let recall = index.info().recall.clone();
    Ok((builder, LshInfo { recall, ..made.info().clone() }))
}

/// The state of a build.
struct Build<'a> {
    job: &'a Job,
    vectors: &'a Vectors,
    plan: &'a LshPlan,
}

type Sorted = SortedRows<FixedRows, KeepAll>;

impl Build<'_> {
    /// Runs steps 1 to 3. The returned tables have no measured recall.
    fn run(&self, store: &Store, mut shape: Shape, options: &Lsh) -> Result<(DatasetBuilder, LshIndex)> {
        let (job, info) = (self.job, self.info());
        let (parameters, width) = self.sample(&shape)?;
        if options.width.is_none() {
            shape.width = width;
        }
        let parameters_bytes = match &parameters {
            Parameters::Positions(positions) => positions.as_bytes().to_vec(),
            Parameters::Mean(mean) => mean.as_bytes().to_vec(),
        };
        let functions = Functions::new(job.budget(), shape, parameters)?;
        let mut sorted = self.hash(&functions)?;
        drop(functions);
        let mut builder = store.replace_dataset(job, &index_name(&info.name), TABLES_KIND)?;
        builder.unsealed();
        job.start_phase("writing buckets", "vectors", info.vectors * shape.tables);
        let (buckets, bucket_vectors_max) = self.write(&mut builder, &shape, &mut sorted)?;
        drop(sorted);
        let mut writer = builder.file(FUNCTIONS, CHECK_BYTES, SMALL_BUFFER_BYTES)?;
        writer.write(&parameters_bytes)?;
        let functions: CheckedFile = builder.add_and_open(writer)?;
        let all = vec![RecallPoint { probes: shape.all_buckets(), recall: 1.0 }];
        let made = LshInfo {
            name: info.name.clone(),
            dataset: self.vectors.id(),
            vectors: info.vectors,
            dimensions: info.dimensions,
            element: info.element,
            metric: options.metric,
            family: shape.family,
            tables: shape.tables,
            bits: shape.bits,
            buckets: shape.buckets,
            width: shape.width,
            bucket_vectors_max,
            sample: self.plan.sample,
            seed: shape.seed,
            bytes: builder.bytes(),
            recall: RecallTable::new(RECALL_K, 0, MeasuredOn::HeldOutVectors, all),
        };
        Ok((builder, LshIndex::made(made, buckets, functions)))
    }

    fn info(&self) -> &VectorsInfo {
        self.vectors.info()
    }

    /// Runs step 1, which reads a sample. Returns the parameters that follow from the sample, and the default width of
    /// cells.
    fn sample(&self, shape: &Shape) -> Result<(Parameters, f64)> {
        let (job, info) = (self.job, self.info());
        let _memory = job.budget().reserve(sample_bytes(shape, self.plan.sample), "a sample of vectors")?;
        job.start_phase("sampling", "vectors", self.plan.sample);
        let numbers = drawn(shape.seed, Drawn::Sample, self.plan.sample, info.vectors);
        let bytes = read_rows(job, self.vectors, &numbers)?;
        let rows = bytes.chunks_exact(info.row_bytes());
        if shape.family == Family::BitSampling {
            let mut ones = vec![0u32; shape.row_bits() as usize];
            for row in rows {
                for (bit, count) in ones.iter_mut().enumerate() {
                    *count += u32::from(row[bit / 8] >> (bit % 8) & 1);
                }
            }
            return Ok((Parameters::Positions(shape.positions(&ones, numbers.len() as u32)), 1.0));
        }
        let (mut elements, mut sums) = (Vec::new(), vec![(0.0f64, 0.0f64); info.dimensions]);
        for row in rows {
            elements_of(info.element, row, &mut elements);
            if shape.family == Family::Hyperplanes {
                make_direction(&mut elements);
            }
            for ((sum, square), &x) in sums.iter_mut().zip(&elements) {
                *sum += f64::from(x);
                *square += f64::from(x) * f64::from(x);
            }
        }
        let count = numbers.len() as f64;
        let mean = sums.iter().map(|(sum, _)| (sum / count) as f32).collect();
        // The numbers of a projection have variance 1. So the variance of a projection is the sum of the variances of
        // all dimensions.
        let variance = |(sum, square): &(f64, f64)| (square / count - (sum / count) * (sum / count)).max(0.0);
        let width = 2.0 * sums.iter().map(variance).sum::<f64>().sqrt();
        let width =
            if shape.family == Family::PStable && width > 0.0 && width.is_finite() { width } else { 1.0 };
        Ok((Parameters::Mean(mean), width))
    }

    /// Runs step 2, which hashes all vectors and sorts the rows of all tables by bucket.
    fn hash(&self, functions: &Functions) -> Result<Sorted> {
        let (job, info, shape) = (self.job, self.info(), &functions.shape);
        let config = RowConfig {
            memory_bytes: self.plan.sort_bytes,
            threads: self.plan.threads,
            name: "buckets",
            ..RowConfig::default()
        };
        let mut sorter = RowSort::new(job, FixedRows::new(ENTRY_BYTES, 0..ENTRY_BYTES), KeepAll, &config)?;
        let sink = Mutex::new(sorter.sink());
        let thread_bytes = Values::bytes(shape) + BATCH_BYTES as u64 + shape.tables * ENTRY_BYTES as u64;
        let _memory =
            job.budget().reserve(self.plan.threads as u64 * thread_bytes, "batches of hashed vectors")?;
        job.start_phase("hashing", "vectors", info.vectors);
        let row_bytes = info.row_bytes();
        let make =
            || (Values::default(), Vec::with_capacity(BATCH_BYTES + shape.tables as usize * ENTRY_BYTES));
        for_vectors::<u8, _>(
            job,
            &self.vectors.file,
            (info.vectors, row_bytes),
            make,
            |scratch, first, rows| {
                let (values, out) = scratch;
                let flush = |out: &mut Vec<u8>| {
                    sink.lock().expect("no panic under this lock").write(out)?;
                    out.clear();
                    Ok::<_, crate::Error>(())
                };
                for (row, bytes) in (first..).zip(rows.chunks_exact(row_bytes)) {
                    functions.evaluate(info.element, bytes, values);
                    for table in 0..shape.tables {
                        out.extend_from_slice(&functions.bucket(table, values, &[]).to_be_bytes());
                        out.extend_from_slice(&row.to_be_bytes());
                    }
                    if out.len() >= BATCH_BYTES {
                        flush(out)?;
                    }
                }
                flush(out)
            },
        )?;
        let cut = sink.into_inner().expect("no panic under this lock").finish()?;
        debug_assert!(cut.is_empty());
        Ok(sorter.finish()?)
    }

    /// Runs step 3, which writes the rows of each bucket, and the directory. Returns the files, and the number of rows
    /// in the largest bucket.
    fn write(
        &self,
        builder: &mut DatasetBuilder,
        shape: &Shape,
        sorted: &mut Sorted,
    ) -> Result<(BucketFiles, u64)> {
        let job = self.job;
        let id_bytes = id_bytes(self.info().vectors);
        let _memory = job.budget().reserve(1 << 20, "sorted buckets")?;
        let mut lists = builder.file(LISTS, CHECK_BYTES, LIST_BUFFER_BYTES)?;
        let mut firsts = builder.file(FIRSTS, CHECK_BYTES, SMALL_BUFFER_BYTES)?;
        let mut piece = vec![0; (1 << 20) / ENTRY_BYTES * ENTRY_BYTES];
        // `begun` counts the buckets whose directory entries are written, `count` the rows that are written, `last` the
        // rows of the last bucket, and `most` the rows of the largest bucket.
        let (mut begun, mut count, mut last, mut most) = (0u64, 0u64, 0u64, 0u64);
        loop {
            let filled = sorted.fill(&mut piece)?;
            for entry in piece[..filled].chunks_exact(ENTRY_BYTES) {
                let number =
                    |at: usize| u64::from_be_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
                let (bucket, row) = (number(0), number(8));
                if bucket >= begun {
                    last = 0;
                }
                while begun <= bucket {
                    firsts.write(&count.to_le_bytes())?;
                    begun += 1;
                }
                lists.write(&row.to_le_bytes()[..id_bytes])?;
                count += 1;
                last += 1;
                most = most.max(last);
            }
            job.check_cancelled()?;
            job.progress().add((filled / ENTRY_BYTES) as u64);
            if filled < piece.len() {
                break;
            }
        }
        for _ in begun..=shape.all_buckets() {
            firsts.write(&count.to_le_bytes())?;
        }
        let (lists, firsts) = (builder.add_and_open(lists)?, builder.add_and_open(firsts)?);
        Ok((BucketFiles { lists, firsts }, most))
    }
}

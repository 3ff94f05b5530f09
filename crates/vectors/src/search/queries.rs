//! The queries of a pass, with their elements packed for tiles.

use std::ops::Range;

use inshore_store::{Job, Reservation};
use zerocopy::IntoBytes;

use crate::{
    Result, VectorsInfo,
    element::{aligned, bytes_of},
    filter::QueryFacts,
    metric::Metric,
    search::{
        Kernel, Plan,
        source::{QueryRows, Source},
    },
    tiles::Tiled,
};

/// The packed elements of some queries. A lane holds the elements of one query, and a panel has one or two registers of
/// lanes. Lanes without a query hold zeros. For the kernel [`Kernel::Rows`](super::Kernel::Rows), a panel holds the
/// elements of one query.
pub(crate) struct Panel<L> {
    /// The number of the first query.
    pub first: usize,
    pub lanes: usize,
    pub elements: Vec<L>,
}

/// Returns an element of a query in the form in which the kernels use it. For L2 the result is relative to the center.
/// For the cosine of floating-point vectors, the query is scaled to length 1.
pub(crate) fn compared_value<T: Tiled>(element: T, center: f64, norm: f64, metric: Metric) -> f64 {
    match metric {
        Metric::L2 => element.value() - center,
        Metric::Cosine if !T::IS_INTEGER && norm > 0.0 => element.value() / norm,
        _ => element.value(),
    }
}

/// The queries of a search, and the settings for which they are packed.
pub(crate) struct Batch<'a> {
    pub job: &'a Job,
    pub source: Source<'a>,
    pub info: &'a VectorsInfo,
    pub metric: Metric,
    pub center: &'a [f32],
    pub plan: &'a Plan,
}

/// The queries of a pass.
pub(crate) struct Queries<T: Tiled> {
    memory: Vec<u64>,
    dimensions: usize,
    count: usize,
    pub panels: Vec<Panel<T::Lane>>,
    pub facts: Vec<QueryFacts>,
    /// The ids of the queries. The id of a query of a file is its number.
    pub ids: Vec<u64>,
    _reservation: Reservation,
}

impl<T: Tiled> Queries<T> {
    /// Reads and packs the queries with the numbers `numbers`. They must be the next queries of `rows`.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadFile`] if the element type of the vectors cannot hold a value.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn read(
        rows: &mut QueryRows,
        numbers: Range<u64>,
        batch: &Batch<'_>,
        reservation: Reservation,
    ) -> Result<Queries<T>> {
        let Batch { job, source, info, metric, center, plan } = *batch;
        let count = (numbers.end - numbers.start) as usize;
        let element = info.element.queried();
        let row_bytes = element.row_bytes(info.dimensions);
        let dimensions = row_bytes / size_of::<T>();
        let mut memory = aligned(count * row_bytes);
        let mut ids = Vec::with_capacity(count);
        let (mut filled, mut row_out) = (0, Vec::with_capacity(row_bytes));
        while filled < count {
            let bytes = rows.next((count - filled) as u64, &mut ids)?;
            for row in bytes.chunks_exact(source.element().row_bytes(info.dimensions)) {
                row_out.clear();
                source.element().cast(row, element, &mut row_out).map_err(|(dimension, value)| {
                    let expected = format!("a value of {}, as the elements of {}", info.element, info.name);
                    source.bad_value(numbers.start + filled as u64, dimension, value.to_string(), expected)
                })?;
                let all = bytes_of(&mut memory, count * row_bytes);
                all[filled * row_bytes..][..row_bytes].copy_from_slice(&row_out);
                filled += 1;
            }
        }
        let mut queries = Queries {
            memory,
            dimensions,
            count,
            panels: Vec::new(),
            facts: Vec::with_capacity(count),
            ids,
            _reservation: reservation,
        };
        if plan.kernel != Kernel::Counts {
            queries.pack(job, metric, center, plan)?;
        }
        Ok(queries)
    }

    /// Returns the number of queries.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the elements of a query.
    pub fn row(&self, query: usize) -> &[T] {
        T::rows(self.bytes(query))
    }

    /// Returns the bytes of a query.
    pub fn bytes(&self, query: usize) -> &[u8] {
        let row_bytes = self.dimensions * size_of::<T>();
        &self.memory.as_bytes()[query * row_bytes..][..row_bytes]
    }

    fn pack(&mut self, job: &Job, metric: Metric, center: &[f32], plan: &Plan) -> Result<()> {
        let width = plan.instructions.width();
        let stride = match plan.kernel {
            Kernel::Tiles => T::stride(self.dimensions),
            Kernel::Rows | Kernel::Counts => self.dimensions,
        };
        let mut first = 0;
        while first < self.count {
            job.check_cancelled()?;
            let lanes = match plan.kernel {
                Kernel::Rows | Kernel::Counts => 1,
                Kernel::Tiles if self.count - first > width => 2 * width,
                Kernel::Tiles => width,
            };
            let mut elements = vec![T::Lane::default(); stride * lanes];
            for lane in 0..lanes.min(self.count - first) {
                let row = self.row(first + lane);
                let norm = T::norm(row);
                let (mut squares, mut at_center) = (0.0, 0.0);
                for (dimension, (&q, &c)) in row.iter().zip(center).enumerate() {
                    let c = f64::from(c);
                    let star = T::star(compared_value(q, c, norm, metric));
                    let used = T::lane_value(star);
                    squares += used * used;
                    at_center += used * c;
                    elements[T::place(dimension, lane, lanes)] = star;
                }
                let base = at_center + squares / 2.0;
                self.facts.push(QueryFacts { norm, star: squares.sqrt(), base });
            }
            self.panels.push(Panel { first, lanes, elements });
            first += lanes;
        }
        Ok(())
    }
}

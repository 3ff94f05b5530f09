//! Maps rows to the ids of their vectors, and ids to rows.
//!
//! ```text
//!   rows      0   1   2   3   4   5   6   7
//!   ids       0   1   2   5   6   7   4   8        compaction removed the rows of 3 and 4; then 4 was put back, and 8 added
//!   runs      (row 0, id 0)   (row 3, id 5)   (row 6, id 4)   (row 7, id 8)
//! ```
//!
//! The id of a vector is the number of its row until a vector is replaced, or until a compaction removes rows. From
//! then on the dataset has *runs*: sequences of consecutive rows with consecutive ids. If two neighbours have the same
//! distance, the smaller id comes first. A search therefore needs ids, and holds the runs in memory, with 16 bytes for
//! each run. At most one live row (a row whose vector was not removed) has a given id.

use crate::{
    Error, Result, Vectors, VectorsInfo,
    id_run::IdRun,
    read::{READ_ELEMENTS_BYTES, read_elements},
};
use inshore_store::{Job, Reservation};

/// The ids of all rows.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    /// The runs in ascending order of their rows. The first run begins with row 0. If there are no runs, the id of a
    /// row is its number.
    runs: Vec<IdRun>,
    _reservation: Option<Reservation>,
}

impl Ids {
    /// Returns the memory, in bytes, of the ids of vectors and of the buffers for reading them.
    pub fn bytes(info: &VectorsInfo) -> u64 {
        if info.id_runs == 0 { 0 } else { info.id_runs * IdRun::BYTES + READ_ELEMENTS_BYTES }
    }

    /// Reads the ids of vectors.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the runs do not describe the rows.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too little
    ///   free memory.
    pub fn read(job: &Job, vectors: &Vectors) -> Result<Ids> {
        let Some(file) = &vectors.id_runs else { return Ok(Ids::from(vectors.first_id)) };
        let info = vectors.info();
        let reservation = job.budget().reserve(info.id_runs * IdRun::BYTES, "the ids of vectors")?;
        let mut runs: Vec<IdRun> = Vec::with_capacity(info.id_runs as usize);
        read_elements::<IdRun>(job, file, |piece| runs.extend_from_slice(piece))?;
        let is_sound = runs[0].row.get() == 0
            && runs.windows(2).all(|pair| pair[0].row.get() < pair[1].row.get())
            && runs.iter().all(|run| run.row.get() < info.vectors && run.id.get() < info.next_id);
        if !is_sound {
            return Err(Error::BadDataset {
                name: info.name.clone(),
                what: "runs of ids",
                found: "rows or ids out of order".to_string(),
                expected: format!("rows below {}, ids below {}", info.vectors, info.next_id),
            });
        }
        Ok(Ids { runs, _reservation: Some(reservation) })
    }

    /// Returns consecutive ids that begin with `first`.
    fn from(first: u64) -> Ids {
        let runs = if first == 0 { Vec::new() } else { vec![IdRun::new(0, first)] };
        Ids { runs, _reservation: None }
    }

    /// Returns true if the id of each row is its row number.
    pub fn are_rows(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the id of a row.
    #[inline]
    pub fn id(&self, row: u64) -> u64 {
        if self.runs.is_empty() {
            return row;
        }
        let run = &self.runs[self.runs.partition_point(|run| run.row.get() <= row) - 1];
        run.id.get() + (row - run.row.get())
    }

    /// Returns the runs that must be appended when rows with the ids `ids` are added. The first new row has the number
    /// `first`.
    pub fn runs_of(&self, first: u64, ids: impl Iterator<Item = u64>) -> Vec<IdRun> {
        let mut runs: Vec<IdRun> = Vec::new();
        let mut expected = first.checked_sub(1).map_or(0, |last| self.id(last) + 1);
        for (row, id) in (first..).zip(ids) {
            if id != expected {
                if self.runs.is_empty() && runs.is_empty() && row > 0 {
                    runs.push(IdRun::new(0, 0));
                }
                runs.push(IdRun::new(row, id));
            }
            expected = id + 1;
        }
        runs
    }

    /// Finds the live row of each id in `wanted`, which must be in ascending order. `rows` is the number of rows. The
    /// result has an item for each id. The item is `None` if no live row has the id.
    pub fn rows(&self, rows: u64, wanted: &[u64], is_live: impl Fn(u64) -> bool) -> Vec<Option<u64>> {
        let whole = [IdRun::new(0, 0)];
        let runs = if self.runs.is_empty() { &whole[..] } else { &self.runs };
        let mut found = vec![None; wanted.len()];
        for (number, run) in runs.iter().enumerate() {
            let end = runs.get(number + 1).map_or(rows, |next| next.row.get());
            let (row, id) = (run.row.get(), run.id.get());
            let from = wanted.partition_point(|wanted| *wanted < id);
            let until = wanted.partition_point(|wanted| *wanted < id + (end - row));
            for place in from..until {
                let row = row + (wanted[place] - id);
                if is_live(row) {
                    found[place] = Some(row);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(runs: &[(u64, u64)]) -> Ids {
        Ids { runs: runs.iter().map(|&(row, id)| IdRun::new(row, id)).collect(), _reservation: None }
    }

    #[test]
    fn ids_of_rows_are_found_by_runs() {
        let some = ids(&[(0, 0), (3, 5), (6, 4), (7, 8)]);
        let all: Vec<u64> = (0..9).map(|row| some.id(row)).collect();
        assert_eq!(all, [0, 1, 2, 5, 6, 7, 4, 8, 9]);
        assert_eq!(Ids::default().id(17), 17);
        assert_eq!((Ids::from(0).id(3), Ids::from(1000).id(3)), (3, 1003));
    }

    #[test]
    fn runs_are_as_few_as_possible() {
        let runs = |ids: &Ids, first, added: &[u64]| {
            let runs = ids.runs_of(first, added.iter().copied());
            runs.iter().map(|run| (run.row.get(), run.id.get())).collect::<Vec<_>>()
        };
        let none = Ids::default();
        assert_eq!(runs(&none, 10, &[10, 11, 12]), []);
        assert_eq!(runs(&none, 10, &[10, 3, 4, 11]), [(0, 0), (11, 3), (13, 11)]);
        assert_eq!(runs(&none, 0, &[0, 1, 5]), [(0, 0), (2, 5)]);
        assert_eq!(runs(&none, 0, &[4, 5]), [(0, 4)]);
        let some = ids(&[(0, 0), (3, 5)]);
        assert_eq!(runs(&some, 6, &[8, 9]), []);
        assert_eq!(runs(&some, 6, &[9, 10]), [(6, 9)]);
    }

    #[test]
    fn a_row_is_found_by_its_id_if_it_is_live() {
        // The rows 1, 4 and 6 have the id 1.
        let some = ids(&[(0, 0), (4, 1), (5, 9), (6, 1)]);
        let find = |live: &[u64], wanted: &[u64]| some.rows(7, wanted, |row| live.contains(&row));
        assert_eq!(find(&[0, 2, 3, 5, 6], &[0, 1, 4, 9]), [Some(0), Some(6), None, Some(5)]);
        assert_eq!(find(&[0], &[1, 2]), [None, None]);
        assert_eq!(Ids::default().rows(3, &[0, 2, 3], |row| row != 0), [None, Some(2), None]);
    }
}

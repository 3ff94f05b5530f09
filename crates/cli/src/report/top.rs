//! The best rows of a result, for `--top`.
//!
//! A heap holds the best N rows so far, with the worst of these rows on top. Memory is bounded by N rows, and most rows
//! of a large result cost only one comparison with the top.

use std::{collections::BinaryHeap, io, io::Write};

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Float64Type, UInt32Type, UInt64Type},
};
use arrow_schema::DataType;
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::report::table::{self, Align};

/// The largest number of columns in a result.
const COLUMNS_MAX: usize = 3;

/// One field of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    #[default]
    Null,
    Count(u64),
    Real(f64),
}

/// The order of rows. If two rows are equal in this order, the one with the smaller value in the first column comes
/// first.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Larger values of this column are better.
    Descending(usize),
    /// Smaller values of this column are better.
    Ascending(usize),
}

/// The sort key of a row. Rows with smaller keys are better. Rows with a null in the column of the [`Order`] come last.
type SortKey = (bool, u64, u64);

fn place(cells: &[Cell; COLUMNS_MAX], order: Order) -> SortKey {
    let (column, flip) = match order {
        Order::Descending(column) => (column, u64::MAX),
        Order::Ascending(column) => (column, 0),
    };
    let first = ascending(cells[0]).unwrap_or(u64::MAX);
    match ascending(cells[column]) {
        Some(key) => (false, key ^ flip, first),
        None => (true, 0, first),
    }
}

/// Maps a cell to a number; the numbers have the same order as the cells. A null has no number.
fn ascending(cell: Cell) -> Option<u64> {
    match cell {
        Cell::Null => None,
        Cell::Count(count) => Some(count),
        // In IEEE 754, the bits of positive numbers have the order of the numbers, and the bits of negative numbers
        // have the reverse order.
        Cell::Real(real) if real.is_sign_negative() => Some(!real.to_bits()),
        Cell::Real(real) => Some(real.to_bits() | 1 << 63),
    }
}

struct TopRow {
    place: SortKey,
    cells: [Cell; COLUMNS_MAX],
}

impl Ord for TopRow {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}

impl PartialOrd for TopRow {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TopRow {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for TopRow {}

/// Keeps the best of the rows that are offered.
pub struct TopK {
    limit: usize,
    order: Order,
    heap: BinaryHeap<TopRow>,
}

impl TopK {
    /// Creates an empty collection of at most `limit` rows.
    pub fn new(limit: usize, order: Order) -> TopK {
        TopK { limit, order, heap: BinaryHeap::new() }
    }

    /// Keeps the row if it is among the best `limit` rows so far.
    pub fn offer(&mut self, cells: [Cell; COLUMNS_MAX]) {
        let place = place(&cells, self.order);
        if self.heap.len() < self.limit {
            self.heap.push(TopRow { place, cells });
        } else if let Some(mut worst) = self.heap.peek_mut()
            && place < worst.place
        {
            *worst = TopRow { place, cells };
        }
    }

    /// Offers all rows of a batch.
    pub fn offer_batch(&mut self, batch: &RecordBatch) {
        assert!(batch.num_columns() <= COLUMNS_MAX, "results have at most {COLUMNS_MAX} columns");
        for row in 0..batch.num_rows() {
            let mut cells = [Cell::Null; COLUMNS_MAX];
            for (cell, column) in cells.iter_mut().zip(batch.columns()) {
                *cell = cell_of(column, row);
            }
            self.offer(cells);
        }
    }

    /// Returns the rows, best first, under the names of their columns.
    pub fn into_top(self, columns: Vec<String>) -> Top {
        let rows = self.heap.into_sorted_vec().into_iter().map(|kept| kept.cells).collect();
        Top { columns, rows }
    }
}

fn cell_of(column: &dyn Array, row: usize) -> Cell {
    if column.is_null(row) {
        return Cell::Null;
    }
    match column.data_type() {
        DataType::UInt64 => Cell::Count(column.as_primitive::<UInt64Type>().value(row)),
        DataType::UInt32 => Cell::Count(column.as_primitive::<UInt32Type>().value(row).into()),
        DataType::Float64 => Cell::Real(column.as_primitive::<Float64Type>().value(row)),
        other => unreachable!("results have no columns of {other}"),
    }
}

/// Rows to show. In JSON they are an array of objects.
#[derive(Debug)]
pub struct Top {
    columns: Vec<String>,
    rows: Vec<[Cell; COLUMNS_MAX]>,
}

impl Top {
    /// Prints the rows as an aligned table, in which a null is an empty cell.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let header: Vec<_> = self.columns.iter().map(|name| (name.as_str(), Align::Right)).collect();
        let places = (0..self.columns.len()).map(|column| decimals(self.reals(column))).collect::<Vec<_>>();
        let show = |cells: &[Cell; COLUMNS_MAX]| {
            cells.iter().zip(&places).map(|(&cell, &places)| shown(cell, places)).collect::<Vec<_>>()
        };
        table::print(out, &header, &self.rows.iter().map(show).collect::<Vec<_>>())?;
        out.flush()
    }

    fn reals(&self, column: usize) -> impl Iterator<Item = f64> {
        self.rows.iter().filter_map(move |cells| match cells[column] {
            Cell::Real(real) => Some(real),
            _ => None,
        })
    }
}

/// Returns the number of decimals that shows at least six digits of each number of a column, except zeros. Returns
/// `None` if the column would be too wide.
fn decimals(reals: impl Iterator<Item = f64>) -> Option<usize> {
    const DIGITS: i32 = 6;
    const DECIMALS_MAX: i32 = 12;
    let smallest = reals.map(f64::abs).filter(|&real| real > 0.0).fold(f64::INFINITY, f64::min);
    if !smallest.is_finite() {
        return Some(0);
    }
    let decimals = (DIGITS - 1 - smallest.log10().floor() as i32).max(0);
    (decimals <= DECIMALS_MAX).then_some(decimals as usize)
}

fn shown(cell: Cell, decimals: Option<usize>) -> String {
    match (cell, decimals) {
        (Cell::Null, _) => String::new(),
        (Cell::Count(count), _) => count.to_string(),
        (Cell::Real(real), Some(decimals)) => format!("{real:.decimals$}"),
        (Cell::Real(real), None) => format!("{real:.5e}"),
    }
}

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Rows are serialized one by one, since a tree of JSON values would take ten times the memory.
        serializer.collect_seq(self.rows.iter().map(|cells| Row { columns: &self.columns, cells }))
    }
}

struct Row<'a> {
    columns: &'a [String],
    cells: &'a [Cell],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.columns.len()))?;
        for (name, cell) in self.columns.iter().zip(self.cells) {
            map.serialize_entry(name, cell)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell::*, *};

    fn top(limit: usize, order: Order, rows: &[[Cell; 3]]) -> Vec<[Cell; 3]> {
        let mut best = TopK::new(limit, order);
        rows.iter().for_each(|row| best.offer(*row));
        best.into_top(Vec::new()).rows
    }

    #[test]
    fn the_best_are_those_that_sorting_everything_finds() {
        // Few distinct values make ties common. A fixed seed makes failures reproducible.
        let mut seed = 7u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 33
        };
        let rows: Vec<_> =
            (0..500).map(|vertex| [Count(vertex), Real((random() % 40) as f64 - 20.0), Null]).collect();
        let value = |row: &[Cell; 3]| if let Real(real) = row[1] { real } else { unreachable!() };
        let mut sorted = rows.clone();
        sorted.sort_by(|a, b| value(b).total_cmp(&value(a)));
        for limit in [1, 2, 40, 499, 500, 501] {
            let expected = &sorted[..limit.min(500)];
            assert_eq!(top(limit, Order::Descending(1), &rows), expected, "limit {limit}");
            let reversed: Vec<_> = rows.iter().rev().copied().collect();
            assert_eq!(top(limit, Order::Descending(1), &reversed), expected, "limit {limit}");
        }
    }

    #[test]
    fn null_levels_come_last() {
        let rows = [[Count(1), Null, Null], [Count(2), Count(2), Count(0)], [Count(0), Count(2), Count(1)]];
        assert_eq!(top(3, Order::Ascending(2), &rows), [rows[1], rows[2], rows[0]]);
    }

    #[test]
    fn a_column_shows_six_digits_of_its_smallest_number() {
        let table = |values: &[f64]| {
            let mut best = TopK::new(9, Order::Descending(1));
            values
                .iter()
                .enumerate()
                .for_each(|(at, &value)| best.offer([Count(at as u64), Real(value), Null]));
            let mut out = Vec::new();
            best.into_top(vec!["vertex".into(), "rank".into()]).print(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(table(&[0.5, 0.25]), "vertex      rank\n     0  0.500000\n     1  0.250000\n");
        assert_eq!(
            table(&[123456.0, 7.5]),
            "vertex          rank\n     0  123456.00000\n     1       7.50000\n"
        );
        assert_eq!(table(&[1e-9]), "vertex        rank\n     0  1.00000e-9\n");
        assert_eq!(table(&[0.0]), "vertex  rank\n     0     0\n");
    }

    #[test]
    fn json_rows_are_objects_in_order() {
        let mut best = TopK::new(2, Order::Ascending(2));
        best.offer([Count(3), Null, Null]);
        best.offer([Count(4), Count(4), Count(0)]);
        let columns = ["vertex", "parent", "level"].map(String::from).to_vec();
        let json = serde_json::to_string(&best.into_top(columns)).unwrap();
        let expected = r#"[{"vertex":4,"parent":4,"level":0},{"vertex":3,"parent":null,"level":null}]"#;
        assert_eq!(json, expected);
    }
}

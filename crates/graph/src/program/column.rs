//! Columns of a program's answer.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, UInt64Array};
use arrow_schema::{DataType, Field};

use super::{FixedWidth, VertexId, host::Failures};

/// Computes a column of an answer from the value of each vertex. If the function returns `None`, the cell is null.
pub struct Column<V> {
    pub(super) name: String,
    pub(super) cells: Cells<V>,
}

type Cell<V, T> = Box<dyn Fn(V) -> Option<T> + Send>;

pub(super) enum Cells<V> {
    Unsigned(Cell<V, u64>),
    Float(Cell<V, f64>),
    Vertex(Cell<V, VertexId>),
}

impl<V: FixedWidth> Column<V> {
    /// Makes a column of 64-bit unsigned integers.
    pub fn unsigned(name: &str, cell: impl Fn(V) -> Option<u64> + Send + 'static) -> Column<V> {
        Column { name: name.to_string(), cells: Cells::Unsigned(Box::new(cell)) }
    }

    /// Makes a column of 64-bit floating-point numbers.
    pub fn float(name: &str, cell: impl Fn(V) -> Option<f64> + Send + 'static) -> Column<V> {
        Column { name: name.to_string(), cells: Cells::Float(Box::new(cell)) }
    }

    /// Makes a column of vertices, shown by their original ids (64-bit unsigned integers). A program can have at most
    /// one such column.
    ///
    /// Cost: if the original ids do not fit in half of the free memory, two sorts of as many records as there are
    /// vertices.
    pub fn vertex(name: &str, cell: impl Fn(V) -> Option<VertexId> + Send + 'static) -> Column<V> {
        Column { name: name.to_string(), cells: Cells::Vertex(Box::new(cell)) }
    }

    pub(super) fn is_vertex(&self) -> bool {
        matches!(self.cells, Cells::Vertex(_))
    }

    pub(super) fn field(&self) -> Field {
        let kind = match self.cells {
            Cells::Float(_) => DataType::Float64,
            Cells::Unsigned(_) | Cells::Vertex(_) => DataType::UInt64,
        };
        Field::new(&self.name, kind, true)
    }

    /// Makes an Arrow array of this column for the values of several vertices. If a value names another vertex, `id`
    /// returns the original id of that vertex.
    pub(super) fn array<E>(
        &self,
        first: u32,
        values: &[V::Bits],
        failures: &Failures,
        mut id: impl FnMut(u32, VertexId) -> Result<u64, E>,
    ) -> Result<ArrayRef, E> {
        let values = (first..).zip(values.iter().map(|&bits| V::from_bits(bits)));
        Ok(match &self.cells {
            Cells::Unsigned(cell) => Arc::new(UInt64Array::from_iter(
                values.map(|(vertex, value)| failures.call("a column", Some(vertex), None, || cell(value))),
            )),
            Cells::Float(cell) => Arc::new(Float64Array::from_iter(
                values.map(|(vertex, value)| failures.call("a column", Some(vertex), None, || cell(value))),
            )),
            Cells::Vertex(cell) => {
                let mut ids = Vec::with_capacity(values.size_hint().0);
                for (vertex, value) in values {
                    let named = failures.call("a column", Some(vertex), None, || cell(value));
                    ids.push(named.map(|named| id(vertex, named)).transpose()?);
                }
                Arc::new(UInt64Array::from(ids))
            }
        })
    }
}

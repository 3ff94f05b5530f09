//! Computes the hash functions of all tables. The values of these functions for a vector give the code of the vector.
//!
//! ```text
//!   family        value of a function              digit of the code  cost of another digit
//!   bit sampling  1 if a bit is set, otherwise -1  value >= 0         1
//!   hyperplanes   a · (x / |x| - m)                value >= 0         the square of the value
//!   p-stable      a · (x - m) / w + b              floor(value)       the squared distance from the border of the cell
//! ```
//!
//! - The numbers `a` are normally distributed, and `b` is uniformly distributed from 0 to 1. Both follow from the seed.
//! - The mean `m` comes from a sample. The hyperplanes of Charikar (STOC 2002) pass through the origin. But vectors of
//!   counts lie in one orthant, which is on one side of most hyperplanes through the origin. So each hyperplane of this
//!   module passes through the mean of the sampled directions.
//! - A sampled bit is the most balanced one of several random bits: the one that is set in nearest to half of the
//!   sampled vectors. The reason is the same: the value of a function must divide the vectors.
//! - The width `w` of a cell is twice the standard deviation of the sampled projections, unless the options state a
//!   width. So the value of a function has an entropy of about one bit, as in the other families.
//!
//! The projections are sums of `f32`, in the order of the dimensions. So the codes are the same on every processor.

use inshore_store::{Budget, Reservation};
use serde::Serialize;

use crate::{
    Element, Metric, Result,
    random::{below, mixed, normal},
};

/// The largest number of tables.
pub const TABLES_MAX: u64 = 64;
/// The largest number of hash functions of a table.
pub const BITS_OF_CODE_MAX: u64 = 30;
/// The largest number of buckets of a table. The number of buckets of all tables fits into 32 bits.
pub const BUCKETS_MAX: u64 = 1 << 24;

/// The metrics for which hash tables can be built.
pub(super) const METRICS: [Metric; 3] = [Metric::L2, Metric::Cosine, Metric::Hamming];

/// The family of the hash functions. The functions of a family give near vectors equal values more often than far ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// The value of a function is one bit of the vector. The metric is the Hamming distance.
    BitSampling,
    /// The value of a function is the side of a random hyperplane on which the vector lies. The metric is the cosine.
    Hyperplanes,
    /// The value of a function is the cell that contains the projection of the vector on a random line. The direction
    /// of the line is normally distributed, and the normal distribution is 2-stable. The metric is the Euclidean
    /// distance.
    PStable,
}

impl Family {
    /// Returns the family for a metric, or `None` if no family exists for the metric.
    pub fn of(metric: Metric) -> Option<Family> {
        match metric {
            Metric::Hamming => Some(Family::BitSampling),
            Metric::Cosine => Some(Family::Hyperplanes),
            Metric::L2 => Some(Family::PStable),
            Metric::Ip | Metric::Jaccard => None,
        }
    }

    /// Returns the name of the family for messages.
    pub fn name(self) -> &'static str {
        match self {
            Family::BitSampling => "bit sampling",
            Family::Hyperplanes => "random hyperplanes",
            Family::PStable => "p-stable projections",
        }
    }
}

/// The properties of the hash functions without the parameters that the sample determines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub family: Family,
    /// The element type of the vectors.
    pub element: Element,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    pub tables: u64,
    /// The number of functions of a table.
    pub bits: u64,
    /// The number of buckets of a table.
    pub buckets: u64,
    /// The width of a cell of p-stable projections, in the unit of the vectors.
    pub width: f64,
    pub seed: u64,
}

impl Shape {
    /// Returns the number of functions of all tables.
    pub fn functions(&self) -> usize {
        (self.tables * self.bits) as usize
    }

    /// Returns the number of buckets of all tables.
    pub fn all_buckets(&self) -> u64 {
        self.tables * self.buckets
    }

    /// Returns the length of the parameters in bytes. The parameters are bit positions as `u32`, or a mean as `f32`.
    pub fn parameters_bytes(&self) -> u64 {
        4 * match self.family {
            Family::BitSampling => self.functions() as u64,
            Family::Hyperplanes | Family::PStable => self.dimensions as u64,
        }
    }

    /// Returns the memory, in bytes, that the functions take.
    pub fn memory_bytes(&self) -> u64 {
        let projections = match self.family {
            Family::BitSampling => 0,
            _ => 4 * self.dimensions as u64 * self.functions() as u64,
        };
        projections + self.parameters_bytes() + 4 * self.functions() as u64
    }

    /// Returns the number of bits of a row. Each of these bits can be sampled.
    pub fn row_bits(&self) -> u64 {
        8 * self.element.row_bytes(self.dimensions) as u64
    }

    /// Returns one bit position for each function. A position is the most balanced one of eight random positions.
    /// `sampled` is the number of sampled vectors, and `ones` states for each bit in how many of these vectors the bit
    /// is set.
    pub fn positions(&self, ones: &[u32], sampled: u32) -> Vec<u32> {
        const DRAWS: u64 = 8;
        let seed = mixed(self.seed ^ 3);
        let draw = |number: u64| below(mixed(seed ^ mixed(number)), self.row_bits()) as u32;
        let imbalance = |position: &u32| (2 * i64::from(ones[*position as usize]) - i64::from(sampled)).abs();
        let position =
            |function: u64| (0..DRAWS).map(|place| draw(function * DRAWS + place)).min_by_key(imbalance);
        (0..self.functions() as u64).map(|function| position(function).expect("some draws")).collect()
    }
}

/// The parameters of the functions that depend on the sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parameters {
    /// The position of the sampled bit of each function.
    Positions(Vec<u32>),
    /// The mean of the sampled vectors, or of their directions for hyperplanes.
    Mean(Vec<f32>),
}

/// The hash functions of all tables.
#[derive(Debug)]
pub(crate) struct Functions {
    pub shape: Shape,
    parameters: Parameters,
    /// The numbers `a` of all functions for dimension 0, then for dimension 1, and so on. Empty for bit sampling.
    projections: Vec<f32>,
    /// The number `b` of each function. Empty if the family is not p-stable projections.
    offsets: Vec<f32>,
    _reservation: Reservation,
}

/// A change of one digit of a code. A digit is the value of one function in the code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// The squared distance of the vector from the border that the change crosses, in the unit of the values.
    pub cost: f32,
    /// The number of the function in its table.
    pub function: u32,
    /// The number that is added to the digit.
    pub by: i32,
}

/// The buffers in which a thread computes the values of the functions.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// The elements of a vector as f32.
    elements: Vec<f32>,
    /// The value of each function of all tables.
    values: Vec<f32>,
}

impl Values {
    /// Returns the memory, in bytes, that the buffers take.
    pub fn bytes(shape: &Shape) -> u64 {
        4 * (2 * shape.dimensions + shape.functions()) as u64
    }
}

impl Functions {
    /// Creates the functions from their shape and parameters.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if `budget` has too little free memory.
    pub fn new(budget: &Budget, shape: Shape, parameters: Parameters) -> Result<Functions> {
        let _reservation = budget.reserve(shape.memory_bytes(), "hash functions")?;
        let count = shape.functions();
        let (lines, cells) = (mixed(shape.seed ^ 1), mixed(shape.seed ^ 2));
        let numbers = if shape.family == Family::BitSampling { 0 } else { shape.dimensions * count };
        let projections = (0..numbers as u64).map(|number| normal(lines, number)).collect();
        let offset = |number: u64| (mixed(cells ^ mixed(number)) >> 40) as f32 / (1u64 << 24) as f32;
        let offsets = match shape.family {
            Family::PStable => (0..count as u64).map(offset).collect(),
            Family::BitSampling | Family::Hyperplanes => Vec::new(),
        };
        Ok(Functions { shape, parameters, projections, offsets, _reservation })
    }

    /// Computes the values of all functions for the vector `row`, whose elements have the type `element`.
    pub fn evaluate(&self, element: Element, row: &[u8], values: &mut Values) {
        let Values { elements, values } = values;
        values.clear();
        let mean = match &self.parameters {
            Parameters::Positions(positions) => {
                let bit = |&position: &u32| row[position as usize / 8] >> (position % 8) & 1;
                values.extend(positions.iter().map(|position| 2.0 * f32::from(bit(position)) - 1.0));
                return;
            }
            Parameters::Mean(mean) => mean,
        };
        elements_of(element, row, elements);
        match self.shape.family {
            Family::PStable => {
                let scale = self.shape.width.recip();
                for (x, &mean) in elements.iter_mut().zip(mean) {
                    *x = ((f64::from(*x) - f64::from(mean)) * scale) as f32;
                }
            }
            _ => {
                make_direction(elements);
                elements.iter_mut().zip(mean).for_each(|(x, &mean)| *x -= mean);
            }
        }
        values.resize(self.shape.functions(), 0.0);
        self.project(elements, values);
        values.iter_mut().zip(&self.offsets).for_each(|(value, offset)| *value += offset);
    }

    /// Adds the inner product of a vector with the numbers `a` of each function to `sums`. The sums of different
    /// functions are independent, so the compiler can vectorize the inner loop.
    fn project(&self, elements: &[f32], sums: &mut [f32]) {
        for (&x, numbers) in elements.iter().zip(self.projections.chunks_exact(sums.len())) {
            // Elements are often zero in vectors of counts, if the mean in that dimension is zero too.
            if x != 0.0 {
                sums.iter_mut().zip(numbers).for_each(|(sum, a)| *sum += a * x);
            }
        }
    }

    /// Returns the values of the functions of one table.
    fn of_table<'v>(&self, table: u64, values: &'v Values) -> &'v [f32] {
        let bits = self.shape.bits as usize;
        &values.values[table as usize * bits..][..bits]
    }

    /// Returns the digit of a code that the value of a function gives.
    fn digit(&self, value: f32) -> i32 {
        match self.shape.family {
            Family::PStable => value.floor() as i32,
            Family::BitSampling | Family::Hyperplanes => i32::from(value >= 0.0),
        }
    }

    /// Returns the number of the bucket of a vector in a table. Buckets are numbered over all tables. `changes` are
    /// applied to the code of the vector before.
    pub fn bucket(&self, table: u64, values: &Values, changes: &[Change]) -> u64 {
        let Shape { family, bits, buckets, .. } = self.shape;
        let change = |function: u32| -> i32 {
            changes.iter().filter(|change| change.function == function).map(|change| change.by).sum()
        };
        let digits = self.of_table(table, values).iter().zip(0..).map(|(&value, function)| {
            // A build looks up the bucket of each vector without changes, so this case must be fast.
            let by = if changes.is_empty() { 0 } else { change(function) };
            self.digit(value).wrapping_add(by)
        });
        let bucket = match family {
            Family::BitSampling | Family::Hyperplanes if buckets == 1 << bits => {
                digits.fold(0, |code, digit| code << 1 | digit as u64)
            }
            _ => below(digits.fold(table, |code, digit| mixed(code ^ u64::from(digit as u32))), buckets),
        };
        table * buckets + bucket
    }

    /// Replaces the content of `changes` by all changes of one digit of the code of a vector in a table.
    pub fn changes(&self, table: u64, values: &Values, changes: &mut Vec<Change>) {
        changes.clear();
        for (&value, function) in self.of_table(table, values).iter().zip(0..) {
            let digit = self.digit(value);
            match self.shape.family {
                Family::BitSampling | Family::Hyperplanes => {
                    changes.push(Change { cost: value * value, function, by: 1 - 2 * digit });
                }
                Family::PStable => {
                    let (left, right) = (value - value.floor(), 1.0 - (value - value.floor()));
                    changes.push(Change { cost: left * left, function, by: -1 });
                    changes.push(Change { cost: right * right, function, by: 1 });
                }
            }
        }
    }
}

/// Replaces the content of `out` by the elements of a row as `f32`.
pub(crate) fn elements_of(element: Element, row: &[u8], out: &mut Vec<f32>) {
    out.clear();
    match element {
        Element::F32 => out.extend(row.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes))),
        Element::U8 => out.extend(row.iter().map(|&x| f32::from(x))),
        Element::I8 => out.extend(row.iter().map(|&x| f32::from(x as i8))),
        Element::F16 | Element::Bf16 => element.decode(row, out),
        Element::Bits => unreachable!("bits are sampled, not projected"),
    }
}

/// Divides a vector by its Euclidean norm. A vector of zeros does not change.
pub(crate) fn make_direction(elements: &mut [f32]) {
    let square: f64 = elements.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let scale = if square > 0.0 { square.sqrt().recip() } else { 0.0 };
    elements.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(family: Family, bits: u64, buckets: u64) -> Shape {
        let element = if family == Family::BitSampling { Element::Bits } else { Element::F32 };
        Shape { family, element, dimensions: 64, tables: 3, bits, buckets, width: 4.0, seed: 5 }
    }

    fn functions(shape: Shape) -> Functions {
        let parameters = match shape.family {
            Family::BitSampling => Parameters::Positions(shape.positions(&[1; 64], 2)),
            _ => Parameters::Mean(vec![0.0; 64]),
        };
        Functions::new(&Budget::new(1 << 20, 1), shape, parameters).unwrap()
    }

    fn row(number: u64) -> Vec<f32> {
        (0..64).map(|dimension| normal(number, dimension)).collect()
    }

    fn bytes(row: &[f32]) -> Vec<u8> {
        row.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn near_vectors_have_equal_values_more_often_than_far_ones() {
        for family in [Family::Hyperplanes, Family::PStable] {
            let functions = functions(shape(family, 20, 1 << 20));
            let (mut one, mut other) = (Values::default(), Values::default());
            let mut equal = |noise: f32| -> usize {
                (0..40)
                    .map(|number| {
                        let from = row(number);
                        let to: Vec<f32> =
                            from.iter().zip(row(1000 + number)).map(|(x, y)| x + noise * y).collect();
                        functions.evaluate(Element::F32, &bytes(&from), &mut one);
                        functions.evaluate(Element::F32, &bytes(&to), &mut other);
                        let pairs = one.values.iter().zip(&other.values);
                        pairs.filter(|(x, y)| functions.digit(**x) == functions.digit(**y)).count()
                    })
                    .sum()
            };
            let counts = [0.0, 0.1, 0.5, 2.0].map(&mut equal);
            assert_eq!(counts[0], 40 * 60, "{family:?}");
            assert!(counts.windows(2).all(|pair| pair[0] > pair[1] + 50), "{family:?} {counts:?}");
        }
    }

    #[test]
    fn a_sampled_bit_is_a_balanced_one() {
        let shape = shape(Family::BitSampling, 16, 1 << 16);
        // Only the bits from 40 on vary.
        let ones: Vec<u32> = (0..64).map(|bit| if bit < 40 { 0 } else { 50 }).collect();
        let positions = shape.positions(&ones, 100);
        assert_eq!(positions.len(), 48);
        assert!(positions.iter().filter(|&&bit| bit >= 40).count() > 40, "{positions:?}");
        let functions =
            Functions::new(&Budget::new(1 << 20, 1), shape, Parameters::Positions(positions)).unwrap();
        let mut values = Values::default();
        functions.evaluate(Element::Bits, &[0, 0, 0, 0, 0, 0, 255, 0], &mut values);
        assert!(values.values.contains(&1.0) && values.values.contains(&-1.0));
    }

    #[test]
    fn a_bucket_follows_from_the_changed_code_and_lies_in_its_table() {
        for (family, bits, buckets) in
            [(Family::Hyperplanes, 5, 32), (Family::Hyperplanes, 5, 30), (Family::PStable, 5, 30)]
        {
            let functions = functions(shape(family, bits, buckets));
            let (mut values, mut changes) = (Values::default(), Vec::new());
            functions.evaluate(Element::F32, &bytes(&row(3)), &mut values);
            for table in 0..3 {
                functions.changes(table, &values, &mut changes);
                let own = functions.bucket(table, &values, &[]);
                assert!((table * buckets..(table + 1) * buckets).contains(&own));
                let others = changes.iter().map(|&change| functions.bucket(table, &values, &[change]));
                let others: Vec<u64> = others.collect();
                assert!(others.iter().all(|other| (table * buckets..(table + 1) * buckets).contains(other)));
                if buckets == 32 {
                    // A change of one digit changes one bit of the bucket number.
                    assert!(others.iter().all(|&other| (other ^ own).count_ones() == 1 || table > 0));
                }
            }
        }
    }
}

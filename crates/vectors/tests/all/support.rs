//! Support for tests: generated vectors, their files, and a search by brute force.

use std::{fs, path::PathBuf};

use arrow_array::{Float32Array, RecordBatch, UInt32Array, UInt64Array, cast::AsArray};
use inshore_store::{Budget, Cancel, Job, Store};
use inshore_vectors::{Element, Metric, Search, Searched, Source, VectorFile, Vectors, import, search};
use tempfile::TempDir;

/// A row of an answer: the query, the rank, the id, and the bits of the distance.
pub type Row = (u64, u32, u64, u32);

/// A generator of pseudo-random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from an approximately normal distribution with mean 0 and standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

/// Vectors with values that their element type holds exactly.
#[derive(Clone)]
pub struct Made {
    pub element: Element,
    pub dimensions: usize,
    pub values: Vec<f64>,
}

impl Made {
    pub fn new(element: Element, dimensions: usize, count: usize, mut value: impl FnMut() -> f64) -> Made {
        let exact = |value: f64| match element {
            Element::F32 => f64::from(value as f32),
            Element::U8 => f64::from(value as u8),
            Element::I8 => f64::from(value as i8),
            // Both types represent multiples of 1/16 up to 7 exactly.
            Element::F16 | Element::Bf16 => (value.clamp(-7.0, 7.0) * 16.0).round() / 16.0,
            Element::Bits => f64::from(value > 0.5),
        };
        Made { element, dimensions, values: (0..dimensions * count).map(|_| exact(value())).collect() }
    }

    pub fn rows(&self) -> Vec<&[f64]> {
        self.values.chunks(self.dimensions).collect()
    }

    /// Returns the bytes of a file with these vectors. The format is NumPy for bfloat16, and otherwise a format with a
    /// count.
    pub fn bytes(&self) -> Vec<u8> {
        if self.element == Element::Bf16 {
            let shape = format!("({}, {})", self.values.len() / self.dimensions, self.dimensions);
            let text = format!("{{'descr': '<V2', 'fortran_order': False, 'shape': {shape}, }}\n");
            let head =
                [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
            let elements = self.values.iter().map(|&value| ((value as f32).to_bits() >> 16) as u16);
            return head.into_iter().chain(elements.flat_map(u16::to_le_bytes)).collect();
        }
        let count = self.values.len() / self.dimensions;
        let mut bytes = [(count as u32).to_le_bytes(), (self.dimensions as u32).to_le_bytes()].concat();
        if self.element == Element::Bits {
            for bits in self.values.chunks(8) {
                bytes.push((0..8).fold(0, |byte, bit| byte | (bits[bit] as u8) << bit));
            }
            return bytes;
        }
        for &value in &self.values {
            match self.element {
                Element::F32 => bytes.extend((value as f32).to_le_bytes()),
                Element::U8 => bytes.push(value as u8),
                Element::I8 => bytes.push(value as i8 as u8),
                Element::F16 => bytes.extend(half(value).to_le_bytes()),
                Element::Bf16 | Element::Bits => unreachable!("written above"),
            }
        }
        bytes
    }

    pub fn ending(&self) -> &'static str {
        match self.element {
            Element::F32 => "fbin",
            Element::U8 => "u8bin",
            Element::I8 => "i8bin",
            Element::F16 => "hbin",
            Element::Bf16 => "npy",
            Element::Bits => "b1bin",
        }
    }
}

/// Returns the binary16 bits of a value. The value must be 0 or a normal number that binary16 holds exactly.
pub fn half(value: f64) -> u16 {
    let bits = (value as f32).to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    if value == 0.0 {
        return sign;
    }
    let exponent = (bits >> 23 & 255) + 15 - 127;
    assert!((1..31).contains(&exponent) && bits & 0x1fff == 0, "{value} is no normal number of binary16");
    sign | (exponent << 10) as u16 | (bits >> 13 & 0x3ff) as u16
}

/// Returns the answer by brute force. The distance of each pair is computed in f64, in the order of the dimensions.
pub fn brute_force(vectors: &Made, queries: &Made, search: &Search) -> Vec<Row> {
    let square = |row: &[f64]| row.iter().fold(0.0, |sum, x| sum + x * x);
    let mut rows = Vec::new();
    for (query, q) in queries.rows().into_iter().enumerate() {
        let mut found: Vec<(f64, u64, f64)> = Vec::new();
        for (id, x) in vectors.rows().into_iter().enumerate() {
            if search.selection.as_ref().is_some_and(|selection| !selection.contains(id as u64)) {
                continue;
            }
            let count =
                |is: &dyn Fn(f64, f64) -> bool| q.iter().zip(x).filter(|(q, x)| is(**q, **x)).count() as f64;
            let product = q.iter().zip(x).fold(0.0, |sum, (q, x)| sum + q * x);
            let (key, distance) = match search.metric {
                Metric::L2 => {
                    let sum = q.iter().zip(x).fold(0.0, |sum, (q, x)| sum + (q - x) * (q - x));
                    (sum, sum.sqrt())
                }
                Metric::Ip => (-product, product),
                Metric::Hamming => {
                    let count = count(&|q, x| q != x);
                    (count, count)
                }
                Metric::Jaccard => {
                    let any = count(&|q, x| q + x > 0.0);
                    let similarity = if any > 0.0 { count(&|q, x| q * x > 0.0) / any } else { 1.0 };
                    (-similarity, 1.0 - similarity)
                }
                Metric::Cosine => {
                    let norms = square(q).sqrt() * square(x).sqrt();
                    let similarity = if norms > 0.0 { product / norms } else { 0.0 };
                    (-similarity, (1.0 - similarity).max(0.0))
                }
            };
            let is_near = search.radius.is_none_or(|radius| match search.metric {
                Metric::Ip => distance >= radius,
                _ => distance <= radius,
            });
            let is_itself = search.excludes_itself && id == query;
            if is_near && !is_itself {
                found.push((key, id as u64, distance + 0.0));
            }
        }
        found.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap().then(a.1.cmp(&b.1)));
        found.truncate(search.k as usize);
        rows.extend(
            (1..)
                .zip(found)
                .map(|(rank, (_, id, distance))| (query as u64, rank, id, (distance as f32).to_bits())),
        );
    }
    rows
}

/// A temporary folder with a store.
pub struct Setup {
    pub folder: TempDir,
    pub store: Store,
}

impl Setup {
    pub fn new() -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        Setup { folder, store }
    }

    pub fn job(&self, memory_bytes: u64, threads: usize) -> Job {
        self.store.job(Budget::new(memory_bytes, threads), Cancel::default()).unwrap()
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub fn file(&self, name: &str, made: &Made) -> VectorFile {
        VectorFile::open(self.write(&format!("{name}.{}", made.ending()), &made.bytes())).unwrap()
    }

    pub fn open(&self, name: &str) -> Vectors {
        Vectors::open(&self.store, name).unwrap()
    }

    pub fn import(&self, name: &str, made: &Made) {
        let job = self.job(16 << 20, 2);
        import(&self.store, &job, name, &self.file(name, made)).unwrap();
        assert_eq!(job.budget().reserved_bytes(), 0);
    }

    /// Searches a dataset. Asserts that the search stayed within the budget, and that it freed all memory.
    pub fn search<'a>(
        &self,
        name: &str,
        queries: impl Into<Source<'a>>,
        options: &Search,
        (memory_bytes, threads): (u64, usize),
    ) -> (Vec<Row>, Searched) {
        let job = self.job(memory_bytes, threads);
        let vectors = Vectors::open(&self.store, name).unwrap();
        let mut rows = Vec::new();
        let searched = search(&job, &vectors, queries, options, &mut |batch| {
            rows.extend(rows_of(&batch));
            Ok(())
        });
        let searched = searched.unwrap();
        assert_eq!((job.budget().reserved_bytes(), searched.rows), (0, rows.len() as u64));
        assert!(job.budget().reserved_bytes_max() <= memory_bytes);
        (rows, searched)
    }
}

pub fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let column = |number: usize| batch.column(number).as_any();
    let queries: &UInt64Array = column(0).downcast_ref().unwrap();
    let ranks: &UInt32Array = column(1).downcast_ref().unwrap();
    let ids: &UInt64Array = column(2).downcast_ref().unwrap();
    let distances: &Float32Array = batch.column(3).as_primitive();
    (0..batch.num_rows())
        .map(|row| (queries.value(row), ranks.value(row), ids.value(row), distances.value(row).to_bits()))
        .collect()
}

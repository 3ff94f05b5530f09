//! Locality-sensitive hashing (LSH): hash tables on flash whose buckets hold the numbers of vectors that are likely
//! near each other (2018 thesis, chapter 6; 2016 article, section 7.1; Gionis, Indyk and Motwani, VLDB 1999).
//!
//! The terms of this module:
//!
//! - a *family*: functions that give near vectors equal values more often than far ones ([`functions`]).
//! - a *code*: the values of the functions of one table for a vector. The code chooses the *bucket* of the table.
//! - to *probe* a bucket: to read it, and to take its vectors as *candidates* ([`probes`]).
//!
//! | metric  | family | value of a function |
//! |---------|--------|---------------------|
//! | hamming | bit sampling (Gionis et al. 1999) | a bit of the vector |
//! | cosine  | random hyperplanes (Charikar, STOC 2002) | the side of a hyperplane |
//! | l2      | p-stable projections (Datar et al., SoCG 2004) | the cell of a projection on a line |
//!
//! There is no family for inner products and for the similarity of sets here, and the papers use none.
//!
//! ```text
//!   vectors ─► functions of all tables ─► (table, bucket), row ─► sort ─► buckets               one pass, and a sort
//!
//!   query ─► codes ─► its buckets, and those of near codes ─► rows, each once ─► the exact search among these rows
//! ```
//!
//! A bucket is a list of an index, of row numbers without their vectors: eight tables of a billion vectors would be
//! eight copies. So the vectors are read where they lie, scattered over the dataset (figure 6-1 of the thesis), many
//! reads in flight, and a vector in buckets of several tables is read and measured once. That suits vectors of some
//! KiB, as in the papers; inverted lists ([`crate::VectorIndex`]) hold small vectors together, and need fewer reads.
//!
//! The papers hash a query with the same functions as the vectors, and read the buckets with that code. With
//! multi-probe (Lv et al., VLDB 2007) a query also reads the buckets of the codes that a small change of the query
//! would have, in the order of the size of that change, so that few tables are enough.
//!
//! The buckets depend only on the vectors, the options and the seed; the answer also on the query, k and the number of
//! probes. Neither depends on the budget and the threads.
//!
//! # Cost
//!
//! A build multiplies each vector with all functions, sorts 16 bytes for each vector and table, and writes 4 or 8. A
//! query reads one bucket for each probe, and a check block of 16 KiB or more for each
//! candidate that lies alone.

mod buckets;
mod build;
mod dataset;
mod functions;
mod info;
mod plan;
mod probes;
mod query;
mod recall;
mod sample;

pub(crate) use self::{
    build::rewrite_lsh,
    dataset::KIND as LSH_KIND,
    query::{check_lsh_search, search_lsh},
    recall::measure_lsh,
};
pub use self::{
    build::{LshBuilt, build_lsh},
    dataset::LshIndex,
    functions::{BITS_OF_CODE_MAX, BUCKETS_MAX, Family, TABLES_MAX},
    info::LshInfo,
    plan::{Lsh, LshPlan, plan_lsh},
    query::{LshSearched, PROBES_MAX},
};

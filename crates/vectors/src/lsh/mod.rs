//! Locality-sensitive hashing (LSH) puts vectors that are probably near each other into the same bucket of a hash
//! table. The hash tables are on flash, and a bucket contains row numbers of vectors. Gionis, Indyk and Motwani (VLDB
//! 1999) describe the method. Chapter 6 of the 2018 thesis and section 7.1 of the 2016 article describe LSH on flash.
//!
//! This module uses four terms:
//!
//! - A *family* is a set of hash functions that give near vectors equal values more often than far ones
//!   ([`functions`]).
//! - A *code* is the sequence of the values that the functions of one table have for a vector. The code determines the
//!   *bucket* of the table that contains the vector.
//! - A query *probes* a bucket if the query reads the bucket and takes its vectors as *candidates* ([`probes`]).
//! - A *candidate* is a vector whose exact distance from the query is computed.
//!
//! | metric  | family | value of a function |
//! |---------|--------|---------------------|
//! | hamming | bit sampling (Gionis et al. 1999) | a bit of the vector |
//! | cosine  | random hyperplanes (Charikar, STOC 2002) | the side of a hyperplane |
//! | l2      | p-stable projections (Datar et al., SoCG 2004) | the cell of a projection on a line |
//!
//! This module has no family for inner products and for the Jaccard similarity. The papers use no such family either.
//!
//! ```text
//!   vectors ─► functions of all tables ─► (table, bucket), row ─► sort ─► buckets               one pass, and a sort
//!
//!   query ─► codes ─► its buckets, and those of near codes ─► rows, each once ─► the exact search among these rows
//! ```
//!
//! A bucket contains row numbers and not the vectors themselves, since eight tables with vectors would be eight copies
//! of the dataset. So a search reads the vectors of its candidates from the dataset, where they are scattered (figure
//! 6-1 of the thesis), with many reads in flight. A vector that is in buckets of several tables is read and compared
//! once. This layout suits vectors of some KiB, as in the papers. Inverted lists ([`crate::VectorIndex`]) store small
//! vectors together, and need fewer reads.
//!
//! The papers hash a query with the same functions as the vectors, and read the buckets of the resulting codes. This
//! module also uses multi-probe LSH (Lv et al., VLDB 2007): a query also reads the buckets of the codes that a small
//! change of the query would have. Codes of smaller changes come first. So few tables are enough.
//!
//! If most vectors are expected to be candidates of each query, a search is exact ([`choice`]): it costs less than the
//! scattered reads of the candidates. Many probes are a reason for that, and so are many vectors that were added after
//! the build, which are in no bucket.
//!
//! The buckets depend only on the vectors, the options and the seed. The answer also depends on the query, k and the
//! number of probes. Buckets and answers do not depend on the budget and the number of threads.
//!
//! # Cost
//!
//! A build projects each vector on the lines of all functions. For each vector and table, the build sorts 16 bytes, and
//! writes 4 or 8 bytes. A query reads one bucket for each probe. A query also reads a check block of 16 KiB or more for
//! each candidate that shares no check block with another candidate.

mod buckets;
mod build;
mod choice;
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
    query::{check_lsh_search, search_lsh},
    recall::measure_lsh,
};
pub use self::{
    build::{LshBuilt, build_lsh},
    choice::{ManyCandidates, PROBES_MAX},
    dataset::LshIndex,
    functions::{BITS_OF_CODE_MAX, BUCKETS_MAX, Family, TABLES_MAX},
    info::LshInfo,
    plan::{Lsh, LshPlan, plan_lsh},
    query::LshSearched,
};

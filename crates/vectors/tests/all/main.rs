//! Tests of searches, imports and files through the public interface.

mod changes;
mod codes;
mod content;
mod copies;
mod dedup;
mod exact;
mod files;
mod hazards;
mod index;
mod join;
mod layers;
mod lsh;
mod real;
mod resume;
mod searcher;
mod selected;
mod split;
mod support;
mod table_changes;
mod tables;

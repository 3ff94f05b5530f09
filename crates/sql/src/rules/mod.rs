//! Checks and rewrites a query, from its parse tree to its logical plan.
//!
//! - Size: [`plan_size`] refuses queries whose plan would take too long to traverse.
//! - Results: [`corrections`], [`overflow`], [`floats`], [`literals`], [`nullif`], [`aggregates`] and
//!   [`scalar_functions`] replace or refuse expressions for which DataFusion returns wrong results.
//! - Memory: [`distinct`] rewrites DISTINCT in aggregate functions to groups, which can spill to flash.
//! - Names: [`column_names`] makes the column names of a result unique.

pub(crate) mod aggregates;
pub(crate) mod column_names;
pub(crate) mod corrections;
pub(crate) mod distinct;
pub(crate) mod floats;
pub(crate) mod literals;
pub(crate) mod nullif;
pub(crate) mod overflow;
pub(crate) mod plan_size;
pub(crate) mod scalar_functions;

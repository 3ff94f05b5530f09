//! Checks and rewrites of a query, from its text to its logical plan.
//!
//! - Size: [`plan_size`] refuses queries whose plan would be too large to walk through.
//! - Answers: [`corrections`], [`overflow`], [`floats`], [`literals`], [`nullif`], [`aggregates`] and
//!   [`scalar_functions`] replace expressions that DataFusion answers wrongly, or refuse them.
//! - Memory: [`distinct`] turns DISTINCT in aggregate functions into groups.
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

//! This module manages the space of the devices: jobs take, move and free extents, and usage reports count them.

pub(crate) mod extents;
pub(crate) mod lease;
pub(crate) mod relocate;
pub(crate) mod scratch;
pub(crate) mod usage;

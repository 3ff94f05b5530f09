//! Kinds of targets.

use std::fmt::{self, Display, Formatter};

/// The kind of a [`Target`](crate::Target).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// [`Target::Local`](crate::Target::Local).
    Local,
    /// `Target::Nodes`.
    Nodes,
}

impl Place {
    /// All kinds of targets.
    pub const ALL: [Place; 2] = [Place::Local, Place::Nodes];
}

impl Display for Place {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Place::Local => "this machine",
            Place::Nodes => "nodes",
        })
    }
}

//! The redundancy of a dataset consists of copies or parity of its extents, from which a lost extent is restored.

pub(crate) mod parity;
pub(crate) mod whole;

/// `Redundancy` is the method that protects a dataset against damage and the loss of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// Each extent has this number of copies (1 or 2), each on a different device.
    Copies(u8),
    /// A Reed-Solomon code: each group of `data` extents of a file has `parity` additional extents. All extents of a
    /// group are on different devices, and any `data` of these extents restore the others.
    Parity {
        /// The number of extents of data in a group.
        data: u8,
        /// The number of extents of parity in a group.
        parity: u8,
    },
}

/// The largest total number of extents in a group, including parity.
const GROUP_MAX: u8 = 32;

impl Redundancy {
    /// Returns the number of copies of an extent of data.
    pub fn copies(self) -> usize {
        match self {
            Redundancy::Copies(copies) => copies as usize,
            Redundancy::Parity { .. } => 1,
        }
    }

    /// Returns the number of copies of a list of references. The list must survive the loss of as many devices as the
    /// data.
    pub fn list_copies(self) -> usize {
        match self {
            Redundancy::Copies(copies) => copies as usize,
            Redundancy::Parity { parity, .. } => parity as usize + 1,
        }
    }

    /// Returns the smallest number of devices that the redundancy needs.
    pub fn devices(self) -> usize {
        match self {
            Redundancy::Copies(copies) => copies as usize,
            Redundancy::Parity { data, parity } => (data + parity) as usize,
        }
    }

    /// Returns the number of extents of data in a group; 1 without parity.
    pub fn group(self) -> u64 {
        match self {
            Redundancy::Copies(_) => 1,
            Redundancy::Parity { data, .. } => data as u64,
        }
    }

    /// Returns the number of extents of parity in a group.
    pub fn parity(self) -> u64 {
        match self {
            Redundancy::Copies(_) => 0,
            Redundancy::Parity { parity, .. } => parity as u64,
        }
    }

    /// Returns the number of references in the list of a file with `extents` extents of data. With copies, the
    /// references to the first copy come before the references to the second copy. With parity, the references to data
    /// come before the references to parity.
    pub fn refs(self, extents: u64) -> u64 {
        extents * self.copies() as u64 + extents.div_ceil(self.group()) * self.parity()
    }

    /// Returns true if the numbers are within their limits.
    pub fn is_sound(self) -> bool {
        match self {
            Redundancy::Copies(copies) => (1..=2).contains(&copies),
            Redundancy::Parity { data, parity } => {
                data >= 2 && parity >= 1 && data.checked_add(parity).is_some_and(|all| all <= GROUP_MAX)
            }
        }
    }

    pub(crate) fn encode(self) -> [u8; 2] {
        match self {
            Redundancy::Copies(copies) => [copies, 0],
            Redundancy::Parity { data, parity } => [data, parity],
        }
    }

    pub(crate) fn decode([first, parity]: [u8; 2]) -> Option<Redundancy> {
        let found = match parity {
            0 => Redundancy::Copies(first),
            parity => Redundancy::Parity { data: first, parity },
        };
        found.is_sound().then_some(found)
    }
}

impl std::fmt::Display for Redundancy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Redundancy::Copies(1) => out.write_str("none"),
            Redundancy::Copies(copies) => write!(out, "{copies} copies"),
            Redundancy::Parity { data, parity } => write!(out, "{data}+{parity} parity"),
        }
    }
}

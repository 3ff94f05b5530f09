//! The parity of a group of extents is a Reed-Solomon code over the bytes at the same offsets of all extents. If a
//! group has k extents of data, any k of its extents restore all others. The code is the one of the crate
//! `reed-solomon-simd` (the Leopard algorithm over GF(2^16)). Its output is part of the storage format.
//!
//! While a group is written, it takes memory for all its extents of 2 MiB from the budget. To restore one extent of a
//! group with k extents of data, k other extents are read.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use crate::{Budget, Buffer, EXTENT_BYTES, Redundancy, Result};

/// The length in bytes of the slices in which extents are encoded. The slices of all extents of a group fit in the
/// processor cache.
pub(crate) const SLICE_BYTES: usize = 64 << 10;

/// `Stripe` contains the group of extents that is being written, in memory.
#[derive(Debug)]
pub(crate) struct Stripe {
    data: Buffer,
    parity: Buffer,
    /// The length in bytes of the longest extent of the group so far.
    len: usize,
}

impl Stripe {
    /// Allocates memory for a group from the memory budget of the job.
    pub fn new(budget: &Budget, redundancy: Redundancy) -> Result<Stripe> {
        let buffer =
            |extents: u64| Buffer::zeroed(budget, extents as usize * EXTENT_BYTES, "a group with parity");
        Ok(Stripe { data: buffer(redundancy.group())?, parity: buffer(redundancy.parity())?, len: 0 })
    }

    /// Copies bytes of the extent with number `place` in the group.
    pub fn write(&mut self, place: usize, offset: usize, bytes: &[u8]) {
        self.data[place * EXTENT_BYTES + offset..][..bytes.len()].copy_from_slice(bytes);
        self.len = self.len.max(offset + bytes.len());
    }

    /// Computes the parity of the first `extents` extents of the group, and begins the next group. Returns the parity,
    /// and the number of valid bytes in each extent of parity.
    pub fn finish(&mut self, extents: usize) -> (&[u8], usize) {
        let parity = self.parity.len() / EXTENT_BYTES;
        let len = std::mem::take(&mut self.len);
        let mut start = 0;
        while start < len {
            let slice = SLICE_BYTES.min(len - start);
            let mut encoder = ReedSolomonEncoder::new(extents, parity, slice).expect("a sound redundancy");
            for extent in 0..extents {
                let bytes = &self.data[extent * EXTENT_BYTES + start..][..slice];
                encoder.add_original_shard(bytes).expect("as many as were announced");
            }
            let encoded = encoder.encode().expect("all shards are there");
            for (number, bytes) in encoded.recovery_iter().enumerate() {
                self.parity[number * EXTENT_BYTES + start..][..slice].copy_from_slice(bytes);
            }
            start += slice;
        }
        self.data.fill(0);
        (&self.parity, len)
    }
}

/// Restores one slice of the member (extent) `wanted` of a group from the same slice of the members `known`. `known`
/// must have as many members as the group has extents of data. Members are numbered from 0: first the extents of data,
/// then the extents of parity. The result is `None` if `known` has too few members, or if their lengths are invalid.
pub(crate) fn restore(
    (data, parity): (usize, usize),
    known: &[(usize, &[u8])],
    wanted: usize,
) -> Option<Vec<u8>> {
    let len = known.first()?.1.len();
    let mut originals: Vec<Option<Vec<u8>>> = vec![None; data];
    let mut decoder = ReedSolomonDecoder::new(data, parity, len).ok()?;
    for &(member, bytes) in known {
        match member.checked_sub(data) {
            None => {
                decoder.add_original_shard(member, bytes).ok()?;
                originals[member] = Some(bytes.to_vec());
            }
            Some(member) => decoder.add_recovery_shard(member, bytes).ok()?,
        }
    }
    let decoded = decoder.decode().ok()?;
    for (member, bytes) in decoded.restored_original_iter() {
        originals[member] = Some(bytes.to_vec());
    }
    if wanted < data {
        return originals.swap_remove(wanted);
    }
    let mut encoder = ReedSolomonEncoder::new(data, parity, len).ok()?;
    for original in &originals {
        encoder.add_original_shard(original.as_ref()?).ok()?;
    }
    let encoded = encoder.encode().ok()?;
    encoded.recovery(wanted - data).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_members_of_a_group_restore_the_others() {
        let members = |seed: usize| -> Vec<u8> { (0..4096).map(|i| (i * seed + i / 7) as u8).collect() };
        for (data, parity) in [(1, 2), (2, 1), (4, 2), (5, 3)] {
            let mut all: Vec<Vec<u8>> = (0..data).map(|member| members(member + 3)).collect();
            let shards = reed_solomon_simd::encode(data, parity, &all).unwrap();
            all.extend(shards);
            for wanted in 0..data + parity {
                let others = (0..data + parity).filter(|&member| member != wanted);
                let known: Vec<_> = others.map(|member| (member, &all[member][..])).collect();
                for skip in 0..known.len() {
                    let mut chosen = known.clone();
                    chosen.rotate_left(skip);
                    chosen.truncate(data);
                    assert!(restore((data, parity), &chosen, wanted).unwrap() == all[wanted]);
                }
                assert_eq!(restore((data, parity), &known[..data - 1], wanted), None);
            }
        }
    }
}

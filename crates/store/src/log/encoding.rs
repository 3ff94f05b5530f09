//! This module encodes and decodes structures on flash, which consist of little-endian numbers and strings. The decoder
//! checks every length.

pub(crate) fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend(u32::try_from(value).expect("lengths on flash are below 4 GiB").to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend(bytes);
}

/// `Cursor` reads little-endian numbers and strings from bytes. All methods return `None` if too few bytes are left.
pub(crate) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        Some(self.take(N)?.try_into().expect("N bytes"))
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    pub fn string(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    /// Reads a number of elements, and then the elements. An element takes at least one byte on flash. If the number is
    /// too large because of damage, the function therefore fails at the end of the bytes.
    pub fn list<T>(&mut self, mut part: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        let mut list = Vec::with_capacity(count.min(room_for::<T>(self.0.len())));
        for _ in 0..count {
            list.push(part(self)?);
        }
        Some(list)
    }
}

/// Returns the largest number of elements for which a list allocates memory in advance, if `bytes` bytes are left. The
/// limit is needed since an element may be much larger in memory than on flash.
fn room_for<T>(bytes: usize) -> usize {
    bytes / size_of::<T>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_no_more_memory_in_advance_than_there_are_bytes() {
        assert!(room_for::<[u8; 4096]>(1 << 20) * 4096 <= 1 << 20);
        // The limit of the allocation in advance does not shorten the list.
        let mut bytes = Cursor(&[2, 0, 0, 0, 7, 8]);
        let list = bytes.list(|part| part.u8().map(|byte| [byte; 4096])).unwrap();
        assert_eq!(list.iter().map(|part| part[9]).collect::<Vec<_>>(), [7, 8]);
    }
}

//! Little-endian parts of structures on flash: written to a vector, read back with every length checked.

pub(crate) fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend(u32::try_from(value).expect("lengths on flash are below 4 GiB").to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend(bytes);
}

/// Reads little-endian parts; `None` where they run out.
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

    /// As many parts as a count before them says, none of them empty on flash. A hostile count ends where the
    /// bytes do.
    pub fn list<T>(&mut self, mut part: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        let mut list = Vec::with_capacity(count.min(self.0.len()));
        for _ in 0..count {
            list.push(part(self)?);
        }
        Some(list)
    }
}

//! Reduces the near pairs of a block of queries to links. A link connects two vectors. The links have the same
//! connected components as all near pairs, but there are far fewer links.
//!
//! If n vectors are equal, all n²/2 pairs of them are near. Groups of duplicates depend only on connected components,
//! so each block of queries in memory has a union-find structure over its queries. A vector outside the block needs one
//! link to the block. If another query of the block is near the vector, it is united with the query of this link. A
//! pass over the vectors therefore writes about one link for each vector and each query, instead of one for each pair.

/// The last link is remembered for this number of vectors outside the block. A pass compares a few hundred vectors at a
/// time with all queries, so few links are forgotten. A link that was forgotten is written again.
const REMEMBERED: usize = 8 << 10;

/// The connected components of a block of queries.
pub(super) struct BlockLinks<'a> {
    /// The ids of the queries. The ids ascend, unless vectors were replaced.
    ids: &'a [u64],
    /// For each query, its parent in the union-find structure. The parent is another query of the same component. The
    /// root of a component is its own parent.
    parents: Vec<u32>,
    /// A hash table without chains. An entry has the id of a vector, and the query to which the vector has a link. The
    /// position of an entry is the id of the vector modulo the length of the table.
    last: Vec<(u64, u32)>,
}

impl<'a> BlockLinks<'a> {
    /// Creates a block of queries that are not connected yet.
    pub fn new(ids: &'a [u64]) -> BlockLinks<'a> {
        let parents = (0..ids.len() as u32).collect();
        BlockLinks { ids, parents, last: vec![(u64::MAX, 0); REMEMBERED] }
    }

    /// Returns the memory of [`BlockLinks`] in bytes. The 4 bytes for each query are not included.
    pub fn bytes() -> u64 {
        (REMEMBERED * size_of::<(u64, u32)>()) as u64
    }

    /// Connects the query at position `query` of the block with a vector. Returns true if the pair is a link that the
    /// caller must write.
    pub fn connect(&mut self, query: u32, id: u64) -> bool {
        // If the ids do not ascend, the binary search may miss a query. The query is then linked like a vector outside
        // the block.
        if let Ok(other) = self.ids.binary_search(&id) {
            self.unite(query, other as u32);
            return false;
        }
        let last = &mut self.last[(id % REMEMBERED as u64) as usize];
        if last.0 != id {
            *last = (id, query);
            return true;
        }
        let linked = last.1;
        self.unite(query, linked);
        false
    }

    /// Calls `each` with the links inside the block. A link consists of the id of a query that is not the root of its
    /// component, and the id of this root.
    pub fn each(mut self, mut each: impl FnMut(u64, u64)) {
        for query in 0..self.parents.len() as u32 {
            let root = self.root(query);
            if root != query {
                each(self.ids[query as usize], self.ids[root as usize]);
            }
        }
    }

    fn unite(&mut self, one: u32, other: u32) {
        let (one, other) = (self.root(one), self.root(other));
        self.parents[one.max(other) as usize] = one.min(other);
    }

    /// Returns the root of the component of `query`, and halves the path to the root.
    fn root(&mut self, mut query: u32) -> u32 {
        while self.parents[query as usize] != query {
            let above = self.parents[self.parents[query as usize] as usize];
            self.parents[query as usize] = above;
            query = above;
        }
        query
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_vectors_need_one_link_for_each_query_and_vector() {
        // Queries 10 to 29 and vectors 0 to 99 are all near each other.
        let ids: Vec<u64> = (10..30).collect();
        let mut block = BlockLinks::new(&ids);
        let mut links = Vec::new();
        for id in 0..100 {
            for query in 0..20 {
                if block.connect(query, id) {
                    links.push((10 + u64::from(query), id));
                }
            }
        }
        assert_eq!(links.len(), 80);
        block.each(|one, other| links.push((one, other)));
        assert_eq!(links.len(), 80 + 19);
        assert!(links.iter().all(|&(query, id)| (10..30).contains(&query) && query != id));
    }

    #[test]
    fn a_link_that_was_forgotten_is_written_again() {
        let mut block = BlockLinks::new(&[0, 1]);
        let other = 5 + REMEMBERED as u64;
        let written: Vec<bool> =
            [(0, 5), (1, 5), (0, other), (1, 5)].map(|(query, id)| block.connect(query, id)).to_vec();
        assert_eq!(written, [true, false, true, true]);
        let mut links = Vec::new();
        block.each(|one, other| links.push((one, other)));
        assert_eq!(links, [(1, 0)]);
    }
}

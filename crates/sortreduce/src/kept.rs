//! What a kept run says of itself: words of 64 bits, and bytes behind them.

pub(crate) fn encode(words: &[u64], rest: &[u8]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).chain(rest.iter().copied()).collect()
}

/// The first `N` words and what is behind them; `None` where there are fewer.
pub(crate) fn decode<const N: usize>(state: &[u8]) -> Option<([u64; N], &[u8])> {
    let (words, rest) = state.split_at_checked(N * 8)?;
    let (words, _) = words.as_chunks::<8>();
    Some((std::array::from_fn(|i| u64::from_le_bytes(words[i])), rest))
}

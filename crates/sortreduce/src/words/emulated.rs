//! Vectors without special instructions. Tests compare all other vectors with this scalar implementation.

use super::vector::{Vector, Word};

/// A vector of `LANES` words in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Emulated<W, const LANES: usize>(pub [W; LANES]);

impl<W: Word, const LANES: usize> Vector for Emulated<W, LANES> {
    type Word = W;
    const LANES: usize = LANES;

    unsafe fn load(from: *const W) -> Self {
        // SAFETY: the caller meets the function's safety conditions.
        Emulated(unsafe { from.cast::<[W; LANES]>().read() })
    }

    unsafe fn splat(word: W) -> Self {
        Emulated([word; LANES])
    }

    unsafe fn store(self, to: *mut W) {
        // SAFETY: the caller meets the function's safety conditions.
        unsafe { to.cast::<[W; LANES]>().write(self.0) }
    }

    fn or(self, other: Self) -> Self {
        Emulated(std::array::from_fn(|lane| self.0[lane] | other.0[lane]))
    }

    fn flip(self) -> Self {
        self
    }

    fn min_max(self, other: Self) -> (Self, Self) {
        let lanes =
            |choose: fn(W, W) -> W| Emulated(std::array::from_fn(|lane| choose(self.0[lane], other.0[lane])));
        (lanes(W::min), lanes(W::max))
    }

    fn above(self, limit: Self) -> usize {
        (0..LANES).map(|lane| usize::from(self.0[lane] > limit.0[lane]) << lane).sum()
    }

    fn split(self, bits: usize) -> Self {
        let mut lanes: Vec<_> = (0..LANES).collect();
        lanes.sort_by_key(|lane| bits >> lane & 1);
        Emulated(std::array::from_fn(|place| self.0[lanes[place]]))
    }

    fn exchange<const DISTANCE: usize>(self, other: Self) -> (Self, Self) {
        let (mut low, mut high) = (self, other);
        for lane in (0..LANES).filter(|lane| lane & DISTANCE != 0) {
            low.0[lane] = other.0[lane - DISTANCE];
            high.0[lane - DISTANCE] = self.0[lane];
        }
        (low, high)
    }

    fn reverse<const GROUP: usize>(self) -> Self {
        let mut words = self.0;
        words.chunks_mut(GROUP).for_each(<[W]>::reverse);
        Emulated(words)
    }

    fn choose<const DISTANCE: usize>(self, other: Self) -> Self {
        let chosen = |lane: usize| if lane & DISTANCE == 0 { self.0[lane] } else { other.0[lane] };
        Emulated(std::array::from_fn(chosen))
    }
}

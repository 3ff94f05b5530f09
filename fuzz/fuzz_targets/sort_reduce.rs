//! Sort-reduce against a `BTreeMap`: the result is the same for all records, strategies, key widths and
//! numbers of parts.
//!
//! The input: a byte of options, then three bytes for each sequence of records: first key, step between keys,
//! and number of records.
#![no_main]

use std::{collections::BTreeMap, fmt::Debug, marker::PhantomData, sync::Arc};

use inshore_sortreduce::{Config, Key, Operation, SortReduce, Strategy};
use inshore_store::{Budget, Memory, Store};
use libfuzzer_sys::fuzz_target;

const MIB: u64 = 1 << 20;

thread_local! {
    static STORE: (tempfile::TempDir, Store) = {
        let home = tempfile::tempdir().expect("a folder");
        let store = Store::open_on(home.path(), vec![Arc::new(Memory::new(256))]).expect("a store");
        (home, store)
    };
}

/// The first of all values in the upper bits and the number of values in the lower bits, so that a lost or
/// repeated record changes the result.
#[derive(Clone)]
struct FirstAndCount<K> {
    /// True if the operation declares the optional properties that the partition strategy uses.
    tells: bool,
    of: PhantomData<K>,
}

impl<K: Key> Operation for FirstAndCount<K> {
    type Key = K;
    type Value = u64;
    fn combine(&self, a: u64, b: u64) -> u64 {
        (a & !0xffff).min(b & !0xffff) | (a.wrapping_add(b) & 0xffff)
    }
    fn neutral(&self) -> Option<u64> {
        self.tells.then_some(!0xffff)
    }
    fn short_bits(&self) -> Option<u32> {
        self.tells.then_some(18)
    }
    fn shorten(&self, value: u64) -> u32 {
        (value >> 16) as u32
    }
    fn lengthen(&self, short: u32) -> u64 {
        u64::from(short) << 16 | 1
    }
}

fn check<K: Key + Debug>(how: u8, records: &[(K, u64)]) {
    let strategy = match how & 3 {
        0 => None,
        1 => Some(Strategy::Merge),
        2 => Some(Strategy::HashFirst),
        _ => Some(Strategy::Partition),
    };
    let operation = FirstAndCount::<K> { tells: how >> 6 & 1 == 1, of: PhantomData };
    let mut expected = BTreeMap::<K, u64>::new();
    for &(key, value) in records {
        expected.entry(key).and_modify(|sum| *sum = operation.combine(*sum, value)).or_insert(value);
    }
    STORE.with(|(_, store)| {
        let job = store.job(Budget::new(16 * MIB, 1), Default::default()).expect("a job");
        let config = Config {
            memory_bytes: 4 * MIB,
            sinks: 1,
            strategy,
            key_range: (strategy == Some(Strategy::Partition)).then_some(1 << 20),
            chunk_bytes: Some(16 << 10),
            name: "fuzz",
            ..Config::default()
        };
        let sort = SortReduce::new(&job, operation, &config).expect("it fits");
        let mut sink = sort.sink().expect("the one sink");
        records.iter().for_each(|&(key, value)| sink.push(key, value).expect("room"));
        sink.finish().expect("room");
        let parts = sort.finish().expect("room").split(1 + (how >> 4 & 3) as usize).expect("room");
        let mut expected = expected.into_iter();
        for mut part in parts {
            while let Some(block) = part.next_block().expect("it was written") {
                for (&key, &value) in block.keys.iter().zip(block.values) {
                    assert_eq!(Some((key, value)), expected.next());
                }
            }
        }
        assert_eq!(expected.next(), None);
        assert_eq!(job.budget().reserved_bytes(), 0);
    });
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&how, rest)) = bytes.split_first() else { return };
    let mut keys = Vec::new();
    for stretch in rest.chunks_exact(3).take(64) {
        let (start, step, count) = (stretch[0] as u64 * 4093, stretch[1] as u64, stretch[2] as u64 * 16);
        keys.extend((0..count).map(|n| (start + n * step) & 0xf_ffff));
    }
    // The order within a key is in the upper bits, the count in the lower bits.
    let values = (0..).map(|n| n << 16 | 1);
    match how >> 2 & 3 {
        0 => check::<u32>(how, &keys.iter().map(|&key| key as u32).zip(values).collect::<Vec<_>>()),
        1 => check::<u64>(how, &keys.iter().copied().zip(values).collect::<Vec<_>>()),
        // The upper halves of wide keys differ too.
        2 if how & 3 != 3 => {
            let wide = |&key: &u64| (key as u128).wrapping_mul(0x1_0000_0001_0000_0000_0000_0001);
            check::<u128>(how, &keys.iter().map(wide).zip(values).collect::<Vec<_>>());
        }
        _ if how & 3 != 3 => {
            let spread = |&key: &u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            check::<u64>(how, &keys.iter().map(spread).zip(values).collect::<Vec<_>>());
        }
        _ => {}
    }
});

//! Tests of indexes with codes, from which the single strategy estimates distances.

use std::collections::HashSet;

use inshore_vectors::{Approximate, Element, Index, Metric, Search, Strategy};

use crate::{
    index::{ask, build, clustered},
    support::{Row, Setup},
};

fn with_codes(lists: u64, bits: u32) -> Index {
    Index { lists: Some(lists), codes: Some(bits), ..Index::default() }
}

fn pairs(rows: &[Row]) -> HashSet<(u64, u64)> {
    rows.iter().map(|row| (row.0, row.2)).collect()
}

fn single(probes: u64) -> Approximate {
    Approximate { recall: 1.0, probes: Some(probes), strategy: Some(Strategy::Single) }
}

/// A search by codes finds nearly all vectors that a search in the same lists finds, and measures few vectors.
#[test]
fn a_search_by_codes_finds_what_a_search_in_the_lists_finds() {
    for (element, metric) in [
        (Element::F32, Metric::L2),
        (Element::F32, Metric::Ip),
        (Element::F32, Metric::Cosine),
        (Element::U8, Metric::L2),
        (Element::U8, Metric::Cosine),
        (Element::I8, Metric::Ip),
    ] {
        let setup = Setup::new();
        setup.import("v", &clustered(element, 100, 4000, 1001));
        let queries = setup.file("q", &clustered(element, 100, 50, 1002));
        let search = Search { k: 10, metric, ..Search::default() };
        let mut measured = Vec::new();
        for bits in [1, 2, 4] {
            let built = build(&setup, "v", &Index { metric, ..with_codes(60, bits) }, (64 << 20, 2));
            let codes = built.info.codes.expect("codes");
            assert_eq!(codes.bits, bits);
            let (lists, _) =
                ask(&setup, "v", &queries, (&search, &Approximate { strategy: Some(Strategy::Batch), ..single(20) }), (32 << 20, 2));
            let (rows, found) = ask(&setup, "v", &queries, (&search, &single(20)), (32 << 20, 2));
            assert!(found.plan.holds_codes.is_some());
            let common = pairs(&rows).intersection(&pairs(&lists)).count();
            let share = common as f64 / lists.len() as f64;
            println!("{element} {metric:?} {bits}: {share} of the lists, {} of {} measured; {:?}", found.measured, found.compared, codes.recall.points);
            assert!(share > 0.97, "{element} {metric:?} {bits}: {share}");
            measured.push(found.measured);
        }
        assert!(measured[2] < measured[1] && measured[1] < measured[0], "{element} {metric:?}: {measured:?}");
    }
}

use std::cmp::Reverse;

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use inshore_kernel::OpenedSource;
use inshore_store::{Budget, Cancel, Store};
use unicode_segmentation::UnicodeSegmentation;

use super::*;

fn text(words: usize, distinct: u64, mut seed: u64) -> String {
    let mut text = String::new();
    for number in 0..words {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // The distribution of words is skewed, so that some words are frequent.
        let random = (seed >> 33) % distinct;
        let word = random * ((seed >> 20) % distinct) / distinct;
        text.push_str(&match word % 11 {
            0 => format!("Wört{word}"),
            1 => format!("a-rather-long-word-with-number-{word}"),
            _ => format!("w{word}"),
        });
        text.push_str(if number % 9 == 8 { "\n" } else { " " });
    }
    text
}

fn source(text: &str) -> Source {
    let bytes = text.as_bytes().to_vec();
    Source::new("text", move |_| Ok(OpenedSource::Stream(Box::new(std::io::Cursor::new(bytes)))))
}

fn naive(texts: &[String], options: &WordOptions) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for text in texts {
        let text = if options.ignore_case { text.to_lowercase() } else { text.clone() };
        let words: Vec<&str> = match options.split {
            true => text.split_ascii_whitespace().collect(),
            false => text.unicode_words().collect(),
        };
        words.into_iter().for_each(|word| *counts.entry(word.to_string()).or_default() += 1);
    }
    counts.retain(|_, count| *count >= options.min_count);
    counts
}

#[test]
fn counts_equal_a_naive_count_in_memory_and_through_flash() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let texts: Vec<String> = (0..3).map(|seed| text(300_000, 200_000, seed)).collect();
    for split in [false, true] {
        for (ignore_case, min_count) in [(false, 1), (true, 3)] {
            let options = WordOptions { split, ignore_case, min_count, top: 5, ..WordOptions::default() };
            let expected = naive(&texts, &options);
            let smallest = smallest_word_memory_bytes(2);
            for (memory_bytes, threads, table_bytes) in [
                (512 << 20, 1, None),
                (512 << 20, 3, None),
                (smallest, 2, None),
                // The budget has enough memory for one thread only.
                (8 << 20, 16, None),
                (64 << 20, 2, Some(200_000)),
            ] {
                let job = store.job(Budget::new(memory_bytes, threads), Cancel::default()).unwrap();
                let options = WordOptions { table_bytes, ..options };
                let mut found = BTreeMap::new();
                let summary = count_words(&job, texts.iter().map(|text| source(text)), &options, |batch| {
                    let (words, counts) =
                        (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<UInt64Type>());
                    for (word, count) in words.iter().zip(counts.values()) {
                        assert_eq!(found.insert(word.unwrap().to_string(), *count), None);
                    }
                    Ok(())
                })
                .unwrap();
                assert!(found == expected, "{options:?} in {memory_bytes}");
                assert_eq!(summary.written, expected.len() as u64);
                let mut top: Vec<(String, u64)> = expected.clone().into_iter().collect();
                top.sort_by_key(|(word, count)| (Reverse(*count), word.clone()));
                assert_eq!(summary.top, top[..5]);
                let is_small = memory_bytes <= smallest || table_bytes.is_some();
                assert_eq!((summary.spills > 0, summary.runs > 0), (is_small, is_small), "{summary:?}");
                drop(job.report());
                assert_eq!(job.budget().reserved_bytes(), 0);
            }
        }
    }
}

#[test]
fn invalid_text_and_empty_text_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let job = store.job(Budget::new(64 << 20, 1), Cancel::default()).unwrap();
    let count = |bytes: &'static [u8], split: bool| {
        let source = Source::new("bytes", move |_| Ok(OpenedSource::Stream(Box::new(bytes))));
        let options = WordOptions { split, top: 9, ..WordOptions::default() };
        count_words(&job, [source].into_iter(), &options, |_| Ok(())).unwrap().top
    };
    assert_eq!(count(b"", true), []);
    assert_eq!(count(b" \n\n ", false), []);
    assert_eq!(count(b"a\xff a\xfe b", true), [("a\u{fffd}".to_string(), 2), ("b".to_string(), 1)]);
    assert_eq!(count(b"a\xff a\xfe b", false), [("a".to_string(), 2), ("b".to_string(), 1)]);
}

#[test]
fn a_budget_too_small_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let job = store.job(Budget::new(4 << 20, 2), Cancel::default()).unwrap();
    let refused = count_words(&job, [source("a")].into_iter(), &WordOptions::default(), |_| Ok(()));
    let refused = refused.unwrap_err().to_string();
    assert_eq!(refused, "counting words cannot work in 4 MiB: the smallest budget that works is 5.4 MiB");
}

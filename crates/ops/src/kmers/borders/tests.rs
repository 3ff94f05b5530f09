//! These tests divide texts into shards at line ends, and compare the counts with those of the undivided texts.

use std::collections::BTreeMap;

use inshore_store::{Budget, Cancel, Store};
use inshore_tables::{
    FilePart, Input, KmerAnswer, KmerPiece, KmerPieces, PartBytes, PieceStart, count_kmer_pieces,
};
use proptest::prelude::*;

use super::*;

type Counts = BTreeMap<u128, u64>;
/// The number of sequences, the number of bases, and the number of k-mers.
type Sums = (u64, u64, u64);

fn piece(text: &str, begins: PieceStart) -> KmerPiece {
    let part = FilePart { at: 0, bytes: PartBytes::Memory(text.as_bytes().into()) };
    KmerPiece { input: Input::of_parts("text", "", text.len() as u64, vec![part]), begins }
}

/// Counts the k-mers of shards. Returns the sums, the count of each k-mer, and the first and last letters of each
/// shard.
fn count(
    store: &Store,
    texts: &[(&str, PieceStart)],
    options: &KmerOptions,
) -> Result<(Sums, Counts, Vec<PieceEnds>)> {
    let job = store.job(Budget::new(12 << 20, 2), Cancel::default()).unwrap();
    let pieces: Vec<KmerPiece> = texts.iter().map(|(text, begins)| piece(text, *begins)).collect();
    let (mut counts, mut ends) = (Counts::new(), Vec::new());
    let summary = count_kmer_pieces(&job, KmerPieces::of(pieces), options, |answer| {
        match answer {
            KmerAnswer::Ends(all) => ends = all,
            answer => {
                let (codes, times): (Vec<u128>, _) = match answer {
                    KmerAnswer::Short((codes, times)) => {
                        (codes.iter().map(|&code| code.into()).collect(), times)
                    }
                    KmerAnswer::Long((codes, times)) => (codes.to_vec(), times),
                    KmerAnswer::Ends(_) => unreachable!("matched above"),
                };
                for (code, &times) in codes.into_iter().zip(times) {
                    assert!(counts.last_key_value().is_none_or(|(&last, _)| last < code));
                    counts.insert(code, times.into());
                }
            }
        }
        Ok(())
    })?;
    Ok(((summary.sequences, summary.bases, summary.kmers), counts, ends))
}

/// Counts the k-mers of shards that are distributed over several nodes, including the k-mers across borders of
/// shards.
fn count_in_pieces(store: &Store, pieces: &[&str], nodes: usize, options: &KmerOptions) -> (Sums, Counts) {
    let is_blank = |piece: &&str| piece.trim_matches(['\r', '\n']).is_empty();
    let first = pieces.iter().take_while(|piece| is_blank(piece)).count();
    let begins = |number: usize| if number <= first { PieceStart::File } else { PieceStart::FastaLine };
    let mut all_ends = vec![PieceEnds::default(); pieces.len()];
    let (mut sums, mut counts) = ((0, 0, 0), Counts::new());
    for node in 0..nodes {
        let numbers: Vec<usize> = (node..pieces.len()).step_by(nodes).collect();
        let texts: Vec<_> = numbers.iter().map(|&number| (pieces[number], begins(number))).collect();
        let (sum, some, ends) = count(store, &texts, options).unwrap();
        sums = (sums.0 + sum.0, sums.1 + sum.1, sums.2 + sum.2);
        some.into_iter().for_each(|(code, times)| *counts.entry(code).or_default() += times);
        numbers.into_iter().zip(ends).for_each(|(number, ends)| all_ends[number] = ends);
    }
    let budget = Budget::new(1 << 20, 1);
    let mut borders = KmerBorders::new(options, &budget).unwrap();
    for (number, ends) in all_ends.iter().enumerate() {
        borders.piece(ends, number > 0).unwrap();
    }
    sums.2 += borders.kmers();
    for code in [0, 1 << 20, u128::MAX] {
        let (mut codes, mut times): (Vec<u128>, Vec<u32>) = Default::default();
        borders.up_to(code, &mut codes, &mut times);
        assert!(codes.is_sorted_by(|a, b| a < b) && codes.last().is_none_or(|&last| last <= code));
        codes
            .into_iter()
            .zip(times)
            .for_each(|(next, times)| *counts.entry(next).or_default() += u64::from(times));
    }
    drop(borders);
    assert_eq!(budget.reserved_bytes(), 0);
    (sums, counts)
}

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    (folder, store)
}

/// Divides a text into shards at line ends. A shard ends after each line for which `ends` is true.
fn cut<'a>(text: &'a str, ends: &[bool]) -> Vec<&'a str> {
    let (mut pieces, mut start, mut at) = (Vec::new(), 0, 0);
    for (line, &is_end) in text.split_inclusive('\n').zip(ends.iter().cycle()) {
        at += line.len();
        if is_end && at < text.len() {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn fasta_in_pieces_has_the_k_mers_of_the_whole(
        text in "[\r\n]{0,3}(>[a-zA-Z> ]{0,5}\r?\n(([ACGT]{0,9}|[ACGTNacgtuU*\r]{0,9})\r?\n){0,12}){1,4}([ACGT]{0,5}|>)\r?",
        ends in proptest::collection::vec(any::<bool>(), 1..40),
        (k, nodes, canonical) in (prop_oneof![1u32..9, 1u32..64], 1usize..4, any::<bool>()),
    ) {
        let (_folder, store) = store();
        let options = KmerOptions { k, canonical, ..KmerOptions::default() };
        let (sums, counts, _) = count(&store, &[(&text, PieceStart::File)], &options).unwrap();
        let (found_sums, found) = count_in_pieces(&store, &cut(&text, &ends), nodes, &options);
        prop_assert_eq!(found_sums, sums);
        prop_assert_eq!(found, counts);
    }
}

#[test]
fn a_k_mer_may_lie_across_many_pieces() {
    let (_folder, store) = store();
    let text = ">one\nA\nC\r\n\nG\nT\nT\nGATTACAGATTACA\nC\n>two\n>three\nA\n>four\nNA\nC\nG\n";
    for k in [1, 2, 3, 4, 5, 7, 20] {
        let options = KmerOptions { k, canonical: false, ..KmerOptions::default() };
        let (sums, counts, _) = count(&store, &[(text, PieceStart::File)], &options).unwrap();
        let (found_sums, found) = count_in_pieces(&store, &cut(text, &[true]), 3, &options);
        assert_eq!((found_sums, found), (sums, counts), "k = {k}");
    }
}

#[test]
fn records_in_pieces_have_the_k_mers_of_the_whole() {
    let (_folder, store) = store();
    let (one, two) = ("@a\nGATTACA\n+\n@IIIIII\n\n", "@b\r\nCATTAG\r\n+b\r\n>IIIII\r\n");
    let options = KmerOptions { k: 4, ..KmerOptions::default() };
    let whole = format!("{one}{two}");
    let (sums, counts, _) = count(&store, &[(&whole, PieceStart::File)], &options).unwrap();
    let pieces = [(one, PieceStart::FastqRecord), (two, PieceStart::FastqRecord)];
    let (found_sums, found, _) = count(&store, &pieces, &options).unwrap();
    assert_eq!((found_sums, found), (sums, counts));
    let error =
        count(&store, &[("GATTACA\n+\n", PieceStart::FastqRecord)], &options).unwrap_err().to_string();
    assert!(error.contains("expected '@' at the beginning of a record"), "{error}");
}

#[test]
fn ends_of_another_make_are_no_harm() {
    let budget = Budget::new(1 << 20, 1);
    let options = KmerOptions { k: 3, ..KmerOptions::default() };
    let mut borders = KmerBorders::new(&options, &budget).unwrap();
    let ends = PieceEnds { head: "GATTACAö".into(), tail: "öGATTACA".into(), has_header: false };
    borders.piece(&ends, false).unwrap();
    borders.piece(&ends, true).unwrap();
    // The stretch has two letters of each side, and therefore two k-mers.
    assert_eq!(borders.kmers(), 2);
    let small = Budget::new(1 << 10, 1);
    let mut borders = KmerBorders::new(&options, &small).unwrap();
    borders.piece(&ends, false).unwrap();
    assert!(borders.piece(&ends, true).unwrap_err().to_string().contains("across the borders"));
}

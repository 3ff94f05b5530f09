//! The language of each line of a file, by whatlang: `peer-whatlang FILE [CODE,CODE,...]`, where the codes (ISO 639-3) are the
//! only languages that it chooses from. Prints a code for each line, and on standard error the seconds without reading.

use std::{env, fmt::Write, fs, time::Instant};

use whatlang::{Detector, Lang};

fn main() {
    let words: Vec<String> = env::args().collect();
    let text = fs::read_to_string(&words[1]).expect("a file of text");
    let detector = match words.get(2) {
        Some(codes) => {
            let known = |code| Lang::from_code(code).expect("a language that whatlang knows");
            Detector::with_allowlist(codes.split(',').map(known).collect())
        }
        None => Detector::new(),
    };
    let started = Instant::now();
    let mut out = String::new();
    for line in text.lines() {
        let code = detector.detect_lang(line).map_or("?", |language| language.code());
        writeln!(out, "{code}").expect("room in memory");
    }
    eprintln!("{:.3}", started.elapsed().as_secs_f64());
    print!("{out}");
}

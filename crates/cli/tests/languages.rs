//! Tests of `inshore language`: profiles are trained on samples of two lines or on real sentences, and then identify
//! the language of other texts.

use std::{fs, io::Read, path::Path};

use crate::util::Folder;

fn folder() -> Folder {
    let folder = Folder::new();
    let samples = [
        ("en", "The quick brown fox jumps over the lazy dog.\nWhere there is a will there is a way.\n"),
        (
            "de",
            "Der schnelle braune Fuchs springt über den faulen Hund.\nWo ein Wille ist, da ist auch ein Weg.\n",
        ),
        (
            "fr",
            "Le renard brun saute par-dessus le chien paresseux.\nQuand on veut, on peut. Été comme hiver.\n",
        ),
    ];
    for (label, text) in samples {
        folder.write(&format!("{label}.sample.txt"), text);
    }
    folder.run("language train en.sample.txt de.sample.txt français=fr.sample.txt --name few --quiet").ok();
    folder
}

#[test]
fn files_lines_and_columns_are_told() {
    let folder = folder();
    folder.write("one.txt", "the dog is over there\nand the fox is there\n");
    folder.write("two.txt", "der Hund\n\nwo ist der Fuchs\n12345\n");
    let said = folder.run("language identify --profiles few one.txt two.txt").ok();
    let rows: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(rows[0], "source,language,confidence");
    assert!(rows[1].starts_with("one.txt,en,0.") && rows[2].starts_with("two.txt,de,"), "{rows:?}");
    let said = folder.run("language identify --profiles few --lines two.txt").ok();
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(lines[1].starts_with("two.txt,1,de,") && lines[2].starts_with("two.txt,3,de,"), "{lines:?}");
    assert_eq!((lines[3], lines.len()), ("two.txt,4,,", 4));
    folder.write("table.csv", "id,body\n7,LE CHIEN EST PARESSEUX\n8,\n9,there is a dog\n");
    let said = folder.run("language identify --profiles few --column body table.csv").ok();
    let rows: Vec<&str> = said.stdout.lines().collect();
    assert!(
        rows[1].starts_with("table.csv,0,français,") && rows[3].starts_with("table.csv,2,en,"),
        "{rows:?}"
    );
    assert_eq!(rows[2], "table.csv,1,,");
    folder.run("store put two.txt --name stored --quiet").ok();
    let said = folder.run("language identify --profiles few store:stored --json -o out.parquet").ok();
    assert_eq!(said.json()["summary"]["texts"], 1);
}

#[test]
fn a_column_is_told_the_same_by_any_number_of_threads_and_from_the_store() {
    let folder = folder();
    let texts = ["the dog is over there", "der Hund ist faul", "", "le chien est paresseux"];
    let rows = (0..30_000).map(|row: usize| format!("{row},{}\n", texts[row * row % 7 % 4]));
    folder.write("table.csv", format!("id,body\n{}", rows.collect::<String>()));
    folder.run("store put table.csv --name table.csv --quiet").ok();
    let told = |input: &str, how: &str| {
        let words =
            format!("language identify --profiles few --column body {input} -o out.csv --quiet {how}");
        folder.run(&words).ok();
        folder.read("out.csv")
    };
    let one = told("table.csv", "--threads 1");
    assert_eq!(one.lines().count(), 30_001);
    assert!(one.lines().nth(2).unwrap().starts_with("table.csv,1,de,"));
    assert_eq!(told("table.csv", "--threads 4"), one);
    assert_eq!(told("table.csv", "--threads 3 --memory 16MiB"), one);
    let stored = told("store:table.csv", "--threads 2");
    assert_eq!(stored.replace("store:table.csv", "table.csv"), one);
}

#[test]
fn what_goes_wrong_is_told() {
    let folder = folder();
    let told = |words: &str| folder.run(words).exits(2).stderr;
    assert!(told("language train en.sample.txt --name few").contains("\"few\" exists already"));
    assert!(told("language train missing.txt --name x").contains("missing.txt: cannot open"));
    assert!(
        told("language identify --profiles nothing en.sample.txt")
            .contains("there is no dataset \"nothing\"")
    );
    folder.run("store put en.sample.txt --name bytes --quiet").ok();
    assert!(
        told("language identify --profiles bytes en.sample.txt")
            .contains("expected a dataset of the kind language")
    );
    let said = folder.run("language identify --profiles few missing.txt en.sample.txt").exits(2);
    assert!(said.stderr.contains("missing.txt: cannot open"), "{}", said.stderr);
    assert!(said.stdout.lines().count() == 2 && said.stdout.contains("en.sample.txt,en,"), "{}", said.stdout);
}

#[test]
fn fifteen_languages_are_told_apart() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/text/languages");
    let Ok(files) = fs::read_dir(&data) else {
        println!("skipped: the sentences of fifteen languages are not in {}", data.display());
        return;
    };
    let folder = Folder::new();
    let (mut train, mut expected, mut test) = (String::new(), Vec::new(), String::new());
    let mut paths: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let label = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_string();
        let mut text = String::new();
        flate2::read::GzDecoder::new(fs::File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let half = |first: usize| {
            lines[first..].iter().step_by(2).map(|line| format!("{line}\n")).collect::<String>()
        };
        folder.write(&format!("{label}.txt"), half(0));
        train += &format!("{label}.txt ");
        let held_out = half(1);
        expected.extend(held_out.lines().map(|_| label.clone()));
        test += &held_out;
    }
    folder.write("test", test);
    folder.run(&format!("language train {train} --name all --quiet")).ok();
    for threads in [1, 2] {
        folder
            .run(&format!("language identify --profiles all --lines test -o out.csv --quiet --threads {threads} --memory 16MiB"))
            .ok();
        let rows = folder.read("out.csv");
        let right = rows
            .lines()
            .skip(1)
            .zip(&expected)
            .filter(|(row, label)| row.split(',').nth(2) == Some(label))
            .count();
        let share = right as f64 / expected.len() as f64;
        println!("{right} of {} sentences are right ({:.1} %)", expected.len(), 100.0 * share);
        assert_eq!(rows.lines().count(), expected.len() + 1);
        assert!(share > 0.98, "{share}");
    }
}

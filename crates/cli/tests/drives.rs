//! Tests of the output, the stored results and the cleanup of `inshore store bench`.

use std::fs;

use crate::util::Folder;

const QUICK: &str = "--quick --seconds 1 --size 8MiB --memory 32MiB";

#[test]
fn a_measured_drive_is_drawn_and_kept_and_from_then_on_explained() {
    let folder = Folder::with_graph("g", "1 2\n2 3\n");
    let before = folder.run("graph pagerank g --top 1 --explain").ok();
    assert!(!before.stderr.contains("drive floor"), "{}", before.stderr);
    let said = folder.run(&format!("store bench {QUICK} -o drive.svg --json")).ok().json();
    assert_eq!(said["command"], "store bench");
    assert_eq!(said["summary"]["kept"], true);
    let points = said["summary"]["devices"][0]["points"].as_array().unwrap();
    assert!(
        points.len() >= 4 * 3 && points.iter().all(|point| point["bytes_per_second"].as_f64().unwrap() > 0.0)
    );
    assert!(folder.read("drive.svg").ends_with("</svg>\n"));
    assert!(folder.read("store/drive.json").contains("\"version\": 1"));
    let after = folder.run("graph pagerank g --top 1 --explain").ok();
    assert!(after.stderr.contains("drive floor"), "{}", after.stderr);
    // A file that another version of the program wrote is ignored without harm.
    folder.write("store/drive.json", "{\"version\": 99}");
    let unknown = folder.run("graph pagerank g --top 1 --explain").ok();
    assert!(!unknown.stderr.contains("drive floor"), "{}", unknown.stderr);
}

#[test]
fn a_folder_without_a_store_is_measured_and_left_as_it_was() {
    let folder = Folder::new();
    fs::create_dir(folder.path("drive")).unwrap();
    folder.write("drive/thesis.tex", "words");
    let said = folder.run(&format!("store bench drive {QUICK}")).ok();
    for words in ["sequential read", "random write", "random reads of 4 KiB a second"] {
        assert!(said.stdout.contains(words), "no {words} in\n{}", said.stdout);
    }
    let names = fs::read_dir(folder.path("drive")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["thesis.tex"]);
    assert!(!folder.path("store").exists());
    let figure = folder.run(&format!("store bench drive {QUICK} -o -")).ok().stdout;
    assert!(figure.starts_with("<svg ") && figure.ends_with("</svg>\n"), "{figure}");
    folder.run("store bench nowhere").exits(2);
    folder.run("store bench drive -o - --json").exits(2);
}

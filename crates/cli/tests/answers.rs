//! Tests of the results of graph algorithms, in all output formats.

use std::fs::File;

use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::json;

use crate::util::{EDGES, Folder};

const TREE: &str = "\
vertex,parent,level
10,10,0
20,10,1
30,20,2
40,30,3
50,40,4
60,,
70,,
80,,
";

#[test]
fn a_file_has_all_rows_in_the_format_of_its_ending() {
    let folder = Folder::with_graph("g", EDGES);
    let jobs = [
        ("bfs", "--source 10", "vertex parent level"),
        ("components", "", "vertex component"),
        ("communities", "--iterations 3", "vertex community"),
        ("clustering", "", "vertex coefficient"),
        ("pagerank", "--iterations 5", "vertex rank"),
        ("pagerank", "--vertex-tolerance 1e-4", "vertex rank"),
        ("betweenness", "--sources 8 --seed 3", "vertex centrality"),
    ];
    for (verb, options, columns) in jobs {
        for ending in ["csv", "parquet", "arrow"] {
            let said = folder.run(&format!("graph {verb} g {options} -o out.{ending}")).ok();
            assert_eq!(said.stdout, "", "{verb}");
            assert!(said.stderr.contains(&format!("all rows are in out.{ending}")), "{said:?}");
            folder.run(&format!("graph check g out.{ending} {options}")).ok();
        }
        let csv = folder.read("out.csv");
        assert_eq!(csv.lines().next().unwrap().replace(',', " "), columns);
        assert_eq!(csv.lines().count(), 9, "{verb}: a header and 8 vertices");
        let parquet = SerializedFileReader::new(File::open(folder.path("out.parquet")).unwrap()).unwrap();
        assert_eq!(parquet.metadata().file_metadata().num_rows(), 8, "{verb}");
    }
}

#[test]
fn a_tree_has_parents_levels_and_nulls() {
    let folder = Folder::with_graph("g", EDGES);
    folder.run("graph bfs g --source 10 -o tree.csv").ok();
    assert_eq!(folder.read("tree.csv"), TREE);
}

#[test]
fn shortest_paths_go_by_weights() {
    let folder = Folder::with_graph("g", EDGES);
    folder.run("graph import - --name w --weighted").stdin("1 2 0.5\n2 3 0.25\n1 3 1\n4 1 1\n").ok();
    folder.run("graph sssp w --source 1 -o distances.csv").ok();
    assert_eq!(folder.read("distances.csv"), "vertex,distance\n1,0.0\n2,0.5\n3,0.75\n4,\n");
    folder.run("graph check w distances.csv").ok();
}

#[test]
fn a_minus_is_csv_on_standard_output() {
    let folder = Folder::with_graph("g", EDGES);
    let said = folder.run("graph bfs g --source 10 -o -").ok();
    assert_eq!(said.stdout, TREE);
    assert!(said.stderr.starts_with("reached 5 of 8 vertices in 5 levels\n"), "{said:?}");
}

#[test]
fn without_o_and_top_a_sentence_is_printed() {
    let folder = Folder::with_graph("g", EDGES);
    let sentence = |words: &str| {
        let said = folder.run(words).ok();
        assert!(said.stderr.contains(" s, read "), "{said:?}");
        let end = "; use -o FILE or --top N to see them\n";
        said.stdout.strip_suffix(end).unwrap_or_else(|| panic!("{said:?}")).to_string()
    };
    assert_eq!(sentence("graph bfs g --source 10"), "reached 5 of 8 vertices in 5 levels");
    assert_eq!(sentence("graph components g"), "3 components of 8 vertices");
    assert_eq!(
        sentence("graph communities g --iterations 2"),
        "communities of 8 vertices after 2 iterations"
    );
    assert_eq!(sentence("graph clustering g"), "clustering coefficients of 8 vertices, 2 triangles");
    assert_eq!(sentence("graph betweenness g --sources 4"), "centrality of 8 vertices from 4 sources");
    assert!(sentence("graph pagerank g").starts_with("ranks of 8 vertices after 10 iterations"));
}

#[test]
fn ranks_that_converge_tell_how_far_they_may_be_off() {
    let folder = Folder::with_graph("g", EDGES);
    let summary =
        |words: &str| folder.run(&format!("graph pagerank g {words} --json")).ok().json()["summary"].clone();
    let (all, capped) =
        (summary("--vertex-tolerance 1e-6"), summary("--vertex-tolerance 1e-6 --iterations 3"));
    assert!(all["supersteps"].as_u64() > Some(3) && all["error_max"].as_f64() < Some(1.2e-5), "{all}");
    assert!(capped["supersteps"] == 3 && capped["error_max"].as_f64() > Some(1.2e-5), "{capped}");
    let said = folder.run("graph pagerank g --vertex-tolerance 1e-6 -o ranks.csv").ok().stderr;
    let told = format!("after {} supersteps, all together within ", all["supersteps"]);
    assert!(said.contains(&told), "{said}");
    folder.run("graph check g ranks.csv").exits(1);
    folder.run("graph pagerank g --vertex-tolerance 1e-6 --tolerance 1e-3").exits(2);
    let said = folder.run("graph pagerank g --vertex-tolerance 0.2").exits(2).stderr;
    assert!(
        said.contains("vertex_tolerance is 0.2: expected more than 0 and less than 1 - damping"),
        "{said}"
    );
}

#[test]
fn top_prints_the_first_rows_best_first() {
    let folder = Folder::with_graph("g", EDGES);
    let bfs = folder.run("graph bfs g --source 30 --top 4").ok();
    assert_eq!(
        bfs.stdout,
        "vertex  parent  level\n    30      30      0\n    10      30      1\n    40      30      1\n    20      10      2\n"
    );
    assert!(bfs.stderr.starts_with("reached 5 of 8 vertices in 3 levels\n"), "{bfs:?}");
    let components = folder.run("graph components g --top 9 --quiet").ok();
    assert_eq!(
        components.stdout,
        "component  vertices\n       10         5\n       60         2\n       80         1\n"
    );
    assert_eq!(components.stderr, "");
    let communities = folder.run("graph communities g --iterations 1 --top 2 --quiet").ok();
    assert_eq!(communities.stdout, "community  vertices\n       10         2\n       30         2\n");
    let ranks = folder.run("graph pagerank g --top 3").ok().stdout;
    assert_eq!(ranks.split_whitespace().step_by(2).take(2).collect::<Vec<_>>(), ["vertex", "30"], "{ranks}");
    assert_eq!(ranks.lines().count(), 4);
}

#[test]
fn ties_of_a_top_go_to_the_smaller_vertex() {
    let folder = Folder::with_graph("ring", "5 7\n7 9\n9 3\n3 5\n");
    let table = folder.run("graph pagerank ring --top 3").ok().stdout;
    assert_eq!(table, "vertex      rank\n     3  0.250000\n     5  0.250000\n     7  0.250000\n");
}

#[test]
fn json_has_counters_facts_and_rows_and_nothing_else_is_printed() {
    let folder = Folder::with_graph("g", EDGES);
    let said =
        folder.run("graph bfs g --source 10 --top 2 -o tree.csv --json --memory 32MiB --threads 2").ok();
    assert_eq!(said.stderr, "");
    assert_eq!(folder.read("tree.csv"), TREE);
    let json = said.json();
    assert_eq!(json["command"], "graph bfs");
    assert_eq!(json["summary"]["reached"], 5);
    assert_eq!(json["summary"]["levels"], 5);
    let rows = json!([{"vertex": 10, "parent": 10, "level": 0}, {"vertex": 20, "parent": 10, "level": 1}]);
    assert_eq!(json["rows"], rows);
    let report = &json["report"];
    assert_eq!(report["memory_budget_bytes"], 32 << 20);
    assert_eq!(report["threads"], 2);
    for counter in ["bytes_read", "memory_resident_bytes_max", "memory_reserved_bytes_max"] {
        assert!(report[counter].as_u64().unwrap() > 0, "{counter}: {report}");
    }
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    for list in ["phases", "levels"] {
        assert!(report[list].is_array(), "{list}: {report}");
    }
    let made = folder.run("graph import - --name h --json").stdin("1 2\n").ok().json();
    assert_eq!((&made["command"], &made["summary"]["name"]), (&json!("graph import"), &json!("h")));
    assert!(made["report"]["bytes_written"].as_u64().unwrap() > 0);
}

#[test]
fn explain_tells_how_it_was_done() {
    let folder = Folder::with_graph("g", EDGES);
    let said = folder.run("graph pagerank g --explain --quiet --strategy merge --memory 16MiB").ok();
    for name in
        ["vertex state    in memory", "updates         combined by the merge strategy", "phase", "cores busy"]
    {
        assert!(said.stderr.lines().any(|line| line.starts_with(name)), "{name}: {said:?}");
    }
    // Each line of the plan is printed before the run, and only once.
    let plans: Vec<_> = said.stderr.lines().take_while(|line| line.starts_with("plan: ")).collect();
    assert_eq!(plans.len(), 2, "{said:?}");
    assert!(plans[0].starts_with("plan: vertex state in memory, updates through sort-reduce in"), "{said:?}");
    assert_eq!(plans[1], "plan: from superstep 1 on updates are sorted and merged", "{said:?}");
    assert!(folder.run("graph pagerank g --explain --json").ok().json().is_object());
}

#[test]
fn the_strategy_does_not_change_the_answer() {
    let folder = Folder::new();
    folder.run("graph generate kronecker --scale 12 --name k").ok();
    for verb in ["bfs k --source 1", "components k"] {
        let rows = |strategy: &str| {
            folder.run(&format!("graph {verb} -o - --memory 16MiB --quiet --strategy {strategy}")).ok().stdout
        };
        assert!(rows("dense") == rows("merge"), "{verb}");
    }
}

#[test]
fn the_regime_does_not_change_the_answer() {
    let folder = Folder::new();
    folder.run("graph generate kronecker --scale 12 --name k").ok();
    for verb in ["pagerank k", "components k"] {
        let run = |regime: &str| {
            folder.run(&format!("graph {verb} -o - --memory 16MiB --quiet --explain --regime {regime}")).ok()
        };
        let (semi, external) = (run("semi-external"), run("external"));
        assert!(semi.stdout == external.stdout, "{verb}");
        assert!(semi.stderr.contains("regime          semi-external"), "{verb}: {}", semi.stderr);
        assert!(external.stderr.contains("regime          external"), "{verb}: {}", external.stderr);
    }
    folder.run("graph pagerank k --regime external --strategy dense").exits(2);
    let said = folder.run("graph betweenness k --sources 4 --regime memory --explain").ok();
    assert!(said.stderr.contains("regime          in memory: vertices and edges"), "{}", said.stderr);
    assert!(said.stderr.contains("reading edges into memory"), "{}", said.stderr);
    folder.run("graph generate kronecker --scale 20 --edge-factor 1 --name large").ok();
    let said = folder.run("graph pagerank large --memory 12MiB --regime semi-external").exits(2);
    assert!(said.stderr.contains("the smallest budget that works is 21.6 MiB"), "{}", said.stderr);
    folder.run("graph pagerank large --memory 22MiB --regime semi-external").ok();
}

#[test]
fn check_says_no_to_a_wrong_answer_by_exit_code_1() {
    let folder = Folder::with_graph("g", EDGES);
    folder.write("right.csv", TREE);
    folder.run("graph check g right.csv --source 10").ok();
    folder.write("wrong.csv", TREE.replace("40,30,3", "40,30,2"));
    let said = folder.run("graph check g wrong.csv --source 10").exits(1);
    assert!(!said.stdout.is_empty() && !said.stderr.contains("inshore:"), "{said:?}");
    let json = folder.run("graph check g wrong.csv --source 10 --json").exits(1).json();
    assert_eq!(json["summary"]["good"], false);
}

#[test]
fn memory_stays_within_the_budget_and_64_mib() {
    let folder = Folder::new();
    let peak = |words: &str| {
        let json = folder.run(&format!("{words} --json --memory 16MiB")).ok().json();
        let bytes = json["report"]["memory_resident_bytes_max"].as_u64().unwrap();
        assert!(bytes <= (16 + 64) << 20, "{words}: {} MiB", bytes >> 20);
    };
    peak("graph generate kronecker --scale 17 --name k");
    peak("graph pagerank k --iterations 2 --top 100000 -o ranks.parquet");
    peak("graph components k --top 100000 -o components.csv");
}

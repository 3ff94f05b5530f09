//! Tests datasets that are removed and loaded again while a node is unreachable.

use inshore_nodes::SpreadId;

use super::*;

/// Nodes that leave and return, each time at a new address.
struct Members {
    folders: Vec<TempDir>,
    serving: Vec<Option<RunningAgent>>,
}

impl Members {
    fn new(count: usize) -> Members {
        let folders: Vec<TempDir> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut members = Members { folders, serving: (0..count).map(|_| None).collect() };
        (0..count).for_each(|node| members.come(node));
        members
    }

    fn come(&mut self, node: usize) {
        let store = Store::open(self.folders[node].path()).unwrap();
        let agent = Agent::new(store, works(&Plan::default()), config(&format!("n{node}")));
        self.serving[node] = Some(agent.serve("127.0.0.1:0".parse().unwrap()).unwrap());
    }

    fn go(&mut self, node: usize) -> String {
        self.serving[node].take().unwrap().address().to_string()
    }

    fn address(&self, node: usize) -> String {
        self.serving[node].as_ref().unwrap().address().to_string()
    }

    /// Returns a client of some of the nodes.
    fn nodes(&self, which: &[usize]) -> Nodes {
        client(which.iter().map(|&node| self.address(node)).collect(), None)
    }

    /// Returns the number of tombstones on a node.
    fn marks(&self, node: usize) -> usize {
        let store = Store::open(self.folders[node].path()).unwrap();
        store.list().unwrap().iter().filter(|found| found.kind == "removed").count()
    }
}

fn put(nodes: &Nodes, text: &str, copies: usize) {
    let options = LoadOptions { copies, ..LoadOptions::default() };
    nodes.put(&job(), "doc", ("text", None), Cursor::new(text.as_bytes()), &options).unwrap();
}

/// Reads the complete dataset, or returns the error.
fn read(nodes: &Nodes) -> Result<String, String> {
    let wholes = nodes.catalog().and_then(|catalog| catalog.named("doc")).map_err(told)?;
    let mut bytes = Vec::new();
    let gathered = run_on_nodes(nodes, &job(), &Contents, &wholes, &RunOptions::default(), |event| {
        if let Some(part) = event.part {
            bytes.extend(part?);
        }
        Ok::<_, ReadError>(Next::Go)
    });
    gathered.map_err(told)?;
    Ok(String::from_utf8(bytes).unwrap())
}

/// Returns the generation ids in a message.
fn ids(text: &str) -> Vec<SpreadId> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_dataset_that_was_put_anew_while_a_node_was_away_is_not_joined_with_what_that_node_has() {
    let mut members = Members::new(3);
    put(&members.nodes(&[0, 1, 2]), "old line\n", 3);
    let all = members.nodes(&[0, 1, 2]);
    let gone = members.go(2);
    let why = told(all.remove("doc").unwrap_err());
    assert!(why.contains("removed from 2 nodes, but") && why.contains(&gone), "{why}");
    assert!(why.contains(&format!("`inshore store repair doc` removes the rest from {gone}")), "{why}");
    put(&members.nodes(&[0, 1]), "new line\n", 2);
    members.come(2);
    let all = members.nodes(&[0, 1, 2]);
    let why = read(&all).unwrap_err();
    assert_eq!(ids(&why).len(), 2, "{why}");
    for part in
        ["store:doc: these nodes have different generations", ", removed 20", "`inshore store repair doc`"]
    {
        assert!(why.contains(part), "{part}: {why}");
    }
    for node in 0..3 {
        assert!(why.contains(&members.address(node)), "{why}");
    }
    // The listing has distinct titles.
    let titles: Vec<String> =
        all.catalog().unwrap().wholes().unwrap().iter().map(|whole| whole.title.clone()).collect();
    assert!(titles.len() == 2 && titles[0] != titles[1], "{titles:?}");
    let repaired = all.repair(&["doc".to_string()], None).unwrap();
    assert!(repaired.len() == 1 && repaired[0].absent.is_empty(), "{repaired:?}");
    assert_eq!(repaired[0].nodes, [members.address(2)]);
    assert_eq!(read(&all).unwrap(), "new line\n");
    assert_eq!((0..3).map(|node| members.marks(node)).sum::<usize>(), 0);
    assert!(all.repair(&[], None).unwrap().is_empty());
    assert_eq!(all.remove("doc").unwrap(), 2);
}

#[test]
fn a_removed_dataset_does_not_come_back_with_a_node() {
    let mut members = Members::new(3);
    put(&members.nodes(&[0, 1, 2]), "old line\n", 3);
    members.go(1);
    // The addresses of the client do not include the unreachable node.
    let why = told(members.nodes(&[0, 2]).remove("doc").unwrap_err());
    assert!(why.contains("not all of its nodes were given") && why.contains("store repair doc"), "{why}");
    members.come(1);
    let all = members.nodes(&[0, 1, 2]);
    let why = read(&all).unwrap_err();
    assert!(why.contains("a generation that was removed") && ids(&why).len() == 1, "{why}");
    assert_eq!(all.repair(&[], None).unwrap().len(), 1);
    assert!(read(&all).unwrap_err().contains("not found on any of the nodes"));
    assert_eq!((0..3).map(|node| members.marks(node)).sum::<usize>(), 0);
}

#[test]
fn a_mark_is_kept_until_every_node_has_confirmed_it() {
    let mut members = Members::new(4);
    put(&members.nodes(&[0, 1, 2, 3]), "old line\n", 4);
    let gone = [members.go(2), members.go(3)];
    members.nodes(&[0, 1]).remove("doc").unwrap_err();
    assert_eq!((members.marks(0), members.marks(1)), (1, 1));
    let repaired = members.nodes(&[0, 1]).repair(&[], None).unwrap();
    assert!(repaired.len() == 1 && repaired[0].nodes.is_empty(), "{repaired:?}");
    let mut both = gone.to_vec();
    both.sort();
    assert_eq!(repaired[0].absent, both);
    members.come(2);
    // The client of this repair does not name node 1, which has a tombstone.
    let repaired = members.nodes(&[0, 2]).repair(&[], None).unwrap();
    assert_eq!((&repaired[0].nodes[..], &repaired[0].absent[..]), (&[members.address(2)][..], &gone[1..]));
    assert_eq!((members.marks(0), members.marks(1)), (1, 1));
    // A confirmation that one node has recorded reaches the other nodes.
    let repaired = members.nodes(&[0, 1]).repair(&[], None).unwrap();
    assert_eq!(repaired[0].absent, gone[1..]);
    members.come(3);
    members.nodes(&[0, 1, 2, 3]).repair(&["doc".to_string()], None).unwrap();
    assert_eq!((0..4).map(|node| members.marks(node)).sum::<usize>(), 0);
    let why = told(members.nodes(&[0]).repair(&["doc".to_string()], None).unwrap_err());
    assert!(why.contains("store:doc: not found on any of the nodes"), "{why}");
}

#[test]
fn a_newer_generation_outdates_an_older_one_where_no_mark_is_left() {
    let mut members = Members::new(3);
    put(&members.nodes(&[0, 2]), "old line\n", 2);
    members.go(2);
    members.nodes(&[0]).remove("doc").unwrap_err();
    put(&members.nodes(&[0, 1]), "new line\n", 2);
    members.come(2);
    // The only node with the tombstone is lost.
    members.go(0);
    let rest = members.nodes(&[1, 2]);
    assert_eq!(ids(&read(&rest).unwrap_err()).len(), 2);
    let repaired = rest.repair(&[], None).unwrap();
    assert_eq!(repaired[0].nodes, [members.address(2)]);
    assert_eq!(read(&rest).unwrap(), "new line\n");
    // After the node's return, its tombstone is removed too.
    members.come(0);
    let all = members.nodes(&[0, 1, 2]);
    all.repair(&[], None).unwrap();
    assert_eq!(read(&all).unwrap(), "new line\n");
    assert_eq!((0..3).map(|node| members.marks(node)).sum::<usize>(), 0);
}

#[test]
fn of_two_live_generations_the_user_keeps_one() {
    let members = Members::new(2);
    put(&members.nodes(&[0]), "one\n", 1);
    put(&members.nodes(&[1]), "two\n", 1);
    let both = members.nodes(&[0, 1]);
    let why = read(&both).unwrap_err();
    assert!(why.contains(&members.address(0)) && why.contains(&members.address(1)), "{why}");
    let why = told(both.repair(&[], None).unwrap_err());
    assert!(
        why.contains("neither of these generations replaces the other") && why.contains("--keep ID"),
        "{why}"
    );
    assert_eq!(ids(&why).len(), 2, "{why}");
    let other = SpreadId(7);
    assert!(
        told(both.repair(&["doc".to_string()], Some(other)).unwrap_err()).contains("not one of its live")
    );
    // The repair keeps the generation on the second node.
    let at = |id: &SpreadId| why.find(&id.to_string()).unwrap();
    let second = why.find(&members.address(1)).unwrap();
    let kept = ids(&why).into_iter().filter(|id| at(id) < second).max_by_key(at).unwrap();
    let repaired = both.repair(&["doc".to_string()], Some(kept)).unwrap();
    assert_eq!(repaired[0].nodes, [members.address(0)]);
    assert_eq!(read(&both).unwrap(), "two\n");
}

#[test]
fn what_an_earlier_version_has_spread_is_refused_by_name() {
    let mut members = Members::new(1);
    members.go(0);
    {
        let store = Store::open(members.folders[0].path()).unwrap();
        let job = store.job(Budget::new(8 << 20, 1), Cancel::default()).unwrap();
        let mut builder = store.create_dataset(&job, "doc", "spread").unwrap();
        let mut map = builder.file("map", 4096, 1 << 20).unwrap();
        map.write(br#"{"version":1,"spread":1,"nodes":[],"pieces":[]}"#).unwrap();
        builder.add(map).unwrap();
        builder.commit(&1u64.to_le_bytes()).unwrap();
    }
    members.come(0);
    let nodes = members.nodes(&[0]);
    let why = read(&nodes).unwrap_err();
    assert!(why.contains("map version 1, expected 2") && why.contains("put it again"), "{why}");
    assert_eq!(nodes.remove("doc").unwrap(), 1);
    put(&nodes, "new\n", 1);
    assert_eq!(read(&nodes).unwrap(), "new\n");
}

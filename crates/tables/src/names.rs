//! Makes the names of columns unique.

use std::collections::{HashMap, HashSet};

/// Makes column names unique, as DuckDB does. The first column with a name keeps the name. Later columns with this name
/// get `_1`, `_2` and so on appended. A number is skipped if another column has the resulting name.
///
/// ```
/// let names = ["a", "a", "a_1", "a"].map(String::from).to_vec();
/// assert_eq!(inshore_tables::unique_names(names), ["a", "a_2", "a_1", "a_3"]);
/// ```
pub fn unique_names(names: Vec<String>) -> Vec<String> {
    let mut taken: HashSet<String> = names.iter().cloned().collect();
    if taken.len() == names.len() {
        return names;
    }
    let mut repeats: HashMap<String, usize> = HashMap::new();
    let mut unique = |name: String| {
        let Some(number) = repeats.get_mut(&name) else {
            repeats.insert(name.clone(), 0);
            return name;
        };
        loop {
            *number += 1;
            let other = format!("{name}_{number}");
            if taken.insert(other.clone()) {
                return other;
            }
        }
    };
    names.into_iter().map(&mut unique).collect()
}

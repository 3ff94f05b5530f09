//! Proposes corrections for command lines that cannot be parsed.
//!
//! For an unknown argument, clap proposes the most similar argument of the command, even if the two differ much
//! (`--stall` for `--stats`). For an unknown verb, clap searches for similar verbs only at the level of this verb, so
//! that `inshore put` does not lead to `inshore store put`. This module drops proposals that differ too much, and
//! searches for verbs at all levels.

use clap::{
    Command, Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Names and verbs of other programs, each with the equivalent verb of Inshore.
const ELSEWHERE: [(&str, &str); 21] = [
    ("bunzip2", "decompress"),
    ("bzip2", "compress"),
    ("cat", "store get"),
    ("du", "store df"),
    ("extract", "decompress"),
    ("find", "search"),
    ("grep", "search"),
    ("group", "reduce"),
    ("groupby", "reduce"),
    ("gunzip", "decompress"),
    ("gzip", "compress"),
    ("jellyfish", "count kmers"),
    ("kmc", "count kmers"),
    ("md5sum", "checksum"),
    ("query", "sql"),
    ("rg", "search"),
    ("select", "sql"),
    ("sha256sum", "checksum"),
    ("unzip", "decompress"),
    ("upload", "store put"),
    ("wc", "count words"),
];

/// Arguments of other programs that Inshore lacks: the verb of Inshore, the argument, and advice about equivalent
/// arguments.
const ARGUMENTS_ELSEWHERE: [(&str, &str, &str); 1] = [(
    "search",
    "--stats",
    "--counters FILE writes counters of the search as JSON, --explain prints the costs",
)];

/// Replaces the proposals in an error by better proposals, if there are any.
pub fn advised(mut error: Error, command: &Command) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidSubcommand) else {
                return error;
            };
            let meant = verbs_for(found, command);
            if !meant.is_empty() {
                error.remove(ContextKind::SuggestedSubcommand);
                let tip = |verb: String| StyledStr::from(format!("did you mean `inshore {verb}`?"));
                error.insert(
                    ContextKind::Suggested,
                    ContextValue::StyledStrs(meant.into_iter().map(tip).collect()),
                );
            }
        }
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidArg) else { return error };
            let found = found.clone();
            let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
            if let Some(ContextValue::String(proposed)) = error.get(ContextKind::SuggestedArg)
                && !is_near(name_of(&found), name_of(proposed))
            {
                error.remove(ContextKind::SuggestedArg);
                // The usage line is removed, since it shows the proposal that was dropped.
                error.remove(ContextKind::Usage);
            }
            let known = ARGUMENTS_ELSEWHERE.iter().find(|(verb, argument, _)| {
                *argument == found && usage.split_whitespace().any(|word| word == *verb)
            });
            if let Some((_, _, tip)) = known {
                let tips = ContextValue::StyledStrs(vec![StyledStr::from(*tip)]);
                error.insert(ContextKind::Suggested, tips);
            }
        }
        _ => {}
    }
    error
}

/// Returns the name of an argument, without dashes and value.
fn name_of(argument: &str) -> &str {
    let name = argument.trim_start_matches('-');
    name.split(['=', ' ']).next().unwrap_or(name)
}

/// Returns the verbs that the user may have meant by `found`. The first of these lists that is not empty is returned:
///
/// - the verbs with this name at any level,
/// - the equivalent of another program's verb with this name,
/// - all verbs with a similar spelling.
fn verbs_for(found: &str, command: &Command) -> Vec<String> {
    let mut all = Vec::new();
    add_verbs(command, "", &mut all);
    let last = |verb: &str| verb.rsplit(' ').next().unwrap_or_default().to_string();
    let chosen = |is_meant: &dyn Fn(&str) -> bool| -> Vec<String> {
        all.iter().filter(|verb| is_meant(&last(verb))).cloned().collect()
    };
    let elsewhere = || {
        let known =
            ELSEWHERE.iter().filter(|(name, verb)| *name == found && all.iter().any(|one| one == verb));
        known.map(|(_, verb)| verb.to_string()).collect::<Vec<_>>()
    };
    let named = chosen(&|verb| verb == found);
    let named = if named.is_empty() { elsewhere() } else { named };
    if named.is_empty() { chosen(&|verb| is_near(found, verb)) } else { named }
}

/// Adds the paths of all verbs below a command, such as "sort" and "store put".
fn add_verbs(command: &Command, path: &str, all: &mut Vec<String>) {
    for sub in command.get_subcommands() {
        let path = format!("{path} {}", sub.get_name()).trim_start().to_string();
        all.push(path.clone());
        add_verbs(sub, &path, all);
    }
}

/// Tells whether one word may be a misspelling of the other word. The number of wrong, missing, superfluous or swapped
/// letters may be at most a quarter of the shorter word's length, or 1 in short words.
fn is_near(one: &str, other: &str) -> bool {
    let most = (one.len().min(other.len()) / 4).max(1);
    one.len() > 2 && one.len().abs_diff(other.len()) <= most && strsim::osa_distance(one, other) <= most
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Returns the error message for a command line.
    fn message(line: &str) -> String {
        let mut command = Cli::command();
        let words = std::iter::once("inshore").chain(line.split(' '));
        let error = command.try_get_matches_from_mut(words).expect_err("it is not understood");
        advised(error, &command).to_string()
    }

    #[test]
    fn a_verb_that_stands_elsewhere_is_proposed_with_its_noun() {
        for (line, meant) in [
            ("put a.log", "inshore store put"),
            ("pagerank web", "inshore graph pagerank"),
            ("kmers a.fa", "inshore count kmers"),
            ("graph put a.log", "inshore store put"),
            ("grep x", "inshore search"),
            ("serach x", "inshore search"),
            ("graph pagernak web", "inshore graph pagerank"),
            ("sotr a", "inshore sort"),
        ] {
            let message = message(line);
            assert!(message.contains(&format!("did you mean `{meant}`?")), "{line}: {message}");
        }
        assert!(!message("xyzzy").contains("did you mean"));
    }

    #[test]
    fn an_argument_that_is_far_from_the_one_that_was_given_is_not_proposed() {
        let stats = message("search --stats x");
        assert!(!stats.contains("stall") && stats.contains("--counters FILE"), "{stats}");
        assert!(message("sort --memroy 1GiB a").contains("--memory"));
        assert!(message("search --ignore-cas x").contains("--ignore-case"));
    }

    #[test]
    fn every_verb_that_is_proposed_is_one() {
        let mut all = Vec::new();
        add_verbs(&Cli::command(), "", &mut all);
        for (_, verb) in ELSEWHERE {
            assert!(all.iter().any(|known| known == verb), "{verb}");
        }
    }
}

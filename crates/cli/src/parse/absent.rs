//! Handles verbs whose feature this build lacks. The parser still accepts the names of these verbs, so that the error
//! can name the missing feature.

use anyhow::anyhow;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use inshore::FEATURES;

use crate::{args::Cli, parse::advice::advised};

/// The verbs that a build may lack, each with the feature that it needs.
const VERBS: [(&[&str], &str); 13] = [
    (&["graph"], "graph"),
    (&["sort"], "records"),
    (&["reduce"], "records"),
    (&["count", "kmers"], "records"),
    (&["count", "values"], "records"),
    (&["count", "words"], "text"),
    (&["search"], "text"),
    (&["language"], "text"),
    (&["compress"], "text"),
    (&["decompress"], "text"),
    (&["checksum"], "text"),
    (&["sql"], "sql"),
    (&["store", "repair"], "nodes"),
];
/// The nouns that a build may lack together with all of their verbs, each with the feature that it needs.
const NOUNS: [(&[&str], &str); 3] = [(&["kernel"], "wasm"), (&["node"], "nodes"), (&["nearest"], "vectors")];

/// The names of all features, each with a flag that tells whether the build has it.
type Features = [(&'static str, bool)];

/// Parses the command line. For `--help`, and for arguments that cannot be parsed, clap prints a text and this function
/// ends the process.
///
/// # Errors
/// Fails if a verb needs a feature that this build lacks.
pub fn parse() -> anyhow::Result<Cli> {
    let mut command = with_absent(Cli::command(), &FEATURES);
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let matches = parsed.unwrap_or_else(|error| advised(error, &command).exit());
    if let Some((verb, feature)) = absent_verb(&matches, &FEATURES) {
        return Err(lacks(&format!("`inshore {}`", verb.join(" ")), feature));
    }
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit()))
}

/// Creates the error of a verb or option whose feature this build lacks.
pub fn lacks(what: &str, feature: &str) -> anyhow::Error {
    let has: Vec<&str> = FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    anyhow!(
        "{what} needs the feature `{feature}`, which this build lacks (it has: {}): install with `cargo install --path crates/cli`, \
         which has all features, or add `{feature}` to --features",
        has.join(", ")
    )
}

fn absent(features: &Features) -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
    let is_absent = |feature: &str| features.iter().any(|(name, has)| *name == feature && !has);
    VERBS.into_iter().chain(NOUNS).filter(move |(_, feature)| is_absent(feature))
}

/// Adds the verbs that this build lacks to the parser. Each added verb accepts any arguments.
fn with_absent(command: Command, features: &Features) -> Command {
    absent(features).fold(command, |command, (path, feature)| add(command, path, feature))
}

fn add(command: Command, path: &[&'static str], feature: &str) -> Command {
    let (&name, rest) = path.split_first().expect("a verb has a name");
    if command.find_subcommand(name).is_some() {
        return match rest {
            [] => command,
            rest => command.mut_subcommand(name, |sub| add(sub, rest, feature)),
        };
    }
    let arguments = Arg::new("arguments").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
    let about = format!("Not in this build: it needs the feature `{feature}`");
    command.subcommand(Command::new(name).about(about).disable_help_flag(true).arg(arguments.hide(true)))
}

/// Returns the verb of a command line if this build lacks it, and the feature that the verb needs.
fn absent_verb(matches: &ArgMatches, features: &Features) -> Option<(&'static [&'static str], &'static str)> {
    let (noun, sub) = matches.subcommand()?;
    let verb = sub.subcommand_name();
    absent(features).find(|(path, _)| match path {
        [name] => *name == noun,
        [name, rest] => *name == noun && verb.is_none_or(|verb| verb == *rest),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_that_needs_a_feature_is_one() {
        for (path, feature) in VERBS.into_iter().chain(NOUNS) {
            let has = FEATURES.iter().find(|(name, _)| *name == feature).expect("it is a feature").1;
            let (command, mut found) = (Cli::command(), true);
            let mut command = &command;
            for name in path {
                match command.find_subcommand(name) {
                    Some(sub) => command = sub,
                    None => found = false,
                }
            }
            assert_eq!(found, has, "{path:?}");
        }
    }

    /// Tests the parser of a build whose only feature is `graph`. `scripts/features.sh` tests such builds themselves.
    #[test]
    fn a_verb_whose_feature_is_absent_is_known_by_name() {
        let features = FEATURES.map(|(name, _)| (name, name == "graph"));
        let nouns = ["graph", "store", "completions", "man"];
        let command = Cli::command();
        let rest: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        let few = rest.iter().filter(|name| nouns.contains(name));
        let few = few.fold(Command::new("inshore"), |few, name| {
            few.subcommand(command.find_subcommand(name).expect("it is one").clone())
        });
        let few = with_absent(few, &features);
        for (words, wanted) in [
            ("inshore sql SELECT --memory 1GiB", Some("sql")),
            ("inshore search -i -e x --help", Some("text")),
            ("inshore count words a.txt", Some("text")),
            ("inshore count kmers a.fa -k 5", Some("records")),
            ("inshore sort --help", Some("records")),
            ("inshore node serve", Some("nodes")),
            ("inshore kernel run a.wasm b", Some("wasm")),
            ("inshore graph ls", None),
            ("inshore store ls", None),
        ] {
            let matches = few.clone().try_get_matches_from(words.split(' ')).expect(words);
            let found = absent_verb(&matches, &features);
            assert_eq!(found.map(|(_, feature)| feature), wanted, "{words}");
        }
        assert!(few.clone().try_get_matches_from(["inshore", "sortt"]).is_err());
        let told = lacks("`inshore sql`", "sql").to_string();
        assert!(told.contains("`inshore sql` needs the feature `sql`"), "{told}");
    }
}

//! Which files are searched: those below folders, with the rules of .gitignore and its kin, in the order of paths.

use std::path::{Path, PathBuf};

use ignore::{WalkBuilder, overrides::OverrideBuilder, types::TypesBuilder};
use inshore_neardata::Source;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, TextOptions, text_source};

/// Which files below folders are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalkOptions {
    /// Files whose paths match one of these; behind '!', files that match none.
    pub globs: Vec<String>,
    /// Files of these types; see [`file_types`].
    pub types: Vec<String>,
    /// No files of these types.
    pub types_not: Vec<String>,
    /// Hidden files and folders too.
    pub hidden: bool,
    /// No .gitignore, .ignore or .rgignore is heeded.
    pub no_ignore: bool,
    /// Symbolic links are followed.
    pub follow: bool,
    /// So many folders down at most.
    pub max_depth: Option<usize>,
}

/// A file that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its path; `-` is standard input.
    pub path: PathBuf,
    /// Whether the user named it, and not a folder that it lies in.
    pub is_named: bool,
}

impl Candidate {
    /// The file as text.
    pub fn source(&self, options: TextOptions) -> Source {
        text_source(&self.path, self.options(options))
    }

    /// How it becomes text: archives that a walk found are not meant to be unpacked.
    pub fn options(&self, options: TextOptions) -> TextOptions {
        TextOptions { keep_archives: !self.is_named, ..options }
    }
}

/// The files below `paths`, in the order of paths; without any, those below the current folder, called as they are from
/// there. A path that is a file is meant whatever the options say; one that cannot be looked at, and a folder that cannot be
/// read, is an error in its place. What standard output goes to is left out.
///
/// # Errors
/// [`Error::BadOption`] for a glob that is none, or a type that is not known.
pub fn walk(
    paths: &[PathBuf],
    options: &WalkOptions,
) -> Result<impl Iterator<Item = inshore_neardata::Result<Candidate>> + Send + use<>> {
    let here = PathBuf::from("./");
    let is_here = paths.is_empty();
    let (first, rest) = paths.split_first().unwrap_or((&here, &[]));
    let walk = builder(first, rest, options)?.build();
    Ok(walk.filter_map(move |entry| match entry {
        Ok(entry) => {
            let is_named = entry.depth() == 0 && !entry.path().is_dir();
            let is_file = entry.file_type().is_none_or(|kind| kind.is_file());
            let path = match entry.path().strip_prefix("./") {
                _ if entry.is_stdin() => PathBuf::from("-"),
                Ok(path) if is_here => path.to_path_buf(),
                _ => entry.into_path(),
            };
            (is_named || is_file).then_some(Ok(Candidate { path, is_named }))
        }
        Err(error) => Some(Err(of_walk(error))),
    }))
}

fn builder(first: &Path, rest: &[PathBuf], options: &WalkOptions) -> Result<WalkBuilder> {
    let mut builder = WalkBuilder::new(first);
    for path in rest {
        builder.add(path);
    }
    let heeds = !options.no_ignore;
    builder
        .hidden(!options.hidden)
        .parents(heeds)
        .ignore(heeds)
        .git_ignore(heeds)
        .git_global(heeds)
        .git_exclude(heeds)
        .follow_links(options.follow)
        .skip_stdout(true)
        .max_depth(options.max_depth)
        .overrides(overrides(options)?)
        .types(types(options)?)
        .sort_by_file_path(Path::cmp);
    if heeds {
        builder.add_custom_ignore_filename(".rgignore");
    }
    Ok(builder)
}

fn overrides(options: &WalkOptions) -> Result<ignore::overrides::Override> {
    let here = std::env::current_dir().map_err(|source| inshore_store::Error::Io {
        what: "find the current folder".to_string(),
        path: ".".into(),
        source,
    })?;
    let mut builder = OverrideBuilder::new(here);
    for glob in &options.globs {
        let refuse = |error: ignore::Error| bad("glob", glob, error);
        builder.add(glob).map_err(refuse)?;
    }
    builder.build().map_err(|error| bad("glob", &options.globs.join(" "), error))
}

fn types(options: &WalkOptions) -> Result<ignore::types::Types> {
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    for name in &options.types {
        builder.select(name);
    }
    for name in &options.types_not {
        builder.negate(name);
    }
    let names = || [&options.types[..], &options.types_not[..]].concat().join(" ");
    builder.build().map_err(|error| bad("type", &names(), error))
}

fn bad(option: &'static str, found: &str, error: ignore::Error) -> Error {
    Error::BadOption { option, found: found.to_string(), what: error.to_string() }
}

/// What the system said, with the path once; else what the walk says, such as of links that go in circles.
fn of_walk(error: ignore::Error) -> inshore_neardata::Error {
    let path = match &error {
        ignore::Error::WithPath { path, .. } => Some(path.clone()),
        ignore::Error::WithDepth { err, .. } => match &**err {
            ignore::Error::WithPath { path, .. } => Some(path.clone()),
            _ => None,
        },
        _ => None,
    };
    let code = error.io_error().and_then(system_code);
    match (path, code) {
        (Some(path), Some(code)) => inshore_store::Error::Io {
            what: "open".to_string(),
            path,
            source: std::io::Error::from_raw_os_error(code),
        }
        .into(),
        _ => inshore_neardata::Error::Stream(Box::new(error)),
    }
}

/// The system's number of an error, which whoever walks has wrapped in errors of its own.
fn system_code(error: &std::io::Error) -> Option<i32> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let code = match error.downcast_ref::<std::io::Error>() {
            Some(error) => error.raw_os_error().ok_or_else(|| error.get_ref()),
            None => Err(None),
        };
        cause = match code {
            Ok(code) => return Some(code),
            Err(Some(inner)) => Some(inner),
            Err(None) => error.source(),
        };
    }
    None
}

/// The types of files that are known, each with its globs.
pub fn file_types() -> Vec<String> {
    let definitions = TypesBuilder::new().add_defaults().definitions();
    definitions.iter().map(|known| format!("{}: {}", known.name(), known.globs().join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(paths: &[PathBuf], options: &WalkOptions) -> Vec<String> {
        walk(paths, options)
            .unwrap()
            .map(|found| match found {
                Ok(Candidate { path, is_named }) => {
                    format!("{}{}", path.file_name().unwrap().display(), if is_named { "!" } else { "" })
                }
                Err(error) => error.to_string(),
            })
            .collect()
    }

    #[test]
    fn folders_are_walked_in_order_and_what_is_ignored_is_named_to_be_meant() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        for name in ["b.txt", "a.rs", ".hidden", "left.log", "deep/c.txt"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::write(at(".ignore"), "*.log\n").unwrap();
        let all = [folder.path().to_path_buf()];
        let options = WalkOptions::default();
        assert_eq!(found(&all, &options), ["a.rs", "b.txt", "c.txt"]);
        assert_eq!(found(&[at("left.log"), at("deep")], &options), ["left.log!", "c.txt"]);
        let options = WalkOptions { no_ignore: true, max_depth: Some(1), ..WalkOptions::default() };
        assert_eq!(found(&all, &options), ["a.rs", "b.txt", "left.log"]);
        let options = WalkOptions { types: vec!["rust".to_string()], ..WalkOptions::default() };
        assert_eq!(found(&all, &options), ["a.rs"]);
        let options =
            WalkOptions { globs: vec!["!*.txt".to_string()], hidden: true, ..WalkOptions::default() };
        assert_eq!(found(&all, &options), [".hidden", ".ignore", "a.rs"]);
        let missing = found(&[at("missing"), at("deep")], &WalkOptions::default());
        assert!(missing[0].contains("missing: cannot open: No such file"), "{missing:?}");
        assert_eq!(missing[1..], ["c.txt"]);
    }

    #[test]
    fn globs_and_types_that_are_none_are_refused_by_name() {
        let refused = |options: WalkOptions| {
            walk(&[PathBuf::from(".")], &options).err().expect("it is refused").to_string()
        };
        let glob = refused(WalkOptions { globs: vec!["a[".to_string()], ..WalkOptions::default() });
        assert!(glob.starts_with("glob: \"a[\": "), "{glob}");
        let kind = refused(WalkOptions { types: vec!["tongue".to_string()], ..WalkOptions::default() });
        assert!(kind.starts_with("type: \"tongue\": ") && kind.contains("unrecognized"), "{kind}");
    }
}

//! This module lists the files that a search reads, in the order of their paths. The list contains the files below
//! folders, without those that the rules of .gitignore and similar files exclude.

use std::path::{Path, PathBuf};

use ignore::{WalkBuilder, overrides::OverrideBuilder, types::TypesBuilder};
use inshore_kernel::Source;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, TextOptions, text_source};

/// The options that select files below folders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalkOptions {
    /// The globs that select files. The path of a selected file must match one of these globs. A glob that begins with
    /// '!' excludes the files that match the rest of the glob.
    pub globs: Vec<String>,
    /// The types of selected files. [`file_types`] lists all types.
    pub types: Vec<String>,
    /// The types of files that are excluded.
    pub types_not: Vec<String>,
    /// Includes hidden files and folders.
    pub hidden: bool,
    /// Disregards the rules in .gitignore, .ignore and .rgignore.
    pub no_ignore: bool,
    /// Follows symbolic links.
    pub follow: bool,
    /// The largest depth of folders that are listed.
    pub max_depth: Option<usize>,
}

/// A selected file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkedFile {
    /// The path of the file. `-` is standard input.
    pub path: PathBuf,
    /// True if the user named the file itself. False if the user named a folder that contains the file.
    pub is_named: bool,
}

impl WalkedFile {
    /// Opens the file as text.
    pub fn source(&self, options: TextOptions) -> Source {
        text_source(&self.path, self.options(options))
    }

    /// Returns the options for reading this file. If a walk found the file, an archive is read as plain bytes.
    pub fn options(&self, options: TextOptions) -> TextOptions {
        TextOptions { keep_archives: !self.is_named, ..options }
    }
}

/// Lists the files below `paths`, in the order of paths. Without paths, the files below the current folder are listed,
/// with names relative to that folder. A path that names a file is always listed, regardless of the options. A path or
/// folder that cannot be read becomes an error at its position in the list. The file to which standard output is
/// redirected is skipped.
///
/// # Errors
/// Returns [`Error::BadOption`] if a glob is invalid or a file type is unknown.
pub fn walk(
    paths: &[PathBuf],
    options: &WalkOptions,
) -> Result<impl Iterator<Item = inshore_kernel::Result<WalkedFile>> + Send + use<>> {
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
            (is_named || is_file).then_some(Ok(WalkedFile { path, is_named }))
        }
        Err(error) => Some(Err(walk_error(error))),
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

/// Converts an error of the walk. If the error has a path and an error number of the operating system, the result has
/// both. Otherwise the result has the message of the walk, for example about cyclic links.
fn walk_error(error: ignore::Error) -> inshore_kernel::Error {
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
        _ => inshore_kernel::Error::Stream(Box::new(error)),
    }
}

/// Finds the system's error number inside the errors that the walk wraps.
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

/// Returns the known file types, each with its globs.
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
                Ok(WalkedFile { path, is_named }) => {
                    format!("{}{}", path.file_name().unwrap().display(), if is_named { "!" } else { "" })
                }
                Err(error) => error.to_string(),
            })
            .collect()
    }

    #[test]
    fn folders_are_walked_in_order_and_ignored_files_are_read_if_named() {
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
    fn invalid_globs_and_unknown_types_are_refused_by_name() {
        let refused = |options: WalkOptions| {
            walk(&[PathBuf::from(".")], &options).err().expect("it is refused").to_string()
        };
        let glob = refused(WalkOptions { globs: vec!["a[".to_string()], ..WalkOptions::default() });
        assert!(glob.starts_with("glob: \"a[\": "), "{glob}");
        let kind = refused(WalkOptions { types: vec!["tongue".to_string()], ..WalkOptions::default() });
        assert!(kind.starts_with("type: \"tongue\": ") && kind.contains("unrecognized"), "{kind}");
    }
}

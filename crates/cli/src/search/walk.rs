//! Which files are searched.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ignore::{Walk, WalkBuilder, overrides::OverrideBuilder, types::TypesBuilder};

use super::words::Search;

/// A file that is searched.
pub struct Candidate {
    pub path: PathBuf,
    /// Whether the user named it, and not a folder that it lies in.
    pub is_named: bool,
}

/// The files below `paths`, in the order of paths.
pub fn walk(words: &Search, paths: &[PathBuf]) -> Result<Walk> {
    let (first, rest) = paths.split_first().expect("the current folder, if no other");
    let mut builder = WalkBuilder::new(first);
    for path in rest {
        builder.add(path);
    }
    let ignoring = !(words.no_ignore || words.unrestricted > 0);
    builder
        .hidden(!(words.hidden || words.unrestricted > 1))
        .parents(ignoring)
        .ignore(ignoring)
        .git_ignore(ignoring)
        .git_global(ignoring)
        .git_exclude(ignoring)
        .follow_links(words.follow)
        .skip_stdout(true)
        .max_depth(words.max_depth)
        .overrides(overrides(words)?)
        .types(types(words)?)
        .sort_by_file_path(Path::cmp);
    if ignoring {
        builder.add_custom_ignore_filename(".rgignore");
    }
    Ok(builder.build())
}

fn overrides(words: &Search) -> Result<ignore::overrides::Override> {
    let mut builder = OverrideBuilder::new(std::env::current_dir().context("there is no current folder")?);
    for glob in &words.glob {
        builder.add(glob).with_context(|| format!("bad --glob {glob:?}"))?;
    }
    Ok(builder.build()?)
}

fn types(words: &Search) -> Result<ignore::types::Types> {
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    for name in &words.types {
        builder.select(name);
    }
    for name in &words.type_not {
        builder.negate(name);
    }
    Ok(builder.build()?)
}

/// The types that are known, each with its globs.
pub fn type_list() -> Vec<String> {
    let definitions = TypesBuilder::new().add_defaults().definitions();
    definitions.iter().map(|known| format!("{}: {}", known.name(), known.globs().join(", "))).collect()
}

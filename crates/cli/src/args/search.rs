//! `inshore search`, which has the arguments of ripgrep wherever ripgrep has an equivalent.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Search files for lines that match a pattern
///
/// Works like ripgrep: patterns are regular expressions, folders are searched with the rules of .gitignore, .ignore and
/// .rgignore, and hidden and binary files are skipped. The exit codes are 0 (a match), 1 (no match) and 2 (an error).
/// Results come in the order of paths, regardless of the number of threads. Large files are searched by all threads,
/// and read past the page cache unless they are cached already. store:NAME names a dataset of the store. As in ripgrep,
/// --json and -o select what is printed. --output names the file to write, and --counters names the file for counters.
#[derive(Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  inshore search 'timeout after [0-9]+ ms' logs/
  inshore search -F -f needles.txt -c big.txt --memory 256MiB
  inshore search -z -i error access.log.gz --output errors.txt
  inshore search -o 'took ([0-9.]+) s' -r '$1' src -g '*.log'"
)]
pub struct Search {
    /// The pattern: a regular expression, unless -F is given. If -e or -f gives patterns, this argument is the first
    /// path
    #[arg(value_name = "PATTERN", required_unless_present_any = ["regexp", "file", "files"])]
    pub pattern: Option<String>,
    /// Files and folders; - is standard input, store:NAME a dataset [default: the current folder, or standard input if it is a
    /// pipe]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// A pattern; repeatable. A line matches if any pattern matches
    #[arg(short = 'e', long, value_name = "PATTERN", help_heading = "Pattern", allow_hyphen_values = true)]
    pub regexp: Vec<String>,
    /// A file with a pattern in each line; - is standard input
    #[arg(short = 'f', long, value_name = "FILE", help_heading = "Pattern", allow_hyphen_values = true)]
    pub file: Vec<PathBuf>,
    /// Patterns are literal texts and not regular expressions
    #[arg(short = 'F', long, help_heading = "Pattern")]
    pub fixed_strings: bool,
    /// Ignore case
    #[arg(short, long, help_heading = "Pattern", overrides_with_all = ["case_sensitive", "smart_case"])]
    pub ignore_case: bool,
    /// Do not ignore case (the default without -i and -S)
    #[arg(short = 's', long, help_heading = "Pattern", overrides_with_all = ["ignore_case", "smart_case"])]
    pub case_sensitive: bool,
    /// Ignore case for patterns without a capital letter
    #[arg(short = 'S', long, help_heading = "Pattern", overrides_with_all = ["ignore_case", "case_sensitive"])]
    pub smart_case: bool,
    /// Match whole words only
    #[arg(short = 'w', long, help_heading = "Pattern")]
    pub word_regexp: bool,
    /// Match whole lines only
    #[arg(short = 'x', long, help_heading = "Pattern")]
    pub line_regexp: bool,
    /// Show the lines that do not match
    #[arg(short = 'v', long, help_heading = "Pattern")]
    pub invert_match: bool,
    /// Let matches span lines; each file is read into memory. A dot does not match a line feed, except after (?s)
    #[arg(short = 'U', long, help_heading = "Pattern", overrides_with = "no_multiline")]
    pub multiline: bool,
    /// Let no match span lines (the default without -U)
    #[arg(long, hide = true, overrides_with = "multiline")]
    pub no_multiline: bool,
    /// With -U, let a dot match line feeds too
    #[arg(long, help_heading = "Pattern")]
    pub multiline_dotall: bool,
    /// Treat a carriage return before the line feed as part of the line's end
    #[arg(long, help_heading = "Pattern")]
    pub crlf: bool,

    /// Show how many lines match in each file; with -o, how many matches there are
    #[arg(short, long, help_heading = "Output")]
    pub count: bool,
    /// Show how many matches there are in each file
    #[arg(long, help_heading = "Output")]
    pub count_matches: bool,
    /// With -c, show files without matches too
    #[arg(long, help_heading = "Output")]
    pub include_zero: bool,
    /// Show the paths of files that have a match
    #[arg(short = 'l', long, help_heading = "Output")]
    pub files_with_matches: bool,
    /// Show the paths of files without a match
    #[arg(long, help_heading = "Output")]
    pub files_without_match: bool,
    /// Show nothing (same as --quiet); the exit code tells whether there is a match
    #[arg(short = 'q', help_heading = "Output")]
    pub q: bool,
    /// Show only the matches, without the rest of their lines
    #[arg(short = 'o', long, help_heading = "Output")]
    pub only_matching: bool,
    /// Show this text instead of the match: $1 and $NAME stand for groups of the pattern, $0 for the whole match
    #[arg(short = 'r', long, value_name = "TEXT", help_heading = "Output", allow_hyphen_values = true)]
    pub replace: Option<String>,
    /// Show the byte offset, from 0, of each line in its file (with -o, of each match)
    #[arg(short = 'b', long, visible_alias = "offsets", help_heading = "Output")]
    pub byte_offset: bool,
    /// Show line numbers (the default on a terminal)
    #[arg(short = 'n', long, help_heading = "Output", overrides_with = "no_line_number")]
    pub line_number: bool,
    /// Show no line numbers
    #[arg(short = 'N', long, help_heading = "Output", overrides_with = "line_number")]
    pub no_line_number: bool,
    /// Show the column of the first match, in bytes from 1
    #[arg(long, help_heading = "Output")]
    pub column: bool,
    /// Show the path with each line, also for a single file
    #[arg(short = 'H', long, help_heading = "Output", overrides_with = "no_filename")]
    pub with_filename: bool,
    /// Never show paths
    #[arg(short = 'I', long, help_heading = "Output", overrides_with = "with_filename")]
    pub no_filename: bool,
    /// Show the path above the lines of a file (the default on a terminal)
    #[arg(long, help_heading = "Output", overrides_with = "no_heading")]
    pub heading: bool,
    /// Show the path before each line
    #[arg(long, help_heading = "Output", overrides_with = "heading")]
    pub no_heading: bool,
    /// Select when to use colours
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", help_heading = "Output")]
    pub color: Color,
    /// End paths with a NUL byte, for xargs -0
    #[arg(short = '0', long, help_heading = "Output")]
    pub null: bool,
    /// Show this number of lines after each match
    #[arg(short = 'A', long, value_name = "N", help_heading = "Output")]
    pub after_context: Option<usize>,
    /// Show this number of lines before each match
    #[arg(short = 'B', long, value_name = "N", help_heading = "Output")]
    pub before_context: Option<usize>,
    /// Show this number of lines before and after each match
    #[arg(short = 'C', long, value_name = "N", help_heading = "Output")]
    pub context: Option<usize>,
    /// Show at most this number of matching lines of each file
    #[arg(short, long, value_name = "N", help_heading = "Output")]
    pub max_count: Option<u64>,
    /// The file to write instead of standard output; it appears complete or not at all
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Write counters and results to this file, as JSON (other commands: --json)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub counters: Option<PathBuf>,

    /// Search only files whose paths match GLOB, or do not match GLOB if it begins with '!'
    #[arg(short, long, value_name = "GLOB", help_heading = "Files", allow_hyphen_values = true)]
    pub glob: Vec<String>,
    /// Search only files of a type, such as rust or csv; see --type-list
    #[arg(short = 't', long = "type", value_name = "TYPE", help_heading = "Files")]
    pub types: Vec<String>,
    /// Do not search files of a type
    #[arg(short = 'T', long, value_name = "TYPE", help_heading = "Files")]
    pub type_not: Vec<String>,
    /// Search hidden files and folders
    #[arg(short = '.', long, help_heading = "Files")]
    pub hidden: bool,
    /// Ignore .gitignore, .ignore and .rgignore
    #[arg(long, help_heading = "Files")]
    pub no_ignore: bool,
    /// Skip fewer files: -u means --no-ignore, -uu adds --hidden, and -uuu also searches binary files
    #[arg(short = 'u', long, action = clap::ArgAction::Count, help_heading = "Files")]
    pub unrestricted: u8,
    /// Follow symbolic links
    #[arg(short = 'L', long, help_heading = "Files")]
    pub follow: bool,
    /// Descend at most this number of folders
    #[arg(short = 'd', long, value_name = "N", help_heading = "Files")]
    pub max_depth: Option<usize>,
    /// Decompress gzip, bzip2, zstd and lz4, recognized by their first bytes. Files in xz and other formats are
    /// reported as errors
    #[arg(short = 'z', long, help_heading = "Files")]
    pub search_zip: bool,
    /// Search binary files as text
    #[arg(short = 'a', long, help_heading = "Files")]
    pub text: bool,
    /// Search binary files, and only report that they match
    #[arg(long, help_heading = "Files")]
    pub binary: bool,
    /// Show the paths that would be searched, and search nothing
    #[arg(long, help_heading = "Files")]
    pub files: bool,
    /// Show the types of files that -t and -T accept
    #[arg(long, exclusive = true, help_heading = "Files")]
    pub type_list: bool,
}

/// Selects when output has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

//! `inshore search`: the arguments of ripgrep, wherever it has one for the same thing.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Search files for lines that match a pattern
///
/// What ripgrep's users expect: regular expressions, folders searched with the rules of .gitignore, .ignore and .rgignore,
/// hidden and binary files left out, and the exit codes 0 (a match), 1 (none) and 2 (an error). Results come in the order
/// of paths, whatever the number of threads; a large file is searched by all of them, and read past the page cache where
/// it is not in it. store:NAME names a dataset of the store. Here --json and -o mean what they mean to ripgrep: the file
/// to write is --output, and counters go to --counters.
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
    /// What to look for: a regular expression, unless -F; the first path where -e or -f name patterns
    #[arg(value_name = "PATTERN", required_unless_present_any = ["regexp", "file", "files"])]
    pub pattern: Option<String>,
    /// Files and folders; - is standard input, store:NAME a dataset [default: the current folder, or standard input where
    /// something is piped into it]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// A pattern; may be given several times, and then any of them matches
    #[arg(short = 'e', long, value_name = "PATTERN", help_heading = "Pattern", allow_hyphen_values = true)]
    pub regexp: Vec<String>,
    /// A file with a pattern in each line; - is standard input
    #[arg(short = 'f', long, value_name = "FILE", help_heading = "Pattern", allow_hyphen_values = true)]
    pub file: Vec<PathBuf>,
    /// Patterns are texts and not regular expressions
    #[arg(short = 'F', long, help_heading = "Pattern")]
    pub fixed_strings: bool,
    /// Case makes no difference
    #[arg(short, long, help_heading = "Pattern", overrides_with_all = ["case_sensitive", "smart_case"])]
    pub ignore_case: bool,
    /// Case makes a difference, as it does unless -i or -S say something else
    #[arg(short = 's', long, help_heading = "Pattern", overrides_with_all = ["ignore_case", "smart_case"])]
    pub case_sensitive: bool,
    /// Case makes no difference to patterns without a capital letter
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
    /// Let matches go across line ends; each file is read into memory. A dot matches no line feed but after (?s)
    #[arg(short = 'U', long, help_heading = "Pattern", overrides_with = "no_multiline")]
    pub multiline: bool,
    /// Let no match go across a line's end, as it is without -U
    #[arg(long, hide = true, overrides_with = "multiline")]
    pub no_multiline: bool,
    /// With -U, let a dot match line feeds too
    #[arg(long, help_heading = "Pattern")]
    pub multiline_dotall: bool,
    /// Take a carriage return before the line feed for a part of the line's end
    #[arg(long, help_heading = "Pattern")]
    pub crlf: bool,

    /// Show how many lines match in each file; with -o, how many matches there are
    #[arg(short, long, help_heading = "Output")]
    pub count: bool,
    /// Show how many matches there are in each file
    #[arg(long, help_heading = "Output")]
    pub count_matches: bool,
    /// Show files with 0 too, with -c
    #[arg(long, help_heading = "Output")]
    pub include_zero: bool,
    /// Show the paths of files that have a match
    #[arg(short = 'l', long, help_heading = "Output")]
    pub files_with_matches: bool,
    /// Show the paths of files that have none
    #[arg(long, help_heading = "Output")]
    pub files_without_match: bool,
    /// Show nothing (as --quiet): the exit code tells whether there is a match
    #[arg(short = 'q', help_heading = "Output")]
    pub q: bool,
    /// Show the matches and not their lines
    #[arg(short = 'o', long, help_heading = "Output")]
    pub only_matching: bool,
    /// Show this instead of what matches: $1 and $NAME stand for groups of the pattern, $0 for all of the match
    #[arg(short = 'r', long, value_name = "TEXT", help_heading = "Output", allow_hyphen_values = true)]
    pub replace: Option<String>,
    /// Show where in the file, in bytes from 0, each line (with -o, each match) begins
    #[arg(short = 'b', long, visible_alias = "offsets", help_heading = "Output")]
    pub byte_offset: bool,
    /// Show numbers of lines, as on a terminal
    #[arg(short = 'n', long, help_heading = "Output", overrides_with = "no_line_number")]
    pub line_number: bool,
    /// Show no numbers of lines
    #[arg(short = 'N', long, help_heading = "Output", overrides_with = "line_number")]
    pub no_line_number: bool,
    /// Show in which byte of the line, from 1, the first match begins
    #[arg(long, help_heading = "Output")]
    pub column: bool,
    /// Show the path with each line, also of a single file
    #[arg(short = 'H', long, help_heading = "Output", overrides_with = "no_filename")]
    pub with_filename: bool,
    /// Never show paths
    #[arg(short = 'I', long, help_heading = "Output", overrides_with = "with_filename")]
    pub no_filename: bool,
    /// Show the path above the lines of a file, as on a terminal
    #[arg(long, help_heading = "Output", overrides_with = "no_heading")]
    pub heading: bool,
    /// Show the path before each line
    #[arg(long, help_heading = "Output", overrides_with = "heading")]
    pub no_heading: bool,
    /// When to use colours
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", help_heading = "Output")]
    pub color: Color,
    /// End paths with a NUL byte, for xargs -0
    #[arg(short = '0', long, help_heading = "Output")]
    pub null: bool,
    /// Show so many lines after each match
    #[arg(short = 'A', long, value_name = "N", help_heading = "Output")]
    pub after_context: Option<usize>,
    /// Show so many lines before each match
    #[arg(short = 'B', long, value_name = "N", help_heading = "Output")]
    pub before_context: Option<usize>,
    /// Show so many lines before and after each match
    #[arg(short = 'C', long, value_name = "N", help_heading = "Output")]
    pub context: Option<usize>,
    /// Show so many matching lines of each file at most
    #[arg(short, long, value_name = "N", help_heading = "Output")]
    pub max_count: Option<u64>,
    /// The file to write instead of standard output; it appears whole or not at all
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// A file for counters and facts as JSON (elsewhere --json)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub counters: Option<PathBuf>,

    /// Search files whose paths match, or with '!' before it do not
    #[arg(short, long, value_name = "GLOB", help_heading = "Files", allow_hyphen_values = true)]
    pub glob: Vec<String>,
    /// Search files of a type, such as rust or csv; see --type-list
    #[arg(short = 't', long = "type", value_name = "TYPE", help_heading = "Files")]
    pub types: Vec<String>,
    /// Do not search files of a type
    #[arg(short = 'T', long, value_name = "TYPE", help_heading = "Files")]
    pub type_not: Vec<String>,
    /// Search hidden files and folders
    #[arg(short = '.', long, help_heading = "Files")]
    pub hidden: bool,
    /// Heed no .gitignore, .ignore or .rgignore
    #[arg(long, help_heading = "Files")]
    pub no_ignore: bool,
    /// Leave out less: once as --no-ignore, twice as --hidden too, three times binary files too
    #[arg(short = 'u', long, action = clap::ArgAction::Count, help_heading = "Files")]
    pub unrestricted: u8,
    /// Follow symbolic links
    #[arg(short = 'L', long, help_heading = "Files")]
    pub follow: bool,
    /// Go down so many folders at most
    #[arg(short = 'd', long, value_name = "N", help_heading = "Files")]
    pub max_depth: Option<usize>,
    /// Unpack gzip, bzip2, zstd and lz4, known by their first bytes; xz and others are told of, and not searched
    #[arg(short = 'z', long, help_heading = "Files")]
    pub search_zip: bool,
    /// Search binary files as text
    #[arg(short = 'a', long, help_heading = "Files")]
    pub text: bool,
    /// Search binary files, and say no more than that they match
    #[arg(long, help_heading = "Files")]
    pub binary: bool,
    /// Show the paths that would be searched, and search nothing
    #[arg(long, help_heading = "Files")]
    pub files: bool,
    /// Show the types of files that -t and -T know
    #[arg(long, exclusive = true, help_heading = "Files")]
    pub type_list: bool,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

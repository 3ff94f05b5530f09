//! This example compresses or decompresses standard input to standard output, so that its speed can be compared with
//! the speed of other programs without building all of Inshore:
//!
//! ```text
//! cargo run --release -p inshore-kernels --example packing -- zstd 12 < text > text.zst
//! cargo run --release -p inshore-kernels --example packing -- -d < text.zst > text
//! ```
//!
//! The example uses two threads. The budget is 1 GiB, or the number of MiB that the last argument states.
#![allow(missing_docs)]

use std::{env, error::Error, io, process::exit};

use inshore_kernels::{compress, decompress};
use inshore_store::{Budget, Cancel, Context};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let job = |mib: u64| Context::new(Budget::new(mib << 20, 2), Cancel::default());
    let summary = match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["-d"] => decompress(&job(1 << 10), "standard input", io::stdin(), io::stdout())?,
        ["-d", mib] => decompress(&job(mib.parse()?), "standard input", io::stdin(), io::stdout())?,
        [format, level] => {
            let job = job(1 << 10);
            compress(
                &job,
                "standard input",
                io::stdin(),
                io::stdout(),
                format.parse()?,
                Some(level.parse()?),
            )?
        }
        [format, level, mib] => {
            let job = job(mib.parse()?);
            compress(
                &job,
                "standard input",
                io::stdin(),
                io::stdout(),
                format.parse()?,
                Some(level.parse()?),
            )?
        }
        _ => {
            eprintln!("packing (-d | FORMAT LEVEL) [MIB]");
            exit(2);
        }
    };
    eprintln!("{summary:?}");
    Ok(())
}

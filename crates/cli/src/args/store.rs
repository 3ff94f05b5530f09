//! `inshore store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
#[cfg(feature = "nodes")]
use inshore::neardata::nodes::SpreadId;
use inshore::store::{Redundancy, parse_bytes};

#[derive(Subcommand)]
pub enum StoreCommand {
    Init(Init),
    /// List the datasets
    ///
    /// One line for each: its name, kind, size, what it takes on the devices with copies and parity, and whether it is
    /// open to be appended to. With --json, an array.
    #[command(after_help = "\
Examples:
  inshore store ls
  inshore store ls --store /mnt/nvme/inshore
  inshore store ls --json | jq '.[].name'")]
    Ls,
    /// Tell what is known of a dataset
    ///
    /// Kind, size, redundancy, and its files with the unit in which each is checked. Reads no data.
    #[command(after_help = "\
Examples:
  inshore store stat logs
  inshore store stat logs --json | jq .summary.files")]
    Stat {
        /// Name of the dataset
        name: String,
    },
    Put(Put),
    Get(Get),
    /// Seal a dataset: nothing can be appended any more
    ///
    /// For datasets that were begun with `put --append`. What was appended until then stays; who appends right now is
    /// told that it is too late.
    #[command(after_help = "\
Examples:
  inshore store seal logs
  inshore store seal logs.1 logs.2")]
    Seal {
        /// Names of the datasets
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove datasets
    ///
    /// Whoever reads one right now goes on undisturbed; the space is free when nobody reads it any more. Works on a
    /// full store too.
    #[command(after_help = "\
Examples:
  inshore store rm logs
  inshore store rm logs.1 logs.2 logs.3")]
    Rm {
        /// Names of the datasets
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// List who is at work on the store, and what interrupted jobs kept
    ///
    /// Jobs with the extents that they took, and processes that have datasets open; what dead ones left behind is
    /// given back by the next job. Then the finished work that jobs with --resume keep, until the same command went on
    /// with them and ended, or until --remove.
    #[command(after_help = "\
Examples:
  inshore store jobs
  inshore store jobs --remove resume-0123456789abcdef
  inshore store jobs --json | jq '.jobs[].process, .kept[].name'")]
    Jobs {
        /// Remove what an interrupted job kept
        #[arg(long, value_name = "NAME", num_args = 1..)]
        remove: Vec<String>,
    },
    Verify(Verify),
    Scrub(Scrub),
    /// Tell how full the devices are
    ///
    /// For each device: what it can hold, what datasets, jobs and metadata take, and what can still be written to it.
    #[command(after_help = "\
Examples:
  inshore store df
  inshore store df --json | jq '.[].free_bytes'")]
    Df,
    Bench(Bench),
    Compact(Compact),
    AddDevice(AddDevice),
    RemoveDevice(RemoveDevice),
    Rejoin(Rejoin),
    #[cfg(feature = "nodes")]
    Repair(Repair),
    Locate(Locate),
    Mount(Mount),
}

/// Make a store on one or several drives
///
/// Each device is a folder: no root, no formatting. Data is spread over all devices in proportion to their size, so
/// that reads and writes go to all drives at once. Those who are at work meet in the folder of each device. A
/// store on one device needs no init: the first put or import makes it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store init /mnt/nvme0/inshore /mnt/nvme1/inshore
  inshore store init /data/inshore --size 500GiB")]
pub struct Init {
    /// Folders, made if they are not there; what is there must be empty
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// The most that the store may take on each device [default: all of its file system]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
}

/// Put a file into the store
///
/// Streams a file or standard input into a dataset at the speed of the drive. The dataset is there, whole and durable,
/// when the command ends; if it is stopped, even by kill -9, there is nothing.
///
/// With --node the file is spread over nodes in pieces that end with a line (.fastq, .fq: with a record of four lines); work
/// on it is then done where they lie.
///
/// With --append the bytes go to the end of a dataset that was made with --append too, or begin one; all of them or
/// none, at once. `inshore store seal` ends that.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store put web.log --name logs
  zcat huge.json.gz | inshore store put - --name events
  inshore store put web.log --node a.lan,b.lan,c.lan --copies 2
  inshore store put photos.tar --name photos --parity 4+2")]
pub struct Put {
    /// The file; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Name of the dataset [default: the file's]: 1 to 100 letters, digits, '.', '_' and '-', the first of them a letter
    /// or digit
    #[arg(long)]
    pub name: Option<String>,
    /// Append to the dataset, or begin one that can be appended to
    #[arg(long)]
    pub append: bool,
    /// Keep every extent on so many devices, 1 or 2: what is damaged or lost on one is taken from the other. With --node:
    /// keep every piece on so many nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub copies: Option<u8>,
    /// Keep M extents of Reed-Solomon parity for every K of data, on K+M devices, of which any M may fail
    #[arg(long, value_name = "K+M", value_parser = parse_parity, conflicts_with = "copies")]
    pub parity: Option<Redundancy>,
    /// The unit in which it is checked, and the least that a random read moves: 4KiB to 2MiB, a power of two
    /// [default: 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_block)]
    pub block: Option<usize>,
    /// With --node: bytes of a piece, about, 64KiB at least [default: by the size of the file]
    #[arg(long, value_name = "SIZE", value_parser = parse_piece)]
    pub piece: Option<u64>,
    /// With --node: pieces end with a record of so many bytes, and not with a line
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub record: Option<u64>,
}

/// Get a dataset's bytes
///
/// To standard output, or into a file that appears whole or not at all. Every byte is checked: after damage that
/// nothing mends the command fails, and names the place.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store get logs | grep ERROR
  inshore store get logs -o web.log
  inshore store get logs --offset 1GiB --length 64KiB
  inshore store get web --file out.index | head -c 64 | xxd")]
pub struct Get {
    /// Name of the dataset
    pub name: String,
    /// Which of its files, where it has several (see `inshore store stat`)
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// Where to begin
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    pub offset: u64,
    /// The most to give [default: all]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub length: Option<u64>,
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
}

/// Look whether everything is as it was written
///
/// Reads every extent, each copy, all parity, headers, lists, superblocks and all copies of the log, and compares them
/// with their checksums. Changes nothing (`inshore store scrub` mends). The exit code is 1 if something is damaged.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store verify
  inshore store verify logs --memory 64MiB
  inshore store verify --json | jq '.summary.damage'")]
pub struct Verify {
    /// Names of the datasets [default: all]
    pub names: Vec<String>,
}

/// Look whether everything is as it was written, and mend it
///
/// Reads what `inshore store verify` reads. What is damaged is made again from copies or parity and written where it
/// belongs; headers, superblocks and log are mended on stores without redundancy too. Extents of a drive that is missing
/// are not made again: `inshore store remove-device` does that. The exit code is 1 if there is damage that was not mended.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store scrub
  inshore store scrub photos
  inshore store scrub --json | jq '.summary.damage[] | select(.repaired | not)'")]
pub struct Scrub {
    /// Names of the datasets [default: all]
    pub names: Vec<String>,
}

/// Measure what a drive can do
///
/// Sequential and random reads and writes of 4 KiB to 2 MiB with 1 to 64 requests in flight, as jobs do them: past the
/// page cache, in space of the store that no dataset has. Takes half a minute for each device and the time to write
/// the working set, and writes tens of gigabytes on a fast drive (--quick: a fifth). What else runs on the drive is
/// measured too.
///
/// What is found stays with the store (drive.json): from then on --explain tells for each job what the drive alone
/// would have taken. A folder that is no device of a store is measured in a folder of its own below it, which is
/// removed afterwards; nothing is kept.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store bench
  inshore store bench -o drive.svg
  inshore store bench /mnt/new-drive --quick
  inshore store bench --json | jq '.summary.devices[0].points[] | select(.in_flight == 64)'")]
pub struct Bench {
    /// A device of a store, or any folder on the drive [default: all devices of the store]
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Time for the measurement of each device [default: 30, with --quick 6]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// The range in which blocks are read and written [default: 1GiB, or a quarter of what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Measure fewer points for a shorter time
    #[arg(long)]
    pub quick: bool,
    /// Draw the figure as SVG; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Move data together, and give free space back
///
/// Moves what is in nearly empty segments (256 MiB each) into gaps of others, and gives the space of empty ones back to
/// the file system. Others may read and write meanwhile. If it is stopped, what was moved until then is moved.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store compact
  inshore store compact --balance")]
pub struct Compact {
    /// Also move data between devices until all are filled to the same part (after add-device)
    #[arg(long)]
    pub balance: bool,
}

/// Add a drive to the store
///
/// New data goes to it at once; what is there stays where it is until `inshore store compact --balance`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store add-device /mnt/nvme2/inshore
  inshore store add-device /mnt/nvme2/inshore --size 1TiB && inshore store compact --balance")]
pub struct AddDevice {
    /// Folder, made if it is not there; must be empty
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The most that the store may take on it [default: all of its file system]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
}

/// Remove a drive from the store
///
/// Moves everything from it to the others while all data stays readable, waits until nobody reads from it any more, and
/// leaves it empty. If it is stopped, nothing new goes to the drive; the same command goes on, --keep takes it back.
/// A drive that is lost is removed too: what was on it is made again from copies or parity, on as many drives as these
/// ask for (4+2 on six drives needs another one first).
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store df
  inshore store remove-device /mnt/nvme1/inshore
  inshore store remove-device 1
  inshore store remove-device 1 --keep")]
pub struct RemoveDevice {
    /// Folder or number of the device (see `inshore store df`)
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Do not remove it after all
    #[arg(long)]
    pub keep: bool,
}

/// Give up what a drive has of its own, and take it back
///
/// For a store that went two ways: it was written to while one drive was away, and by that drive alone while the others
/// were. Then every command ends with an error that names both sides, and nothing is overwritten. Move one side away to
/// look at the other and to get from it what only it has; then choose: the store that --store names stays as it is,
/// and what was committed only on the drive in DIR is given up. Run `inshore store scrub` afterwards.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store rejoin /mnt/nvme1/inshore --store /mnt/nvme0/inshore
  inshore store rejoin nvme1 --store nvme0 && inshore store scrub --store nvme0")]
pub struct Rejoin {
    /// Folder of the drive whose own commits are given up
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

#[cfg(feature = "nodes")]
/// Drop what is outdated on nodes
///
/// A dataset that was removed while one of its nodes was away comes back with that node; if it was put anew meanwhile, two
/// generations of it are there. Then every command that names it ends with an error that names both. This command drops
/// the shards of generations that were removed or replaced, on all nodes that --node names. Two that were put on different
/// nodes, of which none replaced the other, are a choice: --keep says which one stays.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store repair --node a.lan,b.lan,c.lan --credentials client-laptop.json
  inshore store repair web.log --keep 0123456789abcdef0123456789abcdef --node a.lan,b.lan")]
pub struct Repair {
    /// Names of the datasets [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// The generation of NAME that stays, by its id
    #[arg(long, value_name = "ID", requires = "names")]
    pub keep: Option<SpreadId>,
}

/// Tell where the bytes of a dataset lie
///
/// One line for each extent: where the range begins in the file, its length, and for each copy the device, the extent
/// on it and the offset in the extent. Extent e of a folder is at byte (e mod 128) x 2 MiB of segment e / 128.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store locate logs
  inshore store locate logs --offset 1GiB --length 4KiB --json")]
pub struct Locate {
    /// Name of the dataset
    pub name: String,
    /// Which of its files, where it has several
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// Where the range begins
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    pub offset: u64,
    /// Length of the range [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub length: Option<u64>,
}

/// Show the datasets as read-only files in a folder
///
/// A dataset of plain bytes is a file, any other (a graph) a folder with its files; what is put or removed meanwhile
/// comes and goes within a second. Every byte is checked: what is damaged is an input/output error, told once on
/// standard error, and never wrong bytes. A file that is open stays readable although its dataset is removed.
///
/// The command stays in the foreground until Ctrl-C, SIGTERM or `fusermount3 -u MOUNTPOINT`, and then ends with exit
/// code 0. It needs /dev/fuse, and for users other than root fusermount3 (of the package fuse3).
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store mount /mnt/data
  inshore store mount /mnt/data --memory 64MiB --store /mnt/nvme/store
  inshore store mount /mnt/data --allow-other")]
pub struct Mount {
    /// An empty folder
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    /// Let other users read too (if not root, /etc/fuse.conf must say user_allow_other)
    #[arg(long)]
    pub allow_other: bool,
}

fn parse_parity(text: &str) -> Result<Redundancy, String> {
    let numbers = text.split_once('+').and_then(|(data, parity)| {
        Some(Redundancy::Parity { data: data.parse().ok()?, parity: parity.parse().ok()? })
    });
    numbers.filter(|redundancy| redundancy.is_sound()).ok_or_else(|| {
        "expected extents of data and of parity such as 4+2: at least 2+1, at most 32 together".into()
    })
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 1 to 3600".into())
}

fn parse_block(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && (4 << 10..=2 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("expected a power of two from 4KiB to 2MiB".into()),
    }
}

/// The size of a piece: a text that is binary is told from one that is not by its first 64 KiB.
fn parse_piece(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    if bytes < 64 << 10 { Err("pieces have 64KiB at least".to_string()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_blocks_and_seconds_are_read_or_refused() {
        assert_eq!(parse_parity("4+2"), Ok(Redundancy::Parity { data: 4, parity: 2 }));
        for text in ["", "4", "4+", "+2", "1+1", "4+0", "30+3", "300+2", "4-2"] {
            assert!(parse_parity(text).is_err(), "{text:?}");
        }
        assert_eq!((parse_block("4KiB"), parse_block("2MiB")), (Ok(4096), Ok(2 << 20)));
        for text in ["2KiB", "4MiB", "5000", "x", "0"] {
            assert!(parse_block(text).is_err(), "{text:?}");
        }
        assert_eq!((parse_seconds("1"), parse_seconds("2.5")), (Ok(1.0), Ok(2.5)));
        for text in ["", "0", "-1", "nan", "inf", "1e9", "5s"] {
            assert!(parse_seconds(text).is_err(), "{text:?}");
        }
    }
}

//! `inshore store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
#[cfg(feature = "nodes")]
use inshore::nodes::SpreadId;
use inshore::store::{Redundancy, parse_bytes};

#[derive(Subcommand)]
pub enum StoreCommand {
    Init(Init),
    /// List the datasets
    ///
    /// Prints one line for each dataset: its name, kind, size, space on the devices including copies and parity, and
    /// whether it is open for appending. With --json, prints an array.
    #[command(after_help = "\
Examples:
  inshore store ls
  inshore store ls --store /mnt/nvme/inshore
  inshore store ls --json | jq '.[].name'")]
    Ls,
    /// Show the properties of a dataset
    ///
    /// Shows its kind, size, redundancy, and its files with the unit of their checksums. No data is read.
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
    /// Seal a dataset: no more bytes can be appended
    ///
    /// The datasets must have been created with `put --append`. Appended bytes stay. A command that is still appending
    /// to a sealed dataset fails.
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
    /// Running commands can still read a dataset that is removed. The space of the dataset is free when the last of
    /// these commands ends. Datasets can also be removed from a full store.
    #[command(after_help = "\
Examples:
  inshore store rm logs
  inshore store rm logs.1 logs.2 logs.3")]
    Rm {
        /// Names of the datasets
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// List the processes that use the store, and the checkpoints of interrupted jobs
    ///
    /// Lists jobs with the space of the extents that they hold, and processes that have datasets open. The next job
    /// releases the extents of dead processes. The command also lists the finished work that interrupted jobs with
    /// --resume kept. This work stays until the same command resumes and completes, or until --remove removes it.
    #[command(after_help = "\
Examples:
  inshore store jobs
  inshore store jobs --remove resume-0123456789abcdef
  inshore store jobs --json | jq '.jobs[].process, .kept[].name'")]
    Jobs {
        /// Remove the checkpoints of an interrupted job
        #[arg(long, value_name = "NAME", num_args = 1..)]
        remove: Vec<String>,
    },
    Verify(Verify),
    Scrub(Scrub),
    /// Show the free space of the devices
    ///
    /// Shows for each device its capacity, the space of datasets, jobs and metadata, and the space that can still be
    /// written.
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

/// Create a store on one or several drives
///
/// Each device is a folder, so no root rights and no formatting are needed. Data is spread over all devices in
/// proportion to their size, so that reads and writes go to all drives at once. Processes coordinate through the folder
/// of each device. A store on one device needs no init: the first put or import creates it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store init /mnt/nvme0/inshore /mnt/nvme1/inshore
  inshore store init /data/inshore --size 500GiB")]
pub struct Init {
    /// Folders, created if missing; existing ones must be empty
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Largest size of the store on each device [default: the whole file system]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
}

/// Put a file into the store
///
/// Streams a file or standard input into a dataset at the speed of the drive. When the command ends, the dataset is
/// complete and durable. If the command is stopped, even by kill -9, no dataset is left.
///
/// With --node the file is spread over nodes in shards that end at a line end (.fastq and .fq files: after a record of
/// four lines), so that later commands can run near the data.
///
/// With --append the bytes are appended to a dataset that was created with --append. If no dataset has this name, it is
/// created. Either all of the bytes are appended or none. `inshore store seal` ends appending.
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
    /// Name of the dataset [default: the name of the file]: 1 to 100 letters, digits, '.', '_' and '-', beginning with
    /// a letter or digit
    #[arg(long)]
    pub name: Option<String>,
    /// Append to the dataset, or create a dataset for appending
    #[arg(long)]
    pub append: bool,
    /// Number of devices that store each extent, 1 or 2: data that is damaged or lost on one device is read from the
    /// second device. With --node: number of nodes that store each shard
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub copies: Option<u8>,
    /// Keep M extents of Reed-Solomon parity for every K extents of data, on K+M devices. Any M of these devices may
    /// fail
    #[arg(long, value_name = "K+M", value_parser = parse_parity, conflicts_with = "copies")]
    pub parity: Option<Redundancy>,
    /// The unit of checksums, which is also the smallest amount that a random read transfers: a power of two from 4KiB
    /// to 2MiB [default: 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_block)]
    pub block: Option<usize>,
    /// With --node: approximate size of a shard, at least 64KiB [default: by the size of the file]
    #[arg(long, value_name = "SIZE", value_parser = parse_piece)]
    pub piece: Option<u64>,
    /// With --node: the file has records of this number of bytes, and shards end after a record instead of a line
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub record: Option<u64>,
}

/// Read the bytes of a dataset
///
/// Writes the bytes to standard output, or into a file that appears complete or not at all. Checksums are verified. If
/// damage cannot be repaired from copies or parity, the command fails, and its error names the damaged place.
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
    /// File of the dataset, if the dataset has several (see `inshore store stat`)
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// First byte to read
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    pub offset: u64,
    /// Number of bytes to read [default: all]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub length: Option<u64>,
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
}

/// Verify all checksums
///
/// Reads every extent with all copies and parity, and all metadata (headers, lists, superblocks, and every copy of the
/// log). Compares all of this data with its checksums. Changes nothing (`inshore store scrub` repairs). The exit code
/// is 1 if damage was found.
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

/// Verify all checksums, and repair damage
///
/// Reads the same data as `inshore store verify`. Damaged data is rebuilt from copies or parity and written back.
/// Headers, superblocks and the log are repaired on stores without redundancy too. Extents of a missing drive are not
/// rebuilt: `inshore store remove-device` does that. The exit code is 1 if damage remains.
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

/// Measure a drive
///
/// Measures sequential and random reads and writes of 4 KiB to 2 MiB with 1 to 64 requests in flight. As in jobs,
/// requests bypass the page cache; they use free space of the store. A measurement takes half a minute for each device,
/// plus the time to write the working set. On a fast drive it writes tens of gigabytes. With --quick the time and the
/// bytes are a fifth. Other load on the drive at the same time changes the results.
///
/// The results are kept in the store (drive.json). With --explain, a later job then reports the time that the drive
/// alone would have needed for its reads and writes. If the folder is not a device of a store, the measurement uses a
/// temporary folder below it, and no results are kept.
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
    /// Seconds to measure each device [default: 30, with --quick 6]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// Size of the working set, in which blocks are read and written [default: 1GiB, or a quarter of the free space]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Measure fewer points for a shorter time
    #[arg(long)]
    pub quick: bool,
    /// Draw the figure as SVG; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Defragment the store, and return free space to the file system
///
/// Moves the data of nearly empty segments (256 MiB each) into free space of other segments, and returns the space of
/// empty segments to the file system. Other commands may read and write at the same time. If the command is stopped,
/// completed moves remain.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store compact
  inshore store compact --balance")]
pub struct Compact {
    /// Also move data between devices until all are equally full (after add-device)
    #[arg(long)]
    pub balance: bool,
}

/// Add a drive to the store
///
/// New data uses the drive at once; existing data stays where it is until `inshore store compact --balance`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store add-device /mnt/nvme2/inshore
  inshore store add-device /mnt/nvme2/inshore --size 1TiB && inshore store compact --balance")]
pub struct AddDevice {
    /// Folder, created if missing; must be empty
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Largest size of the store on the drive [default: the whole file system]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub size: Option<u64>,
}

/// Remove a drive from the store
///
/// Moves all data to the other drives, waits until no process reads from the drive, and leaves the drive empty. Data
/// stays readable during the move. If the command is stopped, the drive gets no new data: the same command resumes the
/// removal, and --keep cancels it. A lost drive can be removed too. Its data is then rebuilt from copies or parity on
/// the other drives. If there are too few drives for the redundancy, add a drive first (a store with parity 4+2 needs
/// six drives).
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
    pub device: PathBuf,
    /// Cancel the removal of this device
    #[arg(long)]
    pub keep: bool,
}

/// Discard the separate commits of a drive, and let it rejoin the store
///
/// A store has diverged if commands wrote to the store while a drive was missing, and other commands wrote to this
/// drive alone. Every command then fails with an error that names both sides, and no data is overwritten. To compare
/// the sides, move one of them to another folder; the commands then work on the remaining side. This command keeps the
/// side of --store unchanged, and discards the commits that exist only on the drive in DIR. Copy the data of these
/// commits first. Run `inshore store scrub` afterwards.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store rejoin /mnt/nvme1/inshore --store /mnt/nvme0/inshore
  inshore store rejoin nvme1 --store nvme0 && inshore store scrub --store nvme0")]
pub struct Rejoin {
    /// Folder of the drive whose separate commits are discarded
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

#[cfg(feature = "nodes")]
/// Remove outdated generations from nodes
///
/// If a dataset is removed while one of its nodes is unreachable, the shards on this node remain, and the dataset
/// reappears together with the node. If the dataset is then put again, two generations of the dataset exist. Every
/// command that names the dataset fails with an error that names both generations. This command drops the shards of
/// generations that were removed or replaced, on all nodes that --node names. If two generations were put on different
/// nodes, and neither replaced the other, --keep selects the generation that stays.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store repair --node a.lan,b.lan,c.lan --credentials client-laptop.json
  inshore store repair web.log --keep 0123456789abcdef0123456789abcdef --node a.lan,b.lan")]
pub struct Repair {
    /// Names of the datasets [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Id of the generation of NAME that stays
    #[arg(long, value_name = "ID", requires = "names")]
    pub keep: Option<SpreadId>,
}

/// Show the location of a dataset's bytes
///
/// Prints one line for each extent in the range: the offset in the file, the number of bytes, the offset in the extent,
/// and for each copy the device and the number of the extent. In the folder of a device, extent e is at byte (e mod
/// 128) x 2 MiB of the segment file e / 128.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inshore store locate logs
  inshore store locate logs --offset 1GiB --length 4KiB --json")]
pub struct Locate {
    /// Name of the dataset
    pub name: String,
    /// File of the dataset, if the dataset has several
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// Start of the range
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    pub offset: u64,
    /// Length of the range [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub length: Option<u64>,
}

/// Mount the datasets as read-only files in a folder
///
/// A dataset of plain bytes is a file. Any other dataset, such as a graph, is a folder with files. A new dataset
/// appears, and a removed dataset disappears, within a second. Checksums are verified at every read. A read of damaged
/// data fails with an input/output error, which is also reported once on standard error. An open file stays readable
/// after its dataset is removed.
///
/// The command stays in the foreground until Ctrl-C, SIGTERM or `fusermount3 -u MOUNTPOINT`, and then ends with exit
/// code 0. It needs /dev/fuse. Users other than root also need fusermount3 (from the package fuse3).
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
    /// Let other users read too (unless you are root, /etc/fuse.conf must have the line user_allow_other)
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

/// Parses the size of a shard. The size must be at least 64 KiB, since a search reads this number of bytes to tell
/// whether a text is binary.
pub fn parse_piece(text: &str) -> Result<u64, String> {
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

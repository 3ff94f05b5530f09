#!/usr/bin/env python3
"""Work near the data against moving the data, over network namespaces with links of a given rate; and builds against each other.

    sudo bench/nodes.py --inshore target/release/inshore [OTHER ...] [--repeat 3] --folder /tmp/nodes --text TEXT --gigabytes 6 --nodes 1 2 4
                        [--parquet lineitem.parquet] [--languages FOLDER] [--reads reads.fq]

Each node is a namespace with a store of its own, a link (`tc tbf`) and a cgroup that limits its share of the processor and
the rate of its drive, so that four of them scale on one machine. The client is another namespace with the same link. For
each number of nodes the text is spread anew, and each job runs on the nodes, and here on what `store get` brings; all but
compress also on the nodes with the help of the client's cores (without --only-nodes).
`--parquet` is a table lineitem of TPC-H, of which query 1 is asked (sql), and most of its rows (rows); `--languages` has a file LANGUAGE.txt.gz for each language;
`--reads` is FASTQ. `--ways` leaves some of the ways out.
With several builds and `--repeat`, builds take turns on the same data, nodes and client from one build. Of all builds but the last one only
"together" is measured. At the end come the medians, those of "together" in proportion to the first build and to the same build's "near data",
and the geometric mean of the former.
What is printed: seconds, bytes over the client's link (counted by the kernel), processor seconds of the client.

Needs root, cgroup version 1 (cpu, blkio), `ip` and `tc`. Leaves nothing.
"""

import argparse
import json
import math
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "inshore-bench"


def run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def quietly(*words: str) -> None:
    subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# Query 1 of TPC-H. The quotes are for a shell.
QUERY = """SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), sum(l_extendedprice * (1 - l_discount)),
avg(l_quantity), avg(l_discount), count(*) FROM 'TABLE' WHERE l_shipdate <= DATE '1998-09-02'
GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus"""


# Most rows of it, all columns.
ROWS = "SELECT * FROM 'TABLE' WHERE l_quantity < 49"


class Net:
    """A bridge, and namespaces on it with limited links: all of one rate, but for the client's where that is said."""

    def __init__(self, count: int, rate: str, client_rate: str | None = None) -> None:
        self.names = [f"{PREFIX}-{number}" for number in range(count + 1)]  # the last is the client's
        self.remove()
        run("ip", "link", "add", "ibr0", "type", "bridge")
        run("ip", "link", "set", "ibr0", "up")
        for number, name in enumerate(self.names):
            inside, outside = f"iv{number}", f"ib{number}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
            run("ip", "link", "set", inside, "netns", name)
            run("ip", "link", "set", outside, "master", "ibr0")
            run("ip", "link", "set", outside, "up")
            within = ["ip", "netns", "exec", name]
            run(*within, "ip", "address", "add", f"{self.address(number)}/24", "dev", inside)
            run(*within, "ip", "link", "set", inside, "up")
            run(*within, "ip", "link", "set", "lo", "up")
            own_rate = client_rate if client_rate and name == self.client else rate
            shape = ["root", "tbf", "rate", own_rate, "burst", "1mb", "latency", "50ms"]
            run("tc", "qdisc", "add", "dev", outside, *shape)
            run(*within, "tc", "qdisc", "add", "dev", inside, *shape)

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{number + 1}"

    @property
    def client(self) -> str:
        return self.names[-1]

    def client_bytes(self) -> int:
        number = len(self.names) - 1
        counters = Path(f"/sys/class/net/ib{number}/statistics")
        return sum(int((counters / name).read_text()) for name in ("rx_bytes", "tx_bytes"))

    def remove(self) -> None:
        for number, name in enumerate(self.names):
            quietly("ip", "link", "del", f"ib{number}")  # else the kernel does it some time after the namespace is gone
            quietly("ip", "netns", "del", name)
        quietly("ip", "link", "del", "ibr0")


class Groups:
    """A cgroup for each node."""

    def __init__(self, count: int, cores: float, megabytes_per_second: int, folder: Path) -> None:
        device = os.stat(folder).st_dev
        drive = f"{os.major(device)}:{os.minor(device)}"
        self.paths: list[list[Path]] = []
        for number in range(count):
            cpu, blkio = (CGROUPS / kind / f"{PREFIX}-{number}" for kind in ("cpu", "blkio"))
            for path in (cpu, blkio):
                path.mkdir(exist_ok=True)
            (cpu / "cpu.cfs_period_us").write_text("20000")
            (cpu / "cpu.cfs_quota_us").write_text(str(int(20000 * cores)))
            for way in ("read", "write"):
                limit = f"{drive} {megabytes_per_second * 1_000_000}"
                (blkio / f"blkio.throttle.{way}_bps_device").write_text(limit)
            self.paths.append([cpu, blkio])

    def enter(self, number: int) -> None:
        for path in self.paths[number]:
            (path / "tasks").write_text(str(os.getpid()))

    def remove(self) -> None:
        for path in (path for paths in self.paths for path in paths):
            for _ in range(50):
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


class Nodes:
    """Agents, one in each namespace."""

    def __init__(self, inshore: str, folder: Path, net: Net, groups: Groups, count: int, memory: str) -> None:
        self.inshore, self.folder, self.net, self.count = inshore, folder, net, count
        keys = folder / "keys"
        for number in range(count):
            name = f"n{number}"
            if not (keys / f"node-{name}.json").exists():
                words = ["--for-node", name, "--address", net.address(number)]
                run(inshore, "node", "credentials", str(keys), *words)
        if not (keys / "client-bench.json").exists():
            words = ["--for-client", "bench", "--rights", "read,run,write,run-commands"]
            run(inshore, "node", "credentials", str(keys), *words)
        self.agents = []
        for number in range(count):
            serve = ["ip", "netns", "exec", net.names[number], inshore, "node", "serve", "--memory", memory]
            serve += ["--listen", f"{net.address(number)}:4710", "--credentials", str(keys / f"node-n{number}.json")]
            serve += ["--store", str(folder / f"store{number}"), "--threads", "1", "--allow", "zstd", "--json"]
            log = open(folder / f"node{number}.log", "w")  # noqa: SIM115
            enter = lambda number=number: groups.enter(number)  # noqa: E731
            agent = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=log, preexec_fn=enter, text=True)
            assert agent.stdout is not None
            json.loads(agent.stdout.readline())
            self.agents.append(agent)

    def words(self) -> list[str]:
        named = ",".join(self.net.address(number) for number in range(self.count))
        return ["--node", named, "--credentials", str(self.folder / "keys" / "client-bench.json")]

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.net.client, self.inshore, *words]

    def stop(self) -> None:
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            agent.wait()


def text_pieces(source: Path, total: int):
    """Lines of the source: as they are where there are enough, else in random order until there are; the same each time."""
    if source.stat().st_size >= total:
        with source.open("rb") as text:
            left = total
            while left > 0 and (lines := text.readlines(8 << 20)):
                yield b"".join(lines)
                left -= sum(map(len, lines))
        return
    dice = random.Random(7)
    whole = source.read_bytes()
    lines = whole.splitlines(keepends=True)
    written = 0
    while written < total:
        start = dice.randrange(len(lines))
        block = b"".join(lines[start : start + 2000])
        yield block
        written += len(block)


def measured(net: Net, command: str) -> tuple[float, int, float, str]:
    """Seconds, bytes over the client's link, processor seconds, and what was printed."""
    bytes_before = net.client_bytes()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stderr.decode()}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, net.client_bytes() - bytes_before, cpu, done.stdout.decode()


WAYS = ["near data", "together", "moved"]


def jobs_of(nodes: Nodes, folder: Path) -> dict[str, tuple[str, str]]:
    """What each job is on nodes, and here on what is moved: commands for a shell."""
    asked, inshore = nodes.words(), nodes.inshore
    text = lambda *more: " ".join([*nodes.command(*more), *asked])  # noqa: E731
    here = " ".join([text("store", "get", "text", "--quiet"), "|", inshore])
    profiles = f"--profiles all --store {folder}/client --quiet"
    table = f"{folder}/lineitem.parquet"
    sql = lambda name, query=QUERY: (  # noqa: E731
        f'sql --quiet --store {folder}/client "{query.replace("TABLE", name)}"'
    )
    found = f"-o {folder}/rows.parquet && {inshore} sql --quiet --store {folder}/client "
    found += f"\"SELECT count(*), sum(l_orderkey) FROM '{folder}/rows.parquet'\""
    kmers = f"--min-count 2 -o {folder}/kmers.csv --quiet --store {folder}/client"
    digest = f"&& md5sum < {folder}/kmers.csv"
    get_table = text("store", "get", "lineitem.parquet", "-o", table, "--quiet")
    return {
        "language": (
            f"{text('language', 'identify', 'store:text', profiles)} | cut -d, -f2-",
            f"{here} language identify - {profiles} | cut -d, -f2-",
        ),
        "sql": (
            text(sql("store:lineitem.parquet")),
            f"{get_table} && {inshore} {sql(table)} && rm {table}",
        ),
        "rows": (
            f"{text(sql('store:lineitem.parquet', ROWS))} {found}",
            f"{get_table} && {inshore} {sql(table, ROWS)} {found}",
        ),
        "pack": (
            f"{text('compress', 'store:text', '-o', '-', '--quiet')} | wc -c",
            f"{here} compress - -o - --quiet | wc -c",
        ),
        "search": (text("search", "-c", "'whale.*harpoon'", "store:text"), f"{here} search -c 'whale.*harpoon' -"),
        "words": (
            text("count", "words", "store:text", "--split", "--top", "1", "--quiet", "--store", f"{folder}/client"),
            f"{here} count words - --split --top 1 --quiet --store {folder}/client",
        ),
        "kmers": (
            f"{text('count', 'kmers', 'store:reads.fq', kmers)} {digest}",
            f"{text('store', 'get', 'reads.fq', '--quiet')} | {inshore} count kmers - {kmers} {digest}",
        ),
        "sort": (
            f"{text('sort', 'store:text', '-o', '-', '--quiet', '--store', f'{folder}/client')} | md5sum",
            f"{here} sort - -o - --quiet --store {folder}/client | md5sum",
        ),
        "compress": (
            " ".join(nodes.command("node", "run", *asked, "--input", "store:text", "--quiet", "zstd", "-3", "-c"))
            + " | wc -c",
            f"{text('store', 'get', 'text', '--quiet')} | zstd -3 -c | wc -c",
        ),
    }


def load(nodes: Nodes, words: argparse.Namespace) -> None:
    """Spreads the data over the nodes."""
    asked = nodes.words()
    put = nodes.command("store", "put", "-", "--name", "text", "--piece", words.piece, "--quiet", *asked)
    feed = subprocess.Popen(put, stdin=subprocess.PIPE)
    assert feed.stdin is not None
    for block in text_pieces(words.text, int(words.gigabytes * 1e9)):
        feed.stdin.write(block)
    feed.stdin.close()
    if feed.wait() != 0:
        sys.exit("the text was not loaded")
    if words.parquet:
        run(*nodes.command("store", "put", str(words.parquet), "--quiet", *asked))
    if words.reads:
        run(*nodes.command("store", "put", str(words.reads), "--name", "reads.fq", "--quiet", *asked))
    if words.languages and not (words.folder / "client").exists():
        train = [nodes.inshore, "language", "train", "--name", "all", "--store", f"{words.folder}/client", "--quiet"]
        run(*train, *(str(path) for path in sorted(words.languages.iterdir())))


class Measured:
    """The seconds of each build, number of nodes, job and way, and the answers to each job, which are the same of all."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, int, str, str], list[float]] = {}
        self.answers: dict[str, set[str]] = {}


def measure(nodes: Nodes, build: int, words: argparse.Namespace, all_of: Measured) -> None:
    """Runs each job in each of its ways once."""
    for job in words.jobs:
        answers = all_of.answers.setdefault(job, set())
        near, moved_here = jobs_of(nodes, words.folder)[job]
        commands = {"near data": near, "moved": moved_here}
        if job != "compress":
            commands = {**commands, "near data": near.replace("--node", "--only-nodes --node", 1), "together": near}
        is_last = build == len(words.inshore) - 1
        for where in (way for way in words.ways if way in commands and (is_last or way == "together")):
            seconds, moved, cpu, printed = measured(nodes.net, commands[where])
            answer = " ".join(printed.split())[-40:]
            answers.add(answer)
            all_of.seconds.setdefault((build, nodes.count, job, where), []).append(seconds)
            row = f"{build:>5} {nodes.count:>5} {job:<10} {where:<10} {seconds:>8.1f} {moved / 1e6:>9.1f} {cpu:>12.1f}"
            print(f"{row}  {answer}", flush=True)
        if job not in ("compress", "pack") and len(answers) > 1:
            sys.exit(f"{job}: {answers}")


def summary(all_of: Measured) -> None:
    """Prints medians, and what they are in proportion to each other."""
    medians = {key: statistics.median(seconds) for key, seconds in all_of.seconds.items()}
    print(f"\n{'build':>5} {'nodes':>5} {'job':<10} {'where':<10} {'median':>8} {'of first':>9} {'of near':>9}")
    ratios: dict[int, list[float]] = {}
    for (build, count, job, where), median in sorted(medians.items()):
        first, near = medians.get((0, count, job, where)), medians.get((build, count, job, "near data"))
        told = [f"{median / other:>9.2f}" if other else f"{'':>9}" for other in (first, near)]
        print(f"{build:>5} {count:>5} {job:<10} {where:<10} {median:>8.1f} {told[0]} {told[1]}")
        if first and where == "together":
            ratios.setdefault(build, []).append(median / first)
    for build, each in sorted(ratios.items()):
        mean = math.exp(statistics.fmean(map(math.log, each)))
        print(f"build {build}: together is {mean:.3f} of the first build in the geometric mean, {max(each):.2f} at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inshore", required=True, nargs="+", help="builds, of which the first one is compared with")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="where it is smaller than --gigabytes, pieces of it are repeated")
    parser.add_argument("--gigabytes", type=float, default=6)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--cores", type=float, default=0.4, help="of each node")
    parser.add_argument("--drive", type=int, default=200, help="MB/s of each node")
    parser.add_argument("--memory", default="512MiB", help="of each node")
    parser.add_argument("--piece", default="64MiB", help="of the text")
    parser.add_argument("--parquet", type=Path)
    parser.add_argument("--languages", type=Path)
    parser.add_argument("--reads", type=Path)
    parser.add_argument("--jobs", nargs="+", default=["search", "words", "compress"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    words = parser.parse_args()
    builds = [str(Path(build).resolve()) for build in words.inshore]
    words.folder.mkdir(parents=True, exist_ok=True)
    most = max(words.nodes)
    net = Net(most, words.rate)
    groups = Groups(most, words.cores, words.drive, words.folder)
    all_of = Measured()
    header = f"{'build':>5} {'nodes':>5} {'job':<10} {'where':<10} {'seconds':>8} {'MB moved':>9} {'client CPU s':>12}"
    print(f"{header}  answer")
    try:
        for count in words.nodes:
            shutil.rmtree(words.folder / "keys", ignore_errors=True)
            is_loaded = False
            try:
                for build in list(range(len(builds))) * words.repeat:
                    nodes = Nodes(builds[build], words.folder, net, groups, count, words.memory)
                    try:
                        if not is_loaded:
                            load(nodes, words)
                            is_loaded = True
                        measure(nodes, build, words, all_of)
                    finally:
                        nodes.stop()
            finally:
                for number in range(count):
                    shutil.rmtree(words.folder / f"store{number}", ignore_errors=True)
        summary(all_of)
    finally:
        groups.remove()
        net.remove()
        shutil.rmtree(words.folder, ignore_errors=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Dependent reads on nodes: by the client over the wire, and by the traversal task (2018 thesis, figures 5-6 to 5-8).

    sudo bench/traverse.py --inshore target/release/inshore --folder /tmp/traverse --nodes 1 2 4
    sudo bench/traverse.py --inshore target/release/inshore --folder /tmp/traverse --tables depths --rate 250mbit --client-rate 1gbit --drive 100

Each node is a network namespace with a store of its own and a link (`tc tbf`), as in bench/nodes.py, but without limits of
processor and, unless it is said, drive: only one node works at a time. The file is one cycle through all its pages of 8 KiB in random order, in
pieces of 1 MiB on the nodes in turn, so that the next page is on another node in N - 1 of N cases. Everything over TLS, with
tokens; nodes read past the page cache. Three tables, medians of --repeat runs:

 1. steps a second of one chain: by the nodes, by the nodes with the client in between, by the client, by the client with half of
    the pages in its memory, and by a client on the node itself;
 2. one read over the wire in parts: the drive, the rest of the node, the network, the client and both ends' transport;
 3. pages a second with many chains at once. With links of nodes that are slower than that of the client (the second command) these are the limit, as
    each board's network channel is in figure 5-7, and four can give four times as much on a machine of two cores; so with slower drives.

Needs root, `ip` and `tc`. Leaves nothing.
"""

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import report
from nodes import Groups, Net, Nodes, run

PAGE = 8192


class NoLimits:
    """Stands where bench/nodes.py has cgroups."""

    def enter(self, number: int) -> None:
        pass

    def remove(self) -> None:
        pass


def write_cycle(path: Path, pages: int) -> None:
    """A file whose pages name each other in one cycle, in random order; the same each time."""
    order = list(range(pages))
    random.Random(7).shuffle(order)
    following = dict(zip(order, order[1:] + order[:1], strict=True))
    filler = random.Random(8).randbytes(PAGE - 8)
    with path.open("wb") as file:
        for page in range(pages):
            file.write(struct.pack("<Q", following[page]) + filler)


def follow(nodes: Nodes, where: str, *words: str) -> dict:
    """The summary of a traversal that is asked for from a namespace."""
    command = ["ip", "netns", "exec", where, nodes.inshore, "node", "traverse", "store:cycle", "--json", *words, *nodes.words()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)["summary"]


def median(repeat: int, measure) -> tuple[float, dict]:
    """Steps a second, and what belongs to the run in the middle."""
    runs = sorted(((summary["steps"] / summary["seconds"], summary) for summary in (measure() for _ in range(repeat))), key=lambda run: run[0])
    return runs[len(runs) // 2]


def echo(net: Net, count: int = 2000) -> float:
    """Microseconds for 128 bytes to a node and 8 KiB back on a plain connection."""
    words = [sys.executable, __file__, "--inshore", "", "--folder", "."]
    server = subprocess.Popen(["ip", "netns", "exec", net.names[0], *words, "--echo", f"serve {net.address(0)}"])
    try:
        time.sleep(0.5)
        asked = ["ip", "netns", "exec", net.client, *words, "--echo", f"ask {net.address(0)} {count}"]
        return float(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    finally:
        server.terminate()
        server.wait()


def echo_end(words: list[str]) -> None:
    def take(connection: socket.socket, count: int) -> None:
        while count > 0:
            got = len(connection.recv(count))
            if got == 0:
                sys.exit(0)
            count -= got

    if words[0] == "serve":
        connection, _ = socket.create_server((words[1], 4999)).accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            take(connection, 128)
            connection.sendall(bytes(PAGE))
    connection = socket.create_connection((words[1], 4999))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(int(words[2])):
        began = time.perf_counter()
        connection.sendall(bytes(128))
        take(connection, PAGE)
        times.append(time.perf_counter() - began)
    print(statistics.median(times) * 1e6)


def per_read(summary: dict, what: str) -> float:
    """Microseconds of each page that a node read."""
    reads = sum(node["reads"] for node in summary["nodes"])
    return sum(node[what] for node in summary["nodes"]) / reads * 1e6


def chains(words: argparse.Namespace, table: report.Report, net: Net, nodes: Nodes, count: int) -> None:
    half = f"{words.pages // 2 * (PAGE + 8)}"
    few, many = str(words.steps), str(4 * words.steps)
    # The first time round fills the memory.
    ways = {
        "nodes": (net.client, ["--by", "nodes", "--steps", many]),
        "turns": (net.client, ["--by", "turns", "--steps", few]),
        "client": (net.client, ["--by", "client", "--steps", few]),
        "client, half in memory": (net.client, ["--by", "client", "--steps", str(8 * words.pages), "--keep", half, "--memory", "8GiB"]),
    }
    if count == 1:
        ways["client on the node"] = (net.names[0], ["--by", "client", "--steps", few])
    answers, summaries = set(), {}
    for way, (where, asked) in ways.items():
        rate, summary = median(words.repeat, lambda where=where, asked=asked: follow(nodes, where, *asked))
        summaries[way] = (rate, summary)
        chain = summary["chains"][0]
        answers.add((chain["steps"], chain["page"], chain["digest"]))
        kept = summary["pages_kept"] / chain["steps"]
        parts = f"{chain['hops'] / chain['steps']:.2f} changes of node, {kept:.2f} in memory"
        reading = f"{1e6 / rate:.0f} µs, of which the drive {per_read(summary, 'storage_seconds'):.0f}"
        table.row(str(count), "1", way, f"{rate:.0f}", f"{rate * PAGE / 1e6:.1f}", f"{reading}; {parts}")
    if len({steps for steps, _, _ in answers}) != len(answers):
        sys.exit(f"different answers: {answers}")
    if count == 1:
        rate, summary = summaries["client"]
        storage, inside = per_read(summary, "storage_seconds"), per_read(summary, "inside_seconds")
        here_rate, here = summaries["client on the node"]
        transport = 1e6 / here_rate - per_read(here, "inside_seconds")
        network = 1e6 / rate - inside - transport
        print(f"\none read over the wire: {1e6 / rate:.0f} µs = drive {storage:.0f}, node {inside - storage:.0f}, ", end="")
        print(f"client and transport {transport:.0f}, network {network:.0f} (8 KiB on a plain connection: {echo(net):.0f} µs)", flush=True)


def depths(words: argparse.Namespace, table: report.Report, net: Net, nodes: Nodes, count: int) -> None:
    for depth in words.depths:
        starts = ",".join(str(chain * (words.pages // depth)) for chain in range(depth))
        for by in ("client", "nodes"):
            asked = ["--by", by, "--start", starts, "--steps", str(max(4 * words.steps // depth, 20))]
            rate, _ = median(words.repeat, lambda asked=asked: follow(nodes, net.client, *asked))
            table.row(str(count), str(depth), by, f"{rate:.0f}", f"{rate * PAGE / 1e6:.1f}", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inshore", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=8192)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rate", default="1gbit", help="of each link")
    parser.add_argument("--client-rate", help="of the client's link, where it is another one")
    parser.add_argument("--drive", type=int, help="MB/s of each node's drive, of which pages by chance give some less")
    parser.add_argument("--tables", nargs="+", default=["chains", "depths"], choices=["chains", "depths"])
    parser.add_argument("--memory", default="512MiB", help="of each node")
    parser.add_argument("--steps", type=int, default=5000, help="of one chain by the client")
    parser.add_argument("--depths", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    report.add_option(parser)
    words = parser.parse_args()
    if words.echo:
        echo_end(words.echo.split())
        return
    inshore = str(Path(words.inshore).resolve())
    words.folder.mkdir(parents=True, exist_ok=True)
    cycle = words.folder / "cycle"
    write_cycle(cycle, words.pages)
    columns = ["nodes", "chains", "by", "pages a second", "MB/s", "time of a page"]
    table = report.Report(words, columns, inshore=inshore)
    net = Net(max(words.nodes), words.rate, words.client_rate)
    # As many cores as there are.
    groups = Groups(max(words.nodes), os.cpu_count() or 1, words.drive, words.folder) if words.drive else NoLimits()
    try:
        for count in words.nodes:
            shutil.rmtree(words.folder / "keys", ignore_errors=True)
            nodes = Nodes(inshore, words.folder, net, groups, count, words.memory)
            try:
                put = ["store", "put", str(cycle), "--record", str(PAGE), "--block", "8KiB", "--piece", "1MiB", "--quiet"]
                run(*nodes.command(*put, *nodes.words()))
                for name in words.tables:
                    {"chains": chains, "depths": depths}[name](words, table, net, nodes, count)
            finally:
                nodes.stop()
                for number in range(count):
                    shutil.rmtree(words.folder / f"store{number}", ignore_errors=True)
    finally:
        groups.remove()
        net.remove()
        shutil.rmtree(words.folder, ignore_errors=True)
    table.write()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Single queries of several clients at once: Inshore's open vectors, LanceDB, and pgvector.

    INSHORE_STORE=DIR bench/nearest_clients.py --inshore target/release/inshore --python PYTHON \\
        --base sift1m.u8bin --queries queries.u8bin --postgres /usr/lib/postgresql/15/bin

PYTHON is an interpreter with numpy, the package inshore, lancedb and psycopg. Each client is a thread that asks one query
after the other for `--seconds`. Inshore's clients share one open `Store.vectors` with two threads, LanceDB's share one table, and
those of pgvector have a connection each. `--postgres` is the folder of PostgreSQL's programs, whose server must have the extension
vector; it runs as the user postgres, with 128 MB of shared buffers. Inshore's index has copies (`--copies`). LanceDB has
an index IVF_RQ and measures ten times as many candidates again; pgvector has an index IVFFlat of half-precision numbers. The number of lists of
both indexes is the square root of the number of vectors. Each system probes the smallest number of lists, of several that are tried, at which
recall at 10 reaches `--recall`. Recall is measured on `--truth` queries against Inshore's exact answer. Each system has a memory cgroup
(version 1) of `--memory` and 96 MiB, for pgvector with the server in it and the clients outside: with too
many clients the limit kills the server, and its row says so. LanceDB runs without the limit
if that kills it, or if it does not end within `--patience` seconds. Builds are not limited.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import report
from graphs import drop_caches, make_group, parse_budget
from nearest_index import Bench

PEERS = Path(__file__).parent / "peers"

ASK = """
import json, sys, threading, time, numpy as np
told = json.loads(sys.argv[1])
dimensions = int(np.fromfile(told["queries"], "<u4", 2)[1])
queries = np.fromfile(told["queries"], np.uint8, offset=8).reshape(-1, dimensions)
truth = np.loadtxt(told["exact"], np.int64, delimiter=",", skiprows=1, usecols=2).reshape(-1, 10)

class Inshore:
    settings = [0]
    def __init__(self):
        import inshore
        store = inshore.Store(told["folder"])
        self.searcher = store.vectors(told["name"], memory=told["memory"], threads=2)
    def client(self):
        return lambda query, setting: self.searcher.search(query, recall=told["recall"]).ids[0]

class LanceDB:
    settings = [16, 32, 64, 128, 256]
    def __init__(self):
        sys.path.insert(0, told["peers"])
        import nearest, pathlib
        self.peer = nearest.LanceDB()
        self.peer.open(pathlib.Path(told["folder"]))
    def client(self):
        return self.peer.one

class PgVector:
    settings = [4, 8, 16, 32, 64, 128]
    def __init__(self):
        import psycopg
        self.connect = lambda: psycopg.connect(told["folder"], autocommit=True)
    def client(self):
        connection = self.connect()
        text = "SELECT id FROM vectors ORDER BY v <-> %s::halfvec LIMIT 10"
        chosen = [None]
        def ask(query, setting):
            if chosen[0] != setting:
                connection.execute(f"SET ivfflat.probes = {setting}")
                chosen[0] = setting
            found = connection.execute(text, [str(query.tolist())], prepare=True).fetchall()
            return [row[0] for row in found]
        return ask

def run(clients, setting):
    times, failures, ends = [[] for _ in range(clients)], [], time.perf_counter() + told["seconds"]
    def work(number):
        try:
            ask, place = system.client(), number
            while (began := time.perf_counter()) < ends:
                ask(queries[place % len(queries)], setting)
                times[number].append(time.perf_counter() - began)
                place += clients
        except Exception as error:
            failures.append(str(error))
    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    [thread.start() for thread in threads]; [thread.join() for thread in threads]
    if failures: return {"clients": clients, "failure": failures[0]}
    taken = sum(times, [])
    p50, p99 = (1000 * float(np.quantile(taken, share)) for share in (0.5, 0.99))
    return {"clients": clients, "rate": len(taken) / (time.perf_counter() - began), "p50": p50, "p99": p99}

system = {"inshore": Inshore, "lancedb": LanceDB, "pgvector": PgVector}[told["system"]]()
ask = system.client()
for setting in system.settings:
    found = [len(set(map(int, ask(query, setting))) & set(row.tolist())) for query, row in zip(queries, truth)]
    recall = sum(found) / truth.size
    if recall >= told["recall"]: break
for clients in (1, 4, 16, 64):
    found = run(clients, setting)
    print(json.dumps({"setting": setting, "recall": recall} | found), flush=True)
    if "failure" in found: break
"""

LOAD = """
import sys, numpy as np, psycopg
base, place = sys.argv[1:3]
dimensions = int(np.fromfile(base, "<u4", 2)[1])
x = np.memmap(base, np.uint8, "r", offset=8).reshape(-1, dimensions)
with psycopg.connect(place, autocommit=True) as db:
    db.execute("CREATE EXTENSION vector")
    db.execute(f"CREATE TABLE vectors (id bigint, v halfvec({dimensions}))")
    with db.cursor().copy("COPY vectors FROM STDIN") as copy:
        for number, row in enumerate(x):
            copy.write(f"{number}\\t{row.tolist()}\\n")
    db.execute("SET maintenance_work_mem = '1GB'")
    lists = int(len(x) ** 0.5)
    db.execute(f"CREATE INDEX ON vectors USING ivfflat (v halfvec_l2_ops) WITH (lists = {lists})")
"""


class Clients(Bench):
    """Measures each system with 1, 4, 16 and 64 clients."""

    def ask(self, system: str, folder: str, **more: object) -> list[str]:
        """Return the command that asks a system."""
        told = {"system": system, "folder": folder, "queries": str(self.options.queries)}
        told |= {"exact": str(self.folder / "exact.csv"), "recall": self.options.recall}
        told |= {"seconds": self.options.seconds, "peers": str(PEERS), **more}
        return [self.options.python, "-c", ASK, json.dumps(told)]

    def rows(self, name: str, done: subprocess.CompletedProcess[str], peak: str) -> None:
        """Add the rows of a system."""
        if done.returncode:
            raise SystemExit(done.stderr)
        for told in map(json.loads, done.stdout.splitlines()):
            row = [str(told["setting"] or ""), f"{told['recall']:.3f}"]
            if "failure" in told:
                row += ["the server was killed", "", ""]
            else:
                row += [f"{told['rate']:.0f}", *(f"{told[which]:.2f} ms" for which in ("p50", "p99"))]
            self.table.row(str(told["clients"]), name, *row, peak)

    def lance(self) -> None:
        """Measure LanceDB, without a limit if it does not end under the limit."""
        folder = self.folder / f"lancedb-{self.options.base.stem}"
        if not folder.exists():
            words = [self.options.python, str(PEERS / "nearest.py"), "build", "lancedb"]
            words += [str(self.options.base), str(folder), "0"]
            subprocess.run(words, check=True, capture_output=True)
        command = self.ask("lancedb", str(folder))
        done, name, peak = self.limited(command, self.options.patience), "LanceDB", str(self.peak_mib)
        if done.returncode:
            name, peak = "LanceDB (without the limit)", ""
            drop_caches()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.rows(name, done, peak)

    @contextmanager
    def server(self, data: Path, limit_bytes: int | None) -> Iterator[str]:
        """Run PostgreSQL's server in a cgroup, and give the place to connect to."""
        group = make_group(limit_bytes)
        join = f"echo $$ > {group}/cgroup.procs; " if group else ""
        program = Path(self.options.postgres) / "postgres"
        settings = ["shared_buffers=128MB", "listen_addresses=", f"unix_socket_directories={data}"]
        words = [str(program), "-D", str(data), *(word for each in settings for word in ("-c", each))]
        shell = ["sh", "-c", join + 'exec setpriv --reuid postgres --regid postgres --clear-groups "$@"', "sh"]
        drop_caches()
        with open(self.folder / "postgres.log", "wb") as log:
            running = subprocess.Popen([*shell, *words], stdout=log, stderr=log)
        try:
            ready = [str(program.parent / "pg_isready"), "-h", str(data), "-q"]
            while subprocess.run(ready, check=False).returncode:
                if running.poll() is not None:
                    raise SystemExit((self.folder / "postgres.log").read_text())
                time.sleep(0.1)
            yield f"host={data} user=postgres dbname=postgres"
        finally:
            # A fast shutdown. It may wait for long after the limit has killed a process of the server.
            running.send_signal(signal.SIGINT)
            try:
                running.wait(timeout=20)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
            if group:
                self.peak_mib = int((group / "memory.max_usage_in_bytes").read_text()) >> 20
                group.rmdir()

    def pgvector(self) -> None:
        """Measure pgvector, and build its index before if there is none."""
        data = self.folder.resolve() / f"pgvector-{self.options.base.stem}"
        if not data.exists():
            data.mkdir(mode=0o700)
            shutil.chown(data, "postgres", "postgres")
            words = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
            words += [str(Path(self.options.postgres) / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"]
            subprocess.run(words, check=True, capture_output=True)
            with self.server(data, None) as place:
                words = [self.options.python, "-c", LOAD, str(self.options.base), place]
                subprocess.run(words, check=True)
        with self.server(data, parse_budget(self.options.memory) + (96 << 20)) as place:
            done = subprocess.run(self.ask("pgvector", place), capture_output=True, text=True, check=False)
        self.rows("pgvector", done, str(self.peak_mib))

    def run(self) -> None:
        """Run all systems in turn and print the table."""
        options = self.options
        peers = {"lancedb": report.package(options.python, "lancedb")}
        columns = ["clients", "system", "lists", "recall at 10", "queries/s", "p50", "p99", "peak MiB"]
        self.table = report.Report(options, columns, peers)
        listed = subprocess.run([options.inshore, "nearest", "ls"], capture_output=True, text=True, check=False)
        if f"{self.name} " not in listed.stdout:
            self.inshore("import", str(options.base), "--name", self.name)
        self.query(self.first, "-k", "10")[1].rename(self.folder / "exact.csv")
        self.inshore("index", self.name, "--copies", str(options.copies))
        self.inshore("recall", self.name, str(self.first), "--sample", str(options.truth), "-k", "10")
        store = os.environ["INSHORE_STORE"]
        done = self.limited(self.ask("inshore", store, name=self.name, memory=options.memory))
        self.rows("Inshore", done, str(self.peak_mib))
        self.lance()
        if options.postgres:
            self.pgvector()
        self.table.write()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--truth", type=int, default=500, help="queries whose exact neighbours are found")
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--copies", type=int, default=4, help="the largest list with copies, in average lists")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--patience", type=float, default=240)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--postgres", help="the folder of PostgreSQL's programs; without it, no rows of pgvector")
    report.add_option(parser)
    Clients(parser.parse_args()).run()


if __name__ == "__main__":
    main()

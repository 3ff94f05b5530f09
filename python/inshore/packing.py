"""Verbs on files as bytes: compressing, decompressing and checksums, with all cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from inshore import _native
from inshore.results import Report, StrPath, drained
from inshore.sources import Inputs, listed
from inshore.target import Budget, Target


@dataclass(frozen=True)
class Packed:
    """Files that were compressed or decompressed.

    Attributes
    ----------
    paths : list of pathlib.Path
        What was written, in the order of the sources.
    bytes_in, bytes_out : int
        Bytes that were read and written.
    pieces : int
        Pieces that were worked on independently: what allows several cores.
    report : Report
        What it cost.
    """

    paths: list[Path]
    bytes_in: int
    bytes_out: int
    pieces: int
    report: Report


class FileVerbs(Target):
    """What can be done with files as bytes. These verbs give no rows, and run at once."""

    def compress(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        output: StrPath | None = None,
        format: str | None = None,
        level: int | None = None,
        force: bool = False,
        remove: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Packed:
        r"""Compress files with all cores, so that every program that knows the format reads them.

        The same file gives the same bytes, whatever the memory and the number of threads. A result has the
        permissions and the time of its file, and appears whole or not at all. Datasets of nodes are
        compressed there, and the results come here.

        Parameters
        ----------
        source : path or paths
            The files. Where one fails, those before it stay compressed. On nodes: datasets.
        output : path, optional
            The file to write, for a single source; else the name of each with another ending.
        format : str, optional
            ``"zstd"``, ``"gzip"``, ``"bzip2"`` or ``"lz4"``; by default what the ending of `output` says,
            else zstd.
        level : int, optional
            How hard to try: zstd 1 to 19 (habit: 3), gzip 1 to 12 (6), bzip2 1 to 9 (9), lz4 1.
        force : bool, default False
            Replace files that are there already.
        remove : bool, default False
            Remove each file once what it became is on the drive. Not on nodes.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Packed
            What was written.

        Raises
        ------
        ExistsError
            If a file is there already.
        InputError
            For a file that is compressed already, by its ending, and a format or level that there is not.
        BudgetError, FileError
            See `inshore.errors`. Nothing half made is left.

        Examples
        --------
        >>> _ = Path("log.txt").write_text("all is well\n" * 1000)
        >>> packed = inshore.compress("log.txt", format="gzip", memory="16MiB")
        >>> packed.paths, packed.bytes_in
        ([PosixPath('log.txt.gz')], 12000)
        >>> import gzip
        >>> gzip.decompress(Path("log.txt.gz").read_bytes())[:12]
        b'all is well\n'
        """
        fields = {"format": format, "level": level, "force": force, "remove": remove}
        return self._packed("compress", fields, listed(source, "source"), output, (memory, threads))

    def decompress(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        output: StrPath | None = None,
        force: bool = False,
        remove: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Packed:
        r"""Decompress gzip, bzip2, zstd and lz4, known by their first bytes, with all cores.

        What was compressed by `compress`, by pbzip2, or in several frames or members is decompressed by all
        cores; what is one piece by one.

        Parameters
        ----------
        source : path or paths
            The files. Where one fails, those before it stay decompressed.
        output : path, optional
            The file to write, for a single source; else the name of each without its ending.
        force, remove
            As in `compress`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Packed
            What was written.

        Raises
        ------
        ExistsError
            If a file is there already.
        InputError
            For what is damaged, cut or none of the formats.
        BudgetError, FileError
            See `inshore.errors`. Nothing half made is left.

        Examples
        --------
        >>> import bz2
        >>> _ = Path("log.txt.bz2").write_bytes(bz2.compress(b"all is well\n"))
        >>> inshore.decompress("log.txt.bz2", memory="16MiB").paths
        [PosixPath('log.txt')]
        >>> Path("log.txt").read_text()
        'all is well\n'
        """
        fields = {"force": force, "remove": remove}
        return self._packed("decompress", fields, listed(source, "source"), output, (memory, threads))

    def checksum(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        algorithm: str = "sha256",
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, str]:
        """Compute checksums of files, which are read side by side.

        Parameters
        ----------
        source : path or paths
            The files; ``"store:NAME"`` is a dataset of the store. On nodes: datasets.
        algorithm : str, default "sha256"
            ``"sha256"``, ``"blake3"``, ``"md5"``, ``"xxh64"`` or ``"crc32"``.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            For each file, as it was named, the checksum in hexadecimal.

        Raises
        ------
        FileError
            For the first file that cannot be read.
        InputError, BudgetError
            See `inshore.errors`.

        Examples
        --------
        >>> _ = Path("abc").write_text("abc")
        >>> inshore.checksum("abc", algorithm="md5")
        {'abc': '900150983cd24fb0d6963f7d28e17f72'}
        """
        files = self._checksums({"algorithm": algorithm}, Inputs(source), (memory, threads))
        return {file["name"]: file["checksum"] for file in files}

    def checksum_check(
        self,
        list: StrPath,
        *,
        algorithm: str = "sha256",
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, bool]:
        r"""Compare files with a list of checksums, as ``sha256sum`` and its kin write it.

        Parameters
        ----------
        list : path
            The file with checksums and names; these are seen from the current folder.
        algorithm, memory, threads
            As in `checksum`.

        Returns
        -------
        dict
            For each file whether it has its checksum.

        Raises
        ------
        InputError
            For a line that is no checksum and name.
        FileError
            For the first file that cannot be read.

        Examples
        --------
        >>> _ = Path("abc").write_text("abc")
        >>> _ = Path("sums").write_text("900150983cd24fb0d6963f7d28e17f72  abc\n")
        >>> inshore.checksum_check("sums", algorithm="md5")
        {'abc': True}
        """
        files = self._checksums({"algorithm": algorithm, "check": True}, Inputs(list), (memory, threads))
        return {file["name"]: file["is_right"] for file in files}

    def _packed(
        self,
        operation: str,
        fields: dict[str, Any],
        paths: list[StrPath],
        output: StrPath | None,
        budget: Budget,
    ) -> Packed:
        with _native.Job.plain(*budget) as job:
            run = self._start(job, operation, fields, paths, output)
            facts = drained(run)
        sizes = {key: facts["summary"][key] for key in ("bytes_in", "bytes_out", "pieces")}
        return Packed(run.written(), **sizes, report=facts["report"])

    def _checksums(self, fields: dict[str, Any], inputs: Inputs, budget: Budget) -> list[dict[str, Any]]:
        with self._job_for(inputs, budget) as job:
            facts = drained(self._start(job, "checksum", fields, inputs.paths(job)))
        return cast("list[dict[str, Any]]", facts["summary"]["files"])

"""Verbs on files as bytes: compression, decompression and checksums, with all cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from inshore import _native
from inshore.display import html
from inshore.display.progress import Watch
from inshore.results import Report, StrPath, cost, drained
from inshore.sources import Inputs, listed
from inshore.verbs.target import Budget, Target


@dataclass(frozen=True)
class Packed:
    r"""Files that were compressed or decompressed.

    Attributes
    ----------
    paths : list of pathlib.Path
        The written files, in the order of the sources.
    bytes_in, bytes_out : int
        The numbers of bytes read and written.
    pieces : int
        The number of independent pieces, which limits the number of used cores.
    report : Report
        The cost of the job.

    Examples
    --------
    >>> _ = Path("log.txt").write_text("all is well\n" * 1000)
    >>> packed = inshore.compress("log.txt", memory="48MiB")
    >>> packed.bytes_in, packed.bytes_out < 100
    (12000, True)
    """

    paths: list[Path]
    bytes_in: int
    bytes_out: int
    pieces: int
    report: Report

    def _repr_html_(self) -> str:
        """Show the files, their sizes and the cost in a notebook."""
        sizes = f"{html.format_bytes(self.bytes_in)} to {html.format_bytes(self.bytes_out)}"
        names = ", ".join(map(str, self.paths[:10])) + (", …" if len(self.paths) > 10 else "")  # noqa: PLR2004
        return html.panel("Packed", names, html.note(sizes), html.note(cost(self.report)))


class FileVerbs(Target):
    """Verbs on files as bytes. These verbs return no rows, and run at once."""

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
        r"""Compress files with all cores, in standard formats.

        The same file gives the same bytes for any memory and any number of threads. A result has the
        permissions and the time of its input, and appears complete or not at all. Nodes compress their own
        datasets; the results are written locally.

        Parameters
        ----------
        source : path or paths
            The files. If a file fails, all earlier files stay compressed. On nodes: datasets.
        output : path, optional
            The output file for a single source; by default the name of each source with another ending.
        format : str, optional
            ``"zstd"``, ``"gzip"``, ``"bzip2"`` or ``"lz4"``; by default the format of `output`'s ending, or
            zstd.
        level : int, optional
            The compression level: zstd 1 to 19 (default: 3), gzip 1 to 12 (6), bzip2 1 to 9 (9), lz4 1.
        force : bool, default False
            Replace existing files.
        remove : bool, default False
            Remove each file after its result is on the drive. Not on nodes.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Packed
            The written files.

        Raises
        ------
        ExistsError
            If an output file exists already.
        InputError
            For a file with the ending of a compressed file, and for an unknown format or level.
        BudgetError, FileError
            See `inshore.errors`. No partial file is left.

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
        r"""Decompress gzip, bzip2, zstd and lz4, detected by their first bytes, with all cores.

        Files of `compress` and of pbzip2, and files of several frames or members, use all cores; a file of
        one frame uses one core.

        Parameters
        ----------
        source : path or paths
            The files. If a file fails, all earlier files stay decompressed.
        output : path, optional
            The output file for a single source; by default the name of each source without its ending.
        force, remove
            As in `compress`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Packed
            The written files.

        Raises
        ------
        ExistsError
            If an output file exists already.
        InputError
            For a file that is damaged, truncated or in another format.
        BudgetError, FileError
            See `inshore.errors`. No partial file is left.

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
        """Compute checksums of files, several files at a time.

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
            The checksum of each file in hexadecimal, by the given name.

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
        r"""Compare files with a list of checksums, in the format of ``sha256sum`` and similar programs.

        Parameters
        ----------
        list : path
            The file with checksums and names; names are relative to the current folder.
        algorithm, memory, threads
            As in `checksum`.

        Returns
        -------
        dict
            True for each file whose checksum equals that of the list.

        Raises
        ------
        InputError
            For a line without a checksum and a name.
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
        with _native.Job.plain(*budget) as job, Watch(job, operation) as watch:
            run = self._start(job, operation, fields, paths, output)
            facts = drained(run, watch)
        sizes = {key: facts["summary"][key] for key in ("bytes_in", "bytes_out", "pieces")}
        return Packed(run.written(), **sizes, report=facts["report"])

    def _checksums(self, fields: dict[str, Any], inputs: Inputs, budget: Budget) -> list[dict[str, Any]]:
        with self._job_for(inputs, budget) as job, Watch(job, f"checksum of {inputs}") as watch:
            facts = drained(self._start(job, "checksum", fields, inputs.paths(job)), watch)
        return cast("list[dict[str, Any]]", facts["summary"]["files"])

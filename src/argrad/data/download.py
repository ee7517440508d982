"""Get, check and list the files of the catalogue.

A download goes to a temporary file beside its place and is moved there only when its hash is right, so that an
interrupted or wrong download leaves nothing behind. Nothing here runs unless it is called: loading never downloads.
"""

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from argrad.data.catalogue import CATALOGUE, File, Source
from argrad.data.errors import DataError, DownloadFailed
from argrad.data.locate import cure, data_folders, find_file, find_source

TIMEOUT_SECONDS = 30

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes that have come and the bytes in all (0 where the server does not say)."""


@dataclass(frozen=True)
class FileReport:
    """What is known about one file of a data set.

    Args:
        data: name of the data set.
        file: name of the file.
        state: "right" or "wrong" (on disk, by its hash), "missing", or "downloaded" (just now, and right).
        path: where it is, None when missing.
        expected: the hashes it may have.
        found: the hash it has, None when missing.
    """

    data: str
    file: str
    state: Literal["right", "wrong", "missing", "downloaded"]
    path: Path | None
    expected: tuple[str, ...]
    found: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the file is there and right."""
        return self.state in ("right", "downloaded")

    def __str__(self) -> str:
        if self.state == "missing":
            return f"{self.data}: {self.file} is missing"
        if self.state == "wrong":
            return f"{self.data}: {self.path} is wrong: expected {' or '.join(self.expected)}, found {self.found}"
        return f"{self.data}: {self.path} is {'downloaded and' if self.state == 'downloaded' else 'there and'} right"


@dataclass(frozen=True)
class Listing:
    """One line of the list of data sets.

    Args:
        name: catalogue name.
        description: one line.
        licence: as the origin states it.
        size: bytes to download.
        present: whether every file is on this machine (not whether it is right: see `check`).
        where: folder of the files, None when not present or when a package ships them.
        downloadable: whether `get` can fetch what is missing.
    """

    name: str
    description: str
    licence: str
    size: int
    present: bool
    where: Path | None
    downloadable: bool


def available() -> list[Listing]:
    """List the data sets of the catalogue and say which are on this machine.

    Example:
        >>> [listing.present for listing in available() if listing.name == "digits"]
        [True]
    """
    return [listing(source) for source in CATALOGUE.values()]


def listing(source: Source) -> Listing:
    """One line of the list."""
    paths = [find_file(source, file) for file in source.files]
    return Listing(
        name=source.name,
        description=source.description,
        licence=source.licence,
        size=source.size,
        present=None not in paths,
        where=paths[0].parent if paths and paths[0] is not None and None not in paths else None,
        downloadable=bool(source.files) and all(file.urls for file in source.files),
    )


def check(name: str) -> list[FileReport]:
    """Compare the files of a data set on this machine with the catalogue's hashes.

    Args:
        name: catalogue name.

    Returns:
        One report for each file; none for data that a package ships.
    """
    source = find_source(name)
    return [check_file(source, file) for file in source.files]


def check_file(source: Source, file: File) -> FileReport:
    """Compare one file with its hashes."""
    path = find_file(source, file)
    if path is None:
        return FileReport(source.name, file.name, "missing", None, file.hashes(file.name))
    expected = file.hashes(path.name)
    found = [hash_like(known, path) for known in expected]
    right = any(one == known for one, known in zip(found, expected, strict=True))
    return FileReport(source.name, file.name, "right" if right else "wrong", path, expected, found[0])


def hash_like(known: str, path: Path) -> str:
    """Hash of a file by the algorithm that a known hash ("sha256:...") names."""
    algorithm = known.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def get(
    name: str, *, mirror: str | None = None, replace: bool = False, progress: Progress | None = None
) -> list[FileReport]:
    """Download the files of a data set that are not on this machine yet, and verify them.

    Files go to `$ARGRAD_DATA/<name>` if that is set and can be written to, else to the user's cache folder.

    Args:
        name: catalogue name.
        mirror: address of a folder that holds the files, used in place of the catalogue's addresses.
        replace: whether a file that is there but wrong is replaced (only once the new one has come and is right);
            otherwise it is an error, as it may be somebody's own.
        progress: called as bytes come in.

    Returns:
        One report for each file, "downloaded" or "right" (it was there already).

    Raises:
        DownloadFailed: the file could not be had, or is not the expected one, or there is no space; nothing of it
            stays.
    """
    source = find_source(name)
    return [get_file(source, file, mirror, replace, progress) for file in source.files]


def get_file(source: Source, file: File, mirror: str | None, replace: bool, progress: Progress | None) -> FileReport:
    """Download one file unless it is there and right."""
    report = check_file(source, file)
    if report.ok:
        return report
    urls = (f"{mirror.rstrip('/')}/{file.name}",) if mirror else file.urls
    if not urls:
        raise DownloadFailed(f"{source.name}: {file.name} has no download address: {cure(source, file)}")
    if report.path is not None and not replace:
        raise DownloadFailed(f"{report}; move it away, or ask for it to be replaced; nothing was changed")
    path = report.path.with_name(file.name) if report.path is not None else download_folder(source) / file.name
    with no_empty_folders(path.parent):
        fetch(source, file, urls, path, progress)
    return FileReport(source.name, file.name, "downloaded", path, file.hashes(file.name), file.hash)


def download_folder(source: Source) -> Path:
    """Folder that the downloads of a data set go to: the first of the data folders that can be written to."""
    folders = [root / source.folders[0] for root in data_folders()]
    writable = [folder for folder in folders if os.access(existing(folder), os.W_OK)]
    if not writable:
        tried = " or ".join(str(folder) for folder in folders)
        raise DownloadFailed(f"{source.name}: cannot write to {tried}: set ARGRAD_DATA to a folder of yours")
    return writable[0]


def existing(folder: Path) -> Path:
    """The folder itself or the nearest one above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


@contextmanager
def no_empty_folders(folder: Path) -> Iterator[None]:
    """Create a folder for the time of a download, and remove again what was created if nothing came into it."""
    start = existing(folder)
    try:
        yield
    finally:
        path = folder.absolute()
        while path != start and path.is_dir() and not any(path.iterdir()):
            path.rmdir()
            path = path.parent


def fetch(source: Source, file: File, urls: tuple[str, ...], path: Path, progress: Progress | None) -> None:
    """Try one address after the other until the file has come."""
    free = shutil.disk_usage(existing(path.parent)).free
    if free < file.size:
        raise no_space(source, file, path)
    failures = []
    for url in urls:
        try:
            fetch_from(url, file, path, progress)
            return
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_space(source, file, path) from error
            failures.append(f"{url}: {reason(error)}")
        except DataError as error:
            failures.append(f"{url}: {error}")
    raise DownloadFailed(
        f"{source.name}: {file.name} could not be downloaded ({'; '.join(failures)}); nothing was kept; try again "
        "later or name another mirror"
    )


def fetch_from(url: str, file: File, path: Path, progress: Progress | None) -> None:
    """Download one file from one address to its place, through a temporary file and the check of its hash."""
    import pooch  # type: ignore[import-untyped, unused-ignore]

    bar = ProgressBar(file.name, progress) if progress else False
    http = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16, timeout=TIMEOUT_SECONDS)

    def download_and_compare(address: str, output: str, caller: Any) -> None:
        temporary = Path(output)
        try:
            http(address, output, caller)
        except OSError as error:
            if error.errno is None:  # of the network, not of the disk
                came = temporary.stat().st_size
                raise DataError(f"{reason(error)} after {came:,} bytes" if came else reason(error)) from error
            raise
        found = hash_like(file.hash, temporary)
        if found != file.hash:
            expected = f"{file.size:,} bytes with {file.hash}" if file.size else file.hash
            raise DataError(f"expected {expected}, but {temporary.stat().st_size:,} bytes with {found} came")

    with quiet(pooch.get_logger()):
        pooch.retrieve(url, file.hash, fname=path.name, path=path.parent, downloader=download_and_compare)
    path.chmod(0o644)  # temporary files are private, data need not be


class ProgressBar:
    """What pooch calls a progress bar, passing the numbers on to a function."""

    def __init__(self, file: str, progress: Progress) -> None:
        self.total = 0
        self._done = 0
        self._file = file
        self._progress = progress

    def update(self, count: int) -> None:
        """Note that `count` more bytes have come (pooch counts the last piece as a full one)."""
        self._done = min(self._done + count, self.total) if self.total else self._done + count
        self._progress(self._file, self._done, self.total)

    def reset(self) -> None:
        """Start again from nothing; pooch does so before it reports the whole."""
        self._done = 0

    def close(self) -> None:
        """Nothing to close."""


@contextmanager
def quiet(logger: logging.Logger) -> Iterator[None]:
    """Silence a logger for a while."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def reason(error: OSError) -> str:
    """Say in a few words why a download failed."""
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, exceptions.Timeout):
        return f"no answer within {TIMEOUT_SECONDS} seconds"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    return error.strerror or str(error).split("\n")[0] or type(error).__name__


def no_space(source: Source, file: File, path: Path) -> DownloadFailed:
    """The error for a full disk."""
    free = shutil.disk_usage(existing(path.parent)).free
    return DownloadFailed(
        f"{source.name}: no space for {file.name} in {path.parent}: {file.size:,} bytes are needed and {free:,} are "
        "free; make room, or set ARGRAD_DATA to a folder on a bigger disk; nothing was kept"
    )

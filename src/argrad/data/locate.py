"""Where data files are looked up: `$ARGRAD_DATA/<name>/` first, then the user's cache folder."""

import difflib
import os
from pathlib import Path

from argrad.data.catalogue import CATALOGUE, File, Source
from argrad.data.errors import MissingFiles, UnknownData


def data_folders() -> list[Path]:
    """The folders in which data sets are looked up, first to last; they need not exist."""
    chosen = os.environ.get("ARGRAD_DATA")
    folders = [Path(chosen).expanduser()] if chosen else []
    try:
        import pooch  # type: ignore[import-untyped, unused-ignore]
    except ImportError:  # a bare PyTorch image: what lies in $ARGRAD_DATA can still be read
        return folders
    return [*folders, Path(pooch.os_cache("argrad"))]


def find_source(name: str) -> Source:
    """Look a name up in the catalogue, or suggest what may have been meant."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    raise UnknownData(f"{name!r} is not in the catalogue: {suggestion(name)}")


def suggestion(name: str) -> str:
    """Say which name may have been meant, or list them all.

    Example:
        >>> suggestion("fashion_mnist")
        'did you mean fashion-mnist?'
    """
    close = difflib.get_close_matches(name.lower().replace("_", "-"), CATALOGUE, n=1)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(CATALOGUE)}"


def find_file(source: Source, file: File) -> Path | None:
    """Path of a file of a data set, under any of its names, or None."""
    for root in data_folders():
        for folder in source.folders:
            for name in file.names:
                path = root / folder / name
                if path.is_file():
                    return path
    return None


def find_files(source: Source) -> dict[str, Path]:
    """Paths of all files of a data set by `File.name`, or `MissingFiles`."""
    paths = {}
    for file in source.files:
        path = find_file(source, file)
        if path is None:
            raise MissingFiles(f"{source.name}: {file.name} is not on this machine: {cure(source, file)}")
        paths[file.name] = path
    return paths


def cure(source: Source, file: File) -> str:
    """Say how a missing file is to be had."""
    folders = [str(root / source.folders[0]) for root in data_folders()]
    places = " or ".join(folders) or "a folder <name> below $ARGRAD_DATA"
    if file.urls:
        return f"run `argrad data get {source.name}`, or put it into {places}"
    return f"argrad does not download it; licence {source.licence}; put it into {places}"

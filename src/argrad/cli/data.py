"""`argrad data`: list, download and check data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg, subcommand

from argrad.cli.out import Out

__all__ = ["Data"]


@dataclass
class ListData:
    """List the data sets that argrad knows, and which of them are on this machine."""

    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """One line for each data set."""
        from argrad.data import available

        listings = available()
        width = max(len(listing.name) for listing in listings)
        for listing in listings:
            here = "here" if listing.present else "not here" if listing.downloadable else "not here, get it by hand"
            size = f", {listing.size / 1e6:,.1f} MB" if listing.size else ""
            out.result(f"{listing.name:<{width}}  {listing.description} ({here}{size}; {listing.licence})")
        out.machine([asdict(listing) for listing in listings])
        return 0


@dataclass
class GetData:
    """Download a data set and verify it; files that are there and right are kept."""

    name: Positional[str]
    """A name from `argrad data list`."""
    mirror: Annotated[str | None, arg(metavar="URL", help_behavior_hint="(optional)")] = None
    """Address of a folder that holds the files, in place of their usual addresses."""
    replace: bool = False
    """Replace a file that is there but wrong."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Fetch what is missing."""
        from argrad.data import get

        def progress(file: str, done: int, total: int) -> None:
            out.progress(
                f"{file}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB" if total else f"{file}: {done / 1e6:,.1f} MB"
            )

        reports = get(self.name, mirror=self.mirror, replace=self.replace, progress=progress)
        return show_files(self.name, reports, out)


@dataclass
class CheckData:
    """Compare the files of a data set with their known hashes; exit code 1 if any is missing or wrong."""

    name: Positional[str]
    """A name from `argrad data list`."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """One line for each file."""
        from argrad.data import check

        return show_files(self.name, check(self.name), out)


def show_files(name: str, reports: Sequence[Any], out: Out) -> int:
    """Show what is known about the files of a data set."""
    for report in reports:
        out.result(str(report))
    if not reports:
        out.result(f"{name}: comes with a package, no files of its own")
    out.machine([{**asdict(report), "ok": report.ok} for report in reports])
    return 0 if all(report.ok for report in reports) else 1


@dataclass
class Data:
    """List, download and check data sets. Nothing is downloaded unless you ask with `get`."""

    action: (
        Annotated[ListData, subcommand("list")]
        | Annotated[GetData, subcommand("get")]
        | Annotated[CheckData, subcommand("check")]
    )

    def run(self, out: Out) -> int:
        """Pass on to the action."""
        return self.action.run(out)

    @property
    def json(self) -> bool:
        """That of the action."""
        return self.action.json

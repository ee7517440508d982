"""`argrad app`: the web app."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import Positional

from argrad.cli.out import Out, use_threads

__all__ = ["App"]


@dataclass
class App:
    """Look inside trained models in a browser.

    For example,
      argrad app                              everything in runs/
      argrad app runs/demo-20190526-101500    one run, or all that are in a folder
      argrad app --port 8000

    Explore what the codes of a model mean, compare runs, play with the estimators, segment a scan, complete a picture.
    Nothing leaves this machine, and nobody else can open the page unless --host says so. Ctrl-C ends it.
    """

    runs: Positional[tuple[Path, ...]] = field(default=())
    """Run folders, or folders that hold some; runs/ unless given."""
    host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0 lets everybody in who can reach this machine; there is no password."""
    port: int = 7860
    """The port, or the next free one."""
    open_browser: bool = False
    """Also open the page in the default browser."""
    json: bool = False
    """Print the address as one line of JSON once the page can be opened, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Look for the runs, serve."""
        if importlib.util.find_spec("gradio") is None:
            raise ValueError("the app needs the package gradio: pip install 'argrad[app]'")
        for path in self.runs:
            if not path.expanduser().is_dir():
                raise ValueError(f"{path} is not a folder; give a run folder, or a folder that holds runs")
        out.say("Loading …")
        use_threads(1)  # several visitors share the cores; a model this small gains nothing from more than one
        from argrad.app.library import Library
        from argrad.app.server import THIS_MACHINE, find_port, serve

        library = Library(self.runs or [Path("runs")])
        found = len(library.runs())
        port = find_port(self.host, self.port)

        def ready(address: str) -> None:
            out.result(f"{found or 'No'} run{'s' if found != 1 else ''}. Open {address} in a browser; Ctrl-C ends it.")
            if self.host not in THIS_MACHINE:
                out.say("Everybody who can reach this machine can open the page: there is no password.")
            out.machine({"address": address, "runs": found})
            if self.open_browser:
                import webbrowser

                webbrowser.open(address)

        serve(library, host=self.host, port=port, ready=ready)
        return 0
